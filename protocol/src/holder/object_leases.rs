//! Object leases: decides which copies to install, to refuse and to drop.
//!
//! `accept_grant` implements S4. It accepts a grant only from the leader that the session has
//! registered with, and only under the present volume lease. It refuses a grant that was overtaken.
//! A recall, a return or a write of this client (S2w) can overtake a grant: `recalls.rs` remembers
//! these. A new volume lease overtakes a grant too: a grant must have a later stamp than the lease.

use std::sync::Arc;

use super::{Holder, HolderEffect, copies::CachedCopy, validity::CopyValidity};
use crate::{
    id::{Epoch, Revision, Stamp},
    message::{Grant, Return},
    object::{Content, Object, ObjectSet},
    planted::Bug,
    time::Instant,
};

/// A grant, with the facts about its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArrivedGrant<'a> {
    pub(super) grant: &'a Grant,
    /// The epoch that answered.
    pub(super) epoch: Epoch,
    /// The revision that the server had applied.
    pub(super) applied: Revision,
    /// A clock reading from just before the request was sent.
    pub(super) sent: Instant,
}

impl Holder {
    /// The copy to cache, if the grant may be cached (S4).
    pub(super) fn accept_grant(
        &mut self,
        object: &Object,
        arrived: ArrivedGrant<'_>,
        now: Instant,
    ) -> Option<CachedCopy> {
        let ArrivedGrant { grant, epoch, applied, sent } = arrived;
        if epoch != self.epoch || grant.stamp.epoch != self.epoch {
            return None;
        }
        self.stamp_seen = self.stamp_seen.max(grant.stamp);
        let is_overtaken = self.recalls.overtook(object, grant.stamp);
        if is_overtaken && !self.planted(Bug::CacheOvertakenGrant) {
            return None;
        }
        let until = self.ends_at(sent, grant.span, now);
        let has_newer_copy = self.copies.get(object).is_some_and(|copy| copy.validity.stamp >= grant.stamp);
        let mut volume = self.volumes.get_mut(&grant.volume)?;
        let lease = volume.lease.as_mut()?;
        let is_current_lease = lease.incarnation == grant.incarnation && grant.stamp > lease.stamp;
        if has_newer_copy || !is_current_lease || grant.generation < lease.generation {
            return None;
        }
        lease.revision = lease.revision.max(applied);
        if grant.generation > lease.generation {
            lease.generation = grant.generation;
            drop(volume);
            self.drop_older_generations(&grant.volume);
        }
        let Grant { stamp, volume, incarnation, generation, .. } = grant.clone();
        Some(CachedCopy { validity: CopyValidity { stamp, volume, incarnation, until }, generation, modified: None })
    }

    /// Installs a copy that `accept_grant` accepted. Returns until when it is valid, if it may be
    /// used now.
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

    /// Asks the cache to drop these objects.
    pub(super) fn ask_to_drop(&mut self, objects: Vec<Object>) {
        if !objects.is_empty() {
            self.effects.push(HolderEffect::Drop(objects));
        }
    }

    /// Handles an eviction by the cache. If a leader of this epoch granted the object lease, and it
    /// still holds on this clock, the next request returns the copy (S2).
    ///
    /// A return counts as a recall (S4). The server forgets all grants of the object up to this
    /// one. One of them may still be in flight. If the holder cached it, nobody would recall that
    /// copy.
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
