//! Drift supervision: compares two clocks by the time that each counted between two exchanges.
//!
//! Every bound on stale reads assumes that clocks keep to their [`DriftAllowance`]. This module
//! detects clocks that do not. An exchange is a request with its answer. Between two exchanges:
//!
//! - the leader counts from its dealing with the first to its dealing with the second;
//! - the client counts at least the time from the first answer's arrival to the second request's
//!   sending;
//! - the client counts at most the time from the first sending to the second answer's arrival.
//!
//! Delays only widen the client's bounds. So a slow network, a stopped process or a suspended
//! machine never raises an alarm: the clock counts all of that time (T1).
//!
//! Only durations and the numbers of exchanges cross the wire (T1). The client judges, because only
//! the client knows both bounds. The comparison does not show which of the two clocks is wrong.
//!
//! The obvious comparison fails: that of the time between two sendings or two arrivals takes a slow
//! packet for a slow clock. The bounds above are those of Marzullo and Owicki (1983) and of NTP,
//! for rates instead of offsets.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    reached::{Bound, reached},
    time::{DriftAllowance, Instant},
};

/// Differences up to this are always allowed, for rounding and for readings on different
/// processors.
pub const GRAIN: Duration = Duration::from_millis(1);

/// The number of earlier exchanges with which a client compares each exchange. Their ages differ by
/// powers. So the oldest shows a small drift, and the youngest a sudden one.
pub const REFERENCES_MAX: usize = 4;

/// A client forgets references that are older: the clock's rate so long ago says little about now.
pub const REFERENCE_AGE_MAX: Duration = Duration::from_secs(300);

/// After an excess, one window of this length must show both clocks within their allowances. Then
/// the client uses cached copies again.
pub const RESUME_WINDOW: Duration = Duration::from_secs(10);

/// A client's question about the leader's clock, in
/// [`Body::Heartbeat`](crate::message::Body::Heartbeat).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockQuestion {
    /// The number of this exchange. Numbers rise within a session. The leader notes when it dealt
    /// with the exchange, unless the number is 0.
    pub mark: u64,
    /// The earlier exchanges that the client compares with; 0 for none. The leader forgets all
    /// others.
    pub references: [u64; REFERENCES_MAX],
    /// The excess that the client has found, while it serves nothing from memory.
    pub excess: Option<Excess>,
}

/// The leader's answer to a [`ClockQuestion`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockAnswer {
    /// The time since the leader dealt with each exchange of the question that it knows.
    pub since: Vec<SinceExchange>,
    /// The allowance of the leader's clock.
    pub allowance: DriftAllowance,
    /// How long the leader delayed the answer after it had dealt with the exchange.
    pub delay: Duration,
}

/// The time since the leader dealt with an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SinceExchange {
    /// The number of the exchange.
    pub mark: u64,
    /// The time since then, by the leader's clock.
    pub span: Duration,
}

/// Two clocks whose rates differ by more than their allowances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Excess {
    /// The time that the client counted: the middle of its bounds.
    pub client: Duration,
    /// The time that the server counted.
    pub server: Duration,
    /// The most that both clocks together may differ, in parts per million.
    pub allowed_ppm: u32,
}

impl Excess {
    /// How fast the client's clock is compared with the server's, in parts per million. Negative if
    /// it is slow.
    pub fn ppm(&self) -> i64 {
        let (client, server) = (signed(self.client), signed(self.server).max(1));
        i64::try_from((client - server).saturating_mul(MILLION as i128) / server).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, server, allowed_ppm } = self;
        let ppm = self.ppm();
        write!(f, "client counted {client:?}, server counted {server:?}: {ppm:+} ppm, expected at most ±{allowed_ppm}")
    }
}

/// The times that two clocks counted between two exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ElapsedPair {
    /// The client's lower bound: from the first answer's arrival to the second request's sending.
    pub client_least: Duration,
    /// The client's upper bound: from the first request's sending to the second answer's arrival.
    pub client_most: Duration,
    /// The server's time: from its dealing with the first request to its dealing with the second.
    pub server: Duration,
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriftVerdict {
    /// The clocks differ by no more than their allowances. The client's bounds are no wider than
    /// that.
    Within,
    /// Undecided: the round trips were too slow, compared with the time between them.
    Unclear,
    /// The clocks differ by more than their allowances, whatever the delays were.
    Beyond(Excess),
}

impl ElapsedPair {
    /// Judges the client's clock and the server's by the allowance of each.
    ///
    /// [`DriftVerdict::Beyond`] is certain: two clocks within their allowances never get it,
    /// whatever the delays are. Let `D` be the true time between the leader's dealings. Then
    /// `server <= D (1 + server allowance)` and `D (1 - client allowance) <= client_most`. For
    /// `client_least` the signs are opposite.
    pub fn judge(&self, client: DriftAllowance, server: DriftAllowance) -> DriftVerdict {
        let (least, most, counted) = (micros(self.client_least), micros(self.client_most), micros(self.server));
        let grain = micros(GRAIN);
        let client_is_slow = counted.saturating_mul(slow(client)) > (most + grain).saturating_mul(fast(server));
        let client_is_fast = least.saturating_mul(slow(server)) > (counted + grain).saturating_mul(fast(client));
        let allowed_ppm = client.ppm().saturating_add(server.ppm());
        if client_is_slow || client_is_fast {
            return DriftVerdict::Beyond(Excess { client: self.middle(), server: self.server, allowed_ppm });
        }
        let allowed = (counted.saturating_mul(u128::from(allowed_ppm)) / MILLION).max(grain);
        let is_near = micros(self.middle()).abs_diff(counted) <= allowed;
        let is_sharp = most.saturating_sub(least) / 2 <= allowed;
        if is_near && is_sharp { DriftVerdict::Within } else { DriftVerdict::Unclear }
    }

    /// The middle of the client's bounds.
    fn middle(&self) -> Duration {
        self.client_least + self.client_most.saturating_sub(self.client_least) / 2
    }
}

const MILLION: u128 = 1_000_000;

/// The least that a clock with this allowance shows after a true time of a million.
fn slow(allowance: DriftAllowance) -> u128 {
    MILLION.saturating_sub(u128::from(allowance.ppm()))
}

/// The most that it shows.
fn fast(allowance: DriftAllowance) -> u128 {
    MILLION + u128::from(allowance.ppm())
}

fn micros(span: Duration) -> u128 {
    span.as_micros()
}

fn signed(span: Duration) -> i128 {
    i128::try_from(span.as_micros()).unwrap_or(i128::MAX)
}

/// An exchange with which later ones are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Reference {
    mark: u64,
    sent: Instant,
    answered: Instant,
}

/// A client's references: earlier exchanges with one leader, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct References {
    entries: Vec<Reference>,
}

impl References {
    /// The numbers of the references, for a question. Unused places are 0.
    pub fn marks(&self) -> [u64; REFERENCES_MAX] {
        let mut marks = [0; REFERENCES_MAX];
        for (mark, reference) in marks.iter_mut().zip(&self.entries) {
            *mark = reference.mark;
        }
        marks
    }

    /// Forgets all references.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// The pairs of elapsed times, one for each reference that the leader knows, the oldest first.
    /// The second exchange was sent and answered at the given times. References that the leader
    /// does not know are dropped.
    pub fn elapsed_pairs(&mut self, answer: &ClockAnswer, sent: Instant, answered: Instant) -> Vec<ElapsedPair> {
        let span_of = |mark| answer.since.iter().find(|since| since.mark == mark).map(|since| since.span);
        self.entries.retain(|reference| span_of(reference.mark).is_some());
        let counted = |reference: &Reference| {
            Some(ElapsedPair {
                client_least: sent.since(reference.answered),
                client_most: answered.since(reference.sent),
                server: span_of(reference.mark)?,
            })
        };
        self.entries.iter().filter_map(counted).collect()
    }

    /// Remembers an exchange. If there are too many, the reference whose age is nearest to that of
    /// the one before it is dropped, as a ratio.
    pub fn remember(&mut self, mark: u64, sent: Instant, answered: Instant) {
        let kept = self.entries.len();
        self.entries.retain(|reference| answered.since(reference.sent) <= REFERENCE_AGE_MAX);
        if self.entries.len() < kept {
            reached(Bound::ReferenceAge);
        }
        if self.entries.last().is_some_and(|last| last.mark >= mark) {
            return;
        }
        self.entries.push(Reference { mark, sent, answered });
        if self.entries.len() > REFERENCES_MAX {
            reached(Bound::References);
            let age = |reference: &Reference| answered.since(reference.sent).as_micros().max(1);
            // The oldest shows the smallest drift. Only the newest can become an older reference
            // later.
            let interior = 1..self.entries.len() - 1;
            let closeness = |at: &usize| age(&self.entries[*at]) * 1_000 / age(&self.entries[*at - 1]);
            if let Some(at) = interior.max_by_key(closeness) {
                self.entries.remove(at);
            }
        }
    }
}

/// The leader's record of one session's exchanges: those that the client compares with, the last
/// one, and a new one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Marks {
    noted: Vec<(u64, Instant)>,
}

impl Marks {
    /// Notes when an exchange was dealt with. Ignores one that is repeated or late: its time would
    /// be too late to count from.
    pub fn note(&mut self, mark: u64, now: Instant) {
        if self.noted.last().map_or(0, |(last, _)| *last) < mark {
            self.noted.push((mark, now));
        }
        if self.noted.len() > REFERENCES_MAX + 2 {
            self.noted.remove(0);
        }
    }

    /// Answers a question, and notes its exchange.
    pub fn answer(&mut self, question: &ClockQuestion, allowance: DriftAllowance, now: Instant) -> ClockAnswer {
        let last = self.noted.last().map_or(0, |(last, _)| *last);
        // Retains the last, so that `note` recognizes an older question that arrives late.
        self.noted.retain(|(mark, _)| question.references.contains(mark) || *mark == last);
        let asked = self.noted.iter().filter(|(mark, _)| question.references.contains(mark));
        let since = asked.map(|(mark, at)| SinceExchange { mark: *mark, span: now.since(*at) }).collect();
        self.note(question.mark, now);
        ClockAnswer { since, allowance, delay: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests;
