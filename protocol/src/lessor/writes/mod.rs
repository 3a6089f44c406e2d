//! Pending writes: they wait for earlier writes, for consents, and for their commit (S2, S3, S7b).
//! A purge of orphans is a write too (S8).
//!
//! On arrival, a write enters the queues of all objects that it may change. From then on the lessor
//! grants no lease on them. It proposes the write when all consents are in, and every earlier write
//! that shares an object is proposed. The log preserves the order, so the next write need not wait
//! for the commit. If a write was applied without effect, because its consents did not cover it
//! (*uncovered*), later ones wait until it ends.
//!
//! [`PendingWrites`] owns the writes, and keeps in step the tables that say what each write waits
//! for. Each table is in a file of its own: `queues` by object, `revocations` by lease, `behind` by
//! the write that others wait for, and `waits` by consent. `arrival`, `gathering` and `outcome` are
//! the stages of a write in the lessor.

pub(super) mod arrival;
mod behind;
mod check;
pub(super) mod gathering;
mod outcome;
mod pending;
mod queues;
mod revocations;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    id::{Incarnation, Sequence, SessionId, Stamp},
    object::{Object, ObjectSet},
    path::NodePath,
    time::ClusterTime,
    work::CountVisits,
};

use self::{behind::WritesBehind, queues::WriteQueues, revocations::Revocations, waits::ConsentWaits};

pub(super) use self::pending::{ClientWrite, ConsentWait, PendingWrite, PendingWriteId, WriteKind};

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
    /// Indexes `ahead` of all writes.
    behind: WritesBehind,
    /// The writes that remove nodes of leases, and those that attach nodes.
    revocations: Revocations,
    /// Indexes `revocations_ahead` of all writes.
    behind_revocations: WritesBehind,
    /// The number of purges.
    purges: usize,
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

    /// Replaces the sets that the client has dropped, when it sends the write again.
    fn replace_dropped(&mut self, write_id: PendingWriteId, dropped: Vec<ObjectSet>) {
        if let Some(pending) = self.pending.get_mut(&write_id) {
            self.bytes -= pending.bytes;
            pending.replace_dropped(dropped);
            self.bytes += pending.bytes;
        }
    }

    pub(super) fn id_of(&self, session: SessionId, sequence: Sequence) -> Option<PendingWriteId> {
        self.by_request.get(&(session, sequence)).copied()
    }

    /// The session's writes below this sequence that are not proposed.
    pub(super) fn unproposed_below(&self, session: SessionId, sequence: Sequence) -> Vec<PendingWriteId> {
        let below = self.by_request.range((session, Sequence(0))..(session, sequence)).counted();
        let is_unproposed = |write_id: &PendingWriteId| self.get(*write_id).is_some_and(|pending| !pending.is_proposed);
        below.map(|(_, write_id)| *write_id).filter(is_unproposed).collect()
    }

    /// The session's lowest sequence that is pending.
    #[cfg(test)]
    pub(super) fn lowest_sequence(&self, session: SessionId) -> Option<Sequence> {
        let own = (session, Sequence(0))..=(session, Sequence(u64::MAX));
        self.by_request.range(own).next().map(|((_, sequence), _)| *sequence)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PendingWriteId, &PendingWrite)> {
        self.pending.iter().counted().map(|(write_id, pending)| (*write_id, pending))
    }

    /// The writes that name the node, or have one of its objects in their footprint, in their
    /// order. It examines at most `most` writes of each queue.
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
        pending.count_bytes();
        self.bytes += pending.bytes;
        self.purges += usize::from(pending.client_write().is_none());
        self.by_request.extend(pending.request().map(|request| (request, write_id)));
        self.by_path.extend(pending.path().map(|path| (path.clone(), write_id)));
        self.pending.insert(write_id, pending);
        self.enter_queues(write_id);
        write_id
    }

    /// Replaces the footprint of a write. The write stays at its position in the queues.
    /// Objects that it no longer has may be leased again. Returns the writes that became ready.
    pub(super) fn set_footprint(&mut self, write_id: PendingWriteId, footprint: Vec<ObjectSet>) -> Vec<PendingWriteId> {
        self.leave_queues(write_id);
        let blocked = self.pending.get(&write_id).is_some_and(PendingWrite::blocks_later);
        let ready = self.release_behind(write_id, blocked);
        if let Some(pending) = self.pending.get_mut(&write_id) {
            self.bytes -= pending.bytes;
            pending.set_footprint(footprint);
            self.bytes += pending.bytes;
            self.revocations.uncovered(write_id, pending);
        }
        self.enter_queues(write_id);
        // Later writes must wait for it again. The first of each queue is enough, because the
        // others wait for that.
        let Some(pending) = self.pending.get(&write_id) else { return ready };
        let behind = self.queues.behind(&pending.footprint, write_id);
        let attaching: Vec<_> = self.revocations.attaching_to(pending.purged_leases(), write_id + 1).collect();
        for other in behind {
            self.wait_behind(other, write_id);
        }
        for other in attaching {
            self.block_on_revocation(other, write_id);
        }
        ready
    }

    /// Marks a write as proposed: later writes may follow it into the log, unless it
    /// `was_uncovered`. Returns the writes that became ready.
    pub(super) fn proposed(&mut self, write_id: PendingWriteId) -> Vec<PendingWriteId> {
        let Some(pending) = self.pending.get_mut(&write_id) else { return Vec::new() };
        pending.is_proposed = true;
        self.revocations.proposed(write_id, pending);
        if pending.blocks_later() {
            return Vec::new();
        }
        self.queues.proposed(write_id, &pending.footprint);
        let revoked = pending.purged_leases().clone();
        let mut ready = self.release_behind(write_id, false);
        ready.extend(self.release_attaching(write_id, &revoked));
        ready
    }

    /// Removes a write that has ended, or was dropped. Returns it, and the writes that became
    /// ready.
    pub(super) fn leave(&mut self, write_id: PendingWriteId) -> Option<(PendingWrite, Vec<PendingWriteId>)> {
        self.leave_queues(write_id);
        let pending = self.pending.remove(&write_id)?;
        self.revocations.leave(write_id, &pending);
        let mut ready = self.release_behind(write_id, pending.blocks_later());
        ready.extend(self.release_attaching(write_id, pending.purged_leases()));
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
        Some((pending, ready))
    }

    pub(super) fn wait(&mut self, write_id: PendingWriteId, session: SessionId, wait: ConsentWait) {
        self.remove_wait(write_id, session);
        if let Some(pending) = self.pending.get_mut(&write_id) {
            pending.bytes += wait.bytes();
            self.bytes += wait.bytes();
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
        let wait = |writes: &Self| writes.pending.get(&write_id)?.waits.get(&session).map(&is_ended);
        if wait(self) != Some(true) {
            return false;
        }
        self.remove_wait(write_id, session);
        self.pending.get(&write_id).is_some_and(PendingWrite::is_ready)
    }

    fn remove_wait(&mut self, write_id: PendingWriteId, session: SessionId) {
        let Some(pending) = self.pending.get_mut(&write_id) else { return };
        let Some(wait) = pending.waits.remove(&session) else { return };
        pending.bytes -= wait.bytes();
        self.bytes -= wait.bytes();
        self.waits.remove(write_id, session, &wait);
    }

    /// The number of purges.
    pub(super) fn purges(&self) -> usize {
        self.purges
    }

    /// Whether any pending write removes the nodes of a lease.
    pub(super) fn is_purging(&self) -> bool {
        self.revocations.is_purging()
    }

    /// Whether a pending write removes the nodes of the lease (S3).
    pub(super) fn is_purging_lease(&self, lease: Incarnation) -> bool {
        self.revocations.is_purging_lease(lease)
    }

    /// Whether a write of the object is pending (S3).
    pub(super) fn changes_object(&self, object: &Object) -> bool {
        self.queues.contains(object)
    }

    /// The first pending write of the object, proposed or not.
    pub(super) fn first_of(&self, object: &Object) -> Option<PendingWriteId> {
        self.queues.first_of(object)
    }

    /// The last write that has arrived.
    pub(super) fn last(&self) -> PendingWriteId {
        self.last
    }

    /// The objects and subtrees in footprints of pending writes that overlap `within`. Also, for
    /// each list in `within` from which a pending write removes nodes of leases, the subtree below
    /// that list. A returning session must not revive copies of these (S7).
    pub(super) fn footprints_within<'a>(&'a self, within: &'a ObjectSet) -> impl Iterator<Item = ObjectSet> + 'a {
        self.queues.within(within)
    }

    fn enter_queues(&mut self, write_id: PendingWriteId) {
        let Some(pending) = self.pending.get(&write_id) else { return };
        let passes = pending.passes();
        let ahead = if passes { BTreeSet::new() } else { self.ahead(write_id, pending) };
        self.queues.enter(write_id, &pending.footprint, passes, !pending.purged_leases().is_empty());
        self.revocations.enter(write_id, pending);
        let attaching = pending.attaching_leases().clone();
        for other in ahead {
            self.wait_behind(write_id, other);
        }
        self.block_on_revocations(write_id, &attaching);
    }

    /// The nearest earlier writes that this write must wait for. A revocation waits only for
    /// attachments that are pending already. When it is applied, the state finds later ones.
    fn ahead(&self, write_id: PendingWriteId, pending: &PendingWrite) -> BTreeSet<PendingWriteId> {
        let mut ahead = self.queues.ahead(&pending.footprint, write_id, &self.pending);
        ahead.extend(self.revocations.ahead(pending.purged_leases(), write_id));
        ahead
    }

    fn wait_behind(&mut self, write_id: PendingWriteId, other: PendingWriteId) {
        if let Some(pending) = self.pending.get_mut(&write_id) {
            pending.ahead.insert(other);
            self.behind.add(other, write_id);
        }
    }

    /// Lets a write that attaches nodes to these leases wait for the last earlier revocation or
    /// purge of each (S7b). `release_attaching` then makes it wait for the one before.
    fn block_on_revocations(&mut self, write_id: PendingWriteId, attaching: &BTreeSet<Incarnation>) {
        for lease in attaching.iter().counted() {
            if let Some(other) = self.revocations.last_of(*lease, write_id) {
                self.block_on_revocation(write_id, other);
            }
        }
    }

    fn block_on_revocation(&mut self, write_id: PendingWriteId, other: PendingWriteId) {
        if let Some(pending) = self.pending.get_mut(&write_id) {
            pending.revocations_ahead.insert(other);
            self.behind_revocations.add(other, write_id);
        }
    }

    fn leave_queues(&mut self, write_id: PendingWriteId) {
        let Some(pending) = self.pending.get_mut(&write_id) else { return };
        self.queues.leave(write_id, &pending.footprint, !pending.purged_leases().is_empty());
        for other in std::mem::take(&mut pending.ahead) {
            self.behind.remove(other, write_id);
        }
        for other in std::mem::take(&mut pending.revocations_ahead) {
            self.behind_revocations.remove(other, write_id);
        }
        self.revocations.proposed(write_id, pending);
    }

    /// Releases the writes that wait for this one. Returns those that became ready. If this one
    /// still `blocked` them, because it was dropped before it was proposed, or was uncovered,
    /// writes ahead of it may block too. From now on the released writes wait for those directly.
    fn release_behind(&mut self, write_id: PendingWriteId, blocked: bool) -> Vec<PendingWriteId> {
        let mut ready = Vec::new();
        for other in self.behind.take(write_id).into_iter().counted() {
            let Some(pending) = self.pending.get_mut(&other) else { continue };
            pending.ahead.remove(&write_id);
            if blocked && let Some(pending) = self.pending.get(&other) {
                self.ahead(other, pending).into_iter().for_each(|earlier| self.wait_behind(other, earlier));
            }
            ready.extend(self.pending.get(&other).is_some_and(PendingWrite::is_ready).then_some(other));
        }
        ready
    }

    /// Releases the writes that attach nodes and wait for this revocation or purge of the `revoked`
    /// leases. If an earlier revocation or purge of the same lease still blocks the write, the
    /// write now waits for the last such one (S7b). Returns the writes that became ready.
    fn release_attaching(&mut self, write_id: PendingWriteId, revoked: &BTreeSet<Incarnation>) -> Vec<PendingWriteId> {
        let attaching_writes = self.behind_revocations.take(write_id);
        let mut ready = Vec::new();
        for other in attaching_writes.into_iter().counted() {
            let Some(pending) = self.pending.get_mut(&other) else { continue };
            pending.revocations_ahead.remove(&write_id);
            let shared_leases = pending.attaching_leases().intersection(revoked).copied().collect();
            self.block_on_revocations(other, &shared_leases);
            ready.extend(self.pending.get(&other).is_some_and(PendingWrite::is_ready).then_some(other));
        }
        ready
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> Vec<(&'static str, usize)> {
        let [objects, subtrees, emptied] = self.queues.sizes();
        let mut sizes = vec![
            ("writes", self.pending.len()),
            ("writes by request", self.by_request.len()),
            ("writes by path", self.by_path.len()),
            ("queues of objects", objects),
            ("queues of subtrees", subtrees),
            ("emptied lists", emptied),
            ("waits", self.waits.size()),
            ("writes behind others", self.behind.len()),
            ("writes behind revocations", self.behind_revocations.len()),
            ("purges", self.purges),
            ("bytes of writes", self.bytes),
        ];
        sizes.extend(self.revocations.sizes());
        sizes
    }
}
