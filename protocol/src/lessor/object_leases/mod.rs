//! The leader's record of object leases: its own grants, holder reports, and coverings (S2, S7).
//!
//! Object leases are not replicated. Each live volume lease has a [`VolumeTrack`]. The track is
//! exact, or *covering*: the leader then assumes that the session holds every object of the volume.
//! While a covering waits for a holder report, the leader also records object leases, from grants
//! and from the report. When the covering ends, the leader relies on these records alone.
//!
//! # Invalid at once, removed in parts
//!
//! One session may have a million object leases, and one consent or the end of one volume lease may
//! end them all. They become invalid at once: an object lease counts only while its
//! [recording](entries::RecordingId) goes on, and no pending drop includes it. The lessor removes the
//! entries from memory in parts of at most [`FORGOTTEN_PER_STEP`]: the first part at once, the
//! others in later steps.
//!
//! # The tables
//!
//! [`ObjectLeases`] owns five groups of tables, and changes them together. Each group keeps its own
//! indexes in step: `tracks`, `entries`, `sums`, `drops` and `end_order`. `holders` answers who
//! may hold copies, and `check` says how the tables agree.

mod check;
mod drops;
mod end_order;
mod entries;
mod holders;
mod sums;
mod tracks;

use crate::{
    id::{CoveringNumber, Incarnation, SessionId},
    message::CoveringLease,
    object::{Object, ObjectSet},
    path::NodePath,
    reached::{self, reached},
    state::State,
    time::ClusterTime,
    work::{CountVisits, visit},
};

use self::{
    drops::{DropKey, PendingDrop, PendingDrops},
    end_order::EndOrder,
    entries::{LeaseEntries, LeaseEntry},
    sums::SubtreeSums,
    tracks::{TrackKey, VolumeTracks},
};

pub(super) use self::{
    entries::{GrantSource, ObjectLease},
    tracks::{CopyTracking, TrackTotals, VolumeTrack},
};

/// The most invalid entries that one drop removes from memory when it begins, and that each later
/// step removes. This takes about 0.1 ms.
const FORGOTTEN_PER_STEP: usize = 256;

/// The first and the last session.
const EVERYONE: (SessionId, SessionId) = (SessionId(0), SessionId(u64::MAX));

/// All object leases and volume tracks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct ObjectLeases {
    tracks: VolumeTracks,
    entries: LeaseEntries,
    sums: SubtreeSums,
    drops: PendingDrops,
    end_order: EndOrder,
}

impl ObjectLeases {
    pub(super) fn track(&self, volume: &NodePath, session: SessionId) -> Option<&VolumeTrack> {
        self.tracks.get(&(volume.clone(), session))
    }

    pub(super) fn tracks(&self) -> impl Iterator<Item = (&NodePath, SessionId, &VolumeTrack)> {
        self.tracks.iter()
    }

    /// The sums of the volume's tracks.
    pub(super) fn totals_in(&self, volume: &NodePath) -> TrackTotals {
        self.tracks.totals_in(volume)
    }

    /// The sessions that have a lease on the volume.
    pub(super) fn sessions_on(&self, volume: &NodePath) -> Vec<SessionId> {
        self.tracks.sessions_on(volume)
    }

    /// The sessions that may have unknown copies in the volume at this time. For each, when the
    /// leases of these copies end, if that is known.
    pub(super) fn coverings_of(
        &self,
        volume: &NodePath,
        now: ClusterTime,
    ) -> impl Iterator<Item = (SessionId, Option<ClusterTime>)> {
        self.tracks.coverings_of(volume, now)
    }

    /// How many object leases are in memory, including invalid ones.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn lease(&self, object: &Object, session: SessionId) -> Option<&ObjectLease> {
        let entry = self.entries.get(object, session)?;
        self.is_live(&object.path, session, entry).then_some(&entry.lease)
    }

    /// Begins to track a new volume lease. Object leases under an earlier one become invalid: the
    /// client may use those copies again only after a revival, and then the session is covering.
    pub(super) fn start_tracking(
        &mut self,
        volume: NodePath,
        session: SessionId,
        incarnation: Incarnation,
        tracking: CopyTracking,
    ) {
        self.end_tracking(&volume, session);
        self.tracks.add((volume, session), incarnation, tracking);
    }

    /// Tracks a volume lease in another way, because the volume's settings have changed. The
    /// session has no copy in the volume.
    pub(super) fn track_anew(&mut self, volume: &NodePath, session: SessionId, tracking: CopyTracking) {
        let key = (volume.clone(), session);
        match tracking {
            CopyTracking::Covering => self.make_covering(&key),
            CopyTracking::Exact | CopyTracking::AwaitingReport { .. } => self.tracks.set_tracking(&key, tracking),
        }
    }

    /// From now on, records no object lease under this volume lease, and assumes that the session
    /// holds every object of the volume.
    fn make_covering(&mut self, key: &TrackKey) {
        if self.tracks.get(key).is_some() {
            self.tracks.set_tracking(key, CopyTracking::Covering);
            let (volume, session) = key.clone();
            self.forget(session, volume, None);
        }
    }

    /// Stops tracking a volume lease that has ended. Every object lease under it ends too (S2).
    pub(super) fn end_tracking(&mut self, volume: &NodePath, session: SessionId) {
        let ended = self.tracks.remove(&(volume.clone(), session));
        if ended.is_some_and(|track| track.entries > 0) {
            self.forget(session, volume.clone(), None);
        }
    }

    /// Records an object lease. If the volume lease would have more than `most`, the session
    /// becomes covering instead. Returns whether the lease was recorded.
    pub(super) fn add(
        &mut self,
        volume: &NodePath,
        object: &Object,
        session: SessionId,
        lease: ObjectLease,
        most: usize,
        state: &State,
    ) -> bool {
        let key = (volume.clone(), session);
        let Some(recording) = self.tracks.get(&key).and_then(|track| track.recording) else { return false };
        if let Some(known) = self.entries.get(object, session).copied() {
            if known.recording == recording && self.is_live(&object.path, session, &known) {
                self.update(object, session, LeaseEntry { lease: known.lease.and(lease), recording });
                return true;
            }
            self.remove(object, session);
        }
        if self.is_full(&key, most) {
            self.tidy_of(session, FORGOTTEN_PER_STEP);
        }
        if self.is_full(&key, most) {
            reached(reached::Bound::SessionObjects);
            self.make_covering(&key);
            return false;
        }
        let (object, entry) = (self.entries.shared(object, state), LeaseEntry { lease, recording });
        self.tracks.count_entry(&key);
        self.sums.add(&object.path, session, entry);
        self.entries.add(object, session, entry);
        true
    }

    /// Puts a recorded lease of a volume with a lease limit in the order of ends.
    pub(super) fn put_in_order(&mut self, volume: &NodePath, object: &Object, session: SessionId) {
        if let Some((lease, entry)) = self.entries.get_key_value(object, session) {
            self.end_order.insert(volume, lease.clone(), entry.lease.expires_at);
        }
    }

    /// How many leases of the volume are in the order of ends. A lease that the leader has recalled
    /// to keep the limit is not in it. Some leases in it may have ended.
    pub(super) fn ordered_in(&self, volume: &NodePath) -> usize {
        self.end_order.count_in(volume)
    }

    /// Takes up to `most` leases out of the order, those that end first. Removes from memory
    /// those that have ended or are invalid. Returns the others: they must be recalled.
    pub(super) fn take_first(&mut self, volume: &NodePath, most: usize, now: ClusterTime) -> Vec<(Object, SessionId)> {
        let mut first: Vec<_> = self.end_order.first_in(volume).take(most).cloned().collect();
        first.retain(|lease| {
            let (object, session) = lease;
            let is_live = self.lease(object, *session).is_some_and(|lease| lease.expires_at > now);
            match is_live {
                true => self.end_order.remove(lease),
                false => self.remove(object, *session),
            }
            is_live
        });
        first
    }

    /// About how many bytes of memory the leases of a volume take: for operators only.
    pub(super) fn bytes_in(&self, volume: &NodePath) -> u64 {
        let ordered = (self.ordered_in(volume) * EndOrder::LEASE_BYTES * TrackTotals::ROOM) as u64;
        self.totals_in(volume).bytes() + ordered
    }

    fn is_full(&self, key: &TrackKey, most: usize) -> bool {
        self.tracks.get(key).is_some_and(|track| track.entries >= most)
    }

    fn update(&mut self, object: &Object, session: SessionId, entry: LeaseEntry) {
        self.sums.update(&object.path, session, entry);
        self.entries.update(object, session, entry);
    }

    fn remove(&mut self, object: &Object, session: SessionId) {
        let Some(LeaseEntry { recording, .. }) = self.entries.remove(object, session) else { return };
        visit(1);
        if !self.end_order.is_empty() {
            self.end_order.remove(&(object.clone(), session));
        }
        self.sums.remove(&object.path, session, recording);
        self.tracks.uncount_entry(recording);
    }

    /// Records that the session has dropped its copies in the set with stamps up to `through`.
    /// Later grants stay valid.
    pub(super) fn drop_through(&mut self, set: &ObjectSet, session: SessionId, through: u64) {
        match set {
            ObjectSet::One(object) => {
                if self.lease(object, session).is_some_and(|lease| lease.source.sequence() <= through) {
                    self.remove(object, session);
                }
            }
            ObjectSet::Subtree(top) => {
                if self.entries.objects_of(session, top, None).next().is_some() {
                    self.forget(session, top.clone(), Some(through));
                }
            }
        }
    }

    /// Begins to remove the session's entries at and below `top` that are invalid, or have stamps
    /// up to `through`.
    fn forget(&mut self, session: SessionId, top: NodePath, through: Option<u64>) {
        let key = (session, top);
        self.drops.add(key.clone(), through);
        self.forget_some(&key, FORGOTTEN_PER_STEP);
    }

    pub(super) fn is_tidying(&self) -> bool {
        !self.drops.is_empty()
    }

    /// Removes some invalid entries from memory.
    pub(super) fn tidy(&mut self) {
        if let Some(first) = self.drops.first().cloned() {
            self.forget_some(&first, FORGOTTEN_PER_STEP);
        }
    }

    fn tidy_of(&mut self, session: SessionId, most: usize) {
        if let Some(first) = self.drops.first_of(session).cloned() {
            self.forget_some(&first, most);
        }
    }

    fn forget_some(&mut self, key: &DropKey, most: usize) {
        let Some(PendingDrop { through, next }) = self.drops.get(key).cloned() else { return };
        let (session, top) = key;
        let mut objects: Vec<Object> = self.entries.objects_of(*session, top, next).take(most + 1).cloned().collect();
        let next = if objects.len() > most { objects.pop() } else { None };
        self.drops.advance(key, next);
        for object in objects {
            let is_dropped = |entry: &LeaseEntry| {
                Some(entry.lease.source.sequence()) <= through || self.tracks.recorded_volume(entry.recording).is_none()
            };
            if self.entries.get(&object, *session).is_some_and(is_dropped) {
                self.remove(&object, *session);
            }
        }
    }

    /// Examines `most` leases from where the last sweep stopped, and removes those that have ended.
    pub(super) fn sweep(&mut self, now: ClusterTime, most: usize) {
        for (object, session) in self.entries.sweep(now, most) {
            self.remove(&object, session);
        }
    }

    /// Asks the session for holder reports (S7). Each of its coverings in these volumes that a
    /// report can end gets a new number. Parts of earlier reports do not count for the new number.
    pub(super) fn request_holder_reports<'a>(
        &mut self,
        session: SessionId,
        volumes: impl Iterator<Item = &'a NodePath>,
        next: impl FnMut() -> CoveringNumber,
    ) -> Vec<CoveringLease> {
        self.tracks.request_holder_reports(session, volumes, next)
    }

    /// Records the arrival of a part of a holder report. When all parts have arrived, the covering
    /// ends: the recorded leases are then all that the session can have (S7).
    pub(super) fn add_report_part(&mut self, volume: &NodePath, session: SessionId, part: u32, parts: u32) {
        self.tracks.add_report_part(&(volume.clone(), session), part, parts);
    }

    /// The number of entries of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> Vec<(&'static str, usize)> {
        let mut sizes = self.tracks.sizes().to_vec();
        sizes.extend(self.entries.sizes());
        sizes.extend(self.sums.sizes());
        sizes.push(("pending drops", self.drops.len()));
        sizes.push(("leases in the order of ends", self.end_order.len()));
        sizes
    }
}

/// The volumes that objects of the set belong to.
pub(super) fn volumes_of<'a>(set: &ObjectSet, state: &'a State) -> impl Iterator<Item = &'a NodePath> + use<'a> {
    let below = match set {
        ObjectSet::One(_) => None,
        ObjectSet::Subtree(top) => Some(state.volumes_below(top).map(|(volume, _)| volume)),
    };
    std::iter::once(state.volume_of(set.path()).0).chain(below.into_iter().flatten()).counted()
}

#[cfg(test)]
mod tests;
