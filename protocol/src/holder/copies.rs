//! The rules' record of the cached copies, without their contents.
//!
//! It is a superset of the copies in the cache, which reports evictions later.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    ops::Bound,
};

use super::validity::CopyValidity;
use crate::{
    id::{Incarnation, Revision, Stamp, VolumeGeneration},
    object::{Object, ObjectKind, ObjectSet},
    path::NodePath,
    time::Instant,
    work::CountVisits,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CachedCopy {
    pub(super) validity: CopyValidity,
    /// The volume's generation at the grant. A copy of an older generation is not valid (S8).
    pub(super) generation: VolumeGeneration,
    /// The revision by which a read can validate the copy. `None` if the node does not exist.
    pub(super) modified: Option<Revision>,
}

impl CachedCopy {
    /// The copy as a request names it for validation.
    pub(super) fn named(&self) -> Option<(Revision, Stamp)> {
        Some((self.modified?, self.validity.stamp))
    }
}

/// The copies of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct NodeCopies {
    data: Option<CachedCopy>,
    children: Option<CachedCopy>,
}

impl NodeCopies {
    fn slot(&mut self, kind: ObjectKind) -> &mut Option<CachedCopy> {
        match kind {
            ObjectKind::Data => &mut self.data,
            ObjectKind::Children => &mut self.children,
        }
    }

    fn both(&self) -> impl Iterator<Item = (ObjectKind, &CachedCopy)> {
        let data = self.data.as_ref().map(|copy| (ObjectKind::Data, copy));
        let children = self.children.as_ref().map(|copy| (ObjectKind::Children, copy));
        data.into_iter().chain(children)
    }
}

/// All copies by path, so that those of a subtree are adjacent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CachedCopies {
    nodes: BTreeMap<NodePath, NodeCopies>,
    /// The same copies by volume, and then by their volume lease and the end of their object lease.
    by_volume: BTreeMap<NodePath, BTreeSet<(Incarnation, Instant, Object)>>,
}

/// Hashes each copy once.
impl Hash for CachedCopies {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nodes.hash(state);
    }
}

impl CachedCopies {
    pub(super) fn get(&self, object: &Object) -> Option<&CachedCopy> {
        let node = self.nodes.get(&object.path)?;
        match object.kind {
            ObjectKind::Data => node.data.as_ref(),
            ObjectKind::Children => node.children.as_ref(),
        }
    }

    /// Replaces any other copy of the object.
    pub(super) fn insert(&mut self, object: &Object, copy: CachedCopy) {
        self.remove(object);
        let CopyValidity { volume, incarnation, until, .. } = &copy.validity;
        self.by_volume.entry(volume.clone()).or_default().insert((*incarnation, *until, object.clone()));
        *self.nodes.entry(object.path.clone()).or_default().slot(object.kind) = Some(copy);
    }

    pub(super) fn remove(&mut self, object: &Object) {
        let Some(node) = self.nodes.get_mut(&object.path) else { return };
        let removed = node.slot(object.kind).take();
        if *node == NodeCopies::default() {
            self.nodes.remove(&object.path);
        }
        if let Some(CopyValidity { volume, incarnation, until, .. }) = removed.map(|copy| copy.validity)
            && let Some(copies) = self.by_volume.get_mut(&volume)
        {
            copies.remove(&(incarnation, until, object.clone()));
            if copies.is_empty() {
                self.by_volume.remove(&volume);
            }
        }
    }

    /// Removes the copies of a volume for which `fits` holds. Returns their objects in order.
    pub(super) fn remove_of(&mut self, volume: &NodePath, fits: impl Fn(&CachedCopy) -> bool) -> Vec<Object> {
        let objects = self.by_volume.get(volume).into_iter().flatten().map(|(_, _, object)| object).counted();
        let mut removed: Vec<Object> = objects.filter(|object| self.get(object).is_some_and(&fits)).cloned().collect();
        removed.sort_unstable();
        removed.iter().for_each(|object| self.remove(object));
        removed
    }

    /// The objects of the volume's copies that were granted under this volume lease or a later one,
    /// and whose object leases hold. In order.
    pub(super) fn leased_since(&self, volume: &NodePath, since: Incarnation, now: Instant) -> Vec<Object> {
        let copies = self.by_volume.get(volume).into_iter().flat_map(|copies| copies.range(first_of(since)..));
        let leased = copies.counted().filter(|(_, until, _)| now < *until);
        let mut objects: Vec<Object> = leased.map(|(_, _, object)| object.clone()).collect();
        objects.sort_unstable();
        objects
    }

    /// Whether there is such a copy. For each volume lease, the search examines only the copy whose
    /// object lease ends last.
    pub(super) fn has_leased_since(&self, volume: &NodePath, since: Incarnation, now: Instant) -> bool {
        let Some(copies) = self.by_volume.get(volume) else { return false };
        let last_of_each = std::iter::successors(copies.last(), |(incarnation, ..)| {
            copies.range(..first_of(*incarnation)).next_back()
        });
        last_of_each.counted().take_while(|(incarnation, ..)| *incarnation >= since).any(|(_, until, _)| now < *until)
    }

    /// Checks that the copies by volume are those by path.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut by_volume: BTreeMap<NodePath, BTreeSet<(Incarnation, Instant, Object)>> = BTreeMap::new();
        for (object, copy) in self.iter() {
            let CopyValidity { volume, incarnation, until, .. } = &copy.validity;
            by_volume.entry(volume.clone()).or_default().insert((*incarnation, *until, object));
        }
        if by_volume != self.by_volume {
            return Err(format!("the copies by volume are {:?}, expected {by_volume:?}", self.by_volume));
        }
        Ok(())
    }

    /// Removes the copies in a set for which `fits` holds. Returns their objects in order.
    pub(super) fn remove_where(&mut self, set: &ObjectSet, fits: impl Fn(&CachedCopy) -> bool) -> Vec<Object> {
        let removed: Vec<Object> = match set {
            ObjectSet::One(object) => {
                self.get(object).filter(|copy| fits(copy)).map(|_| object.clone()).into_iter().collect()
            }
            ObjectSet::Subtree(top) => {
                self.below(top).filter(|(_, copy)| fits(copy)).map(|(object, _)| object).collect()
            }
        };
        for object in &removed {
            self.remove(object);
        }
        removed
    }

    /// The copies of objects at and below a path.
    pub(super) fn below(&self, top: &NodePath) -> impl Iterator<Item = (Object, &CachedCopy)> {
        // The node itself is looked up alone, because other nodes can sort between it and the nodes
        // below it: `/a-b` sorts between `/a` and `/a/b`.
        let prefix = top.prefix_below();
        let own = if top.is_root() { None } else { self.nodes.get_key_value(top) };
        let rest = self.nodes.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        let rest = rest.take_while(move |(path, _)| path.as_str().starts_with(&prefix));
        own.into_iter()
            .chain(rest)
            .counted()
            .flat_map(|(path, node)| node.both().map(|(kind, copy)| (Object { path: path.clone(), kind }, copy)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Object, &CachedCopy)> {
        self.nodes
            .iter()
            .counted()
            .flat_map(|(path, node)| node.both().map(|(kind, copy)| (Object { path: path.clone(), kind }, copy)))
    }
}

/// Before all copies that were granted under this volume lease.
fn first_of(incarnation: Incarnation) -> (Incarnation, Instant, Object) {
    (incarnation, Instant::ZERO, Object::data(NodePath::root()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::{Incarnation, Stamp},
        time::Instant,
    };

    #[test]
    fn remove_where_of_subtree_spares_its_neighbours() {
        let copy = CachedCopy {
            validity: CopyValidity {
                stamp: Stamp::default(),
                volume: NodePath::root(),
                incarnation: Incarnation(1),
                until: Instant::ZERO,
            },
            generation: VolumeGeneration(0),
            modified: None,
        };
        let object = |text: &str| Object::data(NodePath::parse(text).expect("valid"));
        let mut copies = CachedCopies::default();
        for text in ["/", "/a", "/a-b", "/a/x", "/a/x/y", "/a0", "/b"] {
            copies.insert(&object(text), copy.clone());
        }
        let subtree = ObjectSet::Subtree(NodePath::parse("/a").expect("valid"));
        assert_eq!(copies.remove_where(&subtree, |_| true), [object("/a"), object("/a/x"), object("/a/x/y")]);
        let all = copies.remove_where(&ObjectSet::Subtree(NodePath::root()), |_| true);
        assert_eq!(all, [object("/"), object("/a-b"), object("/a0"), object("/b")]);
        assert_eq!(copies, CachedCopies::default());
    }
}
