//! The simulator, for anybody: one seed again, or a search through many.

use std::{process::ExitCode, time::Instant};

use clap::Parser;
use leasehold_protocol::planted::Bug;
use leasehold_simulation::{
    Bound, Fault, Findings, Judge, Plan, Report, repeat_command, run, search_as, search_on, shrink, tail, tally_of,
};

/// Lines of a trace that are shown for a seed that a search found.
const TAIL: usize = 60;

/// Runs the rules of Leasehold in virtual time, with faults, and checks what must hold after every
/// step.
///
/// A seed decides everything: the same seed is the same run. Exits with 0 if nothing broke, with 1
/// if something did, with 2 if it was asked wrongly.
#[derive(Debug, Parser)]
#[command(name = "leasehold-simulation")]
struct Options {
    /// Run the world of this seed only.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Run so many worlds, and stop at the first in which something breaks.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed of a search.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// End the run after so many events (with --seed).
    #[arg(long, requires = "seed")]
    steps: Option<u64>,
    /// Leave these faults out, by name: see --faults (with --seed).
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = fault, requires = "seed")]
    without: Vec<Fault>,
    /// Do not ask these judges, by name: see --judges.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = judge)]
    unjudged: Vec<Judge>,
    /// Print each seed of a search in which something breaks, a line each, instead of stopping at
    /// the first.
    #[arg(long, conflicts_with_all = ["seed", "json"])]
    all: bool,
    /// Make half of the worlds wide ones: their applications do more of everything, and leaders
    /// take on less.
    #[arg(long)]
    wide: bool,
    /// Print how often each of what wide worlds draw was drawn, for 1,000 worlds, whether or not
    /// something broke.
    #[arg(long, conflicts_with_all = ["seed", "json", "all"])]
    count: bool,
    /// Print the names of the judges that can be left out, and end.
    #[arg(long)]
    judges: bool,
    /// Print everything that happens, a line each (with --seed).
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Print the names of all faults, and end.
    #[arg(long)]
    faults: bool,
    /// Put a known mistake back, to see it found (only in a build with the feature planted-bugs).
    #[arg(long, value_name = "NAME", value_parser = bug)]
    plant: Option<Bug>,
}

/// The mistake of a name.
fn bug(name: &str) -> Result<Bug, String> {
    if !cfg!(feature = "planted-bugs") {
        return Err("this build has the shipped rules only; build with --features planted-bugs".to_owned());
    }
    let names = || Bug::ALL.map(|bug| format!("{bug:?}")).join(", ");
    Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name).ok_or_else(|| format!("expected one of {}", names()))
}

/// The judge of a name.
fn judge(name: &str) -> Result<Judge, String> {
    Judge::of_name(name).ok_or_else(|| format!("expected one of {}", Judge::ALL.map(Judge::name).join(", ")))
}

/// The fault of a name.
fn fault(name: &str) -> Result<Fault, String> {
    Fault::of_name(name).ok_or_else(|| format!("expected one of {}", Fault::ALL.map(Fault::name).join(", ")))
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

/// What the options say of each world.
fn plan(seed: u64, options: &Options) -> Plan {
    Plan {
        without: options.without.iter().copied().collect(),
        unjudged: options.unjudged.iter().copied().collect(),
        is_wide: options.wide,
        ..Plan::of(seed, options.plant)
    }
}

/// Runs one seed. Whether something broke.
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

/// Counts what is drawn. Whatever breaks is left to others to look for.
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

/// Searches on after what breaks. Whether something did.
fn all(options: &Options) -> bool {
    let seeds = options.from..options.from.saturating_add(options.seeds);
    let plan = plan(0, options);
    let broken = search_on(seeds, &plan, |seed, what| println!("{seed}: {what}"));
    println!("{broken} of {} seeds broke something", options.seeds);
    broken > 0
}

/// Searches. Whether something broke.
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

/// For people to read.
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
