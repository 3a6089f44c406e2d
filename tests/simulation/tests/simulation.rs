//! The simulator's own tests: a few thousand seeds, the same seed twice, and that enough happens.

use leasehold_simulation::{Plan, Tally, repeat_command, run, search, tail};

/// Seeds in a normal run.
const SEEDS: u64 = 3_000;

#[test]
fn no_seed_breaks_an_invariant() {
    if let Some((seed, report)) = search(0..SEEDS, None).broken {
        panic!(
            "{}\n\nseed {seed}: {}\nrepeat: {}",
            tail(&report.trace, 60),
            report.violation.unwrap_or_default(),
            repeat_command(seed, None)
        );
    }
}

/// A simulator in which little happens finds little.
#[test]
fn everything_happens_often_enough() {
    let mut tally = Tally::default();
    for seed in 0..120 {
        tally.merge(&run(&Plan::of(seed, None)).tally);
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
        let (one, other) = (run(&Plan::of(seed, None)), run(&Plan { keeps_trace: true, ..Plan::of(seed, None) }));
        assert_eq!((one.hash, one.steps, one.micros), (other.hash, other.steps, other.micros), "seed {seed}");
    }
}
