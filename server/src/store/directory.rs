//! Directories: still there after a crash of the machine, and used by one process at a time.
//!
//! A new file or directory has a name only once its directory has been fsynced: an fsync of the
//! file itself promises its content, not that it can be found.
//!
//! Of what a replica keeps only the databases have locks of their own. Two processes on one
//! directory would share the rest: each would count in the other's witness, and remove what the
//! other receives. So whoever uses the directory has its lock, from before it looks at anything in
//! it. The lock is the system's, on a file: it goes with the process, however that ends, and a file
//! that is left behind means nothing.

use std::{
    fs::{File, TryLockError},
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};

/// The file that is locked.
const LOCK: &str = "lock";

/// Whoever has a lock may be about to end: so often is it tried, with so long a pause between. (The
/// store underneath does the same.)
const LOCK_TRIES: usize = 3;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Of a process's number, far more than it has.
const NUMBER_MAX_BYTES: u64 = 20;

/// Why a directory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryLockError {
    /// Somebody else has it.
    #[error("process {} has it", process.map_or_else(|| "(unknown)".to_owned(), |process| process.to_string()))]
    InUse {
        /// Who, if that can be read.
        process: Option<u32>,
    },
    /// The file cannot be made, or not be locked.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A directory is this process's, as long as this is there.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Takes the directory, which has to be there. Changes nothing in it but the lock's own file.
    ///
    /// # Errors
    ///
    /// [`DirectoryLockError`].
    pub fn take(dir: &Path) -> Result<Self, DirectoryLockError> {
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(dir.join(LOCK))?;
        if !try_lock(&file)? {
            let mut number = String::new();
            // Who it is only helps whoever reads the error.
            let _ = file.take(NUMBER_MAX_BYTES).read_to_string(&mut number);
            return Err(DirectoryLockError::InUse { process: number.trim().parse().ok() });
        }
        // As above: the lock is had whether or not this can be written.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}

/// Locks a file. False if somebody else has it, and keeps it for a moment.
///
/// # Errors
///
/// It cannot be locked.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    for tries_left in (0..LOCK_TRIES).rev() {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if tries_left == 0 => {}
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
        }
    }
    Ok(false)
}

/// Makes a directory and what is missing above it; all of it is on the disk then, also if it was
/// there already: whoever made it may have been interrupted before that.
///
/// # Errors
///
/// It cannot be made, or not be put on the disk.
pub fn create(dir: &Path) -> io::Result<()> {
    let parent = match dir.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(()),
    };
    if !parent.try_exists()? {
        create(parent)?;
    }
    match std::fs::create_dir(dir) {
        Ok(()) => sync(parent),
        // Where we may not look we have not made it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => match sync(parent) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        },
        Err(error) => Err(error),
    }
}

/// Puts the names in a directory on the disk.
///
/// # Errors
///
/// The directory cannot be opened, or the fsync failed.
pub fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_directory_lock_is_exclusive_and_ignores_stale_file() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(LOCK), "4242424242\n").expect("as a killed process leaves it");
        let held = DirectoryLock::take(dir.path()).expect("nobody has it");
        let refused = DirectoryLock::take(dir.path()).expect_err("somebody has it");
        assert!(
            matches!(refused, DirectoryLockError::InUse { process } if process == Some(std::process::id())),
            "{refused}"
        );
        drop(held);
        DirectoryLock::take(dir.path()).expect("it is free again");
    }
}
