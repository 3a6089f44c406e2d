//! Requests that are there only to renew: they wait for the next tick, and are promised a whole term.
//!
//! A promise reaches no further than the horizon (T6), and the horizon of a lease that is renewed at half of its term is
//! about half a term away. So a renewal that was answered at once would be promised half a term, and its client would ask
//! again after a quarter. The next tick moves the horizon to a term after the renewal, and comes soon. When it is in the
//! log, the answer promises a whole term from the arrival of the request on (docs/adr/0014).
//!
//! What a waiting request asked for was done when it arrived: its consents count, its leases are renewed, and the renewals
//! count from then. Only the answer waits, and only if it gains by that: the horizon leaves less than three quarters of a
//! term on one of its leases, and on none so little that its client would lose it while it waits. A leader whose ticks do
//! not commit answers after [`TICKS_WAITED`], with what the horizon leaves.

use std::{collections::VecDeque, time::Duration};

use crate::{
    command::LeaseKey,
    drift::ClockAnswer,
    id::Incarnation,
    message::{Answer, Kept, KeptSpan, Refusal},
    planted::Bug,
    reached::{Bound, reached},
    time::Instant,
};

use super::{Asker, Lessor, Renewed, StepContext, granting::Reach};

/// So many ticks a request waits at most: one may have to be proposed first, and then committed.
const TICKS_WAITED: u32 = 2;

/// What it answers to a request that is there only to renew.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum RenewalAnswer {
    Alive(ClockAnswer),
    Kept(Vec<Kept>),
}

impl From<RenewalAnswer> for Answer {
    fn from(answer: RenewalAnswer) -> Self {
        match answer {
            RenewalAnswer::Alive(clocks) => Self::Alive(clocks),
            RenewalAnswer::Kept(kept) => Self::Kept(kept),
        }
    }
}

/// A request that waits for a tick.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Waiting {
    asker: Asker,
    /// What it would have been answered with when it arrived.
    answer: RenewalAnswer,
    arrived: Instant,
    /// The first tick that is taken after the arrival.
    tick: u64,
    /// It is answered after this, whatever became of that tick.
    until: Instant,
}

impl Waiting {
    fn is_ready(&self, told: u64, now: Instant) -> bool {
        self.tick <= told || now >= self.until
    }

    /// How many leases it renews; a request without any counts as one.
    fn leases(&self) -> usize {
        self.spans().count().max(1)
    }

    /// What was promised on each lease when the request arrived, and what would have been if the horizon set no limit. None for
    /// a lease that is gone, or whose end is proposed.
    fn spans(&self) -> impl Iterator<Item = Option<(Duration, Duration)>> {
        let volume = |renewed: &Renewed| renewed.promise.as_ref().map(|promise| (promise.span, renewed.wanted));
        let key = |kept: &Kept| match kept.span {
            KeptSpan::Promised(span) => Some((span, kept.ttl)),
            KeptSpan::NotNow | KeptSpan::Gone => None,
        };
        let kept = match &self.answer {
            RenewalAnswer::Alive(_) => [].as_slice(),
            RenewalAnswer::Kept(kept) => kept,
        };
        self.asker.renewed.iter().map(volume).chain(kept.iter().map(key))
    }

    /// Whether it gains by waiting, where horizons move once in a `tick`. A horizon is up to two ticks beyond what the client
    /// counts on, and the answer comes up to two ticks later: as much again has to be left then.
    fn gains(&self, tick: Duration) -> bool {
        let enough = tick * TICKS_WAITED * 3;
        let is_safe = self.spans().all(|lease| lease.is_some_and(|(span, _)| span >= enough));
        is_safe && self.spans().flatten().any(|(span, wanted)| span < wanted / 4 * 3)
    }
}

/// All that wait, in the order of their arrival.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Renewals {
    waiting: VecDeque<Waiting>,
    /// How many leases they renew together.
    leases: usize,
    /// The number of the last tick that was proposed, and of the last up to which all renewals are told of in the log.
    proposed: u64,
    told: u64,
}

impl Renewals {
    /// A tick is proposed.
    pub(super) fn tick_proposed(&mut self) {
        self.proposed += 1;
    }

    /// The tick is committed, and it told of all that was renewed before. At most one is on its way at any time.
    pub(super) fn all_are_told(&mut self) {
        self.told = self.proposed;
    }

    /// Whether somebody is to be answered.
    pub(super) fn are_ready(&self, now: Instant) -> bool {
        self.waiting.front().is_some_and(|first| first.is_ready(self.told, now))
    }

    /// When somebody is to be answered, if no tick is committed before.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|first| first.until)
    }

    fn push(&mut self, waiting: Waiting) {
        self.leases += waiting.leases();
        self.waiting.push_back(waiting);
    }

    fn pop_ready(&mut self, now: Instant) -> Option<Waiting> {
        if !self.are_ready(now) {
            return None;
        }
        let first = self.waiting.pop_front()?;
        self.leases -= first.leases();
        Some(first)
    }

    /// All who wait: the leader leads no more.
    pub(super) fn into_askers(self) -> impl Iterator<Item = Asker> {
        self.waiting.into_iter().map(|waiting| waiting.asker)
    }

    /// How many requests there are, and how many leases they renew.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.waiting.len(), self.leases]
    }

    /// They stand in the order of their ticks, and the leases are counted.
    pub(super) fn check(&self) -> Result<(), String> {
        let leases: usize = self.waiting.iter().map(Waiting::leases).sum();
        if leases != self.leases {
            return Err(format!("requests that wait for a tick renew {leases} leases: counted {}", self.leases));
        }
        if !self.waiting.iter().is_sorted_by_key(|waiting| waiting.tick) {
            return Err("requests that wait for ticks are not in order".to_owned());
        }
        Ok(())
    }
}

impl Lessor {
    /// Answers a request that is there only to renew: at once, or after the next tick if it is promised more then.
    pub(super) fn answer_renewal(&mut self, asker: Asker, answer: RenewalAnswer, turn: &mut StepContext<'_>) {
        let (tick, until) = (self.renewals.proposed + 1, turn.now.after(self.tick * TICKS_WAITED));
        let waiting = Waiting { asker, answer, arrived: turn.now, tick, until };
        let gains = waiting.gains(self.tick);
        let fits = self.renewals.leases + waiting.leases() <= self.config.bounds.renewals_waiting_max;
        if gains && fits {
            return self.renewals.push(waiting);
        }
        if gains {
            reached(Bound::RenewalsWaiting);
        }
        self.reply(&waiting.asker, Ok(waiting.answer.into()), turn);
    }

    /// Answers those whose tick is in the log, as many as one step may.
    pub(super) fn answer_renewals(&mut self, turn: &mut StepContext<'_>) {
        let most = self.config.bounds.renewals_told_per_step;
        let mut told = 0;
        while told < most
            && let Some(waiting) = self.renewals.pop_ready(turn.now)
        {
            told += waiting.leases();
            self.answer_waiting(waiting, turn);
        }
        if self.renewals.are_ready(turn.now) {
            reached(Bound::RenewalsTold);
        }
    }

    fn answer_waiting(&mut self, waiting: Waiting, turn: &mut StepContext<'_>) {
        let Waiting { mut asker, mut answer, arrived, .. } = waiting;
        let session = asker.session;
        if turn.state.session(session).is_none() {
            return self.reply_bare(&asker, Err(Refusal::SessionGone { session }), turn);
        }
        for promise in asker.renewed.iter_mut().filter_map(|renewed| renewed.promise.as_mut()) {
            let key = LeaseKey::Volume(session, promise.volume.clone());
            let more = self.promise_more(&key, promise.incarnation, promise.term, arrived, turn);
            promise.span = more.unwrap_or_default().max(promise.span);
        }
        match &mut answer {
            RenewalAnswer::Alive(clocks) => clocks.waited = turn.now.since(arrived),
            RenewalAnswer::Kept(kept) => kept.iter_mut().for_each(|kept| self.keep_longer(kept, arrived, turn)),
        }
        self.reply(&asker, Ok(answer.into()), turn);
    }

    /// The same of a key lease, which may be gone by now.
    fn keep_longer(&mut self, kept: &mut Kept, arrived: Instant, turn: &StepContext<'_>) {
        let key = LeaseKey::Key(kept.id);
        let KeptSpan::Promised(span) = &mut kept.span else { return };
        if turn.state.lease(&key).is_none_or(|lease| lease.incarnation != kept.incarnation) {
            kept.span = KeptSpan::Gone;
        } else if let Some(more) = self.promise_more(&key, kept.incarnation, kept.ttl, arrived, turn) {
            *span = more.max(*span);
        }
    }

    /// Promises to a renewal that arrived then what the horizon allows by now, counted from its arrival. Nothing more on a
    /// lease that is gone, or whose end is proposed (T5).
    fn promise_more(
        &mut self,
        key: &LeaseKey,
        incarnation: Incarnation,
        term: Duration,
        arrived: Instant,
        turn: &StepContext<'_>,
    ) -> Option<Duration> {
        let lease = turn.state.lease(key).filter(|lease| lease.incarnation == incarnation)?;
        self.ends.get(key).filter(|end| end.incarnation == incarnation && !end.is_ending)?;
        let Reach { span, .. } = self.reach(key, lease.horizon, term, arrived, turn.now)?;
        let left = span.saturating_sub(turn.now.since(arrived));
        if !left.is_zero() && !self.planted(Bug::LongerPromiseNotCounted) {
            self.ends.extend(key, self.clock.ending().after(left));
        }
        Some(span)
    }
}
