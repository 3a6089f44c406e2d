//! Watches: who is told what happens.

use leasehold_protocol::{
    change::{Changes, Watched},
    holder::{HolderInput, WatchFailure, WatchId},
    id::Revision,
};
use tokio::sync::mpsc;

use super::{Driver, DriverCore};

/// Where what happens is told. It holds one answer at most: no more is asked for before that is
/// taken.
pub(super) type WatchSender = mpsc::UnboundedSender<Result<Changes, WatchFailure>>;

impl Driver {
    /// A watch begins.
    pub(crate) fn watch(
        &self,
        watched: Watched,
        after: Option<Revision>,
        bytes_max: u32,
    ) -> (WatchId, mpsc::UnboundedReceiver<Result<Changes, WatchFailure>>) {
        let (teller, told) = mpsc::unbounded_channel();
        let mut core = self.core.lock();
        let watch = WatchId(core.next_id());
        core.watches.insert(watch, teller);
        self.step(&mut core, HolderInput::Watch { watch, watched, after, bytes_max });
        (watch, told)
    }

    /// The application has taken what it was told.
    pub(crate) fn watch_more(&self, watch: WatchId) {
        let mut core = self.core.lock();
        if core.watches.contains_key(&watch) {
            self.step(&mut core, HolderInput::WatchMore(watch));
        }
    }

    /// Nobody watches any more.
    pub(crate) fn cancel_watch(&self, watch: WatchId) {
        let mut core = self.core.lock();
        if core.watches.remove(&watch).is_some() {
            self.step(&mut core, HolderInput::CancelWatch(watch));
        }
    }
}

impl DriverCore {
    /// Something has happened to what is watched, or nothing has.
    pub(super) fn tell_changes(&mut self, watch: WatchId, changes: Changes) {
        if let Some(teller) = self.watches.get(&watch) {
            // Whoever watched may have gone this very moment.
            let _ = teller.send(Ok(changes));
        }
    }

    /// A watch is over.
    pub(super) fn end_watch(&mut self, watch: WatchId, error: WatchFailure) {
        if let Some(teller) = self.watches.remove(&watch) {
            let _ = teller.send(Err(error));
        }
    }
}
