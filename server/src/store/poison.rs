//! The end of a node: once something could not be stored, nothing is served any more.
//!
//! A failed write or fsync leaves the disk in a state that nobody knows, and a second attempt may
//! report a success that is none (Rebello et al. 2020). So the first failure poisons the node for
//! good: every later call on a store is refused with the first failure's reason, and
//! [`Poison::reason`] wakes whoever has to end the process.

use std::{io, sync::Arc};

use tokio::sync::watch;

/// Shared by all that store for one node. Clones are the same poison.
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
    /// Ends the node. Only the first reason counts.
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

    /// Refuses if the node has ended.
    ///
    /// # Errors
    ///
    /// The reason why it ended.
    pub fn check(&self) -> io::Result<()> {
        match &*self.reason.borrow() {
            Some(reason) => Err(io::Error::other(format!("the store is closed after a failure: {reason}"))),
            None => Ok(()),
        }
    }

    /// Resolves with the reason when the node has ended; never before.
    pub async fn reason(&self) -> Arc<str> {
        let mut changes = self.reason.subscribe();
        loop {
            if let Some(reason) = &*changes.borrow_and_update() {
                return Arc::clone(reason);
            }
            if changes.changed().await.is_err() {
                // The sender lives in `self`: it cannot be gone while this runs.
                std::future::pending::<()>().await;
            }
        }
    }
}
