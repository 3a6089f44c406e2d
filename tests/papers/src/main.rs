//! Prints the curves: the paper's formula, and the counted messages.

use std::time::Duration;

use clap::Parser;
use leasehold_papers::{Counts, Workload, run};

/// Counts the messages of the rules in virtual time, for several volume terms, and prints them
/// beside Gray and Cheriton's formula.
#[derive(Debug, Parser)]
#[command(name = "leasehold-papers")]
struct Options {
    /// Decides when clients read and write.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seconds of virtual time are counted.
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Volume terms, in milliseconds.
const TERMS_MS: [u64; 6] = [200, 1_000, 2_000, 5_000, 10_000, 30_000];

/// Clients that share each file, and files of each group.
const SETTINGS: [(usize, u64); 3] = [(1, 1), (10, 1), (1, 8)];

fn main() {
    let options = Options::parse();
    let mut rows = Vec::new();
    for (sharing, files) in SETTINGS {
        if !options.json {
            println!("\n**S = {sharing}, {files} files for each group**\n");
            println!(
                "| term, s | formula /s | counted /s | counted by formula | renewals | new leases | lists | validations | recalls | fetches | hits |"
            );
            println!("|{}", " ---: |".repeat(11));
        }
        for term in TERMS_MS.map(Duration::from_millis) {
            let workload = Workload::v_system(options.seed, sharing, files, term);
            let workload = Workload { measured: Duration::from_secs(options.seconds), ..workload };
            let (formula, counts) = (workload.formula(), run(workload));
            match options.json {
                true => rows.push(json(&workload, formula, &counts)),
                false => println!("{}", line(&workload, formula, &counts)),
            }
        }
    }
    if options.json {
        println!("{}", serde_json::json!({ "rows": rows }));
    }
}

fn line(workload: &Workload, formula: f64, counts: &Counts) -> String {
    let Counts { renewals, acquisitions, lists, validations, recalls, fetches, reads, hits, .. } = *counts;
    let counted = workload.per_second(counts.consistency());
    let parts = [renewals, acquisitions, lists, validations, recalls, fetches]
        .map(|count| format!("{:.3}", workload.per_second(count)));
    format!(
        "| {} | {formula:.3} | {counted:.3} | {:.2} | {} | {:.1} % |",
        workload.term.as_secs_f64(),
        counted / formula,
        parts.join(" | "),
        hits as f64 / reads as f64 * 100.0
    )
}

fn json(workload: &Workload, formula: f64, counts: &Counts) -> serde_json::Value {
    let per_second = |count| workload.per_second(count);
    serde_json::json!({
        "sharing": workload.sharing,
        "files": workload.files,
        "term_ms": workload.term.as_millis() as u64,
        "formula_per_second": formula,
        "counted_per_second": per_second(counts.consistency()),
        "renewals_per_second": per_second(counts.renewals),
        "acquisitions_per_second": per_second(counts.acquisitions),
        "lists_per_second": per_second(counts.lists),
        "validations_per_second": per_second(counts.validations),
        "recalls_per_second": per_second(counts.recalls),
        "fetches_per_second": per_second(counts.fetches),
        "reads": counts.reads,
        "hits": counts.hits,
    })
}
