//! Key leases and service registrations.

// Helpers may panic, as tests do.
#![allow(clippy::unwrap_used)]

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold_client_cache::{Client, NodePath};

use crate::common::within;

mod attached_reads;
mod many;
mod names;
mod registration;
mod renewed;

/// How late a lease may end: skew margin, ticks, and the delays of a loaded machine.
const SLACK: Duration = Duration::from_secs(5);

/// Attaches a node to the lease.
/// Polls until `is_so` is true. Returns when the last request began.
async fn asked_until<F: Future<Output = bool>>(mut is_so: impl FnMut() -> F) -> Instant {
    let mut checks = tokio::time::interval(Duration::from_millis(2));
    within(async {
        loop {
            checks.tick().await;
            let asked = Instant::now();
            if is_so().await {
                return asked;
            }
        }
    })
    .await
}

/// Waits until the servers have removed a node. That is soon after its lease has ended, not at
/// once.
async fn gone(client: &Client, node: &NodePath) -> Instant {
    asked_until(|| async { client.get(node).await.unwrap().is_none() }).await
}
