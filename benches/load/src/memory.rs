//! The server's memory for each object lease, and for each key lease with its node, by the
//! difference of its resident memory.
//!
//! All nodes are read once without a lease before, so that memory which reads need is allocated
//! already.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold_client_cache::NodePath;

use crate::{
    Bench, cached::fetch, close, closed_loop::Until, error::LoadError, expiry::Carrier, process::resident_bytes,
    result::BenchRow,
};

/// How often the memory is sampled.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// The memory is stable when this many samples in a row differ by less than a hundredth.
const SAMPLES: usize = 4;

/// After this many samples the memory counts as stable.
const SAMPLES_MAX: usize = 40;

/// Reads in flight while nodes are read without leases.
const READS_AT_ONCE: usize = 64;

/// The term of the key leases: longer than the benchmark.
const KEY_LEASES_FOR: Duration = Duration::from_secs(3600);

impl Bench<'_> {
    /// Bytes for each object lease, with one and more sessions that cache all nodes, and for each
    /// key lease with a node. `process` is the process id of the only server, which has done
    /// nothing else before.
    pub async fn memory(&self, process: u32) -> Result<Vec<BenchRow>, LoadError> {
        let objects = self.options.objects.iter().copied().max().unwrap_or(100_000) as u64;
        self.fill("memory", objects).await?;
        let paths: Arc<[NodePath]> = (0..objects).map(|number| self.node("memory", number)).collect();
        self.read_without_leases(Arc::clone(&paths)).await?;
        let before = self.at_rest(process).await?;
        let (mut rows, mut clients) = (Vec::new(), Vec::new());
        for sessions in 1..=self.options.sessions as u64 {
            let client = self.client("memory").await?;
            self.say(format_args!("session {sessions} takes leases on {objects} nodes"));
            fetch(&client, &paths).await?;
            clients.push(client);
            let after = self.at_rest(process).await?;
            let each = (after as f64 - before as f64) / (objects * sessions) as f64;
            rows.push(BenchRow {
                bench: "server memory",
                settings: vec![("objects", objects), ("sessions", sessions)],
                figures: vec![
                    ("bytes_per_lease", each),
                    ("resident_before_mib", before as f64 / f64::from(1 << 20)),
                    ("resident_after_mib", after as f64 / f64::from(1 << 20)),
                ],
            });
        }
        // Before the clients return their object leases: otherwise this would reuse that memory.
        rows.push(self.memory_of_key_leases(process, objects).await?);
        close(clients).await;
        Ok(rows)
    }

    /// Bytes for each key lease with its attached node. The same number of leases is created
    /// before, to fill bounded memory, such as that of the history and of the store. The result
    /// includes the writers' object leases on the nodes.
    async fn memory_of_key_leases(&self, process: u32, leases: u64) -> Result<BenchRow, LoadError> {
        self.make("key-leases-before", leases, Carrier::Each(Instant::now() + KEY_LEASES_FOR)).await?;
        let before = self.at_rest(process).await?;
        self.make("key-leases", leases, Carrier::Each(Instant::now() + KEY_LEASES_FOR)).await?;
        let after = self.at_rest(process).await?;
        Ok(BenchRow {
            bench: "server memory, key leases with a node each",
            settings: vec![("leases", leases), ("leases_before", leases)],
            figures: vec![
                ("bytes_per_lease", (after as f64 - before as f64) / leases as f64),
                ("resident_before_mib", before as f64 / f64::from(1 << 20)),
                ("resident_after_mib", after as f64 / f64::from(1 << 20)),
            ],
        })
    }

    async fn read_without_leases(&self, paths: Arc<[NodePath]>) -> Result<(), LoadError> {
        let line = Arc::new(self.line("memory").await?);
        let (count, shared) = (paths.len() as u64, Arc::clone(&line));
        let op = move |_, number: u64| {
            let (line, paths) = (Arc::clone(&shared), Arc::clone(&paths));
            async move { line.read(&paths[number as usize]).await }
        };
        self.closed_loop("reading without leases", READS_AT_ONCE, Until::Count(count), op).await?;
        match Arc::into_inner(line) {
            Some(line) => line.close().await,
            // The last operation still has a reference. The session ends by itself.
            None => Ok(()),
        }
    }

    async fn at_rest(&self, process: u32) -> Result<u64, LoadError> {
        let mut samples: Vec<u64> = Vec::new();
        loop {
            samples.push(resident_bytes(process)?);
            let last = &samples[samples.len().saturating_sub(SAMPLES)..];
            let (least, most) = (last.iter().min().copied().unwrap_or(0), last.iter().max().copied().unwrap_or(0));
            if (last.len() == SAMPLES && most - least < most / 100) || samples.len() == SAMPLES_MAX {
                return Ok(most);
            }
            self.say(format_args!("the server has {} MiB in memory", most >> 20));
            tokio::time::sleep(SAMPLE_EVERY).await;
        }
    }
}
