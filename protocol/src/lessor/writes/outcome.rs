//! The outcome of a write: the answers to its requesters, and what its end changes for others (S2,
//! S7b, S9).

use crate::{
    command::{AnyLease, GrantedKeyLease, Outcome, Write, WriteRefusal, Written},
    id::{Sequence, SessionId},
    lease_policy::LeaseRequest,
    message::{Answer, KeyLeaseRenewal, Refusal},
    object::{Object, ObjectSet},
    path::NodePath,
    planted::Bug,
    state::State,
};

use super::{
    super::{
        Lessor, Requester, StepContext,
        counters::WaitEnd,
        load::{key_leases_of_write, results_of_write},
    },
    ClientWrite, PendingWrite, PendingWriteId, WriteKind,
};

impl Lessor {
    pub(in crate::lessor) fn handle_written(
        &mut self,
        write_id: PendingWriteId,
        outcome: Outcome,
        cx: &mut StepContext<'_>,
    ) {
        let result = match outcome {
            Outcome::MissingConsents => return self.gather_again(write_id, cx),
            Outcome::Written(result) => Ok(result),
            Outcome::BelowWindow { lowest } => Err((lowest, lowest.window_end())),
            Outcome::BeyondWindow { highest } => Err((highest.window_start(), highest)),
            Outcome::SessionNotFound => {
                return self.write_refused(write_id, |session, _| Refusal::SessionNotFound { session }, cx);
            }
            _ => return self.write_refused(write_id, |_, _| Refusal::Retry, cx),
        };
        let result = match result {
            Ok(result) => result,
            Err((lowest, highest)) => {
                return self.write_refused(write_id, |_, got| Refusal::OutsideWindow { got, lowest, highest }, cx);
            }
        };
        let Some((request, footprint, ready)) = self.finish_client_write(write_id) else { return };
        match (&result, &request.write) {
            (Err(_), _)
            | (
                Ok(_),
                Write::Put { .. }
                | Write::Delete { .. }
                | Write::Transaction(_)
                | Write::Lock { .. }
                | Write::ChangeLockMode { .. }
                | Write::Unlock { .. }
                | Write::TakeWriteLease { .. }
                | Write::Flush { .. }
                | Write::HandOver { .. },
            ) => {}
            (Ok(written), Write::GrantLease { .. }) => self.key_lease_granted(written, cx),
            (Ok(_), Write::RevokeLease { .. } | Write::RevokeLeaseNamed { .. }) => {
                if let Some(id) = request.revoked {
                    self.forget_lease(&AnyLease::KeyLease(id));
                }
            }
            (
                Ok(_),
                Write::CreateVolume { path, .. } | Write::SetVolume { path, .. } | Write::RemoveVolume { path },
            ) => {
                self.reset_volume_copies(path, cx.state);
                if !matches!(request.write, Write::SetVolume { .. }) {
                    self.orphans.volume_changed(path);
                }
                self.check_lease_limit(path, cx.state);
                self.counters.0.volume_changed(path, cx.state, cx.now);
                self.terms_by_use.volume_changed(path);
            }
        }
        self.answer_write(request, &result, cx);
        self.propose_ready(ready, Some(WaitEnd::EarlierWrite));
        self.resume_next_values(&footprint, cx);
    }

    /// Removes a client's write that has ended. Returns it, its footprint, and the writes that
    /// became ready.
    fn finish_client_write(
        &mut self,
        write_id: PendingWriteId,
    ) -> Option<(ClientWrite, Vec<ObjectSet>, Vec<PendingWriteId>)> {
        match self.writes.leave(write_id)? {
            (PendingWrite { kind: WriteKind::Client(request), footprint, .. }, ready) => {
                self.load_to_come -= request.load;
                self.key_leases_to_come -= key_leases_of_write(&request.write);
                self.results_to_come -= results_of_write(&request.write);
                Some((*request, footprint, ready))
            }
            _ => None,
        }
    }

    /// Gathers consents again for a write that would have changed objects that no consent covers
    /// (S2). The write stays at its position in the queues.
    pub(in crate::lessor) fn gather_again(&mut self, write_id: PendingWriteId, cx: &mut StepContext<'_>) {
        let Some(pending) = self.writes.get(write_id) else { return };
        let Some(request) = pending.client_write() else { return };
        let earlier = pending.footprint.clone();
        let footprint = self.footprint_again(request, cx.state);
        let ready = self.writes.set_footprint(write_id, footprint);
        self.propose_ready(ready, Some(WaitEnd::EarlierWrite));
        self.resume_next_values(&earlier, cx);
        self.gather(write_id, cx);
    }

    pub(in crate::lessor) fn write_refused(
        &mut self,
        write_id: PendingWriteId,
        refusal: impl Fn(SessionId, Sequence) -> Refusal,
        cx: &mut StepContext<'_>,
    ) {
        let Some((request, footprint, ready)) = self.finish_client_write(write_id) else { return };
        for requester in &request.requesters {
            self.reply(requester, Err(refusal(request.session, request.sequence)), cx);
        }
        self.propose_ready(ready, Some(WaitEnd::EarlierWrite));
        self.resume_next_values(&footprint, cx);
    }

    /// Drops those writes of the session that are not proposed and have numbers below
    /// `unanswered_from`: the client has given them up. Otherwise a client that gives up one write
    /// after the other would fill the table of pending writes.
    pub(in crate::lessor) fn drop_given_up(
        &mut self,
        session: SessionId,
        unanswered_from: Sequence,
        cx: &mut StepContext<'_>,
    ) {
        let (lowest, highest) = (unanswered_from, unanswered_from.window_end());
        let (mut ready, mut footprints) = (Vec::new(), Vec::new());
        // All of them leave before any write is proposed. Otherwise the lessor could propose a
        // write that leaves next. Its command would then be in the log without a pending write.
        for write_id in self.writes.unproposed_below(session, unanswered_from).into_iter().rev() {
            let Some((request, footprint, freed)) = self.finish_client_write(write_id) else { continue };
            let refusal = Refusal::OutsideWindow { got: request.sequence, lowest, highest };
            for requester in &request.requesters {
                self.reply(requester, Err(refusal.clone()), cx);
            }
            ready.extend(freed);
            footprints.push(footprint);
        }
        self.propose_ready(ready, Some(WaitEnd::EarlierWrite));
        for footprint in footprints {
            self.resume_next_values(&footprint, cx);
        }
    }

    /// Answers all requesters. After a put, the request `grants_to` may get a lease on the node's
    /// data, so that its client's next read is a hit. The write was proposed after that request
    /// arrived, and was committed in this epoch. So the client sent the request before any later
    /// epoch began. A later leader counts from the begin of its own epoch, so it does not count
    /// this lease as ended too early. After a transaction there is no lease, because the lessor
    /// does not know which objects the writer will read.
    pub(in crate::lessor) fn answer_write(
        &mut self,
        request: ClientWrite,
        result: &Result<Written, WriteRefusal>,
        cx: &mut StepContext<'_>,
    ) {
        let ClientWrite { requesters, write, grants_to, .. } = request;
        let granted = match write {
            Write::Put { .. } => Some(grants_to),
            _ => requesters.last().map(|requester| requester.id),
        };
        for requester in &requesters {
            let answer = match result {
                Err(refusal) => Err(Refusal::Write(refusal.clone())),
                Ok(written) => {
                    Ok(self.written_answer(requester.session, &write, written, Some(requester.id) == granted, cx))
                }
            };
            self.reply(requester, answer, cx);
        }
    }

    /// Answers with a remembered outcome, without object leases. Promises are computed afresh (S9).
    pub(in crate::lessor) fn answer_again(
        &mut self,
        requester: &Requester,
        write: &Write,
        outcome: Result<Written, WriteRefusal>,
        cx: &mut StepContext<'_>,
    ) {
        let answer = match outcome {
            Err(refusal) => Err(Refusal::Write(refusal)),
            Ok(written) => Ok(self.written_answer(requester.session, write, &written, false, cx)),
        };
        self.reply(requester, answer, cx);
    }

    /// The answer to a write that took effect. If `grants`, a put's writer gets a lease on the
    /// node.
    pub(in crate::lessor) fn written_answer(
        &mut self,
        session: SessionId,
        write: &Write,
        written: &Written,
        grants: bool,
        cx: &StepContext<'_>,
    ) -> Answer {
        // The begin of a write lease has the stamp of a grant. So a write that comes later waits
        // for a recall of its own, and not for an unanswered recall from before.
        let begins_write_lease = grants && matches!(write, Write::TakeWriteLease { .. });
        let stamp = if begins_write_lease { self.grant_stamp(session) } else { self.stamp(session) };
        // The lessor answers after the whole entry is applied. A later revocation or purge of the
        // same entry may have removed the node. `grant` would not notice: it recognizes a removal
        // by the node's attachment, and the node is already gone.
        let is_still_there =
            |path: &NodePath| cx.state.node(path).is_some_and(|node| node.modify_revision == written.revision);
        let grant = match write {
            // Where writes only wait, a lease for the writer would delay the next write.
            Write::Put { path, .. } if grants && is_still_there(path) && recalls(path, cx.state) => {
                self.grant(session, &Object::data(path.clone()), LeaseRequest::Implicit, cx)
            }
            _ => None,
        };
        let granted = written.lease.map(|GrantedKeyLease { id, incarnation }| {
            let incarnation = (!self.planted(Bug::GrantAnsweredWithReplacement)).then_some(incarnation);
            KeyLeaseRenewal { id, incarnation }
        });
        let key_lease = granted.map(|lease| self.renew_key_lease(lease, cx));
        let write_lease_data = match write {
            Write::TakeWriteLease { path, lock }
                if cx.state.write_leased_lock(path).is_some_and(|(id, _)| id == *lock) =>
            {
                cx.state.data(path).map(Box::new)
            }
            _ => None,
        };
        Answer::Written {
            written: written.clone(),
            stamp,
            grant,
            applied: cx.state.revision(),
            key_lease,
            write_lease_data,
        }
    }
}

/// Whether writes of the node recall its leases.
fn recalls(path: &NodePath, state: &State) -> bool {
    state.volume_of(path).1.settings.on_write().recalls()
}
