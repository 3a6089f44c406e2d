//! A mutex: a hold that is exclusive, with a type that says so.
//!
//! It promises what [`LockGuard`](crate::LockGuard) does, and nothing more. The token is what keeps
//! out what its holder sent before the end and arrives after it.

use std::{ops::Deref, time::Duration};

use leasehold_protocol::{command::WriteRefusal, message::Refusal, path::NodePath};

use crate::{
    client::Client,
    error::{LockError, WriteError},
    lock::{LockGuard, LockOptions, LockWait},
};

/// A node that one client holds at a time, in the order in which they ask. See [`Client::mutex`].
#[derive(Debug, Clone)]
pub struct Mutex {
    client: Client,
    path: NodePath,
}

/// The mutex is locked, until this is dropped or [released](MutexGuard::release), or
/// [`LockGuard::over`] says that it is over.
#[derive(Debug)]
#[must_use = "the mutex is unlocked when this is dropped"]
pub struct MutexGuard(LockGuard);

impl Mutex {
    /// Waits for it.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn lock(&self) -> Result<MutexGuard, LockError> {
        self.lock_with(LockWait::Forever).await
    }

    /// None if somebody else has it.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn try_lock(&self) -> Result<Option<MutexGuard>, LockError> {
        if_free(self.lock_with(LockWait::No).await)
    }

    /// None if it was not locked within this time, counted from the call ([`LockWait::For`]). A
    /// time shorter than a round trip to the server gives none even if the mutex is free: use
    /// [`Mutex::try_lock`] for that.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub async fn lock_timeout(&self, most: Duration) -> Result<Option<MutexGuard>, LockError> {
        if_free(self.lock_with(LockWait::For(most)).await)
    }

    async fn lock_with(&self, wait: LockWait) -> Result<MutexGuard, LockError> {
        self.client.lock(&self.path, LockOptions { wait, ..LockOptions::default() }).await.map(MutexGuard)
    }
}

/// That somebody was in the way is no error for one who asks whether that is so.
pub(super) fn if_free<G>(result: Result<G, LockError>) -> Result<Option<G>, LockError> {
    match result {
        Err(LockError::Write(WriteError::Refused(Refusal::Write(WriteRefusal::Locked { .. })))) => Ok(None),
        Err(LockError::NotGranted { .. }) => Ok(None),
        result => result.map(Some),
    }
}

impl MutexGuard {
    /// Unlocks it, and waits for the server to know.
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
    /// A mutex. Nothing is asked before it is locked.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mutex = client.mutex(&"/jobs/nightly".parse()?);
    /// let guard = mutex.lock().await?;
    /// println!("token {}, certain for {:?}", guard.token(), guard.certain_for());
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn mutex(&self, path: &NodePath) -> Mutex {
        Mutex { client: self.clone(), path: path.clone() }
    }
}
