//! How long writes fail after the leader is killed.
//!
//! Every few milliseconds a write begins at each of the other servers, whether or not earlier
//! writes were answered. The first answer counts. So it measures when the servers write again, not
//! the retries of a client.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use tokio::{task::JoinSet, time::MissedTickBehavior};

use crate::{
    closed_loop::{Lines, Load},
    system::Cluster,
};

/// How often a write begins.
const TRY_EVERY: Duration = Duration::from_millis(10);

/// Time limit of the failover.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Kills the leader. Returns the seconds until a write was acknowledged.
pub(crate) async fn first_write_s(cluster: &mut Cluster, nodes: u64) -> Result<f64> {
    let lines = cluster.survivors().await?;
    for (number, line) in (0..).zip(&lines) {
        line.request(Load::Write, number).await?;
    }
    cluster.kill_leader()?;
    first_answer_s(&lines, nodes).await
}

async fn first_answer_s(lines: &Lines, nodes: u64) -> Result<f64> {
    let (began, mut number) = (Instant::now(), 0);
    let mut tries = tokio::time::interval(TRY_EVERY);
    tries.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut writes = JoinSet::new();
    let mut last = None;
    while began.elapsed() < GIVE_UP_AFTER {
        tokio::select! {
            _ = tries.tick() => for line in lines {
                let (line, node) = (Arc::clone(line), number % nodes);
                writes.spawn(async move { line.request(Load::Write, node).await });
                number += 1;
            },
            Some(written) = writes.join_next() => match written? {
                Ok(()) => return Ok(began.elapsed().as_secs_f64()),
                Err(error) => last = Some(error),
            },
        }
    }
    bail!("no write was acknowledged within {GIVE_UP_AFTER:?} after the leader was killed: {last:?}")
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use futures::future::BoxFuture;

    use super::*;
    use crate::closed_loop::Line;

    /// A server that leaves the first writes unanswered, refuses some, and then accepts.
    struct Electing;

    impl Line for Electing {
        fn request(&self, _: Load, node: u64) -> BoxFuture<'_, Result<()>> {
            Box::pin(async move {
                match node {
                    0..3 => std::future::pending().await,
                    3..6 => bail!("no leader"),
                    _ => Ok(()),
                }
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn writes_without_an_answer_do_not_hold_up_later_ones() {
        let lines: Lines = vec![Arc::new(Electing), Arc::new(Electing)];
        let began = tokio::time::Instant::now();
        first_answer_s(&lines, 1_000).await.expect("answered");
        assert_eq!(began.elapsed(), TRY_EVERY * 3);
    }
}
