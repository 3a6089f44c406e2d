//! Renew-only requests: the answer to each waits for its tick, and then promises a whole term (T6).
//!
//! No promise goes beyond the horizon. When a client renews at half of its term, the horizon is
//! about half a term away. An immediate answer would promise only half a term, and the client would
//! soon renew again. So the answer waits for the first tick that is proposed after the arrival. If
//! that tick cannot take all renewals, the answer waits for the next ticks too. When these ticks
//! are committed, the horizon is at least a term after the renewal. Then the answer promises a
//! whole term from the arrival (docs/adr/0014).
//!
//! The lessor handles the request when it arrives: it applies the consents, and renews the leases
//! as of the arrival. Only the answer waits, and only if the promises get longer
//! (`WaitingRenewal::gains`). If the tick is not committed within [`TICKS_WAITED`], the answer
//! promises what the horizon leaves.

use std::{collections::VecDeque, time::Duration};

use crate::{
    command::AnyLease,
    drift::ClockAnswer,
    id::Incarnation,
    message::{Answer, KeepAliveResult, KeyLeasePromise, Refusal},
    planted::Bug,
    reached::{Bound, reached},
    time::Instant,
};

use super::{Lessor, RenewedLease, Requester, StepContext, promises::PromiseReach};

/// The most ticks that a request waits: one until its tick is proposed, one until the tick is
/// committed.
const TICKS_WAITED: u32 = 2;

/// The lessor's answer to a renew-only request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum RenewalAnswer {
    Heartbeat(ClockAnswer),
    KeepAlive(Vec<KeyLeasePromise>),
}

impl From<RenewalAnswer> for Answer {
    fn from(answer: RenewalAnswer) -> Self {
        match answer {
            RenewalAnswer::Heartbeat(clocks) => Self::Heartbeat(clocks),
            RenewalAnswer::KeepAlive(promises) => Self::KeptAlive(promises),
        }
    }
}

/// A request that waits for a tick.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WaitingRenewal {
    requester: Requester,
    /// The answer as of the arrival.
    answer: RenewalAnswer,
    arrived: Instant,
    /// The number of the first tick proposed after the arrival.
    tick: u64,
    /// From this time on, the lessor answers even if that tick is not committed.
    until: Instant,
}

impl WaitingRenewal {
    fn is_ready(&self, last_complete: u64, now: Instant) -> bool {
        self.tick <= last_complete || now >= self.until
    }

    /// How many leases the request renews. A request without renewals counts as one lease.
    fn leases(&self) -> usize {
        self.spans().count().max(1)
    }

    /// For each lease: the span promised at the arrival, and the span without the limit of the
    /// horizon. `None` if the lease has ended or its end is proposed.
    fn spans(&self) -> impl Iterator<Item = Option<(Duration, Duration)>> {
        let volume =
            |renewed: &RenewedLease| renewed.promise.as_ref().map(|promise| (promise.span, renewed.span_uncapped));
        let key = |promise: &KeyLeasePromise| match promise.result {
            KeepAliveResult::Renewed(span) => Some((span, promise.ttl)),
            KeepAliveResult::Unconfirmed | KeepAliveResult::NotFound => None,
        };
        let promises = match &self.answer {
            RenewalAnswer::Heartbeat(_) => [].as_slice(),
            RenewalAnswer::KeepAlive(promises) => promises,
        };
        self.requester.renewed.iter().map(volume).chain(promises.iter().map(key))
    }

    /// Whether waiting is safe, and makes a promise longer. Horizons move once in a `tick`.
    ///
    /// An immediate answer must promise at least six ticks on each lease. The client's own deadline
    /// may be two ticks before the horizon, and the answer may wait for two ticks. So the client
    /// still has two ticks.
    fn gains(&self, tick: Duration) -> bool {
        let safe_span = tick * TICKS_WAITED * 3;
        let is_safe = self.spans().all(|lease| lease.is_some_and(|(span, _)| span >= safe_span));
        is_safe && self.spans().flatten().any(|(span, span_uncapped)| span < span_uncapped / 8 * 7)
    }
}

/// The waiting requests, in the order of their arrival.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Renewals {
    waiting: VecDeque<WaitingRenewal>,
    /// The number of leases that the requests renew together.
    leases: usize,
    /// The number of the last tick proposed.
    proposed: u64,
    /// The number of the last committed tick that took all earlier renewals.
    last_complete_tick: u64,
}

impl Renewals {
    /// Counts a tick that the lessor proposes.
    pub(super) fn tick_proposed(&mut self) {
        self.proposed += 1;
    }

    /// Records that the last proposed tick is committed, and that the ticks have taken all earlier
    /// renewals. Only one tick is in flight at a time.
    pub(super) fn mark_ticks_complete(&mut self) {
        self.last_complete_tick = self.proposed;
    }

    /// Whether the lessor should answer the first waiting request now.
    pub(super) fn has_ready(&self, now: Instant) -> bool {
        self.waiting.front().is_some_and(|first| first.is_ready(self.last_complete_tick, now))
    }

    /// When the lessor answers the first waiting request without its tick.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|first| first.until)
    }

    fn push(&mut self, waiting: WaitingRenewal) {
        self.leases += waiting.leases();
        self.waiting.push_back(waiting);
    }

    fn pop_ready(&mut self, now: Instant) -> Option<WaitingRenewal> {
        if !self.has_ready(now) {
            return None;
        }
        let first = self.waiting.pop_front()?;
        self.leases -= first.leases();
        Some(first)
    }

    /// The requesters of all waiting requests, for the end of the leadership.
    pub(super) fn into_requesters(self) -> impl Iterator<Item = Requester> {
        self.waiting.into_iter().map(|waiting| waiting.requester)
    }

    /// The number of waiting requests, and of the leases that they renew.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.waiting.len(), self.leases]
    }

    /// Checks that the requests are in the order of their ticks, and that `leases` is right.
    pub(super) fn check(&self) -> Result<(), String> {
        let leases: usize = self.waiting.iter().map(WaitingRenewal::leases).sum();
        if leases != self.leases {
            return Err(format!("the waiting requests renew {leases} leases: counted {}", self.leases));
        }
        if !self.waiting.iter().is_sorted_by_key(|waiting| waiting.tick) {
            return Err("the waiting requests are not in the order of their ticks".to_owned());
        }
        Ok(())
    }
}

impl Lessor {
    /// Answers a renew-only request: after its tick if waiting helps and there is room, else at
    /// once.
    pub(super) fn answer_renewal(&mut self, requester: Requester, answer: RenewalAnswer, cx: &mut StepContext<'_>) {
        let (tick, until) = (self.renewals.proposed + 1, cx.now.after(self.tick * TICKS_WAITED));
        let waiting = WaitingRenewal { requester, answer, arrived: cx.now, tick, until };
        let gains = waiting.gains(self.tick);
        let fits = self.renewals.leases + waiting.leases() <= self.config.bounds.renewals_waiting_max;
        if gains && fits {
            return self.renewals.push(waiting);
        }
        if gains {
            reached(Bound::RenewalsWaiting);
        }
        self.reply(&waiting.requester, Ok(waiting.answer.into()), cx);
    }

    /// Answers requests whose tick is committed or whose wait has ended, up to a bound.
    pub(super) fn answer_renewals(&mut self, cx: &mut StepContext<'_>) {
        let most = self.config.bounds.renewals_answered_per_step;
        let mut answered = 0;
        while answered < most
            && let Some(waiting) = self.renewals.pop_ready(cx.now)
        {
            answered += waiting.leases();
            self.answer_waiting(waiting, cx);
        }
        if self.renewals.has_ready(cx.now) {
            reached(Bound::RenewalsAnswered);
        }
    }

    fn answer_waiting(&mut self, waiting: WaitingRenewal, cx: &mut StepContext<'_>) {
        let WaitingRenewal { mut requester, mut answer, arrived, .. } = waiting;
        let session = requester.session;
        if cx.state.session(session).is_none() {
            return self.reply_without_promises(&requester, Err(Refusal::SessionNotFound { session }), cx);
        }
        for promise in requester.renewed.iter_mut().filter_map(|renewed| renewed.promise.as_mut()) {
            let key = AnyLease::Volume(session, promise.volume.clone());
            let more = self.promise_more(&key, promise.incarnation, promise.term, arrived, cx);
            promise.span = more.unwrap_or_default().max(promise.span);
        }
        match &mut answer {
            RenewalAnswer::Heartbeat(clocks) => clocks.delay = cx.now.since(arrived),
            RenewalAnswer::KeepAlive(promises) => {
                promises.iter_mut().for_each(|promise| self.extend_key_lease(promise, arrived, cx))
            }
        }
        self.reply(&requester, Ok(answer.into()), cx);
    }

    /// Extends the promise on a key lease, or answers that the lease no longer exists.
    fn extend_key_lease(&mut self, promise: &mut KeyLeasePromise, arrived: Instant, cx: &StepContext<'_>) {
        let key = AnyLease::KeyLease(promise.id);
        let KeepAliveResult::Renewed(span) = &mut promise.result else { return };
        if cx.state.lease(&key).is_none_or(|lease| lease.incarnation != promise.incarnation) {
            promise.result = KeepAliveResult::NotFound;
        } else if let Some(more) = self.promise_more(&key, promise.incarnation, promise.ttl, arrived, cx) {
            *span = more.max(*span);
        }
    }

    /// The longest promise that the present horizon allows to a renewal, counted from its arrival.
    /// The end in memory moves with it. `None` if the lease has ended or its end is proposed (T5).
    fn promise_more(
        &mut self,
        key: &AnyLease,
        incarnation: Incarnation,
        term: Duration,
        arrived: Instant,
        cx: &StepContext<'_>,
    ) -> Option<Duration> {
        let lease = cx.state.lease(key).filter(|lease| lease.incarnation == incarnation)?;
        self.leases.get(key).filter(|end| end.incarnation == incarnation && !end.is_end_proposed)?;
        let PromiseReach { span, .. } = self.reach(key, lease.horizon, term, arrived, cx.now)?;
        let remaining = span.saturating_sub(cx.now.since(arrived));
        if !remaining.is_zero() && !self.planted(Bug::LongerPromiseNotCounted) {
            self.leases.extend(key, self.clock.ending_time().after(remaining));
        }
        Some(span)
    }
}
