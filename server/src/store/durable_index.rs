//! The durable index: a second, independent record of what the log has acknowledged.
//!
//! **Why the log's own last index is not enough.** The log stores it in the same batch as the
//! entries. fjall takes damage in the middle of its journal for a torn end (fjall issue 311). Such
//! damage removes the entries together with the index that would reveal their loss. This file is
//! independent: after each acknowledged batch it is overwritten in place with the last log id and
//! the vote. At the start the log must reach that far.
//!
//! **Guarantees.** Its content was durable in the log when it was written. It is written after the
//! log's fsync, and lowered durably before the log is truncated. So it never claims more than the
//! log has, and no complete log is refused. It may claim less: it is not fsynced with every batch,
//! because that would double the cost of a write. After the crash of a process, or damage to the
//! medium, it is exact. After a power loss it may be as old as the last vote or truncation.
//!
//! **Format.** Two slots, written in turn, each with a crc, a format and a counter. So a torn write
//! costs one slot.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::raft::types::alias::{LogId, Vote};

/// Longer than any record, which has five numbers of at most ten bytes, and a few flags.
const SLOT_BYTES: usize = 128;
const CRC_BYTES: usize = 4;
/// The checksum and the format.
const HEAD_BYTES: usize = CRC_BYTES + 1;

/// The format of a slot. Raise it when its bytes change; `server/tests/replica/formats.rs` detects
/// that. Another format is refused. Format 1 did not record its number.
pub const DURABLE_INDEX_FORMAT: u8 = 2;

/// No counter reaches this by counting. A higher one is damaged, even if its checksum is right.
const COUNTER_END: u64 = u64::MAX / 2;

/// The part of the log that was durable at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DurableRecord {
    counter: u64,
    /// The last entry that was acknowledged and not truncated since.
    pub last: Option<LogId>,
    /// The last vote that was saved.
    pub vote: Option<Vote>,
}

/// The open file of the durable index.
#[derive(Debug)]
pub struct DurableIndex {
    file: File,
    current: DurableRecord,
}

impl DurableIndex {
    /// Opens or creates the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let len = file.metadata()?.len();
        let slots = [read_slot(&file, 0)?, read_slot(&file, 1)?];
        let current = match slots.into_iter().flatten().max_by_key(|slot| slot.counter) {
            Some(current) => current,
            None if len == 0 => {
                file.set_len(2 * SLOT_BYTES as u64)?;
                file.sync_all()?;
                DurableRecord::default()
            }
            None if is_blank(&file)? => DurableRecord::default(),
            None => return Err(io::Error::new(io::ErrorKind::InvalidData, "both slots are damaged")),
        };
        Ok(Self { file, current })
    }

    /// The current record.
    pub fn current(&self) -> DurableRecord {
        self.current
    }

    /// Records that the log reaches `last` and the vote is `vote`. With `durably`, returns when the
    /// record is on the disk.
    ///
    /// # Errors
    ///
    /// The write or the fsync failed, or the counter is at its end, which only damage can cause.
    pub fn record(&mut self, last: Option<LogId>, vote: Option<Vote>, durably: bool) -> io::Result<()> {
        let next = DurableRecord { counter: self.current.counter + 1, last, vote };
        if next.counter >= COUNTER_END {
            let message = format!("file durable-index: counter {}; expected less than {COUNTER_END}", next.counter);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let slot = slot(&next)?;
        self.file.write_all_at(&slot, (next.counter % 2) * SLOT_BYTES as u64)?;
        if durably {
            self.file.sync_data()?;
        }
        self.current = next;
        Ok(())
    }
}

fn read_slot(file: &File, slot: u64) -> io::Result<Option<DurableRecord>> {
    let mut bytes = [0; SLOT_BYTES];
    match file.read_exact_at(&mut bytes, slot * SLOT_BYTES as u64) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let (crc, record) = bytes.split_at(CRC_BYTES);
    if crc != crc32fast::hash(record).to_le_bytes() {
        return Ok(None);
    }
    let [format, record @ ..] = record else { return Ok(None) };
    if *format != DURABLE_INDEX_FORMAT {
        let message = format!("file durable-index: format {format}; expected {DURABLE_INDEX_FORMAT}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(postcard::from_bytes(record).ok().filter(|slot: &DurableRecord| slot.counter < COUNTER_END))
}

/// Whether a crash came between creating the file and the first write.
fn is_blank(file: &File) -> io::Result<bool> {
    let mut bytes = [0; 2 * SLOT_BYTES];
    let read = file.read_at(&mut bytes, 0)?;
    Ok(bytes[..read].iter().all(|byte| *byte == 0))
}

/// The bytes of a record on the disk.
fn slot(witnessed: &DurableRecord) -> io::Result<[u8; SLOT_BYTES]> {
    let mut slot = [0; SLOT_BYTES];
    slot[CRC_BYTES] = DURABLE_INDEX_FORMAT;
    postcard::to_slice(witnessed, &mut slot[HEAD_BYTES..]).map_err(io::Error::other)?;
    let crc = crc32fast::hash(&slot[CRC_BYTES..]);
    slot[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    Ok(slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::types::alias::{LogId, Vote};

    fn log_id(term: u64, index: u64) -> LogId {
        LogId::new(openraft::vote::leader_id_std::CommittedLeaderId::new(term), index)
    }

    #[test]
    fn the_newest_intact_slot_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("durable-index");
        let mut index = DurableIndex::open(&path).expect("made");
        assert_eq!(index.current(), DurableRecord::default());
        index.record(Some(log_id(1, 5)), Some(Vote::new(1, 1)), false).expect("written");
        index.record(Some(log_id(1, 6)), Some(Vote::new(1, 1)), true).expect("written");
        drop(index);
        assert_eq!(DurableIndex::open(&path).expect("opens").current().last, Some(log_id(1, 6)));

        // The second record went to the first slot. Damage it.
        let file = OpenOptions::new().write(true).open(&path).expect("opens");
        file.write_all_at(b"garbage", 3).expect("written");
        assert_eq!(DurableIndex::open(&path).expect("opens").current().last, Some(log_id(1, 5)));
        file.write_all_at(b"garbage", SLOT_BYTES as u64 + 3).expect("written");
        assert!(DurableIndex::open(&path).is_err(), "both damaged");
    }

    #[test]
    fn a_counter_that_nobody_can_have_counted_is_damage() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("durable-index");
        let mut index = DurableIndex::open(&path).expect("made");
        index.current.counter = COUNTER_END - 2;
        index.record(None, None, false).expect("written");
        assert_eq!(DurableIndex::open(&path).expect("opens").current().counter, COUNTER_END - 1);
        assert!(index.record(None, None, false).is_err(), "it would not be read back");
        let beyond = slot(&DurableRecord { counter: u64::MAX, last: None, vote: None }).expect("encodes");
        let other = (COUNTER_END % 2) * SLOT_BYTES as u64;
        index.file.write_all_at(&beyond, other).expect("written");
        assert_eq!(DurableIndex::open(&path).expect("opens").current().counter, COUNTER_END - 1);
    }
}
