//! The closed loop of all systems: a fixed number of tasks with one request in flight each. The
//! next request begins when the previous one has ended.
//!
//! Tasks are spread evenly over the connections. A tenth of the measured time comes first as a
//! warm-up that is not counted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

/// The longest latency that is distinguished from longer ones.
const LATENCY_MAX_NS: u64 = 120_000_000_000;

/// Time limit of a request: slow requests are measured, not aborted.
const REQUEST_MAX: Duration = Duration::from_secs(60);

/// The step between keys. It is prime, so the reads visit all keys, unless their number is a
/// multiple of it.
const STRIDE: u64 = 7_919;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    /// Creates a node.
    Fill,
    /// Overwrites a value durably.
    Write,
    /// Reads the latest value, whichever client wrote it.
    Read,
    /// Reads the local copy of the server that is asked.
    LocalRead,
    /// Grants a lease and revokes it.
    Lease,
    /// Locks an uncontended name and unlocks it.
    Lock,
}

/// A connection to a server.
pub(crate) trait Line: Send + Sync {
    /// Sends one request for the node of this number and waits for the answer.
    fn request(&self, load: Load, node: u64) -> BoxFuture<'_, Result<()>>;

    /// Returns the leases of this connection, if other clients would have to wait for them.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

pub(crate) type Lines = Vec<Arc<dyn Line>>;

/// When a loop ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// After a warm-up of a tenth of this time, and then this time.
    Elapsed(Duration),
    /// After one request for each node.
    EachNode,
}

/// The result of a loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Outcome {
    fn new(latency: &Histogram<u64>, elapsed: Duration) -> Self {
        let ms = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
        Self { per_second: latency.len() as f64 / elapsed.as_secs_f64(), p50_ms: ms(0.5), p99_ms: ms(0.99) }
    }
}

/// Runs a load with `inflight` requests in flight, over `nodes` nodes.
pub(crate) async fn run(lines: &Lines, load: Load, inflight: usize, nodes: u64, until: Until) -> Result<Outcome> {
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let (from, to) = match until {
        Until::Elapsed(span) => (began + span / 10, Some(began + span / 10 + span)),
        Until::EachNode => (began, None),
    };
    let mut tasks = JoinSet::new();
    for task in 0..inflight {
        let (line, next) = (Arc::clone(&lines[task % lines.len()]), Arc::clone(&next));
        tasks.spawn(async move {
            let mut latency = histogram();
            loop {
                let (number, begin) = (next.fetch_add(1, Relaxed), Instant::now());
                if to.map_or(number >= nodes, |to| begin >= to) {
                    return Ok::<_, anyhow::Error>(latency);
                }
                let node = node(load, task, inflight, number, nodes);
                let answer = tokio::time::timeout(REQUEST_MAX, line.request(load, node)).await;
                answer.with_context(|| format!("no answer in {REQUEST_MAX:?}"))??;
                let end = Instant::now();
                if end >= from && to.is_none_or(|to| end < to) {
                    latency.saturating_record(u64::try_from((end - begin).as_nanos()).unwrap_or(u64::MAX));
                }
            }
        });
    }
    let mut latency = histogram();
    while let Some(task) = tasks.join_next().await {
        latency.add(task??)?;
    }
    Ok(Outcome::new(&latency, to.map_or_else(|| began.elapsed(), |to| to - from)))
}

/// The node of a request. Tasks that write or lock use different nodes, so that they do not wait
/// for each other.
fn node(load: Load, task: usize, inflight: usize, number: u64, nodes: u64) -> u64 {
    match load {
        Load::Fill | Load::Lease => number,
        Load::Write | Load::Lock => {
            let own = (nodes / inflight as u64).max(1);
            (task as u64 * own + number % own) % nodes
        }
        Load::Read | Load::LocalRead => number.wrapping_mul(STRIDE) % nodes,
    }
}

/// Records nanoseconds to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("constant bounds that hdrhistogram accepts")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Mutex};

    use anyhow::bail;

    use super::*;

    #[derive(Default)]
    struct Seen(Mutex<Vec<u64>>);

    impl Line for Seen {
        fn request(&self, _: Load, node: u64) -> BoxFuture<'_, Result<()>> {
            Box::pin(async move {
                self.0.lock().expect("no panic").push(node);
                if node == 1_000 { bail!("the disk is full") } else { Ok(()) }
            })
        }
    }

    #[tokio::test]
    async fn a_fill_makes_each_node_once_over_all_connections() {
        let (one, other) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let lines: Lines = vec![one.clone(), other.clone()];
        run(&lines, Load::Fill, 7, 100, Until::EachNode).await.expect("done");
        let mut seen = [one, other].map(|line| line.0.lock().expect("no panic").clone()).concat();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_request_that_fails_ends_the_loop_with_its_reason() {
        let lines: Lines = vec![Arc::new(Seen::default())];
        let error = run(&lines, Load::Fill, 3, 2_000, Until::EachNode).await.expect_err("failed");
        assert_eq!(error.to_string(), "the disk is full");
    }

    #[test]
    fn no_two_writers_write_the_same_node() {
        let of =
            |task| (0..5_000).map(move |number| node(Load::Write, task, 16, number, 1_000)).collect::<BTreeSet<_>>();
        let all: Vec<_> = (0..16).map(of).collect();
        assert_eq!(all.iter().map(BTreeSet::len).sum::<usize>(), all.iter().flatten().collect::<BTreeSet<_>>().len());
    }

    #[test]
    fn reads_go_through_all_nodes() {
        let read: BTreeSet<_> = (0..1_000).map(|number| node(Load::Read, 0, 1, number, 1_000)).collect();
        assert_eq!(read.len(), 1_000);
    }

    #[test]
    fn percentiles_are_in_milliseconds_and_rates_in_seconds() {
        let mut latency = histogram();
        for ms in 1..=100_u64 {
            latency.record(ms * 1_000_000).expect("in bounds");
        }
        let outcome = Outcome::new(&latency, Duration::from_secs(4));
        assert!((outcome.per_second - 25.0).abs() < 1e-9);
        assert!((outcome.p50_ms - 50.0).abs() < 0.1, "{outcome:?}");
        assert!((outcome.p99_ms - 99.0).abs() < 0.1, "{outcome:?}");
    }
}
