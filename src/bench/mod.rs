//! `leasehold bench`: puts load on a running cluster, or on one that it starts, and prints the
//! results.
//!
//! Loads are closed loops: a fixed number of operations in flight, the next begun when one has
//! ended. Latencies are of single operations, from call to return, in histograms of three digits.
//! All load comes from this process. If it started the servers, they share its cores, and the
//! figures are lower than between machines.
//!
//! Everything is written below one node, which is removed at the end.

mod attach;
mod cached;
mod expiry;
mod holders;
mod leases;
mod line;
mod load;
mod locks;
mod memory;
mod renewals;
mod result;
mod server;
mod spread;
mod watch;

use std::time::Duration;

use clap::ValueEnum;
use leasehold_client_cache::{Client, NodePath, Options, Refusal, WriteError, WriteRefusal};

use self::{
    load::Meter,
    result::{BenchRow, Results},
};
use crate::{
    cli::Global,
    commands::{read_failure, write_failure},
    demo::{replicas::Replicas, unless_interrupted},
    exit::{CliStatus, CommandFailure},
    output::Output,
};

/// Time limit of one operation: slow operations are measured, not aborted.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The cache capacity of a client: enough for all reads of any load.
const CAPACITY_BYTES: u64 = 1 << 30;

/// The length of all values, as in the comparisons with other systems.
const VALUE_BYTES: usize = 256;

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
    #[arg(long, value_name = "D", value_parser = crate::duration::parse)]
    spread: Option<Duration>,
    /// Only leases without nodes, which expire together (expiry)
    #[arg(long, conflicts_with = "spread")]
    bare: bool,
}

fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{text:?}: expected a number from 1 on"))
}

/// The arguments, the servers and the live line.
#[derive(Debug)]
struct Bench {
    args: BenchArgs,
    endpoints: Vec<String>,
    meter: Meter,
    /// The node that everything is written below.
    top: NodePath,
}

/// Measures and prints the results.
pub(crate) async fn run(args: BenchArgs, global: &Global, output: Output) -> Result<CliStatus, CommandFailure> {
    let results = measure(args, global, output).await?;
    output.answer(&results);
    Ok(CliStatus::Done)
}

async fn measure(args: BenchArgs, global: &Global, output: Output) -> Result<Results, CommandFailure> {
    if args.kind == BenchKind::Memory && args.spawn != Some(1) {
        let text = "the memory of a server is looked at from outside, and must not depend on what it did before: \
                    expected --spawn 1";
        return Err(CommandFailure::usage(text));
    }
    if matches!(args.kind, BenchKind::Renewals | BenchKind::Expiry) && args.spawn.is_none() {
        return Err(CommandFailure::usage(
            "only a cluster with nothing else to do can be measured like this: expected --spawn",
        ));
    }
    let top = NodePath::parse(&format!("/leasehold-bench-{}", std::process::id())).map_err(CommandFailure::usage)?;
    let meter = Meter::new(output);
    match args.spawn {
        Some(count) => unless_interrupted(on_its_own(args, count, meter, top)).await,
        None => on_a_running_cluster(Bench { endpoints: global.endpoints.clone(), meter, top, args }).await,
    }
}

/// Measures a cluster that ends with the measurement.
async fn on_its_own(args: BenchArgs, count: u64, meter: Meter, top: NodePath) -> Result<Results, CommandFailure> {
    let mut replicas = Replicas::start(count as usize).await?;
    let bench = Bench { endpoints: replicas.endpoints().to_vec(), meter, top, args };
    let mut rows = bench.all(Some(&mut replicas)).await?;
    if bench.args.kind == BenchKind::All {
        drop(replicas);
        rows.extend(bench.memory_alone().await?);
    }
    Ok(Results(rows))
}

/// Measures a running cluster. Removes all that was written, also after a failure or a signal.
async fn on_a_running_cluster(bench: Bench) -> Result<Results, CommandFailure> {
    let rows = unless_interrupted(bench.all(None)).await;
    let removed = unless_interrupted(bench.remove_all()).await;
    let rows = rows.map_err(|failure| match &removed {
        Ok(()) => failure,
        Err(left) => failure.and(&format!("{} may be left: {}", bench.top, left.message)),
    })?;
    removed?;
    Ok(Results(rows))
}

impl Bench {
    async fn all(&self, replicas: Option<&mut Replicas>) -> Result<Vec<BenchRow>, CommandFailure> {
        let (kind, mut rows) = (self.args.kind, Vec::new());
        let is_wanted = |one| kind == one || kind == BenchKind::All;
        if is_wanted(BenchKind::Put) {
            rows.extend(self.put(self.args.overwrite).await?);
        }
        if kind == BenchKind::All && !self.args.overwrite {
            rows.extend(self.put(true).await?);
        }
        if is_wanted(BenchKind::Read) {
            rows.extend(self.read().await?);
        }
        if is_wanted(BenchKind::Miss) {
            rows.extend(self.miss().await?);
        }
        if is_wanted(BenchKind::Cached) {
            rows.extend(self.cached().await?);
        }
        if is_wanted(BenchKind::Holders) {
            rows.extend(self.holders().await?);
        }
        if is_wanted(BenchKind::Leases) {
            rows.extend(self.leases().await?);
        }
        if is_wanted(BenchKind::Attach) {
            rows.extend(self.attach().await?);
        }
        if is_wanted(BenchKind::Locks) {
            rows.extend(self.locks().await?);
        }
        if is_wanted(BenchKind::Watch) {
            rows.extend(self.watch().await?);
        }
        if kind == BenchKind::Expiry {
            rows.extend(self.expiry().await?);
        }
        match (kind, replicas) {
            (BenchKind::Memory, Some(replicas)) => rows.extend(self.memory(replicas).await?),
            (BenchKind::Renewals | BenchKind::All, Some(replicas)) => rows.extend(self.renewals(replicas).await?),
            _ => {}
        }
        Ok(rows)
    }

    /// Measures a new server.
    async fn memory_alone(&self) -> Result<Vec<BenchRow>, CommandFailure> {
        let replicas = Replicas::start(1).await?;
        let endpoints = replicas.endpoints().to_vec();
        let (args, meter, top) = (self.args.clone(), self.meter.clone(), self.top.clone());
        Bench { args, endpoints, meter, top }.memory(&replicas).await
    }

    /// A session with an empty cache.
    async fn client(&self, name: &str) -> Result<Client, CommandFailure> {
        let options = Options::new(&self.endpoints).name(format!("bench-{name}"));
        let options = options.timeout(TIMEOUT).cache_capacity_bytes(CAPACITY_BYTES);
        Client::connect(options).await.map_err(CommandFailure::unavailable)
    }

    async fn clients(&self, name: &str, count: usize) -> Result<Vec<Client>, CommandFailure> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(self.client(name).await?);
        }
        Ok(clients)
    }

    fn seconds(&self) -> Duration {
        Duration::from_secs(self.args.seconds)
    }

    /// A node of the benchmark. Nodes are in groups of a thousand, to keep lists of children short.
    fn node(&self, set: &str, number: u64) -> NodePath {
        let text = format!("{}/{set}/{}/{}", self.top, number / 1000, number % 1000);
        NodePath::parse(&text).expect("made of valid components, and short")
    }

    /// Removes everything that was written.
    async fn remove_all(&self) -> Result<(), CommandFailure> {
        let client = self.client("end").await?;
        let removed = remove(&client, &self.top).await;
        client.close().await;
        removed.map_err(|failure| failure.with_subject("removing what was written"))
    }
}

/// Removes a node and all nodes below it, in parts if the servers refuse too many at once.
async fn remove(client: &Client, top: &NodePath) -> Result<(), CommandFailure> {
    let mut parts = vec![top.clone()];
    while let Some(part) = parts.pop() {
        match client.delete(&part).recursive(true).await {
            // Some kinds write nothing.
            Ok(_) | Err(WriteError::Refused(Refusal::Write(WriteRefusal::NotFound { .. }))) => {}
            Err(WriteError::Refused(Refusal::Write(WriteRefusal::TooManyNodes { .. }))) => {
                let listing = client.children(&part).await.map_err(|error| read_failure(&error))?;
                let Some(listing) = listing else { continue };
                let below: Result<Vec<NodePath>, _> = listing.names.iter().map(|name| part.child(name)).collect();
                parts.push(part);
                parts.extend(below.map_err(CommandFailure::usage)?);
            }
            Err(error) => return Err(write_failure(&error)),
        }
    }
    Ok(())
}

/// Returns all leases, so that no later write waits for them.
async fn close(clients: Vec<Client>) {
    for client in clients {
        client.close().await;
    }
}
