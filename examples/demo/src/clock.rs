//! The demo's clock. All its processes share it, so that their events can be ordered. It calls the
//! kernel without libc: tools that change the clock of one process do not affect it.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine booted. All processes of the machine read the same value.
pub(crate) fn now_ns() -> u64 {
    let reading = clock_gettime(ClockId::Boottime);
    // Not negative: the clock starts at zero.
    reading.tv_sec as u64 * 1_000_000_000 + reading.tv_nsec as u64
}

/// The cost of reading the clock twice in a row, which a timed call includes. The median of many
/// measurements.
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
