//! The end of a leadership: a resignation, or a hand-over to a candidate. The name of its session
//! tells a candidate from others.

use leasehold_client_cache::{HandOverError, Leadership, LockInfo};

use crate::{
    exit::CommandFailure,
    failure::{inspect_failure, lock_failure},
    output::visible,
};

/// How much of a candidate's name is in its session's name. Servers refuse long session names.
const NAME_CHARS_MAX: usize = 32;

/// The first part of a candidate's session name. Session names are short.
pub(crate) fn named(name: &str) -> String {
    let short: String = name.chars().filter(|character| !character.is_control()).take(NAME_CHARS_MAX).collect();
    if short.is_empty() { "elect".to_owned() } else { format!("elect {short}") }
}

/// Resigns. Hands over to the candidate `to` if it waits, else to the next one.
pub(crate) async fn resign(leadership: Leadership, to: Option<&str>) -> Result<(), CommandFailure> {
    let resigns = |leadership: Leadership| async { leadership.resign().await.map_err(|error| lock_failure(&error)) };
    let Some(to) = to else { return resigns(leadership).await };
    let path = leadership.path().clone();
    let candidates = leadership.candidates().await;
    let is_it = |lock: &&LockInfo| {
        let begins = format!("{}@", named(to));
        lock.session.0.to_string() == to || lock.name == to || lock.name.starts_with(&begins)
    };
    let found = candidates.as_ref().map(|candidates| candidates.iter().find(is_it));
    let failure = match found {
        Err(error) => inspect_failure(error),
        Ok(None) => {
            let text = format!("{} is no candidate in the lock queue; the next candidate leads", visible(to));
            CommandFailure::refused("successor_not_waiting", text).with_subject(path.as_str())
        }
        Ok(Some(candidate)) => match leadership.hand_over(candidate.lock).await {
            Ok(()) => return Ok(()),
            Err(HandOverError::Released(error)) => return Err(lock_failure(&error)),
            Err(HandOverError::Unchanged(kept, error)) => {
                resigns(kept).await?;
                return Err(lock_failure(&error));
            }
            Err(error) => return Err(CommandFailure::other(&error)),
        },
    };
    resigns(leadership).await?;
    Err(failure)
}
