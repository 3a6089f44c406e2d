//! The counters of each volume, for operators. They never change a decision.
//!
//! The lessor counts in memory from its beginning, and counts a volume that is created later from
//! its creation. A change of the volume's settings sets its counters to zero, so that they belong
//! to one choice. They are removed with the volume, so they are bounded by the volumes. Each module
//! counts its own events. This one does not know what the events are.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    time::Duration,
};

use crate::{
    message::{ReadGaps, SpanCounts, VolumeCounts, WaitCounts},
    path::NodePath,
    state::State,
    time::Instant,
};

/// A value that only counters and inspections use, within the lessor. It has no hash. The
/// exhaustive exploration takes two lessors with one hash as the same, and explores only one of
/// them. Lessors that differ in such values alone decide the same, and must not be explored twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unhashed<T>(pub(super) T);

impl<T> Hash for Unhashed<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// The event that ended the wait of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitEnd {
    Consent,
    VolumeLease,
    ObjectLease,
    EarlierWrite,
}

/// The counters of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CountedVolume {
    since: Instant,
    counts: VolumeCounts,
    /// The object leases of the volume at a time, as last noted.
    object_leases: (Instant, u64),
}

impl CountedVolume {
    fn new(since: Instant) -> Self {
        Self { since, counts: VolumeCounts::default(), object_leases: (since, 0) }
    }

    /// The sum over time of the object leases, up to now.
    fn object_lease_ms(&self, now: Instant) -> u64 {
        let (noted_at, object_leases) = self.object_leases;
        let millis = u64::try_from(now.since(noted_at).as_millis()).unwrap_or(u64::MAX);
        self.counts.object_lease_ms.saturating_add(object_leases.saturating_mul(millis))
    }

    /// Notes the number of object leases in the volume now, and returns the counters.
    fn with_leases(&mut self, object_leases: u64, now: Instant) -> &mut VolumeCounts {
        self.counts.object_lease_ms = self.object_lease_ms(now);
        self.object_leases = (now, object_leases);
        &mut self.counts
    }
}

/// The counters of all volumes. A volume without an entry has counted nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeCounters {
    since: Instant,
    volumes: BTreeMap<NodePath, CountedVolume>,
}

impl VolumeCounters {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, volumes: BTreeMap::new() }
    }

    /// The counters of a volume that exists.
    fn of(&mut self, volume: &NodePath) -> &mut VolumeCounts {
        &mut self.counted_volume(volume).counts
    }

    fn counted_volume(&mut self, volume: &NodePath) -> &mut CountedVolume {
        let since = self.since;
        self.volumes.entry(volume.clone()).or_insert_with(|| CountedVolume::new(since))
    }

    /// The counters of a volume that may have been removed since it was counted in.
    fn of_earlier(&mut self, volume: &NodePath) -> Option<&mut VolumeCounts> {
        self.volumes.get_mut(volume).map(|counted| &mut counted.counts)
    }

    /// A read was answered. `validated` says whether it validated the client's copy, if it had
    /// one. `object_leases` is the number of object leases in the volume now.
    pub(super) fn note_read(
        &mut self,
        volume: &NodePath,
        is_leased: bool,
        validated: Option<bool>,
        object_leases: u64,
        now: Instant,
    ) {
        let counts = self.counted_volume(volume).with_leases(object_leases, now);
        *if is_leased { &mut counts.reads_leased } else { &mut counts.reads_unleased } += 1;
        counts.reads_validating += u64::from(validated.is_some());
        counts.reads_not_modified += u64::from(validated == Some(true));
    }

    /// A client reported reads that it answered from memory, and how soon after grants it read
    /// again.
    pub(super) fn note_cached_reads(&mut self, volume: &NodePath, reads: u64, gaps: &ReadGaps) {
        let counts = self.of(volume);
        counts.reads_from_memory = counts.reads_from_memory.saturating_add(reads);
        counts.read_gaps.add_all(gaps);
    }

    /// A page of a list was answered.
    pub(super) fn note_list_page(&mut self, volume: &NodePath) {
        self.of(volume).list_pages += 1;
    }

    /// A lease on the volume was renewed, by a message of its own (`is_alone`) or not.
    pub(super) fn note_renewal(&mut self, volume: &NodePath, is_alone: bool) {
        let counts = self.of(volume);
        *if is_alone { &mut counts.renewals_alone } else { &mut counts.renewals_piggybacked } += 1;
    }

    /// A session with leases on these volumes sent a heartbeat that renews none.
    pub(super) fn note_idle_heartbeat<'a>(&mut self, volumes: impl Iterator<Item = &'a NodePath>) {
        volumes.for_each(|volume| self.of(volume).heartbeats_idle += 1);
    }

    /// A session got a new lease on the volume.
    pub(super) fn note_acquisition(&mut self, volume: &NodePath) {
        self.of(volume).acquisitions += 1;
    }

    /// A part of a holder report about the volume arrived.
    pub(super) fn note_report_part(&mut self, volume: &NodePath) {
        self.of(volume).report_parts += 1;
    }

    /// A session with leases on these volumes was asked for its consent.
    pub(super) fn note_recall(&mut self, volumes: &[NodePath]) {
        volumes.iter().for_each(|volume| self.of(volume).recalls += 1);
    }

    /// Leases were recalled from a session to keep the volume's lease limit.
    pub(super) fn note_recalled_for_room(&mut self, volume: &NodePath, leases: usize) {
        self.of(volume).leases_recalled_for_room += leases as u64;
    }

    /// A session consented to a recall in these volumes, this long after the recall.
    pub(super) fn note_consent(&mut self, volumes: &[NodePath], after: Duration) {
        for volume in volumes {
            if let Some(counts) = self.of_earlier(volume) {
                counts.consents.add(after);
            }
        }
    }

    /// A write of a client arrived. `is_holder` says whether the writer has a lease on the data of
    /// the written node. `object_leases` is the number of object leases in the volume now.
    pub(super) fn note_write(&mut self, volume: &NodePath, is_holder: bool, object_leases: u64, now: Instant) {
        let counts = self.counted_volume(volume).with_leases(object_leases, now);
        counts.writes += 1;
        counts.writes_by_holders += u64::from(is_holder);
    }

    /// The wait of a write ended.
    pub(super) fn note_wait(&mut self, volume: &NodePath, end: WaitEnd, waited: Duration) {
        let Some(VolumeCounts { waits, .. }) = self.of_earlier(volume) else { return };
        let WaitCounts { consent, volume_lease, object_lease, earlier_write } = waits;
        let spans: &mut SpanCounts = match end {
            WaitEnd::Consent => consent,
            WaitEnd::VolumeLease => volume_lease,
            WaitEnd::ObjectLease => object_lease,
            WaitEnd::EarlierWrite => earlier_write,
        };
        spans.add(waited);
    }

    /// A volume was created, changed or removed.
    pub(super) fn volume_changed(&mut self, volume: &NodePath, state: &State, now: Instant) {
        match state.volume(volume) {
            None => drop(self.volumes.remove(volume)),
            Some(_) => {
                self.volumes.insert(volume.clone(), CountedVolume::new(now));
            }
        }
    }

    /// How long the lessor has counted for the volume, and what.
    pub(super) fn counted(&self, volume: &NodePath, now: Instant) -> (Duration, VolumeCounts) {
        match self.volumes.get(volume) {
            Some(counted) => {
                let object_lease_ms = counted.object_lease_ms(now);
                (now.since(counted.since), VolumeCounts { object_lease_ms, ..counted.counts.clone() })
            }
            None => (now.since(self.since), VolumeCounts::default()),
        }
    }

    /// The number of volumes with counters.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.volumes.len()
    }

    /// Checks that only volumes that exist have counters.
    pub(super) fn check(&self, state: &State) -> Result<(), String> {
        match self.volumes.keys().find(|volume| state.volume(volume).is_none()) {
            Some(volume) => Err(format!("{volume} has counters, and is not a volume")),
            None => Ok(()),
        }
    }
}
