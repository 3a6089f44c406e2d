//! Key leases, and nodes that show that somebody lives.

// A helper fails as a test does.
#![allow(clippy::unwrap_used)]

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold_client_cache::{Attach, Client, LeaseId, NodePath, PutOptions};

use crate::common::within;

mod keeping;
mod many;
mod reading;
mod registration;

/// The server's patience with clocks, its ticks, and what a loaded machine adds to an end of a
/// lease.
const SLACK: Duration = Duration::from_secs(5);

/// How a node is put that goes with the lease.
fn with(id: LeaseId) -> PutOptions {
    PutOptions { attach: Attach::Lease(id), ..PutOptions::default() }
}

/// Asks again and again until it is so. Says when the last question was asked.
async fn asked_until<F: Future<Output = bool>>(mut is_so: impl FnMut() -> F) -> Instant {
    let mut looks = tokio::time::interval(Duration::from_millis(2));
    within(async {
        loop {
            looks.tick().await;
            let asked = Instant::now();
            if is_so().await {
                return asked;
            }
        }
    })
    .await
}

/// Waits until a server has removed the node. What goes with a lease goes soon after it, not with
/// it.
async fn gone(client: &Client, node: &NodePath) -> Instant {
    asked_until(|| async { client.get(node).await.unwrap().is_none() }).await
}
