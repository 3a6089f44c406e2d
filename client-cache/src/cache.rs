//! The copies, where readers find them.
//!
//! Two concurrent maps, one for data and one for children, from the code that a path carries to a
//! slot of half a line of a processor's cache: when the object lease ends, a pointer to the
//! [`VolumeLeaseCell`] that says when the volume lease does, and a pointer to the content. The path
//! itself is with the content, and is compared after all else.
//!
//! The deadlines are in the slot, not with the content, because the clock is what a hit waits at:
//! reading it waits until all earlier loads have ended, so what is loaded before it adds up, while
//! what is loaded after it overlaps with what the reader does next. Slots are small because what is
//! loaded at random is cheap only as long as all of it fits into the processor's caches: some
//! megabytes. (Measured with 100,000 copies, in scratch programs of the same shape: 64 bytes a slot
//! 270 to 390 ns, 32 bytes 215 to 275; everything in one allocation behind a pointer 340 to 450.)
//!
//! # A hit
//!
//! Look up the slot and keep its shard locked for reading; read the two deadlines; *then* read the
//! clock; compare (S1, as [`may_use`](leasehold_protocol::holder::validity::may_use) has it);
//! compare the path; take a pointer to the content; unlock. Nothing is allocated, nobody is waited
//! for but a driver that is changing this very shard, which takes it some tens of nanoseconds.
//!
//! # Why that is linearizable
//!
//! Let *t* be the moment at which the volume's deadline was loaded.
//!
//! - *The copy had not been dropped at t.* The driver drops a copy by taking it out of the map, for
//!   which it needs the shard to itself; the reader has it from the lookup until after *t*. A copy
//!   is dropped before the consent that names it is sent (the driver carries effects out in order),
//!   so no write that needed this consent had taken effect at *t*. There is no flag in the copy
//!   that says *dropped*: a reader never judges a copy that is out of the map.
//! - *The volume lease had not been given up at t*: the driver ends the cell before it sends
//!   anything that lets a server forget the lease.
//! - *Both leases held at t* (S1): the clock was read after *t*, and the deadlines had not come
//!   even then. A thread, a process or a machine that is suspended between the lookup and the clock
//!   sees, when it reads the clock, that the time is over.
//!
//! So at *t* the content was the object's, and *t* lies between the beginning and the end of the
//! read. What happens between *t* and the return makes no difference: a reader that is suspended
//! there for an hour returns a value that was current during its call.
//!
//! An installation is seen whole or not at all, as it is put into the map under the shard's lock;
//! that it is not older than a recall is the driver's care (S4): it installs, revalidates and drops
//! under one lock of its own, and it alone changes the maps.
//!
//! # Two paths of one code
//!
//! Codes have 64 bits, and two paths may have the same. The map then has the one that was installed
//! last: the other is read from a server, as if it had been evicted. No answer depends on it, since
//! no copy is served whose path was not compared.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use leasehold_protocol::{
    holder::validity::CopyValidity,
    id::Stamp,
    object::{Content, Object, ObjectKind},
    path::NodePath,
    time::Instant,
};

use crate::{
    clock,
    path_hash::PathHashState,
    policy::Policy,
    shared_content::SharedContent,
    stats::{Counters, count},
    sync::DashMap,
    volume_leases::VolumeLeaseCell,
};

/// What a copy is counted with beside its content and its path: the map's entry, moka's, and what
/// the rules remember, as measured by allocated bytes, rounded up.
pub const ENTRY_OVERHEAD_BYTES: u64 = 512;

/// The parts that each map is locked in: enough that two threads rarely meet in one on the machines
/// of today.
const SHARDS: usize = 256;

type CopyMap = DashMap<u64, CopySlot, PathHashState>;

/// What a hit looks at before it reads the clock.
#[derive(Debug)]
struct CopySlot {
    /// When the object lease ends.
    until: Instant,
    volume: Arc<VolumeLeaseCell>,
    content: SharedContent,
}

impl CopySlot {
    /// When the first of its two leases ends (S1).
    #[inline]
    fn usable_until(&self) -> Instant {
        self.until.min(self.volume.until())
    }
}

/// A read that was answered from memory.
#[derive(Debug)]
pub(crate) struct CacheHit {
    pub(crate) content: SharedContent,
    /// When it was, on this client's clock.
    pub(crate) at: Instant,
    /// Until when the copy may be used if nothing more is heard.
    pub(crate) until: Instant,
}

/// The copies.
#[derive(Debug)]
pub(crate) struct Cache {
    data: CopyMap,
    children: CopyMap,
    policy: Policy,
    installations: AtomicU64,
    pub(crate) counters: Counters,
}

impl Cache {
    /// An empty cache for copies of at most so many bytes.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let copies = || DashMap::with_capacity_and_hasher_and_shard_amount(0, PathHashState::default(), SHARDS);
        Self {
            data: copies(),
            children: copies(),
            policy: Policy::new(capacity_bytes),
            installations: AtomicU64::default(),
            counters: Counters::default(),
        }
    }

    fn of(&self, kind: ObjectKind) -> &CopyMap {
        match kind {
            ObjectKind::Data => &self.data,
            ObjectKind::Children => &self.children,
        }
    }

    /// A copy that may be used now. Called by any thread at any time.
    #[inline]
    pub(crate) fn hit(&self, kind: ObjectKind, path: &NodePath) -> Option<CacheHit> {
        let copy = self.of(kind).get(&path.code())?;
        let until = copy.usable_until();
        // After the deadlines were read, and before the shard is let go: see above.
        let at = clock::now();
        if at >= until || !copy.content.is_of(path) {
            return None;
        }
        copy.volume.note_used();
        let hit = CacheHit { content: copy.content.clone(), at, until };
        drop(copy);
        let count = self.counters.hit();
        self.policy.served(kind, path, count);
        Some(hit)
    }

    /// Until when the copy that there is may be used, if it may be now. Counts as no use.
    pub(crate) fn usable_until(&self, kind: ObjectKind, path: &NodePath) -> Option<Instant> {
        let copy = self.of(kind).get(&path.code())?;
        let until = copy.usable_until();
        (clock::now() < until && copy.content.is_of(path)).then_some(until)
    }

    /// How many copies there are.
    pub(crate) fn len(&self) -> usize {
        self.data.len() + self.children.len()
    }

    // What follows is called under the driver's lock only.

    /// Keeps a copy, in place of any other of the object. Gives it back as readers will see it.
    pub(crate) fn install(
        &self,
        object: &Object,
        content: Arc<Content>,
        validity: &CopyValidity,
        volume: Arc<VolumeLeaseCell>,
    ) -> SharedContent {
        let installation = self.installations.fetch_add(1, Relaxed);
        let weight = content.weight() as u64 + object.path.as_str().len() as u64 + ENTRY_OVERHEAD_BYTES;
        let content = SharedContent::copy(object.path.clone(), content, installation, validity.stamp);
        let copy = CopySlot { until: validity.until, volume, content: content.clone() };
        // Bound so that an older content is freed after the shard is unlocked.
        let _older = self.of(object.kind).insert(object.path.code(), copy);
        self.policy.installed(object, installation, u32::try_from(weight).unwrap_or(u32::MAX));
        content
    }

    /// The copy of the object is good again by this. False if there is none.
    pub(crate) fn revalidate(&self, object: &Object, validity: &CopyValidity, volume: Arc<VolumeLeaseCell>) -> bool {
        match self.of(object.kind).get_mut(&object.path.code()) {
            Some(mut copy) if copy.content.is_of(&object.path) => {
                copy.until = validity.until;
                copy.volume = volume;
                copy.content.set_stamp(validity.stamp);
                true
            }
            _ => false,
        }
    }

    /// The content of the copy that came with this grant, whether or not it may be used.
    pub(crate) fn content(&self, object: &Object, stamp: Stamp) -> Option<SharedContent> {
        let copy = self.of(object.kind).get(&object.path.code())?;
        (copy.content.is_of(&object.path) && copy.content.stamp() == Some(stamp)).then(|| copy.content.clone())
    }

    /// Takes a copy out: from now on no read is served from it. The policy has yet to be told.
    pub(crate) fn remove(&self, object: &Object) {
        self.of(object.kind).remove_if(&object.path.code(), |_, copy| copy.content.is_of(&object.path));
    }

    /// Takes all copies out. Whoever calls has ended all volumes before.
    pub(crate) fn clear(&self) {
        self.data.clear();
        self.children.clear();
        self.policy.forget_all();
    }

    /// Tells the policy that the object has no copy, if it has none.
    pub(crate) fn forget(&self, object: &Object) {
        let copy = self.of(object.kind).get(&object.path.code());
        if copy.is_none_or(|copy| !copy.content.is_of(&object.path)) {
            self.policy.forget(object);
        }
    }

    /// Takes out the next copy that has to go for lack of room. Names its object and its grant.
    pub(crate) fn evict_next(&self) -> Option<(Object, Stamp)> {
        while let Some((object, installation)) = self.policy.next_unwanted() {
            let is_that = |_: &u64, copy: &CopySlot| copy.content.installation() == Some(installation);
            let evicted = self.of(object.kind).remove_if(&object.path.code(), is_that);
            if let Some(stamp) = evicted.and_then(|(_, copy)| copy.content.stamp()) {
                count(&self.counters.evictions);
                return Some((object, stamp));
            }
        }
        None
    }

    /// Lets the policy find out what has to go. Called without the driver's lock.
    pub(crate) fn housekeep(&self) {
        self.policy.housekeep();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_protocol::{
        id::{Epoch, Incarnation},
        object::Children,
    };

    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("valid")
    }

    fn stamp(sequence: u64) -> Stamp {
        Stamp { epoch: Epoch(1), sequence }
    }

    fn validity(sequence: u64, until: Instant) -> CopyValidity {
        CopyValidity { stamp: stamp(sequence), volume: NodePath::root(), incarnation: Incarnation(3), until }
    }

    fn later() -> Instant {
        clock::now().after(Duration::from_secs(60))
    }

    fn lease(until: Instant) -> Arc<VolumeLeaseCell> {
        let cell = VolumeLeaseCell::default();
        cell.set(until);
        Arc::new(cell)
    }

    fn absent() -> Arc<Content> {
        Arc::new(Content::Data(None))
    }

    #[test]
    fn what_a_hit_looks_at_before_the_clock_is_half_a_cache_line() {
        assert_eq!(size_of::<(u64, CopySlot)>(), 32);
    }

    #[test]
    fn cached_copy_is_served_only_while_both_leases_last() {
        let cache = Cache::new(1 << 20);
        let object = Object::data(path("/a"));
        let cell = lease(later());
        cache.install(&object, absent(), &validity(1, later()), Arc::clone(&cell));
        assert!(cache.hit(ObjectKind::Data, &object.path).is_some());
        assert!(cache.hit(ObjectKind::Children, &object.path).is_none(), "another object");
        cell.set(Instant::ZERO);
        assert!(cache.hit(ObjectKind::Data, &object.path).is_none(), "the volume lease is over, or the copy waits");
        cell.set(later());
        assert!(cache.hit(ObjectKind::Data, &object.path).is_some());
        assert!(cache.revalidate(&object, &validity(2, Instant::ZERO), cell));
        assert!(cache.hit(ObjectKind::Data, &object.path).is_none(), "the object lease is over");
        assert!(cache.content(&object, stamp(1)).is_none() && cache.content(&object, stamp(2)).is_some());
        cache.remove(&object);
        assert_eq!((cache.len(), cache.counters.read(0).hits), (0, 2));
    }

    #[test]
    fn copy_of_other_path_with_same_code_is_left_alone() {
        let cache = Cache::new(1 << 20);
        let (here, there) = (Object::data(path("/a")), Object::data(path("/b")));
        cache.install(&here, absent(), &validity(1, later()), lease(later()));
        // As if both had the same code.
        let (_, copy) = cache.data.remove(&here.path.code()).expect("installed");
        cache.data.insert(there.path.code(), copy);
        assert!(
            cache.hit(ObjectKind::Data, &there.path).is_none()
                && cache.usable_until(ObjectKind::Data, &there.path).is_none()
        );
        assert!(cache.content(&there, stamp(1)).is_none());
        assert!(!cache.revalidate(&there, &validity(2, later()), lease(later())));
        cache.remove(&there);
        assert_eq!(cache.len(), 1, "it is not there's to remove");
    }

    #[test]
    fn eviction_takes_no_later_installation() {
        let cache = Cache::new(0);
        let object = Object::children(path("/a"));
        let names = Children { names: vec!["b".to_owned()], version: 1, modify_revision: Default::default() };
        let content = Arc::new(Content::Children(Some(names)));
        let cell = lease(later());
        cache.install(&object, Arc::clone(&content), &validity(1, later()), Arc::clone(&cell));
        cache.housekeep();
        assert_eq!(cache.evict_next(), Some((object.clone(), stamp(1))));
        assert_eq!(cache.evict_next(), None);
        cache.install(&object, Arc::clone(&content), &validity(2, later()), Arc::clone(&cell));
        cache.housekeep();
        cache.install(&object, content, &validity(3, later()), cell);
        assert_eq!(cache.evict_next(), None, "what was to go had been replaced");
        cache.housekeep();
        assert_eq!(cache.evict_next(), Some((object, stamp(3))));
    }
}
