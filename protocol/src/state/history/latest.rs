//! The latest change of each set of objects, by volume. So the cost of the answer to a returning
//! session depends on the number of sets that changed since, not on the number of changes (S10b in
//! docs/PROTOCOL.md).
//!
//! A set is indexed under its own volume. The subtree of a volume is also indexed under the outer
//! volume, which lost that part when the volume was created. A change of a subtree with inner
//! volumes is not indexed under these. `after` finds it through the ancestors of the inner volume.
//!
//! A set may be indexed under a volume that no longer contains it, or did not contain it at that
//! time. Still, no change is missed: a write that moves objects between volumes changes the whole
//! subtree, and is indexed under both volumes.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hash, Hasher},
};

use foldhash::fast::FixedState;

use crate::{
    id::Revision,
    object::{Object, ObjectSet},
    path::NodePath,
    work::{CountVisits, visit},
};

/// The latest change of a set, and the volumes that index it.
#[derive(Debug, Clone)]
struct LastChange {
    revision: Revision,
    volume: NodePath,
    outer_volume: Option<NodePath>,
}

fn hashed(set: &ObjectSet) -> (u64, &ObjectSet) {
    (FixedState::default().hash_one(set), set)
}

/// The latest change of each set in the history. The sets are derived from the history. The volume
/// of a set is that at the time of the change, or at the time when the index was rebuilt. So states
/// are compared without this index.
#[derive(Debug, Clone, Default)]
pub(super) struct LatestChanges {
    sets: BTreeMap<ObjectSet, LastChange>,
    volumes: BTreeMap<NodePath, BTreeSet<(Revision, ObjectSet)>>,
}

impl PartialEq for LatestChanges {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LatestChanges {}

impl Hash for LatestChanges {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl LatestChanges {
    /// Records a change of the set in its volume. If the set is the subtree of a volume,
    /// `outer_volume` is the volume around it.
    pub(super) fn note(
        &mut self,
        set: &ObjectSet,
        revision: Revision,
        volume: &NodePath,
        outer_volume: Option<&NodePath>,
    ) {
        visit(1);
        let last = LastChange { revision, volume: volume.clone(), outer_volume: outer_volume.cloned() };
        for volume in std::iter::once(volume).chain(outer_volume) {
            match self.volumes.get_mut(volume) {
                Some(sets) => sets.insert((revision, set.clone())),
                None => self.volumes.entry(volume.clone()).or_default().insert((revision, set.clone())),
            };
        }
        if let Some(before) = self.sets.insert(set.clone(), last)
            && before.revision != revision
        {
            self.leave_volumes(set, &before);
        }
    }

    /// Records that the history has compacted a change of the set.
    pub(super) fn forget(&mut self, set: &ObjectSet, revision: Revision) {
        visit(1);
        if self.sets.get(set).is_some_and(|last| last.revision == revision)
            && let Some(last) = self.sets.remove(set)
        {
            self.leave_volumes(set, &last);
        }
    }

    fn leave_volumes(&mut self, set: &ObjectSet, last: &LastChange) {
        for volume in std::iter::once(&last.volume).chain(&last.outer_volume) {
            if let Some(sets) = self.volumes.get_mut(volume) {
                sets.remove(&(last.revision, set.clone()));
                if sets.is_empty() {
                    self.volumes.remove(volume);
                }
            }
        }
    }

    /// The sets that changed after the revision in the volume, each once.
    pub(super) fn after(&self, revision: Revision, volume: &NodePath) -> impl Iterator<Item = &ObjectSet> {
        // The lowest set in the order of sets.
        let first = (revision.next(), ObjectSet::One(Object::data(NodePath::root())));
        let own = self.volumes.get(volume).into_iter().flat_map(move |sets| sets.range(first.clone()..));
        let tops = volume.ancestors().filter_map(move |top| {
            let (set, last) = self.sets.get_key_value(&ObjectSet::Subtree(top))?;
            (last.revision > revision).then_some(set)
        });
        own.map(|(_, set)| set).chain(tops).counted()
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.sets.len(), self.volumes.values().map(BTreeSet::len).sum()]
    }

    /// Checks that the index has exactly the sets of these changes, each with its latest change.
    pub(super) fn check<'a>(&self, sets: impl Iterator<Item = (Revision, &'a ObjectSet)>) -> Result<(), String> {
        // The map is in the order of hashes, because comparing sets is slow, and simulations run
        // this check after every entry.
        let expected: BTreeMap<(u64, &ObjectSet), Revision> =
            sets.map(|(revision, set)| (hashed(set), revision)).collect();
        let is_last = |(set, last): (&ObjectSet, &LastChange)| expected.get(&hashed(set)) == Some(&last.revision);
        if expected.len() != self.sets.len() || !self.sets.iter().all(is_last) {
            return Err("the index of latest changes does not match the history".to_owned());
        }
        let mut entries = 0;
        for (set, last) in &self.sets {
            let key = (last.revision, set.clone());
            let volumes: BTreeSet<&NodePath> = std::iter::once(&last.volume).chain(&last.outer_volume).collect();
            entries += volumes.len();
            let is_indexed = |volume: &&NodePath| self.volumes.get(*volume).is_some_and(|sets| sets.contains(&key));
            if !volumes.iter().all(is_indexed) {
                return Err("the latest changes by volume do not match those by set".to_owned());
            }
        }
        // Nothing else is indexed.
        if self.volumes.values().map(BTreeSet::len).sum::<usize>() != entries
            || self.volumes.values().any(BTreeSet::is_empty)
        {
            return Err("the latest changes by volume do not match those by set".to_owned());
        }
        Ok(())
    }
}
