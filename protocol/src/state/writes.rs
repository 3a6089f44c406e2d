//! Writes: their footprints, and their effects (S2, S8 in docs/PROTOCOL.md).
//!
//! Computing the [footprint](State::footprint) of a write makes all checks but that of the
//! [quota](State::check_quota). If both accept the write, applying it cannot fail. The lessor
//! gathers consents for the footprint (S2), and the history stores it.
//!
//! # Why a volume's creation, change and removal write to the whole subtree
//!
//! A copy is valid under two leases. The object's volume at the time of the grant determines the
//! volume lease, its term and the server's margin (S8). So:
//!
//! - *Creation* moves all nodes of the subtree to the new volume. An older copy depends on a lease
//!   on the old volume, and later writes of the node do not wait for that lease.
//! - *Change* alters how long a write waits. Clients must drop copies that were granted under a
//!   longer term or a smaller margin, before the server uses the new values.
//! - *Removal* moves the nodes back and ends the leases on the volume. By then no client may use
//!   copies under one of these leases.
//!
//! So for each of these, the lessor recalls the whole subtree with its inner volumes. Clients
//! refuse grants of the older generation.

use super::{NodeRecord, RowKey, State, VolumeRecord, touched::Touched};
use crate::{
    command::{AnyLease, Attach, Condition, IntendedLeases, Write, WriteRefusal, Written},
    id::{Revision, SessionId},
    object::{Object, ObjectSet, Stat, Value, compact_sets},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    volume::VolumeSettings,
};

impl State {
    /// The objects that the write would change if it were applied now, as sets of objects.
    ///
    /// A subtree may include objects that would not change. [`Write::TakeWriteLease`] has the same
    /// footprint as a write of the node's data, because all other sessions must drop their copies.
    /// The footprint does not include the nodes of a revoked lease: see [`State::attached_nodes`]
    /// and [`State::attached_parent_counts`].
    ///
    /// # Errors
    ///
    /// [`WriteRefusal`] if the write would be refused, for example because a lease or volume is not
    /// the [intended](State::intended) one.
    pub fn footprint(
        &self,
        writer: SessionId,
        write: &Write,
        intended: &IntendedLeases,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        match write {
            Write::Put { path, condition, attach, .. } => {
                self.put_footprint(writer, (path, attach), *condition, intended)
            }
            Write::Delete { path, recursive, condition } => self.delete_footprint(path, *recursive, *condition),
            Write::CreateVolume { path, .. } => self.create_volume_footprint(path),
            Write::SetVolume { path, .. } => {
                self.check_volume(path, intended)?;
                Ok(vec![ObjectSet::Subtree(path.clone())])
            }
            Write::RemoveVolume { path } => {
                if path.is_root() {
                    return Err(WriteRefusal::Root { path: path.clone() });
                }
                self.check_volume(path, intended)?;
                self.check_volume_unused(path)?;
                Ok(vec![ObjectSet::Subtree(path.clone())])
            }
            Write::GrantLease { id, name, .. } => self.check_grant(*id, name.as_ref()).map(|()| Vec::new()),
            Write::RevokeLease { .. } | Write::RevokeLeaseNamed { .. }
                if self.revoked_lease(write).is_some_and(|id| self.is_intended(&AnyLease::KeyLease(id), intended)) =>
            {
                Ok(Vec::new())
            }
            Write::RevokeLease { id, .. } => Err(WriteRefusal::LeaseNotFound { id: *id }),
            Write::RevokeLeaseNamed { name } => Err(WriteRefusal::LeaseNameNotFound { name: name.clone() }),
            Write::Lock { path, mode, wait, .. } => {
                self.check_lock_request(writer, path, (*mode, *wait), intended).map(|()| Vec::new())
            }
            Write::ChangeLockMode { path, lock, mode, wait } => {
                self.check_lock_mode_change(writer, path, *lock, *mode, *wait).map(|()| Vec::new())
            }
            Write::Unlock { path, lock } => self.check_own_lock(writer, path, *lock).map(|_| Vec::new()),
            Write::Transaction(transaction) => self.transaction_footprint(writer, transaction, intended),
            Write::TakeWriteLease { path, lock } => self.write_lease_footprint(writer, path, *lock),
            Write::Flush { path, lock, token, value, .. } => {
                self.flush_footprint(writer, (path, *lock, *token), value.is_some())
            }
            Write::HandOver { path, lock, successor } => {
                self.check_hand_over(writer, path, *lock, *successor).map(|()| Vec::new())
            }
        }
    }

    pub(super) fn put_footprint(
        &self,
        writer: SessionId,
        (path, attach): (&NodePath, &Attach),
        condition: Condition,
        intended: &IntendedLeases,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        self.check_condition(path, condition)?;
        self.check_intended(writer, path, attach, intended)?;
        if let Some(to) = self.attachment(writer, path, attach)? {
            self.check_lease_room(path, &to)?;
        }
        let mut sets = vec![ObjectSet::One(Object::data(path.clone()))];
        if self.node(path).is_none() {
            self.check_parent_not_attached(path)?;
            sets.push(ObjectSet::One(Object::children(path.clone())));
            self.add_created_parents(path, &mut sets);
        }
        Ok(sets)
    }

    pub(super) fn delete_footprint(
        &self,
        path: &NodePath,
        recursive: bool,
        condition: Condition,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        let Some(node) = self.node(path) else {
            return Err(WriteRefusal::NotFound { path: path.clone() });
        };
        let Some(parent) = path.parent() else {
            return Err(WriteRefusal::Root { path: path.clone() });
        };
        if node.child_count() > 0 && !recursive {
            return Err(WriteRefusal::HasChildren { path: path.clone(), children: node.child_count() });
        }
        self.check_condition(path, condition)?;
        if let Some((volume, _)) = self.volumes_below(path).next() {
            return Err(WriteRefusal::ContainsVolume { path: path.clone(), volume: volume.clone() });
        }
        let count = self.count_nodes_in(path, Self::REMOVED_NODES_MAX);
        if count > Self::REMOVED_NODES_MAX {
            reached(Bound::RemovedNodes);
            return Err(too_many_to_remove(path, count));
        }
        let siblings = ObjectSet::One(Object::children(parent));
        if node.child_count() > 0 && !self.planted.has(Bug::DeleteSparesDescendants) {
            return Ok(vec![ObjectSet::Subtree(path.clone()), siblings]);
        }
        let own = [Object::data(path.clone()), Object::children(path.clone())].map(ObjectSet::One);
        Ok(own.into_iter().chain([siblings]).collect())
    }

    fn create_volume_footprint(&self, path: &NodePath) -> Result<Vec<ObjectSet>, WriteRefusal> {
        if self.volumes.contains_key(path) {
            return Err(WriteRefusal::VolumeExists { path: path.clone() });
        }
        let mut sets = vec![ObjectSet::Subtree(path.clone())];
        if let Some(node) = self.node(path) {
            if node.attachment.is_some() {
                return Err(WriteRefusal::Attached { path: path.clone() });
            }
        } else {
            self.check_parent_not_attached(path)?;
            self.add_created_parents(path, &mut sets);
        }
        Ok(sets)
    }

    /// Adds the changes above a created node: the created ancestors, and the list that contains the
    /// topmost created node.
    fn add_created_parents(&self, path: &NodePath, sets: &mut Vec<ObjectSet>) {
        for ancestor in path.ancestors() {
            let is_created = self.node(&ancestor).is_none();
            sets.push(ObjectSet::One(Object::children(ancestor.clone())));
            if !is_created {
                return;
            }
            sets.push(ObjectSet::One(Object::data(ancestor)));
        }
    }

    fn check_condition(&self, path: &NodePath, condition: Condition) -> Result<(), WriteRefusal> {
        match (condition, self.node(path)) {
            (Condition::Any, _) | (Condition::Absent, None) => Ok(()),
            (Condition::Absent, Some(node)) => {
                Err(WriteRefusal::Exists { path: path.clone(), create_revision: node.create_revision })
            }
            (Condition::Revision(_), None) => Err(WriteRefusal::NotFound { path: path.clone() }),
            (Condition::Revision(expected), Some(node)) if node.modify_revision == expected => Ok(()),
            (Condition::Revision(expected), Some(node)) => {
                Err(WriteRefusal::RevisionDiffers { path: path.clone(), got: node.modify_revision, expected })
            }
        }
    }

    fn check_volume(&self, path: &NodePath, intended: &IntendedLeases) -> Result<(), WriteRefusal> {
        match self.volumes.get(path) {
            Some(_) if self.is_volume_intended(path, intended) => Ok(()),
            Some(_) => Err(WriteRefusal::VolumeReplaced { path: path.clone() }),
            None => {
                let (volume, _) = self.volume_of(path);
                Err(WriteRefusal::NotAVolume { path: path.clone(), volume: volume.clone() })
            }
        }
    }

    /// Refuses to remove a volume whose leases have nodes or locks, because the leases end with it.
    fn check_volume_unused(&self, top: &NodePath) -> Result<(), WriteRefusal> {
        let has_dependents = |session: &SessionId| self.has_dependents(&AnyLease::Volume(*session, top.clone()));
        let user = self.lease_holders_on(top).find(has_dependents);
        user.map_or(Ok(()), |session| Err(WriteRefusal::VolumeInUse { path: top.clone(), session }))
    }

    /// Applies a write that is not refused. `sets` is its footprint.
    pub(super) fn write(
        &mut self,
        writer: SessionId,
        write: &Write,
        sets: Vec<ObjectSet>,
        touched: &mut Touched,
    ) -> Written {
        match write {
            Write::GrantLease { id, name, ttl } => return self.grant_key_lease((*id, name.as_ref()), *ttl, touched),
            Write::RevokeLease { .. } | Write::RevokeLeaseNamed { .. } => {
                let key = self.revoked_lease(write).map(AnyLease::KeyLease);
                let incarnation = key.as_ref().and_then(|key| self.leases.get(key)).map(|lease| lease.incarnation);
                if let Some(key) = key {
                    self.end_lease(&key, touched);
                }
                let removed = incarnation.map_or(0, |lease| self.purge_revoked(lease, touched));
                return Written { revision: self.meta.revision, removed, ..Written::default() };
            }
            Write::Lock { path, mode, delay, .. } => return self.lock(writer, path, (*mode, *delay), touched),
            Write::ChangeLockMode { path, lock, mode, .. } => {
                return self.change_lock_mode(path, *lock, *mode, touched);
            }
            Write::Unlock { lock, .. } => return self.unlock(*lock, touched),
            Write::Transaction(transaction) => return self.transact(writer, transaction, sets, touched),
            Write::TakeWriteLease { lock, .. } => return self.take_write_lease(*lock, touched),
            Write::Flush { path, lock, value, ends_write_lease, .. } => {
                return self.flush(writer, (path, *lock), (value.as_ref(), *ends_write_lease), sets, touched);
            }
            Write::HandOver { lock, successor, .. } => return self.hand_over(*lock, *successor, touched),
            _ => {}
        }
        let revision = self.meta.revision.next();
        self.meta.revision = revision;
        let mut written = Written { revision, ..Written::default() };
        match write {
            Write::Put { path, value, attach, .. } => {
                written.stat = self.put(writer, path, value, attach, revision, touched);
                written.attached = self.attached_by(writer, [(path, attach)]);
            }
            Write::Delete { path, .. } => written.removed = self.remove_nodes(path, revision, touched),
            Write::CreateVolume { path, settings } => {
                if self.node(path).is_none() {
                    let node = NodeRecord::new(Value::new(), self.moment(revision));
                    self.make_node(path, node, touched);
                }
                self.use_moves_to(path);
                self.set_volume(path, Some(*settings), revision, touched);
            }
            Write::SetVolume { path, settings } => {
                self.set_volume(path, Some(*settings), revision, touched);
                self.widen_margins(path, settings, touched);
            }
            Write::RemoveVolume { path } => {
                self.set_volume(path, None, revision, touched);
                self.use_moves_up(path);
                self.remove_leases_on(path, touched);
            }
            // Handled above.
            Write::GrantLease { .. }
            | Write::RevokeLease { .. }
            | Write::RevokeLeaseNamed { .. }
            | Write::Transaction(_)
            | Write::Lock { .. }
            | Write::ChangeLockMode { .. }
            | Write::Unlock { .. }
            | Write::TakeWriteLease { .. }
            | Write::Flush { .. }
            | Write::HandOver { .. } => {}
        }
        self.note_change(compact_sets(sets), touched);
        written
    }

    pub(super) fn put(
        &mut self,
        writer: SessionId,
        path: &NodePath,
        value: &Value,
        attach: &Attach,
        revision: Revision,
        touched: &mut Touched,
    ) -> Option<Stat> {
        let attachment = self.attachment(writer, path, attach).unwrap_or_default();
        // If a put does not change the node's attachment, it attaches nothing.
        let earlier = self.node(path).and_then(|node| node.attachment.as_deref());
        if let Some(to) = attachment.as_ref().filter(|to| earlier != Some(*to)) {
            self.note_attached(&to.lease, revision, touched);
        }
        if self.node(path).is_some() {
            return self.set_node(path, value.clone(), attachment, revision, touched);
        }
        let node = NodeRecord::new(value.clone(), self.moment(revision)).with_attachment(attachment);
        let stat = node.stat();
        self.make_node(path, node, touched);
        Some(stat)
    }

    fn set_volume(
        &mut self,
        top: &NodePath,
        settings: Option<VolumeSettings>,
        revision: Revision,
        touched: &mut Touched,
    ) {
        let before = match settings {
            Some(settings) => {
                let mut volume = VolumeRecord::new(settings, revision);
                volume.create_generation =
                    self.volumes.get(top).map_or(volume.create_generation, |before| before.create_generation);
                self.volumes.insert(top.clone(), volume)
            }
            None => self.volumes.remove(top),
        };
        self.replace_tick(before.map(|volume| volume.settings.tick()), settings.map(|settings| settings.tick()));
        touched.insert(RowKey::Volume(top.clone()));
    }
}

/// The refusal of a delete with more nodes than one command removes.
pub(super) fn too_many_to_remove(path: &NodePath, count: usize) -> WriteRefusal {
    WriteRefusal::TooManyNodes { path: path.clone(), got: count as u64, most: State::REMOVED_NODES_MAX as u64 }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::{command::AnyLease, command::Outcome, id::VolumeGeneration, volume::VolumeSettings};

    fn fixture() -> (Fixture, crate::id::SessionId) {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        (fixture, session)
    }

    fn done(revision: u64, removed: u64) -> Result<Written, WriteRefusal> {
        Ok(Written { revision: Revision(revision), removed, ..Written::default() })
    }

    fn stat(create: u64, modify: u64, version: u64, value_len: u64) -> Option<Stat> {
        let (create_revision, modify_revision) = (Revision(create), Revision(modify));
        Some(Stat { create_revision, modify_revision, version, value_len, owner: None })
    }

    #[test]
    fn a_put_makes_the_nodes_above_it_and_counts_versions() {
        let (mut fixture, session) = fixture();
        let sets = vec![
            data("/a/b/c"),
            children("/a/b/c"),
            children("/a/b"),
            data("/a/b"),
            children("/a"),
            data("/a"),
            children("/"),
        ];
        assert_eq!(fixture.footprint(SessionId(1), &put("/a/b/c", "one")), Ok(sets));
        assert_eq!(fixture.put(session, "/a/b/c", "one").stat, stat(1, 1, 1, 3));
        let made = fixture.state.node(&path("/a/b")).expect("the node was created");
        assert_eq!((made.value.len(), made.attachment.is_none(), made.version), (0, true, 1));
        assert_eq!((made.child_count(), made.children_version(), made.children_revision()), (1, 1, Revision(1)));
        assert_eq!(fixture.footprint(SessionId(1), &put("/a/b/c", "two")), Ok(vec![data("/a/b/c")]));
        assert_eq!(fixture.put(session, "/a/b/c", "three").stat, stat(1, 2, 2, 5));
        assert_eq!(fixture.put(session, "/", "root").stat, stat(0, 3, 2, 4));
    }

    #[test]
    fn a_put_takes_effect_only_if_its_condition_holds() {
        let (mut fixture, session) = fixture();
        fixture.write(session, put_if("/a", "1", Condition::Absent)).expect("the node does not exist");
        let exists = WriteRefusal::Exists { path: path("/a"), create_revision: Revision(1) };
        assert_eq!(fixture.write(session, put_if("/a", "2", Condition::Absent)), Err(exists));
        fixture.write(session, put_if("/a", "2", Condition::Revision(Revision(1)))).expect("the node has revision 1");
        let differs = WriteRefusal::RevisionDiffers { path: path("/a"), got: Revision(2), expected: Revision(1) };
        assert_eq!(fixture.write(session, put_if("/a", "3", Condition::Revision(Revision(1)))), Err(differs));
        let missing = fixture.write(session, put_if("/b", "3", Condition::Revision(Revision(1))));
        assert_eq!(missing, Err(WriteRefusal::NotFound { path: path("/b") }));
        assert_eq!(fixture.state.revision(), Revision(2));
    }

    #[test]
    fn delete_removes_leaf_and_recursive_delete_a_subtree() {
        let (mut fixture, session) = fixture();
        for at in ["/a/b/c", "/a/d", "/a-b"] {
            fixture.put(session, at, "");
        }
        let has_children = WriteRefusal::HasChildren { path: path("/a"), children: 2 };
        assert_eq!(has_children.to_string(), "/a: not empty; expected no children, got 2; use a recursive delete");
        assert_eq!(fixture.write(session, delete("/a", false)), Err(has_children));
        let leaf = vec![data("/a/d"), children("/a/d"), children("/a")];
        assert_eq!(fixture.footprint(SessionId(1), &delete("/a/d", false)), Ok(leaf.clone()));
        assert_eq!(fixture.footprint(SessionId(1), &delete("/a/d", true)), Ok(leaf), "the node has no children");
        assert_eq!(fixture.write(session, delete("/a/d", false)), done(4, 1));
        assert_eq!(fixture.footprint(SessionId(1), &delete("/a", true)), Ok(vec![subtree("/a"), children("/")]));
        assert_eq!(fixture.write(session, delete("/a", true)), done(5, 3));
        assert_eq!(fixture.state.children(&NodePath::root()).expect("the root").names, ["a-b"]);
    }

    #[test]
    fn a_delete_is_refused_with_the_first_reason_that_holds() {
        let (mut fixture, session) = fixture();
        fixture.put(session, "/a/b", "");
        fixture.write(session, create_volume("/a/b/v", 5)).expect("new");
        let delete_if = |at: &str, recursive, condition| Write::Delete { path: path(at), recursive, condition };
        let refusal = |write| fixture.footprint(SessionId(1), &write);
        assert_eq!(refusal(delete("/none", true)), Err(WriteRefusal::NotFound { path: path("/none") }));
        assert_eq!(refusal(delete("/", true)), Err(WriteRefusal::Root { path: path("/") }));
        let differing = Condition::Revision(Revision(9));
        let has_children = WriteRefusal::HasChildren { path: path("/a"), children: 1 };
        assert_eq!(refusal(delete_if("/a", false, differing)), Err(has_children));
        let differs = WriteRefusal::RevisionDiffers { path: path("/a"), got: Revision(1), expected: Revision(9) };
        assert_eq!(refusal(delete_if("/a", true, differing)), Err(differs));
        let exists = WriteRefusal::Exists { path: path("/a"), create_revision: Revision(1) };
        assert_eq!(refusal(delete_if("/a", true, Condition::Absent)), Err(exists));
        let contains_volume = |at: &str| Err(WriteRefusal::ContainsVolume { path: path(at), volume: path("/a/b/v") });
        assert_eq!(refusal(delete("/a", true)), contains_volume("/a"));
        assert_eq!(refusal(delete("/a/b/v", false)), contains_volume("/a/b/v"));
    }

    #[test]
    fn volume_creation_writes_all_it_covers_and_makes_its_node() {
        let (mut fixture, session) = fixture();
        let made = vec![subtree("/a/v"), children("/a"), data("/a"), children("/")];
        assert_eq!(fixture.footprint(SessionId(1), &create_volume("/a/v", 5)), Ok(made));
        assert_eq!(fixture.write(session, create_volume("/a/v", 5)), done(1, 0));
        assert!(fixture.state.node(&path("/a/v")).is_some());
        assert_eq!(fixture.state.volume(&path("/a/v")).expect("a volume").generation, VolumeGeneration(2));
        assert_eq!(
            fixture.footprint(SessionId(1), &create_volume("/a", 5)),
            Ok(vec![subtree("/a")]),
            "its node exists"
        );
        let exists = WriteRefusal::VolumeExists { path: path("/a/v") };
        assert_eq!(fixture.write(session, create_volume("/a/v", 5)), Err(exists));
        assert_eq!(fixture.write(session, create_volume("/", 5)), Err(WriteRefusal::VolumeExists { path: path("/") }));
    }

    #[test]
    fn a_changed_volume_has_a_new_generation_and_keeps_its_leases() {
        let (mut fixture, session) = fixture();
        fixture.write(session, create_volume("/v", 5)).expect("new");
        fixture.acquire(session, "/v/x");
        let set = |at: &str| Write::SetVolume { path: path(at), settings: VolumeSettings::DEFAULT };
        assert_eq!(fixture.footprint(SessionId(1), &set("/v")), Ok(vec![subtree("/v")]));
        assert_eq!(fixture.write(session, set("/v")), done(2, 0));
        let volume = fixture.state.volume(&path("/v")).expect("a volume");
        assert_eq!(
            *volume,
            VolumeRecord {
                settings: VolumeSettings::DEFAULT,
                create_generation: VolumeGeneration(2),
                generation: VolumeGeneration(3)
            }
        );
        assert!(fixture.state.lease(&AnyLease::Volume(session, path("/v"))).is_some());
        let not_a_volume = WriteRefusal::NotAVolume { path: path("/v/x"), volume: path("/v") };
        assert_eq!(fixture.write(session, set("/v/x")), Err(not_a_volume));
    }

    #[test]
    fn a_removed_volume_leaves_its_nodes_and_no_lease() {
        let (mut fixture, session) = fixture();
        let other = fixture.open();
        fixture.write(session, create_volume("/v", 5)).expect("new");
        fixture.put(session, "/v/x", "");
        for holder in [session, other] {
            assert!(matches!(fixture.acquire(holder, "/v/x"), Outcome::VolumeAcquired { .. }));
            fixture.acquire(holder, "/");
        }
        let remove = |at: &str| Write::RemoveVolume { path: path(at) };
        assert_eq!(fixture.footprint(SessionId(1), &remove("/v")), Ok(vec![subtree("/v")]));
        assert_eq!(fixture.write(session, remove("/v")), done(3, 0));
        assert_eq!(fixture.state.volume_of(&path("/v/x")).0, &NodePath::root());
        assert!(fixture.state.node(&path("/v/x")).is_some());
        let on_it = |key: &AnyLease| matches!(key, AnyLease::Volume(_, top) if *top == path("/v"));
        assert!(!fixture.state.leases().any(|(key, _)| on_it(key)));
        assert_eq!(fixture.state.leases().count(), 4, "the session lease and the lease on the root");
        let not_a_volume = WriteRefusal::NotAVolume { path: path("/v"), volume: path("/") };
        assert_eq!(fixture.write(session, remove("/v")), Err(not_a_volume));
        assert_eq!(fixture.write(session, remove("/")), Err(WriteRefusal::Root { path: path("/") }));
    }
}
