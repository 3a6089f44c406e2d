//! The error of a hand-over: it says who has the lock.

use crate::error::LockError;

/// Why a hand-over failed, or may have failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError<T> {
    /// The hand-over did not happen and never will. The caller still has the lock, under the same
    /// token.
    #[error("lock not handed over; this client still owns it")]
    Unchanged(T, #[source] LockError),
    /// The hand-over may have happened, or the servers no longer had the lock. In any case, the
    /// client has released the lock, and no longer owns it.
    #[error("lock may be handed over; this client has released it")]
    Released(#[source] LockError),
}
