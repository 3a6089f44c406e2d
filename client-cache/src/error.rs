//! The errors, by operation.
//!
//! They distinguish three cases, because a caller reacts to each in another way:
//!
//! - a server *refused* the request;
//! - no server could answer ([`Unavailable`]: no server, or no leader, hence no quorum);
//! - there was a leader, and the time ran out.

mod ensure_volume;
mod predicates;
mod write;

use std::time::Duration;

use leasehold_protocol::{
    command::WriteRefusal,
    holder,
    id::{LeaseId, Revision},
    lease_name::{LeaseName, LeaseNameError},
    message::Refusal,
    path::{NodePath, PathError},
};

use crate::lost_change::LostChange;

pub use ensure_volume::EnsureVolumeError;
pub use write::WriteError;

/// Why no server could answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// No endpoint could be connected to.
    #[error("no server answers at {}: {reason}", endpoints.join(", "))]
    NoServer {
        /// The endpoints that were tried.
        endpoints: Vec<String>,
        /// The error of the last attempt.
        reason: String,
    },
    /// Servers answer, but they belong to another cluster than this client.
    #[error(
        "{endpoint}: belongs to cluster {got}, and this client to {expected}, of which no server answers; \
         correct the endpoints, or restart this client if its cluster no longer exists"
    )]
    OtherCluster {
        /// One of these servers.
        endpoint: String,
        /// The cluster that it belongs to.
        got: String,
        /// The cluster that this client belongs to.
        expected: String,
    },
    /// A server answers, but none leads: there is an election, or no quorum.
    #[error("no leader: {reason}")]
    NoLeader {
        /// The last answer or event.
        reason: String,
    },
}

/// Why a client could not connect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The options have no endpoint.
    #[error("no endpoints; expected at least one HOST:PORT")]
    NoEndpoints,
    /// No server that could open a session was found in time.
    #[error("no session after {after:?}")]
    Unavailable {
        /// How long the client tried.
        after: Duration,
        /// Why no server could answer.
        source: Unavailable,
    },
    /// The servers refuse a session, because the client's name is too long.
    #[error(transparent)]
    Refused(Refusal),
    /// A leader was found, and did not answer in time.
    #[error("no session after {after:?}, though there is a leader")]
    TimedOut {
        /// How long the client waited.
        after: Duration,
    },
}

/// Why a read was not answered. A read changes nothing, so it can be tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The path is bad. Nothing was sent.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The server refused it for good.
    #[error("{path}: {refusal}")]
    Refused {
        /// The node.
        path: NodePath,
        /// The reason.
        refusal: Refusal,
    },
    /// No server that could answer was found in time.
    #[error("{path}: read: no answer after {after:?}")]
    Unavailable {
        /// The node.
        path: NodePath,
        /// How long the client tried.
        after: Duration,
        /// Why no server could answer.
        source: Unavailable,
    },
    /// A leader was asked, and did not answer in time.
    #[error("{path}: read: no answer after {after:?}")]
    TimedOut {
        /// The node.
        path: NodePath,
        /// How long the client waited.
        after: Duration,
    },
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

impl ReadError {
    /// The node, unless the path is bad or the client is closed.
    pub fn path(&self) -> Option<&NodePath> {
        match self {
            Self::Refused { path, .. } | Self::Unavailable { path, .. } | Self::TimedOut { path, .. } => Some(path),
            Self::Path(_) | Self::Closed => None,
        }
    }

    /// Whether no server could answer.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// Why a lock operation failed.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::LockWait;
///
/// match client.lock("/jobs/nightly").wait(LockWait::No).await {
///     Ok(guard) => guard.release().await?,
///     Err(error) if error.is_not_free() => println!("another client runs the job"),
///     Err(error) if error.is_unavailable() => println!("no server can answer"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The path is bad. Nothing was sent.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The request was refused or not answered.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The servers did not answer in time, or did not confirm an earlier release of this client. If
    /// the lock is granted later, the client releases it.
    #[error("{path}: the servers did not answer, or confirm an earlier release, within {after:?}")]
    TimedOut {
        /// The node.
        path: NodePath,
        /// How long the client waited.
        after: Duration,
    },
    /// The lock was not granted within the given wait. The client cancels the request.
    #[error("{path}: lock not granted after {after:?}")]
    NotGranted {
        /// The node.
        path: NodePath,
        /// How long the client waited.
        after: Duration,
    },
    /// The session lost its lease on the node's volume. So it lost the lock or its position in the
    /// queue.
    #[error("{path}: lock lost; no server renewed its lease in time, or the session has ended")]
    Lost {
        /// The node.
        path: NodePath,
    },
}

impl LockError {
    /// Whether the lock was not free, at once or within the given wait.
    pub fn is_not_free(&self) -> bool {
        match self {
            Self::NotGranted { .. } => true,
            Self::Write(error) => matches!(error.refusal(), Some(WriteRefusal::Locked { .. })),
            _ => false,
        }
    }

    /// Whether the lock is lost, with its lease.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Whether no server could answer.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Write(error) if error.is_unavailable())
    }
}

/// Why an operation on a write lease failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteLeaseError {
    /// The path is bad. Nothing was sent.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A value that was set before is lost: the lock ended first, or the servers refused the value.
    /// Each loss is reported once.
    #[error("{0}")]
    Lost(LostChange),
    /// The lock was not granted, or has ended.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A request was refused or not answered.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The time ran out. A flush continues in the background.
    #[error("{path}: write lease not granted, or not flushed, after {after:?}")]
    TimedOut {
        /// The node.
        path: NodePath,
        /// How long the client waited.
        after: Duration,
    },
}

/// Why a key lease is not renewed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// There is no such lease, or it has ended.
    #[error("lease {id:016x}: not found")]
    NotFound {
        /// The lease.
        id: LeaseId,
    },
    /// No lease has this name.
    #[error("lease {name:?}: not found")]
    NameNotFound {
        /// The name.
        name: LeaseName,
    },
    /// The name of the lease is bad. Nothing was sent.
    #[error(transparent)]
    LeaseName(#[from] LeaseNameError),
    /// It could not be found out which lease has the name.
    #[error(transparent)]
    Lookup(InspectError),
    /// No server that could answer was found in time.
    #[error("lease: not renewed after {after:?}")]
    Unavailable {
        /// How long the client tried.
        after: Duration,
        /// Why no server could answer.
        source: Unavailable,
    },
    /// A leader was asked, and did not answer in time.
    #[error("lease: not renewed after {after:?}")]
    TimedOut {
        /// How long the client waited.
        after: Duration,
    },
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

/// Why a watch ended or did not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The path is bad. Nothing was sent.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The history is compacted: read again, and watch from there. A watch leaves out no change
    /// without this error.
    #[error("revision {after} is compacted; read again and watch from there")]
    Compacted {
        /// The last change that was reported, or the one before the first that was requested.
        after: Revision,
        /// The earliest revision after which a watch could begin when the server answered.
        earliest_after: Revision,
    },
    /// The server refused it for good.
    #[error(transparent)]
    Refused(Refusal),
    /// No server that could answer was found in time.
    #[error("watch: not begun after {after:?}")]
    Unavailable {
        /// How long the client tried.
        after: Duration,
        /// Why no server could answer.
        source: Unavailable,
    },
    /// A leader was asked, and did not answer in time.
    #[error("watch: not begun after {after:?}")]
    TimedOut {
        /// How long the client waited.
        after: Duration,
    },
    /// The server's answer does not fit the request.
    #[error("unexpected answer; the server may have another version")]
    UnexpectedAnswer,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

impl From<holder::WatchFailure> for WatchError {
    fn from(error: holder::WatchFailure) -> Self {
        match error {
            holder::WatchFailure::Compacted { after, earliest_after } => Self::Compacted { after, earliest_after },
            holder::WatchFailure::Refused(refusal) => Self::Refused(refusal),
            holder::WatchFailure::Closed => Self::Closed,
        }
    }
}

impl From<InspectError> for WatchError {
    fn from(error: InspectError) -> Self {
        match error {
            InspectError::Path(error) => Self::Path(error),
            // A watch names no lease.
            InspectError::LeaseName(_) => Self::UnexpectedAnswer,
            InspectError::Refused(refusal) => Self::Refused(refusal),
            InspectError::Unavailable { after, source } => Self::Unavailable { after, source },
            InspectError::TimedOut { after } => Self::TimedOut { after },
            InspectError::UnexpectedAnswer => Self::UnexpectedAnswer,
            InspectError::Closed => Self::Closed,
        }
    }
}

/// Why a request about the servers' state failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The path is bad. Nothing was sent.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The name of the lease is bad. Nothing was sent.
    #[error(transparent)]
    LeaseName(#[from] LeaseNameError),
    /// The server refused.
    #[error(transparent)]
    Refused(Refusal),
    /// No server that could answer was found in time.
    #[error("no server answered within {after:?}")]
    Unavailable {
        /// How long the client tried.
        after: Duration,
        /// Why no server could answer.
        source: Unavailable,
    },
    /// A leader was asked, and did not answer in time.
    #[error("no answer within {after:?}")]
    TimedOut {
        /// How long the client waited.
        after: Duration,
    },
    /// The server's answer does not fit the request.
    #[error("unexpected answer; the server may have another version")]
    UnexpectedAnswer,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

/// Why an update was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The path is bad. Nothing was sent.
    #[error(transparent)]
    Path(#[from] PathError),
    /// In each try, another write of the node came in between. The update changed nothing.
    #[error("{path}: not updated after {after:?}; another client wrote it in each of {tries} tries")]
    Contended {
        /// The node.
        path: NodePath,
        /// How long the client tried.
        after: Duration,
        /// How often the client tried.
        tries: u32,
    },
    /// The node could not be read. The update changed nothing.
    #[error("try {tries}: read failed")]
    Read {
        /// The number of the try.
        tries: u32,
        /// The read's error.
        source: ReadError,
    },
    /// The node could not be written.
    #[error("try {tries}: write failed")]
    Write {
        /// The number of the try.
        tries: u32,
        /// The write's error.
        source: WriteError,
    },
}

impl UpdateError {
    /// Whether the last write may have taken effect, or may still.
    pub fn may_still_happen(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.may_still_happen())
    }

    /// How often the client tried.
    pub fn tries(&self) -> u32 {
        match self {
            Self::Path(_) => 0,
            Self::Contended { tries, .. } | Self::Read { tries, .. } | Self::Write { tries, .. } => *tries,
        }
    }
}

/// Why a snapshot read failed. It changed nothing, so it can be tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The path is bad. Nothing was sent.
    #[error(transparent)]
    Path(#[from] PathError),
    /// One of the nodes could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The nodes kept changing.
    #[error("snapshot: not taken after {after:?}; the nodes changed in each of {tries} tries")]
    Contended {
        /// How long the client tried.
        after: Duration,
        /// How often the client tried.
        tries: u32,
    },
    /// Too many of the nodes do not exist, and this client has no lease on their absence. For such
    /// nodes, only a transaction shows that none of them existed at one moment. A transaction has a
    /// bounded number of comparisons.
    #[error("snapshot: {got} absent nodes without leases: expected at most {most}")]
    TooManyAbsent {
        /// The number of such nodes.
        got: usize,
        /// The bound.
        most: usize,
    },
}

#[cfg(test)]
mod tests;
