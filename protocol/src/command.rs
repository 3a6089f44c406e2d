//! The entries of the Raft log, and the outcomes of their commands. docs/PROTOCOL.md has the rules.
//!
//! A [`Proposal`] is one log entry. [`Command`]s that are ready at the same time share one entry,
//! and so one fsync. Each command has one [`Outcome`], which is the same on every replica.

mod refusal;
mod size;

use std::{collections::BTreeSet, time::Duration};

pub use refusal::WriteRefusal;
use serde::{Deserialize, Serialize};
pub(crate) use size::encoded_bytes_of_sets;

pub use crate::attach::Attach;
use crate::{
    id::{Epoch, Incarnation, LeaseId, LockId, Revision, Sequence, SessionId, Token, VolumeGeneration},
    lease_name::LeaseName,
    lock::{LockMode, LockOutcome},
    object::{ObjectSet, Stat, Value},
    path::NodePath,
    time::ClusterTime,
    transaction::{Transacted, Transaction},
    volume::VolumeSettings,
};

/// The content of one log entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Proposal {
    /// The epoch of the proposer. If another epoch has begun when a replica applies the entry, none
    /// of its commands changes anything (S2).
    pub epoch: Epoch,
    /// The number of the proposal in its epoch. By it the proposer recognizes its own proposals
    /// when they are applied.
    pub number: u64,
    /// The proposer's cluster time. The state takes the maximum over the applied entries (T4).
    pub time: ClusterTime,
    /// The commands, in order.
    pub commands: Vec<Command>,
}

/// One change of the replicated state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Command {
    /// Begins an epoch: a replica has become leader. The log index of the entry is the epoch. From
    /// here on, only commands of this epoch count. This command itself takes effect whatever epoch
    /// its proposal names.
    BeginEpoch {
        /// The replica that leads.
        replica: u64,
        /// Distinguishes the leaderships of this replica, also across restarts.
        attempt: u64,
    },
    /// Opens a session for a client.
    OpenSession {
        /// The client's own name for itself, for operators.
        name: String,
    },
    /// Closes a session. Its client has dropped all its copies. The nodes that are attached to its
    /// leases are [purged](Command::Purge) later.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// Grants a session a lease on the volume that a path belongs to. The session has stopped using
    /// its earlier lease there. If the earlier lease has nodes or locks, it is extended instead.
    AcquireVolume {
        /// The session.
        session: SessionId,
        /// Any path in the volume.
        path: NodePath,
    },
    /// Moves the horizons of renewed leases (T6).
    Tick {
        /// Leases that were renewed, with renewals that no tick has included yet.
        renewals: Vec<Renewal>,
    },
    /// Ends a lease, unless its horizon differs from the named one (T5). The nodes attached to the
    /// lease remain as orphans. They are [purged](Command::Purge) when every session that may hold
    /// copies of them has consented or lost its lease.
    Expire {
        /// The lease.
        lease: AnyLease,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The lease's horizon when the end was proposed.
        horizon: ClusterTime,
    },
    /// Removes the orphans of ended leases. The lessor has gathered consents for all of them and
    /// for the lists of children that contain them (S2, S8). No node can have been attached to
    /// these leases since. Leases with few nodes, all in one list, share a change. Each other lease
    /// has its own change.
    Purge {
        /// The ended leases.
        leases: Vec<Incarnation>,
    },
    /// A client's write (S2, S9).
    Write {
        /// The session that writes.
        session: SessionId,
        /// The request's number in the session.
        sequence: Sequence,
        /// All writes of the session below this number are answered or cancelled. The state can
        /// forget their outcomes.
        unanswered_from: Sequence,
        /// The write.
        write: Write,
        /// The objects for which the lessor gathered consents. If the write would change another
        /// object, it changes nothing.
        consented: Vec<ObjectSet>,
        /// The leases and the volume that the write names (S7b). If one of them has been replaced,
        /// the write changes nothing.
        intended: IntendedLeases,
        /// For a [revocation](Write::RevokeLease): the consents cover the nodes that were attached
        /// to the lease up to this revision, and their lists. If a node was attached later, nothing
        /// changes.
        attached_through: Revision,
    },
}

/// The leases and the volume that a write names by a reusable name (S7b).
///
/// [`State::intended`] finds them when the request arrives at the lessor. If a request without an
/// outcome arrives again at a later leader, its names may stand for other leases.
///
/// Sessions, locks, tokens, incarnations and revisions are never reused, so they are not listed.
///
/// [`State::intended`]: crate::state::State::intended
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IntendedLeases {
    /// The leases that the write revokes, attaches nodes to, or requests a lock under. If a name
    /// stood for no lease on arrival, it has no incarnation here.
    pub leases: BTreeSet<Incarnation>,
    /// The volume that the write changes or removes, by the generation of its creation. `None` if
    /// there was no such volume.
    pub volume: Option<VolumeGeneration>,
}

/// A replicated lease of any kind, without its incarnation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AnyLease {
    /// The session lease. While it lasts, the servers remember a silent session.
    Session(SessionId),
    /// A session's lease on the volume with this top.
    Volume(SessionId, NodePath),
    /// A key lease (etcd). It belongs to no session: any client may renew it.
    KeyLease(LeaseId),
    /// The lock delay of a lost lock (Chubby). Until it ends, the node stays taken. It is never
    /// renewed.
    LockDelay(LockId),
}

impl AnyLease {
    /// The session that the lease belongs to. `None` for a key lease and a lock delay.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Self::Session(session) | Self::Volume(session, _) => Some(*session),
            Self::KeyLease(_) | Self::LockDelay(_) => None,
        }
    }

    /// The top of the volume, for a lease on a volume.
    pub fn volume(&self) -> Option<&NodePath> {
        match self {
            Self::Volume(_, top) => Some(top),
            Self::Session(_) | Self::KeyLease(_) | Self::LockDelay(_) => None,
        }
    }
}

/// A lease that the leader has renewed in memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Renewal {
    /// The lease.
    pub lease: AnyLease,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The time of its last renewal.
    pub renewed_at: ClusterTime,
}

/// A change that a client requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Write {
    /// Sets a node's value. Creates the node and its missing ancestors.
    Put {
        /// The node.
        path: NodePath,
        /// Its new value.
        value: Value,
        /// The condition for the write to take effect.
        condition: Condition,
        /// The lease to which the node is attached from now on.
        attach: Attach,
    },
    /// Removes a node.
    Delete {
        /// The node.
        path: NodePath,
        /// Whether to remove all descendants too. If not, a node with children is not removed.
        recursive: bool,
        /// The condition for the write to take effect.
        condition: Condition,
    },
    /// Makes the subtree at `path` a volume. Creates its node if it does not exist.
    CreateVolume {
        /// The top of the volume.
        path: NodePath,
        /// The settings of the volume.
        settings: VolumeSettings,
    },
    /// Changes the settings of a volume.
    SetVolume {
        /// The top of the volume.
        path: NodePath,
        /// The settings from now on.
        settings: VolumeSettings,
    },
    /// Removes a volume: its subtree becomes part of the volume above. The nodes remain. Refused
    /// while a lease on the volume has nodes or locks.
    RemoveVolume {
        /// The top of the volume.
        path: NodePath,
    },
    /// Grants a key lease (etcd). Changes no node.
    GrantLease {
        /// The id. With `None`, the state assigns one.
        id: Option<LeaseId>,
        /// The name. The grant is refused while another lease has it.
        name: Option<LeaseName>,
        /// How long the lease lasts from its grant, and from each renewal.
        ttl: Duration,
    },
    /// Ends a key lease and removes all nodes attached to it, with one change.
    RevokeLease {
        /// The lease.
        id: LeaseId,
        /// The incarnation, if the client knows it. If another lease has the id, the revocation is
        /// refused. With `None`, it is for the lease that has the id when the request arrives at
        /// the leader (S7b).
        incarnation: Option<Incarnation>,
    },
    /// Like [`RevokeLease`](Write::RevokeLease), for the key lease that has this name when the
    /// request arrives at the leader (S7b).
    RevokeLeaseNamed {
        /// The name of the lease.
        name: LeaseName,
    },
    /// Requests a lock on a node, under the writer's lease on the node's volume. The node need not
    /// exist. Changes no node.
    Lock {
        /// The node.
        path: NodePath,
        /// Shared or exclusive.
        mode: LockMode,
        /// Whether to wait in the node's lock queue. If not, the request is refused when the node
        /// is taken.
        wait: bool,
        /// The lock delay (Chubby): how long the node stays taken after the servers have ended
        /// the lock with its lease. It does not apply to a released lock.
        delay: Duration,
    },
    /// Upgrades or downgrades a lock. While an upgrade waits, the lock remains shared. The shared
    /// mode also cancels a waiting upgrade.
    ChangeLockMode {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
        /// The new mode.
        mode: LockMode,
        /// Whether an upgrade waits for the other owners. If not, it is refused while they exist.
        wait: bool,
    },
    /// Releases a lock, or cancels a request that waits in the lock queue.
    Unlock {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
    },
    /// Compares, and applies one of two lists of operations, as one change or not at all.
    Transaction(Transaction),
    /// Turns an exclusive lock into a write lease. Its owner then reads and writes the node's data
    /// in memory. Reads and writes of other clients wait until the owner [ends](Write::Flush) the
    /// write lease, or the lock ends. The node must exist and must not be attached to a lease. Its
    /// data does not change, but the lessor recalls all copies of it (S2).
    TakeWriteLease {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
    },
    /// Writes the dirty value of a write lease. It waits for no consent and no other write, because
    /// no other client has a copy of the data or can write it (S10).
    Flush {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
        /// The token of the lock. With another token the flush is refused.
        token: Token,
        /// The node's new value. `None` leaves the value as it is.
        value: Option<Value>,
        /// Whether the write lease ends. The lock remains.
        ends_write_lease: bool,
    },
    /// Hands a lock over to a named waiter in the node's lock queue, ahead of earlier waiters. The
    /// lock must be the only granted one on the node.
    HandOver {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
        /// The waiter that gets the node.
        successor: LockId,
    },
}

impl Write {
    /// A put without a condition and without a lease.
    pub fn put(path: NodePath, value: Value) -> Self {
        Self::Put { path, value, condition: Condition::Any, attach: Attach::Nothing }
    }

    /// The node that the write names, if it names exactly one.
    pub fn path(&self) -> Option<&NodePath> {
        match self {
            Self::Put { path, .. }
            | Self::Delete { path, .. }
            | Self::CreateVolume { path, .. }
            | Self::SetVolume { path, .. }
            | Self::RemoveVolume { path }
            | Self::Lock { path, .. }
            | Self::ChangeLockMode { path, .. }
            | Self::Unlock { path, .. }
            | Self::TakeWriteLease { path, .. }
            | Self::Flush { path, .. }
            | Self::HandOver { path, .. } => Some(path),
            Self::GrantLease { .. }
            | Self::RevokeLease { .. }
            | Self::RevokeLeaseNamed { .. }
            | Self::Transaction(_) => None,
        }
    }

    /// Whether the write ends a key lease and removes its nodes.
    pub fn is_revocation(&self) -> bool {
        matches!(self, Self::RevokeLease { .. } | Self::RevokeLeaseNamed { .. })
    }
}

/// A condition on a node, for a write to take effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Condition {
    /// No condition.
    #[default]
    Any,
    /// The node does not exist.
    Absent,
    /// The node's value was last changed at this revision.
    Revision(Revision),
}

/// The result of applying a command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The epoch has begun.
    EpochBegun {
        /// The epoch: the log index of this entry.
        epoch: Epoch,
    },
    /// The session exists.
    SessionOpened {
        /// Its id.
        session: SessionId,
    },
    /// The session and all its leases have ended.
    SessionClosed,
    /// The session has a lease on the volume.
    VolumeAcquired {
        /// The volume that the path belongs to.
        volume: NodePath,
        /// The lease: a new one, or the extended one if nodes or locks depend on it.
        incarnation: Incarnation,
        /// The volume's generation.
        generation: VolumeGeneration,
        /// The lease's horizon: no leader promises the lease beyond this time.
        horizon: ClusterTime,
    },
    /// Horizons were moved.
    Ticked,
    /// The lease has ended.
    Expired,
    /// The lease has ended already, or a later incarnation has taken its place.
    LeaseNotFound,
    /// The lease has not ended: its horizon has moved, or it is the lease of a session that has
    /// volume leases. The lessor proposes the end again (T5). For a session lease, it first waits
    /// another term.
    HorizonMoved {
        /// The present horizon.
        horizon: ClusterTime,
    },
    /// The write took effect, or was refused. The state remembers the outcome, and a repeated
    /// request gets it again (S9).
    Written(Result<Written, WriteRefusal>),
    /// The consents do not cover the write's footprint, or a write lease blocks it. Nothing
    /// changed. The lessor gathers consents again, and proposes the write again (S2).
    MissingConsents,
    /// The orphans were removed.
    Purged {
        /// The number of removed nodes.
        nodes: u64,
    },
    /// The session does not exist. Nothing changed.
    SessionNotFound,
    /// The request's number is below the window of remembered outcomes. Nothing changed.
    BelowWindow {
        /// The lowest number in the window.
        lowest: Sequence,
    },
    /// The request's number is above the window. Nothing changed.
    BeyondWindow {
        /// The highest acceptable number.
        highest: Sequence,
    },
    /// Another epoch has begun since the proposal was made. Nothing changed.
    EpochEnded,
}

/// A key lease that a write granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GrantedKeyLease {
    /// Its id.
    pub id: LeaseId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// A write that took effect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Written {
    /// The revision of the write. If the write changed no node, the revision of the last change
    /// before it.
    pub revision: Revision,
    /// The node's stat after a put or a flush of a value. `None` after other writes.
    pub stat: Option<Stat>,
    /// The number of removed nodes.
    pub removed: u64,
    /// The granted key lease. The state remembers it with the outcome, because another lease may
    /// have the id when the answer is repeated (S9).
    pub lease: Option<GrantedKeyLease>,
    /// The lock that was requested, or whose mode changed.
    pub lock: Option<Box<LockOutcome>>,
    /// The result of a transaction.
    pub transaction: Option<Box<Transacted>>,
    /// The writer's volume leases to which [`Attach::Session`] attached nodes, each once (S7b). A
    /// node is attached to the lease on the nearest volume.
    pub attached: Vec<VolumeLease>,
}

/// A session's lease on a volume. The context names the session.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeLease {
    /// The top of the volume.
    pub volume: NodePath,
    /// The incarnation of the lease.
    pub incarnation: Incarnation,
}

impl Written {
    /// The lease to which this write attached a node by [`Attach::Session`].
    pub fn attached_to(&self, path: &NodePath) -> Option<&VolumeLease> {
        let around = self.attached.iter().filter(|lease| lease.volume.contains(path));
        around.max_by_key(|lease| lease.volume.depth())
    }
}
