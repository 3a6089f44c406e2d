//! Counters of the client's work, without those of each volume
//! ([`cache_counters`](crate::cache_counters)). Each is of an event that costs a round trip or a
//! lock, and is shared by all threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    pub validations: u64,
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

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) stale_hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) server_reads: AtomicU64,
    pub(crate) validations: AtomicU64,
    pub(crate) recalls: AtomicU64,
    pub(crate) messages_sent: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) writes: AtomicU64,
}

impl Counters {
    /// Reads all counters, each as of some moment during the call.
    pub(crate) fn read(&self, hits: u64, copies: u64) -> Stats {
        Stats {
            hits,
            stale_hits: self.stale_hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            server_reads: self.server_reads.load(Relaxed),
            validations: self.validations.load(Relaxed),
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
