//! Writes that wait: for their turn, for consents, for their commit (S2, S3). The removal of nodes
//! whose leases have ended is a write too (S8).
//!
//! A write enters the queues of all objects it may change at once, and from then on no lease is
//! granted on them. It may be proposed when all its consents are in and every earlier write that
//! shares an object with it has been proposed: the log keeps the order, so the next need not wait
//! for the commit.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::{IntendedLeases, Write},
    id::{Incarnation, Revision, Sequence, SessionId, Stamp},
    object::{Object, ObjectSet},
    path::NodePath,
    planted::{Bug, Planted},
    time::{ClusterTime, Instant},
    work::CountVisits,
};

use self::queues::WriteQueues;
use super::{Requester, consent_waits::ConsentWaits};

/// A write's place in the order of arrival.
pub(super) type PendingWriteId = u64;

/// About how many bytes of memory a write takes beside its parts.
const PENDING_BYTES: usize = 1 << 10;
/// About how many bytes a comparison or an operation of a transaction takes beside its encoding.
const PART_BYTES: usize = 128;
/// About how many bytes a set of objects takes beside its path, with its place in the queues.
const SET_BYTES: usize = 192;

/// A write from its arrival to its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PendingWrite {
    pub(super) work: WriteKind,
    /// The objects that consents are gathered for.
    pub(super) covers: Vec<ObjectSet>,
    /// Consents are gathered for what the leases whose nodes it removes carried at this revision,
    /// too.
    pub(super) gathered_at: Revision,
    /// The consents that are missing.
    pub(super) waits: BTreeMap<SessionId, ConsentWait>,
    pub(super) is_proposed: bool,
    pub(super) since: Instant,
    /// About how many bytes of memory it takes: counted when it enters, and with each change of its
    /// covers.
    bytes: usize,
    /// The last of the earlier writes that share an object, or attach nodes to a lease that this
    /// one revokes, or revoke it too, of those that are not proposed yet.
    ahead: BTreeSet<PendingWriteId>,
    /// Earlier revocations of leases that this one attaches nodes to, the last of each lease among
    /// them. It waits until they are proposed, or, if they have been found uncovered, until they
    /// are over: else a stream of such writes would have them gather consents for ever (S7b).
    revoking: BTreeSet<PendingWriteId>,
    /// It was applied without effect once, because its consents did not cover what it would have
    /// changed.
    was_uncovered: bool,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum WriteKind {
    /// What a client has asked for.
    Client(ClientWrite),
    /// The removal of what went with these leases, which have ended.
    Purge(BTreeSet<Incarnation>),
}

/// A client's write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ClientWrite {
    pub(super) session: SessionId,
    pub(super) sequence: Sequence,
    pub(super) unanswered_from: Sequence,
    pub(super) write: Write,
    /// What the names in it stood for when it arrived (S7b).
    pub(super) intended: IntendedLeases,
    /// The requests that want the answer: more than one if it was sent again.
    pub(super) requesters: Vec<Requester>,
    /// The copies that the writer dropped when it last sent the write, and the highest stamp that
    /// it had seen (S2w).
    pub(super) dropped: Vec<ObjectSet>,
    pub(super) seen: Stamp,
    /// What it adds to the load, as reckoned when it arrived.
    pub(super) load: u64,
}

/// What a write waits for from one session: a consent, or any of the ends that make it needless.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ConsentWait {
    /// The recall to be answered.
    pub(super) stamp: Stamp,
    /// The volume leases under which copies may be held: needless when none of them is left (T5).
    pub(super) leases: BTreeMap<NodePath, Incarnation>,
    /// When all the object leases are over, where they are known one by one (T3).
    pub(super) expires_at: Option<ClusterTime>,
}

/// All writes that are waiting.
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
    /// Finds the waits of all writes.
    waits: ConsentWaits,
    /// For each write, those that have it ahead of them.
    behind: BTreeMap<PendingWriteId, BTreeSet<PendingWriteId>>,
    /// The leases whose nodes are being removed, and by which write.
    purging: BTreeSet<(Incarnation, PendingWriteId)>,
    /// The same of the writes that are not proposed yet.
    revoking: BTreeSet<(Incarnation, PendingWriteId)>,
    /// The same of those that have been found uncovered.
    uncovered: BTreeSet<(Incarnation, PendingWriteId)>,
    /// The leases that nodes are being attached to, and by which write, of those that are not
    /// proposed yet.
    attached: BTreeSet<(Incarnation, PendingWriteId)>,
    /// For each revocation, the writes that it holds up.
    held_up: BTreeMap<PendingWriteId, BTreeSet<PendingWriteId>>,
    /// How many writes are removals.
    purges: usize,
    planted: Planted,
}

impl PendingWrite {
    pub(super) fn new(work: WriteKind, covers: Vec<ObjectSet>, since: Instant) -> Self {
        Self {
            work,
            covers,
            gathered_at: Revision(0),
            waits: BTreeMap::new(),
            is_proposed: false,
            since,
            bytes: 0,
            ahead: BTreeSet::new(),
            revoking: BTreeSet::new(),
            was_uncovered: false,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.is_proposed && self.ahead.is_empty() && self.revoking.is_empty() && self.waits.is_empty()
    }

    /// The leases whose nodes it removes.
    pub(super) fn purged_leases(&self) -> &BTreeSet<Incarnation> {
        static NONE: BTreeSet<Incarnation> = BTreeSet::new();
        match &self.work {
            WriteKind::Client(ClientWrite { write: Write::RevokeLease { .. }, intended, .. }) => &intended.leases,
            WriteKind::Client(_) => &NONE,
            WriteKind::Purge(leases) => leases,
        }
    }

    /// The leases that it attaches nodes to, or places a hold under.
    fn attached(&self) -> &BTreeSet<Incarnation> {
        static NONE: BTreeSet<Incarnation> = BTreeSet::new();
        match &self.work {
            WriteKind::Client(ClientWrite { write: Write::RevokeLease { .. }, .. }) | WriteKind::Purge(_) => &NONE,
            WriteKind::Client(asked) => &asked.intended.leases,
        }
    }

    /// The client's write that it is, if it is one.
    pub(super) fn client_write(&self) -> Option<&ClientWrite> {
        match &self.work {
            WriteKind::Client(asked) => Some(asked),
            WriteKind::Purge(_) => None,
        }
    }

    /// Whether writes that attach nodes to the leases which it revokes have to wait.
    fn holds_up_attaching(&self) -> bool {
        !self.is_proposed || self.was_uncovered
    }

    /// Whether it passes the writes of the same data that came first: they wait for it (S10).
    fn passes(&self) -> bool {
        self.client_write().is_some_and(|asked| matches!(asked.write, Write::Flush { .. }))
    }

    /// About how many bytes of memory it takes without its covers.
    fn own_bytes(&self) -> usize {
        let asked = self.client_write().map_or(0, |asked| {
            let parts = match &asked.write {
                Write::Transaction(transaction) => transaction.compares.len() + transaction.operations().count(),
                _ => 0,
            };
            asked.write.encoded_bytes() + parts * PART_BYTES + covers_bytes(&asked.dropped)
        });
        PENDING_BYTES + asked
    }

    /// The node that it names.
    pub(super) fn path(&self) -> Option<&NodePath> {
        self.client_write().and_then(|asked| asked.write.path())
    }

    fn request(&self) -> Option<(SessionId, Sequence)> {
        self.client_write().map(|asked| (asked.session, asked.sequence))
    }
}

impl PendingWrites {
    pub(super) fn new(planted: Planted) -> Self {
        Self { planted, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// About how many bytes of memory the writes take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, turn: PendingWriteId) -> Option<&PendingWrite> {
        self.pending.get(&turn)
    }

    pub(super) fn get_mut(&mut self, turn: PendingWriteId) -> Option<&mut PendingWrite> {
        self.pending.get_mut(&turn)
    }

    /// The client's write of this turn, if it is one.
    pub(super) fn client_write_mut(&mut self, turn: PendingWriteId) -> Option<&mut ClientWrite> {
        match &mut self.pending.get_mut(&turn)?.work {
            WriteKind::Client(asked) => Some(asked),
            WriteKind::Purge(_) => None,
        }
    }

    pub(super) fn id_of(&self, session: SessionId, sequence: Sequence) -> Option<PendingWriteId> {
        self.by_request.get(&(session, sequence)).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PendingWriteId, &PendingWrite)> {
        self.pending.iter().counted().map(|(turn, pending)| (*turn, pending))
    }

    /// The writes that name the node, or cover one of its objects, in their order. At most `most`
    /// of each queue are looked at.
    pub(super) fn about(&self, path: &NodePath, most: usize) -> impl Iterator<Item = &PendingWrite> {
        let named = self.by_path.range((path.clone(), 0)..=(path.clone(), PendingWriteId::MAX)).map(|(_, turn)| *turn);
        let turns: BTreeSet<PendingWriteId> = named.take(most).chain(self.queues.about(path, most)).counted().collect();
        turns.into_iter().filter_map(|turn| self.pending.get(&turn))
    }

    /// Lets a write in, behind all others.
    pub(super) fn enter(&mut self, mut pending: PendingWrite) -> PendingWriteId {
        self.last += 1;
        let turn = self.last;
        pending.bytes = pending.own_bytes() + covers_bytes(&pending.covers);
        self.bytes += pending.bytes;
        self.purges += usize::from(pending.client_write().is_none());
        self.by_request.extend(pending.request().map(|request| (request, turn)));
        self.by_path.extend(pending.path().map(|path| (path.clone(), turn)));
        self.purging.extend(pending.purged_leases().iter().map(|lease| (*lease, turn)));
        self.pending.insert(turn, pending);
        self.enter_queues(turn);
        turn
    }

    /// Gives a write other objects to change, in the turn that it has. The ones it had stay blocked
    /// for leases only if they are among the new ones.
    pub(super) fn cover(&mut self, turn: PendingWriteId, covers: Vec<ObjectSet>) -> Vec<PendingWriteId> {
        self.leave_queues(turn);
        let ready = self.release_behind(turn);
        if let Some(pending) = self.pending.get_mut(&turn) {
            (pending.is_proposed, pending.was_uncovered) = (false, true);
            let (before, now) = (covers_bytes(&pending.covers), covers_bytes(&covers));
            pending.bytes = pending.bytes + now - before;
            self.bytes = self.bytes + now - before;
            pending.covers = covers;
            self.uncovered.extend(pending.purged_leases().iter().map(|lease| (*lease, turn)));
        }
        self.enter_queues(turn);
        // Those behind have to wait for it once more: who comes after them will wait for them only.
        let behind = self.pending.get(&turn).map(|pending| self.queues.behind(&pending.covers, turn));
        for other in behind.into_iter().flatten() {
            self.wait_behind(other, turn);
        }
        let attaching: Vec<PendingWriteId> = self.attaching_to(turn, turn + 1).collect();
        for other in attaching {
            self.block_on_revocation(other, turn);
        }
        ready
    }

    /// The write has been proposed: those behind it may follow it into the log. Returns the ones
    /// that became ready.
    pub(super) fn proposed(&mut self, turn: PendingWriteId) -> Vec<PendingWriteId> {
        if let Some(pending) = self.pending.get_mut(&turn) {
            pending.is_proposed = true;
            self.queues.proposed(turn, &pending.covers);
            take_out(&mut self.attached, pending.attached(), turn);
            take_out(&mut self.revoking, pending.purged_leases(), turn);
        }
        let mut ready = self.release_behind(turn);
        if self.pending.get(&turn).is_some_and(|pending| !pending.holds_up_attaching()) {
            ready.extend(self.release_attaching(turn));
        }
        ready
    }

    /// The write is over, one way or the other. Returns it, and the ones that became ready.
    pub(super) fn leave(&mut self, turn: PendingWriteId) -> Option<(PendingWrite, Vec<PendingWriteId>)> {
        self.leave_queues(turn);
        let mut ready = self.release_behind(turn);
        if let Some(pending) = self.pending.get(&turn) {
            take_out(&mut self.uncovered, pending.purged_leases(), turn);
        }
        ready.extend(self.release_attaching(turn));
        let pending = self.pending.remove(&turn)?;
        self.bytes -= pending.bytes;
        self.purges -= usize::from(pending.client_write().is_none());
        for (session, wait) in &pending.waits {
            self.waits.remove(turn, *session, wait);
        }
        if let Some(request) = pending.request() {
            self.by_request.remove(&request);
        }
        if let Some(path) = pending.path() {
            self.by_path.remove(&(path.clone(), turn));
        }
        take_out(&mut self.purging, pending.purged_leases(), turn);
        Some((pending, ready))
    }

    /// The write waits for a session.
    pub(super) fn wait(&mut self, turn: PendingWriteId, session: SessionId, wait: ConsentWait) {
        if let Some(pending) = self.pending.get_mut(&turn) {
            if let Some(earlier) = pending.waits.remove(&session) {
                self.waits.remove(turn, session, &earlier);
            }
            self.waits.insert(turn, session, &wait);
            pending.waits.insert(session, wait);
        }
    }

    /// Ends the waits for one session for which the condition holds. Returns the writes that became
    /// ready.
    pub(super) fn end_waits(
        &mut self,
        session: SessionId,
        is_over: impl Fn(&ConsentWait) -> bool,
    ) -> Vec<PendingWriteId> {
        self.end_waits_of(self.waits.of(session), session, is_over)
    }

    /// Ends the waits for the session's consent to this recall. Returns the writes that became
    /// ready.
    pub(super) fn consented(&mut self, session: SessionId, stamp: Stamp) -> Vec<PendingWriteId> {
        self.end_waits_of(self.waits.of_stamp(session, stamp), session, |_| true)
    }

    /// Ends those of the waits for copies under the session's leases on a volume for which the
    /// condition holds. Returns the writes that became ready.
    pub(super) fn end_waits_under(
        &mut self,
        session: SessionId,
        volume: &NodePath,
        is_over: impl Fn(&ConsentWait) -> bool,
    ) -> Vec<PendingWriteId> {
        self.end_waits_of(self.waits.of_volume(session, volume), session, is_over)
    }

    /// Ends the waits for object leases that are over. Returns the writes that became ready.
    pub(super) fn end_expired_waits(&mut self, now: ClusterTime) -> Vec<PendingWriteId> {
        let over = self.waits.expired(now);
        let ended = over.into_iter().filter(|(session, turn)| self.end_wait(*turn, *session, |_| true));
        ended.map(|(_, turn)| turn).collect()
    }

    fn end_waits_of(
        &mut self,
        waiting: Vec<PendingWriteId>,
        session: SessionId,
        is_over: impl Fn(&ConsentWait) -> bool,
    ) -> Vec<PendingWriteId> {
        waiting.into_iter().filter(|turn| self.end_wait(*turn, session, &is_over)).collect()
    }

    fn end_wait(&mut self, turn: PendingWriteId, session: SessionId, is_over: impl Fn(&ConsentWait) -> bool) -> bool {
        let Some(pending) = self.pending.get_mut(&turn) else { return false };
        let Some(wait) = pending.waits.get(&session).filter(|wait| is_over(wait)) else { return false };
        self.waits.remove(turn, session, wait);
        pending.waits.remove(&session);
        pending.is_ready()
    }

    /// How many removals are under way.
    pub(super) fn purges(&self) -> usize {
        self.purges
    }

    /// Whether nodes of any lease are being removed.
    pub(super) fn is_purging(&self) -> bool {
        !self.purging.is_empty()
    }

    /// Whether the nodes of the lease are being removed (S3).
    pub(super) fn is_purging_lease(&self, lease: Incarnation) -> bool {
        ids_of(&self.purging, lease, 0, PendingWriteId::MAX).next().is_some()
    }

    /// Whether a write of the object is under way (S3).
    pub(super) fn covers(&self, object: &Object) -> bool {
        self.queues.cover(object)
    }

    /// The objects of a subtree for which writes are under way, and the lists whose nodes go with
    /// leases: what a returning session may not revive (section 5).
    pub(super) fn covers_within<'a>(&'a self, within: &'a ObjectSet) -> impl Iterator<Item = ObjectSet> + 'a {
        self.queues.within(within)
    }

    fn enter_queues(&mut self, turn: PendingWriteId) {
        let Some(pending) = self.pending.get(&turn) else { return };
        let passes = pending.passes();
        let ahead = if passes { BTreeSet::new() } else { self.ahead(turn, pending) };
        let (attached, carried) = (pending.attached().clone(), pending.purged_leases().clone());
        self.queues.enter(turn, &pending.covers, passes, !carried.is_empty());
        for other in ahead {
            self.wait_behind(turn, other);
        }
        self.block_on_revocations(turn, &attached);
        self.attached.extend(attached.into_iter().map(|lease| (lease, turn)));
        self.revoking.extend(carried.into_iter().map(|lease| (lease, turn)));
    }

    /// The last writes that this one waits for: what the lease carries is known when a revocation
    /// is applied, but for what is on its way already.
    fn ahead(&self, turn: PendingWriteId, pending: &PendingWrite) -> BTreeSet<PendingWriteId> {
        let mut ahead = self.queues.ahead(&pending.covers, turn, &self.pending);
        for lease in pending.purged_leases() {
            let last = ids_of(&self.revoking, *lease, 0, turn).next_back();
            ahead.extend(last);
            ahead.extend(ids_of(&self.attached, *lease, last.unwrap_or_default(), turn).counted());
        }
        ahead
    }

    fn wait_behind(&mut self, turn: PendingWriteId, other: PendingWriteId) {
        if let Some(pending) = self.pending.get_mut(&turn) {
            pending.ahead.insert(other);
            self.behind.entry(other).or_default().insert(turn);
        }
    }

    /// The write attaches nodes to these leases. For each lease it waits for the last earlier
    /// revocation. When that one does not hold it up any more, it waits for the last one that still
    /// does (S7b).
    fn block_on_revocations(&mut self, turn: PendingWriteId, attached: &BTreeSet<Incarnation>) {
        for lease in attached.iter().counted() {
            if let Some(other) = self.last_revocation(*lease, turn) {
                self.block_on_revocation(turn, other);
            }
        }
    }

    /// The last revocation of the lease, before a turn, that holds up writes which attach nodes to
    /// it.
    fn last_revocation(&self, lease: Incarnation, before: PendingWriteId) -> Option<PendingWriteId> {
        let last = |index| ids_of(index, lease, 0, before).next_back();
        last(&self.revoking).max(last(&self.uncovered))
    }

    /// The write attaches nodes to a lease that the other revokes.
    fn block_on_revocation(&mut self, turn: PendingWriteId, other: PendingWriteId) {
        if self.planted.has(Bug::AttachmentsPassRevocation) {
            return;
        }
        if let Some(pending) = self.pending.get_mut(&turn) {
            pending.revoking.insert(other);
            self.held_up.entry(other).or_default().insert(turn);
        }
    }

    /// The writes from a turn on that are not proposed yet and attach nodes to leases which this
    /// one revokes.
    fn attaching_to(&self, turn: PendingWriteId, from: PendingWriteId) -> impl Iterator<Item = PendingWriteId> {
        let revoked = self.pending.get(&turn).into_iter().flat_map(PendingWrite::purged_leases);
        revoked.flat_map(move |lease| ids_of(&self.attached, *lease, from, PendingWriteId::MAX)).counted()
    }

    fn leave_queues(&mut self, turn: PendingWriteId) {
        let Some(pending) = self.pending.get_mut(&turn) else { return };
        self.queues.leave(turn, &pending.covers, !pending.purged_leases().is_empty());
        for other in std::mem::take(&mut pending.ahead) {
            leave(&mut self.behind, other, turn);
        }
        for other in std::mem::take(&mut pending.revoking) {
            leave(&mut self.held_up, other, turn);
        }
        take_out(&mut self.attached, pending.attached(), turn);
        take_out(&mut self.revoking, pending.purged_leases(), turn);
    }

    fn release_behind(&mut self, turn: PendingWriteId) -> Vec<PendingWriteId> {
        let mut ready = Vec::new();
        for other in self.behind.remove(&turn).into_iter().flatten().counted() {
            if let Some(pending) = self.pending.get_mut(&other) {
                pending.ahead.remove(&turn);
                ready.extend(pending.is_ready().then_some(other));
            }
        }
        ready
    }

    /// Writes that attach nodes to leases that this one revokes wait for it no longer. They wait
    /// for the last earlier revocation of the same lease instead, if there is one (S7b). Returns
    /// those that became ready.
    fn release_attaching(&mut self, turn: PendingWriteId) -> Vec<PendingWriteId> {
        let held_up = self.held_up.remove(&turn).unwrap_or_default();
        if held_up.is_empty() {
            return Vec::new();
        }
        let revoked = self.pending.get(&turn).map(|pending| pending.purged_leases().clone()).unwrap_or_default();
        let mut ready = Vec::new();
        for other in held_up.into_iter().counted() {
            let Some(pending) = self.pending.get_mut(&other) else { continue };
            pending.revoking.remove(&turn);
            let attached = pending.attached().intersection(&revoked).copied().collect();
            self.block_on_revocations(other, &attached);
            ready.extend(self.pending.get(&other).is_some_and(PendingWrite::is_ready).then_some(other));
        }
        ready
    }

    /// How many entries there are, of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> Vec<(&'static str, usize)> {
        let [objects, subtrees, emptied] = self.queues.sizes();
        vec![
            ("writes", self.pending.len()),
            ("writes by request", self.by_request.len()),
            ("writes by path", self.by_path.len()),
            ("queues of objects", objects),
            ("queues of subtrees", subtrees),
            ("lists emptied", emptied),
            ("waits", self.waits.size()),
            ("writes behind others", self.behind.len()),
            ("leases whose nodes are removed", self.purging.len()),
            ("revocations", self.revoking.len() + self.uncovered.len()),
            ("attachments", self.attached.len()),
            ("writes held up", self.held_up.len()),
            ("removals", self.purges),
            ("bytes of writes", self.bytes),
        ]
    }

    /// The tables agree with each other.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut waits = ConsentWaits::default();
        for (turn, pending) in &self.pending {
            pending.waits.iter().for_each(|(session, wait)| waits.insert(*turn, *session, wait));
            for other in &pending.ahead {
                let waits_behind = self.behind.get(other).is_some_and(|behind| behind.contains(turn));
                if other >= turn || !waits_behind || self.pending.get(other).is_none_or(|other| other.is_proposed) {
                    return Err(format!("write {turn} waits behind {other}, which will not release it"));
                }
            }
            if pending.path().is_some_and(|path| !self.by_path.contains(&(path.clone(), *turn))) {
                return Err(format!("write {turn} is not found by its path"));
            }
            if pending.request().is_some_and(|request| self.by_request.get(&request) != Some(turn)) {
                return Err(format!("write {turn} is not found by its request"));
            }
            let is_in =
                |index: &BTreeSet<(Incarnation, PendingWriteId)>, lease: &Incarnation| index.contains(&(*lease, *turn));
            let is_found = pending.purged_leases().iter().all(|lease| {
                is_in(&self.purging, lease)
                    && is_in(&self.revoking, lease) != pending.is_proposed
                    && is_in(&self.uncovered, lease) == pending.was_uncovered
            });
            if !is_found || pending.attached().iter().any(|lease| is_in(&self.attached, lease) == pending.is_proposed) {
                return Err(format!("write {turn} is not found by the leases whose nodes it removes, or attaches"));
            }
            let mut revocations = pending.attached().iter().filter_map(|lease| self.last_revocation(*lease, *turn));
            let passes = |other: &PendingWriteId| !pending.is_proposed && !pending.revoking.contains(other);
            // With the mistake put back, the search is to find what comes of it.
            let passes = |other: &PendingWriteId| passes(other) && !self.planted.has(Bug::AttachmentsPassRevocation);
            if let Some(other) = revocations.find(passes) {
                return Err(format!("write {turn} attaches nodes to a lease that {other} revokes, and passes it"));
            }
            let holds_up = |other: &PendingWriteId| {
                self.held_up.get(other).is_some_and(|held_up| held_up.contains(turn))
                    && self.pending.get(other).is_some_and(PendingWrite::holds_up_attaching)
            };
            if let Some(other) = pending.revoking.iter().find(|other| !holds_up(other)) {
                return Err(format!("write {turn} waits for revocation {other}, which will not release it"));
            }
        }
        if waits != self.waits {
            return Err("the waits of all writes are not those that are found by what ends them".to_owned());
        }
        let bytes: usize = self.pending.values().map(|pending| pending.bytes).sum();
        if self.bytes != bytes {
            return Err(format!("writes are counted to take {} bytes: expected {bytes}", self.bytes));
        }
        let behind: usize = self.behind.values().map(BTreeSet::len).sum();
        let held_up: usize = self.held_up.values().map(BTreeSet::len).sum();
        let expected = |of: fn(&PendingWrite) -> usize| self.pending.values().map(of).sum::<usize>();
        if (behind, held_up) != (expected(|pending| pending.ahead.len()), expected(|pending| pending.revoking.len())) {
            return Err("others wait behind writes than the writes say".to_owned());
        }
        self.queues.check(&self.pending)
    }
}

fn covers_bytes(covers: &[ObjectSet]) -> usize {
    covers.iter().map(|set| SET_BYTES + set.path().as_str().len()).sum()
}

/// The writes of an index that have to do with the lease, from one turn on and before another.
fn ids_of(
    index: &BTreeSet<(Incarnation, PendingWriteId)>,
    lease: Incarnation,
    from: PendingWriteId,
    before: PendingWriteId,
) -> impl DoubleEndedIterator<Item = PendingWriteId> {
    index.range((lease, from)..(lease, before)).map(|(_, turn)| *turn)
}

fn take_out(index: &mut BTreeSet<(Incarnation, PendingWriteId)>, leases: &BTreeSet<Incarnation>, turn: PendingWriteId) {
    for lease in leases {
        index.remove(&(*lease, turn));
    }
}

fn leave(table: &mut BTreeMap<PendingWriteId, BTreeSet<PendingWriteId>>, other: PendingWriteId, turn: PendingWriteId) {
    if let Some(turns) = table.get_mut(&other) {
        turns.remove(&turn);
        if turns.is_empty() {
            table.remove(&other);
        }
    }
}

mod check;
mod queues;
