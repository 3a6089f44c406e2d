//! Sessions: who clients are, and what their last requests were answered.
//!
//! A session's requests are numbered by the client, all kinds of them in one count, but only writes come this way. The
//! window of remembered outcomes therefore moves with what the *command* says is answered, before its own number is
//! looked at: a client may have done thousands of reads since its last write.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{RowKey, State};
use crate::{
    command::{LeaseKey, Outcome, Write, WriteRefusal, Written},
    id::{Sequence, SessionId},
    object::ObjectSet,
};

/// A client's identity, and what it was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// What the client calls itself, for people who look.
    pub name: String,
    /// All requests below this have been answered: their outcomes are forgotten.
    pub unanswered_from: Sequence,
    /// The outcomes within the window. Each has a row of its own.
    #[serde(skip)]
    pub(super) answers: BTreeMap<Sequence, Result<Written, WriteRefusal>>,
}

/// What is known of a request (S9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered<'a> {
    /// It was not answered yet: it may be done.
    Never,
    /// It was done, with this outcome, which is the answer to whoever sends it again.
    Outcome(&'a Result<Written, WriteRefusal>),
    /// It lies below the window of remembered outcomes.
    BelowWindow {
        /// The lowest number that is still remembered.
        lowest: Sequence,
    },
    /// It lies beyond the window.
    BeyondWindow {
        /// The highest number that would be accepted.
        highest: Sequence,
    },
}

/// Which request a write is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) session: SessionId,
    pub(super) sequence: Sequence,
    pub(super) unanswered_from: Sequence,
}

impl Session {
    /// Where the window begins once the request has been seen. A request never gives itself up.
    fn window_start(&self, sequence: Sequence, unanswered_from: Sequence) -> Sequence {
        self.unanswered_from.max(unanswered_from.min(sequence))
    }

    fn answered(&self, sequence: Sequence, unanswered_from: Sequence) -> Answered<'_> {
        if sequence < self.unanswered_from {
            return Answered::BelowWindow {
                lowest: self.unanswered_from,
            };
        }
        if let Some(outcome) = self.answers.get(&sequence) {
            return Answered::Outcome(outcome);
        }
        let highest = highest_in_window(self.window_start(sequence, unanswered_from));
        if sequence > highest {
            Answered::BeyondWindow { highest }
        } else {
            Answered::Never
        }
    }
}

/// The highest number in the window that begins with `lowest`.
pub(super) fn highest_in_window(lowest: Sequence) -> Sequence {
    Sequence(lowest.0.saturating_add(State::ANSWERS_MAX - 1))
}

impl State {
    /// The session of this identity.
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// All sessions, in order of their identities.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// What is known of a request by the window as it is now; none if there is no such session.
    ///
    /// A request that says that more has been answered moves the window before it is judged, which can turn
    /// [`Answered::BeyondWindow`] into [`Answered::Never`]: see [`State::answered_given`].
    pub fn answered(&self, session: SessionId, sequence: Sequence) -> Option<Answered<'_>> {
        self.answered_given(session, sequence, Sequence(0))
    }

    /// What is known of a request that says that all below `unanswered_from` have been answered; none if there is no
    /// such session. This is how [`Command::Write`](crate::command::Command::Write) is judged.
    pub fn answered_given(
        &self,
        session: SessionId,
        sequence: Sequence,
        unanswered_from: Sequence,
    ) -> Option<Answered<'_>> {
        self.session(session)
            .map(|session| session.answered(sequence, unanswered_from))
    }

    pub(super) fn open_session(&mut self, name: &str, touched: &mut BTreeSet<RowKey>) -> Outcome {
        let id = self.meta.next_session;
        self.meta.next_session = id.next();
        let session = Session {
            name: name.to_owned(),
            unanswered_from: Sequence(1),
            answers: BTreeMap::new(),
        };
        self.sessions.insert(id, session);
        touched.insert(RowKey::Session(id));
        self.grant_lease(LeaseKey::Session(id), Self::SESSION_TERM, touched);
        Outcome::SessionOpened { session: id }
    }

    pub(super) fn close_session(
        &mut self,
        id: SessionId,
        touched: &mut BTreeSet<RowKey>,
    ) -> Outcome {
        let Some(session) = self.sessions.remove(&id) else {
            return Outcome::SessionGone;
        };
        touched.insert(RowKey::Session(id));
        touched.extend(
            session
                .answers
                .into_keys()
                .map(|sequence| RowKey::Answer(id, sequence)),
        );
        let keys: Vec<LeaseKey> = self.leases_of(id).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.leases.remove(&key);
            touched.insert(RowKey::Lease(key));
        }
        Outcome::SessionClosed
    }

    /// A client's write: judged by what is remembered, then done and remembered (S9).
    ///
    /// A refused write is remembered like one that was done: sent again, it gets the same answer even if it would
    /// succeed by now. One whose consents do not cover it is not: its proposer will bring it again.
    pub(super) fn write_once(
        &mut self,
        request: Request,
        write: &Write,
        covers: &[ObjectSet],
        touched: &mut BTreeSet<RowKey>,
    ) -> Outcome {
        let Request {
            session,
            sequence,
            unanswered_from,
        } = request;
        match self.answered_given(session, sequence, unanswered_from) {
            None => return Outcome::SessionGone,
            Some(Answered::Outcome(outcome)) => return Outcome::Written(outcome.clone()),
            Some(Answered::BelowWindow { lowest }) => return Outcome::BelowWindow { lowest },
            Some(Answered::BeyondWindow { highest }) => return Outcome::BeyondWindow { highest },
            Some(Answered::Never) => {}
        }
        let result = match self.footprint(write) {
            Err(refusal) => Err(refusal),
            Ok(sets)
                if sets
                    .iter()
                    .all(|set| covers.iter().any(|cover| cover.includes(set))) =>
            {
                Ok(self.write(write, sets, touched))
            }
            Ok(_) => return Outcome::NotCovered,
        };
        self.remember(request, result.clone(), touched);
        Outcome::Written(result)
    }

    fn remember(
        &mut self,
        request: Request,
        result: Result<Written, WriteRefusal>,
        touched: &mut BTreeSet<RowKey>,
    ) {
        let Request {
            session: id,
            sequence,
            unanswered_from,
        } = request;
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
            session.answers.remove(&oldest);
            touched.insert(RowKey::Answer(id, oldest));
        }
        session.answers.insert(sequence, result);
        touched.insert(RowKey::Answer(id, sequence));
    }
}
