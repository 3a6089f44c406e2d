//! The simulator's own tests: some thousand seeds, the same seed twice, and counts of what happens.

use std::{collections::BTreeSet, sync::LazyLock};

use leasehold_protocol::planted::Bug;
use leasehold_simulation::{
    BY_TESTS_OF_RULES, Bound, Fault, Findings, Plan, repeat_command, run, search, search_as, shrink, tail,
};

/// Seeds in a normal run.
const SEEDS: u64 = 2_000;

/// Seeds of wide worlds in a normal run: about a minute of one processor.
const WIDE_SEEDS: u64 = 300;

/// The worlds of a normal run. Several tests share them, because they take minutes. After a broken
/// world there are no more, so the counts are too low then.
static FINDINGS: LazyLock<Findings> = LazyLock::new(|| search(0..SEEDS, None));

/// The same of wide worlds.
static WIDE_FINDINGS: LazyLock<Findings> = LazyLock::new(|| search_as(0..WIDE_SEEDS, &wide()));

fn wide() -> Plan {
    Plan { is_wide: true, ..Plan::default() }
}

#[test]
fn no_seed_breaks_an_invariant() {
    expect_nothing_broke(&FINDINGS, &Plan::default());
    assert_eq!(FINDINGS.worlds, SEEDS);
}

#[test]
fn no_seed_of_wide_worlds_breaks_an_invariant() {
    expect_nothing_broke(&WIDE_FINDINGS, &wide());
    assert_eq!(WIDE_FINDINGS.worlds, WIDE_SEEDS);
}

fn expect_nothing_broke(findings: &Findings, plan: &Plan) {
    if let Some((seed, report)) = &findings.broken {
        let plan = Plan { seed: *seed, ..plan.clone() };
        panic!(
            "{}\n\nseed {seed}: {}\nrepeat: {}\nwith fewer faults: {}",
            tail(&report.trace, 60),
            report.violation.as_deref().unwrap_or_default(),
            repeat_command(&plan),
            repeat_command(&shrink(&plan))
        );
    }
}

/// A simulator in which little happens finds little.
#[test]
fn everything_happens_often_enough() {
    let tally = &FINDINGS.tally;
    println!("{tally:#?}");
    // The least number of each in 400 worlds.
    let branches = [
        ("answers about writes outside of the window", 150),
        ("candidacies", 100),
        ("commands of ended epochs", 3),
        ("commands of ended sessions", 20),
        ("consents delayed", 600),
        ("consents that were not given", 100),
        ("copies revived", 500),
        ("copies to be validated", 500),
        ("elections won", 1_000),
        ("entries of a deposed leader that vanished", 100),
        ("epochs", 1_000),
        ("expiries of leases that have ended", 50),
        ("expiries put off", 50),
        ("locks handed over", 80),
        ("leaders deposed", 500),
        ("leaders that heard the last one beyond its last entry", 100),
        ("leaderships not proven", 500),
        ("leases acquired", 5_000),
        ("leases expired", 5_000),
        ("lessors that stepped down", 500),
        ("holder report parts sent", 1_000),
        ("members added", 100),
        ("messages between servers lost", 1_000),
        ("messages lost on a cut connection", 1_000),
        ("messages that came after their connection had ended", 500),
        ("messages that overtook others", 500),
        ("nodes removed", 500),
        ("notices of delayed consents", 350),
        ("pauses in the middle of a step", 100),
        ("proposals appended in a later leadership", 20),
        ("push requests lost", 90),
        ("push requests sent", 1_300),
        ("proposals that Raft did not take", 100),
        ("reads from a cache", 20_000),
        ("reads from a server", 20_000),
        ("reads from memory counted by leaders", 14_000),
        ("reads from memory reported", 15_000),
        ("reads given up", 500),
        ("recalls sent", 5_000),
        ("requests to be let in that came late", 20),
        ("requests to servers that do not lead", 1_000),
        ("revocations by name done", 20),
        ("revocations by name refused", 40),
        ("sessions closed", 100),
        ("sessions expired", 5),
        ("sessions that expired", 20),
        ("stale reads put down to a clock beyond the allowance", 3),
        ("times in jeopardy", 500),
        ("transactions done", 1_000),
        ("transactions not covered", 50),
        ("transactions refused", 300),
        ("transactions that did the other thing", 500),
        ("unsynced entries lost in a crash", 50),
        ("volumes changed", 50),
        ("volumes made", 50),
        ("volumes removed", 50),
        ("wiped servers let in", 100),
        ("writes done", 10_000),
        ("writes given up", 200),
        ("writes not covered", 500),
        ("writes of unknown outcome", 300),
        // The leader drops most of them before they are proposed.
        ("writes outside of the window", 1),
        ("writes refused", 2_000),
    ];
    let faults = Fault::ALL.map(|fault| (fault.name(), 150));
    for (name, least) in branches.into_iter().chain(faults) {
        let (got, least) = (tally.0.get(name).copied().unwrap_or_default(), least * (SEEDS / 400));
        assert!(got >= least, "{got} {name}: expected at least {least}");
    }
    let faults: u64 = Fault::ALL.iter().filter_map(|fault| tally.0.get(fault.name())).sum();
    let skipped = tally.0.get("faults that were not possible").copied().unwrap_or_default();
    assert!(skipped * 4 < faults, "{skipped} faults were not possible, {faults} were");
}

/// Wide worlds draw their special features often enough, and reach each named bound.
#[test]
fn wide_worlds_draw_enough_and_reach_each_low_bound() {
    let tally = &WIDE_FINDINGS.tally;
    println!("{tally:#?}");
    // About a quarter of what half as many worlds drew when this was written.
    let drawn = [
        ("drawn: changes of the root volume", 120),
        ("drawn: grants of a name of choice", 350),
        ("drawn: grants of a name that a client keeps", 800),
        ("drawn: leases with names", 20),
        ("drawn: leases revoked by name", 35),
        ("drawn: names that were taken", 70),
        ("drawn: puts by the name of a lease", 20),
        ("drawn: revocations of many nodes", 14),
        ("drawn: revocations of nodes", 65),
        ("drawn: several writes given up at once", 150),
        ("drawn: transactions that attach", 250),
        ("drawn: volumes made below others", 45),
        ("leaders left alone", 10),
        ("messages that came twice", 3500),
        ("revocations not covered", 40),
    ];
    let bounds = Bound::ALL.into_iter().filter(|bound| !BY_TESTS_OF_RULES.iter().any(|(other, _)| other == bound));
    let bounds = bounds.map(|bound| (bound.name(), 1));
    for (name, least) in drawn.into_iter().chain(bounds) {
        let got = tally.0.get(name).copied().unwrap_or_default();
        assert!(got >= least, "{got} {name}: expected at least {least}");
    }
}

#[test]
fn the_same_seed_is_the_same_run_bit_for_bit() {
    for seed in 0..12 {
        let traced = Plan { keeps_trace: true, ..Plan::of(seed, None) };
        let (one, other, silent) = (run(&traced), run(&traced), run(&Plan::of(seed, None)));
        assert!(one.trace == other.trace, "seed {seed}: the traces differ");
        assert_eq!((one.hash, one.steps, one.micros), (silent.hash, silent.steps, silent.micros), "seed {seed}");
    }
}

/// The two runs differ in what the tally counts, and in nothing else.
#[test]
fn nobody_notices_that_a_wall_clock_is_set() {
    let mut happened = 0;
    for seed in 0..40 {
        let with = run(&Plan::of(seed, None));
        let without = run(&Plan { without: BTreeSet::from([Fault::StepWallClock]), ..Plan::of(seed, None) });
        assert_eq!(with.hash, without.hash, "seed {seed}");
        happened += with.tally.0.get(Fault::StepWallClock.name()).copied().unwrap_or_default();
    }
    assert!(happened > 10, "{happened} times");
}

#[test]
fn a_broken_world_is_shrunk_to_a_broken_one_with_fewer_faults() {
    let (seed, _) = search(0..SEEDS, Some(Bug::ForgetOldHolders)).broken.expect("it is found");
    let plan = shrink(&Plan::of(seed, Some(Bug::ForgetOldHolders)));
    assert!(run(&plan).violation.is_some() && !plan.without.is_empty(), "{}", repeat_command(&plan));
    assert!(repeat_command(&plan).contains("--without"));
}
