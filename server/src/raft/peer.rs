//! The messages between replicas. [`PeerServer`](super::PeerServer) serves them.
//!
//! Raft's own messages are openraft's types. Each names the cluster. So a replica of another
//! cluster (a folder that was restored or mixed up) is refused, and gets the reason.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_protocol::volume::VolumeSettings;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};

use super::types::{
    TypeConfig,
    alias::{StoredMembership, Vote},
};
use crate::store::store_identity::ClusterId;

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

impl KnownMembers {
    pub(super) fn of(membership: &StoredMembership) -> Self {
        Self {
            entry: membership.log_id().map(|log_id| log_id.index),
            members: membership.nodes().map(|(id, node)| (*id, node.addr.clone())).collect(),
        }
    }
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
