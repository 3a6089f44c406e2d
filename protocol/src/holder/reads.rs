//! Reads that the cache could not answer, and the fetches that they share.
//!
//! A *fetch* reads one object from a server, for all reads that wait for that object. For each
//! object, one request at a time is in flight. A read that *began before* the request was
//! sent may use any answer to it. A read that *joined* later may use the answer only if it came
//! with leases that still hold. Any other answer may be older than a write that was acknowledged
//! before the read began.
//!
//! A fetch first gets a lease on the volume, so that its answer can be cached. The request for that
//! lease brings one fetch along. After a few attempts, a fetch reads without a lease.
//!
//! If another client has the data under a write lease, the holder sends the fetch again at once, as
//! [`Body::AwaitRead`]. The server owes no quick answer to that, so it does not count as silent
//! meanwhile. If that request fails, the fetch starts over.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Holder, HolderEffect, ReadFailure, ReadId, SendId, copies::CachedCopy, in_flight::Purpose,
    object_leases::ArrivedGrant, volume_leases::RenewalSelection,
};
use crate::{
    id::{Epoch, Revision, Stamp},
    lease_policy::{LeaseOffer, LeaseRequest},
    message::{Body, FirstRead, ReadAnswer, Refusal},
    object::Object,
    planted::Bug,
    reached::{Bound, reached},
    time::Instant,
};

/// The stage of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum FetchStage {
    /// In the send queue.
    Queued,
    /// Waiting for a lease on its volume.
    Waiting,
    /// In flight with the request for that lease.
    SentAlong(SendId),
    /// In flight.
    Sent(SendId),
}

/// An object that is being read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Fetch {
    /// Reads that began before it was sent, or that wait until it is sent.
    began: BTreeSet<ReadId>,
    /// Reads that began after it was sent.
    joined: BTreeSet<ReadId>,
    stage: FetchStage,
    /// The most that any of its reads asks for, when it is sent.
    lease: LeaseRequest,
    /// The copy that the request names for validation.
    named: Option<(Revision, Stamp)>,
    /// How often it waited for a volume lease.
    lease_waits: u8,
    /// The fetch was already sent again for a volume lease, or the lease was refused. So it is not
    /// sent again for a lease.
    is_repeated: bool,
    /// Sent as [`Body::AwaitRead`], which waits for the flush of a write lease.
    waits_for_flush: bool,
}

impl Fetch {
    fn new(began: BTreeSet<ReadId>, lease: LeaseRequest) -> Self {
        Self {
            began,
            joined: BTreeSet::new(),
            stage: FetchStage::Queued,
            lease,
            named: None,
            lease_waits: 0,
            is_repeated: false,
            waits_for_flush: false,
        }
    }

    /// Prepares the fetch to be sent again. All its reads will have begun before that.
    fn unsend(&mut self) {
        self.began.append(&mut self.joined);
        self.stage = FetchStage::Queued;
        self.waits_for_flush = false;
    }

    /// What to ask for. A client that has a copy returns to it.
    fn lease_request(&self, copy: Option<&CachedCopy>) -> LeaseRequest {
        match self.lease {
            LeaseRequest::Implicit if copy.is_some() => LeaseRequest::Returning,
            lease => lease,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Reads {
    fetches: BTreeMap<Object, Fetch>,
    /// The object of each read.
    by_id: BTreeMap<ReadId, Object>,
}

impl Reads {
    pub(super) fn is_empty(&self) -> bool {
        self.fetches.is_empty()
    }

    pub(super) fn has(&self, object: &Object) -> bool {
        self.fetches.contains_key(object)
    }

    /// Whether the object's fetch waits to be sent.
    pub(super) fn is_queued(&self, object: &Object) -> bool {
        self.fetches.get(object).is_some_and(|fetch| fetch.stage == FetchStage::Queued)
    }

    pub(super) fn unsend_all(&mut self) {
        for fetch in self.fetches.values_mut().filter(|fetch| matches!(fetch.stage, FetchStage::Sent(_))) {
            fetch.unsend();
        }
    }

    /// Starts all fetches over. Returns the objects to queue.
    pub(super) fn begin_anew(&mut self) -> Vec<Object> {
        for fetch in self.fetches.values_mut() {
            fetch.unsend();
            *fetch = Fetch::new(std::mem::take(&mut fetch.began), fetch.lease);
        }
        self.fetches.keys().cloned().collect()
    }

    /// Ends all fetches. Returns their reads.
    pub(super) fn end_all(&mut self) -> Vec<ReadId> {
        self.fetches.clear();
        std::mem::take(&mut self.by_id).into_keys().collect()
    }

    /// Ends a fetch's wait for a lease. Returns true if it waited: the caller must queue it.
    pub(super) fn stop_waiting(&mut self, object: &Object) -> bool {
        let Some(fetch) = self.fetches.get_mut(object) else { return false };
        match fetch.stage {
            FetchStage::Waiting => fetch.stage = FetchStage::Queued,
            FetchStage::SentAlong(_) => fetch.unsend(),
            FetchStage::Queued | FetchStage::Sent(_) => return false,
        }
        true
    }

    /// Sends a waiting fetch along with the request for the lease, which has this send id. `copy`
    /// is the copy to validate. `None` if the fetch is not waiting.
    pub(super) fn send_along(
        &mut self,
        object: &Object,
        copy: Option<&CachedCopy>,
        send_id: SendId,
    ) -> Option<FirstRead> {
        let fetch = self.fetches.get_mut(object).filter(|fetch| fetch.stage == FetchStage::Waiting)?;
        fetch.waits_for_flush = false;
        fetch.stage = FetchStage::SentAlong(send_id);
        fetch.named = copy.and_then(CachedCopy::named);
        let known = fetch.named.map(|(revision, _)| revision);
        Some(FirstRead { object: object.clone(), known, lease: fetch.lease_request(copy) })
    }

    /// The fetch among the waiters that was sent along with the request of this send id.
    pub(super) fn sent_along(&self, waiters: &BTreeSet<Object>, send_id: SendId) -> Option<Object> {
        let stage = |object: &Object| self.fetches.get(object).map(|fetch| fetch.stage);
        waiters.iter().find(|object| stage(object) == Some(FetchStage::SentAlong(send_id))).cloned()
    }

    /// A request for a lease must be sent again: a fetch that was sent along waits again.
    pub(super) fn wait_again(&mut self, waiters: &BTreeSet<Object>) {
        for object in waiters {
            if let Some(fetch) = self.fetches.get_mut(object)
                && let FetchStage::SentAlong(_) = fetch.stage
            {
                fetch.unsend();
                fetch.stage = FetchStage::Waiting;
            }
        }
    }

    /// From now on, the fetch never waits for a lease.
    pub(super) fn go_without_lease(&mut self, object: &Object) {
        if let Some(fetch) = self.fetches.get_mut(object) {
            fetch.lease_waits = u8::MAX;
            fetch.is_repeated = true;
        }
    }

    fn end(&mut self, object: &Object) -> Option<Fetch> {
        let fetch = self.fetches.remove(object)?;
        self.forget(&fetch.began);
        self.forget(&fetch.joined);
        Some(fetch)
    }

    fn forget(&mut self, reads: &BTreeSet<ReadId>) {
        for read in reads {
            self.by_id.remove(read);
        }
    }
}

impl Holder {
    /// Handles a read that the cache cannot serve.
    pub(super) fn read(&mut self, read: ReadId, object: Object, lease: LeaseRequest, now: Instant) {
        if self.is_closed() {
            return self.effects.push(HolderEffect::ReadFailed { reads: vec![read], error: ReadFailure::Closed });
        }
        if self.volumes.offer(&object.path).is_open_to(lease) {
            self.volumes.touch(&object.path);
        }
        if self.may_serve(&object, now) {
            return self.serve_cached(vec![read], &object, now);
        }
        self.reads.by_id.insert(read, object.clone());
        match self.reads.fetches.get_mut(&object) {
            Some(fetch) => {
                fetch.lease = fetch.lease.max(lease);
                let reads = match fetch.stage {
                    FetchStage::Sent(_) | FetchStage::SentAlong(_) => &mut fetch.joined,
                    FetchStage::Queued | FetchStage::Waiting => &mut fetch.began,
                };
                reads.insert(read);
            }
            None => {
                self.reads.fetches.insert(object.clone(), Fetch::new(BTreeSet::from([read]), lease));
                self.send_queue.push(Purpose::Read(object));
            }
        }
    }

    fn serve_cached(&mut self, reads: Vec<ReadId>, object: &Object, now: Instant) {
        let Some(copy) = self.copies.get(object) else { return };
        let (stamp, valid_until) = (copy.validity.stamp, self.valid_until(&copy.validity, now));
        if !reads.is_empty() {
            self.effects.push(HolderEffect::ServeCached { reads, object: object.clone(), stamp, valid_until });
        }
    }

    /// Sends a fetch, unless a copy has become usable meanwhile, or the fetch waits for a volume
    /// lease.
    pub(super) fn send_read(&mut self, object: &Object, now: Instant) {
        if self.reads.fetches.get(object).is_none_or(|fetch| fetch.stage != FetchStage::Queued) {
            return;
        }
        if self.may_serve(object, now) {
            self.send_queue.settle(&Purpose::Read(object.clone()));
            if let Some(fetch) = self.reads.end(object) {
                self.serve_cached(fetch.began.into_iter().collect(), object, now);
            }
            return;
        }
        let volume = self.volumes.nearest(&object.path);
        let has_lease = self.volumes.get(&volume).is_some_and(|volume| volume.live(now).is_some());
        let offer = self.volumes.offer(&object.path);
        let Some(fetch) = self.reads.fetches.get_mut(object) else { return };
        let wants_lease = offer.is_open_to(fetch.lease);
        let has_lease = has_lease || !wants_lease;
        if !has_lease && fetch.lease_waits == self.config.bounds.read_waits_max {
            reached(Bound::ReadWaits);
        }
        if !has_lease && fetch.lease_waits < self.config.bounds.read_waits_max {
            fetch.lease_waits += 1;
            fetch.stage = FetchStage::Waiting;
            return self.acquire(volume, object);
        }
        let copy = self.copies.get(object);
        let lease = fetch.lease_request(copy);
        let waits_for_flush = fetch.waits_for_flush;
        let named = copy.and_then(CachedCopy::named);
        let known = named.map(|(revision, _)| revision);
        let (body, reason) = match waits_for_flush {
            // The request renews nothing. A promise counts from the arrival of the request, and may
            // have ended before the answer comes.
            true => (Body::AwaitRead { object: object.clone(), known, lease }, RenewalSelection::NoRenewal),
            false if wants_lease => {
                (Body::Read { object: object.clone(), known, lease }, RenewalSelection::OnPath(&object.path))
            }
            false => (Body::Read { object: object.clone(), known, lease }, RenewalSelection::Due),
        };
        let send_id = self.send(Purpose::Read(object.clone()), body, reason, now);
        if let Some(fetch) = self.reads.fetches.get_mut(object) {
            fetch.named = named;
            fetch.stage = FetchStage::Sent(send_id);
        }
    }

    /// Sends a fetch again as [`Body::AwaitRead`], because the data is under a write lease.
    pub(super) fn read_recalling(&mut self, object: Object, now: Instant) {
        let Some(fetch) = self.reads.fetches.get_mut(&object) else { return };
        if fetch.waits_for_flush {
            // The fetch was sent as `AwaitRead`, which has no such answer: try again.
            return self.wants_again(Purpose::Read(object), now);
        }
        fetch.unsend();
        fetch.waits_for_flush = true;
        self.send_queue.push(Purpose::Read(object));
    }

    /// The server could not answer the fetch: it must be sent again.
    pub(super) fn read_set_back(&mut self, object: &Object) {
        if let Some(fetch) = self.reads.fetches.get_mut(object) {
            fetch.unsend();
        }
    }

    pub(super) fn read_answered(
        &mut self,
        object: Object,
        sent: Instant,
        epoch: Epoch,
        answer: ReadAnswer,
        now: Instant,
    ) {
        let ReadAnswer { content, grant, volume, offer, applied } = answer;
        let Some(named) = self.reads.fetches.get(&object).map(|fetch| fetch.named) else { return };
        if epoch == self.epoch {
            self.learn_volume(&object.path, &volume);
            if let Some(mut known) = self.volumes.get_mut(&volume) {
                known.offer = offer;
                // The volume grants no object leases now, so no read uses a lease on it.
                known.is_used &= offer != LeaseOffer::Nobody;
            }
            if grant.is_none() && self.repeats_with_lease(&object, now) {
                return;
            }
        }
        let copy = grant.and_then(|grant| {
            let arrived = ArrivedGrant { grant: &grant, epoch, applied, sent };
            self.accept_grant(&object, arrived, now)
        });
        match content {
            Some(content) => {
                let content = Arc::new(content);
                let valid_until = copy.and_then(|copy| self.install(&object, copy, &content, now));
                let reads = self.end_fetch(&object, valid_until.is_some());
                if !reads.is_empty() {
                    self.effects.push(HolderEffect::Serve { reads, object, content, applied, valid_until });
                }
            }
            None if self.still_has(&object, named) => self.copy_validated(object, copy, now),
            // The copy was recalled, evicted or replaced: the answer validates nothing.
            None => {
                self.read_set_back(&object);
                self.send_queue.push(Purpose::Read(object));
            }
        }
    }

    /// If there is no volume lease, acquires one and reads the object once more, so that the next
    /// read can be a hit. Returns whether it does so.
    fn repeats_with_lease(&mut self, object: &Object, now: Instant) -> bool {
        let volume = self.volumes.nearest(&object.path);
        let has_lease = self.volumes.get(&volume).is_some_and(|volume| volume.live(now).is_some());
        let offer = self.volumes.offer(&object.path);
        let Some(fetch) = self.reads.fetches.get_mut(object) else { return false };
        if has_lease || fetch.is_repeated || !offer.is_open_to(fetch.lease) {
            return false;
        }
        fetch.is_repeated = true;
        fetch.unsend();
        fetch.stage = FetchStage::Waiting;
        self.acquire(volume, object);
        true
    }

    fn still_has(&self, object: &Object, named: Option<(Revision, Stamp)>) -> bool {
        let copy = self.copies.get(object);
        let current = copy.and_then(CachedCopy::named);
        current.is_some() && current == named
    }

    /// Handles the answer that the object has not changed since the copy that the request named.
    fn copy_validated(&mut self, object: Object, copy: Option<CachedCopy>, now: Instant) {
        if let Some(copy) = copy {
            let modified = self.copies.get(&object).and_then(|old| old.modified);
            let validity = copy.validity.clone();
            self.copies.insert(&object, CachedCopy { modified, ..copy });
            self.effects.push(HolderEffect::CopyValidated { object: object.clone(), validity });
        }
        let reads = self.end_fetch(&object, self.may_serve(&object, now));
        self.serve_cached(reads, &object, now);
    }

    /// Ends a fetch, and returns the reads that its answer serves. If `serves_joined`, these are
    /// all, else those that began before the request was sent. The others start over.
    fn end_fetch(&mut self, object: &Object, serves_joined: bool) -> Vec<ReadId> {
        let Some(fetch) = self.reads.fetches.remove(object) else { return Vec::new() };
        // The answer may have come with that to a request for a lease.
        self.send_queue.settle(&Purpose::Read(object.clone()));
        let Fetch { began: mut reads, joined, lease, .. } = fetch;
        if serves_joined || self.planted(Bug::JoinedReadTakesAnyAnswer) {
            reads.extend(joined);
        } else if !joined.is_empty() {
            self.reads.fetches.insert(object.clone(), Fetch::new(joined, lease));
            self.send_queue.push(Purpose::Read(object.clone()));
        }
        self.reads.forget(&reads);
        reads.into_iter().collect()
    }

    /// Fails the reads of a fetch that the server refused for good.
    pub(super) fn refused_read(&mut self, object: &Object, refusal: Refusal) {
        if let Some(fetch) = self.reads.end(object) {
            let reads = fetch.began.into_iter().chain(fetch.joined).collect();
            self.effects.push(HolderEffect::ReadFailed { reads, error: ReadFailure::Refused(refusal) });
        }
    }

    /// Cancels a read. A fetch without reads is abandoned (S4).
    pub(super) fn cancel_read(&mut self, read: ReadId) {
        let Some(object) = self.reads.by_id.remove(&read) else { return };
        let Some(fetch) = self.reads.fetches.get_mut(&object) else { return };
        let _ = fetch.began.remove(&read) || fetch.joined.remove(&read);
        if fetch.began.is_empty() && fetch.joined.is_empty() {
            if let FetchStage::Sent(send_id) = fetch.stage {
                self.in_flight.cancel(send_id);
            }
            self.reads.fetches.remove(&object);
            self.cancel_waiting_read(&object);
            self.send_queue.cancel(&Purpose::Read(object));
        }
    }

    /// Checks that each fetch is queued, in flight or waits, and that each read has a fetch.
    pub(super) fn check_reads(&self) -> Result<(), String> {
        for (object, fetch) in &self.reads.fetches {
            let purpose = Purpose::Read(object.clone());
            let has_next_step = match fetch.stage {
                FetchStage::Queued => self.send_queue.contains(&purpose),
                FetchStage::Waiting => self.acquisitions.values().any(|other| other.waiters.contains(object)),
                FetchStage::SentAlong(send_id) => match self.in_flight.purpose(send_id) {
                    Some(Purpose::Acquire(top)) => {
                        self.acquisitions.get(top).is_some_and(|acquisition| acquisition.waiters.contains(object))
                    }
                    _ => false,
                },
                FetchStage::Sent(send_id) => self.in_flight.purpose(send_id) == Some(&purpose),
            };
            if !has_next_step {
                return Err(format!(
                    "the fetch of {object} is {:?}, and no queue, lease request or answer continues it",
                    fetch.stage
                ));
            }
            if !matches!(fetch.stage, FetchStage::Sent(_) | FetchStage::SentAlong(_)) && !fetch.joined.is_empty() {
                return Err(format!("reads have joined the fetch of {object}, which is not in flight"));
            }
        }
        let reads = self.reads.fetches.values().flat_map(|fetch| fetch.began.iter().chain(&fetch.joined));
        if reads.count() != self.reads.by_id.len() {
            return Err("the list of reads differs from the reads of the fetches".to_owned());
        }
        Ok(())
    }
}
