//! Decides when to renew a lease: when half of its term remains, so that this half is there for
//! retries. After a promise of less than a term, the renewal comes sooner.
//!
//! Volume leases and key leases share these rules. The module does not know which requests renew.

use std::time::Duration;

use crate::{
    reached::{Bound, reached},
    time::Instant,
};

/// The time between two attempts to renew is at least the term divided by this, so that no client
/// spins.
const ATTEMPTS_PER_TERM_MAX: u32 = 16;

/// How often in a term a client checks whether an idle volume is in use again.
const IDLE_CHECKS_PER_TERM: u32 = 8;

/// The shortest interval between repeated actions: a sixteenth of the shortest allowed term.
const INTERVAL_MIN: Duration = Duration::from_micros(12_500);

/// When to renew one lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Pace {
    /// The term with which the lease was last renewed.
    pub(super) term: Duration,
    /// The term in the last promise if it is shorter than `term`, else `term`. A promise that ends
    /// before the lease changes only this field, and not `term`.
    present_term: Duration,
    /// When to send a request just to renew.
    pub(super) due: Instant,
    /// A renewal was sent, and got no answer yet, or only a very short promise.
    pub(super) is_renewal_pending: bool,
}

impl Pace {
    /// The pace of a new lease. Its request was sent at `sent`.
    ///
    /// The first renewal comes up to a quarter of a term early, at a different time for each
    /// client. So clients that start together do not renew together.
    pub(super) fn new(sent: Instant, span: Duration, term: Duration, spread_permille: u16, now: Instant) -> Self {
        let mut pace = Self { term, present_term: term, due: Instant::ZERO, is_renewal_pending: false };
        let spread = (term / 4).saturating_mul(u32::from(spread_permille)) / 1000;
        pace.renewed(sent, span.saturating_sub(spread), term, now);
        pace
    }

    /// Records that a request that was sent at `sent` renewed the lease for `span`.
    pub(super) fn renewed(&mut self, sent: Instant, span: Duration, term: Duration, now: Instant) {
        // After a promise of less than half of a term, renew again soon.
        let interval = span.saturating_sub(term / 2).max(span / 8);
        // If the term has become shorter, the present `due` does not count: the longer term set it.
        let due = if term < self.term { Instant::ZERO } else { self.due };
        (self.term, self.present_term) = (term, term);
        self.due = due.max(sent.after(interval)).max(now.after(self.part(ATTEMPTS_PER_TERM_MAX)));
        // Without a quorum, the leader's promises get shorter. If the lease would end before the
        // next attempt, or soon after, the renewal counts as unanswered. So the client asks again
        // even if the volume is idle.
        self.is_renewal_pending = self.due >= sent.after(span - span / 8);
    }

    /// Records a promise that ends before the lease. The lease ends at `until`. If the term has
    /// become shorter, the next attempt comes at the latest when half of the new term remains. The
    /// new term also sets the time between further attempts. If the term has not become shorter,
    /// the time of the next attempt does not change.
    pub(super) fn note_shorter_promise(&mut self, until: Instant, term: Duration, now: Instant) {
        self.present_term = term.min(self.term);
        if self.present_term < self.term {
            let earliest = now.after(self.part(ATTEMPTS_PER_TERM_MAX));
            self.due = self.due.min(until.before(self.present_term / 2).max(earliest));
        }
    }

    /// Records that a renewal is sent for a lease that ends at `until`. Sets when to try again if
    /// no answer comes.
    pub(super) fn renewal_sent(&mut self, until: Instant, now: Instant) {
        let (wait, wait_min) = (until.since(now) / 3, self.part(ATTEMPTS_PER_TERM_MAX));
        if wait < wait_min {
            reached(Bound::AttemptsPerTerm);
        }
        let wait = wait.max(wait_min);
        self.due = self.due.max(now.after(wait));
        self.is_renewal_pending = true;
    }

    /// A lease whose holder asks for nothing after its end is tried at least once more before it.
    pub(super) fn try_before(&mut self, until: Instant, now: Instant) {
        let half = until.since(now) / 2;
        if self.due >= until && half >= INTERVAL_MIN {
            self.due = now.after(half);
        }
    }

    /// Records that the application does not use the volume: check again later.
    pub(super) fn idle(&mut self, now: Instant) {
        self.due = now.after(self.part(IDLE_CHECKS_PER_TERM));
    }

    /// The present term divided by `per_term`, but at least [`INTERVAL_MIN`].
    fn part(&self, per_term: u32) -> Duration {
        (self.present_term / per_term).max(INTERVAL_MIN)
    }

    /// From this time on, any request renews the lease too: usually a third of a term after the
    /// last renewal.
    pub(super) fn piggyback_from(&self) -> Instant {
        self.due.before(self.term / 6)
    }

    /// From this time on, the lease is renewed together with another lease that is due: usually a
    /// quarter of a term after its last renewal. So leases with equal terms come to be renewed
    /// together.
    pub(super) fn joins_from(&self) -> Instant {
        self.due.before(self.term / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_are_due_when_half_of_the_term_is_left() {
        let seconds = Duration::from_secs;
        let at = |secs| Instant::ZERO.after(seconds(secs));
        let term = seconds(16);
        let mut late = Pace::new(at(100), term, term, 0, at(100));
        let mut early = Pace::new(at(100), term, term, 1000, at(100));
        assert_eq!((early.due, late.due), (at(104), at(108)), "the first renewal is spread over a quarter of the term");
        late.renewed(at(108), term, term, at(108));
        early.renewed(at(104), term, term, at(104));
        assert_eq!((early.due, late.due), (at(112), at(116)), "later renewals are due when half of the term remains");
        let short = Pace::new(at(100), seconds(11), term, 0, at(100));
        assert_eq!(short.due, at(103), "a short promise is renewed sooner");
        let empty = Pace::new(at(100), Duration::ZERO, term, 0, at(100));
        assert_eq!(empty.due, at(101), "after an empty promise, the next request waits");
    }

    #[test]
    fn extreme_terms_neither_panic_nor_spin() {
        let now = Instant::ZERO.after(Duration::from_secs(100));
        let terms = [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(u64::MAX), Duration::MAX];
        for (span, term) in terms.into_iter().flat_map(|span| terms.map(|term| (span, term))) {
            let mut pace = Pace::new(now, span, term, 1000, now);
            assert!(pace.due > now, "{span:?} of {term:?}");
            pace.due = now;
            pace.renewal_sent(now, now);
            assert!(pace.due > now, "{span:?} of {term:?}");
            pace.idle(now);
            assert!(pace.due > now, "{span:?} of {term:?}");
        }
    }

    #[test]
    fn shortened_term_is_tried_before_the_lease_ends() {
        let seconds = Duration::from_secs;
        let at = |secs| Instant::ZERO.after(seconds(secs));
        let (old, new) = (seconds(3600), seconds(10));
        for asked in [1900, 3500, 3595] {
            let mut pace = Pace::new(at(0), old, old, 0, at(0));
            let (mut now, mut until, mut attempts) = (at(asked), at(3600), 0);
            while now < at(3700) {
                pace.renewal_sent(until, now);
                attempts += 1;
                // Every third attempt is answered.
                let promised = now.after(new);
                match attempts % 3 {
                    1 if promised < until => pace.note_shorter_promise(until, new, now),
                    1 => {
                        until = promised;
                        pace.renewed(now, new, new, now);
                    }
                    _ => {}
                }
                assert!(pace.due < until, "asked at {asked} s: the lease ends at {until} before {}", pace.due);
                now = pace.due;
            }
            assert!(attempts < 200, "{attempts} attempts");
        }
    }

    #[test]
    fn unanswered_renewal_is_repeated_before_the_lease_ends() {
        let seconds = Duration::from_secs;
        let at = |secs| Instant::ZERO.after(seconds(secs));
        let mut pace = Pace::new(at(100), seconds(16), seconds(16), 0, at(100));
        pace.renewal_sent(at(116), at(108));
        assert_eq!(pace.due, Instant::ZERO.after(Duration::from_nanos(110_666_666_000)));
        pace.renewal_sent(at(116), at(115));
        assert_eq!(pace.due, at(116), "attempts are at least a sixteenth of the term apart");
    }
}
