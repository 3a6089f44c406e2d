//! The session: the holder opens it once, and registers it on each connection. It is in jeopardy
//! when leases end without an answer, and has expired when a server says so.
//!
//! S4: registering with a leader is one atomic step. Installed copies survive it, apart from those
//! whose consent is delayed. Grants of an older epoch that are still in flight no longer count.
//!
//! S9: when the session has expired, writes that were sent end as *outcome unknown*. The holder
//! never sends them under another session. Reads continue under a new session.

use super::{
    Holder, HolderEffect, ReadFailure, SendId, SessionNews, WatchFailure, WriteFailure,
    in_flight::{Purpose, RequestInFlight},
    pace::Pace,
    recalls::RecallMemory,
    volume_leases::{KnownVolumes, RenewalSelection},
};
use crate::{
    id::{Epoch, SessionId, Stamp},
    message::{Answer, Body, CoveringLease, Refusal},
    path::NodePath,
    time::Instant,
    work::CountVisits,
};
use std::{collections::BTreeSet, time::Duration};

/// The state of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum LinkState {
    Down,
    /// Connected to a server that may lead.
    Up,
    /// Connected to a leader with which the session has registered.
    Registered,
    /// The holder has left the connection. The driver looks for another.
    Leaving,
}

/// The state of the session that was last reported to the application.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ReportedState {
    /// No report yet, or the session has expired.
    New,
    Connected,
    /// With the volumes whose leases have ended.
    Jeopardy(BTreeSet<NodePath>),
    /// The application has closed the session, and no server has confirmed it.
    Closing,
    Closed,
}

/// The current session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnSession {
    pub(super) id: SessionId,
    /// The epoch of the leader that opened it. Leaders of earlier epochs do not know the session.
    pub(super) opened_in: Epoch,
    /// When the session ends by this clock, if the leader renewed its lease with the last answered
    /// request. The leader renews the lease only if a quarter of its term has passed since the last
    /// renewal. So the session may end up to a quarter of a term earlier.
    pub(super) until: Instant,
    pub(super) pace: Pace,
    /// The latest sending of [`Body::Register`] that was answered.
    pub(super) registered: Option<SendId>,
}

impl Holder {
    /// Whether the application has closed the session.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.reported_state, ReportedState::Closing | ReportedState::Closed)
    }

    pub(super) fn connected(&mut self, now: Instant) {
        self.disconnected();
        if self.reported_state != ReportedState::Closed {
            self.link = LinkState::Up;
            self.heard_at = now;
            self.greet(now);
        }
    }

    /// Handles the end of a connection. The holder sends unanswered requests again on the next
    /// connection, writes under the same number. It ignores late answers.
    pub(super) fn disconnected(&mut self) {
        self.link = LinkState::Down;
        // The next registration asks for new holder reports.
        self.holder_reports.clear();
        self.volumes.forget_unreported();
        self.reads.unsend_all();
        self.locks.unsend();
        self.watches.unsend_all();
        self.next_values.clear();
        for purpose in self.in_flight.end_all() {
            match purpose {
                Purpose::Open
                | Purpose::Register
                | Purpose::Heartbeat
                | Purpose::KeepAlive
                | Purpose::AwaitLockStatus
                | Purpose::ReadNextValue(_)
                | Purpose::HolderReport(_) => {}
                Purpose::Close => self.send_queue.push(Purpose::Close),
                Purpose::Acquire(volume) => {
                    self.acquisition_set_back(&volume);
                    self.send_queue.push(Purpose::Acquire(volume));
                }
                Purpose::Read(_) | Purpose::Write(_) | Purpose::Watch(_) => {
                    if self.waits_to_be_sent(&purpose) {
                        self.send_queue.push(purpose);
                    }
                }
            }
        }
        self.send_queue.wake_all();
        self.send_queue.drop_greetings();
    }

    /// Whether anything needs a session.
    pub(super) fn has_work(&self) -> bool {
        !(self.reads.is_empty() && self.writes.is_empty() && self.key_leases.is_empty() && self.watches.is_empty())
    }

    /// Opens or registers the session on a new connection. Everything else waits for the answer.
    pub(super) fn greet(&mut self, now: Instant) {
        if self.link != LinkState::Up || self.in_flight.has_greeting() || self.send_queue.has_greeting() {
            return;
        }
        if self.session.is_some() {
            self.send(Purpose::Register, Body::Register, RenewalSelection::All, now);
        } else {
            let name = self.config.name.clone();
            self.send(Purpose::Open, Body::Open { name }, RenewalSelection::Due, now);
        }
    }

    /// Opens or registers again after a refused attempt.
    pub(super) fn greet_again(&mut self, now: Instant) {
        if self.link == LinkState::Up {
            self.send_queue.drop_greetings();
            self.greet(now);
        }
    }

    /// Handles an answer that is not a refusal.
    pub(super) fn accepted(
        &mut self,
        send_id: SendId,
        flight: RequestInFlight,
        epoch: Epoch,
        answer: Answer,
        now: Instant,
    ) {
        // A blocked read keeps its count of setbacks.
        if answer != Answer::ReadBlocked {
            self.send_queue.settle(&flight.purpose);
        }
        let RequestInFlight { purpose, sent, .. } = flight;
        match (purpose, answer) {
            (Purpose::Open, Answer::Opened { session, term }) => self.opened(session, term, sent, epoch, now),
            (Purpose::Close, _) => self.closed(),
            (Purpose::HolderReport(volume), Answer::ReportReceived) => self.advance_holder_report(&volume, send_id),
            (Purpose::Acquire(volume), Answer::Acquired(answer)) => {
                self.acquired((&volume, send_id), sent, epoch, answer, now);
            }
            (Purpose::Read(object), Answer::Read(answer)) => self.read_answered(object, sent, epoch, answer, now),
            (Purpose::Read(object), Answer::ReadBlocked) => self.read_recalling(object, now),
            (Purpose::ReadNextValue(object), Answer::Read(answer)) => {
                self.next_value_answered(object, sent, epoch, answer, now);
            }
            (Purpose::KeepAlive, Answer::KeptAlive(promises)) => self.handle_kept_alive(send_id, &promises, sent, now),
            (Purpose::AwaitLockStatus, Answer::LockStatuses(reported)) => {
                self.handle_lock_statuses(send_id, reported, now)
            }
            (
                Purpose::Write(write),
                Answer::Written { written, stamp, grant, applied, key_lease, write_lease_data },
            ) => {
                if let Some(promise) = key_lease {
                    self.granted(send_id, &promise, sent, now);
                }
                let answer = super::writes::AppliedWrite { written, stamp, grant, applied, write_lease_data };
                self.written(write, sent, epoch, answer, now);
            }
            (Purpose::Watch(watch), Answer::Changes(changes)) => self.watch_answered(watch, changes, now),
            (Purpose::Heartbeat, Answer::Heartbeat(answer)) if epoch == self.epoch => {
                self.clocks_compared(send_id, sent, &answer, now);
            }
            // `answered` has handled the registration. An old heartbeat compares no clocks.
            (Purpose::Register, Answer::Registered { .. }) | (Purpose::Heartbeat, _) => {}
            // This is no answer to this request: ask again.
            (purpose, _) => self.wants_again(purpose, now),
        }
    }

    fn opened(&mut self, id: SessionId, term: Duration, sent: Instant, opened_in: Epoch, now: Instant) {
        let until = self.ends_at(sent, term, now);
        let pace = Pace::new(sent, term, term, self.config.spread_permille, now);
        self.session = Some(OwnSession { id, opened_in, until, pace, registered: None });
        self.greet(now);
    }

    /// Handles the answer to a registration. In the same step, the holder begins to refuse grants
    /// of older epochs (S4).
    pub(super) fn registered(
        &mut self,
        send_id: SendId,
        sent: Instant,
        epoch: Epoch,
        coverings: &[CoveringLease],
        now: Instant,
    ) {
        if self.link != LinkState::Up {
            return;
        }
        if epoch < self.epoch {
            return self.find_leader(None);
        }
        if epoch > self.epoch {
            self.epoch = epoch;
            self.drift.begin_epoch();
            self.stamp_seen = self.stamp_seen.max(Stamp { epoch, sequence: 0 });
            self.recalls.begin_epoch(epoch);
            self.piggyback.begin_epoch(epoch);
            self.write_leases.begin_epoch(epoch);
            self.drop_delayed_before(epoch);
        }
        if let Some(session) = &mut self.session {
            session.registered = Some(send_id);
        }
        self.link = LinkState::Registered;
        self.session_renewed(sent, now);
        self.clocks_registered(send_id, sent, now);
        for covering in coverings {
            self.start_holder_report(covering, now);
        }
    }

    /// Handles a refusal because the session has not registered with this leader or connection.
    pub(super) fn not_registered(&mut self, send_id: SendId, purpose: Purpose, now: Instant) {
        self.wants_again(purpose, now);
        let registered = self.session.as_ref().and_then(|session| session.registered);
        if self.link == LinkState::Registered && registered.is_none_or(|registered| registered < send_id) {
            self.link = LinkState::Up;
            self.greet(now);
        }
    }

    /// Renews the session, because the leader has answered a request that was sent at `sent`.
    pub(super) fn session_renewed(&mut self, sent: Instant, now: Instant) {
        let Some(term) = self.session.as_ref().map(|session| session.pace.term) else { return };
        let until = self.ends_at(sent, term, now);
        let Some(session) = &mut self.session else { return };
        if until > session.until {
            session.until = until;
        }
        session.pace.renewed(sent, term, term, now);
    }

    /// Reports the session as connected when the leader has answered. It waits while leases in use
    /// have ended on this clock and are not renewed yet: a leader without a quorum answers, but
    /// promises nothing.
    pub(super) fn notify_connected(&mut self, now: Instant) {
        let Some(session) = &self.session else { return };
        let id = session.id;
        let is_certain = now < session.until && self.link == LinkState::Registered;
        let is_due = match self.reported_state {
            ReportedState::New => true,
            ReportedState::Jeopardy(_) => !self.volumes.are_overdue() && self.acquisitions.is_empty(),
            ReportedState::Connected | ReportedState::Closing | ReportedState::Closed => false,
        };
        if is_certain && is_due {
            self.reported_state = ReportedState::Connected;
            self.effects.push(HolderEffect::Connection(SessionNews::Connected { session: id }));
        }
    }

    /// Reports jeopardy: leases have ended on this clock before a server answered. `ended` are the
    /// volumes whose leases have just ended.
    pub(super) fn notify_jeopardy(&mut self, ended: Vec<NodePath>, now: Instant) {
        let reported = match &self.reported_state {
            ReportedState::Connected => None,
            ReportedState::Jeopardy(volumes) => Some(volumes),
            _ => return,
        };
        if reported.is_some_and(|reported| ended.iter().all(|top| reported.contains(top))) {
            return;
        }
        let still_ended = reported.into_iter().flatten().filter(|top| !self.is_live_by_clock(top, now));
        let volumes: BTreeSet<NodePath> = still_ended.cloned().chain(ended).counted().collect();
        let news = SessionNews::Jeopardy { volumes: volumes.iter().cloned().collect() };
        self.reported_state = ReportedState::Jeopardy(volumes);
        self.effects.push(HolderEffect::Connection(news));
    }

    /// When the session must be renewed, or comes into jeopardy.
    pub(super) fn session_deadline(&self) -> Option<Instant> {
        let session = self.session.as_ref()?;
        let due = (self.link == LinkState::Registered).then_some(session.pace.due);
        let until = (self.reported_state == ReportedState::Connected).then_some(session.until);
        due.into_iter().chain(until).min()
    }

    /// Ends everything that depended on the session, which has expired (S9). Reads start again
    /// under a new session.
    pub(super) fn expire(&mut self, refused: Purpose, now: Instant) {
        let Some(session) = self.session.take() else { return };
        if refused == Purpose::Close || self.is_closed() {
            return self.closed();
        }
        self.in_flight.end_all();
        self.reset();
        self.reported_state = ReportedState::New;
        self.effects.push(HolderEffect::DropAll);
        self.end_writes();
        self.lose_all_locks(false);
        self.effects.push(HolderEffect::Connection(SessionNews::Expired { session: session.id }));
        self.reads.unsend_all();
        for object in self.reads.begin_anew() {
            self.send_queue.push(Purpose::Read(object));
        }
        self.watch_on();
        if self.link == LinkState::Registered {
            self.link = LinkState::Up;
        }
        self.greet(now);
    }

    /// Forgets everything that depended on the session.
    fn reset(&mut self) {
        self.stamp_seen = Stamp::default();
        self.send_queue = Default::default();
        self.piggyback = Default::default();
        self.volumes = KnownVolumes::new(&self.config);
        self.copies = Default::default();
        self.recalls = RecallMemory::new(&self.config.bounds);
        self.acquisitions.clear();
        self.suspending = Default::default();
        self.holder_reports.clear();
        self.write_leases.clear_pending_consents();
        self.delayed_consents.clear();
        self.next_values.clear();
    }

    /// Fails all operations, because the server refuses to open or register a session.
    pub(super) fn refused_session(&mut self, refusal: Refusal) {
        self.end_writes();
        let reads = self.reads.end_all();
        if !reads.is_empty() {
            self.effects.push(HolderEffect::ReadFailed { reads, error: ReadFailure::Refused(refusal.clone()) });
        }
        self.end_watches(&WatchFailure::Refused(refusal));
        self.send_queue.cancel_operations();
        self.closed();
    }

    /// Closes the session for the application. All operations end. The holder sends `Close` if the
    /// session is registered, and again to the next leader if the leader changes before it answers.
    /// A second call without a connection waits for no leader.
    pub(super) fn close(&mut self, now: Instant) {
        if self.is_closed() {
            if self.link == LinkState::Down {
                self.closed();
            }
            return;
        }
        self.in_flight.end_all();
        self.reset();
        self.key_leases.clear();
        self.effects.push(HolderEffect::DropAll);
        self.end_writes();
        self.lose_all_locks(true);
        let reads = self.reads.end_all();
        if !reads.is_empty() {
            self.effects.push(HolderEffect::ReadFailed { reads, error: ReadFailure::Closed });
        }
        self.end_watches(&WatchFailure::Closed);
        self.reported_state = ReportedState::Closing;
        if self.link == LinkState::Registered {
            self.send_close(now);
        } else {
            self.closed();
        }
    }

    pub(super) fn send_close(&mut self, now: Instant) {
        self.send(Purpose::Close, Body::Close, RenewalSelection::Due, now);
    }

    /// Finishes closing, after an answer or without one.
    pub(super) fn closed(&mut self) {
        if self.reported_state == ReportedState::Closing {
            self.reported_state = ReportedState::Closed;
            self.session = None;
            self.send_queue = Default::default();
            self.link = LinkState::Down;
            self.effects.push(HolderEffect::Closed);
        }
    }

    /// Ends all writes. Unsent writes changed nothing. The outcome of sent writes is unknown.
    fn end_writes(&mut self) {
        self.volumes.end_all_attaching();
        for (write, was_sent) in self.writes.end_all() {
            let error = if was_sent { WriteFailure::OutcomeUnknown } else { WriteFailure::NotSent };
            self.write_done(write, Err(error));
        }
    }
}
