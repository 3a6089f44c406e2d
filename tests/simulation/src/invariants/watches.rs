//! *Watchers hear every change* (the six properties of etcd's robustness tests,
//! `tests/robustness/validate/watch.go`): in order, each once, whole, none omitted. A watch resumes
//! after any reported change, and after any progress mark.
//!
//! The check has two sources: the events that the true state keeps, and its nodes. A tree built
//! from the events alone must equal the state's tree.

use std::{collections::BTreeMap, sync::Arc};

use leasehold_protocol::{
    change::{Change, Changes, Event, EventKind, WatchScope},
    id::Revision,
    message::ListPage,
    object::Data,
    path::NodePath,
    state::State,
};

/// All nodes, with their data.
pub(crate) type Tree = BTreeMap<NodePath, Data>;

/// The interval, in changes, between stored trees. The others are computed from these.
const TREE_INTERVAL: u64 = 64;

/// All changes since the beginning.
#[derive(Debug)]
pub(crate) struct Happened {
    /// The changes, from revision 1 on.
    changes: Vec<Change>,
    tree: Tree,
    trees: BTreeMap<u64, Tree>,
}

/// Applies an event to a tree.
pub(crate) fn happen(tree: &mut Tree, event: &Event) {
    match &event.kind {
        EventKind::Put(data) => tree.insert(event.path.clone(), data.clone()),
        EventKind::Delete => tree.remove(&event.path),
    };
}

fn tree_of(state: &State) -> Tree {
    let nodes = state.nodes_from(&NodePath::root());
    nodes.map(|(path, node)| (path.clone(), Data { value: node.value.clone(), stat: node.stat() })).collect()
}

impl Happened {
    pub(crate) fn new(truth: &State) -> Self {
        let tree = tree_of(truth);
        Self { changes: Vec::new(), trees: BTreeMap::from([(0, tree.clone())]), tree }
    }

    /// The revision of the last change.
    pub(crate) fn revision(&self) -> Revision {
        Revision(self.changes.len() as u64)
    }

    /// An entry was applied. Checks that its events lead to the tree of the state.
    pub(crate) fn learn(&mut self, truth: &State) -> Result<(), String> {
        let from = self.revision();
        let changes = truth.events_after(from).ok_or("one entry made more changes than the history keeps")?;
        for (revision, events) in changes {
            let events = events.ok_or("a change of this size cannot happen here")?;
            events.iter().for_each(|event| happen(&mut self.tree, event));
            self.changes.push(Change { revision, events: events.into() });
            if revision.0.is_multiple_of(TREE_INTERVAL) {
                self.trees.insert(revision.0, self.tree.clone());
            }
        }
        if self.revision() != truth.revision() {
            return Err(format!("the history ends at revision {}: expected {}", self.revision(), truth.revision()));
        }
        if from != truth.revision() && self.tree != tree_of(truth) {
            return Err(format!(
                "the events up to revision {} do not lead to the nodes of the state",
                truth.revision()
            ));
        }
        Ok(())
    }

    /// The tree at a revision.
    fn at(&self, revision: Revision) -> Tree {
        let revision = revision.min(self.revision());
        let (from, mut tree) =
            self.trees.range(..=revision.0).next_back().map(|(from, tree)| (*from, tree.clone())).unwrap_or_default();
        for change in &self.changes[place(from)..place(revision.0)] {
            change.events.iter().for_each(|event| happen(&mut tree, event));
        }
        tree
    }

    /// Checks that a watcher that knew everything up to `after` got exactly the changes that it
    /// should.
    pub(crate) fn check_reported(
        &self,
        watched: &WatchScope,
        after: Revision,
        reported: &Changes,
    ) -> Result<(), String> {
        if reported.through > self.revision().max(after) || reported.through < after {
            let last = self.revision();
            return Err(format!(
                "changes are reported through {} after {after}: expected from {after} to {last}",
                reported.through
            ));
        }
        let of_interest = |change: &Change| {
            let events: Arc<[Event]> =
                change.events.iter().filter(|event| watched.includes(&event.path)).cloned().collect();
            (!events.is_empty()).then_some(Change { revision: change.revision, events })
        };
        let (from, to) = (place(after.0).min(self.changes.len()), place(reported.through.0).min(self.changes.len()));
        let expected: Vec<Change> = self.changes[from..to].iter().filter_map(of_interest).collect();
        if reported.changes != expected {
            return Err(format!("{watched:?} after {after} reported {reported:?}: expected {expected:?}"));
        }
        Ok(())
    }

    /// Checks that a page of a list equals the tree at its revision, which is not older than the
    /// writes acknowledged before the request.
    pub(crate) fn check_page(
        &self,
        (top, after): (&NodePath, Option<&NodePath>),
        acknowledged: Revision,
        page: &ListPage,
    ) -> Result<(), String> {
        if page.revision < acknowledged || page.revision > self.revision() {
            return Err(format!("a list at {}: expected {acknowledged} to {}", page.revision, self.revision()));
        }
        let mut expected = self.at(page.revision);
        expected.retain(|path, _| {
            let is_after = after.is_none_or(|after| path > after);
            top.contains(path) && is_after && page.through.as_ref().is_none_or(|through| path <= through)
        });
        if !page.nodes.iter().map(|(path, data)| (path, data)).eq(&expected) {
            return Err(format!("a list of {top} after {after:?} is {page:?}: expected {expected:?}"));
        }
        Ok(())
    }

    /// Checks that a mirrored subtree equals the tree at the revision that it claims.
    pub(crate) fn check_mirror(&self, top: &NodePath, mirrored: &Tree, at: Revision) -> Result<(), String> {
        let mut expected = self.at(at);
        expected.retain(|path, _| top.contains(path));
        if *mirrored != expected {
            return Err(format!("a mirror of {top} at {at} is {mirrored:?}: expected {expected:?}"));
        }
        Ok(())
    }
}

fn place(revision: u64) -> usize {
    usize::try_from(revision).unwrap_or(usize::MAX)
}
