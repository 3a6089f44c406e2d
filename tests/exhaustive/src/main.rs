//! Explores a small world, and prints the counts or a shortest path to a violation.

use std::process::ExitCode;

use clap::Parser;
use leasehold_exhaustive::{Search, World, all, explore, named, walk};
use leasehold_model::planting::{CAN_PLANT, bug_named};
use leasehold_protocol::planted::Bug;

/// Visits every situation that any order of steps leads to in a small world, and checks each.
#[derive(Debug, Parser)]
#[command(name = "leasehold-exhaustive")]
struct Arguments {
    /// The world. Without a name, the program lists all worlds. `all` takes one after the other.
    world: Option<String>,
    /// How many threads explore.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// A known mistake to put back, by its name in protocol/src/planted.rs, such as
    /// `ServeAfterExpiry`. `all` takes one after the other, and explores one world after the other
    /// until it finds the mistake. Needs a build with `--features planted-bugs`.
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
    /// Stop beyond this many situations. Each takes about 60 bytes, and each of the last depth some
    /// kilobytes.
    #[arg(long, value_name = "COUNT", default_value_t = 50_000_000)]
    most: usize,
    /// Print one path through the world instead, selected by this number.
    #[arg(long, value_name = "NUMBER")]
    walk: Option<u64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Some(name) = &arguments.world else {
        for world in all() {
            println!("{:<28} {}", world.name, world.about);
        }
        return ExitCode::SUCCESS;
    };
    if arguments.plant.is_some() && !CAN_PLANT {
        return refuse("this build cannot put mistakes back: build with --features planted-bugs");
    }
    let worlds = match name.as_str() {
        "all" => all(),
        name => named(name).into_iter().collect(),
    };
    if worlds.is_empty() {
        return refuse(&format!("there is no world {name}: without a name all are listed"));
    }
    if arguments.plant.as_deref() == Some("all") {
        search_for_all(&arguments, worlds);
        return ExitCode::SUCCESS;
    }
    let bug = match arguments.plant.as_deref().map(bug_named) {
        Some(Err(what)) => return refuse(&what),
        Some(Ok(bug)) => Some(bug),
        None => None,
    };
    let mut is_sound = true;
    for world in worlds {
        if let Some(choice) = arguments.walk {
            println!("{}", walk(&world, bug, choice));
            continue;
        }
        let report = explore(&world, Search { bug, threads: arguments.threads, most: arguments.most });
        if let Some(violation) = &report.violation {
            println!("{}\n", violation.path);
        }
        println!("{:<28} {report}", world.name);
        is_sound &= report.violation.is_none() && report.is_complete;
    }
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints for each mistake the first world that shows it, small worlds first.
fn search_for_all(arguments: &Arguments, mut worlds: Vec<World>) {
    worlds.sort_by_key(|world| world.least);
    for bug in Bug::ALL {
        let search = Search { bug: Some(bug), threads: arguments.threads, most: arguments.most };
        let mut reports = worlds.iter().map(|world| (world.name, explore(world, search)));
        let found = reports.find_map(|(name, report)| {
            let violation = report.violation?;
            Some(format!("{name} | {} | {} | {}", violation.depth, report.situations, violation.what))
        });
        println!("{bug:?} | {}", found.unwrap_or_else(|| "not found".to_owned()));
    }
}

fn refuse(what: &str) -> ExitCode {
    eprintln!("{what}");
    ExitCode::from(2)
}
