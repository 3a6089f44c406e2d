//! Closed loops: a fixed number of operations in flight. The next begins when one has ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;

use super::result::BenchRow;
use crate::{exit::CommandFailure, output::Output};

/// How often the live line is redrawn.
const TICK: Duration = Duration::from_millis(200);

/// The longest latency that is distinguished from longer ones.
const LATENCY_MAX_NS: u64 = 120_000_000_000;

/// The result of a loop.
#[derive(Debug)]
pub(crate) struct Load {
    /// Operations that ended in the measured time.
    pub(crate) count: u64,
    /// The measured time.
    pub(crate) elapsed: Duration,
    /// The latency of each operation in nanoseconds.
    pub(crate) latency: Histogram<u64>,
}

impl Load {
    /// Rate and latencies as figures.
    pub(crate) fn figures(&self) -> Vec<(&'static str, f64)> {
        let ms = |quantile| self.latency.value_at_quantile(quantile) as f64 / 1e6;
        vec![
            ("per_second", self.count as f64 / self.elapsed.as_secs_f64()),
            ("p50_ms", ms(0.5)),
            ("p90_ms", ms(0.9)),
            ("p99_ms", ms(0.99)),
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
pub(crate) enum Until {
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
pub(crate) fn measured(what: &str, latency: &Histogram<u64>) -> Result<(), CommandFailure> {
    if latency.is_empty() {
        let text =
            format!("{what}: nothing ended in the time that was measured: expected a longer time, or faster servers");
        return Err(CommandFailure::refused("nothing_measured", text));
    }
    Ok(())
}

/// The live line.
#[derive(Debug, Clone)]
pub(crate) struct Meter(Option<ProgressBar>);

impl Meter {
    /// A line if standard error is a terminal.
    pub(crate) fn new(output: Output) -> Self {
        Self(output.is_watched().then(|| {
            let line = ProgressBar::new_spinner();
            line.enable_steady_tick(TICK);
            // The template is constant. If it were wrong, the default style would do.
            line.with_style(
                ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        }))
    }

    /// Sets the text of the line.
    pub(crate) fn say(&self, text: impl FnOnce() -> String) {
        if let Some(line) = &self.0 {
            line.set_message(text());
        }
    }

    /// Runs `op` with this many in flight. Each call gets the number of its worker and of the
    /// operation. Fails if an operation fails, or if none ended in the measured time.
    pub(crate) async fn run<F, O>(
        &self,
        what: &str,
        inflight: usize,
        until: Until,
        op: F,
    ) -> Result<Load, CommandFailure>
    where
        F: Fn(usize, u64) -> O + Send + Sync + 'static,
        O: Future<Output = Result<(), CommandFailure>> + Send + 'static,
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
                        return Ok::<_, CommandFailure>(latency);
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
        let latency = self.gather(what, workers, &done, began).await?;
        let elapsed = to.map_or_else(|| began.elapsed(), |to| to - from);
        if to.is_some() {
            measured(what, &latency)?;
        }
        Ok(Load { count: latency.len(), elapsed, latency })
    }

    async fn gather(
        &self,
        what: &str,
        mut workers: JoinSet<Result<Histogram<u64>, CommandFailure>>,
        done: &AtomicU64,
        began: Instant,
    ) -> Result<Histogram<u64>, CommandFailure> {
        let mut all = histogram();
        loop {
            match tokio::time::timeout(TICK, workers.join_next()).await {
                Ok(None) => return Ok(all),
                Ok(Some(Ok(latency))) => {
                    all.add(latency?).map_err(|error| CommandFailure::refused("histogram", error))?;
                }
                Ok(Some(Err(error))) => return Err(CommandFailure::refused("bench", error)),
                Err(_) => self.say(|| {
                    let (done, seconds) = (done.load(Relaxed), began.elapsed().as_secs_f64());
                    format!("{what}: {done} in {seconds:.1} s, {:.0}/s", done as f64 / seconds)
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent() -> Meter {
        Meter(None)
    }

    #[tokio::test]
    async fn a_counted_loop_does_each_operation_once() {
        let seen = Arc::new(parking::LoadSeen::default());
        let noted = Arc::clone(&seen);
        let op = move |_, number| {
            noted.note(number);
            async { Ok(()) }
        };
        let load = silent().run("test", 7, Until::Count(100), op).await.expect("done");
        assert_eq!(load.count, 100);
        assert_eq!(seen.sorted(), (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn what_fails_ends_the_loop() {
        let op =
            |_, number| async move { if number == 3 { Err(CommandFailure::refused("x", "three")) } else { Ok(()) } };
        let failure = silent().run("test", 2, Until::Count(100), op).await.expect_err("failed");
        assert_eq!(failure.message, "three");
    }

    #[tokio::test]
    async fn of_nothing_there_are_no_figures() {
        let op = |_, _| async { Ok(()) };
        let elapsed = Until::Elapsed(Duration::ZERO);
        let failure = silent().run("test", 2, elapsed, op).await.expect_err("no operation ends in no time");
        assert!(failure.message.starts_with("test: nothing ended"), "{}", failure.message);
    }

    mod parking {
        use std::sync::Mutex;

        #[derive(Default)]
        pub(super) struct LoadSeen(Mutex<Vec<u64>>);

        impl LoadSeen {
            pub(super) fn note(&self, number: u64) {
                self.0.lock().expect("no panic").push(number);
            }

            pub(super) fn sorted(&self) -> Vec<u64> {
                let mut seen = self.0.lock().expect("no panic").clone();
                seen.sort_unstable();
                seen
            }
        }
    }
}
