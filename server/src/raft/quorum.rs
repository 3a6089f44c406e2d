//! When a leader has heard of too few for too long to be one that clients should wait for.
//!
//! A leader that is cut off from the others commits nothing and proves nothing, but Raft lets it believe in itself until it
//! hears of a later term, which it cannot. Clients that reach it would wait there while another one serves. So it counts as
//! leading only while a majority answers it. (What it granted stays bound by time, and by the next leader's covering (S7):
//! nothing depends on this but how long clients wait.)

use std::time::Duration;

use tokio::time::Instant;

/// A replica's leadership, as its majority answers it.
#[derive(Debug)]
pub(super) struct Quorum {
    /// The majority may be silent for so long.
    silence_max: Duration,
    /// The term that this replica leads, and when it was first seen to.
    led: Option<(u64, Instant)>,
}

impl Quorum {
    pub(super) fn new(silence_max: Duration) -> Self {
        Self { silence_max, led: None }
    }

    /// Whether a replica that Raft takes for the leader of `term` (none: for no leader) leads. What a majority has answered
    /// was sent `silence` ago, if it has answered anything.
    pub(super) fn leads(&mut self, term: Option<u64>, silence: Option<Duration>, now: Instant) -> bool {
        let Some(term) = term else {
            self.led = None;
            return false;
        };
        let since = match self.led {
            Some((led, since)) if led == term => since,
            // It has just been elected: by a majority.
            _ => now,
        };
        self.led = Some((term, since));
        let led_for = now.saturating_duration_since(since);
        silence.map_or(led_for, |silence| silence.min(led_for)) <= self.silence_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE_MAX: Duration = Duration::from_secs(1);

    #[test]
    fn a_leader_leads_while_a_majority_answers() {
        let mut quorum = Quorum::new(SILENCE_MAX);
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        let ago = |millis| Some(Duration::from_millis(millis));
        assert!(!quorum.leads(None, None, at(0)), "it was not elected");
        assert!(quorum.leads(Some(1), None, at(0)), "a majority has elected it");
        assert!(quorum.leads(Some(1), None, at(1000)));
        assert!(!quorum.leads(Some(1), None, at(1001)), "nobody has answered since");
        assert!(quorum.leads(Some(1), ago(100), at(1600)), "they answer again");
        assert!(quorum.leads(Some(1), ago(1000), at(2500)));
        assert!(!quorum.leads(Some(1), ago(1001), at(2501)));
        assert!(!quorum.leads(None, ago(2), at(2502)), "another one is elected");
        assert!(quorum.leads(Some(3), ago(1100), at(2600)), "it is elected anew");
        assert!(!quorum.leads(Some(3), ago(2101), at(3601)));
    }
}
