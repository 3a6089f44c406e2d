//! A concurrent map of cached copies that the driver changes without waiting for readers.
//!
//! The key is a 64-bit hash of a path, its *code*. A code and its slot take half a cache line. A
//! reader has the slot's shard locked for reading while it uses the slot.
//!
//! *The obvious way* removes a copy from the map to end it. That takes the shard's write lock. But
//! the lock prefers readers: while threads read one hot copy, or another copy of its shard, there
//! may always be a reader inside. The driver would wait while it holds its own lock. All consents
//! and renewals would then wait too. So this map does three things differently:
//!
//! - *The end of a copy is one store.* A slot has the deadline of its object lease in an atomic
//!   number. [`CopyMap::end`] clears it under the read lock. From then on no lookup uses the slot.
//! - *Changes of the map are only tried.* If a reader has the shard, the change waits in a list
//!   beside the map. The driver finds waiting copies there. For readers they do not exist yet.
//! - *Readers make room for waiting changes.* [`CopyMap::hold_readers`] closes a gate for a moment.
//!   A reader that comes to a closed gate yields its processor a few times before it looks up.
//!   So the readers inside leave, and the change succeeds. The gate is not needed for safety: a
//!   reader may pass it at any time. To pass the open gate costs one load of a line that no hit
//!   writes to.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use leasehold_protocol::time::Instant;
use parking_lot::Mutex;

use crate::{
    path_hash::PathHashState,
    shared_content::SharedContent,
    sync::{AtomicU64, DashMap, Entry, Ref},
    volume_leases::VolumeLeaseCell,
};

/// The shards of each map. With this number, two threads rarely use the same shard at one time.
const SHARDS: usize = 256;

/// How often a reader yields at a closed gate: some ten microseconds on a machine with idle
/// processors. It is bounded, so that a reader never waits for a thread of lower priority.
const YIELDS_MAX: usize = 64;

/// A copy in the map. A hit loads the two deadlines before it reads the clock.
#[derive(Debug)]
pub(crate) struct CopySlot {
    /// The deadline of the object lease. Zero if the copy has ended.
    until: AtomicU64,
    pub(crate) volume: Arc<VolumeLeaseCell>,
    pub(crate) content: SharedContent,
}

impl CopySlot {
    pub(crate) fn new(until: Instant, volume: Arc<VolumeLeaseCell>, content: SharedContent) -> Self {
        Self { until: AtomicU64::new(live_micros(until)), volume, content }
    }

    /// The deadline of the object lease. Zero, the clock's origin, if the copy has ended.
    ///
    /// Load the volume's deadline before this one: the module [`cache`](crate::cache) says why.
    #[inline]
    pub(crate) fn until(&self) -> Instant {
        Instant::from_micros(self.until.load(Acquire))
    }

    /// When the first of the copy's two leases ends (S1).
    #[inline]
    pub(crate) fn usable_until(&self) -> Instant {
        let volume_until = self.volume.until();
        volume_until.min(self.until())
    }

    /// Whether the copy has ended: nobody may use it, and it waits to be removed.
    pub(crate) fn is_ended(&self) -> bool {
        self.until() == Instant::ZERO
    }

    /// Sets the deadline of the object lease. Only the driver calls this, for a copy that has not
    /// ended.
    pub(crate) fn extend(&self, until: Instant) {
        self.until.store(live_micros(until), Release);
    }

    fn end(&self) {
        self.until.store(0, Release);
    }
}

/// A deadline at the clock's origin is stored as the next microsecond, which has passed too.
fn live_micros(until: Instant) -> u64 {
    until.as_micros().max(1)
}

/// The copies of one kind of object, by the codes of their paths.
#[derive(Debug)]
pub(crate) struct CopyMap {
    slots: DashMap<u64, CopySlot, PathHashState>,
    /// Whether readers are asked to wait.
    is_gate_closed: AtomicBool,
    has_waiting: AtomicBool,
    /// The changes that wait for readers: the copy to install, or `None` to remove a copy that has
    /// ended. While a copy waits here, any copy of the same code in the map has ended. Locked under
    /// the driver's lock only.
    waiting: Mutex<HashMap<u64, Option<CopySlot>>>,
}

impl CopyMap {
    pub(crate) fn new() -> Self {
        Self {
            slots: DashMap::with_capacity_and_hasher_and_shard_amount(0, PathHashState::default(), SHARDS),
            is_gate_closed: AtomicBool::new(false),
            has_waiting: AtomicBool::new(false),
            waiting: Mutex::new(HashMap::new()),
        }
    }

    /// Looks up a slot for a reader, and locks its shard for reading. The copy may have ended.
    #[inline]
    pub(crate) fn get(&self, code: u64) -> Option<Ref<'_, u64, CopySlot>> {
        if self.is_gate_closed.load(Relaxed) {
            self.wait_at_gate();
        }
        self.slots.get(&code)
    }

    #[cold]
    fn wait_at_gate(&self) {
        for _ in 0..YIELDS_MAX {
            std::thread::yield_now();
            if !self.is_gate_closed.load(Relaxed) {
                return;
            }
        }
    }

    /// The number of copies in the map, usable or not.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether changes wait for readers.
    pub(crate) fn has_waiting(&self) -> bool {
        self.has_waiting.load(Relaxed)
    }

    /// While the guard lives, each reader that comes yields, a bounded number of times.
    pub(crate) fn hold_readers(&self) -> ReadersHeld<'_> {
        self.is_gate_closed.store(true, Relaxed);
        ReadersHeld(&self.is_gate_closed)
    }

    // The driver calls the functions below under its lock only. So the shards that it locks are
    // never locked for writing by another thread, and it waits for nobody.

    /// Calls `use_copy` with the copy of this code, if there is one that has not ended.
    pub(crate) fn with<T>(&self, code: u64, use_copy: impl FnOnce(&CopySlot) -> T) -> Option<T> {
        if self.has_waiting()
            && let Some(Some(copy)) = self.waiting.lock().get(&code)
        {
            return (!copy.is_ended()).then(|| use_copy(copy));
        }
        let copy = self.slots.get(&code)?;
        (!copy.is_ended()).then(|| use_copy(&copy))
    }

    /// Ends the copy of this code if `select` returns a value for it, and returns that value. From
    /// now on no read is served from the copy. The caller removes or replaces it.
    pub(crate) fn end<T>(&self, code: u64, select: impl FnOnce(&CopySlot) -> Option<T>) -> Option<T> {
        let selected = self.with(code, |copy| {
            let selected = select(copy);
            if selected.is_some() {
                copy.end();
            }
            selected
        });
        selected.flatten()
    }

    /// Puts a copy into the map, or lets it wait. The caller has ended the earlier copy of this
    /// code.
    pub(crate) fn put(&self, code: u64, copy: CopySlot) {
        // Bound to a name, so that the earlier copy is freed after the shard is unlocked.
        let _earlier = match self.slots.try_entry(code) {
            Some(Entry::Occupied(mut entry)) => Some(entry.insert(copy)),
            Some(Entry::Vacant(entry)) => {
                entry.insert(copy);
                None
            }
            None => return self.let_wait(code, Some(copy)),
        };
        if self.has_waiting() {
            self.waiting.lock().remove(&code);
        }
    }

    /// Removes the copy of this code, if it has ended, or lets the removal wait.
    pub(crate) fn remove_ended(&self, code: u64) {
        if self.has_waiting() {
            let is_ended = |copy: Option<&CopySlot>| copy.is_some_and(CopySlot::is_ended);
            let mut waiting = self.waiting.lock();
            if waiting.get(&code).is_some_and(|copy| is_ended(copy.as_ref())) {
                waiting.remove(&code);
            }
        }
        if !self.try_remove_ended(code) {
            self.let_wait(code, None);
        }
    }

    /// Returns false if a reader has the shard.
    fn try_remove_ended(&self, code: u64) -> bool {
        let _ended = match self.slots.try_entry(code) {
            Some(Entry::Occupied(entry)) if entry.get().is_ended() => Some(entry.remove()),
            Some(_) => None,
            None => return false,
        };
        true
    }

    fn let_wait(&self, code: u64, copy: Option<CopySlot>) {
        self.has_waiting.store(true, Relaxed);
        let mut waiting = self.waiting.lock();
        match copy {
            Some(copy) => {
                waiting.insert(code, Some(copy));
            }
            // A copy that waits for this code will replace the ended one.
            None => {
                waiting.entry(code).or_insert(None);
            }
        }
    }

    /// Tries the waiting changes again.
    pub(crate) fn try_waiting(&self) {
        if !self.has_waiting() {
            return;
        }
        let waiting = std::mem::take(&mut *self.waiting.lock());
        self.has_waiting.store(false, Relaxed);
        for (code, copy) in waiting {
            match copy {
                Some(copy) => self.put(code, copy),
                None => self.remove_ended(code),
            }
        }
    }

    /// Ends and removes all copies.
    pub(crate) fn clear(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let mut codes: Vec<u64> = waiting.into_keys().collect();
        self.has_waiting.store(false, Relaxed);
        self.slots.iter().for_each(|copy| {
            copy.end();
            codes.push(*copy.key());
        });
        codes.into_iter().for_each(|code| self.remove_ended(code));
    }
}

/// While it lives, readers make room for changes of a map.
#[derive(Debug)]
#[must_use]
pub(crate) struct ReadersHeld<'a>(&'a AtomicBool);

impl Drop for ReadersHeld<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use leasehold_protocol::{
        id::{Epoch, Stamp},
        object::Content,
        path::NodePath,
    };

    use super::*;
    use crate::clock;

    const CODE: u64 = 7;

    /// A copy under leases that hold. The installation number tells copies apart.
    fn copy(installation: u64) -> CopySlot {
        let until = clock::now().after(Duration::from_secs(60));
        let volume = Arc::new(VolumeLeaseCell::default());
        volume.set(until);
        let stamp = Stamp { epoch: Epoch(1), sequence: installation };
        let content = SharedContent::copy(NodePath::root(), Arc::new(Content::Data(None)), installation, stamp);
        CopySlot::new(until, volume, content)
    }

    fn present(map: &CopyMap) -> Option<u64> {
        map.with(CODE, |copy| copy.content.installation()).flatten()
    }

    fn usable(map: &CopyMap) -> Option<u64> {
        let copy = map.get(CODE)?;
        let is_usable = clock::now() < copy.usable_until();
        is_usable.then(|| copy.content.installation()).flatten()
    }

    fn end(map: &CopyMap) {
        assert!(map.end(CODE, |_| Some(())).is_some(), "there is a copy");
    }

    /// The driver's changes run on another thread. They must end while this thread reads.
    #[test]
    fn changes_do_not_wait_for_a_reader() {
        let map = Arc::new(CopyMap::new());
        map.put(CODE, copy(1));
        let reader = map.get(CODE).expect("a copy");
        let (changed, changes) = mpsc::channel();
        let driver = Arc::clone(&map);
        std::thread::spawn(move || {
            end(&driver);
            driver.remove_ended(CODE);
            assert_eq!(present(&driver), None);
            driver.put(CODE, copy(2));
            driver.try_waiting();
            let _ = changed.send(present(&driver));
        });
        let present_while_read = changes.recv_timeout(Duration::from_secs(60)).expect("no change waits for a reader");
        assert_eq!(present_while_read, Some(2));
        assert!(reader.is_ended(), "a copy has ended as soon as the driver has ended it");
        assert_eq!((usable(&map), map.has_waiting()), (None, true));
        drop(reader);
        map.try_waiting();
        assert_eq!((usable(&map), map.has_waiting(), map.len()), (Some(2), false, 1));
    }

    #[test]
    fn copy_that_waits_is_ended_and_replaced_where_it_waits() {
        let map = CopyMap::new();
        map.put(CODE, copy(1));
        let reader = map.get(CODE).expect("a copy");
        end(&map);
        map.put(CODE, copy(2));
        end(&map);
        assert_eq!(present(&map), None, "ended, and not removed yet");
        map.put(CODE, copy(3));
        assert_eq!(present(&map), Some(3));
        end(&map);
        map.remove_ended(CODE);
        drop(reader);
        map.try_waiting();
        assert_eq!((map.len(), map.has_waiting()), (0, false));
    }

    #[test]
    fn later_change_without_a_reader_replaces_waiting_one() {
        let map = CopyMap::new();
        map.put(CODE, copy(1));
        let reader = map.get(CODE).expect("a copy");
        end(&map);
        map.put(CODE, copy(2));
        drop(reader);
        end(&map);
        map.put(CODE, copy(3));
        map.try_waiting();
        assert_eq!((usable(&map), present(&map)), (Some(3), Some(3)));
    }

    #[test]
    fn clear_ends_copies_that_readers_use_and_that_wait() {
        let map = CopyMap::new();
        map.put(CODE, copy(1));
        map.put(CODE + 1, copy(2));
        let reader = map.get(CODE).expect("a copy");
        end(&map);
        map.put(CODE, copy(3));
        map.clear();
        assert_eq!((present(&map), usable(&map), map.len()), (None, None, 1));
        drop(reader);
        map.try_waiting();
        assert_eq!(map.len(), 0);
    }

    /// The readers never stop by themselves. At least one is in the shard nearly all the time.
    #[test]
    fn readers_of_a_hot_copy_make_room_for_changes() {
        let map = CopyMap::new();
        map.put(CODE, copy(0));
        let is_over = AtomicBool::new(false);
        let mut served = Vec::new();
        std::thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        std::hint::black_box(usable(&map));
                    }
                });
            }
            for round in 1..=20 {
                map.end(CODE, |_| Some(()));
                served.push(usable(&map));
                map.put(CODE, copy(round));
                while map.has_waiting() {
                    let _held = map.hold_readers();
                    map.try_waiting();
                    std::thread::yield_now();
                }
                served.push(usable(&map));
            }
            is_over.store(true, Relaxed);
        });
        let ended_then_replaced: Vec<Option<u64>> = (1..=20).flat_map(|round| [None, Some(round)]).collect();
        assert_eq!(served, ended_then_replaced);
    }
}
