//! The answer of `bench`: one JSON document, or Markdown tables.

use leasehold_bench::BenchRow;
use serde::Serialize;

use crate::output::Text;

/// All results.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    pub(super) results: Vec<BenchRow>,
}

impl Text for Results {
    /// A table for each benchmark.
    fn text(&self, out: &mut Vec<u8>) {
        let mut text = String::new();
        let mut last = "";
        for row in &self.results {
            if row.bench != last {
                last = row.bench;
                text.push_str(&head(row));
            }
            let settings = row.settings.iter().map(|(_, value)| value.to_string());
            let figures = row.figures.iter().map(|(_, value)| shown(*value));
            text.push_str(&line(settings.chain(figures)));
        }
        out.extend_from_slice(text.trim_start().as_bytes());
    }
}

fn head(row: &BenchRow) -> String {
    let names = || row.settings.iter().map(|(name, _)| *name).chain(row.figures.iter().map(|(name, _)| *name));
    let titles = line(names().map(|name| name.replace('_', " ")));
    format!("\n**{}**\n\n{titles}{}", row.bench, line(names().map(|_| "---:".to_owned())))
}

fn line(cells: impl Iterator<Item = String>) -> String {
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// Formats about three digits.
fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let row = |inflight, rate| BenchRow {
            bench: "put",
            settings: vec![("inflight", inflight)],
            figures: vec![("per_second", rate), ("p50_ms", 0.5)],
        };
        Results { results: vec![row(1, 1234.5), row(16, 99.0)] }
    }

    #[test]
    fn people_get_a_table_for_each_bench() {
        let mut out = Vec::new();
        results().text(&mut out);
        let expected = "**put**\n\n| inflight | per second | p50 ms |\n| ---: | ---: | ---: |\n\
                        | 1 | 1234 | 0.500 |\n| 16 | 99.0 | 0.500 |\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn scripts_get_one_document() {
        let json = serde_json::to_string(&results()).expect("JSON");
        assert!(
            json.starts_with(r#"{"results":[{"bench":"put","inflight":1,"per_second":1234.5,"p50_ms":0.5}"#),
            "{json}"
        );
    }
}
