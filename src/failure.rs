//! The failures for errors of the client library, and for a lock or a leadership that was lost.

use leasehold_client_cache::{InspectError, LeaseError, LockError, NodePath, ReadError, WatchError, WriteError};

use crate::exit::{CommandFailure, causes};

/// An unanswered read changed nothing, so a timeout too counts as unavailable.
pub(crate) fn read_failure(error: &ReadError) -> CommandFailure {
    match error {
        ReadError::Path(error) => CommandFailure::usage(error),
        ReadError::Refused { refusal, .. } => CommandFailure::from_refusal(refusal),
        ReadError::Unavailable { .. } | ReadError::TimedOut { .. } => CommandFailure::unavailable(causes(error)),
        ReadError::Closed => CommandFailure::refused("session_not_found", error),
        _ => CommandFailure::other(error),
    }
}

/// An unacknowledged write may still take effect.
pub(crate) fn write_failure(error: &WriteError) -> CommandFailure {
    match error {
        WriteError::Path(error) => CommandFailure::usage(error),
        WriteError::LeaseName(error) => CommandFailure::usage(error),
        WriteError::Refused(refusal) => CommandFailure::from_refusal(refusal),
        WriteError::Limit { .. } => CommandFailure::refused("limit", error),
        WriteError::NotRead { .. } => CommandFailure::usage(error),
        WriteError::Unavailable { .. } | WriteError::NotSent { .. } => CommandFailure::unavailable(causes(error)),
        WriteError::TimedOut { .. } | WriteError::OutcomeUnknown { .. } => CommandFailure::unknown(error),
        WriteError::SessionEnded { .. } => CommandFailure::refused("session_not_found", error),
        _ => CommandFailure::other(error),
    }
}

/// The failure of an inspection.
pub(crate) fn inspect_failure(error: &InspectError) -> CommandFailure {
    match error {
        InspectError::Path(error) => CommandFailure::usage(error),
        InspectError::LeaseName(error) => CommandFailure::usage(error),
        InspectError::Refused(refusal) => CommandFailure::from_refusal(refusal),
        InspectError::Unavailable { .. } | InspectError::TimedOut { .. } => CommandFailure::unavailable(causes(error)),
        InspectError::UnexpectedAnswer => CommandFailure::refused("unexpected_answer", error),
        InspectError::Closed => CommandFailure::refused("session_not_found", error),
        _ => CommandFailure::other(error),
    }
}

/// The failure for a watch that ended.
pub(crate) fn watch_failure(error: &WatchError) -> CommandFailure {
    match error {
        WatchError::Path(error) => CommandFailure::usage(error),
        WatchError::Compacted { .. } => CommandFailure::refused("compacted", error),
        WatchError::Refused(refusal) => CommandFailure::from_refusal(refusal),
        WatchError::Unavailable { .. } | WatchError::TimedOut { .. } => CommandFailure::unavailable(causes(error)),
        WatchError::UnexpectedAnswer => CommandFailure::refused("unexpected_answer", error),
        WatchError::Closed => CommandFailure::refused("session_not_found", error),
        _ => CommandFailure::other(error),
    }
}

/// The failure for a lease that is not renewed.
pub(crate) fn lease_failure(error: &LeaseError) -> CommandFailure {
    match error {
        LeaseError::NotFound { id } => CommandFailure::lease_not_found(*id),
        LeaseError::NameNotFound { name } => CommandFailure::lease_not_found(name),
        LeaseError::LeaseName(error) => CommandFailure::usage(error),
        LeaseError::Lookup(error) => inspect_failure(error),
        LeaseError::Unavailable { .. } | LeaseError::TimedOut { .. } => CommandFailure::unavailable(causes(error)),
        LeaseError::Closed => CommandFailure::refused("session_not_found", error),
        _ => CommandFailure::other(error),
    }
}

/// The failure for a lock that was not acquired or not released.
pub(crate) fn lock_failure(error: &LockError) -> CommandFailure {
    match error {
        LockError::Path(error) => CommandFailure::usage(error),
        LockError::Write(error) => write_failure(error),
        LockError::TimedOut { .. } => CommandFailure::unavailable(error),
        LockError::NotGranted { .. } => CommandFailure::refused("not_granted", error),
        LockError::Lost { .. } => CommandFailure::refused("lock_lost", error),
        _ => CommandFailure::other(error),
    }
}

/// The lock ended without a release.
pub(crate) fn lock_lost_failure(path: &NodePath) -> CommandFailure {
    CommandFailure::refused("lock_lost", "lock lost; no server renewed its lease in time").with_subject(path.as_str())
}

/// The leadership ended without a resignation.
pub(crate) fn leadership_lost_failure(path: &NodePath) -> CommandFailure {
    let text = "leadership lost; no server renewed its lease in time";
    CommandFailure::refused("leadership_lost", text).with_subject(path.as_str())
}
