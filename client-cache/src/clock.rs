//! The one place that reads the clock (T7 in docs/PROTOCOL.md).

use std::time::Duration;

use leasehold_protocol::time::Instant;
use nix::time::{ClockId, clock_gettime};

/// The machine's clock. It counts the time for which the machine is suspended (T1).
///
/// The reading goes through libc, so that tests can change it from outside the process.
pub(crate) fn now() -> Instant {
    let reading = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has had CLOCK_BOOTTIME since 2.6.39");
    // Never negative: this clock starts at zero when the machine boots.
    Instant::from_micros(reading.tv_sec() as u64 * 1_000_000 + reading.tv_nsec() as u64 / 1_000)
}

/// The longest wait of a call. Larger values would overflow timers and request deadlines. A longer
/// timeout, such as [`Duration::MAX`], is shortened to this.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The deadline of a call that begins now: after `timeout`, or after [`TIMEOUT_MAX`] if that is
/// shorter.
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
