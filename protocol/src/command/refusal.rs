//! Why writes do not take effect.

use serde::{Deserialize, Serialize};

use crate::{
    id::{LeaseId, LockId, Revision, SessionId, Token},
    path::NodePath,
    transaction::Branch,
};

/// Why a write did not take effect. It changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum WriteRefusal {
    /// There is no such node.
    #[error("{path} does not exist")]
    NotFound {
        /// The node.
        path: NodePath,
    },
    /// The node exists and must not.
    #[error("{path} exists already, since revision {create_revision}")]
    Exists {
        /// The node.
        path: NodePath,
        /// When it was made.
        create_revision: Revision,
    },
    /// The node changed since.
    #[error("{path} was last changed at revision {got}: expected {expected}")]
    RevisionDiffers {
        /// The node.
        path: NodePath,
        /// Its modify revision.
        got: Revision,
        /// The revision that the write named.
        expected: Revision,
    },
    /// The node has children and the delete was not recursive.
    #[error("{path} has {children} children: expected none, or a recursive delete")]
    HasChildren {
        /// The node.
        path: NodePath,
        /// How many.
        children: u64,
    },
    /// The root cannot be removed.
    #[error("{path} is the root: it always exists and always is a volume")]
    Root {
        /// The root's path.
        path: NodePath,
    },
    /// There is no volume with this top.
    #[error("{path} is not a volume: it belongs to the volume {volume}")]
    NotAVolume {
        /// The path.
        path: NodePath,
        /// The volume that it belongs to.
        volume: NodePath,
    },
    /// The volume has taken the name of the one that there was, or was not, when the write arrived
    /// (S7b).
    #[error("volume {path}: made anew since the write was sent")]
    VolumeReplaced {
        /// Its top.
        path: NodePath,
    },
    /// There is a volume with this top.
    #[error("{path} is a volume already")]
    VolumeExists {
        /// Its top.
        path: NodePath,
    },
    /// The delete would take volumes with it.
    #[error("{path} holds the volume {volume}: expected volumes to be removed first")]
    ContainsVolume {
        /// What was to be removed.
        path: NodePath,
        /// A volume at or below it.
        volume: NodePath,
    },
    /// The delete would remove more nodes than one command may.
    #[error("{path}: {got} nodes or more to remove, above the limit of {most}; remove what lies below it in parts")]
    TooManyNodes {
        /// What was to be removed.
        path: NodePath,
        /// How many nodes were counted before the count was given up.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// The lease carries as many nodes as one may.
    #[error("{path}: its lease carries {got} nodes, and the limit is {most}; attach it to another lease")]
    LeaseFull {
        /// The node.
        path: NodePath,
        /// How many nodes the lease carries.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// There is no such key lease (any more).
    #[error("lease {id:x} does not exist")]
    LeaseNotFound {
        /// The lease.
        id: LeaseId,
    },
    /// There is a key lease of this name.
    #[error("lease {id:x} exists already")]
    LeaseExists {
        /// The lease.
        id: LeaseId,
    },
    /// The session has no lease on the node's volume that the node could go with.
    #[error("{path} cannot be held by its writer, or go with it: the session has no lease on the volume {volume}")]
    NoVolumeLease {
        /// The node.
        path: NodePath,
        /// The volume that it belongs to.
        volume: NodePath,
    },
    /// The node goes with a lease, and such a node has no children, is no volume (ZooKeeper) and
    /// under no write lease.
    #[error(
        "{path} goes with a lease: expected a node that stays, to have children, be a volume or be under a write lease"
    )]
    Attached {
        /// The node.
        path: NodePath,
    },
    /// The node cannot go with a lease, because it has children or is a volume (ZooKeeper).
    #[error("{path} cannot go with a lease: expected a node without children that is no volume")]
    NotALeaf {
        /// The node.
        path: NodePath,
    },
    /// A lease on the volume carries nodes or holds.
    #[error("session {session} has nodes or holds in {path} that go with its lease on it: expected none")]
    VolumeInUse {
        /// The top of the volume.
        path: NodePath,
        /// The first session that has such nodes or holds.
        session: SessionId,
    },
    /// The node cannot be had now, and the request was not to wait.
    #[error("{path} is held by session {owner} under token {token}, and {waiting} wait for it: expected it to be free")]
    Locked {
        /// The node.
        path: NodePath,
        /// Who holds it, or one of them.
        owner: SessionId,
        /// The token of that hold.
        token: Token,
        /// How many wait in the queue.
        waiting: u64,
    },
    /// The session has no such hold (any more).
    #[error("lock {lock} on {path} does not exist: it was given back, or is gone with its lease")]
    LockNotFound {
        /// The node.
        path: NodePath,
        /// The hold.
        lock: LockId,
    },
    /// The hold is not held yet.
    #[error("lock {lock} on {path} waits in the queue: expected it to be held")]
    LockNotGranted {
        /// The node.
        path: NodePath,
        /// The hold.
        lock: LockId,
    },
    /// Two that hold the node shared want it alone: neither would ever get it.
    #[error("{path} is already waited for by another that holds it shared: expected this hold to be given back first")]
    UpgradePending {
        /// The node.
        path: NodePath,
    },
    /// The hold is shared, and only who holds a node alone can keep its data to itself.
    #[error("lock {lock} on {path} is shared: expected an exclusive one")]
    NotExclusive {
        /// The node.
        path: NodePath,
        /// The hold.
        lock: LockId,
    },
    /// The node is held under another token than what was flushed was written under.
    #[error("lock {lock} on {path} is held under token {expected}: expected what is flushed to be of it, got {got}")]
    TokenMismatch {
        /// The node.
        path: NodePath,
        /// The hold.
        lock: LockId,
        /// The token that the flush named.
        got: Token,
        /// The token of the hold.
        expected: Token,
    },
    /// The holder does not keep the node's data to itself (any more), so it has nothing to flush.
    #[error("lock {lock} on {path} is no write lease: expected one, for there to be something to flush")]
    NotAWriteLease {
        /// The node.
        path: NodePath,
        /// The hold.
        lock: LockId,
    },
    /// There are too many holds on the node.
    #[error("{path} has {got} holders and waiters: expected at most {most}")]
    TooManyLocks {
        /// The node.
        path: NodePath,
        /// How many there are.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// An operation of the branch that a transaction's comparisons choose is refused: nothing is
    /// done.
    #[error("operation {} of the branch {branch}: {refusal}", index + 1)]
    Operation {
        /// The branch.
        branch: Branch,
        /// The operation's place in it, from 0.
        index: u32,
        /// Why.
        refusal: Box<WriteRefusal>,
    },
    /// Two operations of a transaction's branch depend on each other.
    #[error(
        "operations {} and {} of the branch {branch} meet at {path}: expected operations that do not depend on each other",
        first + 1,
        second + 1
    )]
    Overlap {
        /// The branch.
        branch: Branch,
        /// The place in it of one, from 0.
        first: u32,
        /// The place of the other.
        second: u32,
        /// The node that the other is about.
        path: NodePath,
    },
    /// Nobody stands there to whom a hold could be handed over.
    #[error("hold {successor} does not wait for {path}: expected one that stands in its queue")]
    SuccessorNotWaiting {
        /// The node.
        path: NodePath,
        /// Who was to have it.
        successor: LockId,
    },
}
