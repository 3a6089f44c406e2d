//! Compares what `leasehold advise` predicts with what is counted. Each workload of a grid runs
//! with several object terms. From what the leader counted with one of them, the shipped module
//! predicts the messages with all.

use std::time::Duration;

use leasehold_protocol::{
    advice::{Prediction, advise},
    lease_policy::ObjectTerm,
    message::VolumeStats,
    time::DriftAllowance,
    volume::VolumeSettings,
};

use crate::{
    counts::Counts,
    workload::{Workload, run_with_stats},
};

/// For how long messages are counted.
pub const MEASURED: Duration = Duration::from_secs(3000);

/// A workload of the grid.
struct GridWorkload {
    name: &'static str,
    clients: usize,
    sharing: usize,
    writing: usize,
    files: u64,
    is_uneven: bool,
    reads: f64,
    writes: f64,
    term: Duration,
}

const LONG: Duration = VolumeSettings::TERM_MAX;
const USUAL: Duration = VolumeSettings::DEFAULT.longest_term();

const GRID: [GridWorkload; 10] = [
    of("V system, S = 1", 1, 1, 1, (0.864, 0.040), LONG),
    of("V system, S = 10", 10, 10, 1, (0.864, 0.040), LONG),
    of("V system, S = 20", 20, 20, 1, (0.864, 0.040), LONG),
    of("8 files for each client", 1, 1, 8, (0.864, 0.040), USUAL),
    of("8 files, S = 10", 10, 10, 8, (2.0, 0.040), USUAL),
    of("one writer, 19 readers", 20, 1, 1, (0.864, 0.5), USUAL),
    of("a writer for each reader", 2, 1, 1, (0.5, 0.1), LONG),
    of("many reads", 20, 20, 4, (5.0, 0.004), USUAL),
    of("many writes", 10, 10, 2, (0.5, 0.2), USUAL),
    of("rare writes", 20, 20, 20, (1.0, 0.001), Duration::from_secs(30)),
];

/// Workloads with files that are read and written more than others.
const UNEVEN: [GridWorkload; UNEVEN_WORKLOADS] = [
    GridWorkload { is_uneven: true, ..of("50 files, uneven", 1, 1, 50, (2.0, 0.010), USUAL) },
    GridWorkload { is_uneven: true, ..of("50 files, S = 10, uneven", 10, 10, 50, (2.0, 0.050), USUAL) },
    GridWorkload { is_uneven: true, ..of(UNWRITTEN, 20, 1, 400, (2.0, 0.0), USUAL) },
];

/// The workload that nobody writes.
pub const UNWRITTEN: &str = "400 files, uneven, no writes";

/// The number of workloads with files that are read and written more than others.
pub const UNEVEN_WORKLOADS: usize = 3;

/// The number of workloads in the grid.
pub const WORKLOADS: usize = GRID.len();

const fn of(
    name: &'static str,
    sharing: usize,
    writing: usize,
    files: u64,
    (reads, writes): (f64, f64),
    term: Duration,
) -> GridWorkload {
    GridWorkload { name, clients: 20, sharing, writing, files, is_uneven: false, reads, writes, term }
}

/// The object terms of the grid. The first has no object leases, so nothing is predicted from it.
pub fn terms() -> Vec<ObjectTerm> {
    let seconds = [1, 2, 5, 10, 30].map(|seconds| ObjectTerm::Fixed(Duration::from_secs(seconds)));
    [&[ObjectTerm::Zero][..], &seconds, &[ObjectTerm::Infinite]].concat()
}

/// A prediction and the counts. Rates are messages per second.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The workload.
    pub workload: &'static str,
    /// The object term with which the leader counted.
    pub from: ObjectTerm,
    /// What is predicted for another term, or for the same.
    pub predicted: Prediction,
    /// What was counted with that term: reads that ask, recalls and consents, and messages for
    /// volume leases.
    pub counted: [f64; 3],
    /// The share of the reads that were answered from memory.
    pub from_memory: f64,
    /// All messages with a term of zero, as counted.
    pub polling: f64,
}

impl Cell {
    /// The kinds of messages: predicted and counted.
    pub fn parts(&self) -> [(f64, f64); 3] {
        let Prediction { reads, recalls, renewals, .. } = self.predicted;
        let [of_reads, of_recalls, of_renewals] = self.counted;
        [(reads, of_reads), (recalls, of_recalls), (renewals, of_renewals)]
    }

    /// Whether the prediction is within a share of what was counted. Where hardly any message is
    /// left, less than a hundredth of those with a term of zero, hardly any must be predicted.
    pub fn is_within(&self, share: f64) -> bool {
        let ((predicted, counted), none) = (self.messages(), self.polling / 100.0);
        (predicted - counted).abs() <= share * counted || (counted < none && predicted < none)
    }

    /// All messages: predicted and counted.
    pub fn messages(&self) -> (f64, f64) {
        (self.predicted.messages(), self.counted.iter().sum())
    }
}

/// All predictions for all workloads of the grid.
pub fn cells(seed: u64, measured: Duration) -> Vec<Cell> {
    GRID.iter().flat_map(|workload| workload.cells(seed, measured)).collect()
}

/// All predictions for workloads with files that are read and written more than others.
pub fn uneven_cells(seed: u64, measured: Duration) -> Vec<Cell> {
    UNEVEN.iter().flat_map(|workload| workload.cells(seed, measured)).collect()
}

impl GridWorkload {
    fn cells(&self, seed: u64, measured: Duration) -> Vec<Cell> {
        let runs: Vec<_> = terms().into_iter().map(|term| (term, self.run(seed, term, measured))).collect();
        let rates = |counts: &Counts| by_kind(counts).map(|count| count as f64 / measured.as_secs_f64());
        let polling = rates(&runs[0].1.0).iter().sum();
        let mut cells = Vec::new();
        for (from, (_, stats)) in &runs {
            let advice = advise(stats, Workload::round_trip(), DriftAllowance::DEFAULT);
            for predicted in advice.predictions.unwrap_or_default() {
                let Some((_, (counts, _))) = runs.iter().find(|(term, _)| *term == predicted.term) else { continue };
                cells.push(Cell {
                    workload: self.name,
                    from: *from,
                    predicted,
                    counted: rates(counts),
                    from_memory: counts.hits as f64 / counts.reads as f64,
                    polling,
                });
            }
        }
        cells
    }

    fn run(&self, seed: u64, object_term: ObjectTerm, measured: Duration) -> (Counts, VolumeStats) {
        let Self { clients, sharing, writing, files, is_uneven, reads, writes, term, .. } = *self;
        let base = Workload::v_system(seed, sharing, files, term);
        let workload = Workload { clients, writing, is_uneven, reads, writes, object_term, measured, ..base };
        let (counts, [earlier, later]) = run_with_stats(workload);
        (counts, between(&earlier, later))
    }
}

/// What a leader counted between two checks, without the first reads of all files.
fn between(earlier: &VolumeStats, later: VolumeStats) -> VolumeStats {
    let mut stats = later;
    stats.counted_for -= earlier.counted_for;
    let (counts, before) = (&mut stats.counts, &earlier.counts);
    for (count, before) in [
        (&mut counts.reads_leased, before.reads_leased),
        (&mut counts.reads_unleased, before.reads_unleased),
        (&mut counts.reads_validating, before.reads_validating),
        (&mut counts.reads_from_memory, before.reads_from_memory),
        (&mut counts.renewals_alone, before.renewals_alone),
        (&mut counts.heartbeats_idle, before.heartbeats_idle),
        (&mut counts.acquisitions, before.acquisitions),
        (&mut counts.report_parts, before.report_parts),
        (&mut counts.recalls, before.recalls),
        (&mut counts.writes, before.writes),
        (&mut counts.writes_by_holders, before.writes_by_holders),
        (&mut counts.object_lease_ms, before.object_lease_ms),
    ] {
        *count -= before;
    }
    for (count, before) in counts.read_gaps.classes.iter_mut().zip(before.read_gaps.classes) {
        *count -= before;
    }
    stats
}

/// Reads that ask and their answers; recalls and consents; all others except writes.
fn by_kind(counts: &Counts) -> [u64; 3] {
    let Counts { renewals, acquisitions, lists, validations, recalls, fetches, .. } = *counts;
    [validations + fetches, recalls, renewals + acquisitions + lists]
}

/// The largest errors for each workload, as a table of Markdown.
pub fn summary(cells: &[Cell]) -> String {
    let mut lines = vec![
        "| workload | R /s | writers of each file | W /s | volume term | messages /s by term: 0 | 1s | 10s | infinite | largest error |".to_owned(),
        format!("| --- |{}", " ---: |".repeat(9)),
    ];
    for GridWorkload { name, reads, writes, writing, term, .. } in GRID.iter().chain(&UNEVEN) {
        let own = || cells.iter().filter(|cell| cell.workload == *name);
        if own().next().is_none() {
            continue;
        }
        let counted = |term| own().find(|cell| cell.predicted.term == term).map_or(f64::NAN, |cell| cell.messages().1);
        let [zero, one, ten, infinite] = [
            ObjectTerm::Zero,
            ObjectTerm::Fixed(Duration::from_secs(1)),
            ObjectTerm::Fixed(Duration::from_secs(10)),
            ObjectTerm::Infinite,
        ]
        .map(counted);
        // Beside a load of nearly nothing, an error says nothing.
        let errors = own().filter(|cell| cell.messages().1 >= cell.polling / 100.0).map(|cell| {
            let (predicted, counted) = cell.messages();
            (predicted / counted - 1.0).abs() * 100.0
        });
        lines.push(format!(
            "| {name} | {reads} | {writing} | {writes} | {} | {zero:.2} | {one:.2} | {ten:.2} | {infinite:.2} | {:.1} % |",
            hours(*term),
            errors.fold(0.0, f64::max),
        ));
    }
    lines.join("\n") + "\n"
}

fn hours(term: Duration) -> String {
    if term == LONG { "24h".to_owned() } else { format!("{term:?}") }
}

/// The predictions as a table of Markdown.
pub fn table(cells: &[Cell]) -> String {
    let mut lines = vec![
        "| workload | counted with | predicted for | reads /s | counted | recalls /s | counted | renewals /s | counted | all /s | counted | off |".to_owned(),
        format!("| --- |{}", " ---: |".repeat(11)),
    ];
    for cell in cells {
        let parts = cell.parts().map(|(predicted, counted)| format!("{predicted:.2} | {counted:.2}")).join(" | ");
        let (predicted, counted) = cell.messages();
        lines.push(format!(
            "| {} | {} | {} | {parts} | {predicted:.2} | {counted:.2} | {:+.1} % |",
            cell.workload,
            cell.from,
            cell.predicted.term,
            (predicted / counted - 1.0) * 100.0,
        ));
    }
    lines.join("\n") + "\n"
}
