//! For each pending write, the later writes that wait for it.
//!
//! Owns this index. Guarantees that a write without others behind it takes no entry. Does not know
//! why the others wait: each write lists those that it waits for.

use std::collections::{BTreeMap, BTreeSet};

use super::PendingWriteId;

/// The writes that wait for others, by the write that they wait for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WritesBehind {
    behind: BTreeMap<PendingWriteId, BTreeSet<PendingWriteId>>,
}

impl WritesBehind {
    pub(super) fn add(&mut self, other: PendingWriteId, write_id: PendingWriteId) {
        self.behind.entry(other).or_default().insert(write_id);
    }

    pub(super) fn remove(&mut self, other: PendingWriteId, write_id: PendingWriteId) {
        if let Some(write_ids) = self.behind.get_mut(&other) {
            write_ids.remove(&write_id);
            if write_ids.is_empty() {
                self.behind.remove(&other);
            }
        }
    }

    /// Removes all writes that wait for this one, and returns them.
    pub(super) fn take(&mut self, other: PendingWriteId) -> BTreeSet<PendingWriteId> {
        self.behind.remove(&other).unwrap_or_default()
    }

    pub(super) fn contains(&self, other: PendingWriteId, write_id: PendingWriteId) -> bool {
        self.behind.get(&other).is_some_and(|behind| behind.contains(&write_id))
    }

    /// The number of writes that others wait for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.behind.len()
    }

    /// The number of pairs: a write, and another that waits for it.
    pub(super) fn pairs(&self) -> usize {
        self.behind.values().map(BTreeSet::len).sum()
    }
}
