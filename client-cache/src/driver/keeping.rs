//! Key leases that are kept alive, and nodes that go with the session's leases: who wants to know what of them.

use leasehold_protocol::{holder::Input, id::LeaseId, path::Path};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Core, Driver};
use crate::key_lease::{Held, Keeper};

impl Driver {
    /// The key lease is kept alive from now on, for one more handle.
    pub(crate) fn keep(&self, id: LeaseId) -> (u64, watch::Receiver<Held>, CancellationToken) {
        let mut core = self.core.lock();
        let is_closed = self.over.is_cancelled();
        let next = core.next_id();
        let keeper = core.keepers.entry(id).or_insert_with(|| Keeper::new(next));
        keeper.handles += 1;
        let handle = (keeper.number, keeper.held.subscribe(), keeper.over.clone());
        if is_closed {
            core.end_lease(id);
        } else {
            self.step(&mut core, Input::Keep(id));
        }
        handle
    }

    /// One handle of the key lease is gone.
    pub(crate) fn let_go(&self, id: LeaseId, number: u64) {
        let mut core = self.core.lock();
        let Some(keeper) = core.keepers.get_mut(&id).filter(|keeper| keeper.number == number) else { return };
        keeper.handles = keeper.handles.saturating_sub(1);
        if keeper.handles == 0 {
            core.keepers.remove(&id);
            self.step(&mut core, Input::LetGo(id));
        }
    }

    /// Cancelled when the lease is over that the node goes with. To be forgotten by its number.
    pub(crate) fn watch_carried(&self, path: &Path) -> (u64, CancellationToken) {
        let mut core = self.core.lock();
        let (number, over) = (core.next_id(), CancellationToken::new());
        core.carried.insert(number, (path.clone(), over.clone()));
        (number, over)
    }

    /// Nobody wants to know any more.
    pub(crate) fn forget_carried(&self, number: u64) {
        self.core.lock().carried.remove(&number);
    }
}

impl Core {
    /// A key lease is over.
    pub(super) fn end_lease(&mut self, id: LeaseId) {
        if let Some(keeper) = self.keepers.remove(&id) {
            keeper.end();
        }
    }

    /// The leases are over that some nodes went with.
    pub(super) fn end_carried(&mut self, is_over: impl Fn(&Path) -> bool) {
        for (_, (_, over)) in self.carried.extract_if(|_, (path, _)| is_over(path)) {
            over.cancel();
        }
    }
}
