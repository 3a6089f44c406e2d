//! Server load: writes, reads without the cache, and first reads through it.

use std::sync::Arc;

use futures::future::try_join_all;
use leasehold_client_cache::{NodePath, Value};

use crate::{
    Bench, VALUE_BYTES, close,
    closed_loop::{Load, Until},
    error::LoadError,
    line::LoadLine,
    result::BenchRow,
};

/// Nodes that are written over and over.
const OVERWRITTEN: u64 = 1000;

/// Nodes that are read from the server.
const READ: u64 = 1000;

/// Nodes that are read for the first time, for each setting.
const MISSED: u64 = 20_000;

/// Puts in flight while the nodes to read are created.
const FILL_AT_ONCE: usize = 256;

/// The value of this number.
pub(crate) fn value(number: u64) -> Value {
    let mut bytes = vec![b'.'; VALUE_BYTES];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes.into()
}

impl Bench<'_> {
    /// Durable writes of new nodes, or of a thousand nodes over and over.
    pub async fn put(&self, overwrite: bool) -> Result<Vec<BenchRow>, LoadError> {
        let bench = if overwrite { "put, overwriting" } else { "put, new nodes" };
        let mut rows = Vec::new();
        for &inflight in &self.options.inflight {
            let clients = self.clients("put", inflight.min(self.options.clients)).await?;
            let set = format!("put-{overwrite}-{inflight}");
            // Workers write different nodes, so that they do not wait for each other.
            let slots = (OVERWRITTEN / inflight as u64).max(1);
            let (top, shared) = (self.top.clone(), clients.clone());
            let nodes = move |worker: usize, number: u64| {
                let number = if overwrite { worker as u64 * slots + number % slots } else { number };
                format!("{top}/{set}/{}/{}", number / 1000, number % 1000)
            };
            let op = move |worker: usize, number: u64| {
                let (client, path) = (shared[worker % shared.len()].clone(), nodes(worker, number));
                async move {
                    let path: NodePath = path.parse()?;
                    Ok(client.put(&path, value(number)).await.map(drop)?)
                }
            };
            let what = format!("{bench}, {inflight} in flight");
            let load = self.closed_loop(&what, inflight, Until::Elapsed(self.options.span), op).await?;
            rows.push(row(bench, inflight, &load));
            close(clients).await;
        }
        Ok(rows)
    }

    /// Linearizable reads without a lease.
    pub async fn read(&self) -> Result<Vec<BenchRow>, LoadError> {
        self.fill("read", READ).await?;
        let mut rows = Vec::new();
        for &inflight in &self.options.inflight {
            let count = inflight.min(self.options.clients);
            let lines = (0..count).map(|_| self.line("read"));
            let lines: Arc<[LoadLine]> = try_join_all(lines).await?.into();
            let paths: Arc<[_]> = (0..READ).map(|number| self.node("read", number)).collect();
            let op = move |worker: usize, number: u64| {
                let (lines, paths) = (Arc::clone(&lines), Arc::clone(&paths));
                async move { lines[worker % lines.len()].read(&paths[(number % READ) as usize]).await }
            };
            let what = format!("read, {inflight} in flight");
            let load = self.closed_loop(&what, inflight, Until::Elapsed(self.options.span), op).await?;
            rows.push(row("read from the server", inflight, &load));
        }
        Ok(rows)
    }

    /// First reads through the cache, each of which is granted a lease.
    pub async fn miss(&self) -> Result<Vec<BenchRow>, LoadError> {
        self.fill("miss", MISSED).await?;
        let mut rows = Vec::new();
        for &inflight in &self.options.inflight {
            let clients = self.clients("miss", inflight.min(self.options.clients)).await?;
            for client in &clients {
                // Gets the volume lease once, so that no measured read includes it.
                client.get(&self.top).await?;
            }
            let paths: Arc<[_]> = (0..MISSED).map(|number| self.node("miss", number)).collect();
            let shared = clients.clone();
            let op = move |worker: usize, number: u64| {
                let (client, paths) = (shared[worker % shared.len()].clone(), Arc::clone(&paths));
                async move { Ok(client.get(&paths[number as usize]).await.map(drop)?) }
            };
            let what = format!("miss, {inflight} in flight");
            let load = self.closed_loop(&what, inflight, Until::Count(MISSED), op).await?;
            rows.push(row("miss, with a lease", inflight, &load));
            close(clients).await;
        }
        Ok(rows)
    }

    /// Creates the nodes to read.
    pub(crate) async fn fill(&self, set: &str, count: u64) -> Result<(), LoadError> {
        let clients = self.clients("fill", self.options.clients).await?;
        let shared = clients.clone();
        let paths: Arc<[_]> = (0..count).map(|number| self.node(set, number)).collect();
        let op = move |worker: usize, number: u64| {
            let (client, paths) = (shared[worker % shared.len()].clone(), Arc::clone(&paths));
            async move { Ok(client.put(&paths[number as usize], value(number)).await.map(drop)?) }
        };
        let what = format!("making {count} nodes");
        let filled = self.closed_loop(&what, FILL_AT_ONCE.min(count as usize), Until::Count(count), op).await;
        close(clients).await;
        filled.map(drop)
    }
}

fn row(bench: &'static str, inflight: usize, load: &Load) -> BenchRow {
    load.row(bench, vec![("inflight", inflight as u64)])
}
