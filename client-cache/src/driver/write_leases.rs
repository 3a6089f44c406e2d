//! Write leases: what the application sets and reads under them, and what it is told of that.

use leasehold_protocol::{holder::HolderInput, id::LockId, lock::WriteLeaseStatus, object::Value, path::NodePath};

use super::{Driver, DriverCore};
use crate::{clock, write_lease::LostChange};

impl Driver {
    /// The node's value, if the application may read and write it in memory now.
    pub(crate) fn write_lease_value(&self, hold: LockId) -> Option<Value> {
        self.core.lock().holder.write_lease_value(hold, clock::now()).cloned()
    }

    /// Sets the node's value in memory. False if that may not be done now, and then it is not.
    pub(crate) fn set_under_write_lease(&self, lock: LockId, value: Value) -> bool {
        let mut core = self.core.lock();
        // A lease that is certain now may not be when the step reads the clock: what was set is
        // what is there after it.
        if core.holder.write_lease_value(lock, clock::now()).is_none() {
            return false;
        }
        self.step(&mut core, HolderInput::SetUnderWriteLease { lock, value: value.clone() });
        core.holder.write_lease_value(lock, clock::now()).is_some_and(|found| *found == value)
    }

    /// Whether the hold is a write lease, is asked to be one, or is about to be one no longer.
    pub(crate) fn has_write_lease(&self, hold: LockId) -> bool {
        self.core.lock().holder.has_write_lease(hold)
    }

    /// How it stands. None if it is no write lease, or not yet.
    pub(crate) fn write_lease_status(&self, hold: LockId) -> Option<WriteLeaseStatus> {
        self.core.lock().holder.write_lease_status(hold)
    }

    /// Has what was set sent to the servers.
    pub(crate) fn flush(&self, hold: LockId) {
        self.step(&mut self.core.lock(), HolderInput::Flush(hold));
    }

    /// Has the write lease given up when what was set is flushed.
    pub(crate) fn release_write_lease(&self, hold: LockId) {
        self.step(&mut self.core.lock(), HolderInput::ReleaseWriteLease(hold));
    }
}

impl DriverCore {
    /// A write lease stands otherwise.
    pub(super) fn update_write_lease(&mut self, hold: LockId, status: WriteLeaseStatus) {
        if let Some((_, cell)) = self.locks.get(&hold) {
            cell.write_lease.send_modify(|kept| kept.status = status);
        }
    }

    /// What was set is not on the servers, and will not be.
    pub(super) fn flush_lost(&mut self, hold: LockId, lost: impl FnOnce(NodePath) -> LostChange) {
        let Some((path, cell)) = self.locks.get(&hold) else { return };
        let lost = lost(path.clone());
        cell.write_lease.send_modify(|kept| {
            let told = kept.lost.as_ref().map_or(0, |(told, _)| *told);
            kept.lost = Some((told + 1, lost));
        });
    }
}
