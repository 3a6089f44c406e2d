//! Locks: acquired and released without contention, and passed on between contending clients.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use leasehold_client_cache::{Client, NodePath};

use crate::{
    Bench, close,
    closed_loop::{Load, Until, histogram, measured, nanos},
    error::LoadError,
    result::BenchRow,
};

impl Bench<'_> {
    /// Uncontended lock and unlock pairs, and passing a lock on.
    pub async fn locks(&self) -> Result<Vec<BenchRow>, LoadError> {
        let mut rows = Vec::new();
        for &inflight in &self.options.inflight {
            rows.push(self.uncontended(inflight).await?);
        }
        for &contenders in self.options.contenders.iter().filter(|count| **count > 1) {
            rows.push(self.handed_over(contenders).await?);
        }
        Ok(rows)
    }

    /// Each worker locks a node of its own.
    async fn uncontended(&self, inflight: usize) -> Result<BenchRow, LoadError> {
        let clients = self.clients("locks", inflight.min(self.options.clients)).await?;
        let shared = clients.clone();
        let paths: Arc<[NodePath]> = (0..inflight as u64).map(|worker| self.node("locks", worker)).collect();
        let op = move |worker: usize, _| {
            let (client, paths) = (shared[worker % shared.len()].clone(), Arc::clone(&paths));
            async move {
                let lock = client.lock(&paths[worker]).await?;
                Ok(lock.release().await?)
            }
        };
        let what = format!("locks, {inflight} in flight");
        let load = self.closed_loop(&what, inflight, Until::Elapsed(self.options.span), op).await?;
        close(clients).await;
        Ok(load.row("lock and unlock, pairs, uncontended", vec![("inflight", inflight as u64)]))
    }

    /// Contending clients acquire one lock over and over, and release it at once. Measured is the
    /// time from a release until the next client has the lock.
    async fn handed_over(&self, contenders: usize) -> Result<BenchRow, LoadError> {
        let clients = self.clients("contender", contenders).await?;
        let path = self.node("contended", 0);
        // When the lock was last released.
        let given: Arc<Mutex<Option<Instant>>> = Arc::default();
        let latency = Arc::new(Mutex::new(histogram()));
        let (shared, times) = (clients.clone(), Arc::clone(&latency));
        let op = move |worker: usize, _| {
            let (client, path) = (shared[worker].clone(), path.clone());
            let (given, times) = (Arc::clone(&given), Arc::clone(&times));
            async move {
                let since = || given.lock().unwrap_or_else(PoisonError::into_inner).take();
                take_once(&client, &path, since, &times, &given).await
            }
        };
        let what = format!("one lock, {contenders} clients");
        let load = self.closed_loop(&what, contenders, Until::Elapsed(self.options.span), op).await?;
        close(clients).await;
        let latency = latency.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Includes the first tenth, as no warm-up is needed here.
        let elapsed = load.elapsed + load.elapsed / 10;
        measured(&what, &latency)?;
        let load = Load { count: latency.len(), elapsed, latency };
        Ok(load.row("lock, handed over", vec![("contenders", contenders as u64)]))
    }
}

/// Acquires the lock, records the time since its last release, and releases it.
async fn take_once(
    client: &Client,
    path: &NodePath,
    since: impl Fn() -> Option<Instant>,
    times: &Mutex<hdrhistogram::Histogram<u64>>,
    given: &Mutex<Option<Instant>>,
) -> Result<(), LoadError> {
    let hold = client.lock(path).await?;
    if let Some(at) = since() {
        times.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos(at.elapsed()));
    }
    *given.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    Ok(hold.release().await?)
}
