//! Locks and lock queues (S10 in docs/PROTOCOL.md).
//!
//! The locks of a node are ordered by arrival. The first ones are granted, the others wait. A
//! shared lock behind a waiting exclusive lock waits too, so that readers do not starve a writer.
//! While a shared lock waits for an upgrade, no further lock on the node is granted. When a lock
//! ends, the same command grants the next locks. The sole owner of a node can hand its lock over to
//! a named waiter, ahead of earlier waiters.
//!
//! A lock without a token waits. A grant gives it a token, so it no longer waits. An upgrade that
//! is granted is no longer pending. So no request is granted twice (`next_grantable` in
//! `table.rs`). (A request that is sent again gets its first outcome: `write_once` in
//! `sessions.rs`.)
//!
//! A lock ends with the lease under it. So a grant needs no check of the waiter's lease. (Jepsen
//! found that etcd 3.4.3 granted locks to waiters whose lease had expired.)
//!
//! The end of a lost lock waits for no message from its owner: the owner stopped counting on it
//! earlier, by its own clock (T2, T3). With a lock delay (Chubby), the node stays taken for a
//! while. The lost lock is then under a special lease, which is never renewed.

mod node_locks;
mod table;

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use super::{RowKey, State, touched::Touched};
use crate::{
    command::{AnyLease, Attach, IntendedLeases, WriteRefusal, Written},
    id::{Incarnation, LockId, SessionId, Token, WriteLeaseId},
    lock::{LockMode, LockOutcome, LockStatus},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
};

use node_locks::NodeLocks;
pub(super) use table::LockTable;

/// The most locks on one node, granted and waiting together.
pub const LOCKS_PER_NODE_MAX: u64 = 4096;

/// The most locks under one lease, because one entry ends them all with the lease. It is also the
/// most nodes attached to one lease.
const LOCKS_PER_LEASE_MAX: u64 = State::REMOVED_NODES_MAX as u64;

/// A lock: granted, waiting, or lost and in its lock delay.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockRecord {
    /// The session that owns, requested or lost the lock.
    pub session: SessionId,
    /// The lease under it: the session's volume lease, or a [lock delay](AnyLease::LockDelay).
    pub lease: AnyLease,
    /// The incarnation of that lease.
    pub incarnation: Incarnation,
    /// The granted or requested mode.
    pub mode: LockMode,
    /// The fencing token of the grant. `None` while the lock waits.
    pub token: Option<Token>,
    /// Whether the lock is shared and waits to become exclusive.
    pub is_upgrading: bool,
    /// How long the node stays taken if the lock is lost.
    pub lock_delay: Duration,
    /// If the lock is a write lease, the number of that write lease.
    pub write_lease: Option<WriteLeaseId>,
    /// Whether the previous owner handed the lock over to this session, ahead of earlier waiters.
    pub is_handed_over: bool,
}

impl State {
    /// The locks on a node: granted, waiting, and lost ones in their lock delay, in order of
    /// arrival.
    pub fn locks_on<'a>(&'a self, path: &NodePath) -> impl Iterator<Item = (LockId, &'a LockRecord)> + use<'a> {
        self.locks.on(path)
    }

    /// All locks, in order of arrival.
    pub fn locks(&self) -> impl Iterator<Item = (LockId, &NodePath, &LockRecord)> {
        self.locks.rows.iter().map(|(id, (path, record))| (*id, path, record))
    }

    /// The locks under the lease.
    pub fn locks_of_lease(&self, incarnation: Incarnation) -> impl Iterator<Item = LockId> + use<'_> {
        self.locks.of_lease(incarnation)
    }

    /// Whether a session owns a lock with this token at or below `top`. The comparison of a lock's
    /// token in a transaction uses this (S10).
    pub fn has_lock_in(&self, top: &NodePath, token: Token) -> bool {
        let record = self.locks.by_token.get(&token).and_then(|id| self.locks.rows.get(id));
        record.is_some_and(|(path, record)| top.contains(path) && !matches!(record.lease, AnyLease::LockDelay(_)))
    }

    /// The status of a lock on a node.
    pub fn lock_status(&self, path: &NodePath, id: LockId) -> LockStatus {
        let found =
            self.locks.rows.get(&id).filter(|(locked, record)| locked == path && record.lease.session().is_some());
        match found.map(|(_, record)| (record.token, record.mode)) {
            None => LockStatus::Ended,
            Some((None, _)) => LockStatus::Waiting,
            Some((Some(token), mode)) => {
                LockStatus::Granted { token, mode, is_contended: self.has_lock_waiter(path, Some(id)) }
            }
        }
    }

    /// Whether a lock on the node waits: to be granted, or for an upgrade. It ignores the lock
    /// `except`.
    pub fn has_lock_waiter(&self, path: &NodePath, except: Option<LockId>) -> bool {
        self.locks.by_path.get(path).is_some_and(|locks| locks.has_waiter(except))
    }

    /// The lock on the node that is granted and waits for an upgrade.
    pub fn upgrading_lock(&self, path: &NodePath) -> Option<LockId> {
        self.locks.by_path.get(path).and_then(NodeLocks::upgrading)
    }

    /// The lock, if it is lost and in its lock delay.
    pub fn lost_lock(&self, id: LockId) -> Option<&LockRecord> {
        let (_, record) = self.locks.rows.get(&id)?;
        matches!(record.lease, AnyLease::LockDelay(_)).then_some(record)
    }

    /// The session's volume lease for a lock on the node.
    fn lease_for_lock(&self, session: SessionId, path: &NodePath) -> Result<(AnyLease, Incarnation), WriteRefusal> {
        let volume = self.volume_of(path).0;
        let key = AnyLease::Volume(session, volume.clone());
        match self.lease(&key) {
            Some(lease) => Ok((key, lease.incarnation)),
            None => Err(WriteRefusal::NoVolumeLease { path: path.clone(), volume: volume.clone() }),
        }
    }

    /// Checks that the session's lease has room for a lock on the node. The lessor asks when the
    /// request arrives. Requests in flight do not count each other, so they can exceed the bound.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal::LeaseFull`].
    pub(crate) fn check_lock_room(&self, session: SessionId, path: &NodePath) -> Result<(), WriteRefusal> {
        let Ok((_, incarnation)) = self.lease_for_lock(session, path) else { return Ok(()) };
        let got = self.locks.count_of_lease(incarnation);
        if got < LOCKS_PER_LEASE_MAX {
            return Ok(());
        }
        reached(Bound::LocksPerLease);
        Err(WriteRefusal::LeaseFull { path: path.clone(), got, most: LOCKS_PER_LEASE_MAX })
    }

    /// Checks that a requested lock can be granted or wait.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal`] if the lock can neither be granted nor wait.
    pub(super) fn check_lock_request(
        &self,
        session: SessionId,
        path: &NodePath,
        (mode, wait): (LockMode, bool),
        intended: &IntendedLeases,
    ) -> Result<(), WriteRefusal> {
        self.check_intended(session, path, &Attach::Session, intended)?;
        self.lease_for_lock(session, path)?;
        let count = self.locks.by_path.get(path).map_or(0, NodeLocks::len) as u64;
        if count >= LOCKS_PER_NODE_MAX {
            reached(Bound::LocksPerNode);
            return Err(WriteRefusal::TooManyLocks { path: path.clone(), got: count, most: LOCKS_PER_NODE_MAX });
        }
        if wait || self.is_grantable(path, mode) { Ok(()) } else { Err(self.locked_refusal(path, None)) }
    }

    /// Whether a new lock is granted at once.
    fn is_grantable(&self, path: &NodePath, mode: LockMode) -> bool {
        self.locks.by_path.get(path).is_none_or(|locks| locks.is_grantable(mode))
    }

    /// The refusal of a request for a locked node. It names the owner of the first granted lock. In
    /// a lock delay, that is the session that lost the lock. The lock `except` does not count.
    fn locked_refusal(&self, path: &NodePath, except: Option<LockId>) -> WriteRefusal {
        let locks = self.locks.by_path.get(path);
        let first = locks.and_then(|locks| locks.first_granted(except)).and_then(|id| self.locks.rows.get(&id));
        let owner = first.and_then(|(_, record)| record.token.map(|token| (record.session, token)));
        let (owner, token) = owner.unwrap_or_default();
        let waiting = locks.map_or(0, NodeLocks::waiting_count) as u64;
        WriteRefusal::Locked { path: path.clone(), owner, token, waiting }
    }

    /// The session's lock with this id on the node, granted or waiting.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal`] if the session has no such lock, granted or waiting.
    pub(super) fn check_own_lock(
        &self,
        session: SessionId,
        path: &NodePath,
        id: LockId,
    ) -> Result<&LockRecord, WriteRefusal> {
        let found = self.locks.rows.get(&id).filter(|(locked, record)| {
            let is_own = record.lease.session() == Some(session);
            locked == path && is_own
        });
        found.map(|(_, record)| record).ok_or_else(|| WriteRefusal::LockNotFound { path: path.clone(), lock: id })
    }

    /// Checks that a lock can change to this mode, or wait for it.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal`] if the lock is not granted, or its mode cannot change.
    pub(super) fn check_lock_mode_change(
        &self,
        session: SessionId,
        path: &NodePath,
        id: LockId,
        mode: LockMode,
        wait: bool,
    ) -> Result<(), WriteRefusal> {
        let record = self.check_own_lock(session, path, id)?;
        if record.token.is_none() {
            return Err(WriteRefusal::LockNotGranted { path: path.clone(), lock: id });
        }
        if mode == LockMode::Shared || record.mode == LockMode::Exclusive {
            return Ok(());
        }
        let locks = self.locks.by_path.get(path);
        if locks.is_some_and(|locks| locks.has_upgrade(id)) {
            return Err(WriteRefusal::UpgradePending { path: path.clone() });
        }
        if wait || locks.and_then(|locks| locks.first_granted(Some(id))).is_none() {
            Ok(())
        } else {
            Err(self.locked_refusal(path, Some(id)))
        }
    }

    /// Requests a lock. The caller has checked the request.
    pub(super) fn lock(
        &mut self,
        session: SessionId,
        path: &NodePath,
        (mode, lock_delay): (LockMode, Duration),
        touched: &mut Touched,
    ) -> Written {
        let Ok((lease, incarnation)) = self.lease_for_lock(session, path) else { return self.unchanged() };
        let is_free = self.is_grantable(path, mode);
        let id = LockId(self.next_lock_number());
        let token = is_free.then(|| Token(self.next_lock_number()));
        let (is_upgrading, write_lease, is_handed_over) = (false, None, false);
        let record = LockRecord {
            session,
            lease,
            incarnation,
            mode,
            token,
            is_upgrading,
            lock_delay,
            write_lease,
            is_handed_over,
        };
        self.locks.insert(id, path.clone(), record);
        touched.insert(RowKey::Lock(id, path.clone()));
        self.lock_outcome(id)
    }

    /// Changes the mode of a lock. The token of a downgraded lock stays the same.
    pub(super) fn change_lock_mode(
        &mut self,
        path: &NodePath,
        id: LockId,
        mode: LockMode,
        touched: &mut Touched,
    ) -> Written {
        self.locks.update(id, |record| {
            record.is_upgrading = mode == LockMode::Exclusive && record.mode == LockMode::Shared;
            if mode == LockMode::Shared {
                record.mode = mode;
            }
        });
        touched.insert(RowKey::Lock(id, path.clone()));
        if mode == LockMode::Shared {
            self.locks.set_write_lease(id, None);
        }
        self.grant_locks(path, touched);
        self.lock_outcome(id)
    }

    /// Ends a lock that its owner releases.
    pub(super) fn unlock(&mut self, id: LockId, touched: &mut Touched) -> Written {
        if let Some((path, _)) = self.locks.remove(id) {
            touched.insert(RowKey::Lock(id, path.clone()));
            self.grant_locks(&path, touched);
        }
        self.unchanged()
    }

    /// Checks that a lock can be handed over to the successor.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal`] if the session does not own such a lock, the node has other owners, or the
    /// successor does not wait.
    pub(super) fn check_hand_over(
        &self,
        session: SessionId,
        path: &NodePath,
        id: LockId,
        successor: LockId,
    ) -> Result<(), WriteRefusal> {
        if self.check_own_lock(session, path, id)?.token.is_none() {
            return Err(WriteRefusal::LockNotGranted { path: path.clone(), lock: id });
        }
        let locks = self.locks.by_path.get(path);
        if locks.and_then(|locks| locks.first_granted(Some(id))).is_some() {
            return Err(self.locked_refusal(path, Some(id)));
        }
        let waits = locks.is_some_and(|locks| locks.is_waiting(successor));
        if waits { Ok(()) } else { Err(WriteRefusal::SuccessorNotWaiting { path: path.clone(), successor }) }
    }

    /// Hands a lock over to a waiter. No other session gets the node in between. Then the waiters
    /// at the front of the queue get the node too, up to the first that cannot share it.
    pub(super) fn hand_over(&mut self, id: LockId, to: LockId, touched: &mut Touched) -> Written {
        let Some((path, _)) = self.locks.remove(id) else { return self.unchanged() };
        touched.insert(RowKey::Lock(id, path.clone()));
        let token = Some(Token(self.next_lock_number()));
        if let Some((_, next)) = self.locks.remove(to) {
            self.locks.insert(to, path.clone(), LockRecord { token, is_handed_over: true, ..next });
            touched.insert(RowKey::Lock(to, path.clone()));
        }
        self.grant_locks(&path, touched);
        self.unchanged()
    }

    /// The result of a write that changes no node.
    pub(super) fn unchanged(&self) -> Written {
        Written { revision: self.meta.revision, ..Written::default() }
    }

    fn lock_outcome(&self, id: LockId) -> Written {
        let grant = self.locks.rows.get(&id).and_then(|(path, record)| match &record.lease {
            AnyLease::Volume(_, volume) => Some(LockOutcome {
                path: path.clone(),
                lock: id,
                mode: record.mode,
                token: record.token,
                volume: volume.clone(),
                incarnation: record.incarnation,
            }),
            _ => None,
        });
        Written { lock: grant.map(Box::new), ..self.unchanged() }
    }

    fn next_lock_number(&mut self) -> u64 {
        self.meta.last_lock_number += 1;
        self.meta.last_lock_number
    }

    /// Grants each lock and upgrade that can be granted now.
    fn grant_locks(&mut self, path: &NodePath, touched: &mut Touched) {
        while let Some(id) = self.locks.next_grantable(path) {
            let token = match self.locks.rows.get(&id).and_then(|(_, record)| record.token) {
                Some(old) if self.planted.has(Bug::TokenKeptByUpgrade) => old,
                _ => Token(self.next_lock_number()),
            };
            self.locks.update(id, |record| {
                if record.is_upgrading {
                    (record.is_upgrading, record.mode) = (false, LockMode::Exclusive);
                }
                record.token = Some(token);
            });
            touched.insert(RowKey::Lock(id, path.clone()));
        }
    }

    /// Ends all locks under a lease that the session itself ends. The session has stopped using
    /// these locks.
    pub(super) fn release_locks(&mut self, incarnation: Incarnation, touched: &mut Touched) {
        self.end_locks(incarnation, |_| None, touched);
    }

    /// Ends all locks under an ended lease. Lost locks with a lock delay still block their nodes.
    pub(super) fn lose_locks(&mut self, incarnation: Incarnation, touched: &mut Touched) {
        let is_lost = |record: &LockRecord| {
            record.token.is_some() && record.lease.session().is_some() && !record.lock_delay.is_zero()
        };
        self.end_locks(incarnation, |record| is_lost(record).then_some(record.lock_delay), touched);
    }

    fn end_locks(
        &mut self,
        incarnation: Incarnation,
        delay: impl Fn(&LockRecord) -> Option<Duration>,
        touched: &mut Touched,
    ) {
        let ids: Vec<LockId> = self.locks.of_lease(incarnation).collect();
        let mut paths = BTreeSet::new();
        for id in ids {
            let Some((path, mut record)) = self.locks.remove(id) else { continue };
            touched.insert(RowKey::Lock(id, path.clone()));
            if let Some(delay) = delay(&record) {
                record.lease = AnyLease::LockDelay(id);
                record.incarnation = self.grant_lease(AnyLease::LockDelay(id), delay, touched).incarnation;
                (record.is_upgrading, record.write_lease) = (false, None);
                self.locks.insert(id, path.clone(), record);
            }
            paths.insert(path);
        }
        for path in paths {
            self.grant_locks(&path, touched);
        }
    }

    /// Checks that the locks on each node are compatible, in order, and under existing leases.
    pub(super) fn check_locks(&self) -> Result<(), String> {
        if self.locks != LockTable::of(self.locks.rows.clone()) {
            return Err("the indexes do not match the locks".to_owned());
        }
        for (id, (path, record)) in &self.locks.rows {
            let lease = self.leases.get(&record.lease).filter(|lease| lease.incarnation == record.incarnation);
            let is_lease_valid = match &record.lease {
                AnyLease::Volume(session, _) => *session == record.session,
                AnyLease::LockDelay(lock) => lock == id && record.token.is_some(),
                AnyLease::Session(_) | AnyLease::KeyLease(_) => false,
            };
            if lease.is_none() || !is_lease_valid {
                return Err(format!(
                    "lock {id} on {path} is under {:?}, which does not exist or is not the lock's",
                    record.lease
                ));
            }
            let newest = record.token.map_or(id.0, |token| token.0.max(id.0));
            if newest > self.meta.last_lock_number {
                return Err(format!(
                    "lock {id} on {path} has number {newest}: expected at most {}",
                    self.meta.last_lock_number
                ));
            }
        }
        self.check_write_leases()?;
        self.locks.by_path.keys().try_for_each(|path| self.check_locks_on(path))
    }

    fn check_locks_on(&self, path: &NodePath) -> Result<(), String> {
        let granted: Vec<(LockId, &LockRecord)> =
            self.locks.on(path).filter(|(_, record)| record.token.is_some()).collect();
        if granted.len() > 1 && granted.iter().any(|(_, record)| record.mode == LockMode::Exclusive) {
            return Err(format!("{path} has an exclusive lock, and {} granted locks: expected 1", granted.len()));
        }
        if granted.iter().filter(|(_, record)| record.is_upgrading).count() > 1 {
            return Err(format!("two locks on {path} wait to become exclusive: expected at most 1"));
        }
        let mut successors = self.locks.on(path).filter(|(_, record)| record.is_handed_over);
        if let Some((id, record)) = successors.next()
            && (record.token.is_none() || successors.next().is_some())
        {
            return Err(format!(
                "lock {id} on {path} was handed over: expected it to be granted, and the only such lock on the node"
            ));
        }
        let first = self.locks.on(path).find(|(_, record)| record.token.is_none());
        if let Some((first, _)) = first
            && let Some((overtaking, _)) = granted.iter().find(|(id, record)| *id > first && !record.is_handed_over)
        {
            return Err(format!("lock {overtaking} on {path} is granted, and the earlier lock {first} waits"));
        }
        match self.locks.next_grantable(path) {
            Some(id) => Err(format!("lock {id} on {path} could be granted, and waits")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
