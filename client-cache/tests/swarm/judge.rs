//! The guarantee that no sequence of calls may break.

use std::collections::BTreeMap;

use leasehold_client_cache::{Data, NodePath, Revision, Written};
use parking_lot::Mutex;

/// The least revision that a read which begins now may see: that of the last acknowledged put.
#[derive(Debug, Clone, Copy)]
pub struct Floor(Revision);

/// Remembers acknowledged puts.
#[derive(Debug, Default)]
pub struct Judge {
    puts: Mutex<BTreeMap<NodePath, Revision>>,
}

impl Judge {
    /// Called before a read begins.
    pub fn floor(&self, path: &NodePath) -> Floor {
        Floor(self.puts.lock().get(path).copied().unwrap_or_default())
    }

    pub fn written(&self, path: &NodePath, written: &Written) {
        let mut puts = self.puts.lock();
        let last = puts.entry(path.clone()).or_default();
        *last = (*last).max(written.revision);
    }

    /// Checks a finished read. A node that is gone may have been deleted. A node that exists must
    /// not be older than the floor.
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
