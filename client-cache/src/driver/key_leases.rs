//! Notifies the handles of key leases and of registrations when their leases are renewed or end.

use leasehold_protocol::{
    holder::HolderInput,
    id::{Incarnation, LeaseId},
    path::NodePath,
    time::Instant,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Driver, DriverCore};

/// The state of a key lease that this client renews.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyLeaseState {
    /// No answer yet.
    Asked,
    /// The lease certainly lasts until then.
    Until {
        /// By this client's clock.
        until: Instant,
        /// Distinguishes the lease from other leases of the same id.
        incarnation: Incarnation,
    },
    /// The lease has ended, or is no longer certain.
    Lost,
}

/// What all handles of one key lease share.
#[derive(Debug)]
pub(crate) struct KeyLeaseShared {
    pub(crate) state: watch::Sender<KeyLeaseState>,
    pub(crate) lost: CancellationToken,
    pub(crate) handles: usize,
    /// Distinguishes successive renewals of one id: a late handle does not stop a newer one.
    pub(crate) number: u64,
}

impl KeyLeaseShared {
    pub(crate) fn new(number: u64) -> Self {
        Self { state: watch::Sender::new(KeyLeaseState::Asked), lost: CancellationToken::new(), handles: 0, number }
    }

    pub(crate) fn end(self) {
        self.state.send_replace(KeyLeaseState::Lost);
        self.lost.cancel();
    }
}

impl Driver {
    /// Renews the key lease from now on, for one more handle.
    pub(crate) fn start_keep_alive(&self, id: LeaseId) -> (u64, watch::Receiver<KeyLeaseState>, CancellationToken) {
        let mut core = self.core.lock();
        let is_closed = self.closed.is_cancelled();
        let next = core.next_id();
        let keeper = core.key_leases.entry(id).or_insert_with(|| KeyLeaseShared::new(next));
        keeper.handles += 1;
        let handle = (keeper.number, keeper.state.subscribe(), keeper.lost.clone());
        if is_closed {
            core.lose_key_lease(id);
        } else {
            self.step(&mut core, HolderInput::KeepAlive(id));
        }
        handle
    }

    /// Drops one handle of the key lease. The renewals stop with the last.
    pub(crate) fn stop_keep_alive(&self, id: LeaseId, number: u64) {
        let mut core = self.core.lock();
        let Some(keeper) = core.key_leases.get_mut(&id).filter(|keeper| keeper.number == number) else { return };
        keeper.handles = keeper.handles.saturating_sub(1);
        if keeper.handles == 0 {
            core.key_leases.remove(&id);
            self.step(&mut core, HolderInput::StopKeepAlive(id));
        }
    }

    /// Returns a token that is cancelled when the node's lease ends, and a number for
    /// [`Driver::forget_registration_lease`].
    pub(crate) fn watch_registration_lease(&self, path: &NodePath) -> (u64, CancellationToken) {
        let mut core = self.core.lock();
        let (number, over) = (core.next_id(), CancellationToken::new());
        core.registration_leases.insert(number, (path.clone(), over.clone()));
        (number, over)
    }

    pub(crate) fn forget_registration_lease(&self, number: u64) {
        self.core.lock().registration_leases.remove(&number);
    }
}

impl DriverCore {
    pub(super) fn lose_key_lease(&mut self, id: LeaseId) {
        if let Some(keeper) = self.key_leases.remove(&id) {
            keeper.end();
        }
    }

    /// Notifies the handles of the nodes whose lease has ended.
    pub(super) fn lose_registration_leases(&mut self, is_over: impl Fn(&NodePath) -> bool) {
        for (_, (_, over)) in self.registration_leases.extract_if(|_, (path, _)| is_over(path)) {
            over.cancel();
        }
    }
}
