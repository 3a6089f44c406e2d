//! The locks of one node.
//!
//! **Guarantees.** The checks for a grant and for a waiter walk no list of locks (S10b): a node may
//! have up to [`LOCKS_PER_NODE_MAX`](super::LOCKS_PER_NODE_MAX), as the state checks.

use std::collections::BTreeSet;

use super::LockRecord;
use crate::{id::LockId, lock::LockMode, work::CountVisits};

/// The locks of one node, by their state. Derived from the rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::state) struct NodeLocks {
    /// Includes lost locks in their lock delay.
    granted: BTreeSet<LockId>,
    waiting: BTreeSet<LockId>,
    /// The granted locks that wait to become exclusive: at most one.
    upgrading: BTreeSet<LockId>,
    /// The granted locks that are exclusive: at most one, which may be lost and in its lock delay.
    exclusive: BTreeSet<LockId>,
}

impl NodeLocks {
    pub(super) fn insert(&mut self, id: LockId, record: &LockRecord) {
        for set in self.sets_of(record).into_iter().flatten() {
            set.insert(id);
        }
    }

    pub(super) fn remove(&mut self, id: LockId, record: &LockRecord) {
        for set in self.sets_of(record).into_iter().flatten() {
            set.remove(&id);
        }
    }

    /// The sets that list a lock with this record.
    fn sets_of(&mut self, record: &LockRecord) -> [Option<&mut BTreeSet<LockId>>; 3] {
        let is_granted = record.token.is_some();
        let is_exclusive = is_granted && record.mode == LockMode::Exclusive;
        let Self { granted, waiting, upgrading, exclusive } = self;
        [
            Some(if is_granted { granted } else { waiting }),
            record.is_upgrading.then_some(upgrading),
            is_exclusive.then_some(exclusive),
        ]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.granted.len() + self.waiting.len()
    }

    /// All locks, in order of arrival.
    pub(super) fn all(&self) -> impl Iterator<Item = &LockId> {
        self.granted.union(&self.waiting)
    }

    pub(super) fn is_waiting(&self, id: LockId) -> bool {
        self.waiting.contains(&id)
    }

    /// The number of waiting locks.
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The first granted lock, in order of arrival. The lock `except` does not count.
    pub(super) fn first_granted(&self, except: Option<LockId>) -> Option<LockId> {
        self.granted.iter().find(|id| Some(**id) != except).copied()
    }

    /// Whether a lock waits: to be granted, or for an upgrade. The lock `except` does not count.
    pub(super) fn has_waiter(&self, except: Option<LockId>) -> bool {
        self.waiting.iter().chain(&self.upgrading).counted().any(|id| Some(*id) != except)
    }

    /// Whether a lock waits for an upgrade. The lock `except` does not count.
    pub(super) fn has_upgrade(&self, except: LockId) -> bool {
        self.upgrading.iter().any(|id| *id != except)
    }

    /// Whether a lock with this mode can be granted beside the granted locks.
    pub(super) fn is_compatible(&self, mode: LockMode) -> bool {
        match mode {
            LockMode::Shared => self.exclusive.is_empty(),
            LockMode::Exclusive => self.granted.is_empty(),
        }
    }

    /// Whether a new lock is granted at once.
    pub(super) fn is_grantable(&self, mode: LockMode) -> bool {
        !self.has_waiter(None) && self.is_compatible(mode)
    }

    /// The granted lock that waits for an upgrade.
    pub(super) fn upgrading(&self) -> Option<LockId> {
        self.upgrading.first().copied()
    }

    /// Whether exactly one lock is granted.
    pub(super) fn has_sole_owner(&self) -> bool {
        self.granted.len() == 1
    }

    /// The first lock of the queue.
    pub(super) fn first_waiting(&self) -> Option<LockId> {
        self.waiting.first().copied()
    }
}
