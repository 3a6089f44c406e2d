//! Holds that the session has, and those that it waits for.
//!
//! A hold lives under one incarnation of the lease on its volume. It is held only as long as that lease holds on this clock (S1, T2):
//! what a server says of it may be long past. When the lease is over, so is the hold, and the application is told once.
//!
//! The holder learns of grants, and that somebody waits for what it holds, by leaving a request with the leader that is answered when
//! something has changed. One at a time names all holds; what is held is asked after only when it has been held for a while, so that
//! a lock that is taken and given back costs two messages.

use std::{collections::BTreeMap, time::Duration};

use super::{Effect, Holder, Ticket, flights::Purpose, session::Link, volumes::Ride};
use crate::{
    command::{Write, Written},
    hold::{HoldStatus, Taken},
    id::{HoldId, Incarnation},
    message::{AWAIT_HOLDS_MAX, AwaitHold, Body},
    path::Path,
    planted::Bug,
    time::Instant,
};

/// Whether anybody waits for a hold is asked when it has been held for this long.
const ASKED_AFTER: Duration = Duration::from_millis(100);

/// A hold of this session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OwnHold {
    path: Path,
    volume: Path,
    incarnation: Incarnation,
    status: HoldStatus,
}

/// All holds of this session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    holds: BTreeMap<HoldId, OwnHold>,
    /// The request that waits at the leader.
    asked: Option<Ticket>,
    /// When the leader is to be asked, because it does not know of all holds, or knows less than this side.
    due: Option<Instant>,
}

impl Holding {
    /// The connection is over, and what was asked on it.
    pub(super) fn unsend(&mut self) {
        self.asked = None;
        self.due = (!self.holds.is_empty()).then_some(Instant::ZERO);
    }

    fn ask_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

impl Holder {
    /// How long a hold is certain to be held, if nothing more is heard: zero if it is not.
    pub fn hold_certain_for(&self, id: HoldId, now: Instant) -> Duration {
        let held = self.holding.holds.get(&id).filter(|hold| matches!(hold.status, HoldStatus::Held { .. }));
        let Some(hold) = held else { return Duration::ZERO };
        if self.planted(Bug::HoldWithoutClock) {
            return Duration::MAX;
        }
        let lease = self.volumes.get(&hold.volume).and_then(|volume| volume.lease.as_ref());
        let lease = lease.filter(|lease| lease.incarnation == hold.incarnation || self.planted(Bug::HoldUnderAnyLease));
        lease.map_or(Duration::ZERO, |lease| lease.until.since(now))
    }

    /// The application asks for something to be done with a hold. One that it gives back it does not use any more.
    pub(super) fn stop_holding(&mut self, change: &Write) {
        if let Write::Unlock { hold, .. } = change {
            self.forget_hold(*hold);
        }
    }

    fn forget_hold(&mut self, id: HoldId) {
        let Some(hold) = self.holding.holds.remove(&id) else { return };
        if let Some(volume) = self.volumes.get_mut(&hold.volume) {
            volume.holds.remove(&id);
        }
    }

    /// A request for a hold has come to this, before the application hears of it. Returns whether the hold is over already.
    pub(super) fn taken(&mut self, change: &Write, written: &Written, now: Instant) -> Option<HoldId> {
        let Taken { hold, mode, token, volume, incarnation } = written.taken.as_deref()?.clone();
        let path = change.path()?.clone();
        let lease = self.volumes.get(&volume).and_then(|volume| volume.lease.as_ref());
        if lease.is_none_or(|lease| lease.incarnation != incarnation) {
            return Some(hold);
        }
        let is_known = self.holding.holds.contains_key(&hold);
        // Given back meanwhile, while it was being made another.
        if !is_known && matches!(change, Write::Convert { .. }) {
            return None;
        }
        let status = match token {
            Some(token) => HoldStatus::Held { token, mode, is_wanted: false },
            None => HoldStatus::Waiting,
        };
        let waits = token.is_none() || matches!(change, Write::Convert { mode: wanted, .. } if *wanted != mode);
        self.volumes.learn(&volume).holds.insert(hold);
        self.holding.holds.insert(hold, OwnHold { path, volume, incarnation, status });
        self.holding.ask_by(if waits { now } else { now.after(ASKED_AFTER) });
        None
    }

    /// When the leader is to be asked about holds.
    pub(super) fn holding_deadline(&self) -> Option<Instant> {
        self.holding.due.filter(|_| self.link == Link::Registered && !self.holding.holds.is_empty())
    }

    /// Asks the leader to tell how holds stand, when that changes.
    pub(super) fn await_holds(&mut self, now: Instant) {
        if self.holding_deadline().is_none_or(|due| due > now) {
            return;
        }
        self.holding.due = None;
        // Those that came first are the ones to be granted first.
        let holds = self.holding.holds.iter().take(AWAIT_HOLDS_MAX);
        let holds = holds.map(|(id, hold)| AwaitHold { path: hold.path.clone(), hold: *id, known: hold.status });
        let body = Body::AwaitHolds { holds: holds.collect() };
        self.holding.asked = Some(self.send(Purpose::AwaitHolds, body, Ride::Nothing, now));
    }

    /// The leader tells how holds stand. An answer that has been overtaken by a later request says nothing.
    pub(super) fn holds_told(&mut self, ticket: Ticket, told: Vec<(HoldId, HoldStatus)>, now: Instant) {
        if self.holding.asked != Some(ticket) {
            return;
        }
        self.holding.asked = None;
        self.holding.ask_by(now);
        for (id, status) in told {
            self.hold_told(id, status);
        }
    }

    fn hold_told(&mut self, id: HoldId, status: HoldStatus) {
        let Some(hold) = self.holding.holds.get_mut(&id) else { return };
        // A leader that is deposed and does not know it may tell what is past.
        if !is_newer(hold.status, status) {
            return;
        }
        if status == HoldStatus::Over {
            self.forget_hold(id);
            return self.effects.push(Effect::HoldsOver { holds: vec![id] });
        }
        hold.status = status;
        self.effects.push(Effect::HoldChanged { hold: id, status });
    }

    /// The request about holds came to nothing: it is made again at once, by a leader's word later.
    pub(super) fn holds_not_told(&mut self, ticket: Ticket, now: Instant) {
        if self.holding.asked == Some(ticket) {
            self.holding.asked = None;
            self.holding.ask_by(now.after(ASKED_AFTER));
        }
    }

    /// The lease on the volume is over, or another takes its place: so are the holds under it.
    pub(super) fn end_holds(&mut self, top: &Path) {
        if self.planted(Bug::HoldUnderAnyLease) {
            return;
        }
        let Some(volume) = self.volumes.get_mut(top) else { return };
        let holds: Vec<HoldId> = std::mem::take(&mut volume.holds).into_iter().collect();
        self.holding.holds.retain(|id, _| holds.binary_search(id).is_err());
        self.tell_holds_over(holds);
    }

    /// The session is over, and all its holds.
    pub(super) fn end_all_holds(&mut self) {
        let holds = std::mem::take(&mut self.holding).holds.into_keys().collect();
        self.tell_holds_over(holds);
    }

    fn tell_holds_over(&mut self, holds: Vec<HoldId>) {
        if !holds.is_empty() {
            self.effects.push(Effect::HoldsOver { holds });
        }
    }

    /// Each hold lives under the lease that there is.
    pub(super) fn check_holding(&self) -> Result<(), String> {
        for (id, hold) in &self.holding.holds {
            let volume = self.volumes.get(&hold.volume).filter(|volume| volume.holds.contains(id));
            let lease = volume.and_then(|volume| volume.lease.as_ref());
            let is_there = lease.is_some_and(|lease| lease.incarnation == hold.incarnation);
            if !is_there && !self.planted(Bug::HoldUnderAnyLease) {
                return Err(format!("hold {id} on {} lives under a lease on {} that is over", hold.path, hold.volume));
            }
        }
        match self.volumes.iter().flat_map(|(_, volume)| &volume.holds).find(|id| !self.holding.holds.contains_key(id))
        {
            Some(id) => Err(format!("a volume has hold {id}, which is over")),
            None => Ok(()),
        }
    }
}

/// Whether something can have become of a hold after what is known of it: it waits, then it is held, then it is over; and its token
/// grows.
pub(super) fn is_newer(known: HoldStatus, told: HoldStatus) -> bool {
    let place = |status: HoldStatus| match status {
        HoldStatus::Waiting => (0, None),
        HoldStatus::Held { token, .. } => (1, Some(token)),
        HoldStatus::Over => (2, None),
    };
    known != told && place(known) <= place(told)
}
