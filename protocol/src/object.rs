//! Objects, sets of objects, and the contents of objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    id::{LeaseId, Revision, SessionId},
    path::NodePath,
    reached::{Bound, reached},
    work::visit,
};

/// The two cacheable objects of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ObjectKind {
    /// The value and the stat, or the fact that the node does not exist.
    Data,
    /// The sorted names of the children, or the fact that the node does not exist.
    Children,
}

/// One thing that a client can cache: the unit of object leases (Yin et al. 1999).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Object {
    /// The node.
    pub path: NodePath,
    /// The kind of the object.
    pub kind: ObjectKind,
}

impl Object {
    /// The data of a node.
    pub fn data(path: NodePath) -> Self {
        Self { path, kind: ObjectKind::Data }
    }

    /// The children of a node.
    pub fn children(path: NodePath) -> Self {
        Self { path, kind: ObjectKind::Children }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ObjectKind::Data => write!(f, "{}", self.path),
            ObjectKind::Children => write!(f, "{} (children)", self.path),
        }
    }
}

/// A set of objects that are recalled, changed or dropped together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ObjectSet {
    /// One object.
    One(Object),
    /// Both objects of each node at and below the path, also of nodes that do not exist. A recall
    /// of a subtree is a recall of each object in it (S8).
    Subtree(NodePath),
}

impl ObjectSet {
    /// Whether the object is in the set.
    pub fn contains(&self, object: &Object) -> bool {
        match self {
            Self::One(one) => one == object,
            Self::Subtree(top) => top.contains(&object.path),
        }
    }

    /// Whether all of `other` is in this set.
    pub fn includes(&self, other: &ObjectSet) -> bool {
        match (self, other) {
            (Self::One(one), Self::One(other)) => one == other,
            (Self::One(_), Self::Subtree(_)) => false,
            (Self::Subtree(top), Self::One(other)) => top.contains(&other.path),
            (Self::Subtree(top), Self::Subtree(other)) => top.contains(other),
        }
    }

    /// Whether the two sets have an object in common.
    pub fn overlaps(&self, other: &ObjectSet) -> bool {
        match (self, other) {
            (Self::Subtree(one), Self::Subtree(other)) => one.contains(other) || other.contains(one),
            (Self::One(_), _) => other.includes(self),
            (Self::Subtree(_), Self::One(_)) => self.includes(other),
        }
    }

    /// The object's node, or the top of the subtree.
    pub fn path(&self) -> &NodePath {
        match self {
            Self::One(object) => &object.path,
            Self::Subtree(top) => top,
        }
    }
}

/// If there are more sets than this, [`compact_sets`] merges them. So commands that name them stay
/// small.
pub const SETS_MAX: usize = 16;

/// Sets that include all of `sets`. They are unchanged if there are at most [`SETS_MAX`], or if all
/// are lists of children. Otherwise the function takes the topmost set that is not a list of
/// children. The subtree at the path of this set replaces all sets inside that subtree. After a put
/// that makes a long chain of nodes, the subtree and the list above it remain.
pub fn compact_sets(sets: Vec<ObjectSet>) -> Vec<ObjectSet> {
    if sets.len() <= SETS_MAX {
        return sets;
    }
    reached(Bound::Sets);
    let is_data = |set: &&ObjectSet| !matches!(set, ObjectSet::One(Object { kind: ObjectKind::Children, .. }));
    let Some(top) = sets.iter().filter(is_data).map(ObjectSet::path).min_by_key(|path| path.depth()).cloned() else {
        return sets;
    };
    let top = ObjectSet::Subtree(top);
    let mut compact: Vec<ObjectSet> = sets.into_iter().filter(|set| !top.includes(set)).collect();
    compact.push(top);
    compact
}

/// At most `most` sets, or one if `most` is 0, that include all of `sets`. While there are too
/// many, it replaces the sets at the deepest level by the subtrees of their parents. So sets that
/// share only a high ancestor are merged last.
pub fn merge_sets_to(sets: impl IntoIterator<Item = ObjectSet>, most: usize) -> BTreeSet<ObjectSet> {
    let mut by_depth: BTreeMap<usize, BTreeSet<ObjectSet>> = BTreeMap::new();
    for set in sets {
        by_depth.entry(set.path().depth()).or_default().insert(set);
    }
    let mut count: usize = by_depth.values().map(BTreeSet::len).sum();
    while count > most.max(1)
        && let Some((depth, deepest)) = by_depth.pop_last()
    {
        visit(deepest.len());
        count -= deepest.len();
        let tops: BTreeSet<NodePath> =
            deepest.iter().map(|set| set.path().parent().unwrap_or_else(NodePath::root)).collect();
        let above = by_depth.entry(depth.saturating_sub(1)).or_default();
        for top in tops {
            for object in [Object::data(top.clone()), Object::children(top.clone())] {
                count -= usize::from(above.remove(&ObjectSet::One(object)));
            }
            count += usize::from(above.insert(ObjectSet::Subtree(top)));
        }
    }
    by_depth.into_values().flatten().collect()
}

/// The value of a node: any bytes. Cheap to clone.
pub type Value = Bytes;

/// The metadata of a node's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stat {
    /// The change that made the node.
    pub create_revision: Revision,
    /// The last change of the value.
    pub modify_revision: Revision,
    /// How many times the value was written since the node was made; 1 for a new node.
    pub version: u64,
    /// The value's length in bytes.
    pub value_len: u64,
    /// The lease to which the node is attached. `None` for a node that is not attached.
    pub owner: Option<NodeOwner>,
}

/// The lease to which a node is attached. When the lease ends, the node is removed, unless a write
/// has detached it before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeOwner {
    /// A key lease (etcd).
    Lease(LeaseId),
    /// A session's volume lease. The node shows that the session is alive (as ZooKeeper's ephemeral
    /// nodes do).
    Session(SessionId),
}

/// The content of a node's data object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Data {
    /// The bytes.
    pub value: Value,
    /// The node's metadata, apart from its children.
    pub stat: Stat,
}

/// The content of a node's children object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Children {
    /// The names, sorted by their bytes.
    pub names: Vec<String>,
    /// The number of changes that added or removed a child since the node was made.
    pub version: u64,
    /// The last change of the list: a child was added or removed, or the node was made.
    pub modify_revision: Revision,
}

/// The content of an object. `None` means that the node does not exist. That is cacheable too.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Content {
    /// The content of a data object.
    Data(Option<Data>),
    /// The content of a children object.
    Children(Option<Children>),
}

impl Content {
    /// The revision of the last change, by which a client validates a copy. `None` if the node does
    /// not exist.
    pub fn modify_revision(&self) -> Option<Revision> {
        match self {
            Self::Data(data) => data.as_ref().map(|data| data.stat.modify_revision),
            Self::Children(children) => children.as_ref().map(|children| children.modify_revision),
        }
    }

    /// About how many bytes the content takes in memory: its weight in a cache.
    pub fn weight(&self) -> usize {
        match self {
            Self::Data(data) => data.as_ref().map_or(0, |data| data.value.len()),
            Self::Children(None) => 0,
            Self::Children(Some(children)) => children.names.iter().map(|name| Self::name_weight(name)).sum(),
        }
    }

    /// The weight of one name in a list of children.
    pub(crate) fn name_weight(name: &str) -> usize {
        name.len() + 24
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("a valid path")
    }

    #[test]
    fn sets_that_lie_deep_are_taken_together_first() {
        let set = |text: &str| ObjectSet::One(Object::data(NodePath::parse(text).expect("valid")));
        let tree = |text: &str| ObjectSet::Subtree(NodePath::parse(text).expect("valid"));
        let all: Vec<ObjectSet> = ["/a/1/x", "/a/1/y", "/a/2", "/b"].map(set).to_vec();
        let few = |most| merge_sets_to(all.clone(), most).into_iter().collect::<Vec<_>>();
        assert_eq!(few(4), all);
        assert_eq!(few(3), [set("/a/2"), set("/b"), tree("/a/1")]);
        assert_eq!(few(2), [set("/b"), tree("/a")]);
        assert_eq!((few(1), few(0)), (vec![tree("/")], vec![tree("/")]));
        for most in 0..5 {
            let few = few(most);
            assert!(all.iter().all(|set| few.iter().any(|one| one.includes(set))), "{few:?}");
        }
    }

    #[test]
    fn set_that_lies_in_a_subtree_does_not_count() {
        let path = |text: &str| NodePath::parse(text).expect("valid");
        let of = |number: usize| {
            let list = ObjectSet::One(Object::children(path(&format!("/{number}"))));
            (0..3).map(move |node| ObjectSet::One(Object::data(path(&format!("/{number}/{node}"))))).chain([list])
        };
        let few = merge_sets_to((0..9).flat_map(of), 16);
        let tops: BTreeSet<ObjectSet> = (0..9).map(|number| ObjectSet::Subtree(path(&format!("/{number}")))).collect();
        assert_eq!(few, tops);
    }

    #[test]
    fn sets_of_the_root_become_its_subtree() {
        let objects = [Object::data(NodePath::root()), Object::children(NodePath::root())].map(ObjectSet::One);
        let few = merge_sets_to(objects, 1);
        assert_eq!(few, [ObjectSet::Subtree(NodePath::root())].into());
    }

    #[test]
    fn many_sets_become_few_that_include_them() {
        let chain: Vec<NodePath> = (1..=SETS_MAX).map(|depth| path(&"/x".repeat(depth + 1))).collect();
        let node = |path: &NodePath| [Object::data(path.clone()), Object::children(path.clone())].map(ObjectSet::One);
        let mut sets: Vec<ObjectSet> = chain.iter().flat_map(node).collect();
        sets.push(ObjectSet::One(Object::children(path("/x"))));
        let few = compact_sets(sets.clone());
        assert_eq!(few, [ObjectSet::One(Object::children(path("/x"))), ObjectSet::Subtree(path("/x/x"))]);
        assert!(sets.iter().all(|set| few.iter().any(|one| one.includes(set))));
        assert_eq!(compact_sets(few.clone()), few);
    }

    #[test]
    fn sets_overlap_exactly_where_they_share_an_object() {
        let one = ObjectSet::One(Object::data(path("/a/b")));
        let other = ObjectSet::One(Object::children(path("/a/b")));
        let tree = ObjectSet::Subtree(path("/a"));
        assert!(!one.overlaps(&other));
        assert!(one.overlaps(&tree) && tree.overlaps(&one));
        assert!(tree.includes(&one) && !one.includes(&tree));
        assert!(tree.overlaps(&ObjectSet::Subtree(NodePath::root())));
        assert!(!tree.overlaps(&ObjectSet::Subtree(path("/ab"))));
    }
}
