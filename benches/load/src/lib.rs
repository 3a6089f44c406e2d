//! Load benchmarks of a running cluster.
//!
//! A [`Bench`] has a method for each kind of load. It returns [`BenchRow`]s: settings and figures.
//! What it guarantees:
//!
//! - Loads are [closed loops](closed_loop): a fixed number of operations in flight, the next begun
//!   when one has ended. Latencies are of single operations, from call to return, in histograms of
//!   three digits.
//! - All load comes from this process. If the servers share its cores, the figures are lower than
//!   between machines.
//! - Everything is written below one node, [`Bench::top`], which [`Bench::remove_all`] removes.
//!
//! It does not know who started the servers. What it measures of their processes, it reads in
//! [`process`] by the ids that it is given. It prints nothing: it shows what it does to a
//! [`Progress`], and returns its results.

mod attach;
mod cached;
mod closed_loop;
mod error;
mod expiry;
mod holders;
mod leases;
mod line;
mod locks;
mod memory;
pub mod process;
mod renewals;
mod result;
mod server;
mod spread;
mod watch;

use std::{fmt, time::Duration};

use leasehold_client_cache::{Client, NodePath, Options, Refusal, WriteError, WriteRefusal};

pub use self::{
    closed_loop::{Load, LoopError, Until, closed_loop},
    error::LoadError,
    expiry::Ends,
    line::LoadLine,
    result::BenchRow,
};

/// The cache capacity of a client: enough for all reads of any load.
const CAPACITY_BYTES: u64 = 1 << 30;

/// The length of all values, as in the comparisons with other systems.
const VALUE_BYTES: usize = 256;

/// Is shown what a benchmark does.
pub trait Progress: Send + Sync {
    /// The state now, in one line. It replaces the last one.
    fn show(&self, state: fmt::Arguments<'_>);
}

/// Shows nothing.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn show(&self, _: fmt::Arguments<'_>) {}
}

/// How much load there is. A kind of load is measured once for each value of its lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// Time limit of one operation. An operation that takes longer ends the measurement.
    pub timeout: Duration,
    /// How long each setting is measured.
    pub span: Duration,
    /// Operations in flight.
    pub inflight: Vec<usize>,
    /// The maximum number of sessions that share them.
    pub clients: usize,
    /// Nodes in memory. The largest is also the number of nodes or leases of [`Bench::memory`], and
    /// of nodes of [`Bench::expiry`].
    pub objects: Vec<usize>,
    /// Numbers of attached nodes, one for each lease.
    pub carried: Vec<usize>,
    /// Threads that read.
    pub threads: Vec<usize>,
    /// Clients that have cached the written node.
    pub holders: Vec<usize>,
    /// The maximum number of sessions that cache all nodes.
    pub sessions: usize,
    /// Clients that contend for one lock.
    pub contenders: Vec<usize>,
    /// Watchers of the written node.
    pub watchers: Vec<usize>,
    /// Sessions that renew their leases.
    pub renewing: usize,
    /// Leases that expire.
    pub leases: usize,
}

/// Puts load on a cluster.
pub struct Bench<'a> {
    options: LoadOptions,
    endpoints: Vec<String>,
    progress: &'a dyn Progress,
    /// The node that everything is written below.
    top: NodePath,
}

impl<'a> Bench<'a> {
    /// Measures the servers at these addresses.
    pub fn new(endpoints: Vec<String>, options: LoadOptions, progress: &'a dyn Progress) -> Self {
        let top = format!("/leasehold-bench-{}", std::process::id());
        Self { options, endpoints, progress, top: top.parse().expect("a valid path") }
    }

    /// The node that everything is written below. All benches of a process have the same.
    pub fn top(&self) -> &NodePath {
        &self.top
    }

    /// Removes everything that was written.
    pub async fn remove_all(&self) -> Result<(), LoadError> {
        let client = self.client("end").await?;
        let removed = remove(&client, &self.top).await;
        client.close().await;
        removed
    }

    fn say(&self, state: fmt::Arguments<'_>) {
        self.progress.show(state);
    }

    async fn closed_loop<F, O>(&self, what: &str, inflight: usize, until: Until, op: F) -> Result<Load, LoadError>
    where
        F: Fn(usize, u64) -> O + Send + Sync + 'static,
        O: Future<Output = Result<(), LoadError>> + Send + 'static,
    {
        closed_loop(self.progress, what, inflight, until, op).await
    }

    /// A session with an empty cache.
    async fn client(&self, name: &str) -> Result<Client, LoadError> {
        let options = Options::new(&self.endpoints).name(format!("bench-{name}"));
        let options = options.timeout(self.options.timeout).cache_capacity_bytes(CAPACITY_BYTES);
        Ok(Client::connect(options).await?)
    }

    /// A session without a cache.
    async fn line(&self, name: &str) -> Result<LoadLine, LoadError> {
        LoadLine::open(&self.endpoints, &format!("bench-{name}"), self.options.timeout).await
    }

    async fn clients(&self, name: &str, count: usize) -> Result<Vec<Client>, LoadError> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(self.client(name).await?);
        }
        Ok(clients)
    }

    /// A node of the benchmark. Nodes are in groups of a thousand, to keep lists of children short.
    fn node(&self, set: &str, number: u64) -> NodePath {
        let text = format!("{}/{set}/{}/{}", self.top, number / 1000, number % 1000);
        NodePath::parse(&text).expect("made of valid components, and short")
    }
}

/// Removes a node and all nodes below it, in parts if the servers refuse too many at once.
async fn remove(client: &Client, top: &NodePath) -> Result<(), LoadError> {
    let mut parts = vec![top.clone()];
    while let Some(part) = parts.pop() {
        match client.delete(&part).recursive(true).await {
            // Some kinds write nothing.
            Ok(_) | Err(WriteError::Refused(Refusal::Write(WriteRefusal::NotFound { .. }))) => {}
            Err(WriteError::Refused(Refusal::Write(WriteRefusal::TooManyNodes { .. }))) => {
                let listing = client.children(&part).await?;
                let Some(listing) = listing else { continue };
                let below: Result<Vec<NodePath>, _> = listing.names.iter().map(|name| part.child(name)).collect();
                parts.push(part);
                parts.extend(below?);
            }
            Err(error) => return Err(error.into()),
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
