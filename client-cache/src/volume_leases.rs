//! The volume leases, as cached copies see them. Implements S1 in docs/PROTOCOL.md, with `cache`.
//!
//! A copy needs one number from its volume: the deadline of its volume lease
//! ([`VolumeValidity::until_for`]). All copies under one volume lease share that number in a
//! [`VolumeLeaseCell`]. So one store is enough for a renewal, for the end of a lease, and for a
//! revival. A reader cannot see half of a change.
//!
//! In the cell, readers write only the `used` flag, and only if it is not set: a few times in a
//! term. The counters of the volume are in an allocation of their own.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use leasehold_protocol::{holder::validity::VolumeValidity, id::Incarnation, path::NodePath, time::Instant};

use crate::{
    cache_counters::{CacheCounterTable, CacheCounters},
    clock,
    sync::{AtomicBool, AtomicU64},
};

/// One volume lease, shared by the copies that were granted under it.
#[derive(Debug, Default)]
pub(crate) struct VolumeLeaseCell {
    until: AtomicU64,
    /// If `until` is zero: when the copies were last valid.
    ended: AtomicU64,
    used: AtomicBool,
    counters: Arc<CacheCounters>,
}

impl VolumeLeaseCell {
    fn new(counters: Arc<CacheCounters>) -> Self {
        let (until, ended) = (AtomicU64::default(), AtomicU64::default());
        Self { until, ended, used: AtomicBool::default(), counters }
    }

    /// The counters of the volume.
    #[inline]
    pub(crate) fn counters(&self) -> &CacheCounters {
        &self.counters
    }

    /// The deadline of the volume lease. Zero, the clock's origin, if the copies may not be used.
    #[inline]
    pub(crate) fn until(&self) -> Instant {
        Instant::from_micros(self.until.load(Acquire))
    }

    pub(crate) fn set(&self, until: Instant) {
        let before = self.until();
        if until == Instant::ZERO && before != Instant::ZERO {
            // The client may have ended the lease before its time.
            self.ended.store(before.min(clock::now()).as_micros(), Relaxed);
        }
        self.until.store(until.as_micros(), Release);
    }

    /// The latest time at which the volume lease is known to hold.
    pub(crate) fn last_valid(&self) -> Instant {
        match self.until() {
            Instant::ZERO => Instant::from_micros(self.ended.load(Relaxed)),
            until => until,
        }
    }

    /// Records that a copy was served.
    #[inline]
    pub(crate) fn note_used(&self) {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }
}

/// A volume: its validity, and the leases that copies were granted under. These are the present
/// lease, and earlier ones whose copies wait to be validated.
#[derive(Debug, Default)]
struct CachedVolume {
    validity: VolumeValidity,
    cells: BTreeMap<Incarnation, Arc<VolumeLeaseCell>>,
}

impl CachedVolume {
    fn set(&mut self, validity: VolumeValidity) {
        self.validity = validity;
        for (incarnation, cell) in &self.cells {
            cell.set(validity.until_for(*incarnation));
        }
        // The map itself has one reference. A cell without other references is used by no copy.
        self.cells.retain(|_, cell| Arc::strong_count(cell) > 1);
    }

    /// Whether copies were served since the last call.
    fn take_used(&self) -> bool {
        // Resets each cell: no short circuit.
        self.cells.values().fold(false, |used, cell| cell.used.swap(false, Relaxed) | used)
    }
}

/// All volumes of a client. Changed under the driver's lock.
#[derive(Debug, Default)]
pub(crate) struct VolumeLeases {
    volumes: HashMap<NodePath, CachedVolume, foldhash::quality::RandomState>,
    counters: Arc<CacheCounterTable>,
}

impl VolumeLeases {
    /// The counters of all volumes.
    pub(crate) fn counters(&self) -> Arc<CacheCounterTable> {
        Arc::clone(&self.counters)
    }

    /// The cell for a copy that is granted under this volume lease. The driver must put the copy
    /// into the cache before the next change.
    pub(crate) fn cell(&mut self, top: &NodePath, incarnation: Incarnation) -> Arc<VolumeLeaseCell> {
        let volume = self.volumes.entry(top.clone()).or_default();
        let until = volume.validity.until_for(incarnation);
        let cell = volume.cells.entry(incarnation).or_insert_with(|| {
            let cell = VolumeLeaseCell::new(self.counters.of(top));
            cell.set(until);
            Arc::new(cell)
        });
        Arc::clone(cell)
    }

    /// Sets the validity of a volume's copies.
    pub(crate) fn set(&mut self, top: &NodePath, validity: VolumeValidity) {
        let volume = self.volumes.entry(top.clone()).or_default();
        volume.set(validity);
        // Without a lease and without copies, the volume may not exist any longer.
        if validity == VolumeValidity::default() && volume.cells.is_empty() {
            self.volumes.remove(top);
        }
    }

    /// Ends all volume leases: no copy may be used any longer.
    pub(crate) fn end_all(&mut self) {
        for mut volume in std::mem::take(&mut self.volumes).into_values() {
            volume.set(VolumeValidity::default());
        }
    }

    /// The volumes with a valid lease, and how long each lasts.
    pub(crate) fn remaining(&self, now: Instant) -> BTreeMap<NodePath, Duration> {
        let valid = self.volumes.iter().filter(|(_, volume)| now < volume.validity.until);
        valid.map(|(top, volume)| (top.clone(), volume.validity.until.since(now))).collect()
    }

    /// The volumes of which copies were served since the last call.
    pub(crate) fn take_used(&self) -> BTreeSet<NodePath> {
        self.volumes.iter().filter(|(_, volume)| volume.take_used()).map(|(top, _)| top.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    fn valid(since: u64, until: u64) -> VolumeValidity {
        VolumeValidity { since: Incarnation(since), until: at(until) }
    }

    #[test]
    fn each_lease_of_a_volume_has_its_own_end() {
        let (mut leases, top) = (VolumeLeases::default(), NodePath::root());
        leases.set(&top, valid(3, 10));
        let (third, second) = (leases.cell(&top, Incarnation(3)), leases.cell(&top, Incarnation(2)));
        assert_eq!((third.until(), second.until()), (at(10), Instant::ZERO), "the second waits to be validated");
        leases.set(&top, valid(2, 20));
        assert_eq!((third.until(), second.until()), (at(20), at(20)), "revived");
        leases.set(&top, valid(4, 30));
        let fourth = leases.cell(&top, Incarnation(4));
        assert_eq!((third.until(), second.until(), fourth.until()), (Instant::ZERO, Instant::ZERO, at(30)));
        assert_eq!(leases.volumes[&top].validity, valid(4, 30));
        leases.end_all();
        assert_eq!(fourth.until(), Instant::ZERO);
        assert!(leases.volumes.is_empty());
    }

    #[test]
    fn use_is_noted_until_it_is_asked_for() {
        let (mut leases, top) = (VolumeLeases::default(), NodePath::root());
        let cells = [leases.cell(&top, Incarnation(1)), leases.cell(&top, Incarnation(2))];
        assert!(leases.take_used().is_empty());
        cells.iter().for_each(|cell| cell.note_used());
        assert_eq!(leases.take_used(), BTreeSet::from([top]));
        assert!(leases.take_used().is_empty());
    }

    #[test]
    fn what_no_copy_needs_is_forgotten() {
        let (mut leases, top) = (VolumeLeases::default(), NodePath::root());
        let kept = leases.cell(&top, Incarnation(1));
        drop(leases.cell(&top, Incarnation(2)));
        leases.set(&top, VolumeValidity::default());
        assert_eq!(leases.volumes[&top].cells.len(), 1);
        drop(kept);
        leases.set(&top, VolumeValidity::default());
        assert!(leases.volumes.is_empty());
    }
}
