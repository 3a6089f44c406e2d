//! Directories that are still there after a crash of the machine.
//!
//! A new file or directory has a name only once its directory has been fsynced: an fsync of the file itself promises its
//! content, not that it can be found.

use std::{fs::File, io, path::Path};

/// Makes a directory and what is missing above it; all of it is on the disk then, also if it was there already: whoever
/// made it may have been interrupted before that.
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
