//! Requests and answers for operators. No rule depends on them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    change::ChangeReason,
    drift::Excess,
    id::{Epoch, Incarnation, LeaseId, LockId, Revision, SessionId, Token, VolumeGeneration},
    lease_name::LeaseName,
    lease_policy::ObjectTerm,
    lock::LockMode,
    message::recall::DelayReason,
    object::{NodeOwner, Object},
    path::NodePath,
    quota::VolumeUse,
    volume::VolumeSettings,
};

/// The requests of operators.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Inspect {
    /// The sessions with leases on the objects at `path`, and their remaining times. From the
    /// leader.
    Holders {
        /// The node.
        path: NodePath,
    },
    /// The pending writes of `path`, and their blockers. From the leader.
    PendingWrites {
        /// The node.
        path: NodePath,
    },
    /// The reads of `path`, and the lists that begin at it, that wait for write leases. From the
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
    /// What the leader has counted for the volume with this top. From the leader.
    VolumeStats {
        /// The top.
        path: NodePath,
    },
    /// A key lease, with its remaining time and some of its nodes. From the leader.
    Lease {
        /// The lease.
        id: LeaseId,
        /// Where the list of nodes begins. None: without nodes.
        nodes_after: Option<NodesAfter>,
    },
    /// Like [`Inspect::Lease`], for the key lease that has this name. From the leader.
    LeaseNamed {
        /// The name of the lease.
        name: LeaseName,
        /// Where the list of nodes begins. None: without nodes.
        nodes_after: Option<NodesAfter>,
    },
    /// The key leases in the order of their ids. From the leader.
    Leases {
        /// The list begins after this id.
        after: Option<LeaseId>,
    },
    /// The members, the leader, and indexes. From any server.
    Cluster,
    /// The locks on a node in the order of arrival: granted, waiting, and lost ones in their lock
    /// delay. From the leader.
    Locks {
        /// The node.
        path: NodePath,
        /// The page begins after this lock.
        after: Option<LockId>,
    },
    /// The services: nodes at and below `path` that are, or were, attached to leases. In the order
    /// of paths. From the leader.
    Services {
        /// The top.
        path: NodePath,
        /// The page begins after this path.
        after: Option<NodePath>,
    },
}

/// One page of the locks on a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockPage {
    /// The locks, in the order of arrival.
    pub locks: Vec<LockInfo>,
    /// The next page begins after this lock. None: this is the last page.
    pub through: Option<LockId>,
}

/// One page of the services below a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServicePage {
    /// The services, in the order of paths.
    pub services: Vec<ServiceInfo>,
    /// The page has all services up to this path, perhaps none. The next page begins after it.
    /// None: this is the last page.
    pub through: Option<NodePath>,
}

/// A service: a node that is, or was, attached to a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServiceInfo {
    /// The node.
    pub path: NodePath,
    /// The lease to which the node is, or was, attached. None if the history does not show it.
    pub owner: Option<NodeOwner>,
    /// The name of the session whose lease it is. Empty for a key lease, or if the session has
    /// ended.
    pub name: String,
    /// The last change of the node's value. None if the history does not show it.
    pub registered: Option<Revision>,
    /// Whether the service is alive.
    pub health: ServiceHealth,
    /// The time since the lease was last renewed. None if this leader has seen no renewal, or no
    /// longer remembers it.
    pub seen: Option<Duration>,
    /// The remaining time of the lease, without the margin.
    pub remaining: Duration,
}

/// The state of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ServiceHealth {
    /// The lease was renewed in time.
    Live,
    /// Less than a third of the lease remains, though clients normally renew well before that. Or
    /// the lease has ended, and the node is not purged yet.
    Jeopardy,
    /// The node was removed, and no service is registered there now. Reported as far back as the
    /// history reaches.
    Removed {
        /// The change that removed the node.
        revision: Revision,
        /// The reason.
        reason: ChangeReason,
    },
}

/// A lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockInfo {
    /// Its id: the order of arrival.
    pub lock: LockId,
    /// The session that owns, owned or requested the lock.
    pub session: SessionId,
    /// The name of the session.
    pub name: String,
    /// The granted mode, or the requested one.
    pub mode: LockMode,
    /// The fencing token of the grant. None while it waits.
    pub token: Option<Token>,
    /// Whether it is granted as shared, and waits for an upgrade.
    pub is_upgrading: bool,
    /// Whether it is a write lease: then only its owner uses the node's data.
    pub is_write_lease: bool,
    /// Whether the session's lease has ended, and the node stays taken for the lock delay.
    pub is_lost: bool,
    /// The remaining time of the lease under the lock, with the margin, or of the lock delay.
    pub remaining: Duration,
}

/// Where a list of a lease's nodes begins.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodesAfter {
    /// At the first node.
    Nothing,
    /// After this path.
    Path(NodePath),
}

/// A key lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// The lease.
    pub id: LeaseId,
    /// Its name, if it has one.
    pub name: Option<LeaseName>,
    /// Distinguishes it from other leases with the same id or name, earlier and later.
    pub incarnation: Incarnation,
    /// Its TTL.
    pub ttl: Duration,
    /// Its remaining time. Zero after its end, until that end is applied.
    pub remaining: Duration,
    /// Some of its attached nodes, in the order of paths. Empty after the last one, or if no nodes
    /// were requested.
    pub nodes: Vec<NodePath>,
}

/// One session's lease on an object of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HolderInfo {
    /// The session.
    pub session: SessionId,
    /// The name of the session.
    pub name: String,
    /// The object on which it has, or may have, a lease.
    pub object: Object,
    /// Whether the server only assumes the lease, because the session is covering.
    pub is_covering: bool,
    /// The remaining time of the session's volume lease with the margin, or of the object lease if
    /// that is less.
    pub remaining: Duration,
}

/// A pending write and one of its blockers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PendingWriteInfo {
    /// The node that the write is about.
    pub path: NodePath,
    /// The session that writes.
    pub writer: SessionId,
    /// The name of the writer.
    pub writer_name: String,
    /// The session whose consent is missing, or whose leases have not ended. None if the write
    /// waits for earlier writes or for its commit.
    pub holder: Option<SessionId>,
    /// The name of the session whose consent is missing.
    pub holder_name: String,
    /// How long the write has been pending.
    pub since: Duration,
    /// The longest time that the write may still wait for this session.
    pub at_most: Duration,
    /// Set if the leader does not know all object leases of the session. Then each write in the
    /// volume waits for the session, even if it has no copy.
    pub covering: Option<CoveringInfo>,
    /// Set if the session has said that it delays its consent on purpose. Its time is not above
    /// `at_most`.
    pub delay: Option<DelayReason>,
}

/// A volume in which the leader must assume that a session holds every object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CoveringInfo {
    /// The volume.
    pub volume: NodePath,
    /// Whether the leader waits for the session's holder report. If not, it does not track the
    /// object leases one by one: the volume's settings say so, or there are too many.
    pub is_unreported: bool,
}

/// Reads that wait for the flush of a write lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockedReadInfo {
    /// The node under the write lease.
    pub path: NodePath,
    /// How many reads and lists wait, as far as one answer counts them
    /// ([`scan_max`](crate::lessor::LessorBounds::scan_max)).
    pub reads: u64,
    /// The owner of the write lease.
    pub holder: SessionId,
    /// The name of the owner.
    pub holder_name: String,
    /// How long the first of these reads has been waiting.
    pub since: Duration,
    /// The longest time that they may still wait for this owner.
    pub at_most: Duration,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// The top.
    pub path: NodePath,
    /// Its settings.
    pub settings: VolumeSettings,
    /// Grows with each change of the volume.
    pub generation: VolumeGeneration,
    /// How many sessions have a lease on it.
    pub leases: u64,
    /// The present object term. It differs from the settings only if the term follows the use of
    /// the volume. Then it is fixed, or zero if there are no object leases for the time being.
    pub present_object_term: ObjectTerm,
    /// Its nodes and bytes, which count for its quota.
    pub used: VolumeUse,
}

/// The cluster as one server sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The id of the server that answers.
    pub replica: u64,
    /// The id of the leader, if known.
    pub leader: Option<u64>,
    /// The last epoch that this server has applied.
    pub epoch: Epoch,
    /// The last revision that this server has applied.
    pub revision: Revision,
    /// All members.
    pub members: Vec<MemberInfo>,
    /// How many sessions serve nothing from memory, because their clocks and the leader's differ by
    /// more than the allowances. Only the leader knows; 0 from other servers.
    pub clocks_beyond: u64,
    /// Some of these sessions, in order; at most [`CLOCK_INFOS_MAX`].
    pub clocks: Vec<ClockInfo>,
}

/// The most sessions that [`ClusterInfo`] names: enough to see whether one client's clock is wrong,
/// or the server's.
pub const CLOCK_INFOS_MAX: usize = 64;

/// A session whose clock and the leader's differ by more than their allowances.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockInfo {
    /// The session.
    pub session: SessionId,
    /// The name of the session.
    pub name: String,
    /// The times that both clocks counted.
    pub excess: Excess,
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its id.
    pub replica: u64,
    /// Where it listens.
    pub address: String,
    /// Whether it is a voter.
    pub is_voter: bool,
    /// The last log index known to be on its disk. Only the leader knows it for all members.
    pub matched: Option<u64>,
    /// The last applied log index. Known only for the server that answers.
    pub applied: Option<u64>,
}
