//! `bench KIND`: puts load on a running cluster, or on one that it starts, with the loads of
//! `leasehold-bench`.

mod answer;

use std::time::Duration;

use clap::ValueEnum;
use leasehold_bench::{Bench, BenchRow, Ends, LoadError, LoadOptions, LoopError, process::ProcessError};
use leasehold_demo::Replicas;

use self::answer::Results;
use super::demo;
use crate::{
    arguments::Global,
    duration,
    exit::{CliStatus, CommandFailure, causes},
    failure::{connect_failure, inspect_failure, lock_failure, read_failure, watch_failure, write_failure},
    interrupt::unless_interrupted,
    live_line::LiveLine,
    output::Output,
};

/// The kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BenchKind {
    /// Durable writes of new nodes or (--overwrite) of a thousand existing ones
    Put,
    /// Linearizable reads by the server, without lease or cache
    Read,
    /// First reads through the cache, each of which is granted a lease
    Miss,
    /// Reads from memory, compared with plain moka and dashmap
    Cached,
    /// Writes of nodes that clients have cached
    Holders,
    /// The server's memory for each object lease, and for each key lease with a node (needs
    /// --spawn 1)
    Memory,
    /// Key leases, granted and revoked
    Leases,
    /// Attaching nodes to leases and detaching them, for leases with few nodes and with many
    Attach,
    /// Locks, uncontended and contended
    Locks,
    /// Watches: how soon many watchers see a write
    Watch,
    /// Sessions that only renew their leases: processor time of the leader (needs --spawn)
    Renewals,
    /// Expiry of very many leases, and of one lease with very many nodes (needs --spawn)
    Expiry,
    /// All kinds except expiry, which takes minutes
    All,
}

/// `bench KIND`
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BenchArgs {
    /// Kind of load
    #[arg(value_enum)]
    kind: BenchKind,
    /// Start a cluster with this many replicas on this machine, and stop it afterwards
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=9))]
    spawn: Option<u64>,
    /// Seconds that each setting is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Operations in flight (put, read, miss, leases, attach, locks)
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,16,64,256", value_parser = positive)]
    inflight: Vec<usize>,
    /// Maximum number of sessions that share them
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = positive)]
    clients: usize,
    /// Write a thousand nodes over and over instead of new ones (put)
    #[arg(long)]
    overwrite: bool,
    /// Nodes in memory (cached); the largest also is the number of nodes or leases (memory, expiry)
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1000,100000", value_parser = positive)]
    objects: Vec<usize>,
    /// Numbers of attached nodes, one for each lease (attach)
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,100000", value_parser = positive)]
    carried: Vec<usize>,
    /// Threads that read (cached)
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,2", value_parser = positive)]
    threads: Vec<usize>,
    /// Clients that have cached the written node (holders)
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "0,1,10")]
    holders: Vec<usize>,
    /// Maximum number of sessions that cache all nodes (memory)
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = positive)]
    sessions: usize,
    /// Clients that contend for one lock (locks)
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "2,10", value_parser = positive)]
    contenders: Vec<usize>,
    /// Watchers of the written node (watch)
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,100,1000", value_parser = positive)]
    watchers: Vec<usize>,
    /// Sessions that renew their leases (renewals)
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = positive)]
    renewing: usize,
    /// Leases that expire together (expiry)
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = positive)]
    leases: usize,
    /// Let the leases expire one after another over this time, and measure how late each is
    /// (expiry)
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    spread: Option<Duration>,
    /// Only leases without nodes, which expire together (expiry)
    #[arg(long, conflicts_with = "spread")]
    bare: bool,
}

fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{text:?}: expected a number from 1 on"))
}

/// Measures and prints the results.
pub(crate) async fn run(args: BenchArgs, global: &Global, output: Output) -> Result<CliStatus, CommandFailure> {
    args.check()?;
    let results = args.measure(global, output).await?;
    output.answer(&results);
    Ok(CliStatus::Done)
}

impl BenchArgs {
    fn check(&self) -> Result<(), CommandFailure> {
        if self.kind == BenchKind::Memory && self.spawn != Some(1) {
            let text = "the memory of a server depends on its earlier work; use --spawn 1, which starts a new server";
            return Err(CommandFailure::usage(text));
        }
        if matches!(self.kind, BenchKind::Renewals | BenchKind::Expiry) && self.spawn.is_none() {
            return Err(CommandFailure::usage(
                "this kind needs a cluster without other work; use --spawn, which starts one",
            ));
        }
        Ok(())
    }

    async fn measure(&self, global: &Global, output: Output) -> Result<Results, CommandFailure> {
        // The line ends before the results are printed.
        let line = LiveLine::new(output);
        let bench = |endpoints: &[String]| Bench::new(endpoints.to_vec(), self.options(global.timeout), &line);
        match self.spawn {
            Some(count) => unless_interrupted(self.on_its_own(count as usize, &bench)).await,
            None => self.on_a_running_cluster(&bench(&global.endpoints)).await,
        }
    }

    /// Measures a cluster that ends with the measurement.
    async fn on_its_own<'a>(
        &self,
        count: usize,
        bench: &impl Fn(&[String]) -> Bench<'a>,
    ) -> Result<Results, CommandFailure> {
        let mut replicas = Replicas::start(count, demo::replica()?).await?;
        let on_them = bench(replicas.endpoints());
        let mut rows = self.rows(&on_them, Some(&mut replicas)).await?;
        if self.kind == BenchKind::All {
            drop(replicas);
            // The memory of a new server.
            let replicas = Replicas::start(1, demo::replica()?).await?;
            rows.extend(bench(replicas.endpoints()).memory(replicas.process_id(1)?).await?);
        }
        Ok(Results { results: rows })
    }

    /// Measures a running cluster. Removes all that was written, also after a failure or a signal.
    async fn on_a_running_cluster(&self, bench: &Bench<'_>) -> Result<Results, CommandFailure> {
        let rows = unless_interrupted(self.rows(bench, None)).await;
        let removed = unless_interrupted(remove_all(bench)).await;
        let rows = rows.map_err(|failure| match &removed {
            Ok(()) => failure,
            Err(left) => failure.and(&format!("{} may be left: {}", bench.top(), left.message)),
        })?;
        removed?;
        Ok(Results { results: rows })
    }

    async fn rows(&self, bench: &Bench<'_>, replicas: Option<&mut Replicas>) -> Result<Vec<BenchRow>, CommandFailure> {
        let (kind, mut rows) = (self.kind, Vec::new());
        let is_wanted = |one| kind == one || kind == BenchKind::All;
        if is_wanted(BenchKind::Put) {
            rows.extend(bench.put(self.overwrite).await?);
        }
        if kind == BenchKind::All && !self.overwrite {
            rows.extend(bench.put(true).await?);
        }
        if is_wanted(BenchKind::Read) {
            rows.extend(bench.read().await?);
        }
        if is_wanted(BenchKind::Miss) {
            rows.extend(bench.miss().await?);
        }
        if is_wanted(BenchKind::Cached) {
            rows.extend(bench.cached().await?);
        }
        if is_wanted(BenchKind::Holders) {
            rows.extend(bench.holders().await?);
        }
        if is_wanted(BenchKind::Leases) {
            rows.extend(bench.leases().await?);
        }
        if is_wanted(BenchKind::Attach) {
            rows.extend(bench.attach().await?);
        }
        if is_wanted(BenchKind::Locks) {
            rows.extend(bench.locks().await?);
        }
        if is_wanted(BenchKind::Watch) {
            rows.extend(bench.watch().await?);
        }
        if kind == BenchKind::Expiry {
            rows.extend(bench.expiry(self.ends()).await?);
        }
        match (kind, replicas) {
            (BenchKind::Memory, Some(replicas)) => rows.extend(bench.memory(replicas.process_id(1)?).await?),
            (BenchKind::Renewals | BenchKind::All, Some(replicas)) => {
                let leader = replicas.leader(None).await?;
                rows.extend(bench.renewals(leader as u64, replicas.process_id(leader)?).await?);
            }
            _ => {}
        }
        Ok(rows)
    }

    fn ends(&self) -> Ends {
        match self.spread {
            Some(spread) => Ends::OneAfterTheOther(spread),
            None if self.bare => Ends::Bare,
            None => Ends::Together,
        }
    }

    fn options(&self, timeout: Duration) -> LoadOptions {
        LoadOptions {
            timeout,
            span: Duration::from_secs(self.seconds),
            inflight: self.inflight.clone(),
            clients: self.clients,
            objects: self.objects.clone(),
            carried: self.carried.clone(),
            threads: self.threads.clone(),
            holders: self.holders.clone(),
            sessions: self.sessions,
            contenders: self.contenders.clone(),
            watchers: self.watchers.clone(),
            renewing: self.renewing,
            leases: self.leases,
        }
    }
}

async fn remove_all(bench: &Bench<'_>) -> Result<(), CommandFailure> {
    let removed = bench.remove_all().await;
    removed.map_err(|error| CommandFailure::from(error).with_subject("removing what was written"))
}

impl From<LoadError> for CommandFailure {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Read(error) => read_failure(&error),
            LoadError::Write(error) => write_failure(&error),
            LoadError::Lock(error) => lock_failure(&error),
            LoadError::Watch(error) => watch_failure(&error),
            LoadError::Inspect(error) => inspect_failure(&error),
            LoadError::Refused(refusal) => Self::from_refusal(&refusal),
            LoadError::Connect(error) => connect_failure(&error),
            LoadError::NoEndpoints | LoadError::Dial(_) => Self::unavailable(error),
            LoadError::Call(error) => Self::unavailable(causes(&error)),
            LoadError::Path(_) => Self::usage(error),
            LoadError::Process(ProcessError::Io { file, source }) => Self::io(file, &source),
            LoadError::Process(_) => Self::refused("proc", error),
            LoadError::Loop(LoopError::NothingMeasured(_)) => Self::refused("nothing_measured", error),
            LoadError::UnexpectedAnswer => Self::refused("answer", error),
            LoadError::NotCached { .. } | LoadError::ServerRead => Self::refused("cache", error),
            LoadError::TooSlow { .. } | LoadError::LeaseGone(_) | LoadError::TooEarly { .. } => {
                Self::refused("expiry", error)
            }
            LoadError::Stranger(_) | LoadError::NotGone { .. } | LoadError::NotTold { .. } => {
                Self::refused("watch", error)
            }
            LoadError::LeasesLost { .. } => Self::refused("renewals", error),
            error => Self::refused("bench", error),
        }
    }
}
