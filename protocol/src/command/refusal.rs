//! Why writes do not take effect.

use serde::{Deserialize, Serialize};

use crate::{
    id::{HoldId, LeaseId, Revision, SessionId, Token},
    path::Path,
    transaction::Branch,
};

/// Why a write did not take effect. It changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum WriteRefusal {
    /// There is no such node.
    #[error("{path} does not exist")]
    NotFound {
        /// The node.
        path: Path,
    },
    /// The node exists and must not.
    #[error("{path} exists already, since revision {create_revision}")]
    Exists {
        /// The node.
        path: Path,
        /// When it was made.
        create_revision: Revision,
    },
    /// The node changed since.
    #[error("{path} was last changed at revision {got}: expected {expected}")]
    RevisionDiffers {
        /// The node.
        path: Path,
        /// Its modify revision.
        got: Revision,
        /// The revision that the write named.
        expected: Revision,
    },
    /// The node has children and the delete was not recursive.
    #[error("{path} has {children} children: expected none, or a recursive delete")]
    HasChildren {
        /// The node.
        path: Path,
        /// How many.
        children: u64,
    },
    /// The root cannot be removed.
    #[error("{path} is the root: it always exists and always is a volume")]
    Root {
        /// The root's path.
        path: Path,
    },
    /// There is no volume with this top.
    #[error("{path} is not a volume: it belongs to the volume {volume}")]
    NotAVolume {
        /// The path.
        path: Path,
        /// The volume that it belongs to.
        volume: Path,
    },
    /// The volume has taken the name of the one that there was, or was not, when the write arrived (S7b).
    #[error("volume {path}: made anew since the write was sent")]
    VolumeReplaced {
        /// Its top.
        path: Path,
    },
    /// There is a volume with this top.
    #[error("{path} is a volume already")]
    VolumeExists {
        /// Its top.
        path: Path,
    },
    /// The delete would take volumes with it.
    #[error("{path} holds the volume {volume}: expected volumes to be removed first")]
    HoldsVolume {
        /// What was to be removed.
        path: Path,
        /// A volume at or below it.
        volume: Path,
    },
    /// The delete would remove more nodes than one command may.
    #[error("{path}: {got} nodes or more to remove, above the limit of {most}; remove what lies below it in parts")]
    TooManyNodes {
        /// What was to be removed.
        path: Path,
        /// How many nodes were counted before the count was given up.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// The lease carries as many nodes as one may.
    #[error("{path}: its lease carries {got} nodes, and the limit is {most}; attach it to another lease")]
    LeaseFull {
        /// The node.
        path: Path,
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
        path: Path,
        /// The volume that it belongs to.
        volume: Path,
    },
    /// The node goes with a lease, and such a node has no children, is no volume (ZooKeeper) and under no write lease.
    #[error(
        "{path} goes with a lease: expected a node that stays, to have children, be a volume or be under a write lease"
    )]
    Leased {
        /// The node.
        path: Path,
    },
    /// The node cannot go with a lease, because it has children or is a volume (ZooKeeper).
    #[error("{path} cannot go with a lease: expected a node without children that is no volume")]
    NotALeaf {
        /// The node.
        path: Path,
    },
    /// A lease on the volume carries nodes or holds.
    #[error("session {session} has nodes or holds in {path} that go with its lease on it: expected none")]
    VolumeCarries {
        /// The top of the volume.
        path: Path,
        /// The first session that has such nodes or holds.
        session: SessionId,
    },
    /// The node cannot be had now, and the request was not to wait.
    #[error(
        "{path} is held by session {holder} under token {token}, and {waiting} wait for it: expected it to be free"
    )]
    Held {
        /// The node.
        path: Path,
        /// Who holds it, or one of them.
        holder: SessionId,
        /// The token of that hold.
        token: Token,
        /// How many wait in the queue.
        waiting: u64,
    },
    /// The session has no such hold (any more).
    #[error("hold {hold} on {path} does not exist: it was given back, or is gone with its lease")]
    HoldNotFound {
        /// The node.
        path: Path,
        /// The hold.
        hold: HoldId,
    },
    /// The hold is not held yet.
    #[error("hold {hold} on {path} waits in the queue: expected it to be held")]
    HoldWaits {
        /// The node.
        path: Path,
        /// The hold.
        hold: HoldId,
    },
    /// Two that hold the node shared want it alone: neither would ever get it.
    #[error("{path} is already waited for by another that holds it shared: expected this hold to be given back first")]
    UpgradePending {
        /// The node.
        path: Path,
    },
    /// The hold is shared, and only who holds a node alone can keep its data to itself.
    #[error("hold {hold} on {path} is shared: expected an exclusive one")]
    NotExclusive {
        /// The node.
        path: Path,
        /// The hold.
        hold: HoldId,
    },
    /// The node is held under another token than what was flushed was written under.
    #[error("hold {hold} on {path} is held under token {expected}: expected what is flushed to be of it, got {got}")]
    TokenOver {
        /// The node.
        path: Path,
        /// The hold.
        hold: HoldId,
        /// The token that the flush named.
        got: Token,
        /// The token of the hold.
        expected: Token,
    },
    /// The holder does not keep the node's data to itself (any more), so it has nothing to flush.
    #[error("hold {hold} on {path} is no write lease: expected one, for there to be something to flush")]
    NotCaching {
        /// The node.
        path: Path,
        /// The hold.
        hold: HoldId,
    },
    /// There are too many holds on the node.
    #[error("{path} has {got} holders and waiters: expected at most {most}")]
    TooManyHolds {
        /// The node.
        path: Path,
        /// How many there are.
        got: u64,
        /// The bound.
        most: u64,
    },
    /// An operation of the branch that a transaction's comparisons choose is refused: nothing is done.
    #[error("operation {} of the branch {branch}: {refusal}", place + 1)]
    Operation {
        /// The branch.
        branch: Branch,
        /// The operation's place in it, from 0.
        place: u32,
        /// Why.
        refusal: Box<WriteRefusal>,
    },
    /// Two operations of a transaction's branch depend on each other.
    #[error(
        "operations {} and {} of the branch {branch} meet at {path}: expected operations that do not depend on each other",
        one + 1,
        other + 1
    )]
    Overlap {
        /// The branch.
        branch: Branch,
        /// The place in it of one, from 0.
        one: u32,
        /// The place of the other.
        other: u32,
        /// The node that the other is about.
        path: Path,
    },
    /// Nobody stands there to whom a hold could be handed over.
    #[error("hold {to} does not wait for {path}: expected one that stands in its queue")]
    NoSuccessor {
        /// The node.
        path: Path,
        /// Who was to have it.
        to: HoldId,
    },
}
