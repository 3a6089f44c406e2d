//! What is worth keeping: moka, as an engine that decides and never serves.
//!
//! moka knows each copy's object, its weight and the number of its installation, and is told of
//! installations, of a sample of hits, and of what has been dropped. When it wants something gone,
//! that is queued here; the driver takes the copy out of the cache if it is still that
//! installation, and the server is told with the next request.
//!
//! **Why it does not answer the hits.** With 100,000 objects a hit in moka costs 840 ns on one
//! thread; in the hash map that serves here, 77 ns. **Why a sample.** Its sketch of frequencies
//! only ranks objects, and a sixty-fourth of the hits ranks them too. **Why the sample is queued.**
//! Telling moka may make it do its housekeeping on the spot, on a reader's thread; a reader here
//! puts the object into a buffer if that is free and has room, and else forgets it.
//!
//! moka's own idea of what it holds may lag: it may want gone what is gone, or has been installed
//! anew since. Installations have numbers for that reason, and both mistakes have no effect.

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

/// About one hit in so many is told: 1 in 2^6.
const SAMPLE_BITS: u32 = 6;

/// Samples that wait to be told. The rest is forgotten until the next housekeeping, a quarter of a
/// second later at most while the cache is in use: some thousand samples a second rank the objects
/// well enough.
const SAMPLES_MAX: usize = 1024;

/// What moka keeps for a copy.
#[derive(Debug, Clone, Copy)]
struct PolicyEntry {
    installation: u64,
    weight: u32,
}

/// An installation that moka wants gone.
pub(crate) type Eviction = (Object, u64);

/// What is to go, in moka's order. Bounded by the copies that there are: each is wanted gone once.
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

/// The policy.
#[derive(Debug)]
pub(crate) struct Policy {
    moka: Cache<Object, PolicyEntry, RandomState>,
    queue: Arc<EvictionQueue>,
    samples: HitSamples,
}

impl Policy {
    /// A policy that keeps copies of at most so many bytes.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let queue = Arc::new(EvictionQueue::default());
        let unwanted = Arc::clone(&queue);
        let moka = Cache::builder()
            // With none at all moka does not even take note of what there is.
            .max_capacity(capacity_bytes.max(1))
            .weigher(|_: &Object, token: &PolicyEntry| token.weight)
            .eviction_listener(move |object: Arc<Object>, token: PolicyEntry, cause| {
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

    /// A copy was installed, in place of any other of the object.
    pub(crate) fn installed(&self, object: &Object, installation: u64, weight: u32) {
        self.moka.insert(object.clone(), PolicyEntry { installation, weight });
    }

    /// There is no copy of the object any more.
    pub(crate) fn forget(&self, object: &Object) {
        self.moka.invalidate(object);
    }

    /// There is no copy of anything any more.
    pub(crate) fn forget_all(&self) {
        self.moka.invalidate_all();
    }

    /// A copy was served, the `count`th by the thread or so. Allocates nothing and waits for
    /// nobody.
    #[inline]
    pub(crate) fn served(&self, kind: ObjectKind, path: &NodePath, count: u64) {
        // Fibonacci hashing: which hits are taken has no period that reads could have too.
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

    /// Tells moka what was served, and lets it find out what has to go. Takes up to milliseconds.
    pub(crate) fn housekeep(&self) {
        let mut sampled = Vec::with_capacity(SAMPLES_MAX);
        std::mem::swap(&mut *self.samples.objects.lock(), &mut sampled);
        self.samples.is_full.store(false, Relaxed);
        for object in sampled {
            self.moka.get(&object);
        }
        self.moka.run_pending_tasks();
    }

    /// The next installation that is to go.
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
        let policy = Policy::new(1000);
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
        let policy = Policy::new(1000);
        policy.installed(&object(1), 1, 100);
        policy.installed(&object(1), 2, 100);
        policy.housekeep();
        assert_eq!(policy.next_unwanted(), None);
    }

    #[test]
    fn about_one_hit_in_sixty_four_is_sampled_up_to_the_bound() {
        let policy = Policy::new(1000);
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
