//! What the closed loop of all systems does: which request each task sends to which connection. The
//! loop itself is that of `leasehold bench`.
//!
//! Tasks are spread evenly over the connections.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use leasehold_bench::{Silent, Until};

/// Time limit of a request: slow requests are measured, not aborted.
const REQUEST_MAX: Duration = Duration::from_secs(60);

/// The step between keys. It is prime, so the reads visit all keys, unless their number is a
/// multiple of it.
pub(crate) const STRIDE: u64 = 7_919;

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

/// Runs a load with `inflight` requests in flight, over `nodes` nodes.
pub(crate) async fn run(
    lines: &Lines,
    load: Load,
    inflight: usize,
    nodes: u64,
    until: Until,
) -> Result<leasehold_bench::Load> {
    let lines = lines.clone();
    let request = move |task: usize, number: u64| {
        let (line, node) = (Arc::clone(&lines[task % lines.len()]), node(load, task, inflight, number, nodes));
        async move {
            let answer = tokio::time::timeout(REQUEST_MAX, line.request(load, node)).await;
            answer.with_context(|| format!("no answer in {REQUEST_MAX:?}"))?
        }
    };
    leasehold_bench::closed_loop(&Silent, "load", inflight, until, request).await
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
        run(&lines, Load::Fill, 7, 100, Until::Count(100)).await.expect("done");
        let mut seen = [one, other].map(|line| line.0.lock().expect("no panic").clone()).concat();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_request_that_fails_ends_the_loop_with_its_reason() {
        let lines: Lines = vec![Arc::new(Seen::default())];
        let error = run(&lines, Load::Fill, 3, 2_000, Until::Count(2_000)).await.expect_err("failed");
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
}
