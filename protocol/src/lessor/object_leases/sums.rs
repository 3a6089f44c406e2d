//! Sums of the object leases below each node, for each session and recording.
//!
//! A write of a subtree uses the sums, because each session may have very many leases. Owns these
//! sums. Guarantees that the counts are exact, and that no lease has a later end or stamp than its
//! sum. After removals, the end and the stamp of a sum may be later than those of all leases. Does
//! not know the leases, nor which of them are valid: it is told when one of them is added, changed
//! or removed.

use std::collections::BTreeMap;

use crate::{
    id::SessionId,
    object::{Object, ObjectSet},
    path::NodePath,
    time::ClusterTime,
    work::{CountVisits, visit},
};

use super::entries::{LeaseEntry, ObjectLease, RecordingId};

/// The object leases of one session strictly below a node, of one recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SubtreeCopies {
    count: usize,
    /// No lease ends later than this.
    pub(super) expires_at: ClusterTime,
    /// No stamp is later than this.
    pub(super) newest: u64,
}

impl SubtreeCopies {
    /// A sum with count 0, and with the end and the stamp of this lease.
    fn none(lease: ObjectLease) -> Self {
        Self { count: 0, expires_at: lease.expires_at, newest: lease.source.sequence() }
    }

    /// Adds `more` copies, and includes the lease in the limits.
    fn add(&mut self, lease: ObjectLease, more: usize) {
        self.count += more;
        self.expires_at = self.expires_at.max(lease.expires_at);
        self.newest = self.newest.max(lease.source.sequence());
    }
}

/// The sums below all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct SubtreeSums {
    below: BTreeMap<NodePath, BTreeMap<(SessionId, RecordingId), SubtreeCopies>>,
}

impl SubtreeSums {
    /// The sums of the sessions that have entries strictly below the top of a subtree.
    pub(super) fn below(
        &self,
        set: &ObjectSet,
    ) -> impl Iterator<Item = (&NodePath, SessionId, RecordingId, &SubtreeCopies)> {
        let found = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => self.below.get_key_value(top),
        };
        let found = found.into_iter().flat_map(|(top, holders)| holders.iter().map(move |holder| (top, holder)));
        found.map(|(top, ((session, recording), below))| (top, *session, *recording, below)).counted()
    }

    /// An upper bound of the stamps of the session's leases strictly below the top of a subtree.
    pub(super) fn newest_of(&self, set: &ObjectSet, session: SessionId) -> Option<u64> {
        let recordings = (session, RecordingId(0))..=(session, RecordingId(u64::MAX));
        let below = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => self.below.get(top).map(|holders| holders.range(recordings)),
        };
        below.into_iter().flatten().map(|(_, below)| below.newest).counted().max()
    }

    /// Adds a lease to the sums of all nodes above its path.
    pub(super) fn add(&mut self, path: &NodePath, session: SessionId, entry: LeaseEntry) {
        self.note(path, session, entry, 1);
    }

    /// Includes the new end and stamp of a lease in the limits of all nodes above its path.
    pub(super) fn update(&mut self, path: &NodePath, session: SessionId, entry: LeaseEntry) {
        self.note(path, session, entry, 0);
    }

    fn note(&mut self, path: &NodePath, session: SessionId, LeaseEntry { lease, recording }: LeaseEntry, more: usize) {
        for above in above(path) {
            visit(1);
            if !self.below.contains_key(above)
                && let Some(top) = path.ancestors().find(|top| top.as_str() == above)
            {
                self.below.insert(top, BTreeMap::new());
            }
            let Some(holders) = self.below.get_mut(above) else { continue };
            holders.entry((session, recording)).or_insert(SubtreeCopies::none(lease)).add(lease, more);
        }
    }

    /// Subtracts a lease from the sums of all nodes above its path.
    pub(super) fn remove(&mut self, path: &NodePath, session: SessionId, recording: RecordingId) {
        for above in above(path) {
            visit(1);
            let Some(holders) = self.below.get_mut(above) else { continue };
            let is_last = holders.get_mut(&(session, recording)).is_none_or(|below| {
                below.count = below.count.saturating_sub(1);
                below.count == 0
            });
            if is_last {
                holders.remove(&(session, recording));
                if holders.is_empty() {
                    self.below.remove(above);
                }
            }
        }
    }

    /// The number of entries of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [(&'static str, usize); 2] {
        [
            ("holders below nodes", self.below.values().map(BTreeMap::len).sum()),
            ("nodes with holders below", self.below.len()),
        ]
    }

    /// Checks that the sums match these entries.
    pub(super) fn check<'a>(
        &self,
        entries: impl Iterator<Item = (&'a Object, SessionId, &'a LeaseEntry)>,
    ) -> Result<(), String> {
        let mut expected: BTreeMap<(&str, SessionId, RecordingId), SubtreeCopies> = BTreeMap::new();
        for (object, session, LeaseEntry { lease, recording }) in entries {
            for above in above(&object.path) {
                expected.entry((above, session, *recording)).or_insert(SubtreeCopies::none(*lease)).add(*lease, 1);
            }
        }
        let found = self.below.iter().flat_map(|(top, holders)| holders.iter().map(move |of| (top.as_str(), of)));
        let found = found.map(|(top, ((session, recording), below))| ((top, *session, *recording), *below));
        let is_upper_bound = |(key, found): (_, SubtreeCopies)| {
            let expected = expected.get(&key);
            expected.is_some_and(|expected| {
                (found.count, found.expires_at >= expected.expires_at, found.newest >= expected.newest)
                    == (expected.count, true, true)
            })
        };
        let count: usize = self.below.values().map(BTreeMap::len).sum();
        if count != expected.len() || !found.into_iter().all(is_upper_bound) {
            return Err("the sums below the nodes do not match the leases".to_owned());
        }
        Ok(())
    }
}

/// The paths of the nodes above a path as text, nearest first.
fn above(path: &NodePath) -> impl Iterator<Item = &str> {
    let text = path.as_str();
    let parent = |text: &'_ str| match text.rfind('/') {
        _ if text.len() == 1 => None,
        Some(0) | None => Some(1),
        Some(end) => Some(end),
    };
    std::iter::successors(parent(text).map(|end| &text[..end]), move |text| parent(text).map(|end| &text[..end]))
}
