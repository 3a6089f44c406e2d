//! Many seeds, several at a time, until one breaks something.

use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use leasehold_protocol::planted::Bug;

use crate::{Plan, Report, Tally, run};

/// What a search came to.
#[derive(Debug, Default)]
pub struct Findings {
    /// The lowest seed that broke something, with its whole trace.
    pub broken: Option<(u64, Report)>,
    /// Worlds that were run to their end.
    pub worlds: u64,
    /// Virtual time in them, in microseconds.
    pub micros: u64,
    /// Events in them.
    pub steps: u64,
    /// What happened in them.
    pub tally: Tally,
}

impl Findings {
    fn add(&mut self, report: &Report) {
        self.worlds += 1;
        self.micros += report.micros;
        self.steps += report.steps;
        self.tally.merge(&report.tally);
    }

    fn merge(&mut self, other: &Findings) {
        self.worlds += other.worlds;
        self.micros += other.micros;
        self.steps += other.steps;
        self.tally.merge(&other.tally);
    }
}

/// Runs the worlds of these seeds until one breaks something, on as many threads as there are processors.
///
/// Which seed is found does not depend on the threads: it is the lowest that breaks something.
pub fn search(seeds: Range<u64>, bug: Option<Bug>) -> Findings {
    let next = AtomicU64::new(seeds.start);
    let lowest = AtomicU64::new(u64::MAX);
    let all = Mutex::new(Findings::default());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut mine = Findings::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end.min(lowest.load(Ordering::Relaxed)) {
                        break;
                    }
                    let report = run(&Plan::of(seed, bug));
                    mine.add(&report);
                    if report.violation.is_some() {
                        lowest.fetch_min(seed, Ordering::Relaxed);
                    }
                }
                all.lock().expect("no worker panics while it holds it").merge(&mine);
            });
        }
    });
    let mut findings = all.into_inner().expect("no worker panics while it holds it");
    let seed = lowest.into_inner();
    findings.broken = (seed < seeds.end).then(|| (seed, run(&Plan { keeps_trace: true, ..Plan::of(seed, bug) })));
    findings
}

/// The end of a trace: what led to the violation.
pub fn tail(trace: &str, lines: usize) -> String {
    let all: Vec<&str> = trace.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// What a person types to see this seed again.
pub fn repeat_command(seed: u64, bug: Option<Bug>) -> String {
    match bug {
        None => format!("cargo run --release -p leasehold-simulation -- --seed {seed} --trace"),
        Some(bug) => format!(
            "cargo run --release -p leasehold-simulation --features planted-bugs -- --plant {bug:?} --seed {seed} --trace"
        ),
    }
}
