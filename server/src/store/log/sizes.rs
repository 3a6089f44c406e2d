//! The sizes of the log's entries, by ranges.
//!
//! It has a mark for each [`MARK_BYTES`] of entries, not for each entry. So an answer is exact to
//! one mark and one entry. A log within its bounds has a few hundred marks.

use std::collections::VecDeque;

/// The bytes between two marks. A longer entry has a mark of its own.
const MARK_BYTES: u64 = 256 << 10;

/// A position after an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    /// The index after the entry.
    end: u64,
    /// The bytes of all entries counted up to here, purged ones included.
    total: u64,
}

/// The sizes of one log's entries, counted since it was opened or became empty.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    /// The last purged mark, or the beginning; then the marks after it, ascending.
    marks: VecDeque<Mark>,
    last: Mark,
}

impl Sizes {
    /// The sizes of a log that is purged below `start` and has no entries.
    pub(super) fn new(start: u64) -> Self {
        let last = Mark { end: start, total: 0 };
        Self { marks: [last].into(), last }
    }

    /// Counts an entry at the end.
    pub(super) fn append(&mut self, index: u64, bytes: usize) {
        self.last = Mark { end: index + 1, total: self.last.total + bytes as u64 };
        let marked = self.marks.back().map_or(0, |mark| mark.total);
        if self.last.total - marked >= MARK_BYTES {
            self.marks.push_back(self.last);
        }
    }

    /// Forgets the entries from `from` on.
    pub(super) fn truncate(&mut self, from: u64) {
        if from >= self.last.end {
            return;
        }
        while self.marks.len() > 1 && self.marks.back().is_some_and(|mark| mark.end > from) {
            self.marks.pop_back();
        }
        // The entries between the mark and the cut, less than one mark, are not counted.
        self.last = Mark { end: from, total: self.marks.back().map_or(0, |mark| mark.total) };
    }

    /// Forgets the entries below `start`.
    pub(super) fn purge(&mut self, start: u64) {
        if start > self.last.end {
            *self = Self::new(start);
        }
        while self.marks.get(1).is_some_and(|mark| mark.end <= start) {
            self.marks.pop_front();
        }
    }

    /// The approximate size of the entries in `[start, end)`.
    pub(super) fn between(&self, start: u64, end: u64) -> u64 {
        self.total(end).saturating_sub(self.total(start))
    }

    /// The smallest index, exact to one mark, from which on the entries have at most `bytes`.
    pub(super) fn last_bytes_from(&self, bytes: u64) -> u64 {
        let beyond = self.last.total.saturating_sub(bytes);
        let place = self.marks.partition_point(|mark| mark.total < beyond);
        self.marks.get(place).map_or(self.last.end, |mark| mark.end)
    }

    fn total(&self, end: u64) -> u64 {
        if end >= self.last.end {
            return self.last.total;
        }
        let place = self.marks.partition_point(|mark| mark.end <= end);
        let mark = place.checked_sub(1).and_then(|place| self.marks.get(place)).or_else(|| self.marks.front());
        mark.map_or(0, |mark| mark.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY_BYTES: usize = 100 << 10;

    fn filled(entries: std::ops::Range<u64>) -> Sizes {
        let mut sizes = Sizes::new(entries.start);
        entries.for_each(|index| sizes.append(index, ENTRY_BYTES));
        sizes
    }

    fn is_about(got: u64, entries: u64) -> bool {
        got.abs_diff(entries * ENTRY_BYTES as u64) <= MARK_BYTES + ENTRY_BYTES as u64
    }

    #[test]
    fn bytes_between_entries_are_known_to_one_mark() {
        let mut sizes = filled(1_000..2_000);
        for (start, end) in [(0, 5_000), (1_000, 2_000), (1_100, 1_900), (1_500, 1_501), (1_999, 2_000)] {
            let entries = end.min(2_000) - start.max(1_000);
            assert!(is_about(sizes.between(start, end), entries), "{start} to {end}: {}", sizes.between(start, end));
        }
        sizes.purge(1_500);
        assert!(is_about(sizes.between(0, u64::MAX), 500), "{}", sizes.between(0, u64::MAX));
        sizes.truncate(1_700);
        assert!(is_about(sizes.between(1_500, u64::MAX), 200));
        sizes.purge(9_000);
        assert_eq!(sizes.between(0, u64::MAX), 0, "a snapshot from far ahead");
        sizes.append(9_000, ENTRY_BYTES);
        assert_eq!(sizes.between(0, u64::MAX), ENTRY_BYTES as u64);
    }

    #[test]
    fn last_entries_within_a_bound_begin_at_a_mark() {
        let sizes = filled(1_000..2_000);
        for kept in [0, 1, 100, 999] {
            let from = sizes.last_bytes_from(kept * ENTRY_BYTES as u64);
            let bytes = (2_000 - from) * ENTRY_BYTES as u64;
            assert!(bytes <= kept * ENTRY_BYTES as u64 && is_about(bytes, kept), "{kept}: from {from}");
        }
        assert_eq!(sizes.last_bytes_from(u64::MAX), 1_000, "all of it");
    }

    #[test]
    fn marks_of_a_log_within_bounds_are_few() {
        let mut sizes = Sizes::new(0);
        for index in 0..100_000 {
            sizes.append(index, ENTRY_BYTES);
            sizes.purge(index.saturating_sub(500));
        }
        assert!(sizes.marks.len() < 250, "{} marks", sizes.marks.len());
    }
}
