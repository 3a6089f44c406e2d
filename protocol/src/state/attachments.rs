//! Nodes attached to leases, and their removal after a lease ends (S8, T5 in docs/PROTOCOL.md).
//!
//! A node is attached to one lease at most. A lease can have many attached nodes (etcd's keys,
//! ZooKeeper's ephemeral nodes). A put is refused if the lease has [`State::REMOVED_NODES_MAX`] or
//! more. The puts of one transaction do not count each other, so a transaction can exceed that by
//! its operations less one. As in ZooKeeper, an attached node has no children. It is no volume
//! either. So its removal removes nothing else.
//!
//! # First the lease, then the nodes (ADR 8)
//!
//! One command ends a lease, and waits for no consent (T5). Writes wait for the ends of leases, so
//! ends must not wait for consents. The attached nodes are *orphans* from then on. They still
//! exist, but no node can be attached to that lease. When every session that may hold copies of the
//! orphans or of their lists has consented or lost its lease, a second command purges them (S8).
//!
//! # Purged at once, reclaimed in parts
//!
//! The second command purges all orphans of a lease with one change. The lease gets a tombstone. A
//! node [exists](State::node) only if its lease has no tombstone. Later entries reclaim the memory
//! in parts of [`RECLAIMED_PER_ENTRY`]. So the end of a lease with very many nodes blocks no other
//! client (etcd issue 15993).
//!
//! The purge itself updates the lists of children, because they are few. It also builds the events
//! for watchers. A purge of 100,000 nodes, more than a lease can have, took 37 ms to apply. Its row
//! of 3.6 MB took 14 ms to encode (one core of a shared machine).

use std::collections::{BTreeMap, BTreeSet};

use self::nodes::Nodes;
use super::{Attachment, LeaseRecord, NodeRecord, RowKey, State, touched::Touched};
use crate::{
    change::{ChangeReason, EventKind},
    command::{AnyLease, Attach, Outcome, VolumeLease, WriteRefusal},
    id::{Incarnation, Revision, SessionId},
    object::{Object, ObjectSet},
    path::NodePath,
    quota::VolumeUse,
    reached::{Bound, reached},
    work::CountVisits,
};

/// The most nodes that one entry reclaims, unless very many leases have tombstones.
pub(super) const RECLAIMED_PER_ENTRY: usize = 1024;

/// A lease with at most this many nodes can share a change with other leases. A lease with more has
/// its own change, which names a common subtree. The lessor then searches copies by that subtree
/// too.
pub(crate) const FEW_NODES: usize = 16;

/// The most nodes of several leases that share one change. Even with the longest paths, such a
/// change fits into an answer to a watcher.
const NODES_PER_CHANGE: usize = 1024;

/// The attached nodes by lease. This table is derived from the nodes and the leases. It exists
/// because the end of a lease must not scan all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Attachments {
    nodes: BTreeMap<Incarnation, Nodes>,
    /// The ended leases whose nodes still exist.
    orphans: BTreeSet<Incarnation>,
    /// The leases whose nodes are purged, but not all reclaimed yet. Each has a row.
    pub(super) tombstones: BTreeSet<Incarnation>,
    /// The orphaned leases that ended because their session was closed. Each has a row.
    pub(super) closed_session_orphans: BTreeSet<Incarnation>,
}

/// Nodes to purge with one change.
#[derive(Debug, Default)]
struct PurgeBatch {
    /// The leases to which the nodes are attached.
    leases: Vec<Incarnation>,
    /// Each node, with the reason of its removal.
    nodes: Vec<(NodePath, ChangeReason)>,
    /// The lists of children that contain the nodes, with the number of these nodes in each.
    lists: BTreeMap<NodePath, u64>,
}

impl PurgeBatch {
    /// Adds the nodes of one more lease, all in one list.
    fn add(
        &mut self,
        lease: Incarnation,
        list: NodePath,
        nodes: impl ExactSizeIterator<Item = (NodePath, ChangeReason)>,
    ) {
        *self.lists.entry(list).or_default() += nodes.len() as u64;
        self.nodes.extend(nodes);
        self.leases.push(lease);
    }

    /// The changed objects. A returning client drops all objects in these sets. So the sets name
    /// each removed node: a whole list may have other nodes, which stay. For a lease with many
    /// nodes there is one set, their common subtree.
    fn sets(&self) -> Vec<ObjectSet> {
        if self.leases.len() == 1 && self.nodes.len() > FEW_NODES {
            return vec![ObjectSet::Subtree(NodePath::common_ancestor(self.lists.keys()))];
        }
        let own = self.nodes.iter().flat_map(|(path, _)| [Object::data(path.clone()), Object::children(path.clone())]);
        own.chain(self.lists.keys().cloned().map(Object::children)).map(ObjectSet::One).collect()
    }
}

impl Attachments {
    /// Builds the table from the nodes and the leases. Leases with a tombstone are no orphans.
    pub(super) fn of(
        nodes: &BTreeMap<NodePath, NodeRecord>,
        leases: &BTreeMap<AnyLease, LeaseRecord>,
        (tombstones, closed_session_orphans): (BTreeSet<Incarnation>, BTreeSet<Incarnation>),
    ) -> Self {
        let mut attached = Self { tombstones, closed_session_orphans, ..Self::default() };
        for (path, node) in nodes {
            let Some(to) = &node.attachment else { continue };
            attached.insert(path, node);
            let has_lease = leases.get(&to.lease).is_some_and(|lease| lease.incarnation == to.incarnation);
            if !has_lease && !attached.tombstones.contains(&to.incarnation) {
                attached.orphans.insert(to.incarnation);
            }
        }
        attached
    }

    pub(super) fn insert(&mut self, path: &NodePath, node: &NodeRecord) {
        if let Some(to) = &node.attachment {
            let own = self.nodes.entry(to.incarnation);
            own.and_modify(|nodes| nodes.insert(path)).or_insert_with(|| Nodes::One(path.clone()));
        }
    }

    pub(super) fn remove(&mut self, path: &NodePath, node: &NodeRecord, touched: &mut Touched) {
        let Some(to) = &node.attachment else { return };
        if self.nodes.get_mut(&to.incarnation).is_some_and(|nodes| !nodes.remove(path)) {
            self.nodes.remove(&to.incarnation);
        }
        if self.orphans.contains(&to.incarnation) && self.of_lease(to.incarnation).next().is_none() {
            self.take_orphan(to.incarnation, touched);
        }
    }

    /// Removes a lease from the orphaned leases. Returns the reason for the removal of its nodes,
    /// or `None` if the lease had no orphans.
    fn take_orphan(&mut self, lease: Incarnation, touched: &mut Touched) -> Option<ChangeReason> {
        let is_closed = self.closed_session_orphans.remove(&lease);
        if is_closed {
            touched.insert(RowKey::ClosedSessionOrphan(lease));
        }
        let was_orphan = self.orphans.remove(&lease);
        was_orphan.then_some(if is_closed { ChangeReason::Revoked } else { ChangeReason::Expired })
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 4] {
        [self.nodes.len(), self.orphans.len(), self.tombstones.len(), self.closed_session_orphans.len()]
    }

    fn of_lease(&self, incarnation: Incarnation) -> impl Iterator<Item = &NodePath> + use<'_> {
        self.from(incarnation, NodePath::root())
    }

    fn from(&self, incarnation: Incarnation, path: NodePath) -> impl Iterator<Item = &NodePath> + use<'_> {
        self.nodes.get(&incarnation).into_iter().flat_map(move |nodes| nodes.from(path.clone()))
    }

    /// Removes and returns the first nodes of the lease, up to `most`.
    fn take(&mut self, incarnation: Incarnation, most: usize) -> Vec<NodePath> {
        let first = self.nodes.get_mut(&incarnation).and_then(|nodes| nodes.split(most));
        first.unwrap_or_else(|| self.nodes.remove(&incarnation).map(Nodes::into_paths).unwrap_or_default())
    }
}

impl State {
    /// Whether a node in memory exists: its lease must have no tombstone.
    pub(super) fn is_live(&self, node: &NodeRecord) -> bool {
        let tombstones = &self.attachments.tombstones;
        tombstones.is_empty() || node.attachment.as_ref().is_none_or(|to| !tombstones.contains(&to.incarnation))
    }

    /// The nodes that are attached to this incarnation, orphans included, in the order of paths.
    pub fn attached_nodes(&self, incarnation: Incarnation) -> impl Iterator<Item = &NodePath> + use<'_> {
        self.attached_nodes_from(incarnation, NodePath::root())
    }

    /// Like `attached_nodes`, from `path` on.
    pub fn attached_nodes_from(
        &self,
        incarnation: Incarnation,
        path: NodePath,
    ) -> impl Iterator<Item = &NodePath> + use<'_> {
        // If they are purged, they are not examined: they may be many.
        let is_purged = self.attachments.tombstones.contains(&incarnation);
        (!is_purged).then(|| self.attachments.from(incarnation, path)).into_iter().flatten().counted()
    }

    /// The number of nodes that are attached to this incarnation, including nodes that are purged
    /// and not yet reclaimed.
    pub fn attached_node_count(&self, incarnation: Incarnation) -> usize {
        self.attachments.nodes.get(&incarnation).map_or(0, Nodes::len)
    }

    /// Whether the lease has attached nodes or locks.
    pub fn has_dependents(&self, lease: &AnyLease) -> bool {
        let has_any = |incarnation| {
            self.attached_nodes(incarnation).next().is_some() || self.locks_of_lease(incarnation).next().is_some()
        };
        self.leases.get(lease).is_some_and(|lease| has_any(lease.incarnation))
    }

    /// Whether the lease has ended and its nodes still exist.
    pub fn is_orphaned(&self, lease: Incarnation) -> bool {
        self.attachments.orphans.contains(&lease)
    }

    /// The ended leases whose nodes still exist.
    pub fn orphans(&self) -> impl Iterator<Item = Incarnation> + use<'_> {
        self.attachments.orphans.iter().copied().counted()
    }

    /// The lease to which a put attaches the node.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal`] if there is no such lease, or the node cannot be attached to a lease.
    pub(super) fn attachment(
        &self,
        session: SessionId,
        path: &NodePath,
        attach: &Attach,
    ) -> Result<Option<Attachment>, WriteRefusal> {
        let lease = match attach {
            Attach::Nothing => return Ok(None),
            Attach::Unchanged => return Ok(self.node(path).and_then(|node| node.attachment.as_deref().cloned())),
            Attach::Lease(_) | Attach::LeaseNamed(_) | Attach::Session => self.named_lease(session, path, attach),
        };
        let found = lease.and_then(|key| self.leases.get(&key).map(|lease| (key, lease.incarnation)));
        let Some((lease, incarnation)) = found else { return Err(self.no_lease_refusal(path, attach)) };
        let has_children = self.node(path).is_some_and(|node| node.child_count() > 0);
        if has_children || path.is_root() || self.volumes.contains_key(path) {
            return Err(WriteRefusal::NotALeaf { path: path.clone() });
        }
        Ok(Some(Attachment { lease, incarnation }))
    }

    /// The writer's volume leases to which these puts have attached nodes, each once.
    pub(super) fn attached_by<'a>(
        &self,
        writer: SessionId,
        puts: impl IntoIterator<Item = (&'a NodePath, &'a Attach)>,
    ) -> Vec<VolumeLease> {
        let mut leases: Vec<VolumeLease> = Vec::new();
        for (path, _) in puts.into_iter().filter(|(_, attach)| **attach == Attach::Session) {
            let volume = self.volume_of(path).0;
            if leases.iter().any(|lease| lease.volume == *volume) {
                continue;
            }
            if let Some(lease) = self.leases.get(&AnyLease::Volume(writer, volume.clone())) {
                leases.push(VolumeLease { volume: volume.clone(), incarnation: lease.incarnation });
            }
        }
        leases
    }

    /// Checks that the lease has room for one more node, unless the node is attached to it already.
    /// The puts of one transaction do not count each other, so they can exceed the bound.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal::LeaseFull`] if the lease has no room.
    pub(super) fn check_lease_room(&self, path: &NodePath, to: &Attachment) -> Result<(), WriteRefusal> {
        let count = self.attached_node_count(to.incarnation);
        let is_attached =
            |node: &NodeRecord| node.attachment.as_ref().is_some_and(|own| own.incarnation == to.incarnation);
        if count < Self::REMOVED_NODES_MAX || self.node(path).is_some_and(is_attached) {
            return Ok(());
        }
        reached(Bound::RemovedNodes);
        Err(WriteRefusal::LeaseFull { path: path.clone(), got: count as u64, most: Self::REMOVED_NODES_MAX as u64 })
    }

    /// Checks that the nearest existing ancestor is not attached to a lease.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal::Attached`] if it is attached, because attached nodes have no children.
    pub(super) fn check_parent_not_attached(&self, path: &NodePath) -> Result<(), WriteRefusal> {
        let nearest = path.ancestors().find_map(|above| self.node(&above).map(|node| (above, node)));
        match nearest {
            Some((above, node)) if node.attachment.is_some() => Err(WriteRefusal::Attached { path: above }),
            _ => Ok(()),
        }
    }

    /// Records that a change attached a node to the lease.
    pub(super) fn note_attached(&mut self, lease: &AnyLease, revision: Revision, touched: &mut Touched) {
        if let Some(lease) = self.leases.get_mut(lease) {
            lease.attached_at = revision;
        }
        touched.insert(RowKey::Lease(lease.clone()));
    }

    /// Whether consents for the nodes attached up to revision `attached_through` cover all nodes of
    /// the key lease. The caller has checked that it is the [intended](Self::intended) lease.
    pub(super) fn consents_cover_attached(&self, lease: &AnyLease, attached_through: Revision) -> bool {
        let is_complete = self.leases.get(lease).is_none_or(|lease| lease.attached_at <= attached_through);
        is_complete || !self.has_dependents(lease)
    }

    /// The lists of children that contain the nodes of a lease, with the number of these nodes in
    /// each.
    pub fn attached_parent_counts(&self, incarnation: Incarnation) -> BTreeMap<NodePath, u64> {
        let mut lists: BTreeMap<NodePath, u64> = BTreeMap::new();
        let mut last: Option<(NodePath, u64)> = None;
        for path in self.attached_nodes(incarnation) {
            match &mut last {
                Some((parent, count)) if parent.is_parent_of(path) => *count += 1,
                _ => {
                    let next = path.parent().map(|parent| (parent, 1));
                    if let Some((parent, count)) = std::mem::replace(&mut last, next) {
                        *lists.entry(parent).or_default() += count;
                    }
                }
            }
        }
        if let Some((parent, count)) = last {
            *lists.entry(parent).or_default() += count;
        }
        lists
    }

    /// Records that the lease ended because its session was closed, so its nodes did not expire.
    pub(super) fn note_session_closed(&mut self, incarnation: Incarnation, touched: &mut Touched) {
        if self.attachments.orphans.contains(&incarnation) {
            self.attachments.closed_session_orphans.insert(incarnation);
            touched.insert(RowKey::ClosedSessionOrphan(incarnation));
        }
    }

    /// Ends the lease. Its locks end too, and its nodes become orphans.
    pub(super) fn end_lease(&mut self, key: &AnyLease, touched: &mut Touched) {
        if let Some(lease) = self.leases.remove(key) {
            self.forget_volume_lease(key);
            if let Some(name) = &lease.name {
                self.lease_names.remove(name);
            }
            touched.insert(RowKey::Lease(key.clone()));
            self.lose_locks(lease.incarnation, touched);
            if self.attached_nodes(lease.incarnation).next().is_some() {
                self.attachments.orphans.insert(lease.incarnation);
                touched.note_orphan(lease.incarnation);
            }
        }
    }

    /// Purges the orphans of these leases. Leases with few nodes, all in one list of children,
    /// share changes. So when all services of a registry end, the history, the disk and the
    /// watchers get only a few changes. Each other lease has its own change.
    pub(super) fn purge_orphans(&mut self, leases: &[Incarnation], touched: &mut Touched) -> Outcome {
        let mut batches: BTreeMap<NodePath, PurgeBatch> = BTreeMap::new();
        let (mut removed, mut last) = (0, NodePath::root());
        for incarnation in leases {
            let Some(reason) = self.attachments.take_orphan(*incarnation, touched) else { continue };
            let Some((list, nodes)) = self.few_attached_nodes(*incarnation, &last) else {
                removed += self.purge(self.purge_batch(*incarnation, reason), touched);
                continue;
            };
            last.clone_from(&list);
            let batch = batches.entry(list.clone()).or_default();
            if batch.nodes.len() + nodes.len() > NODES_PER_CHANGE {
                removed += self.purge(std::mem::take(batch), touched);
            }
            batch.add(*incarnation, list, nodes.into_iter().map(|path| (path, reason)));
        }
        for batch in batches.into_values() {
            removed += self.purge(batch, touched);
        }
        Outcome::Purged { nodes: removed }
    }

    /// Purges the nodes of a revoked lease with one change. Returns their number.
    pub(super) fn purge_revoked(&mut self, incarnation: Incarnation, touched: &mut Touched) -> u64 {
        self.attachments.take_orphan(incarnation, touched);
        self.purge(self.purge_batch(incarnation, ChangeReason::Revoked), touched)
    }

    /// The batch that removes all nodes of a lease.
    fn purge_batch(&self, incarnation: Incarnation, reason: ChangeReason) -> PurgeBatch {
        let nodes = self.attached_nodes(incarnation).map(|path| (path.clone(), reason)).collect();
        PurgeBatch { leases: vec![incarnation], nodes, lists: self.attached_parent_counts(incarnation) }
    }

    /// The nodes of a lease and their list of children, if they are few and in one list. `last` is
    /// the list of the previous lease, which is usually the same list.
    fn few_attached_nodes(&self, incarnation: Incarnation, last: &NodePath) -> Option<(NodePath, Vec<NodePath>)> {
        let nodes: Vec<NodePath> = self.attached_nodes(incarnation).take(FEW_NODES + 1).cloned().collect();
        let first = nodes.first()?;
        let list = if last.is_parent_of(first) { last.clone() } else { first.parent()? };
        let are_few = nodes.len() <= FEW_NODES && nodes.iter().all(|path| list.is_parent_of(path));
        are_few.then_some((list, nodes))
    }

    /// Purges the nodes of ended leases with one change. Returns their number.
    fn purge(&mut self, batch: PurgeBatch, touched: &mut Touched) -> u64 {
        if batch.lists.is_empty() {
            return 0;
        }
        let sets = batch.sets();
        let revision = self.meta.revision.next();
        self.meta.revision = revision;
        let now = self.moment(revision);
        for (parent, count) in &batch.lists {
            if let Some(node) = self.nodes.get_mut(parent) {
                node.remove_children(*count, now);
                touched.insert(RowKey::Node(parent.clone()));
            }
        }
        self.uncount_purged(&batch);
        for (path, reason) in batch.nodes.into_iter().rev() {
            self.note_event(path, EventKind::Delete, reason);
        }
        touched.extend(batch.leases.iter().copied().map(RowKey::Tombstone));
        self.attachments.tombstones.extend(batch.leases);
        self.note_change(sets, touched);
        batch.lists.values().sum()
    }

    /// Counts the nodes as removed from their volumes. No attached node is the top of a volume, so
    /// each is in the volume of its parent.
    fn uncount_purged(&mut self, batch: &PurgeBatch) {
        let mut rest = batch.nodes.iter().map(|(path, _)| path).peekable();
        while let Some(list) = rest.peek().and_then(|path| path.parent()) {
            let mut removed = VolumeUse::default();
            while let Some(path) = rest.next_if(|path| list.is_parent_of(path)) {
                self.nodes.get(path).into_iter().for_each(|node| removed.add(node.used(path)));
            }
            self.use_shrank(&list, removed);
        }
    }

    /// Reclaims the memory of some purged nodes.
    pub(super) fn reclaim_purged(&mut self, touched: &mut Touched) {
        // With more tombstones, one entry reclaims more. Otherwise a million leases of few nodes
        // that end at once would take memory until a million entries later.
        let mut room = RECLAIMED_PER_ENTRY.max(self.attachments.tombstones.len() * 2);
        while room > 0
            && let Some(incarnation) = self.attachments.tombstones.first().copied()
        {
            let removed = self.attachments.take(incarnation, room);
            let count = removed.len();
            for path in removed {
                self.nodes.remove(&path);
                touched.insert(RowKey::Node(path));
            }
            if count == room {
                return;
            }
            self.attachments.tombstones.remove(&incarnation);
            touched.insert(RowKey::Tombstone(incarnation));
            // A lease costs time even if all its nodes have been written again since.
            room -= count.max(1);
        }
    }

    /// Checks that attached nodes, their leases and the derived table are consistent.
    pub(super) fn check_attachments(&self) -> Result<(), String> {
        let (tombstones, closed) =
            (self.attachments.tombstones.clone(), self.attachments.closed_session_orphans.clone());
        if self.attachments != Attachments::of(&self.nodes, &self.leases, (tombstones, closed)) {
            return Err("the table of attached nodes does not match the nodes".to_owned());
        }
        if let Some(lease) =
            self.attachments.closed_session_orphans.iter().find(|lease| !self.attachments.orphans.contains(lease))
        {
            return Err(format!("lease {lease} ended with its session and has no orphans: expected no row for it"));
        }
        for (path, node) in &self.nodes {
            let Some(to) = &node.attachment else { continue };
            if node.child_count() > 0 || path.is_root() || self.volumes.contains_key(path) {
                return Err(format!("node {path} is attached to {:?}, and is a volume or has children", to.lease));
            }
            let lease = self.leases.get(&to.lease).filter(|lease| lease.incarnation == to.incarnation);
            if let Some(lease) = lease.filter(|lease| lease.attached_at < node.create_revision) {
                return Err(format!(
                    "node {path} is attached to {:?} and was created at revision {}: no node was attached after {}",
                    to.lease, node.create_revision, lease.attached_at
                ));
            }
            if to.owner().is_none() || to.incarnation >= self.meta.next_incarnation {
                return Err(format!("node {path} is attached to {:?}, which cannot have nodes", to.lease));
            }
        }
        Ok(())
    }
}

mod nodes;
#[cfg(test)]
mod tests;
