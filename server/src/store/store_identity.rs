//! The store identity: whether this replica may take part in a cluster, and in which.
//!
//! A replica whose folder lacks this file may have lost an earlier folder. It must neither vote nor
//! campaign until it knows that it may (see [`crate::raft::bootstrap`]). The file is written before
//! the replica's Raft starts for the first time. It is replaced as a whole: a new file is fsynced
//! and renamed, then the folder is fsynced.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use leasehold_protocol::volume::VolumeSettings;
use serde::{Deserialize, Serialize};

use crate::raft::types::alias::Vote;

pub use leasehold_wire::ClusterId;

/// The format of the file. Raise it when its bytes change; `server/tests/replica/formats.rs`
/// detects that.
pub const FORMAT: u8 = 6;
const FILE: &str = "store-identity";

/// The permanent record of a replica's part in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// The replica that the folder belongs to.
    pub replica: u64,
    /// The cluster.
    pub cluster: ClusterId,
    /// The root volume's settings at the bootstrap: part of the state before the first entry.
    pub root: VolumeSettings,
    /// How the replica came to take part.
    pub participation: Participation,
}

/// How a replica came to take part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Participation {
    /// It was empty when the cluster was bootstrapped.
    Bootstrapped,
    /// It is rejoining. It is not a voter yet, and asks to become one.
    Rejoining {
        /// It must not vote below this, because it may have voted before it lost its disk.
        vote_floor: Vote,
    },
    /// It has rejoined, and has been a voter since.
    Rejoined,
}

/// Why a store identity cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreIdentityError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is damaged.
    #[error("{}: damaged; expected format {FORMAT} with a correct checksum", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// This program does not read the file's format.
    #[error("{}: format {got}; expected format {expected}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        got: u8,
        /// The format that this program reads.
        expected: u8,
    },
    /// The folder belongs to another replica.
    #[error(
        "{}: belongs to replica {got}, not {expected}; use --id {got}, or give replica {expected} \
         its own data folder",
        path.display()
    )]
    Replica {
        /// The file.
        path: PathBuf,
        /// The replica that it belongs to.
        got: u64,
        /// The replica that opens it.
        expected: u64,
    },
}

/// Reads the store identity of `replica` in `dir`. Returns `None` if there is none.
///
/// # Errors
///
/// [`StoreIdentityError`]: it exists, but cannot be used.
pub fn load(dir: &Path, replica: u64) -> Result<Option<StoreIdentity>, StoreIdentityError> {
    let path = dir.join(FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StoreIdentityError::Io { path, source }),
    };
    let Some(content) = checked(&bytes) else { return Err(StoreIdentityError::Damaged { path }) };
    let identity: StoreIdentity = match content {
        [FORMAT, content @ ..] => match postcard::take_from_bytes(content) {
            Ok((identity, [])) => identity,
            _ => return Err(StoreIdentityError::Damaged { path }),
        },
        [got, ..] => return Err(StoreIdentityError::Format { path, got: *got, expected: FORMAT }),
        [] => return Err(StoreIdentityError::Damaged { path }),
    };
    if identity.replica != replica {
        return Err(StoreIdentityError::Replica { path, got: identity.replica, expected: replica });
    }
    Ok(Some(identity))
}

/// Replaces the store identity. Returns when the new one is on the disk.
pub fn store(dir: &Path, identity: &StoreIdentity) -> Result<(), StoreIdentityError> {
    let path = dir.join(FILE);
    replace(dir, &path, identity).map_err(|source| StoreIdentityError::Io { path, source })
}

/// Removes the store identity of a replica that abandons a bootstrap. It began that bootstrap, and
/// has not completed it.
pub fn remove(dir: &Path) -> Result<(), StoreIdentityError> {
    let path = dir.join(FILE);
    std::fs::remove_file(&path)
        .and_then(|()| File::open(dir)?.sync_all())
        .map_err(|source| StoreIdentityError::Io { path, source })
}

fn replace(dir: &Path, path: &Path, identity: &StoreIdentity) -> io::Result<()> {
    let content = postcard::to_allocvec(identity).map_err(io::Error::other)?;
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

/// The bytes before the checksum, if that is right.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (content, crc) = bytes.split_last_chunk::<4>()?;
    (crc32fast::hash(content).to_le_bytes() == *crc).then_some(content)
}
