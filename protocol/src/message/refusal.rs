//! Reasons for refusing requests.

use serde::{Deserialize, Serialize};

use crate::{
    command::WriteRefusal,
    id::{Epoch, Revision, Sequence, SessionId},
    limits::LimitError,
    transaction::Overlap,
    volume::VolumeError,
};

/// The reason why the server refused a request. The body has changed nothing, unless the variant
/// says otherwise. The header of a request that the lessor has admitted counts in any case:
/// renewals, consents and returns.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// This server does not lead.
    #[error("this server is not the leader; the leader is {}", leader.as_deref().unwrap_or("unknown"))]
    NotLeader {
        /// The address of the leader, if known.
        leader: Option<String>,
    },
    /// The server cannot prove that it leads, or stopped leading before it proposed the write. Or a
    /// later request replaced this one. The client sends the request again, unless it asked for a
    /// next value.
    #[error("the server did not handle the request; try again")]
    Retry,
    /// The server stopped leading after it proposed the write, which may still take effect. The
    /// client sends it again under the same sequence to learn the outcome.
    #[error("the leader changed while the write was being committed; it may still take effect")]
    OutcomeUnknown,
    /// The session has not registered with this epoch, or not on this connection.
    #[error("session not registered with the leader on this connection; {}", why_not_registered(*got, *expected))]
    NotRegistered {
        /// The epoch in the request.
        got: Epoch,
        /// The epoch of the leader that answers.
        expected: Epoch,
    },
    /// The session does not exist. Its leases, and the nodes and locks under them, have ended too.
    #[error("session {session}: not found; it expired or was closed")]
    SessionNotFound {
        /// The session.
        session: SessionId,
    },
    /// The request's number is outside of the window of remembered outcomes (S9).
    #[error("request {got}: outside the window of remembered outcomes, {lowest} to {highest}")]
    OutsideWindow {
        /// The request's number.
        got: Sequence,
        /// The lowest accepted number.
        lowest: Sequence,
        /// The highest accepted number.
        highest: Sequence,
    },
    /// The write's conditions did not hold.
    #[error(transparent)]
    Write(#[from] WriteRefusal),
    /// A part of the request, or its answer, is too large.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A volume cannot have these settings.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A bounded table is full, or the server could not renew one more lease in time (S10b).
    #[error("server busy: {got} {what}, the limit is {most}")]
    Busy {
        /// The entries of the table, in the plural.
        what: String,
        /// Their number.
        got: usize,
        /// The bound.
        most: usize,
    },
    /// A change after the watch's revision is compacted: the history no longer has it, or has it
    /// without its events. The client starts over from a fresh read.
    #[error("revision {after} is compacted; a watch can begin after {earliest_after}; read again and watch from there")]
    Compacted {
        /// The last change that the watcher knows.
        after: Revision,
        /// The earliest revision after which a watch can begin.
        earliest_after: Revision,
    },
}

/// Two equal epochs would explain nothing.
fn why_not_registered(got: Epoch, expected: Epoch) -> String {
    match got == expected {
        true => "it may have registered on a later one".to_owned(),
        false => format!("its epoch is {got}, the leader's {expected}"),
    }
}

impl From<Overlap> for Refusal {
    fn from(overlap: Overlap) -> Self {
        Self::Write(overlap.into())
    }
}
