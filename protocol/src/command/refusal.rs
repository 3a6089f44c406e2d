//! The reasons for which writes are refused.

use serde::{Deserialize, Serialize};

use crate::{
    id::{LeaseId, LockId, Revision, SessionId, Token},
    lease_name::LeaseName,
    path::NodePath,
    quota::{Grouped, QuotaFigure},
    transaction::{Branch, Overlap},
};

/// The reason for which a write was refused. A refused write changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum WriteRefusal {
    /// The node does not exist.
    #[error("{path}: not found")]
    NotFound {
        /// The node.
        path: NodePath,
    },
    /// The node exists, and the write required its absence.
    #[error("{path}: already exists, created at revision {create_revision}")]
    Exists {
        /// The node.
        path: NodePath,
        /// The change that created the node.
        create_revision: Revision,
    },
    /// The node's revision differs from the one that the write requires.
    #[error("{path}: modified at revision {got}; expected revision {expected}")]
    RevisionDiffers {
        /// The node.
        path: NodePath,
        /// The node's modify revision.
        got: Revision,
        /// The revision that the write names.
        expected: Revision,
    },
    /// The node has children, and the delete is not recursive.
    #[error("{path}: not empty; expected no children, got {children}; use a recursive delete")]
    HasChildren {
        /// The node.
        path: NodePath,
        /// The number of children.
        children: u64,
    },
    /// The root cannot be removed.
    #[error("{path}: the root always exists and is always a volume")]
    Root {
        /// The root's path.
        path: NodePath,
    },
    /// No volume has this top.
    #[error("{path}: not a volume; it belongs to volume {volume}")]
    NotAVolume {
        /// The path.
        path: NodePath,
        /// The volume that it belongs to.
        volume: NodePath,
    },
    /// The volume was made after the write arrived, in place of an earlier one or of none (S7b).
    #[error("{path}: the volume was replaced after the write was sent")]
    VolumeReplaced {
        /// The top of the volume.
        path: NodePath,
    },
    /// A volume with this top exists.
    #[error("{path}: already a volume")]
    VolumeExists {
        /// The top of the volume.
        path: NodePath,
    },
    /// The delete would remove a volume.
    #[error("{path}: contains the volume {volume}; remove the volume first")]
    ContainsVolume {
        /// The node of the delete.
        path: NodePath,
        /// A volume at or below it.
        volume: NodePath,
    },
    /// The write would take the volume above its quota.
    #[error("{path}: the volume {volume} would have {} {figure}; its quota is {}", Grouped(*got), Grouped(*most))]
    QuotaExceeded {
        /// The first node that the write puts in the volume, or creates there.
        path: NodePath,
        /// The top of the volume.
        volume: NodePath,
        /// The figure that would exceed its limit.
        figure: QuotaFigure,
        /// What the volume would have after the write.
        got: u64,
        /// The limit.
        most: u64,
    },
    /// The delete would remove more nodes than one command may remove.
    #[error("{path}: a delete of {got} or more nodes exceeds the limit of {most}; delete the subtree in parts")]
    TooManyNodes {
        /// The node of the delete.
        path: NodePath,
        /// The number of nodes when counting stopped.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// The lease has as many attached nodes, or as many locks, as one lease may have.
    #[error("{path}: the lease has {got} attached nodes or locks, the limit of each is {most}; use another lease")]
    LeaseFull {
        /// The node.
        path: NodePath,
        /// The number of nodes attached to the lease, or that of locks under it.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// No key lease has this id, or the id now stands for another lease.
    #[error("lease {id:016x}: not found")]
    LeaseNotFound {
        /// The lease.
        id: LeaseId,
    },
    /// A key lease with this id exists.
    #[error("lease {id:016x}: already exists")]
    LeaseExists {
        /// The lease.
        id: LeaseId,
    },
    /// No key lease has this name, or the name now stands for another lease.
    #[error("lease {name:?}: not found")]
    LeaseNameNotFound {
        /// The name.
        name: LeaseName,
    },
    /// A key lease with this name exists.
    #[error("lease {name:?}: already exists, with id {id:016x}")]
    LeaseNameExists {
        /// The name.
        name: LeaseName,
        /// The lease that has it.
        id: LeaseId,
    },
    /// The session has no lease on the node's volume, to which the node or lock could belong.
    #[error("{path}: the session has no lease on volume {volume}; a lock or an attached node needs one")]
    NoVolumeLease {
        /// The node.
        path: NodePath,
        /// The volume that it belongs to.
        volume: NodePath,
    },
    /// The node is attached to a lease. Such a node cannot have children or be a volume
    /// (ZooKeeper), and gets no write lease.
    #[error("{path}: attached to a lease; such a node has no children, no write lease, and is no volume")]
    Attached {
        /// The node.
        path: NodePath,
    },
    /// The node has children or is a volume, so it cannot be attached to a lease (ZooKeeper).
    #[error("{path}: has children or is a volume; only a leaf can be attached to a lease")]
    NotALeaf {
        /// The node.
        path: NodePath,
    },
    /// Nodes or locks depend on a lease on the volume.
    #[error("{path}: the volume is in use; session {session} has locks or attached nodes there")]
    VolumeInUse {
        /// The top of the volume.
        path: NodePath,
        /// The first session with such a lease.
        session: SessionId,
    },
    /// The node is taken, and the request does not want to wait.
    #[error("{path}: locked by session {owner} under token {token}; {waiting} waiting")]
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
    #[error("{path}: lock {lock} not found; it was released, or ended with its lease")]
    LockNotFound {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
    },
    /// The lock is not granted yet.
    #[error("{path}: lock {lock} is not granted; it waits in the queue")]
    LockNotGranted {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
    },
    /// Another shared owner of the node already waits for an upgrade. The two would wait for each
    /// other for ever.
    #[error("{path}: another shared lock already waits for an upgrade; release this lock first")]
    UpgradePending {
        /// The node.
        path: NodePath,
    },
    /// The lock is shared. Only an exclusive lock can become a write lease.
    #[error("{path}: lock {lock} is shared; expected an exclusive lock")]
    NotExclusive {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
    },
    /// The token in the flush is not that of the lock.
    #[error("{path}: lock {lock} has token {expected}; the flush names token {got}")]
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
    #[error("{path}: lock {lock} is not a write lease; there is nothing to flush")]
    NotAWriteLease {
        /// The node.
        path: NodePath,
        /// The lock.
        lock: LockId,
    },
    /// The node has too many locks: granted, waiting, and lost ones in their lock delay.
    #[error("{path}: the node has {got} locks, the limit is {most}")]
    TooManyLocks {
        /// The node.
        path: NodePath,
        /// The number of locks.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// An operation of the chosen branch is refused, so the transaction does nothing.
    #[error("operation {} of branch {branch}: {refusal}", index + 1)]
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
        "operations {} and {} of branch {branch}: both affect {path}; operations of one branch \
         must be independent",
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
    #[error("{path}: lock {successor} does not wait in the queue; a successor must")]
    SuccessorNotWaiting {
        /// The node.
        path: NodePath,
        /// The named successor.
        successor: LockId,
    },
}

impl From<Overlap> for WriteRefusal {
    fn from(Overlap { branch, first, second, path }: Overlap) -> Self {
        Self::Overlap { branch, first, second, path }
    }
}
