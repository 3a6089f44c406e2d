//! An index of the revisions at which nodes changed. A few look-ups in it tell whether a watch has
//! something to report, and at which revision next. Their number does not depend on the number of
//! changes (S10b in docs/PROTOCOL.md). After a failover all watches return at one time.
//!
//! The index has each change at the nodes of its events, and at the nodes above them. It is derived
//! from the history, and has no rows of its own. When the history compacts a change, the index
//! forgets it. So the memory of the index is bounded like that of the history. Each path in it is a
//! node that exists, or that a change in the history removed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{BuildHasher, Hash, Hasher},
    ops::Bound,
};

use foldhash::fast::FixedState;

use super::StoredChange;
use crate::{change::WatchScope, id::Revision, object::ObjectSet, path::NodePath, work::visit};

/// Revisions of changes by path, each list in order.
type Revisions = BTreeMap<NodePath, VecDeque<Revision>>;

/// The revisions of the events in the history. States are compared without it.
#[derive(Debug, Clone, Default)]
pub(super) struct EventIndex {
    /// The nodes with events, each with the revision of the change.
    nodes: BTreeSet<(NodePath, Revision)>,
    /// The changes with events strictly below a node.
    below: Revisions,
    /// The changes without stored events that may have had events anywhere in a subtree.
    anywhere: Revisions,
}

impl PartialEq for EventIndex {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for EventIndex {}

impl Hash for EventIndex {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl EventIndex {
    /// Adds a change that is later than all others.
    pub(super) fn note(&mut self, revision: Revision, change: &StoredChange) {
        let mut last: Option<&NodePath> = None;
        for path in change.event_paths() {
            visit(1);
            self.nodes.insert((path.clone(), revision));
            if !last.is_some_and(|last| last.is_sibling_of(path)) {
                // If a node has the revision, all nodes above it have it too.
                path.ancestors().take_while(|above| append(&mut self.below, above, revision)).for_each(drop);
            }
            last = Some(path);
        }
        for top in change.unknown_subtrees() {
            append(&mut self.anywhere, top, revision);
        }
    }

    /// Removes the earliest change.
    pub(super) fn forget(&mut self, revision: Revision, change: &StoredChange) {
        let mut last: Option<&NodePath> = None;
        for path in change.event_paths() {
            visit(1);
            self.nodes.remove(&(path.clone(), revision));
            if !last.is_some_and(|last| last.is_sibling_of(path)) {
                path.ancestors().take_while(|above| remove_first(&mut self.below, above, revision)).for_each(drop);
            }
            last = Some(path);
        }
        for top in change.unknown_subtrees() {
            remove_first(&mut self.anywhere, top, revision);
        }
    }

    /// The first change after the revision that has watched events, or may have had some if its
    /// events are not stored.
    pub(super) fn first_after(&self, after: Revision, watched: &WatchScope) -> Option<Revision> {
        visit(1);
        let path = watched.path();
        let from = (path.clone(), after);
        let to = (path.clone(), Revision(u64::MAX));
        let own = self.nodes.range((Bound::Excluded(from), Bound::Included(to))).next().map(|(_, revision)| *revision);
        let below = match watched {
            WatchScope::Node(_) => None,
            WatchScope::Subtree(_) => next(&self.below, path, after),
        };
        let mut first = own.into_iter().chain(below).min();
        if !self.anywhere.is_empty() {
            for top in std::iter::once(path.clone()).chain(path.ancestors()) {
                visit(1);
                first = first.into_iter().chain(next(&self.anywhere, &top, after)).min();
            }
        }
        first
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.nodes.len(), self.below.values().map(VecDeque::len).sum()]
    }

    /// Checks that the index has exactly these changes.
    pub(super) fn check<'a>(
        &self,
        changes: impl Iterator<Item = (Revision, &'a StoredChange)>,
    ) -> Result<(), &'static str> {
        let (mut nodes, mut below, mut anywhere) = (Sum::default(), Sum::default(), Sum::default());
        for (revision, change) in changes {
            let (mut own, mut above) = (BTreeSet::new(), BTreeSet::new());
            for path in change.event_paths() {
                own.insert(path.as_str());
                above.extend(texts_above(path.as_str()));
            }
            own.into_iter().for_each(|path| nodes.add(path, revision));
            above.into_iter().for_each(|path| below.add(path, revision));
            let tops: BTreeSet<&NodePath> = change.unknown_subtrees().collect();
            tops.into_iter().for_each(|top| anywhere.add(top.as_str(), revision));
        }
        let mut own = Sum::default();
        self.nodes.iter().for_each(|(path, revision)| own.add(path.as_str(), *revision));
        let is_sorted = |revisions: &VecDeque<Revision>| {
            !revisions.is_empty() && revisions.iter().is_sorted_by(|one, other| one < other)
        };
        if !self.below.values().chain(self.anywhere.values()).all(is_sorted) {
            return Err("a list of the index of events is empty, or not in order");
        }
        if (own, Sum::of(&self.below), Sum::of(&self.anywhere)) != (nodes, below, anywhere) {
            return Err("the index of events does not match the history");
        }
        Ok(())
    }
}

/// Appends the revision to the list. False if the list has it.
fn append(lists: &mut Revisions, path: &NodePath, revision: Revision) -> bool {
    visit(1);
    match lists.get_mut(path) {
        Some(revisions) if revisions.back() == Some(&revision) => return false,
        Some(revisions) => revisions.push_back(revision),
        None => drop(lists.insert(path.clone(), VecDeque::from([revision]))),
    }
    true
}

/// Removes the revision if it is the first of the list. False if it is not.
fn remove_first(lists: &mut Revisions, path: &NodePath, revision: Revision) -> bool {
    visit(1);
    let Some(revisions) = lists.get_mut(path).filter(|revisions| revisions.front() == Some(&revision)) else {
        return false;
    };
    revisions.pop_front();
    if revisions.is_empty() {
        lists.remove(path);
    }
    true
}

/// The first revision of the list after this one.
fn next(lists: &Revisions, path: &NodePath, after: Revision) -> Option<Revision> {
    let revisions = lists.get(path)?;
    revisions.get(revisions.partition_point(|revision| *revision <= after)).copied()
}

/// The texts of the paths above this one.
fn texts_above(path: &str) -> impl Iterator<Item = &str> {
    let inner = path.match_indices('/').skip(1).map(|(at, _)| &path[..at]);
    inner.chain(Some("/").filter(|root| *root != path))
}

/// A count and a sum of hashes, to compare sets of entries in any order. Comparing paths is slow,
/// and simulations run this check after every entry.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    count: usize,
    hashes: u64,
}

impl Sum {
    fn of(lists: &Revisions) -> Self {
        let mut sum = Self::default();
        for (path, revisions) in lists {
            revisions.iter().for_each(|revision| sum.add(path.as_str(), *revision));
        }
        sum
    }

    fn add(&mut self, path: &str, revision: Revision) {
        self.count += 1;
        self.hashes = self.hashes.wrapping_add(FixedState::default().hash_one((path, revision)));
    }
}

impl StoredChange {
    /// The nodes of the events. Without stored events, the nodes that it names.
    fn event_paths(&self) -> impl Iterator<Item = &NodePath> {
        let stored = self.events.iter().flat_map(|events| events.all()).map(|event| &event.path);
        stored.chain(self.unstored_sets().map(ObjectSet::path))
    }

    /// The subtrees in which the change may have had events that are not stored.
    fn unknown_subtrees(&self) -> impl Iterator<Item = &NodePath> {
        self.unstored_sets().filter_map(|set| match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => Some(top),
        })
    }

    fn unstored_sets(&self) -> impl Iterator<Item = &ObjectSet> {
        self.sets.iter().filter(|_| self.events.is_none())
    }
}
