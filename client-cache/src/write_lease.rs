//! Write leases: a node's value is read and written in this client's memory, and written back
//! later.

use std::{
    fmt,
    ops::Deref,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use leasehold_protocol::{
    command::{Condition, Write, WriteRefusal},
    holder,
    limits::Limits,
    lock::{LockMode, WriteLeaseStatus},
    message::Refusal,
    object::{Stat, Value},
    path::NodePath,
};
use tokio::{runtime::Handle, sync::watch, time::Instant};

use crate::{
    client::Client,
    clock,
    error::{LockError, WriteError, WriteLeaseError},
    lock::{LockGuard, LockOptions},
    pending_release::PendingRelease,
    write::PutOptions,
};

/// What was set under a write lease, and is not on the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostChange {
    /// The node.
    pub path: NodePath,
    /// What was set last. What was set before and not flushed either is not told.
    pub value: Value,
    /// It was sent, and what came of that was never heard: this value, or one that was set before
    /// it, may be there.
    pub may_be_written: bool,
    /// Why the servers have refused it, if they have: the node is held all the same. None: the hold
    /// was over first.
    pub refusal: Option<Box<Refusal>>,
}

impl fmt::Display for LostChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what was set at {} under a write lease is lost: {} bytes", self.path, self.value.len())?;
        self.refusal.as_ref().map_or(Ok(()), |refusal| write!(f, ", because {refusal}"))
    }
}

/// What is known of what a hold keeps to itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteLeaseCell {
    pub(crate) status: WriteLeaseStatus,
    /// What was lost last, and how many times something was.
    pub(crate) lost: Option<(u64, LostChange)>,
}

/// A node that this client has to itself: it reads and writes the node's value in its own memory,
/// until it is [released](WriteLease::release) or dropped. Made by [`Client::write_lease`].
///
/// # What it promises
///
/// While [`get`](WriteLease::get) and [`set`](WriteLease::set) come from memory, nobody else has a
/// copy of the node's value, and nobody's read of it is answered, nor a write of it done: whoever
/// wants it has this client asked for it. Then what was set is flushed, and the node is everybody's
/// again; the next `get` or `set` waits for its turn and has it to itself once more. It is *held*
/// all the time ([`LockGuard`]), so nobody who locks it comes between; who writes it without
/// locking it can, between a `get` and the `set` that follows, too.
///
/// What was set is flushed (a) when somebody reads or writes the node, (b) by
/// [`flush`](WriteLease::flush) and [`release`](WriteLease::release), (c) when a renewal of the
/// lease is late, before it can end; dropping it flushes in the background (closing the client does
/// not). Until then it is in this process's memory only: **if the process dies, it is gone**, and
/// nobody else has ever seen it. Only what `flush` or `release` have confirmed is as safe as any
/// other write.
///
/// If the lease ends by this client's clock, or the servers refuse what is flushed, that is never
/// silent: the next call, or [`lost`](WriteLease::lost), hands back the value that was set last.
///
/// # What its token does
///
/// What is flushed is written under the hold's fencing token, and refused under an older one. So a
/// client that stood still past its lease cannot overwrite what others have written since.
#[derive(Debug)]
pub struct WriteLease {
    /// None only while it is being given back.
    lock: Option<LockGuard>,
    cell: watch::Receiver<WriteLeaseCell>,
    /// How many losses the application has been told of.
    lost_told: AtomicU64,
    /// Where it is given back when it is dropped, wherever that is.
    runtime: Handle,
}

impl Client {
    /// Takes an exclusive hold on a node, and has the node to itself from then on: a write lease. A
    /// node that does not exist is made, with an empty value. The `mode` of the options does not
    /// count.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError`]; refused with [`WriteRefusal::Attached`] if the node goes with a lease.
    pub async fn write_lease(&self, path: &NodePath, options: LockOptions) -> Result<WriteLease, WriteLeaseError> {
        let options = LockOptions { mode: LockMode::Exclusive, ..options };
        let hold = self.lock(path, options).await?;
        let (cell, lost_told, runtime) = (hold.write_lease_cell(), AtomicU64::new(0), Handle::current());
        let lease = WriteLease { lock: Some(hold), cell, lost_told, runtime };
        let after = options.timeout.unwrap_or(self.driver().options.timeout);
        lease.begin(0, FlushDeadline::new(after)).await?;
        Ok(lease)
    }
}

/// When something is given up.
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
            Some(hold) => hold,
            None => unreachable!("a write lease has its hold until it is given back"),
        }
    }
}

impl WriteLease {
    /// The node's value: what was [set](Self::set) last, or else what was there. From memory,
    /// unless somebody has asked for the node meanwhile. If somebody has removed it meanwhile it is
    /// made again, with an empty value.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError`]. Nothing is lost if the future is dropped.
    pub async fn get(&self) -> Result<Value, WriteLeaseError> {
        let deadline = self.deadline();
        loop {
            let losses = self.check_lost()?;
            if let Some(value) = self.client().driver().write_lease_value(self.id()) {
                return Ok(value);
            }
            self.begin(losses, deadline).await?;
        }
    }

    /// Sets the node's value. In memory, unless somebody has asked for the node meanwhile: then
    /// when it is this client's again, over whatever has been written in between.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError`]; [`WriteLeaseError::CopyEvicted`] hands back what was set last, once:
    /// what was set before, or this value if the lease ended this very moment. If the future is
    /// dropped it was set or was not.
    pub async fn set(&self, value: impl Into<Value>) -> Result<(), WriteLeaseError> {
        let value = value.into();
        let widest = Limits { value_max_bytes: Limits::VALUE_MAX_BYTES, ..Limits::default() };
        widest.check_value(&value).map_err(WriteError::from)?;
        let deadline = self.deadline();
        loop {
            let losses = self.check_lost()?;
            if self.client().driver().set_under_write_lease(self.id(), value.clone()) {
                return Ok(());
            }
            self.begin(losses, deadline).await?;
        }
    }

    /// Waits until what was set is on the servers, as safe as any other write there. Returns what
    /// they say of the node; none if nothing of it was ever heard.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError`]. After [`WriteLeaseError::TimedOut`] it goes on in the background.
    pub async fn flush(&self) -> Result<Option<Stat>, WriteLeaseError> {
        let losses = self.check_lost()?;
        let driver = self.client().driver();
        let wanted = driver.write_lease_status(self.id()).unwrap_or_default().set_count;
        let is_flushed = || {
            // One flush at a time: what was set while one was under way goes with the next.
            driver.flush(self.id());
            let status = driver.write_lease_status(self.id());
            status.is_none_or(|status| status.flushed_count >= wanted.min(status.set_count))
        };
        self.wait_until(losses, self.deadline(), is_flushed).await?;
        let kept = self.cell.borrow();
        if self.on_lost().is_cancelled() && kept.lost.is_some() {
            // Another call was told what was lost. This one confirms nothing.
            return Err(LockError::Lost { path: self.path().clone() }.into());
        }
        Ok(kept.status.stat)
    }

    /// Whether something was set that is not known to be on the servers.
    pub fn is_dirty(&self) -> bool {
        let status = self.client().driver().write_lease_status(self.id());
        status.is_some_and(|status| status.set_count > status.flushed_count)
    }

    /// Waits until something that was set is lost, and hands it back, once. Nothing is lost if the
    /// future is dropped.
    pub async fn lost_change(&self) -> LostChange {
        let mut kept = self.cell.clone();
        loop {
            if let Err(WriteLeaseError::Lost(lost)) = self.check_lost() {
                return lost;
            }
            if kept.changed().await.is_err() {
                // The guard keeps its client, and that the other end.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Flushes, and gives the node back. Dropping it does the same in the background.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError`]: it goes on in the background after [`WriteLeaseError::TimedOut`].
    pub async fn release(mut self) -> Result<(), WriteLeaseError> {
        let losses = self.check_lost()?;
        let driver = self.client().driver();
        let is_given_up = || {
            // Again and again: it may be asked for just now.
            driver.release_write_lease(self.id());
            !driver.has_write_lease(self.id())
        };
        self.wait_until(losses, self.deadline(), is_given_up).await?;
        if self.on_lost().is_cancelled() {
            return Err(LockError::Lost { path: self.path().clone() }.into());
        }
        match self.lock.take() {
            Some(hold) => Ok(hold.release().await?),
            None => Ok(()),
        }
    }

    fn deadline(&self) -> FlushDeadline {
        FlushDeadline::new(self.client().driver().options.timeout)
    }

    /// Asks for the node to be this client's own, and waits for that. `losses`: what
    /// [`check_lost`](Self::check_lost) returned when the caller began.
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
                // It is asked for already, or about to be given up.
                let moves_on = || driver.write_lease_value(self.id()).is_some() || !driver.has_write_lease(self.id());
                self.wait_until(losses, deadline, moves_on).await?;
                continue;
            }
            // Not given up by whoever does not wait any more: what came of it has to be known.
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

    /// Makes the node, if nobody else has meanwhile.
    async fn make(&self, deadline: FlushDeadline) -> Result<(), WriteLeaseError> {
        let left = deadline.at.saturating_duration_since(Instant::now());
        let options = PutOptions { condition: Condition::Absent, timeout: Some(left), ..PutOptions::default() };
        match self.client().put_with(self.path(), Value::new(), options).await {
            Ok(_) | Err(WriteError::Refused(Refusal::Write(WriteRefusal::Exists { .. }))) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until `stands` says yes. It is asked again after each change of the write lease.
    ///
    /// `losses` is the number of losses when the caller began ([`check_lost`](Self::check_lost)). A
    /// loss after that is an error, even if another call has reported it. (The lease may end on
    /// another thread between the caller's first look and this one.)
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

    /// # Errors
    ///
    /// [`WriteLeaseError::CopyEvicted`], if something was lost after so many losses.
    fn check_lost_since(&self, losses: u64) -> Result<(), WriteLeaseError> {
        let kept = self.cell.borrow();
        let Some((number, lost)) = kept.lost.as_ref().filter(|(number, _)| *number > losses) else { return Ok(()) };
        self.lost_told.fetch_max(*number, Relaxed);
        Err(WriteLeaseError::Lost(lost.clone()))
    }

    /// The number of losses so far. All of them have been reported.
    ///
    /// # Errors
    ///
    /// [`WriteLeaseError::CopyEvicted`], if something was lost that was not told yet.
    fn check_lost(&self) -> Result<u64, WriteLeaseError> {
        let kept = self.cell.borrow();
        let Some((number, lost)) = kept.lost.as_ref() else { return Ok(0) };
        if self.lost_told.fetch_max(*number, Relaxed) < *number {
            return Err(WriteLeaseError::Lost(lost.clone()));
        }
        Ok(*number)
    }
}

impl Drop for WriteLease {
    fn drop(&mut self) {
        let told = self.lost_told.load(Relaxed);
        match self.lock.take() {
            // The task keeps the client alive until it is done.
            Some(hold) if !hold.on_lost().is_cancelled() => {
                let withdrawal = hold.client().driver().pending_releases.begin(hold.path());
                self.runtime.spawn(flush_and_release(hold, self.cell.clone(), told, withdrawal));
            }
            // One that is over has been given back.
            _ => warn_of_loss(&self.cell, told),
        }
    }
}

/// Has what was set flushed, and gives the hold back, for nobody who waits for it.
async fn flush_and_release(
    hold: LockGuard,
    mut kept: watch::Receiver<WriteLeaseCell>,
    told: u64,
    withdrawal: PendingRelease,
) {
    let (over, id) = (hold.on_lost(), hold.id());
    loop {
        kept.mark_unchanged();
        hold.client().driver().release_write_lease(id);
        if over.is_cancelled() || !hold.client().driver().has_write_lease(id) {
            break;
        }
        tokio::select! {
            _ = kept.changed() => {}
            () = over.cancelled() => {}
        }
    }
    warn_of_loss(&kept, told);
    if !over.is_cancelled() {
        // If nobody answers it ends with the client's lease.
        let _ = hold.release().await;
    }
    drop(withdrawal);
}

/// What is lost of a write lease that nobody has any more can be told to nobody.
fn warn_of_loss(kept: &watch::Receiver<WriteLeaseCell>, told: u64) {
    if let Some((_, lost)) = kept.borrow().lost.as_ref().filter(|(number, _)| *number > told) {
        let (bytes, may_be_there) = (lost.value.len(), lost.may_be_written);
        tracing::warn!(path = %lost.path, bytes, may_be_there, "a value that was set under a write lease, which was dropped since, was not flushed and is lost");
    }
}
