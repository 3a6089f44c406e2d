//! The session's locks, and its positions in lock queues (S10).
//!
//! A lock belongs to one incarnation of the lease on its volume. The client counts on the lock only
//! while that lease holds on this clock (S1, T2), because a server's report may be old. When the
//! lease has ended, or may have by this clock, the lock is lost, and the holder notifies the
//! application once. The servers may still have the lock, so the client has to release it there.
//!
//! To learn of grants and of waiters, the holder has one [`Body::AwaitLocks`] in flight. The leader
//! answers it when a status has changed. It names all locks. If there are too many for one request,
//! successive requests name them in turn. After a grant, the holder waits a while before it asks.
//! So a short lock costs only two requests.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included, Unbounded},
    time::Duration,
};

use super::{
    Holder, HolderEffect, SendId,
    in_flight::Purpose,
    own_write_lease::OwnWriteLease,
    session::LinkState,
    volume_leases::{KnownVolume, RenewalReason},
};
use crate::{
    command::{Write, Written},
    id::{Incarnation, LockId},
    lock::{LockGrant, LockMode, LockStatus},
    message::{AWAIT_LOCKS_BYTES_MAX, AWAIT_LOCKS_MAX, AwaitedLock, Body},
    path::NodePath,
    reached::{Bound, reached},
    time::Instant,
};

/// How long after a grant the holder asks whether another session waits for the lock.
const ASKED_AFTER: Duration = Duration::from_millis(100);

/// How long a request may wait at the leader before the holder repeats it. So if a request was
/// lost, the client learns of a grant at most this much later. It is shorter than the time that the
/// client and its connection allow for an answer.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(20);

/// The time between two requests if there are more locks than one request names. The leader looks
/// up all locks of each request, so requests must not be frequent.
const ASKED_NEXT_AFTER: Duration = Duration::from_secs(1);

/// A lock of this session, granted or waiting.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnLock {
    pub(super) path: NodePath,
    pub(super) volume: NodePath,
    incarnation: Incarnation,
    pub(super) status: LockStatus,
    /// The mode that the application has requested, until the answer.
    pub(super) requested_mode: Option<LockMode>,
    /// The application has requested to hand it over. Another session may own it by now.
    pub(super) is_handed_over: bool,
    /// Its write lease, or the request for one.
    pub(super) write_lease: Option<Box<OwnWriteLease>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnLocks {
    pub(super) by_id: BTreeMap<LockId, OwnLock>,
    /// The request that waits at the leader.
    await_in_flight: Option<SendId>,
    /// When to send the next request.
    due: Option<Instant>,
    /// If there are more locks than one request names: the last lock that the last request named.
    asked_through: LockId,
}

impl OwnLock {
    /// The status that the application may count on: shared, if it has asked for a downgrade.
    fn lowered(&self, status: LockStatus) -> LockStatus {
        match (status, self.requested_mode) {
            (LockStatus::Granted { token, is_contended, .. }, Some(LockMode::Shared)) => {
                LockStatus::Granted { token, mode: LockMode::Shared, is_contended }
            }
            _ => status,
        }
    }
}

impl OwnLocks {
    /// Forgets the request in flight, because its connection has ended.
    pub(super) fn unsend(&mut self) {
        self.await_in_flight = None;
        self.due = (!self.by_id.is_empty()).then_some(Instant::ZERO);
    }

    fn ask_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// The locks that the next request names, and how long after it the following request is due.
    /// The request names all locks, or the next in turn if the locks or their paths are too many.
    fn ask(&mut self) -> (Vec<AwaitedLock>, Duration) {
        let (last, again) = match self.fits_one_request() {
            true => (LockId(0), ASKED_AGAIN_AFTER),
            false => (self.asked_through, ASKED_NEXT_AFTER),
        };
        let (before, after) = ((Unbounded, Included(last)), (Excluded(last), Unbounded));
        let mut bytes = 0;
        let fits = |(_, hold): &(&LockId, &OwnLock)| {
            bytes += hold.path.as_str().len();
            bytes <= AWAIT_LOCKS_BYTES_MAX
        };
        let in_turn = self.by_id.range(after).chain(self.by_id.range(before)).take(AWAIT_LOCKS_MAX).take_while(fits);
        let named = in_turn.map(|(id, hold)| AwaitedLock { path: hold.path.clone(), lock: *id, known: hold.status });
        let named: Vec<AwaitedLock> = named.collect();
        self.asked_through = named.last().map_or(LockId(0), |last| last.lock);
        (named, again)
    }

    fn fits_one_request(&self) -> bool {
        if self.by_id.len() > AWAIT_LOCKS_MAX {
            return false;
        }
        let fits = self.by_id.values().map(|hold| hold.path.as_str().len()).sum::<usize>() <= AWAIT_LOCKS_BYTES_MAX;
        if !fits {
            reached(Bound::AwaitLocksBytes);
        }
        fits
    }
}

impl Holder {
    /// How long the lock certainly lasts without another promise. Zero if the session does not own
    /// the lock, or hands it over. After a refused hand-over, the session owns the lock again.
    pub fn lock_remaining(&self, id: LockId, now: Instant) -> Duration {
        let is_held = |hold: &&OwnLock| matches!(hold.status, LockStatus::Granted { .. });
        let held = self.locks.by_id.get(&id).filter(is_held).filter(|hold| !hold.is_handed_over);
        let Some(hold) = held else { return Duration::ZERO };
        let lease = self.volumes.get(&hold.volume).and_then(|volume| volume.lease.as_ref());
        let lease = lease.filter(|lease| lease.incarnation == hold.incarnation);
        lease.map_or(Duration::ZERO, |lease| lease.until.since(now))
    }

    /// Records a lock change that the application requests. From now on a downgraded lock counts as
    /// shared, because another session may get the lock before the answer. A lock that is handed
    /// over no longer counts as owned.
    ///
    /// Returns false if the lock has a write lease, if it waits, or if another change is in flight.
    /// A waiting lock may be granted before the change arrives. The order of two changes in flight
    /// would be unknown.
    pub(super) fn begin_lock_change(&mut self, change: &Write) -> bool {
        let (hold, mode) = match change {
            Write::ChangeLockMode { lock, mode, .. } => (lock, Some(*mode)),
            Write::HandOver { lock, .. } => (lock, None),
            Write::TakeWriteLease { lock, .. } => return self.request_write_lease(*lock),
            _ => return true,
        };
        let Some(own) = self.locks.by_id.get_mut(hold) else { return true };
        let is_asked = own.requested_mode.is_some() || own.is_handed_over || own.write_lease.is_some();
        if is_asked || own.status == LockStatus::Waiting {
            return false;
        }
        own.is_handed_over = mode.is_none();
        own.requested_mode = mode;
        own.status = own.lowered(own.status);
        true
    }

    /// If the write was a hand-over that will never take effect, the session still owns the lock.
    pub(super) fn undo_hand_over(&mut self, change: &Write) {
        if let Write::HandOver { lock, .. } = change
            && let Some(own) = self.locks.by_id.get_mut(lock)
        {
            own.is_handed_over = false;
        }
    }

    /// Records that a change of a lock's mode has ended, successful or not.
    pub(super) fn end_lock_change(&mut self, change: &Write) {
        if let Write::ChangeLockMode { lock, .. } = change
            && let Some(own) = self.locks.by_id.get_mut(lock)
        {
            own.requested_mode = None;
        }
    }

    /// Forgets a lock that the application has released, or that is lost.
    pub(super) fn forget_lock(&mut self, id: LockId) {
        let Some(hold) = self.locks.by_id.remove(&id) else { return };
        self.lose_write_lease(id, &hold);
        if let Some(volume) = self.volumes.get_mut(&hold.volume) {
            volume.locks.remove(&id);
        }
    }

    /// Handles the outcome of a lock request, before the application gets it. Returns the lock if
    /// it is already lost.
    pub(super) fn apply_lock_grant(&mut self, change: &Write, written: &Written, now: Instant) -> Option<LockId> {
        let LockGrant { path, lock, mode, token, volume, incarnation } = written.lock.as_deref()?.clone();
        // The lock was released or lost while the change of its mode was in flight.
        if matches!(change, Write::ChangeLockMode { .. }) && !self.locks.by_id.contains_key(&lock) {
            return None;
        }
        let is_held = token.is_some();
        if !self.may_be_current_lease(&volume, incarnation) || (is_held && !self.is_live(&volume, now)) {
            self.forget_lock(lock);
            return Some(lock);
        }
        let status = match token {
            Some(token) => LockStatus::Granted { token, mode, is_contended: false },
            None => LockStatus::Waiting,
        };
        let waits = token.is_none() || matches!(change, Write::ChangeLockMode { mode: wanted, .. } if *wanted != mode);
        match self.locks.by_id.get_mut(&lock) {
            Some(own) if is_newer(own.status, status) => own.status = status,
            Some(_) => {}
            None => {
                self.volumes.learn(&volume).locks.insert(lock);
                let (requested_mode, is_handed_over, write_lease) = (None, false, None);
                let own = OwnLock { path, volume, incarnation, status, requested_mode, is_handed_over, write_lease };
                self.locks.by_id.insert(lock, own);
            }
        }
        self.locks.ask_by(if waits { now } else { now.after(ASKED_AFTER) });
        None
    }

    /// When to ask the leader about locks.
    pub(super) fn await_locks_deadline(&self) -> Option<Instant> {
        self.locks.due.filter(|_| self.link == LinkState::Registered && !self.locks.by_id.is_empty())
    }

    /// Asks the leader to report changes in the status of locks.
    pub(super) fn await_locks(&mut self, now: Instant) {
        if self.await_locks_deadline().is_none_or(|due| due > now) {
            return;
        }
        let (locks, again) = self.locks.ask();
        self.locks.due = Some(now.after(again));
        let body = Body::AwaitLocks { locks };
        self.locks.await_in_flight = Some(self.send(Purpose::AwaitLocks, body, RenewalReason::NoRenewal, now));
    }

    /// Handles the leader's report of lock statuses, unless a later request has replaced this one.
    pub(super) fn handle_lock_statuses(&mut self, ticket: SendId, told: Vec<(LockId, LockStatus)>, now: Instant) {
        if self.locks.await_in_flight != Some(ticket) {
            return;
        }
        self.locks.await_in_flight = None;
        let news = told.into_iter().filter(|(id, status)| self.update_lock_status(*id, *status, now)).count();
        // If the leader reports nothing new, wait before asking it again.
        self.locks.ask_by(if news > 0 { now } else { now.after(ASKED_AFTER) });
    }

    /// Updates the status of a lock. Returns whether it was news. Some reports are outdated.
    fn update_lock_status(&mut self, id: LockId, status: LockStatus, now: Instant) -> bool {
        let Some(own) = self.locks.by_id.get(&id) else { return false };
        let (status, is_live) = (own.lowered(status), self.is_live(&own.volume, now));
        if !is_newer(own.status, status) {
            return false;
        }
        let is_held = matches!(status, LockStatus::Granted { .. });
        if is_held && !is_live {
            // By this clock the lease has ended, so the holder ignores the grant. If the lease is
            // renewed, the leader reports the grant again. If not, the lock has ended too.
            return false;
        }
        let Some(own) = self.locks.by_id.get_mut(&id) else { return false };
        if status == LockStatus::Ended {
            self.forget_lock(id);
            self.effects.push(HolderEffect::LocksLost { locks: vec![id] });
        } else {
            own.status = status;
            self.effects.push(HolderEffect::LockChanged { lock: id, status });
        }
        true
    }

    /// Handles a refusal of the request about locks: repeats it after [`ASKED_AFTER`].
    pub(super) fn retry_await_locks(&mut self, ticket: SendId, now: Instant) {
        if self.locks.await_in_flight == Some(ticket) {
            self.locks.await_in_flight = None;
            self.locks.ask_by(now.after(ASKED_AFTER));
        }
    }

    /// Reports locks as lost whose leases have ended or were replaced.
    pub(super) fn lose_locks_without_lease(&mut self) {
        let lives = |own: &OwnLock| self.may_be_current_lease(&own.volume, own.incarnation);
        let over = self.locks.by_id.iter().filter(|(_, own)| !lives(own)).map(|(id, _)| *id);
        let over: Vec<LockId> = over.collect();
        over.iter().for_each(|id| self.forget_lock(*id));
        self.notify_locks_lost(over);
    }

    /// Reports owned locks as lost whose lease has ended on this clock, even without a connection.
    pub(super) fn expire_locks(&mut self, now: Instant) {
        let has_lapsed =
            |(_, volume): (&NodePath, &KnownVolume)| !volume.locks.is_empty() && volume.live(now).is_none();
        if !self.volumes.iter().any(has_lapsed) {
            return;
        }
        let is_held = |own: &OwnLock| matches!(own.status, LockStatus::Granted { .. });
        let over = self.locks.by_id.iter().filter(|(_, own)| is_held(own) && !self.is_live(&own.volume, now));
        let over: Vec<LockId> = over.map(|(id, _)| *id).collect();
        over.iter().for_each(|id| self.forget_lock(*id));
        self.notify_locks_lost(over);
    }

    fn is_live(&self, volume: &NodePath, now: Instant) -> bool {
        self.volumes.get(volume).is_some_and(|volume| volume.live(now).is_some())
    }

    /// Whether the lease is the present lease, or may be granted again. The server grants the old
    /// lease again if that has nodes or locks, perhaps unknown to this client.
    pub(super) fn may_be_current_lease(&self, volume: &NodePath, incarnation: Incarnation) -> bool {
        match self.volumes.get(volume).map(|volume| &volume.lease) {
            Some(Some(lease)) => lease.incarnation == incarnation,
            Some(None) => self.is_suspended(volume),
            None => false,
        }
    }

    /// Reports all locks as lost, because the session has ended.
    pub(super) fn lose_all_locks(&mut self) {
        let holds = std::mem::take(&mut self.locks).by_id;
        holds.iter().for_each(|(id, own)| self.lose_write_lease(*id, own));
        self.notify_locks_lost(holds.into_keys().collect());
    }

    fn notify_locks_lost(&mut self, locks: Vec<LockId>) {
        if !locks.is_empty() {
            self.effects.push(HolderEffect::LocksLost { locks });
        }
    }

    /// Checks that each lock is under the present lease.
    pub(super) fn check_locks(&self) -> Result<(), String> {
        for (id, hold) in &self.locks.by_id {
            let volume = self.volumes.get(&hold.volume).filter(|volume| volume.locks.contains(id));
            let is_there = volume.is_some() && self.may_be_current_lease(&hold.volume, hold.incarnation);
            if !is_there {
                return Err(format!("hold {id} on {} lives under a lease on {} that is over", hold.path, hold.volume));
            }
        }
        match self.volumes.iter().flat_map(|(_, volume)| &volume.locks).find(|id| !self.locks.by_id.contains_key(id)) {
            Some(id) => Err(format!("a volume has hold {id}, which is over")),
            None => Ok(()),
        }
    }
}

/// Whether the reported status is later than the known one. A lock first waits, then it is granted,
/// then it ends. Its token grows. Under one token it may be exclusive first and shared later, never
/// the reverse.
pub(super) fn is_newer(known: LockStatus, told: LockStatus) -> bool {
    let place = |status: LockStatus| match status {
        LockStatus::Waiting => (0, None),
        LockStatus::Granted { token, mode, .. } => (1, Some((token, mode == LockMode::Shared))),
        LockStatus::Ended => (2, None),
    };
    known != told && place(known) <= place(told)
}
