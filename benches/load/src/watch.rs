//! Watches: the time from a write's acknowledgement until the last of many watchers has seen it.

use std::time::{Duration, Instant};

use leasehold_client_cache::{Client, NodePath, WatchItem};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    Bench, close,
    closed_loop::{Load, histogram, nanos},
    error::LoadError,
    result::BenchRow,
    server::value,
};

/// Time limit of a watcher for one event.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

impl Bench<'_> {
    /// For each number of watchers: all at one client, and each at a client of its own.
    pub async fn watch(&self) -> Result<Vec<BenchRow>, LoadError> {
        let mut rows = Vec::new();
        for &watchers in &self.options.watchers {
            rows.push(self.fan_out(watchers, 1).await?);
            if watchers > 1 {
                rows.push(self.fan_out(watchers, watchers).await?);
            }
        }
        Ok(rows)
    }

    /// One write at a time. The next begins when all watchers have seen the last.
    async fn fan_out(&self, watchers: usize, clients: usize) -> Result<BenchRow, LoadError> {
        let path = self.node(&format!("watch-{watchers}-{clients}"), 0);
        let writer = self.client("writer").await?;
        writer.put(&path, value(0)).await?;
        let watching = self.clients("watcher", clients).await?;
        let (sender, mut told) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for number in 0..watchers {
            let watch = watching[number % clients].watch(&path).recursive(false).await?;
            tasks.spawn(tell(watch, sender.clone()));
        }
        drop(sender);
        let load = self.writes(&writer, &path, watchers, &mut told).await;
        tasks.shutdown().await;
        close(watching).await;
        close(vec![writer]).await;
        let settings = vec![("watchers", watchers as u64), ("clients", clients as u64)];
        Ok(load?.row_of_latencies("write acknowledged, to the last watcher told", settings))
    }

    async fn writes(
        &self,
        writer: &Client,
        path: &NodePath,
        watchers: usize,
        told: &mut mpsc::UnboundedReceiver<Instant>,
    ) -> Result<Load, LoadError> {
        let mut latency = histogram();
        let began = Instant::now();
        while began.elapsed() < self.options.span {
            writer.put(path, value(latency.len())).await?;
            let acknowledged = Instant::now();
            let mut last = acknowledged;
            for _ in 0..watchers {
                let one = tokio::time::timeout(TOLD_WITHIN, told.recv()).await;
                let Ok(Some(at)) = one else {
                    return Err(LoadError::NotTold { watchers, within: TOLD_WITHIN });
                };
                last = last.max(at);
            }
            // A watcher that sees the write before its acknowledgement counts as zero.
            latency.saturating_record(nanos(last - acknowledged));
            self.say(format_args!("writes with {watchers} watchers: {}", latency.len()));
        }
        Ok(Load { count: latency.len(), elapsed: began.elapsed(), latency })
    }
}

/// Sends the time of each change that the watch returns.
async fn tell(mut watch: leasehold_client_cache::Watch, sender: mpsc::UnboundedSender<Instant>) {
    // If a watch fails, the receiver times out.
    while let Ok(told) = watch.next().await {
        if matches!(told, WatchItem::Change(_)) && sender.send(Instant::now()).is_err() {
            return;
        }
    }
}
