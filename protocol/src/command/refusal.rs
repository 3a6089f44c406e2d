//! The reasons for which writes are refused.

use serde::{Deserialize, Serialize};

use crate::{
    id::{LeaseId, LockId, Revision, SessionId, Token},
    path::NodePath,
    transaction::Branch,
};

/// The reason for which a write was refused. A refused write changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum WriteRefusal {
    /// The node does not exist.
    #[error("{path} does not exist")]
    NotFound {
        /// The node.
        path: NodePath,
    },
    /// The node exists, and the write required its absence.
    #[error("{path} exists already, since revision {create_revision}")]
    Exists {
        /// The node.
        path: NodePath,
        /// The change that created the node.
        create_revision: Revision,
    },
    /// The node's revision differs from the one that the write requires.
    #[error("{path} was last changed at revision {got}: expected {expected}")]
    RevisionDiffers {
        /// The node.
        path: NodePath,
        /// The node's modify revision.
        got: Revision,
        /// The revision that the write names.
        expected: Revision,
    },
    /// The node has children, and the delete is not recursive.
    #[error("{path} has {children} children: expected none, or a recursive delete")]
    HasChildren {
        /// The node.
        path: NodePath,
        /// The number of children.
        children: u64,
    },
    /// The root cannot be removed.
    #[error("{path} is the root: it always exists and always is a volume")]
    Root {
        /// The root's path.
        path: NodePath,
    },
    /// No volume has this top.
    #[error("{path} is not a volume: it belongs to the volume {volume}")]
    NotAVolume {
        /// The path.
        path: NodePath,
        /// The volume that it belongs to.
        volume: NodePath,
    },
    /// The volume was made after the write arrived, in place of an earlier one or of none (S7b).
    #[error("volume {path}: made anew since the write was sent")]
    VolumeReplaced {
        /// The top of the volume.
        path: NodePath,
    },
    /// A volume with this top exists.
    #[error("{path} is a volume already")]
    VolumeExists {
        /// The top of the volume.
        path: NodePath,
    },
    /// The delete would remove a volume.
    #[error("{path} holds the volume {volume}: expected volumes to be removed first")]
    ContainsVolume {
        /// The node of the delete.
        path: NodePath,
        /// A volume at or below it.
        volume: NodePath,
    },
    /// The delete would remove more nodes than one command may remove.
    #[error("{path}: {got} nodes or more to remove, above the limit of {most}; remove what lies below it in parts")]
    TooManyNodes {
        /// The node of the delete.
        path: NodePath,
        /// The number of nodes when counting stopped.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// The lease has as many attached nodes as one lease may have.
    #[error("{path}: its lease carries {got} nodes, and the limit is {most}; attach it to another lease")]
    LeaseFull {
        /// The node.
        path: NodePath,
        /// The number of nodes attached to the lease.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// No key lease has this id, or the id now stands for another lease.
    #[error("lease {id:x} does not exist")]
    LeaseNotFound {
        /// The lease.
        id: LeaseId,
    },
    /// A key lease with this id exists.
    #[error("lease {id:x} exists already")]
    LeaseExists {
        /// The lease.
        id: LeaseId,
    },
    /// The session has no lease on the node's volume, to which the node or lock could belong.
    #[error("{path} cannot be held by its writer, or go with it: the session has no lease on the volume {volume}")]
    NoVolumeLease {
        /// The node.
        path: NodePath,
        /// The volume that it belongs to.
        volume: NodePath,
    },
    /// The node is attached to a lease. Such a node cannot have children or be a volume
    /// (ZooKeeper), and gets no write lease.
    #[error(
        "{path} goes with a lease: expected a node that stays, to have children, be a volume or be under a write lease"
    )]
    Attached {
        /// The node.
        path: NodePath,
    },
    /// The node has children or is a volume, so it cannot be attached to a lease (ZooKeeper).
    #[error("{path} cannot go with a lease: expected a node without children that is no volume")]
    NotALeaf {
        /// The node.
        path: NodePath,
    },
    /// Nodes or locks depend on a lease on the volume.
    #[error("session {session} has nodes or holds in {path} that go with its lease on it: expected none")]
    VolumeInUse {
        /// The top of the volume.
        path: NodePath,
        /// The first session with such a lease.
        session: SessionId,
    },
    /// The node is taken, and the request does not want to wait.
    #[error("{path} is held by session {owner} under token {token}, and {waiting} wait for it: expected it to be free")]
    Locked {
        /// The node.
        path: NodePath,
        /// An owner of the lock. During a lock delay, the session that lost the lock.
        owner: SessionId,
        /// The token of that lock.
        token: Token,
        /// The number of waiters in the queue.
        waiting: u64,
    },
    /// The session has no such lock. It may have been released, or have ended with its lease.
    #[error("lock {lock} on {path} does not exist: it was given back, or is gone with its lease")]
    LockNotFound {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
    },
    /// The lock is not granted yet.
    #[error("lock {lock} on {path} waits in the queue: expected it to be held")]
    LockNotGranted {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
    },
    /// Another shared owner of the node already waits for an upgrade. The two would wait for each
    /// other for ever.
    #[error("{path} is already waited for by another that holds it shared: expected this hold to be given back first")]
    UpgradePending {
        /// The node.
        path: NodePath,
    },
    /// The lock is shared. Only an exclusive lock can become a write lease.
    #[error("lock {lock} on {path} is shared: expected an exclusive one")]
    NotExclusive {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
    },
    /// The token in the flush is not that of the lock.
    #[error("lock {lock} on {path} is held under token {expected}: expected what is flushed to be of it, got {got}")]
    TokenMismatch {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
        /// The token in the flush.
        got: Token,
        /// The token of the lock.
        expected: Token,
    },
    /// The lock is not a write lease (it may have been one), so there is nothing to flush.
    #[error("lock {lock} on {path} is no write lease: expected one, for there to be something to flush")]
    NotAWriteLease {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
    },
    /// The node has too many locks, granted and waiting together.
    #[error("{path} has {got} holders and waiters: expected at most {most}")]
    TooManyLocks {
        /// The node.
        path: NodePath,
        /// The number of locks.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// An operation of the chosen branch is refused, so the transaction does nothing.
    #[error("operation {} of the branch {branch}: {refusal}", index + 1)]
    Operation {
        /// The branch.
        branch: Branch,
        /// The index of the operation in the branch, from 0.
        index: u32,
        /// The reason.
        refusal: Box<WriteRefusal>,
    },
    /// Two operations of one branch are not independent.
    #[error(
        "operations {} and {} of the branch {branch} meet at {path}: expected operations that do not depend on each other",
        first + 1,
        second + 1
    )]
    Overlap {
        /// The branch.
        branch: Branch,
        /// The index of the first operation, from 0.
        first: u32,
        /// The index of the second operation, from 0.
        second: u32,
        /// The node of the second operation.
        path: NodePath,
    },
    /// The named successor does not wait in the node's lock queue.
    #[error("hold {successor} does not wait for {path}: expected one that stands in its queue")]
    SuccessorNotWaiting {
        /// The node.
        path: NodePath,
        /// The named successor.
        successor: LockId,
    },
}
