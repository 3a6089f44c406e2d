//! Why a benchmark has no result.

use std::time::Duration;

use leasehold_client_cache::{
    ConnectError, InspectError, LeaseId, LockError, NodePath, ReadError, Refusal, WatchError, WriteError,
};
use leasehold_protocol::path::PathError;
use leasehold_wire::DialError;
use tarpc::client::RpcError;
use tokio::task::JoinError;

use crate::{closed_loop::LoopError, process::ProcessError};

/// Why a benchmark has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No operation ended in the measured time, or one panicked.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// A thread or task of the benchmark panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
    /// A path is not valid.
    #[error(transparent)]
    Path(#[from] PathError),
    /// No session could be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A write failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A lock could not be acquired or released.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A watch failed.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// A question about leases failed.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// A [`LoadLine`](crate::LoadLine) was to be opened to no server.
    #[error("no endpoints were given")]
    NoEndpoints,
    /// No connection could be opened.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// A request got no answer.
    #[error(transparent)]
    Call(#[from] RpcError),
    /// A server refused a request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A server answered something else.
    #[error("the server's answer is not one to the question")]
    UnexpectedAnswer,
    /// The cache did not keep all copies.
    #[error("{missing} of {of} copies are not in memory")]
    NotCached {
        /// Copies that are not in memory.
        missing: usize,
        /// All copies.
        of: usize,
    },
    /// A cached read asked a server.
    #[error("a read went to a server: expected all from memory")]
    ServerRead,
    /// The leases that are to expire could not be granted before the first was due.
    #[error("{leases} leases could not be granted in time: expected {per_second} in a second")]
    TooSlow {
        /// All leases.
        leases: u64,
        /// How many should be granted in a second.
        per_second: u64,
    },
    /// A lease ended before its term.
    #[error("lease {0} is gone before its term is over")]
    LeaseGone(LeaseId),
    /// A node was removed before its lease could end.
    #[error("{path} went {early:?} too early")]
    TooEarly {
        /// The node.
        path: NodePath,
        /// How much too early.
        early: Duration,
    },
    /// A node was removed that the benchmark has not made.
    #[error("{0} went: expected a node of ours")]
    Stranger(NodePath),
    /// A watcher did not see the removal of all nodes in time.
    #[error("{gone} of {nodes} nodes went: expected all")]
    NotGone {
        /// Removed nodes.
        gone: u64,
        /// All nodes.
        nodes: u64,
    },
    /// A watcher did not see a write in time.
    #[error("a watcher was not told: expected all {watchers} to be within {within:?}")]
    NotTold {
        /// All watchers.
        watchers: usize,
        /// How long that may take.
        within: Duration,
    },
    /// Sessions lost their leases, or the leader changed.
    #[error("{lost} of {leases} leases were lost: expected none, and replica {leader} to lead on")]
    LeasesLost {
        /// Lost leases.
        lost: usize,
        /// All leases.
        leases: usize,
        /// The leader at the beginning.
        leader: u64,
    },
    /// A process could not be measured.
    #[error(transparent)]
    Process(#[from] ProcessError),
}
