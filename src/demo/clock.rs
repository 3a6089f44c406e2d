//! The demo's clock: one for all of its processes, so that what one did can be put in order with
//! what another did. It is read by asking the kernel and not through libc: tools that bend the
//! clock of a process do not reach it.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since this machine started. The same in every process of the machine at any one
/// moment.
pub(crate) fn now_ns() -> u64 {
    let reading = clock_gettime(ClockId::Boottime);
    // Never negative: the clock starts at zero when the machine does.
    reading.tv_sec as u64 * 1_000_000_000 + reading.tv_nsec as u64
}

/// What reading the clock twice in a row costs: the part of a timed call that is not the call. The
/// median of many.
pub(crate) fn timer_cost_ns() -> u64 {
    let mut costs: Vec<u64> = (0..1001)
        .map(|_| {
            let before = now_ns();
            now_ns() - before
        })
        .collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_moves_and_its_cost_is_small() {
        let before = now_ns();
        assert!(timer_cost_ns() < 1_000_000);
        assert!(now_ns() > before);
    }
}
