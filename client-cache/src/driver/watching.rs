//! Watches: who is told what happens.

use leasehold_protocol::{
    change::{Changes, Watched},
    holder::{Input, WatchError, WatchId},
    id::Revision,
};
use tokio::sync::mpsc;

use super::{Core, Driver};

/// Where what happens is told. It holds one answer at most: no more is asked for before that is taken.
pub(super) type Teller = mpsc::UnboundedSender<Result<Changes, WatchError>>;

impl Driver {
    /// A watch begins.
    pub(crate) fn watch(
        &self,
        watched: Watched,
        after: Option<Revision>,
        bytes_max: u32,
    ) -> (WatchId, mpsc::UnboundedReceiver<Result<Changes, WatchError>>) {
        let (teller, told) = mpsc::unbounded_channel();
        let mut core = self.core.lock();
        let watch = WatchId(core.next_id());
        core.watches.insert(watch, teller);
        self.step(&mut core, Input::Watch { watch, watched, after, bytes_max });
        (watch, told)
    }

    /// The application has taken what it was told.
    pub(crate) fn watch_more(&self, watch: WatchId) {
        let mut core = self.core.lock();
        if core.watches.contains_key(&watch) {
            self.step(&mut core, Input::WatchMore(watch));
        }
    }

    /// Nobody watches any more.
    pub(crate) fn give_up_watch(&self, watch: WatchId) {
        let mut core = self.core.lock();
        if core.watches.remove(&watch).is_some() {
            self.step(&mut core, Input::GiveUpWatch(watch));
        }
    }
}

impl Core {
    /// Something has happened to what is watched, or nothing has.
    pub(super) fn tell_changes(&mut self, watch: WatchId, changes: Changes) {
        if let Some(teller) = self.watches.get(&watch) {
            // Whoever watched may have gone this very moment.
            let _ = teller.send(Ok(changes));
        }
    }

    /// A watch is over.
    pub(super) fn end_watch(&mut self, watch: WatchId, error: WatchError) {
        if let Some(teller) = self.watches.remove(&watch) {
            let _ = teller.send(Err(error));
        }
    }
}
