//! The steps that follow a proposal of this lessor, just after it was applied (S7, S7b, S9, T5,
//! T6).

use std::collections::BTreeSet;

use crate::{
    command::{GrantedKeyLease, LeaseKey, Outcome, Write, WriteRefusal, Written},
    id::{Epoch, Incarnation, Revision, SessionId, Stamp},
    message::{AcquiredVolume, Answer, KeyLeaseRenewal, LastValid, Refusal, Revival},
    object::{Object, ObjectSet},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    state::State,
    time::Instant,
    volume::Tracking,
    work::CountVisits,
};

use super::{
    Lessor, ProposalInFlight, ProposalReason, Requester, StepContext,
    clock::run_on_max,
    lease_ends::LeaseEnds,
    load::results_of_write,
    object_leases::CopyTracking,
    recall_channel::RecallChannel,
    writes::{ClientWrite, PendingWrite, PendingWriteId, WriteKind},
};

impl Lessor {
    pub(super) fn handle_committed(
        &mut self,
        number: u64,
        (outcomes, held): (Vec<Outcome>, &BTreeSet<NodePath>),
        cx: &mut StepContext<'_>,
    ) {
        self.handle_lock_changes(held, cx);
        let Some(ProposalInFlight { time, proposed_at, reasons }) = self.in_flight.remove(&number) else { return };
        if self.epoch.is_some() {
            self.clock.committed(time, proposed_at);
        }
        for (reason, outcome) in reasons.into_iter().zip(outcomes) {
            match reason {
                ProposalReason::Begin => self.begin_epoch(&outcome, proposed_at, cx),
                ProposalReason::Tick => {
                    self.is_tick_in_flight = false;
                    self.lease_ends.handle_tick_committed(cx.state);
                    if !self.lease_ends.is_behind() {
                        self.renewals.mark_ticks_complete();
                    }
                }
                ProposalReason::Purge(waiting) => self.handle_purged(waiting, cx.state),
                ProposalReason::Open(asker) => {
                    self.load_to_come -= Self::load_of_session();
                    self.sessions_to_come -= 1;
                    self.handle_session_opened(&asker, &outcome, cx);
                }
                ProposalReason::Close(asker) => self.handle_session_closed(&asker, cx),
                ProposalReason::Acquire(asker, valid_at, load) => {
                    self.load_to_come -= load;
                    self.handle_volume_acquired(&asker, valid_at, &outcome, cx);
                }
                ProposalReason::Expire(key, incarnation) => self.handle_expired(key, incarnation, &outcome, cx),
                ProposalReason::Write(waiting) => self.handle_written(waiting, outcome, cx),
            }
        }
    }

    /// The first entry of the epoch is applied, and so is everything older in the log. Every lease
    /// starts at its horizon (T6), and every volume lease is covering (S7).
    fn begin_epoch(&mut self, outcome: &Outcome, proposed_at: Instant, cx: &mut StepContext<'_>) {
        let Outcome::EpochBegun { epoch } = outcome else { return };
        let state = cx.state;
        self.epoch = Some(*epoch);
        let heard = self.heard.min(run_on_max(state.tick()));
        self.clock.begin(state.cluster_time(), heard, proposed_at, cx.now);
        // The log does not have the time heard yet, and the next leader must know it. So the lessor
        // proposes the first tick at once, which logs it.
        self.last_tick = None;
        self.orphans = state.orphans().counted().collect();
        self.lease_ends = LeaseEnds::from_horizons(state, self.config.bounds.departed_max);
        for (key, lease) in state.leases() {
            if let LeaseKey::Volume(session, volume) = key {
                let mode = if self.planted(Bug::ForgetOldHolders) {
                    CopyTracking::Exact
                } else {
                    self.covering_mode(volume, state)
                };
                self.object_leases.start_tracking(volume.clone(), *session, lease.incarnation, mode);
            }
        }
    }

    /// How to track a volume lease whose object leases are unknown.
    fn covering_mode(&mut self, volume: &NodePath, state: &State) -> CopyTracking {
        match tracking(volume, state) {
            Tracking::Covering => CopyTracking::Covering,
            Tracking::Objects => {
                CopyTracking::AwaitingReport { number: self.next_covering(), pieces: Default::default() }
            }
        }
    }

    fn handle_session_opened(&mut self, asker: &Requester, outcome: &Outcome, cx: &mut StepContext<'_>) {
        let Outcome::SessionOpened { session } = outcome else {
            return self.reply_without_promises(asker, Err(Refusal::Retry), cx);
        };
        let key = LeaseKey::Session(*session);
        if let Some(lease) = cx.state.lease(&key) {
            let end = self.clock.expiry_time().after(State::SESSION_TERM);
            self.lease_ends.insert(key, lease.incarnation, end, State::SESSION_TERM);
        }
        self.reply_without_promises(asker, Ok(Answer::Opened { session: *session, term: State::SESSION_TERM }), cx);
    }

    fn handle_session_closed(&mut self, asker: &Requester, cx: &mut StepContext<'_>) {
        if cx.state.session(asker.session).is_none() {
            self.forget_session(asker.session, cx);
        }
        self.reply_without_promises(asker, Ok(Answer::Closed), cx);
    }

    /// Handles a session's new lease on a volume. The earlier lease ended with the same entry.
    fn handle_volume_acquired(
        &mut self,
        asker: &Requester,
        valid_at: Option<LastValid>,
        outcome: &Outcome,
        cx: &mut StepContext<'_>,
    ) {
        let session = asker.session;
        let Outcome::VolumeAcquired { volume, incarnation, .. } = outcome else {
            let refusal = match outcome {
                Outcome::SessionNotFound => Refusal::SessionNotFound { session },
                _ => Refusal::Retry,
            };
            return self.reply_without_promises(asker, Err(refusal), cx);
        };
        let key = LeaseKey::Volume(session, volume.clone());
        let Some(lease) = cx.state.lease(&key) else {
            return self.reply_without_promises(asker, Err(Refusal::Retry), cx);
        };
        // True if another acquisition in the same entry has replaced this request's lease. Under
        // the present lease the leader tracks no copies, so this answer must revive none.
        let is_overtaken = lease.incarnation != *incarnation;
        let (incarnation, horizon, term) = (lease.incarnation, lease.horizon, lease.term());
        if self.lease_ends.get(&key).is_some_and(|end| end.incarnation == incarnation) {
            return self.answer_already_acquired(asker, &key, volume, cx);
        }
        let valid_at = valid_at.filter(|_| !is_overtaken);
        let revival = self.revival(volume, incarnation, valid_at, cx);
        let mode = match (&revival, tracking(volume, cx.state)) {
            (_, Tracking::Covering) => CopyTracking::Covering,
            (Revival::AllExcept { covering, .. }, Tracking::Objects) if !self.planted(Bug::ReviveWithoutCovering) => {
                CopyTracking::AwaitingReport { number: *covering, pieces: Default::default() }
            }
            (_, Tracking::Objects) => CopyTracking::Exact,
        };
        self.object_leases.start_tracking(volume.clone(), session, incarnation, mode);
        // If the commit took long, the horizon may have passed already.
        self.lease_ends.insert(key.clone(), incarnation, self.clock.expiry_time().min(horizon), term);
        self.end_waits_without_lease(session, volume);
        let Some(epoch) = self.epoch else { return };
        let stamp = self.channel(session).stamp(epoch);
        match self.promise(&key, volume, cx) {
            Some((promise, _)) => {
                self.reply(asker, Ok(Answer::Acquired(AcquiredVolume { promise, stamp, revival })), cx)
            }
            None => self.reply(asker, Err(Refusal::Retry), cx),
        }
    }

    /// Answers an acquisition for which the earlier lease remained, because nodes or locks depend
    /// on it. The leader still tracks its copies, and the client validates each before use. If the
    /// end of the lease is proposed, the client must ask again.
    fn answer_already_acquired(
        &mut self,
        asker: &Requester,
        key: &LeaseKey,
        volume: &NodePath,
        cx: &mut StepContext<'_>,
    ) {
        let Some(epoch) = self.epoch else { return };
        let is_ending = self.lease_ends.get(key).is_some_and(|end| end.is_end_proposed);
        let stamp = self.channel(asker.session).stamp(epoch);
        let promise = if is_ending { None } else { self.promise(key, volume, cx) };
        match promise {
            Some((promise, _)) => {
                let acquired = AcquiredVolume { promise, stamp, revival: Revival::None };
                self.reply(asker, Ok(Answer::Acquired(acquired)), cx);
            }
            None => self.reply(asker, Err(Refusal::Retry), cx),
        }
    }

    /// Which copies of a returning session are valid again: those of objects without a change since
    /// its last lease, and without a pending write. This is Yin's delayed invalidation, without a
    /// list for each client.
    fn revival(
        &mut self,
        volume: &NodePath,
        incarnation: Incarnation,
        valid_at: Option<LastValid>,
        cx: &StepContext<'_>,
    ) -> Revival {
        let state = cx.state;
        let known = valid_at.filter(|valid_at| {
            valid_at.incarnation < incarnation
                && state.volume(volume).is_some_and(|volume| volume.generation == valid_at.generation)
        });
        let changed = known.and_then(|known| self.changed(known.revision, volume, state));
        match changed {
            Some(changed) => Revival::AllExcept { changed, covering: self.next_covering() },
            None => Revival::None,
        }
    }

    /// The objects of the volume that have changed since the revision, that pending writes cover,
    /// or that are under a write lease. `None` if the history does not reach back, or if the list
    /// would be too long. The search stops when the list is too long.
    fn changed(&self, since: Revision, volume: &NodePath, state: &State) -> Option<Vec<ObjectSet>> {
        let within = ObjectSet::Subtree(volume.clone());
        let written = self.writes.covers_within(&within);
        let kept = state.write_leased_in(&within).map(|path| ObjectSet::One(Object::data(path.clone())));
        let mut bytes = 0;
        let mut tell = |set: ObjectSet| {
            bytes += set.path().as_str().len() + 1;
            let fits = bytes <= self.config.bounds.revival_bytes_max;
            if !fits {
                reached(Bound::RevivalBytes);
            }
            fits.then_some(set)
        };
        // First the changed sets, sorted, each once, then those of pending writes and write leases.
        let mut changed: Vec<ObjectSet> =
            state.changed_in_volume(volume, since)?.cloned().map(&mut tell).collect::<Option<_>>()?;
        changed.sort_unstable();
        changed.dedup();
        let others = written.chain(kept).map(tell).collect::<Option<Vec<_>>>()?;
        changed.extend(others);
        Some(changed)
    }

    fn handle_expired(&mut self, key: LeaseKey, incarnation: Incarnation, outcome: &Outcome, cx: &mut StepContext<'_>) {
        match outcome {
            Outcome::Expired => match &key {
                LeaseKey::Session(session) => self.forget_session(*session, cx),
                LeaseKey::Volume(..) | LeaseKey::Key(_) | LeaseKey::LockDelay(_) => self.forget_lease(&key),
            },
            // A tick in flight moved the horizon. The lessor still refuses to renew the lease, and
            // proposes its end again (T5). A new lease from the same entry is not affected.
            //
            // A session lease promises nothing: a sign of life, such as a new volume lease, renews
            // it.
            Outcome::HorizonMoved { .. } => {
                if let LeaseKey::Session(_) = &key {
                    let end = self.clock.expiry_time().after(State::SESSION_TERM);
                    self.lease_ends.insert(key, incarnation, end, State::SESSION_TERM);
                } else if let Some(lease) = cx.state.lease(&key).filter(|lease| lease.incarnation == incarnation) {
                    self.propose_expiry(key, incarnation, lease.horizon);
                }
            }
            // Another incarnation has taken its place.
            _ => {}
        }
    }

    /// Forgets a lease that the replicated state no longer has.
    pub(super) fn forget_lease(&mut self, key: &LeaseKey) {
        self.lease_ends.remove(key);
        if let LeaseKey::Volume(session, volume) = key {
            self.object_leases.end_tracking(volume, *session);
            self.end_waits_without_lease(*session, volume);
        }
    }

    fn forget_session(&mut self, session: SessionId, cx: &mut StepContext<'_>) {
        let keys: Vec<LeaseKey> = self.lease_ends.of(session).cloned().collect();
        for key in keys {
            self.lease_ends.remove(&key);
            if let LeaseKey::Volume(_, volume) = &key {
                self.object_leases.end_tracking(volume, session);
                self.end_waits_without_lease(session, volume);
            }
        }
        self.recall_channels.remove(&session);
        self.drift_reports.forget(session);
        self.refuse_awaited_locks(session, Refusal::SessionNotFound { session }, cx);
        self.refuse_watches(session, &Refusal::SessionNotFound { session }, cx);
        self.refuse_blocked_reads(session, &Refusal::SessionNotFound { session }, cx);
    }

    fn handle_written(&mut self, waiting: PendingWriteId, outcome: Outcome, cx: &mut StepContext<'_>) {
        let result = match outcome {
            Outcome::MissingConsents => return self.gather_again(waiting, cx),
            Outcome::Written(result) => Ok(result),
            Outcome::BelowWindow { lowest } => Err((lowest, lowest.window_end())),
            Outcome::BeyondWindow { highest } => Err((highest.window_start(), highest)),
            Outcome::SessionNotFound => {
                return self.write_refused(waiting, |session, _| Refusal::SessionNotFound { session }, cx);
            }
            _ => return self.write_refused(waiting, |_, _| Refusal::Retry, cx),
        };
        let result = match result {
            Ok(result) => result,
            Err((lowest, highest)) => {
                return self.write_refused(waiting, |_, got| Refusal::OutsideWindow { got, lowest, highest }, cx);
            }
        };
        let Some((asked, ready)) = self.finish_client_write(waiting) else { return };
        match (&result, &asked.write) {
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
            (Ok(_), Write::RevokeLease { id }) => self.forget_lease(&LeaseKey::Key(*id)),
            (
                Ok(_),
                Write::CreateVolume { path, .. } | Write::SetVolume { path, .. } | Write::RemoveVolume { path },
            ) => self.reset_volume_copies(path, cx.state),
        }
        self.answer_write(asked, &result, cx);
        self.propose_ready(ready);
    }

    fn finish_client_write(&mut self, waiting: PendingWriteId) -> Option<(ClientWrite, Vec<PendingWriteId>)> {
        match self.writes.leave(waiting)? {
            (PendingWrite { work: WriteKind::Client(asked), .. }, ready) => {
                self.load_to_come -= asked.load;
                self.results_to_come -= results_of_write(&asked.write);
                Some((asked, ready))
            }
            _ => None,
        }
    }

    /// Gathers consents again for a write that would have changed objects that no consent covers
    /// (S2). The write stays at its position in the queues.
    fn gather_again(&mut self, waiting: PendingWriteId, cx: &mut StepContext<'_>) {
        let Some(asked) = self.writes.get(waiting).and_then(PendingWrite::client_write) else { return };
        let covers = self.covers_again(asked, cx.state);
        let ready = self.writes.cover(waiting, covers);
        self.propose_ready(ready);
        self.gather(waiting, cx);
    }

    fn write_refused(
        &mut self,
        waiting: PendingWriteId,
        refusal: impl Fn(SessionId, crate::id::Sequence) -> Refusal,
        cx: &mut StepContext<'_>,
    ) {
        let Some((asked, ready)) = self.finish_client_write(waiting) else { return };
        for asker in &asked.requesters {
            self.reply(asker, Err(refusal(asked.session, asked.sequence)), cx);
        }
        self.propose_ready(ready);
    }

    /// Answers all requesters. After a put, the last requester gets a lease on the node's data, so
    /// that its next read is a hit. After a transaction it gets none, because the lessor does not
    /// know which objects the writer will read.
    fn answer_write(&mut self, asked: ClientWrite, result: &Result<Written, WriteRefusal>, cx: &mut StepContext<'_>) {
        let ClientWrite { requesters, write, .. } = asked;
        let last = requesters.len().saturating_sub(1);
        for (place, asker) in requesters.iter().enumerate() {
            let answer = match result {
                Err(refusal) => Err(Refusal::Write(refusal.clone())),
                Ok(written) => Ok(self.written_answer(asker.session, &write, written, place == last, cx)),
            };
            self.reply(asker, answer, cx);
        }
    }

    /// Answers with a remembered outcome, without object leases. Promises are computed afresh (S9).
    pub(super) fn answer_again(
        &mut self,
        asker: &Requester,
        write: &Write,
        outcome: Result<Written, WriteRefusal>,
        cx: &mut StepContext<'_>,
    ) {
        let answer = match outcome {
            Err(refusal) => Err(Refusal::Write(refusal)),
            Ok(written) => Ok(self.written_answer(asker.session, write, &written, false, cx)),
        };
        self.reply(asker, answer, cx);
    }

    /// The answer to a write that took effect. If `grants`, a put's writer gets a lease on the
    /// node.
    fn written_answer(
        &mut self,
        session: SessionId,
        write: &Write,
        written: &Written,
        grants: bool,
        cx: &StepContext<'_>,
    ) -> Answer {
        // A write lease counts as a grant, so that its stamp is later than all earlier recalls.
        let is_write_lease = grants && matches!(write, Write::TakeWriteLease { .. });
        let stamp = if is_write_lease { self.grant_stamp(session) } else { self.stamp(session) };
        // The end of a lease in the same entry may have removed the written node again. The queues
        // order only writes, so they do not prevent that.
        let is_there =
            |path: &NodePath| cx.state.node(path).is_some_and(|node| node.modify_revision == written.revision);
        let grant = match write {
            Write::Put { path, .. } if grants && is_there(path) => self.grant(session, &Object::data(path.clone()), cx),
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

    fn stamp(&mut self, session: SessionId) -> Stamp {
        let epoch = self.epoch.unwrap_or(Epoch(0));
        self.channel(session).stamp(epoch)
    }

    fn grant_stamp(&mut self, session: SessionId) -> Stamp {
        let epoch = self.epoch.unwrap_or(Epoch(0));
        self.channel(session).stamp_grant(epoch)
    }

    /// Forgets the object leases in a volume whose borders or settings have changed, because the
    /// lessor has recalled all copies. If the volume was removed, the leases on it have ended.
    fn reset_volume_copies(&mut self, top: &NodePath, state: &State) {
        let all = ObjectSet::Subtree(top.clone());
        for session in self.object_leases.sessions_in(&all, self.clock.expiry_time()) {
            let granted = self.recall_channels.get(&session).map_or(0, RecallChannel::last_grant);
            self.object_leases.drop_through(&all, session, granted);
        }
        if state.volume(top).is_some() {
            return;
        }
        for session in self.object_leases.sessions_on(top) {
            self.lease_ends.remove(&LeaseKey::Volume(session, top.clone()));
            self.object_leases.end_tracking(top, session);
            self.end_waits_without_lease(session, top);
        }
    }
}

fn tracking(volume: &NodePath, state: &State) -> Tracking {
    state.volume(volume).map_or(Tracking::Objects, |volume| volume.settings.tracking())
}
