//! The [lease limit](crate::volume::VolumeSettings::lease_limit) of a volume: at the limit, the
//! leader recalls the least recently granted leases (Cao and Liu 1998).
//!
//! A leader may refuse an object lease, and may recall one, whenever it wishes. So no limit makes a
//! read stale (S3), and no rule depends on this module. It does not know which leases are in
//! memory: the [object leases](super::object_leases) do.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Lessor, StepContext, recalls::RECALL_RESEND_INTERVAL};
use crate::{
    id::{SessionId, Stamp},
    object::ObjectSet,
    path::NodePath,
    reached::{Bound, reached},
    time::Instant,
    volume::VolumeSettings,
};

/// The most leases that are recalled at once to make room. An eighth of a small limit is less.
const BATCH_LEASES: usize = 64;
const BATCHES_PER_LIMIT: u32 = 8;

/// If a batch of recalls has no complete answer by then, the next batch may follow: a client that
/// is gone answers none.
const BATCH_PATIENCE: Duration = RECALL_RESEND_INTERVAL;

/// The volumes that need room, and the last recalls that were to make some.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct LeaseLimits {
    /// The volumes in which this step has refused a lease.
    full: BTreeSet<NodePath>,
    batches: BTreeMap<NodePath, Batch>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Batch {
    sent: Instant,
    recalls: Vec<(SessionId, Stamp)>,
}

impl LeaseLimits {
    /// A volume was created, changed or removed: it has no leases in memory.
    pub(super) fn forget(&mut self, volume: &NodePath) {
        self.full.remove(volume);
        self.batches.remove(volume);
    }

    /// The number of volumes with recalls.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.batches.len()
    }
}

impl Lessor {
    /// Whether the volume has as many object leases as its limit allows. Then the end of this step
    /// recalls some.
    pub(super) fn is_at_lease_limit(&mut self, volume: &NodePath, settings: &VolumeSettings) -> bool {
        let Some(limit) = settings.lease_limit() else { return false };
        let is_full = self.object_leases.totals_in(volume).entries >= u64::from(limit);
        if is_full {
            reached(Bound::LeaseLimit);
            self.lease_limits.full.insert(volume.clone());
        }
        is_full
    }

    /// Recalls the least recently granted leases of the volumes that need room: one batch for each
    /// volume, unless the last one is still unanswered.
    pub(super) fn make_room(&mut self, cx: &mut StepContext<'_>) {
        for volume in std::mem::take(&mut self.lease_limits.full) {
            let limit = cx.state.volume(&volume).and_then(|volume| volume.settings.lease_limit());
            let (Some(limit), false) = (limit, self.is_batch_unanswered(&volume, cx)) else { continue };
            let share = usize::try_from(limit.div_ceil(BATCHES_PER_LIMIT)).unwrap_or(BATCH_LEASES);
            let most = share.min(BATCH_LEASES);
            let recalls = self.recall_oldest(&volume, most, cx);
            self.lease_limits.batches.insert(volume, Batch { sent: cx.now, recalls });
        }
    }

    fn is_batch_unanswered(&self, volume: &NodePath, cx: &StepContext<'_>) -> bool {
        let Some(batch) = self.lease_limits.batches.get(volume) else { return false };
        let is_unanswered = |(session, stamp): &(SessionId, Stamp)| {
            self.recall_channels.get(session).is_some_and(|channel| channel.recalled(*stamp).is_some())
        };
        cx.now.since(batch.sent) < BATCH_PATIENCE && batch.recalls.iter().any(is_unanswered)
    }

    /// Recalls up to `most` leases. The leases of one session share a recall.
    fn recall_oldest(&mut self, volume: &NodePath, most: usize, cx: &mut StepContext<'_>) -> Vec<(SessionId, Stamp)> {
        let Some(epoch) = self.epoch else { return Vec::new() };
        let mut by_session = BTreeMap::<SessionId, Vec<ObjectSet>>::new();
        for (object, session) in self.object_leases.make_room(volume, most, self.clock.expiry_time()) {
            by_session.entry(session).or_default().push(ObjectSet::One(object));
        }
        let mut recalls = Vec::new();
        for (session, sets) in by_session {
            for sets in sets.chunks(self.config.bounds.recall_sets_max.max(1)) {
                self.counters.0.note_recalled_for_room(volume, sets.len());
                let stamp = self.recall_sets(session, epoch, sets.to_vec(), vec![volume.clone()], cx);
                recalls.push((session, stamp));
            }
        }
        recalls
    }
}
