//! Reads of attached nodes from memory: never stale when the lease ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use leasehold_client_cache::{Client, Content, LeaseId, NodePath};

use super::gone;
use crate::common::{Server, path, until, within};

const TTL: Duration = Duration::from_secs(1);
/// How many reads after the end of a lease are checked.
const READS_AFTER: u64 = 1_000;
const REVOCATIONS: usize = 10;

/// Reads a node from memory, again and again.
struct Reader {
    /// Whether a server has reported that the node is gone.
    is_gone: Arc<AtomicBool>,
    hits: Arc<AtomicU64>,
    reads_after: Arc<AtomicU64>,
    thread: thread::JoinHandle<Option<String>>,
}

impl Reader {
    /// Reads until it has read often enough after the end. Its thread returns the data if a late
    /// read found any.
    fn start(client: Client, node: NodePath) -> Self {
        let is_gone = Arc::new(AtomicBool::new(false));
        let (hits, reads_after) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let shared = (Arc::clone(&is_gone), Arc::clone(&hits), Arc::clone(&reads_after));
        let thread = thread::spawn(move || {
            let (is_gone, hits, reads_after) = shared;
            while reads_after.load(SeqCst) < READS_AFTER {
                // Loaded before this read begins.
                let was_gone = is_gone.load(SeqCst);
                let copy = client.cached(&node);
                if let Some(Content::Data(Some(data))) = copy.as_deref() {
                    hits.fetch_add(1, SeqCst);
                    if was_gone {
                        return Some(format!("{data:?}"));
                    }
                }
                reads_after.fetch_add(u64::from(was_gone), SeqCst);
            }
            None
        });
        Self { is_gone, hits, reads_after, thread }
    }

    async fn has_hits(&self, count: u64) {
        until(|| self.hits.load(SeqCst) >= count || self.thread.is_finished()).await;
    }

    async fn finish(self) {
        self.is_gone.store(true, SeqCst);
        until(|| self.thread.is_finished()).await;
        assert_eq!(self.thread.join().unwrap(), None, "read from memory though it is gone");
        assert!(self.reads_after.load(SeqCst) >= READS_AFTER);
    }
}

async fn node_with_lease(server: &Server, node: &NodePath) -> (Client, Client, LeaseId) {
    let (writer, reader) = (server.client().await, server.client().await);
    let id = writer.grant_lease(TTL).await.unwrap();
    writer.put(node, "alive").lease(id).await.unwrap();
    assert!(reader.get(node).await.unwrap().is_some());
    (writer, reader, id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_copy_is_read_once_its_lease_has_ended_by_itself() {
    let server = Server::start(Duration::from_secs(10)).await;
    let node = path("/services/web");
    let (writer, reading, id) = node_with_lease(&server, &node).await;
    let reader = Reader::start(reading.clone(), node.clone());
    reader.has_hits(1_000).await;
    gone(&writer, &node).await;
    reader.finish().await;
    assert_eq!(writer.lease(id).await.unwrap(), None);
    assert_eq!(reading.get(&node).await.unwrap(), None);
    assert_eq!(reading.children("/services").await.unwrap().unwrap().names, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_copy_is_read_once_its_lease_was_revoked() {
    let server = Server::start(Duration::from_secs(10)).await;
    let node = path("/services/web");
    for _ in 0..REVOCATIONS {
        let (writer, reading, id) = node_with_lease(&server, &node).await;
        let reader = Reader::start(reading.clone(), node.clone());
        reader.has_hits(100).await;
        within(writer.revoke_lease(id)).await.unwrap();
        reader.finish().await;
        assert_eq!(reading.get(&node).await.unwrap(), None);
        reading.close().await;
        writer.close().await;
    }
}
