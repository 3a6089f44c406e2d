//! Counters of the client's cache for each volume.
//!
//! Every reader counts hits. So each thread has its own counter, up to a limit: two threads that
//! write to one cache line would wait for each other. A copy finds the counters of its volume by
//! its [`VolumeLeaseCell`](crate::volume_leases::VolumeLeaseCell). The other counters are of events
//! that cost a round trip or a lock, and are shared.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold_protocol::{
    message::{CACHED_READS_MAX, CachedReads, ReadGaps},
    path::NodePath,
};
use parking_lot::Mutex;

use crate::dropped_copies::MissCause;

/// The number of hit counters of a volume: more than most machines have cores.
const STRIPES: usize = 64;

/// The most volumes with counters of their own: about two megabytes. If there are more, the table
/// forgets those without copies. If all have copies, further volumes count in the sums only. One
/// request can report the hits of all.
const VOLUMES_MAX: usize = CACHED_READS_MAX;

/// What a client's cache has done in one volume: see
/// [`Client::volume_stats`](crate::Client::volume_stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeCacheStats {
    /// Reads that were answered from memory, without a server.
    pub hits: u64,
    /// Reads of an object that the client had not cached before in this session. The client
    /// remembers for some thousand objects why it dropped their copies. Reads of an object that it
    /// has forgotten count here too.
    pub misses_first: u64,
    /// Reads of an object whose copy was evicted for lack of room.
    pub misses_capacity: u64,
    /// Reads of an object whose copy was recalled.
    pub misses_recalled: u64,
    /// Reads of an object whose copy was dropped because this client wrote the object.
    pub misses_written: u64,
    /// Reads of an object whose copy had no valid lease, or was dropped because its lease had
    /// ended and the object or the volume had changed meanwhile.
    pub misses_expired: u64,
    /// Copies that were dropped for a recall.
    pub copies_recalled: u64,
    /// Those of them that answered no read from memory since their lease was granted: false
    /// sharing. The lease delayed a write, and saved nothing.
    pub copies_recalled_unread: u64,
}

/// A thread's counter. Two cache lines long, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

/// The counters of one volume.
#[derive(Debug)]
pub(crate) struct CacheCounters {
    hits: [Stripe; STRIPES],
    /// Those of the hits that were reported to a server.
    reported: AtomicU64,
    misses: [AtomicU64; MissCause::ALL.len()],
    recalled: AtomicU64,
    recalled_unread: AtomicU64,
    /// The times from grants to the next reads, since the last report.
    gaps: [AtomicU64; ReadGaps::CLASSES],
}

impl Default for CacheCounters {
    fn default() -> Self {
        Self {
            hits: std::array::from_fn(|_| Stripe::default()),
            reported: AtomicU64::default(),
            misses: Default::default(),
            recalled: AtomicU64::default(),
            recalled_unread: AtomicU64::default(),
            gaps: Default::default(),
        }
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: usize = THREADS.fetch_add(1, Relaxed) % STRIPES;
}

impl CacheCounters {
    /// Counts a hit. Returns the earlier value of this thread's counter.
    #[inline]
    pub(crate) fn hit(&self) -> u64 {
        // A thread that is ending no longer has its thread-local value.
        let stripe = STRIPE.try_with(|stripe| *stripe).unwrap_or(0);
        self.hits[stripe].0.fetch_add(1, Relaxed)
    }

    /// Counts the time from a grant to the first read that follows. This happens at most once for
    /// each grant, so all threads share the counters.
    pub(crate) fn gap(&self, gap: Duration) {
        self.gaps[ReadGaps::class(gap)].fetch_add(1, Relaxed);
    }

    /// The gaps since the last call.
    fn take_gaps(&self) -> ReadGaps {
        ReadGaps { classes: std::array::from_fn(|class| self.gaps[class].swap(0, Relaxed)) }
    }

    fn miss(&self, cause: MissCause) {
        self.misses[cause as usize].fetch_add(1, Relaxed);
    }

    /// Counts a copy that was dropped for a recall.
    pub(crate) fn recalled(&self, was_read: bool) {
        self.recalled.fetch_add(1, Relaxed);
        self.recalled_unread.fetch_add(u64::from(!was_read), Relaxed);
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.iter().map(|stripe| stripe.0.load(Relaxed)).sum()
    }

    /// The hits since the last call. Only one thread at a time may call this.
    fn take_unreported(&self) -> u64 {
        let hits = self.hits();
        hits.saturating_sub(self.reported.swap(hits, Relaxed))
    }

    /// Reads all counters, each as of some moment during the call.
    fn read(&self) -> VolumeCacheStats {
        let misses = |cause: MissCause| self.misses[cause as usize].load(Relaxed);
        VolumeCacheStats {
            hits: self.hits(),
            misses_first: misses(MissCause::First),
            misses_capacity: misses(MissCause::Capacity),
            misses_recalled: misses(MissCause::Recalled),
            misses_written: misses(MissCause::Written),
            misses_expired: misses(MissCause::Expired),
            copies_recalled: self.recalled.load(Relaxed),
            copies_recalled_unread: self.recalled_unread.load(Relaxed),
        }
    }
}

/// The counters of all volumes.
#[derive(Debug, Default)]
pub(crate) struct CacheCounterTable {
    volumes: Mutex<BTreeMap<NodePath, Arc<CacheCounters>>>,
    /// Counts for the volumes beyond the bound.
    others: Arc<CacheCounters>,
    /// The hits of volumes that the table has forgotten.
    forgotten_hits: AtomicU64,
}

impl CacheCounterTable {
    /// The counters of a volume.
    pub(crate) fn of(&self, volume: &NodePath) -> Arc<CacheCounters> {
        let mut volumes = self.volumes.lock();
        if let Some(counters) = volumes.get(volume) {
            return Arc::clone(counters);
        }
        if volumes.len() >= VOLUMES_MAX {
            // Counters that only the table refers to can no longer change.
            volumes.retain(|_, counters| match Arc::strong_count(counters) {
                1 => {
                    self.forgotten_hits.fetch_add(counters.hits(), Relaxed);
                    false
                }
                _ => true,
            });
        }
        if volumes.len() >= VOLUMES_MAX {
            return Arc::clone(&self.others);
        }
        Arc::clone(volumes.entry(volume.clone()).or_default())
    }

    /// Forgets a volume that is gone, unless a copy or a reader may still use its counters. Its
    /// hits stay in the sum.
    pub(crate) fn forget(&self, volume: &NodePath) {
        let mut volumes = self.volumes.lock();
        if volumes.get(volume).is_some_and(|counters| Arc::strong_count(counters) == 1)
            && let Some(counters) = volumes.remove(volume)
        {
            self.forgotten_hits.fetch_add(counters.hits(), Relaxed);
        }
    }

    /// Counts a read that needed a server.
    pub(crate) fn miss(&self, volume: &NodePath, cause: MissCause, gap: Option<Duration>) {
        let counters = self.of(volume);
        counters.miss(cause);
        gap.into_iter().for_each(|gap| counters.gap(gap));
    }

    /// The hits and gaps in each volume since the last call, for a report to the server. It leaves
    /// out the volumes without any, and the hits of forgotten volumes.
    pub(crate) fn take_unreported(&self) -> Vec<CachedReads> {
        let volumes = self.volumes.lock();
        let all = volumes.iter().map(|(volume, counters)| {
            let (reads, gaps) = (counters.take_unreported(), counters.take_gaps());
            CachedReads { volume: volume.clone(), reads, gaps }
        });
        all.filter(|CachedReads { reads, gaps, .. }| *reads > 0 || !gaps.is_empty()).collect()
    }

    /// The hits in all volumes.
    pub(crate) fn hits(&self) -> u64 {
        let volumes = self.volumes.lock();
        let own: u64 = volumes.values().map(|counters| counters.hits()).sum();
        own + self.others.hits() + self.forgotten_hits.load(Relaxed)
    }

    pub(crate) fn read(&self) -> BTreeMap<NodePath, VolumeCacheStats> {
        let volumes = self.volumes.lock();
        volumes.iter().map(|(volume, counters)| (volume.clone(), counters.read())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(number: usize) -> NodePath {
        NodePath::parse(&format!("/{number}")).expect("valid")
    }

    #[test]
    fn hits_of_all_threads_are_summed() {
        let counters = CacheCounters::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counters.hit();
                    }
                });
            }
        });
        assert_eq!(counters.hits(), 8000);
    }

    #[test]
    fn each_cause_has_its_own_counter() {
        let table = CacheCounterTable::default();
        for (count, cause) in (1..).zip(MissCause::ALL) {
            (0..count).for_each(|_| table.miss(&path(1), cause, None));
        }
        table.of(&path(1)).recalled(true);
        table.of(&path(1)).recalled(false);
        let expected = VolumeCacheStats {
            hits: 0,
            misses_first: 1,
            misses_capacity: 2,
            misses_recalled: 3,
            misses_written: 4,
            misses_expired: 5,
            copies_recalled: 2,
            copies_recalled_unread: 1,
        };
        assert_eq!(table.read(), BTreeMap::from([(path(1), expected)]));
    }

    #[test]
    fn each_hit_is_reported_once() {
        let table = CacheCounterTable::default();
        let hits = |number, count| {
            for _ in 0..count {
                table.of(&path(number)).hit();
            }
        };
        let report = |number, reads| CachedReads { volume: path(number), reads, gaps: ReadGaps::default() };
        hits(1, 3);
        hits(2, 1);
        table.miss(&path(3), MissCause::First, None);
        assert_eq!(table.take_unreported(), [report(1, 3), report(2, 1)]);
        let mut gaps = ReadGaps::default();
        (0..2).for_each(|_| gaps.add(Duration::from_secs(1)));
        table.miss(&path(3), MissCause::Expired, Some(Duration::from_secs(1)));
        table.of(&path(3)).gap(Duration::from_secs(1));
        assert_eq!(table.take_unreported(), [CachedReads { gaps, ..report(3, 0) }], "gaps without hits");
        hits(2, 2);
        assert_eq!(table.take_unreported(), [report(2, 2)]);
        assert_eq!(table.take_unreported(), []);
        assert_eq!(table.hits(), 6, "a report changes no counter that the application reads");
    }

    #[test]
    fn forgotten_volume_leaves_its_hits() {
        let table = CacheCounterTable::default();
        let used = table.of(&path(1));
        used.hit();
        table.of(&path(2)).hit();
        (1..=3).for_each(|number| table.forget(&path(number)));
        assert_eq!(table.read().into_keys().collect::<Vec<_>>(), [path(1)], "a copy may still count there");
        drop(used);
        table.forget(&path(1));
        assert_eq!((table.read().len(), table.hits()), (0, 2));
    }

    #[test]
    fn table_is_bounded_and_loses_no_hit() {
        let table = CacheCounterTable::default();
        let used: Vec<_> = (0..VOLUMES_MAX).map(|number| table.of(&path(number))).collect();
        for counters in &used {
            counters.hit();
        }
        table.of(&path(VOLUMES_MAX)).hit();
        assert_eq!((table.read().len(), table.hits()), (VOLUMES_MAX, VOLUMES_MAX as u64 + 1), "no room for one more");
        drop(used);
        table.of(&path(VOLUMES_MAX)).hit();
        assert_eq!((table.read().len(), table.hits()), (1, VOLUMES_MAX as u64 + 2), "all others were unused");
    }
}
