//! Cached reads: each thread reads all keys over and over, as an application would call the
//! library.
//!
//! The time of the whole loop is divided by the number of reads, so the clock is not read in
//! between.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tokio::runtime::Handle;

use crate::closed_loop::STRIDE;

/// Reads between two readings of the clock.
const BATCH: u64 = 1_000;

/// The mean over all threads of nanoseconds per read. `reader` makes the function of a thread that
/// reads a key by its number and returns whether it has a value.
pub(crate) async fn read_ns<M, R>(threads: usize, keys: u64, span: Duration, reader: M) -> Result<f64>
where
    M: Fn() -> R + Send + Sync + 'static,
    R: AsyncFnMut(usize) -> Result<bool>,
{
    let handle = Handle::current();
    let all = tokio::task::spawn_blocking(move || {
        std::thread::scope(|scope| {
            let thread = || handle.block_on(thread_ns(keys, span, reader()));
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
            let times = threads.into_iter().map(|thread| thread.join().ok().context("a reader panicked")?);
            times.collect::<Result<Vec<f64>>>()
        })
    });
    let times = all.await??;
    Ok(times.iter().sum::<f64>() / times.len() as f64)
}

async fn thread_ns<R: AsyncFnMut(usize) -> Result<bool>>(keys: u64, span: Duration, mut read: R) -> Result<f64> {
    let (began, mut reads) = (Instant::now(), 0_u64);
    while began.elapsed() < span {
        for _ in 0..BATCH {
            let found = read((reads * STRIDE % keys) as usize).await?;
            ensure!(black_box(found), "a key had no value: expected one for each");
            reads += 1;
        }
    }
    Ok(began.elapsed().as_nanos() as f64 / reads as f64)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    };

    use super::*;

    #[tokio::test]
    async fn all_keys_are_read() {
        let seen = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&seen);
        let reader = move || {
            let noted = Arc::clone(&noted);
            async move |at: usize| {
                noted.fetch_or(1 << at, Relaxed);
                Ok(true)
            }
        };
        assert!(read_ns(2, 10, Duration::from_millis(5), reader).await.expect("read") > 0.0);
        assert_eq!(seen.load(Relaxed), (1 << 10) - 1);
    }

    #[tokio::test]
    async fn a_key_without_a_value_is_an_error() {
        let error = read_ns(1, 10, Duration::from_millis(5), || async |_| Ok(false)).await.expect_err("none there");
        assert!(error.to_string().contains("no value"), "{error}");
    }
}
