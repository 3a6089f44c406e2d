//! The set of nodes that are attached to one lease.

use std::collections::BTreeSet;

use crate::path::NodePath;

/// The nodes of one lease. There may be a million leases with one node each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Nodes {
    One(NodePath),
    /// At least two.
    #[expect(clippy::box_collection, reason = "an entry is to be as small as that of a lease with one node")]
    Many(Box<BTreeSet<NodePath>>),
}

impl Nodes {
    pub(super) fn insert(&mut self, path: &NodePath) {
        match self {
            Self::One(only) if only == path => {}
            Self::One(only) => *self = Self::Many(Box::new(BTreeSet::from([only.clone(), path.clone()]))),
            Self::Many(all) => {
                all.insert(path.clone());
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(all) => all.len(),
        }
    }

    /// The nodes from `path` on, in order.
    pub(super) fn from(&self, path: NodePath) -> impl Iterator<Item = &NodePath> + use<'_> {
        let (only, many) = match self {
            Self::One(only) => (Some(only).filter(|only| **only >= path), None),
            Self::Many(all) => (None, Some(all.range(path..))),
        };
        only.into_iter().chain(many.into_iter().flatten())
    }

    /// Removes a node. Returns false if it was the last.
    pub(super) fn remove(&mut self, path: &NodePath) -> bool {
        match self {
            Self::One(only) => only != path,
            Self::Many(all) => {
                all.remove(path);
                self.settle();
                true
            }
        }
    }

    /// If there are more than `most` nodes, removes and returns the first `most`.
    pub(super) fn split(&mut self, most: usize) -> Option<Vec<NodePath>> {
        let Self::Many(all) = self else { return None };
        if all.len() <= most {
            return None;
        }
        let first = std::iter::from_fn(|| all.pop_first()).take(most).collect();
        self.settle();
        Some(first)
    }

    /// Turns a set of one node into [`Self::One`].
    fn settle(&mut self) {
        if let Self::Many(all) = self
            && all.len() == 1
            && let Some(only) = all.pop_first()
        {
            *self = Self::One(only);
        }
    }

    pub(super) fn into_paths(self) -> Vec<NodePath> {
        match self {
            Self::One(only) => vec![only],
            Self::Many(all) => all.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("a valid path")
    }

    #[test]
    fn set_reduced_to_one_node_equals_a_new_set_of_one() {
        let mut nodes = Nodes::One(path("/a"));
        nodes.insert(&path("/a"));
        assert_eq!(nodes, Nodes::One(path("/a")));
        for name in ["/c", "/b", "/c"] {
            nodes.insert(&path(name));
        }
        assert_eq!(nodes.from(path("/b")).cloned().collect::<Vec<_>>(), [path("/b"), path("/c")]);
        assert_eq!(nodes.split(3), None, "the set has fewer nodes");
        assert_eq!(nodes.split(1), Some(vec![path("/a")]));
        assert!(nodes.remove(&path("/b")));
        assert_eq!(nodes, Nodes::One(path("/c")));
        assert!(nodes.remove(&path("/b")), "the node was not in the set");
        assert_eq!(nodes.from(path("/d")).count(), 0);
        assert!(!nodes.remove(&path("/c")), "the set is empty");
    }
}
