//! The side that serves the calls of other replicas.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use tarpc::{
    context::Context,
    server::{BaseChannel, Channel},
};
use tokio::sync::watch;

use super::{
    incoming::{Incoming, InstallOutcome, Installing, failed},
    machine::Raft,
    node::ReplicaNode,
    peer::{Admitted, Bootstrap, Installation, Joining, MembershipRefusal, Peer, PeerRefusal, PeerReport},
    types::{TypeConfig, alias::Vote},
};
use crate::{
    clock,
    store::{
        snapshot::{RaftSnapshot, SnapshotFile},
        store_identity::ClusterId,
    },
};

/// The most calls of one peer that run at once. Further calls wait in its connection. Our own peers
/// have a handful.
const CALLS_MAX: usize = 256;

/// The interval at which the receiver answers that an installation is still in progress. Far
/// shorter than any [`snapshot_stall`](super::ReplicaConfig::snapshot_stall).
const INSTALLATION_ANSWER: Duration = Duration::from_millis(100);

/// The side that serves peers' calls. Clones are the same server.
#[derive(Clone)]
pub struct PeerServer {
    pub(super) node: Arc<ReplicaNode>,
}

impl PeerServer {
    pub(super) fn new(node: Arc<ReplicaNode>) -> Self {
        Self { node }
    }

    /// Serves one connection until it ends.
    ///
    /// Requests begin in the order of their arrival, which keeps a leader's stream of entries in
    /// order. They run concurrently.
    pub async fn serve_connection(
        self,
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    ) {
        let transport = leasehold_wire::peer_transport(stream);
        let requests = BaseChannel::with_defaults(transport).execute(self.serve());
        requests.for_each_concurrent(CALLS_MAX, |request| request).await;
    }

    fn raft(&self, cluster: ClusterId) -> Result<Raft, PeerRefusal> {
        self.node.raft_of(cluster)
    }

    fn stopped(&self, error: impl std::fmt::Display) -> PeerRefusal {
        PeerRefusal::Stopped { replica: self.node.config.id, reason: error.to_string() }
    }
}

impl Peer for PeerServer {
    async fn append(
        self,
        _: Context,
        cluster: ClusterId,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> Result<AppendEntriesResponse<TypeConfig>, PeerRefusal> {
        let _part = self.node.cluster_switch_lock.read().await;
        let raft = self.raft(cluster)?;
        self.node.messages.fetch_add(1, Ordering::Relaxed);
        let message = self.node.heard.lock().arrived(&request, clock::now());
        let response = raft.append_entries(request).await.map_err(|error| self.stopped(error))?;
        self.node.heard.lock().answered(message, &response);
        Ok(response)
    }

    async fn vote(
        self,
        _: Context,
        cluster: ClusterId,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, PeerRefusal> {
        let _part = self.node.cluster_switch_lock.read().await;
        self.raft(cluster)?.vote(request).await.map_err(|error| self.stopped(error))
    }

    async fn pre_vote(
        self,
        _: Context,
        cluster: ClusterId,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, PeerRefusal> {
        self.raft(cluster)?.pre_vote(request).await.map_err(|error| self.stopped(error))
    }

    async fn transfer_leader(
        self,
        _: Context,
        cluster: ClusterId,
        request: TransferLeaderRequest<TypeConfig>,
    ) -> Result<TransferLeaderResponse<TypeConfig>, PeerRefusal> {
        self.raft(cluster)?.handle_transfer_leader(request).await.map_err(|error| self.stopped(error))
    }

    async fn snapshot_piece(
        self,
        _: Context,
        cluster: ClusterId,
        transfer: u64,
        offset: u64,
        piece: Bytes,
    ) -> Result<(), PeerRefusal> {
        self.raft(cluster)?;
        let this = self.clone();
        let received = tokio::task::spawn_blocking(move || this.receive(transfer, offset, &piece)).await;
        received.map_err(|error| self.stopped(error))?
    }

    async fn snapshot_install(
        self,
        _: Context,
        cluster: ClusterId,
        vote: Vote,
        transfer: u64,
        length: u64,
    ) -> Result<Installation, PeerRefusal> {
        self.raft(cluster)?;
        self.installation(cluster, vote, transfer, length).await
    }

    async fn bootstrap_state(self, _: Context) -> PeerReport {
        self.node.report()
    }

    async fn bootstrap(self, _: Context, founding: Bootstrap) -> Result<(), PeerRefusal> {
        // In a task of its own, so that it is completed even if the founder disconnects.
        let node = Arc::clone(&self.node);
        let accepted = tokio::spawn(async move { node.accept_bootstrap(founding).await }).await;
        accepted.map_err(|error| self.stopped(error))?
    }

    async fn rejoin(
        self,
        _: Context,
        newcomer: u64,
        address: String,
        life: u64,
    ) -> Result<Admitted, MembershipRefusal> {
        let node = Arc::clone(&self.node);
        let answer = tokio::spawn(async move { node.rejoin(newcomer, address, life).await }).await;
        answer.unwrap_or_else(|error| Err(MembershipRefusal::Retry { reason: error.to_string() }))
    }

    async fn replace(self, _: Context, replica: u64, address: String) -> Result<(), MembershipRefusal> {
        // In a task of its own, so that it is completed even if the operator disconnects.
        let node = Arc::clone(&self.node);
        let answer = tokio::spawn(async move { node.replace(replica, address).await }).await;
        answer.unwrap_or_else(|error| Err(MembershipRefusal::Retry { reason: error.to_string() }))
    }

    async fn join(
        self,
        _: Context,
        cluster: ClusterId,
        newcomer: u64,
        address: String,
    ) -> Result<Joining, MembershipRefusal> {
        let node = Arc::clone(&self.node);
        let answer = tokio::spawn(async move { node.join(cluster, newcomer, address).await }).await;
        answer.unwrap_or_else(|error| Err(MembershipRefusal::Retry { reason: error.to_string() }))
    }
}

/// The receiver of a snapshot: it writes the pieces into a file, then installs the file. An
/// installation begins once for each transfer. It continues even if its sender stops asking.
impl PeerServer {
    fn receive(&self, transfer: u64, offset: u64, piece: &[u8]) -> Result<(), PeerRefusal> {
        let _directory = self.node.directory().map_err(failed)?;
        let mut incoming = self.node.incoming.lock();
        if offset == 0 {
            let file = SnapshotFile::create(&self.node.incoming_path(), self.node.poison.clone()).map_err(failed)?;
            *incoming = Some(Incoming::new(transfer, file));
        }
        let missing = || PeerRefusal::Piece { transfer, got: 0, expected: offset };
        incoming.as_mut().ok_or_else(missing)?.append(transfer, offset, piece)
    }

    fn received(&self, transfer: u64, length: u64) -> Result<RaftSnapshot, PeerRefusal> {
        let whole = self.node.incoming.lock().take_if(|incoming| incoming.is_whole(transfer, length));
        whole.ok_or(PeerRefusal::Piece { transfer, got: 0, expected: length })?.check()
    }

    /// Begins the installation of a transfer if it has not begun, and reports its progress.
    async fn installation(
        &self,
        cluster: ClusterId,
        vote: Vote,
        transfer: u64,
        length: u64,
    ) -> Result<Installation, PeerRefusal> {
        let mut outcome = self.installing(cluster, vote, transfer, length);
        let done = match tokio::time::timeout(INSTALLATION_ANSWER, outcome.wait_for(Option::is_some)).await {
            Err(_) => return Ok(Installation::UnderWay),
            Ok(done) => done.map_err(|error| self.stopped(error))?.clone(),
        };
        done.unwrap_or_else(|| Err(self.stopped("the installation has no outcome"))).map(Installation::Done)
    }

    /// The outcome of a transfer's installation, which begins now if it has not begun.
    fn installing(
        &self,
        cluster: ClusterId,
        vote: Vote,
        transfer: u64,
        length: u64,
    ) -> watch::Receiver<InstallOutcome> {
        let mut installing = self.node.installing.lock();
        if let Some(outcome) = installing.as_ref().and_then(|installing| installing.outcome_of(transfer)) {
            return outcome;
        }
        let (begun, done) = Installing::new(transfer);
        *installing = Some(begun);
        let outcome = done.subscribe();
        let this = self.clone();
        tokio::spawn(async move {
            let installed = this.install(cluster, vote, transfer, length).await;
            done.send_replace(Some(installed));
        });
        outcome
    }

    async fn install(
        &self,
        cluster: ClusterId,
        vote: Vote,
        transfer: u64,
        length: u64,
    ) -> Result<SnapshotResponse<TypeConfig>, PeerRefusal> {
        let this = self.clone();
        let snapshot = tokio::task::spawn_blocking(move || this.received(transfer, length)).await;
        let snapshot = snapshot.map_err(|error| self.stopped(error))??;
        let _part = self.node.cluster_switch_lock.read().await;
        let raft = self.raft(cluster)?;
        self.node.heard.lock().forget();
        raft.install_full_snapshot(vote, snapshot).await.map_err(|error| self.stopped(error))
    }
}
