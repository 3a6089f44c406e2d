//! Why requests are not done.

use serde::{Deserialize, Serialize};

use crate::{
    command::WriteRefusal,
    id::{Epoch, Revision, Sequence, SessionId},
    limits::LimitError,
    volume::VolumeError,
};

/// Why a request was not done. Unless it says otherwise, nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// This server does not lead.
    #[error("this server does not lead; the leader is {}", leader.as_deref().unwrap_or("not known"))]
    NotLeader {
        /// Where the leader listens, if that is known.
        leader: Option<String>,
    },
    /// The server has no proof that it leads, or stopped leading before anything was proposed: send
    /// it again.
    #[error("the server could not show that it leads: try again")]
    Retry,
    /// The server stopped leading after the write was proposed: it may still take effect. Send it
    /// again under the same sequence to learn.
    #[error("the leader changed while the write was being committed: it may still take effect")]
    OutcomeUnknown,
    /// The session has not registered with this leadership, or not on this connection.
    #[error("the session has registered with epoch {got}: expected {expected}")]
    NotRegistered {
        /// The epoch in the request.
        got: Epoch,
        /// The epoch of the leadership that answers.
        expected: Epoch,
    },
    /// The session does not exist (any more). Its leases, and all that depends on them, are gone.
    #[error("session {session} is gone")]
    SessionNotFound {
        /// The session.
        session: SessionId,
    },
    /// The request's number lies outside of the window of remembered outcomes (S9).
    #[error(
        "request {got} of the session is outside of the window of remembered outcomes: expected {lowest} to {highest}"
    )]
    OutsideWindow {
        /// The request's number.
        got: Sequence,
        /// The lowest accepted.
        lowest: Sequence,
        /// The highest accepted.
        highest: Sequence,
    },
    /// The write's conditions did not hold.
    #[error(transparent)]
    Write(#[from] WriteRefusal),
    /// Something is too long.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A volume cannot have these settings.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A bounded table of the server is full.
    #[error("the server has {got} {what} under way: expected at most {most}")]
    Busy {
        /// What there are too many of.
        what: String,
        /// How many.
        got: usize,
        /// The bound.
        most: usize,
    },
    /// What is to be watched is not known any more: the client starts over from a fresh read.
    #[error(
        "changes after {after} are not all known any more: expected a watch after {oldest} or later, and a fresh read before it"
    )]
    Compacted {
        /// The last change that the watcher knows.
        after: Revision,
        /// The least that can be watched after.
        oldest: Revision,
    },
}
