//! The copies, where readers find them.
//!
//! Two concurrent maps from paths, one for data and one for children, so that a lookup needs nothing but the path. An entry
//! has a pointer to the content, and beside it what it may be used by and a pointer to its [`VolumeCell`].
//!
//! The deadlines are in the entry itself, not behind a pointer: what a hit costs is the memory that it touches, as soon as
//! the copies are more than a processor's cache holds. (One more pointer made a hit among 100,000 copies slower by half, as
//! measured in both orders on a busy machine; the size of the entry made no difference.)
//!
//! # A hit
//!
//! Look up the entry and keep its shard locked for reading; read the volume's validity; *then* read the clock; compare
//! ([`may_use`]); take a pointer to the content; unlock. Nothing is allocated, nobody is waited for but a driver that is changing
//! this very shard, which takes it some tens of nanoseconds.
//!
//! # Why that is linearizable
//!
//! Let *t* be the moment at which the clock was read.
//!
//! - *The copy had not been dropped at t.* The driver drops a copy by taking it out of the map, for which it needs the shard to
//!   itself; the reader has it from the lookup until after *t*. A copy is dropped before the consent that names it is sent
//!   (the driver carries effects out in order), so no write that needed this consent had taken effect at *t*. There is no flag
//!   in the copy that says *dropped*: a reader never judges a copy that is out of the map.
//! - *Both leases held at t* (S1): the two deadlines were read before the clock. A thread, a process or a machine that is suspended
//!   between the lookup and the clock sees, when it reads the clock, that the time is over. A write that waited for the
//!   leases to end instead of the consent had therefore not taken effect at *t* either.
//!
//! So at *t* the content was the object's, and *t* lies between the beginning and the end of the read. What happens
//! between *t* and the return makes no difference: a reader that is suspended there for an hour returns a value that was
//! current during its call.
//!
//! An installation is seen whole or not at all, as it is put into the map under the shard's lock; that it is not older than
//! a recall is the driver's care (S4): it installs, revalidates and drops under one lock of its own, and it alone changes the maps.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use dashmap::DashMap;
use leasehold_protocol::{
    holder::validity::{CopyLease, CopyValidity, may_use},
    id::Stamp,
    object::{Content, Kind, Object},
    path::Path,
    time::Instant,
};

use crate::{
    clock,
    key::{AsPath, Key, Scatter},
    policy::Policy,
    stats::{Counters, count},
    volume_cell::VolumeCell,
};

/// What a copy is counted with beside its content and its path: the map's entry, moka's, and what the rules remember, as
/// measured by allocated bytes, rounded up.
pub const ENTRY_OVERHEAD_BYTES: u64 = 512;

/// The parts that each map is locked in: enough that two threads rarely meet in one on the machines of today.
const SHARDS: usize = 256;

type Copies = DashMap<Key, Copy, Scatter>;

/// What a hit looks at, and no more: with its key it takes one line of a processor's cache.
#[derive(Debug)]
struct Copy {
    content: Arc<Content>,
    lease: CopyLease,
    volume: Arc<VolumeCell>,
    record: Box<Record>,
}

/// What is asked of a copy when it goes or changes.
#[derive(Debug)]
struct Record {
    stamp: Stamp,
    /// Which installation it is, among all of this cache.
    installation: u64,
}

/// A read that was answered from memory.
#[derive(Debug)]
pub(crate) struct Hit {
    pub(crate) content: Arc<Content>,
    /// When it was, on this client's clock.
    pub(crate) at: Instant,
    /// Until when the copy may be used if nothing more is heard.
    pub(crate) until: Instant,
}

/// The copies.
#[derive(Debug)]
pub(crate) struct Cache {
    data: Copies,
    children: Copies,
    policy: Policy,
    installations: AtomicU64,
    pub(crate) counters: Counters,
}

impl Cache {
    /// An empty cache for copies of at most so many bytes.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let copies = || DashMap::with_capacity_and_hasher_and_shard_amount(0, Scatter::default(), SHARDS);
        Self {
            data: copies(),
            children: copies(),
            policy: Policy::new(capacity_bytes),
            installations: AtomicU64::default(),
            counters: Counters::default(),
        }
    }

    fn of(&self, kind: Kind) -> &Copies {
        match kind {
            Kind::Data => &self.data,
            Kind::Children => &self.children,
        }
    }

    /// A copy that may be used now. Called by any thread at any time.
    #[inline]
    pub(crate) fn hit(&self, kind: Kind, path: &Path) -> Option<Hit> {
        let copy = self.of(kind).get::<dyn AsPath>(path)?;
        let volume = copy.volume.validity()?;
        // After all that it is compared with was read, and before the shard is let go: see above.
        let at = clock::now();
        if !may_use(copy.lease, &volume, at) {
            return None;
        }
        copy.volume.note_used();
        let hit = Hit { content: Arc::clone(&copy.content), at, until: copy.lease.until.min(volume.until) };
        drop(copy);
        let count = self.counters.hit();
        self.policy.served(kind, path, count);
        Some(hit)
    }

    /// Until when the copy that there is may be used, if it may be now. Counts as no use.
    pub(crate) fn usable_until(&self, kind: Kind, path: &Path) -> Option<Instant> {
        let copy = self.of(kind).get::<dyn AsPath>(path)?;
        let volume = copy.volume.validity()?;
        may_use(copy.lease, &volume, clock::now()).then(|| copy.lease.until.min(volume.until))
    }

    /// How many copies there are.
    pub(crate) fn len(&self) -> usize {
        self.data.len() + self.children.len()
    }

    // What follows is called under the driver's lock only.

    /// Keeps a copy, in place of any other of the object.
    pub(crate) fn install(
        &self,
        object: &Object,
        content: Arc<Content>,
        validity: CopyValidity,
        volume: Arc<VolumeCell>,
    ) {
        let installation = self.installations.fetch_add(1, Relaxed);
        let weight = content.weight() as u64 + object.path.as_str().len() as u64 + ENTRY_OVERHEAD_BYTES;
        let record = Box::new(Record { stamp: validity.stamp, installation });
        let copy = Copy { content, lease: validity.lease(), volume, record };
        // Bound so that an older content is freed after the shard is unlocked.
        let _older = self.of(object.kind).insert(Key(object.path.clone()), copy);
        self.policy.installed(object, installation, u32::try_from(weight).unwrap_or(u32::MAX));
    }

    /// The copy of the object is good again by this. False if there is none.
    pub(crate) fn revalidate(&self, object: &Object, validity: CopyValidity, volume: Arc<VolumeCell>) -> bool {
        match self.of(object.kind).get_mut::<dyn AsPath>(&object.path) {
            Some(mut copy) => {
                copy.lease = validity.lease();
                copy.record.stamp = validity.stamp;
                copy.volume = volume;
                true
            }
            None => false,
        }
    }

    /// The content of the copy that came with this grant, whether or not it may be used.
    pub(crate) fn content(&self, object: &Object, stamp: Stamp) -> Option<Arc<Content>> {
        let copy = self.of(object.kind).get::<dyn AsPath>(&object.path)?;
        (copy.record.stamp == stamp).then(|| Arc::clone(&copy.content))
    }

    /// Takes a copy out: from now on no read is served from it. The policy has yet to be told.
    pub(crate) fn remove(&self, object: &Object) {
        self.of(object.kind).remove::<dyn AsPath>(&object.path);
    }

    /// Takes all copies out. Whoever calls has ended all volumes before.
    pub(crate) fn clear(&self) {
        self.data.clear();
        self.children.clear();
        self.policy.forget_all();
    }

    /// Tells the policy that the object has no copy, if it has none.
    pub(crate) fn forget(&self, object: &Object) {
        if !self.of(object.kind).contains_key::<dyn AsPath>(&object.path) {
            self.policy.forget(object);
        }
    }

    /// Takes out the next copy that has to go for lack of room. Names its object and its grant.
    pub(crate) fn evict_next(&self) -> Option<(Object, Stamp)> {
        while let Some((object, installation)) = self.policy.next_unwanted() {
            let is_that = |_: &Key, copy: &Copy| copy.record.installation == installation;
            if let Some((_, copy)) = self.of(object.kind).remove_if::<dyn AsPath>(&object.path, is_that) {
                count(&self.counters.evictions);
                return Some((object, copy.record.stamp));
            }
        }
        None
    }

    /// Lets the policy find out what has to go. Called without the driver's lock.
    pub(crate) fn keep_house(&self) {
        self.policy.keep_house();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_protocol::{
        holder::validity::VolumeValidity,
        id::{Epoch, Incarnation},
        object::Children,
    };

    use super::*;

    fn path(text: &str) -> Path {
        Path::parse(text).expect("valid")
    }

    fn stamp(sequence: u64) -> Stamp {
        Stamp { epoch: Epoch(1), sequence }
    }

    fn validity(sequence: u64, until: Instant) -> CopyValidity {
        CopyValidity { stamp: stamp(sequence), volume: Path::root(), incarnation: Incarnation(3), until }
    }

    fn later() -> Instant {
        clock::now().after(Duration::from_secs(60))
    }

    fn volume(since: u64, until: Instant) -> Arc<VolumeCell> {
        let cell = VolumeCell::default();
        cell.set(VolumeValidity { since: Incarnation(since), until });
        Arc::new(cell)
    }

    fn absent() -> Arc<Content> {
        Arc::new(Content::Data(None))
    }

    #[test]
    fn a_copy_is_served_while_both_leases_hold_and_it_is_not_dropped() {
        let cache = Cache::new(1 << 20);
        let object = Object::data(path("/a"));
        let cell = volume(3, later());
        cache.install(&object, absent(), validity(1, later()), Arc::clone(&cell));
        assert!(cache.hit(Kind::Data, &object.path).is_some());
        assert!(cache.hit(Kind::Children, &object.path).is_none(), "another object");
        assert!(cell.take_used());
        cell.set(VolumeValidity { since: Incarnation(4), until: later() });
        assert!(cache.hit(Kind::Data, &object.path).is_none(), "it waits to be validated");
        cell.set(VolumeValidity::default());
        assert!(cache.hit(Kind::Data, &object.path).is_none(), "the volume lease is over");
        cell.set(VolumeValidity { since: Incarnation(1), until: later() });
        assert!(cache.hit(Kind::Data, &object.path).is_some());
        assert!(cache.revalidate(&object, validity(2, Instant::ZERO), cell));
        assert!(cache.hit(Kind::Data, &object.path).is_none(), "the object lease is over");
        assert!(cache.content(&object, stamp(1)).is_none() && cache.content(&object, stamp(2)).is_some());
        cache.remove(&object);
        assert_eq!((cache.len(), cache.counters.read(0).hits), (0, 2));
    }

    #[test]
    fn eviction_takes_no_later_installation() {
        let cache = Cache::new(0);
        let object = Object::children(path("/a"));
        let names = Children { names: vec!["b".to_owned()], version: 1, modify_revision: Default::default() };
        let content = Arc::new(Content::Children(Some(names)));
        let cell = volume(3, later());
        cache.install(&object, Arc::clone(&content), validity(1, later()), Arc::clone(&cell));
        cache.keep_house();
        assert_eq!(cache.evict_next(), Some((object.clone(), stamp(1))));
        assert_eq!(cache.evict_next(), None);
        cache.install(&object, Arc::clone(&content), validity(2, later()), Arc::clone(&cell));
        cache.keep_house();
        cache.install(&object, content, validity(3, later()), cell);
        assert_eq!(cache.evict_next(), None, "what was to go had been replaced");
        cache.keep_house();
        assert_eq!(cache.evict_next(), Some((object, stamp(3))));
    }
}
