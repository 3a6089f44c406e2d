//! How the cache's maps find a path: by the code that it carries, without touching its text.
//!
//! A hit among many copies costs what it touches of memory that no processor's cache holds. A
//! path's text would be one such place, so the maps have the code for a key, and the text is
//! compared only when a copy has been found, and only if the reader's path and the cache's are not
//! clones of each other.

use std::hash::{BuildHasher, Hasher};

/// Scatters codes over a map, in each process in another way.
#[derive(Debug, Clone)]
pub(crate) struct PathHashState {
    seed: u64,
}

impl Default for PathHashState {
    fn default() -> Self {
        Self { seed: rand::random() }
    }
}

impl BuildHasher for PathHashState {
    type Hasher = PathHasher;

    fn build_hasher(&self) -> PathHasher {
        PathHasher(self.seed)
    }
}

/// One code, scattered.
#[derive(Debug)]
pub(crate) struct PathHasher(u64);

/// An odd number without a pattern: the fraction of the golden ratio.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for PathHasher {
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
    fn codes_are_scattered_in_each_process_in_another_way() {
        let scatter = PathHashState::default();
        assert_eq!(scatter.hash_one(7_u64), scatter.hash_one(7_u64));
        assert_ne!(scatter.hash_one(7_u64), scatter.hash_one(8_u64));
        assert_ne!(scatter.hash_one(7_u64), PathHashState::default().hash_one(7_u64), "another process, another order");
    }
}
