//! Whether this replica may take part in a cluster.
//!
//! A directory without this file is that of a replica that may have had another one before: it must
//! neither vote nor campaign until it knows that it may (see [`crate::raft::bootstrap`]). The file
//! is written before the replica's Raft starts for the first time, replaced as a whole (a new file,
//! fsynced, renamed, the directory fsynced), and says which cluster the directory belongs to.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use leasehold_protocol::volume::VolumeSettings;
use serde::{Deserialize, Serialize};

use crate::raft::types::alias::Vote;

pub use leasehold_wire::ClusterId;

/// The format of the file. Raise it when its bytes change (`server/tests/replica/formats.rs` says
/// so).
pub const FORMAT: u8 = 1;
const FILE: &str = "standing";

/// What a replica knows for good about its part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// The replica that the directory belongs to.
    pub replica: u64,
    /// The cluster.
    pub cluster: ClusterId,
    /// What the root volume promised when the cluster was founded: the state before the first
    /// entry.
    pub root: VolumeSettings,
    /// How it came to take part.
    pub participation: Participation,
}

/// How a replica came to take part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Participation {
    /// It was empty when the cluster was founded.
    Bootstrapped,
    /// It has been let in again, is no voter yet, and asks to become one.
    Rejoining {
        /// It must not vote below this, as it may have done so before.
        vote_floor: Vote,
    },
    /// It has been let in again and has been a voter since.
    Rejoined,
}

/// Why a standing cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StoreIdentityError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is damaged.
    #[error("{}: damaged: expected format {FORMAT} with a correct checksum", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The file is of a format that this program does not read.
    #[error("{}: format {got}: expected {expected}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        got: u8,
        /// Ours.
        expected: u8,
    },
    /// The directory is another replica's.
    #[error(
        "{}: belongs to replica {got}: expected replica {expected}; start it with --id {got}, or give \
         replica {expected} a data folder of its own",
        path.display()
    )]
    Replica {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        got: u64,
        /// Who opens it.
        expected: u64,
    },
}

/// Reads the standing of `replica` in `dir`; none if there is none.
///
/// # Errors
///
/// [`StoreIdentityError`]: there is one that cannot be used.
pub fn load(dir: &Path, replica: u64) -> Result<Option<StoreIdentity>, StoreIdentityError> {
    let path = dir.join(FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StoreIdentityError::Io { path, source }),
    };
    let Some(content) = checked(&bytes) else { return Err(StoreIdentityError::Damaged { path }) };
    let standing: StoreIdentity = match content {
        [FORMAT, content @ ..] => match postcard::take_from_bytes(content) {
            Ok((standing, [])) => standing,
            _ => return Err(StoreIdentityError::Damaged { path }),
        },
        [got, ..] => return Err(StoreIdentityError::Format { path, got: *got, expected: FORMAT }),
        [] => return Err(StoreIdentityError::Damaged { path }),
    };
    if standing.replica != replica {
        return Err(StoreIdentityError::Replica { path, got: standing.replica, expected: replica });
    }
    Ok(Some(standing))
}

/// Replaces the standing; returns when that is on the disk.
///
/// # Errors
///
/// [`StoreIdentityError::Io`].
pub fn store(dir: &Path, standing: &StoreIdentity) -> Result<(), StoreIdentityError> {
    let path = dir.join(FILE);
    replace(dir, &path, standing).map_err(|source| StoreIdentityError::Io { path, source })
}

/// Removes the standing of a replica that gives up a founding which it began and which cannot have
/// taken place.
///
/// # Errors
///
/// [`StoreIdentityError::Io`].
pub fn remove(dir: &Path) -> Result<(), StoreIdentityError> {
    let path = dir.join(FILE);
    std::fs::remove_file(&path)
        .and_then(|()| File::open(dir)?.sync_all())
        .map_err(|source| StoreIdentityError::Io { path, source })
}

fn replace(dir: &Path, path: &Path, standing: &StoreIdentity) -> io::Result<()> {
    let content = postcard::to_allocvec(standing).map_err(io::Error::other)?;
    let mut bytes = vec![FORMAT];
    bytes.extend_from_slice(&content);
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(dir)?.sync_all()
}

/// What stands before the checksum, if that is right.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (content, crc) = bytes.split_last_chunk::<4>()?;
    (crc32fast::hash(content).to_le_bytes() == *crc).then_some(content)
}
