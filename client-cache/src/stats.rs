//! Counters of the client's work.
//!
//! Every reader counts hits. So each thread has its own counter, up to a limit: two threads that
//! write to one cache line would wait for each other. The other counters are of events that cost a
//! round trip or a lock, and are shared.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The number of hit counters: more than most machines have cores.
const STRIPES: usize = 64;

/// What a client has done since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Reads that were answered from memory, without a server.
    pub hits: u64,
    /// Reads that were answered from memory with an old content, which they accepted.
    pub stale_hits: u64,
    /// All other reads.
    pub misses: u64,
    /// Read requests that were sent. Fewer than misses if reads shared a request.
    pub server_reads: u64,
    /// Copies that such a request found unmodified, and made usable again.
    pub revalidations: u64,
    /// Recalls that arrived.
    pub recalls: u64,
    /// Requests of any kind and consents that were sent.
    pub messages_sent: u64,
    /// Copies that were evicted for lack of room.
    pub evictions: u64,
    /// Writes that were begun, including requests and releases of locks.
    pub writes: u64,
    /// Copies in memory now, usable or waiting to be validated.
    pub copies: u64,
}

/// A thread's counter. Two cache lines long, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

#[derive(Debug)]
pub(crate) struct Counters {
    hits: [Stripe; STRIPES],
    pub(crate) stale_hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) server_reads: AtomicU64,
    pub(crate) revalidations: AtomicU64,
    pub(crate) recalls: AtomicU64,
    pub(crate) messages_sent: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) writes: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            hits: std::array::from_fn(|_| Stripe::default()),
            stale_hits: AtomicU64::default(),
            misses: AtomicU64::default(),
            server_reads: AtomicU64::default(),
            revalidations: AtomicU64::default(),
            recalls: AtomicU64::default(),
            messages_sent: AtomicU64::default(),
            evictions: AtomicU64::default(),
            writes: AtomicU64::default(),
        }
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: usize = THREADS.fetch_add(1, Relaxed) % STRIPES;
}

impl Counters {
    /// Counts a hit. Returns the earlier value of this thread's counter.
    #[inline]
    pub(crate) fn hit(&self) -> u64 {
        // A thread that is ending no longer has its thread-local value.
        let stripe = STRIPE.try_with(|stripe| *stripe).unwrap_or(0);
        self.hits[stripe].0.fetch_add(1, Relaxed)
    }

    /// Reads all counters, each as of some moment during the call.
    pub(crate) fn read(&self, copies: u64) -> Stats {
        Stats {
            hits: self.hits.iter().map(|stripe| stripe.0.load(Relaxed)).sum(),
            stale_hits: self.stale_hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            server_reads: self.server_reads.load(Relaxed),
            revalidations: self.revalidations.load(Relaxed),
            recalls: self.recalls.load(Relaxed),
            messages_sent: self.messages_sent.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            writes: self.writes.load(Relaxed),
            copies,
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_of_all_threads_are_summed() {
        let counters = Counters::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counters.hit();
                    }
                });
            }
        });
        assert_eq!(counters.read(3), Stats { hits: 8000, copies: 3, ..Stats::default() });
    }
}
