//! The part of the log in memory: all entries that are not on disk yet, and the latest others.

use std::{collections::VecDeque, io, ops::Range};

use super::sizes::Sizes;
use crate::raft::types::alias::{LogId, RaftEntry, Vote};

/// The most entries on disk that stay in memory. The state machine, and followers that are not
/// behind, read the last few hundred.
const RECENT_ENTRIES: usize = 8192;
/// The most bytes of those entries.
const RECENT_BYTES: usize = 32 << 20;

/// The state of the log that is known without reading the disk.
#[derive(Debug, Default)]
pub(super) struct LogTail {
    purged: Option<LogId>,
    last: Option<LogId>,
    vote: Option<Vote>,
    /// Consecutive entries up to the last of the log. Empty if nothing was appended since the log
    /// was opened or truncated below them.
    recent: VecDeque<RaftEntry>,
    recent_bytes: usize,
    /// All entries below this index are on disk.
    flushed: u64,
    sizes: Sizes,
}

/// The size of an entry for the bounds on bytes: its payload, and a little for the rest.
pub(super) fn entry_bytes(entry: &RaftEntry) -> usize {
    let payload = match &entry.payload {
        openraft::EntryPayload::Normal(logged) => logged.encoded_bytes(),
        openraft::EntryPayload::Blank => 0,
        openraft::EntryPayload::Membership(_) => 1024,
    };
    payload + 64
}

impl LogTail {
    /// The state that was found on disk.
    pub(super) fn new(purged: Option<LogId>, last: Option<LogId>, vote: Option<Vote>, sizes: Sizes) -> Self {
        let flushed = last.map_or(0, |last| last.index + 1);
        Self { purged, last, vote, recent: VecDeque::new(), recent_bytes: 0, flushed, sizes }
    }

    pub(super) fn purged(&self) -> Option<LogId> {
        self.purged
    }

    pub(super) fn last(&self) -> Option<LogId> {
        self.last
    }

    pub(super) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    pub(super) fn vote(&self) -> Option<Vote> {
        self.vote
    }

    /// Records that the vote is on disk.
    pub(super) fn vote_saved(&mut self, vote: Vote) {
        self.vote = Some(vote);
    }

    /// Adds entries at the end.
    ///
    /// # Errors
    ///
    /// The log would have a gap.
    pub(super) fn append(&mut self, entries: &[RaftEntry]) -> io::Result<()> {
        for entry in entries {
            let got = entry.log_id.index;
            if let Some(last) = self.last
                && got != last.index + 1
            {
                let expected = last.index + 1;
                let message = format!("entry {got} appended to the log; expected {expected}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            self.last = Some(entry.log_id);
            let bytes = entry_bytes(entry);
            self.recent_bytes += bytes;
            self.sizes.append(got, bytes);
            self.recent.push_back(entry.clone());
        }
        Ok(())
    }

    /// Drops the entries after `last`. Returns the first dropped index, and the new last entry.
    pub(super) fn truncate_after(&mut self, last: Option<LogId>) -> (u64, Option<LogId>) {
        let from = last.map_or(0, |last| last.index + 1);
        if self.last.is_none_or(|last| last.index < from) {
            return (from, self.last);
        }
        while self.recent.back().is_some_and(|entry| entry.log_id.index >= from) {
            self.forget_back();
        }
        self.sizes.truncate(from);
        self.last = last.max(self.purged);
        (from, self.last)
    }

    /// Drops the entries up to `upto`. Returns the new last entry.
    pub(super) fn purge(&mut self, upto: LogId) -> Option<LogId> {
        while self.recent.front().is_some_and(|entry| entry.log_id.index <= upto.index) {
            self.forget_front();
        }
        self.sizes.purge(upto.index + 1);
        self.purged = self.purged.max(Some(upto));
        self.last = self.last.max(self.purged);
        self.last
    }

    /// Records that the entries below `index` are on disk. Drops from memory what exceeds the
    /// bounds.
    pub(super) fn flushed_below(&mut self, index: u64) {
        self.flushed = index;
        while self.recent.len() > RECENT_ENTRIES || self.recent_bytes > RECENT_BYTES {
            if self.recent.front().is_none_or(|entry| entry.log_id.index >= self.flushed) {
                break;
            }
            self.forget_front();
        }
    }

    /// The entries in `[start, end)` that are in memory, and the indexes before them to read from
    /// disk. Returns up to `most_bytes`, but at least one entry.
    pub(super) fn read(&self, start: u64, end: u64, most_bytes: usize) -> (Vec<RaftEntry>, Range<u64>) {
        let start = self.purged.map_or(start, |purged| start.max(purged.index + 1));
        let end = self.last.map_or(0, |last| end.min(last.index + 1));
        let first = self.recent.front().map_or(end, |entry| entry.log_id.index);
        let cold = start..end.min(first);
        let mut entries = Vec::new();
        let mut bytes = 0;
        let skip = usize::try_from(start.saturating_sub(first)).unwrap_or(usize::MAX);
        for entry in self.recent.iter().skip(skip).take_while(|entry| entry.log_id.index < end) {
            bytes += entry_bytes(entry);
            if bytes > most_bytes && !(entries.is_empty() && cold.is_empty()) {
                break;
            }
            entries.push(entry.clone());
        }
        (entries, cold)
    }

    fn forget_front(&mut self) {
        if let Some(entry) = self.recent.pop_front() {
            self.recent_bytes -= entry_bytes(&entry);
        }
    }

    fn forget_back(&mut self) {
        if let Some(entry) = self.recent.pop_back() {
            self.recent_bytes -= entry_bytes(&entry);
        }
    }
}
