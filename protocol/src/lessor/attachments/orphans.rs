//! The leases whose orphans wait for their purge, by the volumes that contain the orphans (S8).
//!
//! A purge waits for holders in these volumes, up to the ends of their leases. So leases with
//! orphans in different volumes never share a purge, and each set of volumes has a bound of its own
//! for the purges that wait. Otherwise a dead reader in a volume with a term of an hour would hold
//! up purges in a volume with a term of seconds.
//!
//! This module decides the order of purges. Each purge is of one set of volumes, no set has more
//! purges than the bound, and the sets take turns. The module does not know what a purge waits for.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::ops::Bound::{Excluded, Unbounded};

use crate::{
    id::Incarnation,
    path::NodePath,
    state::State,
    work::{CountVisits, visit},
};

use super::super::writes::PendingWriteId;

/// The volumes that contain the orphans of one lease.
type OrphanVolumes = BTreeSet<NodePath>;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::lessor) struct OrphanedLeases {
    /// Leases that are not sorted by volume yet. No inner set is empty. A lease may have lost its
    /// orphans meanwhile.
    unsorted: Vec<BTreeSet<Incarnation>>,
    by_volumes: BTreeMap<OrphanVolumes, BTreeSet<Incarnation>>,
    /// Those keys of `by_volumes` for which one more purge may begin.
    ready: BTreeSet<OrphanVolumes>,
    /// The purges that have begun and not ended, each with its volumes.
    begun: BTreeMap<PendingWriteId, OrphanVolumes>,
    /// How many of them each set of volumes has.
    begun_counts: BTreeMap<OrphanVolumes, usize>,
    /// The volumes of the last purge.
    last: OrphanVolumes,
}

/// The bounds of one step and one purge.
#[derive(Debug, Clone, Copy)]
pub(super) struct PurgeBounds {
    /// The most leases that one step sorts by volume. Also the most leases of one purge.
    pub(super) leases: usize,
    /// The most nodes of the leases that one step sorts, and of those that it examines for one
    /// purge. The last lease that a step sorts may exceed it. So may a purge of a single lease.
    pub(super) nodes: usize,
    /// The most purges that wait for one set of volumes.
    pub(super) purges: usize,
}

impl OrphanedLeases {
    /// Adds leases that have orphans.
    pub(in crate::lessor) fn add(&mut self, leases: impl IntoIterator<Item = Incarnation>) {
        let leases: BTreeSet<Incarnation> = leases.into_iter().collect();
        if !leases.is_empty() {
            self.unsorted.push(leases);
        }
    }

    /// Forgets the volumes of all orphans that this new or removed volume may contain, so that they
    /// are found anew. Otherwise their leases could wait behind the purges of the volume that
    /// contained them before.
    pub(in crate::lessor) fn volume_changed(&mut self, top: &NodePath) {
        let is_concerned = |volumes: &&OrphanVolumes| volumes.iter().any(|volume| volume.contains(top));
        let concerned: Vec<OrphanVolumes> =
            self.by_volumes.keys().counted().filter(|volumes| is_concerned(volumes)).cloned().collect();
        for volumes in concerned {
            self.ready.remove(&volumes);
            self.unsorted.extend(self.by_volumes.remove(&volumes));
        }
    }

    /// Whether a step has something to do: to sort a lease, or to begin a purge.
    pub(super) fn is_ready(&self) -> bool {
        !self.unsorted.is_empty() || !self.ready.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsorted.is_empty() && self.by_volumes.is_empty()
    }

    pub(in crate::lessor) fn contains(&self, lease: Incarnation) -> bool {
        self.unsorted.iter().chain(self.by_volumes.values()).any(|leases| leases.contains(&lease))
    }

    #[cfg(test)]
    pub(in crate::lessor) fn len(&self) -> usize {
        self.unsorted.iter().chain(self.by_volumes.values()).map(BTreeSet::len).sum()
    }

    /// Takes leases for the next purge. All their orphans are in one set of volumes. Returns no
    /// lease if no purge may begin, or if the orphans of those that it examined are gone.
    pub(super) fn take(&mut self, bounds: PurgeBounds, state: &State) -> (OrphanVolumes, BTreeSet<Incarnation>) {
        self.sort(bounds, state);
        let mut leases = BTreeSet::new();
        let after = (Excluded(&self.last), Unbounded);
        let Some(volumes) = self.ready.range::<OrphanVolumes, _>(after).next().or(self.ready.first()).cloned() else {
            return (OrphanVolumes::new(), leases);
        };
        let mut nodes = 0;
        for _ in 0..bounds.leases {
            let Some(lease) = self.by_volumes.get(&volumes).and_then(|leases| leases.first().copied()) else { break };
            visit(1);
            let is_first = nodes == 0;
            nodes += state.attached_node_count(lease);
            if !is_first && nodes > bounds.nodes {
                break;
            }
            // Meanwhile a write may have removed some of the orphans.
            let present = volumes_of_orphans(lease, state);
            if present == volumes {
                leases.insert(lease);
            }
            self.remove(&volumes, lease);
            if present != volumes && state.is_orphaned(lease) {
                self.add([lease]);
            }
        }
        self.update_ready(&volumes, bounds.purges);
        self.last.clone_from(&volumes);
        (volumes, leases)
    }

    /// Records that a purge of leases with orphans in these volumes has begun.
    pub(super) fn begin(&mut self, purge: PendingWriteId, volumes: OrphanVolumes, purges_max: usize) {
        *self.begun_counts.entry(volumes.clone()).or_default() += 1;
        self.update_ready(&volumes, purges_max);
        self.begun.insert(purge, volumes);
    }

    /// Records that the purge has ended.
    pub(super) fn end(&mut self, purge: PendingWriteId, purges_max: usize) {
        let Some(volumes) = self.begun.remove(&purge) else { return };
        if let Entry::Occupied(mut count) = self.begun_counts.entry(volumes.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.update_ready(&volumes, purges_max);
    }

    /// Sorts leases by the volumes that contain their orphans, up to the bounds of one step.
    fn sort(&mut self, bounds: PurgeBounds, state: &State) {
        let mut nodes = 0;
        for _ in 0..bounds.leases {
            let Some(part) = self.unsorted.last_mut().filter(|_| nodes < bounds.nodes) else { break };
            visit(1);
            let lease = part.pop_first();
            if part.is_empty() {
                self.unsorted.pop();
            }
            let Some(lease) = lease else { continue };
            // The lease may have no orphans left, if they were written or removed meanwhile.
            if state.is_orphaned(lease) {
                nodes += state.attached_node_count(lease);
                let volumes = volumes_of_orphans(lease, state);
                self.by_volumes.entry(volumes.clone()).or_default().insert(lease);
                self.update_ready(&volumes, bounds.purges);
            }
        }
    }

    fn remove(&mut self, volumes: &OrphanVolumes, lease: Incarnation) {
        if let Some(leases) = self.by_volumes.get_mut(volumes) {
            leases.remove(&lease);
            if leases.is_empty() {
                self.by_volumes.remove(volumes);
            }
        }
    }

    fn update_ready(&mut self, volumes: &OrphanVolumes, purges_max: usize) {
        let has_room = self.begun_counts.get(volumes).copied().unwrap_or(0) < purges_max;
        if has_room && self.by_volumes.contains_key(volumes) {
            self.ready.insert(volumes.clone());
        } else {
            self.ready.remove(volumes);
        }
    }

    /// Checks the tables against each other, and against the purges that are pending.
    pub(in crate::lessor) fn check(&self, purges: usize, purges_max: usize) -> Result<(), String> {
        let mut counts: BTreeMap<&OrphanVolumes, usize> = BTreeMap::new();
        for volumes in self.begun.values() {
            *counts.entry(volumes).or_default() += 1;
        }
        if self.begun.len() != purges || counts != self.begun_counts.iter().map(|(key, count)| (key, *count)).collect()
        {
            return Err(format!(
                "{} purges have begun, counted as {:?}: {purges} are pending",
                self.begun.len(),
                counts
            ));
        }
        let may_begin = |volumes: &&OrphanVolumes| counts.get(*volumes).copied().unwrap_or(0) < purges_max;
        let ready: BTreeSet<&OrphanVolumes> = self.by_volumes.keys().filter(may_begin).collect();
        if ready != self.ready.iter().collect() {
            return Err(format!("purges may begin in {ready:?}: the lessor has {:?}", self.ready));
        }
        Ok(())
    }
}

/// The volumes that contain nodes of the lease. No attached node is the top of a volume, so each is
/// in the volume of its parent.
fn volumes_of_orphans(lease: Incarnation, state: &State) -> OrphanVolumes {
    let lists = state.attached_parent_counts(lease).into_keys();
    lists.counted().map(|list| state.volume_of(&list).0.clone()).collect()
}
