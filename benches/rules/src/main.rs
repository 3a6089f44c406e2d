//! The cost of the rules themselves. With very many key leases it measures renewals, a new leader,
//! ends that are spread over time, and nodes attached and detached. With very many sessions it
//! measures recalls, copies, waits, changes and closed sessions.
//!
//! The lessor and the state are those of the server. There is no network and no disk, and a commit
//! takes a configured time. Time is virtual (`leader.rs`), so only the rules' own computation can
//! make anything late.

mod attaching;
mod crowding;
mod ending;
mod leader;
mod leading;
mod piling;
mod renewing;
mod spans;

use std::time::Duration;

use clap::Parser;

use leader::Leases;

/// The measurements and their results.
type Figures = Vec<(String, String)>;

/// Measure the cost of the rules with very many key leases and sessions, and print a Markdown
/// table.
#[derive(Debug, Parser)]
#[command(name = "leasehold-rules-bench")]
struct Options {
    /// Number of key leases.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    leases: u64,
    /// Seconds over which their ends are spread.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    spread: u64,
    /// Milliseconds that a commit takes.
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=1000))]
    commit: u64,
    /// Nodes attached to the second of two leases; the first has one.
    #[arg(long, default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    carried: u64,
    /// Sessions with a lease on one volume.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    sessions: u64,
    /// Recalls, copies, waits, changes and closed sessions that exist while single steps are
    /// measured.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    piled: u64,
}

/// The shortest term: long enough for a new leader to begin before the first end.
const TERM_MIN: Duration = Duration::from_secs(10);

fn main() {
    let Options { leases: count, spread, commit, carried, sessions, piled } = Options::parse();
    let leases = Leases { count, first: TERM_MIN, spread: Duration::from_secs(spread) };
    let commit = Duration::from_millis(commit);
    println!("{count} key leases, a commit takes {commit:?}\n");
    println!("| | |\n| --- | ---: |");
    let state = leader::state_with(leases);
    print(leading::measure(&state, commit));
    print(renewing::measure(&state, leases, commit));
    print(ending::measure(state, leases, commit));
    print(attaching::measure(carried, commit));
    print(crowding::measure(sessions, commit));
    print(piling::measure(piled, commit));
}

fn print(figures: Figures) {
    for (name, figure) in figures {
        println!("| {name} | {figure} |");
    }
}
