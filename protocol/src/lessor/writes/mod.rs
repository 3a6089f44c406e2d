//! Pending writes: they wait for earlier writes, for consents, and for their commit (S2, S3, S7b).
//! A purge of orphans is a write too (S8).
//!
//! On arrival, a write enters the queues of all objects that it may change. From then on the lessor
//! grants no lease on them. It proposes the write when all consents are in, and every earlier write
//! that shares an object is proposed. The log preserves the order, so the next write need not wait
//! for the commit.

pub(super) mod arrival;
mod check;
pub(super) mod gathering;
mod outcome;
mod queues;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::{IntendedLeases, Write},
    id::{Incarnation, LeaseId, RequestId, Revision, Sequence, SessionId, Stamp},
    object::{Object, ObjectSet},
    path::NodePath,
    time::{ClusterTime, Instant},
    work::CountVisits,
};

use self::{queues::WriteQueues, waits::ConsentWaits};
use super::{Requester, counters::Unhashed};

/// Numbers pending writes in the order of arrival.
pub(super) type PendingWriteId = u64;

/// About how many bytes of memory a write takes in addition to its parts.
const PENDING_BYTES: usize = 1 << 10;
/// About how many bytes a part of a transaction takes in addition to its encoding.
const PART_BYTES: usize = 128;
/// About how many bytes a set of objects and its queue entries take in addition to its path.
const SET_BYTES: usize = 192;

/// A write from its arrival to its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PendingWrite {
    pub(super) kind: WriteKind,
    /// The objects for which the lessor gathers consents.
    pub(super) footprint: Vec<ObjectSet>,
    /// The lessor also gathers consents for the nodes that are attached to `purged_leases` at this
    /// revision.
    pub(super) gathered_at: Revision,
    /// The missing consents.
    pub(super) waits: BTreeMap<SessionId, ConsentWait>,
    pub(super) is_proposed: bool,
    pub(super) since: Instant,
    /// About how many bytes of memory it takes. Computed when it enters, and again when `footprint`
    /// changes.
    bytes: usize,
    /// The nearest earlier unproposed writes that it waits for. Each shares an object with
    /// this write, attaches nodes to one of its `purged_leases`, or revokes one of them too.
    ahead: BTreeSet<PendingWriteId>,
    /// For each of its `attaching_leases`: the last earlier revocation or purge. The write waits
    /// until that is proposed, or, if it `was_uncovered`, until it ends. Otherwise a stream of such
    /// writes could make a revocation gather consents for ever (S7b).
    revocations_ahead: BTreeSet<PendingWriteId>,
    /// The volume in whose counters it counts. None for a purge.
    counted_in: Unhashed<Option<NodePath>>,
    /// It was applied once without effect, because its consents did not cover all objects that it
    /// would have changed.
    was_uncovered: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum WriteKind {
    Client(Box<ClientWrite>),
    /// The purge of the nodes that were attached to these ended leases.
    Purge(BTreeSet<Incarnation>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ClientWrite {
    pub(super) session: SessionId,
    pub(super) sequence: Sequence,
    pub(super) unanswered_from: Sequence,
    pub(super) write: Write,
    /// The leases and volumes that its names stood for on arrival (S7b).
    pub(super) intended: IntendedLeases,
    /// The key lease that a revocation ends.
    pub(super) revoked: Option<LeaseId>,
    /// The requests that wait for the answer: more than one if it was sent again.
    pub(super) requesters: Vec<Requester>,
    /// The last of them that arrived before the write was proposed. Only that one may get a lease
    /// with the answer. A later one may have come to a leader that has been replaced (S6, S9).
    pub(super) grants_to: RequestId,
    /// The copies that the writer dropped when it last sent the write, and the highest stamp that
    /// it had seen (S2w).
    pub(super) dropped: Vec<ObjectSet>,
    pub(super) seen: Stamp,
    /// The load that it adds (S10b), as computed on arrival.
    pub(super) load: u64,
}

/// A write's wait for one session: for a consent, or for an end of leases instead.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ConsentWait {
    /// The stamp of the recall that the session must answer. None if it was not asked.
    pub(super) stamp: Option<Stamp>,
    /// The volume leases under which the session may hold copies. The wait ends when none of them
    /// is left (T5).
    pub(super) leases: BTreeMap<NodePath, Incarnation>,
    /// When the last of the object leases ends, if that is known (T3).
    pub(super) expires_at: Option<ClusterTime>,
}

/// All pending writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct PendingWrites {
    last: PendingWriteId,
    /// About how many bytes of memory they take.
    bytes: usize,
    pending: BTreeMap<PendingWriteId, PendingWrite>,
    by_request: BTreeMap<(SessionId, Sequence), PendingWriteId>,
    /// The writes that name a node.
    by_path: BTreeSet<(NodePath, PendingWriteId)>,
    queues: WriteQueues,
    /// Indexes the waits of all writes.
    waits: ConsentWaits,
    /// For each write, those that have it in `ahead`.
    behind: BTreeMap<PendingWriteId, BTreeSet<PendingWriteId>>,
    /// The leases whose nodes pending writes remove, with the write.
    purging: BTreeSet<(Incarnation, PendingWriteId)>,
    /// The entries of `purging` whose write is not proposed.
    purging_unproposed: BTreeSet<(Incarnation, PendingWriteId)>,
    /// The entries of `purging` whose write `was_uncovered`.
    purging_uncovered: BTreeSet<(Incarnation, PendingWriteId)>,
    /// The `attaching_leases` of unproposed writes, with the write.
    attaching: BTreeSet<(Incarnation, PendingWriteId)>,
    /// For each revocation or purge, the writes that have it in `revocations_ahead`.
    behind_revocations: BTreeMap<PendingWriteId, BTreeSet<PendingWriteId>>,
    /// The number of purges.
    purges: usize,
}

impl PendingWrite {
    pub(super) fn new(kind: WriteKind, footprint: Vec<ObjectSet>, since: Instant) -> Self {
        Self {
            kind,
            footprint,
            gathered_at: Revision(0),
            waits: BTreeMap::new(),
            is_proposed: false,
            since,
            bytes: 0,
            ahead: BTreeSet::new(),
            revocations_ahead: BTreeSet::new(),
            counted_in: Unhashed(None),
            was_uncovered: false,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.is_proposed && self.ahead.is_empty() && self.revocations_ahead.is_empty() && self.waits.is_empty()
    }

    /// The leases whose nodes this write removes.
    pub(super) fn purged_leases(&self) -> &BTreeSet<Incarnation> {
        static NONE: BTreeSet<Incarnation> = BTreeSet::new();
        match &self.kind {
            WriteKind::Client(request) if request.write.is_revocation() => &request.intended.leases,
            WriteKind::Client(_) => &NONE,
            WriteKind::Purge(leases) => leases,
        }
    }

    /// The leases to which this write attaches nodes, or under which it requests a lock.
    fn attaching_leases(&self) -> &BTreeSet<Incarnation> {
        static NONE: BTreeSet<Incarnation> = BTreeSet::new();
        match &self.kind {
            WriteKind::Client(request) if !request.write.is_revocation() => &request.intended.leases,
            WriteKind::Client(_) | WriteKind::Purge(_) => &NONE,
        }
    }

    pub(super) fn client_write(&self) -> Option<&ClientWrite> {
        match &self.kind {
            WriteKind::Client(request) => Some(request),
            WriteKind::Purge(_) => None,
        }
    }

    /// Whether writes that attach nodes to its `purged_leases` must wait for it.
    fn blocks_attaching(&self) -> bool {
        !self.is_proposed || self.was_uncovered
    }

    /// Whether it passes earlier writes of the same data. A flush does: they wait for it (S10).
    fn passes(&self) -> bool {
        self.client_write().is_some_and(|request| matches!(request.write, Write::Flush { .. }))
    }

    /// About how many bytes of memory it takes without its footprint.
    fn own_bytes(&self) -> usize {
        let request_bytes = self.client_write().map_or(0, |request| {
            let parts = match &request.write {
                Write::Transaction(transaction) => transaction.compares.len() + transaction.operations().count(),
                _ => 0,
            };
            request.write.encoded_bytes() + parts * PART_BYTES + footprint_bytes(&request.dropped)
        });
        PENDING_BYTES + request_bytes
    }

    pub(super) fn path(&self) -> Option<&NodePath> {
        self.client_write().and_then(|request| request.write.path())
    }

    fn request(&self) -> Option<(SessionId, Sequence)> {
        self.client_write().map(|request| (request.session, request.sequence))
    }
}

impl PendingWrites {
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, write_id: PendingWriteId) -> Option<&PendingWrite> {
        self.pending.get(&write_id)
    }

    pub(super) fn get_mut(&mut self, write_id: PendingWriteId) -> Option<&mut PendingWrite> {
        self.pending.get_mut(&write_id)
    }

    pub(super) fn client_write_mut(&mut self, write_id: PendingWriteId) -> Option<&mut ClientWrite> {
        match &mut self.pending.get_mut(&write_id)?.kind {
            WriteKind::Client(request) => Some(request),
            WriteKind::Purge(_) => None,
        }
    }

    pub(super) fn id_of(&self, session: SessionId, sequence: Sequence) -> Option<PendingWriteId> {
        self.by_request.get(&(session, sequence)).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PendingWriteId, &PendingWrite)> {
        self.pending.iter().counted().map(|(write_id, pending)| (*write_id, pending))
    }

    /// The writes that name the node, or have one of its objects in their footprint, in their
    /// order. It examines `most` writes of each queue.
    pub(super) fn about(&self, path: &NodePath, most: usize) -> impl Iterator<Item = &PendingWrite> {
        let named =
            self.by_path.range((path.clone(), 0)..=(path.clone(), PendingWriteId::MAX)).map(|(_, write_id)| *write_id);
        let write_ids: BTreeSet<PendingWriteId> =
            named.take(most).chain(self.queues.about(path, most)).counted().collect();
        write_ids.into_iter().filter_map(|write_id| self.pending.get(&write_id))
    }

    /// Adds a write behind all others.
    pub(super) fn enter(&mut self, mut pending: PendingWrite) -> PendingWriteId {
        self.last += 1;
        let write_id = self.last;
        pending.bytes = pending.own_bytes() + footprint_bytes(&pending.footprint);
        self.bytes += pending.bytes;
        self.purges += usize::from(pending.client_write().is_none());
        self.by_request.extend(pending.request().map(|request| (request, write_id)));
        self.by_path.extend(pending.path().map(|path| (path.clone(), write_id)));
        self.purging.extend(pending.purged_leases().iter().map(|lease| (*lease, write_id)));
        self.pending.insert(write_id, pending);
        self.enter_queues(write_id);
        write_id
    }

    /// Replaces the footprint of a write. The write stays at its position in the queues.
    /// Objects that it no longer has may be leased again. Returns the writes that became ready.
    pub(super) fn set_footprint(&mut self, write_id: PendingWriteId, footprint: Vec<ObjectSet>) -> Vec<PendingWriteId> {
        self.leave_queues(write_id);
        let ready = self.release_behind(write_id);
        if let Some(pending) = self.pending.get_mut(&write_id) {
            (pending.is_proposed, pending.was_uncovered) = (false, true);
            let (before, now) = (footprint_bytes(&pending.footprint), footprint_bytes(&footprint));
            pending.bytes = pending.bytes + now - before;
            self.bytes = self.bytes + now - before;
            pending.footprint = footprint;
            self.purging_uncovered.extend(pending.purged_leases().iter().map(|lease| (*lease, write_id)));
        }
        self.enter_queues(write_id);
        // Later writes must wait for it again. The first of each queue is enough, because the
        // others wait for that.
        let behind = self.pending.get(&write_id).map(|pending| self.queues.behind(&pending.footprint, write_id));
        for other in behind.into_iter().flatten() {
            self.wait_behind(other, write_id);
        }
        let attaching_writes: Vec<PendingWriteId> = self.attaching_to(write_id, write_id + 1).collect();
        for other in attaching_writes {
            self.block_on_revocation(other, write_id);
        }
        ready
    }

    /// Marks a write as proposed: later writes may follow it into the log. Returns the writes that
    /// became ready.
    pub(super) fn proposed(&mut self, write_id: PendingWriteId) -> Vec<PendingWriteId> {
        if let Some(pending) = self.pending.get_mut(&write_id) {
            pending.is_proposed = true;
            self.queues.proposed(write_id, &pending.footprint);
            take_out(&mut self.attaching, pending.attaching_leases(), write_id);
            take_out(&mut self.purging_unproposed, pending.purged_leases(), write_id);
        }
        let mut ready = self.release_behind(write_id);
        if self.pending.get(&write_id).is_some_and(|pending| !pending.blocks_attaching()) {
            ready.extend(self.release_attaching(write_id));
        }
        ready
    }

    /// Removes a write that has ended. Returns it, and the writes that became ready.
    pub(super) fn leave(&mut self, write_id: PendingWriteId) -> Option<(PendingWrite, Vec<PendingWriteId>)> {
        self.leave_queues(write_id);
        let mut ready = self.release_behind(write_id);
        if let Some(pending) = self.pending.get(&write_id) {
            take_out(&mut self.purging_uncovered, pending.purged_leases(), write_id);
        }
        ready.extend(self.release_attaching(write_id));
        let pending = self.pending.remove(&write_id)?;
        self.bytes -= pending.bytes;
        self.purges -= usize::from(pending.client_write().is_none());
        for (session, wait) in &pending.waits {
            self.waits.remove(write_id, *session, wait);
        }
        if let Some(request) = pending.request() {
            self.by_request.remove(&request);
        }
        if let Some(path) = pending.path() {
            self.by_path.remove(&(path.clone(), write_id));
        }
        take_out(&mut self.purging, pending.purged_leases(), write_id);
        Some((pending, ready))
    }

    pub(super) fn wait(&mut self, write_id: PendingWriteId, session: SessionId, wait: ConsentWait) {
        if let Some(pending) = self.pending.get_mut(&write_id) {
            if let Some(earlier) = pending.waits.remove(&session) {
                self.waits.remove(write_id, session, &earlier);
            }
            self.waits.insert(write_id, session, &wait);
            pending.waits.insert(session, wait);
        }
    }

    /// Ends the waits for the session's consent to this recall. Returns the writes that became
    /// ready.
    pub(super) fn consented(&mut self, session: SessionId, stamp: Stamp) -> Vec<PendingWriteId> {
        self.end_waits_of(self.waits.of_stamp(session, stamp), session, |_| true)
    }

    /// Ends the waits for copies under the session's leases on a volume, if the condition holds for
    /// the wait. Returns the writes that became ready.
    pub(super) fn end_waits_under(
        &mut self,
        session: SessionId,
        volume: &NodePath,
        is_ended: impl Fn(&ConsentWait) -> bool,
    ) -> Vec<PendingWriteId> {
        self.end_waits_of(self.waits.of_volume(session, volume), session, is_ended)
    }

    /// Ends the waits whose object leases have ended. Returns the writes that became ready.
    pub(super) fn end_expired_waits(&mut self, now: ClusterTime) -> Vec<PendingWriteId> {
        let expired = self.waits.expired(now);
        let ended = expired.into_iter().filter(|(session, write_id)| self.end_wait(*write_id, *session, |_| true));
        ended.map(|(_, write_id)| write_id).collect()
    }

    /// When the next wait for object leases ends.
    pub(super) fn next_expiry(&self) -> Option<ClusterTime> {
        self.waits.next_expiry()
    }

    fn end_waits_of(
        &mut self,
        write_ids: Vec<PendingWriteId>,
        session: SessionId,
        is_ended: impl Fn(&ConsentWait) -> bool,
    ) -> Vec<PendingWriteId> {
        write_ids.into_iter().filter(|write_id| self.end_wait(*write_id, session, &is_ended)).collect()
    }

    fn end_wait(
        &mut self,
        write_id: PendingWriteId,
        session: SessionId,
        is_ended: impl Fn(&ConsentWait) -> bool,
    ) -> bool {
        let Some(pending) = self.pending.get_mut(&write_id) else { return false };
        let Some(wait) = pending.waits.get(&session).filter(|wait| is_ended(wait)) else { return false };
        self.waits.remove(write_id, session, wait);
        pending.waits.remove(&session);
        pending.is_ready()
    }

    /// The number of purges.
    pub(super) fn purges(&self) -> usize {
        self.purges
    }

    /// Whether any pending write removes the nodes of a lease.
    pub(super) fn is_purging(&self) -> bool {
        !self.purging.is_empty()
    }

    /// Whether a pending write removes the nodes of the lease (S3).
    pub(super) fn is_purging_lease(&self, lease: Incarnation) -> bool {
        ids_of(&self.purging, lease, 0, PendingWriteId::MAX).next().is_some()
    }

    /// Whether a write of the object is pending (S3).
    pub(super) fn changes_object(&self, object: &Object) -> bool {
        self.queues.contains(object)
    }

    /// The objects of a subtree in footprints of pending writes, and the subtrees below lists from
    /// which they remove nodes of leases. A returning session must not revive copies of these (S7).
    pub(super) fn footprints_within<'a>(&'a self, within: &'a ObjectSet) -> impl Iterator<Item = ObjectSet> + 'a {
        self.queues.within(within)
    }

    fn enter_queues(&mut self, write_id: PendingWriteId) {
        let Some(pending) = self.pending.get(&write_id) else { return };
        let passes = pending.passes();
        let ahead = if passes { BTreeSet::new() } else { self.ahead(write_id, pending) };
        let (attaching, purged) = (pending.attaching_leases().clone(), pending.purged_leases().clone());
        self.queues.enter(write_id, &pending.footprint, passes, !purged.is_empty());
        for other in ahead {
            self.wait_behind(write_id, other);
        }
        self.block_on_revocations(write_id, &attaching);
        self.attaching.extend(attaching.into_iter().map(|lease| (lease, write_id)));
        self.purging_unproposed.extend(purged.into_iter().map(|lease| (lease, write_id)));
    }

    /// The nearest earlier writes that this write must wait for. A revocation waits only for
    /// attachments that are pending already. When it is applied, the state finds later ones.
    fn ahead(&self, write_id: PendingWriteId, pending: &PendingWrite) -> BTreeSet<PendingWriteId> {
        let mut ahead = self.queues.ahead(&pending.footprint, write_id, &self.pending);
        for lease in pending.purged_leases() {
            let last = ids_of(&self.purging_unproposed, *lease, 0, write_id).next_back();
            ahead.extend(last);
            ahead.extend(ids_of(&self.attaching, *lease, last.unwrap_or_default(), write_id).counted());
        }
        ahead
    }

    fn wait_behind(&mut self, write_id: PendingWriteId, other: PendingWriteId) {
        if let Some(pending) = self.pending.get_mut(&write_id) {
            pending.ahead.insert(other);
            self.behind.entry(other).or_default().insert(write_id);
        }
    }

    /// Lets a write that attaches nodes to these leases wait for the last earlier revocation or
    /// purge of each. When that no longer blocks it, it waits for the last one that still does
    /// (S7b).
    fn block_on_revocations(&mut self, write_id: PendingWriteId, attaching: &BTreeSet<Incarnation>) {
        for lease in attaching.iter().counted() {
            if let Some(other) = self.last_revocation(*lease, write_id) {
                self.block_on_revocation(write_id, other);
            }
        }
    }

    /// The last revocation or purge of the lease with an id below `before` that blocks writes which
    /// attach nodes.
    fn last_revocation(&self, lease: Incarnation, before: PendingWriteId) -> Option<PendingWriteId> {
        let last = |index| ids_of(index, lease, 0, before).next_back();
        last(&self.purging_unproposed).max(last(&self.purging_uncovered))
    }

    fn block_on_revocation(&mut self, write_id: PendingWriteId, other: PendingWriteId) {
        if let Some(pending) = self.pending.get_mut(&write_id) {
            pending.revocations_ahead.insert(other);
            self.behind_revocations.entry(other).or_default().insert(write_id);
        }
    }

    /// The unproposed writes, from id `from` on, that attach nodes to leases which `write_id`
    /// revokes.
    fn attaching_to(&self, write_id: PendingWriteId, from: PendingWriteId) -> impl Iterator<Item = PendingWriteId> {
        let revoked = self.pending.get(&write_id).into_iter().flat_map(PendingWrite::purged_leases);
        revoked.flat_map(move |lease| ids_of(&self.attaching, *lease, from, PendingWriteId::MAX)).counted()
    }

    fn leave_queues(&mut self, write_id: PendingWriteId) {
        let Some(pending) = self.pending.get_mut(&write_id) else { return };
        self.queues.leave(write_id, &pending.footprint, !pending.purged_leases().is_empty());
        for other in std::mem::take(&mut pending.ahead) {
            leave(&mut self.behind, other, write_id);
        }
        for other in std::mem::take(&mut pending.revocations_ahead) {
            leave(&mut self.behind_revocations, other, write_id);
        }
        take_out(&mut self.attaching, pending.attaching_leases(), write_id);
        take_out(&mut self.purging_unproposed, pending.purged_leases(), write_id);
    }

    fn release_behind(&mut self, write_id: PendingWriteId) -> Vec<PendingWriteId> {
        let mut ready = Vec::new();
        for other in self.behind.remove(&write_id).into_iter().flatten().counted() {
            if let Some(pending) = self.pending.get_mut(&other) {
                pending.ahead.remove(&write_id);
                ready.extend(pending.is_ready().then_some(other));
            }
        }
        ready
    }

    /// Releases the writes that attach nodes and wait for this revocation or purge. Each waits for
    /// the last earlier one of the same lease instead, if there is one (S7b). Returns the writes
    /// that became ready.
    fn release_attaching(&mut self, write_id: PendingWriteId) -> Vec<PendingWriteId> {
        let attaching_writes = self.behind_revocations.remove(&write_id).unwrap_or_default();
        if attaching_writes.is_empty() {
            return Vec::new();
        }
        let revoked = self.pending.get(&write_id).map(|pending| pending.purged_leases().clone()).unwrap_or_default();
        let mut ready = Vec::new();
        for other in attaching_writes.into_iter().counted() {
            let Some(pending) = self.pending.get_mut(&other) else { continue };
            pending.revocations_ahead.remove(&write_id);
            let shared_leases = pending.attaching_leases().intersection(&revoked).copied().collect();
            self.block_on_revocations(other, &shared_leases);
            ready.extend(self.pending.get(&other).is_some_and(PendingWrite::is_ready).then_some(other));
        }
        ready
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> Vec<(&'static str, usize)> {
        let [objects, subtrees, emptied] = self.queues.sizes();
        vec![
            ("writes", self.pending.len()),
            ("writes by request", self.by_request.len()),
            ("writes by path", self.by_path.len()),
            ("queues of objects", objects),
            ("queues of subtrees", subtrees),
            ("emptied lists", emptied),
            ("waits", self.waits.size()),
            ("writes behind others", self.behind.len()),
            ("purged leases", self.purging.len()),
            ("revocations", self.purging_unproposed.len() + self.purging_uncovered.len()),
            ("attachments", self.attaching.len()),
            ("writes behind revocations", self.behind_revocations.len()),
            ("purges", self.purges),
            ("bytes of writes", self.bytes),
        ]
    }

    /// Checks that the tables agree.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut waits = ConsentWaits::default();
        for (write_id, pending) in &self.pending {
            pending.waits.iter().for_each(|(session, wait)| waits.insert(*write_id, *session, wait));
            for other in &pending.ahead {
                let waits_behind = self.behind.get(other).is_some_and(|behind| behind.contains(write_id));
                if other >= write_id || !waits_behind || self.pending.get(other).is_none_or(|other| other.is_proposed) {
                    return Err(format!("write {write_id} waits behind {other}, which will not release it"));
                }
            }
            if pending.path().is_some_and(|path| !self.by_path.contains(&(path.clone(), *write_id))) {
                return Err(format!("write {write_id} is not in the index by path"));
            }
            if pending.request().is_some_and(|request| self.by_request.get(&request) != Some(write_id)) {
                return Err(format!("write {write_id} is not in the index by request"));
            }
            let is_in = |index: &BTreeSet<(Incarnation, PendingWriteId)>, lease: &Incarnation| {
                index.contains(&(*lease, *write_id))
            };
            let is_indexed = pending.purged_leases().iter().all(|lease| {
                is_in(&self.purging, lease)
                    && is_in(&self.purging_unproposed, lease) != pending.is_proposed
                    && is_in(&self.purging_uncovered, lease) == pending.was_uncovered
            });
            if !is_indexed
                || pending.attaching_leases().iter().any(|lease| is_in(&self.attaching, lease) == pending.is_proposed)
            {
                return Err(format!("write {write_id} is not in the indexes by lease"));
            }
            let mut revocations =
                pending.attaching_leases().iter().filter_map(|lease| self.last_revocation(*lease, *write_id));
            let passes = |other: &PendingWriteId| !pending.is_proposed && !pending.revocations_ahead.contains(other);
            if let Some(other) = revocations.find(passes) {
                return Err(format!("write {write_id} attaches nodes to a lease that {other} revokes, and passes it"));
            }
            let blocks = |other: &PendingWriteId| {
                self.behind_revocations.get(other).is_some_and(|behind| behind.contains(write_id))
                    && self.pending.get(other).is_some_and(PendingWrite::blocks_attaching)
            };
            if let Some(other) = pending.revocations_ahead.iter().find(|other| !blocks(other)) {
                return Err(format!("write {write_id} waits for revocation {other}, which will not release it"));
            }
        }
        if waits != self.waits {
            return Err("the indexes of waits do not match the writes".to_owned());
        }
        let bytes: usize = self.pending.values().map(|pending| pending.bytes).sum();
        if self.bytes != bytes {
            return Err(format!("the writes are counted as {} bytes: expected {bytes}", self.bytes));
        }
        let behind: usize = self.behind.values().map(BTreeSet::len).sum();
        let behind_revocations: usize = self.behind_revocations.values().map(BTreeSet::len).sum();
        let expected = |count: fn(&PendingWrite) -> usize| self.pending.values().map(count).sum::<usize>();
        if (behind, behind_revocations)
            != (expected(|pending| pending.ahead.len()), expected(|pending| pending.revocations_ahead.len()))
        {
            return Err("the indexes `behind` and `behind_revocations` do not match the writes".to_owned());
        }
        self.queues.check(&self.pending)
    }
}

fn footprint_bytes(footprint: &[ObjectSet]) -> usize {
    footprint.iter().map(|set| SET_BYTES + set.path().as_str().len()).sum()
}

/// The writes of an index for this lease, with ids from `from` on and below `before`.
fn ids_of(
    index: &BTreeSet<(Incarnation, PendingWriteId)>,
    lease: Incarnation,
    from: PendingWriteId,
    before: PendingWriteId,
) -> impl DoubleEndedIterator<Item = PendingWriteId> {
    index.range((lease, from)..(lease, before)).map(|(_, write_id)| *write_id)
}

fn take_out(
    index: &mut BTreeSet<(Incarnation, PendingWriteId)>,
    leases: &BTreeSet<Incarnation>,
    write_id: PendingWriteId,
) {
    for lease in leases {
        index.remove(&(*lease, write_id));
    }
}

fn leave(
    table: &mut BTreeMap<PendingWriteId, BTreeSet<PendingWriteId>>,
    other: PendingWriteId,
    write_id: PendingWriteId,
) {
    if let Some(write_ids) = table.get_mut(&other) {
        write_ids.remove(&write_id);
        if write_ids.is_empty() {
            table.remove(&other);
        }
    }
}
