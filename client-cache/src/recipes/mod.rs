//! Recipes: familiar types built from locks, transactions, watches and registrations.
//!
//! They are thin layers: each guarantee comes from the primitives. A [`Mutex`] and an [`RwLock`]
//! are [locks](crate::LockGuard) with types. A [`Registry`] is a set of
//! [registrations](crate::Registration) and a watch. A [`Semaphore`], a [`Barrier`] and a
//! [`DoubleBarrier`] build on *parties*. A party is a node attached to its session's lease, ordered
//! by its create revision.
//!
//! Each recipe says which guarantees depend on its users' clocks, and which need a fencing token.

mod barrier;
mod departures;
mod mutex;
mod party;
mod registry;
mod rw_lock;
mod semaphore;

use leasehold_protocol::path::{NodePath, PathError};

pub use barrier::{Barrier, BarrierGuard, DoubleBarrier};
pub use mutex::{Mutex, MutexGuard};
pub use registry::{Member, MemberEvent, Members, Registry};
pub use rw_lock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::{Permit, Semaphore};

use crate::error::{LockError, ReadError, UpdateError, WatchError, WriteError};

/// Why a recipe failed. The caller is not counted any longer.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// match client.registry("/services/web").join("host-1", "10.0.0.1:80").await {
///     Ok(registration) => registration.on_lost().cancelled().await,
///     Err(error) if error.is_exists() => println!("another session has this name"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The party's lock was refused, lost or not answered.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The watch of the parties failed.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// A node could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The count could not be written.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// The path is invalid, or has no room for a name below it.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Other users gave another count.
    #[error("{path}: is for {found:?}, not {expected:?}; all clients must use the same numbers")]
    CountMismatch {
        /// The node that has the count.
        path: NodePath,
        /// The count that this client gave.
        expected: String,
        /// The count in the node.
        found: String,
    },
    /// The count is out of bounds.
    #[error("{path}: {got} is out of range; expected 1 to {most}")]
    InvalidCount {
        /// The node.
        path: NodePath,
        /// The count that was given.
        got: u32,
        /// The largest count.
        most: u32,
    },
}

impl RecipeError {
    /// Whether another session is registered under the name.
    pub fn is_exists(&self) -> bool {
        matches!(self, Self::Lock(LockError::Write(error)) if error.is_exists())
    }

    /// Whether the party is lost, with its lease.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lock(error) if error.is_lost())
    }

    /// Whether no server could answer.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Lock(error) => error.is_unavailable(),
            Self::Watch(error) => error.is_unavailable(),
            Self::Read(error) => error.is_unavailable(),
            Self::Update(error) => error.is_unavailable(),
            _ => false,
        }
    }
}

impl From<WriteError> for RecipeError {
    fn from(error: WriteError) -> Self {
        Self::Lock(LockError::Write(error))
    }
}
