//! Leasehold. Writes go through the client library, as in applications. Reads use a connection
//! without a volume lease: they are linearizable answers of the server, with no lease granted and
//! no copy cached.

use std::{
    path::Path as FilePath,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::future::BoxFuture;
use leasehold_bench::LoadLine;
use leasehold_client_cache::{Client, NodePath, Options, WatchItem};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    cached,
    closed_loop::{Line, Load},
    system::{LEASE_TERM, path_of, value},
    watched::Watchers,
};

/// Time limit of one operation: slow operations are measured, not aborted.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit of a server's answer about the leader.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// The cache capacity: enough for all nodes that are read.
const CAPACITY_BYTES: u64 = 1 << 30;

/// Three replicas, and their ports.
pub(crate) fn commands(program: &FilePath, dir: &FilePath, ports: &[u16]) -> (Vec<Command>, Vec<u16>) {
    let served = ports[..3].to_vec();
    let members: Vec<_> = (1..).zip(&served).map(|(id, port)| format!("{id}=127.0.0.1:{port}")).collect();
    let replica = |id: usize| {
        let mut command = Command::new(program);
        command.arg("serve").args(["--id", &id.to_string(), "--cluster", &members.join(",")]);
        command.arg("--data").arg(dir.join(format!("replica-{id}")));
        command
    };
    ((1..=3).map(replica).collect(), served)
}

/// Whether the server with this number, from 0, leads.
pub(crate) async fn is_leader(endpoint: &str, number: usize) -> Result<bool> {
    let status = leasehold_client_cache::server_status(endpoint, ANSWER_TIMEOUT).await?;
    Ok(status.info.leader == Some(number as u64 + 1))
}

/// Opens a connection for a load. Clients of the library find the leader by themselves.
pub(crate) async fn line(endpoints: &[String], leader: &str, load: Load) -> Result<Arc<dyn Line>> {
    Ok(match load {
        Load::Fill | Load::Write | Load::Lease | Load::Lock => Arc::new(Writer(client(endpoints).await?)),
        Load::Read | Load::LocalRead => Arc::new(LoadLine::open(&[leader.to_owned()], "peers", TIMEOUT).await?),
    })
}

async fn client(endpoints: &[String]) -> Result<Client> {
    let options = Options::new(endpoints).name("peers").timeout(TIMEOUT).cache_capacity_bytes(CAPACITY_BYTES);
    Ok(Client::connect(options).await?)
}

/// A client of the library. It has leases on the nodes that it wrote, and returns them on close.
struct Writer(Client);

impl Line for Writer {
    fn request(&self, load: Load, node: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let path: NodePath = path_of(node).parse()?;
            match load {
                Load::Lease => {
                    let lease = self.0.grant_lease(LEASE_TERM).await?;
                    self.0.revoke_lease(lease).await?;
                }
                Load::Lock => self.0.lock(&path).await?.release().await?,
                Load::Fill | Load::Write | Load::Read | Load::LocalRead => {
                    self.0.put(&path, value(node)).await?;
                }
            }
            Ok(())
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.close())
    }
}

impl Line for LoadLine {
    fn request(&self, _: Load, node: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { Ok(self.read(&path_of(node).parse()?).await?) })
    }
}

/// Watches of one client, each with its own position in the history.
pub(crate) async fn watched(endpoints: &[String], watchers: usize) -> Result<Watchers> {
    let client = client(endpoints).await?;
    let path: NodePath = path_of(0).parse()?;
    let (sender, told) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for _ in 0..watchers {
        let (mut watch, sender) = (client.watch(&path).recursive(false).await?, sender.clone());
        let client = client.clone();
        tasks.spawn(async move {
            // Watches end with their client.
            let _client = client;
            loop {
                if let WatchItem::Change(_) = watch.next().await? {
                    sender.send(Instant::now())?;
                }
            }
        });
    }
    Ok(Watchers { told, _tasks: tasks })
}

/// Nanoseconds per cached read.
pub(crate) async fn cached_read_ns(endpoints: &[String], threads: usize, nodes: u64, span: Duration) -> Result<f64> {
    let client = client(endpoints).await?;
    let paths: Arc<[NodePath]> = (0..nodes).map(|node| path_of(node).parse()).collect::<Result<_, _>>()?;
    for path in paths.iter() {
        client.get(path).await?.context("it was written before")?;
    }
    let before = client.stats().server_reads;
    let shared = client.clone();
    let reader = move || {
        let (client, paths) = (shared.clone(), paths.clone());
        async move |at: usize| Ok(client.get(&paths[at]).await?.is_some())
    };
    let ns = cached::read_ns(threads, nodes, span, reader).await?;
    let asked = client.stats().server_reads - before;
    client.close().await;
    if asked > 0 { bail!("{asked} reads went to a server: expected all from memory") } else { Ok(ns) }
}
