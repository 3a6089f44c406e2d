//! A run: rounds in which the systems alternate, so that other load on the machine affects all
//! alike. Each turn has new servers and new data.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Parser;
use leasehold_bench::{Until, process};
use tempfile::TempDir;

use crate::{
    closed_loop::{self, Lines, Load},
    disk, failover,
    report::{Extra, Report, Sample},
    system::{Cluster, System},
    watched,
};

/// Requests in flight while nodes are created. It also warms up the servers.
const FILL_INFLIGHT: usize = 256;

/// Nodes that clients cache.
const CACHED_NODES: u64 = 1_000;

/// Threads that read cached copies.
const CACHED_THREADS: [usize; 2] = [1, 2];

/// Watchers of one node.
const WATCHERS: [usize; 3] = [1, 100, 1_000];

/// Compare Leasehold with etcd, ZooKeeper and Redis on this machine, by one closed loop
#[derive(Debug, Clone, Parser)]
#[command(name = "peers.sh")]
pub(crate) struct Args {
    /// Seconds that each setting is measured in each round
    #[arg(long, value_name = "N", default_value = "2", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// Rounds, with one turn of each system; medians are printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub(crate) rounds: u64,
    /// Requests in flight
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,16,64,256", value_parser = positive)]
    pub(crate) inflight: Vec<usize>,
    /// Maximum number of connections that share them
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = positive)]
    pub(crate) connections: usize,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(CACHED_NODES..=5_000_000))]
    pub(crate) nodes: u64,
    /// Systems to compare; those that are not installed are skipped and named
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_enum, default_values_t = System::ALL)]
    pub(crate) systems: Vec<System>,
    /// Folder on the disk to use; all data goes to a temporary folder in it
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub(crate) dir: PathBuf,
    /// Binary of Leasehold
    #[arg(long, value_name = "FILE", default_value = "target/release/leasehold")]
    pub(crate) leasehold: PathBuf,
    /// Print one JSON document instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|seconds: &f64| (0.1..=3600.0).contains(seconds));
    number.map(Duration::from_secs_f64).ok_or_else(|| format!("{text:?}: expected a number from 0.1 to 3600"))
}

fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{text:?}: expected a number from 1 on"))
}

/// Measures all systems that are installed.
pub(crate) async fn run(args: &Args) -> Result<Report> {
    disk::check(&args.dir)?;
    let dir = tempfile::Builder::new().prefix("leasehold-peers-").tempdir_in(&args.dir);
    let run = Run { args, dir: dir.with_context(|| args.dir.display().to_string())? };
    let mut report = Report::new(args);
    let mut there = Vec::new();
    for &system in &args.systems {
        match system.version(&args.leasehold) {
            Ok(version) => {
                report.found(system, version);
                there.push(system);
            }
            Err(reason) => {
                eprintln!("{} is left out: {reason:#}", system.name());
                report.skipped(system, format!("{reason:#}"));
            }
        }
    }
    for round in 1..=args.rounds {
        report.synced(disk::sync_ms(run.dir.path())?);
        for &system in &there {
            eprintln!("round {round} of {}: {}", args.rounds, system.name());
            run.turn(system, &mut report).await.with_context(|| format!("{}, round {round}", system.name()))?;
        }
    }
    Ok(report)
}

/// The environment of all turns.
struct Run<'a> {
    args: &'a Args,
    dir: TempDir,
}

impl Run<'_> {
    fn dir(&self) -> &Path {
        self.dir.path()
    }

    async fn turn(&self, system: System, report: &mut Report) -> Result<()> {
        let mut cluster = Cluster::start(system, &self.args.leasehold, self.dir()).await?;
        let megabytes = |cluster: &Cluster| Ok::<_, anyhow::Error>(cluster.leader_resident_bytes()? as f64 / 1e6);
        report.extra(system, Extra::MemoryEmpty, megabytes(&cluster)?);
        cluster.make_parents(self.args.nodes).await?;
        let lines = cluster.lines(Load::Fill, self.args.connections).await?;
        closed_loop::run(&lines, Load::Fill, FILL_INFLIGHT, self.args.nodes, Until::Count(self.args.nodes))
            .await
            .context("filling")?;
        close(&lines).await;
        report.extra(system, Extra::MemoryFull, megabytes(&cluster)?);
        for (load, label) in system.loads() {
            for &inflight in &self.args.inflight {
                let sample = self.cell(&cluster, *load, inflight).await;
                report.sample(
                    *load,
                    label,
                    inflight,
                    sample.with_context(|| format!("{label}, {load:?}, {inflight}"))?,
                );
            }
        }
        for (threads, extra) in CACHED_THREADS.into_iter().zip([Extra::CachedAlone, Extra::CachedByTwo]) {
            if let Some(ns) = cluster.cached_read_ns(threads, CACHED_NODES, self.args.seconds / 2).await? {
                report.extra(system, extra, ns);
            }
        }
        let watched = [Extra::WatchedByOne, Extra::WatchedByHundred, Extra::WatchedByThousand];
        for (watchers, extra) in WATCHERS.into_iter().zip(watched) {
            if let Some(ms) = watched::last_told_ms(&cluster, watchers, self.args.seconds).await? {
                report.extra(system, extra, ms);
            }
        }
        if !system.is_single() {
            report.extra(system, Extra::Failover, failover::first_write_s(&mut cluster, self.args.nodes).await?);
        }
        Ok(())
    }

    /// Measures one setting.
    async fn cell(&self, cluster: &Cluster, load: Load, inflight: usize) -> Result<Sample> {
        let lines = cluster.lines(load, inflight.min(self.args.connections)).await?;
        let (began, generator, servers) = (Instant::now(), own_time()?, processor_time(cluster.ids())?);
        let until = Until::Elapsed(self.args.seconds);
        let measured = closed_loop::run(&lines, load, inflight, self.args.nodes, until).await?;
        let cores = |spent: Duration| spent.as_secs_f64() / began.elapsed().as_secs_f64();
        let generator_cores = cores(own_time()?.saturating_sub(generator));
        let server_cores = cores(processor_time(cluster.ids())?.saturating_sub(servers));
        close(&lines).await;
        Ok(Sample {
            per_second: measured.per_second(),
            p50_ms: measured.quantile_ms(0.5),
            p99_ms: measured.quantile_ms(0.99),
            generator_cores,
            server_cores,
        })
    }
}

/// The processor time that these processes have used so far.
fn processor_time(ids: impl IntoIterator<Item = u32>) -> Result<Duration> {
    Ok(ids.into_iter().map(process::processor_time).sum::<Result<Duration, _>>()?)
}

fn own_time() -> Result<Duration> {
    processor_time([std::process::id()])
}

async fn close(lines: &Lines) {
    for line in lines {
        line.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["peers.sh"].iter().chain(options))
    }

    #[test]
    fn without_options_everything_is_measured() {
        let args = parsed(&[]).expect("defaults");
        assert_eq!(args.systems, System::ALL);
        assert_eq!(args.inflight, [1, 16, 64, 256]);
        assert_eq!((args.seconds, args.rounds, args.connections), (Duration::from_secs(2), 3, 4));
    }

    #[test]
    fn systems_and_requests_in_flight_can_be_chosen() {
        let args = parsed(&["--systems", "redis,etcd", "--inflight", "8,2", "--seconds", "0.5"]).expect("valid");
        assert_eq!(args.systems, [System::Redis, System::Etcd]);
        assert_eq!((args.inflight, args.seconds), (vec![8, 2], Duration::from_millis(500)));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let bad =
            [["--inflight", "0"], ["--seconds", "0"], ["--seconds", "NaN"], ["--rounds", "0"], ["--systems", "mysql"]];
        for options in bad {
            assert!(parsed(&options).is_err(), "{options:?}");
        }
    }
}
