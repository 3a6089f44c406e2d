//! May a cached copy be used now? A comparison that a cache makes by itself, without a step of the
//! rules.
//!
//! It holds the whole of S1: *a cached copy is used only while its object lease and its volume
//! lease both hold on the client's own clock*, checked at the moment of each use (T2). The
//! deadlines come out of [`HolderEffect`](super::HolderEffect)s, already shortened by the drift
//! allowance; nothing here adds or subtracts.
//!
//! It does not know about recalls: a recalled copy has to be gone from the cache, not judged here.

use crate::{
    id::{Incarnation, Stamp},
    path::NodePath,
    time::Instant,
};

/// What a copy's validity depends on. Fixed from its installation on, until it is validated anew.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CopyValidity {
    /// The grant that the copy came with; named when the cache evicts it.
    pub stamp: Stamp,
    /// The volume that the object belongs to.
    pub volume: NodePath,
    /// The volume lease that the copy was granted under.
    pub incarnation: Incarnation,
    /// When the object lease ends on this client's clock.
    pub until: Instant,
}

/// The part of a copy's validity that is compared at each use: small enough to lie beside a cache's
/// key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyLease {
    /// The volume lease that the copy was granted under.
    pub incarnation: Incarnation,
    /// When the object lease ends on this client's clock.
    pub until: Instant,
}

impl CopyValidity {
    /// What is compared at each use.
    pub fn lease(&self) -> CopyLease {
        CopyLease { incarnation: self.incarnation, until: self.until }
    }
}

/// What a volume's copies have in common.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct VolumeValidity {
    /// The oldest volume lease whose copies are good under the one that is held now. Copies of
    /// older ones wait to be validated. It stays where it is when a returning client's copies are
    /// revived (DESIGN section 5).
    pub since: Incarnation,
    /// When the volume lease ends on this client's clock; the origin of the clock when there is
    /// none.
    pub until: Instant,
}

impl VolumeValidity {
    /// Until when copies that were granted under `incarnation` may be used as far as their volume
    /// is concerned (S1); the origin of the clock when they wait to be validated. One number, so
    /// that a cache can publish it to readers by a single store: it changes with the volume, not
    /// with the copies.
    #[inline]
    pub fn until_for(&self, incarnation: Incarnation) -> Instant {
        if incarnation >= self.since { self.until } else { Instant::ZERO }
    }
}

/// Whether a copy may be used at `now` (S1).
///
/// `now` has to be read from the clock *after* the copy and the volume's validity were looked up: a
/// process that is suspended in between must see that its time is over.
///
/// ```
/// use leasehold_protocol::holder::validity::{CopyLease, VolumeValidity, may_use};
/// use leasehold_protocol::{id::Incarnation, time::Instant};
///
/// let at = Instant::from_micros;
/// let copy = CopyLease { incarnation: Incarnation(1), until: at(3_600) };
/// let volume = VolumeValidity { since: Incarnation(1), until: at(10) };
/// assert!(may_use(copy, &volume, at(9)));
/// assert!(!may_use(copy, &volume, at(10)), "at its deadline a lease is over");
/// ```
#[inline]
pub fn may_use(copy: CopyLease, volume: &VolumeValidity, now: Instant) -> bool {
    now < copy.until.min(volume.until_for(copy.incarnation))
}
