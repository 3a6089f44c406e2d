//! Write leases in the replicated state (S2, S10 in docs/PROTOCOL.md; NFSv4's write delegation).
//!
//! The owner of an exclusive lock can make it a write lease. That changes no data, but has the data
//! as its footprint. So it is applied only when every session that may hold a copy has consented,
//! or lost its lease (S2). From then on no other client has a copy or gets one, under any leader:
//!
//! - The leader does not answer reads of the data, so it grants nothing on it.
//! - A write that would change or compare the data is not applied until the owner ends the write
//!   lease, or its lock ends.
//!
//! So a flush needs no consent, and passes the writes that wait for it (S10). A flush names the
//! token of the lock. With any other token the state refuses it.

use std::collections::BTreeSet;

use super::{RowKey, State, locks::LockRecord, touched::Touched};
use crate::{
    command::{Attach, Write, WriteRefusal, Written},
    id::{LockId, SessionId, Token, WriteLeaseId},
    lock::LockMode,
    object::{Object, ObjectSet, Value},
    path::NodePath,
    planted::Bug,
    transaction::CompareTarget,
    work::CountVisits,
};

impl State {
    /// The lock that is a write lease on the node.
    pub fn write_leased_lock(&self, path: &NodePath) -> Option<(LockId, &LockRecord)> {
        let id = self.locks.write_leases.get(path)?;
        self.locks.rows.get(id).map(|(_, record)| (*id, record))
    }

    /// The id of the write lease on the node.
    pub fn write_lease_on(&self, path: &NodePath) -> Option<WriteLeaseId> {
        self.write_leased_lock(path).and_then(|(_, record)| record.write_lease)
    }

    /// The number of the latest write lease, even if that has ended.
    pub fn last_write_lease(&self) -> WriteLeaseId {
        self.meta.last_write_lease
    }

    /// The nodes in the set whose data is under a write lease.
    pub fn write_leased_in<'a>(&'a self, set: &'a ObjectSet) -> impl Iterator<Item = &'a NodePath> + use<'a> {
        let own = self.locks.write_leases.get_key_value(set.path());
        let own = own.filter(|(path, _)| set.contains(&Object::data((*path).clone())));
        let below = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => Some(super::below(&self.locks.write_leases, top)),
        };
        own.into_iter().chain(below.into_iter().flatten()).counted().map(|(path, _)| path)
    }

    /// The nodes on which the session has write leases.
    pub fn write_leased_by(&self, session: SessionId) -> impl Iterator<Item = &NodePath> {
        let range = (session, NodePath::root())..(session.next(), NodePath::root());
        self.locks.write_leases_by_session.range(range).counted().map(|(_, path)| path)
    }

    /// The nodes whose write leases block a write: their data is in its footprint `sets`, or the
    /// write compares it.
    pub fn blocking_write_leases(&self, write: &Write, sets: &[ObjectSet]) -> BTreeSet<NodePath> {
        let is_by_owner = matches!(write, Write::TakeWriteLease { .. } | Write::Flush { .. });
        if self.locks.write_leases.is_empty() || is_by_owner || self.planted.has(Bug::WritePastWriteLease) {
            return BTreeSet::new();
        }
        let changed = sets.iter().flat_map(|set| self.write_leased_in(set));
        let compares = match write {
            Write::Transaction(transaction) => &transaction.compares[..],
            _ => &[],
        };
        let data_compares = compares.iter().filter(|compare| !matches!(compare.target, CompareTarget::Locked(..)));
        let compared =
            data_compares.map(|compare| &compare.path).filter(|path| self.locks.write_leases.contains_key(*path));
        changed.chain(compared).cloned().collect()
    }

    /// The footprint of making a lock a write lease.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal`] if the lock cannot become a write lease.
    pub(super) fn write_lease_footprint(
        &self,
        session: SessionId,
        path: &NodePath,
        id: LockId,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        let record = self.check_own_lock(session, path, id)?;
        if record.token.is_none() {
            return Err(WriteRefusal::LockNotGranted { path: path.clone(), lock: id });
        }
        if record.mode != LockMode::Exclusive {
            return Err(WriteRefusal::NotExclusive { path: path.clone(), lock: id });
        }
        match self.node(path) {
            None => Err(WriteRefusal::NotFound { path: path.clone() }),
            // The end of the node's lease removes the node, and waits for no flush.
            Some(node) if node.attachment.is_some() => Err(WriteRefusal::Attached { path: path.clone() }),
            Some(_) => Ok(vec![ObjectSet::One(Object::data(path.clone()))]),
        }
    }

    /// The footprint of a flush. It is empty if the flush `changes` no data.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal`] if the session has no such write lease, or its token differs (S10).
    pub(super) fn flush_footprint(
        &self,
        session: SessionId,
        (path, id, token): (&NodePath, LockId, Token),
        changes: bool,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        let record = self.check_own_lock(session, path, id)?;
        let Some(expected) = record.token else {
            return Err(WriteRefusal::LockNotGranted { path: path.clone(), lock: id });
        };
        if expected != token {
            return Err(WriteRefusal::TokenMismatch { path: path.clone(), lock: id, got: token, expected });
        }
        if record.write_lease.is_none() {
            return Err(WriteRefusal::NotAWriteLease { path: path.clone(), lock: id });
        }
        Ok(changes.then(|| ObjectSet::One(Object::data(path.clone()))).into_iter().collect())
    }

    /// Makes the lock a write lease.
    pub(super) fn take_write_lease(&mut self, id: LockId, touched: &mut Touched) -> Written {
        let write_lease = self.meta.last_write_lease.next();
        if let Some(path) = self.locks.set_write_lease(id, Some(write_lease)) {
            self.meta.last_write_lease = write_lease;
            touched.insert(RowKey::Lock(id, path));
        }
        self.unchanged()
    }

    /// Applies a flush that is not refused. `sets` is its footprint.
    pub(super) fn flush(
        &mut self,
        writer: SessionId,
        (path, id): (&NodePath, LockId),
        (value, ends): (Option<&Value>, bool),
        sets: Vec<ObjectSet>,
        touched: &mut Touched,
    ) -> Written {
        let mut stat = None;
        if let Some(value) = value {
            let revision = self.meta.revision.next();
            self.meta.revision = revision;
            stat = self.put(writer, path, value, &Attach::Unchanged, revision, touched);
            self.note_change(sets, touched);
        }
        if ends && self.locks.set_write_lease(id, None).is_some() {
            touched.insert(RowKey::Lock(id, path.clone()));
        }
        Written { stat, ..self.unchanged() }
    }

    /// Checks that each write lease is an exclusive granted lock, on a node that exists and is not
    /// attached.
    pub(super) fn check_write_leases(&self) -> Result<(), String> {
        for (path, id) in &self.locks.write_leases {
            let record = self.locks.rows.get(id).map(|(_, record)| record);
            let is_exclusive = record.is_some_and(|record| {
                record.token.is_some() && record.mode == LockMode::Exclusive && record.lease.session().is_some()
            });
            if !is_exclusive {
                return Err(format!("lock {id} is a write lease on {path}, and is not granted and exclusive"));
            }
            let write_lease = record.and_then(|record| record.write_lease);
            if write_lease.is_none_or(|number| number > self.meta.last_write_lease) {
                return Err(format!(
                    "lock {id} on {path} is write lease {write_lease:?}: expected 1 to {}",
                    self.meta.last_write_lease
                ));
            }
            if self.node(path).is_none_or(|node| node.attachment.is_some()) {
                return Err(format!("lock {id} is a write lease on {path}, which is attached or does not exist"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
