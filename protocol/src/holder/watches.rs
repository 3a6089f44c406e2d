//! Watches: what happened to a node or a subtree, each change once, whole, in order, none left out.
//!
//! A watch is asked for again and again, each time from where the last answer ended: so nothing is
//! told twice, and nothing is skipped. The next request is sent only when the application has taken
//! what it was told, so that a slow one is asked for no more than it takes; if it is so slow that
//! the history has forgotten what comes next, it is told so.
//!
//! A watch is no session's: it goes on under the next one, and with the next leader, from the same
//! revision. Answers are taken from the sending that is under way only; what an earlier one brings
//! is not heard.

use std::{collections::BTreeMap, time::Duration};

use super::{Holder, HolderEffect, SendId, WatchFailure, WatchId, in_flight::Purpose, volume_leases::RenewalReason};
use crate::{
    change::{Changes, Watched},
    id::Revision,
    message::{Body, Refusal},
    planted::Bug,
    time::Instant,
};

/// How long a server lets a watch wait before it says that nothing has happened. A server that has
/// been silent for so long, and for as long as any may be, is given up: the longer, the later a
/// dead connection is noticed that carries nothing but watches; the shorter, the more messages for
/// nothing.
pub const WATCH_WAIT: Duration = Duration::from_secs(5);

/// How far a watch has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum WatchStage {
    /// The application has not taken yet what it was told.
    Told,
    /// It is in the queue.
    Queued,
    /// It is on its way.
    Sent(SendId),
}

/// A watch of the application.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OwnWatch {
    watched: Watched,
    /// Everything has been told up to this. None before it is known what *now* is.
    after: Option<Revision>,
    /// What the application asked to begin after.
    began_after: Option<Revision>,
    bytes_max: u32,
    /// It has been told once that there is nothing more to tell.
    is_caught_up: bool,
    stage: WatchStage,
}

/// All watches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnWatches {
    watches: BTreeMap<WatchId, OwnWatch>,
}

impl OwnWatches {
    pub(super) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Nothing is on its way any more.
    pub(super) fn unsend_all(&mut self) {
        for watch in self.watches.values_mut().filter(|watch| matches!(watch.stage, WatchStage::Sent(_))) {
            watch.stage = WatchStage::Queued;
        }
    }
}

impl Holder {
    /// The application watches.
    pub(super) fn watch(&mut self, id: WatchId, watched: Watched, after: Option<Revision>, bytes_max: u32) {
        if self.is_closed() {
            return self.effects.push(HolderEffect::WatchLost { watch: id, error: WatchFailure::Closed });
        }
        let stage = WatchStage::Queued;
        let watch = OwnWatch { watched, after, began_after: after, bytes_max, is_caught_up: false, stage };
        self.watches.watches.insert(id, watch);
        self.send_queue.push(Purpose::Watch(id));
    }

    /// The application has taken what it was told.
    pub(super) fn watch_more(&mut self, id: WatchId) {
        if let Some(watch) = self.watches.watches.get_mut(&id)
            && watch.stage == WatchStage::Told
        {
            watch.stage = WatchStage::Queued;
            self.send_queue.push(Purpose::Watch(id));
        }
    }

    /// The application does not watch any more. What waits at the server ends by itself.
    pub(super) fn cancel_watch(&mut self, id: WatchId) {
        self.watches.watches.remove(&id);
        self.send_queue.settle(&Purpose::Watch(id));
    }

    /// Asks what has happened since. A watch that was given up while it was in the queue is not
    /// sent.
    pub(super) fn send_watch(&mut self, id: WatchId, now: Instant) {
        let from_start = self.planted(Bug::WatchResumesFromStart);
        let Some(watch) = self.watches.watches.get(&id).filter(|watch| watch.stage == WatchStage::Queued) else {
            return;
        };
        let after = if from_start { watch.began_after.or(watch.after) } else { watch.after };
        let (watched, bytes_max) = (watch.watched.clone(), watch.bytes_max);
        // Whoever begins wants to know when it has heard everything up to now.
        let wait = if watch.is_caught_up { WATCH_WAIT } else { Duration::ZERO };
        let body = Body::Watch { watched, after, wait, bytes_max };
        let ticket = self.send(Purpose::Watch(id), body, RenewalReason::NoRenewal, now);
        if let Some(watch) = self.watches.watches.get_mut(&id) {
            watch.stage = WatchStage::Sent(ticket);
        }
    }

    /// The server says what has happened.
    pub(super) fn watch_answered(&mut self, id: WatchId, changes: Changes, now: Instant) {
        let skips = u64::from(self.planted(Bug::WatchResumesPastNext) && !changes.changes.is_empty());
        let Some(watch) = self.watches.watches.get_mut(&id) else { return };
        if !goes_on(watch.after.unwrap_or_default(), &changes) && !self.config.planted.has(Bug::WatchResumesFromStart) {
            // Not what was asked for: as good as no answer.
            return self.wants_again(Purpose::Watch(id), now);
        }
        watch.stage = WatchStage::Told;
        watch.is_caught_up |= changes.changes.is_empty() && watch.after.is_some();
        watch.after = Some(Revision(changes.through.0.saturating_add(skips)));
        self.effects.push(HolderEffect::Changes { watch: id, changes });
    }

    /// The watch is to be asked for again after a while. False if the application does not want
    /// that any more.
    pub(super) fn watch_set_back(&mut self, id: WatchId) -> bool {
        let Some(watch) = self.watches.watches.get_mut(&id) else { return false };
        watch.stage = WatchStage::Queued;
        true
    }

    /// The server will not tell what has happened.
    pub(super) fn refused_watch(&mut self, id: WatchId, refusal: Refusal) {
        let Some(watch) = self.watches.watches.remove(&id) else { return };
        let error = match (refusal, watch.after) {
            (Refusal::Compacted { oldest, .. }, Some(after)) => WatchFailure::Compacted { after, oldest },
            (refusal, _) => WatchFailure::Refused(refusal),
        };
        self.effects.push(HolderEffect::WatchLost { watch: id, error });
    }

    /// The session is gone, and the queue with it: what was asked for is asked for under the next
    /// one.
    pub(super) fn watch_on(&mut self) {
        self.watches.unsend_all();
        let forgets = self.planted(Bug::WatchEndsWithSession);
        for (id, watch) in &mut self.watches.watches {
            if forgets {
                watch.after = None;
            }
            if watch.stage == WatchStage::Queued {
                self.send_queue.push(Purpose::Watch(*id));
            }
        }
    }

    /// No watch goes on.
    pub(super) fn end_watches(&mut self, error: &WatchFailure) {
        for watch in std::mem::take(&mut self.watches.watches).into_keys() {
            self.effects.push(HolderEffect::WatchLost { watch, error: error.clone() });
        }
    }

    /// Each watch is where something will move it on.
    pub(super) fn check_watches(&self) -> Result<(), String> {
        for (id, watch) in &self.watches.watches {
            let purpose = Purpose::Watch(*id);
            let is_there = match watch.stage {
                WatchStage::Told => true,
                WatchStage::Queued => self.send_queue.iter().any(|queued| *queued == purpose),
                WatchStage::Sent(ticket) => self.in_flight.purpose(ticket) == Some(&purpose),
            };
            if !is_there {
                return Err(format!("watch {id:?} is neither in the queue nor on its way: {:?}", watch.stage));
            }
        }
        Ok(())
    }
}

/// Whether changes are what can have happened after a revision.
fn goes_on(after: Revision, told: &Changes) -> bool {
    let revisions = || told.changes.iter().map(|change| change.revision);
    let is_in_order = revisions().is_sorted_by(|one, other| one < other);
    after <= told.through && is_in_order && revisions().all(|revision| after < revision && revision <= told.through)
}
