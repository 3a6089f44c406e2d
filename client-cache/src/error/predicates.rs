//! What callers ask of the errors, without a look at their variants and at the errors inside.
//! [`WriteError`](super::WriteError) has its own, beside it.

use super::{
    ConnectError, EnsureVolumeError, InspectError, LeaseError, LockError, ReadError, SnapshotError, UpdateError,
    WatchError, WriteLeaseError,
};

impl ConnectError {
    /// Whether no server could answer, or the leader did not answer in time. The program may try
    /// again.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::TimedOut { .. })
    }
}

impl ReadError {
    /// Whether a leader was asked, and did not answer in time. The node may be under a write lease.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
}

impl EnsureVolumeError {
    /// Whether the volume exists with other settings.
    pub fn is_different(&self) -> bool {
        matches!(self, Self::Differs { .. })
    }
}

impl LockError {
    /// Whether there was a leader, and it did not answer in time. A lock that was not granted
    /// within its wait is [not free](Self::is_not_free) instead.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Write(error) => error.is_timeout(),
            _ => false,
        }
    }
}

impl WriteLeaseError {
    /// Whether the lock was not free, at once or within the given wait.
    pub fn is_not_free(&self) -> bool {
        matches!(self, Self::Lock(error) if error.is_not_free())
    }

    /// Whether the write lease is lost, or a value that was set under it.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_)) || matches!(self, Self::Lock(error) if error.is_lost())
    }

    /// Whether no server could answer.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Lock(error) => error.is_unavailable(),
            Self::Write(error) => error.is_unavailable(),
            _ => false,
        }
    }

    /// Whether the time ran out, though there was a leader. A flush continues in the background.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Lock(error) => error.is_timeout(),
            Self::Write(error) => error.is_timeout(),
            _ => false,
        }
    }
}

impl LeaseError {
    /// Whether there is no such lease. It may have ended.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::NameNotFound { .. })
    }

    /// Whether no server could answer.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Lookup(InspectError::Unavailable { .. }))
    }
}

impl WatchError {
    /// Whether the history no longer has the next change: read again, and watch from there.
    pub fn is_compacted(&self) -> bool {
        matches!(self, Self::Compacted { .. })
    }

    /// Whether no server could answer.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

impl InspectError {
    /// Whether no server could answer.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

impl UpdateError {
    /// Whether another client wrote the node in each try. The update changed nothing.
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended { .. })
    }

    /// Whether no server could answer. The update changed nothing then.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Read { source, .. } => source.is_unavailable(),
            Self::Write { source, .. } => source.is_unavailable(),
            _ => false,
        }
    }
}

impl SnapshotError {
    /// Whether the nodes changed in each try.
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended { .. })
    }

    /// Whether no server could answer.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Read(error) if error.is_unavailable())
    }
}
