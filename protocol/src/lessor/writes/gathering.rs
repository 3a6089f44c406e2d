//! Gathers consents for a pending write (S2). It finds the sessions that may hold copies of the
//! changed objects, and the sets to recall from each.
//!
//! From each session that may hold an object of the write, the lessor recalls a set that includes
//! this object. There are two exceptions: a writer that dropped the set itself, and was granted
//! nothing in it since (S2w); and a volume with `OnWrite::Wait`, where the write waits for the ends
//! of the leases. A recall may name more than the write covers: the holder then drops more. A
//! recall of a subtree may go even to a writer that dropped every copy.
//!
//! A *claim* is one set and one session that may hold an object of it. While the claims are few,
//! the recalls name each set. But one write, such as a purge of the nodes of many leases, can have
//! thousands of sets. Thousands of sessions can hold them. So many claims would block the leader
//! (S10b). With more claims than [`claims_max`](super::LessorBounds::claims_max), the recalls name
//! a few subtrees that include the sets. This module does not know the order of writes, or how
//! consents are handled.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::Write,
    id::{Incarnation, SessionId, Stamp, WriteLeaseId},
    lease_policy::OnWrite,
    object::{Object, ObjectSet, SETS_MAX, merge_sets_to},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    state::{FEW_NODES, State},
    time::ClusterTime,
    work::visit,
};

use super::{
    super::{Lessor, StepContext, object_leases::volumes_of, recalls::NewRecall},
    ClientWrite, ConsentWait, PendingWrite, PendingWriteId,
};

/// The recall to send to one session for one write, and the leases that bound the write's wait for
/// it.
#[derive(Default)]
pub(in crate::lessor) struct RecallPlan {
    pub(in crate::lessor) sets: BTreeSet<ObjectSet>,
    leases: BTreeMap<NodePath, Incarnation>,
    /// When the last of the object leases ends. Ignored if the end of any of them is unknown
    /// (`is_bounded_by_volume`): then only a consent or the end of the volume leases ends the wait.
    expires_at: Option<ClusterTime>,
    is_bounded_by_volume: bool,
    /// Whether the session must be asked. False if all its sets are in volumes whose writes send no
    /// recall, and it is not the writer.
    needs_recall: bool,
    /// The newest of the session's write leases on the write's data.
    pub(in crate::lessor) write_lease: Option<WriteLeaseId>,
}

impl RecallPlan {
    /// Adds a volume lease under which the session may have copies, and asks the session for its
    /// consent. `expires_at` is when its last object lease ends, if that is known.
    pub(in crate::lessor) fn add(
        &mut self,
        volume: NodePath,
        incarnation: Incarnation,
        expires_at: Option<ClusterTime>,
    ) {
        self.needs_recall = true;
        self.add_unasked(volume, incarnation, expires_at);
    }

    /// As [`RecallPlan::add`], without a recall of its own.
    fn add_unasked(&mut self, volume: NodePath, incarnation: Incarnation, expires_at: Option<ClusterTime>) {
        self.leases.insert(volume, incarnation);
        self.is_bounded_by_volume |= expires_at.is_none();
        self.expires_at = self.expires_at.max(expires_at);
    }
}

/// The recalls to send to all sessions for one write.
#[derive(Default)]
pub(in crate::lessor) struct RecallPlans {
    pub(in crate::lessor) by_session: BTreeMap<SessionId, RecallPlan>,
    writer: Option<WriterCopies>,
    /// The volumes whose writes send no recall ([`OnWrite::Wait`]), each with the time at which
    /// every object lease in it that exists now has ended. The lessor grants no lease on the
    /// write's objects meanwhile (S3). So every object lease on them has ended by then, also those
    /// that an earlier leader granted.
    waited_out: BTreeMap<NodePath, ClusterTime>,
}

/// The writer: the copies that it dropped when it sent the write, and the highest stamp that it
/// had seen (S2w).
struct WriterCopies {
    session: SessionId,
    dropped: Vec<ObjectSet>,
    seen: Stamp,
}

/// The sets of a write that holders may have copies of.
#[derive(Default)]
struct ChangedSets {
    /// The write's sets, and the objects of nodes of leases with few nodes.
    sets: Vec<ObjectSet>,
    /// Leases with more than [`FEW_NODES`] attached nodes. The copies of the nodes of one lease are
    /// searched together.
    large: Vec<Incarnation>,
    /// By volume: `sets`, and the subtrees below the parents of nodes attached to `large` leases.
    by_volume: BTreeMap<NodePath, BTreeSet<ObjectSet>>,
}

/// One holder with known copies in a set: the session, the volume of its lease, when its last
/// object lease in the set ends, and the set.
type KnownHolder = (SessionId, NodePath, ClusterTime, ObjectSet);

impl Lessor {
    /// Asks each session that may hold an object of the write for its consent, or waits for its
    /// leases (S2). Proposes the write if it need not wait. A flush needs no consents: no other
    /// session has had a copy since the write lease was applied (S10).
    pub(in crate::lessor) fn gather(&mut self, write_id: PendingWriteId, cx: &mut StepContext<'_>) {
        let Some(pending) = self.writes.get_mut(write_id) else { return };
        pending.gathered_at = cx.state.revision();
        let (footprint, leases) = (pending.footprint.clone(), pending.purged_leases().clone());
        // A purge recalls even in volumes with `OnWrite::Wait`. At most `purges_max` purges gather
        // at a time in one set of volumes, so a slow one would hold up the next ones. A write that
        // lacked consents recalls too: to wait twice would take longer than a volume term, also for
        // the writes behind it.
        let may_wait = pending.client_write().is_some() && !pending.was_uncovered;
        let writer = |request: &ClientWrite| WriterCopies {
            session: request.session,
            dropped: request.dropped.clone(),
            seen: match self.config.planted.has(Bug::ExemptWriterWithoutStamp) {
                true => Stamp { sequence: u64::MAX, ..request.seen },
                false => request.seen,
            },
        };
        let mut plans = RecallPlans { writer: pending.client_write().map(writer), ..RecallPlans::default() };
        if let Some(request) = pending.client_write() {
            if let Write::Flush { .. } = request.write {
                return self.propose_ready(vec![write_id], None);
            }
            let write = request.write.clone();
            self.claim_write_leases(&write, &footprint, &mut plans, cx.state);
        }
        let changed = self.changed_with(footprint, &leases, cx.state);
        if may_wait {
            plans.waited_out = self.waited_out(changed.by_volume.keys(), cx.state);
        }
        self.claim_from_known(&changed, &mut plans, cx.state);
        self.claim_from_coverings(&changed, &mut plans);
        let writer = plans.writer.as_ref().map(|writer| writer.session);
        for (volume, sets) in &changed.by_volume {
            self.terms_by_use.note_write(volume, sets.iter(), writer, cx.now);
        }
        for (holder, plan) in plans.by_session {
            self.recall(write_id, holder, plan, cx);
        }
        self.propose_ready(vec![write_id], None);
    }

    /// Collects the sets of the write, and the objects of the nodes attached to these leases.
    fn changed_with(&self, footprint: Vec<ObjectSet>, leases: &BTreeSet<Incarnation>, state: &State) -> ChangedSets {
        let mut changed = ChangedSets { sets: footprint, ..ChangedSets::default() };
        for lease in leases {
            let nodes: Vec<&NodePath> = state.attached_nodes(*lease).take(FEW_NODES + 1).collect();
            if nodes.len() <= FEW_NODES {
                changed.sets.extend(nodes.into_iter().flat_map(objects_of).map(ObjectSet::One));
                continue;
            }
            changed.large.push(*lease);
            for list in state.attached_parent_counts(*lease).into_keys() {
                // No attached node is the top of a volume, so each is in the volume of its parent.
                let volume = state.volume_of(&list).0.clone();
                changed.by_volume.entry(volume).or_default().insert(ObjectSet::Subtree(list));
            }
        }
        for set in &changed.sets {
            for volume in volumes_of(set, state) {
                changed.by_volume.entry(volume.clone()).or_default().insert(set.clone());
            }
        }
        changed
    }

    /// Those of the volumes whose writes send no recall, with the time at which all object leases
    /// that exist now have ended.
    fn waited_out<'a>(
        &self,
        volumes: impl Iterator<Item = &'a NodePath>,
        state: &State,
    ) -> BTreeMap<NodePath, ClusterTime> {
        let now = self.clock.ending_time();
        let waits = volumes.filter_map(|top| {
            let settings = state.volume(top)?.settings;
            let is_waited_out = !settings.on_write().recalls();
            is_waited_out.then(|| (top.clone(), now.after(settings.longest_object_wait(self.config.drift))))
        });
        waits.collect()
    }

    /// Claims the changed sets from each session with known copies in them.
    fn claim_from_known(&mut self, changed: &ChangedSets, plans: &mut RecallPlans, state: &State) {
        let known = self.known_copies(changed, state).unwrap_or_else(|| {
            reached(Bound::Claims);
            let merged = merge_sets_to(changed.by_volume.values().flatten().cloned(), SETS_MAX);
            let known = merged.iter().filter_map(|set| self.known_in(set, usize::MAX)).flat_map(|(_, known)| known);
            // Merged subtrees may include other volumes. The write must not wait for a session that
            // has copies only there, because its leases may last longer.
            known.filter(|(_, volume, ..)| changed.by_volume.contains_key(volume)).collect()
        });
        for (holder, volume, expires_at, set) in known {
            self.claim(&set, (holder, &volume, Some(expires_at)), plans);
        }
    }

    /// The known copies in each changed set. `None` if there are more than `SETS_MAX` sets, and the
    /// search would examine more than `claims_max` entries.
    fn known_copies(&self, changed: &ChangedSets, state: &State) -> Option<Vec<KnownHolder>> {
        let mut budget = self.config.bounds.claims_max;
        let mut known = Vec::new();
        // The bound applies only to more than `SETS_MAX` sets. Fewer sets are claimed one by one.
        let is_bounded = changed.sets.len() > SETS_MAX;
        for set in &changed.sets {
            let (examined, holders) = self.known_in(set, if is_bounded { budget } else { usize::MAX })?;
            budget -= if is_bounded { examined } else { 0 };
            known.extend(holders);
        }
        for lease in &changed.large {
            let copies = self.copies_of(*lease, budget, state)?;
            budget = budget.checked_sub(copies.len())?;
            known.extend(copies);
        }
        Some(known)
    }

    /// The number of entries that the search examined, and the known copies in the set. `None` if
    /// it would examine more than `most` entries.
    fn known_in(&self, set: &ObjectSet, most: usize) -> Option<(usize, Vec<KnownHolder>)> {
        let (examined, holders) = self.object_leases.few_exact_holders(set, self.clock.ending_time(), most)?;
        let known = holders.into_iter().map(|((holder, volume), expires_at)| (holder, volume, expires_at, set.clone()));
        Some((examined, known.collect()))
    }

    /// The known copies of the nodes attached to one large lease. It scans all copies in their
    /// common subtree. If the subtree has more than twice as many copies as the lease has nodes, it
    /// looks up each node instead. `None` if it would examine more than `most` entries or objects.
    fn copies_of(&self, lease: Incarnation, most: usize, state: &State) -> Option<Vec<KnownHolder>> {
        let subtree = ObjectSet::Subtree(NodePath::common_ancestor(state.attached_parent_counts(lease).keys()));
        let objects_count = 2 * state.attached_node_count(lease);
        let scanned = self.object_leases.few_leases_in(std::iter::once(subtree), most.min(objects_count));
        let copies = match scanned {
            Some(copies) => copies,
            None if objects_count > most => return None,
            None => {
                let objects = state.attached_nodes(lease).flat_map(objects_of).map(ObjectSet::One);
                self.object_leases.few_leases_in(objects, most)?
            }
        };
        let now = self.clock.ending_time();
        let is_attached = |path: &NodePath| {
            let node = state.node(path).and_then(|node| node.attachment.as_ref());
            node.is_some_and(|to| to.incarnation == lease)
        };
        let copies =
            copies.into_iter().filter(|((object, _), lease)| lease.expires_at > now && is_attached(&object.path));
        let volume = |object: &Object| state.volume_of(&object.path).0.clone();
        let known = copies.map(|((object, holder), lease)| {
            (*holder, volume(object), lease.expires_at, ObjectSet::One(object.clone()))
        });
        Some(known.collect())
    }

    /// Claims the changed sets from the covering holders of their volumes.
    fn claim_from_coverings(&mut self, changed: &ChangedSets, plans: &mut RecallPlans) {
        let mut coverings: BTreeMap<&NodePath, Vec<(SessionId, Option<ClusterTime>)>> = BTreeMap::new();
        for volume in changed.by_volume.keys() {
            coverings.insert(volume, self.object_leases.coverings_of(volume, self.clock.ending_time()).collect());
        }
        let sessions: usize = coverings.values().map(Vec::len).sum();
        // Up to `SETS_MAX` sets are claimed one by one, even if very many sessions may hold them.
        let least = if changed.sets.len() <= SETS_MAX { SETS_MAX } else { 1 };
        let most = (self.config.bounds.claims_max / sessions.max(1)).max(least);
        let writer = plans.writer.as_ref().map(|writer| writer.session);
        for (volume, holders) in coverings {
            let Some(sets) = changed.by_volume.get(volume).filter(|_| !holders.is_empty()) else { continue };
            let merged = (sets.len() > most).then(|| {
                reached(Bound::Claims);
                // A lease on the volume protects only copies at and below the volume's top.
                let within = |set: ObjectSet| match set.path().contains(volume) {
                    true => ObjectSet::Subtree(volume.clone()),
                    false => set,
                };
                merge_sets_to(sets.iter().cloned(), most).into_iter().map(within).collect::<BTreeSet<_>>()
            });
            for (holder, expires_at) in holders {
                // Not merged for the writer: `claim` checks for each set whether the writer has
                // dropped it.
                let claimed = merged.as_ref().filter(|_| Some(holder) != writer).unwrap_or(sets);
                for set in claimed {
                    self.claim(set, (holder, volume, expires_at), plans);
                }
            }
        }
    }

    /// Claims a set from a holder, unless the holder is the writer and is exempt (S2w).
    fn claim(
        &mut self,
        set: &ObjectSet,
        (holder, volume, expires_at): (SessionId, &NodePath, Option<ClusterTime>),
        plans: &mut RecallPlans,
    ) {
        visit(1);
        if let Some(WriterCopies { session, dropped, seen }) = &plans.writer
            && holder == *session
            && self.is_exempt(holder, volume, set, dropped, *seen)
        {
            return self.object_leases.drop_through(set, holder, seen.sequence);
        }
        let Some(track) = self.object_leases.track(volume, holder) else { return };
        let plan = plans.by_session.entry(holder).or_default();
        // The lessor asks a writer that is not exempt, whatever the policy of the volume. Otherwise
        // the write would wait for the ends of its own writer's leases.
        let is_writer = plans.writer.as_ref().is_some_and(|writer| writer.session == holder);
        match plans.waited_out.get(volume).filter(|_| !is_writer) {
            None => plan.add(volume.clone(), track.incarnation, expires_at),
            Some(end) => {
                let expires_at = expires_at.map_or(*end, |expires_at| expires_at.min(*end));
                plan.add_unasked(volume.clone(), track.incarnation, Some(expires_at));
            }
        }
        plan.sets.insert(set.clone());
    }

    /// Recalls the claimed sets from a session, unless the write only waits. With more than
    /// `recall_sets_max` sets, the recall names subtrees that include them.
    fn recall(&mut self, write_id: PendingWriteId, holder: SessionId, plan: RecallPlan, cx: &mut StepContext<'_>) {
        let RecallPlan { sets, leases, expires_at, is_bounded_by_volume, needs_recall, write_lease } = plan;
        let Some(epoch) = self.epoch else { return };
        let expires_at = expires_at.filter(|_| !is_bounded_by_volume);
        leases.keys().for_each(|volume| self.terms_by_use.note_lease_found_by_write(volume));
        if !needs_recall {
            let wait = ConsentWait { stamp: None, leases, expires_at, sets_recalled: 0 };
            return self.writes.wait(write_id, holder, wait);
        }
        let most = self.config.bounds.recall_sets_max;
        let sets = match sets.len() > most {
            true => {
                reached(Bound::RecallSets);
                merge_sets_to(sets, most)
            }
            false => sets,
        };
        let offers_next_values = self.offers_next_values(write_id, leases.keys(), cx.state);
        let made = NewRecall {
            sets: sets.into_iter().collect(),
            volumes: leases.keys().cloned().collect(),
            offers_next_values,
            write_lease,
        };
        let (stamp, sets_recalled) = self.recall_sets(holder, epoch, made, cx);
        self.writes.wait(write_id, holder, ConsentWait { stamp: Some(stamp), leases, expires_at, sets_recalled });
    }

    /// Whether the holder may ask for the value that the write leaves: if it writes values, and all
    /// these volumes want it ([`OnWrite::Update`]).
    fn offers_next_values<'a>(
        &self,
        write_id: PendingWriteId,
        mut volumes: impl Iterator<Item = &'a NodePath>,
        state: &State,
    ) -> bool {
        let request = self.writes.get(write_id).and_then(PendingWrite::client_write);
        let leaves_value = request.is_some_and(|request| {
            matches!(request.write, Write::Put { .. } | Write::Delete { .. } | Write::Transaction(_))
        });
        let is_update = |top| state.volume(top).is_some_and(|volume| volume.settings.on_write() == OnWrite::Update);
        leaves_value && volumes.all(is_update)
    }

    /// Whether the writer needs no recall of this set (S2w). It dropped the set when it sent the
    /// write, and named a stamp of this epoch. No later grant to it is in the set.
    fn is_exempt(
        &self,
        writer: SessionId,
        volume: &NodePath,
        set: &ObjectSet,
        dropped: &[ObjectSet],
        seen: Stamp,
    ) -> bool {
        if !dropped.iter().any(|dropped| dropped.includes(set)) {
            return false;
        }
        let is_covering = self.object_leases.track(volume, writer).is_some_and(|track| track.is_covering());
        let last_grant = if is_covering {
            self.recall_channels.get(&writer).map_or(0, |channel| channel.last_grant())
        } else {
            self.object_leases.newest_of(set, writer)
        };
        Some(seen.epoch) == self.epoch && last_grant <= seen.sequence
    }
}

/// A node's two objects: data and children.
fn objects_of(path: &NodePath) -> [Object; 2] {
    [Object::data(path.clone()), Object::children(path.clone())]
}
