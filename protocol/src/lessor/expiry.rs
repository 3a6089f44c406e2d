//! What time brings about: leases that end (T5), and horizons that move (T6).

use std::time::Duration;

use crate::{
    command::{Command, LeaseKey},
    id::SessionId,
    planted::Bug,
    state::State,
};

use super::{Lessor, Reason, SWEEP_MAX, StepContext, TICK_BYTES_MAX};

impl Lessor {
    pub(super) fn look_at_the_clock(&mut self, turn: &StepContext<'_>) {
        if self.epoch.is_none() {
            return;
        }
        self.propose_expiries(turn);
        self.propose_tick(turn);
    }

    /// Proposes the end of each lease whose end and margin have passed by the clock that is never fast (T3, T5).
    /// A session is forgotten only after its volume leases are.
    fn propose_expiries(&mut self, turn: &StepContext<'_>) {
        let (state, ending) = (turn.state, self.clock.ending());
        let unclamped = self.clock.promising(turn.now).filter(|_| self.planted(Bug::PauseEndsLeases));
        let now = unclamped.unwrap_or(ending);
        let has_margin = !self.planted(Bug::LeaseWithoutMargin);
        let margin = |key: &LeaseKey| if has_margin { state.margin(key) } else { Duration::ZERO };
        let may_end = |key: &LeaseKey| match key {
            LeaseKey::Session(session) => state.leases_of(*session).all(|(key, _)| matches!(key, LeaseKey::Session(_))),
            LeaseKey::Volume(..) => true,
        };
        while let Some((lease, incarnation)) = self.ends.next_over(now, margin, may_end, state.tick()) {
            let Some(horizon) = state.lease(&lease).map(|lease| lease.horizon) else { continue };
            if self.planted(Bug::EndedBeforeApplied) {
                self.end_waits(lease.session(), |_| true);
            }
            let reason = Reason::Expire(lease.clone(), incarnation);
            self.propose(Command::Expire { lease, incarnation, horizon }, reason);
        }
    }

    /// Moves the horizons of what was renewed, and carries the cluster's time into the log (T6). One tick at a time.
    fn propose_tick(&mut self, turn: &StepContext<'_>) {
        let now = self.clock.ending();
        let is_due = now.since(self.last_tick) >= turn.state.tick();
        if is_due && !self.is_ticking && !self.ends.is_empty() {
            self.last_tick = now;
            self.is_ticking = true;
            let renewals = self.ends.take_renewals(TICK_BYTES_MAX);
            self.propose(Command::Tick { renewals }, Reason::Tick);
            self.holdings.sweep(now, SWEEP_MAX, turn.state);
        }
    }

    /// The session is remembered for a while longer. No client is promised anything on the strength of it, so its horizon
    /// need not follow each request: it moves when a quarter of the term is used up.
    pub(super) fn sign_of_life(&mut self, session: SessionId, turn: &StepContext<'_>) {
        let key = LeaseKey::Session(session);
        let now = self.clock.ending();
        let left = turn.state.lease(&key).map_or(State::SESSION_TERM, |lease| lease.horizon.since(now));
        if left < State::SESSION_TERM / 4 * 3 {
            self.ends.renew(&key, now, State::SESSION_TERM);
        }
    }
}
