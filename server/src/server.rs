//! A running replica.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::{Config, ConfigError},
    connections::Connections,
    core::Core,
    leading,
    raft::{self, Replica},
};

/// How long a graceful stop waits for connections to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A replica that listens. Dropping it without [`Server::stop`] is like a crash: nothing acknowledged is lost.
pub struct Server {
    core: Arc<Core>,
    replica: Replica,
    address: SocketAddr,
    tasks: TaskTracker,
    stop: CancellationToken,
    helpers: Vec<JoinHandle<()>>,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The data cannot be opened, or Raft cannot start on it.
    #[error(transparent)]
    Raft(#[from] raft::StartError),
}

impl Server {
    /// Starts a replica: opens its data, listens, and finds its cluster in the background.
    ///
    /// # Errors
    ///
    /// [`StartError`], with nothing left running.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let config = config.checked()?;
        let listener = TcpListener::bind(&config.listen).await;
        let listener = listener.map_err(|error| StartError::Listen { address: config.listen.clone(), error })?;
        let address = listener.local_addr();
        let address = address.map_err(|error| StartError::Listen { address: config.listen.clone(), error })?;
        let (core, proofs) = Core::new();
        let replica = Replica::start(config.replica(), Arc::clone(&core) as Arc<dyn raft::Machine>).await?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let connections =
            Connections { core: Arc::clone(&core), replica: replica.clone(), tasks: tasks.clone(), stop: stop.clone() };
        let helpers = vec![
            tokio::spawn(connections.accept_all(listener)),
            tokio::spawn(leading::follow_leaderships(Arc::clone(&core), replica.clone(), config.clone())),
            tokio::spawn(leading::propose_all(Arc::clone(&core), replica.clone())),
            tokio::spawn(leading::prove_all(Arc::clone(&core), replica.clone(), proofs)),
            tokio::spawn(leading::keep_time(Arc::clone(&core))),
        ];
        tracing::info!(replica = config.id, %address, "listening");
        Ok(Self { core, replica, address, tasks, stop, helpers })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it leads and answers.
    pub fn serves(&self) -> bool {
        self.core.serves()
    }

    /// Resolves when the replica can no longer go on, with the reason: its store failed, or Raft stopped.
    pub async fn failed(&self) -> Arc<str> {
        self.replica.fatal().await
    }

    /// Stops gracefully: hands leadership over, ends connections, flushes everything to the disk.
    ///
    /// # Errors
    ///
    /// The last write to the disk failed. The log has all that was acknowledged.
    pub async fn stop(self) -> std::io::Result<()> {
        self.replica.hand_over().await;
        self.core.follow(None);
        self.stop.cancel();
        self.tasks.close();
        // Whoever is slower is cut off: nothing that was acknowledged depends on it.
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
