//! Locks and lock queues (S10 in docs/PROTOCOL.md).
//!
//! The locks of a node are ordered by arrival. The first ones are granted, the others wait. A
//! shared lock behind a waiting exclusive lock waits too, so that readers do not starve a writer.
//! When a lock ends, the same command grants the next locks. The sole owner of a node can hand its
//! lock over to a named waiter, ahead of earlier waiters.
//!
//! A lock ends with the lease under it. So a grant needs no check of the waiter's lease. (Jepsen
//! found that etcd 3.4.3 granted locks to waiters whose lease had expired.)
//!
//! A lock that is lost with its lease ends without consents, because its owner stopped counting on
//! it earlier, by its own clock (T2, T3). With a lock delay (Chubby), the node stays taken for a
//! while. The lost lock is then under a special lease, which is never renewed.

mod table;

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use super::{RowKey, State, touched::Touched};
use crate::{
    command::{Attach, IntendedLeases, LeaseKey, WriteRefusal, Written},
    id::{Incarnation, LockId, SessionId, Token, WriteLeaseId},
    lock::{LockGrant, LockMode, LockStatus},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
};

pub(super) use table::LockTable;

/// The most locks on one node, granted and waiting together.
pub const LOCKS_PER_NODE_MAX: u64 = 4096;

/// A lock: granted, waiting, or lost and in its lock delay.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockRecord {
    /// The session that owns, requested or lost the lock.
    pub session: SessionId,
    /// The lease under it: the session's volume lease, or a [lock delay](LeaseKey::LockDelay).
    pub lease: LeaseKey,
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
    /// The number of the write lease that the lock is, if it is one.
    pub write_lease: Option<WriteLeaseId>,
    /// Whether the previous owner handed the lock over to this session, ahead of earlier waiters.
    pub is_handed_over: bool,
}

impl State {
    /// The locks on a node, granted and waiting, in order of arrival.
    pub fn locks_on<'a>(&'a self, path: &NodePath) -> impl Iterator<Item = (LockId, &'a LockRecord)> + use<'a> {
        self.locks.on(path)
    }

    /// All locks, in order of arrival.
    pub fn locks(&self) -> impl Iterator<Item = (LockId, &NodePath, &LockRecord)> {
        self.locks.rows.iter().map(|(id, (path, hold))| (*id, path, hold))
    }

    /// The locks under the lease.
    pub fn locks_under(&self, incarnation: Incarnation) -> impl Iterator<Item = LockId> + use<'_> {
        self.locks.of_lease(incarnation)
    }

    /// Whether a session owns a lock with this token at or below `top`. A resource asks this before
    /// it acts for a lock owner (S10).
    pub fn is_locked_under(&self, top: &NodePath, token: Token) -> bool {
        let hold = self.locks.by_token.get(&token).and_then(|id| self.locks.rows.get(id));
        hold.is_some_and(|(path, hold)| top.contains(path) && !matches!(hold.lease, LeaseKey::LockDelay(_)))
    }

    /// The status of a lock on a node.
    pub fn lock_status(&self, path: &NodePath, id: LockId) -> LockStatus {
        let found = self.locks.rows.get(&id).filter(|(at, hold)| at == path && hold.lease.session().is_some());
        match found.map(|(_, hold)| (hold.token, hold.mode)) {
            None => LockStatus::Ended,
            Some((None, _)) => LockStatus::Waiting,
            Some((Some(token), mode)) => {
                let waits =
                    |(other, hold): (LockId, &LockRecord)| other != id && (hold.token.is_none() || hold.is_upgrading);
                LockStatus::Granted { token, mode, is_contended: self.locks.on(path).any(waits) }
            }
        }
    }

    /// The session's volume lease for a lock on the node.
    fn lease_for_lock(&self, session: SessionId, path: &NodePath) -> Result<(LeaseKey, Incarnation), WriteRefusal> {
        let volume = self.volume_of(path).0;
        let key = LeaseKey::Volume(session, volume.clone());
        match self.lease(&key) {
            Some(lease) => Ok((key, lease.incarnation)),
            None => Err(WriteRefusal::NoVolumeLease { path: path.clone(), volume: volume.clone() }),
        }
    }

    /// # Errors
    ///
    /// [`WriteRefusal`] if the lock can neither be granted nor wait.
    pub(super) fn check_lock_request(
        &self,
        session: SessionId,
        path: &NodePath,
        (mode, wait): (LockMode, bool),
        meant: &IntendedLeases,
    ) -> Result<(), WriteRefusal> {
        self.check_intended(session, path, Attach::Session, meant)?;
        self.lease_for_lock(session, path)?;
        let got = self.locks.by_path.get(path).map_or(0, BTreeSet::len) as u64;
        if got >= LOCKS_PER_NODE_MAX {
            reached(Bound::LocksPerNode);
            return Err(WriteRefusal::TooManyLocks { path: path.clone(), got, most: LOCKS_PER_NODE_MAX });
        }
        if wait || self.is_grantable(path, mode) { Ok(()) } else { Err(self.locked_refusal(path, None)) }
    }

    /// Whether a new lock is granted at once.
    fn is_grantable(&self, path: &NodePath, mode: LockMode) -> bool {
        let lets_in =
            |hold: &LockRecord| hold.token.is_some() && hold.mode.is_compatible_with(mode) && !hold.is_upgrading;
        self.locks.on(path).all(|(_, hold)| lets_in(hold))
    }

    /// The refusal that names a current owner. It ignores the lock `but`.
    fn locked_refusal(&self, path: &NodePath, but: Option<LockId>) -> WriteRefusal {
        let others = || self.locks.on(path).filter(|(id, _)| Some(*id) != but).map(|(_, hold)| hold);
        let first = others().find_map(|hold| hold.token.map(|token| (hold.session, token)));
        let (owner, token) = first.unwrap_or_default();
        let waiting = others().filter(|hold| hold.token.is_none()).count() as u64;
        WriteRefusal::Locked { path: path.clone(), owner, token, waiting }
    }

    /// # Errors
    ///
    /// [`WriteRefusal`] if the session has no such lock, granted or waiting.
    pub(super) fn check_own_lock(
        &self,
        session: SessionId,
        path: &NodePath,
        id: LockId,
    ) -> Result<&LockRecord, WriteRefusal> {
        let found = self.locks.rows.get(&id).filter(|(at, hold)| {
            let is_own = hold.lease.session() == Some(session);
            at == path && is_own
        });
        found.map(|(_, hold)| hold).ok_or_else(|| WriteRefusal::LockNotFound { path: path.clone(), lock: id })
    }

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
        let hold = self.check_own_lock(session, path, id)?;
        if hold.token.is_none() {
            return Err(WriteRefusal::LockNotGranted { path: path.clone(), lock: id });
        }
        if mode == LockMode::Shared || hold.mode == LockMode::Exclusive {
            return Ok(());
        }
        let others = || self.locks.on(path).filter(|(other, hold)| *other != id && hold.token.is_some());
        if others().any(|(_, other)| other.is_upgrading) {
            return Err(WriteRefusal::UpgradePending { path: path.clone() });
        }
        if wait || others().next().is_none() { Ok(()) } else { Err(self.locked_refusal(path, Some(id))) }
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
        let hold = LockRecord {
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
        self.locks.insert(id, path.clone(), hold);
        touched.insert(RowKey::Lock(id, path.clone()));
        self.lock_grant(id)
    }

    /// Changes the mode of a lock. The token of a downgraded lock stays the same.
    pub(super) fn change_lock_mode(
        &mut self,
        path: &NodePath,
        id: LockId,
        mode: LockMode,
        touched: &mut Touched,
    ) -> Written {
        if let Some((_, hold)) = self.locks.rows.get_mut(&id) {
            hold.is_upgrading = mode == LockMode::Exclusive && hold.mode == LockMode::Shared;
            if mode == LockMode::Shared {
                hold.mode = mode;
            }
            touched.insert(RowKey::Lock(id, path.clone()));
        }
        if mode == LockMode::Shared {
            self.locks.set_write_lease(id, None);
        }
        self.grant_locks(path, touched);
        self.lock_grant(id)
    }

    /// Ends a lock that its owner releases.
    pub(super) fn unlock(&mut self, id: LockId, touched: &mut Touched) -> Written {
        if let Some((path, _)) = self.locks.remove(id) {
            touched.insert(RowKey::Lock(id, path.clone()));
            self.grant_locks(&path, touched);
        }
        self.unchanged()
    }

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
        if self.locks.on(path).any(|(other, hold)| other != id && hold.token.is_some()) {
            return Err(self.locked_refusal(path, Some(id)));
        }
        let waits = self.locks.on(path).any(|(other, hold)| other == successor && hold.token.is_none());
        if waits { Ok(()) } else { Err(WriteRefusal::SuccessorNotWaiting { path: path.clone(), successor }) }
    }

    /// Hands a lock over to a waiter. No other session gets the node in between. Waiters that can
    /// share the node with the successor get it too.
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

    fn lock_grant(&self, id: LockId) -> Written {
        let taken = self.locks.rows.get(&id).and_then(|(path, hold)| match &hold.lease {
            LeaseKey::Volume(_, volume) => Some(LockGrant {
                path: path.clone(),
                lock: id,
                mode: hold.mode,
                token: hold.token,
                volume: volume.clone(),
                incarnation: hold.incarnation,
            }),
            _ => None,
        });
        Written { lock: taken.map(Box::new), ..self.unchanged() }
    }

    fn next_lock_number(&mut self) -> u64 {
        self.meta.last_lock_number += 1;
        self.meta.last_lock_number
    }

    /// Grants each lock and upgrade that can be granted now.
    fn grant_locks(&mut self, path: &NodePath, touched: &mut Touched) {
        while let Some(id) = self.next_grantable(path) {
            let token = match self.locks.rows.get(&id).and_then(|(_, hold)| hold.token) {
                Some(old) if self.planted.has(Bug::TokenKeptByUpgrade) => old,
                _ => Token(self.next_lock_number()),
            };
            let Some((_, mut hold)) = self.locks.remove(id) else { return };
            if hold.is_upgrading {
                (hold.is_upgrading, hold.mode) = (false, LockMode::Exclusive);
            }
            hold.token = Some(token);
            self.locks.insert(id, path.clone(), hold);
            touched.insert(RowKey::Lock(id, path.clone()));
        }
    }

    /// The next lock to grant. A pending upgrade comes first, when its lock is the only granted
    /// one. Otherwise it is the first waiter, if it is compatible with the granted locks.
    fn next_grantable(&self, path: &NodePath) -> Option<LockId> {
        let held = || self.locks.on(path).filter(|(_, hold)| hold.token.is_some());
        if let Some((id, _)) = held().find(|(_, hold)| hold.is_upgrading) {
            return held().all(|(other, _)| other == id).then_some(id);
        }
        let (id, first) = self.locks.on(path).find(|(_, hold)| hold.token.is_none())?;
        held().all(|(_, hold)| hold.mode.is_compatible_with(first.mode)).then_some(id)
    }

    /// Ends all locks under a lease that the session itself ends. It has stopped using them.
    pub(super) fn release_locks(&mut self, incarnation: Incarnation, touched: &mut Touched) {
        self.end_locks(incarnation, |_| None, touched);
    }

    /// Ends all locks under an ended lease. Lost locks with a lock delay still block their nodes.
    pub(super) fn lose_locks(&mut self, incarnation: Incarnation, touched: &mut Touched) {
        let is_lost =
            |hold: &LockRecord| hold.token.is_some() && hold.lease.session().is_some() && !hold.lock_delay.is_zero();
        self.end_locks(incarnation, |hold| is_lost(hold).then_some(hold.lock_delay), touched);
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
            let Some((path, mut hold)) = self.locks.remove(id) else { continue };
            touched.insert(RowKey::Lock(id, path.clone()));
            if let Some(delay) = delay(&hold) {
                hold.lease = LeaseKey::LockDelay(id);
                hold.incarnation = self.grant_lease(LeaseKey::LockDelay(id), delay, touched).incarnation;
                (hold.is_upgrading, hold.write_lease) = (false, None);
                self.locks.insert(id, path.clone(), hold);
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
            return Err("what is found of holds by path, lease and token is not what the holds say".to_owned());
        }
        for (id, (path, hold)) in &self.locks.rows {
            let lease = self.leases.get(&hold.lease).filter(|lease| lease.incarnation == hold.incarnation);
            let is_of_its_kind = match &hold.lease {
                LeaseKey::Volume(session, _) => *session == hold.session,
                LeaseKey::LockDelay(of) => of == id && hold.token.is_some(),
                LeaseKey::Session(_) | LeaseKey::Key(_) => false,
            };
            if lease.is_none() || !is_of_its_kind {
                return Err(format!("hold {id} on {path} lives under {:?}, which is not there", hold.lease));
            }
            let newest = hold.token.map_or(id.0, |token| token.0.max(id.0));
            if newest > self.meta.last_lock_number {
                return Err(format!(
                    "hold {id} on {path} has number {newest}: expected at most {}",
                    self.meta.last_lock_number
                ));
            }
        }
        self.check_write_leases()?;
        self.locks.by_path.keys().try_for_each(|path| self.check_locks_on(path))
    }

    fn check_locks_on(&self, path: &NodePath) -> Result<(), String> {
        let held: Vec<(LockId, &LockRecord)> = self.locks.on(path).filter(|(_, hold)| hold.token.is_some()).collect();
        if held.len() > 1 && held.iter().any(|(_, hold)| hold.mode == LockMode::Exclusive) {
            return Err(format!("{path} is held exclusively, and by {} sessions", held.len()));
        }
        if held.iter().filter(|(_, hold)| hold.is_upgrading).count() > 1 {
            return Err(format!("two holders of {path} wait for each other to leave"));
        }
        let mut successors = self.locks.on(path).filter(|(_, hold)| hold.is_handed_over);
        if let Some((id, hold)) = successors.next()
            && (hold.token.is_none() || successors.next().is_some())
        {
            return Err(format!("hold {id} on {path} was handed over, and waits, or is not the only one"));
        }
        let first = self.locks.on(path).find(|(_, hold)| hold.token.is_none());
        if let Some((first, _)) = first
            && let Some((late, _)) = held.iter().find(|(id, hold)| *id > first && !hold.is_handed_over)
        {
            return Err(format!("hold {late} on {path} was granted before {first}, which came first"));
        }
        match self.next_grantable(path) {
            Some(id) => Err(format!("hold {id} on {path} waits for nothing")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
