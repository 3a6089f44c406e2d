//! The key leases that the holder renews for the application.
//!
//! One request renews all key leases that are due soon, up to `KEEP_ALIVES_MAX` (etcd 12106: a
//! storm of keep-alives). Terms count from before the request was sent, shortened by the drift
//! allowance (T2). The holder reports the end of a key lease once, at the latest when it ends on
//! the client's clock (etcd 6922, 7357).
//!
//! A key lease belongs to no session, so the holder continues to renew it under the next session.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use super::{
    Holder, HolderEffect, SendId, in_flight::Purpose, pace::Pace, session::LinkState, volume_leases::RenewalSelection,
};
use crate::{
    id::{Incarnation, LeaseId},
    message::{Body, KEEP_ALIVES_MAX, KeepAliveResult, KeyLeasePromise, KeyLeaseRenewal},
    time::Instant,
};

/// A key lease that the holder renews.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OwnKeyLease {
    /// When it ends on this clock, and when to renew it. `None` before the first promise.
    promised: Option<(Instant, Pace)>,
    /// The lease's incarnation, once the holder knows it.
    incarnation: Option<Incarnation>,
    /// The first request that can be about this lease. An answer to an earlier one may be about
    /// another lease of the same id, whose renewal was stopped.
    since: SendId,
    /// Before the first promise: when to ask for one.
    ask_at: Instant,
}

impl OwnKeyLease {
    /// When the holder must send a request to renew the lease.
    fn due(&self) -> Instant {
        self.promised.as_ref().map_or(self.ask_at, |(_, pace)| pace.due)
    }

    /// From this time on, a request that the holder sends for other leases renews this one too.
    fn joins_from(&self) -> Instant {
        self.promised.as_ref().map_or(self.ask_at, |(_, pace)| pace.joins_from())
    }
}

/// When to ask again after `Unconfirmed` about a lease without a promise. Its proposed end is
/// applied soon, unless the leader has no quorum.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// All key leases that the holder renews.
///
/// Each step needs the next deadline, and there may be thousands of leases. So this type stores the
/// deadlines. They may be too early. The holder computes them anew when they have passed, and
/// whenever it examines all leases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnKeyLeases {
    by_id: BTreeMap<LeaseId, OwnKeyLease>,
    /// No lease must be renewed before this. `None` without leases.
    due: Option<Instant>,
    /// No lease ends before this on this clock. `None` without promises.
    ends: Option<Instant>,
    /// The last request that renews key leases.
    sent: Option<SendId>,
}

impl OwnKeyLeases {
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self { sent: self.sent, ..Self::default() };
    }

    /// Computes the deadlines from all leases.
    fn settle(&mut self) {
        let due = self.by_id.values().map(OwnKeyLease::due).min();
        let ends = self.by_id.values().filter_map(|lease| lease.promised.as_ref()).map(|(until, _)| *until).min();
        (self.due, self.ends) = (due, ends);
    }

    /// The last lease that the next request names, if more are due than it may name. Leases that
    /// have been due for longest come first. A renewed lease is due after all that wait, so every
    /// lease is renewed in turn (S10b).
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

    /// Stops the renewal of a lease, which then expires.
    pub(super) fn stop_keep_alive(&mut self, id: LeaseId) {
        self.key_leases.by_id.remove(&id);
        if self.key_leases.is_empty() {
            self.key_leases.clear();
        }
    }

    fn is_keep_alive_in_flight(&self) -> bool {
        let sent = self.key_leases.sent;
        sent.is_some_and(|send_id| self.in_flight.purpose(send_id) == Some(&Purpose::KeepAlive))
    }

    /// The earliest time at which a lease must be renewed, or ends.
    pub(super) fn keep_alive_deadline(&self) -> Option<Instant> {
        let due = self.key_leases.due.filter(|_| self.link == LinkState::Registered && !self.is_keep_alive_in_flight());
        due.into_iter().chain(self.key_leases.ends).min()
    }

    /// If a lease is due, renews it, and those that will be due soon.
    pub(super) fn send_keep_alive(&mut self, now: Instant) {
        let is_due = |leases: &OwnKeyLeases| leases.due.is_some_and(|due| due <= now);
        if !is_due(&self.key_leases) || self.link != LinkState::Registered || self.is_keep_alive_in_flight() {
            return;
        }
        self.key_leases.settle();
        if !is_due(&self.key_leases) {
            return;
        }
        let last_named = self.key_leases.last_named(now);
        let mut leases = Vec::new();
        for (id, lease) in &mut self.key_leases.by_id {
            let has_room = last_named.is_none_or(|last| (lease.due(), *id) <= last);
            if lease.joins_from() > now || !has_room {
                continue;
            }
            if let Some((until, pace)) = &mut lease.promised {
                pace.renewal_sent(*until, now);
                pace.try_before(*until, now);
            }
            leases.push(KeyLeaseRenewal { id: *id, incarnation: lease.incarnation });
        }
        self.key_leases.settle();
        let sent = self.send(Purpose::KeepAlive, Body::KeepAlive { leases }, RenewalSelection::Due, now);
        self.key_leases.sent = Some(sent);
    }

    /// Handles the leader's answer to a keep-alive.
    pub(super) fn handle_kept_alive(
        &mut self,
        send_id: SendId,
        promises: &[KeyLeasePromise],
        sent: Instant,
        now: Instant,
    ) {
        // Meanwhile the application may have stopped the renewal of some leases.
        for promise in promises {
            if self.key_leases.by_id.contains_key(&promise.id) {
                self.apply_key_lease_promise(send_id, promise, sent, now);
            }
        }
        self.key_leases.settle();
    }

    /// Handles the promise in the answer to a grant. A repeated answer may say that the lease has
    /// ended. That does not concern a later lease of the same id, which the holder may renew now.
    pub(super) fn granted(&mut self, send_id: SendId, promise: &KeyLeasePromise, sent: Instant, now: Instant) {
        let known = self.key_leases.by_id.get(&promise.id).and_then(|lease| lease.incarnation);
        if promise.result != KeepAliveResult::NotFound || known == Some(promise.incarnation) {
            self.apply_key_lease_promise(send_id, promise, sent, now);
        }
    }

    /// Handles a promise for a key lease, which may be new, or its end.
    fn apply_key_lease_promise(&mut self, send_id: SendId, promise: &KeyLeasePromise, sent: Instant, now: Instant) {
        let KeyLeasePromise { id, incarnation, ttl, result } = *promise;
        let lease = self.key_leases.by_id.get(&id);
        let known = lease.and_then(|lease| lease.incarnation);
        // A late answer, about an earlier lease of the same id. While the incarnation of the
        // renewed lease is unknown, the answered request shows which lease is older (S7b).
        let is_late = match known {
            Some(known) => incarnation < known,
            None => lease.is_some_and(|lease| send_id < lease.since),
        };
        if is_late {
            return;
        }
        // If another lease has the id now, the renewed lease has ended.
        let span = if known.is_none_or(|known| known == incarnation) { result } else { KeepAliveResult::NotFound };
        let span = match span {
            KeepAliveResult::Renewed(span) => span,
            // A lease with a promise does not need this: while it holds on this clock, its own pace
            // decides when to ask again.
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
            // The horizon made this promise shorter than the known one, so the holder ignores it.
            // It asks again at the same time as if the answer had been lost.
            Some((known_until, _)) if until < *known_until => return,
            Some((known_until, pace)) => {
                *known_until = until;
                pace.renewed(sent, span, ttl, now);
            }
            None => lease.promised = Some((until, Pace::new(sent, span, ttl, spread, now))),
        }
        lease.promised.iter_mut().for_each(|(until, pace)| pace.try_before(*until, now));
        // `due` and `ends` must not be later than the due time and the end of any lease.
        let due = lease.due();
        self.key_leases.due = Some(self.key_leases.due.map_or(due, |earliest| earliest.min(due)));
        self.key_leases.ends = Some(self.key_leases.ends.map_or(until, |ends| ends.min(until)));
        self.effects.push(HolderEffect::KeyLeaseRenewed { id, incarnation, ttl, until });
    }

    /// Ends the leases whose time has passed on this clock.
    pub(super) fn expire_key_leases(&mut self, now: Instant) {
        if self.key_leases.ends.is_none_or(|end| end > now) {
            return;
        }
        let effects = &mut self.effects;
        self.key_leases.by_id.retain(|id, lease| {
            let has_expired = lease.promised.as_ref().is_some_and(|(until, _)| *until <= now);
            if has_expired {
                effects.push(HolderEffect::KeyLeaseLost { id: *id });
            }
            !has_expired
        });
        self.key_leases.settle();
    }
}
