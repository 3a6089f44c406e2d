//! Stand-ins for the cache's synchronization types, under the same names, so that loom sees them.

use std::{collections::BTreeMap, fmt, hash::BuildHasher, marker::PhantomData, ops::Deref};

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// One shard of a dashmap: entries behind a lock. A reference to an entry holds that lock.
pub(crate) struct DashMap<K, V, S> {
    shard: RwLock<BTreeMap<K, V>>,
    hasher: PhantomData<S>,
}

impl<K: Ord + Copy, V, S: BuildHasher> DashMap<K, V, S> {
    pub(crate) fn with_capacity_and_hasher_and_shard_amount(_capacity: usize, _hasher: S, _shards: usize) -> Self {
        Self { shard: RwLock::new(BTreeMap::new()), hasher: PhantomData }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<K, V>> {
        self.shard.read().expect("a model that panics ends")
    }

    pub(crate) fn get(&self, key: &K) -> Option<Ref<'_, K, V>> {
        let shard = self.read();
        shard.contains_key(key).then_some(Ref { shard, key: *key })
    }

    /// `None` if another thread has the shard.
    pub(crate) fn try_entry(&self, key: K) -> Option<Entry<'_, K, V>> {
        let shard = self.shard.try_write().ok()?;
        Some(match shard.contains_key(&key) {
            true => Entry::Occupied(OccupiedEntry { shard, key }),
            false => Entry::Vacant(VacantEntry { shard, key }),
        })
    }

    /// All entries, each with the shard locked.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Ref<'_, K, V>> {
        let keys: Vec<K> = self.read().keys().copied().collect();
        keys.into_iter().filter_map(|key| self.get(&key))
    }

    pub(crate) fn len(&self) -> usize {
        self.read().len()
    }
}

impl<K, V, S> fmt::Debug for DashMap<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DashMap")
    }
}

/// An entry, with the shard locked for reading.
pub(crate) struct Ref<'a, K, V> {
    shard: RwLockReadGuard<'a, BTreeMap<K, V>>,
    key: K,
}

impl<K, V> Ref<'_, K, V> {
    pub(crate) fn key(&self) -> &K {
        &self.key
    }
}

impl<K: Ord, V> Deref for Ref<'_, K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.shard[&self.key]
    }
}

/// A place for an entry, with the shard locked for writing.
pub(crate) enum Entry<'a, K, V> {
    Occupied(OccupiedEntry<'a, K, V>),
    Vacant(VacantEntry<'a, K, V>),
}

/// The place of an entry.
pub(crate) struct OccupiedEntry<'a, K, V> {
    shard: RwLockWriteGuard<'a, BTreeMap<K, V>>,
    key: K,
}

impl<K: Ord, V> OccupiedEntry<'_, K, V> {
    pub(crate) fn get(&self) -> &V {
        &self.shard[&self.key]
    }

    pub(crate) fn insert(&mut self, value: V) -> V {
        let entry = self.shard.get_mut(&self.key).expect("it was there when the shard was locked");
        std::mem::replace(entry, value)
    }

    pub(crate) fn remove(mut self) -> V {
        self.shard.remove(&self.key).expect("it was there when the shard was locked")
    }
}

/// A place without an entry.
pub(crate) struct VacantEntry<'a, K, V> {
    shard: RwLockWriteGuard<'a, BTreeMap<K, V>>,
    key: K,
}

impl<K: Ord, V> VacantEntry<'_, K, V> {
    pub(crate) fn insert(mut self, value: V) {
        self.shard.insert(self.key, value);
    }
}
