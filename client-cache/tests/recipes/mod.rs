//! Recipes: their guarantees when parties come and go, are cut off, or cancel.

// Helpers may panic, as tests do.
#![allow(clippy::unwrap_used)]

mod barriers;
mod locks;
pub mod proxy;
mod registry;
mod semaphores;

use std::time::Duration;

use leasehold_client_cache::Client;

use crate::common::{Server, within};

const TERM: Duration = Duration::from_secs(10);

/// Waits until a node has this many children.
pub async fn until_children(client: &Client, at: &str, count: usize) {
    let mut checks = tokio::time::interval(Duration::from_millis(1));
    within(async {
        while client.children(at).await.unwrap().map_or(0, |children| children.names.len()) != count {
            checks.tick().await;
        }
    })
    .await;
}

async fn clients<const N: usize>(server: &Server) -> [Client; N] {
    let mut clients = Vec::new();
    for _ in 0..N {
        clients.push(server.client().await);
    }
    clients.try_into().unwrap()
}
