//! Drift supervision, the leader's half: it notes when it dealt with exchanges, and says how long
//! ago that was ([`crate::drift`]).
//!
//! The leader cannot judge: it does not know how long requests were on their way. The client
//! judges, stops serving from memory by itself, and says so with each keep-alive. The leader keeps
//! who has said so, for the log and for people. It goes on granting and recalling: it never relies
//! on a client's word that it reads nothing from memory.

use std::collections::BTreeMap;

use super::{Lessor, LessorEffect, StepContext};
use crate::{
    drift::{ClockAnswer, ClockQuestion, Excess, Marks},
    id::SessionId,
    message::{CLOCK_INFOS_MAX, ClockInfo},
    reached::{Bound, reached},
    state::State,
    time::Instant,
};

/// The exchanges of all sessions, and who is beyond its allowance. Both are forgotten with the
/// session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct DriftReports {
    marks: BTreeMap<SessionId, Marks>,
    beyond: BTreeMap<SessionId, Excess>,
}

impl DriftReports {
    /// How many entries there are, of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.marks.len(), self.beyond.len()]
    }

    /// The session is over.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.marks.remove(&session);
        self.beyond.remove(&session);
    }

    /// The session has registered: its first exchange with this leader, or its first on another
    /// connection.
    pub(super) fn registered(&mut self, session: SessionId, registration: u64, now: Instant) {
        self.marks.entry(session).or_default().note(registration, now);
    }

    /// Keeps what a client says about its clock. True if it said otherwise before.
    fn set(&mut self, session: SessionId, beyond: Option<Excess>) -> bool {
        let before = match beyond {
            Some(excess) => self.beyond.insert(session, excess),
            None => self.beyond.remove(&session),
        };
        before.is_some() != beyond.is_some()
    }
}

impl Lessor {
    /// A client compares its clock with this one, and says how it has judged so far.
    pub(super) fn compare_clocks(
        &mut self,
        session: SessionId,
        question: &ClockQuestion,
        turn: &mut StepContext<'_>,
    ) -> ClockAnswer {
        if self.drift_reports.set(session, question.excess) {
            let name = turn.state.session(session).map(|session| session.name.clone()).unwrap_or_default();
            turn.effects.push(LessorEffect::ClockChanged { session, name, beyond: question.excess });
        }
        let marks = self.drift_reports.marks.entry(session).or_default();
        marks.answer(question, self.config.drift, turn.now)
    }

    /// How many sessions have said that their clocks and this one are beyond their allowances, and
    /// some of them.
    pub fn clock_infos(&self, state: &State) -> (u64, Vec<ClockInfo>) {
        let info = |(session, excess): (&SessionId, &Excess)| ClockInfo {
            session: *session,
            name: state.session(*session).map(|session| session.name.clone()).unwrap_or_default(),
            excess: *excess,
        };
        if self.drift_reports.beyond.len() > CLOCK_INFOS_MAX {
            reached(Bound::ClockInfos);
        }
        let infos = self.drift_reports.beyond.iter().take(CLOCK_INFOS_MAX).map(info).collect();
        (self.drift_reports.beyond.len() as u64, infos)
    }
}
