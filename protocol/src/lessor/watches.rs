//! Watches that wait until something in their scope changes.
//!
//! A watch is one request. The lessor answers it as soon as there are changes to report, and the
//! client asks again from where the answer ended. So for each watcher, a server stores only the
//! waiting request, and the sizes of reports that may not have arrived. A slow watcher asks later.
//! Any leader can continue where another stopped, because the history is in the replicated state.
//!
//! # Why no proof of leadership is needed
//!
//! A lessor reports only applied changes, which are committed. Every later leader has the same
//! changes in the same order. A leader that was deposed without knowing reports a prefix of them,
//! never anything else. The next leader reports the rest, from the same revision on. Only a watch
//! without a revision must learn the present one, and waits for a proof as a read does (S6).
//!
//! # Which watches are woken
//!
//! The lessor finds watches by the paths of a change's events, and by the nodes above them. So the
//! cost of a write depends on its depth and on the watches that it concerns, not on the number of
//! all watches. If a watch is not woken, nothing in its scope has changed since it began to wait.
//! When its time is up, the lessor answers it without another scan.
//!
//! If a watch arrives with something to report, an index says so, without a scan. If no woken watch
//! has a turn, and the bounds allow it, the lessor answers at once. Otherwise the watch is woken,
//! and waits for its turn.
//!
//! # When woken watches are answered
//!
//! Woken watches are answered in the order of their arrival. The lessor spreads large reports to
//! many watchers over several steps, and serves other requests in between. It also waits while too
//! many bytes of reports are on their way, to one session or to all ([`WatchReports`]). A session
//! at its own bound loses its turn, and the others go on. At the bound for all sessions, every
//! woken watch waits.
//!
//! A woken watch keeps its turn when its time is up. But a client leaves a server that does not
//! answer. So if no report may be sent to its session then, the watch gets a progress mark, even
//! while the others go on. The mark is before its first unreported change, so the next request gets
//! the changes.
//!
//! A woken watch is not woken again. So it leaves the indexes by path, and no later change examines
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    change::{Changes, Event, WatchScope},
    holder::WATCH_WAIT,
    id::{RequestId, Revision, SessionId},
    message::{Answer, CHANGES_BYTES_MAX, Refusal, WATCH_WAIT_MAX},
    object::ObjectSet,
    path::NodePath,
    reached::{Bound, reached},
    state::{HistoryScan, ScanBounds, State},
    time::Instant,
    work::{CountVisits, visit},
};

use super::{Lessor, LessorBounds, ReadTarget, Requester, StepContext, WaitingRead, watch_reports::WatchReports};

/// The parameters of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct WatchRequest {
    pub(super) watched: WatchScope,
    pub(super) after: Option<Revision>,
    pub(super) bytes_max: u32,
}

/// A watch that waits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WaitingWatch {
    requester: Requester,
    watched: WatchScope,
    /// All changes in its scope up to this revision have been reported.
    after: Revision,
    bytes_max: u32,
    ends_at: Instant,
    /// When it gets a progress mark although there are changes, if they must wait.
    mark_at: Instant,
    /// If it is woken: a revision up to which nothing in its scope has changed since `after`. The
    /// change that woke it is later.
    woken: Option<Revision>,
}

/// The woken watches of one session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct WokenWatches {
    ids: BTreeSet<RequestId>,
    /// The entry in [`WaitingWatches::turns`]. `None` if too many bytes are in flight to the
    /// session.
    turn: Option<RequestId>,
}

/// All waiting watches, and the indexes that find them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WaitingWatches {
    waiting: BTreeMap<RequestId, WaitingWatch>,
    /// The watches that are not woken, by the paths that they watch.
    nodes: BTreeMap<NodePath, BTreeSet<RequestId>>,
    subtrees: BTreeMap<NodePath, BTreeSet<RequestId>>,
    sessions: BTreeMap<SessionId, BTreeSet<RequestId>>,
    /// The watches that are not woken, by the time when their wait ends.
    ends_at: BTreeSet<(Instant, RequestId)>,
    /// Woken watches that are not answered yet.
    woken: BTreeMap<SessionId, WokenWatches>,
    /// The first woken watch of each session to which a report may be sent.
    turns: BTreeSet<(RequestId, SessionId)>,
    /// The woken watches, by the time when they get a progress mark if no report may be sent.
    marks_at: BTreeSet<(Instant, RequestId)>,
    reports: WatchReports,
    /// All changes up to this revision have woken the watches that they concern.
    seen: Revision,
}

impl WaitingWatches {
    fn insert(&mut self, watch: WaitingWatch) {
        let id = watch.requester.id;
        self.places(&watch.watched).entry(watch.watched.path().clone()).or_default().insert(id);
        self.sessions.entry(watch.requester.session).or_default().insert(id);
        self.ends_at.insert((watch.ends_at, id));
        self.waiting.insert(id, watch);
    }

    fn remove(&mut self, id: RequestId, bounds: &LessorBounds) -> Option<WaitingWatch> {
        let watch = self.waiting.remove(&id)?;
        let session = watch.requester.session;
        forget(&mut self.sessions, &session, id);
        if watch.woken.is_some() {
            self.marks_at.remove(&(watch.mark_at, id));
            self.woken.entry(session).or_default().ids.remove(&id);
            self.update_turn(session, bounds);
        } else {
            forget(self.places(&watch.watched), watch.watched.path(), id);
            self.ends_at.remove(&(watch.ends_at, id));
        }
        Some(watch)
    }

    /// Wakes a watch, unless it is woken. Nothing in its scope changed up to this revision.
    fn wake(&mut self, id: RequestId, unchanged_to: Revision, bounds: &LessorBounds) {
        let Some(watch) = self.waiting.get_mut(&id).filter(|watch| watch.woken.is_none()) else { return };
        watch.woken = Some(unchanged_to);
        let (session, watched) = (watch.requester.session, watch.watched.clone());
        self.ends_at.remove(&(watch.ends_at, id));
        self.marks_at.insert((watch.mark_at, id));
        forget(self.places(&watched), watched.path(), id);
        self.woken.entry(session).or_default().ids.insert(id);
        self.update_turn(session, bounds);
    }

    /// Updates the turn of a session, after its woken watches or its reports in flight changed.
    fn update_turn(&mut self, session: SessionId, bounds: &LessorBounds) {
        let Some(own) = self.woken.get_mut(&session) else { return };
        if let Some(turn) = own.turn.take() {
            self.turns.remove(&(turn, session));
        }
        if own.ids.is_empty() {
            self.woken.remove(&session);
        } else if !self.reports.are_full_for(session, bounds) {
            own.turn = own.ids.first().copied();
            self.turns.extend(own.turn.map(|turn| (turn, session)));
        }
    }

    /// The next watch to be answered. `None` if none is woken, or if reports must arrive first.
    fn next_turn(&self, bounds: &LessorBounds) -> Option<RequestId> {
        let (id, _) = self.turns.first()?;
        (!self.reports.are_full(bounds)).then_some(*id)
    }

    /// Whether a report to the session may be sent now, before all waiting watches.
    fn may_report_now(&self, session: SessionId, bounds: &LessorBounds) -> bool {
        let are_first = self.turns.is_empty() && !self.woken.contains_key(&session);
        are_first && !self.reports.are_full(bounds) && !self.reports.are_full_for(session, bounds)
    }

    /// Handles the arrival of a request of the session.
    pub(super) fn heard_from(&mut self, session: SessionId, now: Instant, bounds: &LessorBounds) {
        // On the path of every renewal: nearly always nothing changes.
        if self.reports.heard_from(session, now) {
            self.update_turn(session, bounds);
        }
    }

    fn places(&mut self, watched: &WatchScope) -> &mut BTreeMap<NodePath, BTreeSet<RequestId>> {
        match watched {
            WatchScope::Node(_) => &mut self.nodes,
            WatchScope::Subtree(_) => &mut self.subtrees,
        }
    }

    /// The watches, not woken, with one of these events in their scope.
    fn concerned(&self, events: &[Event]) -> BTreeSet<RequestId> {
        let (mut found, mut examined) = (BTreeSet::new(), BTreeSet::new());
        let mut last: Option<&NodePath> = None;
        for Event { path, .. } in events {
            found.extend(self.nodes.get(path).into_iter().flatten());
            found.extend(self.subtrees.get(path).into_iter().flatten());
            // Siblings in a row have the same nodes above: one look-up is enough.
            let is_sibling = last.is_some_and(|last| last.is_sibling_of(path));
            if !is_sibling && !self.subtrees.is_empty() {
                self.find_above(path, &mut examined, &mut found);
            }
            last = Some(path);
        }
        found
    }

    /// Adds the watches of subtrees above a node. Many events may share a few nodes above them, and
    /// each of these nodes may have many watches. So each node is examined once.
    fn find_above(&self, path: &NodePath, examined: &mut BTreeSet<NodePath>, found: &mut BTreeSet<RequestId>) {
        for above in path.ancestors().take_while(|above| examined.insert(above.clone())) {
            let ids = self.subtrees.get(&above);
            visit(1 + ids.map_or(0, BTreeSet::len));
            found.extend(ids.into_iter().flatten());
        }
    }

    /// The watches, not woken, whose scope overlaps these sets, for a change without events.
    fn concerned_by(&self, sets: &[ObjectSet]) -> BTreeSet<RequestId> {
        let (mut found, mut examined) = (BTreeSet::new(), BTreeSet::new());
        for set in sets {
            let path = set.path();
            let own = [self.nodes.get(path), self.subtrees.get(path)].into_iter().flatten();
            found.extend(own.flatten());
            self.find_above(path, &mut examined, &mut found);
            if let ObjectSet::Subtree(top) = set {
                let below = || top.bound_below()..top.bound_after();
                found.extend(self.nodes.range(below()).chain(self.subtrees.range(below())).flat_map(|(_, ids)| ids));
            }
        }
        found
    }

    /// Whether a watch can be answered now.
    pub(super) fn is_behind(&self, now: Instant, bounds: &LessorBounds) -> bool {
        let is_over = |times: &BTreeSet<(Instant, RequestId)>| times.first().is_some_and(|(at, _)| *at <= now);
        self.next_turn(bounds).is_some() || is_over(&self.ends_at) || is_over(&self.marks_at)
    }

    pub(super) fn into_requesters(self) -> impl Iterator<Item = Requester> {
        self.waiting.into_values().map(|watch| watch.requester)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 9] {
        let ids = [self.nodes.len(), self.subtrees.len(), self.sessions.len()];
        let times = self.ends_at.len() + self.marks_at.len();
        let [reports, sessions, awaited] = self.reports.sizes();
        [self.waiting.len(), ids[0], ids[1], ids[2], times, self.woken.len(), reports, sessions, awaited]
    }

    /// Checks that the tables list the same watches, and that all changes were examined.
    pub(super) fn check(&self, revision: Revision, bounds: &LessorBounds) -> Result<(), String> {
        let count = |table: &BTreeMap<NodePath, BTreeSet<RequestId>>| table.values().map(BTreeSet::len).sum::<usize>();
        let woken = self.woken.values().map(|own| own.ids.len()).sum::<usize>();
        let found = [
            count(&self.nodes) + count(&self.subtrees) + woken,
            self.sessions.values().map(BTreeSet::len).sum(),
            self.ends_at.len() + woken,
            self.ends_at.len() + self.marks_at.len(),
        ];
        let expected = self.waiting.len();
        if found.iter().any(|found| *found != expected) {
            return Err(format!("{expected} watches wait, and the tables have {found:?}"));
        }
        for (session, own) in &self.woken {
            let is_woken = |id: &RequestId| self.waiting.get(id).is_some_and(|watch| watch.woken.is_some());
            let has_room = self.reports.bytes_to(*session) < bounds.session_watch_bytes_in_flight_max;
            let first = own.ids.first().copied().filter(|_| has_room);
            if own.ids.is_empty() || !own.ids.iter().all(is_woken) || own.turn != first {
                return Err(format!("the woken watches of session {session} do not match: {own:?}"));
            }
        }
        let turns = self.woken.iter().filter_map(|(session, own)| Some((own.turn?, *session))).collect();
        if self.turns != turns {
            return Err(format!("the next watches are {:?}: expected {turns:?}", self.turns));
        }
        if self.seen != revision && expected > 0 {
            return Err(format!("changes up to {} have woken watches: expected {revision}", self.seen));
        }
        self.reports.check()
    }
}

fn forget<K: Ord>(table: &mut BTreeMap<K, BTreeSet<RequestId>>, key: &K, id: RequestId) {
    if let Some(ids) = table.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            table.remove(key);
        }
    }
}

impl Lessor {
    /// Handles a watch: answers with the changes so far, or lets the request wait.
    pub(super) fn watch(
        &mut self,
        requester: Requester,
        request: WatchRequest,
        wait: Duration,
        cx: &mut StepContext<'_>,
    ) {
        if let Err(error) = self.config.limits.check_path(request.watched.path()) {
            return self.reply(&requester, Err(error.into()), cx);
        }
        let Some(after) = request.after else {
            return self.read(WaitingRead { requester, target: ReadTarget::CurrentRevision }, cx);
        };
        if wait > WATCH_WAIT_MAX {
            reached(Bound::WatchWait);
        }
        let session = requester.session;
        self.watches.reports.acknowledge(session, &request.watched, after, cx.now);
        self.watches.update_turn(session, &self.config.bounds);
        let next = match cx.state.next_watched(after, &request.watched) {
            Ok(next) => next,
            Err(earliest_after) => {
                return self.reply(&requester, Err(Refusal::Compacted { after, earliest_after }), cx);
            }
        };
        let watch = WaitingWatch {
            requester,
            watched: request.watched,
            after: if next.is_none() { after.max(cx.state.revision()) } else { after },
            bytes_max: request.bytes_max,
            ends_at: cx.now.after(wait.min(WATCH_WAIT_MAX)),
            mark_at: cx.now.after(wait.clamp(WATCH_WAIT, WATCH_WAIT_MAX)),
            woken: None,
        };
        if next.is_some() && self.watches.may_report_now(session, &self.config.bounds) {
            return self.answer_watch(watch, cx);
        }
        if let Some(refusal) = self.too_many_watches(session) {
            return self.reply_without_promises(&watch.requester, Err(refusal), cx);
        }
        let id = watch.requester.id;
        self.watches.insert(watch);
        if let Some(next) = next {
            self.watches.wake(id, Revision(next.0 - 1), &self.config.bounds);
        }
    }

    fn too_many_watches(&self, session: SessionId) -> Option<Refusal> {
        let busy = |what: &str, count, most| Refusal::Busy { what: what.to_owned(), got: count, most };
        let own = self.watches.sessions.get(&session).map_or(0, BTreeSet::len);
        let all = self.watches.waiting.len();
        let LessorBounds { session_watches_max, watches_max, .. } = self.config.bounds;
        if own >= session_watches_max {
            reached(Bound::SessionWatches);
            return Some(busy("watches of the session", own, session_watches_max));
        }
        (all >= watches_max).then(|| {
            reached(Bound::Watches);
            busy("watches", all, watches_max)
        })
    }

    /// Answers a watch with the changes in its scope. If there are none, lets it wait.
    fn answer_watch(&mut self, mut watch: WaitingWatch, cx: &mut StepContext<'_>) {
        if watch.bytes_max > CHANGES_BYTES_MAX {
            reached(Bound::ChangesBytes);
        }
        let bytes = watch.bytes_max.min(CHANGES_BYTES_MAX) as usize;
        let bounds = ScanBounds { bytes, events: self.config.bounds.watch_scan_max };
        cx.watch_events += 1;
        match cx.state.scan_after(watch.after, &watch.watched, bounds) {
            HistoryScan::Compacted(earliest_after) => {
                let refusal = Refusal::Compacted { after: watch.after, earliest_after };
                self.reply(&watch.requester, Err(refusal), cx);
            }
            HistoryScan::Found { found, .. } if found.changes.is_empty() => {
                watch.after = found.through;
                self.watches.insert(watch);
            }
            HistoryScan::Found { found, weight } => {
                let WaitingWatch { requester, watched, .. } = watch;
                let events: usize = found.changes.iter().map(|change| change.events.len()).sum();
                cx.watch_events += events;
                let bytes = weight + events * size_of::<Event>();
                self.watches.reports.add(requester.session, watched, found.through, (bytes, cx.now));
                self.watches.update_turn(requester.session, &self.config.bounds);
                self.reply(&requester, Ok(Answer::Changes(found)), cx);
            }
        }
    }

    /// Reports applied changes to the watches that they concern. Then answers, without changes, the
    /// other watches whose time is up.
    pub(super) fn serve_watches(&mut self, cx: &mut StepContext<'_>) {
        self.wake(cx.state);
        for session in self.watches.reports.remove_lost(cx.now) {
            self.watches.update_turn(session, &self.config.bounds);
        }
        let mut next = self.watches.next_turn(&self.config.bounds);
        while cx.watch_events < self.config.bounds.watch_events_per_step
            && let Some(mut watch) = next.and_then(|id| self.watches.remove(id, &self.config.bounds))
        {
            watch.after = watch.after.max(watch.woken.take().unwrap_or_default());
            self.answer_watch(watch, cx);
            next = self.watches.next_turn(&self.config.bounds);
        }
        if next.is_some() {
            reached(Bound::WatchesAnswered);
        }
        self.mark_progress(next.is_none(), cx);
    }

    /// Sends a mark, and no changes, to each watch whose time is up. A woken watch gets one only if
    /// reports to its session are held up, or those to all sessions (`are_blocked`). The other
    /// woken ones get their changes in the next steps.
    fn mark_progress(&mut self, are_blocked: bool, cx: &mut StepContext<'_>) {
        let bounds = &self.config.bounds;
        let over = |times: &BTreeSet<(Instant, RequestId)>| {
            let over = times.iter().take_while(|(at, _)| *at <= cx.now).map(|(_, id)| *id).counted();
            over.take(bounds.watch_events_per_step).collect::<Vec<_>>()
        };
        let has_turn = |id: &RequestId| {
            let session = self.watches.waiting.get(id).map(|watch| watch.requester.session);
            session.and_then(|session| self.watches.woken.get(&session)).is_some_and(|own| own.turn.is_some())
        };
        let mut ended = over(&self.watches.ends_at);
        ended.extend(over(&self.watches.marks_at).into_iter().filter(|id| are_blocked || !has_turn(id)));
        for id in ended {
            let Some(watch) = self.watches.remove(id, &self.config.bounds) else { continue };
            let through = watch.after.max(watch.woken.unwrap_or(cx.state.revision()));
            self.reply(&watch.requester, Ok(Answer::Changes(Changes { changes: Vec::new(), through })), cx);
        }
    }

    /// Wakes each watch whose scope a change since the last call concerns.
    fn wake(&mut self, state: &State) {
        let from = std::mem::replace(&mut self.watches.seen, state.revision());
        if from == state.revision() || self.watches.waiting.is_empty() {
            return;
        }
        let Some(changes) = state.events_after(from) else {
            let all: Vec<RequestId> = self.watches.waiting.keys().copied().collect();
            return all.into_iter().for_each(|id| self.watches.wake(id, from, &self.config.bounds));
        };
        let mut last = from;
        for (revision, events) in changes {
            let ids = match events {
                Some(events) => self.watches.concerned(events),
                // The history has no events of this large change: the watchers start over.
                None => self.watches.concerned_by(state.sets_changed_by(revision)),
            };
            visit(ids.len());
            for id in ids {
                self.watches.wake(id, last, &self.config.bounds);
            }
            last = revision;
        }
    }

    /// Refuses the session's watches when the session has ended, or has registered again.
    pub(super) fn refuse_watches(&mut self, session: SessionId, refusal: &Refusal, cx: &mut StepContext<'_>) {
        for id in self.watches.sessions.get(&session).cloned().unwrap_or_default() {
            if let Some(watch) = self.watches.remove(id, &self.config.bounds) {
                self.reply_without_promises(&watch.requester, Err(refusal.clone()), cx);
            }
        }
        self.watches.reports.forget(session);
    }
}
