//! Write leases: the application sets and reads values under them.

use leasehold_protocol::{
    drift::Excess, holder::HolderInput, id::LockId, lock::WriteLeaseStatus, object::Value, path::NodePath,
};

use super::{Driver, DriverCore};
use crate::{clock, lost_change::LostChange};

/// The state of a lock's write lease.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteLeaseCell {
    pub(crate) status: WriteLeaseStatus,
    /// The last loss, and the number of losses.
    pub(crate) lost: Option<(u64, LostChange)>,
}

impl Driver {
    /// The node's value, if the application may read and write it in memory now.
    pub(crate) fn write_lease_value(&self, lock: LockId) -> Option<Value> {
        self.core.lock().holder.write_lease_value(lock, clock::now()).cloned()
    }

    /// Sets the node's value in memory. Returns false if the application may not do that now. If
    /// the write lease ends during the call, the value may be set, and is then reported as lost.
    pub(crate) fn set_under_write_lease(&self, lock: LockId, value: Value) -> bool {
        let mut core = self.core.lock();
        // The lease may end between this check and the clock reading of the step. So the value is
        // checked again after the step.
        if core.holder.write_lease_value(lock, clock::now()).is_none() {
            return false;
        }
        self.step(&mut core, HolderInput::SetUnderWriteLease { lock, value: value.clone() });
        core.holder.write_lease_value(lock, clock::now()).is_some_and(|found| *found == value)
    }

    /// Whether the lock has a write lease, has requested one, or has one that is about to end.
    pub(crate) fn has_write_lease(&self, lock: LockId) -> bool {
        self.core.lock().holder.has_write_lease(lock)
    }

    /// The status of the write lease. `None` if the lock has no write lease, or not yet.
    pub(crate) fn write_lease_status(&self, lock: LockId) -> Option<WriteLeaseStatus> {
        self.core.lock().holder.write_lease_status(lock)
    }

    /// Starts to flush the value that was set.
    pub(crate) fn flush(&self, lock: LockId) {
        self.step(&mut self.core.lock(), HolderInput::Flush(lock));
    }

    /// Ends the write lease as soon as its value is flushed.
    pub(crate) fn release_write_lease(&self, lock: LockId) {
        self.step(&mut self.core.lock(), HolderInput::ReleaseWriteLease(lock));
    }

    /// Wakes the calls under write leases: they wait while the clocks are beyond their allowances.
    pub(super) fn change_clock_excess(&self, core: &DriverCore, excess: Option<Excess>) {
        core.locks.values().for_each(|(_, cell)| cell.write_lease.send_modify(|_| {}));
        self.status.clock_changed(excess);
    }
}

impl DriverCore {
    pub(super) fn update_write_lease(&mut self, lock: LockId, status: WriteLeaseStatus) {
        if let Some((_, cell)) = self.locks.get(&lock) {
            cell.write_lease.send_modify(|kept| kept.status = status);
        }
    }

    /// Records a set value as lost: its flush was not confirmed, and will not be repeated.
    pub(super) fn flush_lost(&mut self, lock: LockId, lost: impl FnOnce(NodePath) -> LostChange) {
        let Some((path, cell)) = self.locks.get(&lock) else { return };
        let lost = lost(path.clone());
        cell.write_lease.send_modify(|write_lease| {
            let number = write_lease.lost.as_ref().map_or(0, |(number, _)| *number);
            write_lease.lost = Some((number + 1, lost));
        });
    }
}
