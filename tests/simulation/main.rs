//! The simulator: the rules that are shipped, run in virtual time.
//!
//! Real are [`State`](leasehold_protocol::state::State), [`Lessor`](leasehold_protocol::lessor::Lessor) and
//! [`Holder`](leasehold_protocol::holder::Holder). Stand-ins are Raft (`log`), the network, clocks, disks and applications. A seed
//! decides everything: the same seed is the same run. Faults come first; then they stop, and everything must heal.
//!
//! `LEASEHOLD_SEED=7 cargo test --test simulation -- one_seed --nocapture` runs one seed and prints what happened;
//! `LEASEHOLD_SEEDS=100000` makes the search longer. What must hold is in `invariants`, a file for each. That the simulator
//! would notice is shown by putting known mistakes back (`protocol/src/planted.rs`): each must be found.
//!
//! Not modelled: Raft itself, disks that fail, sessions that live longer than their term, more than one group.

mod application;
mod cache;
mod client;
mod clock;
mod event;
mod faults;
mod invariants;
mod log;
mod network;
mod oracle;
mod profile;
mod rng;
mod server;
mod tally;
mod trace;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_protocol::planted::Bug;
use world::{Report, run};

/// Seeds in a normal run.
const SEEDS: u64 = 3_000;

fn seeds() -> u64 {
    number("LEASEHOLD_SEEDS").unwrap_or(SEEDS)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

/// The lowest of the first `seeds` seeds that breaks something, with what it came to. Several are run at a time.
fn first_violation(seeds: u64, bug: Option<Bug>) -> Option<(u64, Report)> {
    let next = AtomicU64::new(0);
    let lowest = AtomicU64::new(u64::MAX);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.min(lowest.load(Ordering::Relaxed)) {
                        break;
                    }
                    if run(seed, bug, false).violation.is_some() {
                        lowest.fetch_min(seed, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let seed = lowest.into_inner();
    (seed < seeds).then(|| (seed, run(seed, bug, true)))
}

/// The end of a trace: what led to the violation.
fn tail(trace: &str, lines: usize) -> String {
    let all: Vec<&str> = trace.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[test]
fn no_seed_breaks_an_invariant() {
    if let Some((seed, report)) = first_violation(seeds(), None) {
        panic!(
            "{}\n\nseed {seed}: {}\nrepeat: LEASEHOLD_SEED={seed} cargo test --test simulation -- one_seed --nocapture",
            tail(&report.trace, 60),
            report.violation.unwrap_or_default(),
        );
    }
}

#[test]
fn one_seed() {
    let wanted = number("LEASEHOLD_SEED");
    let report = run(wanted.unwrap_or(1), None, wanted.is_some());
    if wanted.is_some() {
        println!("{}", report.trace);
    }
    assert_eq!(report.violation, None);
    assert!(report.steps > 500 && report.entries > 10 && report.micros > 5_000_000, "a world in which little happens");
}

/// A simulator in which little happens finds little.
#[test]
fn everything_happens_often_enough() {
    let mut tally = tally::Tally::default();
    for seed in 0..120 {
        tally.merge(&run(seed, None, false).tally);
    }
    println!("{tally:#?}");
    let expected = [
        ("commands of an epoch that is over", 20),
        ("copies revived", 100),
        ("copies to be validated", 50),
        ("epochs", 500),
        ("expiries put off", 1),
        ("leases expired", 100),
        ("lists told", 100),
        ("reads from a cache", 5_000),
        ("reads from a server", 5_000),
        ("sessions closed", 2),
        ("times in jeopardy", 100),
        ("writes done", 1_000),
        ("writes not covered", 10),
        ("writes of unknown outcome", 50),
        ("writes refused", 100),
    ];
    for (name, least) in expected {
        let got = tally.0.get(name).copied().unwrap_or_default();
        assert!(got >= least, "{got} {name}: expected at least {least}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..12 {
        let (one, other) = (run(seed, None, false), run(seed, None, true));
        assert_eq!((one.hash, one.steps, one.micros), (other.hash, other.steps, other.micros), "seed {seed}");
    }
}

/// Puts one mistake back and looks for it.
fn is_found(bug: Bug) {
    let seeds = seeds();
    match first_violation(seeds, Some(bug)) {
        Some((seed, report)) => println!("{bug:?}: seed {seed}, {}", report.violation.unwrap_or_default()),
        None => panic!("{bug:?} was not found in {seeds} seeds"),
    }
}

macro_rules! planted {
    ($($name:ident: $bug:ident,)*) => {
        $(
            #[test]
            fn $name() {
                is_found(Bug::$bug);
            }
        )*

        #[test]
        fn every_planted_bug_is_looked_for() {
            assert_eq!([$(Bug::$bug),*], Bug::ALL);
        }
    };
}

planted! {
    serving_after_expiry_is_found: ServeAfterExpiry,
    counting_a_term_from_its_receipt_is_found: TermFromReceipt,
    consenting_before_dropping_is_found: ConsentBeforeDrop,
    caching_an_overtaken_grant_is_found: CacheOvertakenGrant,
    forgetting_the_holders_of_an_old_leader_is_found: ForgetOldHolders,
    renewing_beyond_the_horizon_is_found: RenewBeyondHorizon,
    promising_by_the_clamped_clock_is_found: PromiseByClampedClock,
    exempting_the_writer_without_its_stamp_is_found: ExemptWriterWithoutStamp,
    reviving_without_covering_is_found: ReviveWithoutCovering,
    using_consents_of_an_earlier_epoch_is_found: ConsentsOfEarlierEpoch,
}
