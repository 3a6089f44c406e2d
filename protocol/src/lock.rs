//! Holds: read and write leases on single nodes that are taken on purpose. A hold is a lock, and
//! touches no data; an exclusive one can be made a write lease, whose holder keeps the node's data
//! to itself.
//!
//! A hold belongs to a session and lives under its lease on the node's volume: when that ends, it
//! ends. It names a node by its path, whether or not the node exists.

use serde::{Deserialize, Serialize};

use crate::{
    id::{Incarnation, LockId, Token},
    object::Stat,
    path::NodePath,
};

/// Who may hold a node together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockMode {
    /// Any number of holders, all of them shared (a read lock).
    Shared,
    /// One holder, alone (a write lock).
    Exclusive,
}

impl LockMode {
    /// Whether two holders with these modes may hold the same node.
    pub fn is_compatible_with(self, other: Self) -> bool {
        self == Self::Shared && other == Self::Shared
    }
}

/// How a hold stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockStatus {
    /// It waits in the node's queue.
    Waiting,
    /// It is held.
    Granted {
        /// Of the grant: a hold that is made exclusive gets a new one.
        token: Token,
        /// As what.
        mode: LockMode,
        /// Somebody else waits for the node: the holder may give it back, and need not.
        is_contended: bool,
    },
    /// It is over: given back, or gone with its lease.
    Ended,
}

/// What a request for a hold came to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockGrant {
    /// The node.
    pub path: NodePath,
    /// Names it from now on.
    pub lock: LockId,
    /// As what it is held, or asked for.
    pub mode: LockMode,
    /// Of the grant. None: it waits in the queue.
    pub token: Option<Token>,
    /// The top of the volume under the lease on which it lives.
    pub volume: NodePath,
    /// That lease: when it is over, so is the hold.
    pub incarnation: Incarnation,
}

/// How a write lease stands: what its holder has set in its own memory, and how much of that is on
/// the servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct WriteLeaseStatus {
    /// The application may read and write in memory. If not, the hold is an ordinary one, or about
    /// to become one.
    pub is_open: bool,
    /// How often the value was set.
    pub set_count: u64,
    /// How many of these are on the servers, or overwritten by one that is. Or lost: that is told
    /// by [`Effect::FlushLost`](crate::holder::Effect::FlushLost).
    pub flushed_count: u64,
    /// What the servers said of the node last.
    pub stat: Option<Stat>,
}
