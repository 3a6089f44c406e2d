//! Writes: how a write waits for its outcome, and its error if none comes.

use std::time::Duration;

use leasehold_protocol::{
    command::{Attach, Condition, Write, Written},
    holder::{self, WriteId},
    limits::Limits,
};

use crate::{driver::Driver, error::WriteError};

/// The options of a put.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// The condition under which the put takes effect.
    pub condition: Condition,
    /// The lease to attach the node to. By default none, even if the node was attached to one.
    pub attach: Attach,
    /// How long the put may take. `None`: the client's timeout.
    pub timeout: Option<Duration>,
}

/// The options of a delete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Whether to remove everything below, too. Otherwise a node with children is not removed.
    pub recursive: bool,
    /// The condition under which the delete takes effect.
    pub condition: Condition,
    /// How long the delete may take. `None`: the client's timeout.
    pub timeout: Option<Duration>,
}

/// Cancels the write when nobody waits for it any longer.
struct WriteWait<'a> {
    driver: &'a Driver,
    write: WriteId,
}

impl Drop for WriteWait<'_> {
    fn drop(&mut self) {
        self.driver.cancel_write(self.write);
    }
}

impl Driver {
    /// Writes, and waits for the outcome for at most `after`.
    pub(crate) async fn execute_write(&self, change: Write, after: Duration) -> Result<Written, WriteError> {
        check(&change)?;
        let (write, mut outcome) = self.write(change);
        let waiting = WriteWait { driver: self, write };
        if let Ok(outcome) = tokio::time::timeout(after, &mut outcome).await {
            return outcome.unwrap_or(Err(holder::WriteFailure::OutcomeUnknown)).map_err(ended);
        }
        // This cancels the write. Then the holder reports the outcome, unless it just came.
        drop(waiting);
        let outcome = outcome.try_recv().unwrap_or(Err(holder::WriteFailure::OutcomeUnknown));
        outcome.map_err(|error| match (error, self.status.unavailable()) {
            (holder::WriteFailure::Refused(refusal), _) => WriteError::Refused(refusal),
            (holder::WriteFailure::NotSent, Some(source)) => WriteError::Unavailable { after, source },
            (holder::WriteFailure::NotSent, None) => WriteError::NotSent { after },
            (holder::WriteFailure::OutcomeUnknown, _) => WriteError::TimedOut { after },
        })
    }
}

/// Refuses a write that no server accepts: it does not fit into a frame, or is invalid in any
/// state.
fn check(change: &Write) -> Result<(), WriteError> {
    let widest = Limits { value_max_bytes: Limits::VALUE_MAX_BYTES, depth_max: Limits::DEPTH_MAX, ..Limits::default() };
    match change {
        Write::Put { value, .. } => Ok(widest.check_value(value)?),
        Write::Transaction(transaction) => {
            widest.check_transaction(transaction)?;
            transaction.check_overlaps().map_err(|refusal| WriteError::Refused(refusal.into()))
        }
        _ => Ok(()),
    }
}

/// The error of a write that ended before its time ran out.
pub(crate) fn ended(error: holder::WriteFailure) -> WriteError {
    match error {
        holder::WriteFailure::Refused(refusal) => WriteError::Refused(refusal),
        holder::WriteFailure::NotSent => WriteError::SessionEnded,
        holder::WriteFailure::OutcomeUnknown => WriteError::OutcomeUnknown,
    }
}
