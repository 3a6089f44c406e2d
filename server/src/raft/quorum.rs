//! When a leader has been without a majority for so long that clients should not wait for it.
//!
//! A leader that is cut off commits nothing and proves nothing. But Raft lets it count as leader
//! until it hears of a later Raft term, and it hears nothing. Its clients would wait while another
//! leader serves. So it counts as leading only while a majority answers it. Only waiting times
//! depend on this: time, and the next leader's covering holders (S7), bound its promises.
//!
//! A process that was itself stopped or starved has also heard from nobody, and answers may wait in
//! its sockets. So it trusts a silence only if it was awake during the last two checks. It was not
//! awake if a check comes later than two should have come. If it was stopped for long, another
//! replica leads, and the first message shows that.

use std::time::Duration;

use tokio::time::Instant;

/// The number of checks after which a silence is trusted. If this many are missing, the process was
/// not awake.
const CHECKS: u32 = 2;

/// A replica's leadership, confirmed by its majority's answers.
#[derive(Debug)]
pub(super) struct Quorum {
    /// The longest silence of the majority.
    silence_max: Duration,
    /// The longest interval between two checks, unless the process was not awake.
    check_every: Duration,
    /// The Raft term that this replica leads, and when that was first seen.
    led: Option<(u64, Instant)>,
    /// Whether a trusted silence has not ended yet.
    is_lost: bool,
    /// The time of the last check.
    checked_at: Instant,
    /// Since when the process has certainly been awake.
    awake_since: Instant,
}

impl Quorum {
    pub(super) fn new(silence_max: Duration, check_every: Duration, now: Instant) -> Self {
        Self { silence_max, check_every, led: None, is_lost: false, checked_at: now, awake_since: now }
    }

    /// Whether this replica counts as leader. `term` is the Raft term that it leads, or `None`.
    /// `silence` is the age of the latest message that a majority has answered, or `None` if there
    /// is none.
    pub(super) fn leads(&mut self, term: Option<u64>, silence: Option<Duration>, now: Instant) -> bool {
        if now.saturating_duration_since(self.checked_at) > self.check_every * CHECKS {
            self.awake_since = now;
        }
        self.checked_at = now;
        let Some(term) = term else {
            (self.led, self.is_lost) = (None, false);
            return false;
        };
        let since = match self.led {
            Some((led, since)) if led == term => since,
            // A majority has just elected it.
            _ => {
                self.is_lost = false;
                now
            }
        };
        self.led = Some((term, since));
        let led_for = now.saturating_duration_since(since);
        let is_silent = silence.map_or(led_for, |silence| silence.min(led_for)) > self.silence_max;
        let was_awake = now.saturating_duration_since(self.awake_since) >= self.check_every * CHECKS;
        self.is_lost = is_silent && (self.is_lost || was_awake);
        !self.is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE_MAX: Duration = Duration::from_secs(1);
    const CHECK_EVERY: Duration = Duration::from_millis(100);

    fn ago(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    /// A quorum, driven by milliseconds since it was made.
    struct QuorumChecks {
        quorum: Quorum,
        began: Instant,
        last: u64,
    }

    impl QuorumChecks {
        fn new() -> Self {
            let began = Instant::now();
            Self { quorum: Quorum::new(SILENCE_MAX, CHECK_EVERY, began), began, last: 0 }
        }

        fn check(&mut self, term: Option<u64>, silence: Option<Duration>, at: u64) -> bool {
            self.last = at;
            self.quorum.leads(term, silence, self.began + Duration::from_millis(at))
        }

        /// Checks every 90 ms until `at`. Nothing new is heard, so the silence grows from the last
        /// check.
        fn awake(&mut self, term: Option<u64>, silence: Option<Duration>, at: u64) -> bool {
            let from = self.last;
            let later = |at: u64| silence.map(|silence| silence + Duration::from_millis(at - from));
            for at in (from + 90..at).step_by(90) {
                self.check(term, later(at), at);
            }
            self.check(term, later(at), at)
        }
    }

    #[test]
    fn a_leader_leads_while_a_majority_answers() {
        let mut checks = QuorumChecks::new();
        assert!(!checks.check(None, None, 0), "it was not elected");
        assert!(checks.check(Some(1), None, 0), "a majority has elected it");
        assert!(checks.awake(Some(1), None, 1000));
        assert!(!checks.awake(Some(1), None, 1001), "nobody has answered since");
        assert!(checks.check(Some(1), ago(100), 1100), "they answer again");
        assert!(checks.awake(Some(1), ago(100), 2000));
        assert!(!checks.awake(Some(1), ago(1000), 2001));
        assert!(!checks.check(None, ago(2), 2002), "another one is elected");
        assert!(checks.check(Some(3), ago(1100), 2100), "it is elected anew");
        assert!(checks.awake(Some(3), None, 3100));
        assert!(!checks.awake(Some(3), None, 3101));
    }

    #[test]
    fn paused_process_checks_again_before_trusting_silence() {
        let mut checks = QuorumChecks::new();
        assert!(checks.check(Some(1), ago(0), 0));
        assert!(checks.awake(Some(1), ago(0), 500));
        assert!(checks.check(Some(1), ago(3000), 3500), "it has not listened itself");
        assert!(checks.check(Some(1), ago(3001), 3501), "nor for long enough");
        assert!(checks.check(Some(1), ago(20), 3520), "they answer: nothing was lost but the time");
        assert!(checks.awake(Some(1), ago(20), 4400));
        assert!(!checks.awake(Some(1), ago(1000), 4450), "it was awake for all of that");

        assert!(checks.check(Some(1), ago(10), 4500), "they answer");
        assert!(checks.check(Some(1), ago(3510), 8000), "it was away again");
        assert!(checks.awake(Some(1), ago(3510), 8199));
        assert!(!checks.awake(Some(1), ago(3709), 8200), "and nobody answers now that it listens");
        assert!(!checks.check(Some(1), ago(9000), 14_000), "which another pause does not change");
        assert!(checks.check(Some(2), None, 14_000), "it is elected anew");
    }
}
