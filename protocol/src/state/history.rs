//! The history: the latest changes, for returning clients and for watchers.
//!
//! The history stores two parts of each change: the sets of changed objects, which decide the
//! revival of copies, and the [events](crate::change), which watchers receive. Compaction depends
//! on the changes alone, so all replicas compact the same changes.
//!
//! If the events of a change weigh more than [`State::CHANGE_BYTES_MAX`], the history stores the
//! change without its events. These events would not fit into one answer, and would displace the
//! rest of the history. A client that watches a node of such a change must start over from a fresh
//! read.

#[cfg(test)]
use std::collections::BTreeSet;
use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use self::{event_index::EventIndex, events::ChangeEvents, latest::LatestChanges};
use super::{RowKey, State, VolumeRecord, touched::Touched};
use crate::{
    change::{Change, ChangeReason, Changes, Event, EventKind, WatchScope},
    id::Revision,
    object::{Data, ObjectSet},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    work::CountVisits,
};

/// One change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct StoredChange {
    /// The changed objects.
    pub(super) sets: Vec<ObjectSet>,
    /// The events. `None` if they are too heavy for an answer.
    events: Option<ChangeEvents>,
}

impl StoredChange {
    fn weight(&self) -> usize {
        let sets: usize = self.sets.iter().map(|set| set.path().as_str().len()).sum();
        CHANGE_BYTES + sets + self.events.as_ref().map_or(0, ChangeEvents::weight)
    }
}

/// The weight of a change without sets and events, in bytes.
const CHANGE_BYTES: usize = 64;

/// The latest changes, oldest first. Revisions have no gaps, so the index gives the revision: the
/// first change follows [`Meta::compacted_through`](super::Meta).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct History {
    changes: VecDeque<StoredChange>,
    /// The index that answers returning sessions. Derived from the changes.
    latest: LatestChanges,
    /// The index that answers watches. Derived from the changes.
    index: EventIndex,
    /// The weight of all changes together, in bytes. Derived from them.
    weight: usize,
    /// The events of the change in progress. Empty between commands.
    pending_events: Vec<Event>,
}

impl History {
    pub(super) fn of(changes: impl IntoIterator<Item = StoredChange>) -> Self {
        let changes: VecDeque<StoredChange> = changes.into_iter().collect();
        let weight = changes.iter().map(StoredChange::weight).sum();
        Self { changes, weight, ..Self::default() }
    }

    pub(super) fn changes(&self) -> impl ExactSizeIterator<Item = &StoredChange> {
        self.changes.iter()
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 4] {
        let ([sets, by_volume], [nodes, above]) = (self.latest.sizes(), self.index.sizes());
        [sets, by_volume, nodes, above]
    }

    /// Checks the history by itself. Its first change follows `start`.
    pub(super) fn check(&self, start: Revision) -> Result<(), String> {
        let changes = || (start.0 + 1..).map(Revision).zip(&self.changes);
        self.latest
            .check(changes().flat_map(|(revision, change)| change.sets.iter().map(move |set| (revision, set))))?;
        self.index.check(changes())?;
        let weight: usize = self.changes.iter().map(StoredChange::weight).sum();
        if self.weight != weight || !self.pending_events.is_empty() {
            return Err(format!(
                "the history weighs {} and {} events are left over: expected {weight} and none",
                self.weight,
                self.pending_events.len()
            ));
        }
        if weight > State::HISTORY_BYTES_MAX && self.changes.len() > 1 {
            return Err(format!("the history weighs {weight}: expected at most {}", State::HISTORY_BYTES_MAX));
        }
        Ok(())
    }
}

/// The result of a scan of the history for a watcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HistoryScan {
    /// The watched changes.
    Found {
        /// The changes, and how far the scan went.
        found: Changes,
        /// Their weight, in bytes.
        weight: usize,
    },
    /// A needed change is compacted: it is not stored, or without its events. A watch can begin
    /// after this revision, but not earlier.
    Compacted(Revision),
}

/// The bounds of one scan of the history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScanBounds {
    /// The weight of the found changes, in bytes. The first one may be heavier.
    pub(crate) bytes: usize,
    /// The number of changes and events to find. The first change may have more.
    pub(crate) events: usize,
}

impl State {
    /// The sets that changed after `revision` in the volume as it was at `revision`, each once. The
    /// cost is proportional to the number of these sets. They may reach beyond the volume, or be in
    /// a part that the volume no longer has.
    ///
    /// `None` if a change after `revision` is compacted, or `revision` has not come yet.
    pub fn changed_in_volume(&self, volume: &NodePath, revision: Revision) -> Option<impl Iterator<Item = &ObjectSet>> {
        let is_in_history = (self.meta.compacted_through..=self.meta.revision).contains(&revision);
        is_in_history.then(|| self.history.latest.after(revision, volume))
    }

    /// Like `changed_in_volume`, for any subtree with its inner volumes. It walks the history. The
    /// sets are in order.
    #[cfg(test)]
    pub(crate) fn changed_since(&self, revision: Revision, volume: &NodePath) -> Option<Vec<ObjectSet>> {
        if revision > self.meta.revision {
            return None;
        }
        let subtree = ObjectSet::Subtree(volume.clone());
        let sets = self.entries_after(revision)?.flat_map(|(_, change)| &change.sets);
        let changed: BTreeSet<&ObjectSet> = sets.filter(|set| set.overlaps(&subtree)).collect();
        Some(changed.into_iter().cloned().collect())
    }

    /// The last compacted revision: the history has all changes after it.
    pub fn compacted_through(&self) -> Revision {
        self.meta.compacted_through
    }

    /// The changes after a revision, in order. `None` if one of them is compacted.
    fn entries_after(&self, revision: Revision) -> Option<impl Iterator<Item = (Revision, &StoredChange)>> {
        let skipped = usize::try_from(revision.0.checked_sub(self.meta.compacted_through.0)?).ok()?;
        let changes = self.history.changes.range(skipped.min(self.history.changes.len())..);
        // The history has a change for each revision in this range, and no more.
        let revisions = revision.0.saturating_add(1)..;
        Some(changes.zip(revisions).counted().map(|(change, revision)| (Revision(revision), change)))
    }

    /// The events of each change after a revision, in order. A change without stored events has
    /// `None`. The result is `None` if a change after the revision is compacted.
    pub fn events_after(&self, revision: Revision) -> Option<impl Iterator<Item = (Revision, Option<&[Event]>)>> {
        let changes = self.entries_after(revision)?;
        Some(changes.map(|(revision, change)| (revision, change.events.as_ref().map(ChangeEvents::all))))
    }

    /// The sets that a change changed. Empty if it is compacted.
    pub(crate) fn sets_changed_by(&self, revision: Revision) -> &[ObjectSet] {
        self.change(revision).map_or(&[], |change| &change.sets)
    }

    /// The first change after a revision with events in the scope. A change without stored events
    /// counts if it may have had some. `None` if there is none yet. The cost does not depend on the
    /// number of changes.
    ///
    /// # Errors
    ///
    /// A change after the revision is compacted. A watch can start after the returned revision, but
    /// not earlier.
    pub(crate) fn next_watched(&self, after: Revision, watched: &WatchScope) -> Result<Option<Revision>, Revision> {
        if after < self.meta.compacted_through && !self.planted.has(Bug::CompactionUnnoticed) {
            return Err(self.meta.compacted_through);
        }
        Ok(self.history.index.first_after(after, watched))
    }

    /// The watched events after a revision. It stops at the bounds, but finds at least one change,
    /// if there is one. It examines no change without watched events.
    pub(crate) fn scan_after(&self, after: Revision, watched: &WatchScope, bounds: ScanBounds) -> HistoryScan {
        let (mut examined, mut weight) = (0, 0);
        let mut found = Changes { changes: Vec::new(), through: after };
        loop {
            let revision = match self.next_watched(found.through, watched) {
                Ok(Some(revision)) => revision,
                Ok(None) => {
                    found.through = after.max(self.meta.revision);
                    return HistoryScan::Found { found, weight };
                }
                Err(earliest_after) => return HistoryScan::Compacted(earliest_after),
            };
            let Some(events) = self.change(revision).and_then(|change| change.events.as_ref()) else {
                // If there are earlier changes, the caller gets them first.
                if found.changes.is_empty() {
                    return HistoryScan::Compacted(revision);
                }
                found.through = Revision(revision.0 - 1);
                return HistoryScan::Found { found, weight };
            };
            let (events, own) = events.within(watched);
            examined += 1 + events.len();
            let bytes = weight + CHANGE_BYTES + own;
            let is_beyond = examined > bounds.events;
            if !found.changes.is_empty() && (is_beyond || bytes > bounds.bytes) {
                if is_beyond {
                    reached(Bound::WatchScan);
                }
                // Nothing is watched between the last change and this one.
                found.through = Revision(revision.0 - 1);
                return HistoryScan::Found { found, weight };
            }
            weight = bytes;
            found.changes.push(Change { revision, events });
            found.through = revision;
        }
    }

    /// Adds an event to the change in progress.
    pub(super) fn note_event(&mut self, path: NodePath, kind: EventKind, reason: ChangeReason) {
        self.history.pending_events.push(Event { path, kind, reason });
    }

    /// Adds the event of a node that was created or written.
    pub(super) fn note_put(&mut self, path: &NodePath) {
        if let Some(Data { value, stat }) = self.data(path) {
            self.note_event(path.clone(), EventKind::Put(Data { value, stat }), ChangeReason::Request);
        }
    }

    /// Stores the change that was just made. Compacts the oldest changes beyond the bounds.
    pub(super) fn note_change(&mut self, sets: Vec<ObjectSet>, touched: &mut Touched) {
        let events = std::mem::take(&mut self.history.pending_events);
        let events = Some(ChangeEvents::new(events.into()));
        let events = events.filter(|events| events.weight() <= Self::CHANGE_BYTES_MAX);
        if events.is_none() {
            reached(Bound::ChangeBytes);
        }
        let change = StoredChange { sets, events };
        self.history.weight += change.weight();
        for set in &change.sets {
            self.history.latest.note(
                set,
                self.meta.revision,
                volume_of(&self.volumes, set.path()),
                outer_volume(&self.volumes, set),
            );
        }
        self.history.index.note(self.meta.revision, &change);
        self.history.changes.push_back(change);
        touched.insert(RowKey::Change(self.meta.revision));
        while self.is_history_too_long()
            && let Some(compacted) = self.history.changes.pop_front()
        {
            self.history.weight -= compacted.weight();
            self.meta.compacted_through = self.meta.compacted_through.next();
            for set in &compacted.sets {
                self.history.latest.forget(set, self.meta.compacted_through);
            }
            self.history.index.forget(self.meta.compacted_through, &compacted);
            touched.insert(RowKey::Change(self.meta.compacted_through));
        }
    }

    /// Builds the indexes of a history that was read from rows.
    pub(super) fn index_history(&mut self) {
        let History { changes, latest, index, .. } = &mut self.history;
        for (revision, change) in (self.meta.compacted_through.0.saturating_add(1)..).zip(changes.iter()) {
            index.note(Revision(revision), change);
            for set in &change.sets {
                let volume = volume_of(&self.volumes, set.path());
                latest.note(set, Revision(revision), volume, outer_volume(&self.volumes, set));
            }
        }
    }

    /// Whether the history exceeds a bound. The weight alone never removes the last change.
    fn is_history_too_long(&self) -> bool {
        let count = self.history.changes.len();
        let is_long = count as u64 > self.meta.history_max;
        let is_heavy = count > 1 && self.history.weight > Self::HISTORY_BYTES_MAX;
        if is_long {
            reached(Bound::History);
        } else if is_heavy {
            reached(Bound::HistoryBytes);
        }
        is_long || is_heavy
    }

    /// The change with this revision, unless it is compacted.
    pub(super) fn change(&self, revision: Revision) -> Option<&StoredChange> {
        let index = revision.0.checked_sub(self.meta.compacted_through.0)?.checked_sub(1)?;
        self.history.changes.get(usize::try_from(index).ok()?)
    }
}

/// If the set is the subtree of a volume, the volume around it.
fn outer_volume<'a>(volumes: &'a BTreeMap<NodePath, VolumeRecord>, set: &ObjectSet) -> Option<&'a NodePath> {
    match set {
        ObjectSet::One(_) => None,
        ObjectSet::Subtree(top) => {
            let is_volume = volumes.contains_key(top);
            top.parent().filter(|_| is_volume).map(|above| volume_of(volumes, &above))
        }
    }
}

/// The top of the path's volume.
fn volume_of<'a>(volumes: &'a BTreeMap<NodePath, VolumeRecord>, path: &NodePath) -> &'a NodePath {
    super::volumes::volume_of(volumes, path).0
}

mod event_index;
mod events;
mod latest;
#[cfg(test)]
mod tests;
