//! Drift supervision in the client: each heartbeat compares this clock with the leader's
//! ([`crate::drift`]).
//!
//! Beyond the allowance, this clock cannot guarantee S1. Then no volume's copies may be used, as
//! without a lease, and each read goes to the server. Recalls, renewals and writes continue. The
//! holder uses copies again when both clocks were within their allowances for a whole
//! [`RESUME_WINDOW`] after the last excess.
//!
//! Each heartbeat that renews compares clocks. A client with a volume lease also compares soon
//! after it registers, and when no heartbeat was due for most of a term.

use std::time::Duration;

use super::{Holder, HolderEffect, SendId, session::LinkState};
use crate::{
    drift::{ClockAnswer, ClockQuestion, DriftVerdict, ElapsedPair, Excess, RESUME_WINDOW, References},
    path::NodePath,
    time::Instant,
};

/// For a client with a lease: how long after registering the first comparison comes, and how long
/// after that the second. They find a grossly wrong clock before the leases that it misjudges have
/// ended.
const EARLY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// The shortest interval between extra comparisons, whatever terms a server names.
const APART_MIN: Duration = Duration::from_millis(100);

/// What the client knows about its clock and the leader's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct DriftSupervision {
    references: References,
    beyond: Option<Excess>,
    /// When to compare, if no heartbeat does so before.
    due: Option<Instant>,
    /// Heartbeats since registering, counted up to the length of `EARLY`.
    early: usize,
}

impl DriftSupervision {
    /// Another leader's clock counts now, and that leader knows no earlier exchange.
    pub(super) fn begin_epoch(&mut self) {
        self.references.clear();
    }
}

impl Holder {
    /// What this clock and the leader's counted, while they are beyond their allowances. Then
    /// nothing is served from memory.
    pub fn clock_excess(&self) -> Option<Excess> {
        self.drift.beyond
    }

    pub(super) fn is_clock_beyond(&self) -> bool {
        self.drift.beyond.is_some()
    }

    /// A leader has answered the registration, and has noted when.
    pub(super) fn clocks_registered(&mut self, ticket: SendId, sent: Instant, now: Instant) {
        self.drift.references.remember(ticket.0, sent, now);
        self.drift.early = 0;
        self.drift.due = Some(now.after(self.comparison_pace()));
        if self.is_clock_beyond() {
            // This leader may not know of the excess.
            self.send_heartbeat(now);
        }
    }

    /// The comparison that a heartbeat asks for.
    pub(super) fn clock_question(&mut self, now: Instant) -> ClockQuestion {
        self.drift.early = (self.drift.early + 1).min(EARLY.len());
        self.drift.due = Some(now.after(self.comparison_pace()));
        let (references, excess) = (self.drift.references.marks(), self.drift.beyond);
        ClockQuestion { mark: self.in_flight.next().0, references, excess }
    }

    /// When to compare clocks, if no heartbeat does so before. `None` if no lease holds then.
    pub(super) fn clocks_deadline(&self) -> Option<Instant> {
        let due = self.drift.due.filter(|_| self.link == LinkState::Registered)?;
        self.volumes.are_live_at(due).then_some(due)
    }

    /// Skips the early comparisons.
    #[cfg(test)]
    pub(super) fn settle_clocks(&mut self) {
        self.drift.due = None;
        self.drift.early = EARLY.len();
    }

    /// How long after one comparison the next is due. Longer than the interval of the heartbeats
    /// that renew an idle client's leases, because those compare clocks anyway.
    fn comparison_pace(&self) -> Duration {
        let term = self.volumes.shortest_term().unwrap_or(Duration::MAX);
        let pace = (term / 10).saturating_mul(7).max(APART_MIN);
        EARLY.get(self.drift.early).map_or(pace, |early| pace.min(*early))
    }

    /// The leader has answered a heartbeat.
    pub(super) fn clocks_compared(&mut self, ticket: SendId, sent: Instant, answer: &ClockAnswer, now: Instant) {
        // The latest time at which the leader dealt with the exchange: it delayed the answer for at
        // least `waited`.
        let waited = self.config.drift_allowance.shorten(answer.allowance.shorten(answer.delay));
        let dealt = now.before(waited).max(sent);
        let counted = self.drift.references.elapsed_pairs(answer, sent, dealt);
        let judge = |counted: &ElapsedPair| counted.judge(self.config.drift_allowance, answer.allowance);
        let excess = counted.iter().find_map(|counted| match judge(counted) {
            DriftVerdict::Beyond(excess) => Some(excess),
            DriftVerdict::Within | DriftVerdict::Unclear => None,
        });
        let is_window = |counted: &&ElapsedPair| counted.client_least >= RESUME_WINDOW;
        let is_within = counted.iter().filter(is_window).any(|counted| judge(counted) == DriftVerdict::Within);
        match excess {
            Some(excess) => {
                // The next window without excess begins with this exchange.
                self.drift.references.clear();
                self.drift.references.remember(ticket.0, sent, dealt);
                self.set_clock_excess(Some(excess), now);
            }
            None => {
                self.drift.references.remember(ticket.0, sent, dealt);
                if is_within {
                    self.set_clock_excess(None, now);
                }
            }
        }
    }

    /// Stops or resumes the use of all copies. Notifies the application and the leader of a change.
    fn set_clock_excess(&mut self, excess: Option<Excess>, now: Instant) {
        let is_change = excess.is_some() != self.is_clock_beyond();
        self.drift.beyond = excess;
        if !is_change {
            return;
        }
        // The cache first, because the application may act on the notification.
        let tops: Vec<NodePath> = self.volumes.iter().map(|(top, _)| top.clone()).collect();
        tops.iter().for_each(|top| self.notify_validity(top));
        self.effects.push(HolderEffect::ClockExcessChanged { excess });
        if self.link == LinkState::Registered {
            self.send_heartbeat(now);
        }
    }
}
