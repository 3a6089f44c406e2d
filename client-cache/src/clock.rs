//! The one place that reads the clock (T7).

use std::time::Duration;

use leasehold_protocol::time::Instant;
use nix::time::{ClockId, clock_gettime};

/// This machine's clock, which counts the time that the machine is suspended (T1).
///
/// Read through libc, so that tests can bend it from outside the process.
pub(crate) fn now() -> Instant {
    let reading = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has had CLOCK_BOOTTIME since 2.6.39");
    // Never negative: the clock starts at zero when the machine does.
    Instant::from_micros(reading.tv_sec() as u64 * 1_000_000 + reading.tv_nsec() as u64 / 1_000)
}

/// The longest time that a call waits. Timers and the deadlines of requests overflow with much
/// more; a longer timeout, such as [`Duration::MAX`], counts as this.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// When a call is given up that begins now: after the timeout, or after [`TIMEOUT_MAX`].
pub(crate) fn deadline(timeout: Duration) -> std::time::Instant {
    std::time::Instant::now() + timeout.min(TIMEOUT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_does_not_run_backwards() {
        let mut last = now();
        for _ in 0..10_000 {
            let next = now();
            assert!(next >= last);
            last = next;
        }
    }
}
