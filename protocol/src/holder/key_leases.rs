//! Key leases that the application wants kept alive.
//!
//! They are renewed together: one request names all that are due soon, however many there are (etcd
//! 12106: a storm of keep-alives). T2: each counts from before the request was sent, shortened by
//! the drift allowance. The application hears once when one is over, at the latest when its own
//! clock says so, whatever the connection does (etcd 6922, 7357).
//!
//! A key lease is no session's: it is kept on when the session is gone and another has taken its
//! place.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use super::{
    Holder, HolderEffect, SendId, in_flight::Purpose, pace::Pace, session::LinkState, volume_leases::RenewalReason,
};
use crate::{
    id::{Incarnation, LeaseId},
    message::{Body, KEEP_ALIVES_MAX, KeepAliveResult, KeyLeasePromise, KeyLeaseRenewal},
    time::Instant,
};

/// One that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OwnKeyLease {
    /// When it ends on this client's clock, and how it is renewed. None before the first answer.
    promised: Option<(Instant, Pace)>,
    /// Which lease of its name it is, once that is known.
    incarnation: Option<Incarnation>,
    /// The first request that can be about it. An answer to an earlier one may be about another
    /// lease of its name, which was let go.
    since: SendId,
    /// Before it is held: when to ask for it.
    ask_at: Instant,
}

impl OwnKeyLease {
    /// When a request is to name it.
    fn due(&self) -> Instant {
        self.promised.as_ref().map_or(self.ask_at, |(_, pace)| pace.due)
    }

    /// From when on a request that is sent anyway names it too.
    fn joins_from(&self) -> Instant {
        self.promised.as_ref().map_or(self.ask_at, |(_, pace)| pace.joins_from())
    }
}

/// A lease that is not held yet and is not renewed now is asked for again after this: its end is
/// applied within a commit or two, or its leader has no quorum.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// All that are kept.
///
/// Every step of the holder asks when something is to be done, and there may be thousands: the
/// answer is kept, and may be early. It is put right when that time comes, and whenever all are
/// gone through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnKeyLeases {
    by_id: BTreeMap<LeaseId, OwnKeyLease>,
    /// No lease is to be renewed before this. None without leases.
    due: Option<Instant>,
    /// No lease ends before this on this clock. None while none is held.
    ends: Option<Instant>,
}

impl OwnKeyLeases {
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Goes through all of them for when something is to be done.
    fn settle(&mut self) {
        let due = self.by_id.values().map(OwnKeyLease::due).min();
        let ends = self.by_id.values().filter_map(|lease| lease.promised.as_ref()).map(|(until, _)| *until).min();
        (self.due, self.ends) = (due, ends);
    }

    /// If more leases join the next request than it may name: the last that it names. Those go
    /// first that have been due for longest. An answer makes a lease due later than all that wait,
    /// so each has its turn (S10b: no order starves).
    fn last_named(&self, now: Instant) -> Option<(Instant, LeaseId)> {
        if self.by_id.len() <= KEEP_ALIVES_MAX {
            return None;
        }
        let joining = self.by_id.iter().filter(|(_, lease)| lease.joins_from() <= now);
        let mut joining: Vec<_> = joining.map(|(id, lease)| (lease.due(), *id)).collect();
        (joining.len() > KEEP_ALIVES_MAX).then(|| *joining.select_nth_unstable(KEEP_ALIVES_MAX - 1).1)
    }
}

impl Holder {
    /// The application wants the lease kept alive from now on.
    pub(super) fn start_keep_alive(&mut self, id: LeaseId) {
        if self.is_closed() {
            return;
        }
        let since = self.in_flight.next();
        if let Entry::Vacant(entry) = self.key_leases.by_id.entry(id) {
            entry.insert(OwnKeyLease { promised: None, incarnation: None, since, ask_at: Instant::ZERO });
            self.key_leases.due = Some(Instant::ZERO);
        }
    }

    /// The application does not want the lease kept alive any more. It ends by itself.
    pub(super) fn stop_keep_alive(&mut self, id: LeaseId) {
        self.key_leases.by_id.remove(&id);
        if self.key_leases.is_empty() {
            self.key_leases.clear();
        }
    }

    fn is_keep_alive_in_flight(&self) -> bool {
        self.in_flight.iter().any(|(_, flight)| flight.purpose == Purpose::KeepAlive)
    }

    /// When something is to be done about a kept lease.
    pub(super) fn keep_alive_deadline(&self) -> Option<Instant> {
        let due = self.key_leases.due.filter(|_| self.link == LinkState::Registered && !self.is_keep_alive_in_flight());
        due.into_iter().chain(self.key_leases.ends).min()
    }

    /// Renews what is due, and with it what will be soon.
    pub(super) fn send_keep_alive(&mut self, now: Instant) {
        let is_due = |keeping: &OwnKeyLeases| keeping.due.is_some_and(|due| due <= now);
        if !is_due(&self.key_leases) || self.link != LinkState::Registered || self.is_keep_alive_in_flight() {
            return;
        }
        self.key_leases.settle();
        if !is_due(&self.key_leases) {
            return;
        }
        let last = self.key_leases.last_named(now);
        let mut leases = Vec::new();
        for (id, lease) in &mut self.key_leases.by_id {
            let has_room = last.is_none_or(|last| (lease.due(), *id) <= last);
            if lease.joins_from() > now || !has_room {
                continue;
            }
            if let Some((until, pace)) = &mut lease.promised {
                pace.asked(*until, now);
            }
            leases.push(KeyLeaseRenewal { id: *id, incarnation: lease.incarnation });
        }
        self.key_leases.settle();
        self.send(Purpose::KeepAlive, Body::KeepAlive { leases }, RenewalReason::Due, now);
    }

    /// The leader has renewed key leases, or not, or says that they are gone.
    pub(super) fn handle_kept_alive(&mut self, ticket: SendId, kept: &[KeyLeasePromise], sent: Instant, now: Instant) {
        // The application may have let some of them go meanwhile.
        for one in kept {
            if self.key_leases.by_id.contains_key(&one.id) {
                self.apply_key_lease_promise(ticket, one, sent, now);
            }
        }
        self.key_leases.settle();
    }

    /// The answer to a grant says how much time its lease has. A repeated answer may find it gone:
    /// that is no news of another lease of its name, which may be kept by now.
    pub(super) fn granted(&mut self, ticket: SendId, kept: &KeyLeasePromise, sent: Instant, now: Instant) {
        let known = self.key_leases.by_id.get(&kept.id).and_then(|lease| lease.incarnation);
        if kept.result != KeepAliveResult::NotFound || known == Some(kept.incarnation) {
            self.apply_key_lease_promise(ticket, kept, sent, now);
        }
    }

    /// More time on one key lease, which may have been granted just now; or its end.
    fn apply_key_lease_promise(&mut self, ticket: SendId, kept: &KeyLeasePromise, sent: Instant, now: Instant) {
        let KeyLeasePromise { id, incarnation, ttl, result } = *kept;
        let lease = self.key_leases.by_id.get(&id);
        let known = lease.and_then(|lease| lease.incarnation);
        // A late answer, about a lease that had the name before the one that is kept. While that
        // one's incarnation is not known, the request that was answered tells which is older (S7b).
        let is_late = match known {
            Some(known) => incarnation < known,
            None => lease.is_some_and(|lease| ticket < lease.since),
        };
        if is_late {
            return;
        }
        // One that is kept, and another of its name: the first is gone.
        let span = if known.is_none_or(|known| known == incarnation) { result } else { KeepAliveResult::NotFound };
        let span = match span {
            KeepAliveResult::Renewed(span) => span,
            // One that is held is asked for again before long by its pace, while this clock says
            // that it holds.
            KeepAliveResult::Unconfirmed => {
                if let Some(lease) = self.key_leases.by_id.get_mut(&id) {
                    lease.ask_at = now.after(ASK_AGAIN);
                }
                return;
            }
            KeepAliveResult::NotFound => {
                if self.key_leases.by_id.remove(&id).is_some() {
                    self.effects.push(HolderEffect::KeyLeaseLost { id });
                }
                return;
            }
        };
        let (until, spread) = (self.ends_at(sent, span.min(ttl), now), self.config.spread_permille);
        let Some(lease) = self.key_leases.by_id.get_mut(&id) else {
            return self.effects.push(HolderEffect::KeyLeaseRenewed { id, incarnation, ttl, until });
        };
        lease.incarnation = Some(incarnation);
        match &mut lease.promised {
            // One that is less is limited by the horizon: it is asked for again.
            Some((last, _)) if until < *last => return,
            Some((last, pace)) => {
                *last = until;
                pace.renewed(sent, span, ttl, now);
            }
            None => lease.promised = Some((until, Pace::new(sent, span, ttl, spread, now))),
        }
        // One that was just granted, and kept before: none ends before either.
        self.key_leases.ends = Some(self.key_leases.ends.map_or(until, |ends| ends.min(until)));
        self.effects.push(HolderEffect::KeyLeaseRenewed { id, incarnation, ttl, until });
    }

    /// Leases whose time has passed on this clock are over.
    pub(super) fn expire_key_leases(&mut self, now: Instant) {
        if self.key_leases.ends.is_none_or(|end| end > now) {
            return;
        }
        let effects = &mut self.effects;
        self.key_leases.by_id.retain(|id, lease| {
            let is_over = lease.promised.as_ref().is_some_and(|(until, _)| *until <= now);
            if is_over {
                effects.push(HolderEffect::KeyLeaseLost { id: *id });
            }
            !is_over
        });
        self.key_leases.settle();
    }
}
