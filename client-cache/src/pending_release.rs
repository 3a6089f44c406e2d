//! Pending releases: of locks, of permits, of the exclusive mode of a lock, and of cancelled
//! requests. The servers may not have seen them yet, and still count what the client has released.
//!
//! Dropping a guard does not wait, and requests can overtake each other. So a client that drops a
//! lock and tries to lock the same node again could be refused because of its own old lock.
//! Therefore some requests wait here until the servers have confirmed the earlier releases of the
//! node: lock requests that do not queue, later changes of a lock, `Semaphore::try_acquire`, and
//! arrivals at barriers.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::Arc,
};

use leasehold_protocol::path::NodePath;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// All pending releases of one client.
#[derive(Debug, Clone, Default)]
pub(crate) struct PendingReleases(Arc<Mutex<ReleasesInFlight>>);

#[derive(Debug, Default)]
struct ReleasesInFlight {
    /// By node and number: a token that is cancelled when the release is confirmed.
    at: HashMap<NodePath, BTreeMap<u64, CancellationToken>>,
    last: u64,
}

/// A release that is pending until this is dropped.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    all: PendingReleases,
    path: NodePath,
    number: u64,
}

impl PendingReleases {
    /// Begins a pending release at a node.
    pub(crate) fn begin(&self, path: &NodePath) -> PendingRelease {
        let mut under_way = self.0.lock();
        under_way.last += 1;
        let number = under_way.last;
        under_way.at.entry(path.clone()).or_default().insert(number, CancellationToken::new());
        PendingRelease { all: self.clone(), path: path.clone(), number }
    }

    /// Waits until the releases that are pending at the node now are confirmed. Does not wait for
    /// later ones, by other users of this client.
    pub(crate) async fn wait(&self, path: &NodePath) {
        let under_way: Vec<_> = self.0.lock().at.get(path).into_iter().flat_map(BTreeMap::values).cloned().collect();
        for gone in under_way {
            gone.cancelled().await;
        }
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.all.0.lock().at.entry(self.path.clone()) {
            if let Some(gone) = entry.get_mut().remove(&self.number) {
                gone.cancel();
            }
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn request_waits_for_earlier_pending_releases_of_its_path() {
        let path = |text: &str| NodePath::parse(text).expect("valid");
        let releases = PendingReleases::default();
        let is_gone = |text: &str| releases.wait(&path(text)).now_or_never().is_some();
        assert!(is_gone("/a"));
        let (first, second) = (releases.begin(&path("/a")), releases.begin(&path("/a")));
        assert!(!is_gone("/a") && is_gone("/b") && is_gone("/a/b"));
        drop(first);
        assert!(!is_gone("/a"));
        let top = path("/a");
        let mut waiting = Box::pin(releases.wait(&top));
        assert!(waiting.as_mut().now_or_never().is_none());
        let later = releases.begin(&path("/a"));
        drop(second);
        assert!(waiting.now_or_never().is_some(), "it does not wait for what came after it");
        assert!(!is_gone("/a"));
        drop(later);
        assert!(is_gone("/a"));
        assert!(releases.0.lock().at.is_empty(), "nothing is kept of it");
    }
}
