//! A running replica.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admission::Admission,
    config::{ConfigError, ServerConfig},
    connections::Connections,
    core::ServerCore,
    leading, proposals,
    raft::{self, Replica},
};

/// How long a graceful stop waits until connections have ended.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A replica that listens. Dropping it without [`Server::stop`] is like a crash: no acknowledged
/// write is lost.
pub struct Server {
    core: Arc<ServerCore>,
    replica: Replica,
    address: SocketAddr,
    tasks: TaskTracker,
    stop: CancellationToken,
    helpers: Vec<JoinHandle<()>>,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address is in use, or belongs to another machine.
    #[error("listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The system does not report its limit of open files for this process.
    #[error("read the limit of open files: {0}")]
    Descriptors(std::io::Error),
    /// The data folder cannot be opened, or Raft cannot start on it.
    #[error(transparent)]
    Raft(#[from] raft::ReplicaStartError),
}

impl Server {
    /// Starts a replica: opens its data, listens, and finds its cluster in the background.
    ///
    /// # Errors
    ///
    /// [`StartError`]. Then nothing is left running.
    pub async fn start(config: ServerConfig) -> Result<Self, StartError> {
        let config = config.checked()?;
        let admission = Admission::of_this_process().map_err(StartError::Descriptors)?;
        let listener = TcpListener::bind(&config.listen).await;
        let listener = listener.map_err(|error| StartError::Listen { address: config.listen.clone(), error })?;
        let address = listener.local_addr();
        let address = address.map_err(|error| StartError::Listen { address: config.listen.clone(), error })?;
        let (core, proofs) = ServerCore::new();
        let replica = Replica::start(config.replica(), Arc::clone(&core) as Arc<dyn raft::Machine>).await?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let connections = Connections {
            core: Arc::clone(&core),
            replica: replica.clone(),
            tasks: tasks.clone(),
            stop: stop.clone(),
            admission,
        };
        let helpers = vec![
            tokio::spawn(connections.accept_all(listener)),
            tokio::spawn(leading::follow_leaderships(Arc::clone(&core), replica.clone(), config.clone())),
            tokio::spawn(proposals::propose_all(Arc::clone(&core), replica.clone())),
            tokio::spawn(leading::prove_all(Arc::clone(&core), replica.clone(), proofs)),
            tokio::spawn(leading::keep_time(Arc::clone(&core))),
        ];
        tracing::info!(replica = config.id, %address, "listening");
        Ok(Self { core, replica, address, tasks, stop, helpers })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether this replica leads and answers requests.
    pub fn is_serving(&self) -> bool {
        self.core.is_serving()
    }

    /// Resolves when the replica cannot continue, with the reason: its store failed, or Raft
    /// stopped.
    pub async fn failed(&self) -> Arc<str> {
        self.replica.fatal().await
    }

    /// Stops gracefully: transfers leadership, ends connections, and flushes everything to the
    /// disk.
    ///
    /// # Errors
    ///
    /// The last write to the disk failed. The log still has every acknowledged write.
    pub async fn stop(self) -> std::io::Result<()> {
        if let Err(error) = self.replica.transfer_leadership().await {
            tracing::warn!(%error, "stopping without a successor: the other replicas elect a leader by themselves");
        }
        self.core.become_follower(None);
        self.stop.cancel();
        self.tasks.close();
        // Slower connections are cut off. No acknowledged write depends on them.
        let _ = tokio::time::timeout(STOP_TIMEOUT, self.tasks.wait()).await;
        for helper in &self.helpers {
            helper.abort();
        }
        self.replica.clone().shutdown().await
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).field("core", &self.core).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        self.helpers.iter().for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod limits;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leasehold_protocol::message::{Body, Request, RequestHeader};

    use super::*;
    use crate::core::ConnectionId;

    /// The longest wait of any test, far beyond what the steps need.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Repeats `check` until it finds something.
    async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
        let checking = async {
            loop {
                if let Some(found) = check().await {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, checking).await.unwrap_or_else(|_| panic!("in vain: {what}"))
    }

    /// The configurations of two replicas.
    async fn two(dir: &std::path::Path) -> [ServerConfig; 2] {
        let listeners = [TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await];
        let address = |listener: &std::io::Result<TcpListener>| {
            listener.as_ref().expect("a port").local_addr().expect("an address").to_string()
        };
        let cluster: BTreeMap<u64, String> = (1..).zip(listeners.iter().map(address)).collect();
        [1, 2].map(|id| ServerConfig {
            id,
            data: dir.join(id.to_string()),
            listen: cluster[&id].clone(),
            cluster: cluster.clone(),
            ..ServerConfig::default()
        })
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn failed_leadership_transfer_redirects_clients_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let configs = two(dir.path()).await;
        let mut servers = Vec::new();
        for config in &configs {
            servers.push(Server::start(config.clone()).await.expect("starts"));
        }
        let leads = eventually("a leader", async || servers.iter().position(Server::is_serving)).await;
        let (other, leader) = (servers.remove(1 - leads), servers.remove(0));
        other.stop().await.expect("stops");
        let (epoch, ..) = leader.core.applied();
        let ended = leader.core.leaderships_ended();

        let asking = async {
            let (recalls, _recalled) = tokio::sync::mpsc::channel(1);
            loop {
                let open = Request { header: RequestHeader::default(), body: Body::Open { name: "test".to_owned() } };
                let answer = leader.core.request(open, ConnectionId(1), &recalls).await;
                assert!(answer.is_ok_and(|response| response.result.is_err()), "nobody else is there to agree");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let handed_over = tokio::select! {
            handed_over = leader.replica.transfer_leadership_to(configs[1 - leads].id) => handed_over,
            () = asking => unreachable!("it goes on"),
        };
        handed_over.expect_err("nobody is there");
        assert_eq!(*ended.borrow(), 1, "clients are sent away once");

        let other =
            eventually("its address is free", async || Server::start(configs[1 - leads].clone()).await.ok()).await;
        eventually("a leader", async || (leader.is_serving() || other.is_serving()).then_some(())).await;
        let serves = if leader.is_serving() { &leader } else { &other };
        assert!(serves.core.applied().0 > epoch);
        assert_eq!(*ended.borrow(), 1);
    }
}
