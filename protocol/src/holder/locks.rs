//! The session's locks, and its positions in lock queues (S10).
//!
//! A lock belongs to one incarnation of the lease on its volume. A server's report that the lock is
//! granted may be old. So the client counts on the lock only while that lease holds on this clock
//! (S10, T2). When the lease has ended by this clock or on the servers, a granted lock is lost. A
//! waiting lock is lost only when the lease has ended on the servers. The holder then notifies the
//! application once. If the servers may still have the lock, the client releases it there
//! (`lose_locks` in `client-cache/src/driver/locks.rs`).
//!
//! To learn of grants and of waiters, the holder has one [`Body::AwaitLockStatus`] in flight. The
//! leader answers it when a status has changed. The request names all locks. If there are too many
//! for one request, successive requests name them in turn. After a grant, the holder waits for
//! [`FIRST_AWAIT_DELAY`] before it asks. So a lock that is released before that costs only two
//! requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Included, Unbounded},
    time::Duration,
};

use super::{
    Holder, HolderEffect, SendId, in_flight::Purpose, known_volume::KnownVolume, own_write_lease::OwnWriteLease,
    session::LinkState, volume_leases::RenewalSelection,
};
use crate::{
    command::{Write, Written},
    id::{Incarnation, LockId},
    lock::{LockMode, LockOutcome, LockStatus},
    message::{AWAIT_LOCK_STATUS_BYTES_MAX, AWAIT_LOCK_STATUS_MAX, AwaitedLock, Body},
    path::NodePath,
    reached::{Bound, reached},
    time::Instant,
};

/// How long after a grant the holder asks whether another lock waits for the node, or another
/// owner for an upgrade.
const FIRST_AWAIT_DELAY: Duration = Duration::from_millis(100);

/// How long a request may wait at the leader before the holder repeats it. So if a request was
/// lost, the client learns of a grant at most this much later. It is shorter than the time that the
/// client and its connection allow for an answer.
const AWAIT_REPEAT: Duration = Duration::from_secs(20);

/// The time between two requests if there are more locks than one request names. The leader looks
/// up all locks of each request, so requests must not be frequent.
const AWAIT_NEXT_BATCH: Duration = Duration::from_secs(1);

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
    pub(super) is_handing_over: bool,
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
    awaited_through: LockId,
}

impl OwnLocks {
    /// The volume and the incarnation of the lease that the lock ends with.
    pub(super) fn lease_of(&self, id: LockId) -> Option<(&NodePath, Incarnation)> {
        self.by_id.get(&id).map(|own| (&own.volume, own.incarnation))
    }
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

    fn await_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Selects the locks that the next request names. If not all locks fit, these are the next in
    /// turn. Also returns how long after this request the following one is due.
    fn next_batch(&mut self) -> (Vec<AwaitedLock>, Duration) {
        let (previous, interval) = match self.fits_one_request() {
            true => (LockId(0), AWAIT_REPEAT),
            false => (self.awaited_through, AWAIT_NEXT_BATCH),
        };
        let (following, first) = ((Excluded(previous), Unbounded), (Unbounded, Included(previous)));
        let mut bytes = 0;
        let fits = |(_, own): &(&LockId, &OwnLock)| {
            bytes += own.path.as_str().len();
            bytes <= AWAIT_LOCK_STATUS_BYTES_MAX
        };
        let in_turn =
            self.by_id.range(following).chain(self.by_id.range(first)).take(AWAIT_LOCK_STATUS_MAX).take_while(fits);
        let named = in_turn.map(|(id, own)| AwaitedLock { path: own.path.clone(), lock: *id, known: own.status });
        let named: Vec<AwaitedLock> = named.collect();
        self.awaited_through = named.last().map_or(LockId(0), |last| last.lock);
        (named, interval)
    }

    fn fits_one_request(&self) -> bool {
        if self.by_id.len() > AWAIT_LOCK_STATUS_MAX {
            return false;
        }
        let fits = self.by_id.values().map(|own| own.path.as_str().len()).sum::<usize>() <= AWAIT_LOCK_STATUS_BYTES_MAX;
        if !fits {
            reached(Bound::AwaitLockStatusBytes);
        }
        fits
    }
}

impl Holder {
    /// How long the lock certainly lasts without another promise. Zero if the session does not own
    /// the lock, or hands it over. After a refused hand-over, the session owns the lock again.
    pub fn lock_remaining(&self, id: LockId, now: Instant) -> Duration {
        let is_granted = |own: &&OwnLock| matches!(own.status, LockStatus::Granted { .. });
        let granted = self.locks.by_id.get(&id).filter(is_granted).filter(|own| !own.is_handing_over);
        let Some(own) = granted else { return Duration::ZERO };
        let lease = self.volumes.get(&own.volume).and_then(|volume| volume.lease.as_ref());
        let lease = lease.filter(|lease| lease.incarnation == own.incarnation);
        lease.map_or(Duration::ZERO, |lease| lease.until.since(now))
    }

    /// Records a lock change that the application requests. From now on a downgraded lock counts as
    /// shared, because another session may get the lock before the answer. A lock that is handed
    /// over no longer counts as owned.
    ///
    /// Returns false if the change must not be sent. There are four cases:
    ///
    /// - the lock has a write lease;
    /// - a write lease is requested, and the lock is not exclusive;
    /// - the lock waits, because it may be granted before the change arrives;
    /// - another change is in flight, because the order of the two would be unknown.
    pub(super) fn begin_lock_change(&mut self, change: &Write) -> bool {
        let (id, mode) = match change {
            Write::ChangeLockMode { lock, mode, .. } => (lock, Some(*mode)),
            Write::HandOver { lock, .. } => (lock, None),
            Write::TakeWriteLease { lock, .. } => return self.request_write_lease(*lock),
            _ => return true,
        };
        let Some(own) = self.locks.by_id.get_mut(id) else { return true };
        let is_changing = own.requested_mode.is_some() || own.is_handing_over || own.write_lease.is_some();
        if is_changing || own.status == LockStatus::Waiting {
            return false;
        }
        own.is_handing_over = mode.is_none();
        own.requested_mode = mode;
        own.status = own.lowered(own.status);
        true
    }

    /// If the write was a hand-over that will never take effect, the session still owns the lock.
    pub(super) fn undo_hand_over(&mut self, change: &Write) {
        if let Write::HandOver { lock, .. } = change
            && let Some(own) = self.locks.by_id.get_mut(lock)
        {
            own.is_handing_over = false;
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
        let Some(own) = self.locks.by_id.remove(&id) else { return };
        self.lose_write_lease(id, &own);
        if let Some(mut volume) = self.volumes.get_mut(&own.volume) {
            volume.locks.remove(&(own.incarnation, id));
            volume.granted_locks.remove(&id);
            volume.unflushed.remove(&id);
        }
    }

    /// Sets the status of a lock.
    fn set_lock_status(&mut self, id: LockId, status: LockStatus) {
        let Some(own) = self.locks.by_id.get_mut(&id) else { return };
        own.status = status;
        if let Some(mut volume) = self.volumes.get_mut(&own.volume) {
            match status {
                LockStatus::Granted { .. } => volume.granted_locks.insert(id),
                LockStatus::Waiting | LockStatus::Ended => volume.granted_locks.remove(&id),
            };
        }
    }

    /// Handles the outcome of a lock request, before the application gets the outcome. Returns the
    /// lock's id if the lock is already lost.
    pub(super) fn apply_lock_outcome(&mut self, change: &Write, written: &Written, now: Instant) -> Option<LockId> {
        let LockOutcome { path, lock, mode, token, volume, incarnation } = written.lock.as_deref()?.clone();
        // The lock was released or lost while the change of its mode was in flight.
        if matches!(change, Write::ChangeLockMode { .. }) && !self.locks.by_id.contains_key(&lock) {
            return None;
        }
        let is_granted = token.is_some();
        if !self.may_be_current_lease(&volume, incarnation) || (is_granted && !self.is_live_by_clock(&volume, now)) {
            self.forget_lock(lock);
            return Some(lock);
        }
        let status = match token {
            Some(token) => LockStatus::Granted { token, mode, is_contended: false },
            None => LockStatus::Waiting,
        };
        let waits = token.is_none() || matches!(change, Write::ChangeLockMode { mode: wanted, .. } if *wanted != mode);
        match self.locks.by_id.get(&lock) {
            Some(own) if is_newer(own.status, status) => self.set_lock_status(lock, status),
            Some(_) => {}
            None => {
                self.volumes.learn(&volume).locks.insert((incarnation, lock));
                let (requested_mode, is_handing_over, write_lease) = (None, false, None);
                let own = OwnLock { path, volume, incarnation, status, requested_mode, is_handing_over, write_lease };
                self.locks.by_id.insert(lock, own);
                self.set_lock_status(lock, status);
            }
        }
        self.locks.await_by(if waits { now } else { now.after(FIRST_AWAIT_DELAY) });
        None
    }

    /// When to ask the leader about locks.
    pub(super) fn await_lock_status_deadline(&self) -> Option<Instant> {
        self.locks.due.filter(|_| self.link == LinkState::Registered && !self.locks.by_id.is_empty())
    }

    /// Asks the leader to report changes in the status of locks.
    pub(super) fn await_lock_status(&mut self, now: Instant) {
        if self.await_lock_status_deadline().is_none_or(|due| due > now) {
            return;
        }
        let (locks, interval) = self.locks.next_batch();
        self.locks.due = Some(now.after(interval));
        let body = Body::AwaitLockStatus { locks };
        self.locks.await_in_flight = Some(self.send(Purpose::AwaitLockStatus, body, RenewalSelection::NoRenewal, now));
    }

    /// Handles the leader's report of lock statuses. Ignores it if a later request has replaced the
    /// request that it answers.
    pub(super) fn handle_lock_statuses(&mut self, send_id: SendId, reported: Vec<(LockId, LockStatus)>, now: Instant) {
        if self.locks.await_in_flight != Some(send_id) {
            return;
        }
        self.locks.await_in_flight = None;
        let news_count = reported.into_iter().filter(|(id, status)| self.update_lock_status(*id, *status, now)).count();
        // If the leader reports nothing new, wait before asking it again.
        self.locks.await_by(if news_count > 0 { now } else { now.after(FIRST_AWAIT_DELAY) });
    }

    /// Updates the status of a lock. Returns false if the reported status is not newer.
    fn update_lock_status(&mut self, id: LockId, status: LockStatus, now: Instant) -> bool {
        let Some(own) = self.locks.by_id.get(&id) else { return false };
        let (status, is_live_by_clock) = (own.lowered(status), self.is_live_by_clock(&own.volume, now));
        if !is_newer(own.status, status) {
            return false;
        }
        let is_granted = matches!(status, LockStatus::Granted { .. });
        if is_granted && !is_live_by_clock {
            // By this clock the lease has ended, so the holder ignores the grant. If the lease is
            // renewed, the leader reports the grant again. If not, the lock has ended too.
            return false;
        }
        if status == LockStatus::Ended {
            self.forget_lock(id);
            self.notify_locks_lost(vec![id], false);
        } else {
            self.set_lock_status(id, status);
            self.effects.push(HolderEffect::LockChanged { lock: id, status });
        }
        true
    }

    /// Handles a refusal of the request about locks: repeats it after [`FIRST_AWAIT_DELAY`].
    pub(super) fn retry_await_locks(&mut self, send_id: SendId, now: Instant) {
        if self.locks.await_in_flight == Some(send_id) {
            self.locks.await_in_flight = None;
            self.locks.await_by(now.after(FIRST_AWAIT_DELAY));
        }
    }

    /// Finds the locks of the volumes at and above the path whose leases have ended or were
    /// replaced, and reports them as lost.
    pub(super) fn lose_locks_without_lease_above(&mut self, path: &NodePath) {
        let tops = self.volumes.at_and_above(path);
        self.lose_locks_without_lease(&tops);
    }

    /// Finds the locks of these volumes whose leases have ended or were replaced, and reports them
    /// as lost.
    pub(super) fn lose_locks_without_lease(&mut self, tops: &[NodePath]) {
        let volumes = tops.iter().filter_map(|top| self.volumes.get(top).map(|volume| (top, volume)));
        let is_ended = |(top, volume): &(&NodePath, &KnownVolume)| {
            !volume.locks.is_empty() && (volume.lease.is_some() || !self.is_suspended(top))
        };
        let ended = volumes.filter(is_ended).flat_map(|(_, volume)| volume.locks_of_other_leases());
        self.lose_locks(ended.collect());
    }

    /// Forgets these locks, and reports them as lost.
    pub(super) fn lose_locks(&mut self, ended: BTreeSet<LockId>) {
        ended.iter().for_each(|id| self.forget_lock(*id));
        self.notify_locks_lost(ended.into_iter().collect(), true);
    }

    /// Finds the owned locks whose lease has ended on this clock, and reports them as lost. This
    /// needs no connection.
    pub(super) fn expire_granted_locks(&mut self) {
        self.lose_locks(self.volumes.ended_grants());
    }

    pub(super) fn is_live_by_clock(&self, volume: &NodePath, now: Instant) -> bool {
        self.volumes.get(volume).is_some_and(|volume| volume.live(now).is_some())
    }

    /// Whether the lease is the present one, or may be again. While the client asks for a new
    /// lease, the server may extend the old one instead, because of nodes or locks that the client
    /// does not know.
    pub(super) fn may_be_current_lease(&self, volume: &NodePath, incarnation: Incarnation) -> bool {
        match self.volumes.get(volume).map(|volume| &volume.lease) {
            Some(Some(lease)) => lease.incarnation == incarnation,
            Some(None) => self.is_suspended(volume),
            None => false,
        }
    }

    /// Reports all locks as lost, because the session has ended. `may_remain` is false if a server
    /// has said so.
    pub(super) fn lose_all_locks(&mut self, may_remain: bool) {
        let locks = std::mem::take(&mut self.locks).by_id;
        for (id, own) in &locks {
            self.lose_write_lease(*id, own);
            // A flush that has just ended with the session may have noted its value there.
            if let Some(mut volume) = self.volumes.get_mut(&own.volume) {
                volume.unflushed.remove(id);
            }
        }
        self.notify_locks_lost(locks.into_keys().collect(), may_remain);
    }

    pub(super) fn notify_locks_lost(&mut self, locks: Vec<LockId>, may_remain: bool) {
        if !locks.is_empty() {
            self.effects.push(HolderEffect::LocksLost { locks, may_remain });
        }
    }

    /// Checks that each lock is under the present lease.
    pub(super) fn check_locks(&self) -> Result<(), String> {
        for (id, own) in &self.locks.by_id {
            let listed = (own.incarnation, *id);
            let volume = self.volumes.get(&own.volume).filter(|volume| volume.locks.contains(&listed));
            let has_lease = volume.is_some() && self.may_be_current_lease(&own.volume, own.incarnation);
            if !has_lease {
                return Err(format!("lock {id} on {}: its lease on {} has ended", own.path, own.volume));
            }
            let is_granted = matches!(own.status, LockStatus::Granted { .. });
            if volume.is_some_and(|volume| volume.granted_locks.contains(id) != is_granted) {
                return Err(format!("lock {id} on {} is {:?}, and listed as another", own.path, own.status));
            }
        }
        let listed = self.volumes.iter().flat_map(|(_, volume)| &volume.locks);
        match listed.map(|(_, id)| id).find(|id| !self.locks.by_id.contains_key(id)) {
            Some(id) => Err(format!("a volume lists lock {id}, which has ended")),
            None => Ok(()),
        }
    }
}

/// Whether the reported status is later than the known one.
///
/// A lock first waits, then it is granted, then it ends. Its token grows. Under one token it may be
/// exclusive first and shared later, never the reverse. A status that differs only in
/// `is_contended` counts as newer, because that can change both ways.
pub(super) fn is_newer(known: LockStatus, reported: LockStatus) -> bool {
    let rank = |status: LockStatus| match status {
        LockStatus::Waiting => (0, None),
        LockStatus::Granted { token, mode, .. } => (1, Some((token, mode == LockMode::Shared))),
        LockStatus::Ended => (2, None),
    };
    known != reported && rank(known) <= rank(reported)
}
