//! Write leases: what waits for a holder that keeps a node's data to itself.
//!
//! Whoever reads, writes or compares that data has the holder asked for it: by a recall, like one
//! for a copy, so that no promise to the holder goes further than a term after it (S5). The holder
//! flushes, says that it keeps the data to itself no longer, and consents. Reads wait here; writes
//! wait in their queues, and are refused by the state until then. What ends the wait is what the
//! state says, never the consent alone.
//!
//! A reader is told at once that it has to wait, and asks again as one that waits: so its client
//! knows the silence for what it is. Those who wait are bounded by themselves: however many they
//! are, other reads are answered.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{self, RangeInclusive},
};

use crate::{
    command::{LeaseKey, Write},
    id::{RequestId, SessionId, Stamp, WriteLeaseId},
    message::{Answer, Consent, ListPage, Refusal},
    object::{Object, ObjectKind, ObjectSet},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    state::State,
    time::Instant,
    work::CountVisits,
};

use super::{Lessor, LessorEffect, ReadTarget, StepContext, WaitingRead, gathering::Claims};

/// The reads that wait, by the node that keeps them waiting and who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct BlockedReads {
    reads: BTreeMap<NodePath, BTreeMap<(SessionId, RequestId), BlockedRead>>,
    /// The same by who asks.
    by_session: BTreeSet<(SessionId, RequestId, NodePath)>,
    /// How many they are.
    pub(super) count: usize,
    /// The write leases whose holders have been asked for the node's data on behalf of a reader.
    /// Reads of a node wait for the end of this one: who has the node to itself after that is asked
    /// anew.
    recalled: BTreeMap<NodePath, WriteLeaseId>,
    /// Consents that came before what they are for had ended: they count when it has. By a node
    /// that is kept still.
    early: BTreeSet<(NodePath, SessionId, Stamp)>,
}

/// A read that waits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct BlockedRead {
    read: WaitingRead,
    since: Instant,
}

impl BlockedRead {
    /// Whether it is a list that begins at the path.
    fn lists(&self, top: &NodePath) -> bool {
        matches!(&self.read.wanted, ReadTarget::List { path, .. } if path == top)
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

    /// Takes out the session's earlier read of the node, if there is one: nobody waits for that any
    /// more.
    fn remove_earlier(&mut self, path: &NodePath, session: SessionId) -> Option<WaitingRead> {
        let reads = self.reads.get_mut(path)?;
        let is_same = |parked: &BlockedRead| matches!(parked.read.wanted, ReadTarget::Object { .. });
        let key = reads.range(Self::all_of(session)).find(|(_, parked)| is_same(parked)).map(|(key, _)| *key)?;
        self.count -= 1;
        self.by_session.remove(&(key.0, key.1, path.clone()));
        let earlier = reads.remove(&key).map(|parked| parked.read);
        if reads.is_empty() {
            self.reads.remove(path);
        }
        earlier
    }

    /// The nodes that keep reads of this one waiting, or lists that begin there; how many of those
    /// wait, and since when the first does. At most `most` waiting reads are looked at, those of
    /// the node itself first.
    pub(super) fn about(&self, path: &NodePath, most: usize) -> BTreeMap<&NodePath, (u64, Instant)> {
        let below = (ops::Bound::Excluded(path.bound_below()), ops::Bound::Excluded(path.bound_after()));
        let at_and_below = self.reads.get_key_value(path).into_iter().chain(self.reads.range(below));
        let reads = at_and_below.flat_map(|(kept, reads)| reads.values().map(move |parked| (kept, parked)));
        let mut about = BTreeMap::new();
        for (looked_at, (kept, parked)) in reads.counted().enumerate() {
            if looked_at == most {
                reached(Bound::Scan);
                break;
            }
            if kept == path || parked.lists(path) {
                let (count, since) = about.entry(kept).or_insert((0, parked.since));
                (*count, *since) = (*count + 1, parked.since.min(*since));
            }
        }
        about
    }

    /// Takes out what waited for this node.
    fn remove(&mut self, path: &NodePath) -> impl Iterator<Item = WaitingRead> + use<> {
        self.recalled.remove(path);
        let reads = self.reads.remove(path).unwrap_or_default();
        self.count -= reads.len();
        for (session, id) in reads.keys() {
            self.by_session.remove(&(*session, *id, path.clone()));
        }
        reads.into_values().map(|parked| parked.read)
    }

    /// Takes out what the session waited for.
    fn remove_of(&mut self, session: SessionId) -> Vec<WaitingRead> {
        let mut gone = Vec::new();
        let all = (session, RequestId(0), NodePath::root())..(session.next(), RequestId(0), NodePath::root());
        let own: Vec<_> = self.by_session.range(all).counted().cloned().collect();
        for key in own {
            self.by_session.remove(&key);
            let (session, id, path) = key;
            let Some(reads) = self.reads.get_mut(&path) else { continue };
            gone.extend(reads.remove(&(session, id)).map(|parked| parked.read));
            if reads.is_empty() {
                self.reads.remove(&path);
            }
        }
        self.count -= gone.len();
        gone
    }

    /// All that wait.
    pub(super) fn into_reads(self) -> impl Iterator<Item = WaitingRead> {
        self.reads.into_values().flat_map(BTreeMap::into_values).map(|parked| parked.read)
    }

    /// How many entries there are, of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 5] {
        [self.reads.len(), self.by_session.len(), self.count, self.recalled.len(), self.early.len()]
    }

    /// What waits, waits for somebody who was asked.
    pub(super) fn check(&self, most: usize, state: &State) -> Result<(), String> {
        let is_there = |(path, lease): &(&NodePath, &WriteLeaseId)| state.write_lease_on(path) == Some(**lease);
        if let Some((path, _)) = self.recalled.iter().find(|asked| !is_there(asked)) {
            return Err(format!("a write lease on {path} is asked for that is not there"));
        }
        let count: usize = self.reads.values().map(BTreeMap::len).sum();
        if count != self.count || count > most {
            return Err(format!("{count} reads wait for write leases: counted {} of at most {most}", self.count));
        }
        let keys = |(path, reads): (&NodePath, &BTreeMap<(SessionId, RequestId), BlockedRead>)| {
            reads.keys().map(|(session, id)| (*session, *id, path.clone())).collect::<Vec<_>>()
        };
        if self.reads.iter().flat_map(keys).collect::<BTreeSet<_>>() != self.by_session {
            return Err("the reads that wait for write leases are not those that are found by session".to_owned());
        }
        match self.reads.iter().find(|(path, reads)| reads.is_empty() || !self.recalled.contains_key(*path)) {
            Some((path, _)) => Err(format!("reads wait for a write lease on {path} that nobody has asked for")),
            None => Ok(()),
        }
    }
}

impl Lessor {
    /// Whether somebody keeps the object to itself.
    pub(super) fn is_under_write_lease(&self, object: &Object, state: &State) -> bool {
        object.kind == ObjectKind::Data && self.has_write_lease(&object.path, state)
    }

    fn has_write_lease(&self, path: &NodePath, state: &State) -> bool {
        state.write_leased_lock(path).is_some() && !self.planted(Bug::ReadPastWriteLease)
    }

    /// The read is of what somebody keeps to itself, who is asked for it. The reader is told so, or
    /// waits.
    pub(super) fn defer_read(&mut self, read: &WaitingRead, object: &Object, turn: &mut StepContext<'_>) {
        let WaitingRead { requester, wanted } = read;
        self.recall_write_lease(&object.path, turn);
        if !matches!(wanted, ReadTarget::Object { waits: true, .. }) {
            return self.reply(requester, Ok(Answer::ReadBlocked), turn);
        }
        if let Some(earlier) = self.blocked_reads.remove_earlier(&object.path, requester.session) {
            self.reply_without_promises(&earlier.requester, Err(Refusal::Retry), turn);
        }
        self.block_read(&object.path, read, turn);
    }

    /// Answers a list with what comes before the first node that somebody keeps to itself. So only
    /// a page that would begin with such a node waits, for that node alone, and is answered in the
    /// very step in which it is not kept any more, before anybody can keep it again: each wait
    /// brings the list on, and is bounded as that of any reader. All that would be on the page are
    /// asked for at once.
    ///
    /// `freed` is a node that it has waited for: it is told as the ended write lease has left it,
    /// though it may be kept again.
    pub(super) fn answer_list(
        &mut self,
        read: &WaitingRead,
        (mut page, freed): (ListPage, Option<&NodePath>),
        turn: &mut StepContext<'_>,
    ) {
        let paths = page.nodes.iter().map(|(path, _)| path).filter(|path| Some(*path) != freed);
        let kept: Vec<NodePath> = paths.filter(|path| self.has_write_lease(path, turn.state)).cloned().collect();
        kept.iter().for_each(|path| self.recall_write_lease(path, turn));
        if let Some(first) = kept.first() {
            let free = page.nodes.iter().take_while(|(path, _)| path != first).count();
            if free == 0 {
                return self.block_read(first, read, turn);
            }
            page.nodes.truncate(free);
            page.through = page.nodes.last().map(|(path, _)| path.clone());
        }
        self.reply(&read.requester, Ok(Answer::Listed(page)), turn);
    }

    /// Has the holder asked for the node's data: once, because a consent counts only when it keeps
    /// it no longer.
    fn recall_write_lease(&mut self, path: &NodePath, turn: &mut StepContext<'_>) {
        let (Some((_, hold)), Some(epoch)) = (turn.state.write_leased_lock(path), self.epoch) else { return };
        let Some(lease) = hold.write_lease else { return };
        if self.blocked_reads.recalled.insert(path.clone(), lease) != Some(lease) {
            let asked = (vec![ObjectSet::One(Object::data(path.clone()))], turn.state.last_write_lease());
            let (_, recall) = self.channel(hold.session).recall(hold.session, epoch, asked, turn.now);
            turn.effects.extend(recall.map(LessorEffect::Recall));
        }
    }

    fn block_read(&mut self, path: &NodePath, read: &WaitingRead, turn: &mut StepContext<'_>) {
        let most = self.config.bounds.blocked_reads_max;
        if self.blocked_reads.count < most {
            return self.blocked_reads.insert(path, read.clone(), turn.now);
        }
        reached(Bound::BlockedReads);
        let (what, got) = ("reads that wait for write leases".to_owned(), self.blocked_reads.count);
        self.reply_without_promises(&read.requester, Err(Refusal::Busy { what, got, most }), turn);
    }

    /// Holds on these nodes have changed: answers the reads that waited for a write lease which has
    /// ended. Another may have begun with the same entry. Its holder has not been told yet, so what
    /// is in the state is still the node's value: it is answered without a lease, and takes effect
    /// before anything that the holder does.
    pub(super) fn unblock_reads(&mut self, paths: &BTreeSet<NodePath>, turn: &mut StepContext<'_>) {
        for path in paths {
            let of_node = (path.clone(), SessionId(0), Stamp::default())..;
            let early = self.blocked_reads.early.range(of_node).take_while(|(kept, ..)| kept == path).counted();
            for (path, session, stamp) in early.cloned().collect::<Vec<_>>() {
                self.blocked_reads.early.remove(&(path, session, stamp));
                // If there is something else that it keeps, that is noted.
                self.consent(Consent { session, stamp }, turn);
            }
        }
        if self.blocked_reads.recalled.is_empty() {
            return;
        }
        for path in paths {
            let asked = self.blocked_reads.recalled.get(path);
            if asked.is_none_or(|asked| turn.state.write_lease_on(path) == Some(*asked)) {
                continue;
            }
            for read in self.blocked_reads.remove(path) {
                self.answer_freed(&read, Some(path), turn);
            }
        }
    }

    /// Takes note of a consent that does not count yet, because the session keeps this node still.
    ///
    /// The recall may have reached the client before the answer with its write lease. So it is sent
    /// once more, at once.
    pub(super) fn note_early(
        &mut self,
        kept: NodePath,
        Consent { session, stamp }: Consent,
        turn: &mut StepContext<'_>,
    ) {
        if self.blocked_reads.early.insert((kept, session, stamp))
            && let Some(channel) = self.recall_channels.get_mut(&session)
        {
            turn.effects.extend(channel.resend(stamp, turn.now).map(LessorEffect::Recall));
        }
    }

    /// Nobody waits any more for what the session wanted to read.
    pub(super) fn refuse_blocked_reads(&mut self, session: SessionId, refusal: &Refusal, turn: &mut StepContext<'_>) {
        for read in self.blocked_reads.remove_of(session) {
            self.reply_without_promises(&read.requester, Err(refusal.clone()), turn);
        }
    }

    /// Adds those who keep to themselves what the write changes or compares.
    pub(super) fn claim_write_leases(&self, write: &Write, covers: &[ObjectSet], claims: &mut Claims, state: &State) {
        for path in state.blocking_write_leases(write, covers) {
            let Some((_, hold)) = state.write_leased_lock(&path) else { continue };
            let LeaseKey::Volume(_, volume) = &hold.lease else { continue };
            let claim = claims.by_session.entry(hold.session).or_default();
            claim.add(volume.clone(), hold.incarnation, None);
            claim.sets.insert(ObjectSet::One(Object::data(path)));
        }
    }

    /// A node whose data the session still keeps to itself though this recall asks for it, under a
    /// write lease that there was then: if there is one, its consent is no answer yet. A client
    /// that keeps its half never says so; of another the promises end (S5).
    pub(super) fn write_leased_node(&self, session: SessionId, stamp: Stamp, state: &State) -> Option<NodePath> {
        let (sets, through) = self.recall_channels.get(&session).and_then(|channel| channel.recalled(stamp))?;
        let is_asked_for = |path: &&NodePath| {
            let hold = state.write_leased_lock(path).map(|(_, hold)| hold).filter(|hold| hold.session == session);
            let object = Object::data((*path).clone());
            hold.is_some_and(|hold| hold.write_lease <= Some(through)) && sets.iter().any(|set| set.contains(&object))
        };
        state.write_leased_by(session).find(is_asked_for).cloned()
    }
}
