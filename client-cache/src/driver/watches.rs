//! Watches: delivers changes to the application's handles.

use leasehold_protocol::{
    change::{Changes, WatchScope},
    holder::{HolderInput, WatchFailure, WatchId},
    id::Revision,
};
use tokio::sync::mpsc;

use super::{Driver, DriverCore};

/// Delivers changes. The channel has at most one answer: the client requests more only after the
/// application has taken it.
pub(super) type WatchSender = mpsc::UnboundedSender<Result<Changes, WatchFailure>>;

impl Driver {
    pub(crate) fn watch(
        &self,
        watched: WatchScope,
        after: Option<Revision>,
        bytes_max: u32,
    ) -> (WatchId, mpsc::UnboundedReceiver<Result<Changes, WatchFailure>>) {
        let (sender, items) = mpsc::unbounded_channel();
        let mut core = self.core.lock();
        let watch = WatchId(core.next_id());
        core.watches.insert(watch, sender);
        self.step(&mut core, HolderInput::Watch { watch, watched, after, bytes_max });
        (watch, items)
    }

    /// Requests more changes, because the application has taken the last answer.
    pub(crate) fn watch_more(&self, watch: WatchId) {
        let mut core = self.core.lock();
        if core.watches.contains_key(&watch) {
            self.step(&mut core, HolderInput::WatchMore(watch));
        }
    }

    pub(crate) fn cancel_watch(&self, watch: WatchId) {
        let mut core = self.core.lock();
        if core.watches.remove(&watch).is_some() {
            self.step(&mut core, HolderInput::CancelWatch(watch));
        }
    }
}

impl DriverCore {
    pub(super) fn tell_changes(&mut self, watch: WatchId, changes: Changes) {
        if let Some(sender) = self.watches.get(&watch) {
            // The watch may just have been dropped.
            let _ = sender.send(Ok(changes));
        }
    }

    pub(super) fn end_watch(&mut self, watch: WatchId, error: WatchFailure) {
        if let Some(sender) = self.watches.remove(&watch) {
            let _ = sender.send(Err(error));
        }
    }
}
