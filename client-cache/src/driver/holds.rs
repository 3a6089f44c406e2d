//! Holds: what the application's guards are told of them.

use std::time::Duration;

use leasehold_protocol::{
    command::{Write, Written},
    hold::{HoldMode, HoldStatus},
    holder::{Input, WriteId},
    id::{HoldId, Token},
    path::Path,
};
use tokio::sync::oneshot;

use super::{Core, Driver, Step, WriteResult};
use crate::{clock, hold::HoldCell};

impl Driver {
    /// What is known of a hold that was asked for. One that is over by now is known no more.
    pub(crate) fn hold_cell(&self, id: HoldId) -> HoldCell {
        let cell = self.core.lock().holds.get(&id).map(|(_, cell)| cell.clone());
        cell.unwrap_or_else(|| {
            let over = HoldCell::new(HoldStatus::Over);
            over.end();
            over
        })
    }

    /// How long a hold is certain to be held.
    pub(crate) fn hold_certain_for(&self, id: HoldId) -> Duration {
        self.core.lock().holder.hold_certain_for(id, clock::now())
    }

    /// Gives back what this client has at a node. Not given up if nobody waits for the outcome.
    pub(crate) fn give_back(&self, at: &Path, change: Write) -> oneshot::Receiver<WriteResult> {
        self.begin_write(change, Some(self.withdrawals.begin(at))).1
    }

    /// Nobody wants to know of the hold any more.
    pub(crate) fn forget_hold(&self, id: HoldId) {
        self.core.lock().holds.remove(&id);
    }

    /// Holds are over for the application. The server may still count them: they are given back.
    pub(super) fn holds_over(&self, core: &mut Core, ids: Vec<HoldId>, step: &mut Step) {
        for hold in ids {
            let Some((path, cell)) = core.holds.remove(&hold) else { continue };
            let write = WriteId(core.next_id());
            // Before anybody hears that it is over, and asks for it again.
            core.withdrawing.insert(write, self.withdrawals.begin(&path));
            cell.end();
            step.follow.push_back(Input::Write { write, change: Write::Unlock { path, hold } });
        }
    }
}

impl Core {
    /// A hold is to be something else. From now on one that is to be shared is not exclusive for the application either.
    pub(super) fn lower(&self, change: &Write) {
        let Write::Convert { hold, mode: HoldMode::Shared, .. } = change else { return };
        if let Some((_, cell)) = self.holds.get(hold) {
            cell.status.send_if_modified(|status| match status {
                HoldStatus::Held { mode: mode @ HoldMode::Exclusive, .. } => {
                    *mode = HoldMode::Shared;
                    true
                }
                _ => false,
            });
        }
    }

    /// A write that asked for a hold, or for another kind of it, has been done: before anybody hears of it. A withdrawal tells
    /// nothing of a hold that nobody has any more.
    pub(super) fn taken(&mut self, written: &Written, is_withdrawal: bool) {
        let Some(taken) = written.taken.as_deref() else { return };
        if is_withdrawal && !self.holds.contains_key(&taken.hold) {
            return;
        }
        let status = match taken.token {
            Some(token) => HoldStatus::Held { token, mode: taken.mode, is_wanted: false },
            None => HoldStatus::Waiting,
        };
        let (_, cell) = self.holds.entry(taken.hold).or_insert_with(|| (taken.path.clone(), HoldCell::new(status)));
        cell.status.send_if_modified(|known| {
            // What was told of it since is newer.
            let is_news =
                taken.token > token(*known) || (taken.token == token(*known) && taken.mode == HoldMode::Shared);
            if is_news {
                *known = status;
            }
            is_news
        });
    }

    /// A hold stands otherwise than before.
    pub(super) fn hold_changed(&self, id: HoldId, status: HoldStatus) {
        if let Some((_, cell)) = self.holds.get(&id) {
            cell.status.send_replace(status);
        }
    }
}

fn token(status: HoldStatus) -> Option<Token> {
    match status {
        HoldStatus::Held { token, .. } => Some(token),
        HoldStatus::Waiting | HoldStatus::Over => None,
    }
}
