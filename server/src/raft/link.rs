//! One connection to one peer, opened on demand and reopened when it breaks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt;
use parking_lot::Mutex;
use tarpc::{client::RpcError, context};

use super::peer::{PeerClient, PeerRefusal, PeerReport};

/// The longest time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// After this many timeouts in a row, the connection is dropped. After a partition, a new
/// connection works long before the retransmissions of the old one.
const SILENT_CALLS_MAX: u32 = 3;
/// The longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a call to a peer failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection could not be opened.
    #[error(transparent)]
    Connect(#[from] leasehold_wire::DialError),
    /// The connection broke, or no answer came in time.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The peer refused.
    #[error(transparent)]
    Refused(#[from] PeerRefusal),
}

/// A connection to one address.
#[derive(Clone)]
pub(super) struct PeerLink {
    address: Arc<str>,
    current: Arc<Mutex<Current>>,
}

#[derive(Default)]
struct Current {
    client: Option<PeerClient>,
    silent: u32,
}

impl PeerLink {
    pub(super) fn new(address: &str) -> Self {
        Self { address: address.into(), current: Arc::default() }
    }

    pub(super) async fn client(&self) -> Result<PeerClient, CallError> {
        if let Some(client) = self.current.lock().client.clone() {
            return Ok(client);
        }
        let stream = leasehold_wire::connect(&self.address, leasehold_wire::Role::Peer, CONNECT_TIMEOUT).await?.stream;
        let transport = leasehold_wire::peer_transport(stream);
        let tarpc::client::NewClient { client, dispatch } =
            PeerClient::new(tarpc::client::Config::default(), transport);
        tokio::spawn(dispatch.map(|ended| {
            if let Err(error) = ended {
                tracing::debug!(%error, "the connection to a peer broke");
            }
        }));
        *self.current.lock() = Current { client: Some(client.clone()), silent: 0 };
        Ok(client)
    }

    /// Records how a call ended. Drops the connection if it broke, or is silent.
    pub(super) fn note<T>(&self, result: Result<T, RpcError>) -> Result<T, RpcError> {
        let mut current = self.current.lock();
        match &result {
            Ok(_) | Err(RpcError::Server(_)) => current.silent = 0,
            Err(RpcError::DeadlineExceeded) => {
                current.silent += 1;
                if current.silent >= SILENT_CALLS_MAX {
                    *current = Current::default();
                }
            }
            Err(_) => *current = Current::default(),
        }
        drop(current);
        result
    }

    /// Calls the peer.
    pub(super) async fn call<T, F>(
        &self,
        within: Duration,
        call: impl FnOnce(PeerClient, context::Context) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, RpcError>>,
    {
        let client = self.client().await?;
        Ok(self.note(call(client, until(within)).await)?)
    }
}

/// A context whose deadline is this far away.
pub(super) fn until(within: Duration) -> context::Context {
    let mut context = context::current();
    context.deadline = Instant::now() + within;
    context
}

/// Asks a member for its stage.
pub(super) async fn ask(address: &str) -> Result<PeerReport, CallError> {
    let link = PeerLink::new(address);
    let asked = link.call(ANSWER_TIMEOUT, |client, context| async move { client.bootstrap_state(context).await });
    tokio::time::timeout(ANSWER_TIMEOUT, asked).await.unwrap_or(Err(CallError::Rpc(RpcError::DeadlineExceeded)))
}
