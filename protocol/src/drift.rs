//! Drift supervision: whether two clocks run within their allowances, by what each counted between
//! two exchanges.
//!
//! Every bound on stale reads assumes that clocks keep to their [`DriftAllowance`]. This module
//! notices when they do not. A client and a leader take part in two exchanges, a request with its
//! answer each. The leader counts from dealing with the first to dealing with the second. The
//! client knows two bounds for the same span: it is no shorter than from the first answer's arrival
//! to the second request's sending, and no longer than from the first sending to the second
//! arrival. Delays only widen the client's bounds, so a slow network, a stopped process or a
//! suspended machine never raises an alarm: the clock counts all of that time (T1).
//!
//! Only durations and the numbers of exchanges cross the wire (T1). The client judges, because it
//! alone knows both bounds. The comparison shows that one of the two clocks is wrong, not which
//! one.
//!
//! The difficulty: the obvious comparison, of the spans between two sendings and two arrivals,
//! takes a slow packet for a slow clock. The bounds above are those of Marzullo and Owicki (1983)
//! and of NTP, for rates instead of offsets.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    reached::{Bound, reached},
    time::{DriftAllowance, Instant},
};

/// Differences up to this long are never held against a clock: readings on different processors,
/// and their rounding.
pub const GRAIN: Duration = Duration::from_millis(1);

/// The earlier exchanges that a client compares each exchange with. Their ages differ by powers, so
/// that a small drift shows over the oldest and a sudden one over the youngest.
pub const REFERENCES_MAX: usize = 4;

/// A client forgets a reference of this age: what the clock did that long ago says little about
/// now.
pub const REFERENCE_AGE_MAX: Duration = Duration::from_secs(300);

/// After an excess, the clock has to be within the allowance over one window of this length before
/// copies are used again.
pub const RESUME_WINDOW: Duration = Duration::from_secs(10);

/// What a client wants to know about the leader's clock. Rides in
/// [`Body::Heartbeat`](crate::message::Body::Heartbeat).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockQuestion {
    /// The number of this exchange; numbers rise within a session. The leader notes when it dealt
    /// with it. 0: not to be noted.
    pub mark: u64,
    /// The earlier exchanges that the client counts from; 0 for none. The leader forgets all
    /// others.
    pub references: [u64; REFERENCES_MAX],
    /// The excess that the client has found, while it serves nothing from memory.
    pub excess: Option<Excess>,
}

/// What the leader counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockAnswer {
    /// How long ago the leader dealt with each exchange that it was asked about and knows.
    pub since: Vec<SinceExchange>,
    /// What the leader's clock is allowed.
    pub allowance: DriftAllowance,
    /// How long the leader kept the answer back after it had dealt with the exchange.
    pub delay: Duration,
}

/// How long ago the leader dealt with an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SinceExchange {
    /// The exchange.
    pub mark: u64,
    /// How long ago, by the leader's clock.
    pub span: Duration,
}

/// Two clocks that together ran further apart than they are allowed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Excess {
    /// What the client counted: the middle of its bounds.
    pub client: Duration,
    /// What the server counted.
    pub server: Duration,
    /// What both clocks may differ by together, in parts per million.
    pub allowed_ppm: u32,
}

impl Excess {
    /// By how much the client's clock is fast compared with the server's, in parts per million;
    /// negative if it is slow.
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

/// What two clocks counted between two exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ElapsedPair {
    /// The client, at least: from the first answer's arrival to the second request's sending.
    pub client_least: Duration,
    /// The client, at most: from the first request's sending to the second answer's arrival.
    pub client_most: Duration,
    /// The server: from dealing with the first request to dealing with the second.
    pub server: Duration,
}

/// What a comparison shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriftVerdict {
    /// The clocks differ by no more than they are allowed to, known to within as much again.
    Within,
    /// The round trips were too slow, compared with the time between them, to tell.
    Unclear,
    /// The clocks differ by more than they are allowed to, whatever the delays were.
    Beyond(Excess),
}

impl ElapsedPair {
    /// Judges the client's clock and the server's by what each of them is allowed.
    ///
    /// [`DriftVerdict::Beyond`] is certain: two clocks within their allowances never get it,
    /// whatever the delays. Let `D` be the true time between the leader's dealings. Then
    /// `server <= D (1 + server allowance)` and `D (1 - client allowance) <= client_most`; and the
    /// other way round for `client_least`.
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

/// The least that a clock with this allowance shows after a million.
fn slow(allowance: DriftAllowance) -> u128 {
    MILLION.saturating_sub(u128::from(allowance.ppm()))
}

/// The most.
fn fast(allowance: DriftAllowance) -> u128 {
    MILLION + u128::from(allowance.ppm())
}

fn micros(span: Duration) -> u128 {
    span.as_micros()
}

fn signed(span: Duration) -> i128 {
    i128::try_from(span.as_micros()).unwrap_or(i128::MAX)
}

/// An exchange that later ones are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Reference {
    mark: u64,
    sent: Instant,
    answered: Instant,
}

/// The exchanges with one leader that a client compares later ones with, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct References {
    entries: Vec<Reference>,
}

impl References {
    /// The marks to ask about.
    pub fn marks(&self) -> [u64; REFERENCES_MAX] {
        let mut marks = [0; REFERENCES_MAX];
        for (mark, reference) in marks.iter_mut().zip(&self.entries) {
            *mark = reference.mark;
        }
        marks
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// What was counted from each reference that the leader knows to an exchange that was sent and
    /// answered at these times, from the oldest on. References that the leader does not know are
    /// forgotten.
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

    /// Keeps an exchange. If there are too many, the one goes that lies closest to its elder,
    /// compared with its age.
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
            // The oldest sees the smallest drift, and the newest is the only one that its
            // successors can grow old from.
            let interior = 1..self.entries.len() - 1;
            let closeness = |at: &usize| age(&self.entries[*at]) * 1_000 / age(&self.entries[*at - 1]);
            if let Some(at) = interior.max_by_key(closeness) {
                self.entries.remove(at);
            }
        }
    }
}

/// What a leader remembers of one session's exchanges: those that the client counts from, the last,
/// and a new one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Marks {
    noted: Vec<(u64, Instant)>,
}

impl Marks {
    /// Notes when an exchange was dealt with. One that comes again, or late, was or would be noted
    /// too late to count from.
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
        // The last is kept, so that an older question that comes late finds that it is late.
        self.noted.retain(|(mark, _)| question.references.contains(mark) || *mark == last);
        let asked = self.noted.iter().filter(|(mark, _)| question.references.contains(mark));
        let since = asked.map(|(mark, at)| SinceExchange { mark: *mark, span: now.since(*at) }).collect();
        self.note(question.mark, now);
        ClockAnswer { since, allowance, delay: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests;
