//! Runs many seeds in parallel, until one breaks an invariant.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use leasehold_model::threads::{processors, spread};
use leasehold_protocol::planted::Bug;

use crate::{Fault, Plan, Report, Tally, run};

/// The result of a search.
#[derive(Debug, Default)]
pub struct Findings {
    /// The lowest seed that broke an invariant, with its whole trace.
    pub broken: Option<(u64, Report)>,
    /// How many worlds were run.
    pub worlds: u64,
    /// Their virtual time, in microseconds.
    pub micros: u64,
    /// Their events.
    pub steps: u64,
    /// Their committed entries.
    pub entries: u64,
    /// The reads and writes in their histories.
    pub operations: u64,
    /// The counts of what happened in them.
    pub tally: Tally,
}

impl Findings {
    fn add(&mut self, report: &Report) {
        self.worlds += 1;
        self.micros += report.micros;
        self.steps += report.steps;
        self.entries += report.entries;
        self.operations += report.operations as u64;
        self.tally.merge(&report.tally);
    }

    fn merge(&mut self, other: &Findings) {
        self.worlds += other.worlds;
        self.micros += other.micros;
        self.steps += other.steps;
        self.entries += other.entries;
        self.operations += other.operations;
        self.tally.merge(&other.tally);
    }
}

/// Runs the worlds of these seeds until one breaks an invariant, with one thread for each
/// processor.
///
/// The result does not depend on the threads: the search finds the lowest broken seed.
pub fn search(seeds: Range<u64>, bug: Option<Bug>) -> Findings {
    search_as(seeds, &Plan::of(0, bug))
}

/// Like [`search`], with a plan in which only the seed changes.
pub fn search_as(seeds: Range<u64>, plan: &Plan) -> Findings {
    let of = |seed| Plan { seed, keeps_trace: false, ..plan.clone() };
    let lowest = AtomicU64::new(u64::MAX);
    let all = spread(processors(), seeds.clone(), |mine: &mut Findings, seed| {
        if seed >= lowest.load(Ordering::Relaxed) {
            return false;
        }
        let report = run(&of(seed));
        mine.add(&report);
        if report.violation.is_some() {
            lowest.fetch_min(seed, Ordering::Relaxed);
        }
        true
    });
    let mut findings = Findings::default();
    all.iter().for_each(|mine| findings.merge(mine));
    let seed = lowest.into_inner();
    findings.broken = (seed < seeds.end).then(|| (seed, run(&Plan { keeps_trace: true, ..of(seed) })));
    findings
}

/// Runs the worlds of all these seeds, and calls `tell` for each broken one at once. Returns how
/// many are broken.
pub fn search_on(seeds: Range<u64>, plan: &Plan, tell: impl Fn(u64, &str) + Sync) -> u64 {
    let broken = spread(processors(), seeds, |broken: &mut u64, seed| {
        if let Some(violation) = run(&Plan { seed, keeps_trace: false, ..plan.clone() }).violation {
            *broken += 1;
            tell(seed, &violation);
        }
        true
    });
    broken.iter().sum()
}

/// Counts what happens in the worlds of these seeds, in each up to its first violation.
pub fn tally_of(seeds: Range<u64>, plan: &Plan) -> Tally {
    let all = spread(processors(), seeds, |mine: &mut Tally, seed| {
        mine.merge(&run(&Plan { seed, keeps_trace: false, ..plan.clone() }).tally);
        true
    });
    let mut tally = Tally::default();
    all.iter().for_each(|mine| tally.merge(mine));
    tally
}

/// The last lines of a trace, which led to the violation.
pub fn tail(trace: &str, lines: usize) -> String {
    let all: Vec<&str> = trace.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A plan that still breaks an invariant, without the faults that are not needed for that.
pub fn shrink(plan: &Plan) -> Plan {
    let mut least = Plan { keeps_trace: false, ..plan.clone() };
    let happened = run(&least).tally;
    for fault in Fault::ALL.into_iter().filter(|fault| happened.0.contains_key(fault.name())) {
        let mut less = least.clone();
        less.without.insert(fault);
        if run(&less).violation.is_some() {
            least = less;
        }
    }
    Plan { keeps_trace: plan.keeps_trace, ..least }
}

/// The command that repeats this run.
pub fn repeat_command(plan: &Plan) -> String {
    let mut command = "cargo run --release -p leasehold-simulation".to_owned();
    if plan.bug.is_some() {
        command += " --features planted-bugs";
    }
    command += &format!(" -- --seed {} --trace", plan.seed);
    if let Some(bug) = plan.bug {
        command += &format!(" --plant {bug:?}");
    }
    if plan.is_wide {
        command += " --wide";
    }
    if !plan.unjudged.is_empty() {
        let names: Vec<&str> = plan.unjudged.iter().map(|judge| judge.name()).collect();
        command += &format!(" --unjudged {}", names.join(","));
    }
    if !plan.without.is_empty() {
        let names: Vec<&str> = plan.without.iter().map(|fault| fault.name()).collect();
        command += &format!(" --without {}", names.join(","));
    }
    command
}
