//! The leader's two readings of the cluster clock (T4, T6).
//!
//! Leases end by the *ending clock*, which is never fast. The time between two steps counts only up
//! to [`STEP_MAX`]. So while the leader is paused, suspended or absent, cluster time stands still,
//! and no client loses a lease to an outage of the servers (T4). Promises use the *promising
//! clock*, which is never slow. It is the cluster time of the last entry of this epoch seen
//! committed, plus all the time since its proposal (T6).
//!
//! One clock is not enough. A deposed leader that does not know of its pause would promise time by
//! the ending clock that its successor has already counted. A model with one clock had 201
//! violations in 7,730 runs; with two it had none in 963,136.
//!
//! # Where the clocks start
//!
//! Both clocks stand still until the first entry of the epoch is applied. Until then no client can
//! renew, so none may lose time (T4). Then they start at the latest cluster time in the log plus
//! the time *heard*. That is the time from receiving the latest entry to last hearing from the
//! leader that proposed it. That leader's clock ran meanwhile, and the log does not have this time.
//!
//! The ending clock stays safe. Let the latest entry have time C, proposed at real time p. The
//! successor received it no earlier than p, and its epoch begins no earlier than it last heard. So
//! at real time r its clock reads at most C + (r - p), apart from drift. By T6, a clock that reads
//! at most this honours the old leader's promises. The successor measures the time heard on its own
//! clock. Shortened by the drift allowance, it is at most the real time.
//!
//! The promising clock stays safe, because it also includes the time heard. It starts from the same
//! sum, and counts from the *proposal* of the first entry, which is before the ending clock starts.
//! So within an epoch it is never behind the ending clock. Later entries log the readings of the
//! ending clock, but a successor may lack them. It then starts from the first entry's time, which
//! is that of the log before it. It adds the time heard since it received that entry, which is no
//! more than the time since the entry's proposal.
//!
//! The time heard counts up to `ahead_of_log_max`. A leader whose last entry is older had no
//! quorum, or no leases.
//!
//! # Where the ending clock stops
//!
//! A leader that cannot commit moves no horizon, so its clients' promises run out although they
//! renew. Therefore the ending clock stops `ahead_of_log_max` after the oldest proposal in flight,
//! until that is committed (T4). Stopping is always safe, because leases then end later. The
//! promising clock does not stop, because a successor may have counted that time (T6).

use std::time::Duration;

use crate::{
    reached::{Bound, reached},
    time::{ClusterTime, Instant},
};

/// The most that one step advances the ending clock. The lessor asks for steps several times as
/// often (see [`STEP_EVERY`]), so this cuts off only pauses.
pub const STEP_MAX: Duration = Duration::from_millis(200);

/// The longest time between two steps that the lessor asks for.
pub const STEP_EVERY: Duration = Duration::from_millis(50);

/// How far a leader's ending clock may run beyond the log. It is two ticks, and at least
/// [`STEP_MAX`], because a commit may take longer than a short tick.
///
/// A leader with leases proposes at least once in a tick. So the log is behind the clock by a tick
/// at most, and the time of a commit. A leader without a quorum may first have no proposal in
/// flight for up to a tick. So its clients lose at most three ticks of a lease: three tenths of a
/// term. They renew when half of a term is left, and retry until they get an answer. Beyond this
/// bound proposals do not commit and no client can renew, so no client may lose time (T4).
pub(super) fn ahead_of_log_max(tick: Duration) -> Duration {
    (tick * 2).max(STEP_MAX)
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ClusterClock {
    /// The ending clock's reading at `at`.
    ending: ClusterTime,
    at: Instant,
    /// The last entry of the leader's own epoch that it saw committed: its cluster time, and when
    /// it was proposed.
    committed: Option<(ClusterTime, Instant)>,
}

impl ClusterClock {
    /// A clock that stands still at the time in the log, until the epoch begins.
    pub(super) fn new(logged: ClusterTime, now: Instant) -> Self {
        Self { ending: logged, at: now, committed: None }
    }

    /// Starts the clocks when the first entry of the epoch is applied (T4). `logged` is the cluster
    /// time in the log. `time_heard` is how far the old leader's clock is known to have run beyond
    /// it. The caller must not overestimate that.
    pub(super) fn begin(&mut self, logged: ClusterTime, time_heard: Duration, proposed_at: Instant, now: Instant) {
        let start = logged.after(time_heard);
        (self.ending, self.at) = (start, self.at.max(now));
        self.committed = Some((start, proposed_at));
    }

    /// Once the epoch has begun, advances the ending clock by the time since the last step, up to
    /// [`STEP_MAX`] (T4). `oldest` is the time of the oldest uncommitted proposal: the clock stops
    /// [`ahead_of_log_max`] after it.
    pub(super) fn advance(&mut self, now: Instant, oldest: Option<ClusterTime>, tick: Duration) {
        if self.committed.is_some() {
            if now.since(self.at) > STEP_MAX {
                reached(Bound::ClockStep);
            }
            let next = self.ending.after(now.since(self.at).min(STEP_MAX));
            let most = oldest.map_or(next, |oldest| oldest.after(ahead_of_log_max(tick)));
            self.ending = self.ending.max(next.min(most));
        }
        self.at = self.at.max(now);
    }

    /// An entry of the leader's own epoch was committed (T6).
    pub(super) fn committed(&mut self, time: ClusterTime, proposed_at: Instant) {
        self.committed = Some((time, proposed_at));
    }

    /// The latest reading of this machine's clock.
    pub(super) fn now(&self) -> Instant {
        self.at
    }

    /// The time by which leases end: never fast.
    pub(super) fn ending_time(&self) -> ClusterTime {
        self.ending
    }

    /// The time by which leases are promised: never slow. `None` before an entry of the epoch is
    /// committed.
    pub(super) fn promising_time(&self, now: Instant) -> Option<ClusterTime> {
        self.committed.map(|(time, proposed_at)| time.after(now.since(proposed_at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TICK: Duration = Duration::from_secs(1);

    #[test]
    fn a_pause_stops_the_ending_clock_and_not_the_promising_one() {
        let start = Instant::from_micros(7);
        let mut clock = ClusterClock::new(ClusterTime::ZERO, start);
        assert_eq!(clock.promising_time(start), None, "nothing is promised before the epoch begins");
        clock.begin(ClusterTime::ZERO, Duration::ZERO, start, start);
        let later = start.after(10 * SECOND);
        clock.advance(later, None, TICK);
        assert_eq!(clock.ending_time(), ClusterTime::ZERO.after(STEP_MAX));
        assert_eq!(clock.promising_time(later), Some(ClusterTime::ZERO.after(10 * SECOND)));
    }

    #[test]
    fn the_ending_clock_never_goes_back() {
        let start = Instant::from_micros(1_000_000);
        let mut clock = ClusterClock::new(ClusterTime::from_micros(5), start);
        clock.begin(ClusterTime::from_micros(5), Duration::ZERO, start, start);
        clock.advance(start.before(SECOND), None, TICK);
        assert_eq!(clock.ending_time(), ClusterTime::from_micros(5));
        clock.advance(start.after(STEP_MAX), None, TICK);
        assert_eq!(clock.ending_time(), ClusterTime::from_micros(5).after(STEP_MAX));
    }

    #[test]
    fn clocks_before_the_epoch_begins_stand_still() {
        let start = Instant::from_micros(7);
        let mut clock = ClusterClock::new(ClusterTime::from_micros(5), start);
        let later = start.after(10 * SECOND);
        (0..=100).for_each(|tenth| clock.advance(start.after(SECOND / 10 * tenth), None, TICK));
        assert_eq!((clock.ending_time(), clock.promising_time(later)), (ClusterTime::from_micros(5), None));
        let logged = ClusterTime::from_micros(9);
        clock.begin(logged, Duration::ZERO, start, later);
        assert_eq!(clock.ending_time(), logged, "only logged time counts");
        assert_eq!(clock.promising_time(later), Some(logged.after(10 * SECOND)), "all time counts for promises");
    }

    #[test]
    fn time_heard_of_the_old_leader_is_in_both_clocks() {
        let start = Instant::from_micros(7);
        let mut clock = ClusterClock::new(ClusterTime::ZERO, start);
        clock.begin(ClusterTime::ZERO, 3 * SECOND, start, start);
        let now = start.after(STEP_MAX);
        clock.advance(now, None, TICK);
        assert_eq!(clock.ending_time(), ClusterTime::ZERO.after(3 * SECOND).after(STEP_MAX));
        assert_eq!(
            clock.promising_time(now),
            Some(clock.ending_time()),
            "a promise by a slower clock outlasts its lease"
        );
    }

    #[test]
    fn proposal_that_does_not_commit_stops_the_ending_clock() {
        let mut now = Instant::from_micros(7);
        let mut clock = ClusterClock::new(ClusterTime::ZERO, now);
        clock.begin(ClusterTime::ZERO, Duration::ZERO, now, now);
        let mut run = |clock: &mut ClusterClock, oldest: Option<ClusterTime>| {
            for _ in 0..100 {
                now = now.after(SECOND / 10);
                clock.advance(now, oldest, TICK);
            }
            (clock.ending_time(), clock.promising_time(now))
        };
        let at = |secs| ClusterTime::ZERO.after(SECOND * secs);
        assert_eq!(
            run(&mut clock, Some(at(1))),
            (at(3), Some(at(10))),
            "two ticks after it; promises count all the time"
        );
        assert_eq!(run(&mut clock, Some(at(1))), (at(3), Some(at(20))));
        assert_eq!(run(&mut clock, None), (at(13), Some(at(30))), "the pause ends no lease");
        assert_eq!(run(&mut clock, Some(at(1))), (at(13), Some(at(40))), "the clock never goes back");
    }
}
