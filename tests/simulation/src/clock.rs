//! The clocks of machines. Each has its own origin and its own rate. Only the simulator reads true
//! time, in microseconds.

use leasehold_protocol::time::Instant;

use crate::rng::Rng;

/// A machine's own clock. It counts pauses (T1).
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    origin: i128,
    /// Parts per million by which it is fast; negative if it is slow.
    fast: i128,
}

const MILLION: i128 = 1_000_000;

impl Clock {
    /// A clock within the allowance, often exactly at one end of it.
    pub(crate) fn random(drift_ppm: u32, rng: &mut Rng) -> Self {
        let most = i128::from(drift_ppm);
        let fast = match rng.below(4) {
            0 => -most,
            1 => most,
            2 => 0,
            _ => i128::from(rng.below(u64::from(drift_ppm) * 2 + 1)) - most,
        };
        Self { origin: i128::from(rng.between(1_000_000, 1_000_000_000)), fast }
    }

    /// A clock beyond the allowance, by parts per million; negative if it is slow.
    pub(crate) fn rogue(fast: i128, rng: &mut Rng) -> Self {
        Self { origin: i128::from(rng.between(1_000_000, 1_000_000_000)), fast }
    }

    /// The reading at a true time.
    pub(crate) fn read(&self, now: u64) -> Instant {
        let micros = self.origin + i128::from(now) * (MILLION + self.fast) / MILLION;
        Instant::from_micros(u64::try_from(micros).expect("after its origin"))
    }

    /// The first true time at which the reading is at least `at`.
    pub(crate) fn when(&self, at: Instant) -> u64 {
        let rate = MILLION + self.fast;
        let since = (i128::from(at.as_micros()) - self.origin).max(0) * MILLION;
        u64::try_from((since + rate - 1) / rate).expect("not before the beginning")
    }
}
