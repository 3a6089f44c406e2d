//! The results: rows of settings and figures, as JSON or as Markdown tables.

use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeStruct},
};

use crate::output::Text;

/// The figures of one setting.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BenchRow {
    /// What was measured.
    pub(crate) bench: &'static str,
    pub(crate) settings: Vec<(&'static str, u64)>,
    /// The figures, with their units in their names.
    pub(crate) figures: Vec<(&'static str, f64)>,
}

impl Serialize for BenchRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("bench", self.bench)?;
        for (name, value) in &self.settings {
            map.serialize_entry(name, value)?;
        }
        for (name, value) in &self.figures {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// All results.
#[derive(Debug)]
pub(crate) struct Results(pub(crate) Vec<BenchRow>);

impl Serialize for Results {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_struct("Results", 1)?;
        document.serialize_field("results", &self.0)?;
        document.end()
    }
}

impl Text for Results {
    /// A table for each benchmark.
    fn text(&self, out: &mut Vec<u8>) {
        let mut text = String::new();
        let mut last = "";
        for row in &self.0 {
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
        Results(vec![row(1, 1234.5), row(16, 99.0)])
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
