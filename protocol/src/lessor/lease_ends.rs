//! The timers propose the ends of leases (T3, T5), and the ticks that move horizons (T6).

use std::time::Duration;

use crate::{
    command::{AnyLease, Command, Outcome},
    id::{Incarnation, SessionId},
    planted::Bug,
    reached::{Bound, reached},
    state::{LeaseRecord, State},
    time::{ClusterTime, DriftAllowance},
    volume::margin_of_drift,
};

use super::{
    Lessor, ProposalReason, StepContext,
    leases::{RenewalPlan, ReplicatedLease},
};

impl Lessor {
    pub(super) fn run_timers(&mut self, cx: &mut StepContext<'_>) {
        if self.epoch.is_none() {
            return;
        }
        self.end_expired_waits();
        self.propose_expiries(cx);
        self.remove_orphans(cx);
        self.object_leases.tidy();
        self.propose_tick(cx);
    }

    /// Proposes [`Command::Expire`] for each lease whose `ends_at` plus its margin has passed by
    /// the ending clock, which is never fast (T3, T5). A session ends only after its volume leases.
    fn propose_expiries(&mut self, cx: &StepContext<'_>) {
        let (state, ending) = (cx.state, self.clock.ending_time());
        let now = match self.planted(Bug::PauseEndsLeases) {
            true => self.clock.promising_time(cx.now).unwrap_or(ending),
            false => ending,
        };
        let has_margin = !self.planted(Bug::LeaseWithoutMargin);
        let drift = self.config.drift;
        let replicated = |key: &AnyLease| {
            let lease = state.lease(key)?;
            let margin = if has_margin { margin(key, lease, state, drift) } else { Duration::ZERO };
            Some(ReplicatedLease { margin, horizon: lease.horizon })
        };
        let may_end = |key: &AnyLease| match key {
            AnyLease::Session(session) => state.leases_of(*session).all(|(key, _)| matches!(key, AnyLease::Session(_))),
            AnyLease::Volume(..) | AnyLease::KeyLease(_) | AnyLease::LockDelay(_) => true,
        };
        let mut leases_to_scan = self.config.bounds.expiry_scan_max;
        while self.proposal_queue.ends() < self.config.bounds.expiries_waiting_max
            && let Some((lease, incarnation, horizon)) =
                self.leases.next_expired(now, &mut leases_to_scan, replicated, may_end, state.tick())
        {
            self.propose_expiry(lease, incarnation, horizon);
        }
        if leases_to_scan == 0 {
            reached(Bound::ExpiryScan);
        } else if self.proposal_queue.ends() >= self.config.bounds.expiries_waiting_max {
            reached(Bound::ExpiriesWaiting);
        }
    }

    /// Proposes the end of a lease, on condition that its horizon is still this one when the
    /// command is applied (T5).
    pub(super) fn propose_expiry(&mut self, lease: AnyLease, incarnation: Incarnation, horizon: ClusterTime) {
        let reason = ProposalReason::Expire(lease.clone(), incarnation);
        self.propose(Command::Expire { lease, incarnation, horizon }, reason);
    }

    /// Proposes a tick: it moves the horizons of renewed leases, and takes cluster time into the
    /// log (T6). Only one tick is in flight at a time.
    fn propose_tick(&mut self, cx: &StepContext<'_>) {
        let now = self.clock.ending_time();
        // If a tick could not take all renewals, the next follows as soon as it is applied (S10b).
        let is_due = self.last_tick.is_none_or(|last| now.since(last) >= cx.state.tick()) || self.leases.is_behind();
        if is_due && !self.is_tick_in_flight && !self.leases.is_empty() {
            self.last_tick = Some(now);
            self.is_tick_in_flight = true;
            self.renewals.tick_proposed();
            let renewals = self.leases.take_renewals(self.config.bounds.tick_bytes_max);
            self.propose(Command::Tick { renewals }, ProposalReason::Tick);
            self.object_leases.sweep(now, self.config.bounds.sweep_max);
        }
    }

    /// Renews the session lease. The lessor promises nothing on it, so its end and horizon need not
    /// move with each request. A request moves them only if at least a quarter of the term has
    /// passed since they last moved. So the servers remember a silent session for three quarters of
    /// its term at least.
    pub(super) fn renew_session_lease(&mut self, session: SessionId, cx: &StepContext<'_>) {
        let key = AnyLease::Session(session);
        let now = self.clock.ending_time();
        let Some(lease) = cx.state.lease(&key) else { return };
        let (horizon, term) = (lease.horizon, lease.term());
        // When the session acquires a volume lease, the state moves the horizon of the session
        // lease. The end in memory stays. So the earlier of the two counts.
        let remaining = self.leases.get(&key).map_or(horizon, |end| horizon.min(end.ends_at)).since(now);
        if remaining < term / 4 * 3 {
            self.leases.renew(&key, now, term, RenewalPlan { horizon, term });
        }
    }

    pub(super) fn handle_expired(
        &mut self,
        key: AnyLease,
        incarnation: Incarnation,
        outcome: &Outcome,
        cx: &mut StepContext<'_>,
    ) {
        match outcome {
            Outcome::Expired => match &key {
                AnyLease::Session(session) => self.forget_session(*session, cx),
                AnyLease::Volume(..) | AnyLease::KeyLease(_) | AnyLease::LockDelay(_) => self.forget_lease(&key),
            },
            // A tick or an `AcquireVolume` in flight moved the horizon. The lessor has not renewed
            // the lease since it proposed the end, and now proposes the end again (T5). If the same
            // entry has replaced the lease, the new lease has another incarnation, and goes on.
            //
            // Nothing is promised on a session lease, so it may go on although its end was
            // proposed. The moved horizon shows that the client is alive.
            Outcome::HorizonMoved { .. } => {
                let Some(lease) = cx.state.lease(&key).filter(|lease| lease.incarnation == incarnation) else { return };
                if let AnyLease::Session(_) = &key {
                    let term = lease.term();
                    self.leases.insert(key, incarnation, self.clock.ending_time().after(term), term);
                } else {
                    self.propose_expiry(key, incarnation, lease.horizon);
                }
            }
            // The lease has ended already, or another incarnation has taken its place.
            _ => {}
        }
    }

    /// Forgets a lease that the replicated state no longer has.
    pub(super) fn forget_lease(&mut self, key: &AnyLease) {
        self.leases.remove(key);
        if let AnyLease::Volume(session, volume) = key {
            self.object_leases.end_tracking(volume, *session);
            self.end_waits_without_lease(*session, volume);
        }
    }
}

/// The wait beyond a lease's end (T3). For a volume lease it is the greatest margin that its volume
/// has had since the grant. If the drift allowance was raised, the drift of two clocks may be more:
/// then that counts. It is the drift over the longest term that the settings have allowed since the
/// grant, because a promise of that term may still last.
///
/// A key lease has no volume with a margin. Its margin is how far two clocks can drift apart over a
/// term and a tick, plus [`KEY_MARGIN_BASE`].
pub(super) fn margin(key: &AnyLease, lease: &LeaseRecord, state: &State, drift: DriftAllowance) -> Duration {
    let tick = state.tick();
    match key {
        AnyLease::KeyLease(_) => key_lease_margin(lease.term(), tick, drift),
        AnyLease::Volume(..) => lease.margin().max(margin_of_drift(lease.longest_term(), tick, drift)),
        AnyLease::Session(_) | AnyLease::LockDelay(_) => lease.margin(),
    }
}

/// The wait beyond the end of a key lease with this term (T3). `tick` is the time between two moves
/// of the horizons.
pub fn key_lease_margin(term: Duration, tick: Duration, drift: DriftAllowance) -> Duration {
    drift.over(term.saturating_add(tick)) * 2 + KEY_MARGIN_BASE
}

/// The part of a key lease's margin that is added to the drift of two clocks.
const KEY_MARGIN_BASE: Duration = Duration::from_millis(1);
