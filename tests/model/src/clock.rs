//! The clocks of machines. Each has its own origin and its own rate. Only a world reads true time,
//! in microseconds.

use leasehold_protocol::time::{DriftAllowance, Instant};

use crate::rng::Rng;

/// A machine's own clock. It counts pauses (T1).
#[derive(Debug, Clone)]
pub struct Clock {
    origin: i128,
    /// Parts per million by which it is fast; negative if it is slow.
    fast: i128,
}

const MILLION: i128 = 1_000_000;

impl Clock {
    /// A clock that reads `origin` microseconds at the true time 0, and is fast by parts per
    /// million; negative if it is slow.
    pub fn new(origin: u64, fast: i64) -> Self {
        Self { origin: i128::from(origin), fast: i128::from(fast) }
    }

    /// A clock within the allowance, often exactly at one end of it.
    pub fn random(drift: DriftAllowance, rng: &mut Rng) -> Self {
        let most = i64::from(drift.ppm());
        let fast = match rng.below(4) {
            0 => -most,
            1 => most,
            2 => 0,
            _ => i64::try_from(rng.below(u64::from(drift.ppm()) * 2 + 1)).unwrap_or_default() - most,
        };
        Self::with_random_origin(fast, rng)
    }

    /// A clock of this rate, which may be beyond the allowance.
    pub fn with_random_origin(fast: i64, rng: &mut Rng) -> Self {
        Self::new(rng.between(1_000_000, 1_000_000_000), fast)
    }

    /// The reading at a true time.
    pub fn read(&self, now: u64) -> Instant {
        let micros = self.origin + i128::from(now) * (MILLION + self.fast) / MILLION;
        Instant::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The first true time at which the reading is at least `at`.
    pub fn when(&self, at: Instant) -> u64 {
        let rate = MILLION + self.fast;
        let since = (i128::from(at.as_micros()) - self.origin).max(0) * MILLION;
        u64::try_from((since + rate - 1) / rate).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_reads_at_least_a_time_first_when_it_says() {
        let mut rng = Rng::new(3);
        for fast in [-400_000, -10_000, 0, 1_000, 800_000] {
            let clock = Clock::with_random_origin(fast, &mut rng);
            for _ in 0..100 {
                let at = clock.read(rng.below(1 << 40));
                let when = clock.when(at);
                assert!(clock.read(when) >= at);
                assert!(when == 0 || clock.read(when - 1) < at);
            }
        }
    }
}
