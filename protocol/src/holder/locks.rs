//! Holds that the session has, and those that it waits for.
//!
//! A hold lives under one incarnation of the lease on its volume. It is held only as long as that
//! lease holds on this clock (S1, T2): what a server says of it may be long past. When the lease is
//! over, or may be by this clock, the hold is over for the application, which is told once; what it
//! had may still be its own at the server, and is to be given back.
//!
//! The holder learns of grants, and that somebody waits for what it holds, by leaving a request
//! with the leader that is answered when something has changed. There is one at a time. It names
//! all holds; if there are more than one request may name, each gets its turn. What is held is
//! asked after only when it has been held for a while, so that a lock that is taken and given back
//! costs two messages.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included, Unbounded},
    time::Duration,
};

use super::{
    Holder, HolderEffect, SendId,
    in_flight::Purpose,
    session::LinkState,
    volume_leases::{KnownVolume, RenewalReason},
    write_leases::OwnWriteLease,
};
use crate::{
    command::{Write, Written},
    id::{Incarnation, LockId},
    lock::{LockGrant, LockMode, LockStatus},
    message::{AWAIT_LOCKS_BYTES_MAX, AWAIT_LOCKS_MAX, AwaitedLock, Body},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    time::Instant,
};

/// Whether anybody waits for a hold is asked when it has been held for this long.
const ASKED_AFTER: Duration = Duration::from_millis(100);

/// A request that waits at the leader is made anew after this long: whatever has become of it on
/// the way, a grant is not missed for longer. Less than what a client and its connection give the
/// answer to a request.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(20);

/// With more holds than one request names, the next request follows after this long and names the
/// next holds. The leader looks all holds of a request up: it must not do that all the time.
const ASKED_NEXT_AFTER: Duration = Duration::from_secs(1);

/// A hold of this session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnLock {
    pub(super) path: NodePath,
    pub(super) volume: NodePath,
    incarnation: Incarnation,
    pub(super) status: LockStatus,
    /// The application wants it to be another, and has not been answered.
    pub(super) requested_mode: Option<LockMode>,
    /// The application has handed it over. Whether it is another's by now is not known.
    pub(super) is_handed_over: bool,
    /// The session keeps the node's data to itself, or asks to.
    pub(super) write_lease: Option<Box<OwnWriteLease>>,
}

/// All holds of this session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnLocks {
    pub(super) by_id: BTreeMap<LockId, OwnLock>,
    /// The request that waits at the leader.
    await_in_flight: Option<SendId>,
    /// When the leader is to be asked, because it does not know of all holds, or knows less than
    /// this side.
    due: Option<Instant>,
    /// With more holds than one request names: the last that was named.
    asked_through: LockId,
}

impl OwnLock {
    /// How it stands as far as the application may count on it: not alone any more, if it has asked
    /// for that.
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
    /// The connection is over, and what was asked on it.
    pub(super) fn unsend(&mut self) {
        self.await_in_flight = None;
        self.due = (!self.by_id.is_empty()).then_some(Instant::ZERO);
    }

    fn ask_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// The holds that the next request names: all, or the next ones in turn if there are too many,
    /// or their paths too long. And how long after it the one that follows is sent.
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
    /// How long a hold is certain to be held, if nothing more is heard: zero if it is not. One that
    /// is being handed over is not, until it is known that it was not.
    pub fn lock_remaining(&self, id: LockId, now: Instant) -> Duration {
        let by_answer = self.planted(Bug::HandedOverByAnswer);
        let is_held = |hold: &&OwnLock| matches!(hold.status, LockStatus::Granted { .. });
        let held = self.locks.by_id.get(&id).filter(is_held).filter(|hold| !hold.is_handed_over || by_answer);
        let Some(hold) = held else { return Duration::ZERO };
        if self.planted(Bug::LockWithoutClock) {
            return Duration::MAX;
        }
        let lease = self.volumes.get(&hold.volume).and_then(|volume| volume.lease.as_ref());
        let lease = lease.filter(|lease| lease.incarnation == hold.incarnation);
        lease.map_or(Duration::ZERO, |lease| lease.until.since(now))
    }

    /// The application wants a hold to be another. One that is to be shared is not held alone from
    /// now on: others may be granted it before the answer is here.
    ///
    /// One that is handed over is not held from now on either.
    ///
    /// False if it asks for two things at once, of which nobody could tell which would be done
    /// last; or of a hold that waits, of which nobody could tell whether it will wait then; or of
    /// one that is a write lease.
    pub(super) fn begin_lock_change(&mut self, change: &Write) -> bool {
        let (hold, mode) = match change {
            Write::ChangeLockMode { lock, mode, .. } => (lock, Some(*mode)),
            Write::HandOver { lock, .. } => (lock, None),
            Write::TakeWriteLease { lock, .. } => return self.request_write_lease(*lock),
            _ => return true,
        };
        let exclusive_meanwhile = self.planted(Bug::DowngradedByAnswer);
        let Some(own) = self.locks.by_id.get_mut(hold) else { return true };
        let is_asked = own.requested_mode.is_some() || own.is_handed_over || own.write_lease.is_some();
        if is_asked || own.status == LockStatus::Waiting {
            return false;
        }
        own.is_handed_over = mode.is_none();
        own.requested_mode = mode.filter(|_| !exclusive_meanwhile);
        own.status = own.lowered(own.status);
        true
    }

    /// The write has not been done, and will not be: a hold that was to be handed over by it is
    /// held as before.
    pub(super) fn undo_hand_over(&mut self, change: &Write) {
        if let Write::HandOver { lock, .. } = change
            && let Some(own) = self.locks.by_id.get_mut(lock)
        {
            own.is_handed_over = false;
        }
    }

    /// What was asked of a hold has ended, one way or the other.
    pub(super) fn end_lock_change(&mut self, change: &Write) {
        if let Write::ChangeLockMode { lock, .. } = change
            && let Some(own) = self.locks.by_id.get_mut(lock)
        {
            own.requested_mode = None;
        }
    }

    /// The application has given the hold back, or has been told that it is over.
    pub(super) fn forget_lock(&mut self, id: LockId) {
        let Some(hold) = self.locks.by_id.remove(&id) else { return };
        self.lose_write_lease(id, &hold);
        if let Some(volume) = self.volumes.get_mut(&hold.volume) {
            volume.locks.remove(&id);
        }
    }

    /// A request for a hold has come to this, before the application hears of it. Returns whether
    /// the hold is over already.
    pub(super) fn apply_lock_grant(&mut self, change: &Write, written: &Written, now: Instant) -> Option<LockId> {
        let LockGrant { path, lock, mode, token, volume, incarnation } = written.lock.as_deref()?.clone();
        // Given back meanwhile, while it was being made another, or over.
        if matches!(change, Write::ChangeLockMode { .. }) && !self.locks.by_id.contains_key(&lock) {
            return None;
        }
        let is_held = token.is_some() && !self.planted(Bug::LockWithoutClock);
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

    /// When the leader is to be asked about holds.
    pub(super) fn await_locks_deadline(&self) -> Option<Instant> {
        self.locks.due.filter(|_| self.link == LinkState::Registered && !self.locks.by_id.is_empty())
    }

    /// Asks the leader to tell how holds stand, when that changes.
    pub(super) fn await_locks(&mut self, now: Instant) {
        if self.await_locks_deadline().is_none_or(|due| due > now) {
            return;
        }
        let (locks, again) = self.locks.ask();
        self.locks.due = Some(now.after(again));
        let body = Body::AwaitLocks { locks };
        self.locks.await_in_flight = Some(self.send(Purpose::AwaitLocks, body, RenewalReason::NoRenewal, now));
    }

    /// The leader tells how holds stand. An answer that has been overtaken by a later request says
    /// nothing.
    pub(super) fn handle_lock_statuses(&mut self, ticket: SendId, told: Vec<(LockId, LockStatus)>, now: Instant) {
        if self.locks.await_in_flight != Some(ticket) {
            return;
        }
        self.locks.await_in_flight = None;
        let news = told.into_iter().filter(|(id, status)| self.update_lock_status(*id, *status, now)).count();
        // Who tells nothing new is not asked all the time.
        self.locks.ask_by(if news > 0 { now } else { now.after(ASKED_AFTER) });
    }

    /// Whether it was news. A leader that is deposed and does not know it may tell what is past.
    fn update_lock_status(&mut self, id: LockId, status: LockStatus, now: Instant) -> bool {
        let Some(own) = self.locks.by_id.get(&id) else { return false };
        let (status, is_live) = (own.lowered(status), self.is_live(&own.volume, now));
        if !is_newer(own.status, status) {
            return false;
        }
        let is_held = matches!(status, LockStatus::Granted { .. });
        if is_held && !is_live && !self.planted(Bug::LockWithoutClock) {
            // Not by this clock. If the lease is renewed it is told again; if the lease is over so
            // is the hold.
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

    /// The request about holds came to nothing: it is made again at once, by a leader's word later.
    pub(super) fn retry_await_locks(&mut self, ticket: SendId, now: Instant) {
        if self.locks.await_in_flight == Some(ticket) {
            self.locks.await_in_flight = None;
            self.locks.ask_by(now.after(ASKED_AFTER));
        }
    }

    /// Leases are over, or others have taken their place: so are the holds that lived under them.
    pub(super) fn lose_locks_without_lease(&mut self) {
        let lives = |own: &OwnLock| self.may_be_current_lease(&own.volume, own.incarnation);
        let over = self.locks.by_id.iter().filter(|(_, own)| !lives(own)).map(|(id, _)| *id);
        let over: Vec<LockId> = over.collect();
        over.iter().for_each(|id| self.forget_lock(*id));
        self.notify_locks_lost(over);
    }

    /// What the clock says by itself, whatever the connection does: what is held under a lease
    /// whose time has passed is held no more.
    pub(super) fn expire_locks(&mut self, now: Instant) {
        let has_lapsed =
            |(_, volume): (&NodePath, &KnownVolume)| !volume.locks.is_empty() && volume.live(now).is_none();
        if !self.volumes.iter().any(has_lapsed) || self.planted(Bug::LockWithoutClock) {
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

    /// Whether the lease is the one that there is, or may turn out to be: one that is asked for
    /// anew is given again if holds live under it, perhaps some that this side has yet to hear of.
    pub(super) fn may_be_current_lease(&self, volume: &NodePath, incarnation: Incarnation) -> bool {
        match self.volumes.get(volume).map(|volume| &volume.lease) {
            Some(Some(lease)) => lease.incarnation == incarnation,
            Some(None) => self.is_suspended(volume),
            None => false,
        }
    }

    /// The session is over, and all its holds.
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

    /// Each hold lives under the lease that there is.
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

/// Whether something can have become of a hold after what is known of it: it waits, then it is
/// held, then it is over. Its token grows; under one token it may be exclusive first and shared
/// later, never the other way round.
pub(super) fn is_newer(known: LockStatus, told: LockStatus) -> bool {
    let place = |status: LockStatus| match status {
        LockStatus::Waiting => (0, None),
        LockStatus::Granted { token, mode, .. } => (1, Some((token, mode == LockMode::Shared))),
        LockStatus::Ended => (2, None),
    };
    known != told && place(known) <= place(told)
}
