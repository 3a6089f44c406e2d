//! Drift supervision in the client: each heartbeat compares this clock with the leader's
//! ([`crate::drift`]).
//!
//! Beyond the allowance, this clock cannot guarantee S1. Then the client uses no copies, as if it
//! had no volume lease, and each read goes to the server. Recalls, renewals and writes continue.
//! The holder uses copies again when both clocks were within their allowances for a whole
//! [`RESUME_WINDOW`] after the last excess.
//!
//! Each heartbeat compares clocks. A client with a volume lease sends extra heartbeats for that:
//! soon after it registers, and after 0.7 of a term without a comparison. A client without a lease
//! compares nothing. When it gets one, it compares after 0.7 of the first promise.
//!
//! A client that does not renew ahead (`RenewalMode`) often asks for a new lease. Each such request
//! compares clocks too, before the client uses a copy under the lease. So the client sends a
//! heartbeat for a comparison only if reads have renewed the lease, and after 1.2 terms without a
//! comparison (docs/adr/0021).

use std::time::Duration;

use super::{Holder, HolderEffect, RenewalMode, SendId, in_flight::Purpose, session::LinkState};
use crate::{
    drift::{ClockAnswer, ClockQuestion, DriftVerdict, ElapsedPair, Excess, RESUME_WINDOW, References},
    path::NodePath,
    time::Instant,
};

/// The time from registering to the first comparison, and from there to the second, for a client
/// with a volume lease. They detect a grossly wrong clock before the client's leases end.
const EARLY_DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// The shortest interval between extra comparisons, even if a server names tiny terms.
const COMPARISON_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The client's comparison of its clock with the leader's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct DriftSupervision {
    references: References,
    excess: Option<Excess>,
    /// When to compare, if no request does so before.
    due: Option<Instant>,
    /// Heartbeats since registering, counted up to the length of `EARLY_DELAYS`.
    early_count: usize,
}

impl DriftSupervision {
    /// Forgets earlier exchanges: a new leader has another clock, and does not know them.
    pub(super) fn begin_epoch(&mut self) {
        self.references.clear();
    }
}

impl Holder {
    /// The spans that both clocks counted, while they are beyond their allowances. Meanwhile the
    /// client serves nothing from memory.
    pub fn clock_excess(&self) -> Option<Excess> {
        self.drift.excess
    }

    pub(super) fn is_clock_beyond(&self) -> bool {
        self.drift.excess.is_some()
    }

    /// Handles the answer to a registration. It was the first exchange with this leader.
    pub(super) fn clocks_registered(&mut self, send_id: SendId, sent: Instant, now: Instant) {
        self.drift.references.remember(send_id.0, sent, now);
        self.drift.early_count = 0;
        self.drift.due = Some(now.after(self.comparison_pace()));
        if self.is_clock_beyond() {
            // This leader may not know of the excess.
            self.send_heartbeat(now);
        }
    }

    /// The comparison of clocks that a heartbeat requests.
    pub(super) fn clock_question(&mut self, now: Instant) -> ClockQuestion {
        self.drift.early_count = (self.drift.early_count + 1).min(EARLY_DELAYS.len());
        self.drift.due = Some(now.after(self.comparison_pace()));
        self.question()
    }

    /// The comparison of clocks that a request brings along: a request for a volume lease, if the
    /// client does not renew ahead.
    pub(super) fn question_along(&self, purpose: &Purpose) -> Option<Box<ClockQuestion>> {
        let is_wanted = self.compares_with_leases() && matches!(purpose, Purpose::Acquire(_));
        is_wanted.then(|| Box::new(self.question()))
    }

    fn question(&self) -> ClockQuestion {
        let (references, excess) = (self.drift.references.marks(), self.drift.excess);
        ClockQuestion { mark: self.in_flight.next().0, references, excess }
    }

    /// Handles the answer to [`Self::question_along`]. The next heartbeat for a comparison
    /// comes later. But those soon after the registration remain, because the span of this
    /// comparison may be too short to find anything.
    pub(super) fn compared_along(&mut self, send_id: SendId, sent: Instant, answer: &ClockAnswer, now: Instant) {
        self.clocks_compared(send_id, sent, answer, now);
        if self.drift.early_count == EARLY_DELAYS.len() {
            self.drift.due = self.drift.due.max(Some(sent.after(self.comparison_pace())));
        }
    }

    /// Whether requests for volume leases compare clocks.
    fn compares_with_leases(&self) -> bool {
        self.config.renewal != RenewalMode::Ahead
    }

    /// The part of a span after which clocks are compared again, in tenths.
    fn tenths(&self) -> u32 {
        if self.compares_with_leases() { 12 } else { 7 }
    }

    /// Handles a new lease that was promised for `span`. If the next comparison would come after
    /// the end of the lease, or is overdue because there was no lease, it comes after
    /// [`Self::tenths`] of the span.
    pub(super) fn schedule_comparison(&mut self, sent: Instant, span: Duration, is_only_lease: bool, now: Instant) {
        let usual = sent.after(self.comparison_pace().min((span / 10).saturating_mul(self.tenths())));
        let is_changed = |due: Instant| due > sent.after(span) || (is_only_lease && due <= now);
        self.drift.due = self.drift.due.map(|due| if is_changed(due) { usual } else { due });
    }

    /// When to compare clocks, if no heartbeat does so before. `None` if no lease lasts until then.
    pub(super) fn clocks_deadline(&self) -> Option<Instant> {
        let due = self.drift.due.filter(|_| self.link == LinkState::Registered)?;
        self.volumes.are_live_at(due).then_some(due)
    }

    #[cfg(test)]
    pub(super) fn drift_due(&self) -> Option<Instant> {
        self.drift.due
    }

    /// Skips the early comparisons.
    #[cfg(test)]
    pub(super) fn settle_clocks(&mut self) {
        self.drift.due = None;
        self.drift.early_count = EARLY_DELAYS.len();
    }

    /// How long after one comparison the next is due. It is longer than the usual interval of
    /// heartbeats that renew leases, because those compare clocks anyway.
    fn comparison_pace(&self) -> Duration {
        let term = self.volumes.shortest_term().unwrap_or(Duration::MAX);
        let pace = (term / 10).saturating_mul(self.tenths()).max(COMPARISON_INTERVAL_MIN);
        EARLY_DELAYS.get(self.drift.early_count).map_or(pace, |early| pace.min(*early))
    }

    /// Handles the leader's answer to a question about clocks.
    pub(super) fn clocks_compared(&mut self, send_id: SendId, sent: Instant, answer: &ClockAnswer, now: Instant) {
        // `handled` is the latest time at which the leader can have handled the exchange, because
        // it delayed the answer for at least `waited`.
        let waited = self.config.drift_allowance.shorten(answer.allowance.shorten(answer.delay));
        let handled = now.before(waited).max(sent);
        let pairs = self.drift.references.elapsed_pairs(answer, sent, handled);
        let judge = |pair: &ElapsedPair| pair.judge(self.config.drift_allowance, answer.allowance);
        let excess = pairs.iter().find_map(|pair| match judge(pair) {
            DriftVerdict::Beyond(excess) => Some(excess),
            DriftVerdict::Within | DriftVerdict::Unclear => None,
        });
        let is_window = |pair: &&ElapsedPair| pair.client_least >= RESUME_WINDOW;
        let is_within = pairs.iter().filter(is_window).any(|pair| judge(pair) == DriftVerdict::Within);
        match excess {
            Some(excess) => {
                // The next window without excess begins with this exchange.
                self.drift.references.clear();
                self.drift.references.remember(send_id.0, sent, handled);
                self.set_clock_excess(Some(excess), now);
            }
            None => {
                self.drift.references.remember(send_id.0, sent, handled);
                if is_within {
                    self.set_clock_excess(None, now);
                }
            }
        }
    }

    /// Stops or resumes the use of all copies. Notifies the application and the leader of a change.
    fn set_clock_excess(&mut self, excess: Option<Excess>, now: Instant) {
        let is_change = excess.is_some() != self.is_clock_beyond();
        self.drift.excess = excess;
        if !is_change {
            return;
        }
        // Notify the cache first, because the application may act on its notification.
        let tops: Vec<NodePath> = self.volumes.iter().map(|(top, _)| top.clone()).collect();
        tops.iter().for_each(|top| self.notify_validity(top));
        self.effects.push(HolderEffect::ClockExcessChanged { excess });
        if self.link == LinkState::Registered {
            self.send_heartbeat(now);
        }
    }
}
