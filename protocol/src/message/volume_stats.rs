//! The counters of a volume, for operators. No rule depends on them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::read_gaps::ReadGaps;
use crate::{lease_policy::ObjectTerm, path::NodePath, volume::VolumeSettings};

/// What a client has read from memory in one volume, and how soon after grants, since it last
/// reported that.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CachedReads {
    /// The top of the volume.
    pub volume: NodePath,
    /// The reads.
    pub reads: u64,
    /// How long after a grant the client read objects of the volume again.
    pub gaps: ReadGaps,
}

/// The present leases on a volume, and the counters of its leader.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeStats {
    /// The top of the volume.
    pub path: NodePath,
    /// Its settings.
    pub settings: VolumeSettings,
    /// The present object term, as in [`VolumeInfo`](super::VolumeInfo::present_object_term).
    pub present_object_term: ObjectTerm,
    /// How long the leader has counted: since it became leader, or since the volume was created or
    /// its settings last changed.
    pub counted_for: Duration,
    /// The sessions with a lease on the volume now.
    pub volume_leases: u64,
    /// The object leases under these volume leases that the leader has in memory now. It removes
    /// ended ones some time after their end.
    pub object_leases: u64,
    /// The covering sessions now: the leader assumes that each holds every object of the volume.
    pub covering_sessions: u64,
    /// About how many bytes of the leader's memory these leases take. It is an estimate, from the
    /// sizes of the table entries and the usual free room between them. It does not count the
    /// replicated records of leases.
    pub lease_bytes: u64,
    /// The counters.
    pub counts: VolumeCounts,
}

/// The counters of one volume. A new leader counts from zero, and each change of the volume's
/// settings sets them to zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeCounts {
    /// Reads of objects that were answered with an object lease.
    pub reads_leased: u64,
    /// Reads of objects that were answered without an object lease.
    pub reads_unleased: u64,
    /// Reads of both kinds by clients that had a copy, which they could no longer use.
    pub reads_validating: u64,
    /// Those of them that were answered with *not modified*: they validated a copy.
    pub reads_not_modified: u64,
    /// Reads that clients answered from memory, as far as they have reported them. A client reports
    /// with its requests, at most once a second. Reports can be lost.
    pub reads_from_memory: u64,
    /// How long after a grant clients read objects again, as far as they have reported it, with the
    /// reads from memory.
    pub read_gaps: ReadGaps,
    /// Pages of lists that begin in the volume.
    pub list_pages: u64,
    /// Renewals of leases on the volume by heartbeats: by messages of their own.
    pub renewals_alone: u64,
    /// Renewals that were piggybacked on other requests.
    pub renewals_piggybacked: u64,
    /// Heartbeats that renew no lease, of sessions with a lease on the volume: they only compare
    /// clocks. A heartbeat of a session with leases on several volumes counts in each.
    pub heartbeats_idle: u64,
    /// Requests for a lease on the volume that brought no read along, or only one of a copy that
    /// the lease alone made valid again, or one that was not answered. All others count as reads.
    pub acquisitions: u64,
    /// Parts of holder reports about leases on the volume.
    pub report_parts: u64,
    /// Recalls from sessions with leases on the volume. A recall that is sent again counts once. A
    /// recall of copies in several volumes counts in each.
    pub recalls: u64,
    /// Object leases that the leader recalled to keep the volume's
    /// [lease limit](crate::volume::VolumeSettings::lease_limit).
    pub leases_recalled_for_room: u64,
    /// The consents to these recalls, and the times from the recall to the consent.
    pub consents: SpanCounts,
    /// Writes that arrived, without repetitions. A write counts in the volume of its path, and a
    /// transaction in the volume of the first object that it changes.
    pub writes: u64,
    /// Those of the writes whose writer had a lease on the data of the written node.
    pub writes_by_holders: u64,
    /// The object leases of the volume in the leader's memory, summed over time in milliseconds.
    /// Divided by the time of counting, it is about their mean number: the leader looks at each
    /// read and write.
    pub object_lease_ms: u64,
    /// Those of the writes that waited before they were proposed.
    pub waits: WaitCounts,
}

/// The waits of writes, from the arrival to the proposal. Each counts once, by the event that ended
/// it: the last of the events for which the write waited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WaitCounts {
    /// A holder consented.
    pub consent: SpanCounts,
    /// The volume lease of a holder ended.
    pub volume_lease: SpanCounts,
    /// The object leases of a holder ended.
    pub object_lease: SpanCounts,
    /// An earlier write of the same objects was proposed, or ended.
    pub earlier_write: SpanCounts,
}

/// Spans of time: how many there were, and how long they were.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SpanCounts {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
    /// How many were in each range. The first range is below 1 ms. Each further range is from the
    /// end of the one before to twice that. The last has no end.
    pub ranges: [u64; Self::RANGES],
}

impl SpanCounts {
    /// The number of ranges. The last begins at 16.384 s.
    pub const RANGES: usize = 16;

    /// Counts a span.
    pub(crate) fn add(&mut self, span: Duration) {
        self.count += 1;
        self.total = self.total.saturating_add(span);
        self.longest = self.longest.max(span);
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let range = (u64::BITS - millis.leading_zeros()) as usize;
        self.ranges[range.min(Self::RANGES - 1)] += 1;
    }

    /// The mean; zero if there are none.
    pub fn mean(&self) -> Duration {
        let count = u32::try_from(self.count).unwrap_or(u32::MAX);
        self.total.checked_div(count).unwrap_or_default()
    }

    /// An upper bound on all but the longest `100 - percent` percent of the spans, as far as the
    /// ranges tell; zero if there are none.
    pub fn percentile(&self, percent: u64) -> Duration {
        let rank = u128::from(self.count) * u128::from(percent.min(100));
        let mut below = 0;
        for (range, count) in self.ranges.iter().enumerate().take(Self::RANGES - 1) {
            below += u128::from(*count) * 100;
            if below >= rank {
                return Duration::from_millis(1 << range).min(self.longest);
            }
        }
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn span_is_counted_in_range_that_includes_it() {
        for (span, range) in [
            (Duration::ZERO, 0),
            (MILLI - Duration::from_nanos(1), 0),
            (MILLI, 1),
            (2 * MILLI, 2),
            (3 * MILLI, 2),
            (4 * MILLI, 3),
            (16_383 * MILLI, 14),
            (16_384 * MILLI, 15),
            (Duration::MAX, 15),
        ] {
            let mut spans = SpanCounts::default();
            spans.add(span);
            let found = spans.ranges.iter().position(|count| *count == 1);
            assert_eq!((found, spans.count, spans.longest), (Some(range), 1, span), "{span:?}");
        }
    }

    #[test]
    fn percentile_is_the_end_of_its_range_and_at_most_the_longest() {
        let mut spans = SpanCounts::default();
        assert_eq!((spans.percentile(99), spans.mean()), (Duration::ZERO, Duration::ZERO));
        for _ in 0..98 {
            spans.add(MILLI);
        }
        spans.add(5 * MILLI);
        spans.add(97 * MILLI);
        assert_eq!([50, 98, 99, 100].map(|percent| spans.percentile(percent)), [2, 2, 8, 97].map(|n| n * MILLI));
        assert_eq!(spans.mean(), 2 * MILLI);
        spans.add(20_000 * MILLI);
        assert_eq!(spans.percentile(100), 20_000 * MILLI);
    }
}
