//! Folders that survive a crash of the machine, and that one process uses at a time.
//!
//! A new file or folder has a durable name only once its parent folder has been fsynced. An fsync
//! of the file itself covers only its content.
//!
//! Of a replica's files, only the databases have locks of their own. Two processes in one folder
//! would share the rest: each would write the other's durable index, and remove what the other
//! receives. So a process locks the folder before it reads anything in it. The system releases the
//! lock when the process ends, for whatever reason. A file that is left behind means nothing.

use std::{
    fs::{File, TryLockError},
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};

/// The locked file.
const LOCK: &str = "lock";

/// How often, and with which pause, a lock is tried: its owner may be about to end. (fjall does the
/// same.)
const LOCK_TRIES: usize = 3;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// More than the digits of any process id.
const NUMBER_MAX_BYTES: u64 = 20;

/// Why a folder could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryLockError {
    /// Another process has the lock.
    #[error("process {} has it", process.map_or_else(|| "(unknown)".to_owned(), |process| process.to_string()))]
    InUse {
        /// Its process id, if readable.
        process: Option<u32>,
    },
    /// The lock file cannot be created or locked.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The lock of a folder. It lasts until this is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Locks an existing folder. Changes nothing in it but the lock file.
    pub fn take(dir: &Path) -> Result<Self, DirectoryLockError> {
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(dir.join(LOCK))?;
        if !try_lock(&file)? {
            let mut number = String::new();
            // The process id only improves the error message.
            let _ = file.take(NUMBER_MAX_BYTES).read_to_string(&mut number);
            return Err(DirectoryLockError::InUse { process: number.trim().parse().ok() });
        }
        // The lock counts even if the process id cannot be written.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}

/// Locks a file. Returns false if another process has the lock after some tries.
///
/// # Errors
///
/// The file cannot be locked.
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

/// Creates a folder and its missing parents, durably. It fsyncs the parent of an existing folder
/// too, because its creator may have been interrupted before that.
///
/// # Errors
///
/// A folder cannot be created or fsynced.
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
        // A parent that we may not read was not created by us.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => match sync(parent) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        },
        Err(error) => Err(error),
    }
}

/// Makes the names in a folder durable.
///
/// # Errors
///
/// The folder cannot be opened, or the fsync failed.
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
