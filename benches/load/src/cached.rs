//! Compares cached reads with the plain maps that programs use today, in one run and by one loop.
//!
//! Each thread visits all keys in a random order of its own. Its keys are copied in that order, so
//! that the loop measures the map, not the fetching of keys. The time of the whole loop is divided
//! by the number of reads, so the clock is not read in between.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use dashmap::DashMap;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_client_cache::{Client, NodePath};
use rand::{SeedableRng, rngs::SmallRng, seq::SliceRandom};

use crate::{Bench, VALUE_BYTES, close, error::LoadError, result::BenchRow};

/// Reads between two readings of the clock.
const BATCH: usize = 1000;

/// Reads in flight while the copies are fetched.
const FETCH_AT_ONCE: usize = 256;

type BenchContent = Arc<Vec<u8>>;

impl Bench<'_> {
    /// Nanoseconds per cached read, and per read of plain maps.
    pub async fn cached(&self) -> Result<Vec<BenchRow>, LoadError> {
        let mut rows = Vec::new();
        for &objects in &self.options.objects {
            let set = format!("cached-{objects}");
            self.fill(&set, objects as u64).await?;
            let client = self.client("cached").await?;
            let paths: Arc<[NodePath]> = (0..objects as u64).map(|number| self.node(&set, number)).collect();
            self.say(format_args!("fetching {objects} copies"));
            fetch(&client, &paths).await?;
            for &threads in &self.options.threads {
                self.say(format_args!("cached reads, {objects} nodes, {threads} threads"));
                let (client, paths, span) = (client.clone(), Arc::clone(&paths), self.options.span / 5);
                let figures = tokio::task::spawn_blocking(move || compare(&client, &paths, threads, span)).await;
                let figures = figures??;
                let settings = vec![("objects", objects as u64), ("threads", threads as u64)];
                rows.push(BenchRow { bench: "cached read, ns", settings, figures });
            }
            close(vec![client]).await;
        }
        Ok(rows)
    }
}

/// Caches a copy of each node.
pub(crate) async fn fetch(client: &Client, paths: &[NodePath]) -> Result<(), LoadError> {
    let reads = stream::iter(paths).map(|path| client.get(path).into_future()).buffer_unordered(FETCH_AT_ONCE);
    Ok(reads.try_for_each(|_| async { Ok(()) }).await?)
}

/// Reads each map for `span`.
fn compare(
    client: &Client,
    paths: &[NodePath],
    threads: usize,
    span: Duration,
) -> Result<Vec<(&'static str, f64)>, LoadError> {
    let before = client.stats();
    let missing = paths.iter().filter(|path| client.cached(path).is_none()).count();
    if missing > 0 {
        return Err(LoadError::NotCached { missing, of: paths.len() });
    }
    let content: BenchContent = Arc::new(vec![b'.'; VALUE_BYTES]);
    let names: Vec<String> = paths.iter().map(ToString::to_string).collect();
    let numbers: Vec<u64> = (0..paths.len() as u64).collect();
    let by_number = moka::sync::Cache::new(paths.len() as u64 * 2);
    let by_name = moka::sync::Cache::new(paths.len() as u64 * 2);
    let map: DashMap<String, BenchContent> = DashMap::new();
    for (number, name) in names.iter().enumerate() {
        by_number.insert(number as u64, Arc::clone(&content));
        by_name.insert(name.clone(), Arc::clone(&content));
        map.insert(name.clone(), Arc::clone(&content));
    }
    by_number.run_pending_tasks();
    by_name.run_pending_tasks();
    let figures = vec![
        ("leasehold", each_ns(paths, threads, span, |path| client.cached(path).is_some())),
        ("moka_u64", each_ns(&numbers, threads, span, |number| by_number.get(number).is_some())),
        ("moka_string", each_ns(&names, threads, span, |name| by_name.get(name).is_some())),
        (
            "dashmap_string",
            each_ns(&names, threads, span, |name| map.get(name).map(|found| Arc::clone(&found)).is_some()),
        ),
    ];
    let after = client.stats();
    if after.server_reads != before.server_reads {
        return Err(LoadError::ServerRead);
    }
    Ok(figures)
}

/// The mean of all threads.
fn each_ns<K: Clone + Sync>(keys: &[K], threads: usize, span: Duration, read: impl Fn(&K) -> bool + Sync) -> f64 {
    let times: Vec<f64> = std::thread::scope(|scope| {
        let read = &read;
        let readers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || thread_ns(keys, thread as u64, span, read))).collect();
        // A panic is reported already.
        readers.into_iter().map(|reader| reader.join().unwrap_or(f64::NAN)).collect()
    });
    times.iter().sum::<f64>() / threads as f64
}

fn thread_ns<K: Clone>(keys: &[K], seed: u64, span: Duration, read: impl Fn(&K) -> bool) -> f64 {
    let mut order: Vec<&K> = keys.iter().collect();
    order.shuffle(&mut SmallRng::seed_from_u64(seed));
    let keys: Vec<K> = order.into_iter().cloned().collect();
    let mut next = keys.iter().cycle();
    let began = Instant::now();
    let mut reads = 0_u64;
    while began.elapsed() < span {
        for key in next.by_ref().take(BATCH) {
            black_box(read(key));
        }
        reads += BATCH as u64;
    }
    began.elapsed().as_nanos() as f64 / reads as f64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    #[test]
    fn all_keys_are_read_by_all_threads() {
        let sum = AtomicU64::new(0);
        let read = |at: &u64| sum.fetch_or(1 << at, Relaxed) > 0;
        let keys: Vec<u64> = (0..10).collect();
        assert!(each_ns(&keys, 2, Duration::from_millis(5), read) > 0.0);
        assert_eq!(sum.load(Relaxed), (1 << 10) - 1);
    }
}
