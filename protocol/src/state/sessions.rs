//! Sessions: the identities of clients, and the remembered outcomes of their writes (S9 in
//! docs/PROTOCOL.md).
//!
//! The window of remembered outcomes moves only when a write is applied. So the stored window can
//! be behind the client: the number of the client's next write may lie beyond it. Therefore the
//! window first moves to the command's `unanswered_from`, and then the number is compared with it.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{RowKey, State, touched::Touched};
use crate::{
    command::{AnyLease, IntendedLeases, Outcome, Write, WriteRefusal, Written},
    id::{Incarnation, Revision, Sequence, SessionId},
    object::ObjectSet,
    planted::Bug,
    reached::{Bound, reached},
    volume::VolumeTerm,
    work::CountVisits,
};

/// A session, and its remembered outcomes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The client's own name for itself, for operators.
    pub name: String,
    /// All writes below this number are answered, and their outcomes are forgotten.
    pub unanswered_from: Sequence,
    /// The outcomes within the window. Each has a row of its own.
    #[serde(skip)]
    pub(super) answers: BTreeMap<Sequence, Result<Written, WriteRefusal>>,
}

/// The state of a write request (S9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestStatus<'a> {
    /// It has no outcome yet: the write may be applied.
    Unanswered,
    /// It has this outcome, which is also the answer if the request arrives again.
    Outcome(&'a Result<Written, WriteRefusal>),
    /// Its number is below the window of remembered outcomes.
    BelowWindow {
        /// The lowest number in the window.
        lowest: Sequence,
    },
    /// Its number is above the window.
    BeyondWindow {
        /// The highest acceptable number.
        highest: Sequence,
    },
}

/// Identifies the request of a write.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestId {
    pub(super) session: SessionId,
    pub(super) sequence: Sequence,
    pub(super) unanswered_from: Sequence,
}

/// The number of operation results in an outcome.
fn results_of(outcome: &Result<Written, WriteRefusal>) -> usize {
    let transacted = outcome.as_ref().ok().and_then(|written| written.transaction.as_ref());
    transacted.map_or(0, |transacted| transacted.results.len())
}

impl SessionRecord {
    /// The start of the window after this request. The window always includes the request itself.
    fn window_start(&self, sequence: Sequence, unanswered_from: Sequence) -> Sequence {
        self.unanswered_from.max(unanswered_from.min(sequence))
    }

    /// The number of operation results in all its outcomes.
    pub(super) fn results(&self) -> usize {
        self.answers.values().map(results_of).sum()
    }

    fn request_status(&self, sequence: Sequence, unanswered_from: Sequence) -> RequestStatus<'_> {
        if sequence < self.unanswered_from {
            return RequestStatus::BelowWindow { lowest: self.unanswered_from };
        }
        if let Some(outcome) = self.answers.get(&sequence) {
            return RequestStatus::Outcome(outcome);
        }
        let highest = self.window_start(sequence, unanswered_from).window_end();
        if sequence > highest {
            reached(Bound::Answers);
            return RequestStatus::BeyondWindow { highest };
        }
        RequestStatus::Unanswered
    }
}

impl State {
    /// The session with this id.
    pub fn session(&self, id: SessionId) -> Option<&SessionRecord> {
        self.sessions.get(&id)
    }

    /// All sessions, in order of their ids.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.sessions.iter().counted().map(|(id, session)| (*id, session))
    }

    /// The term of a session that is opened now. It grows with the number of sessions, so that
    /// their heartbeats do not become a load by themselves. A session keeps its term.
    ///
    /// No write waits for a session lease (S9), so its length delays nothing.
    pub fn session_term(&self) -> Duration {
        let (least, most) = (Self::SESSION_TERM, Self::SESSION_TERM_MAX);
        let adaptive = VolumeTerm::Adaptive { least, most, renewals_per_second: Self::SESSION_RENEWALS_PER_SECOND };
        let term = adaptive.for_leases(self.sessions.len() as u64);
        if term == most {
            reached(Bound::SessionTermMax);
        }
        term
    }

    /// The number of sessions.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The number of operation results in the outcomes of all sessions.
    pub fn results_remembered(&self) -> usize {
        self.result_count
    }

    /// The state of a request, on the assumption that all earlier requests are answered. `None` if
    /// there is no such session.
    ///
    /// It is never [`RequestStatus::BeyondWindow`], because only unanswered earlier requests can
    /// put a number beyond the window. See [`State::request_status_given`].
    pub fn request_status(&self, session: SessionId, sequence: Sequence) -> Option<RequestStatus<'_>> {
        self.request_status_given(session, sequence, sequence)
    }

    /// The state of a request, if all requests below `unanswered_from` are answered. `None` if
    /// there is no such session. [`Command::Write`](crate::command::Command::Write) uses this.
    pub fn request_status_given(
        &self,
        session: SessionId,
        sequence: Sequence,
        unanswered_from: Sequence,
    ) -> Option<RequestStatus<'_>> {
        self.session(session).map(|session| session.request_status(sequence, unanswered_from))
    }

    pub(super) fn open_session(&mut self, name: &str, touched: &mut Touched) -> Outcome {
        let id = self.meta.next_session;
        self.meta.next_session = id.next();
        let session = SessionRecord { name: name.to_owned(), unanswered_from: Sequence(1), answers: BTreeMap::new() };
        self.sessions.insert(id, session);
        touched.insert(RowKey::Session(id));
        self.grant_lease(AnyLease::Session(id), self.session_term(), touched);
        Outcome::SessionOpened { session: id }
    }

    pub(super) fn close_session(&mut self, id: SessionId, touched: &mut Touched) -> Outcome {
        let Some(session) = self.sessions.remove(&id) else {
            return Outcome::SessionNotFound;
        };
        self.result_count -= session.results();
        touched.insert(RowKey::Session(id));
        touched.extend(session.answers.into_keys().map(|sequence| RowKey::Answer(id, sequence)));
        let leases = self.leases_of(id).map(|(key, lease)| (key.clone(), lease.incarnation));
        let leases: Vec<(AnyLease, Incarnation)> = leases.collect();
        for (key, incarnation) in leases {
            self.release_locks(incarnation, touched);
            self.end_lease(&key, touched);
            self.note_session_closed(incarnation, touched);
        }
        Outcome::SessionClosed
    }

    /// Applies a client's write, and remembers its outcome (S9).
    ///
    /// It remembers refusals too: the same request gets its refusal again, even if the write would
    /// succeed by then. A write without enough consents is not remembered, but proposed again.
    pub(super) fn write_once(
        &mut self,
        request: RequestId,
        write: &Write,
        (consented, intended, attached_through): (&[ObjectSet], &IntendedLeases, Revision),
        touched: &mut Touched,
    ) -> Outcome {
        let RequestId { session, sequence, unanswered_from } = request;
        match self.request_status_given(session, sequence, unanswered_from) {
            None => return Outcome::SessionNotFound,
            Some(RequestStatus::Outcome(outcome)) => return Outcome::Written(outcome.clone()),
            Some(RequestStatus::BelowWindow { lowest }) => return Outcome::BelowWindow { lowest },
            Some(RequestStatus::BeyondWindow { highest }) => return Outcome::BeyondWindow { highest },
            Some(RequestStatus::Unanswered) => {}
        }
        let is_covered = |set: &ObjectSet| consented.iter().any(|consent_set| consent_set.includes(set));
        let revoked = self.revoked_lease(write).map(AnyLease::KeyLease);
        let are_covered = revoked.is_none_or(|lease| self.consents_cover_attached(&lease, attached_through));
        // The compared data decide which branch is applied. So the write first waits for write
        // leases on them.
        if !self.blocking_write_leases(write, &[]).is_empty() {
            return Outcome::MissingConsents;
        }
        let footprint = self.footprint(session, write, intended);
        let result = match footprint.and_then(|sets| self.check_quota(write).map(|()| sets)) {
            Err(refusal) => Err(refusal),
            Ok(sets) if !self.blocking_write_leases(write, &sets).is_empty() => return Outcome::MissingConsents,
            Ok(sets) if (are_covered && sets.iter().all(is_covered)) || self.planted.has(Bug::WriteBeyondConsents) => {
                Ok(self.write(session, write, sets, touched))
            }
            Ok(_) => return Outcome::MissingConsents,
        };
        self.remember(request, result.clone(), touched);
        Outcome::Written(result)
    }

    fn remember(&mut self, request: RequestId, result: Result<Written, WriteRefusal>, touched: &mut Touched) {
        let RequestId { session: id, sequence, unanswered_from } = request;
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let start = session.window_start(sequence, unanswered_from);
        if start > session.unanswered_from {
            session.unanswered_from = start;
            touched.insert(RowKey::Session(id));
        }
        while let Some(oldest) = session.answers.first_key_value().map(|(oldest, _)| *oldest)
            && oldest < start
        {
            self.result_count -= session.answers.remove(&oldest).as_ref().map_or(0, results_of);
            touched.insert(RowKey::Answer(id, oldest));
        }
        self.result_count += results_of(&result);
        session.answers.insert(sequence, result);
        touched.insert(RowKey::Answer(id, sequence));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::{
        command::{Command, Condition, Proposal, Renewal},
        id::Revision,
        path::NodePath,
    };

    fn request(session: SessionId, sequence: u64, unanswered_from: u64, write: Write) -> Command {
        let (sequence, unanswered_from) = (Sequence(sequence), Sequence(unanswered_from));
        let (consented, intended, attached_through) = (everything(), IntendedLeases::default(), Revision(u64::MAX));
        Command::Write { session, sequence, unanswered_from, write, consented, intended, attached_through }
    }

    #[test]
    fn session_term_grows_with_the_sessions_and_stays() {
        let mut fixture = Fixture::new();
        let commands = (0..20_000).map(|_| Command::OpenSession { name: String::new() }).collect();
        let proposal = Proposal { epoch: fixture.state.epoch(), number: 1, time: fixture.time, commands };
        fixture.apply(&proposal);
        let term = |id| fixture.state.lease(&AnyLease::Session(SessionId(id))).expect("a lease").term().as_secs();
        assert_eq!([1, 3_000, 3_005, 6_000, 18_000, 20_000].map(term), [600, 600, 601, 1_200, 3_600, 3_600]);
        let early = AnyLease::Session(SessionId(1));
        let incarnation = fixture.state.lease(&early).expect("a lease").incarnation;
        let renewal = Renewal { lease: early.clone(), incarnation, renewed_at: fixture.time };
        fixture.run(Command::Tick { renewals: vec![renewal] });
        assert_eq!(fixture.state.lease(&early).expect("a lease").term(), State::SESSION_TERM, "its client knows it");
    }

    #[test]
    fn session_ids_are_never_reused() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.open(), SessionId(1));
        assert_eq!(fixture.run(Command::CloseSession { session: SessionId(1) }), Outcome::SessionClosed);
        assert_eq!(fixture.run(Command::CloseSession { session: SessionId(1) }), Outcome::SessionNotFound);
        assert_eq!(fixture.open(), SessionId(2));
        let session = fixture.state.session(SessionId(2)).expect("the session is open");
        assert_eq!((session.name.as_str(), session.unanswered_from), ("tester", Sequence(1)));
        assert_eq!(fixture.state.sessions().map(|(id, _)| id).collect::<Vec<_>>(), [SessionId(2)]);
    }

    #[test]
    fn a_closed_session_leaves_no_lease_and_no_answer() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.put(session, "/a", "");
        fixture.acquire(session, "/");
        fixture.run(Command::CloseSession { session });
        assert_eq!(fixture.state.leases().count(), 0);
        assert_eq!(fixture.state.request_status(session, Sequence(1)), None);
        let late = fixture.put_command_of(session, "/a", "late");
        assert_eq!(fixture.run(late), Outcome::SessionNotFound);
        assert_eq!(fixture.state.revision(), Revision(1));
    }

    #[test]
    fn resent_write_takes_effect_once_and_gets_first_outcome() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        let first = fixture.run(request(session, 1, 1, put("/a", "1")));
        fixture.run(request(session, 2, 1, put("/a", "2")));
        let before = fixture.state.clone();
        assert_eq!(fixture.run(request(session, 1, 1, put("/a", "1"))), first);
        assert_eq!((fixture.state.revision(), &fixture.state.nodes), (before.revision(), &before.nodes));
        let Some(RequestStatus::Outcome(answer)) = fixture.state.request_status(session, Sequence(1)) else {
            panic!("the outcome is remembered");
        };
        assert_eq!(Outcome::Written(answer.clone()), first);
    }

    #[test]
    fn a_refusal_is_remembered_too() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        let refused = Outcome::Written(Err(WriteRefusal::NotFound { path: path("/a") }));
        let conditional = put_if("/a", "", Condition::Revision(Revision(1)));
        assert_eq!(fixture.run(request(session, 1, 1, conditional.clone())), refused);
        assert_eq!(fixture.state.revision(), Revision(0));
        fixture.run(request(session, 2, 1, put("/a", "")));
        assert_eq!(fixture.run(request(session, 1, 1, conditional)), refused, "the write would succeed now");
    }

    #[test]
    fn uncovered_write_changes_nothing_and_can_be_retried() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.put(session, "/a", "");
        let (nodes, sessions) = (fixture.state.nodes.clone(), fixture.state.sessions.clone());
        let attempt = |consented| Command::Write {
            session,
            sequence: Sequence(5),
            unanswered_from: Sequence(5),
            write: put("/a/b/c", ""),
            consented,
            intended: IntendedLeases::default(),
            attached_through: Revision(u64::MAX),
        };
        let needed = [data("/a/b/c"), children("/a/b/c"), data("/a/b"), children("/a/b"), children("/a")];
        for missing in 0..needed.len() {
            let mut consented = needed.to_vec();
            consented.remove(missing);
            assert_eq!(fixture.run(attempt(consented)), Outcome::MissingConsents, "without {:?}", needed[missing]);
        }
        assert_eq!((&fixture.state.nodes, &fixture.state.sessions), (&nodes, &sessions));
        assert_eq!(fixture.state.request_status(session, Sequence(5)), Some(RequestStatus::Unanswered));
        assert!(matches!(fixture.run(attempt(needed.to_vec())), Outcome::Written(Ok(_))));
    }

    #[test]
    fn window_forgets_answered_requests_and_is_bounded() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.run(request(session, 1, 1, put("/a", "1")));
        fixture.run(request(session, 3, 1, put("/a", "3")));
        let beyond = Outcome::BeyondWindow { highest: Sequence(State::ANSWERS_MAX) };
        assert_eq!(fixture.run(request(session, State::ANSWERS_MAX + 1, 1, put("/a", ""))), beyond);
        assert!(matches!(fixture.run(request(session, State::ANSWERS_MAX, 3, put("/a", ""))), Outcome::Written(Ok(_))));
        let below = Outcome::BelowWindow { lowest: Sequence(3) };
        assert_eq!(fixture.run(request(session, 1, 1, put("/a", "1"))), below);
        assert_eq!(fixture.run(request(session, 2, 1, put("/a", "2"))), below);
        assert!(matches!(fixture.state.request_status(session, Sequence(3)), Some(RequestStatus::Outcome(Ok(_)))));
        assert_eq!(fixture.state.request_status(session, Sequence(4)), Some(RequestStatus::Unanswered));
        assert_eq!(
            fixture.state.request_status(session, Sequence(2)),
            Some(RequestStatus::BelowWindow { lowest: Sequence(3) })
        );
        let highest = Sequence(State::ANSWERS_MAX + 2);
        let answered = |sequence| fixture.state.request_status_given(session, sequence, Sequence(1));
        assert_eq!(answered(highest), Some(RequestStatus::Unanswered));
        assert_eq!(answered(highest.next()), Some(RequestStatus::BeyondWindow { highest }));
    }

    #[test]
    fn write_after_many_reads_moves_window_before_it_is_judged() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        let far = Sequence(50 * State::ANSWERS_MAX);
        let by_its_window = fixture.state.request_status_given(session, far, Sequence(1));
        assert!(matches!(by_its_window, Some(RequestStatus::BeyondWindow { .. })));
        assert_eq!(fixture.state.request_status(session, far), Some(RequestStatus::Unanswered));
        assert_eq!(fixture.state.request_status_given(session, far, far), Some(RequestStatus::Unanswered));
        assert!(matches!(fixture.run(request(session, far.0, far.0, put("/a", ""))), Outcome::Written(Ok(_))));
        assert_eq!(fixture.state.session(session).expect("the session is open").unanswered_from, far);
    }

    #[test]
    fn request_is_inside_its_own_window() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        let first = fixture.run(request(session, 2, u64::MAX, put("/a", "")));
        assert!(matches!(first, Outcome::Written(Ok(_))));
        assert_eq!(fixture.run(request(session, 2, u64::MAX, put("/a", ""))), first);
        assert_eq!(fixture.state.node(&NodePath::root()).expect("the root").child_count(), 1);
        let last = fixture.run(request(session, u64::MAX, u64::MAX, put("/a", "")));
        assert!(matches!(last, Outcome::Written(Ok(_))), "the highest sequence does no harm");
    }
}
