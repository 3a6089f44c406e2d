//! Requests for holds: a hold that is granted after its caller has gone is given back.

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

/// A request for a hold. If this is dropped before its answer has come, the request is withdrawn. If it has not been sent by then, it
/// never will be.
pub(super) struct Asking {
    client: Client,
    path: Path,
    write: WriteId,
    answer: oneshot::Receiver<Result<Unclaimed, LockError>>,
    is_answered: bool,
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
        Self { client, path, write, answer, is_answered: false, withdrawal }
    }

    pub(super) async fn answered(mut self) -> Result<Hold, LockError> {
        let answer = (&mut self.answer).await;
        self.is_answered = true;
        let unclaimed = answer.unwrap_or(Err(LockError::Write(WriteError::SessionEnded)))?;
        unclaimed.claim(self.client.clone()).ok_or_else(|| LockError::Lost { path: self.path.clone() })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        // No answer is put into the channel after this. A hold that is in it already is given back as it is dropped.
        self.answer.close();
        if self.answer.try_recv().is_err() {
            // Lasts until the task has given back what is granted. If the task has ended already, it ends at once.
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

/// Waits for the answer even if the caller has gone, because the hold may still be granted. Does not keep the client alive: when the
/// client ends, its holds end too.
async fn take(
    driver: Arc<Driver>,
    path: Path,
    outcome: oneshot::Receiver<WriteResult>,
    asked: oneshot::Sender<Result<Unclaimed, LockError>>,
    withdrawal: Arc<OnceLock<Withdrawal>>,
) {
    let outcome = tokio::select! {
        // What is known of the request is told, also when the client ends in the same moment.
        biased;
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
