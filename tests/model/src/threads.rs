//! Work that is spread over threads.

use std::{
    ops::Range,
    panic::resume_unwind,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

/// How many threads the processors can run at once.
pub fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Calls `work` with each of these numbers, the lowest first. A thread stops when `work` returns
/// false. Each thread works on a result of its own; returns all of them.
pub fn spread<T: Default + Send>(
    threads: usize,
    numbers: Range<u64>,
    work: impl Fn(&mut T, u64) -> bool + Sync,
) -> Vec<T> {
    let next = AtomicU64::new(numbers.start);
    let run = || {
        let mut own = T::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end || !work(&mut own, number) {
                return own;
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
