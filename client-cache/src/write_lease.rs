//! Write leases: the client reads and writes a node's value in its own memory, and flushes it later
//! (S10 in docs/PROTOCOL.md).

use std::{
    ops::Deref,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::{Write, WriteRefusal},
    holder,
    limits::Limits,
    message::Refusal,
    object::{Stat, Value},
    path::{NodePath, PathError},
};
use tokio::{sync::watch, task::coop::consume_budget, time::Instant};

use crate::{
    client::Client,
    clock,
    driver::WriteLeaseCell,
    error::{LockError, WriteError, WriteLeaseError},
    lock::{LockBuilder, LockGuard, LockWait},
    lost_change::LostChange,
    pending_release::PendingRelease,
};

/// An exclusive lock whose owner also reads and writes the node's value in its own memory, until it
/// is [released](WriteLease::release), dropped or lost. Made by [`Client::write_lease`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let lease = client.write_lease("/documents/minutes").await?;
/// lease.set("only in memory").await?;
/// lease.flush().await?;
/// assert!(!lease.is_dirty());
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// While [`get`](WriteLease::get) and [`set`](WriteLease::set) use the memory, nobody else has a
/// copy of the value. The servers answer no read of the value and apply no write of it. If another
/// client reads or writes the node, the servers recall the write lease. This client then flushes
/// the value, and the write lease ends. The next `get` or `set` waits until the client has a write
/// lease again.
///
/// The client has the *lock* ([`LockGuard`]) all the time, so no other lock owner comes in between.
/// But a client that writes without a lock can write between a `get` and the next `set`.
///
/// The client flushes the value:
///
/// - when somebody else reads or writes the node;
/// - when the application calls [`flush`](WriteLease::flush) or [`release`](WriteLease::release);
/// - when a renewal of the lease is late, before the lease can end;
/// - in the background, when this is dropped. Closing the client does not flush.
///
/// Until then the value is only in this process's memory, and nobody else has seen it. **If the
/// process dies, the value is lost.** Only a value that `flush` or `release` has confirmed is safe.
///
/// No loss is silent. If the lease ends by this client's clock, or the servers refuse the value,
/// the next call returns the last value. [`lost_change`](WriteLease::lost_change) does so, too.
///
/// A flush writes under the lock's fencing token, and the servers refuse an older one. So a client
/// that was suspended past its lease cannot overwrite later writes of others.
#[derive(Debug)]
#[must_use = "the value is flushed and the lock is released when this is dropped"]
pub struct WriteLease {
    /// `None` only while it is being released.
    lock: Option<LockGuard>,
    cell: watch::Receiver<WriteLeaseCell>,
    /// The number of losses that were reported to the application.
    lost_reported: AtomicU64,
}

/// A write lease that is about to be requested: see [`Client::write_lease`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::LockWait;
/// use std::time::Duration;
///
/// let request = client.write_lease("/documents/minutes").wait(LockWait::For(Duration::from_secs(10)));
/// let lease = request.lock_delay(Duration::from_secs(2)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is locked until this is awaited"]
pub struct WriteLeaseBuilder<'a> {
    lock: LockBuilder<'a>,
}

impl WriteLeaseBuilder<'_> {
    /// How long to wait in the lock queue. By default, until the lock is granted.
    pub fn wait(mut self, wait: LockWait) -> Self {
        self.lock = self.lock.wait(wait);
        self
    }

    /// How long the node stays taken after this lock was lost: see [`LockBuilder::lock_delay`].
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock = self.lock.lock_delay(delay);
        self
    }

    /// How long each request may take, without the time in the queue. By default, the client's
    /// timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.lock = self.lock.timeout(timeout);
        self
    }
}

impl<'a> IntoFuture for WriteLeaseBuilder<'a> {
    type Output = Result<WriteLease, WriteLeaseError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let timeout = self.lock.client.timeout(self.lock.timeout);
            let lock = self.lock.await?;
            let (cell, lost_reported) = (lock.write_lease_cell(), AtomicU64::new(0));
            let lease = WriteLease { lock: Some(lock), cell, lost_reported };
            lease.begin(0, FlushDeadline::new(timeout)).await?;
            Ok(lease)
        })
    }
}

impl Client {
    /// Takes an exclusive lock on a node, and makes it a write lease. Creates the node with an
    /// empty value if it does not exist.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let lease = client.write_lease("/documents/minutes").await?;
    /// let mut text = lease.get().await?.to_vec();
    /// text.extend(b"one more line\n");
    /// lease.set(text).await?;
    /// lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError`]. Refused with [`WriteRefusal::Attached`] if the node is attached to a
    /// lease.
    pub fn write_lease(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> WriteLeaseBuilder<'_> {
        WriteLeaseBuilder { lock: self.lock(path) }
    }
}

/// The deadline of a call.
#[derive(Debug, Clone, Copy)]
struct FlushDeadline {
    at: Instant,
    after: Duration,
}

impl FlushDeadline {
    fn new(after: Duration) -> Self {
        Self { at: clock::deadline(after).into(), after }
    }
}

impl Deref for WriteLease {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match &self.lock {
            Some(lock) => lock,
            None => unreachable!("a write lease has its lock until it is released"),
        }
    }
}

impl WriteLease {
    /// The node's value: the last [set](Self::set) one, or the servers' value. From memory, unless
    /// another client's access has ended the write lease. If the node was removed meanwhile, this
    /// creates it again with an empty value.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError`]. Nothing is lost if the future is dropped.
    pub async fn get(&self) -> Result<Value, WriteLeaseError> {
        let deadline = self.deadline();
        loop {
            let losses = self.check_lost()?;
            if let Some(value) = self.client().driver().write_lease_value(self.id()) {
                consume_budget().await;
                return Ok(value);
            }
            self.begin(losses, deadline).await?;
        }
    }

    /// Sets the node's value in memory. If another client's access has ended the write lease, this
    /// first takes a new one, and then overwrites any value that was written meanwhile.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError`]. [`WriteLeaseError::Lost`] returns the lost value once: an earlier
    /// value, or this one if the lease ended at the same moment. If the future is dropped, the
    /// value may or may not be set.
    pub async fn set(&self, value: impl AsRef<[u8]>) -> Result<(), WriteLeaseError> {
        self.set_value(Value::copy_from_slice(value.as_ref())).await
    }

    async fn set_value(&self, value: Value) -> Result<(), WriteLeaseError> {
        let widest = Limits { value_max_bytes: Limits::VALUE_MAX_BYTES, ..Limits::default() };
        widest.check_value(&value).map_err(|limit| WriteError::Limit { path: Some(self.path().clone()), limit })?;
        let deadline = self.deadline();
        loop {
            let losses = self.check_lost()?;
            if self.client().driver().set_under_write_lease(self.id(), value.clone()) {
                consume_budget().await;
                return Ok(());
            }
            self.begin(losses, deadline).await?;
        }
    }

    /// Waits until the servers have stored the value, as safely as any other write. Returns the
    /// node's stat, or `None` if the client has not received one.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError`]. After [`WriteLeaseError::TimedOut`], the flush continues in the
    /// background.
    pub async fn flush(&self) -> Result<Option<Stat>, WriteLeaseError> {
        let losses = self.check_lost()?;
        let driver = self.client().driver();
        let wanted = driver.write_lease_status(self.id()).unwrap_or_default().set_count;
        let is_flushed = || {
            // One flush at a time: a value that is set during a flush needs another one.
            driver.flush(self.id());
            let status = driver.write_lease_status(self.id());
            status.is_none_or(|status| status.flushed_count >= wanted.min(status.set_count))
        };
        self.wait_until(losses, self.deadline(), is_flushed).await?;
        if self.on_lost().is_cancelled() {
            // The write lease may have ended before the flush was confirmed. Another call may have
            // returned the loss.
            return Err(LockError::Lost { path: self.path().clone() }.into());
        }
        Ok(self.cell.borrow().status.stat)
    }

    /// Whether a value was set that the servers are not known to have.
    pub fn is_dirty(&self) -> bool {
        let status = self.client().driver().write_lease_status(self.id());
        status.is_some_and(|status| status.set_count > status.flushed_count)
    }

    /// Waits for a loss, and returns it once. Nothing is lost if the future is dropped.
    pub async fn lost_change(&self) -> LostChange {
        let mut kept = self.cell.clone();
        loop {
            if let Err(WriteLeaseError::Lost(lost)) = self.check_lost() {
                return lost;
            }
            if kept.changed().await.is_err() {
                // The guard keeps its client alive, and the client keeps the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Flushes the value and releases the lock. Dropping this does the same in the background.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError`]. After [`WriteLeaseError::TimedOut`], the release continues in the
    /// background.
    pub async fn release(mut self) -> Result<(), WriteLeaseError> {
        let losses = self.check_lost()?;
        let driver = self.client().driver();
        let is_given_up = || {
            // Repeated, because a request for the write lease may still be in flight.
            driver.release_write_lease(self.id());
            !driver.has_write_lease(self.id())
        };
        self.wait_until(losses, self.deadline(), is_given_up).await?;
        if self.on_lost().is_cancelled() {
            return Err(LockError::Lost { path: self.path().clone() }.into());
        }
        match self.lock.take() {
            Some(lock) => Ok(lock.release().await?),
            None => Ok(()),
        }
    }

    fn deadline(&self) -> FlushDeadline {
        FlushDeadline::new(self.client().driver().options.timeout)
    }

    /// Takes the write lease, and waits for it. `losses` is the result of
    /// [`check_lost`](Self::check_lost) when the caller began.
    async fn begin(&self, losses: u64, deadline: FlushDeadline) -> Result<(), WriteLeaseError> {
        let driver = self.client().driver();
        loop {
            if driver.write_lease_value(self.id()).is_some() {
                return Ok(());
            }
            if self.on_lost().is_cancelled() {
                self.check_lost_since(losses)?;
                return Err(LockError::Lost { path: self.path().clone() }.into());
            }
            if Instant::now() >= deadline.at {
                return Err(self.timed_out(deadline));
            }
            if driver.has_write_lease(self.id()) {
                // A write lease is requested already, or is about to end.
                let moves_on = || driver.write_lease_value(self.id()).is_some() || !driver.has_write_lease(self.id());
                self.wait_until(losses, deadline, moves_on).await?;
                continue;
            }
            // The client does not cancel this request when the caller stops waiting, because it
            // must know the outcome.
            let (_, outcome) = driver.write(Write::TakeWriteLease { path: self.path().clone(), lock: self.id() });
            let outcome = tokio::time::timeout_at(deadline.at, outcome).await.map_err(|_| self.timed_out(deadline))?;
            match outcome.unwrap_or(Err(holder::WriteFailure::OutcomeUnknown)) {
                Ok(_) | Err(holder::WriteFailure::NotSent | holder::WriteFailure::OutcomeUnknown) => {}
                Err(holder::WriteFailure::Refused(Refusal::Write(WriteRefusal::NotFound { .. }))) => {
                    self.make(deadline).await?;
                }
                Err(holder::WriteFailure::Refused(Refusal::Write(WriteRefusal::LockNotFound { .. }))) => {
                    return Err(LockError::Lost { path: self.path().clone() }.into());
                }
                Err(holder::WriteFailure::Refused(refusal)) => return Err(WriteError::Refused(refusal).into()),
            }
        }
    }

    /// Creates the node, unless somebody else has created it meanwhile.
    async fn make(&self, deadline: FlushDeadline) -> Result<(), WriteLeaseError> {
        let left = deadline.at.saturating_duration_since(Instant::now());
        match self.client().put(self.path(), "").if_absent().timeout(left).await {
            Ok(_) | Err(WriteError::Refused(Refusal::Write(WriteRefusal::Exists { .. }))) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until `stands` returns true. Calls it again after each change of the write lease.
    ///
    /// `losses` is the number of losses when the caller began ([`check_lost`](Self::check_lost)). A
    /// later loss is an error, even if another call has reported it. (The lease may end on another
    /// thread between the caller's first check and this one.)
    async fn wait_until(
        &self,
        losses: u64,
        deadline: FlushDeadline,
        stands: impl Fn() -> bool,
    ) -> Result<(), WriteLeaseError> {
        let (mut kept, over) = (self.cell.clone(), self.on_lost());
        loop {
            kept.mark_unchanged();
            let stands = stands();
            self.check_lost_since(losses)?;
            if stands {
                return Ok(());
            }
            if over.is_cancelled() {
                return Err(LockError::Lost { path: self.path().clone() }.into());
            }
            tokio::select! {
                changed = tokio::time::timeout_at(deadline.at, kept.changed()) => match changed {
                    Ok(_) => {}
                    Err(_) => return Err(self.timed_out(deadline)),
                },
                () = over.cancelled() => {}
            }
        }
    }

    fn timed_out(&self, deadline: FlushDeadline) -> WriteLeaseError {
        WriteLeaseError::TimedOut { path: self.path().clone(), after: deadline.after }
    }

    /// Checks that there was no loss after the first `losses` ones.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError::Lost`] if there were more than `losses` losses.
    fn check_lost_since(&self, losses: u64) -> Result<(), WriteLeaseError> {
        let kept = self.cell.borrow();
        let Some((number, lost)) = kept.lost.as_ref().filter(|(number, _)| *number > losses) else { return Ok(()) };
        self.lost_reported.fetch_max(*number, Relaxed);
        Err(WriteLeaseError::Lost(lost.clone()))
    }

    /// The number of losses so far, all of them reported.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError::Lost`] if there is a loss that was not reported yet.
    fn check_lost(&self) -> Result<u64, WriteLeaseError> {
        let kept = self.cell.borrow();
        let Some((number, lost)) = kept.lost.as_ref() else { return Ok(0) };
        if self.lost_reported.fetch_max(*number, Relaxed) < *number {
            return Err(WriteLeaseError::Lost(lost.clone()));
        }
        Ok(*number)
    }
}

impl Drop for WriteLease {
    fn drop(&mut self) {
        let reported = self.lost_reported.load(Relaxed);
        match self.lock.take() {
            // The task keeps the client alive until it has finished.
            Some(lock) if !lock.on_lost().is_cancelled() => {
                let pending_release = lock.client().driver().pending_releases.begin(lock.path());
                let client = lock.client().clone();
                let warning = LossWarning { cell: self.cell.clone(), reported };
                client.driver().spawn(flush_and_release(DroppedLease {
                    lock,
                    _pending_release: pending_release,
                    warning,
                }));
            }
            // A lost lock has been released already.
            _ => drop(LossWarning { cell: self.cell.clone(), reported }),
        }
    }
}

/// What is left of a dropped write lease. The fields are dropped in this order, whenever the task
/// ends: the release of the lock records a loss, and then the loss is logged.
struct DroppedLease {
    lock: LockGuard,
    _pending_release: PendingRelease,
    warning: LossWarning,
}

/// Flushes the value and releases the lock, when nobody waits for that.
async fn flush_and_release(dropped: DroppedLease) {
    let (mut kept, over, id) = (dropped.warning.cell.clone(), dropped.lock.on_lost(), dropped.lock.id());
    loop {
        kept.mark_unchanged();
        dropped.lock.client().driver().release_write_lease(id);
        if over.is_cancelled() || !dropped.lock.client().driver().has_write_lease(id) {
            break;
        }
        tokio::select! {
            _ = kept.changed() => {}
            () = over.cancelled() => {}
        }
    }
    if !over.is_cancelled() {
        // If no server answers, the lock ends with the client's lease.
        let _ = dropped.lock.release().await;
    }
}

/// Logs, when dropped, a loss that can no longer be returned to anybody.
struct LossWarning {
    cell: watch::Receiver<WriteLeaseCell>,
    /// The number of losses that the application knows of.
    reported: u64,
}

impl Drop for LossWarning {
    fn drop(&mut self) {
        if let Some((_, lost)) = self.cell.borrow().lost.as_ref().filter(|(number, _)| *number > self.reported) {
            let (bytes, may_be_written) = (lost.value.len(), lost.may_be_written);
            tracing::warn!(path = %lost.path, bytes, may_be_written, "a value that was set under a write lease, which was dropped since, was not flushed and is lost");
        }
    }
}
