//! How long a request for a lock waits in the queue, and the wait itself.

use std::time::Duration;

use leasehold_protocol::{id::Token, lock::LockStatus, path::NodePath};
use tokio::{sync::watch, time::Instant};

#[cfg(doc)]
use super::LockGuard;
use crate::error::LockError;

/// How long to wait for a lock.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::LockWait;
///
/// match client.lock("/jobs/nightly").wait(LockWait::No).await {
///     Ok(guard) => guard.release().await?,
///     Err(error) if error.is_not_free() => println!("another client runs the job"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LockWait {
    /// Do not wait: the lock is refused if the node is not free.
    No,
    /// Wait for this time, counted from the call. Then the client cancels the request. An upgrade
    /// that the servers have queued ends later: when they have confirmed the cancellation, or after
    /// the client's timeout.
    /// A time shorter than a round trip ends before the answer comes, even if the node is free.
    /// [`LockWait::No`] does wait for the answer.
    For(Duration),
    /// Wait until the lock is granted.
    #[default]
    Forever,
}

/// Waits for the grant of a request that was made at `asked`.
pub(super) async fn granted(
    status: &mut watch::Receiver<LockStatus>,
    path: &NodePath,
    wait: LockWait,
    asked: Instant,
    is_granted: impl Fn(&LockStatus) -> bool,
) -> Result<Token, LockError> {
    let found =
        async { status.wait_for(|status| is_granted(status)).await.map_or(LockStatus::Ended, |status| *status) };
    let found = match wait {
        LockWait::Forever => found.await,
        LockWait::For(after) => match tokio::time::timeout(after.saturating_sub(asked.elapsed()), found).await {
            Ok(found) => found,
            Err(_) => return Err(LockError::NotGranted { path: path.clone(), after }),
        },
        // With `No`, the servers refuse or grant the request at once.
        LockWait::No => found.await,
    };
    match found {
        LockStatus::Granted { token, .. } => Ok(token),
        LockStatus::Waiting | LockStatus::Ended => Err(LockError::Lost { path: path.clone() }),
    }
}
