//! What each volume has of nodes and bytes, and the refusal of writes that would take a volume
//! above its [quota](crate::quota).
//!
//! The counts are derived from the nodes and the volumes. Each change of these keeps them up to
//! date, and [`State::check`] counts again. A purged node does not count, even while it is in
//! memory.
//!
//! # What is never refused
//!
//! - Deletes, revocations and purges: they only make room.
//! - A change of a volume's settings, and the creation of a volume over present nodes. So a volume
//!   may have more than its quota. Then only writes that add to it are refused.
//! - The removal of an inner volume. The volume above gets its nodes, and may be above its own
//!   quota then.
//!
//! # Costs
//!
//! A put takes one more look-up of its volume. A transaction that puts something also visits each
//! node that it deletes in the same volume. The creation of a volume counts the nodes of the
//! whole subtree. Its removal takes a look-up only.

use std::collections::{BTreeMap, BTreeSet};

use super::{State, VolumeRecord, volumes::volume_of};
use crate::{
    command::{Write, WriteRefusal},
    path::NodePath,
    quota::{QuotaFigure, VolumeUse},
    reached::{Bound, reached},
    transaction::{Operation, Transaction},
};

/// The use of each volume, by its top.
pub(super) type VolumeUses = BTreeMap<NodePath, VolumeUse>;

/// What a write would add to a volume, and remove from it.
struct VolumeGrowth<'a> {
    /// The first node that the write puts in the volume. A refusal names it.
    path: &'a NodePath,
    added: VolumeUse,
    removed: VolumeUse,
}

/// What a write would change in each volume that has a quota.
struct Growth<'a> {
    state: &'a State,
    /// The nodes that the write would create.
    created: BTreeSet<NodePath>,
    by_volume: BTreeMap<&'a NodePath, VolumeGrowth<'a>>,
    /// The nodes that deletes would remove, as far as they were counted.
    removed: usize,
}

impl<'a> Growth<'a> {
    fn new(state: &'a State) -> Self {
        Self { state, created: BTreeSet::new(), by_volume: BTreeMap::new(), removed: 0 }
    }

    /// Adds a put. It also creates the missing ancestors, which are in the same volume.
    fn put(&mut self, path: &'a NodePath, value_len: usize) {
        let (top, volume) = self.state.volume_of(path);
        if volume.settings.quota().is_none() {
            return;
        }
        let none = || VolumeGrowth { path, added: VolumeUse::default(), removed: VolumeUse::default() };
        let growth = self.by_volume.entry(top).or_insert_with(none);
        growth.added.bytes += value_len as u64;
        if let Some(node) = self.state.node(path) {
            growth.removed.bytes += node.value.len() as u64;
            return;
        }
        let upwards = std::iter::once(path.clone()).chain(path.ancestors());
        for missing in upwards.take_while(|above| self.state.node(above).is_none()) {
            let own = VolumeUse::of_node(missing.as_str().len(), 0);
            // The set already has the node and its missing ancestors.
            if !self.created.insert(missing) {
                break;
            }
            growth.added.add(own);
        }
    }

    /// Adds a delete, if the write also puts something in its volume. A write is refused if its
    /// recursive deletes remove more nodes than a command may. So the count stops at that number.
    /// A delete that is not recursive removes one node.
    fn delete(&mut self, path: &NodePath) {
        let Some(growth) = self.by_volume.get_mut(self.state.volume_of(path).0) else { return };
        let room = State::REMOVED_NODES_MAX.saturating_sub(self.removed).max(1);
        for (path, node) in self.state.nodes_in(path, None).take(room) {
            growth.removed.add(node.used(path));
            self.removed += 1;
        }
    }

    fn transaction(&mut self, transaction: &'a Transaction) {
        let operations = transaction.branch(self.state.branch(transaction));
        for operation in operations {
            if let Operation::Put { path, value, .. } = operation {
                self.put(path, value.len());
            }
        }
        for operation in operations {
            if let Operation::Delete { path, .. } = operation {
                self.delete(path);
            }
        }
    }

    fn check(&self) -> Result<(), WriteRefusal> {
        for (top, growth) in &self.by_volume {
            let before = self.state.volume_use(top);
            let mut after = before;
            after.add(growth.added);
            after.subtract(growth.removed);
            let quota = self.state.volume(top).map(|volume| volume.settings.quota()).unwrap_or_default();
            if let Some((figure, most)) = quota.exceeded(before, after) {
                reached(match figure {
                    QuotaFigure::Nodes => Bound::QuotaNodes,
                    QuotaFigure::Bytes => Bound::QuotaBytes,
                });
                let (path, volume) = (growth.path.clone(), (*top).clone());
                return Err(WriteRefusal::QuotaExceeded { path, volume, figure, got: after.figure(figure), most });
            }
        }
        Ok(())
    }
}

impl State {
    /// What the volume with this top has of nodes and bytes.
    pub fn volume_use(&self, top: &NodePath) -> VolumeUse {
        self.volume_uses.get(top).copied().unwrap_or_default()
    }

    /// Checks that the write would take no volume above its quota, if it were applied now. The net
    /// effect of a transaction counts. A figure above its limit that does not grow is accepted.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal::QuotaExceeded`] with the first volume and figure that would exceed a quota.
    pub fn check_quota(&self, write: &Write) -> Result<(), WriteRefusal> {
        let mut growth = Growth::new(self);
        let above;
        match write {
            Write::Put { path, value, .. } | Write::Flush { path, value: Some(value), .. } => {
                growth.put(path, value.len());
            }
            Write::Transaction(transaction) => growth.transaction(transaction),
            // The node itself belongs to the new volume, its missing ancestors to the one above.
            Write::CreateVolume { path, .. } => {
                above = path.parent();
                if let Some(above) = above.as_ref().filter(|above| self.node(above).is_none()) {
                    growth.put(above, 0);
                }
            }
            Write::Flush { value: None, .. }
            | Write::Delete { .. }
            | Write::SetVolume { .. }
            | Write::RemoveVolume { .. }
            | Write::GrantLease { .. }
            | Write::RevokeLease { .. }
            | Write::RevokeLeaseNamed { .. }
            | Write::Lock { .. }
            | Write::ChangeLockMode { .. }
            | Write::Unlock { .. }
            | Write::TakeWriteLease { .. }
            | Write::HandOver { .. } => return Ok(()),
        }
        growth.check()
    }

    /// Counts the nodes of all volumes, for a state that was read from rows.
    pub(super) fn count_volume_uses(&self) -> VolumeUses {
        let mut uses: VolumeUses = self.volumes.keys().map(|top| (top.clone(), VolumeUse::default())).collect();
        for (path, node) in self.nodes_from(&NodePath::root()) {
            if let Some(of_volume) = uses.get_mut(self.volume_of(path).0) {
                of_volume.add(node.used(path));
            }
        }
        uses
    }

    /// Counts a created node.
    pub(super) fn use_grew(&mut self, path: &NodePath, value_len: usize) {
        if let Some(of_volume) = use_at(&self.volumes, &mut self.volume_uses, path) {
            of_volume.add(VolumeUse::of_node(path.as_str().len(), value_len));
        }
    }

    /// Counts a node's new value.
    pub(super) fn use_changed(&mut self, path: &NodePath, before: usize, after: usize) {
        if before != after
            && let Some(of_volume) = use_at(&self.volumes, &mut self.volume_uses, path)
        {
            of_volume.bytes = of_volume.bytes + after as u64 - before as u64;
        }
    }

    /// Counts nodes in the volume of `path` as removed.
    pub(super) fn use_shrank(&mut self, path: &NodePath, removed: VolumeUse) {
        if let Some(of_volume) = use_at(&self.volumes, &mut self.volume_uses, path) {
            of_volume.subtract(removed);
        }
    }

    /// Moves the counts of a subtree to a volume that is about to be made there. The inner volumes
    /// keep theirs.
    pub(super) fn use_moves_to(&mut self, top: &NodePath) {
        let mut moved = VolumeUse::default();
        self.nodes_in(top, None).for_each(|(path, node)| moved.add(node.used(path)));
        self.volumes_below(top).for_each(|(inner, _)| moved.subtract(self.volume_use(inner)));
        self.use_shrank(top, moved);
        self.volume_uses.insert(top.clone(), moved);
    }

    /// Moves the counts of a removed volume to the volume above.
    pub(super) fn use_moves_up(&mut self, top: &NodePath) {
        if let Some(moved) = self.volume_uses.remove(top)
            && let Some(of_volume) = use_at(&self.volumes, &mut self.volume_uses, top)
        {
            of_volume.add(moved);
        }
    }

    /// Checks the counts.
    pub(super) fn check_volume_uses(&self) -> Result<(), String> {
        let expected = self.count_volume_uses();
        if self.volume_uses == expected {
            return Ok(());
        }
        Err(format!("the volumes are counted as {:?}: expected {expected:?}", self.volume_uses))
    }
}

fn use_at<'a>(
    volumes: &BTreeMap<NodePath, VolumeRecord>,
    uses: &'a mut VolumeUses,
    path: &NodePath,
) -> Option<&'a mut VolumeUse> {
    uses.get_mut(volume_of(volumes, path).0)
}

#[cfg(test)]
mod tests;
