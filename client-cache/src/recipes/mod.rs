//! Recipes: what programs make of locks, transactions, watches and registrations, in the forms that
//! they know.
//!
//! Thin layers: everything that keeps a promise here is a promise of what lies below. A [`Mutex`]
//! and an [`RwLock`] are [holds](crate::LockGuard) with types; a [`Registry`] is
//! [registrations](crate::Registration) and a watch; a [`Semaphore`], a [`Barrier`] and a
//! [`DoubleBarrier`] stand on *places*: a node for each who comes, in the order in which they came,
//! that goes with the lease of whoever came.
//!
//! Each says what it promises by the clocks of those who use it, and what only a fencing token can
//! keep out.

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

/// Why nobody has passed a semaphore or a barrier, or has joined a registry. Whoever asked stands
/// there no longer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError {
    /// There is no place: refused, lost, or nobody answered.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It could not be followed who comes and goes.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It could not be written how many there may be.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// There is no room for a name below the node.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Others count otherwise.
    #[error("{path} is for {found:?}: expected {expected:?}, as others who use it count by that")]
    CountMismatch {
        /// The node that says so.
        path: NodePath,
        /// What this client was told.
        expected: String,
        /// What is written there.
        found: String,
    },
    /// Nobody can count to that.
    #[error("{path} cannot be for {got}: expected 1 to {most}")]
    InvalidCount {
        /// The node.
        path: NodePath,
        /// How many there were to be.
        got: u32,
        /// How many there can be.
        most: u32,
    },
}

impl From<WriteError> for RecipeError {
    fn from(error: WriteError) -> Self {
        Self::Lock(LockError::Write(error))
    }
}
