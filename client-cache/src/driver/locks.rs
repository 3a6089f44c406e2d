//! Locks: the state that the application's guards see.

use std::time::Duration;

use leasehold_protocol::{
    command::{Write, Written},
    holder::{HolderInput, WriteId},
    id::{LockId, Token},
    lock::{LockMode, LockStatus},
    path::NodePath,
};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{Driver, DriverCore, DriverStep, WriteOutcome, write_leases::WriteLeaseCell};
use crate::clock;

/// The state of a lock, shared by the guard and the driver.
#[derive(Debug, Clone)]
pub(crate) struct LockCell {
    pub(crate) status: watch::Sender<LockStatus>,
    /// The state of the write lease, if the lock is one.
    pub(crate) write_lease: watch::Sender<WriteLeaseCell>,
    pub(crate) lost: CancellationToken,
}

impl LockCell {
    pub(crate) fn new(status: LockStatus) -> Self {
        Self {
            status: watch::Sender::new(status),
            write_lease: watch::Sender::new(WriteLeaseCell::default()),
            lost: CancellationToken::new(),
        }
    }

    pub(crate) fn end(&self) {
        self.status.send_replace(LockStatus::Ended);
        self.lost.cancel();
    }
}

impl Driver {
    /// The shared state of a requested lock. If the lock has ended already, returns an ended state.
    pub(crate) fn lock_cell(&self, id: LockId) -> LockCell {
        let cell = self.core.lock().locks.get(&id).map(|(_, cell)| cell.clone());
        cell.unwrap_or_else(|| {
            let over = LockCell::new(LockStatus::Ended);
            over.end();
            over
        })
    }

    /// For how long the lock certainly lasts.
    pub(crate) fn lock_remaining(&self, id: LockId) -> Duration {
        self.core.lock().holder.lock_remaining(id, clock::now())
    }

    /// Begins a pending release at a node: `change` gives up a lock, the exclusive mode of a lock,
    /// or a node of a recipe. The client repeats the request until it is answered, even if no
    /// caller waits for the outcome.
    pub(crate) fn begin_pending_release(&self, at: &NodePath, change: Write) -> oneshot::Receiver<WriteOutcome> {
        self.begin_write(change, Some(self.pending_releases.begin(at))).1
    }

    pub(crate) fn drop_lock_cell(&self, id: LockId) {
        self.core.lock().locks.remove(&id);
    }

    /// Marks locks as lost, for example by this clock (`expire_granted_locks` in
    /// `protocol/src/holder/locks.rs`). Releases them if the servers may still count them.
    pub(super) fn lose_locks(&self, core: &mut DriverCore, ids: Vec<LockId>, may_remain: bool, step: &mut DriverStep) {
        for lock in ids {
            let Some((path, cell)) = core.locks.remove(&lock) else { continue };
            if !may_remain {
                cell.end();
                continue;
            }
            let write = WriteId(core.next_id());
            // This comes before `end`. A caller may see the loss and lock again at once: it must
            // then find this release, and wait for it.
            core.release_writes.insert(write, self.pending_releases.begin(&path));
            cell.end();
            step.follow_ups.push_back(HolderInput::Write { write, change: Write::Unlock { path, lock } });
        }
    }
}

impl DriverCore {
    /// Applies a downgrade when it is requested. From then on the application sees a shared lock.
    pub(super) fn apply_downgrade(&self, change: &Write) {
        let Write::ChangeLockMode { lock, mode: LockMode::Shared, .. } = change else { return };
        if let Some((_, cell)) = self.locks.get(lock) {
            cell.status.send_if_modified(|status| match status {
                LockStatus::Granted { mode: mode @ LockMode::Exclusive, .. } => {
                    *mode = LockMode::Shared;
                    true
                }
                _ => false,
            });
        }
    }

    /// Cancels the `on_lost` token of a lock before its release is sent. So work under the lock is
    /// told before another client can own the node.
    pub(super) fn apply_release(&self, change: &Write) {
        let Write::Unlock { lock, .. } = change else { return };
        if let Some((_, cell)) = self.locks.get(lock) {
            cell.lost.cancel();
        }
    }

    /// Applies the outcome of a lock request or of a change of mode, before its caller receives it.
    /// The outcome of a change of mode does not bring back a lock that is gone.
    pub(super) fn apply_lock_outcome(&mut self, written: &Written, is_new: bool) {
        let Some(taken) = written.lock.as_deref() else { return };
        if !is_new && !self.locks.contains_key(&taken.lock) {
            return;
        }
        let status = match taken.token {
            Some(token) => LockStatus::Granted { token, mode: taken.mode, is_contended: false },
            None => LockStatus::Waiting,
        };
        let (_, cell) = self.locks.entry(taken.lock).or_insert_with(|| (taken.path.clone(), LockCell::new(status)));
        cell.status.send_if_modified(|known| {
            // The known status may be newer.
            let is_news =
                taken.token > token(*known) || (taken.token == token(*known) && taken.mode == LockMode::Shared);
            if is_news {
                *known = status;
            }
            is_news
        });
    }

    pub(super) fn show_lock_status(&self, id: LockId, status: LockStatus) {
        if let Some((_, cell)) = self.locks.get(&id) {
            cell.status.send_replace(status);
        }
    }
}

fn token(status: LockStatus) -> Option<Token> {
    match status {
        LockStatus::Granted { token, .. } => Some(token),
        LockStatus::Waiting | LockStatus::Ended => None,
    }
}
