//! Replays Gray and Cheriton (1989): one lease for each file, for several terms and numbers of
//! sharers. Volume leases outlast the runs, so an object lease is the paper's lease.

use std::time::Duration;

use leasehold_protocol::lease_policy::ObjectTerm;

use crate::{
    counts::Counts,
    gray_cheriton::Load,
    plot::{Curve, Plot},
    workload::{Workload, run},
};

/// How many clients share each file.
pub const SHARING: [usize; 4] = [1, 10, 20, 40];

/// The share of all messages that serve consistency with a term of zero, in the V system.
pub const CONSISTENCY_SHARE: f64 = 0.3;

/// For how long messages are counted.
pub const MEASURED: Duration = Duration::from_secs(3000);

/// The object terms of the replay.
pub fn terms() -> Vec<ObjectTerm> {
    let seconds = [1, 2, 5, 10, 30].map(|seconds| ObjectTerm::Fixed(Duration::from_secs(seconds)));
    [&[ObjectTerm::Zero][..], &seconds, &[ObjectTerm::Infinite]].concat()
}

/// One point of a curve: what the formulas say, and what was counted. Rates are in messages per
/// second. Delays are means over all reads and writes, in milliseconds.
#[derive(Debug, Clone)]
pub struct Point {
    /// How many clients share each file.
    pub sharing: usize,
    /// The object term.
    pub term: ObjectTerm,
    /// The rate by the paper's formula.
    pub paper: f64,
    /// The rate by [Leasehold's rules](crate::gray_cheriton::Load::by_rules).
    pub rules: f64,
    /// The counted rate.
    pub counted: f64,
    /// The delay by the paper's formula.
    pub paper_delay: f64,
    /// The delay by Leasehold's rules. `None` for shared files: it has no closed form, because
    /// sharers lose their copies together.
    pub rules_delay: Option<f64>,
    /// The measured delay.
    pub counted_delay: f64,
}

/// Runs one point with the rates of the V system, for a time.
pub fn point(seed: u64, sharing: usize, term: ObjectTerm, measured: Duration) -> Point {
    point_of(&Workload { measured, ..Workload::file_leases(seed, sharing, term) })
}

/// Runs a workload of [`Workload::file_leases`].
pub fn point_of(workload: &Workload) -> Point {
    let (load, term) = (workload.load(), workload.copy_term());
    let at_client = term.client;
    let counts = run(*workload);
    // With a term of zero there are no copies, so each read fetches.
    let counted = if at_client == 0.0 { counts.fetches } else { counts.consistency() };
    let (rules, operations) = (load.by_rules(term), load.reads + load.writes);
    let validating = rules.validating_reads * load.reads * Workload::round_trip().as_secs_f64() / operations;
    Point {
        sharing: workload.sharing,
        term: workload.object_term,
        paper: load.messages(at_client),
        rules: rules.messages(),
        counted: workload.per_second(counted),
        paper_delay: load.delay(at_client) * 1e3,
        rules_delay: (workload.sharing == 1).then_some(validating * 1e3),
        counted_delay: added_delay(&counts) * 1e3,
    }
}

/// The mean delay that consistency adds to a read or a write, in seconds. A write takes one round
/// trip without it.
fn added_delay(counts: &Counts) -> f64 {
    let Counts { reads, written, read_delay, write_delay, .. } = *counts;
    let writes = write_delay.as_secs_f64() - written as f64 * Workload::round_trip().as_secs_f64();
    (read_delay.as_secs_f64() + writes) / (reads + written) as f64
}

/// All points, by sharing and term.
pub fn points(seed: u64, measured: Duration) -> Vec<Point> {
    SHARING
        .into_iter()
        .flat_map(|sharing| terms().into_iter().map(move |term| point(seed, sharing, term, measured)))
        .collect()
}

/// The points as a table of Markdown.
pub fn table(points: &[Point]) -> String {
    let mut lines = vec![
        "| sharers S | object term | paper /s | rules /s | counted /s | of polling | paper, ms | rules, ms | measured, ms |".to_owned(),
        format!("|{}", " ---: |".repeat(9)),
    ];
    for point in points {
        let polling =
            points.iter().find(|other| other.sharing == point.sharing).map_or(f64::NAN, |polling| polling.counted);
        let rules_delay = point.rules_delay.map_or_else(String::new, |delay| format!("{delay:.3}"));
        lines.push(format!(
            "| {} | {} | {:.2} | {:.2} | {:.2} | {:.1} % | {:.3} | {rules_delay} | {:.3} |",
            point.sharing,
            point.term,
            point.paper,
            point.rules,
            point.counted,
            point.counted / polling * 100.0,
            point.paper_delay,
            point.counted_delay,
        ));
    }
    lines.join("\n") + "\n"
}

/// What fresh reads cost: messages in percent of those of polling, by the time that a write waits
/// for a dead holder (leases), or by the greatest age of an answer (old answers, which no write
/// waits for). An old answer of this age costs a request as a lease of this term does, and no
/// approval.
pub fn trade_off(points: &[Point]) -> Plot {
    let of = |sharing: usize| {
        let of: Vec<&Point> = points.iter().filter(|point| point.sharing == sharing).collect();
        let polling = of.first().map_or(f64::NAN, |polling| polling.counted);
        let finite = of.iter().filter_map(|point| Some((seconds(point.term)?, point.counted / polling * 100.0)));
        finite.collect::<Vec<_>>()
    };
    let load = Load::v_system(20.0, 1.0);
    let old = terms().into_iter().filter_map(seconds);
    let old = old.map(|age| (age, load.extensions(age) / load.extensions(0.0) * 100.0)).collect();
    let lease = |name: &str, sharing| Curve { name: name.to_owned(), points: of(sharing), is_dashed: false };
    Plot {
        title: "Fresh reads: messages by the wait of a write, or by the age of an answer",
        x: "seconds: the longest wait for a dead client, or the greatest age of an answer",
        y: "% of the messages if each read asks",
        curves: vec![
            Curve { name: "old answers (formula), no wait".to_owned(), points: old, is_dashed: false },
            lease("leases, nothing is shared", 1),
            lease("leases, ten share each file", 10),
        ],
    }
}

/// The load by the term, in percent of the load of polling.
pub fn plot(points: &[Point]) -> Plot {
    let mut curves = Vec::new();
    for sharing in SHARING {
        let of: Vec<&Point> = points.iter().filter(|point| point.sharing == sharing).collect();
        let Some(polling) = of.first().map(|point| point.paper) else { continue };
        let at = |value: fn(&Point) -> f64| {
            let finite = of.iter().filter_map(|point| Some((seconds(point.term)?, value(point) / polling * 100.0)));
            finite.collect::<Vec<_>>()
        };
        curves.push(Curve { name: format!("S = {sharing}, paper"), points: at(|point| point.paper), is_dashed: true });
        curves.push(Curve {
            name: format!("S = {sharing}, counted"),
            points: at(|point| point.counted),
            is_dashed: false,
        });
    }
    Plot {
        title: "Gray and Cheriton 1989: consistency messages by the term",
        x: "object term, s",
        y: "% of the messages if each read asks",
        curves,
    }
}

fn seconds(term: ObjectTerm) -> Option<f64> {
    match term {
        ObjectTerm::Zero => Some(0.0),
        ObjectTerm::Fixed(term) => Some(term.as_secs_f64()),
        ObjectTerm::Infinite | ObjectTerm::Adaptive { .. } | ObjectTerm::ByUse { .. } => None,
    }
}
