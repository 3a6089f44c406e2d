//! A read-write lock: holds that are shared or exclusive, with types that say so.
//!
//! It promises what [`LockGuard`](crate::LockGuard) does, and nothing more: any number of readers
//! or one writer, in the order of arrival; a writer that waits is not starved by readers that come
//! after it. The token is what keeps out what a holder sent before the end and arrives after it.

use std::{ops::Deref, time::Duration};

use leasehold_protocol::{lock::LockMode, path::NodePath};

use super::mutex::if_free;
use crate::{
    client::Client,
    error::LockError,
    lock::{LockGuard, LockOptions, LockWait},
};

/// A node that any number of clients share, or one has alone. See [`Client::rw_lock`].
#[derive(Debug, Clone)]
pub struct RwLock {
    client: Client,
    path: NodePath,
}

/// The lock is shared with other readers, until this is dropped or [released](ReadGuard::release),
/// or [`LockGuard::over`] says that it is over.
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub struct ReadGuard(LockGuard);

/// The lock is held alone, until this is dropped or [released](WriteGuard::release), or
/// [`LockGuard::over`] says that it is over.
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub struct WriteGuard(LockGuard);

impl RwLock {
    /// Waits to read.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn read(&self) -> Result<ReadGuard, LockError> {
        self.take(LockMode::Shared, LockWait::Forever).await.map(ReadGuard)
    }

    /// None if somebody writes, or waits to.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, LockError> {
        if_free(self.take(LockMode::Shared, LockWait::No).await.map(ReadGuard))
    }

    /// None if it could not be shared within this time.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn read_timeout(&self, most: Duration) -> Result<Option<ReadGuard>, LockError> {
        if_free(self.take(LockMode::Shared, LockWait::For(most)).await.map(ReadGuard))
    }

    /// Waits to write.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn write(&self) -> Result<WriteGuard, LockError> {
        self.take(LockMode::Exclusive, LockWait::Forever).await.map(WriteGuard)
    }

    /// None if somebody reads or writes, or waits to.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, LockError> {
        if_free(self.take(LockMode::Exclusive, LockWait::No).await.map(WriteGuard))
    }

    /// None if it was not free within this time.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn write_timeout(&self, most: Duration) -> Result<Option<WriteGuard>, LockError> {
        if_free(self.take(LockMode::Exclusive, LockWait::For(most)).await.map(WriteGuard))
    }

    async fn take(&self, mode: LockMode, wait: LockWait) -> Result<LockGuard, LockError> {
        self.client.lock(&self.path, LockOptions { mode, wait, ..LockOptions::default() }).await
    }
}

impl ReadGuard {
    /// Waits until all other readers have left, and writes then. It reads on until then, and nobody
    /// writes in between: what was read is still so.
    ///
    /// # Errors
    ///
    /// [`LockError`], with the lock: it is shared as before, unless it is over. Refused if another
    /// reader waits for the same.
    pub async fn upgrade(mut self, wait: LockWait) -> Result<WriteGuard, (Self, LockError)> {
        match self.0.upgrade(wait).await {
            Ok(_) => Ok(WriteGuard(self.0)),
            Err(error) => Err((self, error)),
        }
    }

    /// Waits until somebody waits to write, or it is over.
    pub async fn contended(&mut self) {
        self.0.contended().await;
    }

    /// Gives it back, and waits for the server to know.
    ///
    /// # Errors
    ///
    /// As of [`LockGuard::release`].
    pub async fn release(self) -> Result<(), LockError> {
        self.0.release().await
    }
}

impl WriteGuard {
    /// Reads from now on: others who wait to read may. Nobody writes in between.
    ///
    /// # Errors
    ///
    /// As of [`LockGuard::downgrade`]. The lock is given back then.
    pub async fn downgrade(mut self) -> Result<ReadGuard, LockError> {
        self.0.downgrade().await.map(|()| ReadGuard(self.0))
    }

    /// Waits until somebody else waits for it, or it is over.
    pub async fn contended(&mut self) {
        self.0.contended().await;
    }

    /// Gives it back, and waits for the server to know.
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
    /// A read-write lock. Nothing is asked before it is locked.
    pub fn rw_lock(&self, path: &NodePath) -> RwLock {
        RwLock { client: self.clone(), path: path.clone() }
    }
}
