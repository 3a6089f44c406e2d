//! Delayed consents: a client may go on using a recalled copy for a while, and consents then (Gray
//! and Cheriton 1989: a holder may delay its approval).
//!
//! The write waits meanwhile, so the copy is not stale (S2). Two rules remain as they are. A recall
//! overtakes each grant that is still in flight (S4). And the copy is used only while both its
//! leases hold (S1).
//!
//! An unanswered recall shortens the promises on all volume leases of the session: none lasts
//! longer than a term after the recall (S5). So the delay is at most half of the shortest remaining
//! time. The other half is kept for the consent and a renewal.
//!
//! The holder consents at once in these cases: it has no usable copy; the recall names a subtree;
//! the numbers of recalls have a gap; a write of this client is sent and unanswered, or was
//! cancelled and may still be at the leader; a volume lease with nodes or locks has ended by this
//! clock; or consents for more than
//! [`HolderBounds::delayed_consents_max`](super::HolderBounds::delayed_consents_max) objects would
//! be delayed. The last number includes each consent whose delay has ended, until a request with it
//! is answered. So one header has room for all of them.
//!
//! The holder ends all delays when the client sends a write, when a new volume lease begins, or
//! when a promise makes a volume lease valid again that had ended by this clock.
//!
//! The client has already replied to the recall, with a notice of the delay and no consent. So a
//! heartbeat brings the consent later. A server shows the notice to people who ask why a write
//! waits.

use std::{collections::BTreeMap, time::Duration};

use super::Holder;
use crate::{
    id::{Epoch, Stamp},
    message::Recall,
    object::{Object, ObjectSet},
    reached::{Bound, reached},
    time::Instant,
};

/// One request brings all consents that are due within an eighth of the configured delay.
const NEARLY: u32 = 8;

/// A recall without a consent yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DelayedConsent {
    objects: Vec<Object>,
    due: Instant,
    /// The recall offers the next values.
    offers_next_values: bool,
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

    /// How many objects the recalls name.
    fn objects(&self) -> usize {
        self.by_stamp.values().map(|delayed| delayed.objects.len()).sum()
    }
}

impl Holder {
    /// Delays the consent to a recall, if the client may do so and has a usable copy. The recalled
    /// copies stay in use. Returns the longest time that the delay can last. `None` if the holder
    /// must consent now.
    pub(super) fn delay_consent(&mut self, recall: &Recall, now: Instant) -> Option<Duration> {
        let Recall { stamp, ref sets, offers_next_values, .. } = *recall;
        if self.config.consent_delay.is_zero() {
            return None;
        }
        if let Some(delayed) = self.delayed_consents.by_stamp.get(&stamp) {
            // The leader has sent the recall again.
            return Some(delayed.due.since(now));
        }
        let objects = single_objects(sets)?;
        let late = self.delayed_consents.objects() + self.piggyback.late_consents();
        if late + objects.len() > self.config.bounds.delayed_consents_max {
            reached(Bound::DelayedConsents);
            return None;
        }
        // The recall may be for a write of this client, which must not wait for the client itself.
        // A later write of the client may wait behind a cancelled one.
        if self.writes.are_sent() || !objects.iter().any(|object| self.may_serve(object, now)) {
            return None;
        }
        let due = self.consent_due(now)?;
        for set in sets {
            self.recalls.remember(set, stamp, self.in_flight.next());
        }
        self.delayed_consents.by_stamp.insert(stamp, DelayedConsent { objects, due, offers_next_values });
        Some(due.since(now))
    }

    /// The time by which the holder must consent to a recall that arrives now. An unanswered recall
    /// limits the promises of all volume leases of the session, also of those with nodes or locks.
    /// So half of the time that remains of each is left for the consent and a renewal.
    fn consent_due(&self, now: Instant) -> Option<Instant> {
        // A lease with nodes or locks whose time has passed here may still exist at the servers,
        // and a promise may be on its way.
        if self.volumes.have_late_dependents() {
            return None;
        }
        let remaining = self.volumes.first_end()?.since(now);
        Some(now.after(self.config.consent_delay.min(remaining / 2)))
    }

    /// Makes all delayed consents due at once.
    pub(super) fn end_delays(&mut self, now: Instant) {
        self.delayed_consents.by_stamp.values_mut().for_each(|delayed| delayed.due = now);
    }

    /// The stamps of the recalls to consent to now. One request brings all consents that are nearly
    /// due. If no copy of a recall is usable any longer, for example after another recall or an
    /// eviction, its consent is due.
    fn due_consents(&self, now: Instant) -> Vec<Stamp> {
        let nearly = now.after(self.config.consent_delay / NEARLY);
        let is_due = |delayed: &DelayedConsent| {
            now >= delayed.due || !delayed.objects.iter().any(|object| self.may_serve(object, now))
        };
        let all = &self.delayed_consents.by_stamp;
        if !all.values().any(is_due) {
            return Vec::new();
        }
        let due = all.iter().filter(|(_, delayed)| delayed.due <= nearly || is_due(delayed));
        due.map(|(stamp, _)| *stamp).collect()
    }

    /// Drops the copies that leaders of earlier epochs have recalled. The new leader does not know
    /// the recalls.
    pub(super) fn drop_delayed_before(&mut self, epoch: Epoch) {
        let first = Stamp { epoch, sequence: 0 };
        let later = self.delayed_consents.by_stamp.split_off(&first);
        for (stamp, delayed) in std::mem::replace(&mut self.delayed_consents.by_stamp, later) {
            self.drop_and_overtake(&sets_of(delayed.objects), stamp);
        }
    }

    /// Ends the delays that are due: drops the copies.
    pub(super) fn consent_when_due(&mut self, now: Instant) {
        // Dropping the copies of one recall can leave another without copies.
        loop {
            let due = self.due_consents(now);
            if due.is_empty() {
                return;
            }
            for stamp in due {
                let Some(delayed) = self.delayed_consents.by_stamp.remove(&stamp) else { continue };
                let sets = sets_of(delayed.objects);
                if delayed.offers_next_values {
                    self.select_wanted(&sets);
                }
                self.drop_and_overtake(&sets, stamp);
                self.piggyback.consent_late(stamp);
            }
        }
    }

    /// Checks that consents are delayed only with a session, and not for too many objects.
    pub(super) fn check_delayed_consents(&self) -> Result<(), String> {
        if self.session.is_none() && !self.delayed_consents.by_stamp.is_empty() {
            return Err("a consent is delayed without a session".to_owned());
        }
        if self.delayed_consents.objects() > self.config.bounds.delayed_consents_max {
            return Err(format!("the consents for {} objects are delayed", self.delayed_consents.objects()));
        }
        Ok(())
    }
}

/// The objects, if no set is a subtree.
fn single_objects(sets: &[ObjectSet]) -> Option<Vec<Object>> {
    let single = |set: &ObjectSet| match set {
        ObjectSet::One(object) => Some(object.clone()),
        ObjectSet::Subtree(_) => None,
    };
    sets.iter().map(single).collect()
}

fn sets_of(objects: Vec<Object>) -> Vec<ObjectSet> {
    objects.into_iter().map(ObjectSet::One).collect()
}
