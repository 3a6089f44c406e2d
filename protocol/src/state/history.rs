//! The last changes: what a client missed while it was away, and what watchers have yet to hear.
//!
//! Each change is remembered as the sets of objects that it changed, by which copies are revived,
//! and as its [events](crate::change), which watchers are told. What is forgotten follows from the
//! changes alone, so that all replicas forget the same.
//!
//! A change with very many events is remembered without them: it would not fit into one answer, and
//! would push everything else out of the history. Whoever watches what it changed starts over from
//! a fresh read.

#[cfg(test)]
use std::collections::BTreeSet;
use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use self::latest::LatestChanges;
use super::{RowKey, State, VolumeRecord, touched::Touched};
use crate::{
    change::{Change, ChangeReason, Changes, Event, EventKind, Watched},
    id::Revision,
    object::{Data, ObjectSet},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    work::CountVisits,
};

/// One change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct HistoryEntry {
    /// What it changed.
    pub(super) sets: Vec<ObjectSet>,
    /// What happened; none if that is too much to be told.
    events: Option<Vec<Event>>,
}

impl HistoryEntry {
    fn weight(&self) -> usize {
        let sets: usize = self.sets.iter().map(|set| set.path().as_str().len()).sum();
        CHANGE_BYTES + sets + weight_of(self.events.as_deref().unwrap_or_default())
    }

    /// Whether it changed something that is watched. Of one that is remembered without its events,
    /// whether it may have.
    fn concerns(&self, watched: &Watched) -> bool {
        match &self.events {
            Some(events) => events.iter().any(|event| watched.includes(&event.path)),
            None => self.sets.iter().any(|set| match set {
                ObjectSet::One(object) => watched.includes(&object.path),
                ObjectSet::Subtree(top) => top.contains(watched.path()) || watched.includes(top),
            }),
        }
    }
}

/// What a change weighs by itself.
const CHANGE_BYTES: usize = 64;

fn weight_of(events: &[Event]) -> usize {
    events.iter().map(Event::weight).sum()
}

/// What each of the last changes changed, oldest first. Revisions have no gaps, so that the place
/// says which it was: the first is the one after [`Meta::history_start`](super::Meta).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct History {
    changes: VecDeque<HistoryEntry>,
    /// By what a returning session is told.
    latest: LatestChanges,
    /// Of all changes together. Follows from them.
    weight: usize,
    /// Events of the change that is being made. Empty between commands.
    pending_events: Vec<Event>,
}

impl History {
    pub(super) fn of(changes: impl IntoIterator<Item = HistoryEntry>) -> Self {
        let changes: VecDeque<HistoryEntry> = changes.into_iter().collect();
        let weight = changes.iter().map(HistoryEntry::weight).sum();
        Self { changes, latest: LatestChanges::default(), weight, pending_events: Vec::new() }
    }

    pub(super) fn changes(&self) -> impl ExactSizeIterator<Item = &HistoryEntry> {
        self.changes.iter()
    }

    /// How many entries its tables have.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        self.latest.sizes()
    }

    /// Checks the history by itself. It begins after a revision.
    pub(super) fn check(&self, start: Revision) -> Result<(), String> {
        let changes = (start.0 + 1..).zip(&self.changes);
        let sets = changes.flat_map(|(revision, change)| change.sets.iter().map(move |set| (Revision(revision), set)));
        self.latest.check(sets)?;
        let weight: usize = self.changes.iter().map(HistoryEntry::weight).sum();
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

/// What became of a look at the history on behalf of a watcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HistoryScan {
    /// What happened, and how far was looked.
    Found(Changes),
    /// It is no longer known what happened: the least that can be watched after.
    Compacted(Revision),
}

/// What one look at the history may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScanBounds {
    /// The weight of what is found; what is found first may be heavier.
    pub(crate) bytes: usize,
    /// The changes and events that are looked at; what is looked at first may have more.
    pub(crate) events: usize,
}

impl State {
    /// What changed after `revision` of what the volume had then and may have had copies of: each
    /// set once. Costs by what there is to be told.
    ///
    /// None if that is not known: the history does not reach back that far, or the revision is
    /// still to come. Sets may reach beyond the volume, or lie in what was part of it once.
    pub fn changed_in_volume(&self, volume: &NodePath, revision: Revision) -> Option<impl Iterator<Item = &ObjectSet>> {
        let is_known = (self.meta.history_start..=self.meta.revision).contains(&revision);
        is_known.then(|| self.history.latest.after(revision, volume))
    }

    /// The same of any subtree, by walking the history, with what lies in volumes inside it: the
    /// sets in order.
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

    /// The last change that the history has forgotten: it knows all changes after this one.
    pub fn history_start(&self) -> Revision {
        self.meta.history_start
    }

    /// The changes after one, in order. None if the history does not reach back that far.
    fn entries_after(&self, revision: Revision) -> Option<impl Iterator<Item = (Revision, &HistoryEntry)>> {
        let known = usize::try_from(revision.0.checked_sub(self.meta.history_start.0)?).ok()?;
        let changes = self.history.changes.range(known.min(self.history.changes.len())..);
        // There is a change for each revision that is counted to, and no more are.
        let revisions = revision.0.saturating_add(1)..;
        Some(changes.zip(revisions).counted().map(|(change, revision)| (Revision(revision), change)))
    }

    /// The events of each change after one, in order; none of a change that cannot be told. None if
    /// the history does not reach back that far.
    pub fn events_after(&self, revision: Revision) -> Option<impl Iterator<Item = (Revision, Option<&[Event]>)>> {
        let changes = self.entries_after(revision)?;
        Some(changes.map(|(revision, change)| (revision, change.events.as_deref())))
    }

    /// What this change changed; nothing if that is not known any more.
    pub(crate) fn sets_changed_by(&self, revision: Revision) -> &[ObjectSet] {
        self.change(revision).map_or(&[], |change| &change.sets)
    }

    /// What happened after a revision to what is watched. Stops where it has cost enough; but one
    /// change at least is looked at, if there is one, so that whoever goes on from there comes to
    /// the end.
    pub(crate) fn scan_after(&self, after: Revision, watched: &Watched, bounds: ScanBounds) -> HistoryScan {
        let start = if self.mistake.is(Bug::CompactionUnnoticed) { after.max(self.meta.history_start) } else { after };
        let Some(remembered) = self.entries_after(start) else {
            return HistoryScan::Compacted(self.meta.history_start);
        };
        let (mut looked_at, mut bytes) = (0, 0);
        let mut found = Changes { changes: Vec::new(), through: after };
        for (revision, change) in remembered {
            looked_at += 1 + change.events.as_ref().map_or(0, Vec::len);
            if found.through > after && looked_at > bounds.events {
                reached(Bound::WatchLooks);
                break;
            }
            if change.concerns(watched) {
                let Some(events) = &change.events else {
                    // What came before it is told first.
                    return if found.changes.is_empty() {
                        HistoryScan::Compacted(revision)
                    } else {
                        HistoryScan::Found(found)
                    };
                };
                let mut events: Vec<Event> =
                    events.iter().filter(|event| watched.includes(&event.path)).cloned().collect();
                bytes += CHANGE_BYTES + weight_of(&events);
                if !found.changes.is_empty() && bytes > bounds.bytes {
                    match self.mistake.is(Bug::ChangeCutByBound) {
                        true => events.truncate(1),
                        false => break,
                    }
                }
                found.changes.push(Change { revision, events });
            }
            found.through = revision;
        }
        HistoryScan::Found(found)
    }

    /// Something happens with the change that is being made.
    pub(super) fn note_event(&mut self, path: NodePath, kind: EventKind, reason: ChangeReason) {
        self.history.pending_events.push(Event { path, kind, reason });
    }

    /// A node has just been made or written.
    pub(super) fn note_put(&mut self, path: &NodePath) {
        if let Some(Data { value, stat }) = self.data(path) {
            self.note_event(path.clone(), EventKind::Put(Data { value, stat }), ChangeReason::Request);
        }
    }

    /// Notes what the change that has just been made changed, and forgets the oldest if there are
    /// too many.
    pub(super) fn note_change(&mut self, mut sets: Vec<ObjectSet>, touched: &mut Touched) {
        if self.mistake.is(Bug::ChangeHalfRemembered) {
            sets.truncate(1);
        }
        let events = std::mem::take(&mut self.history.pending_events);
        let events = Some(events).filter(|events| weight_of(events) <= Self::CHANGE_BYTES_MAX);
        if events.is_none() {
            reached(Bound::ChangeBytes);
        }
        let change = HistoryEntry { sets, events };
        self.history.weight += change.weight();
        for set in &change.sets {
            self.history.latest.note(
                set,
                self.meta.revision,
                volume_of(&self.volumes, set.path()),
                outer_volume(&self.volumes, set),
            );
        }
        self.history.changes.push_back(change);
        touched.insert(RowKey::Change(self.meta.revision));
        while self.is_history_too_long()
            && let Some(forgotten) = self.history.changes.pop_front()
        {
            self.history.weight -= forgotten.weight();
            self.meta.history_start = self.meta.history_start.next();
            for set in &forgotten.sets {
                self.history.latest.forget(set, self.meta.history_start);
            }
            touched.insert(RowKey::Change(self.meta.history_start));
        }
    }

    /// Finds the last changes by set, of a history that was read.
    pub(super) fn index_last_changes(&mut self) {
        let History { changes, latest, .. } = &mut self.history;
        for (revision, change) in (self.meta.history_start.0.saturating_add(1)..).zip(changes.iter()) {
            for set in &change.sets {
                let volume = volume_of(&self.volumes, set.path());
                latest.note(set, Revision(revision), volume, outer_volume(&self.volumes, set));
            }
        }
    }

    /// The last change is kept, whatever it weighs: it weighs less than the bound by itself.
    fn is_history_too_long(&self) -> bool {
        let kept = self.history.changes.len();
        let is_long = kept as u64 > self.meta.history_max;
        let is_heavy = kept > 1 && self.history.weight > Self::HISTORY_BYTES_MAX;
        if is_long {
            reached(Bound::History);
        } else if is_heavy {
            reached(Bound::HistoryBytes);
        }
        is_long || is_heavy
    }

    /// What the change of this revision changed, if that is still known.
    pub(super) fn change(&self, revision: Revision) -> Option<&HistoryEntry> {
        let place = revision.0.checked_sub(self.meta.history_start.0)?.checked_sub(1)?;
        self.history.changes.get(usize::try_from(place).ok()?)
    }
}

/// The volume around the one that a subtree is the whole of.
fn outer_volume<'a>(volumes: &'a BTreeMap<NodePath, VolumeRecord>, set: &ObjectSet) -> Option<&'a NodePath> {
    match set {
        ObjectSet::One(_) => None,
        ObjectSet::Subtree(top) => {
            let is_volume = volumes.contains_key(top);
            top.parent().filter(|_| is_volume).map(|above| volume_of(volumes, &above))
        }
    }
}

/// The top of the volume that the path is in.
fn volume_of<'a>(volumes: &'a BTreeMap<NodePath, VolumeRecord>, path: &NodePath) -> &'a NodePath {
    super::volumes::volume_of(volumes, path).0
}

mod latest;
#[cfg(test)]
mod tests;
