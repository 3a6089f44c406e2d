//! What follows the whole batches of a journal: one torn batch, or damage.
//!
//! **The question.** If a journal is fsynced batch by batch, only its last batch can be torn. If a
//! batch was written after an incomplete one, the incomplete one had been fsynced, and is damaged.
//! So this module searches for a later batch. But a value can contain any bytes, those of a batch
//! too. A batch found may be a part of the torn one, and then proves nothing.
//!
//! **How to distinguish them.** A batch that was written after the incomplete one
//!
//! - has a sequence number at least two above that of the last whole batch;
//! - is followed, perhaps after others of rising numbers, by the end of the data, or by the
//!   beginning of another batch, which may be torn. Nothing else is ever written after a batch;
//! - is not within a value of the incomplete one, by the lengths in the incomplete one. (A damaged
//!   length might place it there, although a value's length is stored twice. So this condition does
//!   not apply to a batch that begins right where another ends.)
//!
//! If the incomplete batch has its end where its lengths place it, the lengths decide at once
//! whether anything follows. A doubtful case counts as damage. That costs a restart with an empty
//! folder. The opposite mistake would lose acknowledged entries.
//!
//! **Cost.** Each byte is examined a bounded number of times. Values that imitate batches many
//! times over are treated as damage, and do not use up the processor.

use super::batch::{self, Outline, START};

/// A disk writes a sector completely or not at all. So a lost beginning of a batch is zeros up to
/// the border of a sector.
const SECTOR_BYTES: usize = 512;

/// How many items and bytes may be examined without result, for each byte of the tail.
const IN_VAIN_MAX: usize = 8;

/// The bytes after the whole batches of a journal.
#[derive(Debug)]
pub(super) struct JournalTail<'a> {
    /// From the first byte outside a whole batch to the last byte that is not zero.
    pub(super) bytes: &'a [u8],
    /// The position of these bytes in the file.
    pub(super) start: u64,
    /// The sequence number of the last whole batch.
    pub(super) after: Option<u64>,
}

impl JournalTail<'_> {
    /// The position of data that was, or may have been, written after the incomplete batch. `None`
    /// if that batch was the last one.
    pub(super) fn written_later(&self) -> Option<usize> {
        let torn = Outline::of(self.bytes, 0).unwrap_or_default();
        if let Some(end) = torn.end {
            return (end < self.bytes.len()).then_some(end);
        }
        let mut in_vain = self.bytes.len() * IN_VAIN_MAX;
        let (mut at, mut embedded_to) = (1, 0);
        while let Some(begins) = self.bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == START)) {
            at += begins;
            let Some(found) = Outline::of(self.bytes, at) else {
                at += 1;
                continue;
            };
            if !found.is_whole(self.bytes, at) {
                let examined = 1 + found.items + found.end.map_or(0, |end| end - at);
                let Some(left) = in_vain.checked_sub(examined) else { return Some(at) };
                in_vain = left;
                at += 1;
                continue;
            }
            let (end, last) = self.chain(at, &found);
            let is_claimed = torn.values.iter().any(|(from, to)| *from <= at && end <= *to);
            let follows_one = at != embedded_to && batch::ends_before(self.bytes, at);
            let is_embedded = !self.is_later(last) || (is_claimed && !follows_one) || !self.may_go_on(end, last);
            if !is_embedded {
                return Some(at);
            }
            (at, embedded_to) = (end, end);
        }
        None
    }

    /// Whether a batch with this number can have been written after the incomplete one.
    fn is_later(&self, sequence: u64) -> bool {
        self.after.is_none_or(|after| sequence.saturating_sub(1) > after)
    }

    /// The end of the run of whole batches that begins at `at`, and the sequence number of its last
    /// batch.
    fn chain(&self, at: usize, first: &Outline) -> (usize, u64) {
        let (mut end, mut last) = (first.end.unwrap_or(at), first.sequence);
        while let Some(next) = Outline::of(self.bytes, end)
            && let Some(next_end) = next.end
            && next.sequence > last
            && next.is_whole(self.bytes, end)
        {
            (end, last) = (next_end, next.sequence);
        }
        (end, last)
    }

    /// Whether a batch that ends here is followed by nothing, by another batch, or by what may be
    /// the rest of one.
    fn may_go_on(&self, end: usize, last: u64) -> bool {
        let rest = &self.bytes[end..];
        let border = SECTOR_BYTES - (self.start as usize + end) % SECTOR_BYTES;
        let (in_sector, is_cut) = (&rest[..rest.len().min(border)], rest.len() > border);
        let is_lost = is_cut && in_sector.iter().all(|byte| *byte == 0);
        rest.is_empty() || is_lost || batch::may_begin(if is_cut { in_sector } else { rest }, last)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, ops::Range};

    use fjall::{Database, KeyspaceCreateOptions, PersistMode};

    use super::*;
    use crate::store::journal::{batch::Whole, whole_batches, written, written_last};

    /// The journal that fjall writes for these values, one batch each, and the range of each batch.
    fn journal(values: &[Vec<u8>]) -> (Vec<u8>, Vec<Range<usize>>) {
        let dir = tempfile::tempdir().expect("a directory");
        let database = Database::builder(dir.path()).worker_threads(1).open().expect("opens");
        let keyspace = database.keyspace("rows", KeyspaceCreateOptions::default).expect("opens");
        for (number, value) in (0_u64..).zip(values) {
            let mut batch = database.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&keyspace, number.to_be_bytes(), value.as_slice());
            batch.insert(&keyspace, "last", number.to_be_bytes());
            batch.commit().expect("written");
        }
        let mut bytes = fs::read(written_last(dir.path()).expect("read").expect("a journal")).expect("read");
        bytes.truncate(usize::try_from(written(&mut bytes.as_slice()).expect("read")).expect("small"));
        let (mut batches, mut at) = (Vec::new(), 0);
        while let Some(Whole { length, .. }) = batch::read(&mut &bytes[at..]).expect("read") {
            batches.push(at..at + usize::try_from(length).expect("small"));
            at += usize::try_from(length).expect("small");
        }
        assert_eq!((batches.len(), at), (values.len(), bytes.len()));
        (bytes, batches)
    }

    /// Batches with higher sequence numbers than the tests' own.
    fn others() -> Vec<u8> {
        let (bytes, batches) = journal(&vec![vec![7; 50]; 40]);
        bytes[batches[37].start..].to_vec()
    }

    fn written_later(journal: &[u8]) -> Option<u64> {
        let length = usize::try_from(written(&mut &*journal).expect("read")).expect("small");
        let (start, after) = whole_batches(&mut &*journal).expect("read");
        let bytes = &journal[usize::try_from(start).expect("small")..length];
        JournalTail { bytes, start, after }.written_later().map(|at| start + at as u64)
    }

    /// The journal in variants: in each, one range of bytes is lost.
    fn losing<'a>(
        journal: &'a [u8],
        of: &Range<usize>,
        step: usize,
    ) -> impl Iterator<Item = (Range<usize>, Vec<u8>)> + 'a {
        let borders: Vec<usize> =
            (of.start..of.end).filter(|at| at % step == 0 || *at == of.start).chain([of.end]).collect();
        let pairs =
            borders.clone().into_iter().flat_map(move |from| borders.clone().into_iter().map(move |to| from..to));
        pairs.filter(|lost| !lost.is_empty()).map(|lost| {
            let mut journal = journal.to_vec();
            journal[lost.clone()].fill(0);
            (lost, journal)
        })
    }

    fn with_others_within(filler: u8) -> Vec<u8> {
        [vec![filler; 700], others(), vec![filler; 900]].concat()
    }

    #[test]
    fn batches_within_a_value_of_the_torn_one_say_nothing() {
        for filler in [0xee, START] {
            let (bytes, batches) = journal(&[vec![5; 300], vec![6; 300], with_others_within(filler)]);
            for (lost, torn) in losing(&bytes, &batches[2], SECTOR_BYTES) {
                assert_eq!(written_later(&torn), None, "{lost:?} of {:?} lost", batches[2]);
            }
        }
    }

    #[test]
    fn torn_batch_is_recognized_by_its_own_lengths() {
        let (bytes, batches) = journal(&[vec![5; 300], with_others_within(0xee)]);
        let others = others();
        let within = bytes.windows(others.len()).position(|window| window == others).expect("it is there");
        assert_eq!(written_later(&bytes[..within + others.len()]), None);
        // Without its lengths it cannot be recognized, so nothing is cut.
        let mut headless = bytes[..within + others.len()].to_vec();
        headless[batches[1].start..batches[1].start + 20].fill(0);
        assert_eq!(written_later(&headless), Some(within as u64));
    }

    #[test]
    fn a_value_may_begin_the_numbers_anew() {
        let twice = [others(), others()].concat();
        let (bytes, _) = journal(&[vec![5; 300], [vec![0xee; 700], twice.clone(), vec![0xee; 900]].concat()]);
        let within = bytes.windows(twice.len()).position(|window| window == twice).expect("it is there");
        assert_eq!(written_later(&bytes[..within + twice.len()]), None);
    }

    #[test]
    fn a_batch_that_is_not_newer_was_not_written_later() {
        let (earlier, _) = journal(&[vec![5; 300]]);
        let (bytes, batches) = journal(&[vec![5; 300], [vec![0xee; 700], earlier.clone(), vec![0xee; 900]].concat()]);
        let within = bytes[batches[1].start..].windows(earlier.len()).position(|window| window == earlier);
        let mut headless = bytes[..batches[1].start + within.expect("it is there") + earlier.len()].to_vec();
        headless[batches[1].start..batches[1].start + 20].fill(0);
        assert_eq!(written_later(&headless), None);
    }

    #[test]
    fn a_damaged_batch_that_anything_follows_was_not_the_last() {
        let (bytes, batches) = journal(&[vec![5; 300], vec![6; 300], vec![7; 300]]);
        let mut damaged = bytes[..batches[2].start + 100].to_vec();
        damaged[batches[1].start + 100] ^= 0x5a;
        assert_eq!(written_later(&damaged), Some(batches[2].start as u64));
        damaged.truncate(batches[2].start);
        assert_eq!(written_later(&damaged), None);
    }

    #[test]
    fn batches_behind_damaged_one_are_found_whatever_is_left_of_it() {
        let small = vec![8; 40];
        let (bytes, batches) = journal(&[vec![5; 300], with_others_within(0xee), small.clone(), small]);
        for (lost, mut damaged) in losing(&bytes, &batches[1], 97) {
            assert!(written_later(&damaged).is_some(), "{lost:?} of {:?} lost", batches[1]);
            for at in lost.clone() {
                damaged[at] = bytes[at] ^ 0x5a;
            }
            assert!(written_later(&damaged).is_some(), "{lost:?} of {:?} changed", batches[1]);
        }
    }

    #[test]
    fn a_changed_length_claims_no_batch_that_was_written_later() {
        let (bytes, batches) = journal(&[vec![5; 300], vec![6; 300], vec![7; 100], vec![8; 100]]);
        // The upper byte of the key's length, and the two upper bytes in both lengths of the value.
        for changed in [&[25][..], &[28, 32], &[29, 33]] {
            let mut damaged = bytes.clone();
            for at in changed {
                damaged[batches[1].start + at] = 1;
            }
            assert_eq!(written_later(&damaged), Some(batches[2].start as u64), "{changed:?}");
        }
    }

    #[test]
    fn a_batch_between_a_damaged_one_and_a_torn_one_is_found() {
        let (bytes, batches) = journal(&[vec![5; 300], vec![6; 300], vec![7; 100], vec![8; 2000]]);
        for (lost, mut torn) in losing(&bytes, &batches[3], SECTOR_BYTES) {
            torn[batches[1].start + 100] ^= 0x5a;
            assert!(written_later(&torn).is_some(), "{lost:?} of {:?} lost", batches[3]);
            torn[batches[1].start..batches[1].start + 50].fill(0x5a);
            assert_eq!(written_later(&torn), Some(batches[2].start as u64), "{lost:?} of {:?} lost", batches[3]);
        }
    }

    #[test]
    fn what_looks_like_batches_over_and_over_is_given_up() {
        // Each item's value is the beginning of a batch of the following items. All of these
        // batches have the same end.
        let mut chain = vec![3, 0, 0, 0, 0, 0, 0, 0, 0, b'F', b'J', b'L', 3];
        for count in 1..20_000_u32 {
            let value = [&[START][..], &count.to_le_bytes(), &[9; 8]].concat();
            let head = [&[2, 0, 0][..], &[0; 8], &[0; 2], &13_u32.to_le_bytes(), &13_u32.to_le_bytes()].concat();
            chain.splice(0..0, [head, value].concat());
        }
        let bytes = [vec![9; 10], chain].concat();
        assert!(JournalTail { bytes: &bytes, start: 0, after: None }.written_later().is_some());
    }
}
