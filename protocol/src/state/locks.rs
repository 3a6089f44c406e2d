//! Holds: who holds a node, and who waits for it.
//!
//! A node's holds stand in the order of arrival. Those in front are held, the others wait; a shared
//! hold that comes after one that waits to be alone waits too, so that a writer is not starved by
//! readers. When a hold ends, the next are granted by the same command. Only one who has the node
//! alone can hand it over to another that waits, past those in front. A hold is here only while the
//! lease is under which it lives (a waiter whose session is gone is granted nothing: Jepsen's
//! finding in etcd 3.4.3), so there is nothing to be checked when it is granted.
//!
//! A hold that is lost with its lease needs nobody's consent to end: its holder counts it as over
//! by its own clock, earlier (T2, T3). It can keep the node for a while yet, if that was asked for
//! (Chubby's lock delay): then it lives under a lease of its own that is never renewed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{RowKey, State, touched::Touched};
use crate::{
    command::{Attach, IntendedLeases, LeaseKey, WriteRefusal, Written},
    id::{Incarnation, LockId, SessionId, Token, WriteLeaseId},
    lock::{LockGrant, LockMode, LockStatus},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    work::CountVisits,
};

/// The most holds on one node, of those that are held and those that wait.
pub const LOCKS_PER_NODE_MAX: u64 = 4096;

/// One hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockRecord {
    /// Whose it is, or was.
    pub session: SessionId,
    /// The lease under which it lives: the session's on a volume, or a
    /// [delay](LeaseKey::LockDelay).
    pub lease: LeaseKey,
    /// Which of its incarnations.
    pub incarnation: Incarnation,
    /// As what it is held, or asked for.
    pub mode: LockMode,
    /// Of the grant. None: it waits.
    pub token: Option<Token>,
    /// It is held shared, and waits to be exclusive.
    pub is_upgrading: bool,
    /// How long nobody gets the node if the hold is lost.
    pub lock_delay: Duration,
    /// Its holder keeps the node's data to itself under this write lease (`caching.rs`).
    pub write_lease: Option<WriteLeaseId>,
    /// It was handed over by the one before, past those that had come first.
    pub is_handed_over: bool,
}

/// All holds. What is found by path, lease and token follows from the holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct LockTable {
    pub(super) rows: BTreeMap<LockId, (NodePath, LockRecord)>,
    by_path: BTreeMap<NodePath, BTreeSet<LockId>>,
    by_lease: BTreeSet<(Incarnation, LockId)>,
    by_token: BTreeMap<Token, LockId>,
    /// Those whose holders keep the data to themselves: one on a node at most.
    pub(super) write_leases: BTreeMap<NodePath, LockId>,
    /// The same by the session.
    pub(super) write_leases_by_session: BTreeSet<(SessionId, NodePath)>,
}

impl LockTable {
    pub(super) fn of(rows: BTreeMap<LockId, (NodePath, LockRecord)>) -> Self {
        let mut holds = Self::default();
        for (id, (path, hold)) in rows {
            holds.insert(id, path, hold);
        }
        holds
    }

    fn insert(&mut self, id: LockId, path: NodePath, hold: LockRecord) {
        self.by_path.entry(path.clone()).or_default().insert(id);
        self.by_lease.insert((hold.incarnation, id));
        self.by_token.extend(hold.token.map(|token| (token, id)));
        if hold.write_lease.is_some() {
            self.write_leases.insert(path.clone(), id);
            self.write_leases_by_session.insert((hold.session, path.clone()));
        }
        self.rows.insert(id, (path, hold));
    }

    fn remove(&mut self, id: LockId) -> Option<(NodePath, LockRecord)> {
        let (path, hold) = self.rows.remove(&id)?;
        if let Some(ids) = self.by_path.get_mut(&path) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_path.remove(&path);
            }
        }
        self.by_lease.remove(&(hold.incarnation, id));
        if let Some(token) = hold.token {
            self.by_token.remove(&token);
        }
        if hold.write_lease.is_some() {
            self.write_leases.remove(&path);
            self.write_leases_by_session.remove(&(hold.session, path.clone()));
        }
        Some((path, hold))
    }

    /// The holder keeps the node's data to itself from now on, or does not any more. Returns the
    /// node, if that is another than before.
    pub(super) fn set_write_lease(&mut self, id: LockId, caches: Option<WriteLeaseId>) -> Option<NodePath> {
        let (path, hold) = self.rows.get_mut(&id).filter(|(_, hold)| hold.write_lease.is_some() != caches.is_some())?;
        hold.write_lease = caches;
        let of = (hold.session, path.clone());
        match caches {
            Some(_) => {
                self.write_leases.insert(path.clone(), id);
                self.write_leases_by_session.insert(of);
            }
            None => {
                self.write_leases.remove(path);
                self.write_leases_by_session.remove(&of);
            }
        }
        Some(path.clone())
    }

    /// How many entries there are, of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 5] {
        let by_path = self.by_path.values().map(BTreeSet::len).sum();
        [
            self.rows.len(),
            by_path,
            self.by_lease.len(),
            self.by_token.len(),
            self.write_leases.len() + self.write_leases_by_session.len(),
        ]
    }

    fn of_lease(&self, incarnation: Incarnation) -> impl Iterator<Item = LockId> + use<'_> {
        let all = (incarnation, LockId(0))..(incarnation.next(), LockId(0));
        self.by_lease.range(all).counted().map(|(_, id)| *id)
    }

    fn on<'a>(&'a self, path: &NodePath) -> impl Iterator<Item = (LockId, &'a LockRecord)> + use<'a> {
        let ids = self.by_path.get(path).into_iter().flatten();
        ids.counted().filter_map(|id| self.rows.get(id).map(|(_, hold)| (*id, hold)))
    }
}

impl State {
    /// The holds on a node, those that are held and those that wait, in the order of arrival.
    pub fn locks_on<'a>(&'a self, path: &NodePath) -> impl Iterator<Item = (LockId, &'a LockRecord)> + use<'a> {
        self.locks.on(path)
    }

    /// All holds, in the order of arrival.
    pub fn locks(&self) -> impl Iterator<Item = (LockId, &NodePath, &LockRecord)> {
        self.locks.rows.iter().map(|(id, (path, hold))| (*id, path, hold))
    }

    /// The holds that live under the lease.
    pub fn locks_under(&self, incarnation: Incarnation) -> impl Iterator<Item = LockId> + use<'_> {
        self.locks.of_lease(incarnation)
    }

    /// Whether a node at or below `top` is held under this token by a session that lives: what a
    /// resource asks before it acts for a holder (S10).
    pub fn is_locked_under(&self, top: &NodePath, token: Token) -> bool {
        let hold = self.locks.by_token.get(&token).and_then(|id| self.locks.rows.get(id));
        hold.is_some_and(|(path, hold)| top.contains(path) && !matches!(hold.lease, LeaseKey::LockDelay(_)))
    }

    /// How a hold on a node stands.
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

    /// The session's lease under which a hold on the node would live.
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
    /// [`WriteRefusal`] if a hold on the node cannot be had, or waited for.
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

    /// Whether a hold that comes now is granted at once.
    fn is_grantable(&self, path: &NodePath, mode: LockMode) -> bool {
        let overtakes = self.mistake.is(Bug::SharedLockOvertakes);
        self.locks.on(path).all(|(_, hold)| match hold.token {
            Some(_) => hold.mode.is_compatible_with(mode) && (!hold.is_upgrading || overtakes),
            None => overtakes && mode == LockMode::Shared,
        })
    }

    /// Says who is in the way.
    fn locked_refusal(&self, path: &NodePath, but: Option<LockId>) -> WriteRefusal {
        let others = || self.locks.on(path).filter(|(id, _)| Some(*id) != but).map(|(_, hold)| hold);
        let first = others().find_map(|hold| hold.token.map(|token| (hold.session, token)));
        let (owner, token) = first.unwrap_or_default();
        let waiting = others().filter(|hold| hold.token.is_none()).count() as u64;
        WriteRefusal::Locked { path: path.clone(), owner, token, waiting }
    }

    /// # Errors
    ///
    /// [`WriteRefusal`] if the session has no such hold, held or waiting.
    pub(super) fn check_own_lock(
        &self,
        session: SessionId,
        path: &NodePath,
        id: LockId,
    ) -> Result<&LockRecord, WriteRefusal> {
        let found = self.locks.rows.get(&id).filter(|(at, hold)| {
            let is_own = hold.lease.session() == Some(session) || self.mistake.is(Bug::LockReleasedByAnyone);
            at == path && is_own
        });
        found.map(|(_, hold)| hold).ok_or_else(|| WriteRefusal::LockNotFound { path: path.clone(), lock: id })
    }

    /// # Errors
    ///
    /// [`WriteRefusal`] if the hold is not held, or cannot be made another.
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

    /// Carries out a request for a hold that is not refused.
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

    /// Carries out what makes a hold another. The token of one that is made shared stays good.
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

    /// Ends a hold that was given back.
    pub(super) fn unlock(&mut self, id: LockId, touched: &mut Touched) -> Written {
        if let Some((path, _)) = self.locks.remove(id) {
            touched.insert(RowKey::Lock(id, path.clone()));
            self.grant_locks(&path, touched);
        }
        self.unchanged()
    }

    /// # Errors
    ///
    /// [`WriteRefusal`] if the session has no such hold, others have a part in it, or the successor
    /// does not wait.
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

    /// Gives a hold to another that waits. Nobody gets the node in between, and those who can share
    /// it with that one get it too.
    pub(super) fn hand_over(&mut self, id: LockId, to: LockId, touched: &mut Touched) -> Written {
        let Some((path, given)) = self.locks.remove(id) else { return self.unchanged() };
        touched.insert(RowKey::Lock(id, path.clone()));
        if !self.mistake.is(Bug::SuccessorPassedOver) {
            let number = Token(self.next_lock_number());
            let token = if self.mistake.is(Bug::SuccessorKeepsToken) { given.token } else { Some(number) };
            if let Some((_, next)) = self.locks.remove(to) {
                self.locks.insert(to, path.clone(), LockRecord { token, is_handed_over: true, ..next });
                touched.insert(RowKey::Lock(to, path.clone()));
            }
        }
        self.grant_locks(&path, touched);
        self.unchanged()
    }

    /// What a request came to that changes no node.
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

    /// Grants a node to those whose turn it is.
    fn grant_locks(&mut self, path: &NodePath, touched: &mut Touched) {
        while let Some(id) = self.next_grantable(path) {
            let token = match self.locks.rows.get(&id).and_then(|(_, hold)| hold.token) {
                Some(old) if self.mistake.is(Bug::TokenKeptByUpgrade) => old,
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

    /// The hold to be granted next: one that waits to be exclusive when the others have left, else
    /// the first in the queue if it goes with those that are held.
    fn next_grantable(&self, path: &NodePath) -> Option<LockId> {
        let held = || self.locks.on(path).filter(|(_, hold)| hold.token.is_some());
        if let Some((id, _)) = held().find(|(_, hold)| hold.is_upgrading) {
            return held().all(|(other, _)| other == id).then_some(id);
        }
        let (id, first) = self.locks.on(path).find(|(_, hold)| hold.token.is_none())?;
        held().all(|(_, hold)| hold.mode.is_compatible_with(first.mode)).then_some(id)
    }

    /// Ends all holds under a lease that the session gives up of its own accord: it has stopped
    /// using them.
    pub(super) fn release_locks(&mut self, incarnation: Incarnation, touched: &mut Touched) {
        self.end_locks(incarnation, |_| None, touched);
    }

    /// Ends all holds under a lease that is over. Those that ask for it keep their nodes for a
    /// while.
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
        let spares_waiting = self.mistake.is(Bug::DeadWaiterStays);
        let ids: Vec<LockId> = self.locks.of_lease(incarnation).collect();
        let mut paths = BTreeSet::new();
        for id in ids {
            let is_waiting = self.locks.rows.get(&id).is_some_and(|(_, hold)| hold.token.is_none());
            if is_waiting && spares_waiting {
                continue;
            }
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

    /// Checks that the holds on each node go together, are in order, and live under leases that are
    /// there.
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
