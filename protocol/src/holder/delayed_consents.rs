//! Delayed consents: a client may go on using a recalled copy for a while, and consents then (Gray
//! and Cheriton 1989: a holder may delay its approval).
//!
//! The write waits meanwhile, so the copy is not stale (S2). Two rules remain as they are. A recall
//! overtakes each grant that is still in flight (S4). And the copy is used only while both its
//! leases hold (S1). While a recall is unanswered, the volume lease ends a term after it at the
//! latest (S5). The delay is at most half of that, so that the consent comes in time for a renewal.
//!
//! The holder consents at once if it has no usable copy, after a gap in the numbers of recalls, and
//! beyond [`HolderBounds::delayed_consents_max`](super::HolderBounds::delayed_consents_max).

use std::{collections::BTreeMap, time::Duration};

use super::{Holder, HolderEffect};
use crate::{
    id::Stamp,
    message::Consent,
    object::ObjectSet,
    reached::{Bound, reached},
    time::Instant,
};

/// A recall without a consent yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DelayedConsent {
    sets: Vec<ObjectSet>,
    due: Instant,
}

/// The recalls to which the holder has not consented yet, because it still uses copies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct DelayedConsents {
    by_stamp: BTreeMap<Stamp, DelayedConsent>,
}

impl DelayedConsents {
    /// When the next consent is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.by_stamp.values().map(|delayed| delayed.due).min()
    }

    pub(super) fn clear(&mut self) {
        self.by_stamp.clear();
    }
}

impl Holder {
    /// Delays the consent to a recall, if the client may do so and has a usable copy. The recalled
    /// copies stay in use. Returns whether it does.
    pub(super) fn delay_consent(&mut self, stamp: Stamp, sets: &[ObjectSet], now: Instant) -> bool {
        if self.delayed_consents.by_stamp.contains_key(&stamp) {
            // The leader has sent the recall again.
            return true;
        }
        let Some(delay) = self.consent_delay(sets, now) else { return false };
        let most = self.config.bounds.delayed_consents_max;
        if self.delayed_consents.by_stamp.len() >= most {
            reached(Bound::DelayedConsents);
            return false;
        }
        for set in sets {
            self.recalls.remember(set, stamp, self.in_flight.next());
        }
        let delayed = DelayedConsent { sets: sets.to_vec(), due: now.after(delay) };
        self.delayed_consents.by_stamp.insert(stamp, delayed);
        true
    }

    /// For how long to delay a consent to a recall of these sets. `None` if the client has no copy
    /// of them that it may use.
    fn consent_delay(&self, sets: &[ObjectSet], now: Instant) -> Option<Duration> {
        if self.config.consent_delay.is_zero() {
            return None;
        }
        let copies = sets.iter().flat_map(|set| self.copies.in_set(set));
        let terms = copies.filter(|copy| self.may_use(&copy.validity, now)).filter_map(|copy| {
            let volume = self.volumes.get(&copy.validity.volume)?;
            volume.lease.as_ref().map(|lease| lease.pace.term)
        });
        terms.min().map(|term| self.config.consent_delay.min(term / 2))
    }

    /// Drops the copies whose recall waits for a consent. A new leader does not know the recall.
    pub(super) fn drop_delayed(&mut self) {
        for (stamp, delayed) in std::mem::take(&mut self.delayed_consents.by_stamp) {
            self.overtake(&delayed.sets, stamp);
        }
    }

    /// Drops the copies of recalls whose delay is over, and consents.
    pub(super) fn consent_when_due(&mut self, now: Instant) {
        let due = self.delayed_consents.by_stamp.iter().filter(|(_, delayed)| now >= delayed.due);
        let due: Vec<Stamp> = due.map(|(stamp, _)| *stamp).collect();
        for stamp in due {
            let Some(delayed) = self.delayed_consents.by_stamp.remove(&stamp) else { continue };
            self.overtake(&delayed.sets, stamp);
            let Some(session) = self.session() else { continue };
            self.piggyback.consent(stamp);
            self.effects.push(HolderEffect::Consent(Consent { session, stamp }));
        }
    }
}
