//! Drift supervision, the client's half: each keep-alive compares this clock with the leader's
//! ([`crate::drift`]).
//!
//! Beyond the allowance, S1 cannot be kept by this clock. Then no volume's copies may be used, as
//! if no lease were held: each read goes to the server. Recalls, renewals and writes go on. Copies
//! are used again when both clocks were within their allowances over one whole [`RESUME_WINDOW`]
//! after the last excess.
//!
//! When clocks are compared: with each keep-alive that is sent to renew. A client that has a volume
//! lease also compares soon after it registers, and when nothing was to be renewed by a keep-alive
//! for most of a term.

use std::time::Duration;

use super::{Holder, HolderEffect, SendId, session::LinkState};
use crate::{
    drift::{ClockAnswer, ClockQuestion, DriftVerdict, ElapsedPair, Excess, RESUME_WINDOW, References},
    path::NodePath,
    time::Instant,
};

/// How long after registering, and then after that, a client compares clocks that has something to
/// serve: a grossly wrong clock is found before leases that it misjudges have ended.
const EARLY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// Comparisons for their own sake are this far apart at least, whatever a server says that its
/// terms are.
const APART_MIN: Duration = Duration::from_millis(100);

/// What is known about this clock and the leader's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct DriftSupervision {
    references: References,
    beyond: Option<Excess>,
    /// When to compare, if no keep-alive has done so by then.
    due: Option<Instant>,
    /// How many keep-alives were sent since registering; counted up to the early ones.
    early: usize,
}

impl DriftSupervision {
    /// Another leader's clock counts from now on, and it knows no earlier exchange.
    pub(super) fn begin_epoch(&mut self) {
        self.references.clear();
    }
}

impl Holder {
    /// What this client's clock and the leader's counted, while they are beyond their allowances:
    /// nothing is served from memory then.
    pub fn clock_excess(&self) -> Option<Excess> {
        self.drift.beyond
    }

    pub(super) fn is_clock_beyond(&self) -> bool {
        self.drift.beyond.is_some()
    }

    /// A leader has answered the registration, and noted when.
    pub(super) fn clocks_registered(&mut self, ticket: SendId, sent: Instant, now: Instant) {
        self.drift.references.remember(ticket.0, sent, now);
        self.drift.early = 0;
        self.drift.due = Some(now.after(self.comparison_pace()));
        if self.is_clock_beyond() {
            // This leader may not know.
            self.send_heartbeat(now);
        }
    }

    /// What a keep-alive that is being sent asks.
    pub(super) fn clock_question(&mut self, now: Instant) -> ClockQuestion {
        self.drift.early = (self.drift.early + 1).min(EARLY.len());
        self.drift.due = Some(now.after(self.comparison_pace()));
        let (references, excess) = (self.drift.references.marks(), self.drift.beyond);
        ClockQuestion { mark: self.in_flight.next().0, references, excess }
    }

    /// When to compare clocks, if no keep-alive does so before. None without a lease that still
    /// holds then.
    pub(super) fn clocks_deadline(&self) -> Option<Instant> {
        let due = self.drift.due.filter(|_| self.link == LinkState::Registered)?;
        self.volumes.are_live_at(due).then_some(due)
    }

    /// As if the comparisons soon after registering had been made long ago.
    #[cfg(test)]
    pub(super) fn settle_clocks(&mut self) {
        self.drift.due = None;
        self.drift.early = EARLY.len();
    }

    /// How long after one comparison the next is due. Longer than keep-alives are apart that renew
    /// an idle client's leases: those compare without more messages.
    fn comparison_pace(&self) -> Duration {
        let term = self.volumes.shortest_term().unwrap_or(Duration::MAX);
        let pace = (term / 10).saturating_mul(7).max(APART_MIN);
        EARLY.get(self.drift.early).map_or(pace, |early| pace.min(*early))
    }

    /// The leader has answered a keep-alive.
    pub(super) fn clocks_compared(&mut self, ticket: SendId, sent: Instant, answer: &ClockAnswer, now: Instant) {
        // When the leader had dealt with the exchange, at the latest: it kept the answer back for
        // so long at least.
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
                // The window over which they have to be within again begins with this exchange.
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

    /// Stops or resumes the use of all copies, and tells the application and the leader, if that is
    /// a change.
    fn set_clock_excess(&mut self, excess: Option<Excess>, now: Instant) {
        let is_change = excess.is_some() != self.is_clock_beyond();
        self.drift.beyond = excess;
        if !is_change {
            return;
        }
        // The cache first: the application may act on what it is told.
        let tops: Vec<NodePath> = self.volumes.iter().map(|(top, _)| top.clone()).collect();
        tops.iter().for_each(|top| self.notify_validity(top));
        self.effects.push(HolderEffect::ClockExcessChanged { excess });
        if self.link == LinkState::Registered {
            self.send_heartbeat(now);
        }
    }
}
