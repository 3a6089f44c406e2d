//! All locks of the state, with indexes by path, by lease, by token and by write lease.
//!
//! **Guarantees.** The indexes always agree with the rows: every change goes through these methods,
//! and the invariant check recomputes the indexes.

use std::collections::{BTreeMap, BTreeSet};

use super::{LockRecord, node_locks::NodeLocks};
use crate::{
    id::{Incarnation, LockId, SessionId, Token, WriteLeaseId},
    path::NodePath,
    work::{CountVisits, visit},
};

/// All locks. All indexes are derived from `rows`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::state) struct LockTable {
    pub(in crate::state) rows: BTreeMap<LockId, (NodePath, LockRecord)>,
    pub(in crate::state) by_path: BTreeMap<NodePath, NodeLocks>,
    pub(in crate::state) by_lease: BTreeMap<Incarnation, BTreeSet<LockId>>,
    pub(in crate::state) by_token: BTreeMap<Token, LockId>,
    /// The locks that are write leases: at most one on a node.
    pub(in crate::state) write_leases: BTreeMap<NodePath, LockId>,
    /// The nodes of these locks, by session.
    pub(in crate::state) write_leases_by_session: BTreeSet<(SessionId, NodePath)>,
}

impl LockTable {
    pub(in crate::state) fn of(rows: BTreeMap<LockId, (NodePath, LockRecord)>) -> Self {
        let mut table = Self::default();
        for (id, (path, record)) in rows {
            table.insert(id, path, record);
        }
        table
    }

    pub(in crate::state) fn insert(&mut self, id: LockId, path: NodePath, record: LockRecord) {
        self.by_path.entry(path.clone()).or_default().insert(id, &record);
        self.by_lease.entry(record.incarnation).or_default().insert(id);
        self.by_token.extend(record.token.map(|token| (token, id)));
        if record.write_lease.is_some() {
            self.write_leases.insert(path.clone(), id);
            self.write_leases_by_session.insert((record.session, path.clone()));
        }
        self.rows.insert(id, (path, record));
    }

    pub(in crate::state) fn remove(&mut self, id: LockId) -> Option<(NodePath, LockRecord)> {
        let (path, record) = self.rows.remove(&id)?;
        if let Some(locks) = self.by_path.get_mut(&path) {
            locks.remove(id, &record);
            if locks.is_empty() {
                self.by_path.remove(&path);
            }
        }
        if let Some(locks) = self.by_lease.get_mut(&record.incarnation) {
            locks.remove(&id);
            if locks.is_empty() {
                self.by_lease.remove(&record.incarnation);
            }
        }
        if let Some(token) = record.token {
            self.by_token.remove(&token);
        }
        if record.write_lease.is_some() {
            self.write_leases.remove(&path);
            self.write_leases_by_session.remove(&(record.session, path.clone()));
        }
        Some((path, record))
    }

    /// Changes the record of a lock.
    pub(in crate::state) fn update(&mut self, id: LockId, change: impl FnOnce(&mut LockRecord)) {
        if let Some((path, mut record)) = self.remove(id) {
            change(&mut record);
            self.insert(id, path, record);
        }
    }

    /// Makes a lock a write lease, or an ordinary lock again. Returns the node, or `None` if
    /// nothing changed.
    pub(in crate::state) fn set_write_lease(
        &mut self,
        id: LockId,
        write_lease: Option<WriteLeaseId>,
    ) -> Option<NodePath> {
        let (path, record) =
            self.rows.get_mut(&id).filter(|(_, record)| record.write_lease.is_some() != write_lease.is_some())?;
        record.write_lease = write_lease;
        let key = (record.session, path.clone());
        match write_lease {
            Some(_) => {
                self.write_leases.insert(path.clone(), id);
                self.write_leases_by_session.insert(key);
            }
            None => {
                self.write_leases.remove(path);
                self.write_leases_by_session.remove(&key);
            }
        }
        Some(path.clone())
    }

    #[cfg(test)]
    pub(in crate::state) fn sizes(&self) -> [usize; 5] {
        let by_path = self.by_path.values().map(NodeLocks::len).sum();
        [
            self.rows.len(),
            by_path,
            self.by_lease.values().map(BTreeSet::len).sum(),
            self.by_token.len(),
            self.write_leases.len() + self.write_leases_by_session.len(),
        ]
    }

    pub(in crate::state) fn of_lease(&self, incarnation: Incarnation) -> impl Iterator<Item = LockId> + use<'_> {
        self.by_lease.get(&incarnation).into_iter().flatten().counted().copied()
    }

    /// The number of locks under the lease.
    pub(in crate::state) fn count_of_lease(&self, incarnation: Incarnation) -> u64 {
        self.by_lease.get(&incarnation).map_or(0, BTreeSet::len) as u64
    }

    /// The locks on a node, in order of arrival.
    pub(in crate::state) fn on<'a>(
        &'a self,
        path: &NodePath,
    ) -> impl Iterator<Item = (LockId, &'a LockRecord)> + use<'a> {
        let ids = self.by_path.get(path).into_iter().flat_map(NodeLocks::all);
        ids.counted().filter_map(|id| self.rows.get(id).map(|(_, record)| (*id, record)))
    }

    /// The next lock to grant. While an upgrade is pending, only that upgrade can be granted, and
    /// only when its lock is the sole granted one. Without a pending upgrade, it is the first
    /// waiter, if it is compatible with all granted locks.
    pub(in crate::state) fn next_grantable(&self, path: &NodePath) -> Option<LockId> {
        let locks = self.by_path.get(path)?;
        visit(1);
        if let Some(id) = locks.upgrading() {
            return locks.has_sole_owner().then_some(id);
        }
        let id = locks.first_waiting()?;
        let mode = self.rows.get(&id).map(|(_, record)| record.mode)?;
        locks.is_compatible(mode).then_some(id)
    }
}
