//! The failures for errors of the client library, and for a lock or a leadership that was lost.

use leasehold_client_cache::{
    ConnectError, InspectError, LeaseError, LockError, NodePath, ReadError, Unavailable, WatchError, WriteError,
};

use crate::{duration::duration_text, exit::CommandFailure, refusal::limit_text};

/// The failure of a request that no server could answer in time.
fn unanswered(problem: String, source: &Unavailable) -> CommandFailure {
    match source {
        Unavailable::NoLeader { reason } => CommandFailure::no_quorum(format!("no quorum: {problem}: {reason}")),
        source => CommandFailure::unavailable(format!("{problem}: {source}")),
    }
}

/// The failure with its node as the subject, if the error names one.
fn about(failure: CommandFailure, path: Option<&NodePath>) -> CommandFailure {
    match path {
        Some(path) => failure.with_subject(path.as_str()),
        None => failure,
    }
}

/// The failure of a session that could not be opened.
pub(crate) fn connect_failure(error: &ConnectError) -> CommandFailure {
    match error {
        ConnectError::NoEndpoints => CommandFailure::usage(error),
        ConnectError::Refused(refusal) => CommandFailure::from_refusal(refusal),
        ConnectError::Unavailable { after, source } => {
            unanswered(format!("no session after {}", duration_text(*after)), source)
        }
        ConnectError::TimedOut { after } => {
            let text = format!("no session after {}, though there is a leader", duration_text(*after));
            CommandFailure::unavailable(text)
        }
        _ => CommandFailure::other(error),
    }
}

/// An unanswered read changed nothing, so a timeout too counts as unavailable.
pub(crate) fn read_failure(error: &ReadError) -> CommandFailure {
    let failure = match error {
        ReadError::Path(error) => CommandFailure::usage(error),
        ReadError::Refused { refusal, .. } => CommandFailure::from_refusal(refusal),
        ReadError::Unavailable { after, source, .. } => {
            unanswered(format!("read: no answer after {}", duration_text(*after)), source)
        }
        ReadError::TimedOut { after, .. } => {
            CommandFailure::unavailable(format!("read: no answer after {}", duration_text(*after)))
        }
        ReadError::Closed => CommandFailure::refused("session_not_found", error),
        _ => CommandFailure::other(error),
    };
    about(failure, error.path())
}

/// An unacknowledged write may still take effect.
pub(crate) fn write_failure(error: &WriteError) -> CommandFailure {
    let failure = match error {
        WriteError::Path(error) => CommandFailure::usage(error),
        WriteError::LeaseName(error) => CommandFailure::usage(error),
        WriteError::Refused(refusal) => CommandFailure::from_refusal(refusal),
        WriteError::NotRead { .. } => CommandFailure::usage(error),
        WriteError::Limit { limit, .. } => CommandFailure::refused("limit", limit_text(limit)),
        WriteError::Unavailable { after, source, .. } => {
            let text = format!("write: not sent after {}; it changed nothing", duration_text(*after));
            unanswered(text, source)
        }
        WriteError::NotSent { after, .. } => {
            let after = duration_text(*after);
            let text =
                format!("write: not sent after {after}, because earlier requests have no answer; it changed nothing");
            CommandFailure::unavailable(text)
        }
        WriteError::TimedOut { after, .. } => {
            let after = duration_text(*after);
            let text = format!("write: no answer after {after}; it may have taken effect, or may still");
            CommandFailure::unknown(text)
        }
        WriteError::OutcomeUnknown { .. } => CommandFailure::unknown(error),
        WriteError::SessionEnded { .. } => CommandFailure::refused("session_not_found", error),
        _ => CommandFailure::other(error),
    };
    about(failure, error.path())
}

/// The failure of an inspection.
pub(crate) fn inspect_failure(error: &InspectError) -> CommandFailure {
    match error {
        InspectError::Path(error) => CommandFailure::usage(error),
        InspectError::LeaseName(error) => CommandFailure::usage(error),
        InspectError::Refused(refusal) => CommandFailure::from_refusal(refusal),
        InspectError::Unavailable { after, source } => {
            unanswered(format!("no server answered within {}", duration_text(*after)), source)
        }
        InspectError::TimedOut { after } => {
            CommandFailure::unavailable(format!("no answer within {}", duration_text(*after)))
        }
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
        WatchError::Unavailable { after, source } => {
            unanswered(format!("watch: not begun after {}", duration_text(*after)), source)
        }
        WatchError::TimedOut { after } => {
            CommandFailure::unavailable(format!("watch: not begun after {}", duration_text(*after)))
        }
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
        LeaseError::Unavailable { after, source } => {
            unanswered(format!("lease: not renewed after {}", duration_text(*after)), source)
        }
        LeaseError::TimedOut { after } => {
            CommandFailure::unavailable(format!("lease: not renewed after {}", duration_text(*after)))
        }
        LeaseError::Closed => CommandFailure::refused("session_not_found", error),
        _ => CommandFailure::other(error),
    }
}

/// The failure for a lock that was not acquired or not released.
pub(crate) fn lock_failure(error: &LockError) -> CommandFailure {
    match error {
        LockError::Path(error) => CommandFailure::usage(error),
        LockError::Write(error) => write_failure(error),
        LockError::TimedOut { path, after } => {
            let after = duration_text(*after);
            let text = format!("{path}: the servers did not answer, or confirm an earlier release, within {after}");
            CommandFailure::unavailable(text)
        }
        LockError::NotGranted { path, after } => {
            let text = format!("{path}: lock not granted after {}", duration_text(*after));
            CommandFailure::refused("not_granted", text)
        }
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
