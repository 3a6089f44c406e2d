//! Nodes that are attached to this session's volume leases (S7b).
//!
//! While a lease has attached nodes, the holder renews it even if the application reads nothing.
//! When it ends, the holder reports the nodes as lost.
//!
//! The outcome of a put says which lease has the node. It may not be the present lease, if the
//! outcome is late and the volume was made, removed or leased again since. Outcomes may also arrive
//! in another order than the writes took effect. So the holder records each node with the revision
//! of its put. The outcome of an earlier write does not change the record.

use std::{
    collections::BTreeSet,
    ops::Bound::{Included, Unbounded},
    time::Duration,
};

use super::{
    Holder, HolderEffect,
    known_volume::{AttachedNode, KnownVolume},
};
use crate::{
    command::{Attach, Write, Written},
    id::{LockId, Revision},
    path::NodePath,
    reached::{Bound, reached},
    time::Instant,
    transaction::Operation,
};

/// The most remembered removals. A put may take effect before a removal and be answered after it.
/// Beyond the bound, the earliest removal is forgotten. A node that it removed may then count as
/// attached until its lease ends.
const REMOVALS_MAX: usize = 4096;

/// The nodes that this client's writes removed, or detached from its lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnRemovals {
    /// The revision, the path, and whether everything below it was removed too.
    all: BTreeSet<(Revision, NodePath, bool)>,
}

impl OwnRemovals {
    fn note(&mut self, path: &NodePath, is_subtree: bool, revision: Revision) {
        self.all.insert((revision, path.clone(), is_subtree));
        if self.all.len() > REMOVALS_MAX {
            reached(Bound::RemovalsRemembered);
            self.all.pop_first();
        }
    }

    /// Whether a write after this revision removed the node.
    fn came_after(&self, path: &NodePath, revision: Revision) -> bool {
        let mut later = self.all.iter().rev().take_while(|(at, ..)| *at > revision);
        later.any(|(_, removed, is_subtree)| removed == path || (*is_subtree && removed.contains(path)))
    }
}

/// The nodes that a write attaches to, or locks under, leases of the writer's session.
pub(super) fn attached_to_session(change: &Write) -> impl Iterator<Item = &NodePath> {
    let (single, operations) = match change {
        Write::Put { path, attach: Attach::Session, .. } | Write::Lock { path, .. } => (Some(path), None),
        Write::Transaction(transaction) => (None, Some(transaction.operations())),
        _ => (None, None),
    };
    let attached = operations.into_iter().flatten().filter_map(|operation| match operation {
        Operation::Put { path, attach: Attach::Session, .. } => Some(path),
        _ => None,
    });
    single.into_iter().chain(attached)
}

impl KnownVolume {
    /// Forgets that a node, and optionally the nodes below it, are attached. It forgets only nodes
    /// whose put is not later than the revision.
    fn detach(&mut self, path: &NodePath, is_subtree: bool, revision: Revision) {
        let is_older = |node: &AttachedNode| node.revision <= revision;
        if self.attached.get(path).is_some_and(is_older) {
            self.attached.remove(path);
        }
        if !is_subtree || self.attached.is_empty() {
            return;
        }
        let lower = path.prefix_below();
        let below = self.attached.range::<str, _>((Included(lower.as_str()), Unbounded));
        let below = below.take_while(|(at, _)| at.as_str().starts_with(&lower));
        let below: Vec<NodePath> = below.filter(|(_, node)| is_older(node)).map(|(at, _)| at.clone()).collect();
        below.iter().for_each(|at| {
            self.attached.remove(at);
        });
    }
}

impl Holder {
    /// Records the nodes that a successful write attached, detached or removed.
    pub(super) fn note_attachments(&mut self, change: &Write, written: &Written) {
        match (change, &written.transaction) {
            (Write::Put { path, attach, .. }, _) => self.note_put(path, attach, written),
            (Write::Delete { path, .. }, _) => self.note_removed(path, true, written.revision),
            (Write::Transaction(transaction), Some(transacted)) => {
                for operation in transaction.branch(transacted.branch()) {
                    match operation {
                        Operation::Put { path, attach, .. } => self.note_put(path, attach, written),
                        Operation::Delete { path, .. } => self.note_removed(path, true, written.revision),
                    }
                }
            }
            _ => {}
        }
        if !self.writes.may_attach() {
            self.removals.all.clear();
        }
    }

    fn note_put(&mut self, path: &NodePath, attach: &Attach, written: &Written) {
        match attach {
            Attach::Session => self.note_attached(path, written),
            Attach::Unchanged => {}
            Attach::Nothing | Attach::Lease(_) | Attach::LeaseNamed(_) => {
                self.note_removed(path, false, written.revision)
            }
        }
    }

    fn note_attached(&mut self, path: &NodePath, written: &Written) {
        let (Some(lease), revision) = (written.attached_to(path), written.revision) else { return };
        let tops = self.volumes.at_and_above(path);
        let nodes = tops.iter().filter_map(|top| self.volumes.get(top)?.attached.get(path));
        if nodes.map(|node| node.revision).max().is_some_and(|latest| latest > revision) {
            return;
        }
        tops.iter().for_each(|top| {
            if let Some(mut volume) = self.volumes.get_mut(top) {
                volume.detach(path, false, revision);
            }
        });
        // The lease ended before the outcome arrived, or a later write removed the node.
        if !self.may_be_current_lease(&lease.volume, lease.incarnation) || self.removals.came_after(path, revision) {
            return self.notify_attached_lost(vec![(path.clone(), revision)]);
        }
        let node = AttachedNode { incarnation: lease.incarnation, revision };
        self.volumes.learn(&lease.volume).attached.insert(path.clone(), node);
    }

    fn note_removed(&mut self, path: &NodePath, is_subtree: bool, revision: Revision) {
        for top in self.volumes.at_and_above(path) {
            if let Some(mut volume) = self.volumes.get_mut(&top) {
                volume.detach(path, is_subtree, revision);
            }
        }
        // If no write in flight may attach a node, no late answer to a put can follow this removal.
        if self.writes.may_attach() {
            self.removals.note(path, is_subtree, revision);
        }
    }

    /// The put of this revision attached the node to a lease: how long that lease certainly lasts.
    /// Zero if the lease has ended, or if the node was put or removed since.
    pub fn attached_remaining(&self, path: &NodePath, put: Revision, now: Instant) -> Duration {
        let is_attached = |top: &NodePath| {
            let volume = self.volumes.get(top)?;
            let node = volume.attached.get(path).filter(|node| node.revision == put)?;
            volume.lease.as_ref().filter(|lease| lease.incarnation == node.incarnation)
        };
        let volume = self.volumes.at_and_above(path).into_iter().find(|top| is_attached(top).is_some());
        volume.map_or(Duration::ZERO, |top| self.volume_remaining(&top, now))
    }

    /// Whether the node that was put with this revision is attached to the same lease as this lock
    /// of the session. It is not if a volume was made between the request for the lock and the put.
    pub fn is_attached_with_lock(&self, path: &NodePath, put: Revision, lock: LockId) -> bool {
        let Some((volume, incarnation)) = self.locks.lease_of(lock) else { return false };
        let node = self.volumes.get(volume).and_then(|volume| volume.attached.get(path));
        node.is_some_and(|node| (node.revision, node.incarnation) == (put, incarnation))
    }

    /// Reports as lost each attached node whose lease has ended, in the volumes at and above the
    /// path.
    pub(super) fn lose_attached_without_lease_above(&mut self, path: &NodePath) {
        for top in self.volumes.at_and_above(path) {
            self.lose_attached_without_lease(&top);
        }
    }

    /// Reports as lost each attached node of the volume whose lease has ended.
    pub(super) fn lose_attached_without_lease(&mut self, top: &NodePath) {
        let Some(volume) = self.volumes.get(top).filter(|volume| !volume.attached.is_empty()) else { return };
        let is_current = |node: &AttachedNode| self.may_be_current_lease(top, node.incarnation);
        let lost = volume.attached.iter().filter(|(_, node)| !is_current(node));
        let lost: Vec<(NodePath, Revision)> = lost.map(|(path, node)| (path.clone(), node.revision)).collect();
        if let Some(mut volume) = self.volumes.get_mut(top) {
            lost.iter().for_each(|(path, _)| {
                volume.attached.remove(path);
            });
        }
        self.notify_attached_lost(lost);
    }

    /// Checks that each node's lease is the present lease, or may be granted again.
    pub(super) fn check_attachments(&self) -> Result<(), String> {
        for (top, volume) in self.volumes.iter() {
            for (path, node) in &volume.attached {
                if !top.contains(path) || !self.may_be_current_lease(top, node.incarnation) {
                    return Err(format!("{path} is attached to a lease on {top} that has ended: {node:?}"));
                }
            }
        }
        Ok(())
    }

    /// Reports nodes whose lease has ended.
    pub(super) fn notify_attached_lost(&mut self, nodes: Vec<(NodePath, Revision)>) {
        if !nodes.is_empty() {
            self.effects.push(HolderEffect::AttachedNodesLost { nodes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_beyond_the_bound_forgets_the_earliest() {
        let mut removals = OwnRemovals::default();
        let at = |number: usize| NodePath::parse(&format!("/{number}")).expect("a path");
        let revision = |number: usize| Revision(u64::try_from(number).expect("it fits"));
        (1..=REMOVALS_MAX).for_each(|number| removals.note(&at(number), false, revision(number)));
        assert!(removals.came_after(&at(1), Revision(0)));
        removals.note(&at(0), false, revision(REMOVALS_MAX + 1));
        assert!(!removals.came_after(&at(1), Revision(0)) && removals.came_after(&at(2), Revision(0)));
    }
}
