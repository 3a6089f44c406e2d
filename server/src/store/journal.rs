//! The end of a database's journal after a crash of the machine.
//!
//! **Why.** What was written and not fsynced may be on the disk in part: any of its pages, whatever their order. The store
//! underneath cuts off a batch whose end is missing. But a batch that lacks a page in its middle has its end; its checksum
//! is wrong, and the store underneath refuses the whole database. So before a database is opened, the journal that was
//! written last is cut here before the first batch that is not whole.
//!
//! **What it guarantees.** Nothing is cut off that was fsynced, if only what was not is torn. Of the log, which is fsynced
//! batch by batch, only the last batch can be torn: a whole one behind it says that the damage is another, and that what is
//! damaged had been acknowledged. Then nothing is cut, and the log is refused. The state's journal holds many batches that
//! were never fsynced, and the log reaches back to before them; if more was lost than that, there is a gap between the
//! two, and the replica does not start (`StartError::Gap`).
//!
//! **What it does not know.** What the batches mean. Of the format (fjall's third) it knows where a batch ends and its checksum.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// The number of items and the sequence number.
const START_BYTES: usize = 12;
/// The kind of the value, its compression, the keyspace, and three lengths.
const ITEM_BYTES: usize = 20;
/// What follows an end's checksum.
const MAGIC: [u8; 4] = [b'F', b'J', b'L', 3];

/// What is looked at in one go when most of it is empty.
const BLOCK_BYTES: usize = 1 << 20;

/// What of a journal may be torn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Synced {
    /// Each batch was fsynced before the next was written: the last one.
    Always,
    /// Batches were fsynced now and then: any of the last ones.
    Sometimes,
}

/// Cuts the journal of the database in `dir` before its first batch that is not whole.
///
/// # Errors
///
/// It cannot be read or cut, or is damaged where it cannot have been torn.
pub(super) fn cut(dir: &Path, synced: Synced) -> io::Result<()> {
    let Some(path) = written_last(dir)? else { return Ok(()) };
    let mut file = File::options().read(true).write(true).open(&path)?;
    let end = whole_batches(&mut BufReader::new(&file))?;
    file.seek(SeekFrom::Start(end))?;
    // Journals are made longer than they are.
    if is_blank(&mut file)? {
        return Ok(());
    }
    file.seek(SeekFrom::Start(end))?;
    let mut rest = Vec::new();
    file.read_to_end(&mut rest)?;
    if synced == Synced::Always
        && let Some(behind) = (1..rest.len()).find(|at| rest[*at] == START && is_batch(&rest[*at..]))
    {
        let behind = end + behind as u64;
        let message =
            format!("{} is damaged at byte {end}: expected a whole batch, as one at {behind} is", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    tracing::warn!(path = %path.display(), at = end, "cutting off what a crash left half written");
    file.set_len(end)?;
    file.sync_all()
}

/// The journal with the highest number.
fn written_last(dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut last = None;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let is_journal = path.extension().is_some_and(|extension| extension == "jnl");
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        if let Some(number) = number.filter(|_| is_journal) {
            last = last.max(Some((number, path)));
        }
    }
    Ok(last.map(|(_, path)| path))
}

/// Whether only zeros follow.
fn is_blank(reader: &mut impl Read) -> io::Result<bool> {
    let (zeros, mut block) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    loop {
        match reader.read(&mut block)? {
            0 => return Ok(true),
            read if block[..read] != zeros[..read] => return Ok(false),
            _ => {}
        }
    }
}

/// How long the batches are that come before the first that is not whole.
fn whole_batches(reader: &mut impl Read) -> io::Result<u64> {
    let mut end = 0;
    while let Some(length) = batch(reader)? {
        end += length;
    }
    Ok(end)
}

fn is_batch(mut bytes: &[u8]) -> bool {
    // Reading from memory does not fail.
    batch(&mut bytes).is_ok_and(|length| length.is_some())
}

/// Reads one batch; answers its length, or none if it is not whole.
fn batch(reader: &mut impl Read) -> io::Result<Option<u64>> {
    match read_batch(reader) {
        Ok(length) => Ok(length),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_batch(reader: &mut impl Read) -> io::Result<Option<u64>> {
    if read_array::<1>(reader)? != [START] {
        return Ok(None);
    }
    let [count @ .., _, _, _, _, _, _, _, _] = read_array::<START_BYTES>(reader)?;
    // Nothing is written for nothing: whoever looks for a batch in the middle of something else shall not find such a one.
    if count == [0; 4] {
        return Ok(None);
    }
    let mut length = (1 + START_BYTES) as u64;
    let mut hash = Xxh3::new();
    for _ in 0..u32::from_le_bytes(count) {
        let [tag] = read_array(reader)?;
        hash.update(&[tag]);
        let Some(item) = (match tag {
            ITEM => read_item(reader, &mut hash)?,
            CLEAR => {
                hash.update(&read_array::<8>(reader)?);
                Some(8)
            }
            _ => None,
        }) else {
            return Ok(None);
        };
        length += 1 + item;
    }
    if read_array::<1>(reader)? != [END] {
        return Ok(None);
    }
    let checksum = u64::from_le_bytes(read_array(reader)?);
    let is_whole = checksum == hash.digest() && read_array(reader)? == MAGIC;
    Ok(is_whole.then_some(length + 1 + 8 + MAGIC.len() as u64))
}

/// Reads a key and a value; answers how long they are with what is before them.
fn read_item(reader: &mut impl Read, hash: &mut Xxh3) -> io::Result<Option<u64>> {
    let head: [u8; ITEM_BYTES] = read_array(reader)?;
    hash.update(&head);
    let [_, compression, _, _, _, _, _, _, _, _, key @ .., v0, v1, v2, v3, s0, s1, s2, s3] = head;
    let (value, stored) = ([v0, v1, v2, v3], [s0, s1, s2, s3]);
    // Ours are not compressed.
    if compression != 0 || value != stored {
        return Ok(None);
    }
    let length = u64::from(u16::from_le_bytes(key)) + u64::from(u32::from_le_bytes(stored));
    // Grows with what is there: a length that lies costs nothing.
    let mut bytes = Vec::new();
    reader.take(length).read_to_end(&mut bytes)?;
    hash.update(&bytes);
    Ok((bytes.len() as u64 == length).then_some(ITEM_BYTES as u64 + length))
}

fn read_array<const N: usize>(reader: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::FileExt};

    use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

    use super::*;

    const BATCHES: u8 = 5;
    /// Longer than a page: one in the middle can be missing.
    const VALUE_BYTES: usize = 3 * 4096;

    fn open(dir: &Path) -> (Database, Keyspace) {
        let database = Database::builder(dir).worker_threads(1).open().expect("opens");
        let keyspace = database.keyspace("rows", KeyspaceCreateOptions::default).expect("opens");
        (database, keyspace)
    }

    fn filled(dir: &Path) -> PathBuf {
        let (database, keyspace) = open(dir);
        for number in 0..BATCHES {
            let mut batch = database.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&keyspace, [number], vec![number + 1; VALUE_BYTES]);
            batch.insert(&keyspace, "last", [number]);
            batch.remove(&keyspace, "gone");
            batch.commit().expect("written");
        }
        written_last(dir).expect("read").expect("a journal")
    }

    /// Loses the middle of the value that a batch wrote.
    fn tear(journal: &Path, number: u8) {
        let file = File::options().read(true).write(true).open(journal).expect("opens");
        let one = whole_batches(&mut &file).expect("read") / u64::from(BATCHES);
        // The value is nearly all of the batch.
        file.write_all_at(&[0; 4096], one * u64::from(number) + 4096).expect("written");
    }

    fn last(dir: &Path) -> Option<u8> {
        let (_database, keyspace) = open(dir);
        keyspace.get("last").expect("read").map(|value| value[0])
    }

    #[test]
    fn a_whole_journal_is_left_as_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = filled(dir.path());
        let before = fs::read(&journal).expect("read");
        cut(dir.path(), Synced::Always).expect("whole");
        cut(dir.path(), Synced::Sometimes).expect("whole");
        assert!(fs::read(&journal).expect("read") == before);
        assert_eq!(last(dir.path()), Some(BATCHES - 1));
    }

    #[test]
    fn a_torn_batch_at_the_end_is_cut_off() {
        for synced in [Synced::Always, Synced::Sometimes] {
            let dir = tempfile::tempdir().expect("a directory");
            tear(&filled(dir.path()), BATCHES - 1);
            cut(dir.path(), synced).expect("cut");
            assert_eq!(last(dir.path()), Some(BATCHES - 2), "{synced:?}");
        }
    }

    #[test]
    fn whole_batches_behind_a_torn_one_go_too_unless_that_was_synced() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = filled(dir.path());
        tear(&journal, 1);
        let before = fs::read(&journal).expect("read");
        let refused = cut(dir.path(), Synced::Always).expect_err("damaged");
        assert!(refused.to_string().contains("is damaged at byte"), "{refused}");
        assert!(fs::read(&journal).expect("read") == before, "nothing is changed");
        cut(dir.path(), Synced::Sometimes).expect("cut");
        assert_eq!(last(dir.path()), Some(0));
    }

    #[test]
    fn wherever_a_journal_ends_the_whole_batches_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = filled(dir.path());
        let mut bytes = Vec::new();
        File::open(&journal).expect("opens").take(1 << 20).read_to_end(&mut bytes).expect("read");
        let one = whole_batches(&mut bytes.as_slice()).expect("read") / u64::from(BATCHES);
        for length in (0..one * u64::from(BATCHES)).step_by(997) {
            let some = usize::try_from(length).expect("small");
            assert_eq!(whole_batches(&mut &bytes[..some]).expect("read"), length / one * one);
        }
    }
}
