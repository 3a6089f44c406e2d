//! The error of a write. It says whether the write may still happen, and names the node.

use std::time::Duration;

use leasehold_protocol::{
    command::WriteRefusal,
    lease_name::LeaseNameError,
    limits::LimitError,
    message::Refusal,
    path::{NodePath, PathError},
};

use super::Unavailable;

/// Why a write was not acknowledged, and whether it may still happen.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let node = client.get("/config").await?.ok_or("not found")?;
/// match client.put("/config", "new").if_revision(node.stat.modify_revision).await {
///     Ok(written) => println!("written at revision {}", written.revision),
///     Err(error) if error.is_revision_differs() => println!("another client was faster"),
///     Err(error) if error.may_still_happen() => println!("read the node again to see"),
///     Err(error) if error.is_retryable() => println!("nothing has changed: try again"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The path is bad. Nothing was sent.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The name of the lease is bad. Nothing was sent.
    #[error(transparent)]
    LeaseName(#[from] LeaseNameError),
    /// The server refused the write for good: the write changed nothing and never will.
    #[error(transparent)]
    Refused(Refusal),
    /// The client refused the write without a request, because every server would refuse it.
    #[error("{}{limit}", about(path))]
    Limit {
        /// The node. `None` for a transaction, and for a write of a key lease.
        path: Option<NodePath>,
        /// The limit.
        limit: LimitError,
    },
    /// The write requires revision 0, which a program has that never read the node. No node has it
    /// except a new cluster's root. Nothing was sent.
    #[error("{path}: expected the revision of a read, got 0; read the node first, or require its absence")]
    NotRead {
        /// The node.
        path: NodePath,
    },
    /// No server was found in time, so the write was not sent: it changed nothing and never will.
    #[error("{}write: not sent after {after:?}; it changed nothing", about(path))]
    Unavailable {
        /// The node. `None` for a transaction, and for a write of a key lease.
        path: Option<NodePath>,
        /// How long the client tried.
        after: Duration,
        /// Why no server could answer.
        source: Unavailable,
    },
    /// The time ran out before the write was sent: it changed nothing and never will.
    #[error(
        "{}write: not sent after {after:?}, because earlier requests have no answer; it changed nothing",
        about(path)
    )]
    NotSent {
        /// The node. `None` for a transaction, and for a write of a key lease.
        path: Option<NodePath>,
        /// How long it waited.
        after: Duration,
    },
    /// The write was sent, and the time ran out: it may have taken effect, or may still.
    #[error("{}write: no answer after {after:?}; it may have taken effect, or may still", about(path))]
    TimedOut {
        /// The node. `None` for a transaction, and for a write of a key lease.
        path: Option<NodePath>,
        /// How long the client waited.
        after: Duration,
    },
    /// The write was sent, and then the session ended: it may have taken effect, or may still. The
    /// client never sends it under another session, because it could then take effect twice.
    #[error("{}write: the session ended before the answer; it may have taken effect, or may still", about(path))]
    OutcomeUnknown {
        /// The node. `None` for a transaction, and for a write of a key lease.
        path: Option<NodePath>,
    },
    /// The session ended, or the client was closed, before the write was sent: it changed nothing
    /// and never will.
    #[error("{}write: the session ended before it was sent; it changed nothing", about(path))]
    SessionEnded {
        /// The node. `None` for a transaction, and for a write of a key lease.
        path: Option<NodePath>,
    },
}

impl WriteError {
    /// The node, if the write names one. A refusal names its own subject, as
    /// [`WriteError::refusal`] shows.
    pub fn path(&self) -> Option<&NodePath> {
        match self {
            Self::Limit { path, .. }
            | Self::Unavailable { path, .. }
            | Self::NotSent { path, .. }
            | Self::TimedOut { path, .. }
            | Self::OutcomeUnknown { path }
            | Self::SessionEnded { path } => path.as_ref(),
            Self::NotRead { path } => Some(path),
            Self::Path(_) | Self::LeaseName(_) | Self::Refused(_) => None,
        }
    }

    /// Whether the write may have taken effect, or may still.
    pub fn may_still_happen(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::OutcomeUnknown { .. })
    }

    /// Why the servers refused the write, if they did: of a transaction, why they refused one of
    /// its operations.
    pub fn refusal(&self) -> Option<&WriteRefusal> {
        let Self::Refused(Refusal::Write(refused)) = self else { return None };
        let mut refusal = refused;
        while let WriteRefusal::Operation { refusal: inner, .. } = refusal {
            refusal = inner;
        }
        Some(refusal)
    }

    /// Whether the write was refused because the node, the volume or the lease exists.
    pub fn is_exists(&self) -> bool {
        use WriteRefusal::{Exists, LeaseExists, LeaseNameExists, VolumeExists};
        let refusal = self.refusal();
        matches!(refusal, Some(Exists { .. } | VolumeExists { .. } | LeaseExists { .. } | LeaseNameExists { .. }))
    }

    /// Whether the write was refused because the node does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.refusal(), Some(WriteRefusal::NotFound { .. }))
    }

    /// Whether the write was refused because the node has another revision than the write named.
    pub fn is_revision_differs(&self) -> bool {
        matches!(self.refusal(), Some(WriteRefusal::RevisionDiffers { .. }))
    }

    /// Whether the write requires a revision, and the program never read the node.
    pub fn is_not_read(&self) -> bool {
        matches!(self, Self::NotRead { .. })
    }

    /// Whether there was a leader, and the time ran out: before the write was sent, or while it
    /// waited for its answer. Then it [may still happen](Self::may_still_happen).
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::NotSent { .. } | Self::TimedOut { .. })
    }

    /// Whether the write changed nothing, never will, and may succeed if the program makes it
    /// again: no server could answer, the write was not sent in time, its session ended first, or
    /// the server is busy.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::NotSent { .. } | Self::SessionEnded { .. } => true,
            Self::Refused(refusal) => matches!(refusal, Refusal::Busy { .. } | Refusal::Retry),
            _ => false,
        }
    }

    /// Whether no server could answer. The write changed nothing then.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// The path before a problem, if it is known.
fn about(path: &Option<NodePath>) -> String {
    path.as_ref().map(|path| format!("{path}: ")).unwrap_or_default()
}
