//! The options of a lock, and its request.

use std::time::Duration;

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::Write,
    lock::{LockMode, LockStatus},
};
use tokio::time::Instant;

use super::{LockGuard, LockWait, request::LockRequest, wait::granted};
use crate::{call::GivenPath, client::Client, error::LockError};

/// A lock that is about to be requested: see [`Client::lock`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::LockWait;
/// use std::time::Duration;
///
/// let request = client.lock("/tables/orders").shared().wait(LockWait::For(Duration::from_secs(10)));
/// let guard = request.lock_delay(Duration::from_secs(2)).timeout(Duration::from_secs(5)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is locked until this is awaited"]
pub struct LockBuilder<'a> {
    pub(crate) client: &'a Client,
    path: GivenPath,
    mode: LockMode,
    wait: LockWait,
    lock_delay: Duration,
    pub(crate) timeout: Option<Duration>,
}

impl<'a> LockBuilder<'a> {
    pub(super) fn new(client: &'a Client, path: GivenPath) -> Self {
        let (mode, wait, lock_delay) = (LockMode::Exclusive, LockWait::Forever, Duration::ZERO);
        Self { client, path, mode, wait, lock_delay, timeout: None }
    }

    /// A shared lock: others may share it. By default, a lock is exclusive.
    pub fn shared(self) -> Self {
        self.mode(LockMode::Shared)
    }

    /// The mode of the lock. Exclusive by default.
    pub fn mode(mut self, mode: LockMode) -> Self {
        self.mode = mode;
        self
    }

    /// How long to wait in the lock queue, which is in the order of arrival. By default, until the
    /// lock is granted.
    pub fn wait(mut self, wait: LockWait) -> Self {
        self.wait = wait;
        self
    }

    /// How long the node stays taken after the servers have ended this lock with its lease
    /// (Chubby's lock delay). The delay is for resources that check no token: late requests of the
    /// former owner can arrive and end meanwhile. If the client notices the loss first, and its
    /// release arrives in time, there is no delay. Zero by default, at most 60 s.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// How long the request may take, without the time in the queue. By default, the client's
    /// timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    async fn request(self) -> Result<LockGuard, LockError> {
        let Self { client, path, mode, wait, lock_delay, timeout } = self;
        let path = path?;
        let timeout = client.timeout(timeout);
        let timeout = if let LockWait::For(most) = wait { timeout.min(most) } else { timeout };
        let write = Write::Lock { path: path.clone(), mode, wait: wait != LockWait::No, delay: lock_delay };
        // If the caller leaves after the request was sent, the client still waits for the answer,
        // and then releases the lock. Otherwise the node could stay locked without a guard.
        let taken = async {
            if wait == LockWait::No {
                client.driver().pending_releases.wait(&path).await;
            }
            LockRequest::new(client.clone(), path.clone(), write).answered().await
        };
        let asked = Instant::now();
        let mut lock = match tokio::time::timeout(timeout, taken).await {
            Ok(taken) => taken?,
            Err(_) => return Err(client.not_answered(&path, wait, timeout)),
        };
        let is_granted = |status: &LockStatus| !matches!(status, LockStatus::Waiting);
        granted(&mut lock.status, &path, wait, asked, is_granted).await?;
        Ok(lock)
    }
}

impl<'a> IntoFuture for LockBuilder<'a> {
    type Output = Result<LockGuard, LockError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.request())
    }
}
