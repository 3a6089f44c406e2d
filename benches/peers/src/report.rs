//! The results: medians over the rounds, as Markdown tables or as one JSON document.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{closed_loop::Load, measure::Args, system::System};

/// One setting in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Processors that the load generator used, on average.
    pub(crate) generator_cores: f64,
    /// Processors that all servers used together, on average.
    pub(crate) server_cores: f64,
}

/// The other measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extra {
    MemoryEmpty,
    MemoryFull,
    Failover,
    CachedAlone,
    CachedByTwo,
    WatchedByOne,
    WatchedByHundred,
    WatchedByThousand,
}

impl Extra {
    const ALL: [Self; 8] = [
        Self::MemoryEmpty,
        Self::MemoryFull,
        Self::Failover,
        Self::CachedAlone,
        Self::CachedByTwo,
        Self::WatchedByOne,
        Self::WatchedByHundred,
        Self::WatchedByThousand,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::MemoryEmpty => "memory of the leader, empty, MB",
            Self::MemoryFull => "memory of the leader, with the nodes, MB",
            Self::Failover => "leader killed, until the first write, s",
            Self::CachedAlone => "cached read, 1 thread, ns",
            Self::CachedByTwo => "cached read, 2 threads, ns",
            Self::WatchedByOne => "write acknowledged, until 1 watcher is told, ms",
            Self::WatchedByHundred => "write acknowledged, until the last of 100 watchers is told, ms",
            Self::WatchedByThousand => "write acknowledged, until the last of 1,000 watchers is told, ms",
        }
    }
}

/// The samples of all rounds, by requests in flight.
type Cells = BTreeMap<usize, Vec<Sample>>;

/// All results.
#[derive(Debug)]
pub(crate) struct Report {
    inflight: Vec<usize>,
    settings: String,
    found: Vec<(System, String)>,
    skipped: Vec<(System, String)>,
    sync_ms: Vec<f64>,
    /// Rows in the order of their first sample.
    rows: Vec<(Load, &'static str, Cells)>,
    extras: BTreeMap<(Extra, System), Vec<f64>>,
}

/// The middle value, or the mean of the two in the middle.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// The median of each figure.
fn medians(samples: &[Sample]) -> Sample {
    let of = |figure: fn(&Sample) -> f64| median(samples.iter().map(figure));
    Sample {
        per_second: of(|sample| sample.per_second),
        p50_ms: of(|sample| sample.p50_ms),
        p99_ms: of(|sample| sample.p99_ms),
        generator_cores: of(|sample| sample.generator_cores),
        server_cores: of(|sample| sample.server_cores),
    }
}

impl Report {
    pub(crate) fn new(args: &Args) -> Self {
        let settings = format!(
            "{} rounds, {} s for each setting, {} nodes, values of 256 bytes, {} connections at most",
            args.rounds,
            args.seconds.as_secs_f64(),
            args.nodes,
            args.connections
        );
        let (found, skipped, sync_ms, rows, extras) = Default::default();
        Self { inflight: args.inflight.clone(), settings, found, skipped, sync_ms, rows, extras }
    }

    /// Records an installed system.
    pub(crate) fn found(&mut self, system: System, version: String) {
        self.found.push((system, version));
    }

    /// Records a system that is not installed.
    pub(crate) fn skipped(&mut self, system: System, reason: String) {
        self.skipped.push((system, reason));
    }

    /// Records the time of a sync in milliseconds.
    pub(crate) fn synced(&mut self, ms: f64) {
        self.sync_ms.push(ms);
    }

    pub(crate) fn sample(&mut self, load: Load, label: &'static str, inflight: usize, sample: Sample) {
        let at = self.rows.iter().position(|row| (row.0, row.1) == (load, label)).unwrap_or_else(|| {
            self.rows.push((load, label, BTreeMap::new()));
            self.rows.len() - 1
        });
        self.rows[at].2.entry(inflight).or_default().push(sample);
    }

    pub(crate) fn extra(&mut self, system: System, extra: Extra, value: f64) {
        self.extras.entry((extra, system)).or_default().push(value);
    }

    /// The report as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (system, reason) in &self.skipped {
            text.push_str(&format!("{} was left out: {reason}.\n", system.name()));
        }
        for (_, version) in &self.found {
            text.push_str(&format!("{version}\n"));
        }
        let sync = shown(median(self.sync_ms.iter().copied()));
        text.push_str(&format!("{}. An append and its sync alone: {sync} ms.\n", self.settings));
        let rate = |sample: Sample| {
            format!("{} · {} · {}", thousands(sample.per_second), shown(sample.p50_ms), shown(sample.p99_ms))
        };
        text.push_str(&self.loads("/s · p50 ms · p99 ms, by requests in flight", rate));
        let cores = |sample: Sample| format!("{:.2} · {:.2}", sample.generator_cores, sample.server_cores);
        text.push_str(&self.loads("processors that the generator of the load · all servers had", cores));
        text.push_str(&self.others());
        text
    }

    /// Writes, then reads, with a column for each number of requests in flight.
    fn loads(&self, title: &str, show: impl Fn(Sample) -> String) -> String {
        let head = self.inflight.iter().map(usize::to_string);
        let mut text = format!("\n{}", line([title.to_owned()].into_iter().chain(head)));
        text.push_str(&line(std::iter::repeat_n("---".to_owned(), self.inflight.len() + 1)));
        for is_write in [true, false] {
            for (load, label, cells) in self.rows.iter().filter(|row| (row.0 == Load::Write) == is_write) {
                let shown = self
                    .inflight
                    .iter()
                    .map(|inflight| cells.get(inflight).map_or(String::new(), |samples| show(medians(samples))));
                text.push_str(&line([format!("{}: {label}", verb(*load))].into_iter().chain(shown)));
            }
        }
        text
    }

    fn others(&self) -> String {
        let names = self.found.iter().map(|(system, _)| system.name().to_owned());
        let mut text = format!("\n{}", line([String::new()].into_iter().chain(names)));
        text.push_str(&line(std::iter::repeat_n("---".to_owned(), self.found.len() + 1)));
        for extra in Extra::ALL {
            let of = |system| {
                self.extras.get(&(extra, system)).map_or(String::new(), |values| shown(median(values.iter().copied())))
            };
            let values = self.found.iter().map(|(system, _)| of(*system));
            text.push_str(&line([extra.name().to_owned()].into_iter().chain(values)));
        }
        text
    }

    /// The report as JSON.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        let named =
            |pairs: &[(System, String)]| pairs.iter().map(|(system, text)| (system.name(), text.clone())).collect();
        let mut loads = Vec::new();
        for (load, system, cells) in &self.rows {
            for (&inflight, samples) in cells {
                let Sample { per_second, p50_ms, p99_ms, generator_cores, server_cores } = medians(samples);
                let rounds = samples.iter().map(|sample| sample.per_second).collect();
                let load = verb(*load);
                loads.push(LoadRow {
                    load,
                    system,
                    inflight,
                    per_second,
                    p50_ms,
                    p99_ms,
                    generator_cores,
                    server_cores,
                    rounds,
                });
            }
        }
        let other = |(&(extra, system), rounds): (&(Extra, System), &Vec<f64>)| OtherRow {
            what: extra.name(),
            system: system.name(),
            median: median(rounds.iter().copied()),
            rounds: rounds.clone(),
        };
        let document = Document {
            settings: &self.settings,
            versions: named(&self.found),
            skipped: named(&self.skipped),
            sync_ms: median(self.sync_ms.iter().copied()),
            loads,
            others: self.extras.iter().map(other).collect(),
        };
        serde_json::to_string_pretty(&document)
    }
}

#[derive(Serialize)]
struct Document<'a> {
    settings: &'a str,
    versions: BTreeMap<&'static str, String>,
    skipped: BTreeMap<&'static str, String>,
    sync_ms: f64,
    loads: Vec<LoadRow>,
    others: Vec<OtherRow>,
}

#[derive(Serialize)]
struct LoadRow {
    load: &'static str,
    system: &'static str,
    inflight: usize,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    generator_cores: f64,
    server_cores: f64,
    /// The rate in each round.
    rounds: Vec<f64>,
}

#[derive(Serialize)]
struct OtherRow {
    what: &'static str,
    system: &'static str,
    median: f64,
    rounds: Vec<f64>,
}

fn verb(load: Load) -> &'static str {
    match load {
        Load::Fill | Load::Write => "write",
        Load::Read | Load::LocalRead => "read",
        Load::Lease => "lease grant + revoke",
        Load::Lock => "lock + unlock",
    }
}

fn line(cells: impl Iterator<Item = String>) -> String {
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// Formats two or three digits.
fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => thousands(value),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a whole number with commas.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn sample(per_second: f64) -> Sample {
        Sample { per_second, p50_ms: 0.8, p99_ms: 12.34, generator_cores: 0.25, server_cores: 1.5 }
    }

    fn report() -> Report {
        let args = Args::try_parse_from(["peers.sh", "--inflight", "1,16"]).expect("valid");
        let mut report = Report::new(&args);
        report.found(System::Etcd, "etcd Version: 3.4.23".to_owned());
        report.skipped(System::Redis, "there is no redis-server in PATH".to_owned());
        report.synced(0.25);
        for rate in [900.0, 1_234.0, 50_000.0] {
            report.sample(Load::Read, "etcd, linearizable", 1, sample(rate * 2.0));
            report.sample(Load::Write, "etcd", 16, sample(rate));
        }
        report.extra(System::Etcd, Extra::Failover, 1.5);
        report
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median([]).is_nan());
    }

    #[test]
    fn people_get_medians_writes_first_and_what_was_left_out() {
        let text = report().text();
        let begin = "Redis, one server was left out: there is no redis-server in PATH.\netcd Version: 3.4.23\n";
        assert!(text.starts_with(begin), "{text}");
        let rows = "| write: etcd |  | 1,234 · 0.80 · 12.3 |\n| read: etcd, linearizable | 2,468 · 0.80 · 12.3 |  |\n";
        assert!(text.contains(rows), "{text}");
        assert!(text.contains("| write: etcd |  | 0.25 · 1.50 |\n"), "{text}");
        assert!(text.contains("| leader killed, until the first write, s | 1.50 |\n"), "{text}");
    }

    #[test]
    fn scripts_get_one_document_with_all_rounds() {
        let json: serde_json::Value = serde_json::from_str(&report().json().expect("JSON")).expect("JSON");
        assert_eq!(json["skipped"]["Redis, one server"], "there is no redis-server in PATH");
        assert_eq!(json["loads"][1]["per_second"], 1_234.0);
        assert_eq!(json["loads"][1]["rounds"], serde_json::json!([900.0, 1_234.0, 50_000.0]));
        assert_eq!(json["others"][0]["median"], 1.5);
    }

    #[test]
    fn large_numbers_have_commas() {
        assert_eq!(thousands(999.4), "999");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(
            (shown(0.123), shown(12.34), shown(1_500.0)),
            ("0.12".to_owned(), "12.3".to_owned(), "1,500".to_owned())
        );
    }
}
