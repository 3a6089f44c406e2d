//! Writes that wait: for their turn, for consents, for their commit (S2, S3). The removal of nodes whose leases have ended is a write too (S8).
//!
//! A write enters the queues of all objects it may change at once, and from then on no lease is granted on them. It may
//! be proposed when all its consents are in and every earlier write that shares an object with it has been proposed:
//! the log keeps the order, so the next need not wait for the commit.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::Write,
    id::{Incarnation, Revision, Sequence, SessionId, Stamp},
    object::{Kind, Object, ObjectSet},
    path::Path,
    time::{ClusterTime, Instant},
};

use super::Asker;

/// A write's place in the order of arrival.
pub(super) type Turn = u64;

/// A write from its arrival to its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) work: Work,
    /// The objects that consents are gathered for.
    pub(super) covers: Vec<ObjectSet>,
    /// The leases whose nodes it removes: consents are gathered for those that they carried at `carried_at`, too.
    pub(super) carried: BTreeSet<Incarnation>,
    pub(super) carried_at: Revision,
    /// The consents that are missing.
    pub(super) waits: BTreeMap<SessionId, Wait>,
    pub(super) is_proposed: bool,
    pub(super) since: Instant,
    /// Earlier writes that share an object and are not proposed yet.
    ahead: BTreeSet<Turn>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// What a client has asked for.
    Client(Asked),
    /// The removal of nodes whose leases have ended.
    Removal,
}

/// A client's write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    pub(super) session: SessionId,
    pub(super) sequence: Sequence,
    pub(super) unanswered_from: Sequence,
    pub(super) write: Write,
    /// The requests that want the answer: more than one if it was sent again.
    pub(super) askers: Vec<Asker>,
    /// The copies that the writer dropped when it last sent the write, and the highest stamp that it had seen (S2w).
    pub(super) dropped: Vec<ObjectSet>,
    pub(super) seen: Stamp,
}

/// What a write waits for from one session: a consent, or any of the ends that make it needless.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Wait {
    /// The recall to be answered.
    pub(super) stamp: Stamp,
    /// The volume leases under which copies may be held: needless when none of them is left (T5).
    pub(super) leases: BTreeMap<Path, Incarnation>,
    /// When all the object leases are over, where they are known one by one (T3).
    pub(super) over: Option<ClusterTime>,
}

/// All writes that are waiting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Writes {
    last: Turn,
    /// About how many bytes they take.
    bytes: usize,
    pending: BTreeMap<Turn, Pending>,
    by_request: BTreeMap<(SessionId, Sequence), Turn>,
    /// The queue of each object that is written by itself.
    objects: BTreeMap<Object, BTreeSet<Turn>>,
    /// The queues of the subtrees that are written as a whole.
    subtrees: BTreeMap<Path, BTreeSet<Turn>>,
    /// Who is waited for, and by which write.
    waiting: BTreeSet<(SessionId, Turn)>,
    /// For each write, those that have it ahead of them.
    behind: BTreeMap<Turn, BTreeSet<Turn>>,
    /// The leases whose nodes are being removed, and by which write.
    carried: BTreeSet<(Incarnation, Turn)>,
    /// How many writes are removals.
    removals: usize,
}

impl Pending {
    pub(super) fn new(work: Work, covers: Vec<ObjectSet>, since: Instant) -> Self {
        Self {
            work,
            covers,
            carried: BTreeSet::new(),
            carried_at: Revision(0),
            waits: BTreeMap::new(),
            is_proposed: false,
            since,
            ahead: BTreeSet::new(),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.is_proposed && self.ahead.is_empty() && self.waits.is_empty()
    }

    /// The client's write that it is, if it is one.
    pub(super) fn asked(&self) -> Option<&Asked> {
        match &self.work {
            Work::Client(asked) => Some(asked),
            Work::Removal => None,
        }
    }

    /// Whether it passes the writes of the same data that came first: they wait for it (S10).
    fn passes(&self) -> bool {
        self.asked().is_some_and(|asked| matches!(asked.write, Write::Flush { .. }))
    }

    fn weight(&self) -> usize {
        self.asked().map_or(0, |asked| asked.write.weight())
    }

    fn request(&self) -> Option<(SessionId, Sequence)> {
        self.asked().map(|asked| (asked.session, asked.sequence))
    }
}

impl Writes {
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// About how many bytes the writes take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, turn: Turn) -> Option<&Pending> {
        self.pending.get(&turn)
    }

    pub(super) fn get_mut(&mut self, turn: Turn) -> Option<&mut Pending> {
        self.pending.get_mut(&turn)
    }

    /// The client's write of this turn, if it is one.
    pub(super) fn asked_mut(&mut self, turn: Turn) -> Option<&mut Asked> {
        match &mut self.pending.get_mut(&turn)?.work {
            Work::Client(asked) => Some(asked),
            Work::Removal => None,
        }
    }

    pub(super) fn turn_of(&self, session: SessionId, sequence: Sequence) -> Option<Turn> {
        self.by_request.get(&(session, sequence)).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Turn, &Pending)> {
        self.pending.iter().map(|(turn, pending)| (*turn, pending))
    }

    /// Lets a write in, behind all others.
    pub(super) fn enter(&mut self, pending: Pending) -> Turn {
        self.last += 1;
        let turn = self.last;
        self.bytes += pending.weight();
        self.removals += usize::from(pending.asked().is_none());
        self.by_request.extend(pending.request().map(|request| (request, turn)));
        self.carried.extend(pending.carried.iter().map(|lease| (*lease, turn)));
        let covers = pending.covers.clone();
        self.pending.insert(turn, pending);
        self.enter_queues(turn, &covers);
        turn
    }

    /// Gives a write other objects to change, in the turn that it has. The ones it had stay blocked for leases only if
    /// they are among the new ones.
    pub(super) fn cover(&mut self, turn: Turn, covers: Vec<ObjectSet>) -> Vec<Turn> {
        self.leave_queues(turn);
        let ready = self.release_behind(turn);
        if let Some(pending) = self.pending.get_mut(&turn) {
            pending.is_proposed = false;
            pending.covers.clone_from(&covers);
        }
        self.enter_queues(turn, &covers);
        ready
    }

    /// The write has been proposed: those behind it may follow it into the log. Returns the ones that became ready.
    pub(super) fn proposed(&mut self, turn: Turn) -> Vec<Turn> {
        if let Some(pending) = self.pending.get_mut(&turn) {
            pending.is_proposed = true;
        }
        self.release_behind(turn)
    }

    /// The write is over, one way or the other. Returns it, and the ones that became ready.
    pub(super) fn leave(&mut self, turn: Turn) -> Option<(Pending, Vec<Turn>)> {
        self.leave_queues(turn);
        let ready = self.release_behind(turn);
        let pending = self.pending.remove(&turn)?;
        self.bytes = self.bytes.saturating_sub(pending.weight());
        self.removals -= usize::from(pending.asked().is_none());
        for session in pending.waits.keys() {
            self.waiting.remove(&(*session, turn));
        }
        if let Some(request) = pending.request() {
            self.by_request.remove(&request);
        }
        for lease in &pending.carried {
            self.carried.remove(&(*lease, turn));
        }
        Some((pending, ready))
    }

    /// The write waits for a session.
    pub(super) fn wait(&mut self, turn: Turn, session: SessionId, wait: Wait) {
        if let Some(pending) = self.pending.get_mut(&turn) {
            pending.waits.insert(session, wait);
            self.waiting.insert((session, turn));
        }
    }

    /// Ends the waits for one session for which the condition holds. Returns the writes that became ready.
    pub(super) fn end_waits(&mut self, session: SessionId, is_over: impl Fn(&Wait) -> bool) -> Vec<Turn> {
        let waiting: Vec<Turn> =
            self.waiting.range((session, 0)..=(session, Turn::MAX)).map(|(_, turn)| *turn).collect();
        waiting.into_iter().filter(|turn| self.end_wait(*turn, session, &is_over)).collect()
    }

    /// Ends all waits for which the condition holds. Returns the writes that became ready.
    pub(super) fn end_all_waits(&mut self, is_over: impl Fn(&Wait) -> bool) -> Vec<Turn> {
        let waiting: Vec<(SessionId, Turn)> = self.waiting.iter().copied().collect();
        let ended = waiting.into_iter().filter(|(session, turn)| self.end_wait(*turn, *session, &is_over));
        ended.map(|(_, turn)| turn).collect()
    }

    fn end_wait(&mut self, turn: Turn, session: SessionId, is_over: impl Fn(&Wait) -> bool) -> bool {
        let Some(pending) = self.pending.get_mut(&turn) else { return false };
        if !pending.waits.get(&session).is_some_and(is_over) {
            return false;
        }
        pending.waits.remove(&session);
        self.waiting.remove(&(session, turn));
        pending.is_ready()
    }

    /// How many removals are under way.
    pub(super) fn removals(&self) -> usize {
        self.removals
    }

    /// Whether nodes of any lease are being removed.
    pub(super) fn is_removing(&self) -> bool {
        !self.carried.is_empty()
    }

    /// Whether the nodes of the lease are being removed (S3).
    pub(super) fn removes(&self, lease: Incarnation) -> bool {
        self.carried.range((lease, 0)..=(lease, Turn::MAX)).next().is_some()
    }

    /// The leases whose nodes are being removed.
    pub(super) fn removed(&self) -> impl Iterator<Item = Incarnation> {
        self.carried.iter().map(|(lease, _)| *lease)
    }

    /// Whether a write of the object is under way (S3).
    pub(super) fn covers(&self, object: &Object) -> bool {
        self.objects.contains_key(object) || self.subtrees_above(&object.path).next().is_some()
    }

    /// The objects below `top` for which writes are under way: what a returning session may not revive (section 5).
    pub(super) fn covers_within(&self, top: &Path) -> Vec<ObjectSet> {
        let within = ObjectSet::Subtree(top.clone());
        let objects = self.objects_in(&within).map(|(object, _)| ObjectSet::One(object.clone()));
        let subtrees =
            self.subtrees.keys().map(|top| ObjectSet::Subtree(top.clone())).filter(|set| set.overlaps(&within));
        objects.chain(subtrees).collect()
    }

    fn enter_queues(&mut self, turn: Turn, covers: &[ObjectSet]) {
        let passes = self.pending.get(&turn).is_some_and(Pending::passes);
        let ahead: BTreeSet<Turn> = match passes {
            true => BTreeSet::new(),
            false => covers.iter().flat_map(|set| self.sharing(set)).filter(|other| *other < turn).collect(),
        };
        let ahead: BTreeSet<Turn> = ahead.into_iter().filter(|other| !self.pending[other].is_proposed).collect();
        for other in &ahead {
            self.behind.entry(*other).or_default().insert(turn);
        }
        if let Some(pending) = self.pending.get_mut(&turn) {
            pending.ahead = ahead;
        }
        for set in covers {
            match set {
                ObjectSet::One(object) => self.objects.entry(object.clone()).or_default().insert(turn),
                ObjectSet::Subtree(top) => self.subtrees.entry(top.clone()).or_default().insert(turn),
            };
        }
    }

    fn leave_queues(&mut self, turn: Turn) {
        let Some(pending) = self.pending.get(&turn) else { return };
        for set in &pending.covers {
            match set {
                ObjectSet::One(object) => leave_queue(&mut self.objects, object, turn),
                ObjectSet::Subtree(top) => leave_queue(&mut self.subtrees, top, turn),
            }
        }
        for other in &pending.ahead {
            if let Some(behind) = self.behind.get_mut(other) {
                behind.remove(&turn);
            }
        }
    }

    fn release_behind(&mut self, turn: Turn) -> Vec<Turn> {
        let mut ready = Vec::new();
        for other in self.behind.remove(&turn).unwrap_or_default() {
            if let Some(pending) = self.pending.get_mut(&other) {
                pending.ahead.remove(&turn);
                if pending.is_ready() {
                    ready.push(other);
                }
            }
        }
        ready
    }

    /// The writes whose queues have an object of the set.
    fn sharing(&self, set: &ObjectSet) -> Vec<Turn> {
        let by_itself = self.objects_in(set).flat_map(|(_, queue)| queue.iter().copied());
        let above = self.subtrees_above(set.path()).flat_map(|queue| queue.iter().copied());
        let below = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => Some(self.subtrees.range(top.bound_below()..top.bound_after())),
        };
        let below = below.into_iter().flatten().flat_map(|(_, queue)| queue.iter().copied());
        by_itself.chain(above).chain(below).collect()
    }

    fn objects_in(&self, set: &ObjectSet) -> impl Iterator<Item = (&Object, &BTreeSet<Turn>)> {
        let (own, below) = match set {
            ObjectSet::One(object) => (object.clone()..=object.clone(), None),
            ObjectSet::Subtree(top) => (
                Object::data(top.clone())..=Object { path: top.clone(), kind: Kind::Children },
                Some(Object::data(top.bound_below())..Object::data(top.bound_after())),
            ),
        };
        self.objects.range(own).chain(below.map(|below| self.objects.range(below)).into_iter().flatten())
    }

    /// The queues of the subtrees that the path is in.
    fn subtrees_above(&self, path: &Path) -> impl Iterator<Item = &BTreeSet<Turn>> {
        let tops = (!self.subtrees.is_empty()).then(|| std::iter::once(path.clone()).chain(path.ancestors()));
        tops.into_iter().flatten().filter_map(|top| self.subtrees.get(&top))
    }

    /// The tables agree with each other.
    pub(super) fn check(&self) -> Result<(), String> {
        for (turn, pending) in &self.pending {
            for set in &pending.covers {
                let queue = match set {
                    ObjectSet::One(object) => self.objects.get(object),
                    ObjectSet::Subtree(top) => self.subtrees.get(top),
                };
                if !queue.is_some_and(|queue| queue.contains(turn)) {
                    return Err(format!("write {turn} is missing in the queue of {set:?}"));
                }
            }
            for other in &pending.ahead {
                let waits_behind = self.behind.get(other).is_some_and(|behind| behind.contains(turn));
                if other >= turn || !waits_behind || self.pending.get(other).is_none_or(|other| other.is_proposed) {
                    return Err(format!("write {turn} waits behind {other}, which will not release it"));
                }
            }
            if pending.request().is_some_and(|request| self.by_request.get(&request) != Some(turn)) {
                return Err(format!("write {turn} is not found by its request"));
            }
            if !pending.carried.iter().all(|lease| self.carried.contains(&(*lease, *turn))) {
                return Err(format!("write {turn} is not found by the leases whose nodes it removes"));
            }
        }
        let queued = self.objects.values().chain(self.subtrees.values()).flatten();
        match queued.into_iter().find(|turn| !self.pending.contains_key(turn)) {
            Some(turn) => Err(format!("write {turn} is in a queue and over")),
            None => Ok(()),
        }
    }
}

fn leave_queue<K: Ord>(queues: &mut BTreeMap<K, BTreeSet<Turn>>, key: &K, turn: Turn) {
    if let Some(queue) = queues.get_mut(key) {
        queue.remove(&turn);
        if queue.is_empty() {
            queues.remove(key);
        }
    }
}
