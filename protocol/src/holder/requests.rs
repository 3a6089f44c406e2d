//! Sends requests, fills their headers, and handles the responses.
//!
//! S9: writes are numbered from 1 without gaps. A write has the same number each time that it is
//! sent. Other requests need no deduplication. They name the number of the next write and do not
//! use it up, so any number of reads can pass while one write waits.

use std::collections::{BTreeSet, VecDeque};

use super::{
    Holder, HolderBounds, HolderEffect, SendId,
    in_flight::{Purpose, RequestInFlight},
    session::LinkState,
    volume_leases::RenewalSelection,
};
use crate::{
    id::{Epoch, Stamp},
    message::{Answer, Body, CONSENTS_MAX, RETURNS_MAX, Refusal, Request, RequestHeader, Response, Return},
    reached::{Bound, reached},
    time::Instant,
};

/// Consents and returns to piggyback on requests, until a request that had them is answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Piggyback {
    /// Consents that were replies to their recalls. These copies are in case a reply is lost.
    consents: BTreeSet<Stamp>,
    /// Consents after a delay or a flush. Only requests bring them, so they come first in headers.
    late_consents: BTreeSet<Stamp>,
    /// There is a late consent that no request has had.
    needs_request: bool,
    returns: VecDeque<Return>,
}

impl Piggyback {
    /// Adds a consent that replies to its recall (S5).
    pub(super) fn consent(&mut self, stamp: Stamp, bounds: &HolderBounds) {
        if !self.late_consents.contains(&stamp) {
            self.consents.insert(stamp);
        }
        if self.consents.len() > bounds.consents_waiting_max {
            reached(Bound::ConsentsWaiting);
            self.consents.pop_first();
        }
    }

    /// Adds a consent whose recall already has a reply, without it.
    pub(super) fn consent_late(&mut self, stamp: Stamp) {
        self.consents.remove(&stamp);
        self.late_consents.insert(stamp);
        self.needs_request = true;
    }

    /// How many consents only a request can bring.
    pub(super) fn late_consents(&self) -> usize {
        self.late_consents.len()
    }

    pub(super) fn needs_request(&self) -> bool {
        self.needs_request
    }

    /// Adds the return of a copy that the cache evicted.
    pub(super) fn push_return(&mut self, copy: Return, bounds: &HolderBounds) {
        self.returns.push_back(copy);
        if self.returns.len() > bounds.returns_waiting_max {
            reached(Bound::ReturnsWaiting);
            self.returns.pop_front();
        }
    }

    /// Removes consents and returns of older epochs, which mean nothing to a new leader.
    pub(super) fn begin_epoch(&mut self, epoch: Epoch) {
        self.consents.retain(|stamp| stamp.epoch >= epoch);
        self.late_consents.retain(|stamp| stamp.epoch >= epoch);
        self.needs_request &= !self.late_consents.is_empty();
        self.returns.retain(|copy| copy.stamp.epoch >= epoch);
    }

    fn arrived(&mut self, flight: &RequestInFlight) {
        for stamp in &flight.consents {
            self.consents.remove(stamp);
            self.late_consents.remove(stamp);
        }
        if !flight.returns.is_empty() {
            self.returns.retain(|copy| !flight.returns.contains(copy));
        }
    }
}

impl Holder {
    /// Sends the ready requests, if the session is registered with a leader.
    pub(super) fn send_ready(&mut self, now: Instant) {
        if self.link == LinkState::Up && self.has_work() {
            self.greet(now);
        }
        while self.link == LinkState::Registered {
            let Some(purpose) = self.send_queue.pop() else { break };
            match purpose {
                Purpose::Acquire(volume) => self.send_acquire(&volume, now),
                Purpose::HolderReport(volume) => self.send_report_part(&volume, now),
                Purpose::Read(object) => self.send_read(&object, now),
                Purpose::Write(write) => self.send_write(write, now),
                Purpose::Watch(watch) => self.send_watch(watch, now),
                Purpose::Close => self.send_close(now),
                Purpose::Heartbeat
                | Purpose::KeepAlive
                | Purpose::AwaitLockStatus
                | Purpose::ReadNextValue(_)
                | Purpose::Open
                | Purpose::Register => {}
            }
        }
    }

    /// Sends a request, with renewals, consents and returns in its header.
    pub(super) fn send(&mut self, purpose: Purpose, body: Body, reason: RenewalSelection<'_>, now: Instant) -> SendId {
        let is_quick = body.is_nonblocking();
        let renews_session = self.session.as_ref().is_some_and(|session| session.pace.piggyback_from() <= now);
        let mut header = self.header(&purpose, is_quick, reason, now);
        let renews = is_quick && (renews_session || !header.renew.is_empty());
        if let Purpose::Write(write) = &purpose {
            header.sequence = self.writes.sequence(*write).unwrap_or(header.sequence);
        }
        let (consents, returns) = (header.consents.clone(), header.returns.clone());
        let flight = RequestInFlight { sent: now, purpose, is_quick, renews, consents, returns };
        let send_id = self.in_flight.start(flight);
        self.effects.push(HolderEffect::Send { send_id, request: Request { header, body } });
        send_id
    }

    fn header(
        &mut self,
        purpose: &Purpose,
        is_quick: bool,
        reason: RenewalSelection<'_>,
        now: Instant,
    ) -> RequestHeader {
        let clocks = self.question_along(purpose);
        let Some(session) = &mut self.session else { return RequestHeader::default() };
        if is_quick {
            session.pace.renewal_sent(session.until, now);
        }
        // A recall can lead to hundreds of reads of next values. Each would repeat the same lists.
        let is_next_value = matches!(purpose, Purpose::ReadNextValue(_));
        let most = |most| if is_next_value { 0 } else { most };
        self.piggyback.needs_request &= is_next_value;
        let consents = self.piggyback.late_consents.iter().chain(&self.piggyback.consents);
        let registration = match purpose {
            Purpose::Register => Some(self.in_flight.next()),
            _ => session.registered,
        };
        RequestHeader {
            session: session.id,
            epoch: self.epoch,
            registration: registration.map_or(0, |send_id| send_id.0),
            sequence: self.writes.next_sequence(),
            unanswered_from: self.writes.unanswered_from(),
            renew: self.volumes.renewals(reason, is_quick, now),
            consents: consents.take(most(CONSENTS_MAX)).copied().collect(),
            returns: self.piggyback.returns.iter().take(most(RETURNS_MAX)).cloned().collect(),
            // The shell counts them, and adds them when it sends the request.
            cached_reads: Vec::new(),
            clocks,
        }
    }

    /// Handles a response: first its promises and lapses, then its result.
    pub(super) fn answered(&mut self, send_id: SendId, response: Response, now: Instant) {
        self.heard_at = self.heard_at.max(now);
        let Some(flight) = self.in_flight.end(send_id) else { return };
        // Handle the registration first, because it begins the epoch of these promises.
        if let (Purpose::Register, Ok(Answer::Registered { coverings })) = (&flight.purpose, &response.result) {
            self.registered(send_id, flight.sent, response.epoch, coverings, now);
        }
        let is_from_leader = self.session.is_some() && self.is_from_leader(&response);
        if is_from_leader {
            self.piggyback.arrived(&flight);
            self.writes.handled(send_id);
            self.session_renewed(flight.sent, now);
            for promise in &response.promises {
                self.promised(promise, flight.sent, now);
            }
            for lapse in &response.lapses {
                self.lapsed(lapse);
            }
        }
        let Response { epoch, result, clocks, .. } = response;
        if let Some(clocks) = clocks.filter(|_| is_from_leader) {
            self.compared_along(send_id, flight.sent, &clocks, now);
        }
        match result {
            Ok(answer) => self.accepted(send_id, flight, epoch, answer, now),
            Err(refusal) => self.refused(send_id, flight, (epoch, refusal), now),
        }
        if is_from_leader {
            self.notify_connected(now);
        }
    }

    /// Whether the response is from the leader with which the session has registered, and the
    /// leader handled the request. Promises and grants of another leader do not count (T6, S4).
    fn is_from_leader(&self, response: &Response) -> bool {
        let was_handled = !matches!(
            response.result,
            Err(Refusal::NotLeader { .. }
                | Refusal::Retry
                | Refusal::OutcomeUnknown
                | Refusal::NotRegistered { .. }
                | Refusal::SessionNotFound { .. }
                | Refusal::Busy { .. })
        );
        response.epoch == self.epoch && was_handled
    }

    fn refused(&mut self, send_id: SendId, flight: RequestInFlight, (epoch, refusal): (Epoch, Refusal), now: Instant) {
        self.retry_await_locks(send_id, now);
        if let (Purpose::Acquire(volume), Refusal::Busy { .. }) = (&flight.purpose, &refusal) {
            return self.refused_volume(volume, true, now);
        }
        match refusal {
            Refusal::NotLeader { leader } => {
                self.wants_again(flight.purpose, now);
                self.find_leader(leader);
            }
            // A leader that was deposed without knowing does not know newer sessions.
            Refusal::SessionNotFound { .. } if epoch < self.leader_epoch_min() => {
                self.wants_again(flight.purpose, now);
                self.find_leader(None);
            }
            Refusal::SessionNotFound { session } if self.session() == Some(session) => self.expire(flight.purpose, now),
            Refusal::NotRegistered { .. } => self.not_registered(send_id, flight.purpose, now),
            // A retry helps only after other leases have ended. Whether to wait for that is the
            // application's decision, so it gets the refusal at once.
            Refusal::Busy { .. } if epoch == self.epoch && self.is_about_load(&flight.purpose) => {
                self.send_queue.settle(&flight.purpose);
                self.refused_for_good(flight.purpose, refusal, now);
            }
            Refusal::Retry | Refusal::OutcomeUnknown | Refusal::Busy { .. } | Refusal::SessionNotFound { .. } => {
                self.wants_again(flight.purpose, now);
            }
            Refusal::OutsideWindow { .. }
            | Refusal::Write(_)
            | Refusal::Limit(_)
            | Refusal::Volume(_)
            | Refusal::Compacted { .. } => {
                self.send_queue.settle(&flight.purpose);
                self.refused_for_good(flight.purpose, refusal, now);
            }
        }
    }

    /// Whether the request needs more renewals: a new key lease, or a shorter volume term.
    fn is_about_load(&self, purpose: &Purpose) -> bool {
        matches!(purpose, Purpose::Write(write) if self.writes.is_about_load(*write))
    }

    /// Leaders of earlier epochs are deposed, and may not know the session.
    fn leader_epoch_min(&self) -> Epoch {
        self.session.as_ref().map_or(self.epoch, |session| session.opened_in.max(self.epoch))
    }

    /// Sends the same request again after a wait (S9).
    pub(super) fn wants_again(&mut self, purpose: Purpose, now: Instant) {
        match &purpose {
            // Each of these requests has its own schedule.
            Purpose::Heartbeat | Purpose::KeepAlive | Purpose::AwaitLockStatus => return,
            Purpose::Read(object) => self.read_set_back(object),
            Purpose::ReadNextValue(object) => return self.next_values.end(object),
            Purpose::Acquire(volume) => self.acquisition_set_back(volume),
            Purpose::Write(_) | Purpose::HolderReport(_) | Purpose::Close => {}
            Purpose::Watch(watch) => self.watch_set_back(*watch),
            Purpose::Open | Purpose::Register => {
                self.send_queue.postpone(purpose, self.config.spread_permille, now);
                return;
            }
        }
        if self.waits_to_be_sent(&purpose) {
            self.send_queue.postpone(purpose, self.config.spread_permille, now);
        }
    }

    /// Whether a read, a write or a watch still waits to be sent. The application may have
    /// cancelled it while it was in flight. Requests of the holder itself always wait.
    pub(super) fn waits_to_be_sent(&self, purpose: &Purpose) -> bool {
        match purpose {
            Purpose::Read(object) => self.reads.is_queued(object),
            Purpose::Write(write) => self.writes.is_pending(*write),
            Purpose::Watch(watch) => self.watches.is_queued(*watch),
            _ => true,
        }
    }

    fn refused_for_good(&mut self, purpose: Purpose, refusal: Refusal, now: Instant) {
        match purpose {
            Purpose::Open | Purpose::Register => self.refused_session(refusal),
            Purpose::Close => self.closed(),
            Purpose::Heartbeat | Purpose::KeepAlive | Purpose::AwaitLockStatus => {}
            Purpose::Acquire(volume) => self.refused_volume(&volume, false, now),
            Purpose::HolderReport(volume) => self.forget_holder_report(&volume),
            Purpose::Read(object) => self.refused_read(&object, refusal),
            Purpose::ReadNextValue(object) => self.next_values.end(&object),
            Purpose::Write(write) => self.refused_write(write, refusal),
            Purpose::Watch(watch) => self.refused_watch(watch, refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{object::Object, path::NodePath};

    #[test]
    fn return_beyond_the_bound_drops_the_oldest() {
        let mut piggyback = Piggyback::default();
        let copy =
            |sequence| Return { object: Object::data(NodePath::root()), stamp: Stamp { epoch: Epoch(1), sequence } };
        let (bounds, returns_max) = (HolderBounds::DEFAULT, HolderBounds::DEFAULT.returns_waiting_max);
        (0..=returns_max as u64).for_each(|sequence| piggyback.push_return(copy(sequence), &bounds));
        assert_eq!((piggyback.returns.len(), piggyback.returns.front()), (returns_max, Some(&copy(1))));
    }
}
