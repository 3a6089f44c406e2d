//! The queues of objects and subtrees: the pending writes of each, in their order (S3).
//!
//! A write *blocks* later ones until it is proposed. If it was found uncovered, it blocks them
//! until it ends. In each of its queues, a write waits only for the last blocking write ahead,
//! which waits for the writes ahead of itself. So with thousands of writes of one object, each
//! costs no more than a single write. Only flushes *pass*: they wait for no write (S10).

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    object::{Object, ObjectKind, ObjectSet},
    path::NodePath,
    work::{CountVisits, visit},
};

use super::{PendingWrite, PendingWriteId};

/// The writes of one object, or of one subtree as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WriteQueue {
    all: BTreeSet<PendingWriteId>,
    /// The blocking writes, each with whether it passes.
    blocking: BTreeMap<PendingWriteId, bool>,
}

impl WriteQueue {
    /// Walks back from this write: each blocking flush, up to and including the first blocking
    /// write that is no flush. The flushes are needed, because they do not wait for that write.
    fn last_before(&self, write_id: PendingWriteId) -> impl Iterator<Item = PendingWriteId> {
        up_to_one_that_waits(self.blocking.range(..write_id).rev())
    }

    /// The first blocking write after this one that does not pass.
    fn first_after(&self, write_id: PendingWriteId) -> Option<PendingWriteId> {
        let mut after = self.blocking.range(write_id + 1..).counted();
        after.find(|(_, passes)| !**passes).map(|(write_id, _)| *write_id)
    }
}

/// The writes up to and including the first that does not pass. It examines one more write.
fn up_to_one_that_waits<'a>(
    queue: impl Iterator<Item = (&'a PendingWriteId, &'a bool)>,
) -> impl Iterator<Item = PendingWriteId> {
    let mut is_found = false;
    let up_to = queue.counted().take_while(move |(_, passes)| {
        let is_included = !is_found;
        is_found |= !**passes;
        is_included
    });
    up_to.map(|(write_id, _)| *write_id)
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WriteQueues {
    /// The queues of single objects.
    objects: BTreeMap<Object, WriteQueue>,
    /// The queues of subtrees that are written as a whole.
    subtrees: BTreeMap<NodePath, WriteQueue>,
    /// The lists from which pending writes remove nodes of leases, with the number of these writes.
    emptied: BTreeMap<NodePath, usize>,
}

impl WriteQueues {
    /// Adds a write to the queues of its footprint. `empties`: whether it removes nodes of leases.
    pub(super) fn enter(&mut self, write_id: PendingWriteId, footprint: &[ObjectSet], passes: bool, empties: bool) {
        for set in footprint {
            let queue = match set {
                ObjectSet::One(object) => self.objects.entry(object.clone()).or_default(),
                ObjectSet::Subtree(top) => self.subtrees.entry(top.clone()).or_default(),
            };
            queue.all.insert(write_id);
            queue.blocking.insert(write_id, passes);
        }
        for list in footprint.iter().filter(|_| empties).filter_map(list_of) {
            *self.emptied.entry(list.clone()).or_default() += 1;
        }
    }

    /// Marks a write as proposed: no other write waits for it from now on, unless its footprint
    /// changes. (Writes that attach nodes may wait for a revocation until it ends.)
    pub(super) fn proposed(&mut self, write_id: PendingWriteId, footprint: &[ObjectSet]) {
        for set in footprint {
            let queue = match set {
                ObjectSet::One(object) => self.objects.get_mut(object),
                ObjectSet::Subtree(top) => self.subtrees.get_mut(top),
            };
            if let Some(queue) = queue {
                queue.blocking.remove(&write_id);
            }
        }
    }

    pub(super) fn leave(&mut self, write_id: PendingWriteId, footprint: &[ObjectSet], empties: bool) {
        for set in footprint {
            match set {
                ObjectSet::One(object) => leave(&mut self.objects, object, write_id),
                ObjectSet::Subtree(top) => leave(&mut self.subtrees, top, write_id),
            }
        }
        for list in footprint.iter().filter(|_| empties).filter_map(list_of) {
            if let Some(count) = self.emptied.get_mut(list) {
                *count -= 1;
                if *count == 0 {
                    self.emptied.remove(list);
                }
            }
        }
    }

    /// Whether a write of the object is pending (S3).
    pub(super) fn contains(&self, object: &Object) -> bool {
        self.objects.contains_key(object) || self.tops_above(&object.path).next().is_some()
    }

    /// The first pending write of the object, proposed or not.
    pub(super) fn first_of(&self, object: &Object) -> Option<PendingWriteId> {
        let queues = self.objects.get(object).into_iter().chain(self.tops_above(&object.path).map(|(_, queue)| queue));
        queues.filter_map(|queue| queue.all.first().copied()).min()
    }

    /// The objects and subtrees in footprints of pending writes that overlap `within`. Also, for
    /// each list in `within` from which a pending write removes nodes of leases, the subtree below
    /// that list.
    pub(super) fn within<'a>(&'a self, within: &'a ObjectSet) -> impl Iterator<Item = ObjectSet> + 'a {
        let objects = self.objects_in(within).map(|(object, _)| ObjectSet::One(object.clone()));
        let above = self.tops_above(within.path()).map(|(top, _)| top);
        let below = self.tops_below(within.path()).map(|(top, _)| top);
        let (first, last) = (within.path().bound_below(), within.path().bound_after());
        let own = self.emptied.get_key_value(within.path());
        let emptied = own.into_iter().chain(self.emptied.range(first..last)).map(|(list, _)| list);
        objects.chain(above.chain(below).chain(emptied).cloned().map(ObjectSet::Subtree)).counted()
    }

    /// The first writes of the node's objects, at most `most` of each queue.
    pub(super) fn about(&self, path: &NodePath, most: usize) -> impl Iterator<Item = PendingWriteId> {
        let own = [Object::data(path.clone()), Object::children(path.clone())];
        let own = own.into_iter().filter_map(|object| self.objects.get(&object));
        own.chain(self.tops_above(path).map(|(_, queue)| queue))
            .flat_map(move |queue| queue.all.iter().copied().take(most))
    }

    /// The nearest earlier blocking writes that share an object with these sets. All other such
    /// writes wait behind these.
    pub(super) fn ahead(
        &self,
        footprint: &[ObjectSet],
        write_id: PendingWriteId,
        pending: &BTreeMap<PendingWriteId, PendingWrite>,
    ) -> BTreeSet<PendingWriteId> {
        let mut ahead = BTreeSet::new();
        for set in footprint {
            self.add_ahead(set, write_id, pending, &mut ahead);
        }
        ahead
    }

    fn add_ahead(
        &self,
        set: &ObjectSet,
        write_id: PendingWriteId,
        pending: &BTreeMap<PendingWriteId, PendingWrite>,
        ahead: &mut BTreeSet<PendingWriteId>,
    ) {
        let above: BTreeSet<PendingWriteId> =
            self.tops_above(set.path()).flat_map(|(_, queue)| queue.last_before(write_id)).collect();
        ahead.extend(&above);
        let ObjectSet::Subtree(_) = set else {
            return ahead.extend(self.objects_in(set).flat_map(|(_, queue)| queue.last_before(write_id)));
        };
        // Writes before `last` that share an object are ahead of `last` too. To find the later
        // ones, it walks the queues and the writes in parallel, until the shorter walk ends.
        let waits = |other: &&PendingWriteId| pending.get(other).is_some_and(|pending| !pending.passes());
        let last = above.iter().rev().find(waits).copied().unwrap_or_default();
        let mut queues = self.queues_in(set).counted();
        let mut writes = pending.range(last + 1..write_id).counted();
        let shares = |other: &PendingWrite| other.blocks_later() && other.footprint.iter().any(|own| own.overlaps(set));
        let (mut along_queues, mut along_writes) = (Vec::new(), Vec::new());
        loop {
            match queues.next() {
                Some(queue) => along_queues.extend(queue.last_before(write_id).filter(|other| *other > last)),
                None => return ahead.extend(along_queues),
            }
            match writes.next() {
                Some((other, pending)) => along_writes.extend(shares(pending).then_some(*other)),
                None => return ahead.extend(along_writes),
            }
        }
    }

    /// The nearest later blocking writes that share an object with these sets. All other such
    /// writes wait behind these.
    pub(super) fn behind(&self, footprint: &[ObjectSet], write_id: PendingWriteId) -> BTreeSet<PendingWriteId> {
        let above = footprint.iter().flat_map(|set| self.tops_above(set.path())).map(|(_, queue)| queue);
        let inside = footprint.iter().flat_map(|set| self.queues_in(set));
        above.chain(inside).counted().filter_map(|queue| queue.first_after(write_id)).collect()
    }

    /// The queues of the subtrees that contain the path.
    fn tops_above(&self, path: &NodePath) -> impl Iterator<Item = (&NodePath, &WriteQueue)> {
        let tops = (!self.subtrees.is_empty()).then(|| std::iter::once(path.clone()).chain(path.ancestors()));
        tops.into_iter().flatten().filter_map(|top| self.subtrees.get_key_value(&top))
    }

    /// The queues of the subtrees strictly below the path.
    fn tops_below(&self, path: &NodePath) -> impl Iterator<Item = (&NodePath, &WriteQueue)> {
        self.subtrees.range(path.bound_below()..path.bound_after())
    }

    /// The queues of the objects of a set, and of the subtrees strictly inside it.
    fn queues_in(&self, set: &ObjectSet) -> impl Iterator<Item = &WriteQueue> {
        let below = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => Some(self.tops_below(top)),
        };
        self.objects_in(set).map(|(_, queue)| queue).chain(below.into_iter().flatten().map(|(_, queue)| queue))
    }

    fn objects_in(&self, set: &ObjectSet) -> impl Iterator<Item = (&Object, &WriteQueue)> {
        let (own, below) = match set {
            ObjectSet::One(object) => (object.clone()..=object.clone(), None),
            ObjectSet::Subtree(top) => (
                Object::data(top.clone())..=Object { path: top.clone(), kind: ObjectKind::Children },
                Some(Object::data(top.bound_below())..Object::data(top.bound_after())),
            ),
        };
        self.objects.range(own).chain(below.map(|below| self.objects.range(below)).into_iter().flatten())
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        let all = |queues: &mut dyn Iterator<Item = &WriteQueue>| queues.map(|queue| queue.all.len()).sum();
        [all(&mut self.objects.values()), all(&mut self.subtrees.values()), self.emptied.len()]
    }

    /// Checks that the queues are those of the pending writes.
    pub(super) fn check(&self, pending: &BTreeMap<PendingWriteId, PendingWrite>) -> Result<(), String> {
        let mut expected = Self::default();
        for (write_id, pending) in pending {
            expected.enter(*write_id, &pending.footprint, pending.passes(), !pending.purged_leases().is_empty());
            if !pending.blocks_later() {
                expected.proposed(*write_id, &pending.footprint);
            }
        }
        if *self == expected {
            return Ok(());
        }
        Err("the queues do not match the pending writes".to_owned())
    }
}

fn leave<K: Ord>(queues: &mut BTreeMap<K, WriteQueue>, key: &K, write_id: PendingWriteId) {
    visit(1);
    if let Some(queue) = queues.get_mut(key) {
        queue.all.remove(&write_id);
        queue.blocking.remove(&write_id);
        if queue.all.is_empty() {
            queues.remove(key);
        }
    }
}

fn list_of(set: &ObjectSet) -> Option<&NodePath> {
    match set {
        ObjectSet::One(Object { path, kind: ObjectKind::Children }) => Some(path),
        ObjectSet::One(Object { kind: ObjectKind::Data, .. }) | ObjectSet::Subtree(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_before_a_write_ends_with_a_waiting_write() {
        let blocking = BTreeMap::from([(1, false), (2, false), (3, true), (4, true), (5, false), (6, true)]);
        let queue = WriteQueue { all: blocking.keys().copied().collect(), blocking };
        let before = |write_id| queue.last_before(write_id).collect::<Vec<_>>();
        assert_eq!((before(7), before(5)), (vec![6, 5], vec![4, 3, 2]));
        assert_eq!((before(2), before(1)), (vec![1], vec![]));
    }
}
