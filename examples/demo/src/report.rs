//! The results of the demo and its bounds.

use serde::Serialize;

use crate::{
    crowd::Tally,
    oracle::{Ack, ReadVerdict},
};

/// The longest allowed interval between two cached reads while the clients' leases last, in
/// milliseconds.
const READ_GAP_MAX_MS: f64 = 50.0;

/// The results of a demo. Scripts rely on the names.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DemoReport {
    /// Judged reads.
    pub reads: u64,
    /// Reads answered from memory.
    pub from_memory: u64,
    /// The median latency of sampled cached reads.
    pub cached_read_p50_ns: u64,
    /// Their 99th percentile.
    pub cached_read_p99_ns: u64,
    /// Reads that missed a change which was known when they began.
    pub stale_reads: u64,
    /// Acknowledged writes.
    pub writes: u64,
    /// The median latency of writes.
    pub write_p50_ms: f64,
    /// Their 99th percentile.
    pub write_p99_ms: f64,
    /// The longest time without an acknowledgement around the leader's death, of all writers.
    pub write_outage_ms: f64,
    /// The longest interval between two cached reads of a client without a leader.
    pub longest_read_gap_ms: f64,
    /// How long a write waited for the killed client.
    pub dead_client_wait_ms: f64,
    /// How long the killed client's copy was still valid: the least that the write had to wait.
    pub dead_client_left_ms: f64,
    /// The longest that the write may wait.
    pub dead_client_bound_ms: f64,
    /// Messages of the readers, both ways, divided by their reads.
    pub messages_per_read: f64,
    /// Imported files.
    pub files: u64,
    /// The sum of their lengths.
    pub bytes: u64,
    /// The endpoints of the cluster, if it was kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// Reads and writes that failed.
    #[serde(skip)]
    pub failed: u64,
    /// The longest that writes may be out.
    #[serde(skip)]
    pub outage_bound_ms: f64,
    /// The longest allowed interval between two cached reads without a leader.
    #[serde(skip)]
    pub read_gap_bound_ms: f64,
}

/// The time without a leader, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outage {
    /// When the leader was killed.
    pub(crate) from: u64,
    /// When all writers had completed a write again.
    pub(crate) to: u64,
    /// Until when the readers' leases certainly lasted, if no server renewed them.
    pub(crate) leases_until: u64,
}

impl Outage {
    /// Cached reads go on without a leader, but not beyond the leases that protect the copies.
    fn read_gap_bound_ms(self) -> f64 {
        READ_GAP_MAX_MS + millis(self.to.saturating_sub(self.leases_until))
    }
}

impl DemoReport {
    /// The report of the clients' results.
    pub(crate) fn new(tally: &Tally, verdict: ReadVerdict, outage: Outage) -> Self {
        let mut waits: Vec<u64> =
            tally.members.iter().flat_map(|part| &part.acks).map(|ack| ack.end - ack.begin).collect();
        waits.sort_unstable();
        let readers = tally.members.iter().filter(|part| part.reads);
        // Each request has its answer, and each consent its recall.
        let messages: u64 = readers.map(|part| 2 * part.messages_sent).sum();
        let gaps = tally.members.iter().flat_map(|part| &part.gaps);
        Self {
            reads: verdict.reads,
            from_memory: tally.from_memory,
            cached_read_p50_ns: tally.cached_ns.value_at_quantile(0.5),
            cached_read_p99_ns: tally.cached_ns.value_at_quantile(0.99),
            stale_reads: verdict.stale,
            writes: waits.len() as u64,
            write_p50_ms: millis(percentile(&waits, 0.5)),
            write_p99_ms: millis(percentile(&waits, 0.99)),
            write_outage_ms: millis(tally.members.iter().map(|part| outage_of(&part.acks, outage)).max().unwrap_or(0)),
            longest_read_gap_ms: millis(longest_overlapping(gaps, outage)),
            read_gap_bound_ms: outage.read_gap_bound_ms(),
            messages_per_read: rounded(messages as f64 / verdict.reads.max(1) as f64, 1e6),
            failed: tally.failed,
            ..Self::default()
        }
    }

    /// A message for each violated bound. Empty if all hold.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        if self.stale_reads > 0 {
            broken.push(format!("{} reads were stale: expected none", self.stale_reads));
        }
        if self.reads == 0 || self.writes == 0 {
            broken.push("nothing was read or nothing written: expected both".to_owned());
        }
        let bounds = [
            ("the longest gap in cached reads", self.longest_read_gap_ms, self.read_gap_bound_ms),
            ("writes were out for", self.write_outage_ms, self.outage_bound_ms),
            ("the write waited for the dead client for", self.dead_client_wait_ms, self.dead_client_bound_ms),
        ];
        for (what, got, most) in bounds {
            if got > most {
                broken.push(format!("{what} {got} ms: expected at most {most} ms"));
            }
        }
        let (got, least) = (self.dead_client_wait_ms, self.dead_client_left_ms);
        if got < least {
            broken.push(format!("the write waited for the dead client for {got} ms: expected at least {least} ms"));
        }
        broken
    }
}

/// The longest interval between acknowledgements that overlaps the outage.
fn outage_of(acks: &[Ack], outage: Outage) -> u64 {
    let pairs = acks.windows(2).map(|pair| (pair[0].end, pair[1].end)).collect::<Vec<_>>();
    longest_overlapping(pairs.iter(), outage)
}

fn longest_overlapping<'a>(spans: impl Iterator<Item = &'a (u64, u64)>, outage: Outage) -> u64 {
    let overlaps = |(from, to): &&(u64, u64)| *to > outage.from && *from < outage.to;
    spans.filter(overlaps).map(|(from, to)| to - from).max().unwrap_or(0)
}

/// The value that at least this share of the sorted values do not exceed; 0 if there are none.
pub(crate) fn percentile(sorted: &[u64], share: f64) -> u64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).or(sorted.last()).copied().unwrap_or(0)
}

/// Nanoseconds as milliseconds, rounded to a microsecond.
pub(crate) fn millis(ns: u64) -> f64 {
    rounded(ns as f64 / 1e6, 1e3)
}

fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn good() -> DemoReport {
        DemoReport {
            reads: 10,
            writes: 1,
            longest_read_gap_ms: 3.0,
            outage_bound_ms: 100.0,
            read_gap_bound_ms: 50.0,
            dead_client_wait_ms: 50.0,
            dead_client_left_ms: 50.0,
            dead_client_bound_ms: 100.0,
            ..DemoReport::default()
        }
    }

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<u64> = (1..=200).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| percentile(&values, share)), [1, 100, 198, 200]);
        assert_eq!(percentile(&[7], 0.99), 7);
        assert_eq!(percentile(&[], 0.5), 0);
    }

    #[test]
    fn outage_is_longest_gap_between_acknowledgements() {
        let ack = |end| Ack { file: 0, revision: end, begin: end, end };
        let acks = [0, 500, 510, 1_400, 1_410, 4_000].map(|at| ack(at * MS));
        let outage = Outage { from: 512 * MS, to: 1_411 * MS, leases_until: 2_000 * MS };
        assert_eq!(outage_of(&acks[..5], outage), 890 * MS, "not the quiet time before");
        let later = Outage { to: 1_409 * MS, ..outage };
        assert_eq!(outage_of(&acks, later), 890 * MS, "nor after");
        assert_eq!(outage_of(&acks[..1], outage), 0);
    }

    #[test]
    fn read_gap_bound_grows_by_outage_beyond_leases() {
        let outage = Outage { from: 500 * MS, to: 1_700 * MS, leases_until: 2_500 * MS };
        assert_eq!(outage.read_gap_bound_ms(), 50.0, "the leases outlast the outage");
        assert_eq!(Outage { leases_until: 1_400 * MS, ..outage }.read_gap_bound_ms(), 350.0);
    }

    #[test]
    fn each_bound_is_checked() {
        assert!(good().broken().is_empty());
        let broken = [
            DemoReport { stale_reads: 1, ..good() },
            DemoReport { longest_read_gap_ms: 50.1, ..good() },
            DemoReport { write_outage_ms: 100.1, ..good() },
            DemoReport { dead_client_wait_ms: 100.1, ..good() },
            DemoReport { dead_client_wait_ms: 49.9, ..good() },
            DemoReport { reads: 0, ..good() },
        ];
        for report in broken {
            assert_eq!(report.broken().len(), 1, "{report:?}");
        }
    }

    #[test]
    fn the_document_has_the_names_that_scripts_rely_on() {
        let document = serde_json::to_value(good()).expect("JSON");
        let names: Vec<&str> = document.as_object().expect("an object").keys().map(String::as_str).collect();
        let mut expected = [
            "reads",
            "from_memory",
            "cached_read_p50_ns",
            "cached_read_p99_ns",
            "stale_reads",
            "writes",
            "write_p50_ms",
            "write_p99_ms",
            "write_outage_ms",
            "longest_read_gap_ms",
            "dead_client_wait_ms",
            "dead_client_left_ms",
            "dead_client_bound_ms",
            "messages_per_read",
            "files",
            "bytes",
        ];
        expected.sort_unstable();
        let mut names = names;
        names.sort_unstable();
        assert_eq!(names, expected);
    }
}
