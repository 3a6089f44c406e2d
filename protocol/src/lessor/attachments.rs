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

use std::collections::BTreeSet;

use crate::{
    id::Incarnation,
    object::{Object, ObjectSet},
    path::NodePath,
    reached::{Bound, reached},
    state::State,
    work::visit,
};

use super::{
    Lessor, StepContext,
    counters::WaitEnd,
    writes::{PendingWrite, PendingWriteId, WriteKind},
};

impl Lessor {
    /// Begins to gather consents for the removal of orphans. One step begins one purge, so that the
    /// step stays short. The next step follows as soon as a timer can.
    pub(super) fn remove_orphans(&mut self, cx: &mut StepContext<'_>) {
        if !self.may_remove_orphans() {
            if !self.orphans.is_empty() {
                reached(Bound::Purges);
            }
            return;
        }
        let leases = self.take_orphans(cx.state);
        if leases.is_empty() {
            return;
        }
        let lists = lists_of_all(&leases, self.config.bounds.purge_sets_max, cx.state);
        let pending = PendingWrite::new(WriteKind::Purge(leases), lists.into_iter().collect(), cx.now);
        let write_id = self.writes.enter(pending);
        self.gather(write_id, cx);
    }

    /// Whether orphans wait, and one more purge may begin.
    pub(super) fn may_remove_orphans(&self) -> bool {
        let is_full = self.writes.purges() >= self.config.bounds.purges_max;
        self.epoch.is_some() && !self.orphans.is_empty() && !is_full
    }

    /// Takes leases whose orphans no purge removes yet, up to the bounds of one purge.
    fn take_orphans(&mut self, state: &State) -> BTreeSet<Incarnation> {
        let most = self.config.bounds.purge_leases_max;
        let (mut leases, mut nodes) = (BTreeSet::new(), 0);
        while leases.len() < most
            && let Some(lease) = self.orphans.first().copied()
        {
            visit(1);
            // The lease may have no orphans left, if they were written or removed meanwhile.
            if state.is_orphaned(lease) {
                // Together the leases have at most as many nodes as one command removes. A single
                // lease never has more.
                nodes += state.attached_node_count(lease);
                if !leases.is_empty() && nodes > State::REMOVED_NODES_MAX {
                    break;
                }
                leases.insert(lease);
            }
            self.orphans.pop_first();
        }
        if leases.len() == most {
            reached(Bound::PurgeLeases);
        }
        leases
    }

    /// Handles the outcome of a purge. If it had no effect, its orphans still have to be removed.
    pub(super) fn handle_purged(&mut self, write_id: PendingWriteId, cx: &mut StepContext<'_>) {
        if let Some((pending, ready)) = self.writes.leave(write_id) {
            self.orphans.extend(pending.purged_leases().iter().filter(|lease| cx.state.is_orphaned(**lease)));
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

/// The lists of children that the purge of this lease changes. If they are more than `sets_max`,
/// their common subtree.
pub(super) fn lists_of(lease: Incarnation, sets_max: usize, state: &State) -> Vec<ObjectSet> {
    let lists = state.attached_parent_counts(lease);
    if lists.len() > sets_max {
        reached(Bound::PurgeSets);
        return vec![ObjectSet::Subtree(NodePath::common_ancestor(lists.keys()))];
    }
    lists.into_keys().map(|list| ObjectSet::One(Object::children(list))).collect()
}
