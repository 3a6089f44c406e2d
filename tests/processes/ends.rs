//! When a watcher was notified that attached nodes were removed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold_client_cache::{ChangeReason, Client, EventKind, LeaseId, NodePath, WatchItem};

use crate::{common::soon, path, worker::boottime_ns};

/// The expired nodes that a watcher of `/n` was notified of, and when: in nanoseconds on the clock
/// by which leases are counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ends(Arc<Mutex<BTreeMap<NodePath, u64>>>);

/// A lease with an attached node.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) id: LeaseId,
    pub(crate) path: NodePath,
    /// When the client asked for it, and when it was answered.
    pub(crate) asked: u64,
    pub(crate) answered: u64,
}

impl Ends {
    /// Watches from now on.
    pub(crate) async fn watched_by(client: &Client) -> Self {
        let ends = Self::default();
        let mut watch = client.watch("/n").await.expect("the cluster serves");
        let told = ends.clone();
        tokio::spawn(async move {
            while let Ok(news) = watch.next().await {
                let at = boottime_ns();
                let WatchItem::Change(change) = news else { continue };
                let gone = change.events.iter().filter(|event| event.kind == EventKind::Delete);
                for event in gone.filter(|event| event.reason == ChangeReason::Expired) {
                    told.0.lock().expect("nobody panics").insert(event.path.clone(), at);
                }
            }
        });
        ends
    }

    /// True if the watcher was notified of the node's removal.
    pub(crate) fn has(&self, path: &NodePath) -> bool {
        self.0.lock().expect("nobody panics").contains_key(path)
    }

    /// Waits until the watcher is notified of the node's removal. Returns when it was.
    pub(crate) async fn of(&self, path: &NodePath) -> u64 {
        soon(&format!("{path} is gone"), || async { self.0.lock().expect("nobody panics").get(path).copied() }).await
    }
}

/// Grants a lease, and attaches a node to it.
pub(crate) async fn grant(client: &Client, at: &str, ttl: Duration) -> Granted {
    let asked = boottime_ns();
    let id = client.grant_lease(ttl).await.expect("the cluster serves");
    let (answered, path) = (boottime_ns(), path(at));
    client.put(&path, "here").lease(id).await.expect("the lease has only just begun");
    Granted { id, path, asked, answered }
}
