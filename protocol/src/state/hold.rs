//! Holds: who holds a node, and who waits for it.
//!
//! A node's holds stand in the order of arrival. Those in front are held, the others wait; a shared hold that comes after one that
//! waits to be alone waits too, so that a writer is not starved by readers. When a hold ends, the next are granted by the same
//! command. Only one who has the node alone can hand it over to another that waits, past those in front. A hold is here only while the lease is under which it lives (a waiter whose session is gone is granted nothing: Jepsen's
//! finding in etcd 3.4.3), so there is nothing to be checked when it is granted.
//!
//! A hold that is lost with its lease needs nobody's consent to end: its holder counts it as over by its own clock, earlier (T2, T3). It
//! can keep the node for a while yet, if that was asked for (Chubby's lock delay): then it lives under a lease of its own that is
//! never renewed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{RowKey, State, touched::Touched};
use crate::{
    command::{Attach, LeaseKey, Meant, WriteRefusal, Written},
    hold::{HoldMode, HoldStatus, Taken},
    id::{HoldId, Incarnation, SessionId, Token, WriteLeaseId},
    path::Path,
    planted::Bug,
    reached::{Bound, reached},
    work::Counted,
};

/// The most holds on one node, of those that are held and those that wait.
pub const HOLDS_PER_NODE_MAX: u64 = 4096;

/// One hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hold {
    /// Whose it is, or was.
    pub session: SessionId,
    /// The lease under which it lives: the session's on a volume, or a [delay](LeaseKey::Delay).
    pub lease: LeaseKey,
    /// Which of its incarnations.
    pub incarnation: Incarnation,
    /// As what it is held, or asked for.
    pub mode: HoldMode,
    /// Of the grant. None: it waits.
    pub token: Option<Token>,
    /// It is held shared, and waits to be exclusive.
    pub is_upgrading: bool,
    /// How long nobody gets the node if the hold is lost.
    pub delay: Duration,
    /// Its holder keeps the node's data to itself under this write lease (`caching.rs`).
    pub caches: Option<WriteLeaseId>,
    /// It was handed over by the one before, past those that had come first.
    pub is_successor: bool,
}

/// All holds. What is found by path, lease and token follows from the holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Holds {
    pub(super) rows: BTreeMap<HoldId, (Path, Hold)>,
    by_path: BTreeMap<Path, BTreeSet<HoldId>>,
    by_lease: BTreeSet<(Incarnation, HoldId)>,
    by_token: BTreeMap<Token, HoldId>,
    /// Those whose holders keep the data to themselves: one on a node at most.
    pub(super) caching: BTreeMap<Path, HoldId>,
    /// The same by the session.
    pub(super) caching_of: BTreeSet<(SessionId, Path)>,
}

impl Holds {
    pub(super) fn of(rows: BTreeMap<HoldId, (Path, Hold)>) -> Self {
        let mut holds = Self::default();
        for (id, (path, hold)) in rows {
            holds.insert(id, path, hold);
        }
        holds
    }

    fn insert(&mut self, id: HoldId, path: Path, hold: Hold) {
        self.by_path.entry(path.clone()).or_default().insert(id);
        self.by_lease.insert((hold.incarnation, id));
        self.by_token.extend(hold.token.map(|token| (token, id)));
        if hold.caches.is_some() {
            self.caching.insert(path.clone(), id);
            self.caching_of.insert((hold.session, path.clone()));
        }
        self.rows.insert(id, (path, hold));
    }

    fn remove(&mut self, id: HoldId) -> Option<(Path, Hold)> {
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
        if hold.caches.is_some() {
            self.caching.remove(&path);
            self.caching_of.remove(&(hold.session, path.clone()));
        }
        Some((path, hold))
    }

    /// The holder keeps the node's data to itself from now on, or does not any more. Returns the node, if that is another than before.
    pub(super) fn set_caching(&mut self, id: HoldId, caches: Option<WriteLeaseId>) -> Option<Path> {
        let (path, hold) = self.rows.get_mut(&id).filter(|(_, hold)| hold.caches.is_some() != caches.is_some())?;
        hold.caches = caches;
        let of = (hold.session, path.clone());
        match caches {
            Some(_) => {
                self.caching.insert(path.clone(), id);
                self.caching_of.insert(of);
            }
            None => {
                self.caching.remove(path);
                self.caching_of.remove(&of);
            }
        }
        Some(path.clone())
    }

    /// How many entries there are, of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 5] {
        let by_path = self.by_path.values().map(BTreeSet::len).sum();
        [self.rows.len(), by_path, self.by_lease.len(), self.by_token.len(), self.caching.len() + self.caching_of.len()]
    }

    fn of_lease(&self, incarnation: Incarnation) -> impl Iterator<Item = HoldId> + use<'_> {
        let all = (incarnation, HoldId(0))..(incarnation.next(), HoldId(0));
        self.by_lease.range(all).counted().map(|(_, id)| *id)
    }

    fn on<'a>(&'a self, path: &Path) -> impl Iterator<Item = (HoldId, &'a Hold)> + use<'a> {
        let ids = self.by_path.get(path).into_iter().flatten();
        ids.counted().filter_map(|id| self.rows.get(id).map(|(_, hold)| (*id, hold)))
    }
}

impl State {
    /// The holds on a node, those that are held and those that wait, in the order of arrival.
    pub fn holds_on<'a>(&'a self, path: &Path) -> impl Iterator<Item = (HoldId, &'a Hold)> + use<'a> {
        self.holds.on(path)
    }

    /// All holds, in the order of arrival.
    pub fn holds(&self) -> impl Iterator<Item = (HoldId, &Path, &Hold)> {
        self.holds.rows.iter().map(|(id, (path, hold))| (*id, path, hold))
    }

    /// The holds that live under the lease.
    pub fn holds_under(&self, incarnation: Incarnation) -> impl Iterator<Item = HoldId> + use<'_> {
        self.holds.of_lease(incarnation)
    }

    /// Whether a node at or below `top` is held under this token by a session that lives: what a resource asks before it acts for a
    /// holder (S10).
    pub fn is_held_under(&self, top: &Path, token: Token) -> bool {
        let hold = self.holds.by_token.get(&token).and_then(|id| self.holds.rows.get(id));
        hold.is_some_and(|(path, hold)| top.contains(path) && !matches!(hold.lease, LeaseKey::Delay(_)))
    }

    /// How a hold on a node stands.
    pub fn hold_status(&self, path: &Path, id: HoldId) -> HoldStatus {
        let found = self.holds.rows.get(&id).filter(|(at, hold)| at == path && hold.lease.session().is_some());
        match found.map(|(_, hold)| (hold.token, hold.mode)) {
            None => HoldStatus::Over,
            Some((None, _)) => HoldStatus::Waiting,
            Some((Some(token), mode)) => {
                let waits = |(other, hold): (HoldId, &Hold)| other != id && (hold.token.is_none() || hold.is_upgrading);
                HoldStatus::Held { token, mode, is_wanted: self.holds.on(path).any(waits) }
            }
        }
    }

    /// The session's lease under which a hold on the node would live.
    fn lease_for_hold(&self, session: SessionId, path: &Path) -> Result<(LeaseKey, Incarnation), WriteRefusal> {
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
    pub(super) fn check_lock(
        &self,
        session: SessionId,
        path: &Path,
        (mode, wait): (HoldMode, bool),
        meant: &Meant,
    ) -> Result<(), WriteRefusal> {
        self.expect_meant(session, path, Attach::Session, meant)?;
        self.lease_for_hold(session, path)?;
        let got = self.holds.by_path.get(path).map_or(0, BTreeSet::len) as u64;
        if got >= HOLDS_PER_NODE_MAX {
            reached(Bound::HoldsPerNode);
            return Err(WriteRefusal::TooManyHolds { path: path.clone(), got, most: HOLDS_PER_NODE_MAX });
        }
        if wait || self.is_free(path, mode) { Ok(()) } else { Err(self.held(path, None)) }
    }

    /// Whether a hold that comes now is granted at once.
    fn is_free(&self, path: &Path, mode: HoldMode) -> bool {
        let overtakes = self.mistake.is(Bug::SharedHoldOvertakes);
        self.holds.on(path).all(|(_, hold)| match hold.token {
            Some(_) => hold.mode.goes_with(mode) && (!hold.is_upgrading || overtakes),
            None => overtakes && mode == HoldMode::Shared,
        })
    }

    /// Says who is in the way.
    fn held(&self, path: &Path, but: Option<HoldId>) -> WriteRefusal {
        let others = || self.holds.on(path).filter(|(id, _)| Some(*id) != but).map(|(_, hold)| hold);
        let first = others().find_map(|hold| hold.token.map(|token| (hold.session, token)));
        let (holder, token) = first.unwrap_or_default();
        let waiting = others().filter(|hold| hold.token.is_none()).count() as u64;
        WriteRefusal::Held { path: path.clone(), holder, token, waiting }
    }

    /// # Errors
    ///
    /// [`WriteRefusal`] if the session has no such hold, held or waiting.
    pub(super) fn check_hold(&self, session: SessionId, path: &Path, id: HoldId) -> Result<&Hold, WriteRefusal> {
        let found = self.holds.rows.get(&id).filter(|(at, hold)| {
            let is_own = hold.lease.session() == Some(session) || self.mistake.is(Bug::HoldTakenByAnyone);
            at == path && is_own
        });
        found.map(|(_, hold)| hold).ok_or_else(|| WriteRefusal::HoldNotFound { path: path.clone(), hold: id })
    }

    /// # Errors
    ///
    /// [`WriteRefusal`] if the hold is not held, or cannot be made another.
    pub(super) fn check_convert(
        &self,
        session: SessionId,
        path: &Path,
        id: HoldId,
        mode: HoldMode,
        wait: bool,
    ) -> Result<(), WriteRefusal> {
        let hold = self.check_hold(session, path, id)?;
        if hold.token.is_none() {
            return Err(WriteRefusal::HoldWaits { path: path.clone(), hold: id });
        }
        if mode == HoldMode::Shared || hold.mode == HoldMode::Exclusive {
            return Ok(());
        }
        let others = || self.holds.on(path).filter(|(other, hold)| *other != id && hold.token.is_some());
        if others().any(|(_, other)| other.is_upgrading) {
            return Err(WriteRefusal::UpgradePending { path: path.clone() });
        }
        if wait || others().next().is_none() { Ok(()) } else { Err(self.held(path, Some(id))) }
    }

    /// Carries out a request for a hold that is not refused.
    pub(super) fn lock(
        &mut self,
        session: SessionId,
        path: &Path,
        (mode, delay): (HoldMode, Duration),
        touched: &mut Touched,
    ) -> Written {
        let Ok((lease, incarnation)) = self.lease_for_hold(session, path) else { return self.unchanged() };
        let is_free = self.is_free(path, mode);
        let id = HoldId(self.next_hold_number());
        let token = is_free.then(|| Token(self.next_hold_number()));
        let (is_upgrading, caches, is_successor) = (false, None, false);
        let hold = Hold { session, lease, incarnation, mode, token, is_upgrading, delay, caches, is_successor };
        self.holds.insert(id, path.clone(), hold);
        touched.insert(RowKey::Hold(id, path.clone()));
        self.taken(id)
    }

    /// Carries out what makes a hold another. The token of one that is made shared stays good.
    pub(super) fn convert(&mut self, path: &Path, id: HoldId, mode: HoldMode, touched: &mut Touched) -> Written {
        if let Some((_, hold)) = self.holds.rows.get_mut(&id) {
            hold.is_upgrading = mode == HoldMode::Exclusive && hold.mode == HoldMode::Shared;
            if mode == HoldMode::Shared {
                hold.mode = mode;
            }
            touched.insert(RowKey::Hold(id, path.clone()));
        }
        if mode == HoldMode::Shared {
            self.holds.set_caching(id, None);
        }
        self.grant_holds(path, touched);
        self.taken(id)
    }

    /// Ends a hold that was given back.
    pub(super) fn unlock(&mut self, id: HoldId, touched: &mut Touched) -> Written {
        if let Some((path, _)) = self.holds.remove(id) {
            touched.insert(RowKey::Hold(id, path.clone()));
            self.grant_holds(&path, touched);
        }
        self.unchanged()
    }

    /// # Errors
    ///
    /// [`WriteRefusal`] if the session has no such hold, others have a part in it, or the successor does not wait.
    pub(super) fn check_hand_over(
        &self,
        session: SessionId,
        path: &Path,
        id: HoldId,
        to: HoldId,
    ) -> Result<(), WriteRefusal> {
        if self.check_hold(session, path, id)?.token.is_none() {
            return Err(WriteRefusal::HoldWaits { path: path.clone(), hold: id });
        }
        if self.holds.on(path).any(|(other, hold)| other != id && hold.token.is_some()) {
            return Err(self.held(path, Some(id)));
        }
        let waits = self.holds.on(path).any(|(other, hold)| other == to && hold.token.is_none());
        if waits { Ok(()) } else { Err(WriteRefusal::NoSuccessor { path: path.clone(), to }) }
    }

    /// Gives a hold to another that waits. Nobody gets the node in between, and those who can share it with that one get it too.
    pub(super) fn hand_over(&mut self, id: HoldId, to: HoldId, touched: &mut Touched) -> Written {
        let Some((path, given)) = self.holds.remove(id) else { return self.unchanged() };
        touched.insert(RowKey::Hold(id, path.clone()));
        if !self.mistake.is(Bug::SuccessorPassedOver) {
            let number = Token(self.next_hold_number());
            let token = if self.mistake.is(Bug::SuccessorKeepsToken) { given.token } else { Some(number) };
            if let Some((_, next)) = self.holds.remove(to) {
                self.holds.insert(to, path.clone(), Hold { token, is_successor: true, ..next });
                touched.insert(RowKey::Hold(to, path.clone()));
            }
        }
        self.grant_holds(&path, touched);
        self.unchanged()
    }

    /// What a request came to that changes no node.
    pub(super) fn unchanged(&self) -> Written {
        Written { revision: self.meta.revision, ..Written::default() }
    }

    fn taken(&self, id: HoldId) -> Written {
        let taken = self.holds.rows.get(&id).and_then(|(path, hold)| match &hold.lease {
            LeaseKey::Volume(_, volume) => Some(Taken {
                path: path.clone(),
                hold: id,
                mode: hold.mode,
                token: hold.token,
                volume: volume.clone(),
                incarnation: hold.incarnation,
            }),
            _ => None,
        });
        Written { taken: taken.map(Box::new), ..self.unchanged() }
    }

    fn next_hold_number(&mut self) -> u64 {
        self.meta.last_hold += 1;
        self.meta.last_hold
    }

    /// Grants a node to those whose turn it is.
    fn grant_holds(&mut self, path: &Path, touched: &mut Touched) {
        while let Some(id) = self.next_to_hold(path) {
            let token = match self.holds.rows.get(&id).and_then(|(_, hold)| hold.token) {
                Some(old) if self.mistake.is(Bug::TokenKeptByUpgrade) => old,
                _ => Token(self.next_hold_number()),
            };
            let Some((_, mut hold)) = self.holds.remove(id) else { return };
            if hold.is_upgrading {
                (hold.is_upgrading, hold.mode) = (false, HoldMode::Exclusive);
            }
            hold.token = Some(token);
            self.holds.insert(id, path.clone(), hold);
            touched.insert(RowKey::Hold(id, path.clone()));
        }
    }

    /// The hold to be granted next: one that waits to be exclusive when the others have left, else the first in the queue if it goes
    /// with those that are held.
    fn next_to_hold(&self, path: &Path) -> Option<HoldId> {
        let held = || self.holds.on(path).filter(|(_, hold)| hold.token.is_some());
        if let Some((id, _)) = held().find(|(_, hold)| hold.is_upgrading) {
            return held().all(|(other, _)| other == id).then_some(id);
        }
        let (id, first) = self.holds.on(path).find(|(_, hold)| hold.token.is_none())?;
        held().all(|(_, hold)| hold.mode.goes_with(first.mode)).then_some(id)
    }

    /// Ends all holds under a lease that the session gives up of its own accord: it has stopped using them.
    pub(super) fn give_back_holds(&mut self, incarnation: Incarnation, touched: &mut Touched) {
        self.end_holds(incarnation, |_| None, touched);
    }

    /// Ends all holds under a lease that is over. Those that ask for it keep their nodes for a while.
    pub(super) fn lose_holds(&mut self, incarnation: Incarnation, touched: &mut Touched) {
        let is_lost = |hold: &Hold| hold.token.is_some() && hold.lease.session().is_some() && !hold.delay.is_zero();
        self.end_holds(incarnation, |hold| is_lost(hold).then_some(hold.delay), touched);
    }

    fn end_holds(
        &mut self,
        incarnation: Incarnation,
        delay: impl Fn(&Hold) -> Option<Duration>,
        touched: &mut Touched,
    ) {
        let spares_waiting = self.mistake.is(Bug::DeadWaiterStays);
        let ids: Vec<HoldId> = self.holds.of_lease(incarnation).collect();
        let mut paths = BTreeSet::new();
        for id in ids {
            let is_waiting = self.holds.rows.get(&id).is_some_and(|(_, hold)| hold.token.is_none());
            if is_waiting && spares_waiting {
                continue;
            }
            let Some((path, mut hold)) = self.holds.remove(id) else { continue };
            touched.insert(RowKey::Hold(id, path.clone()));
            if let Some(delay) = delay(&hold) {
                hold.lease = LeaseKey::Delay(id);
                hold.incarnation = self.grant_lease(LeaseKey::Delay(id), delay, touched).incarnation;
                (hold.is_upgrading, hold.caches) = (false, None);
                self.holds.insert(id, path.clone(), hold);
            }
            paths.insert(path);
        }
        for path in paths {
            self.grant_holds(&path, touched);
        }
    }

    /// Checks that the holds on each node go together, are in order, and live under leases that are there.
    pub(super) fn check_holds(&self) -> Result<(), String> {
        if self.holds != Holds::of(self.holds.rows.clone()) {
            return Err("what is found of holds by path, lease and token is not what the holds say".to_owned());
        }
        for (id, (path, hold)) in &self.holds.rows {
            let lease = self.leases.get(&hold.lease).filter(|lease| lease.incarnation == hold.incarnation);
            let is_of_its_kind = match &hold.lease {
                LeaseKey::Volume(session, _) => *session == hold.session,
                LeaseKey::Delay(of) => of == id && hold.token.is_some(),
                LeaseKey::Session(_) | LeaseKey::Key(_) => false,
            };
            if lease.is_none() || !is_of_its_kind {
                return Err(format!("hold {id} on {path} lives under {:?}, which is not there", hold.lease));
            }
            let newest = hold.token.map_or(id.0, |token| token.0.max(id.0));
            if newest > self.meta.last_hold {
                return Err(format!(
                    "hold {id} on {path} has number {newest}: expected at most {}",
                    self.meta.last_hold
                ));
            }
        }
        self.check_caching()?;
        self.holds.by_path.keys().try_for_each(|path| self.check_holds_on(path))
    }

    fn check_holds_on(&self, path: &Path) -> Result<(), String> {
        let held: Vec<(HoldId, &Hold)> = self.holds.on(path).filter(|(_, hold)| hold.token.is_some()).collect();
        if held.len() > 1 && held.iter().any(|(_, hold)| hold.mode == HoldMode::Exclusive) {
            return Err(format!("{path} is held exclusively, and by {} sessions", held.len()));
        }
        if held.iter().filter(|(_, hold)| hold.is_upgrading).count() > 1 {
            return Err(format!("two holders of {path} wait for each other to leave"));
        }
        let mut successors = self.holds.on(path).filter(|(_, hold)| hold.is_successor);
        if let Some((id, hold)) = successors.next()
            && (hold.token.is_none() || successors.next().is_some())
        {
            return Err(format!("hold {id} on {path} was handed over, and waits, or is not the only one"));
        }
        let first = self.holds.on(path).find(|(_, hold)| hold.token.is_none());
        if let Some((first, _)) = first
            && let Some((late, _)) = held.iter().find(|(id, hold)| *id > first && !hold.is_successor)
        {
            return Err(format!("hold {late} on {path} was granted before {first}, which came first"));
        }
        match self.next_to_hold(path) {
            Some(id) => Err(format!("hold {id} on {path} waits for nothing")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
