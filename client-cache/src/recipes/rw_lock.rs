//! A read-write lock: shared and exclusive locks with types of their own.
//!
//! It guarantees what [`LockGuard`](crate::LockGuard) does, and no more: any number of readers or
//! one writer, in the order of arrival. Readers that come later do not starve a waiting writer.
//! Only the fencing token stops requests of a former owner that arrive late.

use std::{ops::Deref, time::Duration};

use leasehold_protocol::{
    lock::LockMode,
    path::{NodePath, PathError},
};

use super::mutex::if_free;
use crate::{
    call::{GivenPath, given},
    client::Client,
    error::LockError,
    lock::{LockGuard, LockWait},
};

/// A lock that any number of readers share, or one writer has. See [`Client::rw_lock`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let table = client.rw_lock("/tables/orders");
/// let writing = table.write().await?;
/// println!("nobody else has the lock for {:?}", writing.remaining());
/// writing.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is sent until one of its methods is awaited"]
pub struct RwLock {
    client: Client,
    path: GivenPath,
}

/// A shared lock, until it is dropped, [released](ReadGuard::release) or lost
/// ([`LockGuard::on_lost`]).
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::LockWait;
///
/// let reading = client.rw_lock("/tables/orders").read().await?;
/// match reading.upgrade(LockWait::Forever).await {
///     Ok(writing) => writing.release().await?,
///     Err((reading, _)) => reading.release().await?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct ReadGuard(LockGuard);

/// An exclusive lock, until it is dropped, [released](WriteGuard::release) or lost
/// ([`LockGuard::on_lost`]).
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let writing = client.rw_lock("/tables/orders").write().await?;
/// writing.run(async { /* change the table */ }).await?;
/// let reading = writing.downgrade().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct WriteGuard(LockGuard);

impl RwLock {
    /// Waits for the shared lock.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn read(&self) -> Result<ReadGuard, LockError> {
        self.take(LockMode::Shared, LockWait::Forever).await.map(ReadGuard)
    }

    /// Takes the shared lock. `None` if a writer has the lock or waits for it.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, LockError> {
        if_free(self.take(LockMode::Shared, LockWait::No).await.map(ReadGuard))
    }

    /// Waits for the shared lock for at most `most`. `None` if it was not granted.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn read_timeout(&self, most: Duration) -> Result<Option<ReadGuard>, LockError> {
        if_free(self.take(LockMode::Shared, LockWait::For(most)).await.map(ReadGuard))
    }

    /// Waits for the exclusive lock.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn write(&self) -> Result<WriteGuard, LockError> {
        self.take(LockMode::Exclusive, LockWait::Forever).await.map(WriteGuard)
    }

    /// Takes the exclusive lock. `None` if somebody else has the lock or waits for it.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let table = client.rw_lock("/tables/orders");
    /// if let Some(writing) = table.try_write().await? {
    ///     writing.release().await?;
    /// }
    /// if let Some(reading) = table.read_timeout(Duration::from_secs(1)).await? {
    ///     reading.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, LockError> {
        if_free(self.take(LockMode::Exclusive, LockWait::No).await.map(WriteGuard))
    }

    /// Waits for the exclusive lock for at most `most`. `None` if it was not granted.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn write_timeout(&self, most: Duration) -> Result<Option<WriteGuard>, LockError> {
        if_free(self.take(LockMode::Exclusive, LockWait::For(most)).await.map(WriteGuard))
    }

    async fn take(&self, mode: LockMode, wait: LockWait) -> Result<LockGuard, LockError> {
        self.client.lock(self.path.clone()?).mode(mode).wait(wait).await
    }
}

impl ReadGuard {
    /// Waits until all other readers have left, and becomes a writer. Nobody writes in between, so
    /// what was read is still valid.
    ///
    /// # Errors
    ///
    /// [`LockError`], with the lock: it is shared as before, unless it has ended. Refused if
    /// another reader waits for an upgrade.
    pub async fn upgrade(mut self, wait: LockWait) -> Result<WriteGuard, (Self, LockError)> {
        match self.0.upgrade(wait).await {
            Ok(_) => Ok(WriteGuard(self.0)),
            Err(error) => Err((self, error)),
        }
    }

    /// Waits until a writer waits, another reader waits for an upgrade, or the lock has ended.
    pub async fn contended(&mut self) {
        self.0.contended().await;
    }

    /// Releases the lock, and waits for the answer.
    ///
    /// # Errors
    ///
    /// As of [`LockGuard::release`].
    pub async fn release(self) -> Result<(), LockError> {
        self.0.release().await
    }
}

impl WriteGuard {
    /// Becomes a reader, so that others can read too. Nobody writes in between.
    ///
    /// # Errors
    ///
    /// As of [`LockGuard::downgrade`]. The lock is then released.
    pub async fn downgrade(mut self) -> Result<ReadGuard, LockError> {
        self.0.downgrade().await.map(|()| ReadGuard(self.0))
    }

    /// Waits until somebody else waits for the lock, or the lock has ended.
    pub async fn contended(&mut self) {
        self.0.contended().await;
    }

    /// Releases the lock, and waits for the answer.
    ///
    /// # Errors
    ///
    /// As of [`LockGuard::release`].
    pub async fn release(self) -> Result<(), LockError> {
        self.0.release().await
    }
}

impl Deref for ReadGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}

impl Deref for WriteGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}

impl Client {
    /// A read-write lock. Sends nothing before it is locked.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let table = client.rw_lock("/tables/orders");
    /// let reading = table.read().await?;
    /// println!("others may read for {:?}", reading.remaining());
    /// reading.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn rw_lock(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> RwLock {
        RwLock { client: self.clone(), path: given(path) }
    }
}
