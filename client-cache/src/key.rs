//! Paths as keys of the cache's maps: looked up by the code that a path carries, without touching its text.
//!
//! A hit among many copies costs what it touches of memory that no processor's cache holds. A path's text would be one such place,
//! for the hash and again for the comparison. The code spares the first, and the second when the reader's path and the cache's are
//! clones of each other, as they are when the reader keeps the path that it first asked for.

use std::{
    borrow::Borrow,
    hash::{BuildHasher, Hash, Hasher},
};

use leasehold_protocol::path::Path;

/// A path as a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) Path);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.code());
    }
}

/// Whatever a key can be looked up by: a key, or a path that is not ours.
pub(crate) trait AsPath {
    fn as_path(&self) -> &Path;
}

impl AsPath for Key {
    fn as_path(&self) -> &Path {
        &self.0
    }
}

impl AsPath for Path {
    fn as_path(&self) -> &Path {
        self
    }
}

impl<'a> Borrow<dyn AsPath + 'a> for Key {
    fn borrow(&self) -> &(dyn AsPath + 'a) {
        self
    }
}

impl PartialEq for dyn AsPath + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.as_path() == other.as_path()
    }
}

impl Eq for dyn AsPath + '_ {}

impl Hash for dyn AsPath + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.as_path().code());
    }
}

/// Scatters codes over the map, in each process in another way.
#[derive(Debug, Clone)]
pub(crate) struct Scatter {
    seed: u64,
}

impl Default for Scatter {
    fn default() -> Self {
        Self { seed: rand::random() }
    }
}

impl BuildHasher for Scatter {
    type Hasher = Scattered;

    fn build_hasher(&self) -> Scattered {
        Scattered(self.seed)
    }
}

/// One code, scattered.
#[derive(Debug)]
pub(crate) struct Scattered(u64);

/// An odd number without a pattern: the fraction of the golden ratio.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Scattered {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, code: u64) {
        let product = u128::from(self.0 ^ code) * SPREAD;
        // Both halves: the map takes its bits from either end.
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_any_path_of_its_text() {
        let path = |text: &str| Path::parse(text).expect("valid");
        let scatter = Scatter::default();
        let (key, other) = (Key(path("/a/b")), path("/a/b"));
        let by_path: &dyn AsPath = &other;
        assert_eq!(scatter.hash_one(&key), scatter.hash_one(by_path));
        assert!(Borrow::<dyn AsPath>::borrow(&key) == by_path);
        assert_ne!(scatter.hash_one(&key), scatter.hash_one(Key(path("/a/c"))));
        assert_ne!(scatter.hash_one(&key), Scatter::default().hash_one(&key), "another process, another order");
    }
}
