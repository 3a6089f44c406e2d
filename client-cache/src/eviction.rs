//! Which copies stay in the cache. moka decides that, and never serves a read (ADR 5 in docs/adr).
//!
//! moka knows the object, the weight and the installation number of each copy. The cache notifies
//! it of installations, of a sample of hits, and of dropped copies. When it evicts a copy, the
//! eviction is queued here. The driver removes the copy if it is still the same installation, and
//! the next request notifies the server.
//!
//! - *Why moka does not serve hits:* a hit in moka takes several times as long as one in the map
//!   here (figures in benches/README.md).
//! - *Why a sample:* moka's frequency sketch only ranks objects, and one hit in 64 suffices for
//!   that.
//! - *Why the sample is queued:* a call to moka may do its housekeeping on the reader's thread.
//!   Here a reader puts the object into a buffer, or skips it if the buffer is locked or full.
//!
//! moka may lag behind: it may evict a copy that was dropped or replaced. The installation number
//! shows that, and then the eviction has no effect.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use foldhash::quality::RandomState;
use leasehold_protocol::object::{Object, ObjectKind};
use leasehold_protocol::path::NodePath;
use moka::{notification::RemovalCause, sync::Cache};
use parking_lot::Mutex;

/// The sample has about one hit in 2^6.
const SAMPLE_BITS: u32 = 6;

/// The samples that wait for moka. Further ones are skipped until the next housekeeping, a quarter
/// of a second to about a second after the last. Some thousand samples a second rank the objects
/// well enough.
const SAMPLES_MAX: usize = 1024;

/// moka's value for a copy.
#[derive(Debug, Clone, Copy)]
struct EvictionEntry {
    installation: u64,
    weight: u32,
}

/// An installation that moka has evicted.
pub(crate) type Eviction = (Object, u64);

/// The evictions, in moka's order. Bounded by the number of copies: moka evicts each once.
#[derive(Debug, Default)]
struct EvictionQueue {
    unwanted: Mutex<VecDeque<Eviction>>,
    has_some: AtomicBool,
}

#[derive(Debug)]
struct HitSamples {
    objects: Mutex<Vec<Object>>,
    is_full: AtomicBool,
}

/// Chooses which copies to evict.
#[derive(Debug)]
pub(crate) struct EvictionPolicy {
    moka: Cache<Object, EvictionEntry, RandomState>,
    queue: Arc<EvictionQueue>,
    samples: HitSamples,
}

impl EvictionPolicy {
    /// For copies of at most `capacity_bytes` in total.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let queue = Arc::new(EvictionQueue::default());
        let unwanted = Arc::clone(&queue);
        let moka = Cache::builder()
            // With a capacity of 0, moka would not record any copy.
            .max_capacity(capacity_bytes.max(1))
            .weigher(|_: &Object, token: &EvictionEntry| token.weight)
            .eviction_listener(move |object: Arc<Object>, token: EvictionEntry, cause| {
                if cause != RemovalCause::Replaced {
                    unwanted.unwanted.lock().push_back(((*object).clone(), token.installation));
                    unwanted.has_some.store(true, Relaxed);
                }
            })
            .build_with_hasher(RandomState::default());
        let samples =
            HitSamples { objects: Mutex::new(Vec::with_capacity(SAMPLES_MAX)), is_full: AtomicBool::new(false) };
        Self { moka, queue, samples }
    }

    /// Records a new copy, which replaces any other copy of the object.
    pub(crate) fn installed(&self, object: &Object, installation: u64, weight: u32) {
        self.moka.insert(object.clone(), EvictionEntry { installation, weight });
    }

    /// Removes the object: it has no copy.
    pub(crate) fn forget(&self, object: &Object) {
        self.moka.invalidate(object);
    }

    /// Removes all objects: there are no copies.
    pub(crate) fn forget_all(&self) {
        self.moka.invalidate_all();
    }

    /// Samples a hit. `count` is about the number of hits of this thread. Allocates nothing and
    /// does not wait.
    #[inline]
    pub(crate) fn served(&self, kind: ObjectKind, path: &NodePath, count: u64) {
        // Fibonacci hashing: the sample has no period, so periodic reads cannot avoid it.
        if count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SAMPLE_BITS) == 0 {
            self.sample(kind, path);
        }
    }

    #[cold]
    fn sample(&self, kind: ObjectKind, path: &NodePath) {
        if self.samples.is_full.load(Relaxed) {
            return;
        }
        if let Some(mut objects) = self.samples.objects.try_lock() {
            objects.push(Object { path: path.clone(), kind });
            if objects.len() == SAMPLES_MAX {
                self.samples.is_full.store(true, Relaxed);
            }
        }
    }

    /// Passes the samples to moka, and lets it evict. Takes up to some milliseconds.
    pub(crate) fn housekeep(&self) {
        let mut sampled = Vec::with_capacity(SAMPLES_MAX);
        std::mem::swap(&mut *self.samples.objects.lock(), &mut sampled);
        self.samples.is_full.store(false, Relaxed);
        for object in sampled {
            self.moka.get(&object);
        }
        self.moka.run_pending_tasks();
    }

    /// The next installation to remove.
    pub(crate) fn next_unwanted(&self) -> Option<Eviction> {
        if !self.queue.has_some.load(Relaxed) {
            return None;
        }
        let mut unwanted = self.queue.unwanted.lock();
        let next = unwanted.pop_front();
        if next.is_none() {
            self.queue.has_some.store(false, Relaxed);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(i: u64) -> Object {
        Object::data(NodePath::parse(&format!("/{i}")).expect("valid"))
    }

    #[test]
    fn what_exceeds_the_capacity_is_unwanted() {
        let policy = EvictionPolicy::new(1000);
        for i in 0..100 {
            policy.installed(&object(i), i, 100);
            policy.housekeep();
        }
        let unwanted = std::iter::from_fn(|| policy.next_unwanted()).count();
        assert_eq!(unwanted, 90);
        assert!(policy.next_unwanted().is_none());
    }

    #[test]
    fn replacing_is_not_eviction() {
        let policy = EvictionPolicy::new(1000);
        policy.installed(&object(1), 1, 100);
        policy.installed(&object(1), 2, 100);
        policy.housekeep();
        assert_eq!(policy.next_unwanted(), None);
    }

    #[test]
    fn about_one_hit_in_sixty_four_is_sampled_up_to_the_bound() {
        let policy = EvictionPolicy::new(1000);
        let path = NodePath::root();
        for count in 0..6400 {
            policy.served(ObjectKind::Data, &path, count);
        }
        let sampled = policy.samples.objects.lock().len();
        assert!((90..=110).contains(&sampled), "{sampled}");
        for count in 0..1_000_000 {
            policy.served(ObjectKind::Data, &path, count);
        }
        assert_eq!(policy.samples.objects.lock().len(), SAMPLES_MAX);
        policy.housekeep();
        assert!(policy.samples.objects.lock().is_empty());
    }
}
