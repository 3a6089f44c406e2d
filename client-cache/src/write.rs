//! Writing: how a write waits for its outcome, and what is said when it cannot.

use std::time::Duration;

use leasehold_protocol::{
    command::{Attach, Condition, Write, Written},
    holder::{self, WriteId},
    limits::Limits,
};

use crate::{driver::Driver, error::WriteError};

/// How to put.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// What must hold for the write to take effect.
    pub condition: Condition,
    /// The lease that the node goes with from then on; none unless told otherwise, even if it had
    /// one.
    pub attach: Attach,
    /// How long it may take; as long as the client's operations do unless told otherwise.
    pub timeout: Option<Duration>,
}

/// How to delete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// With all that lies below; otherwise a node with children is not removed.
    pub recursive: bool,
    /// What must hold for the write to take effect.
    pub condition: Condition,
    /// How long it may take; as long as the client's operations do unless told otherwise.
    pub timeout: Option<Duration>,
}

/// Gives the write up when nobody waits for it any more, for whatever reason.
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
        // The rules say what is known now; or the outcome has come this very moment.
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

/// What no server takes: it would not fit into a frame, or can be told without looking at what is
/// stored.
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

/// A write that ended before its time ran out.
pub(crate) fn ended(error: holder::WriteFailure) -> WriteError {
    match error {
        holder::WriteFailure::Refused(refusal) => WriteError::Refused(refusal),
        holder::WriteFailure::NotSent => WriteError::SessionEnded,
        holder::WriteFailure::OutcomeUnknown => WriteError::OutcomeUnknown,
    }
}
