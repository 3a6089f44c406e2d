//! Counts of what the client has done.
//!
//! Hits are counted by every reader, so each thread counts in a place of its own as far as there
//! are places: two threads that wrote to one cache line would take turns at it. The other counts
//! are of things that cost a round trip, or a lock, and share one place.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Places for counting hits: more than most machines have cores.
const STRIPES: usize = 64;

/// What a client has done since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Reads answered from memory, without asking anybody.
    pub hits: u64,
    /// Reads that were not.
    pub misses: u64,
    /// Read requests sent. Fewer than misses where reads shared one.
    pub server_reads: u64,
    /// Copies found unmodified by such a request, and good again.
    pub revalidations: u64,
    /// Recalls heard.
    pub recalls: u64,
    /// Requests sent, of any kind, and consents.
    pub messages_sent: u64,
    /// Copies dropped for lack of room.
    pub evictions: u64,
    /// Writes asked for by the application.
    pub writes: u64,
    /// Copies in memory now, usable or waiting to be validated.
    pub copies: u64,
}

/// One thread's place; two cache lines long because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

/// The counters.
#[derive(Debug)]
pub(crate) struct Counters {
    hits: [Stripe; STRIPES],
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
    /// Counts a hit. Returns how many this thread's place had counted before.
    #[inline]
    pub(crate) fn hit(&self) -> u64 {
        // No place of its own is left to a thread that is ending.
        let stripe = STRIPE.try_with(|stripe| *stripe).unwrap_or(0);
        self.hits[stripe].0.fetch_add(1, Relaxed)
    }

    /// All counts, each as of some moment during the call.
    pub(crate) fn read(&self, copies: u64) -> Stats {
        Stats {
            hits: self.hits.iter().map(|stripe| stripe.0.load(Relaxed)).sum(),
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

/// Counts one.
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
