//! The end of a replica: once it failed to store something, it serves nothing more.
//!
//! A failed write or fsync leaves the disk in an unknown state. A retry may then wrongly report
//! success (Rebello et al., *Can Applications Recover from fsync Failures?*, USENIX ATC 2020). So
//! the first failure poisons the replica for good. Every later call on a store is refused with that
//! failure's reason, and [`Poison::reason`] wakes the task that ends the process.

use std::{io, sync::Arc};

use tokio::sync::watch;

/// Shared by all stores of one replica. Clones are the same poison.
#[derive(Debug, Clone)]
pub struct Poison {
    reason: watch::Sender<Option<Arc<str>>>,
}

impl Default for Poison {
    fn default() -> Self {
        Self { reason: watch::Sender::new(None) }
    }
}

impl Poison {
    /// Ends the replica. Only the first reason counts.
    pub fn poison(&self, reason: impl Into<Arc<str>>) {
        let reason = reason.into();
        let is_first = self.reason.send_if_modified(|known| {
            let is_first = known.is_none();
            if is_first {
                *known = Some(Arc::clone(&reason));
            }
            is_first
        });
        if is_first {
            tracing::error!(%reason, "this replica cannot go on: it serves nothing more");
        }
    }

    /// Refuses if the replica has ended.
    ///
    /// # Errors
    ///
    /// The reason for its end.
    pub fn check(&self) -> io::Result<()> {
        match &*self.reason.borrow() {
            Some(reason) => Err(io::Error::other(format!("the store is closed after a failure: {reason}"))),
            None => Ok(()),
        }
    }

    /// Resolves with the reason when the replica has ended; never before.
    pub async fn reason(&self) -> Arc<str> {
        let mut changes = self.reason.subscribe();
        loop {
            if let Some(reason) = &*changes.borrow_and_update() {
                return Arc::clone(reason);
            }
            if changes.changed().await.is_err() {
                // `self` has the sender, so it exists as long as this runs.
                std::future::pending::<()>().await;
            }
        }
    }
}
