//! Decides whether a cached copy may be used now. A cache decides this by itself, without a step.
//!
//! This is all of S1: *a cached copy is used only while both its leases hold on the client's own
//! clock*. The cache checks it at each use (T2). The deadlines come from
//! [`HolderEffect`](super::HolderEffect)s, already shortened by the drift allowance.
//!
//! The module does not know about recalls: the cache must drop a recalled copy.

use crate::{
    id::{Incarnation, Stamp},
    path::NodePath,
    time::Instant,
};

/// The conditions of a copy's validity. They are fixed until a server validates the copy again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CopyValidity {
    /// The stamp of the copy's grant. The cache names it when it evicts the copy.
    pub stamp: Stamp,
    /// The volume of the object.
    pub volume: NodePath,
    /// The volume lease under which the copy was granted.
    pub incarnation: Incarnation,
    /// When the object lease ends on this client's clock.
    pub until: Instant,
}

/// The part of a copy's validity that is compared at each use. It is small, so that a cache can
/// store it with its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyLease {
    /// The volume lease under which the copy was granted.
    pub incarnation: Incarnation,
    /// When the object lease ends on this client's clock.
    pub until: Instant,
}

impl CopyValidity {
    /// The part that is compared at each use.
    pub fn lease(&self) -> CopyLease {
        CopyLease { incarnation: self.incarnation, until: self.until }
    }
}

/// The conditions that all copies of a volume share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct VolumeValidity {
    /// The oldest volume lease whose copies are valid under the present one. Copies of older
    /// leases must be validated before use. After a revival, `since` stays the same, so the older
    /// copies are valid again (S7 in docs/PROTOCOL.md).
    pub since: Incarnation,
    /// When the volume lease ends on this client's clock. Without a lease, this is
    /// [`Instant::ZERO`].
    pub until: Instant,
}

impl VolumeValidity {
    /// Until when the volume permits the use of copies granted under `incarnation` (S1). If they
    /// must be validated first, this is [`Instant::ZERO`]. It is the same for all copies that were
    /// granted under one volume lease. So a cache can publish this one number to its readers with a
    /// single store.
    #[inline]
    pub fn until_for(&self, incarnation: Incarnation) -> Instant {
        if incarnation >= self.since { self.until } else { Instant::ZERO }
    }
}

/// Whether a copy may be used at `now` (S1).
///
/// Read `now` from the clock *after* the lookup of the copy and of the volume's validity. A process
/// that is suspended in between must see that its time has passed.
///
/// ```
/// use leasehold_protocol::holder::validity::{CopyLease, VolumeValidity, may_use};
/// use leasehold_protocol::{id::Incarnation, time::Instant};
///
/// let at = Instant::from_micros;
/// let copy = CopyLease { incarnation: Incarnation(1), until: at(3_600) };
/// let volume = VolumeValidity { since: Incarnation(1), until: at(10) };
/// assert!(may_use(copy, &volume, at(9)));
/// assert!(!may_use(copy, &volume, at(10)), "a lease has ended at its deadline");
/// ```
#[inline]
pub fn may_use(copy: CopyLease, volume: &VolumeValidity, now: Instant) -> bool {
    now < copy.until.min(volume.until_for(copy.incarnation))
}
