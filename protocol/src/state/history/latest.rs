//! The last change of each set of objects, by volume: a session that returns is told what changed
//! since it left, and costs no more than that, however many changes there have been (S10b).
//!
//! A set is kept for the volume that it lies in. The subtree of a volume is kept for the volume
//! around it too, of which its making took a part away. A subtree with volumes inside is found by
//! those through the nodes above them.
//!
//! A set may be kept for a volume that it is no longer in, or was not in then. Nothing is missed by
//! that: whatever moves objects from one volume to another is itself a change of the whole subtree,
//! and kept for both.

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

/// When a set was changed last, and for which volumes that is kept.
#[derive(Debug, Clone)]
struct LastChange {
    revision: Revision,
    volume: NodePath,
    outer_volume: Option<NodePath>,
}

fn hashed(set: &ObjectSet) -> (u64, &ObjectSet) {
    (FixedState::default().hash_one(set), set)
}

/// The last change of each set that the history knows. Follows from the history, but for the
/// volumes: it is not compared.
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
    /// A change has changed the set, which lies in the volume; `around` is the volume of what is
    /// above it, if that is another.
    pub(super) fn note(&mut self, set: &ObjectSet, revision: Revision, volume: &NodePath, around: Option<&NodePath>) {
        visit(1);
        let last = LastChange { revision, volume: volume.clone(), outer_volume: around.cloned() };
        for volume in std::iter::once(volume).chain(around) {
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

    /// The history has forgotten a change of the set.
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

    /// What changed after the revision of what the volume has, each set once.
    pub(super) fn after(&self, revision: Revision, volume: &NodePath) -> impl Iterator<Item = &ObjectSet> {
        // No set comes before this one.
        let first = (revision.next(), ObjectSet::One(Object::data(NodePath::root())));
        let own = self.volumes.get(volume).into_iter().flat_map(move |sets| sets.range(first.clone()..));
        let tops = volume.ancestors().filter_map(move |top| {
            let (set, last) = self.sets.get_key_value(&ObjectSet::Subtree(top))?;
            (last.revision > revision).then_some(set)
        });
        own.map(|(_, set)| set).chain(tops).counted()
    }

    /// How many entries there are, of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.sets.len(), self.volumes.values().map(BTreeSet::len).sum()]
    }

    /// Each set that these changes changed is there with the last of them, and nothing else is.
    pub(super) fn check<'a>(&self, sets: impl Iterator<Item = (Revision, &'a ObjectSet)>) -> Result<(), String> {
        // In the order of hashes, as sets take long to compare: this runs after every entry of a
        // simulation.
        let expected: BTreeMap<(u64, &ObjectSet), Revision> =
            sets.map(|(revision, set)| (hashed(set), revision)).collect();
        let is_last = |(set, last): (&ObjectSet, &LastChange)| expected.get(&hashed(set)) == Some(&last.revision);
        if expected.len() != self.sets.len() || !self.sets.iter().all(is_last) {
            return Err("the last changes of sets are not those of the history".to_owned());
        }
        let mut entries = 0;
        for (set, last) in &self.sets {
            let key = (last.revision, set.clone());
            let volumes: BTreeSet<&NodePath> = std::iter::once(&last.volume).chain(&last.outer_volume).collect();
            entries += volumes.len();
            let is_kept = |volume: &&NodePath| self.volumes.get(*volume).is_some_and(|sets| sets.contains(&key));
            if !volumes.iter().all(is_kept) {
                return Err("the last changes by volume are not those by set".to_owned());
            }
        }
        // Each is there, and no others are.
        if self.volumes.values().map(BTreeSet::len).sum::<usize>() != entries
            || self.volumes.values().any(BTreeSet::is_empty)
        {
            return Err("the last changes by volume are not those by set".to_owned());
        }
        Ok(())
    }
}
