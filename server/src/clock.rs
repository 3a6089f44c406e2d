//! The one place of the server that reads a clock (T7).

use leasehold_protocol::time::Instant;
use nix::time::{ClockId, clock_gettime};

/// The time on a clock that counts suspension (T1). It is read through libc, so that tools that
/// skew clocks for tests can intercept it.
pub fn now() -> Instant {
    #[cfg(test)]
    if let Some(stopped) = tests::STOPPED.get() {
        return stopped;
    }
    // Linux has had this clock since 2.6.39. Without it, no lease is safe.
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME");
    let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
    let micros = u64::try_from(time.tv_nsec() / 1000).unwrap_or_default();
    Instant::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        pub(super) static STOPPED: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// Stops the clock of this thread, and so of this test: no further deadline comes.
    pub(crate) fn stop() {
        STOPPED.set(Some(now()));
    }
}
