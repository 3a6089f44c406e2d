//! Requests for holds: what was asked for is taken back if nobody wants it when it comes.

use std::sync::{Arc, OnceLock};

use leasehold_protocol::{command::Write, holder::WriteId, id::HoldId, path::Path};
use tokio::sync::oneshot;

use super::Hold;
use crate::{
    client::Client,
    driver::{Driver, WriteResult},
    error::{LockError, WriteError},
    withdrawal::Withdrawal,
};

/// A request for a hold. If this is dropped before its answer has come, the request is being withdrawn from then on; if it was not
/// sent by then, it never is.
pub(super) struct Asking {
    client: Client,
    path: Path,
    write: WriteId,
    answer: oneshot::Receiver<Result<Unclaimed, LockError>>,
    /// Shared with the task that waits for the answer, which drops it last.
    withdrawal: Arc<OnceLock<Withdrawal>>,
}

impl Asking {
    pub(super) fn new(client: Client, path: Path, change: Write) -> Self {
        let (sender, answer) = oneshot::channel();
        let withdrawal = Arc::default();
        let driver = client.shared_driver();
        let (write, outcome) = driver.write(change);
        tokio::spawn(take(driver, path.clone(), outcome, sender, Arc::clone(&withdrawal)));
        Self { client, path, write, answer, withdrawal }
    }

    pub(super) async fn answered(mut self) -> Result<Hold, LockError> {
        let unclaimed = (&mut self.answer).await.unwrap_or(Err(LockError::Write(WriteError::SessionEnded)))?;
        unclaimed.claim(self.client.clone()).ok_or_else(|| LockError::Lost { path: self.path.clone() })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // Nothing is sent here after this. What was sent before is given back, and that is a withdrawal of its own.
        self.answer.close();
        if self.answer.try_recv().is_err() {
            // The task is about to give back what comes, or it is over, and then this is gone at once.
            self.withdrawal.get_or_init(|| self.client.driver().withdrawals.begin(&self.path));
            self.client.driver().give_up_unsent(self.write);
        }
    }
}

/// A hold that was granted to a request. If nobody claims it, it is given back.
struct Unclaimed {
    driver: Arc<Driver>,
    path: Path,
    id: Option<HoldId>,
}

impl Unclaimed {
    fn claim(mut self, client: Client) -> Option<Hold> {
        self.id.take().map(|id| Hold::new(client, self.path.clone(), id))
    }

    fn give_back(&mut self) -> Option<oneshot::Receiver<WriteResult>> {
        let hold = self.id.take()?;
        self.driver.forget_hold(hold);
        Some(self.driver.give_back(&self.path, Write::Unlock { path: self.path.clone(), hold }))
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        drop(self.give_back());
    }
}

/// Waits for the answer to a request for a hold, whoever has given it up meanwhile: it may be granted all the same. It does not keep the
/// client alive: if that ends so does the hold.
async fn take(
    driver: Arc<Driver>,
    path: Path,
    outcome: oneshot::Receiver<WriteResult>,
    asked: oneshot::Sender<Result<Unclaimed, LockError>>,
    withdrawal: Arc<OnceLock<Withdrawal>>,
) {
    let outcome = tokio::select! {
        outcome = outcome => outcome,
        () = driver.over.cancelled() => return,
    };
    let taken = match outcome {
        Ok(Ok(written)) => match written.taken {
            Some(taken) => Ok(Unclaimed { driver: Arc::clone(&driver), path, id: Some(taken.hold) }),
            None => Err(LockError::Write(WriteError::OutcomeUnknown)),
        },
        Ok(Err(error)) => Err(LockError::Write(crate::write::ended(error))),
        Err(_) => Err(LockError::Write(WriteError::SessionEnded)),
    };
    if let Err(Ok(mut unclaimed)) = asked.send(taken)
        && let Some(given_back) = unclaimed.give_back()
    {
        tokio::select! {
            _ = given_back => {}
            () = driver.over.cancelled() => {}
        }
    }
    drop(withdrawal);
}
