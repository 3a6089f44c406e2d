//! Reads of the next value. In a volume with [`OnWrite::Update`], a client that gives up a copy for
//! a write asks with its consent for the value that the write leaves. When the write has ended, the
//! server pushes this value with a lease. So the next read of the application is a hit.
//!
//! The client asks only for copies that its application wanted: a read had asked for the copy, or
//! was answered from it. The cache knows which ([`HolderEffect::SelectWanted`]). So an object that
//! nobody reads any longer costs one such request, and no more.
//!
//! No read of the application waits for such a request, and the holder never repeats it. If no
//! answer has come after [`PUSH_WAIT_MAX`], the holder abandons the request. Then the next read of
//! the application asks by itself. The answer is a grant like any other (S4 in
//! `docs/PROTOCOL.md`): its term counts from the sending of the request, and a recall can overtake
//! it.
//!
//! [`OnWrite::Update`]: crate::lease_policy::OnWrite::Update

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Holder, HolderEffect, SendId,
    copies::CachedCopy,
    in_flight::{Purpose, RequestInFlight},
    object_leases::ArrivedGrant,
    session::LinkState,
    volume_leases::RenewalSelection,
};
use crate::{
    id::Epoch,
    lease_policy::{LeaseOffer, LeaseRequest},
    message::{Body, PUSH_WAIT_MAX, ReadAnswer},
    object::{Object, ObjectSet},
    reached::{Bound, reached},
    time::Instant,
};

/// The objects with a `ReadNextValue` in flight, each with the latest sending.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct NextValueRequests {
    objects: BTreeMap<Object, SendId>,
}

impl NextValueRequests {
    /// The request of an object has ended.
    pub(super) fn end(&mut self, object: &Object) {
        self.objects.remove(object);
    }

    /// All requests have ended.
    pub(super) fn clear(&mut self) {
        self.objects.clear();
    }
}

impl Holder {
    /// Asks the cache which of the copies in these sets the application wanted. It must come before
    /// the effect that drops them.
    pub(super) fn select_wanted(&mut self, sets: &[ObjectSet]) {
        let single = |set: &ObjectSet| match set {
            ObjectSet::One(object) => self.copies.get(object).map(|_| object.clone()),
            ObjectSet::Subtree(_) => None,
        };
        let objects: Vec<Object> = sets.iter().filter_map(single).collect();
        if !objects.is_empty() {
            self.effects.push(HolderEffect::SelectWanted(objects));
        }
    }

    /// Asks for the next values of these objects.
    pub(super) fn read_next_values(&mut self, objects: Vec<Object>, now: Instant) {
        for object in objects {
            let volume = self.volumes.nearest(&object.path);
            let has_lease = self.volumes.get(&volume).is_some_and(|volume| volume.live(now).is_some());
            let offer = self.volumes.offer(&object.path);
            let may_get_lease = has_lease && offer != LeaseOffer::Nobody;
            if self.link != LinkState::Registered || !may_get_lease || self.copies.get(&object).is_some() {
                continue;
            }
            // The earlier request was lost, or its answer comes too late.
            if let Some(earlier) = self.next_values.objects.remove(&object) {
                self.in_flight.end(earlier);
            }
            if self.next_values.objects.len() >= self.config.bounds.own_next_values_max {
                reached(Bound::OwnNextValues);
                return;
            }
            // The client had a copy. So the request asks for a lease of the whole object term, as a
            // returning reader does.
            let lease = match offer {
                LeaseOffer::Everybody => LeaseRequest::Returning,
                LeaseOffer::OnRequest | LeaseOffer::Nobody => LeaseRequest::Explicit,
            };
            let body = Body::ReadNextValue { object: object.clone(), lease };
            // The request renews nothing. A promise counts from the arrival of the request, and may
            // have ended before the answer comes.
            let send_id = self.send(Purpose::ReadNextValue(object.clone()), body, RenewalSelection::NoRenewal, now);
            self.next_values.objects.insert(object, send_id);
        }
    }

    /// When the holder abandons the oldest of these requests.
    pub(super) fn next_values_deadline(&self) -> Option<Instant> {
        self.in_flight.oldest_next_value().map(|(_, sent)| sent.after(PUSH_WAIT_MAX))
    }

    /// Abandons the requests that have waited for too long.
    pub(super) fn abandon_next_values(&mut self, now: Instant) {
        while let Some((send_id, sent)) = self.in_flight.oldest_next_value() {
            if now < sent.after(PUSH_WAIT_MAX) {
                break;
            }
            reached(Bound::PushWait);
            if let Some(RequestInFlight { purpose: Purpose::ReadNextValue(object), .. }) = self.in_flight.end(send_id) {
                self.next_values.end(&object);
            }
        }
    }

    /// Installs the next value, if it came with a lease.
    pub(super) fn next_value_answered(
        &mut self,
        object: Object,
        sent: Instant,
        epoch: Epoch,
        answer: ReadAnswer,
        now: Instant,
    ) {
        self.next_values.end(&object);
        let ReadAnswer { content, grant, applied, .. } = answer;
        let arrived = |grant| ArrivedGrant { grant, epoch, applied, sent };
        let copy = grant.as_ref().and_then(|grant| self.accept_grant(&object, arrived(grant), now));
        let until = |copy: &CachedCopy| self.valid_until(&copy.validity, now);
        let present = self.copies.get(&object).and_then(until);
        // A read of the application may have got a lease that lasts for longer.
        let is_better = |copy: &CachedCopy| until(copy).is_some_and(|until| Some(until) > present);
        if let (Some(copy), Some(content)) = (copy.filter(is_better), content) {
            self.install(&object, copy, &Arc::new(content), now);
        }
    }

    /// Checks that exactly the listed objects have a request in flight, within the bound.
    pub(super) fn check_next_values(&self) -> Result<(), String> {
        let in_flight = self.in_flight.iter().filter_map(|(send_id, flight)| match &flight.purpose {
            Purpose::ReadNextValue(object) => Some((object, send_id)),
            _ => None,
        });
        let mut in_flight: Vec<(&Object, &SendId)> = in_flight.collect();
        in_flight.sort();
        let listed = &self.next_values.objects;
        if !in_flight.iter().copied().eq(listed) {
            return Err(format!("the next values of {in_flight:?} are asked for, but {listed:?} are listed"));
        }
        if listed.len() > self.config.bounds.own_next_values_max {
            return Err(format!("the next values of {} objects are asked for", listed.len()));
        }
        Ok(())
    }
}
