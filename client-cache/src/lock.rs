//! Locks on nodes, shared or exclusive. A lock ends with the session's lease on the volume to which
//! the node belonged when the lock was requested.

mod builder;
mod hand_over;
mod request;
mod wait;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use leasehold_protocol::{
    command::{Write, WriteRefusal},
    id::{LockId, Token},
    lock::{LockMode, LockStatus},
    message::{Answer, Inspect, LockInfo, Refusal},
    path::{NodePath, PathError},
};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use builder::LockBuilder;
pub use hand_over::HandOverError;
use request::UpgradeRequest;
pub use wait::LockWait;
use wait::granted;

use crate::{
    call::given,
    client::Client,
    driver::{WriteLeaseCell, WriteOutcome},
    error::{InspectError, LockError, WriteError},
};

/// A lock of this client, until it is [released](LockGuard::release), dropped or lost.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("/jobs/nightly").await?;
/// println!("token {}, {:?} remain", guard.token(), guard.remaining());
/// guard.run(async { /* what only the owner does */ }).await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// While [`LockGuard::remaining`] is above zero, no other granted lock on the node is exclusive. If
/// this lock is exclusive, no other lock on the node is granted. Other requests may wait.
///
/// The lock lives under the session's lease on the volume to which the node belonged when the lock
/// was requested. The client renews that lease. If no server answers in time, this client's own
/// clock ends the lock and cancels [`LockGuard::on_lost`]. The servers grant the node to another
/// owner only after the lock has ended by this client's clock. If this client reaches no server,
/// they first wait until the lease and the volume's skew margin have passed on their own clock. A
/// lost lock does not come back.
///
/// # Late requests
///
/// A message or a disk write that was sent in time may arrive after the lock has ended. Only the
/// receiver can refuse it, by the [`LockGuard::token`] in the request. Each grant of the node has a
/// higher token.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct LockGuard {
    /// The guard keeps its client alive: otherwise nobody would renew the lease or read the clock.
    client: Client,
    path: NodePath,
    id: LockId,
    status: watch::Receiver<LockStatus>,
    write_lease: watch::Receiver<WriteLeaseCell>,
    lost: CancellationToken,
    is_released: bool,
}

impl LockGuard {
    /// The node.
    pub fn path(&self) -> &NodePath {
        &self.path
    }

    /// The lock's id in lists, such as that of [`Client::locks`].
    pub fn id(&self) -> LockId {
        self.id
    }

    /// The fencing token of the latest grant. An upgrade changes it. Zero once the lock has ended.
    pub fn token(&self) -> Token {
        match *self.status.borrow() {
            LockStatus::Granted { token, .. } => token,
            LockStatus::Waiting | LockStatus::Ended => Token(0),
        }
    }

    /// The mode of the lock. Shared if the lock has ended.
    pub fn mode(&self) -> LockMode {
        match *self.status.borrow() {
            LockStatus::Granted { mode, .. } => mode,
            LockStatus::Waiting | LockStatus::Ended => LockMode::Shared,
        }
    }

    /// For how long the lock certainly lasts, even if no server answers. Zero if it has ended.
    pub fn remaining(&self) -> Duration {
        self.client.driver().lock_remaining(self.id)
    }

    /// Cancelled when the lock is released, dropped or lost. If no server answers, this client's
    /// own clock cancels it. The lock does not become valid again. If you cancel this token, the
    /// lock remains.
    ///
    /// If the machine was suspended past the end of the lock, this is cancelled up to a second
    /// after it resumes. [`LockGuard::remaining`] is right at once.
    pub fn on_lost(&self) -> CancellationToken {
        self.lost.child_token()
    }

    /// Runs `work` until it ends or the lock is lost. Then `work` is dropped. Once the lock has
    /// ended by this client's clock, `work` is not polled again.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = client.lock("/jobs/nightly").await?;
    /// let done = guard.run(async { /* what only the owner does */ }).await;
    /// guard.release().await?;
    /// # Ok(done?)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the lock was lost first.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, LockError> {
        let mut work = pin!(work);
        let until_lost = poll_fn(|cx| {
            // After the machine was suspended, the timer may notice the end up to a second late.
            if self.remaining().is_zero() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(cx).map(Some)
        });
        let done = self.lost.run_until_cancelled(until_lost).await.flatten();
        done.ok_or_else(|| LockError::Lost { path: self.path.clone() })
    }

    /// Whether another lock waits for the node, or another owner for an upgrade. Also true once
    /// the lock has ended.
    pub fn is_contended(&self) -> bool {
        matches!(*self.status.borrow(), LockStatus::Granted { is_contended: true, .. } | LockStatus::Ended)
    }

    /// Waits until another lock waits for the node, or another owner for an upgrade, or until
    /// this lock has ended. The owner may release the lock then, but need not. Nothing is lost if
    /// the future is dropped.
    ///
    /// ```no_run
    /// # async fn example(mut guard: leasehold_client_cache::LockGuard) -> Result<(), Box<dyn std::error::Error>> {
    /// guard.contended().await;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn contended(&mut self) {
        let is_wanted =
            |status: &LockStatus| matches!(status, LockStatus::Granted { is_contended: true, .. } | LockStatus::Ended);
        // Cannot fail: the guard keeps the driver alive.
        let _ = self.status.wait_for(is_wanted).await;
    }

    /// Makes a shared lock exclusive, when all other owners have left. The lock stays shared until
    /// then, and gets a new token with the upgrade.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::LockWait;
    ///
    /// let mut guard = client.lock("/tables/orders").shared().await?;
    /// let token = guard.upgrade(LockWait::Forever).await?;
    /// println!("nobody else reads or writes under a lock; the token is {token}");
    /// guard.downgrade().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError`]. Refused if another owner waits for an upgrade already: one of the two has to
    /// release its lock. After an error, or if the future is dropped, the client cancels the
    /// request. The lock then stays shared, unless it has ended. It may have been exclusive for a
    /// moment, and then has a new [token](Self::token).
    pub async fn upgrade(&mut self, wait: LockWait) -> Result<Token, LockError> {
        let asked = Instant::now();
        self.wait_for_pending_releases(wait).await?;
        if let LockStatus::Granted { token, mode: LockMode::Exclusive, .. } = *self.status.borrow() {
            return Ok(token);
        }
        // Dropping `upgrading` cancels the upgrade. While `become_exclusive` runs, the holder
        // refuses any other change of this lock. So that future is always dropped first: after an
        // error, and if this future is dropped.
        let upgrading = UpgradeRequest::new(self.client.clone(), self.path.clone(), self.id);
        let result = self.become_exclusive(wait, asked).await;
        match &result {
            Err(LockError::NotGranted { .. }) => upgrading.cancel().await,
            Err(LockError::Write(error)) if error.may_still_happen() => drop(upgrading),
            _ => upgrading.done(),
        }
        result.map_err(|error| self.not_granted_in_time(error, wait))
    }

    /// The error of an upgrade. If its `wait` has ended before the client's timeout, the error is
    /// [`LockError::NotGranted`].
    fn not_granted_in_time(&self, error: LockError, wait: LockWait) -> LockError {
        let timeout = self.client.driver().options.timeout;
        match (wait, &error) {
            (
                LockWait::For(most),
                LockError::Write(WriteError::TimedOut { after, .. } | WriteError::NotSent { after, .. }),
            ) if *after < timeout => LockError::NotGranted { path: self.path.clone(), after: most },
            _ => error,
        }
    }

    /// Waits until the servers have confirmed this client's pending releases at the node. The
    /// cancellation of an upgrade is a pending release too: until the servers have confirmed it,
    /// the holder refuses any other change of the lock.
    async fn wait_for_pending_releases(&self, wait: LockWait) -> Result<(), LockError> {
        let driver = self.client.driver();
        let after =
            if let LockWait::For(most) = wait { driver.options.timeout.min(most) } else { driver.options.timeout };
        let gone = tokio::time::timeout(after, driver.pending_releases.wait(&self.path)).await;
        gone.map_err(|_| self.client.not_answered(&self.path, wait, after))
    }

    async fn become_exclusive(&mut self, wait: LockWait, asked: Instant) -> Result<Token, LockError> {
        self.make_exclusive(wait, asked).await?;
        let is_exclusive = |status: &LockStatus| {
            matches!(status, LockStatus::Granted { mode: LockMode::Exclusive, .. } | LockStatus::Ended)
        };
        granted(&mut self.status, &self.path, wait, asked, is_exclusive).await
    }

    /// Makes an exclusive lock shared. Then the waiters at the front of the queue get the node
    /// too, up to the first that cannot share it.
    ///
    /// The lock is shared from the call on. If no answer comes in time, or the future is dropped,
    /// the client continues to ask until a server answers or the lock ends.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the lock had ended already. [`LockError::Write`] if no server
    /// answered in time. [`LockError::TimedOut`] if the servers did not confirm the cancellation of
    /// an upgrade in time.
    pub async fn downgrade(&mut self) -> Result<(), LockError> {
        if self.mode() == LockMode::Shared {
            self.wait_for_pending_releases(LockWait::Forever).await?;
        }
        let (path, lock) = (self.path.clone(), self.id);
        let change = Write::ChangeLockMode { path, lock, mode: LockMode::Shared, wait: true };
        let outcome = self.client.driver().begin_pending_release(&self.path, change);
        self.confirmed(outcome).await
    }

    async fn make_exclusive(&mut self, wait: LockWait, asked: Instant) -> Result<(), LockError> {
        let (path, lock) = (self.path.clone(), self.id);
        let change = Write::ChangeLockMode { path, lock, mode: LockMode::Exclusive, wait: wait != LockWait::No };
        let timeout = self.client.driver().options.timeout;
        let left = if let LockWait::For(most) = wait { most.saturating_sub(asked.elapsed()) } else { timeout };
        let result = self.client.driver().execute_write(change, timeout.min(left)).await;
        result.map(|_| ()).map_err(|error| self.lost_or(error))
    }

    /// Waits for the answer to a request, at most for the client's timeout. After that, the client
    /// still repeats the request.
    pub(crate) async fn confirmed(&self, outcome: oneshot::Receiver<WriteOutcome>) -> Result<(), LockError> {
        let after = self.client.driver().options.timeout;
        let path = Some(self.path.clone());
        match tokio::time::timeout(after, outcome).await {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err(error))) => Err(self.lost_or(crate::write::ended(error, path))),
            Ok(Err(_)) => Err(LockError::Write(WriteError::SessionEnded { path })),
            Err(_) => Err(LockError::Write(WriteError::TimedOut { path, after })),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The state of the write lease, if the lock is one.
    pub(crate) fn write_lease_cell(&self) -> watch::Receiver<WriteLeaseCell> {
        self.write_lease.clone()
    }

    fn lost_or(&self, error: WriteError) -> LockError {
        let is_not_found = matches!(&error, WriteError::Refused(Refusal::Write(WriteRefusal::LockNotFound { .. })));
        if is_not_found { LockError::Lost { path: self.path.clone() } } else { LockError::Write(error) }
    }

    /// Releases the lock, and waits for the answer. From the call on, the client does not have the
    /// lock, whatever the result. Dropping the guard releases the lock too, without waiting.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the lock had ended already. [`LockError::Write`] if no server
    /// answered in time: then the lock ends with the client's lease at the latest.
    pub async fn release(mut self) -> Result<(), LockError> {
        let outcome = self.begin_release();
        self.confirmed(outcome).await
    }

    /// Gives the lock to a waiter (see [`Client::locks`]), even if others came before it. Nobody
    /// has the node in between, and the waiter's token is higher. There must be no other owner.
    /// While the call runs, the client does not count on the lock. After
    /// [`HandOverError::Unchanged`], it has the lock again.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client, guard: leasehold_client_cache::LockGuard) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::HandOverError;
    ///
    /// let locks = client.locks(guard.path()).await?;
    /// if let Some(waiter) = locks.iter().find(|lock| lock.token.is_none()) {
    ///     match guard.hand_over(waiter.lock).await {
    ///         Err(HandOverError::Unchanged(guard, _)) => guard.release().await?,
    ///         result => result?,
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`HandOverError`] says whether the client still has the lock.
    pub async fn hand_over(mut self, to: LockId) -> Result<(), HandOverError<Self>> {
        match self.try_hand_over(to).await {
            Ok(()) => Ok(()),
            Err(error) if self.lost.is_cancelled() => Err(HandOverError::Released(error)),
            Err(error) => Err(HandOverError::Unchanged(self, error)),
        }
    }

    /// Like [`Self::hand_over`]. After an error, the client has the lock as before, or the lock has
    /// ended.
    pub(crate) async fn try_hand_over(&mut self, successor: LockId) -> Result<(), LockError> {
        self.wait_for_pending_releases(LockWait::Forever).await?;
        let change = Write::HandOver { path: self.path.clone(), lock: self.id, successor };
        let after = self.client.driver().options.timeout;
        let result = self.client.driver().execute_write(change, after).await.map_err(|error| self.lost_or(error));
        match &result {
            Ok(_) => self.is_released = true,
            // The lock is unchanged.
            Err(LockError::Write(error)) if !error.may_still_happen() => return result.map(|_| ()),
            // The hand-over may have happened, so the client gives up the lock. If it did happen,
            // this release has no effect.
            Err(_) => drop(self.begin_release()),
        }
        self.lost.cancel();
        result.map(|_| ())
    }

    /// Releases the lock. The client repeats the request until it is confirmed or the session has
    /// ended, even if no caller waits for it.
    pub(crate) fn begin_release(&mut self) -> oneshot::Receiver<WriteOutcome> {
        self.is_released = true;
        let change = Write::Unlock { path: self.path.clone(), lock: self.id };
        self.client.driver().begin_pending_release(&self.path, change)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // A lost lock has been released already.
        if !self.is_released && !self.lost.is_cancelled() {
            // The cell must still be there: it records a value that was not flushed.
            drop(self.begin_release());
        }
        self.client.driver().drop_lock_cell(self.id);
    }
}

impl Client {
    /// Locks a node. The node need not exist, and nothing is written.
    ///
    /// Dropping the future cancels the request. One client can have several locks on a node, if
    /// their modes are compatible. Otherwise the second waits for the first. With [`LockWait::No`],
    /// this first waits until the client's pending releases of the node are confirmed.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::LockWait;
    /// use std::time::Duration;
    ///
    /// let guard = client.lock("/jobs/nightly").wait(LockWait::For(Duration::from_secs(10))).await?;
    /// println!("token {}, {:?} remain", guard.token(), guard.remaining());
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError`]. With [`LockWait::No`]: [`LockError::Write`] with [`WriteRefusal::Locked`] if
    /// the node is not free.
    pub fn lock(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> LockBuilder<'_> {
        LockBuilder::new(self, given(path))
    }

    /// Waits until this client's pending releases of a node are confirmed.
    ///
    /// # Errors
    ///
    /// [`LockError`], if no server confirms them in time.
    pub(crate) async fn wait_for_pending_releases(&self, path: &NodePath) -> Result<(), LockError> {
        let after = self.driver().options.timeout;
        let gone = tokio::time::timeout(after, self.driver().pending_releases.wait(path)).await;
        gone.map_err(|_| self.not_answered(path, LockWait::No, after))
    }

    fn not_answered(&self, path: &NodePath, wait: LockWait, after: Duration) -> LockError {
        match (self.driver().status.unavailable(), wait) {
            (Some(source), _) => LockError::Write(WriteError::Unavailable { path: Some(path.clone()), after, source }),
            (None, LockWait::For(most)) if most == after => LockError::NotGranted { path: path.clone(), after },
            (None, _) => LockError::TimedOut { path: path.clone(), after },
        }
    }

    /// Lists the locks on a node: granted, waiting, and lost ones in their lock delay
    /// ([`LockInfo::is_lost`]), in the order of arrival. The leader answers. More than 1,024 locks
    /// come in several pages, each as of its own moment. [`LockGuard::hand_over`] can name one that
    /// waits.
    ///
    /// Not to be confused with [`Admin::holders`](crate::Admin::holders), which lists the sessions
    /// whose *caches* have leases on the node, whether or not they lock it.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = client.locks("/jobs/nightly").await?;
    /// let waiting = locks.iter().filter(|lock| lock.token.is_none()).count();
    /// println!("{} own the lock, {waiting} wait", locks.len() - waiting);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn locks(
        &self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Vec<LockInfo>, InspectError> {
        let (path, mut locks, mut after) = (given(path)?, Vec::new(), None);
        loop {
            let Answer::LockInfos(page) = self.inspect(Inspect::Locks { path: path.clone(), after }).await? else {
                return Err(InspectError::UnexpectedAnswer);
            };
            locks.extend(page.locks);
            after = page.through;
            if after.is_none() {
                return Ok(locks);
            }
        }
    }
}

impl LockGuard {
    fn new(client: Client, path: NodePath, id: LockId) -> Self {
        let cell = client.driver().lock_cell(id);
        let (status, write_lease, lost) = (cell.status.subscribe(), cell.write_lease.subscribe(), cell.lost.clone());
        Self { client, path, id, status, write_lease, lost, is_released: false }
    }
}
