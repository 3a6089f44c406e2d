//! Watches of a node or a subtree. They report each change once, complete and in order.
//!
//! The holder sends one request after another, each from the end of the last answer. So it reports
//! nothing twice and skips nothing. It sends the next request only when the application has
//! consumed the last report, so reports do not pile up. If the history has lost the next change by
//! then, the watch ends with an error.
//!
//! A watch belongs to no session. It continues under the next session or leader from the same
//! revision. The holder accepts only the answer to the request in flight.

use std::{collections::BTreeMap, time::Duration};

use super::{Holder, HolderEffect, SendId, WatchFailure, WatchId, in_flight::Purpose, volume_leases::RenewalSelection};
use crate::{
    change::{Changes, WatchScope},
    id::Revision,
    message::{Body, Refusal},
    time::Instant,
};

/// How long a server lets a watch wait before it answers without changes. After this wait and the
/// longest silence, the client leaves the server. A longer wait delays the detection of a dead
/// connection that has only watches. A shorter wait costs more messages.
pub const WATCH_WAIT: Duration = Duration::from_secs(5);

/// The stage of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum WatchStage {
    /// The application has not consumed the last report.
    Reported,
    /// In the send queue.
    Queued,
    /// In flight.
    Sent(SendId),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OwnWatch {
    watched: WatchScope,
    /// All changes up to this revision are reported. `None` until the start of the watch is known.
    after: Option<Revision>,
    bytes_max: u32,
    /// An answer without changes has come, other than the one that told the start. From then on,
    /// its requests wait at the server, even if it is behind because reports are held up.
    is_caught_up: bool,
    stage: WatchStage,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnWatches {
    watches: BTreeMap<WatchId, OwnWatch>,
}

impl OwnWatches {
    pub(super) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    pub(super) fn has(&self, id: WatchId) -> bool {
        self.watches.contains_key(&id)
    }

    /// Whether the watch waits to be sent.
    pub(super) fn is_queued(&self, id: WatchId) -> bool {
        self.watches.get(&id).is_some_and(|watch| watch.stage == WatchStage::Queued)
    }

    pub(super) fn unsend_all(&mut self) {
        for watch in self.watches.values_mut().filter(|watch| matches!(watch.stage, WatchStage::Sent(_))) {
            watch.stage = WatchStage::Queued;
        }
    }
}

impl Holder {
    pub(super) fn watch(&mut self, id: WatchId, watched: WatchScope, after: Option<Revision>, bytes_max: u32) {
        if self.is_closed() {
            return self.effects.push(HolderEffect::WatchLost { watch: id, error: WatchFailure::Closed });
        }
        let stage = WatchStage::Queued;
        let watch = OwnWatch { watched, after, bytes_max, is_caught_up: false, stage };
        self.watches.watches.insert(id, watch);
        self.send_queue.push(Purpose::Watch(id));
    }

    /// Continues a watch, because the application has consumed the last report.
    pub(super) fn watch_more(&mut self, id: WatchId) {
        if let Some(watch) = self.watches.watches.get_mut(&id)
            && watch.stage == WatchStage::Reported
        {
            watch.stage = WatchStage::Queued;
            self.send_queue.push(Purpose::Watch(id));
        }
    }

    /// Ends a watch for the application. Its request at the server ends by itself.
    pub(super) fn cancel_watch(&mut self, id: WatchId) {
        self.watches.watches.remove(&id);
        self.send_queue.cancel(&Purpose::Watch(id));
    }

    /// Sends the request for the next changes, unless the watch was cancelled while it was queued.
    pub(super) fn send_watch(&mut self, id: WatchId, now: Instant) {
        let Some(watch) = self.watches.watches.get(&id).filter(|watch| watch.stage == WatchStage::Queued) else {
            return;
        };
        let (watched, after, bytes_max) = (watch.watched.clone(), watch.after, watch.bytes_max);
        // A new watch must learn when it has reported everything up to now.
        let wait = if watch.is_caught_up { WATCH_WAIT } else { Duration::ZERO };
        let body = Body::Watch { watched, after, wait, bytes_max };
        let send_id = self.send(Purpose::Watch(id), body, RenewalSelection::NoRenewal, now);
        if let Some(watch) = self.watches.watches.get_mut(&id) {
            watch.stage = WatchStage::Sent(send_id);
        }
    }

    pub(super) fn watch_answered(&mut self, id: WatchId, changes: Changes, now: Instant) {
        let Some(watch) = self.watches.watches.get_mut(&id) else { return };
        if !can_follow(watch.after.unwrap_or_default(), &changes) {
            // These changes do not follow the last ones: ask again.
            return self.wants_again(Purpose::Watch(id), now);
        }
        watch.stage = WatchStage::Reported;
        watch.is_caught_up |= changes.changes.is_empty() && watch.after.is_some();
        watch.after = Some(changes.through);
        self.effects.push(HolderEffect::Changes { watch: id, changes });
    }

    /// Prepares the watch to be sent again, unless the application has ended it.
    pub(super) fn watch_set_back(&mut self, id: WatchId) {
        if let Some(watch) = self.watches.watches.get_mut(&id) {
            watch.stage = WatchStage::Queued;
        }
    }

    /// Ends a watch whose changes the server refuses to report.
    pub(super) fn refused_watch(&mut self, id: WatchId, refusal: Refusal) {
        let Some(watch) = self.watches.watches.remove(&id) else { return };
        let error = match (refusal, watch.after) {
            (Refusal::Compacted { earliest_after, .. }, Some(after)) => {
                WatchFailure::Compacted { after, earliest_after }
            }
            (refusal, _) => WatchFailure::Refused(refusal),
        };
        self.effects.push(HolderEffect::WatchLost { watch: id, error });
    }

    /// Queues all watches for the next session, after the expired session's queue was cleared.
    pub(super) fn watch_on(&mut self) {
        self.watches.unsend_all();
        for (id, watch) in &self.watches.watches {
            if watch.stage == WatchStage::Queued {
                self.send_queue.push(Purpose::Watch(*id));
            }
        }
    }

    pub(super) fn end_watches(&mut self, error: &WatchFailure) {
        for watch in std::mem::take(&mut self.watches.watches).into_keys() {
            self.effects.push(HolderEffect::WatchLost { watch, error: error.clone() });
        }
    }

    /// Checks that each watch is queued, in flight, or waits for the application.
    pub(super) fn check_watches(&self) -> Result<(), String> {
        for (id, watch) in &self.watches.watches {
            let purpose = Purpose::Watch(*id);
            let has_next_step = match watch.stage {
                WatchStage::Reported => true,
                WatchStage::Queued => self.send_queue.contains(&purpose),
                WatchStage::Sent(send_id) => self.in_flight.purpose(send_id) == Some(&purpose),
            };
            if !has_next_step {
                return Err(format!("watch {id:?} is neither queued nor in flight: {:?}", watch.stage));
            }
        }
        Ok(())
    }
}

/// Whether these changes can follow that revision.
fn can_follow(after: Revision, changes: &Changes) -> bool {
    let revisions = || changes.changes.iter().map(|change| change.revision);
    let is_in_order = revisions().is_sorted_by(|one, other| one < other);
    after <= changes.through
        && is_in_order
        && revisions().all(|revision| after < revision && revision <= changes.through)
}
