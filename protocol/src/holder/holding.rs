//! Holds that the session has, and those that it waits for.
//!
//! A hold lives under one incarnation of the lease on its volume. It is held only as long as that lease holds on this clock (S1, T2):
//! what a server says of it may be long past. When the lease is over, or may be by this clock, the hold is over for the application,
//! which is told once; what it had may still be its own at the server, and is to be given back.
//!
//! The holder learns of grants, and that somebody waits for what it holds, by leaving a request with the leader that is answered when
//! something has changed. There is one at a time. It names all holds; if there are more than one request may name, each gets its turn.
//! What is held is asked after only when it has been held for a while, so that a lock that is taken and given back costs two messages.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included, Unbounded},
    time::Duration,
};

use super::{
    Effect, Holder, Ticket,
    caching::Caching,
    flights::Purpose,
    session::Link,
    volumes::{Ride, Volume},
};
use crate::{
    command::{Write, Written},
    hold::{HoldMode, HoldStatus, Taken},
    id::{HoldId, Incarnation},
    message::{AWAIT_HOLDS_BYTES_MAX, AWAIT_HOLDS_MAX, AwaitHold, Body},
    path::Path,
    planted::Bug,
    reached::{Bound, reached},
    time::Instant,
};

/// Whether anybody waits for a hold is asked when it has been held for this long.
const ASKED_AFTER: Duration = Duration::from_millis(100);

/// A request that waits at the leader is made anew after this long: whatever has become of it on the way, a grant is not missed for longer.
/// Less than what a client and its connection give the answer to a request.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(20);

/// With more holds than one request names, the next request follows after this long and names the
/// next holds. The leader looks all holds of a request up: it must not do that all the time.
const ASKED_NEXT_AFTER: Duration = Duration::from_secs(1);

/// A hold of this session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnHold {
    pub(super) path: Path,
    pub(super) volume: Path,
    incarnation: Incarnation,
    pub(super) status: HoldStatus,
    /// The application wants it to be another, and has not been answered.
    pub(super) converting: Option<HoldMode>,
    /// The application has handed it over. Whether it is another's by now is not known.
    pub(super) is_handed_over: bool,
    /// The session keeps the node's data to itself, or asks to.
    pub(super) caching: Option<Box<Caching>>,
}

/// All holds of this session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    pub(super) holds: BTreeMap<HoldId, OwnHold>,
    /// The request that waits at the leader.
    asked: Option<Ticket>,
    /// When the leader is to be asked, because it does not know of all holds, or knows less than this side.
    due: Option<Instant>,
    /// With more holds than one request names: the last that was named.
    asked_through: HoldId,
}

impl OwnHold {
    /// How it stands as far as the application may count on it: not alone any more, if it has asked for that.
    fn lowered(&self, status: HoldStatus) -> HoldStatus {
        match (status, self.converting) {
            (HoldStatus::Held { token, is_wanted, .. }, Some(HoldMode::Shared)) => {
                HoldStatus::Held { token, mode: HoldMode::Shared, is_wanted }
            }
            _ => status,
        }
    }
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

    /// The holds that the next request names: all, or the next ones in turn if there are too many, or their paths too long.
    /// And how long after it the one that follows is sent.
    fn ask(&mut self) -> (Vec<AwaitHold>, Duration) {
        let (last, again) = match self.fits_one_request() {
            true => (HoldId(0), ASKED_AGAIN_AFTER),
            false => (self.asked_through, ASKED_NEXT_AFTER),
        };
        let (before, after) = ((Unbounded, Included(last)), (Excluded(last), Unbounded));
        let mut bytes = 0;
        let fits = |(_, hold): &(&HoldId, &OwnHold)| {
            bytes += hold.path.as_str().len();
            bytes <= AWAIT_HOLDS_BYTES_MAX
        };
        let in_turn = self.holds.range(after).chain(self.holds.range(before)).take(AWAIT_HOLDS_MAX).take_while(fits);
        let named = in_turn.map(|(id, hold)| AwaitHold { path: hold.path.clone(), hold: *id, known: hold.status });
        let named: Vec<AwaitHold> = named.collect();
        self.asked_through = named.last().map_or(HoldId(0), |last| last.hold);
        (named, again)
    }

    fn fits_one_request(&self) -> bool {
        if self.holds.len() > AWAIT_HOLDS_MAX {
            return false;
        }
        let fits = self.holds.values().map(|hold| hold.path.as_str().len()).sum::<usize>() <= AWAIT_HOLDS_BYTES_MAX;
        if !fits {
            reached(Bound::AwaitHoldsBytes);
        }
        fits
    }
}

impl Holder {
    /// How long a hold is certain to be held, if nothing more is heard: zero if it is not. One that is being handed over is not, until it is
    /// known that it was not.
    pub fn hold_certain_for(&self, id: HoldId, now: Instant) -> Duration {
        let by_answer = self.planted(Bug::HandedOverByAnswer);
        let is_held = |hold: &&OwnHold| matches!(hold.status, HoldStatus::Held { .. });
        let held = self.holding.holds.get(&id).filter(is_held).filter(|hold| !hold.is_handed_over || by_answer);
        let Some(hold) = held else { return Duration::ZERO };
        if self.planted(Bug::HoldWithoutClock) {
            return Duration::MAX;
        }
        let lease = self.volumes.get(&hold.volume).and_then(|volume| volume.lease.as_ref());
        let lease = lease.filter(|lease| lease.incarnation == hold.incarnation);
        lease.map_or(Duration::ZERO, |lease| lease.until.since(now))
    }

    /// The application wants a hold to be another. One that is to be shared is not held alone from now on: others may be granted it
    /// before the answer is here.
    ///
    /// One that is handed over is not held from now on either.
    ///
    /// False if it asks for two things at once, of which nobody could tell which would be done last; or of a hold that waits, of which
    /// nobody could tell whether it will wait then; or of one that is a write lease.
    pub(super) fn ask_of_hold(&mut self, change: &Write) -> bool {
        let (hold, mode) = match change {
            Write::Convert { hold, mode, .. } => (hold, Some(*mode)),
            Write::HandOver { hold, .. } => (hold, None),
            Write::Cache { hold, .. } => return self.ask_to_cache(*hold),
            _ => return true,
        };
        let exclusive_meanwhile = self.planted(Bug::LoweredByAnswer);
        let Some(own) = self.holding.holds.get_mut(hold) else { return true };
        let is_asked = own.converting.is_some() || own.is_handed_over || own.caching.is_some();
        if is_asked || own.status == HoldStatus::Waiting {
            return false;
        }
        own.is_handed_over = mode.is_none();
        own.converting = mode.filter(|_| !exclusive_meanwhile);
        own.status = own.lowered(own.status);
        true
    }

    /// The write has not been done, and will not be: a hold that was to be handed over by it is held as before.
    pub(super) fn kept_hold(&mut self, change: &Write) {
        if let Write::HandOver { hold, .. } = change
            && let Some(own) = self.holding.holds.get_mut(hold)
        {
            own.is_handed_over = false;
        }
    }

    /// What was asked of a hold has ended, one way or the other.
    pub(super) fn asked_of_hold(&mut self, change: &Write) {
        if let Write::Convert { hold, .. } = change
            && let Some(own) = self.holding.holds.get_mut(hold)
        {
            own.converting = None;
        }
    }

    /// The application has given the hold back, or has been told that it is over.
    pub(super) fn forget_hold(&mut self, id: HoldId) {
        let Some(hold) = self.holding.holds.remove(&id) else { return };
        self.lose_caching(id, &hold);
        if let Some(volume) = self.volumes.get_mut(&hold.volume) {
            volume.holds.remove(&id);
        }
    }

    /// A request for a hold has come to this, before the application hears of it. Returns whether the hold is over already.
    pub(super) fn taken(&mut self, change: &Write, written: &Written, now: Instant) -> Option<HoldId> {
        let Taken { path, hold, mode, token, volume, incarnation } = written.taken.as_deref()?.clone();
        // Given back meanwhile, while it was being made another, or over.
        if matches!(change, Write::Convert { .. }) && !self.holding.holds.contains_key(&hold) {
            return None;
        }
        let is_held = token.is_some() && !self.planted(Bug::HoldWithoutClock);
        if !self.may_live(&volume, incarnation) || (is_held && !self.is_live(&volume, now)) {
            self.forget_hold(hold);
            return Some(hold);
        }
        let status = match token {
            Some(token) => HoldStatus::Held { token, mode, is_wanted: false },
            None => HoldStatus::Waiting,
        };
        let waits = token.is_none() || matches!(change, Write::Convert { mode: wanted, .. } if *wanted != mode);
        match self.holding.holds.get_mut(&hold) {
            Some(own) if is_newer(own.status, status) => own.status = status,
            Some(_) => {}
            None => {
                self.volumes.learn(&volume).holds.insert(hold);
                let (converting, is_handed_over, caching) = (None, false, None);
                let own = OwnHold { path, volume, incarnation, status, converting, is_handed_over, caching };
                self.holding.holds.insert(hold, own);
            }
        }
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
        let (holds, again) = self.holding.ask();
        self.holding.due = Some(now.after(again));
        let body = Body::AwaitHolds { holds };
        self.holding.asked = Some(self.send(Purpose::AwaitHolds, body, Ride::Nothing, now));
    }

    /// The leader tells how holds stand. An answer that has been overtaken by a later request says nothing.
    pub(super) fn holds_told(&mut self, ticket: Ticket, told: Vec<(HoldId, HoldStatus)>, now: Instant) {
        if self.holding.asked != Some(ticket) {
            return;
        }
        self.holding.asked = None;
        let news = told.into_iter().filter(|(id, status)| self.hold_told(*id, *status, now)).count();
        // Who tells nothing new is not asked all the time.
        self.holding.ask_by(if news > 0 { now } else { now.after(ASKED_AFTER) });
    }

    /// Whether it was news. A leader that is deposed and does not know it may tell what is past.
    fn hold_told(&mut self, id: HoldId, status: HoldStatus, now: Instant) -> bool {
        let Some(own) = self.holding.holds.get(&id) else { return false };
        let (status, is_live) = (own.lowered(status), self.is_live(&own.volume, now));
        if !is_newer(own.status, status) {
            return false;
        }
        let is_held = matches!(status, HoldStatus::Held { .. });
        if is_held && !is_live && !self.planted(Bug::HoldWithoutClock) {
            // Not by this clock. If the lease is renewed it is told again; if the lease is over so is the hold.
            return false;
        }
        let Some(own) = self.holding.holds.get_mut(&id) else { return false };
        if status == HoldStatus::Over {
            self.forget_hold(id);
            self.effects.push(Effect::HoldsOver { holds: vec![id] });
        } else {
            own.status = status;
            self.effects.push(Effect::HoldChanged { hold: id, status });
        }
        true
    }

    /// The request about holds came to nothing: it is made again at once, by a leader's word later.
    pub(super) fn holds_not_told(&mut self, ticket: Ticket, now: Instant) {
        if self.holding.asked == Some(ticket) {
            self.holding.asked = None;
            self.holding.ask_by(now.after(ASKED_AFTER));
        }
    }

    /// Leases are over, or others have taken their place: so are the holds that lived under them.
    pub(super) fn settle_holds(&mut self) {
        let lives = |own: &OwnHold| self.may_live(&own.volume, own.incarnation);
        let over = self.holding.holds.iter().filter(|(_, own)| !lives(own)).map(|(id, _)| *id);
        let over: Vec<HoldId> = over.collect();
        over.iter().for_each(|id| self.forget_hold(*id));
        self.tell_holds_over(over);
    }

    /// What the clock says by itself, whatever the connection does: what is held under a lease whose time has passed is held no more.
    pub(super) fn note_holds(&mut self, now: Instant) {
        let has_lapsed = |(_, volume): (&Path, &Volume)| !volume.holds.is_empty() && volume.live(now).is_none();
        if !self.volumes.iter().any(has_lapsed) || self.planted(Bug::HoldWithoutClock) {
            return;
        }
        let is_held = |own: &OwnHold| matches!(own.status, HoldStatus::Held { .. });
        let over = self.holding.holds.iter().filter(|(_, own)| is_held(own) && !self.is_live(&own.volume, now));
        let over: Vec<HoldId> = over.map(|(id, _)| *id).collect();
        over.iter().for_each(|id| self.forget_hold(*id));
        self.tell_holds_over(over);
    }

    fn is_live(&self, volume: &Path, now: Instant) -> bool {
        self.volumes.get(volume).is_some_and(|volume| volume.live(now).is_some())
    }

    /// Whether the lease is the one that there is, or may turn out to be: one that is asked for anew is given again if holds live under
    /// it, perhaps some that this side has yet to hear of.
    pub(super) fn may_live(&self, volume: &Path, incarnation: Incarnation) -> bool {
        match self.volumes.get(volume).map(|volume| &volume.lease) {
            Some(Some(lease)) => lease.incarnation == incarnation,
            Some(None) => self.is_suspended(volume),
            None => false,
        }
    }

    /// The session is over, and all its holds.
    pub(super) fn end_all_holds(&mut self) {
        let holds = std::mem::take(&mut self.holding).holds;
        holds.iter().for_each(|(id, own)| self.lose_caching(*id, own));
        self.tell_holds_over(holds.into_keys().collect());
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
            let is_there = volume.is_some() && self.may_live(&hold.volume, hold.incarnation);
            if !is_there {
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

/// Whether something can have become of a hold after what is known of it: it waits, then it is held, then it is over. Its token grows;
/// under one token it may be exclusive first and shared later, never the other way round.
pub(super) fn is_newer(known: HoldStatus, told: HoldStatus) -> bool {
    let place = |status: HoldStatus| match status {
        HoldStatus::Waiting => (0, None),
        HoldStatus::Held { token, mode, .. } => (1, Some((token, mode == HoldMode::Shared))),
        HoldStatus::Over => (2, None),
    };
    known != told && place(known) <= place(told)
}
