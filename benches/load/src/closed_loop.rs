//! Closed loops: a fixed number of operations in flight. The next begins when one has ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::task::{JoinError, JoinSet};

use crate::{Progress, result::BenchRow};

/// How often a loop tells its progress.
const TICK: Duration = Duration::from_millis(200);

/// The longest latency that is distinguished from longer ones.
const LATENCY_MAX_NS: u64 = 120_000_000_000;

/// Why a loop has no result, apart from the errors of its operations.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopError {
    /// No operation ended in the measured time.
    #[error("{0}: nothing ended in the time that was measured: expected a longer time, or faster servers")]
    NothingMeasured(String),
    /// An operation panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

/// The result of a loop.
#[derive(Debug)]
pub struct Load {
    /// Operations that ended in the measured time.
    pub count: u64,
    /// The measured time.
    pub elapsed: Duration,
    /// The latency of each operation in nanoseconds.
    pub latency: Histogram<u64>,
}

impl Load {
    /// Operations per second.
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency in milliseconds that this share of the operations does not exceed.
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e6
    }

    /// Rate and latencies as figures.
    pub(crate) fn figures(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("per_second", self.per_second()),
            ("p50_ms", self.quantile_ms(0.5)),
            ("p90_ms", self.quantile_ms(0.9)),
            ("p99_ms", self.quantile_ms(0.99)),
            ("max_ms", self.latency.max() as f64 / 1e6),
        ]
    }

    /// A row of the figures.
    pub(crate) fn row(&self, bench: &'static str, settings: Vec<(&'static str, u64)>) -> BenchRow {
        BenchRow { bench, settings, figures: self.figures() }
    }

    /// A row without the rate, where it has no meaning.
    pub(crate) fn row_of_latencies(&self, bench: &'static str, settings: Vec<(&'static str, u64)>) -> BenchRow {
        let figures = self.figures().into_iter().filter(|(name, _)| *name != "per_second").collect();
        BenchRow { bench, settings, figures }
    }
}

/// Nanoseconds for the histograms.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// When a loop ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After a warm-up of a tenth of this time, which is not measured, and then this time.
    Elapsed(Duration),
    /// After this many operations.
    Count(u64),
}

/// A histogram of nanoseconds, to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("constant bounds that hdrhistogram accepts")
}

/// Fails if no operation was measured.
pub(crate) fn measured(what: &str, latency: &Histogram<u64>) -> Result<(), LoopError> {
    if latency.is_empty() { Err(LoopError::NothingMeasured(what.to_owned())) } else { Ok(()) }
}

/// Runs `op` with this many in flight. Each call gets the number of its worker and of the
/// operation. Fails if an operation fails, or if none ended in the measured time. `what` names the
/// loop in its progress and its error.
pub async fn closed_loop<F, O, E>(
    progress: &dyn Progress,
    what: &str,
    inflight: usize,
    until: Until,
    op: F,
) -> Result<Load, E>
where
    F: Fn(usize, u64) -> O + Send + Sync + 'static,
    O: Future<Output = Result<(), E>> + Send + 'static,
    E: From<LoopError> + Send + 'static,
{
    let (op, next, done) = (Arc::new(op), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    // Start and end of the measured time, and the maximum number of operations.
    let (from, to, most) = match until {
        Until::Elapsed(span) => (began + span / 10, Some(began + span + span / 10), u64::MAX),
        Until::Count(count) => (began, None, count),
    };
    let mut workers = JoinSet::new();
    for worker in 0..inflight {
        let (op, next, done) = (Arc::clone(&op), Arc::clone(&next), Arc::clone(&done));
        workers.spawn(async move {
            let mut latency = histogram();
            loop {
                let number = next.fetch_add(1, Relaxed);
                let begin = Instant::now();
                if number >= most || to.is_some_and(|to| begin >= to) {
                    return Ok::<_, E>(latency);
                }
                op(worker, number).await?;
                done.fetch_add(1, Relaxed);
                let end = Instant::now();
                if end >= from && to.is_none_or(|to| end < to) {
                    latency.saturating_record(nanos(end - begin));
                }
            }
        });
    }
    let latency = gather(progress, what, workers, &done, began).await?;
    let elapsed = to.map_or_else(|| began.elapsed(), |to| to - from);
    if to.is_some() {
        measured(what, &latency)?;
    }
    Ok(Load { count: latency.len(), elapsed, latency })
}

/// Waits for all workers. Tells the progress meanwhile.
async fn gather<E: From<LoopError> + 'static>(
    progress: &dyn Progress,
    what: &str,
    mut workers: JoinSet<Result<Histogram<u64>, E>>,
    done: &AtomicU64,
    began: Instant,
) -> Result<Histogram<u64>, E> {
    let mut all = histogram();
    loop {
        match tokio::time::timeout(TICK, workers.join_next()).await {
            Ok(None) => return Ok(all),
            Ok(Some(latency)) => {
                let latency = latency.map_err(LoopError::Panicked)??;
                all.add(latency).expect("histograms of the same bounds");
            }
            Err(_) => {
                let (done, seconds) = (done.load(Relaxed), began.elapsed().as_secs_f64());
                progress.show(format_args!("{what}: {done} in {seconds:.1} s, {:.0}/s", done as f64 / seconds));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    async fn counted<O>(
        inflight: usize,
        op: impl Fn(usize, u64) -> O + Send + Sync + 'static,
    ) -> Result<Load, LoopError>
    where
        O: Future<Output = Result<(), LoopError>> + Send + 'static,
    {
        closed_loop(&Silent, "test", inflight, Until::Count(100), op).await
    }

    #[tokio::test]
    async fn a_counted_loop_does_each_operation_once() {
        let seen = Arc::new(parking::LoadSeen::default());
        let noted = Arc::clone(&seen);
        let op = move |_, number| {
            noted.note(number);
            async { Ok(()) }
        };
        let load = counted(7, op).await.expect("done");
        assert_eq!(load.count, 100);
        assert_eq!(seen.sorted(), (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn what_fails_ends_the_loop() {
        let three = || LoopError::NothingMeasured("three".to_owned());
        let op = move |_, number| async move { if number == 3 { Err(three()) } else { Ok(()) } };
        let error = counted(2, op).await.expect_err("failed");
        assert!(error.to_string().starts_with("three"), "{error}");
    }

    #[tokio::test]
    async fn of_nothing_there_are_no_figures() {
        let op = |_, _| async { Ok::<_, LoopError>(()) };
        let elapsed = Until::Elapsed(Duration::ZERO);
        let error = closed_loop(&Silent, "test", 2, elapsed, op).await.expect_err("no operation ends in no time");
        assert!(error.to_string().starts_with("test: nothing ended"), "{error}");
    }

    #[test]
    fn percentiles_are_in_milliseconds_and_rates_in_seconds() {
        let mut latency = histogram();
        for ms in 1..=100_u64 {
            latency.record(ms * 1_000_000).expect("in bounds");
        }
        let load = Load { count: 100, elapsed: Duration::from_secs(4), latency };
        assert!((load.per_second() - 25.0).abs() < 1e-9);
        assert!((load.quantile_ms(0.5) - 50.0).abs() < 0.1, "{load:?}");
        assert!((load.quantile_ms(0.99) - 99.0).abs() < 0.1, "{load:?}");
    }

    mod parking {
        use std::sync::Mutex;

        #[derive(Default)]
        pub(crate) struct LoadSeen(Mutex<Vec<u64>>);

        impl LoadSeen {
            pub(crate) fn note(&self, number: u64) {
                self.0.lock().expect("no panic").push(number);
            }

            pub(crate) fn sorted(&self) -> Vec<u64> {
                let mut seen = self.0.lock().expect("no panic").clone();
                seen.sort_unstable();
                seen
            }
        }
    }
}
