//! Write leases: what the application sets and reads under them, and what it is told of that.

use leasehold_protocol::{hold::CachingStatus, holder::Input, id::HoldId, object::Value, path::Path};

use super::{Core, Driver};
use crate::{clock, write_lease::LostChange};

impl Driver {
    /// The node's value, if the application may read and write it in memory now.
    pub(crate) fn cached(&self, hold: HoldId) -> Option<Value> {
        self.core.lock().holder.cached(hold, clock::now()).cloned()
    }

    /// Sets the node's value in memory. False if that may not be done now, and then it is not.
    pub(crate) fn set_cached(&self, hold: HoldId, value: Value) -> bool {
        let mut core = self.core.lock();
        // A lease that is certain now may not be when the step reads the clock: what was set is what is there after it.
        if core.holder.cached(hold, clock::now()).is_none() {
            return false;
        }
        self.step(&mut core, Input::SetCached { hold, value: value.clone() });
        core.holder.cached(hold, clock::now()).is_some_and(|found| *found == value)
    }

    /// Whether the hold is a write lease, is asked to be one, or is about to be one no longer.
    pub(crate) fn is_caching(&self, hold: HoldId) -> bool {
        self.core.lock().holder.is_caching(hold)
    }

    /// How it stands. None if it is no write lease, or not yet.
    pub(crate) fn caching_status(&self, hold: HoldId) -> Option<CachingStatus> {
        self.core.lock().holder.caching_status(hold)
    }

    /// Has what was set sent to the servers.
    pub(crate) fn flush(&self, hold: HoldId) {
        self.step(&mut self.core.lock(), Input::Flush(hold));
    }

    /// Has the write lease given up when what was set is flushed.
    pub(crate) fn end_caching(&self, hold: HoldId) {
        self.step(&mut self.core.lock(), Input::EndCaching(hold));
    }
}

impl Core {
    /// A write lease stands otherwise.
    pub(super) fn caching_changed(&mut self, hold: HoldId, status: CachingStatus) {
        if let Some((_, cell)) = self.holds.get(&hold) {
            cell.kept.send_modify(|kept| kept.status = status);
        }
    }

    /// What was set is not on the servers, and will not be.
    pub(super) fn flush_lost(&mut self, hold: HoldId, lost: impl FnOnce(Path) -> LostChange) {
        let Some((path, cell)) = self.holds.get(&hold) else { return };
        let lost = lost(path.clone());
        cell.kept.send_modify(|kept| {
            let told = kept.lost.as_ref().map_or(0, |(told, _)| *told);
            kept.lost = Some((told + 1, lost));
        });
    }
}
