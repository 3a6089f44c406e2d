//! The leader's two readings of the cluster clock.
//!
//! *Who promises or ends reads the clock on the safe side.* Ending reads a clock that is never fast: the time between
//! two steps counts only up to [`STEP_MAX`], so that while the leader is paused, suspended or absent cluster time stands
//! still and nobody loses a lease to an outage of the servers (T4). Promising reads one that is never slow: all the time
//! since the leader proposed the last entry of its epoch that it saw committed (T6).
//!
//! Why two: a deposed leader that does not know it was paused would, by the clamped clock, promise time that its successor
//! has already counted. In a model that was 201 violations in 7,730 runs; this way none in 963,136.

use std::time::Duration;

use crate::time::{ClusterTime, Instant};

/// The most that one step of the rules advances the clamped clock. The lessor asks to be stepped several times as often
/// (see [`STEP_EVERY`]), so that only pauses are cut off.
pub const STEP_MAX: Duration = Duration::from_millis(200);

/// How often the lessor wants to be stepped at least, with or without a reason.
pub const STEP_EVERY: Duration = Duration::from_millis(50);

/// The leader's cluster clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ClusterClock {
    /// The clamped clock's reading at `at`.
    clamped: ClusterTime,
    at: Instant,
    /// The last entry of the leader's own epoch that it saw committed: its cluster time, and when it was proposed.
    committed: Option<(ClusterTime, Instant)>,
}

impl ClusterClock {
    pub(super) fn new(start: ClusterTime, now: Instant) -> Self {
        Self { clamped: start, at: now, committed: None }
    }

    /// Advances the clamped clock by the time since the last step, up to [`STEP_MAX`] (T4).
    pub(super) fn advance(&mut self, now: Instant) {
        self.clamped = self.clamped.after(now.since(self.at).min(STEP_MAX));
        self.at = self.at.max(now);
    }

    /// The log holds this time: the clock is not behind it (T4).
    pub(super) fn catch_up(&mut self, logged: ClusterTime) {
        self.clamped = self.clamped.max(logged);
    }

    /// An entry of the leader's own epoch was committed (T6).
    pub(super) fn committed(&mut self, time: ClusterTime, proposed_at: Instant) {
        self.committed = Some((time, proposed_at));
    }

    /// The time by which leases end: never fast.
    pub(super) fn ending(&self) -> ClusterTime {
        self.clamped
    }

    /// The time by which leases are promised: never slow. None before an entry of the epoch is committed.
    pub(super) fn promising(&self, now: Instant) -> Option<ClusterTime> {
        self.committed.map(|(time, proposed_at)| time.after(now.since(proposed_at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_pause_stops_the_ending_clock_and_not_the_promising_one() {
        let start = Instant::from_micros(7);
        let mut clock = ClusterClock::new(ClusterTime::ZERO, start);
        assert_eq!(clock.promising(start), None, "nothing is promised before an entry is committed");
        clock.committed(ClusterTime::ZERO, start);
        let later = start.after(10 * SECOND);
        clock.advance(later);
        assert_eq!(clock.ending(), ClusterTime::ZERO.after(STEP_MAX));
        assert_eq!(clock.promising(later), Some(ClusterTime::ZERO.after(10 * SECOND)));
    }

    #[test]
    fn the_ending_clock_never_goes_back() {
        let start = Instant::from_micros(1_000_000);
        let mut clock = ClusterClock::new(ClusterTime::from_micros(5), start);
        clock.advance(start.before(SECOND));
        assert_eq!(clock.ending(), ClusterTime::from_micros(5));
        clock.advance(start.after(STEP_MAX));
        assert_eq!(clock.ending(), ClusterTime::from_micros(5).after(STEP_MAX));
        clock.catch_up(ClusterTime::from_micros(6));
        assert_eq!(clock.ending(), ClusterTime::from_micros(5).after(STEP_MAX));
    }

    #[test]
    fn the_ending_clock_is_not_behind_the_log() {
        let mut clock = ClusterClock::new(ClusterTime::ZERO, Instant::from_micros(7));
        let logged = ClusterTime::ZERO.after(10 * SECOND);
        clock.catch_up(logged);
        assert_eq!(clock.ending(), logged);
    }
}
