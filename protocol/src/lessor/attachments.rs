//! Purges: the removal of orphans. A purge writes these nodes, and their parents' lists of children
//! (S8).
//!
//! The end of the lease itself waited for no session (T5). Before the purge, the lessor recalls
//! these objects from each session that may hold copies (S2). Meanwhile it leases none of them
//! (S3). A leader also removes orphans whose leases ended under earlier leaders.
//!
//! Orphans of several leases share one round of consents. So the nodes of a million leases that end
//! at once are removed in seconds (etcd 12105). `gathering` decides which sets to recall from each
//! session.

mod orphans;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    id::Incarnation,
    object::{Object, ObjectSet},
    path::NodePath,
    reached::{Bound, reached},
    state::State,
};

pub(super) use orphans::OrphanedLeases;

use super::{
    Lessor, StepContext,
    counters::WaitEnd,
    writes::{PendingWrite, PendingWriteId, WriteKind},
};
use orphans::PurgeBounds;

impl Lessor {
    /// Begins to gather consents for the removal of orphans. One step begins one purge, so that the
    /// step stays short. If another purge may begin, the next step is due at once
    /// (`next_deadline`).
    pub(super) fn remove_orphans(&mut self, cx: &mut StepContext<'_>) {
        if !self.may_remove_orphans() {
            if self.epoch.is_some() && !self.orphans.is_empty() {
                reached(Bound::Purges);
            }
            return;
        }
        let bounds = self.purge_bounds();
        let (volumes, leases) = self.orphans.take(bounds, cx.state);
        if leases.len() == bounds.leases {
            reached(Bound::PurgeLeases);
        }
        if leases.is_empty() {
            return;
        }
        let lists = lists_of_all(&leases, self.config.bounds.purge_sets_max, cx.state);
        let pending = PendingWrite::new(WriteKind::Purge(leases), lists.into_iter().collect(), cx.now);
        let write_id = self.writes.enter(pending);
        self.orphans.begin(write_id, volumes, bounds.purges);
        self.gather(write_id, cx);
    }

    /// Whether a lease with orphans waits, and one more purge may begin. Purges in any number of
    /// volumes may wait. So a purge begins only while all pending writes, purges included, take
    /// less than twice `writes_bytes_max`. If no purge is pending, one may always begin.
    pub(super) fn may_remove_orphans(&self) -> bool {
        let has_memory = self.writes.purges() == 0 || self.writes.bytes() / 2 < self.config.bounds.writes_bytes_max;
        self.epoch.is_some() && self.orphans.is_ready() && has_memory
    }

    fn purge_bounds(&self) -> PurgeBounds {
        // All leases of one purge together have at most this many nodes. A single lease may have a
        // few more, because the puts of one transaction do not count each other.
        let nodes = State::REMOVED_NODES_MAX;
        PurgeBounds { leases: self.config.bounds.purge_leases_max, nodes, purges: self.config.bounds.purges_max }
    }

    /// Handles the outcome of a purge. If it had no effect, its orphans still have to be removed.
    pub(super) fn handle_purged(&mut self, write_id: PendingWriteId, cx: &mut StepContext<'_>) {
        self.orphans.end(write_id, self.config.bounds.purges_max);
        if let Some((pending, ready)) = self.writes.leave(write_id) {
            self.orphans.add(pending.purged_leases().iter().copied().filter(|lease| cx.state.is_orphaned(*lease)));
            self.propose_ready(ready, Some(WaitEnd::EarlierWrite));
            self.resume_next_values(&pending.footprint, cx);
        }
    }
}

/// The lists of children that the purge of these leases changes.
fn lists_of_all(leases: &BTreeSet<Incarnation>, sets_max: usize, state: &State) -> BTreeSet<ObjectSet> {
    let mut lists = BTreeSet::new();
    let mut last: Option<NodePath> = None;
    for lease in leases {
        // Often all nodes of a lease are in the same list as those of the lease before.
        let is_same =
            last.as_ref().is_some_and(|list| state.attached_nodes(*lease).all(|path| list.is_parent_of(path)));
        if !is_same {
            last = state.attached_nodes(*lease).next().and_then(NodePath::parent);
            lists.extend(lists_of(*lease, sets_max, state));
        }
    }
    lists
}

/// The lists of children that the purge of this lease changes. If they are more than `sets_max`:
/// for each volume, the common subtree of its lists. If the volumes are too many as well: one
/// subtree with all lists.
pub(super) fn lists_of(lease: Incarnation, sets_max: usize, state: &State) -> Vec<ObjectSet> {
    let lists = state.attached_parent_counts(lease);
    if lists.len() <= sets_max {
        return lists.into_keys().map(|list| ObjectSet::One(Object::children(list))).collect();
    }
    reached(Bound::PurgeSets);
    let mut by_volume: BTreeMap<&NodePath, Vec<&NodePath>> = BTreeMap::new();
    for list in lists.keys() {
        by_volume.entry(state.volume_of(list).0).or_default().push(list);
    }
    if by_volume.len() > sets_max {
        return vec![ObjectSet::Subtree(NodePath::common_ancestor(lists.keys()))];
    }
    by_volume.into_values().map(|lists| ObjectSet::Subtree(NodePath::common_ancestor(lists))).collect()
}
