//! The one place of the server that reads a clock (T7).

use leasehold_protocol::time::Instant;
use nix::time::{ClockId, clock_gettime};

/// Now, on a clock that counts the time that the machine is suspended (T1). Read through libc, so
/// that tools which skew clocks for tests reach it.
pub fn now() -> Instant {
    #[cfg(test)]
    if let Some(stopped) = tests::STOPPED.get() {
        return stopped;
    }
    // The clock has been there since Linux 2.6.39; without it no lease could be kept safely.
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

    /// From now on the clock of this thread, and so of this test, stands still: nothing becomes
    /// due.
    pub(crate) fn stop() {
        STOPPED.set(Some(now()));
    }
}
