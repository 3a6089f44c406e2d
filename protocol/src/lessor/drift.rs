//! Drift supervision, the leader's half. The leader notes when it handles each exchange, and later
//! answers how long ago that was ([`crate::drift`]).
//!
//! The leader cannot compare the clocks, because it does not know how long requests were on their
//! way. The client compares them, stops serving from memory by itself, and reports that with each
//! heartbeat. The leader records these sessions for its log and for inspection. It grants and
//! recalls as before, because it cannot rely on the client's statement.

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

/// The exchanges of all sessions, and the sessions beyond their allowance. Both are forgotten with
/// the session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct DriftReports {
    marks: BTreeMap<SessionId, Marks>,
    beyond: BTreeMap<SessionId, Excess>,
}

impl DriftReports {
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.marks.len(), self.beyond.len()]
    }

    /// The session has ended.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.marks.remove(&session);
        self.beyond.remove(&session);
    }

    /// The session has registered: its first exchange with this leader, or its first on another
    /// connection.
    pub(super) fn registered(&mut self, session: SessionId, registration: u64, now: Instant) {
        self.marks.entry(session).or_default().note(registration, now);
    }

    /// Records a client's verdict on its clock. Returns whether the verdict has changed.
    fn set(&mut self, session: SessionId, beyond: Option<Excess>) -> bool {
        let before = match beyond {
            Some(excess) => self.beyond.insert(session, excess),
            None => self.beyond.remove(&session),
        };
        before.is_some() != beyond.is_some()
    }
}

impl Lessor {
    /// Handles a client's question about clocks, and records the client's verdict so far.
    pub(super) fn compare_clocks(
        &mut self,
        session: SessionId,
        question: &ClockQuestion,
        cx: &mut StepContext<'_>,
    ) -> ClockAnswer {
        if self.drift_reports.set(session, question.excess) {
            let name = cx.state.session(session).map(|session| session.name.clone()).unwrap_or_default();
            cx.effects.push(LessorEffect::ClockChanged { session, name, beyond: question.excess });
        }
        let marks = self.drift_reports.marks.entry(session).or_default();
        marks.answer(question, self.config.drift, cx.now)
    }

    /// The number of sessions whose clock and this one differ by more than their allowances, and
    /// the first [`CLOCK_INFOS_MAX`] of them.
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
