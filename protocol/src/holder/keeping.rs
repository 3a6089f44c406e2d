//! Key leases that the application wants kept alive.
//!
//! They are renewed together: one request names all that are due soon, however many there are (etcd 12106: a storm of
//! keep-alives). T2: each counts from before the request was sent, shortened by the drift allowance. The application hears once when one
//! is over, at the latest when its own clock says so, whatever the connection does (etcd 6922, 7357).
//!
//! A key lease is no session's: it is kept on when the session is gone and another has taken its place.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use super::{Effect, Holder, Ticket, flights::Purpose, pace::Pace, session::Link, volumes::Ride};
use crate::{
    id::{Incarnation, LeaseId},
    message::{Body, KEEP_LEASES_MAX, KeepLease, Kept, KeptSpan},
    time::Instant,
};

/// One that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct KeptLease {
    /// When it ends on this client's clock, and how it is renewed. None before the first answer.
    held: Option<(Instant, Pace)>,
    /// Which lease of its name it is, once that is known.
    incarnation: Option<Incarnation>,
    /// The first request that can be about it. An answer to an earlier one may be about another lease
    /// of its name, which was let go.
    since: Ticket,
    /// Before it is held: when to ask for it.
    ask_at: Instant,
}

impl KeptLease {
    /// When a request is to name it.
    fn due(&self) -> Instant {
        self.held.as_ref().map_or(self.ask_at, |(_, pace)| pace.due)
    }

    /// From when on a request that is sent anyway names it too.
    fn joins_from(&self) -> Instant {
        self.held.as_ref().map_or(self.ask_at, |(_, pace)| pace.joins_from())
    }
}

/// A lease that is not held yet and is not renewed now is asked for again after this: its end is applied within a commit or two, or its
/// leader has no quorum.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// All that are kept.
///
/// Every step of the holder asks when something is to be done, and there may be thousands: the answer is kept, and may be early. It is
/// put right when that time comes, and whenever all are gone through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Keeping {
    leases: BTreeMap<LeaseId, KeptLease>,
    /// No lease is to be renewed before this. None without leases.
    due: Option<Instant>,
    /// No lease ends before this on this clock. None while none is held.
    ends: Option<Instant>,
}

impl Keeping {
    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Goes through all of them for when something is to be done.
    fn settle(&mut self) {
        let due = self.leases.values().map(KeptLease::due).min();
        let ends = self.leases.values().filter_map(|lease| lease.held.as_ref()).map(|(until, _)| *until).min();
        (self.due, self.ends) = (due, ends);
    }

    /// If more leases join the next request than it may name: the last that it names. Those go
    /// first that have been due for longest. An answer makes a lease due later than all that wait,
    /// so each has its turn (S10b: no order starves).
    fn last_named(&self, now: Instant) -> Option<(Instant, LeaseId)> {
        if self.leases.len() <= KEEP_LEASES_MAX {
            return None;
        }
        let joining = self.leases.iter().filter(|(_, lease)| lease.joins_from() <= now);
        let mut joining: Vec<_> = joining.map(|(id, lease)| (lease.due(), *id)).collect();
        (joining.len() > KEEP_LEASES_MAX).then(|| *joining.select_nth_unstable(KEEP_LEASES_MAX - 1).1)
    }
}

impl Holder {
    /// The application wants the lease kept alive from now on.
    pub(super) fn keep(&mut self, id: LeaseId) {
        if self.is_closed() {
            return;
        }
        let since = self.flights.next();
        if let Entry::Vacant(entry) = self.keeping.leases.entry(id) {
            entry.insert(KeptLease { held: None, incarnation: None, since, ask_at: Instant::ZERO });
            self.keeping.due = Some(Instant::ZERO);
        }
    }

    /// The application does not want the lease kept alive any more. It ends by itself.
    pub(super) fn let_go(&mut self, id: LeaseId) {
        self.keeping.leases.remove(&id);
        if self.keeping.is_empty() {
            self.keeping.clear();
        }
    }

    fn is_asking(&self) -> bool {
        self.flights.iter().any(|(_, flight)| flight.purpose == Purpose::KeepLeases)
    }

    /// When something is to be done about a kept lease.
    pub(super) fn keeping_deadline(&self) -> Option<Instant> {
        let due = self.keeping.due.filter(|_| self.link == Link::Registered && !self.is_asking());
        due.into_iter().chain(self.keeping.ends).min()
    }

    /// Renews what is due, and with it what will be soon.
    pub(super) fn keep_due(&mut self, now: Instant) {
        let is_due = |keeping: &Keeping| keeping.due.is_some_and(|due| due <= now);
        if !is_due(&self.keeping) || self.link != Link::Registered || self.is_asking() {
            return;
        }
        self.keeping.settle();
        if !is_due(&self.keeping) {
            return;
        }
        let last = self.keeping.last_named(now);
        let mut leases = Vec::new();
        for (id, lease) in &mut self.keeping.leases {
            let has_room = last.is_none_or(|last| (lease.due(), *id) <= last);
            if lease.joins_from() > now || !has_room {
                continue;
            }
            if let Some((until, pace)) = &mut lease.held {
                pace.asked(*until, now);
            }
            leases.push(KeepLease { id: *id, incarnation: lease.incarnation });
        }
        self.keeping.settle();
        self.send(Purpose::KeepLeases, Body::KeepLeases { leases }, Ride::Due, now);
    }

    /// The leader has renewed key leases, or not, or says that they are gone.
    pub(super) fn kept(&mut self, ticket: Ticket, kept: &[Kept], sent: Instant, now: Instant) {
        // The application may have let some of them go meanwhile.
        for one in kept {
            if self.keeping.leases.contains_key(&one.id) {
                self.kept_one(ticket, one, sent, now);
            }
        }
        self.keeping.settle();
    }

    /// The answer to a grant says how much time its lease has. A repeated answer may find it gone: that is no news of another lease
    /// of its name, which may be kept by now.
    pub(super) fn granted(&mut self, ticket: Ticket, kept: &Kept, sent: Instant, now: Instant) {
        let known = self.keeping.leases.get(&kept.id).and_then(|lease| lease.incarnation);
        if kept.span != KeptSpan::Gone || known == Some(kept.incarnation) {
            self.kept_one(ticket, kept, sent, now);
        }
    }

    /// More time on one key lease, which may have been granted just now; or its end.
    fn kept_one(&mut self, ticket: Ticket, kept: &Kept, sent: Instant, now: Instant) {
        let Kept { id, incarnation, ttl, span } = *kept;
        let lease = self.keeping.leases.get(&id);
        let known = lease.and_then(|lease| lease.incarnation);
        // A late answer, about a lease that had the name before the one that is kept. While that one's
        // incarnation is not known, the request that was answered tells which is older (S7b).
        let is_late = match known {
            Some(known) => incarnation < known,
            None => lease.is_some_and(|lease| ticket < lease.since),
        };
        if is_late {
            return;
        }
        // One that is kept, and another of its name: the first is gone.
        let span = if known.is_none_or(|known| known == incarnation) { span } else { KeptSpan::Gone };
        let span = match span {
            KeptSpan::Promised(span) => span,
            // One that is held is asked for again before long by its pace, while this clock says that it holds.
            KeptSpan::NotNow => {
                if let Some(lease) = self.keeping.leases.get_mut(&id) {
                    lease.ask_at = now.after(ASK_AGAIN);
                }
                return;
            }
            KeptSpan::Gone => {
                if self.keeping.leases.remove(&id).is_some() {
                    self.effects.push(Effect::LeaseOver { id });
                }
                return;
            }
        };
        let (until, spread) = (self.ends_at(sent, span.min(ttl), now), self.config.spread_permille);
        let Some(lease) = self.keeping.leases.get_mut(&id) else {
            return self.effects.push(Effect::LeaseKept { id, incarnation, ttl, until });
        };
        lease.incarnation = Some(incarnation);
        match &mut lease.held {
            // One that is less is limited by the horizon: it is asked for again.
            Some((last, _)) if until < *last => return,
            Some((last, pace)) => {
                *last = until;
                pace.renewed(sent, span, ttl, now);
            }
            None => lease.held = Some((until, Pace::new(sent, span, ttl, spread, now))),
        }
        // One that was just granted, and kept before: none ends before either.
        self.keeping.ends = Some(self.keeping.ends.map_or(until, |ends| ends.min(until)));
        self.effects.push(Effect::LeaseKept { id, incarnation, ttl, until });
    }

    /// Leases whose time has passed on this clock are over.
    pub(super) fn note_kept(&mut self, now: Instant) {
        if self.keeping.ends.is_none_or(|end| end > now) {
            return;
        }
        let effects = &mut self.effects;
        self.keeping.leases.retain(|id, lease| {
            let is_over = lease.held.as_ref().is_some_and(|(until, _)| *until <= now);
            if is_over {
                effects.push(Effect::LeaseOver { id: *id });
            }
            !is_over
        });
        self.keeping.settle();
    }
}
