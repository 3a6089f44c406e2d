//! Object leases and recalls: what is installed, what is refused, what is dropped.
//!
//! S4 in one place. A grant is cached only if it comes from the leader that the session has
//! registered with, under the volume lease that the client holds now, and if nothing that the
//! client has seen since it asked has overtaken it: a recall, a write of its own (S2w), a new
//! incarnation of the volume lease.

use std::sync::Arc;

use super::{Holder, HolderEffect, copies::CachedCopy, validity::CopyValidity};
use crate::{
    id::{Epoch, Revision, Stamp},
    message::{Consent, Grant, Recall, Return},
    object::{Content, Object, ObjectSet},
    path::NodePath,
    planted::Bug,
    time::Instant,
};

/// A grant together with what came with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArrivedGrant<'a> {
    pub(super) grant: &'a Grant,
    /// The leadership that answered.
    pub(super) epoch: Epoch,
    /// The revision that was applied by then.
    pub(super) applied: Revision,
    /// Before the request was sent.
    pub(super) sent: Instant,
}

impl Holder {
    /// Whether the grant may be cached, and then what its copy may be used by (S4).
    pub(super) fn judge(&mut self, object: &Object, arrival: ArrivedGrant<'_>, now: Instant) -> Option<CachedCopy> {
        let ArrivedGrant { grant, epoch, applied, sent } = arrival;
        let is_of_epoch = epoch == self.epoch && grant.stamp.epoch == self.epoch;
        if !is_of_epoch && !self.planted(Bug::GrantOfOldEpoch) {
            return None;
        }
        self.stamp_seen = self.stamp_seen.max(grant.stamp);
        let is_overtaken = self.recalls.overtook(object, grant.stamp);
        if is_overtaken && !self.planted(Bug::CacheOvertakenGrant) {
            return None;
        }
        let until = self.ends_at(sent, grant.span, now);
        let newer = self.copies.get(object).is_some_and(|copy| copy.validity.stamp >= grant.stamp);
        let takes_older = self.planted(Bug::GrantOfOldIncarnation);
        let lease = self.volumes.get_mut(&grant.volume)?.lease.as_mut()?;
        let is_ours = lease.incarnation == grant.incarnation && grant.stamp > lease.stamp;
        if newer || !(is_ours || takes_older) || grant.generation < lease.generation {
            return None;
        }
        lease.revision = lease.revision.max(applied);
        if grant.generation > lease.generation {
            lease.generation = grant.generation;
            self.drop_older_generations(&grant.volume);
        }
        let Grant { stamp, volume, incarnation, generation, .. } = grant.clone();
        Some(CachedCopy { validity: CopyValidity { stamp, volume, incarnation, until }, generation, modified: None })
    }

    /// Keeps a copy that was judged good. How long it is valid, if it is now.
    pub(super) fn install(
        &mut self,
        object: &Object,
        copy: CachedCopy,
        content: &Arc<Content>,
        now: Instant,
    ) -> Option<Instant> {
        let validity = copy.validity.clone();
        self.copies.insert(object, CachedCopy { modified: content.modify_revision(), ..copy });
        let valid_until = self.valid_until(&validity, now);
        self.effects.push(HolderEffect::Install { object: object.clone(), content: Arc::clone(content), validity });
        valid_until
    }

    /// A server wants copies dropped. They are, valid or not; then the server is told.
    pub(super) fn recalled(&mut self, recall: &Recall, now: Instant) {
        let Some(session) = self.session() else { return };
        if recall.session != session {
            return;
        }
        self.heard_at = self.heard_at.max(now);
        self.stamp_seen = self.stamp_seen.max(recall.stamp);
        let everything = [ObjectSet::Subtree(NodePath::root())];
        let has_gap = self.recalls.has_gap(recall) && !self.planted(Bug::RecallGapIgnored);
        let sets = if has_gap { &everything[..] } else { &recall.sets };
        if self.defer_consent(recall.stamp, sets) {
            return self.overtake(sets, recall.stamp);
        }
        let consent = HolderEffect::Consent(Consent { session, stamp: recall.stamp });
        self.piggyback.consent(recall.stamp);
        if self.planted(Bug::ConsentBeforeDrop) {
            self.late_drops.extend_from_slice(sets);
            self.effects.push(consent);
            return;
        }
        self.overtake(sets, recall.stamp);
        self.effects.push(consent);
    }

    /// Drops the copies of these sets, and refuses grants on them stamped up to `through` that are
    /// still on their way.
    pub(super) fn overtake(&mut self, sets: &[ObjectSet], through: Stamp) {
        let spares_lapsed = self.planted(Bug::RecallSparesLapsedCopies);
        let mut gone = Vec::new();
        for set in sets {
            let has_lease =
                |copy: &CachedCopy| self.volumes.get(&copy.validity.volume).is_some_and(|one| one.lease.is_some());
            gone.extend(self.copies.remove_where(set, |copy| !spares_lapsed || has_lease(copy)));
            self.recalls.remember(set, through, self.in_flight.next());
        }
        self.dropped(gone);
    }

    /// Tells the cache to drop these.
    pub(super) fn dropped(&mut self, objects: Vec<Object>) {
        if !objects.is_empty() {
            self.effects.push(HolderEffect::Drop(objects));
        }
    }

    /// Makes up for what a planted mistake did not drop in time.
    pub(super) fn drop_late(&mut self) {
        let sets = std::mem::take(&mut self.late_drops);
        if !sets.is_empty() {
            self.overtake(&sets, self.stamp_seen);
        }
    }

    /// The cache has dropped a copy of its own accord. If the server still counts it as leased, it
    /// is given back with the next request (S2).
    ///
    /// A return counts as a recall (S4): the server takes it for all grants of the object up to
    /// this one, and an earlier one may still be on its way. If that were cached, nobody would
    /// recall it.
    pub(super) fn evicted(&mut self, object: Object, stamp: Stamp, now: Instant) {
        let Some(copy) = self.copies.get(&object) else { return };
        if copy.validity.stamp != stamp {
            return;
        }
        let is_leased = now < copy.validity.until && stamp.epoch == self.epoch;
        self.copies.remove(&object);
        if is_leased {
            self.recalls.remember(&ObjectSet::One(object.clone()), stamp, self.in_flight.next());
            self.piggyback.push_return(Return { object, stamp }, &self.config.bounds);
        }
    }
}
