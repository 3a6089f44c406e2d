//! What a volume's copies may be used by, shared between the driver that changes it and all readers.
//!
//! `since` and `until` belong together: the deadline of one lease with the border of another could let a copy be used that
//! waits to be validated, or one beyond its time. Readers read both as of one moment by a sequence lock: the writer makes
//! the number odd, stores, makes it even again; a reader that saw the same even number before and after has seen no
//! half. It never waits: if it was disturbed a few times it gives up, and the read is a miss like any other.
//!
//! A pointer to an immutable pair would do as well, at the price of a counter that all readers of a volume write to. Here
//! readers write nothing but the `used` flag, and that only when it is not set: a few times in a term.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use leasehold_protocol::{holder::validity::VolumeValidity, id::Incarnation, time::Instant};

/// A reader that was disturbed this often goes to the driver instead.
const TRIES: usize = 4;

/// A volume, as the copies in it see it.
#[derive(Debug, Default)]
pub(crate) struct VolumeCell {
    version: AtomicU64,
    since: AtomicU64,
    until: AtomicU64,
    used: AtomicBool,
}

impl VolumeCell {
    /// What the volume's copies may be used by, as of one moment. None if it kept changing.
    #[inline]
    pub(crate) fn validity(&self) -> Option<VolumeValidity> {
        for _ in 0..TRIES {
            let before = self.version.load(Acquire);
            let since = self.since.load(Relaxed);
            let until = self.until.load(Relaxed);
            // What was loaded above was loaded before the version is looked at again.
            fence(Acquire);
            if before.is_multiple_of(2) && self.version.load(Relaxed) == before {
                return Some(VolumeValidity { since: Incarnation(since), until: Instant::from_micros(until) });
            }
        }
        None
    }

    /// Changes it. Only one thread at a time may: the one that holds the driver's lock.
    pub(crate) fn set(&self, validity: VolumeValidity) {
        let before = self.version.load(Relaxed);
        self.version.store(before + 1, Relaxed);
        // The odd version is seen by whoever sees anything of what follows.
        fence(Release);
        self.since.store(validity.since.0, Relaxed);
        self.until.store(validity.until.as_micros(), Relaxed);
        self.version.store(before + 2, Release);
    }

    /// A copy in the volume was served.
    #[inline]
    pub(crate) fn note_used(&self) {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }

    /// Whether copies were served since this was last asked.
    pub(crate) fn take_used(&self) -> bool {
        self.used.swap(false, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, thread};

    use super::*;

    #[test]
    fn readers_never_see_half_of_a_change() {
        let cell = VolumeCell::default();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0_u64;
                while !is_over.load(Relaxed) {
                    if let Some(VolumeValidity { since, until }) = cell.validity() {
                        assert_eq!(until.as_micros(), since.0 * 3);
                        seen += 1;
                    }
                }
                seen
            });
            for i in 0..200_000 {
                cell.set(VolumeValidity { since: Incarnation(i), until: Instant::from_micros(i * 3) });
            }
            is_over.store(true, Relaxed);
            assert!(reader.join().is_ok());
        });
    }

    #[test]
    fn use_is_noted_until_it_is_asked_for() {
        let cell = VolumeCell::default();
        assert!(!cell.take_used());
        cell.note_used();
        cell.note_used();
        assert!(cell.take_used() && !cell.take_used());
    }
}
