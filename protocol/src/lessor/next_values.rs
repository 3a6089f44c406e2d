//! Reads of next values (`Body::ReadNextValue`): each first waits for the writes of its object that
//! were pending when it arrived. After they have ended, it is a read like any other (S6).
//!
//! A client sends such a read for a copy that it gave up for a write, in a volume with
//! [`OnWrite::Update`]. No application waits for the answer. So these reads have bounds of their
//! own, and every other read goes before them. Later writes do not prolong the wait (S7b): if one
//! is pending at the time of the answer, the answer has no lease (S3).
//!
//! During a quorum round, `reads.rs` has the reads. Before and after, this module owns them. It
//! does not know who consented to what. No write waits for these reads.
//!
//! [`OnWrite::Update`]: crate::lease_policy::OnWrite::Update

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Lessor, ReadTarget, ReadWait, StepContext, WaitingRead, writes::PendingWriteId};
use crate::{
    id::SessionId,
    message::Refusal,
    object::{Object, ObjectSet},
    path::NodePath,
    reached::{Bound, reached},
    work::CountVisits,
};

/// The waiting reads of one object, by write and by session. The write is the last write that had
/// arrived before the read, whatever its objects. The read waits for the writes of its own object
/// up to that one.
type WaitingOfObject = BTreeMap<(PendingWriteId, SessionId), WaitingRead>;

/// The reads of next values that no quorum round is proving at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct NextValueReads {
    waiting: BTreeMap<Object, WaitingOfObject>,
    /// The waiting reads, by session.
    by_session: BTreeSet<(SessionId, Object, PendingWriteId)>,
    /// No write that they wait for is pending: the next quorum round proves them.
    woken: VecDeque<WaitingRead>,
    /// A round has proven them.
    proven: VecDeque<WaitingRead>,
    /// How many reads there are, from the arrival of each until its answer, and how many each
    /// session has. The reads of a round in flight count too.
    count: usize,
    counts: BTreeMap<SessionId, usize>,
}

impl NextValueReads {
    /// Counts a read that arrives.
    fn note_arrival(&mut self, session: SessionId) {
        self.count += 1;
        *self.counts.entry(session).or_default() += 1;
    }

    /// Subtracts a read that is answered or refused.
    pub(super) fn note_end(&mut self, session: SessionId) {
        if let Some(count) = self.counts.get_mut(&session) {
            (self.count, *count) = (self.count - 1, *count - 1);
            if *count == 0 {
                self.counts.remove(&session);
            }
        }
    }

    /// The waiting reads of the session, each with its object and the last write that had arrived
    /// before it.
    fn waiting_of(&self, session: SessionId) -> impl Iterator<Item = &(SessionId, Object, PendingWriteId)> {
        let first = Object::data(NodePath::root());
        self.by_session.range((session, first.clone(), 0)..(session.next(), first, 0)).counted()
    }

    /// The write that the session's waiting read of the object waits for, if there is such a read.
    fn waits_through(&self, session: SessionId, object: &Object) -> Option<PendingWriteId> {
        let of_object = (session, object.clone(), 0)..=(session, object.clone(), PendingWriteId::MAX);
        self.by_session.range(of_object).next().map(|(_, _, through)| *through)
    }

    /// Adds a read that waits for the writes of its object up to `through`. Returns the session's
    /// earlier read of the object, which it replaces.
    fn wait(&mut self, object: Object, through: PendingWriteId, read: WaitingRead) -> Option<WaitingRead> {
        let session = read.requester.session;
        let earlier = self.waits_through(session, &object);
        let earlier = earlier.and_then(|earlier| self.remove(session, &object, earlier));
        self.by_session.insert((session, object.clone(), through));
        self.waiting.entry(object).or_default().insert((through, session), read);
        earlier
    }

    fn remove(&mut self, session: SessionId, object: &Object, through: PendingWriteId) -> Option<WaitingRead> {
        self.by_session.remove(&(session, object.clone(), through));
        let reads = self.waiting.get_mut(object)?;
        let removed = reads.remove(&(through, session))?;
        if reads.is_empty() {
            self.waiting.remove(object);
        }
        self.note_end(session);
        Some(removed)
    }

    /// Those objects of the set that have waiting reads.
    fn objects_in(&self, set: &ObjectSet) -> Vec<Object> {
        let (first, last) = match set {
            ObjectSet::One(object) => (object.clone(), object.clone()),
            ObjectSet::Subtree(top) => (Object::data(top.clone()), Object::children(top.clone())),
        };
        let below = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => {
                let (from, to) = (Object::data(top.bound_below()), Object::data(top.bound_after()));
                Some(self.waiting.range(from..to))
            }
        };
        let all = self.waiting.range(first..=last).chain(below.into_iter().flatten());
        all.map(|(object, _)| object.clone()).filter(|object| set.contains(object)).counted().collect()
    }

    /// Wakes each read of the object if all writes that it waits for have ended. `first` is the
    /// first pending write of the object.
    fn wake(&mut self, object: &Object, first: Option<PendingWriteId>) {
        let Some(reads) = self.waiting.get_mut(object) else { return };
        let later = first.map(|first| reads.split_off(&(first, SessionId(0)))).unwrap_or_default();
        let woken = std::mem::replace(reads, later);
        if reads.is_empty() {
            self.waiting.remove(object);
        }
        for ((through, session), read) in woken.into_iter().counted() {
            self.by_session.remove(&(session, object.clone(), through));
            self.woken.push_back(read);
        }
    }

    /// Whether a quorum round may begin for woken reads: there are some, and all of the last round
    /// are answered.
    pub(super) fn may_begin_round(&self) -> bool {
        self.proven.is_empty() && !self.woken.is_empty()
    }

    /// Takes the reads that the next round proves, up to `most`.
    pub(super) fn take_for_round(&mut self, most: usize) -> Vec<WaitingRead> {
        let most = if self.proven.is_empty() { most.min(self.woken.len()) } else { 0 };
        self.woken.drain(..most).collect()
    }

    /// A round has proven this read.
    pub(super) fn add_proven(&mut self, read: WaitingRead) {
        self.proven.push_back(read);
    }

    /// The next read to answer, when no other read is left.
    pub(super) fn next_proven(&mut self) -> Option<WaitingRead> {
        let read = self.proven.pop_front()?;
        self.note_end(read.requester.session);
        Some(read)
    }

    /// Whether some can be answered in the next step.
    pub(super) fn has_proven(&self) -> bool {
        !self.proven.is_empty()
    }

    pub(super) fn into_reads(self) -> impl Iterator<Item = WaitingRead> {
        self.waiting.into_values().flat_map(BTreeMap::into_values).chain(self.woken).chain(self.proven)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 5] {
        [self.waiting.len(), self.by_session.len(), self.woken.len(), self.proven.len(), self.counts.len()]
    }

    /// Checks that each waiting read waits for a pending write, and that the tables agree. `round`
    /// has the reads of the round in flight.
    pub(super) fn check(
        &self,
        first_of: impl Fn(&Object) -> Option<PendingWriteId>,
        round: &[WaitingRead],
        most: usize,
    ) -> Result<(), String> {
        for (object, reads) in &self.waiting {
            let first = first_of(object);
            let waits = |(through, _): &&(PendingWriteId, SessionId)| first.is_some_and(|first| first <= *through);
            if let Some((through, session)) = reads.keys().find(|key| !waits(key)) {
                return Err(format!("{session} waits for the writes of {object} up to {through}, which have ended"));
            }
            let is_listed = |(through, session): &(PendingWriteId, SessionId)| {
                self.by_session.contains(&(*session, object.clone(), *through))
            };
            if reads.is_empty() || !reads.keys().all(is_listed) {
                return Err(format!("the index by session does not match the waiting reads of {object}"));
            }
        }
        let waiting = self.waiting.values().flat_map(BTreeMap::values);
        if waiting.clone().count() != self.by_session.len() {
            return Err("the index by session has more than the waiting reads".to_owned());
        }
        let in_round = round.iter().filter(|read| read.target.is_next_value_read());
        let mut counts: BTreeMap<SessionId, usize> = BTreeMap::new();
        for read in waiting.chain(&self.woken).chain(in_round).chain(&self.proven) {
            *counts.entry(read.requester.session).or_default() += 1;
        }
        if counts != self.counts || counts.values().sum::<usize>() != self.count || self.count > most {
            return Err(format!("{} reads of next values are counted, of {most}: expected {counts:?}", self.count));
        }
        Ok(())
    }
}

impl Lessor {
    /// Handles a read of the next value. Beyond the bounds it is refused as busy. The client does
    /// not repeat it.
    pub(super) fn read_next_value(&mut self, mut read: WaitingRead, object: Object, cx: &mut StepContext<'_>) {
        if let Err(error) = self.config.limits.check_path(&object.path) {
            return self.reply(&read.requester, Err(error.into()), cx);
        }
        let session = read.requester.session;
        let (most, of_session_most) = (self.config.bounds.next_values_max, self.config.bounds.session_next_values_max);
        let of_session = self.next_values.counts.get(&session).copied().unwrap_or_default();
        // A request that replaces an earlier one adds none.
        let replaces = self.next_values.waits_through(session, &object).is_some();
        let refused = match (self.next_values.count, of_session) {
            _ if replaces => None,
            (got, _) if got >= most => Some((Bound::NextValuesWaiting, "reads of next values", got, most)),
            (_, got) if got >= of_session_most => {
                Some((Bound::SessionNextValues, "reads of next values of the session", got, of_session_most))
            }
            _ => None,
        };
        if let Some((bound, what, got, most)) = refused {
            reached(bound);
            let refusal = Refusal::Busy { what: what.to_owned(), got, most };
            return self.reply_without_promises(&read.requester, Err(refusal), cx);
        }
        self.next_values.note_arrival(session);
        if !self.writes.changes_object(&object) {
            self.next_values.woken.push_back(read);
            return self.begin_round(cx);
        }
        // The answer may come late. So the request renews nothing, and the lessor stores nothing
        // about renewals for it.
        (read.requester.renewed, read.requester.clocks) = (Vec::new(), None);
        if let Some(earlier) = self.next_values.wait(object, self.writes.last(), read) {
            self.reply_without_promises(&earlier.requester, Err(Refusal::Retry), cx);
        }
    }

    /// Wakes each read of these objects if all writes that it waits for have ended. The lessor
    /// calls it when a write with this footprint has ended, or has another footprint now.
    pub(super) fn resume_next_values(&mut self, footprint: &[ObjectSet], cx: &mut StepContext<'_>) {
        if self.next_values.waiting.is_empty() {
            return;
        }
        for set in footprint {
            for object in self.next_values.objects_in(set) {
                self.next_values.wake(&object, self.writes.first_of(&object));
            }
        }
        self.begin_round(cx);
    }

    /// Refuses the session's waiting reads of next values, because the client no longer waits for
    /// them.
    pub(super) fn refuse_next_values(&mut self, session: SessionId, refusal: &Refusal, cx: &mut StepContext<'_>) {
        let waiting: Vec<_> = self.next_values.waiting_of(session).cloned().collect();
        for (session, object, through) in waiting {
            if let Some(read) = self.next_values.remove(session, &object, through) {
                self.reply_without_promises(&read.requester, Err(refusal.clone()), cx);
            }
        }
    }
}

impl ReadTarget {
    /// Whether it is a read of a next value, which no application waits for.
    pub(super) fn is_next_value_read(&self) -> bool {
        matches!(self, Self::Object { waits: ReadWait::NextValue, .. })
    }
}
