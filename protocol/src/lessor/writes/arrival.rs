//! The path of a write from its arrival to the log. The lessor checks it (S12), recognizes
//! repetitions (S9), queues it (S3), and proposes it when no wait is left (S2).

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::{AnyLease, Attach, Command, IntendedLeases, Write, WriteRefusal, encoded_bytes_of_sets},
    id::{Incarnation, Sequence, SessionId, Stamp},
    message::Refusal,
    object::{Object, ObjectSet, compact_sets},
    path::NodePath,
    reached::{Bound, reached},
    state::{RequestStatus, State},
    transaction::{Compare, CompareTarget, Operation, Transaction, index_of},
};

use super::{
    super::{
        Lessor, ProposalReason, Requester, StepContext,
        attachments::lists_of,
        counters::{Unhashed, WaitEnd},
        load::{key_leases_of_write, results_of_write},
    },
    ClientWrite, ConsentWait, PendingWrite, PendingWriteId, WriteKind,
};

impl Lessor {
    pub(in crate::lessor) fn write(
        &mut self,
        requester: Requester,
        (sequence, unanswered_from): (Sequence, Sequence),
        write: Write,
        (dropped, seen): (Vec<ObjectSet>, Stamp),
        cx: &mut StepContext<'_>,
    ) {
        let session = requester.session;
        if let Some(write_id) = self.writes.id_of(session, sequence) {
            return self.join(write_id, requester, (dropped, seen), cx);
        }
        if let Some(refusal) = self.refusal(session, (sequence, unanswered_from), &write, cx) {
            return self.reply(&requester, Err(refusal), cx);
        }
        if let Some(RequestStatus::Outcome(outcome)) = cx.state.request_status_given(session, sequence, unanswered_from)
        {
            let outcome = outcome.clone();
            return self.answer_again(&requester, &write, outcome, cx);
        }
        let intended = cx.state.intended(session, &write);
        let footprint = self.footprint(session, &write, &intended, cx.state);
        let (revoked, grants_to) = (cx.state.revoked_lease(&write), requester.id);
        let requesters = vec![requester];
        let load = self.load_of_write(&write, cx.state);
        let request = ClientWrite {
            session,
            sequence,
            unanswered_from,
            write,
            intended,
            revoked,
            requesters,
            grants_to,
            dropped,
            seen,
            load,
        };
        self.load_to_come += load;
        self.key_leases_to_come += key_leases_of_write(&request.write);
        self.results_to_come += results_of_write(&request.write);
        let counted = request.write.path().or(footprint.first().map(ObjectSet::path));
        let counted = counted.map(|path| cx.state.volume_of(path).0.clone());
        if !footprint.is_empty() {
            self.count_write(counted.as_ref(), session, request.write.path(), cx);
        }
        let pending = PendingWrite::new(WriteKind::Client(Box::new(request)), footprint, cx.now);
        let write_id = self.writes.enter(PendingWrite { counted_in: Unhashed(counted), ..pending });
        self.gather(write_id, cx);
    }

    /// Counts a write in this volume. `path` is the written node, if the write names one.
    fn count_write(
        &mut self,
        volume: Option<&NodePath>,
        writer: SessionId,
        path: Option<&NodePath>,
        cx: &StepContext<'_>,
    ) {
        let Some(volume) = volume else { return };
        let lease = path.and_then(|path| self.object_leases.lease(&Object::data(path.clone()), writer));
        let is_holder = lease.is_some_and(|lease| lease.expires_at > self.clock.ending_time());
        let object_leases = self.object_leases.totals_in(volume).entries;
        self.counters.0.note_write(volume, is_holder, object_leases, cx.now);
    }

    /// The objects for which the lessor gathers consents, except the nodes of a revoked lease.
    ///
    /// A write beyond a quota gathers none, so it does not cost other clients their copies. When it
    /// is applied, the state refuses it, or finds it uncovered if the volume has room by then.
    fn footprint(&self, writer: SessionId, write: &Write, intended: &IntendedLeases, state: &State) -> Vec<ObjectSet> {
        let sets = self.whole_footprint(writer, write, intended, state);
        let is_refused = !sets.is_empty() && state.check_quota(write).is_err();
        if is_refused { Vec::new() } else { within_a_command(sets) }
    }

    fn whole_footprint(
        &self,
        writer: SessionId,
        write: &Write,
        intended: &IntendedLeases,
        state: &State,
    ) -> Vec<ObjectSet> {
        if write.is_revocation() {
            let sets_max = self.config.bounds.purge_sets_max;
            return intended.leases.iter().flat_map(|lease| lists_of(*lease, sets_max, state)).collect();
        }
        let sets = state.footprint(writer, write, intended).unwrap_or_default();
        // A transaction's sets are few and do not overlap, so they need no compacting.
        if let Write::Transaction(_) = write { sets } else { compact_sets(sets) }
    }

    /// The objects for which to gather consents again, after a write was found uncovered. Writes of
    /// the nodes that a transaction compares could switch its branch again and again. So from now
    /// on the lessor gathers consents for both branches, and the transaction enters the queues of
    /// all nodes whose data it compares. No later write of these is applied before the transaction.
    /// So it gathers three times at most: on arrival; again, if an earlier write changed its
    /// footprint; once more, if a write that was already behind its first proposal in the log
    /// changed it again. This does not hold for a write that the state would refuse now: its
    /// footprint is empty, so it enters no queue.
    pub(in crate::lessor) fn footprint_again(&self, request: &ClientWrite, state: &State) -> Vec<ObjectSet> {
        let ClientWrite { session: writer, write, intended, .. } = request;
        within_a_command(match write {
            Write::Transaction(transaction) => {
                let is_data = |compare: &&Compare| !matches!(compare.target, CompareTarget::Locked(..));
                let compared = transaction.compares.iter().filter(is_data).map(|compare| compare.path.clone());
                let compared = compared.map(|path| ObjectSet::One(Object::data(path)));
                let both = state.footprint_of_both(*writer, transaction, intended).into_iter();
                both.chain(compared).collect::<BTreeSet<_>>().into_iter().collect()
            }
            _ => self.whole_footprint(*writer, write, intended, state),
        })
    }

    /// Handles a request that was sent again while its write is pending. There is still one write,
    /// with one more requester (S9).
    fn join(
        &mut self,
        write_id: PendingWriteId,
        requester: Requester,
        (dropped, seen): (Vec<ObjectSet>, Stamp),
        cx: &mut StepContext<'_>,
    ) {
        let requesters_max = self.config.bounds.write_requesters_max;
        let is_proposed = self.writes.get_mut(write_id).is_some_and(|pending| pending.is_proposed);
        self.writes.replace_dropped(write_id, dropped);
        let Some(request) = self.writes.client_write_mut(write_id) else { return };
        request.seen = seen;
        if !is_proposed {
            request.grants_to = requester.id;
        }
        request.requesters.push(requester);
        if request.requesters.len() > requesters_max {
            reached(Bound::WriteRequesters);
            let oldest = request.requesters.remove(0);
            self.reply_without_promises(&oldest, Err(Refusal::Retry), cx);
        }
    }

    /// The refusal of a write before it enters any queue (S12).
    fn refusal(
        &self,
        session: SessionId,
        (sequence, unanswered_from): (Sequence, Sequence),
        write: &Write,
        cx: &StepContext<'_>,
    ) -> Option<Refusal> {
        let window = |lowest, highest| Some(Refusal::OutsideWindow { got: sequence, lowest, highest });
        match cx.state.request_status_given(session, sequence, unanswered_from) {
            None => return Some(Refusal::SessionNotFound { session }),
            Some(RequestStatus::BelowWindow { lowest }) => return window(lowest, lowest.window_end()),
            Some(RequestStatus::BeyondWindow { highest }) => return window(highest.window_start(), highest),
            Some(RequestStatus::Outcome(_)) => return None,
            Some(RequestStatus::Unanswered) => {}
        }
        // Flushes are exempt, because other writes wait for them, and they wait for no write.
        let is_flush = matches!(write, Write::Flush { .. });
        let bounds = &self.config.bounds;
        let count = self.writes.len();
        if count >= bounds.writes_max && !is_flush {
            reached(Bound::Writes);
            return Some(Refusal::Busy { what: "writes".to_owned(), got: count, most: bounds.writes_max });
        }
        let bytes = self.writes.bytes();
        if bytes >= bounds.writes_bytes_max && !is_flush {
            reached(Bound::WritesBytes);
            return Some(Refusal::Busy {
                what: "bytes of writes".to_owned(),
                got: bytes,
                most: bounds.writes_bytes_max,
            });
        }
        if sequence > unanswered_from
            && let Some(refusal) = self.beyond_results(write, cx.state)
        {
            return Some(refusal);
        }
        let limits = &self.config.limits;
        if let Err(error) = write.path().map_or(Ok(()), |path| limits.check_path(path)) {
            return Some(error.into());
        }
        self.refusal_of_parts(session, write, cx).or_else(|| limits.check_write(write).err().map(Refusal::from))
    }

    /// The refusal of a write because of its content.
    fn refusal_of_parts(&self, session: SessionId, write: &Write, cx: &StepContext<'_>) -> Option<Refusal> {
        let limits = &self.config.limits;
        match write {
            Write::Put { path, value, attach, .. } => {
                let ending = self.attaches_to_ending(session, path, attach, cx.state);
                limits.check_value(value).err().map(Refusal::from).or(ending.map(Refusal::Write))
            }
            Write::Transaction(transaction) => {
                let exceeded = limits.check_transaction(transaction).err().map(Refusal::from);
                let created = || limits.check_nodes_made(cx.state.nodes_made(transaction)).err().map(Refusal::from);
                let overlap = || transaction.check_overlaps().err().map(|overlap| Refusal::Write(overlap.into()));
                exceeded
                    .or_else(overlap)
                    .or_else(created)
                    .or_else(|| self.transaction_attaches_to_ending(session, transaction, cx.state))
            }
            Write::GrantLease { ttl, .. } => {
                let exceeded = limits.check_ttl(*ttl).err().map(Refusal::from).or_else(|| self.beyond_key_leases());
                exceeded.or_else(|| self.beyond_load(self.load_of_write(write, cx.state)))
            }
            // A new volume has no leases yet, so it adds no load.
            Write::CreateVolume { settings, .. } => settings.check_drift(self.config.drift).err().map(Refusal::from),
            Write::SetVolume { settings, .. } => {
                let exceeded = settings.check_drift(self.config.drift).err().map(Refusal::from);
                exceeded.or_else(|| self.beyond_load(self.load_of_write(write, cx.state)))
            }
            Write::Lock { path, delay, .. } => {
                let ending = self.attaches_to_ending(session, path, &Attach::Session, cx.state).map(Refusal::from);
                let full = cx.state.check_lock_room(session, path).err().map(Refusal::Write);
                limits.check_lock_delay(path, *delay).err().map(Refusal::from).or(ending).or(full)
            }
            Write::Delete { .. }
            | Write::RemoveVolume { .. }
            | Write::RevokeLease { .. }
            | Write::RevokeLeaseNamed { .. }
            | Write::ChangeLockMode { .. }
            | Write::Unlock { .. }
            | Write::TakeWriteLease { .. }
            | Write::Flush { value: None, .. }
            | Write::HandOver { .. } => None,
            Write::Flush { value: Some(value), .. } => limits.check_value(value).err().map(Refusal::from),
        }
    }

    /// The refusal of a write that attaches a node to a lease, or requests a lock under it, if the
    /// end of the lease is proposed (T5).
    fn attaches_to_ending(
        &self,
        writer: SessionId,
        path: &NodePath,
        attach: &Attach,
        state: &State,
    ) -> Option<WriteRefusal> {
        let (lease, refusal) = match attach {
            Attach::Nothing | Attach::Unchanged => return None,
            Attach::Lease(id) => (AnyLease::KeyLease(*id), WriteRefusal::LeaseNotFound { id: *id }),
            Attach::LeaseNamed(name) => {
                (AnyLease::KeyLease(state.lease_named(name)?), WriteRefusal::LeaseNameNotFound { name: name.clone() })
            }
            Attach::Session => {
                let volume = state.volume_of(path).0.clone();
                let refusal = WriteRefusal::NoVolumeLease { path: path.clone(), volume: volume.clone() };
                (AnyLease::Volume(writer, volume), refusal)
            }
        };
        let is_ending = self.leases.get(&lease).is_some_and(|end| end.is_end_proposed);
        is_ending.then_some(refusal)
    }

    /// Like `attaches_to_ending`, for the branch that the comparisons choose now. If they choose
    /// the other branch when the entry is applied, the state checks its attachments then.
    fn transaction_attaches_to_ending(
        &self,
        writer: SessionId,
        transaction: &Transaction,
        state: &State,
    ) -> Option<Refusal> {
        let branch = state.branch(transaction);
        let mut refusals = transaction.branch(branch).iter().enumerate().filter_map(|(index, operation)| {
            let Operation::Put { path, attach, .. } = operation else { return None };
            let refusal = Box::new(self.attaches_to_ending(writer, path, attach, state)?);
            Some(Refusal::Write(WriteRefusal::Operation { branch, index: index_of(index), refusal }))
        });
        refusals.next()
    }

    /// Ends the waits for a session's consent to this recall, and proposes the writes that became
    /// ready.
    pub(in crate::lessor) fn end_waits_consented(&mut self, session: SessionId, stamp: Stamp) {
        let ready = self.writes.consented(session, stamp);
        self.propose_ready(ready, Some(WaitEnd::Consent));
    }

    /// Ends the waits for copies that the session can no longer use, because all volume leases that
    /// protect them have ended in the replicated state (T5).
    pub(in crate::lessor) fn end_waits_without_lease(&mut self, session: SessionId, volume: &NodePath) {
        let ends = &self.leases;
        let is_live = |(volume, incarnation): (&NodePath, &Incarnation)| {
            let key = AnyLease::Volume(session, volume.clone());
            ends.get(&key).is_some_and(|end| end.incarnation == *incarnation)
        };
        let is_any_live = |wait: &ConsentWait| wait.leases.iter().any(is_live);
        let ready = self.writes.end_waits_under(session, volume, |wait| !is_any_live(wait));
        self.propose_ready(ready, Some(WaitEnd::VolumeLease));
    }

    /// Ends the waits for object leases that have ended (T3).
    pub(in crate::lessor) fn end_expired_waits(&mut self) {
        let ready = self.writes.end_expired_waits(self.clock.ending_time());
        self.propose_ready(ready, Some(WaitEnd::ObjectLease));
    }

    /// Proposes the writes that are ready, in their order, and those that become ready then.
    /// `waited` is what ended the wait of the writes in `ready`; None if they did not wait.
    pub(in crate::lessor) fn propose_ready(&mut self, ready: Vec<PendingWriteId>, waited: Option<WaitEnd>) {
        let mut ready: BTreeMap<PendingWriteId, Option<WaitEnd>> = ready.into_iter().map(|id| (id, waited)).collect();
        while let Some((next, waited)) = ready.pop_first() {
            let Some(pending) = self.writes.get(next).filter(|pending| pending.is_ready()) else { continue };
            // A write that gathers consents again is counted only with its first wait.
            let counted_in = pending.counted_in.0.as_ref().filter(|_| !pending.was_uncovered);
            if let (Some(end), Some(volume)) = (waited, counted_in) {
                self.counters.0.note_wait(volume, end, self.clock.now().since(pending.since));
            }
            match &pending.kind {
                WriteKind::Client(request) => {
                    let command = Command::Write {
                        session: request.session,
                        sequence: request.sequence,
                        unanswered_from: request.unanswered_from,
                        write: request.write.clone(),
                        consented: pending.footprint.clone(),
                        intended: request.intended.clone(),
                        attached_through: pending.gathered_at,
                    };
                    self.propose(command, ProposalReason::Write(next));
                }
                WriteKind::Purge(leases) => {
                    let leases = leases.iter().copied().collect();
                    self.propose(Command::Purge { leases }, ProposalReason::Purge(next));
                }
            }
            ready.extend(self.writes.proposed(next).into_iter().map(|id| (id, Some(WaitEnd::EarlierWrite))));
        }
    }
}

/// These sets, or their common subtree if their encoding is too long for a command. A write's
/// footprint may grow each time that it gathers, and must not make its command too long for an
/// entry.
pub(in crate::lessor) fn within_a_command(footprint: Vec<ObjectSet>) -> Vec<ObjectSet> {
    if encoded_bytes_of_sets(&footprint) <= Write::CONSENTED_BYTES_MAX {
        return footprint;
    }
    reached(Bound::ConsentedBytes);
    vec![ObjectSet::Subtree(NodePath::common_ancestor(footprint.iter().map(ObjectSet::path)))]
}
