//! Stand-ins for the cache's synchronization types, under the same names, so that loom sees them.

use std::{
    collections::BTreeMap,
    fmt,
    hash::BuildHasher,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

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

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<K, V>> {
        self.shard.write().expect("a model that panics ends")
    }

    pub(crate) fn get(&self, key: &K) -> Option<Ref<'_, K, V>> {
        let shard = self.read();
        shard.contains_key(key).then_some(Ref { shard, key: *key })
    }

    pub(crate) fn get_mut(&self, key: &K) -> Option<RefMut<'_, K, V>> {
        let shard = self.write();
        shard.contains_key(key).then_some(RefMut { shard, key: *key })
    }

    pub(crate) fn insert(&self, key: K, value: V) -> Option<V> {
        self.write().insert(key, value)
    }

    pub(crate) fn remove(&self, key: &K) -> Option<(K, V)> {
        self.remove_if(key, |_, _| true)
    }

    pub(crate) fn remove_if(&self, key: &K, is_that: impl FnOnce(&K, &V) -> bool) -> Option<(K, V)> {
        let mut shard = self.write();
        let is_that = shard.get(key).is_some_and(|value| is_that(key, value));
        if is_that { shard.remove_entry(key) } else { None }
    }

    pub(crate) fn clear(&self) {
        self.write().clear();
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

impl<K: Ord, V> Deref for Ref<'_, K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.shard[&self.key]
    }
}

/// An entry, with the shard locked for writing.
pub(crate) struct RefMut<'a, K, V> {
    shard: RwLockWriteGuard<'a, BTreeMap<K, V>>,
    key: K,
}

impl<K: Ord, V> Deref for RefMut<'_, K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.shard[&self.key]
    }
}

impl<K: Ord, V> DerefMut for RefMut<'_, K, V> {
    fn deref_mut(&mut self) -> &mut V {
        self.shard.get_mut(&self.key).expect("it was there when the shard was locked")
    }
}
