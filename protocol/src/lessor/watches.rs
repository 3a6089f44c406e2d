//! Watches that wait until something in their scope changes.
//!
//! A watch is one request. The lessor answers it as soon as there are changes to report, and the
//! client asks again from where the answer ended. So a server stores nothing of a watcher but the
//! waiting request. A slow watcher asks later, and delays no other client. Any leader can continue
//! where another stopped, because the history is in the replicated state.
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
//! The lessor spreads large reports to many watchers over several steps, and serves other requests
//! in between. A woken watch stays in `woken` until it is answered. It gets its changes even if its
//! time is up meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    change::{Changes, Event, Watched},
    id::{RequestId, Revision, SessionId},
    message::{Answer, CHANGES_BYTES_MAX, Refusal, Response, WATCH_WAIT_MAX},
    object::ObjectSet,
    path::NodePath,
    reached::{Bound, reached},
    state::{HistoryScan, ScanBounds, State},
    time::Instant,
    work::visit,
};

use super::{Lessor, LessorBounds, LessorEffect, ReadTarget, Requester, StepContext, WaitingRead};

/// The parameters of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct WatchRequest {
    pub(super) watched: Watched,
    pub(super) after: Option<Revision>,
    pub(super) bytes_max: u32,
}

/// A watch that waits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WaitingWatch {
    requester: Requester,
    watched: Watched,
    /// Between this revision and the last scan, nothing in its scope has changed.
    after: Revision,
    bytes_max: u32,
    ends_at: Instant,
}

/// All waiting watches, and the indexes that find them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WaitingWatches {
    waiting: BTreeMap<RequestId, WaitingWatch>,
    nodes: BTreeMap<NodePath, BTreeSet<RequestId>>,
    subtrees: BTreeMap<NodePath, BTreeSet<RequestId>>,
    sessions: BTreeMap<SessionId, BTreeSet<RequestId>>,
    ends_at: BTreeSet<(Instant, RequestId)>,
    /// Woken watches that are not answered yet. Nothing in their scope changed up to this revision.
    woken: BTreeMap<RequestId, Revision>,
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

    fn remove(&mut self, id: RequestId) -> Option<WaitingWatch> {
        let watch = self.waiting.remove(&id)?;
        forget(self.places(&watch.watched), watch.watched.path(), id);
        forget(&mut self.sessions, &watch.requester.session, id);
        self.ends_at.remove(&(watch.ends_at, id));
        self.woken.remove(&id);
        Some(watch)
    }

    fn places(&mut self, watched: &Watched) -> &mut BTreeMap<NodePath, BTreeSet<RequestId>> {
        match watched {
            Watched::Node(_) => &mut self.nodes,
            Watched::Subtree(_) => &mut self.subtrees,
        }
    }

    /// The watches with one of these events in their scope.
    fn concerned(&self, events: &[Event]) -> BTreeSet<RequestId> {
        let mut found = BTreeSet::new();
        let mut last: Option<&NodePath> = None;
        for Event { path, .. } in events {
            found.extend(self.nodes.get(path).into_iter().flatten());
            found.extend(self.subtrees.get(path).into_iter().flatten());
            // Siblings in a row have the same nodes above: one look-up is enough.
            let is_sibling = last.is_some_and(|last| last.is_sibling_of(path));
            if !is_sibling && !self.subtrees.is_empty() {
                found.extend(path.ancestors().filter_map(|above| self.subtrees.get(&above)).flatten());
            }
            last = Some(path);
        }
        found
    }

    /// The watches whose scope overlaps these sets, for a change without events.
    fn concerned_by(&self, sets: &[ObjectSet]) -> BTreeSet<RequestId> {
        let mut found = BTreeSet::new();
        for set in sets {
            let path = set.path();
            let own = [self.nodes.get(path), self.subtrees.get(path)].into_iter().flatten();
            found.extend(own.flatten());
            found.extend(path.ancestors().filter_map(|above| self.subtrees.get(&above)).flatten());
            if let ObjectSet::Subtree(top) = set {
                let below = || top.bound_below()..top.bound_after();
                found.extend(self.nodes.range(below()).chain(self.subtrees.range(below())).flat_map(|(_, ids)| ids));
            }
        }
        found
    }

    /// Whether a woken watch is not answered yet.
    pub(super) fn is_behind(&self) -> bool {
        !self.woken.is_empty()
    }

    pub(super) fn into_requesters(self) -> impl Iterator<Item = Requester> {
        self.waiting.into_values().map(|watch| watch.requester)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 6] {
        let ids = [self.nodes.len(), self.subtrees.len(), self.sessions.len()];
        [self.waiting.len(), ids[0], ids[1], ids[2], self.ends_at.len(), self.woken.len()]
    }

    /// Checks that the tables list the same watches, and that all changes were examined.
    pub(super) fn check(&self, revision: Revision) -> Result<(), String> {
        let count = |table: &BTreeMap<NodePath, BTreeSet<RequestId>>| table.values().map(BTreeSet::len).sum::<usize>();
        let found = [
            count(&self.nodes) + count(&self.subtrees),
            self.sessions.values().map(BTreeSet::len).sum(),
            self.ends_at.len(),
        ];
        let expected = self.waiting.len();
        if found.iter().any(|found| *found != expected) {
            return Err(format!("{expected} watches wait, and the tables have {found:?}"));
        }
        if let Some(id) = self.woken.keys().find(|id| !self.waiting.contains_key(id)) {
            return Err(format!("watch {id} is woken, and does not wait"));
        }
        if self.seen != revision && expected > 0 {
            return Err(format!("changes up to {} have woken watches: expected {revision}", self.seen));
        }
        Ok(())
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
        let ends_at = cx.now.after(wait.min(WATCH_WAIT_MAX));
        let watch = WaitingWatch { requester, watched: request.watched, after, bytes_max: request.bytes_max, ends_at };
        let Some(watch) = self.answer_watch(watch, cx) else { return };
        if let Some(refusal) = self.too_many_watches(watch.requester.session) {
            return self.reply_without_promises(&watch.requester, Err(refusal), cx);
        }
        self.watches.insert(watch);
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

    /// Answers a watch if there are changes to report, or if the scan reached its limit. Otherwise
    /// returns it, to wait.
    fn answer_watch(&mut self, mut watch: WaitingWatch, cx: &mut StepContext<'_>) -> Option<WaitingWatch> {
        if watch.bytes_max > CHANGES_BYTES_MAX {
            reached(Bound::ChangesBytes);
        }
        let bytes = watch.bytes_max.min(CHANGES_BYTES_MAX) as usize;
        let bounds = ScanBounds { bytes, events: self.config.bounds.watch_scan_max };
        let revision = cx.state.revision();
        match cx.state.scan_after(watch.after, &watch.watched, bounds) {
            HistoryScan::Compacted(oldest) => {
                let refusal = Refusal::Compacted { after: watch.after, oldest };
                self.reply(&watch.requester, Err(refusal), cx);
                None
            }
            HistoryScan::Found(found) if found.changes.is_empty() && found.through >= revision => {
                watch.after = found.through;
                Some(watch)
            }
            HistoryScan::Found(found) => {
                self.reply(&watch.requester, Ok(Answer::Changes(found)), cx);
                None
            }
        }
    }

    /// Reports applied changes to the watches that they concern. Then answers, without changes, the
    /// other watches whose time is up.
    pub(super) fn serve_watches(&mut self, cx: &mut StepContext<'_>) {
        self.wake(cx.state);
        let mut answered = 0;
        while answered < self.config.bounds.watch_events_per_step
            && let Some(id) = self.watches.woken.first_key_value().map(|(id, _)| *id)
        {
            answered += self.answer_woken(id, cx);
        }
        if self.watches.is_behind() {
            reached(Bound::WatchesAnswered);
        }
        let ended = self.watches.ends_at.iter().take_while(|(ends_at, _)| *ends_at <= cx.now).map(|(_, id)| *id);
        let ended: Vec<RequestId> = ended.filter(|id| !self.watches.woken.contains_key(id)).collect();
        for watch in ended.into_iter().filter_map(|id| self.watches.remove(id)).collect::<Vec<_>>() {
            let through = watch.after.max(cx.state.revision());
            self.reply(&watch.requester, Ok(Answer::Changes(Changes { changes: Vec::new(), through })), cx);
        }
    }

    /// Answers a woken watch. Returns 1 plus the number of events reported.
    fn answer_woken(&mut self, id: RequestId, cx: &mut StepContext<'_>) -> usize {
        let last = self.watches.woken.remove(&id);
        let Some(mut watch) = self.watches.remove(id) else { return 0 };
        watch.after = watch.after.max(last.unwrap_or_default());
        let before = cx.effects.len();
        if let Some(watch) = self.answer_watch(watch, cx) {
            self.watches.insert(watch);
        }
        1 + cx.effects[before..].iter().map(events_in).sum::<usize>()
    }

    /// Marks the watches that the changes applied since the last call concern.
    fn wake(&mut self, state: &State) {
        let from = std::mem::replace(&mut self.watches.seen, state.revision());
        if from == state.revision() || self.watches.waiting.is_empty() {
            return;
        }
        let Some(changes) = state.events_after(from) else {
            let all: Vec<RequestId> = self.watches.waiting.keys().copied().collect();
            return all.into_iter().for_each(|id| {
                self.watches.woken.entry(id).or_insert(from);
            });
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
                self.watches.woken.entry(id).or_insert(last);
            }
            last = revision;
        }
    }

    /// Refuses the session's watches when the session has ended, or has registered again.
    pub(super) fn refuse_watches(&mut self, session: SessionId, refusal: &Refusal, cx: &mut StepContext<'_>) {
        for id in self.watches.sessions.get(&session).cloned().unwrap_or_default() {
            if let Some(watch) = self.watches.remove(id) {
                self.reply_without_promises(&watch.requester, Err(refusal.clone()), cx);
            }
        }
    }
}

/// The number of events that an effect reports.
fn events_in(effect: &LessorEffect) -> usize {
    match effect {
        LessorEffect::Reply { response: Response { result: Ok(Answer::Changes(report)), .. }, .. } => {
            report.changes.iter().map(|change| change.events.len()).sum()
        }
        _ => 0,
    }
}
