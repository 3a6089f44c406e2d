//! The counters of a volume.

use std::time::Duration;

use leasehold_protocol::{
    message::{SpanCounts, VolumeCounts, VolumeStats, WaitCounts},
    path::NodePath,
};
use serde::Serialize;

use crate::{
    commands::object_term,
    duration,
    output::{Table, Text},
};

/// The leases on a volume, and what the leader has counted.
#[derive(Debug, Serialize)]
pub(super) struct VolumeStatsAnswer {
    path: NodePath,
    counted_for_ms: u64,
    /// As `--object-term` reads it.
    object_term: String,
    /// The longest term of an object lease, or the present one if it follows the use; 0 if there
    /// are no object leases, null if it is infinite.
    object_term_ms: Option<u64>,
    volume_leases: u64,
    object_leases: u64,
    covering_sessions: u64,
    lease_bytes: u64,
    reads_leased: u64,
    reads_unleased: u64,
    reads_validating: u64,
    reads_not_modified: u64,
    reads_from_memory: u64,
    list_pages: u64,
    renewals_alone: u64,
    renewals_piggybacked: u64,
    heartbeats_idle: u64,
    acquisitions: u64,
    report_parts: u64,
    recalls: u64,
    leases_recalled_for_room: u64,
    consents: SpansAnswer,
    writes: u64,
    writes_by_holders: u64,
    /// Their number over time, on average.
    mean_object_leases: f64,
    waits: WaitsAnswer,
    #[serde(skip)]
    stats: VolumeStats,
}

/// The waits of writes, by the event that ended them.
#[derive(Debug, Serialize)]
struct WaitsAnswer {
    consent: SpansAnswer,
    volume_lease: SpansAnswer,
    object_lease: SpansAnswer,
    earlier_write: SpansAnswer,
}

/// Spans of time. A percentile is an upper bound: the end of its power-of-two range.
#[derive(Debug, Serialize)]
struct SpansAnswer {
    count: u64,
    total_ms: f64,
    mean_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
}

impl From<&SpanCounts> for SpansAnswer {
    fn from(spans: &SpanCounts) -> Self {
        let millis = |span: Duration| span.as_secs_f64() * 1e3;
        Self {
            count: spans.count,
            total_ms: millis(spans.total),
            mean_ms: millis(spans.mean()),
            p50_ms: millis(spans.percentile(50)),
            p99_ms: millis(spans.percentile(99)),
            longest_ms: millis(spans.longest),
        }
    }
}

impl From<&WaitCounts> for WaitsAnswer {
    fn from(waits: &WaitCounts) -> Self {
        let WaitCounts { consent, volume_lease, object_lease, earlier_write } = waits;
        Self {
            consent: consent.into(),
            volume_lease: volume_lease.into(),
            object_lease: object_lease.into(),
            earlier_write: earlier_write.into(),
        }
    }
}

impl From<VolumeStats> for VolumeStatsAnswer {
    fn from(stats: VolumeStats) -> Self {
        let counts = &stats.counts;
        Self {
            path: stats.path.clone(),
            counted_for_ms: duration::millis(stats.counted_for),
            object_term: object_term::text(stats.settings.object_term()),
            object_term_ms: object_term::millis(stats.present_object_term),
            volume_leases: stats.volume_leases,
            object_leases: stats.object_leases,
            covering_sessions: stats.covering_sessions,
            lease_bytes: stats.lease_bytes,
            reads_leased: counts.reads_leased,
            reads_unleased: counts.reads_unleased,
            reads_validating: counts.reads_validating,
            reads_not_modified: counts.reads_not_modified,
            reads_from_memory: counts.reads_from_memory,
            list_pages: counts.list_pages,
            renewals_alone: counts.renewals_alone,
            renewals_piggybacked: counts.renewals_piggybacked,
            heartbeats_idle: counts.heartbeats_idle,
            acquisitions: counts.acquisitions,
            report_parts: counts.report_parts,
            recalls: counts.recalls,
            leases_recalled_for_room: counts.leases_recalled_for_room,
            consents: (&counts.consents).into(),
            writes: counts.writes,
            writes_by_holders: counts.writes_by_holders,
            mean_object_leases: mean_object_leases(&stats),
            waits: (&counts.waits).into(),
            stats,
        }
    }
}

/// The mean number of object leases over the time of counting; zero before any time has passed.
fn mean_object_leases(stats: &VolumeStats) -> f64 {
    match duration::millis(stats.counted_for) {
        0 => 0.0,
        millis => stats.counts.object_lease_ms as f64 / millis as f64,
    }
}

impl Text for VolumeStatsAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let VolumeStats { counted_for, volume_leases, object_leases, covering_sessions, lease_bytes, .. } = self.stats;
        let mut now = Table::new(&["NOW", "COUNT"]);
        now.row(["volume leases".to_owned(), volume_leases.to_string()]);
        now.row(["object leases".to_owned(), object_leases.to_string()]);
        now.row(["covering sessions".to_owned(), covering_sessions.to_string()]);
        now.row(["memory of leases".to_owned(), format!("{lease_bytes} bytes")]);
        let VolumeStats { settings, present_object_term, .. } = self.stats;
        now.row(["object term".to_owned(), object_term::with_present(settings.object_term(), present_object_term)]);
        now.write(out);
        out.push(b'\n');
        counted(counted_for, &self.stats.counts).write(out);
    }
}

fn counted(counted_for: Duration, counts: &VolumeCounts) -> Table {
    let mut table = Table::new(&["COUNTED", "COUNT", "MEAN", "P50", "P99", "LONGEST"]);
    let none = String::new;
    table.row(["for".to_owned(), duration::rough(counted_for), none(), none(), none(), none()]);
    let mut count = |what: &str, count: u64| {
        table.row([what.to_owned(), count.to_string(), none(), none(), none(), none()]);
    };
    count("reads with a lease", counts.reads_leased);
    count("reads without a lease", counts.reads_unleased);
    count("of the reads: with an old copy", counts.reads_validating);
    count("of these: not modified", counts.reads_not_modified);
    count("reads from memory, as reported", counts.reads_from_memory);
    count("pages of lists", counts.list_pages);
    count("renewals by heartbeats", counts.renewals_alone);
    count("renewals piggybacked", counts.renewals_piggybacked);
    count("heartbeats that renew none", counts.heartbeats_idle);
    count("requests for leases alone", counts.acquisitions);
    count("parts of holder reports", counts.report_parts);
    count("recalls", counts.recalls);
    count("leases recalled: lease limit", counts.leases_recalled_for_room);
    count("writes", counts.writes);
    count("of them by holders", counts.writes_by_holders);
    let WaitCounts { consent, volume_lease, object_lease, earlier_write } = &counts.waits;
    for (what, spans) in [
        ("consents, after the recall", &counts.consents),
        ("waits of writes for consents", consent),
        ("waits until a volume lease ended", volume_lease),
        ("waits until object leases ended", object_lease),
        ("waits for earlier writes", earlier_write),
    ] {
        let times = [spans.mean(), spans.percentile(50), spans.percentile(99), spans.longest];
        let [mean, p50, p99, longest] = times.map(|span| if spans.count > 0 { duration::short(span) } else { none() });
        table.row([what.to_owned(), spans.count.to_string(), mean, p50, p99, longest]);
    }
    table
}
