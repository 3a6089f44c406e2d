//! The messages between replicas, and the side that serves them.
//!
//! Raft's own messages are openraft's types. Each names the cluster. So a replica of another
//! cluster (a folder that was restored or mixed up) is refused, and gets the reason.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use futures::StreamExt;
use leasehold_protocol::volume::VolumeSettings;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};
use tarpc::{
    context::Context,
    server::{BaseChannel, Channel},
};

use super::{
    node::ReplicaNode,
    types::{
        TypeConfig,
        alias::{Raft, Vote},
    },
};
use crate::clock;
use crate::store::store_identity::ClusterId;

/// The most calls of one peer that run at once. Further calls wait in its connection. Our own peers
/// have a handful.
const CALLS_MAX: usize = 256;

/// Calls from one replica to another. A failed call may or may not have been executed.
#[tarpc::service]
pub trait Peer {
    /// Raft's AppendEntries, heartbeats among them.
    async fn append(
        cluster: ClusterId,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> Result<AppendEntriesResponse<TypeConfig>, PeerRefusal>;

    /// Raft's RequestVote.
    async fn vote(
        cluster: ClusterId,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, PeerRefusal>;

    /// Whether a vote would be granted. Changes nothing.
    async fn pre_vote(
        cluster: ClusterId,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, PeerRefusal>;

    /// From the leader: `request` names the replica that shall campaign at once.
    async fn transfer_leader(
        cluster: ClusterId,
        request: TransferLeaderRequest<TypeConfig>,
    ) -> Result<TransferLeaderResponse<TypeConfig>, PeerRefusal>;

    /// From the leader: the next piece of a snapshot. The piece at offset 0 begins a transfer and
    /// ends any other. A piece that comes twice in a row is taken once.
    async fn snapshot_piece(cluster: ClusterId, transfer: u64, offset: u64, piece: Bytes) -> Result<(), PeerRefusal>;

    /// From the leader, after all pieces: check the snapshot and install it. The leader repeats the
    /// call until the installation is done. The first call begins it, and it continues even if no
    /// call follows. After that, the answer stays the same.
    async fn snapshot_install(
        cluster: ClusterId,
        vote: Vote,
        transfer: u64,
        length: u64,
    ) -> Result<Installation, PeerRefusal>;

    /// From an empty replica: which replica are you, and what is your stage?
    async fn bootstrap_state() -> PeerReport;

    /// From the founder to empty replicas: take part in this bootstrap. A repeated call is accepted
    /// again.
    async fn bootstrap(founding: Bootstrap) -> Result<(), PeerRefusal>;

    /// From an empty replica to the leader: let me rejoin. The leader answers when the replica may
    /// start, see [`bootstrap`](super::bootstrap), and answers a repeated call again.
    async fn rejoin(newcomer: u64, address: String, life: u64) -> Result<Admitted, MembershipRefusal>;

    /// From an operator to the leader: a stopped replica returns at another address, with an empty
    /// store. A repeated call is answered again. See [`replacement`](super::replacement).
    async fn replace(replica: u64, address: String) -> Result<(), MembershipRefusal>;

    /// From a rejoining replica to the leader: make me a voter. The replica repeats the call until
    /// it is one.
    async fn join(cluster: ClusterId, newcomer: u64, address: String) -> Result<Joining, MembershipRefusal>;
}

/// Why a peer refused a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PeerRefusal {
    /// It does not take part in any cluster yet.
    #[error("replica {replica}: not a member of a cluster yet")]
    NotStarted {
        /// The replica that refuses.
        replica: u64,
    },
    /// It takes part in another cluster.
    #[error("replica {replica}: belongs to cluster {got}; expected cluster {expected}")]
    OtherCluster {
        /// The replica that refuses.
        replica: u64,
        /// Its cluster.
        got: ClusterId,
        /// The cluster that was named.
        expected: ClusterId,
    },
    /// It has stopped, or its store failed.
    #[error("replica {replica}: stopped: {reason}")]
    Stopped {
        /// The replica that refuses.
        replica: u64,
        /// The reason.
        reason: String,
    },
    /// A piece of a snapshot does not continue the transfer, which must start again.
    #[error("snapshot transfer {transfer}: {got} bytes received; expected {expected}")]
    Piece {
        /// The transfer.
        transfer: u64,
        /// The number of bytes that have arrived.
        got: u64,
        /// The offset of the piece.
        expected: u64,
    },
    /// A snapshot was not accepted.
    #[error("{reason}")]
    Snapshot {
        /// The reason.
        reason: String,
    },
    /// The configurations of two members contradict each other.
    #[error("replica {replica}: configured with {got}; expected {expected}")]
    Configuration {
        /// The replica that refuses.
        replica: u64,
        /// Its configuration.
        got: String,
        /// The other replica's configuration.
        expected: String,
    },
}

/// A replica's report about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its id.
    pub replica: u64,
    /// The members that it is configured with.
    pub members: BTreeMap<u64, String>,
    /// The root volume that it is configured with.
    pub root: VolumeSettings,
    /// Its stage.
    pub stage: ReplicaStage,
}

/// How far a replica has come into a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ReplicaStage {
    /// Its store is empty, and it does not take part.
    Empty {
        /// Distinguishes the successive stores of one replica.
        store_id: u64,
    },
    /// It has accepted a bootstrap, which is not complete.
    Bootstrapping {
        /// The cluster.
        cluster: ClusterId,
    },
    /// It takes part.
    Started {
        /// The cluster.
        cluster: ClusterId,
        /// The leader and its address, if known.
        leader: Option<(u64, String)>,
        /// The members that it knows.
        known: KnownMembers,
    },
}

/// The latest committed members that a replica knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownMembers {
    /// The index of the membership's entry; `None` if the replica knows none.
    pub entry: Option<u64>,
    /// All members with their addresses, learners too.
    pub members: BTreeMap<u64, String>,
}

/// A cluster that is being bootstrapped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// Its name.
    pub cluster: ClusterId,
    /// All members.
    pub members: BTreeMap<u64, String>,
    /// The root volume.
    pub root: VolumeSettings,
}

/// Why a replica did not change the membership.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipRefusal {
    /// Another replica leads, or none.
    NotLeader {
        /// The leader and its address, if known.
        leader: Option<(u64, String)>,
    },
    /// Not possible now. Ask again.
    Retry {
        /// The reason.
        reason: String,
    },
    /// Not possible with this configuration. Nothing was changed.
    Refused {
        /// The reason.
        reason: String,
    },
}

/// The answer to an empty replica that may start. Its earlier votes and entries no longer count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Admitted {
    /// The cluster.
    pub cluster: ClusterId,
    /// The state before the first entry.
    pub root: VolumeSettings,
    /// It must not vote below this vote.
    pub vote_floor: Vote,
}

/// The progress of a replica that wants to become a voter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Joining {
    /// It is a voter.
    Voter,
    /// It is catching up. Ask again.
    CatchingUp {
        /// The index of the last entry that it is known to have.
        matched: Option<u64>,
        /// The index of the leader's last entry.
        last: Option<u64>,
    },
}

/// The progress of a snapshot's installation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Installation {
    /// The receiver is still working on it. Ask again.
    UnderWay,
    /// It is installed, or Raft rejected it.
    Done(SnapshotResponse<TypeConfig>),
}

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

    pub(super) fn raft(&self, cluster: ClusterId) -> Result<Raft, PeerRefusal> {
        self.node.raft_of(cluster)
    }

    pub(super) fn stopped(&self, error: impl std::fmt::Display) -> PeerRefusal {
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
