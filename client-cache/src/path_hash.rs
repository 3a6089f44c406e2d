//! The hasher of the cache's maps. It uses the code that is stored in a path, and does not read the
//! path's text.
//!
//! With many copies, most are not in the processor's caches, and each load makes a hit slower. The
//! text of a path would be one more load. So the code is the map's key. A hit compares the text
//! only when it has found a copy, and only if the two paths are not clones of each other.

use std::hash::{BuildHasher, Hasher};

/// Distributes codes over a map, with a different seed in each process.
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

/// The hash of one code.
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
        // Mixes both halves, because the map uses bits from either end.
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
        let state = PathHashState::default();
        assert_eq!(state.hash_one(7_u64), state.hash_one(7_u64));
        assert_ne!(state.hash_one(7_u64), state.hash_one(8_u64));
        assert_ne!(state.hash_one(7_u64), PathHashState::default().hash_one(7_u64), "another process, another order");
    }
}
