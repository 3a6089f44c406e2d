//! Locks: acquired and released without contention, and passed on between contending clients.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use leasehold_client_cache::{Client, NodePath};

use super::{
    Bench, close,
    load::{Load, Until, histogram, measured, nanos},
    result::BenchRow,
};
use crate::{commands::lock::lock_failure, exit::CommandFailure};

impl Bench {
    /// Uncontended lock and unlock pairs, and passing a lock on.
    pub(super) async fn locks(&self) -> Result<Vec<BenchRow>, CommandFailure> {
        let mut rows = Vec::new();
        for &inflight in &self.args.inflight {
            rows.push(self.uncontended(inflight).await?);
        }
        for &contenders in self.args.contenders.iter().filter(|count| **count > 1) {
            rows.push(self.handed_over(contenders).await?);
        }
        Ok(rows)
    }

    /// Each worker locks a node of its own.
    async fn uncontended(&self, inflight: usize) -> Result<BenchRow, CommandFailure> {
        let clients = self.clients("locks", inflight.min(self.args.clients)).await?;
        let shared = clients.clone();
        let paths: Arc<[NodePath]> = (0..inflight as u64).map(|worker| self.node("locks", worker)).collect();
        let op = move |worker: usize, _| {
            let (client, paths) = (shared[worker % shared.len()].clone(), Arc::clone(&paths));
            async move {
                let hold = client.lock(&paths[worker]).await;
                let hold = hold.map_err(|error| lock_failure(&error))?;
                hold.release().await.map_err(|error| lock_failure(&error))
            }
        };
        let what = format!("locks, {inflight} in flight");
        let load = self.meter.run(&what, inflight, Until::Elapsed(self.seconds()), op).await?;
        close(clients).await;
        Ok(load.row("lock and unlock, pairs, uncontended", vec![("inflight", inflight as u64)]))
    }

    /// Contending clients acquire one lock over and over, and release it at once. Measured is the
    /// time from a release until the next client has the lock.
    async fn handed_over(&self, contenders: usize) -> Result<BenchRow, CommandFailure> {
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
        let load = self.meter.run(&what, contenders, Until::Elapsed(self.seconds()), op).await?;
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
) -> Result<(), CommandFailure> {
    let hold = client.lock(path).await.map_err(|error| lock_failure(&error))?;
    if let Some(at) = since() {
        times.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos(at.elapsed()));
    }
    *given.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    hold.release().await.map_err(|error| lock_failure(&error))
}
