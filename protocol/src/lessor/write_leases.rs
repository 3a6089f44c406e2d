//! Write leases: requests that wait for their owners (S10).
//!
//! If a session reads, writes or compares data under a write lease, the lessor recalls the data
//! from the owner. It is a recall like that of a copy, so no promise to the owner reaches further
//! than a term after it (S5). The owner flushes, ends the write lease, and consents. Meanwhile
//! reads wait in [`BlockedReads`], and writes in their queues. The wait ends when the write lease
//! has ended in the replicated state. A consent alone does not end it.
//!
//! The lessor first answers that the read is blocked, and the client asks again with a read that
//! waits. So the client can distinguish this wait from a silent server. Blocked reads have a bound
//! of their own, so that they cannot crowd out other reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{self, RangeInclusive},
};

use crate::{
    command::{AnyLease, Write},
    id::{RequestId, SessionId, Stamp, WriteLeaseId},
    message::{Answer, Consent, ListPage, Refusal},
    object::{Object, ObjectKind, ObjectSet},
    path::NodePath,
    reached::{Bound, reached},
    state::State,
    time::Instant,
    work::CountVisits,
};

use super::{
    Lessor, LessorEffect, ReadTarget, ReadWait, StepContext, WaitingRead, recalls::NewRecall,
    writes::gathering::RecallPlans,
};

/// The blocked reads, by node, then by session and request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct BlockedReads {
    reads: BTreeMap<NodePath, BTreeMap<(SessionId, RequestId), BlockedRead>>,
    /// The same reads, by session.
    by_session: BTreeSet<(SessionId, RequestId, NodePath)>,
    pub(super) count: usize,
    /// The write leases that were recalled for readers, by node. Reads of the node wait for the end
    /// of this write lease. A later write lease of the node is recalled anew.
    recalled: BTreeMap<NodePath, WriteLeaseId>,
    /// Consents that came before the write lease ended, by its node. They count when it ends.
    early_consents: BTreeSet<(NodePath, SessionId, Stamp)>,
}

/// A blocked read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct BlockedRead {
    read: WaitingRead,
    since: Instant,
}

impl BlockedRead {
    /// Whether it is a list that begins at the path.
    fn lists(&self, top: &NodePath) -> bool {
        matches!(&self.read.target, ReadTarget::List { path, .. } if path == top)
    }
}

impl BlockedReads {
    fn all_of(session: SessionId) -> RangeInclusive<(SessionId, RequestId)> {
        (session, RequestId(0))..=(session, RequestId(u64::MAX))
    }

    pub(super) fn insert(&mut self, path: &NodePath, read: WaitingRead, since: Instant) {
        let key = (read.requester.session, read.requester.id);
        self.by_session.insert((key.0, key.1, path.clone()));
        self.reads.entry(path.clone()).or_default().insert(key, BlockedRead { read, since });
        self.count += 1;
    }

    /// Removes the session's earlier read of the node, if there is one. The later read replaces it.
    fn remove_earlier(&mut self, path: &NodePath, session: SessionId) -> Option<WaitingRead> {
        let reads = self.reads.get_mut(path)?;
        let is_same = |blocked: &BlockedRead| matches!(blocked.read.target, ReadTarget::Object { .. });
        let key = reads.range(Self::all_of(session)).find(|(_, blocked)| is_same(blocked)).map(|(key, _)| *key)?;
        self.count -= 1;
        self.by_session.remove(&(key.0, key.1, path.clone()));
        let earlier = reads.remove(&key).map(|blocked| blocked.read);
        if reads.is_empty() {
            self.reads.remove(path);
        }
        earlier
    }

    /// The nodes that block reads of this node, or lists that begin at it. For each: the number of
    /// these reads, and the arrival of the first. It examines no more blocked reads than `most`,
    /// those of the node itself first.
    pub(super) fn about(&self, path: &NodePath, most: usize) -> BTreeMap<&NodePath, (u64, Instant)> {
        let below = (ops::Bound::Excluded(path.bound_below()), ops::Bound::Excluded(path.bound_after()));
        let at_and_below = self.reads.get_key_value(path).into_iter().chain(self.reads.range(below));
        let reads =
            at_and_below.flat_map(|(write_leased, reads)| reads.values().map(move |blocked| (write_leased, blocked)));
        let mut about = BTreeMap::new();
        for (examined, (write_leased, blocked)) in reads.counted().enumerate() {
            if examined == most {
                reached(Bound::Scan);
                break;
            }
            if write_leased == path || blocked.lists(path) {
                let (count, since) = about.entry(write_leased).or_insert((0, blocked.since));
                (*count, *since) = (*count + 1, blocked.since.min(*since));
            }
        }
        about
    }

    /// Removes the reads that this node blocked.
    fn remove(&mut self, path: &NodePath) -> impl Iterator<Item = WaitingRead> + use<> {
        self.recalled.remove(path);
        let reads = self.reads.remove(path).unwrap_or_default();
        self.count -= reads.len();
        for (session, id) in reads.keys() {
            self.by_session.remove(&(*session, *id, path.clone()));
        }
        reads.into_values().map(|blocked| blocked.read)
    }

    /// Removes the session's reads.
    fn remove_of(&mut self, session: SessionId) -> Vec<WaitingRead> {
        let mut removed = Vec::new();
        let range = (session, RequestId(0), NodePath::root())..(session.next(), RequestId(0), NodePath::root());
        let keys: Vec<_> = self.by_session.range(range).counted().cloned().collect();
        for key in keys {
            self.by_session.remove(&key);
            let (session, id, path) = key;
            let Some(reads) = self.reads.get_mut(&path) else { continue };
            removed.extend(reads.remove(&(session, id)).map(|blocked| blocked.read));
            if reads.is_empty() {
                self.reads.remove(&path);
            }
        }
        self.count -= removed.len();
        removed
    }

    pub(super) fn into_reads(self) -> impl Iterator<Item = WaitingRead> {
        self.reads.into_values().flat_map(BTreeMap::into_values).map(|blocked| blocked.read)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 5] {
        [self.reads.len(), self.by_session.len(), self.count, self.recalled.len(), self.early_consents.len()]
    }

    /// Checks that each read waits for an existing write lease that was recalled.
    pub(super) fn check(&self, most: usize, state: &State) -> Result<(), String> {
        let exists = |(path, lease): &(&NodePath, &WriteLeaseId)| state.write_lease_on(path) == Some(**lease);
        if let Some((path, _)) = self.recalled.iter().find(|recalled| !exists(recalled)) {
            return Err(format!("the write lease on {path} was recalled, and has ended"));
        }
        let count: usize = self.reads.values().map(BTreeMap::len).sum();
        if count != self.count || count > most {
            return Err(format!("{count} reads wait for write leases: counted {} of at most {most}", self.count));
        }
        let keys = |(path, reads): (&NodePath, &BTreeMap<(SessionId, RequestId), BlockedRead>)| {
            reads.keys().map(|(session, id)| (*session, *id, path.clone())).collect::<Vec<_>>()
        };
        if self.reads.iter().flat_map(keys).collect::<BTreeSet<_>>() != self.by_session {
            return Err("the index by session does not match the blocked reads".to_owned());
        }
        match self.reads.iter().find(|(path, reads)| reads.is_empty() || !self.recalled.contains_key(*path)) {
            Some((path, _)) => Err(format!("reads wait for the write lease on {path}, which was not recalled")),
            None => Ok(()),
        }
    }
}

impl Lessor {
    /// Whether the object is under a write lease.
    pub(super) fn is_under_write_lease(&self, object: &Object, state: &State) -> bool {
        object.kind == ObjectKind::Data && self.has_write_lease(&object.path, state)
    }

    fn has_write_lease(&self, path: &NodePath, state: &State) -> bool {
        state.write_leased_lock(path).is_some()
    }

    /// Handles a read of an object under a write lease: recalls the write lease. Then it answers
    /// that the read is blocked, or blocks the read if it is one that waits.
    pub(super) fn defer_read(&mut self, read: &WaitingRead, object: &Object, cx: &mut StepContext<'_>) {
        let WaitingRead { requester, target } = read;
        if target.is_next_value_read() {
            return self.reply(requester, Ok(Answer::ReadBlocked), cx);
        }
        self.recall_write_lease(&object.path, cx);
        if !matches!(target, ReadTarget::Object { waits: ReadWait::Flush, .. }) {
            return self.reply(requester, Ok(Answer::ReadBlocked), cx);
        }
        if let Some(earlier) = self.blocked_reads.remove_earlier(&object.path, requester.session) {
            self.reply_without_promises(&earlier.requester, Err(Refusal::Retry), cx);
        }
        self.block_read(&object.path, read, cx);
    }

    /// Answers a list with the nodes before the first node under a write lease. If the page would
    /// begin with such a node, the list waits for that node alone. The lessor answers it in the
    /// step in which the write lease has ended. So each wait is bounded like that of any reader,
    /// and the list then advances by at least one node. The lessor recalls all write leases of the
    /// page at once.
    ///
    /// `freed` is the node that the list waited for. The page has it with the value that the ended
    /// write lease left, even if another write lease has begun.
    pub(super) fn answer_list(
        &mut self,
        read: &WaitingRead,
        (mut page, freed): (ListPage, Option<&NodePath>),
        cx: &mut StepContext<'_>,
    ) {
        let paths = page.nodes.iter().map(|(path, _)| path).filter(|path| Some(*path) != freed);
        let write_leased: Vec<NodePath> = paths.filter(|path| self.has_write_lease(path, cx.state)).cloned().collect();
        write_leased.iter().for_each(|path| self.recall_write_lease(path, cx));
        if let Some(first) = write_leased.first() {
            let free = page.nodes.iter().take_while(|(path, _)| path != first).count();
            if free == 0 {
                return self.block_read(first, read, cx);
            }
            page.nodes.truncate(free);
            page.through = page.nodes.last().map(|(path, _)| path.clone());
        }
        if let ReadTarget::List { path, .. } = &read.target {
            self.counters.0.note_list_page(cx.state.volume_of(path).0);
        }
        self.reply(&read.requester, Ok(Answer::Listed(page)), cx);
    }

    /// Recalls the write lease from its owner. One recall for each write lease is enough, because a
    /// consent counts only when the write lease has ended.
    pub(super) fn recall_write_lease(&mut self, path: &NodePath, cx: &mut StepContext<'_>) {
        let Some((_, record)) = cx.state.write_leased_lock(path) else { return };
        let (Some(lease), Some(epoch)) = (record.write_lease, self.epoch) else { return };
        if self.blocked_reads.recalled.insert(path.clone(), lease) != Some(lease) {
            let sets = vec![ObjectSet::One(Object::data(path.clone()))];
            let volumes = record.lease.volume().into_iter().cloned().collect();
            let made = NewRecall { sets, volumes, offers_next_values: false, write_lease: Some(lease) };
            self.recall_sets(record.session, epoch, made, cx);
        }
    }

    fn block_read(&mut self, path: &NodePath, read: &WaitingRead, cx: &mut StepContext<'_>) {
        let most = self.config.bounds.blocked_reads_max;
        if self.blocked_reads.count < most {
            return self.blocked_reads.insert(path, read.clone(), cx.now);
        }
        reached(Bound::BlockedReads);
        let (what, count) = ("reads that wait for write leases".to_owned(), self.blocked_reads.count);
        self.reply_without_promises(&read.requester, Err(Refusal::Busy { what, got: count, most }), cx);
    }

    /// After changes of the locks on these nodes, answers the reads whose write lease has ended.
    /// The same entry may have begun another write lease. Its owner has no answer yet, so the state
    /// still has the node's value. The reads get this value without an object lease, and take
    /// effect before the new owner's first write.
    pub(super) fn unblock_reads<'a>(
        &mut self,
        paths: impl Iterator<Item = &'a NodePath> + Clone,
        cx: &mut StepContext<'_>,
    ) {
        for path in paths.clone() {
            let of_node = (path.clone(), SessionId(0), Stamp::default())..;
            let early_consents = self
                .blocked_reads
                .early_consents
                .range(of_node)
                .take_while(|(write_leased, ..)| write_leased == path)
                .counted();
            for (path, session, stamp) in early_consents.cloned().collect::<Vec<_>>() {
                self.blocked_reads.early_consents.remove(&(path, session, stamp));
                // If the recall also names another write lease of the session, `consent` notes the
                // consent again.
                self.consent(Consent { session, stamp }, cx);
            }
        }
        if self.blocked_reads.recalled.is_empty() {
            return;
        }
        for path in paths {
            let recalled = self.blocked_reads.recalled.get(path);
            if recalled.is_none_or(|recalled| cx.state.write_lease_on(path) == Some(*recalled)) {
                continue;
            }
            for read in self.blocked_reads.remove(path) {
                self.answer_freed(&read, Some(path), cx);
            }
        }
    }

    /// Stores a consent that does not count yet, because the session still has the write lease of
    /// this node.
    ///
    /// The client may have consented because the recall arrived before the answer with the write
    /// lease. So the lessor sends the recall once more: at once, or in its turn if it was not sent
    /// since the latest registration.
    pub(super) fn note_early_consent(
        &mut self,
        write_leased: NodePath,
        Consent { session, stamp }: Consent,
        cx: &mut StepContext<'_>,
    ) {
        if self.blocked_reads.early_consents.insert((write_leased, session, stamp))
            && let Some(channel) = self.recall_channels.get_mut(&session)
        {
            cx.effects.extend(channel.resend(stamp, cx.now).map(LessorEffect::Recall));
        }
    }

    /// Refuses the session's blocked reads, because the client no longer waits for them.
    pub(super) fn refuse_blocked_reads(&mut self, session: SessionId, refusal: &Refusal, cx: &mut StepContext<'_>) {
        for read in self.blocked_reads.remove_of(session) {
            self.reply_without_promises(&read.requester, Err(refusal.clone()), cx);
        }
    }

    /// Claims the data that the write changes or compares from the owners of write leases on it.
    pub(super) fn claim_write_leases(
        &self,
        write: &Write,
        footprint: &[ObjectSet],
        plans: &mut RecallPlans,
        state: &State,
    ) {
        for path in state.blocking_write_leases(write, footprint) {
            let Some((_, record)) = state.write_leased_lock(&path) else { continue };
            let AnyLease::Volume(_, volume) = &record.lease else { continue };
            let plan = plans.by_session.entry(record.session).or_default();
            plan.add(volume.clone(), record.incarnation, None);
            plan.write_lease = plan.write_lease.max(record.write_lease);
            plan.sets.insert(ObjectSet::One(Object::data(path)));
        }
    }

    /// A node that this recall names, and that the session has under a write lease since before the
    /// recall. While there is such a node, a consent does not count. A correct client consents so
    /// early only if the recall overtook its write lease.
    pub(super) fn write_leased_node(&self, session: SessionId, stamp: Stamp, state: &State) -> Option<NodePath> {
        let (sets, newest) = self.recall_channels.get(&session).and_then(|channel| channel.recalled(stamp))?;
        let is_recalled = |path: &&NodePath| {
            let record =
                state.write_leased_lock(path).map(|(_, record)| record).filter(|record| record.session == session);
            record.is_some_and(|record| record.write_lease <= Some(newest))
        };
        let found = sets.iter().find_map(|set| match set {
            ObjectSet::One(_) => state.write_leased_in(set).find(is_recalled),
            ObjectSet::Subtree(_) => {
                let own = state.write_leased_by(session);
                own.filter(|path| set.contains(&Object::data((*path).clone()))).find(is_recalled)
            }
        });
        found.cloned()
    }
}
