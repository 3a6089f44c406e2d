//! The tracks of volume leases: whether the leader knows all copies of a session (S2, S7).
//!
//! Owns the track of each live volume lease, with its indexes and sums. Guarantees that the indexes
//! and sums match the tracks. Does not know the object leases: it is told when one of them is added
//! or removed.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    id::{CoveringNumber, Incarnation, SessionId},
    message::CoveringLease,
    object::Object,
    path::NodePath,
    time::ClusterTime,
    work::CountVisits,
};

use super::{
    EVERYONE,
    entries::{LeaseEntry, RecordingId},
};

/// The leader's view of the object leases under one volume lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::lessor) struct VolumeTrack {
    pub(in crate::lessor) incarnation: Incarnation,
    pub(in crate::lessor) tracking: CopyTracking,
    /// The present recording. `None` while the leader records no object leases.
    pub(super) recording: Option<RecordingId>,
    /// The number of the recording's entries in memory: valid ones, and dropped ones that are not
    /// removed yet.
    pub(in crate::lessor) entries: usize,
}

/// Whether the recorded object leases are all that the session can have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::lessor) enum CopyTracking {
    /// The session has no others.
    Exact,
    /// There may be others, until all parts of a holder report with this number have arrived. The
    /// leases of those end by `expires_at`. The leader records the leases that it grants.
    AwaitingReport { number: CoveringNumber, expires_at: ClusterTime, parts: BTreeSet<u32> },
    /// The leader records none, because the volume's settings say so or there would be too many.
    Covering,
}

impl VolumeTrack {
    #[cfg(test)]
    fn parts(&self) -> usize {
        if let CopyTracking::AwaitingReport { parts, .. } = &self.tracking { parts.len() } else { 0 }
    }

    /// The end of the last lease that the leader does not know. `None`: there is no such lease
    /// (`Exact`), or its end is not known (`Covering`).
    fn unknown_until(&self) -> Option<ClusterTime> {
        match self.tracking {
            CopyTracking::AwaitingReport { expires_at, .. } => Some(expires_at),
            CopyTracking::Covering | CopyTracking::Exact => None,
        }
    }

    pub(in crate::lessor) fn is_covering(&self) -> bool {
        self.tracking != CopyTracking::Exact
    }
}

/// The tracks of one volume, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(in crate::lessor) struct TrackTotals {
    /// How many sessions have a lease on the volume.
    pub(in crate::lessor) tracks: u64,
    /// How many of the sessions are covering.
    pub(in crate::lessor) coverings: u64,
    /// How many object leases are in memory under the volume leases.
    pub(in crate::lessor) entries: u64,
}

impl TrackTotals {
    /// The bytes of a track in `tracks` and `recorded`, and of a covering in `coverings`.
    const TRACK_BYTES: usize =
        size_of::<((NodePath, SessionId), VolumeTrack)>() + size_of::<(RecordingId, (NodePath, SessionId))>();
    const COVERING_BYTES: usize = size_of::<(NodePath, SessionId)>();
    /// The bytes of an object lease in the two tables of entries. The sums of subtrees are few
    /// beside many leases. Paths share their text with the nodes.
    const ENTRY_BYTES: usize = size_of::<((Object, SessionId), LeaseEntry)>() + size_of::<Object>();
    /// A B-tree that fills up in order leaves its nodes about half full.
    pub(super) const ROOM: usize = 2;

    /// About how many bytes of memory they take: for operators only.
    pub(super) fn bytes(&self) -> u64 {
        let all = [
            (self.tracks, Self::TRACK_BYTES),
            (self.coverings, Self::COVERING_BYTES),
            (self.entries, Self::ENTRY_BYTES),
        ];
        all.iter().map(|(count, bytes)| count.saturating_mul((bytes * Self::ROOM) as u64)).sum()
    }
}

/// A volume, and a session with a lease on it.
pub(super) type TrackKey = (NodePath, SessionId);

/// The tracks of all live volume leases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct VolumeTracks {
    tracks: BTreeMap<TrackKey, VolumeTrack>,
    /// The sums of the tracks of each volume that has any.
    totals: BTreeMap<NodePath, TrackTotals>,
    /// The covering tracks. Each write needs them, and often none of ten thousand tracks is
    /// covering.
    coverings: BTreeSet<TrackKey>,
    /// The tracks under which object leases are recorded.
    recorded: BTreeMap<RecordingId, TrackKey>,
    last_recording: RecordingId,
}

impl VolumeTracks {
    pub(super) fn get(&self, key: &TrackKey) -> Option<&VolumeTrack> {
        self.tracks.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodePath, SessionId, &VolumeTrack)> {
        self.tracks.iter().counted().map(|((volume, session), track)| (volume, *session, track))
    }

    /// The sums of the volume's tracks.
    pub(super) fn totals_in(&self, volume: &NodePath) -> TrackTotals {
        self.totals.get(volume).copied().unwrap_or_default()
    }

    /// The sessions that have a lease on the volume.
    pub(super) fn sessions_on(&self, volume: &NodePath) -> Vec<SessionId> {
        let tracks = self.tracks.range((volume.clone(), EVERYONE.0)..=(volume.clone(), EVERYONE.1)).counted();
        tracks.map(|((_, session), _)| *session).collect()
    }

    /// The volume of this recording. `None` if the recording has ended.
    pub(super) fn recorded_volume(&self, recording: RecordingId) -> Option<&NodePath> {
        self.recorded.get(&recording).map(|(volume, _)| volume)
    }

    /// The sessions that may have unknown copies in the volume at this time. For each, when the
    /// leases of these copies end, if that is known.
    pub(super) fn coverings_of(
        &self,
        volume: &NodePath,
        now: ClusterTime,
    ) -> impl Iterator<Item = (SessionId, Option<ClusterTime>)> {
        let keys = self.coverings.range((volume.clone(), EVERYONE.0)..=(volume.clone(), EVERYONE.1)).counted();
        let coverings = keys.filter_map(|key| self.tracks.get_key_value(key));
        let coverings = coverings.map(|((_, session), track)| (*session, track.unknown_until()));
        coverings.filter(move |(_, expires_at)| expires_at.is_none_or(|expires_at| expires_at > now))
    }

    /// Adds the track of a new volume lease, without object leases. The session has no other track
    /// of the volume.
    pub(super) fn add(&mut self, key: TrackKey, incarnation: Incarnation, tracking: CopyTracking) {
        let totals = self.totals.entry(key.0.clone()).or_default();
        totals.tracks += 1;
        // `set_tracking` does the rest. A track of this kind is in no other table.
        totals.coverings += 1;
        let track = VolumeTrack { incarnation, tracking: CopyTracking::Covering, recording: None, entries: 0 };
        self.tracks.insert(key.clone(), track);
        self.set_tracking(&key, tracking);
    }

    /// Removes the track of a volume lease that has ended.
    pub(super) fn remove(&mut self, key: &TrackKey) -> Option<VolumeTrack> {
        let track = self.tracks.remove(key)?;
        self.coverings.remove(key);
        if let Some(recording) = track.recording {
            self.recorded.remove(&recording);
        }
        if let Some(totals) = self.totals.get_mut(&key.0) {
            totals.tracks -= 1;
            totals.coverings -= u64::from(track.is_covering());
            totals.entries -= track.entries as u64;
            if totals.tracks == 0 {
                self.totals.remove(&key.0);
            }
        }
        Some(track)
    }

    /// Tracks a volume lease in another way. A track that becomes [`CopyTracking::Covering`] ends
    /// its recording, and counts no object leases. One that was `Covering` begins a new recording.
    pub(super) fn set_tracking(&mut self, key: &TrackKey, tracking: CopyTracking) {
        let Some(track) = self.tracks.get_mut(key) else { return };
        let was_covering = track.is_covering();
        track.tracking = tracking;
        let is_recorded = track.tracking != CopyTracking::Covering;
        let uncounted = if is_recorded { 0 } else { std::mem::take(&mut track.entries) };
        if let Some(totals) = self.totals.get_mut(&key.0) {
            totals.coverings += u64::from(track.is_covering());
            totals.coverings -= u64::from(was_covering);
            totals.entries -= uncounted as u64;
        }
        if track.is_covering() {
            self.coverings.insert(key.clone());
        } else {
            self.coverings.remove(key);
        }
        match track.recording {
            None if is_recorded => {
                self.last_recording.0 += 1;
                track.recording = Some(self.last_recording);
                self.recorded.insert(self.last_recording, key.clone());
            }
            Some(recording) if !is_recorded => {
                track.recording = None;
                self.recorded.remove(&recording);
            }
            _ => {}
        }
    }

    /// Counts an object lease that was added to the track's recording.
    pub(super) fn count_entry(&mut self, key: &TrackKey) {
        if let (Some(track), Some(totals)) = (self.tracks.get_mut(key), self.totals.get_mut(&key.0)) {
            track.entries += 1;
            totals.entries += 1;
        }
    }

    /// Subtracts a removed object lease. Nothing to do if its recording has ended.
    pub(super) fn uncount_entry(&mut self, recording: RecordingId) {
        let Some(key) = self.recorded.get(&recording) else { return };
        if let (Some(track), Some(totals)) = (self.tracks.get_mut(key), self.totals.get_mut(&key.0)) {
            track.entries = track.entries.saturating_sub(1);
            totals.entries = totals.entries.saturating_sub(1);
        }
    }

    /// Asks the session for holder reports (S7). Each of its coverings in these volumes that a
    /// report can end gets a new number. Parts of earlier reports do not count for the new number.
    pub(super) fn request_holder_reports<'a>(
        &mut self,
        session: SessionId,
        volumes: impl Iterator<Item = &'a NodePath>,
        mut next: impl FnMut() -> CoveringNumber,
    ) -> Vec<CoveringLease> {
        let mut coverings = Vec::new();
        for volume in volumes {
            let Some(track) = self.tracks.get_mut(&(volume.clone(), session)) else { continue };
            if let CopyTracking::AwaitingReport { number, parts, .. } = &mut track.tracking {
                *number = next();
                parts.clear();
                coverings.push(CoveringLease {
                    volume: volume.clone(),
                    incarnation: track.incarnation,
                    number: *number,
                });
            }
        }
        coverings
    }

    /// Records the arrival of a part of a holder report. When all parts have arrived, the covering
    /// ends: the recorded leases are then all that the session can have (S7).
    pub(super) fn add_report_part(&mut self, key: &TrackKey, part: u32, parts: u32) {
        let Some(track) = self.tracks.get_mut(key) else { return };
        if let CopyTracking::AwaitingReport { parts: seen, .. } = &mut track.tracking {
            seen.insert(part);
            // All numbers below `parts`, and no other: counted, because each part comes here.
            if seen.len() == parts as usize && seen.last().is_some_and(|last| *last < parts) {
                self.set_tracking(key, CopyTracking::Exact);
            }
        }
    }

    /// The number of entries of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [(&'static str, usize); 5] {
        [
            ("tracks", self.tracks.len()),
            ("tracks by volume", self.totals.len()),
            ("coverings", self.coverings.len()),
            ("tracks that count", self.recorded.len()),
            ("parts of reports", self.tracks.values().map(|track| track.parts()).sum()),
        ]
    }

    /// Checks that the tables agree. `entries` has the number of object leases of each recording.
    pub(super) fn check(&self, entries: &BTreeMap<RecordingId, usize>) -> Result<(), String> {
        let (mut totals, mut recorded) = (BTreeMap::<_, TrackTotals>::new(), BTreeMap::new());
        for (key, track) in &self.tracks {
            let sums = totals.entry(key.0.clone()).or_default();
            sums.tracks += 1;
            sums.coverings += u64::from(track.is_covering());
            sums.entries += track.entries as u64;
            if let Some(recording) = track.recording {
                recorded.insert(recording, key.clone());
            }
            if track.recording.is_some() != (track.tracking != CopyTracking::Covering) {
                return Err(format!("{key:?} has the recording {:?}: {:?}", track.recording, track.tracking));
            }
            let of_recording = track.recording.and_then(|recording| entries.get(&recording));
            let expected = of_recording.copied().unwrap_or_default();
            if track.entries != expected {
                return Err(format!("{key:?} counts {} leases: expected {expected}", track.entries));
            }
        }
        if !self.coverings.iter().eq(self.tracks.iter().filter(|(_, track)| track.is_covering()).map(|(key, _)| key)) {
            return Err(format!("the coverings are {:?}, and do not match the tracks", self.coverings));
        }
        if totals != self.totals || recorded != self.recorded {
            return Err("the sums by volume and the index by recording do not match the tracks".to_owned());
        }
        Ok(())
    }
}
