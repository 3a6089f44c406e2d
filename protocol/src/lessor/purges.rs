//! Purges: the removal of orphans. Each is a write to these nodes, and to the lists of children
//! that they are in (S8).
//!
//! The end of the lease itself waited for nobody (T5). Now each session that may hold a copy of
//! what is removed is asked for consent (S2), and meanwhile nothing of it is leased (S3). A leader
//! removes the orphans that it finds in the state, whichever leader ended their leases.
//!
//! Orphans of several leases share one round of consents: a million leases that end in one second
//! must be removed in seconds (etcd 12105). `gathering` decides which sets each session is asked
//! for.

use std::collections::BTreeSet;

use crate::{
    id::Incarnation,
    object::{Object, ObjectSet},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    state::State,
    work::visit,
};

use super::{
    Lessor, StepContext,
    writes::{PendingWrite, PendingWriteId, WriteKind},
};

impl Lessor {
    /// Begins to gather consents for the removal of orphans. One step begins one round, so that it
    /// stays short. The next step follows as soon as a timer can.
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
        let spares = self.planted(Bug::RemovalSparesLists);
        let lists =
            if spares { BTreeSet::new() } else { lists_of_all(&leases, self.config.bounds.purge_sets_max, cx.state) };
        let pending = PendingWrite::new(WriteKind::Purge(leases), lists.into_iter().collect(), cx.now);
        let entered = self.writes.enter(pending);
        self.gather(entered, cx);
    }

    /// Whether orphans wait, and one more round may begin.
    pub(super) fn may_remove_orphans(&self) -> bool {
        let is_under_way = self.writes.purges() >= self.config.bounds.purges_max;
        self.epoch.is_some() && !self.orphans.is_empty() && !is_under_way
    }

    /// Takes orphans that no purge removes yet, as many as share a round.
    fn take_orphans(&mut self, state: &State) -> BTreeSet<Incarnation> {
        let most = self.config.bounds.purge_leases_max;
        let (mut together, mut nodes) = (BTreeSet::new(), 0);
        while together.len() < most
            && let Some(lease) = self.orphans.first().copied()
        {
            visit(1);
            // Its nodes may have been written or removed meanwhile.
            if state.is_orphaned(lease) {
                // Together they have at most as many nodes as one command removes. A single lease
                // never has more.
                nodes += state.attached_node_count(lease);
                if !together.is_empty() && nodes > State::REMOVED_NODES_MAX {
                    break;
                }
                together.insert(lease);
            }
            self.orphans.pop_first();
        }
        if together.len() == most {
            reached(Bound::PurgeLeases);
        }
        together
    }

    /// The purge was committed, or had no effect: then its orphans still have to be removed.
    pub(super) fn handle_purged(&mut self, waiting: PendingWriteId, state: &State) {
        if let Some((pending, ready)) = self.writes.leave(waiting) {
            self.orphans.extend(pending.purged_leases().iter().filter(|lease| state.is_orphaned(**lease)));
            self.propose_ready(ready);
        }
    }
}

/// The lists of children that the purge of these leases changes.
fn lists_of_all(leases: &BTreeSet<Incarnation>, sets_max: usize, state: &State) -> BTreeSet<ObjectSet> {
    let mut lists = BTreeSet::new();
    let mut last: Option<NodePath> = None;
    for lease in leases {
        // Most leases have all nodes in the same list as the lease before.
        let is_same =
            last.as_ref().is_some_and(|list| state.attached_nodes(*lease).all(|path| list.is_parent_of(path)));
        if !is_same {
            last = state.attached_nodes(*lease).next().and_then(NodePath::parent);
            lists.extend(lists_of(*lease, sets_max, state));
        }
    }
    lists
}

/// The lists of children that the purge changes, or their common subtree if they are more than
/// `sets_max`.
pub(super) fn lists_of(lease: Incarnation, sets_max: usize, state: &State) -> Vec<ObjectSet> {
    let lists = state.attached_parent_counts(lease);
    if lists.len() > sets_max {
        reached(Bound::PurgeSets);
        return vec![ObjectSet::Subtree(NodePath::common_ancestor(lists.keys()))];
    }
    lists.into_keys().map(|list| ObjectSet::One(Object::children(list))).collect()
}
