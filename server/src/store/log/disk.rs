//! The log's format on disk, and the checks at its opening.
//!
//! One database with two keyspaces:
//!
//! - `entries` maps the index (big-endian) to a crc32 (of the index and the rest), the
//!   [format](LOG_FORMAT) and the entry.
//! - `meta` has the database's format, the purge point, the last entry, the vote, and how far
//!   purged entries have been removed. The purge point has its own key: a search for the first
//!   entry would skip the tombstones of all purged ones (measured: 40 to 297 ms).

use std::{io, ops::Range, path::Path};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch as WriteBatch};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    sizes::Sizes,
    tail::{LogTail, entry_bytes},
};
use crate::{
    raft::types::alias::{LogId, RaftEntry, Vote},
    store::{database, durable_index::DurableIndex, journal::Synced},
};

const CRC_BYTES: usize = 4;
/// The checksum and the format.
const HEAD_BYTES: usize = CRC_BYTES + 1;

/// The format of the log: of its entries with their commands, and of its metadata. Raise it when
/// their bytes change; `server/tests/replica/formats.rs` detects that. A log of another format is
/// refused. Format 1 did not record its number.
pub const LOG_FORMAT: u8 = 7;
const MEMTABLE_MAX_BYTES: u64 = 16 << 20;

const ENTRIES: &str = "entries";
const META: &str = "meta";
const PURGED: &str = "purged";
const LAST: &str = "last";
const VOTE: &str = "vote";
const SWEPT: &str = "swept";

/// Why a log was not opened. The replica must not start: it may have acknowledged the missing data.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogError {
    /// The database cannot be opened or read.
    #[error("log: cannot be read: {0}")]
    Database(#[from] fjall::Error),
    /// The file of the durable index cannot be opened or read.
    #[error("file durable-index: cannot be read: {0}")]
    DurableIndex(io::Error),
    /// This program does not read the log's format.
    #[error("log: format {got}; expected format {expected}")]
    Format {
        /// Its format.
        got: u8,
        /// The format that this program reads.
        expected: u8,
    },
    /// A key or a value differs from what was written.
    #[error("log: damaged: {what}")]
    Damaged {
        /// The place, and the expected content.
        what: String,
    },
    /// Acknowledged entries are missing.
    #[error("log: ends at {got}; entry {expected} was acknowledged")]
    Short {
        /// The last entry found.
        got: String,
        /// The last entry expected.
        expected: String,
    },
    /// The vote is older than one that was saved.
    #[error("log: has the vote {got}; the vote {expected} was saved")]
    OldVote {
        /// The vote that was found.
        got: String,
        /// The vote that was saved.
        expected: String,
    },
    /// The writer's thread could not be started.
    #[error("log: start the writer: {0}")]
    Thread(io::Error),
}

fn damaged(what: impl Into<String>) -> OpenLogError {
    OpenLogError::Damaged { what: what.into() }
}

fn shown(id: Option<impl std::fmt::Display>) -> String {
    id.map_or_else(|| "nothing".to_owned(), |id| id.to_string())
}

/// The database. Clones are the same database.
#[derive(Clone)]
pub(super) struct LogDisk {
    database: Database,
    entries: Keyspace,
    meta: Keyspace,
}

impl LogDisk {
    /// Opens and checks the log.
    pub(super) fn open(dir: &Path, durable_index: &Path) -> Result<(Self, LogTail, DurableIndex), OpenLogError> {
        let keyspaces: [(&str, database::DatabaseOptions); 2] =
            [(ENTRIES, entries_options), (META, KeyspaceCreateOptions::default)];
        let database = database::open(dir, Synced::Always, &keyspaces)?;
        let [entries, meta] = keyspaces.map(|(name, options)| database::keyspace(&database, dir, name, options));
        let (entries, meta) = (entries?, meta?);
        let got = database::format(&database, &meta, LOG_FORMAT)?;
        if got != LOG_FORMAT {
            return Err(OpenLogError::Format { got, expected: LOG_FORMAT });
        }
        let disk = Self { database, entries, meta };
        let index = DurableIndex::open(durable_index).map_err(OpenLogError::DurableIndex)?;
        let tail = disk.check(&index)?;
        Ok((disk, tail, index))
    }

    fn check(&self, index: &DurableIndex) -> Result<LogTail, OpenLogError> {
        let acknowledged = index.current();
        let purged: Option<LogId> = self.meta(PURGED)?;
        let last: Option<LogId> = self.meta(LAST)?;
        let vote: Option<Vote> = self.meta(VOTE)?;
        if let Some(expected) = acknowledged.vote
            && vote.is_none_or(|vote| !matches!(vote.partial_cmp(&expected), Some(order) if order.is_ge()))
        {
            return Err(OpenLogError::OldVote { got: shown(vote), expected: expected.to_string() });
        }

        let mut found = purged;
        let mut sizes = Sizes::new(purged.map_or(0, |purged| purged.index + 1));
        for item in self.entries.range(key(purged.map_or(0, |purged| purged.index + 1))..) {
            let (key, value) = item.into_inner()?;
            let (log_id, _) = log_id_of(&key, &value).map_err(|error| damaged(error.to_string()))?;
            let expected = found.map_or(0, |found| found.index + 1);
            if log_id.index != expected {
                return Err(damaged(format!("entry {} is next; expected {expected}", log_id.index)));
            }
            found = Some(log_id);
            sizes.append(expected, value.len());
            if let Some(last) = acknowledged.last
                && last.index == expected
                && last != log_id
            {
                return Err(damaged(format!("ends at entry {log_id}; entry {last} was acknowledged")));
            }
        }
        if found != last {
            return Err(OpenLogError::Short { got: shown(found), expected: shown(last) });
        }
        if acknowledged.last.map(|last| last.index) > found.map(|found| found.index) {
            return Err(OpenLogError::Short { got: shown(found), expected: shown(acknowledged.last) });
        }
        Ok(LogTail::new(purged, found, vote, sizes))
    }

    fn meta<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, OpenLogError> {
        let Some(bytes) = self.meta.get(name)? else { return Ok(None) };
        let value = checked(name.as_bytes(), &bytes)
            .and_then(|bytes| postcard::from_bytes(bytes).map_err(invalid))
            .map_err(|error| damaged(format!("{name}: {error}")))?;
        Ok(Some(value))
    }

    /// The indexes of the purged entries that are still to be removed.
    pub(super) fn unswept(&self) -> Result<Range<u64>, OpenLogError> {
        let purged: Option<LogId> = self.meta(PURGED)?;
        let swept: Option<u64> = self.meta(SWEPT)?;
        Ok(swept.unwrap_or(0)..purged.map_or(0, |purged| purged.index + 1))
    }

    /// The entries with these indexes, up to `most_bytes` but at least one, and whether they are
    /// complete.
    pub(super) fn read(&self, indexes: Range<u64>, most_bytes: usize) -> io::Result<(Vec<RaftEntry>, bool)> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        for item in self.entries.range(key(indexes.start)..key(indexes.end)) {
            let (key, value) = item.into_inner().map_err(io::Error::other)?;
            let entry = decode(&key, &value)?;
            bytes += entry_bytes(&entry);
            if bytes > most_bytes && !entries.is_empty() {
                return Ok((entries, false));
            }
            entries.push(entry);
        }
        Ok((entries, true))
    }

    pub(super) fn batch(&self) -> WriteBatch {
        self.database.batch()
    }

    pub(super) fn put_entry(&self, batch: &mut WriteBatch, entry: &RaftEntry) -> io::Result<()> {
        let key = key(entry.log_id.index);
        let value = encode(&key, entry)?;
        batch.insert(&self.entries, key, value);
        Ok(())
    }

    pub(super) fn remove_entry(&self, batch: &mut WriteBatch, index: u64) {
        batch.remove(&self.entries, key(index));
    }

    pub(super) fn put_last(&self, batch: &mut WriteBatch, last: Option<LogId>) -> io::Result<()> {
        match last {
            Some(last) => self.put_meta(batch, LAST, &last),
            None => {
                batch.remove(&self.meta, LAST);
                Ok(())
            }
        }
    }

    pub(super) fn put_vote(&self, batch: &mut WriteBatch, vote: &Vote) -> io::Result<()> {
        self.put_meta(batch, VOTE, vote)
    }

    pub(super) fn put_purged(&self, batch: &mut WriteBatch, purged: &LogId) -> io::Result<()> {
        self.put_meta(batch, PURGED, purged)
    }

    pub(super) fn put_swept(&self, batch: &mut WriteBatch, below: u64) -> io::Result<()> {
        self.put_meta(batch, SWEPT, &below)
    }

    fn put_meta(&self, batch: &mut WriteBatch, name: &str, value: &impl Serialize) -> io::Result<()> {
        batch.insert(&self.meta, name, encode(name.as_bytes(), value)?);
        Ok(())
    }
}

/// Decodes an entry from its bytes on disk, and encodes it again.
pub(super) fn rewritten(key: &[u8], value: &[u8]) -> io::Result<Vec<u8>> {
    decode(key, value).and_then(|entry| encode(key, &entry))
}

/// The bytes of an entry on disk.
pub(super) fn written(entry: &RaftEntry) -> io::Result<Vec<u8>> {
    encode(&key(entry.log_id.index), entry)
}

fn entries_options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_MAX_BYTES)
}

fn key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

fn crc(key: &[u8], content: &[u8]) -> [u8; CRC_BYTES] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(content);
    hasher.finalize().to_le_bytes()
}

fn encode(key: &[u8], value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(value, vec![0, 0, 0, 0, LOG_FORMAT]).map_err(invalid)?;
    let crc = crc(key, &bytes[CRC_BYTES..]);
    bytes[..CRC_BYTES].copy_from_slice(&crc);
    Ok(bytes)
}

fn checked<'a>(key: &[u8], value: &'a [u8]) -> io::Result<&'a [u8]> {
    match value.split_at_checked(CRC_BYTES) {
        Some((expected, rest)) if expected != crc(key, rest) => Err(invalid("the checksum differs")),
        Some((_, [LOG_FORMAT, content @ ..])) => Ok(content),
        Some((_, [got, ..])) => Err(invalid(format!("format {got}; expected {LOG_FORMAT}"))),
        Some((_, [])) | None => Err(invalid(format!("{} bytes; expected at least {HEAD_BYTES}", value.len()))),
    }
}

/// The log id of an entry, which comes first in it, and the entry's bytes. It does not decode the
/// proposal, which would take most of the time. The checksum proves that the bytes are unchanged.
fn log_id_of<'a>(key: &[u8], value: &'a [u8]) -> io::Result<(LogId, &'a [u8])> {
    let index = <[u8; 8]>::try_from(key).map(u64::from_be_bytes).map_err(invalid)?;
    let content = checked(key, value).map_err(|error| invalid(format!("entry {index}: {error}")))?;
    let (log_id, _): (LogId, _) =
        postcard::take_from_bytes(content).map_err(|error| invalid(format!("entry {index}: {error}")))?;
    if log_id.index != index {
        return Err(invalid(format!("entry {index} says that it is {log_id}")));
    }
    Ok((log_id, content))
}

fn decode(key: &[u8], value: &[u8]) -> io::Result<RaftEntry> {
    let (log_id, content) = log_id_of(key, value)?;
    let entry: RaftEntry =
        postcard::from_bytes(content).map_err(|error| invalid(format!("entry {log_id}: {error}")))?;
    if entry.log_id != log_id {
        return Err(invalid(format!("entry {log_id} says that it is {}", entry.log_id)));
    }
    Ok(entry)
}
