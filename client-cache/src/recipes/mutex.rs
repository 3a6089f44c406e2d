//! A mutex: an exclusive lock with a type of its own.
//!
//! It guarantees what [`LockGuard`](crate::LockGuard) does, and no more. Only the fencing token
//! stops requests of a former owner that arrive late.

use std::{ops::Deref, time::Duration};

use leasehold_protocol::path::{NodePath, PathError};

use crate::{
    call::{GivenPath, given},
    client::Client,
    error::LockError,
    lock::{LockGuard, LockWait},
};

/// A lock for one client at a time, in the order of arrival. See [`Client::mutex`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let mutex = client.mutex("/jobs/nightly");
/// match mutex.lock_timeout(Duration::from_secs(10)).await? {
///     Some(guard) => guard.release().await?,
///     None => println!("another client runs the job"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is sent until one of its methods is awaited"]
pub struct Mutex {
    client: Client,
    path: GivenPath,
}

/// A locked mutex, until it is dropped, [released](MutexGuard::release) or lost
/// ([`LockGuard::on_lost`]).
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.mutex("/jobs/nightly").lock().await?;
/// guard.run(async { /* what only the owner does */ }).await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the mutex is unlocked when this is dropped"]
pub struct MutexGuard(LockGuard);

impl Mutex {
    /// Locks the mutex. Waits until it is free.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn lock(&self) -> Result<MutexGuard, LockError> {
        self.lock_with(LockWait::Forever).await
    }

    /// Locks the mutex if it is free. `None` if somebody else has it.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(guard) = client.mutex("/jobs/nightly").try_lock().await? {
    ///     guard.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn try_lock(&self) -> Result<Option<MutexGuard>, LockError> {
        if_free(self.lock_with(LockWait::No).await)
    }

    /// Locks the mutex within `most`, counted from the call ([`LockWait::For`]); otherwise returns
    /// `None`. A time shorter than a round trip always gives `None`: use [`Mutex::try_lock`]
    /// instead.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn lock_timeout(&self, most: Duration) -> Result<Option<MutexGuard>, LockError> {
        if_free(self.lock_with(LockWait::For(most)).await)
    }

    async fn lock_with(&self, wait: LockWait) -> Result<MutexGuard, LockError> {
        self.client.lock(self.path.clone()?).wait(wait).await.map(MutexGuard)
    }
}

/// For a caller that only tries, a lock that is not free is no error.
pub(super) fn if_free<G>(result: Result<G, LockError>) -> Result<Option<G>, LockError> {
    match result {
        Err(error) if error.is_not_free() => Ok(None),
        result => result.map(Some),
    }
}

impl MutexGuard {
    /// Unlocks the mutex, and waits for the answer.
    ///
    /// # Errors
    ///
    /// As of [`LockGuard::release`].
    pub async fn release(self) -> Result<(), LockError> {
        self.0.release().await
    }
}

impl Deref for MutexGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}

impl Client {
    /// A mutex. Sends nothing before it is locked.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mutex = client.mutex("/jobs/nightly");
    /// let guard = mutex.lock().await?;
    /// println!("token {}, {:?} remain", guard.token(), guard.remaining());
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn mutex(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> Mutex {
        Mutex { client: self.clone(), path: given(path) }
    }
}
