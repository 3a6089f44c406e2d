//! The cached copies. Readers look them up here. Implements S1 in docs/PROTOCOL.md, with
//! `volume_leases`.
//!
//! There are two concurrent maps ([`CopyMap`]): one for data, one for lists of children. A slot has
//! the deadline of the object lease, and pointers to the content and to the [`VolumeLeaseCell`].
//! The cell has the deadline of the volume lease. The path is stored with the content, and is
//! compared last.
//!
//! A hit needs both deadlines before it reads the clock. The processor reads the clock only when
//! all earlier loads have completed. So few loads should come before it. The slot has one
//! deadline, and a pointer to the other. A hit loads the content only after the clock.
//!
//! Slots are small because random loads are cheap only if all slots fit into the processor's caches
//! (some megabytes). A hit among 100,000 copies took 215 to 275 ns with slots of 32 bytes, and 270
//! to 390 ns with 64 bytes. With an allocation for each slot it took 340 to 450 ns.
//!
//! # A hit
//!
//! 1. Look up the slot. From here on its shard is locked for reading.
//! 2. Load the deadline of the volume lease, *then* the deadline of the object lease.
//! 3. *Then* read the clock and compare (S1; the rules'
//!    [`may_use`](leasehold_protocol::holder::validity::may_use) does the same).
//! 4. Compare the path, copy the pointer to the content, count the hit, and unlock the shard.
//!
//! A hit allocates nothing. It waits only while the driver changes the same shard: some tens of
//! nanoseconds. If readers hold up a change, the readers that come next yield a few times
//! ([`CopyMap`]). The driver never waits for a reader.
//!
//! # Why a hit is linearizable
//!
//! Let *t* be the moment at which the reader loaded the volume's deadline.
//!
//! - *The copy was in the map at t.* The reader has the read lock from the lookup until after *t*.
//!   Only a thread with the write lock puts a slot into the map, or another slot in its place.
//! - *The copy had not been dropped at t.* To drop a copy, the driver clears the deadline in the
//!   slot, and never sets it again. The reader loaded that deadline after *t*, and it was not
//!   clear. The driver executes effects in order, so it drops a copy before it consents to the
//!   recall. So no write that waited for this consent had taken effect at *t*.
//! - *The client had not ended the volume lease at t.* The driver clears the cell before it sends a
//!   message that lets a server end the lease.
//! - *Both leases held at t* (S1). The reader read the clock after *t*, and both deadlines were
//!   still ahead. If the thread, process or machine was suspended before that, the clock has
//!   counted the suspension.
//!
//! So at *t* the copy had the object's current content, and *t* is within the call. A reader that
//! is suspended after *t* still returns a value that was current during its call.
//!
//! The order of the two loads matters. When a new volume lease revives copies, the driver drops the
//! changed ones, and then sets the cell again. A reader with the other order could load the
//! deadline in the slot before the drop, and that in the cell after the revival.
//!
//! A server can validate a copy during a hit: then the deadline in the slot is later than that at
//! *t*. The content was current at *t* all the same. The server found that the object had not
//! changed since the copy's first grant. If it compared after *t*, the object had not changed at
//! *t* either. If it compared before *t*, it leased the object to this client at that moment, and
//! that lease still held at *t*.
//!
//! An installation is atomic for readers, because the map changes under the shard's lock. Only the
//! driver changes the maps, under its own lock. So no copy that it installs is older than a handled
//! recall (S4). An installation that waits for a shard is not visible to readers. A recall ends it
//! where it waits.
//!
//! # Two paths with one code
//!
//! If two paths have one code, the map has only the copy that was installed last. Reads of the
//! other path go to a server, as after an eviction. No answer is wrong, because a hit compares the
//! path.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
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
    copy_map::{CopyMap, CopySlot, ReadersHeld},
    dropped_copies::{DroppedCopies, MissCause},
    eviction::EvictionPolicy,
    shared_content::SharedContent,
    stats::{Counters, count},
    volume_leases::VolumeLeaseCell,
};

/// The bytes that a copy counts in addition to its content and its path. They are for the entries
/// in the map, in moka and in the rules: measured allocations, rounded up.
pub const ENTRY_OVERHEAD_BYTES: u64 = 512;

/// A read that was answered from memory.
#[derive(Debug)]
pub(crate) struct CacheHit {
    pub(crate) content: SharedContent,
    /// The time of the read, on this client's clock.
    pub(crate) at: Instant,
    /// When the copy's leases end, unless they are renewed.
    pub(crate) until: Instant,
}

/// A content that was current `age` ago.
#[derive(Debug)]
pub(crate) struct RecentCopy {
    pub(crate) content: SharedContent,
    pub(crate) age: Duration,
}

/// The cached copies of one client.
#[derive(Debug)]
pub(crate) struct Cache {
    data: CopyMap,
    children: CopyMap,
    eviction: EvictionPolicy,
    installations: AtomicU64,
    dropped: DroppedCopies,
    pub(crate) counters: Counters,
}

impl Cache {
    /// An empty cache for copies of at most `capacity_bytes`.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self {
            data: CopyMap::new(),
            children: CopyMap::new(),
            eviction: EvictionPolicy::new(capacity_bytes),
            installations: AtomicU64::default(),
            dropped: DroppedCopies::default(),
            counters: Counters::default(),
        }
    }

    fn of(&self, kind: ObjectKind) -> &CopyMap {
        match kind {
            ObjectKind::Data => &self.data,
            ObjectKind::Children => &self.children,
        }
    }

    /// A copy that may be used now. Any thread may call this at any time.
    #[inline]
    pub(crate) fn hit(&self, kind: ObjectKind, path: &NodePath) -> Option<CacheHit> {
        let copy = self.of(kind).get(path.code())?;
        let until = copy.usable_until();
        // S1: after the deadlines were loaded, and before the shard is unlocked (see the module).
        let at = clock::now();
        if at >= until || !copy.content.is_of(path) {
            return None;
        }
        copy.volume.note_used();
        let hit = CacheHit { content: copy.content.clone(), at, until };
        if let Some(gap) = hit.content.note_read(at) {
            copy.volume.counters().gap(gap);
        }
        let count = copy.volume.counters().hit();
        drop(copy);
        self.eviction.served(kind, path, count);
        Some(hit)
    }

    /// A copy that was valid at most `max_age` ago, and its age. For reads that ask for no more
    /// than that: no other read may use it.
    pub(crate) fn recent(&self, kind: ObjectKind, path: &NodePath, max_age: Duration) -> Option<RecentCopy> {
        let copy = self.of(kind).get(path.code())?;
        // The copy was current as long as both leases held (S1), and it has not been recalled.
        let volume_valid = copy.volume.last_valid();
        let last_valid = volume_valid.min(copy.until());
        let age = clock::now().since(last_valid);
        (last_valid != Instant::ZERO && age <= max_age && copy.content.is_of(path))
            .then(|| RecentCopy { content: copy.content.clone(), age })
    }

    /// When the copy's leases end. `None` if it may not be used now. Does not count as a use.
    pub(crate) fn usable_until(&self, kind: ObjectKind, path: &NodePath) -> Option<Instant> {
        let copy = self.of(kind).get(path.code())?;
        let until = copy.usable_until();
        (clock::now() < until && copy.content.is_of(path)).then_some(until)
    }

    /// Returns why a read of this object is a miss, and the time of the first grant after the last
    /// read. It clears that time.
    pub(crate) fn miss(&self, kind: ObjectKind, path: &NodePath) -> (MissCause, Option<Instant>) {
        match self.of(kind).get(path.code()) {
            Some(copy) if !copy.is_ended() && copy.content.is_of(path) => {
                (MissCause::Expired, copy.content.take_granted())
            }
            _ => (self.dropped.cause(kind, path.code()), self.dropped.take_granted(kind, path.code())),
        }
    }

    /// The number of copies, usable or not.
    pub(crate) fn len(&self) -> usize {
        self.data.len() + self.children.len()
    }

    // The driver calls the functions below under its lock only.

    /// Installs a copy, and replaces any other copy of the object. Returns the content as readers
    /// will share it.
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
        let (copies, code) = (self.of(object.kind), object.path.code());
        let is_of_object = |older: &CopySlot| older.content.is_of(&object.path);
        let unread = copies.end(code, |older| Some(is_of_object(older).then(|| older.content.take_granted())));
        let unread = match unread.flatten() {
            Some(unread) => unread,
            None => self.dropped.take_granted(object.kind, code),
        };
        content.note_granted(unread.unwrap_or_else(clock::now));
        copies.put(code, CopySlot::new(validity.until, volume, content.clone()));
        self.eviction.installed(object, installation, u32::try_from(weight).unwrap_or(u32::MAX));
        content
    }

    /// Makes the copy of the object usable again under this grant. Returns false if there is no
    /// copy.
    pub(crate) fn copy_validated(
        &self,
        object: &Object,
        validity: &CopyValidity,
        volume: Arc<VolumeLeaseCell>,
    ) -> bool {
        let (copies, code) = (self.of(object.kind), object.path.code());
        let revalidate = |copy: &CopySlot| {
            if !copy.content.is_of(&object.path) {
                return None;
            }
            copy.content.set_stamp(validity.stamp);
            copy.content.note_granted(clock::now());
            let is_same_lease = Arc::ptr_eq(&copy.volume, &volume);
            if is_same_lease {
                copy.extend(validity.until);
            }
            Some((is_same_lease, copy.content.clone()))
        };
        let Some((is_same_lease, content)) = copies.with(code, revalidate).flatten() else { return false };
        if !is_same_lease {
            copies.end(code, |_| Some(()));
            copies.put(code, CopySlot::new(validity.until, volume, content));
        }
        true
    }

    /// The content of the copy with this grant's stamp, even if the copy may not be used now.
    pub(crate) fn content(&self, object: &Object, stamp: Stamp) -> Option<SharedContent> {
        let is_that = |copy: &CopySlot| copy.content.is_of(&object.path) && copy.content.stamp() == Some(stamp);
        let content = |copy: &CopySlot| is_that(copy).then(|| copy.content.clone());
        self.of(object.kind).with(object.path.code(), content).flatten()
    }

    /// Those of the objects whose copies the application wanted: a read asked for the copy, or was
    /// answered from it. `None` if there are none.
    pub(crate) fn wanted_of(&self, mut objects: Vec<Object>) -> Option<Vec<Object>> {
        objects.retain(|object| {
            let was_wanted = |copy: &CopySlot| copy.content.is_of(&object.path) && copy.content.was_wanted();
            self.of(object.kind).with(object.path.code(), was_wanted) == Some(true)
        });
        (!objects.is_empty()).then_some(objects)
    }

    /// Removes a copy: from now on no read is served from it. The caller must notify the eviction
    /// policy.
    pub(crate) fn remove(&self, object: &Object, cause: MissCause) {
        let (copies, code) = (self.of(object.kind), object.path.code());
        let ended = copies.end(code, |copy| {
            copy.content.is_of(&object.path).then(|| (copy.content.clone(), Arc::clone(&copy.volume)))
        });
        let Some((content, volume)) = ended else { return };
        copies.remove_ended(code);
        self.dropped.note(object.kind, code, cause, content.take_granted());
        if cause == MissCause::Recalled {
            volume.counters().recalled(content.was_read());
        }
    }

    /// Removes all copies. The caller must have ended all volume leases before.
    pub(crate) fn clear(&self) {
        self.data.clear();
        self.children.clear();
        self.dropped.clear();
        self.eviction.forget_all();
    }

    /// Notifies the eviction policy if the object has no copy.
    pub(crate) fn forget(&self, object: &Object) {
        let has_copy = self.of(object.kind).with(object.path.code(), |copy| copy.content.is_of(&object.path));
        if has_copy != Some(true) {
            self.eviction.forget(object);
        }
    }

    /// Removes the next copy that the eviction policy chose. Returns its object and the stamp of
    /// its grant.
    pub(crate) fn evict_next(&self) -> Option<(Object, Stamp)> {
        while let Some((object, installation)) = self.eviction.next_unwanted() {
            let (copies, code) = (self.of(object.kind), object.path.code());
            let evicted = copies.end(code, |copy| {
                let is_that = copy.content.installation() == Some(installation);
                is_that.then(|| (copy.content.stamp(), copy.content.clone()))
            });
            if let Some((Some(stamp), content)) = evicted {
                copies.remove_ended(code);
                count(&self.counters.evictions);
                self.dropped.note(object.kind, code, MissCause::Capacity, content.take_granted());
                return Some((object, stamp));
            }
        }
        None
    }

    /// Tries the changes again that waited for readers.
    pub(crate) fn try_waiting(&self) {
        self.data.try_waiting();
        self.children.try_waiting();
    }

    // The driver calls the functions below without its lock too.

    /// Whether changes wait for readers.
    pub(crate) fn has_waiting(&self) -> bool {
        self.data.has_waiting() || self.children.has_waiting()
    }

    /// Closes the gate of each map in which changes wait. While the guards live, a reader that
    /// comes yields a few times.
    pub(crate) fn hold_readers(&self) -> [Option<ReadersHeld<'_>>; 2] {
        [&self.data, &self.children].map(|copies| copies.has_waiting().then(|| copies.hold_readers()))
    }

    /// Lets the eviction policy choose what to evict. The driver calls this without its lock.
    pub(crate) fn housekeep(&self) {
        self.eviction.housekeep();
    }
}

#[cfg(test)]
mod tests {
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
    fn what_a_hit_reads_before_the_clock_is_half_a_cache_line() {
        assert_eq!(size_of::<(u64, CopySlot)>(), 32);
    }

    #[test]
    fn cached_copy_is_served_only_while_both_leases_last() {
        let cache = Cache::new(1 << 20);
        let object = Object::data(path("/a"));
        let cell = lease(later());
        let counted = Arc::clone(&cell);
        cache.install(&object, absent(), &validity(1, later()), Arc::clone(&cell));
        assert!(cache.hit(ObjectKind::Data, &object.path).is_some());
        assert!(cache.hit(ObjectKind::Children, &object.path).is_none(), "another object");
        cell.set(Instant::ZERO);
        assert!(cache.hit(ObjectKind::Data, &object.path).is_none(), "the volume lease is over, or the copy waits");
        cell.set(later());
        assert!(cache.hit(ObjectKind::Data, &object.path).is_some());
        assert!(cache.copy_validated(&object, &validity(2, Instant::ZERO), cell));
        assert!(cache.hit(ObjectKind::Data, &object.path).is_none(), "the object lease is over");
        assert!(cache.content(&object, stamp(1)).is_none() && cache.content(&object, stamp(2)).is_some());
        cache.remove(&object, MissCause::Recalled);
        assert_eq!((cache.len(), counted.counters().hits()), (0, 2));
    }

    #[test]
    fn copy_of_other_path_with_same_code_is_left_alone() {
        let cache = Cache::new(1 << 20);
        let (here, there) = (Object::data(path("/a")), Object::data(path("/b")));
        cache.install(&here, absent(), &validity(1, later()), lease(later()));
        // As if both paths had the same code.
        let copy = |copy: &CopySlot| CopySlot::new(copy.until(), Arc::clone(&copy.volume), copy.content.clone());
        let copy = cache.data.with(here.path.code(), copy).expect("installed");
        cache.remove(&here, MissCause::Recalled);
        cache.data.put(there.path.code(), copy);
        assert!(
            cache.hit(ObjectKind::Data, &there.path).is_none()
                && cache.usable_until(ObjectKind::Data, &there.path).is_none()
        );
        assert!(cache.content(&there, stamp(1)).is_none());
        assert!(!cache.copy_validated(&there, &validity(2, later()), lease(later())));
        cache.remove(&there, MissCause::Recalled);
        assert_eq!(cache.len(), 1, "the copy is of another node");
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
