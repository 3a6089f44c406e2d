//! Checks that the tables of object leases agree with one another. Tests run it after each step.

use std::collections::BTreeMap;

use super::{ObjectLeases, entries::RecordingId};

impl ObjectLeases {
    /// Checks that the tables agree.
    pub(in crate::lessor) fn check(&self) -> Result<(), String> {
        let mut entries: BTreeMap<RecordingId, usize> = BTreeMap::new();
        for (object, session, entry) in self.entries.iter() {
            let is_recorded = self.tracks.recorded_volume(entry.recording).is_some();
            if !is_recorded && !self.drops.includes(&object.path, session) {
                return Err(format!("the lease of {session} on {object} is invalid, and no drop removes it"));
            }
            *entries.entry(entry.recording).or_default() += 1;
        }
        self.entries.check()?;
        self.tracks.check(&entries)?;
        self.end_order.check(|(object, session)| self.entries.get(object, *session).is_some())?;
        self.sums.check(self.entries.iter())
    }
}
