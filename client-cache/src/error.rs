//! What can go wrong, by operation.
//!
//! Three things are kept apart that mean different things to whoever decides what to do next: a
//! server *refused*; nobody was there who could have answered ([`Unavailable`]: no server, or
//! servers without a leader, that is without a quorum); a leader was there and the time ran out.

use std::time::Duration;

use leasehold_protocol::{
    holder,
    id::{LeaseId, Revision},
    limits::LimitError,
    message::Refusal,
    path::NodePath,
};

use crate::write_lease::LostChange;

/// Why there was nobody to ask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// No connection could be made to any endpoint.
    #[error("no server answers at {}: {reason}", endpoints.join(", "))]
    NoServer {
        /// Where servers were looked for.
        endpoints: Vec<String>,
        /// What the last attempt ended with.
        reason: String,
    },
    /// Servers answer, but only such as belong to another cluster than this client.
    #[error(
        "{endpoint} belongs to cluster {got}: expected {expected}, that of this client; no server of that \
         cluster answers: correct the endpoints, or start this client anew if that cluster is gone for good"
    )]
    OtherCluster {
        /// One of them.
        endpoint: String,
        /// The cluster that it belongs to.
        got: String,
        /// The cluster that this client belongs to.
        expected: String,
    },
    /// A server answers, but none that leads: an election is under way, or there is no quorum.
    #[error("no server leads: {reason}")]
    NoLeader {
        /// What was heard last.
        reason: String,
    },
}

/// Why there is no client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// There is nowhere to connect to.
    #[error("no endpoints were given: expected at least one, written host:port")]
    NoEndpoints,
    /// Nobody who could open a session was found in time.
    #[error("no session within {after:?}: {source}")]
    Unavailable {
        /// How long it was tried.
        after: Duration,
        /// What was found instead.
        source: Unavailable,
    },
    /// The servers do not give a session to this client, whose name is too long for them.
    #[error(transparent)]
    Refused(Refusal),
    /// A leader was found and did not answer in time.
    #[error("a leader was found and opened no session within {after:?}")]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
}

/// Why a read was not answered. Reading changes nothing: it can be tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The server refused it for good.
    #[error(transparent)]
    Refused(Refusal),
    /// Nobody who could answer was found in time.
    #[error("the read was not answered within {after:?}: {source}")]
    Unavailable {
        /// How long it was tried.
        after: Duration,
        /// What was found instead.
        source: Unavailable,
    },
    /// A leader was asked and did not answer in time.
    #[error("the read was not answered within {after:?}")]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

/// Why there is no hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// It was refused, or there was nobody to ask.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The request was not answered in time. If it is granted, it is given back.
    #[error("the request for a hold on {path} was not answered within {after:?}")]
    TimedOut {
        /// The node.
        path: NodePath,
        /// How long it was waited for.
        after: Duration,
    },
    /// Somebody was in the way for longer than was to be waited. The request is withdrawn.
    #[error("{path} was not free within {after:?}")]
    NotGranted {
        /// The node.
        path: NodePath,
        /// How long it was waited for.
        after: Duration,
    },
    /// The session lost its lease on the node's volume, and the hold or the place in the queue with
    /// it.
    #[error("the hold on {path} is lost: no server was heard of in time, or the session is over")]
    Lost {
        /// The node.
        path: NodePath,
    },
}

/// Why something did not come of a write lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteLeaseError {
    /// Something that was set before is not on the servers, and will not be: the hold was over
    /// first, or the servers refused it. Told once.
    #[error("{0}")]
    Lost(LostChange),
    /// The node is not held, or not any more.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Something was refused, or there was nobody to ask.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// It took too long. What was set before goes on being flushed.
    #[error("{path} was not to be had, or not flushed, within {after:?}")]
    TimedOut {
        /// The node.
        path: NodePath,
        /// How long it was waited for.
        after: Duration,
    },
}

/// Why a write was not acknowledged, and whether it may still happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The server refused it for good: it changed nothing and never will.
    #[error(transparent)]
    Refused(Refusal),
    /// The client can tell by itself that servers would refuse it.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Nobody to send it to was found in time: it changed nothing and never will.
    #[error("the write was not sent within {after:?}: {source}")]
    Unavailable {
        /// How long it was tried.
        after: Duration,
        /// What was found instead.
        source: Unavailable,
    },
    /// The time ran out before it was its turn to be sent: it changed nothing and never will.
    #[error("the write was not sent within {after:?}, because others before it were unanswered: it changed nothing")]
    NotSent {
        /// How long it waited.
        after: Duration,
    },
    /// It was sent, and the time ran out: it may have taken effect, or may still.
    #[error("the write was not acknowledged within {after:?}: it may have taken effect, or may still")]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
    /// It was sent, and then the session ended: it may have taken effect. (It is never sent under
    /// another session, where it could take effect twice.)
    #[error("the session ended before the write was acknowledged: it may have taken effect, or may still")]
    OutcomeUnknown,
    /// The session ended, or the client was closed, before it was sent: it changed nothing and
    /// never will.
    #[error("the session ended before the write was sent: it changed nothing")]
    SessionEnded,
}

impl WriteError {
    /// Whether the write may have taken effect, or may still.
    pub fn may_still_happen(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::OutcomeUnknown)
    }
}

/// Why a key lease is not kept alive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// There is no such lease (any more).
    #[error("lease {id:x} does not exist")]
    NotFound {
        /// The lease.
        id: LeaseId,
    },
    /// Nobody who could answer was found in time.
    #[error("the lease was not renewed within {after:?}: {source}")]
    Unavailable {
        /// How long it was tried.
        after: Duration,
        /// What was found instead.
        source: Unavailable,
    },
    /// A leader was asked and did not answer in time.
    #[error("the lease was not renewed within {after:?}")]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

/// Why a watch is over, or was not begun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// It is not known any more what happened: read anew, and watch from there. Nothing was left
    /// out without this being said.
    #[error("the changes after {after} are not all known any more: expected a fresh read, and a watch from there on")]
    Compacted {
        /// The last change that was told, or the one before the first that was to be told.
        after: Revision,
        /// The least that could be watched after when this was said.
        oldest: Revision,
    },
    /// The server refused it for good.
    #[error(transparent)]
    Refused(Refusal),
    /// Nobody who could answer was found in time.
    #[error("the watch was not begun within {after:?}: {source}")]
    Unavailable {
        /// How long it was tried.
        after: Duration,
        /// What was found instead.
        source: Unavailable,
    },
    /// A leader was asked and did not answer in time.
    #[error("the watch was not begun within {after:?}")]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
    /// The server's answer is not one to what was asked.
    #[error("the server's answer is not one to the question")]
    UnexpectedAnswer,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

impl From<holder::WatchFailure> for WatchError {
    fn from(error: holder::WatchFailure) -> Self {
        match error {
            holder::WatchFailure::Compacted { after, oldest } => Self::Compacted { after, oldest },
            holder::WatchFailure::Refused(refusal) => Self::Refused(refusal),
            holder::WatchFailure::Closed => Self::Closed,
        }
    }
}

impl From<InspectError> for WatchError {
    fn from(error: InspectError) -> Self {
        match error {
            InspectError::Refused(refusal) => Self::Refused(refusal),
            InspectError::Unavailable { after, source } => Self::Unavailable { after, source },
            InspectError::TimedOut { after } => Self::TimedOut { after },
            InspectError::UnexpectedAnswer => Self::UnexpectedAnswer,
            InspectError::Closed => Self::Closed,
        }
    }
}

/// Why something could not be looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InspectError {
    /// The server refused.
    #[error(transparent)]
    Refused(Refusal),
    /// Nobody who could answer was found in time.
    #[error("nothing was heard within {after:?}: {source}")]
    Unavailable {
        /// How long it was tried.
        after: Duration,
        /// What was found instead.
        source: Unavailable,
    },
    /// A leader was asked and did not answer in time.
    #[error("no answer within {after:?}")]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
    /// The server's answer is not one to this question.
    #[error("the server's answer is not one to the question")]
    UnexpectedAnswer,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

/// Why an update was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// Somebody else wrote the node in between, each time. It changed nothing.
    #[error("{path} was not updated within {after:?}: in each of {tries} tries somebody else wrote it in between")]
    Contended {
        /// The node.
        path: NodePath,
        /// How long it was tried.
        after: Duration,
        /// How often.
        tries: u32,
    },
    /// The node could not be read. It changed nothing.
    #[error("try {tries}: {source}")]
    Read {
        /// The try.
        tries: u32,
        /// Why.
        source: ReadError,
    },
    /// The node could not be written.
    #[error("try {tries}: {source}")]
    Write {
        /// The try.
        tries: u32,
        /// Why.
        source: WriteError,
    },
}

impl UpdateError {
    /// Whether the last write may have taken effect, or may still.
    pub fn may_still_happen(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.may_still_happen())
    }

    /// How often it was tried.
    pub fn tries(&self) -> u32 {
        match self {
            Self::Contended { tries, .. } | Self::Read { tries, .. } | Self::Write { tries, .. } => *tries,
        }
    }
}

/// Why there is no snapshot. Reading changes nothing: it can be tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// One of the nodes could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The nodes kept changing.
    #[error("no moment was found within {after:?} at which all nodes stood still, in {tries} tries")]
    Contended {
        /// How long it was tried.
        after: Duration,
        /// How often.
        tries: u32,
    },
}
