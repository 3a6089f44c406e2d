//! Drift supervision: compares two clocks by the time that each counted between two exchanges.
//!
//! Every bound on stale reads assumes that clocks stay within their [`DriftAllowance`]. This module
//! detects clocks that do not. An exchange is a request with its answer. Between two exchanges:
//!
//! - the leader counts from its handling of the first request to its handling of the second;
//! - the client counts at least from the arrival of the first answer to the second sending;
//! - the client counts at most from the first sending to the arrival of the second answer.
//!
//! Delays only widen the client's bounds. So a slow network, a stopped process or a suspended
//! machine never raises an alarm: the clock counts all of that time (T1).
//!
//! Only durations and the numbers of exchanges cross the wire (T1). The client compares the clocks,
//! because only the client knows both bounds. The comparison does not show which clock is wrong.
//!
//! It would be simpler to compare the time between two sendings or two arrivals. But that mistakes
//! a slow packet for a slow clock. The bounds above are those of Marzullo and Owicki (1983) and of
//! NTP, for rates instead of offsets.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    reached::{Bound, reached},
    time::{DriftAllowance, Instant},
};

/// Differences up to this are always allowed. They come from rounding, and from readings on
/// different processors.
pub const GRAIN: Duration = Duration::from_millis(1);

/// The number of earlier exchanges with which a client compares each exchange. Each is several
/// times as old as the next newer one. So the oldest reveals a small drift, and the newest a sudden
/// one.
pub const REFERENCES_MAX: usize = 4;

/// A client forgets older references, because the clock's rate may have changed since.
pub const REFERENCE_AGE_MAX: Duration = Duration::from_secs(300);

/// After an excess, one window of this length must show both clocks within their allowances. Then
/// the client uses cached copies again.
pub const RESUME_WINDOW: Duration = Duration::from_secs(10);

/// A client's question about the leader's clock, in
/// [`Body::Heartbeat`](crate::message::Body::Heartbeat) or in the header of another request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockQuestion {
    /// The number of this exchange. Numbers rise within a session. The leader records when it
    /// handled the exchange, unless the number is 0.
    pub mark: u64,
    /// The numbers of the earlier exchanges that the client compares with; 0 in unused elements.
    /// The leader forgets all others.
    pub references: [u64; REFERENCES_MAX],
    /// The excess that the client has found, while it serves nothing from memory.
    pub excess: Option<Excess>,
}

/// The leader's answer to a [`ClockQuestion`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockAnswer {
    /// The time since the leader handled each of the named exchanges, as far as it knows them.
    pub since: Vec<SinceExchange>,
    /// The allowance of the leader's clock.
    pub allowance: DriftAllowance,
    /// How long the leader delayed the answer after it handled the exchange.
    pub delay: Duration,
}

/// The time since the leader handled an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SinceExchange {
    /// The number of the exchange.
    pub mark: u64,
    /// The time since the leader handled it, by the leader's clock.
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
        write!(f, "client counted {client:?}, server counted {server:?}: {ppm:+} ppm, the limit is ±{allowed_ppm}")
    }
}

/// The times that two clocks counted between two exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ElapsedPair {
    /// The client's lower bound: from the first answer's arrival to the second request's sending.
    pub client_least: Duration,
    /// The client's upper bound: from the first request's sending to the second answer's arrival.
    pub client_most: Duration,
    /// The server's time: from its handling of the first request to its handling of the second.
    pub server: Duration,
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriftVerdict {
    /// The clocks differ by no more than their allowances. The client's bounds are narrow enough to
    /// show that.
    Within,
    /// Undecided: the round trips were too slow, compared with the time between them.
    Unclear,
    /// The clocks certainly differ by more than their allowances.
    Beyond(Excess),
}

impl ElapsedPair {
    /// Compares the client's clock and the server's, with the allowance of each.
    ///
    /// [`DriftVerdict::Beyond`] is certain: with any delays, two clocks within their allowances
    /// never get it. Let `D` be the true time between the two moments at which the leader handled
    /// the requests. Then `server <= D (1 + server allowance)` and
    /// `D (1 - client allowance) <= client_most`. For `client_least` the signs are opposite.
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

/// The most that a clock with this allowance shows after a true time of a million.
fn fast(allowance: DriftAllowance) -> u128 {
    MILLION + u128::from(allowance.ppm())
}

fn micros(span: Duration) -> u128 {
    span.as_micros()
}

fn signed(span: Duration) -> i128 {
    i128::try_from(span.as_micros()).unwrap_or(i128::MAX)
}

/// An exchange with which the client compares later exchanges.
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
    /// The numbers of the references, for a question. Unused elements are 0.
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

    /// Remembers an exchange. If there are too many references, it drops one: that whose age is
    /// nearest to the age of the next older reference, as a ratio.
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
            // The oldest reference reveals the smallest drift, and the newest is needed to become
            // an older one. So only the others may be dropped.
            let interior = 1..self.entries.len() - 1;
            let closeness = |at: &usize| age(&self.entries[*at]) * 1_000 / age(&self.entries[*at - 1]);
            if let Some(at) = interior.max_by_key(closeness) {
                self.entries.remove(at);
            }
        }
    }
}

/// The leader's record of one session's exchanges: those that the client compares with, the last
/// exchange, and a new one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Marks {
    noted: Vec<(u64, Instant)>,
}

impl Marks {
    /// Records when the leader handled an exchange. It ignores an exchange that arrives again, or
    /// after a later one.
    pub fn note(&mut self, mark: u64, now: Instant) {
        if self.noted.last().map_or(0, |(last, _)| *last) < mark {
            self.noted.push((mark, now));
        }
        if self.noted.len() > REFERENCES_MAX + 2 {
            self.noted.remove(0);
        }
    }

    /// Answers a question, and records its exchange.
    pub fn answer(&mut self, question: &ClockQuestion, allowance: DriftAllowance, now: Instant) -> ClockAnswer {
        let last = self.noted.last().map_or(0, |(last, _)| *last);
        // Retain the last exchange, so that `note` recognizes an older question that arrives late.
        self.noted.retain(|(mark, _)| question.references.contains(mark) || *mark == last);
        let asked = self.noted.iter().filter(|(mark, _)| question.references.contains(mark));
        let since = asked.map(|(mark, at)| SinceExchange { mark: *mark, span: now.since(*at) }).collect();
        self.note(question.mark, now);
        ClockAnswer { since, allowance, delay: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests;
