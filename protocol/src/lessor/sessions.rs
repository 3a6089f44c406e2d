//! Sessions: opened, registered with the leader, closed and forgotten (S9).

use std::time::Duration;

use crate::{
    command::{AnyLease, Command, Outcome},
    id::SessionId,
    message::{Answer, Refusal},
    planted::Bug,
    state::{LeaseRecord, State},
};

use super::{Lessor, ProposalReason, Requester, StepContext, recalls::RecallChannel};

impl Lessor {
    pub(super) fn open(&mut self, requester: Requester, name: String, cx: &mut StepContext<'_>) {
        let load = Self::load_of_session();
        let refusal = self.config.limits.check_session_name(&name).err().map(Refusal::from);
        if let Some(refusal) = refusal.or_else(|| self.beyond_load(load)) {
            return self.reply_without_promises(&requester, Err(refusal), cx);
        }
        self.load_to_come += load;
        self.sessions_to_come += 1;
        self.propose(Command::OpenSession { name }, ProposalReason::Open(requester));
    }

    pub(super) fn handle_session_opened(&mut self, requester: &Requester, outcome: &Outcome, cx: &mut StepContext<'_>) {
        let Outcome::SessionOpened { session } = outcome else {
            return self.reply_without_promises(requester, Err(Refusal::Retry), cx);
        };
        let key = AnyLease::Session(*session);
        let lease = cx.state.lease(&key);
        let term = lease.map_or(State::SESSION_TERM, LeaseRecord::term);
        if let Some(lease) = lease {
            let end = self.clock.ending_time().after(term);
            self.leases.insert(key, lease.incarnation, end, term);
        }
        self.reply_without_promises(requester, Ok(Answer::Opened { session: *session, term }), cx);
    }

    /// Answers a registration of the session. The answer names the coverings for which the lessor
    /// wants holder reports (S7). Then the lessor sends unanswered recalls again, at most
    /// [`recalls_again_max`](super::LessorBounds::recalls_again_max).
    ///
    /// Each registration asks for new reports. Parts of reports from earlier registrations do not
    /// count.
    pub(super) fn handle_registration(&mut self, requester: &Requester, cx: &mut StepContext<'_>) {
        let session = requester.session;
        // The client no longer waits for answers on an earlier connection.
        self.refuse_awaited_locks(session, Refusal::Retry, cx);
        self.refuse_watches(session, &Refusal::Retry, cx);
        self.refuse_blocked_reads(session, &Refusal::Retry, cx);
        self.refuse_next_values(session, &Refusal::Retry, cx);
        let volumes = cx.state.leases_of(session).filter_map(|(key, _)| key.volume());
        let coverings = &mut self.coverings;
        let coverings = self.object_leases.request_holder_reports(session, volumes, || {
            *coverings = coverings.next();
            *coverings
        });
        self.reply(requester, Ok(Answer::Registered { coverings }), cx);
        self.resend_recalls(session, Duration::ZERO, cx);
    }

    /// Whether the request belongs to the session's latest registration with this epoch.
    pub(super) fn is_current(&self, session: SessionId, registration: u64) -> bool {
        let is_current = |channel: &RecallChannel| channel.is_current(registration);
        self.recall_channels.get(&session).is_some_and(is_current) || self.planted(Bug::LateRequestHonoured)
    }

    pub(super) fn handle_session_closed(&mut self, requester: &Requester, cx: &mut StepContext<'_>) {
        if cx.state.session(requester.session).is_none() {
            self.forget_session(requester.session, cx);
        }
        self.reply_without_promises(requester, Ok(Answer::Closed), cx);
    }

    pub(super) fn forget_session(&mut self, session: SessionId, cx: &mut StepContext<'_>) {
        let keys: Vec<AnyLease> = self.leases.of(session).cloned().collect();
        for key in keys {
            self.leases.remove(&key);
            if let AnyLease::Volume(_, volume) = &key {
                self.object_leases.end_tracking(volume, session);
                self.end_waits_without_lease(session, volume);
            }
        }
        self.recall_channels.remove(&session);
        self.drift_reports.forget(session);
        self.refuse_awaited_locks(session, Refusal::SessionNotFound { session }, cx);
        self.refuse_watches(session, &Refusal::SessionNotFound { session }, cx);
        self.refuse_blocked_reads(session, &Refusal::SessionNotFound { session }, cx);
        self.refuse_next_values(session, &Refusal::SessionNotFound { session }, cx);
    }
}
