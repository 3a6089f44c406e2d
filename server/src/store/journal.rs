//! Repairs the end of a database's journal after a crash of the machine.
//!
//! **Why.** After a crash, any pages of data that was not fsynced may be missing. fjall cuts off a
//! batch whose end is missing. But a batch that lacks a page in its middle has its end and a wrong
//! checksum, and fjall refuses the whole database. So before a database is opened, this module cuts
//! its last journal at the first incomplete batch.
//!
//! **Guarantees.** If only data that was not fsynced is torn, nothing that was fsynced is cut off.
//!
//! - The log is fsynced batch by batch, so only its last batch can be torn. If data follows an
//!   incomplete batch, that batch was acknowledged and is damaged ([`tail`]). Then nothing is cut,
//!   and the log is refused.
//! - The state's journal has many batches that were never fsynced, and the log reaches back to
//!   before them. If more was lost, there is a gap between both, and the replica does not start
//!   (`ReplicaStartError::Gap`).
//!
//! First it fsyncs the journals and drops them from the kernel's cache, so that it reads only what
//! the disk has.
//!
//! The cut bytes are first saved to `DIR.cut`, with an fsync. The next cut replaces that file. So
//! each database has one at most, no longer than a journal.
//!
//! **What it does not know.** The meaning of the batches. [`batch`] knows the format.

mod batch;
mod tail;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use self::{batch::Whole, tail::JournalTail};
use super::directory;

/// The block size for reading a file that is mostly empty.
const BLOCK_BYTES: usize = 1 << 20;

/// Which batches of a journal may be torn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Synced {
    /// Each batch was fsynced before the next was written: only the last batch.
    Always,
    /// Batches were fsynced now and then: any of the last ones.
    Sometimes,
}

/// Cuts the journal of the database in `dir` at its first incomplete batch.
///
/// # Errors
///
/// The journal cannot be read or cut, or is damaged where it cannot have been torn.
pub(super) fn cut(dir: &Path, synced: Synced) -> io::Result<()> {
    for path in journals(dir)?.values() {
        read_from_disk(&File::open(path)?)?;
    }
    directory::sync(dir)?;
    let Some(path) = written_last(dir)? else { return Ok(()) };
    let mut file = File::options().read(true).write(true).open(&path)?;
    let (end, after) = whole_batches(&mut BufReader::new(&file))?;
    file.seek(SeekFrom::Start(end))?;
    let length = written(&mut file)?;
    // Journals are preallocated, so zeros may follow.
    if length == 0 {
        return Ok(());
    }
    file.seek(SeekFrom::Start(end))?;
    let mut rest = Vec::new();
    Read::by_ref(&mut file).take(length).read_to_end(&mut rest)?;
    let tail = JournalTail { bytes: &rest, start: end, after };
    if synced == Synced::Always
        && let Some(later) = tail.written_later()
    {
        let later = end + later as u64;
        let message = format!(
            "{} is damaged at byte {end}: expected a whole batch, as what is at {later} came after it",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let kept = keep(dir, &rest)?;
    tracing::warn!(
        path = %path.display(), at = end, bytes = length, kept = %kept.display(),
        "cutting off what a crash left half written, which was never acknowledged"
    );
    file.set_len(end)?;
    file.sync_all()
}

/// Makes sure that what is read from now on is on the disk (S11). It may not be yet: a process that
/// was killed has written batches without an fsync, and after a failed fsync the kernel still shows
/// data that it will never write. If such a batch counted as durable, the replica would acknowledge
/// it, and lose it in a crash of the machine.
fn read_from_disk(journal: &File) -> io::Result<()> {
    journal.sync_all()?;
    // No page is dirty now, so the kernel can drop them all.
    Ok(posix_fadvise(journal, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?)
}

/// Saves the bytes to be cut off in a file next to the database, with an fsync. Returns their path.
fn keep(dir: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let (path, new) = (beside(dir, ".cut"), beside(dir, ".cut.new"));
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, &path)?;
    directory::sync(dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    Ok(path)
}

fn beside(dir: &Path, ending: &str) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The journal with the highest number.
fn written_last(dir: &Path) -> io::Result<Option<PathBuf>> {
    Ok(journals(dir)?.pop_last().map(|(_, path)| path))
}

/// The journals by number.
fn journals(dir: &Path) -> io::Result<BTreeMap<u64, PathBuf>> {
    let mut journals = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let is_journal = path.extension().is_some_and(|extension| extension == "jnl");
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        if let Some(number) = number.filter(|_| is_journal) {
            journals.insert(number, path);
        }
    }
    Ok(journals)
}

/// The length of the input up to its last byte that is not zero.
fn written(reader: &mut impl Read) -> io::Result<u64> {
    let (zeros, mut block) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    let (mut looked_at, mut length) = (0, 0);
    loop {
        let read = reader.read(&mut block)?;
        if read == 0 {
            return Ok(length);
        }
        // A whole block is compared first, because most of them are empty.
        if block[..read] != zeros[..read]
            && let Some(last) = block[..read].iter().rposition(|byte| *byte != 0)
        {
            length = looked_at + last as u64 + 1;
        }
        looked_at += read as u64;
    }
}

/// The length of the batches before the first incomplete one, and the last one's sequence number.
fn whole_batches(reader: &mut impl Read) -> io::Result<(u64, Option<u64>)> {
    let (mut end, mut last) = (0, None);
    while let Some(Whole { length, sequence }) = batch::read(reader)? {
        (end, last) = (end + length, Some(sequence));
    }
    Ok((end, last))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::FileExt};

    use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

    use super::*;

    const BATCHES: u8 = 5;
    /// Longer than a page, so that a page in the middle can be missing.
    const VALUE_BYTES: usize = 3 * 4096;

    fn place(dir: &tempfile::TempDir) -> PathBuf {
        dir.path().join("database")
    }

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

    /// Zeroes the middle of the value that a batch wrote.
    fn tear(journal: &Path, number: u8) {
        let file = File::options().read(true).write(true).open(journal).expect("opens");
        let one = whole_batches(&mut &file).expect("read").0 / u64::from(BATCHES);
        // The value is almost the whole batch.
        file.write_all_at(&[0; 4096], one * u64::from(number) + 4096).expect("written");
    }

    fn last(dir: &Path) -> Option<u8> {
        let (_database, keyspace) = open(dir);
        keyspace.get("last").expect("read").map(|value| value[0])
    }

    #[test]
    fn a_whole_journal_is_left_as_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = filled(&place(&dir));
        let before = fs::read(&journal).expect("read");
        cut(&place(&dir), Synced::Always).expect("whole");
        cut(&place(&dir), Synced::Sometimes).expect("whole");
        assert!(fs::read(&journal).expect("read") == before);
        assert_eq!(last(&place(&dir)), Some(BATCHES - 1));
    }

    #[test]
    fn a_torn_batch_at_the_end_is_cut_off() {
        for synced in [Synced::Always, Synced::Sometimes] {
            let dir = tempfile::tempdir().expect("a directory");
            tear(&filled(&place(&dir)), BATCHES - 1);
            let before = fs::read(written_last(&place(&dir)).expect("read").expect("a journal")).expect("read");
            cut(&place(&dir), synced).expect("cut");
            let journal = written_last(&place(&dir)).expect("read").expect("a journal");
            let (end, length) =
                (fs::read(journal).expect("read").len(), written(&mut before.as_slice()).expect("read"));
            let kept = fs::read(dir.path().join("database.cut")).expect("kept");
            assert!(
                kept == before[end..usize::try_from(length).expect("small")],
                "all that was cut off, and no zeros behind it"
            );
            assert_eq!(last(&place(&dir)), Some(BATCHES - 2), "{synced:?}");
        }
    }

    #[test]
    fn batches_behind_torn_one_are_cut_unless_synced() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = filled(&place(&dir));
        tear(&journal, 1);
        let before = fs::read(&journal).expect("read");
        let refused = cut(&place(&dir), Synced::Always).expect_err("damaged");
        assert!(refused.to_string().contains("is damaged at byte"), "{refused}");
        assert!(fs::read(&journal).expect("read") == before, "nothing is changed");
        cut(&place(&dir), Synced::Sometimes).expect("cut");
        assert_eq!(last(&place(&dir)), Some(0));
    }

    #[test]
    fn wherever_a_journal_ends_the_whole_batches_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = filled(&place(&dir));
        let mut bytes = Vec::new();
        File::open(&journal).expect("opens").take(1 << 20).read_to_end(&mut bytes).expect("read");
        let one = whole_batches(&mut bytes.as_slice()).expect("read").0 / u64::from(BATCHES);
        for length in (0..one * u64::from(BATCHES)).step_by(997) {
            let some = usize::try_from(length).expect("small");
            assert_eq!(whole_batches(&mut &bytes[..some]).expect("read").0, length / one * one);
        }
    }

    #[test]
    fn what_cannot_be_kept_is_not_cut_off() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = filled(&place(&dir));
        tear(&journal, BATCHES - 1);
        let before = fs::read(&journal).expect("read");
        fs::create_dir(dir.path().join("database.cut")).expect("made");
        cut(&place(&dir), Synced::Always).expect_err("a directory is in its place");
        assert!(fs::read(&journal).expect("read") == before);
        fs::remove_dir(dir.path().join("database.cut")).expect("removed");
        cut(&place(&dir), Synced::Always).expect("cut");
        // The next cut replaces the file.
        fs::write(dir.path().join("database.cut"), "an earlier one").expect("written");
        let torn = fs::read(&journal).expect("read");
        fs::write(&journal, [&torn[..], b"half"].concat()).expect("written");
        cut(&place(&dir), Synced::Always).expect("cut");
        assert_eq!(fs::read(dir.path().join("database.cut")).expect("kept"), b"half");
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 2, "one for each database");
    }

    #[test]
    fn a_torn_log_with_a_batch_in_its_last_value_is_cut_at_the_tear() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = filled(&place(&dir));
        // A batch as in a journal, with a sequence number that has not been used yet.
        let mut value = fs::read(&journal).expect("read");
        value.truncate(
            usize::try_from(whole_batches(&mut value.as_slice()).expect("read").0).expect("small")
                / usize::from(BATCHES),
        );
        value[5..13].copy_from_slice(&u64::from(u32::MAX).to_le_bytes());
        let (database, keyspace) = open(&place(&dir));
        let mut batch = database.batch().durability(Some(PersistMode::SyncData));
        batch.insert(&keyspace, [BATCHES], [vec![9; VALUE_BYTES], value, vec![9; VALUE_BYTES]].concat());
        batch.insert(&keyspace, "last", [BATCHES]);
        batch.commit().expect("written");
        drop((keyspace, database));
        let file = File::options().read(true).write(true).open(&journal).expect("opens");
        let one = usize::try_from(whole_batches(&mut &file).expect("read").0).expect("small");
        let at = fs::read(&journal).expect("read")[..one]
            .windows(64)
            .rposition(|window| window == [9; 64])
            .expect("it is there");
        file.write_all_at(&[0; 64], at as u64).expect("written");
        cut(&place(&dir), Synced::Always).expect("it is the last");
        assert_eq!(last(&place(&dir)), Some(BATCHES - 1));
    }
}
