//! The command line of the simulator: it repeats one seed, or searches many.

use std::{process::ExitCode, time::Instant};

use clap::Parser;
use leasehold_model::planting::bug_named;
use leasehold_protocol::planted::Bug;
use leasehold_simulation::{
    Bound, Fault, Findings, Judge, Plan, Report, repeat_command, run, search_as, search_on, shrink, tail, tally_of,
};

/// Lines of the trace that a search prints for a broken seed.
const TAIL: usize = 60;

/// Runs the rules of Leasehold in virtual time with faults, and checks the invariants after every
/// step.
///
/// A seed decides everything: the same seed is the same run. Exits with 0 if nothing broke, with 1
/// if an invariant broke, with 2 if the arguments are wrong.
#[derive(Debug, Parser)]
#[command(name = "leasehold-simulation")]
struct Options {
    /// Run the world of this seed only.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Run this many worlds, and stop at the first that breaks an invariant.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed of a search.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// End the run after this many events (with --seed).
    #[arg(long, requires = "seed")]
    steps: Option<u64>,
    /// Leave these faults out, by name: see --faults (with --seed).
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Fault::of_name, requires = "seed")]
    without: Vec<Fault>,
    /// Leave these judges out, by name: see --judges.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Judge::of_name)]
    unjudged: Vec<Judge>,
    /// Print one line for each broken seed of a search, instead of stopping at the first.
    #[arg(long, conflicts_with_all = ["seed", "json"])]
    all: bool,
    /// Make half of the worlds wide: their applications do more of everything, and leaders have
    /// lower limits.
    #[arg(long)]
    wide: bool,
    /// Print how often wide worlds drew each of their features, for 1,000 worlds, whether or not an
    /// invariant broke.
    #[arg(long, conflicts_with_all = ["seed", "json", "all"])]
    count: bool,
    /// Print the names of the judges that can be left out, and exit.
    #[arg(long)]
    judges: bool,
    /// Print every event, one per line (with --seed).
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Print the names of all faults, and exit.
    #[arg(long)]
    faults: bool,
    /// Put a known mistake back, to see it found (only in a build with the feature planted-bugs).
    #[arg(long, value_name = "NAME", value_parser = bug_named)]
    plant: Option<Bug>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.faults {
        println!("{}", Fault::ALL.map(Fault::name).join("\n"));
        return ExitCode::SUCCESS;
    }
    if options.judges {
        println!("{}", Judge::ALL.map(Judge::name).join("\n"));
        return ExitCode::SUCCESS;
    }
    let is_broken = match options.seed {
        Some(seed) => one(seed, &options),
        None if options.count => count(&options),
        None if options.all => all(&options),
        None => many(&options),
    };
    ExitCode::from(u8::from(is_broken))
}

/// The plan of one world, from the options.
fn plan(seed: u64, options: &Options) -> Plan {
    Plan {
        without: options.without.iter().copied().collect(),
        unjudged: options.unjudged.iter().copied().collect(),
        is_wide: options.wide,
        ..Plan::of(seed, options.plant)
    }
}

/// Runs one seed. Returns whether an invariant broke.
fn one(seed: u64, options: &Options) -> bool {
    let plan = Plan { steps: options.steps, keeps_trace: options.trace, ..plan(seed, options) };
    let begun = Instant::now();
    let report = run(&plan);
    let wall = begun.elapsed().as_secs_f64();
    if options.trace {
        print!("{}", report.trace);
    }
    if options.json {
        println!("{}", json(seed, &report, wall));
        return report.violation.is_some();
    }
    println!(
        "seed {seed}: {} steps, {} entries, {} reads and writes in the history, {:.1} s of virtual time in {wall:.3} s, hash {:016x}",
        report.steps,
        report.entries,
        report.operations,
        seconds(report.micros),
        report.hash
    );
    if let Some(violation) = &report.violation {
        println!("BROKEN: {violation}");
    }
    report.violation.is_some()
}

fn json(seed: u64, report: &Report, wall: f64) -> serde_json::Value {
    serde_json::json!({
        "seed": seed,
        "violation": report.violation,
        "hash": format!("{:016x}", report.hash),
        "steps": report.steps,
        "entries": report.entries,
        "operations": report.operations,
        "virtual_seconds": seconds(report.micros),
        "wall_seconds": wall,
        "tally": report.tally.0,
    })
}

/// Prints what the worlds drew. It ignores violations: other searches report them.
fn count(options: &Options) -> bool {
    let seeds = options.from..options.from.saturating_add(options.seeds);
    let tally = tally_of(seeds, &plan(0, options));
    for (name, count) in &tally.0 {
        println!("{:>12.1} {name}", *count as f64 * 1000.0 / options.seeds.max(1) as f64);
    }
    let bounds = if cfg!(feature = "count-bounds") { &Bound::ALL[..] } else { &[] };
    for name in bounds.iter().map(|bound| bound.name()).filter(|name| !tally.0.contains_key(name)) {
        println!("{:>12} {name}", "never");
    }
    false
}

/// Searches all seeds, past violations too. Returns whether an invariant broke.
fn all(options: &Options) -> bool {
    let seeds = options.from..options.from.saturating_add(options.seeds);
    let plan = plan(0, options);
    let broken = search_on(seeds, &plan, |seed, what| println!("{seed}: {what}"));
    println!("{broken} of {} seeds broke something", options.seeds);
    broken > 0
}

/// Searches until the first violation. Returns whether an invariant broke.
fn many(options: &Options) -> bool {
    let begun = Instant::now();
    let plan = plan(0, options);
    let findings = search_as(options.from..options.from.saturating_add(options.seeds), &plan);
    let wall = begun.elapsed().as_secs_f64();
    if options.json {
        let broken = findings.broken.as_ref();
        let broken = broken.map(|(seed, report)| serde_json::json!({"seed": seed, "violation": report.violation}));
        let value = serde_json::json!({
            "worlds": findings.worlds,
            "steps": findings.steps,
            "entries": findings.entries,
            "operations": findings.operations,
            "virtual_seconds": seconds(findings.micros),
            "wall_seconds": wall,
            "broken": broken,
            "tally": findings.tally.0,
        });
        println!("{value}");
    } else {
        tell(&findings, wall, options);
    }
    findings.broken.is_some()
}

fn tell(findings: &Findings, wall: f64, options: &Options) {
    for (name, count) in &findings.tally.0 {
        println!("{count:>12} {name}");
    }
    println!(
        "{} worlds, {} steps, {} entries, {} reads and writes in the histories, {:.0} s of virtual time in {wall:.1} s: {:.0} times as fast",
        findings.worlds,
        findings.steps,
        findings.entries,
        findings.operations,
        seconds(findings.micros),
        seconds(findings.micros) / wall
    );
    match &findings.broken {
        Some((seed, report)) => {
            println!("{}", tail(&report.trace, TAIL));
            println!("\nBROKEN, seed {seed}: {}", report.violation.as_deref().unwrap_or_default());
            let plan = plan(*seed, options);
            println!("repeat: {}", repeat_command(&plan));
            println!("with fewer faults: {}", repeat_command(&shrink(&plan)));
        }
        None => println!("nothing broke"),
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
