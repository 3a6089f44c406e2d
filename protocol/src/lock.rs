//! Locks: shared and exclusive rights to single nodes. A lock concerns no data. But an exclusive
//! lock can become a write lease, whose owner also reads and writes the node in its memory.
//!
//! A lock belongs to a session, and ends with that session's lease on the volume to which the node
//! belonged when the lock was requested. It names the node by its path. The node need not exist.

use serde::{Deserialize, Serialize};

use crate::{
    id::{Incarnation, LockId, Token},
    object::Stat,
    path::NodePath,
};

/// The mode of a lock. It decides which locks on a node can be granted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockMode {
    /// Granted beside any number of shared locks (a read lock).
    Shared,
    /// Granted alone (a write lock).
    Exclusive,
}

impl LockMode {
    /// Whether locks with these two modes can be granted on one node.
    pub fn is_compatible_with(self, other: Self) -> bool {
        self == Self::Shared && other == Self::Shared
    }
}

/// The state of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockStatus {
    /// It waits in the node's lock queue.
    Waiting,
    /// It is granted.
    Granted {
        /// The fencing token of the grant. An upgrade assigns a new token.
        token: Token,
        /// The granted mode.
        mode: LockMode,
        /// Another lock waits for the node, or another owner waits for an upgrade. The owner may
        /// release the lock, but need not.
        is_contended: bool,
    },
    /// It was released or handed over, or it ended with its lease.
    Ended,
}

/// The result of a request for a lock, or for another mode of one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockOutcome {
    /// The node.
    pub path: NodePath,
    /// The id of the lock.
    pub lock: LockId,
    /// The granted mode, or the requested one.
    pub mode: LockMode,
    /// The fencing token of the grant. None while the request waits in the queue.
    pub token: Option<Token>,
    /// The top of the volume. The lock is under the session's lease on it.
    pub volume: NodePath,
    /// The incarnation of that lease. The lock ends with it.
    pub incarnation: Incarnation,
}

/// The state of a write lease: how many values its owner has set in memory, and how many are
/// flushed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct WriteLeaseStatus {
    /// True while the application may read and write in memory. If not, the lock is an ordinary
    /// lock, or becomes one soon.
    pub is_open: bool,
    /// How often the value was set.
    pub set_count: u64,
    /// How many of these values were flushed, overwritten by a flushed one, or lost.
    /// [`HolderEffect::FlushLost`](crate::holder::HolderEffect::FlushLost) reports a loss.
    pub flushed_count: u64,
    /// The node's latest stat from the servers.
    pub stat: Option<Stat>,
}
