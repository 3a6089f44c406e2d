//! Requests for locks and for upgrades. If a lock is granted after its caller has left, the client
//! releases it.

use std::sync::{Arc, OnceLock};

use leasehold_protocol::{command::Write, holder::WriteId, id::LockId, lock::LockMode, path::NodePath};
use tokio::sync::oneshot;

use super::LockGuard;
use crate::{
    client::Client,
    driver::{Driver, WriteOutcome},
    error::{LockError, WriteError},
    pending_release::PendingRelease,
};

/// A lock request. If this is dropped before the answer comes, the request is cancelled. A request
/// that has not been sent by then is never sent.
pub(super) struct LockRequest {
    client: Client,
    path: NodePath,
    write_id: WriteId,
    answer: oneshot::Receiver<Result<UnclaimedLock, LockError>>,
    is_answered: bool,
    /// Begins when the request is cancelled. The request and the task `await_answer` share it. It
    /// ends when both have dropped it.
    pending_release: Arc<OnceLock<PendingRelease>>,
}

impl LockRequest {
    pub(super) fn new(client: Client, path: NodePath, write: Write) -> Self {
        let (sender, answer) = oneshot::channel();
        let pending_release = Arc::default();
        let driver = client.shared_driver();
        let (write_id, outcome) = driver.write(write);
        let taking = await_answer(Arc::clone(&driver), path.clone(), outcome, sender, Arc::clone(&pending_release));
        driver.spawn(taking);
        Self { client, path, write_id, answer, is_answered: false, pending_release }
    }

    pub(super) async fn answered(mut self) -> Result<LockGuard, LockError> {
        let answer = (&mut self.answer).await;
        self.is_answered = true;
        let ended = || Err(LockError::Write(WriteError::SessionEnded { path: Some(self.path.clone()) }));
        let unclaimed = answer.unwrap_or_else(|_| ended())?;
        unclaimed.claim(self.client.clone()).ok_or_else(|| LockError::Lost { path: self.path.clone() })
    }
}

impl Drop for LockRequest {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        // After this, the channel accepts no answer. If a lock is in the channel already, dropping
        // the lock releases it.
        self.answer.close();
        if self.answer.try_recv().is_err() {
            // The servers may still grant the lock. The pending release lasts until the task has
            // released that lock. If the task has ended already, the pending release ends at
            // once.
            self.pending_release.get_or_init(|| self.client.driver().pending_releases.begin(&self.path));
            self.client.driver().cancel_unsent_write(self.write_id);
        }
    }
}

/// A lock of a request that was answered. It may still wait. If nobody claims it, it is released.
struct UnclaimedLock {
    driver: Arc<Driver>,
    path: NodePath,
    id: Option<LockId>,
}

impl UnclaimedLock {
    fn claim(mut self, client: Client) -> Option<LockGuard> {
        self.id.take().map(|id| LockGuard::new(client, self.path.clone(), id))
    }

    fn begin_release(&mut self) -> Option<oneshot::Receiver<WriteOutcome>> {
        let lock = self.id.take()?;
        self.driver.drop_lock_cell(lock);
        Some(self.driver.begin_pending_release(&self.path, Write::Unlock { path: self.path.clone(), lock }))
    }
}

impl Drop for UnclaimedLock {
    fn drop(&mut self) {
        drop(self.begin_release());
    }
}

/// Waits for the answer even if the caller has left, because the lock may still be granted. The
/// task does not keep the client alive: when the client ends, its locks end too.
async fn await_answer(
    driver: Arc<Driver>,
    path: NodePath,
    outcome: oneshot::Receiver<WriteOutcome>,
    asked: oneshot::Sender<Result<UnclaimedLock, LockError>>,
    pending_release: Arc<OnceLock<PendingRelease>>,
) {
    let outcome = tokio::select! {
        // An outcome counts, even if the client ends at the same moment.
        biased;
        outcome = outcome => outcome,
        () = driver.closed.cancelled() => return,
    };
    let taken = match outcome {
        Ok(Ok(written)) => match written.lock {
            Some(taken) => Ok(UnclaimedLock { driver: Arc::clone(&driver), path, id: Some(taken.lock) }),
            None => Err(LockError::Write(WriteError::OutcomeUnknown { path: Some(path) })),
        },
        Ok(Err(error)) => Err(LockError::Write(crate::write::ended(error, Some(path)))),
        Err(_) => Err(LockError::Write(WriteError::SessionEnded { path: Some(path) })),
    };
    if let Err(Ok(mut unclaimed)) = asked.send(taken)
        && let Some(given_back) = unclaimed.begin_release()
    {
        tokio::select! {
            _ = given_back => {}
            () = driver.closed.cancelled() => {}
        }
    }
    drop(pending_release);
}

/// A pending upgrade. If this is dropped without a call of `done`, it cancels the upgrade: it sends
/// a request for the shared mode.
pub(super) struct UpgradeRequest {
    client: Client,
    path: NodePath,
    id: LockId,
    is_done: bool,
}

impl UpgradeRequest {
    pub(super) fn new(client: Client, path: NodePath, id: LockId) -> Self {
        Self { client, path, id, is_done: false }
    }

    pub(super) fn done(mut self) {
        self.is_done = true;
    }

    /// Cancels the request, and waits for the answer, at most for the client's timeout. After that,
    /// the cancellation continues without this call.
    pub(super) async fn cancel(mut self) {
        self.is_done = true;
        let after = self.client.driver().options.timeout;
        let _ = tokio::time::timeout(after, self.begin_cancel()).await;
    }

    fn begin_cancel(&self) -> oneshot::Receiver<WriteOutcome> {
        let (path, lock) = (self.path.clone(), self.id);
        let change = Write::ChangeLockMode { path, lock, mode: LockMode::Shared, wait: true };
        self.client.driver().begin_pending_release(&self.path, change)
    }
}

impl Drop for UpgradeRequest {
    fn drop(&mut self) {
        if !self.is_done {
            drop(self.begin_cancel());
        }
    }
}
