//! The load by the volume term: one volume lease covers all files of a client. The formula of Gray
//! and Cheriton has a lease for each file. `tests/papers/README.md` explains the differences.

use std::time::Duration;

use crate::{
    counts::Counts,
    workload::{Workload, run},
};

/// For how long messages are counted.
pub const MEASURED: Duration = Duration::from_secs(3000);

/// Volume terms, in milliseconds.
const TERMS_MS: [u64; 6] = [200, 1_000, 2_000, 5_000, 10_000, 30_000];

/// Clients that share each file, and files of each group.
const SETTINGS: [(usize, u64); 3] = [(1, 1), (10, 1), (1, 8)];

/// A table of Markdown for each setting.
pub fn tables(seed: u64, measured: Duration) -> String {
    let mut text = String::new();
    for (sharing, files) in SETTINGS {
        text += &format!("\n**S = {sharing}, {files} files for each group**\n\n");
        text += "| term, s | formula /s | counted /s | counted by formula | renewals | new leases | lists | validations | recalls | fetches | hits |\n";
        text += &format!("|{}\n", " ---: |".repeat(11));
        for term in TERMS_MS.map(Duration::from_millis) {
            let workload = Workload { measured, ..Workload::v_system(seed, sharing, files, term) };
            text += &line(&workload, &run(workload));
        }
    }
    text
}

fn line(workload: &Workload, counts: &Counts) -> String {
    let Counts { renewals, acquisitions, lists, validations, recalls, fetches, reads, hits, .. } = *counts;
    let (formula, counted) = (workload.formula(), workload.per_second(counts.consistency()));
    let parts = [renewals, acquisitions, lists, validations, recalls, fetches]
        .map(|count| format!("{:.3}", workload.per_second(count)));
    format!(
        "| {} | {formula:.3} | {counted:.3} | {:.2} | {} | {:.1} % |\n",
        workload.term.as_secs_f64(),
        counted / formula,
        parts.join(" | "),
        hits as f64 / reads as f64 * 100.0
    )
}
