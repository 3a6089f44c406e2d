//! Notifies the handles of key leases and of registrations when their leases are renewed or end.

use std::time::Duration;

use leasehold_protocol::{
    holder::HolderInput,
    id::{Incarnation, LeaseId, LockId, Revision},
    path::NodePath,
    time::Instant,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Driver, DriverCore};
use crate::clock;

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

/// What the client knows about the lease of one registration.
#[derive(Debug)]
pub(super) struct WatchedRegistration {
    /// The revision of the last put that attached the node. `None` before the first is answered.
    put: Option<Revision>,
    /// Puts of this node up to this revision attached it to a lease that has ended.
    lost_through: Revision,
    /// Cancelled when the node's lease ends.
    lost: CancellationToken,
}

impl WatchedRegistration {
    fn cancel_if_lost(&self) {
        if self.put.is_some_and(|put| put <= self.lost_through) {
            self.lost.cancel();
        }
    }
}

impl Driver {
    /// Renews the key lease from now on, for one more handle.
    pub(crate) fn start_keep_alive(&self, id: LeaseId) -> (u64, watch::Receiver<KeyLeaseState>, CancellationToken) {
        let mut core = self.core.lock();
        // The step comes first: it may find that the lease of earlier handles has ended.
        self.step(&mut core, HolderInput::KeepAlive(id));
        let next = core.next_id();
        let keeper = core.key_leases.entry(id).or_insert_with(|| KeyLeaseShared::new(next));
        keeper.handles += 1;
        let handle = (keeper.number, keeper.state.subscribe(), keeper.lost.clone());
        if self.closed.is_cancelled() {
            core.lose_key_lease(id);
        }
        handle
    }

    /// Drops one handle of the key lease. The renewals stop with the last.
    pub(crate) fn stop_keep_alive(&self, id: LeaseId, number: u64) {
        let mut core = self.core.lock();
        let Some(keeper) = core.key_leases.get_mut(&id).filter(|keeper| keeper.number == number) else { return };
        keeper.handles = keeper.handles.saturating_sub(1);
        if keeper.handles == 0 {
            core.lose_key_lease(id);
            self.step(&mut core, HolderInput::StopKeepAlive(id));
        }
    }

    /// Returns a token that is cancelled when the node's lease ends, and a number for
    /// [`Driver::set_registration_revision`] and [`Driver::forget_registration_lease`].
    pub(crate) fn watch_registration_lease(&self, path: &NodePath) -> (u64, CancellationToken) {
        let mut core = self.core.lock();
        let (number, lost) = (core.next_id(), CancellationToken::new());
        let watched = WatchedRegistration { put: None, lost_through: Revision(0), lost: lost.clone() };
        core.registration_leases.insert((path.clone(), number), watched);
        (number, lost)
    }

    /// Records which put attached the node.
    pub(crate) fn set_registration_revision(&self, path: &NodePath, number: u64, put: Revision) {
        let mut core = self.core.lock();
        if let Some(watched) = core.registration_leases.get_mut(&(path.clone(), number)) {
            watched.put = Some(put);
            watched.cancel_if_lost();
        }
    }

    pub(crate) fn forget_registration_lease(&self, path: &NodePath, number: u64) {
        self.core.lock().registration_leases.remove(&(path.clone(), number));
    }

    /// Whether the node that was put with this revision has the same lease as this lock.
    pub(crate) fn is_attached_with_lock(&self, path: &NodePath, put: Revision, lock: LockId) -> bool {
        self.core.lock().holder.is_attached_with_lock(path, put, lock)
    }

    /// How long the lease to which this put attached the node certainly lasts.
    pub(crate) fn registration_remaining(&self, path: &NodePath, put: Revision) -> Duration {
        self.core.lock().holder.attached_remaining(path, put, clock::now())
    }
}

impl DriverCore {
    pub(super) fn lose_key_lease(&mut self, id: LeaseId) {
        if let Some(keeper) = self.key_leases.remove(&id) {
            keeper.end();
        }
    }

    /// Cancels the registrations of the node whose put is not later than this one: their lease has
    /// ended.
    pub(super) fn lose_registration_lease(&mut self, path: &NodePath, put: Revision) {
        let of_path = (path.clone(), 0)..=(path.clone(), u64::MAX);
        for (_, watched) in self.registration_leases.range_mut(of_path) {
            watched.lost_through = watched.lost_through.max(put);
            watched.cancel_if_lost();
        }
    }

    /// The session has ended, with all its leases. A put that is not answered yet may be repeated
    /// under the next session.
    pub(super) fn lose_registration_leases(&mut self) {
        self.registration_leases.retain(|_, watched| {
            let is_registered = watched.put.is_some();
            if is_registered {
                watched.lost.cancel();
            }
            !is_registered
        });
    }

    /// The client renews nothing any longer.
    pub(super) fn lose_all_leases(&mut self) {
        self.key_leases.drain().for_each(|(_, keeper)| keeper.end());
        std::mem::take(&mut self.registration_leases).into_values().for_each(|watched| watched.lost.cancel());
    }
}
