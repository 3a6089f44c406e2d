//! Paths, and whether any of them is in a subtree.

use std::collections::BTreeMap;

use crate::{path::NodePath, work::visit};

/// A set of paths that counts how often each was added. Whether a path is at or below a node takes
/// two look-ups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct PathCounts {
    counts: BTreeMap<NodePath, usize>,
}

impl PathCounts {
    pub(super) fn add(&mut self, path: &NodePath) {
        *self.counts.entry(path.clone()).or_default() += 1;
    }

    /// Removes a path that was added before.
    pub(super) fn remove(&mut self, path: &NodePath) {
        if let Some(count) = self.counts.get_mut(path) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(path);
            }
        }
    }

    /// Whether any of the paths is this node or below it.
    pub(super) fn any_within(&self, top: &NodePath) -> bool {
        if self.counts.is_empty() {
            return false;
        }
        visit(2);
        let below = self.counts.range(top.bound_below()..).next();
        self.counts.contains_key(top) || below.is_some_and(|(path, _)| top.contains(path))
    }

    /// Removes all paths, and returns them.
    pub(super) fn take(&mut self) -> Vec<NodePath> {
        std::mem::take(&mut self.counts).into_keys().collect()
    }
}

impl<'a> FromIterator<&'a NodePath> for PathCounts {
    fn from_iter<I: IntoIterator<Item = &'a NodePath>>(paths: I) -> Self {
        let mut counts = Self::default();
        paths.into_iter().for_each(|path| counts.add(path));
        counts
    }
}
