//! Reads of the next value (`Body::ReadNext`): each waits until no write of its object is pending,
//! and is then a read like any other (S6).
//!
//! A client sends such a read for a copy that it gave up for a write, in a volume with
//! [`OnWrite::Update`]. The module owns the reads that wait. It guarantees that a read waits only
//! while a write of its object is pending, so no longer than that write. It does not know who
//! consented to what, and no write waits for these reads.
//!
//! [`OnWrite::Update`]: crate::lease_policy::OnWrite::Update

use std::collections::{BTreeMap, BTreeSet};

use super::{Lessor, ReadTarget, StepContext, WaitingRead};
use crate::{
    id::SessionId,
    message::Refusal,
    object::{Object, ObjectSet},
    path::NodePath,
    reached::{Bound, reached},
    work::CountVisits,
};

/// The reads of next values that wait for writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct NextReads {
    reads: BTreeMap<(Object, SessionId), WaitingRead>,
    by_session: BTreeSet<(SessionId, Object)>,
}

impl NextReads {
    fn insert(&mut self, object: Object, read: WaitingRead) -> Option<WaitingRead> {
        let session = read.requester.session;
        self.by_session.insert((session, object.clone()));
        self.reads.insert((object, session), read)
    }

    /// The objects in the set that reads wait for, each once for each read.
    fn waiting_in(&self, set: &ObjectSet) -> Vec<(Object, SessionId)> {
        let (first, last) = match set {
            ObjectSet::One(object) => (object.clone(), object.clone()),
            ObjectSet::Subtree(top) => (Object::data(top.clone()), Object::children(top.clone())),
        };
        let own = self.reads.range((first, SessionId(0))..=(last, SessionId(u64::MAX)));
        let below = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => {
                let (from, to) = (Object::data(top.bound_below()), Object::data(top.bound_after()));
                Some(self.reads.range((from, SessionId(0))..(to, SessionId(0))))
            }
        };
        own.chain(below.into_iter().flatten())
            .counted()
            .map(|(key, _)| key.clone())
            .filter(|key| set.contains(&key.0))
            .collect()
    }

    fn remove(&mut self, key: &(Object, SessionId)) -> Option<WaitingRead> {
        self.by_session.remove(&(key.1, key.0.clone()));
        self.reads.remove(key)
    }

    fn remove_of(&mut self, session: SessionId) -> Vec<WaitingRead> {
        let first = Object::data(NodePath::root());
        let range = (session, first.clone())..(session.next(), first);
        let keys: Vec<_> =
            self.by_session.range(range).counted().map(|(_, object)| (object.clone(), session)).collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    pub(super) fn into_reads(self) -> impl Iterator<Item = WaitingRead> {
        self.reads.into_values()
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.reads.len(), self.by_session.len()]
    }

    /// Checks that each read waits for a pending write, and that the tables agree.
    pub(super) fn check(&self, is_changing: impl Fn(&Object) -> bool, most: usize) -> Result<(), String> {
        if let Some((object, session)) = self.reads.keys().find(|(object, _)| !is_changing(object)) {
            return Err(format!("{session} waits for the next value of {object}, and no write of it is pending"));
        }
        let is_listed = |(object, session): &(Object, SessionId)| self.by_session.contains(&(*session, object.clone()));
        if self.by_session.len() != self.reads.len() || !self.reads.keys().all(is_listed) {
            return Err("the index by session does not match the reads of next values".to_owned());
        }
        match self.reads.len() {
            count if count > most => Err(format!("{count} reads wait for next values: at most {most} may")),
            _ => Ok(()),
        }
    }
}

impl Lessor {
    /// Handles a read of the next value: it waits if a write of the object is pending. Beyond the
    /// bound it does not wait, and gets no lease then (S3).
    pub(super) fn read_next(&mut self, read: WaitingRead, object: Object, cx: &mut StepContext<'_>) {
        if !self.writes.changes_object(&object) {
            return self.read(read, cx);
        }
        let most = self.config.bounds.next_reads_max;
        if self.next_reads.reads.len() >= most {
            reached(Bound::NextReadsWaiting);
            return self.read(read, cx);
        }
        if let Some(earlier) = self.next_reads.insert(object, read) {
            self.reply_without_promises(&earlier.requester, Err(Refusal::Retry), cx);
        }
    }

    /// After a write with this footprint has ended, or no longer has it, reads the objects of which
    /// no other write is pending.
    pub(super) fn resume_next_reads(&mut self, footprint: &[ObjectSet], cx: &mut StepContext<'_>) {
        if self.next_reads.reads.is_empty() {
            return;
        }
        for set in footprint {
            for key in self.next_reads.waiting_in(set) {
                if !self.writes.changes_object(&key.0)
                    && let Some(read) = self.next_reads.remove(&key)
                {
                    self.read(read, cx);
                }
            }
        }
    }

    /// Refuses the session's reads of next values, because the client no longer waits for them.
    pub(super) fn refuse_next_reads(&mut self, session: SessionId, refusal: &Refusal, cx: &mut StepContext<'_>) {
        for read in self.next_reads.remove_of(session) {
            self.reply_without_promises(&read.requester, Err(refusal.clone()), cx);
        }
    }
}

impl ReadTarget {
    /// Whether it is a read of a next value, which no application waits for.
    pub(super) fn is_next_read(&self) -> bool {
        matches!(self, Self::Object { waits: super::ReadWait::NextValue, .. })
    }
}
