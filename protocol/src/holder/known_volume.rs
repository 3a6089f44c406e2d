//! What the holder knows about one volume: its lease, what depends on the lease, and when a step
//! must act on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{
        Bound::{Excluded, Unbounded},
        Deref, DerefMut,
    },
};

use super::{
    RenewalMode,
    pace::Pace,
    validity::VolumeValidity,
    volume_index::{VolumeIndex, VolumeKeys},
};
use crate::{
    id::{CoveringNumber, Incarnation, LockId, Revision, Stamp, VolumeGeneration},
    lease_policy::LeaseOffer,
    message::LastValid,
    path::NodePath,
    time::Instant,
    work::CountVisits,
};

/// The holder flushes a dirty value when the rest of the lease is shorter than its term divided by
/// this: the renewal is late then.
const FLUSH_PART_OF_TERM: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnVolumeLease {
    pub(super) incarnation: Incarnation,
    /// The oldest incarnation whose copies are valid under this one.
    pub(super) since: Incarnation,
    pub(super) generation: VolumeGeneration,
    /// The applied revision of this incarnation's latest promise or grant. The copies are valid at
    /// this revision.
    pub(super) revision: Revision,
    /// When it ends on this client's clock.
    pub(super) until: Instant,
    /// The stamp of the answer that began the lease. The holder refuses older grants (S4).
    pub(super) stamp: Stamp,
    pub(super) pace: Pace,
    /// The holder has handled its end on this client's clock.
    pub(super) has_expired: bool,
    /// The leader tracks the session as covering, and the holder has not reported its copies.
    pub(super) unreported: Option<Unreported>,
}

/// A holder report that is owed. The holder waits with it, because a client that reads a few
/// objects and leaves again would report for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Unreported {
    pub(super) covering: CoveringNumber,
    /// A renewal sent at or after this time starts the report, when a promise answers it.
    pub(super) due: Instant,
}

impl Unreported {
    /// For how many terms the holder waits. A client that renews its lease after that time will
    /// probably go on using its copies.
    pub(super) const TERMS: u32 = 2;
}

/// The data of the ended lease that the request for a new lease needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct EndedLease {
    pub(super) last: LastValid,
    pub(super) since: Incarnation,
    pub(super) unreported: Option<Unreported>,
}

/// The holder's record of an attached node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct AttachedNode {
    /// The incarnation of the lease.
    pub(super) incarnation: Incarnation,
    /// The revision of the put that attached the node.
    pub(super) revision: Revision,
}

/// A volume, with or without a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct KnownVolume {
    pub(super) lease: Option<OwnVolumeLease>,
    pub(super) ended: Option<EndedLease>,
    /// The stamp of the answer that began its last lease. An older answer that arrives later names
    /// a lease that the server has replaced.
    pub(super) begun: Stamp,
    /// Which reads get object leases, by the last answer to a read. Other reads use no volume
    /// lease.
    pub(super) offer: LeaseOffer,
    /// Whether the volume was used since its last renewal was sent.
    pub(super) is_used: bool,
    /// This session's nodes that are attached to the lease. While there are any, the holder renews
    /// the lease even if the application reads nothing.
    pub(super) attached: BTreeMap<NodePath, AttachedNode>,
    /// This session's locks, by the incarnation of their lease. While there are any, the holder
    /// renews the lease too.
    pub(super) locks: BTreeSet<(Incarnation, LockId)>,
    /// Those of the locks that are granted.
    pub(super) granted_locks: BTreeSet<LockId>,
    /// The locks with a write lease whose value must be flushed if the renewal of the volume lease
    /// is late.
    pub(super) unflushed: BTreeSet<LockId>,
    /// A sent write may attach a node or a lock to the lease. Until its answer, the holder does not
    /// know all that depends on the lease.
    pub(super) may_gain_dependents: bool,
    /// The client asks for a new lease. It believes that the volume has this top.
    pub(super) is_requested: bool,
    /// The validity that was last reported to the cache.
    pub(super) validity_notified: VolumeValidity,
}

impl KnownVolume {
    /// Ends the lease at this client. The caller handles attached nodes and locks, because the
    /// servers may grant the same lease again.
    pub(super) fn end_lease(&mut self) {
        if let Some(lease) = self.lease.take() {
            let OwnVolumeLease { incarnation, generation, revision, since, unreported, .. } = lease;
            self.ended = Some(EndedLease { last: LastValid { incarnation, generation, revision }, since, unreported });
        }
    }

    /// The locks of other leases than the present one.
    pub(super) fn locks_of_other_leases(&self) -> impl Iterator<Item = LockId> {
        let first = |incarnation| (incarnation, LockId(0));
        let present = self.lease.as_ref().map(|lease| lease.incarnation);
        let until = present.map_or(Unbounded, |present| Excluded(first(present)));
        let after = present.map(|Incarnation(present)| self.locks.range(first(Incarnation(present + 1))..));
        let others = self.locks.range((Unbounded, until)).chain(after.into_iter().flatten());
        others.map(|(_, id)| *id).counted()
    }

    /// The lease, if its time has not passed.
    pub(super) fn live(&self, now: Instant) -> Option<&OwnVolumeLease> {
        self.lease.as_ref().filter(|lease| now < lease.until)
    }

    /// Whether nodes or locks depend on the lease.
    pub(super) fn has_dependents(&self) -> bool {
        !self.attached.is_empty() || !self.locks.is_empty()
    }

    /// Whether the holder may send a request only to renew this lease.
    fn renews_ahead(&self, mode: RenewalMode) -> bool {
        mode == RenewalMode::Ahead || self.has_dependents()
    }

    /// Whether a request of the application may renew the lease.
    pub(super) fn renews(&self, mode: RenewalMode) -> bool {
        mode != RenewalMode::Never || self.has_dependents()
    }

    /// Whether the lease is needed: it is in use, or its renewal is wanted.
    fn is_needed(&self, mode: RenewalMode) -> bool {
        self.is_used || self.is_renewal_wanted(mode)
    }

    /// Whether to ask for a renewal even if the lease has ended on this clock, because it may still
    /// exist on the server.
    pub(super) fn is_renewal_wanted(&self, mode: RenewalMode) -> bool {
        let is_renewal_pending = self.lease.as_ref().is_some_and(|lease| lease.pace.is_renewal_pending);
        self.renews_ahead(mode) && (self.has_dependents() || is_renewal_pending)
    }

    /// The volume's places in the index.
    pub(super) fn keys(&self, mode: RenewalMode) -> VolumeKeys {
        let has_live_lease = self.lease.as_ref().is_some_and(|lease| !lease.has_expired);
        let late_dependents = (self.has_dependents() && !has_live_lease).then_some(());
        let ended_grants = (!self.granted_locks.is_empty() && !has_live_lease).then_some(());
        let is_in_use = has_live_lease || self.has_dependents() || self.may_gain_dependents || self.is_requested;
        let forgettable = (!is_in_use).then_some(());
        let Some(lease) = &self.lease else {
            return VolumeKeys { late_dependents, ended_grants, forgettable, ..VolumeKeys::default() };
        };
        let (is_needed, is_wanted) = (self.is_needed(mode), self.is_renewal_wanted(mode));
        let renews_ahead = self.renews_ahead(mode);
        // A write in flight may attach a node or a lock to the lease, so that must not end.
        let may_gain = self.may_gain_dependents;
        let may_join = (self.renews(mode) && is_needed) || may_gain;
        let late_from = Some(lease.until.before(lease.pace.term / FLUSH_PART_OF_TERM));
        let joining = Some((lease.pace.is_renewal_pending, lease.pace.piggyback_from()));
        VolumeKeys {
            ending: has_live_lease.then_some(lease.until),
            joining: joining.filter(|_| may_join && has_live_lease),
            late: joining.filter(|_| may_join && !has_live_lease),
            ahead: joining.filter(|_| (renews_ahead && is_needed) || may_gain),
            // A lease that has ended here may still exist on the server: ask, if that is wanted.
            due: (renews_ahead && (is_needed || may_gain) && (has_live_lease || is_wanted)).then_some(lease.pace.due),
            idle: (renews_ahead && !is_needed && !may_gain && has_live_lease).then_some(lease.pace.due),
            term: Some(lease.pace.term),
            overdue: (!has_live_lease && is_wanted).then_some(()),
            unreported: lease.unreported.map(|_| ()),
            late_dependents,
            ended_grants,
            forgettable,
            flush: late_from.filter(|_| !self.unflushed.is_empty()),
        }
    }
}

/// A known volume that may be changed. When it is dropped, it updates the index.
#[derive(Debug)]
pub(super) struct VolumeMut<'a> {
    top: &'a NodePath,
    volume: &'a mut KnownVolume,
    index: &'a mut VolumeIndex,
    renewal: RenewalMode,
    before: VolumeKeys,
}

impl<'a> VolumeMut<'a> {
    /// `before` is the volume's places in the index: none, if the volume is new.
    pub(super) fn new(
        top: &'a NodePath,
        volume: &'a mut KnownVolume,
        index: &'a mut VolumeIndex,
        renewal: RenewalMode,
        before: VolumeKeys,
    ) -> Self {
        Self { top, volume, index, renewal, before }
    }
}

impl Deref for VolumeMut<'_> {
    type Target = KnownVolume;

    fn deref(&self) -> &KnownVolume {
        self.volume
    }
}

impl DerefMut for VolumeMut<'_> {
    fn deref_mut(&mut self) -> &mut KnownVolume {
        self.volume
    }
}

impl Drop for VolumeMut<'_> {
    fn drop(&mut self) {
        self.index.shift(self.top, &self.before, &self.volume.keys(self.renewal));
    }
}
