//! What no call may break, whatever was called before.

use std::collections::BTreeMap;

use leasehold_client_cache::{Data, NodePath, Revision, Written};
use parking_lot::Mutex;

/// What a read of a node that begins now has to see at least: the last put that was acknowledged.
#[derive(Debug, Clone, Copy)]
pub struct Floor(Revision);

/// Remembers what was acknowledged.
#[derive(Debug, Default)]
pub struct Judge {
    puts: Mutex<BTreeMap<NodePath, Revision>>,
}

impl Judge {
    /// Before a read begins.
    pub fn floor(&self, path: &NodePath) -> Floor {
        Floor(self.puts.lock().get(path).copied().unwrap_or_default())
    }

    /// A put was acknowledged.
    pub fn written(&self, path: &NodePath, written: &Written) {
        let mut puts = self.puts.lock();
        let last = puts.entry(path.clone()).or_default();
        *last = (*last).max(written.revision);
    }

    /// A read is over. A node that is gone may have been deleted; one that is there is not older
    /// than the floor.
    pub fn read(&self, path: &NodePath, floor: Floor, found: Option<&Data>) {
        let Some(found) = found else { return };
        assert!(
            found.stat.modify_revision >= floor.0,
            "stale read: {path} was read as of {:?}, and {:?} had been acknowledged before the read began",
            found.stat.modify_revision,
            floor.0
        );
    }
}
