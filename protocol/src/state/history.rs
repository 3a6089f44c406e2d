//! The last changes: what a client missed while it was away.

use std::collections::{BTreeSet, VecDeque};

use super::{RowKey, State};
use crate::{id::Revision, object::ObjectSet, path::Path};

/// What each of the last changes changed, oldest first. Revisions have no gaps, so that the place says which it was: the
/// first is the one after [`Meta::history_start`](super::Meta).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct History {
    pub(super) changes: VecDeque<Vec<ObjectSet>>,
}

impl State {
    /// What changed in the subtree at `volume` after `revision`: each set once, in order.
    ///
    /// None if that is not known: the history does not reach back that far, or the revision is still to come. A set
    /// may reach beyond the subtree; none of them lies wholly outside.
    pub fn changed_since(&self, revision: Revision, volume: &Path) -> Option<Vec<ObjectSet>> {
        if revision > self.meta.revision {
            return None;
        }
        let known = revision.0.checked_sub(self.meta.history_start.0)?;
        let subtree = ObjectSet::Subtree(volume.clone());
        let changes = self.history.changes.range(usize::try_from(known).ok()?..);
        let changed: BTreeSet<&ObjectSet> = changes
            .flatten()
            .filter(|set| set.overlaps(&subtree))
            .collect();
        Some(changed.into_iter().cloned().collect())
    }

    /// Notes what the change that has just been made changed, and forgets the oldest if there are too many.
    pub(super) fn note_change(&mut self, sets: Vec<ObjectSet>, touched: &mut BTreeSet<RowKey>) {
        self.history.changes.push_back(sets);
        touched.insert(RowKey::Change(self.meta.revision));
        if self.history.changes.len() > Self::HISTORY_MAX {
            self.history.changes.pop_front();
            self.meta.history_start = self.meta.history_start.next();
            touched.insert(RowKey::Change(self.meta.history_start));
        }
    }

    /// What the change of this revision changed, if that is still known.
    pub(super) fn change(&self, revision: Revision) -> Option<&Vec<ObjectSet>> {
        let place = revision
            .0
            .checked_sub(self.meta.history_start.0)?
            .checked_sub(1)?;
        self.history.changes.get(usize::try_from(place).ok()?)
    }
}
