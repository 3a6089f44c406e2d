//! Handles requests from their arrival until they are answered or wait: admission, registration,
//! consents, holder reports and reads (S2, S6, S7).

use crate::{
    command::{AnyLease, Command},
    id::{Epoch, RequestId, Sequence},
    message::{Answer, Body, CachedReads, Consent, RENEWALS_MAX, Refusal, Request, RequestHeader},
    object::ObjectSet,
};

use super::{
    Lessor, ProposalReason, ReadTarget, ReadWait, Requester, StepContext, WaitingRead, recalls::RECALL_RESEND_INTERVAL,
    renewals::RenewalAnswer, volume_leases::AcquireRequest, watches::WatchRequest,
};

impl Lessor {
    pub(super) fn handle_request(&mut self, id: RequestId, request: Request, cx: &mut StepContext<'_>) {
        let lengths = request.check_lengths();
        let Request { header, body } = request;
        let is_sessionless = header.is_sessionless();
        let mut requester = Requester { id, session: header.session, renewed: Vec::new(), clocks: None };
        let Some(epoch) = self.epoch.filter(|epoch| *epoch == cx.state.epoch()) else {
            return self.reply_without_promises(&requester, Err(Refusal::Retry), cx);
        };
        if let Err(error) = lengths {
            return self.reply_without_promises(&requester, Err(error.into()), cx);
        }
        let numbers = (header.sequence, header.unanswered_from);
        let may_be_sessionless = matches!(body, Body::Open { .. } | Body::Inspect(_) | Body::List { .. });
        if (is_sessionless && may_be_sessionless) || self.admit(&mut requester, header, &body, epoch, cx) {
            self.dispatch(requester, numbers, body, cx);
        }
    }

    /// Admits a request of a session that exists and is registered with this epoch. Then applies
    /// what its header says: writes given up, consents, returns and renewals. Returns false if it
    /// refused the request.
    fn admit(
        &mut self,
        requester: &mut Requester,
        header: RequestHeader,
        body: &Body,
        epoch: Epoch,
        cx: &mut StepContext<'_>,
    ) -> bool {
        let session = requester.session;
        if cx.state.session(session).is_none() {
            self.reply_without_promises(requester, Err(Refusal::SessionNotFound { session }), cx);
            return false;
        }
        if let Body::Register = body {
            if !self.recall_channel(session).register(header.registration) {
                let refusal = Refusal::NotRegistered { got: epoch, expected: epoch };
                self.reply_without_promises(requester, Err(refusal), cx);
                return false;
            }
            self.drift_reports.registered(session, header.registration, cx.now);
        } else if header.epoch != epoch || !self.is_current(session, header.registration) {
            let refusal = Refusal::NotRegistered { got: header.epoch, expected: epoch };
            self.reply_without_promises(requester, Err(refusal), cx);
            return false;
        }
        self.renew_session_lease(session, cx);
        self.drop_given_up(session, header.unanswered_from, cx);
        self.watches.heard_from(session, cx.now, &self.config.bounds);
        for stamp in header.consents {
            self.consent(Consent { session, stamp }, cx);
        }
        for returned in header.returns {
            self.drop_older(session, &ObjectSet::One(returned.object), returned.stamp);
        }
        for CachedReads { volume, reads, gaps } in header.cached_reads {
            self.count_cached_reads(&volume, (reads, &gaps), cx);
        }
        // Renewals count from the arrival, not from the answer. They come after the consents,
        // because an unanswered recall limits them (S5).
        let is_alone = matches!(body, Body::Heartbeat(_));
        if is_alone && header.renew.is_empty() {
            let volumes = self.leases.of(session).take(RENEWALS_MAX).filter_map(AnyLease::volume);
            self.counters.0.note_idle_heartbeat(volumes.filter(|volume| cx.state.volume(volume).is_some()));
        }
        requester.renewed = self.renew_all(session, header.renew, is_alone, cx);
        requester.clocks =
            header.clocks.map(|question| Box::new((self.compare_clocks(session, &question, cx), cx.now)));
        if *body != Body::Register {
            self.resend_recalls(session, RECALL_RESEND_INTERVAL, cx);
        }
        true
    }

    fn dispatch(&mut self, requester: Requester, numbers: (Sequence, Sequence), body: Body, cx: &mut StepContext<'_>) {
        let session = requester.session;
        if let Some(refusal) = self.no_room_for(&body, cx.state) {
            return self.reply_without_promises(&requester, Err(refusal), cx);
        }
        match body {
            Body::Register => self.handle_registration(&requester, cx),
            Body::Open { name } => self.open(requester, name, cx),
            Body::Inspect(inspect) => self.inspect(&requester, &inspect, cx),
            Body::List { path, after, nodes_max } => {
                self.read(WaitingRead { requester, target: ReadTarget::List { path, after, nodes_max } }, cx);
            }
            Body::Heartbeat(question) => {
                let answer = self.compare_clocks(session, &question, cx);
                self.answer_renewal(requester, RenewalAnswer::Heartbeat(answer), cx);
            }
            Body::Close => self.propose(Command::CloseSession { session }, ProposalReason::Close(requester)),
            Body::Acquire { path, last_valid, read } => {
                if let Err(error) = self.config.limits.check_path(&path) {
                    return self.reply(&requester, Err(error.into()), cx);
                }
                // A read beyond the limits does not spoil the request, because other reads may wait
                // for the lease. The client sends that read on its own, and learns the reason.
                let read = read.filter(|read| self.config.limits.check_path(&read.object.path).is_ok());
                if self.may_extend_ending(session, &path, cx.state) {
                    return self.reply(&requester, Err(Refusal::Retry), cx);
                }
                let load = self.load_of_acquiring(session, &path, cx.state);
                if let Some(refusal) = self.beyond_load(load) {
                    return self.reply_without_promises(&requester, Err(refusal), cx);
                }
                self.load_to_come += load;
                let reason = ProposalReason::Acquire(AcquireRequest { requester, last_valid, read, load });
                self.propose(Command::AcquireVolume { session, path }, reason);
            }
            Body::KeepAlive { leases } => self.keep_alive(requester, &leases, cx),
            Body::Read { object, known, lease } => {
                let target = ReadTarget::Object { object, known, lease, waits: ReadWait::Nothing };
                self.read(WaitingRead { requester, target }, cx);
            }
            Body::AwaitRead { object, known, lease } => {
                let target = ReadTarget::Object { object, known, lease, waits: ReadWait::Flush };
                self.read(WaitingRead { requester, target }, cx);
            }
            Body::ReadNextValue { object, lease } => {
                let waits = ReadWait::NextValue;
                let target = ReadTarget::Object { object: object.clone(), known: None, lease, waits };
                self.read_next_value(WaitingRead { requester, target }, object, cx);
            }
            Body::Watch { watched, after, wait, bytes_max } => {
                self.watch(requester, WatchRequest { watched, after, bytes_max }, wait, cx);
            }
            Body::Write { write, dropped, seen } => self.write(requester, numbers, write, (dropped, seen), cx),
            Body::AwaitLockStatus { locks } => self.await_lock_status(requester, locks, cx),
            Body::HolderReport(part) => {
                self.add_holder_report_part(session, &part, cx);
                self.reply(&requester, Ok(Answer::ReportReceived), cx);
            }
        }
    }
}
