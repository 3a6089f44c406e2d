//! What replicas say to each other, and the side that listens.
//!
//! Raft's own messages are openraft's types. Each names the cluster, so that a replica of another
//! founding (a directory that was restored or mixed up) is told so instead of being believed.

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

/// Calls of one peer that are carried out at once; more wait in its connection. A peer of ours has
/// a handful.
const CALLS_MAX: usize = 256;

/// From one replica to another. If a call fails, it may or may not have been carried out.
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

    /// Whether a vote would be granted; changes nothing.
    async fn pre_vote(
        cluster: ClusterId,
        request: VoteRequest<TypeConfig>,
    ) -> Result<VoteResponse<TypeConfig>, PeerRefusal>;

    /// The leader wants `request`'s target to campaign at once.
    async fn transfer_leader(
        cluster: ClusterId,
        request: TransferLeaderRequest<TypeConfig>,
    ) -> Result<TransferLeaderResponse<TypeConfig>, PeerRefusal>;

    /// The next piece of a snapshot. The first piece, at offset 0, begins a transfer and ends any
    /// other. Twice in a row: taken once.
    async fn snapshot_piece(cluster: ClusterId, transfer: u64, offset: u64, piece: Bytes) -> Result<(), PeerRefusal>;

    /// All pieces have been sent: check the snapshot, and install it. Asked until it is done: who
    /// is asked for the first time begins, and goes on whether it is asked again or not. Once it is
    /// done, the answer stays the same.
    async fn snapshot_install(
        cluster: ClusterId,
        vote: Vote,
        transfer: u64,
        length: u64,
    ) -> Result<Installation, PeerRefusal>;

    /// Who are you, and where do you stand? Asked by replicas that are empty.
    async fn bootstrap_state() -> PeerReport;

    /// From the founder to replicas that are empty: take part in this founding. Twice: accepted
    /// twice.
    async fn bootstrap(founding: Bootstrap) -> Result<(), PeerRefusal>;

    /// From an empty replica to the leader: let me in again. Answered when it may start, see
    /// [`bootstrap`](super::bootstrap). Twice: answered twice.
    async fn rejoin(newcomer: u64, address: String, life: u64) -> Result<Admitted, MembershipRefusal>;

    /// From an operator to the leader: a replica that has stopped comes back at another address,
    /// with an empty store. Twice: answered twice. See [`replacement`](super::replacement).
    async fn replace(replica: u64, address: String) -> Result<(), MembershipRefusal>;

    /// From a replica that has been let in to the leader: I want to be a voter. Asked until it is
    /// one.
    async fn join(cluster: ClusterId, newcomer: u64, address: String) -> Result<Joining, MembershipRefusal>;
}

/// Why a peer did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PeerRefusal {
    /// It does not take part in any cluster yet.
    #[error("replica {replica} takes part in no cluster yet")]
    NotStarted {
        /// Who says so.
        replica: u64,
    },
    /// It takes part in another cluster.
    #[error("replica {replica} belongs to cluster {got}: expected {expected}")]
    OtherCluster {
        /// Who says so.
        replica: u64,
        /// Its cluster.
        got: ClusterId,
        /// The cluster that was named.
        expected: ClusterId,
    },
    /// It is about to end.
    #[error("replica {replica} has stopped: {reason}")]
    Stopped {
        /// Who says so.
        replica: u64,
        /// Why.
        reason: String,
    },
    /// A piece of a snapshot is out of its place: the transfer has to begin again.
    #[error("the snapshot has {got} bytes of transfer {transfer}: expected {expected}")]
    Piece {
        /// The transfer.
        transfer: u64,
        /// What has arrived.
        got: u64,
        /// Where the piece would begin.
        expected: u64,
    },
    /// A snapshot was not accepted.
    #[error("{reason}")]
    Snapshot {
        /// Why.
        reason: String,
    },
    /// The configurations of two members contradict each other.
    #[error("replica {replica} is configured with {got}: expected {expected}")]
    Configuration {
        /// Who says so.
        replica: u64,
        /// Its configuration.
        got: String,
        /// The other's.
        expected: String,
    },
}

/// What a replica says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its id.
    pub replica: u64,
    /// The members that it is configured with.
    pub members: BTreeMap<u64, String>,
    /// The root volume that it is configured with.
    pub root: VolumeSettings,
    /// Where it stands.
    pub stage: ReplicaStage,
}

/// Where a replica stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ReplicaStage {
    /// Its store is empty, and it does not take part.
    Empty {
        /// Distinguishes its lives.
        store_id: u64,
    },
    /// It has accepted a founding, and nothing has come of that yet.
    Bootstrapping {
        /// The cluster.
        cluster: ClusterId,
    },
    /// It takes part.
    Started {
        /// The cluster.
        cluster: ClusterId,
        /// The leader and where it listens, if known.
        leader: Option<(u64, String)>,
        /// The members that it knows.
        known: KnownMembers,
    },
}

/// The latest committed members that a replica knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownMembers {
    /// The index of the entry that made them so; none if it knows none.
    pub entry: Option<u64>,
    /// All members, learners too, and where they listen.
    pub members: BTreeMap<u64, String>,
}

/// A cluster that is being founded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// Its name.
    pub cluster: ClusterId,
    /// All members.
    pub members: BTreeMap<u64, String>,
    /// The root volume.
    pub root: VolumeSettings,
}

/// Why a replica that was taken for the leader has not changed the membership as it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipRefusal {
    /// Somebody else leads.
    NotLeader {
        /// The leader and where it listens, if known.
        leader: Option<(u64, String)>,
    },
    /// Not now: ask again.
    Retry {
        /// Why.
        reason: String,
    },
    /// Never, as things are configured. Nothing was changed.
    Refused {
        /// Why.
        reason: String,
    },
}

/// What an empty replica is told when it may start: it counts nowhere, and everybody who matters
/// knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Admitted {
    /// The cluster.
    pub cluster: ClusterId,
    /// The state before the first entry.
    pub root: VolumeSettings,
    /// It must not vote below this.
    pub vote_floor: Vote,
}

/// How far a replica that wants to be a voter is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Joining {
    /// It is one.
    Voter,
    /// It is catching up: ask again.
    CatchingUp {
        /// The last entry that it is known to have.
        matched: Option<u64>,
        /// The last entry of the leader.
        last: Option<u64>,
    },
}

/// How far the installation of a snapshot is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Installation {
    /// The receiver is at work on it: ask again.
    UnderWay,
    /// It is installed, or Raft did not want it.
    Done(SnapshotResponse<TypeConfig>),
}

/// The side that listens. Clones are the same.
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
    /// Requests begin in the order in which they arrive, which keeps a leader's stream of entries
    /// in order; they are carried out concurrently.
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
        // Not to be left half-way when the founder hangs up.
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
        // Not to be left half-way when the operator hangs up.
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
