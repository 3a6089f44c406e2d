//! Work that owns processes, folders or nodes, and gives them up when the command is to end.

use tokio::signal::unix::{SignalKind, signal};

use crate::exit::CommandFailure;

/// Runs `work`, which owns processes and folders. On SIGINT, SIGTERM or SIGHUP it drops `work`, and
/// so ends and removes them.
pub(crate) async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, CommandFailure>>,
) -> Result<T, CommandFailure> {
    let listen = |kind| signal(kind).map_err(|error| CommandFailure::io("cannot listen for signals", &error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    tokio::select! {
        outcome = work => outcome,
        _ = interrupt.recv() => Err(CommandFailure::refused("interrupted", "interrupted")),
        _ = terminate.recv() => Err(CommandFailure::refused("interrupted", "stopped by SIGTERM")),
        _ = hangup.recv() => Err(CommandFailure::refused("interrupted", "terminal closed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_interrupted_ends_by_itself() {
        assert_eq!(unless_interrupted(async { Ok(7) }).await, Ok(7));
    }
}
