//! The format of a batch in a journal: fjall's format 3.
//!
//! ```text
//! START  number of items (4)  sequence number (8)
//! ITEM   kind (1)  compression (1)  keyspace (8)  length of the key (2)  of the value (4)  of the stored value (4)  key  value
//! CLEAR  keyspace (8)
//! END    checksum of the items (8)  magic (4)
//! ```
//!
//! Numbers are little-endian. Our batches are not compressed, so a value's two lengths are the
//! same. Sequence numbers rise from batch to batch, also across restarts. fjall draws a batch's
//! number under the same lock as it writes the batch. When it reads a journal again, it sets the
//! counter beyond all numbers there.

use std::io::{self, Read};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

pub(super) const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// The number of items and the sequence number.
const START_BYTES: usize = 12;
/// The kind of the value, its compression, the keyspace, and three lengths.
const ITEM_BYTES: usize = 20;
const CLEAR_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 8;
/// The last bytes of a batch, after its checksum.
const MAGIC: [u8; 4] = [b'F', b'J', b'L', 3];
/// The tag, the checksum and the magic.
const END_BYTES: usize = 1 + CHECKSUM_BYTES + MAGIC.len();

/// A batch that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole {
    /// Its length in bytes.
    pub(super) length: u64,
    /// Its sequence number.
    pub(super) sequence: u64,
}

/// Reads one batch. Returns `None` if it is not whole.
pub(super) fn read(reader: &mut impl Read) -> io::Result<Option<Whole>> {
    match read_whole(reader) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        outcome => outcome,
    }
}

fn read_whole(reader: &mut impl Read) -> io::Result<Option<Whole>> {
    if read_array::<1>(reader)? != [START] {
        return Ok(None);
    }
    let Some((count, sequence)) = start(&read_array(reader)?) else { return Ok(None) };
    let mut length = (1 + START_BYTES) as u64;
    let mut hash = Xxh3::new();
    for _ in 0..count {
        let [tag] = read_array(reader)?;
        hash.update(&[tag]);
        let item = match tag {
            ITEM => {
                let head: [u8; ITEM_BYTES] = read_array(reader)?;
                hash.update(&head);
                let Some((key, value)) = lengths(&head) else { return Ok(None) };
                let content = key as u64 + value as u64;
                // The buffer grows only with the bytes that exist, so a wrong length costs nothing.
                let mut bytes = Vec::new();
                reader.take(content).read_to_end(&mut bytes)?;
                hash.update(&bytes);
                if bytes.len() as u64 != content {
                    return Ok(None);
                }
                ITEM_BYTES as u64 + content
            }
            CLEAR => {
                hash.update(&read_array::<CLEAR_BYTES>(reader)?);
                CLEAR_BYTES as u64
            }
            _ => return Ok(None),
        };
        length += 1 + item;
    }
    let end: [u8; END_BYTES] = read_array(reader)?;
    let is_whole = checksum(&end) == Some(hash.digest());
    Ok(is_whole.then_some(Whole { length: length + END_BYTES as u64, sequence }))
}

fn read_array<const N: usize>(reader: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The number of items and the sequence number.
fn start(head: &[u8; START_BYTES]) -> Option<(u32, u64)> {
    let (count, sequence) = head.split_first_chunk::<4>()?;
    let (count, sequence) = (u32::from_le_bytes(*count), u64::from_le_bytes(sequence.try_into().ok()?));
    // An empty batch is never written. So a search for batches in other bytes must not find one.
    (count > 0).then_some((count, sequence))
}

/// The lengths of an item's key and value.
fn lengths(head: &[u8; ITEM_BYTES]) -> Option<(usize, usize)> {
    let [_, compression, _, _, _, _, _, _, _, _, key @ .., v0, v1, v2, v3, s0, s1, s2, s3] = *head;
    let (value, stored) = ([v0, v1, v2, v3], [s0, s1, s2, s3]);
    (compression == 0 && value == stored)
        .then(|| (usize::from(u16::from_le_bytes(key)), u32::from_le_bytes(stored) as usize))
}

/// The checksum of the items that a batch's end records.
fn checksum(end: &[u8]) -> Option<u64> {
    let (tag, rest) = end.split_first()?;
    let (checksum, rest) = rest.split_first_chunk::<CHECKSUM_BYTES>()?;
    (*tag == END && rest.starts_with(&MAGIC)).then(|| u64::from_le_bytes(*checksum))
}

/// Whether a batch ends right before this position.
pub(super) fn ends_before(bytes: &[u8], at: usize) -> bool {
    at.checked_sub(END_BYTES).and_then(|end| checksum(bytes.get(end..at)?)).is_some()
}

/// The extent of a batch by its own lengths, whatever its checksum says.
#[derive(Debug, Default)]
pub(super) struct Outline {
    pub(super) sequence: u64,
    /// The bounds of each value. The last one may end beyond the bytes.
    pub(super) values: Vec<(usize, usize)>,
    /// The end of the batch; `None` if the bytes do not show it.
    pub(super) end: Option<usize>,
    /// The number of items examined.
    pub(super) items: usize,
    items_end: usize,
}

impl Outline {
    /// The outline of the batch at `at`. `None` if no batch begins there.
    pub(super) fn of(bytes: &[u8], at: usize) -> Option<Self> {
        let (tag, rest) = bytes.get(at..)?.split_first()?;
        let (count, sequence) = start(rest.first_chunk()?).filter(|_| *tag == START)?;
        let mut next = at + 1 + START_BYTES;
        let mut outline = Self { sequence, ..Self::default() };
        for _ in 0..count {
            outline.items += 1;
            next = match bytes.get(next..).and_then(<[u8]>::split_first) {
                Some((&ITEM, rest)) => {
                    let Some((key, value)) = rest.first_chunk().and_then(lengths) else { return Some(outline) };
                    let begins = next + 1 + ITEM_BYTES + key;
                    outline.values.push((begins, begins + value));
                    begins + value
                }
                Some((&CLEAR, _)) => next + 1 + CLEAR_BYTES,
                _ => return Some(outline),
            };
        }
        if bytes.get(next..).and_then(checksum).is_some() {
            (outline.items_end, outline.end) = (next, Some(next + END_BYTES));
        }
        Some(outline)
    }

    /// Whether the batch, which began at `at`, is whole.
    pub(super) fn is_whole(&self, bytes: &[u8], at: usize) -> bool {
        self.end.is_some()
            && checksum(&bytes[self.items_end..]) == Some(xxh3_64(&bytes[at + 1 + START_BYTES..self.items_end]))
    }
}

/// Whether a batch with a sequence number above `last` may begin here, as far as the bytes show it.
pub(super) fn may_begin(bytes: &[u8], last: u64) -> bool {
    let Some((tag, rest)) = bytes.split_first() else { return true };
    let follows = match rest.split_first_chunk() {
        Some((head, rest)) => {
            start(head).is_some_and(|(_, sequence)| sequence > last)
                && rest.first().is_none_or(|tag| matches!(*tag, ITEM | CLEAR))
        }
        None => true,
    };
    *tag == START && follows
}

#[cfg(test)]
mod tests {
    use fjall::{Database, KeyspaceCreateOptions, PersistMode};

    use super::*;
    use crate::store::journal::written_last;

    #[test]
    fn sequence_numbers_rise_from_batch_to_batch_over_restarts_too() {
        let dir = tempfile::tempdir().expect("a directory");
        for _ in 0..3 {
            let database = Database::builder(dir.path()).worker_threads(1).open().expect("opens");
            let keyspace = database.keyspace("rows", KeyspaceCreateOptions::default).expect("opens");
            for _ in 0..3 {
                let mut batch = database.batch().durability(Some(PersistMode::SyncData));
                batch.insert(&keyspace, "one", "value");
                batch.remove(&keyspace, "gone");
                batch.commit().expect("written");
                // Batches outside the journal use sequence numbers too.
                keyspace.rotate_memtable_and_wait().expect("flushed");
            }
        }
        let mut numbers = Vec::new();
        let mut journals: Vec<_> = std::fs::read_dir(dir.path())
            .expect("read")
            .map(|entry| entry.expect("read").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"))
            .collect();
        journals.sort();
        assert_eq!(journals.last(), written_last(dir.path()).expect("read").as_ref());
        for journal in journals {
            let mut reader = io::BufReader::new(std::fs::File::open(journal).expect("opens"));
            while let Some(Whole { sequence, .. }) = read(&mut reader).expect("read") {
                numbers.push(sequence);
            }
        }
        assert!(numbers.len() > 3 && numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    }
}
