//! Holds: what the application's guards are told of them.

use std::time::Duration;

use leasehold_protocol::{
    command::{Write, Written},
    holder::{HolderInput, WriteId},
    id::{LockId, Token},
    lock::{LockMode, LockStatus},
    path::NodePath,
};
use tokio::sync::oneshot;

use super::{Driver, DriverCore, StepOrigin, WriteOutcome};
use crate::{clock, lock::LockCell};

impl Driver {
    /// What is known of a hold that was asked for. One that is over by now is known no more.
    pub(crate) fn lock_cell(&self, id: LockId) -> LockCell {
        let cell = self.core.lock().locks.get(&id).map(|(_, cell)| cell.clone());
        cell.unwrap_or_else(|| {
            let over = LockCell::new(LockStatus::Ended);
            over.end();
            over
        })
    }

    /// How long a hold is certain to be held.
    pub(crate) fn lock_remaining(&self, id: LockId) -> Duration {
        self.core.lock().holder.lock_remaining(id, clock::now())
    }

    /// Gives back what this client has at a node. Not given up if nobody waits for the outcome.
    pub(crate) fn begin_release(&self, at: &NodePath, change: Write) -> oneshot::Receiver<WriteOutcome> {
        self.begin_write(change, Some(self.pending_releases.begin(at))).1
    }

    /// Nobody wants to know of the hold any more.
    pub(crate) fn forget_lock(&self, id: LockId) {
        self.core.lock().locks.remove(&id);
    }

    /// Holds are over for the application. The server may still count them: they are given back.
    pub(super) fn lose_locks(&self, core: &mut DriverCore, ids: Vec<LockId>, step: &mut StepOrigin) {
        for lock in ids {
            let Some((path, cell)) = core.locks.remove(&lock) else { continue };
            let write = WriteId(core.next_id());
            // Before anybody hears that it is over, and asks for it again.
            core.release_writes.insert(write, self.pending_releases.begin(&path));
            cell.end();
            step.follow.push_back(HolderInput::Write { write, change: Write::Unlock { path, lock } });
        }
    }
}

impl DriverCore {
    /// A hold is to be something else. From now on one that is to be shared is not exclusive for
    /// the application either.
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

    /// A write that asked for a hold, or for another kind of it, has been done: before anybody
    /// hears of it. A withdrawal tells nothing of a hold that nobody has any more.
    pub(super) fn apply_lock_grant(&mut self, written: &Written, is_withdrawal: bool) {
        let Some(taken) = written.lock.as_deref() else { return };
        if is_withdrawal && !self.locks.contains_key(&taken.lock) {
            return;
        }
        let status = match taken.token {
            Some(token) => LockStatus::Granted { token, mode: taken.mode, is_contended: false },
            None => LockStatus::Waiting,
        };
        let (_, cell) = self.locks.entry(taken.lock).or_insert_with(|| (taken.path.clone(), LockCell::new(status)));
        cell.status.send_if_modified(|known| {
            // What was told of it since is newer.
            let is_news =
                taken.token > token(*known) || (taken.token == token(*known) && taken.mode == LockMode::Shared);
            if is_news {
                *known = status;
            }
            is_news
        });
    }

    /// A hold stands otherwise than before.
    pub(super) fn update_lock_status(&self, id: LockId, status: LockStatus) {
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
