//! The [lease limit](crate::volume::VolumeSettings::lease_limit) of a volume: beyond it, the leader
//! recalls the leases that end first (Cao and Liu 1998).
//!
//! A leader may recall an object lease whenever it wishes. So no limit makes a read stale (S2, S3),
//! and no rule depends on this module. It does not know which leases are in memory: the
//! [object leases](super::object_leases) do.

use std::collections::BTreeMap;

use super::{
    Lessor, StepContext,
    recalls::{NewRecall, RecallChannel},
};
use crate::{
    id::SessionId,
    object::{Object, ObjectSet},
    path::NodePath,
    reached::{Bound, reached},
    state::State,
};

/// The most leases that one step takes out of the order of ends (`object_leases/end_order.rs`), so
/// that a step stays short. Later steps take the others.
const TAKEN_PER_STEP: usize = 1024;

/// The leader recalls the excess, and some leases more: an eighth of the limit, at most this many.
/// So one recall can name several leases of a session, and the next grants need no recall.
const AHEAD: usize = 64;

/// A session with this many unanswered recalls gets no object lease in a volume with a lease
/// limit. The leader remembers each of them.
const UNANSWERED_MAX: usize = 1024;

impl Lessor {
    /// Whether the session may get an object lease in a volume with a lease limit. A session that
    /// has left too many recalls unanswered gets none, because each further lease could cost a
    /// further recall.
    pub(super) fn answers_recalls(&self, session: SessionId) -> bool {
        let unanswered = self.recall_channels.get(&session).map_or(0, RecallChannel::unanswered);
        if unanswered >= UNANSWERED_MAX {
            reached(Bound::Unanswered);
        }
        unanswered < UNANSWERED_MAX
    }

    /// Notes that an object lease was recorded. If its volume is beyond its lease limit now, this
    /// step or a later one recalls some.
    pub(super) fn note_recorded(&mut self, volume: &NodePath, object: &Object, session: SessionId, state: &State) {
        if lease_limit(volume, state).is_some() {
            self.object_leases.put_in_order(volume, object, session);
            self.check_lease_limit(volume, state);
        }
    }

    /// If the volume is beyond its lease limit, this step or a later one recalls some leases. The
    /// order of ends may still have leases that have ended or were dropped. They count.
    pub(super) fn check_lease_limit(&mut self, volume: &NodePath, state: &State) {
        if lease_limit(volume, state).is_some_and(|limit| self.object_leases.ordered_in(volume) > limit) {
            self.over_lease_limit.insert(volume.clone());
        }
    }

    /// Recalls leases of the volumes that are beyond their limits.
    pub(super) fn keep_lease_limits(&mut self, cx: &mut StepContext<'_>) {
        let mut most = TAKEN_PER_STEP;
        while most > 0
            && let Some(volume) = self.over_lease_limit.pop_first()
        {
            let Some(limit) = lease_limit(&volume, cx.state) else { continue };
            let excess = self.object_leases.ordered_in(&volume).saturating_sub(limit);
            if excess == 0 {
                continue;
            }
            reached(Bound::LeaseLimit);
            let taken = excess.saturating_add((limit / 8).min(AHEAD)).min(most);
            most -= taken;
            self.recall_first(&volume, taken, cx);
            if taken < excess {
                self.over_lease_limit.insert(volume);
            }
        }
    }

    /// Takes so many leases out of the order, and recalls those that have not ended. The leases of
    /// one session share a recall.
    fn recall_first(&mut self, volume: &NodePath, taken: usize, cx: &mut StepContext<'_>) {
        let Some(epoch) = self.epoch else { return };
        let mut by_session = BTreeMap::<SessionId, Vec<ObjectSet>>::new();
        for (object, session) in self.object_leases.take_first(volume, taken, self.clock.ending_time()) {
            by_session.entry(session).or_default().push(ObjectSet::One(object));
        }
        for (session, sets) in by_session {
            self.counters.0.note_recalled_for_room(volume, sets.len());
            for sets in sets.chunks(self.config.bounds.recall_sets_max.max(1)) {
                let (sets, volumes) = (sets.to_vec(), vec![volume.clone()]);
                let made = NewRecall { sets, volumes, offers_next_values: false, write_lease: None };
                self.recall_sets(session, epoch, made, cx);
            }
        }
    }

    /// Checks that each volume is within its limit, or is listed for a later step.
    pub(super) fn lease_limits_are_kept(&self, state: &State) -> Result<(), String> {
        for (volume, _) in state.volumes_below(&NodePath::root()).chain([state.volume_of(&NodePath::root())]) {
            let (Some(limit), kept) = (lease_limit(volume, state), self.object_leases.ordered_in(volume)) else {
                continue;
            };
            if kept > limit && !self.over_lease_limit.contains(volume) {
                return Err(format!("clients keep {kept} leases of {volume}: expected at most {limit}"));
            }
        }
        Ok(())
    }
}

fn lease_limit(volume: &NodePath, state: &State) -> Option<usize> {
    let limit = state.volume(volume)?.settings.lease_limit()?;
    Some(usize::try_from(limit).unwrap_or(usize::MAX))
}
