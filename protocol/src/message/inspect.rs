//! What people may look at. Nothing depends on it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    change::ChangeReason,
    drift::Excess,
    id::{Epoch, LeaseId, LockId, Revision, SessionId, Token, VolumeGeneration},
    lock::LockMode,
    object::{NodeOwner, Object},
    path::NodePath,
    volume::VolumeSettings,
};

/// What can be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Inspect {
    /// Which sessions hold leases on the objects at `path`, with what remains. From the leader.
    Holders {
        /// The node.
        path: NodePath,
    },
    /// What writes of `path` wait for right now. From the leader.
    PendingWrites {
        /// The node.
        path: NodePath,
    },
    /// Which reads of `path` wait for write leases right now, and lists that begin there. From the
    /// leader.
    BlockedReads {
        /// The node.
        path: NodePath,
    },
    /// The volumes at and below `path`. From the leader.
    Volumes {
        /// The top.
        path: NodePath,
    },
    /// A key lease, with what remains of it and some of its nodes. From the leader.
    Lease {
        /// The lease.
        id: LeaseId,
        /// Whether nodes are wanted: those that come after this path, or from the first on.
        keys_after: Option<NodesAfter>,
    },
    /// The key leases whose names come after one, in order. From the leader.
    Leases {
        /// The last that is known already.
        after: Option<LeaseId>,
    },
    /// The members, the leader, indexes. From any server.
    Cluster,
    /// The holds on a node, those that are held and those that wait. From the leader.
    Locks {
        /// The node.
        path: NodePath,
    },
    /// The nodes at and below `path` that go with leases, or did: who is alive. In the order of
    /// paths. From the leader.
    Services {
        /// The top.
        path: NodePath,
        /// Up to where they are known already.
        after: Option<NodePath>,
    },
}

/// Some of the services below a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServicePage {
    /// They, in the order of paths.
    pub services: Vec<ServiceInfo>,
    /// These are all up to this path, after which the next are to be asked for; there may be none
    /// yet. None: there are no more.
    pub through: Option<NodePath>,
}

/// A node that goes with a lease, or did, for people: by it a service shows that it lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServiceInfo {
    /// The node.
    pub path: NodePath,
    /// What it goes with, or did. None if that is not known any more.
    pub owner: Option<NodeOwner>,
    /// What the session calls itself that it goes with. Empty if there is none, or none any more.
    pub name: String,
    /// The last change of the node's value. None if that is not known any more.
    pub registered: Option<Revision>,
    /// Whether it is there, and how well.
    pub health: ServiceHealth,
    /// How long ago its lease was renewed last. None if that is not known: it was not since this
    /// leader began, or it is long ago.
    pub seen: Option<Duration>,
    /// What remains of its lease, without the margin.
    pub remaining: Duration,
}

/// How it stands with a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ServiceHealth {
    /// It has been heard of in time.
    Live,
    /// It has not: less than a third of its lease remains, and it is renewed well before that when
    /// all goes well. Or its lease is over, and the removal of its node waits for others.
    Jeopardy,
    /// Its node was removed, and nobody is registered there. Known as far back as the changes are.
    Removed {
        /// By this change.
        revision: Revision,
        /// Why.
        reason: ChangeReason,
    },
}

/// A hold, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockInfo {
    /// Names it: the order of arrival.
    pub lock: LockId,
    /// Whose it is, or was.
    pub session: SessionId,
    /// What the session calls itself.
    pub name: String,
    /// As what it is held, or asked for.
    pub mode: LockMode,
    /// Of the grant. None: it waits.
    pub token: Option<Token>,
    /// It is held shared, and waits to be exclusive.
    pub is_upgrading: bool,
    /// It is a write lease: the session keeps the node's data to itself.
    pub is_write_lease: bool,
    /// Its session has lost its lease; the hold keeps the node for the delay that was asked for.
    pub is_lost: bool,
    /// What remains of the lease under which it lives, with the margin, or of the delay.
    pub remaining: Duration,
}

/// From where on nodes of a lease are listed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodesAfter {
    /// From the first on.
    Nothing,
    /// From the one after this.
    Path(NodePath),
}

/// A key lease, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// The lease.
    pub id: LeaseId,
    /// Its term.
    pub ttl: Duration,
    /// What remains of it; zero once it is over, until the log has its end.
    pub remaining: Duration,
    /// Some of the nodes that go with it, in the order of paths. If there are none though they were
    /// asked for, there are no more.
    pub keys: Vec<NodePath>,
}

/// One session's lease or hold on a node, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HolderInfo {
    /// The session.
    pub session: SessionId,
    /// What it calls itself.
    pub name: String,
    /// The object that it holds, or may hold.
    pub object: Object,
    /// Whether the server assumes it rather than knows it.
    pub is_covering: bool,
    /// What remains of its volume lease, with the margin.
    pub remaining: Duration,
}

/// What a write waits for, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PendingWriteInfo {
    /// The node that is written.
    pub path: NodePath,
    /// Who writes.
    pub writer: SessionId,
    /// The writer's name.
    pub writer_name: String,
    /// The session whose consent is missing; none while the write waits for others in its queue or
    /// for its commit.
    pub holder: Option<SessionId>,
    /// The holder's name.
    pub holder_name: String,
    /// How long the write has been waiting.
    pub since: Duration,
    /// At most how much longer it will wait for this holder.
    pub at_most: Duration,
    /// Set if the leader does not know which objects the holder has: then every write in the volume
    /// waits for it, whether it has a copy or not.
    pub covering: Option<CoveringInfo>,
}

/// A volume in which the leader has to assume that a session holds every object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CoveringInfo {
    /// The volume.
    pub volume: NodePath,
    /// The session has yet to list its copies to this leader, which may be new or may have been
    /// away. Otherwise its object leases are not tracked one by one, because the volume's settings
    /// say so or because they are too many.
    pub is_unreported: bool,
}

/// Reads that wait until the holder of a write lease has flushed, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockedReadInfo {
    /// The node that is kept.
    pub path: NodePath,
    /// How many wait, lists included: as far as one answer counts them
    /// ([`scan_max`](crate::lessor::Bounds::scan_max)).
    pub reads: u64,
    /// The session that keeps it to itself.
    pub holder: SessionId,
    /// The holder's name.
    pub holder_name: String,
    /// How long the first of them has been waiting.
    pub since: Duration,
    /// At most how much longer they will wait for this holder.
    pub at_most: Duration,
}

/// A volume, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// The top.
    pub path: NodePath,
    /// What it promises.
    pub settings: VolumeSettings,
    /// How often it has changed.
    pub generation: VolumeGeneration,
    /// How many sessions have a lease on it.
    pub leases: u64,
}

/// The cluster as one server sees it, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The server that answers.
    pub replica: u64,
    /// The leader, if known.
    pub leader: Option<u64>,
    /// The last epoch that the server has applied.
    pub epoch: Epoch,
    /// The last revision that the server has applied.
    pub revision: Revision,
    /// All members.
    pub members: Vec<MemberInfo>,
    /// How many sessions serve nothing from memory, because their clocks and this server's ran
    /// further apart than they are allowed to. Known of the leader; 0 of others.
    pub clocks_beyond: u64,
    /// Some of them, in order: at most [`CLOCK_INFOS_MAX`].
    pub clocks: Vec<ClockInfo>,
}

/// The most sessions that [`ClusterInfo`] names: enough to see whether it is one client's clock or
/// the server's.
pub const CLOCK_INFOS_MAX: usize = 64;

/// A session whose clock and the leader's ran further apart than they are allowed to, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockInfo {
    /// The session.
    pub session: SessionId,
    /// What it calls itself.
    pub name: String,
    /// What both counted.
    pub excess: Excess,
}

/// A member of the cluster, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its id.
    pub replica: u64,
    /// Where it listens.
    pub address: String,
    /// Whether its vote counts.
    pub is_voter: bool,
    /// The last log index that is known to be on its disk. Only the leader knows all.
    pub matched: Option<u64>,
    /// The last log index applied; known of the server that answers.
    pub applied: Option<u64>,
}
