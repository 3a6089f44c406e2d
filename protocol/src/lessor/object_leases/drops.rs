//! Pending drops: object leases that are invalid and still in memory.
//!
//! A drop makes invalid all leases of its session at and below its top that have stamps up to the
//! drop's. Owns the drops, and how far the removal of each has come. Guarantees that a drop stays
//! until the last of its entries was visited. Does not know the leases, nor the ends of
//! recordings.

use std::collections::BTreeMap;

use crate::{id::SessionId, object::Object, path::NodePath, work::CountVisits};

/// The session, and the top of the dropped subtree.
pub(super) type DropKey = (SessionId, NodePath);

/// Object leases that a session has dropped, and that are still in memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PendingDrop {
    /// Leases with stamps up to this are invalid. `None`: only leases of recordings that have
    /// ended.
    pub(super) through: Option<u64>,
    /// The next object to visit.
    pub(super) next: Option<Object>,
}

/// All drops whose entries are still in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct PendingDrops {
    dropping: BTreeMap<DropKey, PendingDrop>,
}

impl PendingDrops {
    pub(super) fn is_empty(&self) -> bool {
        self.dropping.is_empty()
    }

    pub(super) fn get(&self, key: &DropKey) -> Option<&PendingDrop> {
        self.dropping.get(key)
    }

    pub(super) fn first(&self) -> Option<&DropKey> {
        self.dropping.first_key_value().map(|(key, _)| key)
    }

    /// The session's first drop.
    pub(super) fn first_of(&self, session: SessionId) -> Option<&DropKey> {
        let own = self.dropping.range((session, NodePath::root())..).next().map(|(key, _)| key);
        own.filter(|(of, _)| *of == session)
    }

    /// Whether the session has dropped all copies at and below the path with stamps up to `newest`.
    pub(super) fn is_dropped(&self, path: &NodePath, session: SessionId, newest: u64) -> bool {
        if self.first_of(session).is_none() {
            return false;
        }
        let tops = std::iter::once(path.clone()).chain(path.ancestors()).counted();
        tops.filter_map(|top| self.dropping.get(&(session, top))).any(|dropping| Some(newest) <= dropping.through)
    }

    /// Begins a drop. If one has this key already, extends it, and begins again to remove its
    /// entries.
    pub(super) fn add(&mut self, key: DropKey, through: Option<u64>) {
        let dropping = self.dropping.entry(key).or_insert(PendingDrop { through, next: None });
        (dropping.through, dropping.next) = (dropping.through.max(through), None);
    }

    /// Notes that the entries before `next` are removed. Without a next one, the drop is finished.
    pub(super) fn advance(&mut self, key: &DropKey, next: Option<Object>) {
        match (next, self.dropping.get_mut(key)) {
            (Some(next), Some(dropping)) => dropping.next = Some(next),
            _ => {
                self.dropping.remove(key);
            }
        }
    }

    /// Whether some drop of the session includes this path.
    pub(super) fn includes(&self, path: &NodePath, session: SessionId) -> bool {
        let mut tops = std::iter::once(path.clone()).chain(path.ancestors());
        tops.any(|top| self.dropping.contains_key(&(session, top)))
    }

    /// The number of drops.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.dropping.len()
    }
}
