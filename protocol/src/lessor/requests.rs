//! Handles requests from their arrival until they are answered or wait: admission, registration,
//! consents, holder reports and reads (S2, S6, S7).

use std::time::Duration;

use crate::{
    change::Changes,
    command::{Command, LeaseKey},
    id::{Epoch, RequestId, Sequence, SessionId, Stamp},
    message::{
        Answer, Body, Consent, HolderReportPart, Inspect, LIST_NODES_MAX, ListPage, ReadAnswer, Refusal, Request,
        RequestHeader,
    },
    object::{Content, Data, ObjectSet},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    state::State,
};

use super::{
    Lessor, LessorBounds, LessorEffect, ProposalReason, ReadTarget, Requester, StepContext, WaitingRead,
    object_leases::{CopyTracking, GrantSource, ObjectLease},
    recall_channel::{RECALL_RESEND_INTERVAL, RecallChannel},
    renewals::RenewalAnswer,
    watches::WatchRequest,
};

impl Lessor {
    pub(super) fn handle_request(&mut self, id: RequestId, request: Request, cx: &mut StepContext<'_>) {
        let lengths = request.check_lengths();
        let Request { header, body } = request;
        let is_sessionless = header.is_sessionless();
        let mut requester = Requester { id, session: header.session, renewed: Vec::new() };
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
    /// the consents, returns and renewals in its header. Returns false if it refused the request.
    fn admit(
        &mut self,
        asker: &mut Requester,
        header: RequestHeader,
        body: &Body,
        epoch: Epoch,
        cx: &mut StepContext<'_>,
    ) -> bool {
        let session = asker.session;
        if cx.state.session(session).is_none() {
            self.reply_without_promises(asker, Err(Refusal::SessionNotFound { session }), cx);
            return false;
        }
        if let Body::Register = body {
            if !self.channel(session).register(header.registration) {
                let refusal = Refusal::NotRegistered { got: epoch, expected: epoch };
                self.reply_without_promises(asker, Err(refusal), cx);
                return false;
            }
            self.drift_reports.registered(session, header.registration, cx.now);
        } else if header.epoch != epoch || !self.is_current(session, header.registration) {
            let refusal = Refusal::NotRegistered { got: header.epoch, expected: epoch };
            self.reply_without_promises(asker, Err(refusal), cx);
            return false;
        }
        self.renew_session_lease(session, cx);
        for stamp in header.consents {
            self.consent(Consent { session, stamp }, cx);
        }
        for given_back in header.returns {
            self.drop_older(session, &ObjectSet::One(given_back.object), given_back.stamp);
        }
        // Renewals count from the arrival, not from the answer. They come after the consents,
        // because an unanswered recall limits them (S5).
        asker.renewed = self.renew_all(session, header.renew, cx);
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
                self.read(WaitingRead { requester, wanted: ReadTarget::List { path, after, nodes_max } }, cx);
            }
            Body::Heartbeat(question) => {
                let answer = self.compare_clocks(session, &question, cx);
                self.answer_renewal(requester, RenewalAnswer::Heartbeat(answer), cx);
            }
            Body::Close => self.propose(Command::CloseSession { session }, ProposalReason::Close(requester)),
            Body::Acquire { path, last_valid } => {
                if let Err(error) = self.config.limits.check_path(&path) {
                    return self.reply(&requester, Err(error.into()), cx);
                }
                if self.may_extend_ending(session, &path, cx.state) {
                    return self.reply(&requester, Err(Refusal::Retry), cx);
                }
                let load = self.load_of_acquiring(session, &path, cx.state);
                if let Some(refusal) = self.beyond_load(load) {
                    return self.reply_without_promises(&requester, Err(refusal), cx);
                }
                self.load_to_come += load;
                self.propose(
                    Command::AcquireVolume { session, path },
                    ProposalReason::Acquire(requester, last_valid, load),
                );
            }
            Body::KeepAlive { leases } => self.keep_alive(requester, &leases, cx),
            Body::Read { object, known } => {
                self.read(WaitingRead { requester, wanted: ReadTarget::Object { object, known, waits: false } }, cx);
            }
            Body::AwaitRead { object, known } => {
                self.read(WaitingRead { requester, wanted: ReadTarget::Object { object, known, waits: true } }, cx);
            }
            Body::Watch { watched, after, wait, bytes_max } => {
                self.watch(requester, WatchRequest { watched, after, bytes_max }, wait, cx);
            }
            Body::Write { write, dropped, seen } => self.write(requester, numbers, write, (dropped, seen), cx),
            Body::AwaitLocks { locks } => self.await_locks(requester, locks, cx),
            Body::HolderReport(piece) => {
                self.add_holder_report_part(session, &piece, cx);
                self.reply(&requester, Ok(Answer::ReportReceived), cx);
            }
        }
    }

    /// Whether acquiring a volume lease could extend a lease whose end is proposed: one with nodes
    /// or locks, which an acquisition does not replace. A stream of such requests would move the
    /// horizon before each proposed end, and the lease would never end (T5). It checks all volumes
    /// at and above the path, because the path's own may be removed first.
    fn may_extend_ending(&self, session: SessionId, path: &NodePath, state: &State) -> bool {
        let tops = std::iter::once(path.clone()).chain(path.ancestors());
        let keys = tops.map(|top| LeaseKey::Volume(session, top));
        let mut ending = keys.filter(|key| self.lease_ends.get(key).is_some_and(|end| end.is_end_proposed));
        ending.any(|key| state.has_dependents(&key))
    }

    fn open(&mut self, asker: Requester, name: String, cx: &mut StepContext<'_>) {
        let load = Self::load_of_session();
        let refusal = self.config.limits.check_session_name(&name).err().map(Refusal::from);
        if let Some(refusal) = refusal.or_else(|| self.beyond_load(load)) {
            return self.reply_without_promises(&asker, Err(refusal), cx);
        }
        self.load_to_come += load;
        self.sessions_to_come += 1;
        self.propose(Command::OpenSession { name }, ProposalReason::Open(asker));
    }

    /// Answers a registration of the session. The answer names the coverings for which the lessor
    /// wants holder reports (S7). Unanswered recalls follow, as many as one request sends again.
    ///
    /// Each registration asks for new reports. Parts of reports from earlier registrations do not
    /// count.
    fn handle_registration(&mut self, asker: &Requester, cx: &mut StepContext<'_>) {
        let session = asker.session;
        // The client no longer waits for answers on an earlier connection.
        self.refuse_awaited_locks(session, Refusal::Retry, cx);
        self.refuse_watches(session, &Refusal::Retry, cx);
        self.refuse_blocked_reads(session, &Refusal::Retry, cx);
        let volumes = cx.state.leases_of(session).filter_map(|(key, _)| key.volume());
        let coverings = &mut self.coverings;
        let coverings = self.object_leases.request_holder_reports(session, volumes, || {
            *coverings = coverings.next();
            *coverings
        });
        self.reply(asker, Ok(Answer::Registered { coverings }), cx);
        self.resend_recalls(session, Duration::ZERO, cx);
    }

    /// Whether the request belongs to the session's latest registration with this epoch.
    fn is_current(&self, session: SessionId, registration: u64) -> bool {
        let is_current = |channel: &RecallChannel| channel.is_current(registration);
        self.recall_channels.get(&session).is_some_and(is_current) || self.planted(Bug::LateRequestHonoured)
    }

    /// Sends unanswered recalls again: those last sent at least `after` ago, a bounded number of
    /// them.
    fn resend_recalls(&mut self, session: SessionId, after: Duration, cx: &mut StepContext<'_>) {
        let (channel, most) = (self.recall_channels.entry(session).or_default(), self.config.bounds.recalls_again_max);
        let again = channel.resend_overdue(cx.now, after, most);
        if again.len() == most {
            reached(Bound::RecallsAgain);
        }
        cx.effects.extend(again.into_iter().map(LessorEffect::Recall));
    }

    /// Handles a consent: the session has dropped the sets of the recall with this stamp (S2). If
    /// there is no such unanswered recall, the consent has no effect.
    pub(super) fn consent(&mut self, consent: Consent, cx: &mut StepContext<'_>) {
        let Consent { session, stamp } = consent;
        if let Some(kept) = self.write_leased_node(session, stamp, cx.state) {
            return self.note_early(kept, consent, cx);
        }
        let Some(recall) = self.recall_channels.get_mut(&session).and_then(|channel| channel.consent(stamp)) else {
            return;
        };
        for set in &recall.sets {
            self.drop_older(session, set, stamp);
        }
        self.end_waits_consented(session, stamp);
    }

    /// Forgets the session's leases in the set with stamps up to this one. A later grant stays
    /// valid (S2). The stamp is that of a recall that the session consents to, or of a grant that
    /// it returns.
    fn drop_older(&mut self, session: SessionId, set: &ObjectSet, stamp: Stamp) {
        if Some(stamp.epoch) == self.epoch {
            self.object_leases.drop_through(set, session, stamp.sequence);
        }
    }

    /// Handles one part of a holder report (S7). A part only adds object leases, and is never a
    /// consent. A part that names another lease or covering is old, and has no effect. The number
    /// of parts is bounded, because the lessor remembers which have arrived.
    fn add_holder_report_part(&mut self, session: SessionId, piece: &HolderReportPart, cx: &StepContext<'_>) {
        let HolderReportPart { volume, incarnation, covering, part, parts, objects } = piece;
        if part >= parts || *parts as usize > self.config.limits.session_objects_max.max(1) {
            return;
        }
        let Some(track) = self.object_leases.track(volume, session) else { return };
        let is_current = track.incarnation == *incarnation
            && matches!(&track.tracking, CopyTracking::AwaitingReport { number, .. } if number == covering);
        let Some((_, settings)) = is_current.then(|| cx.state.volume_of(volume)) else { return };
        let over = self.clock.expiry_time().after(settings.settings.object_wait(self.config.drift));
        // The report does not name the grant of each copy. The last grant to the session is an
        // upper bound (S2, S2w).
        let sequence = self.recall_channels.get(&session).map_or(0, RecallChannel::last_grant);
        let most = self.config.limits.session_objects_max;
        // If there is no room, the part is ignored, so the session stays covering.
        if self.object_leases.len() + objects.len() > self.config.bounds.object_leases_max {
            reached(Bound::ObjectLeases);
            return;
        }
        for object in objects.iter().filter(|object| cx.state.volume_of(&object.path).0 == volume) {
            self.object_leases.add(
                volume,
                object,
                session,
                ObjectLease { over, source: GrantSource::reported(sequence) },
                most,
                cx.state,
            );
        }
        self.object_leases.add_report_part(volume, session, *part, *parts);
    }

    /// Lets a read wait for a quorum round that begins after its arrival. If a round is in flight,
    /// the read waits for the next (S6).
    pub(super) fn read(&mut self, read: WaitingRead, cx: &mut StepContext<'_>) {
        let path = match &read.wanted {
            ReadTarget::Object { object, .. } => Some(&object.path),
            ReadTarget::List { path, .. } => Some(path),
            ReadTarget::CurrentRevision => None,
        };
        if let Some(Err(error)) = path.map(|path| self.config.limits.check_path(path)) {
            return self.reply(&read.requester, Err(error.into()), cx);
        }
        let got = self.proven_reads.len() + self.round_reads.len() + self.next_round_reads.len();
        let most = self.config.bounds.reads_max;
        if got >= most {
            reached(Bound::Reads);
            let refusal = Refusal::Busy { what: "reads".to_owned(), got, most };
            return self.reply_without_promises(&read.requester, Err(refusal), cx);
        }
        if self.planted(Bug::ReadWithoutProof) {
            return self.answer_read(&read, cx);
        }
        self.next_round_reads.push(read);
        self.begin_round(cx);
    }

    fn begin_round(&mut self, cx: &mut StepContext<'_>) {
        if self.round_reads.is_empty() && !self.next_round_reads.is_empty() {
            self.round = self.round.wrapping_add(1);
            self.round_reads = std::mem::take(&mut self.next_round_reads);
            cx.effects.push(LessorEffect::Prove { round: self.round });
        }
    }

    pub(super) fn handle_proof(&mut self, round: u64, cx: &mut StepContext<'_>) {
        if round == self.round {
            self.proven_reads.extend(std::mem::take(&mut self.round_reads));
            self.answer_proven(cx);
            self.begin_round(cx);
        }
    }

    /// Answers reads whose round has succeeded, up to the bounds of one step. The next steps answer
    /// the others from the state as applied by then. The round began after all of them arrived, so
    /// it proves leadership for all.
    pub(super) fn answer_proven(&mut self, cx: &mut StepContext<'_>) {
        let LessorBounds { reads_per_step, content_bytes_max, .. } = self.config.bounds;
        for _ in 0..reads_per_step.max(1) {
            let Some(read) = self.proven_reads.pop_front() else { return };
            self.answer_read(&read, cx);
            if cx.read_bytes >= content_bytes_max {
                return;
            }
        }
        if !self.proven_reads.is_empty() {
            reached(Bound::ReadsPerStep);
        }
    }

    pub(super) fn handle_proof_failure(&mut self, round: u64, cx: &mut StepContext<'_>) {
        if round == self.round {
            for read in std::mem::take(&mut self.round_reads) {
                self.reply_without_promises(&read.requester, Err(Refusal::Retry), cx);
            }
            self.begin_round(cx);
        }
    }

    pub(super) fn answer_read(&mut self, read: &WaitingRead, cx: &mut StepContext<'_>) {
        self.answer_freed(read, None, cx);
    }

    /// Answers a read. `freed` is the node whose write lease has ended, if the read waited for one.
    pub(super) fn answer_freed(&mut self, read: &WaitingRead, freed: Option<&NodePath>, cx: &mut StepContext<'_>) {
        let WaitingRead { requester, wanted } = read;
        let (object, known) = match wanted {
            ReadTarget::Object { object, .. }
                if freed != Some(&object.path) && self.is_under_write_lease(object, cx.state) =>
            {
                return self.defer_read(read, object, cx);
            }
            ReadTarget::Object { object, known, .. } => (object, known),
            ReadTarget::List { path, after, nodes_max } => {
                let page = list(path, after.as_ref(), *nodes_max, &self.config.bounds, cx.state);
                cx.read_bytes += page.nodes.iter().map(|(_, data)| NODE_BYTES + data.value.len()).sum::<usize>();
                return self.answer_list(read, (page, freed), cx);
            }
            ReadTarget::CurrentRevision => {
                let changes = Changes { changes: Vec::new(), through: cx.state.revision() };
                return self.reply(requester, Ok(Answer::Changes(changes)), cx);
            }
        };
        let is_unchanged = known.is_some() && *known == cx.state.modify_revision(object);
        let content = match is_unchanged {
            true => Ok(None),
            false => cx.state.content_within(object, self.config.bounds.content_bytes_max).map(Some),
        };
        let content = match content {
            Ok(content) => content,
            Err(error) => {
                reached(Bound::ContentBytes);
                return self.reply(requester, Err(error.into()), cx);
            }
        };
        cx.read_bytes += content.as_ref().map_or(0, Content::weight);
        let grant = self.grant(requester.session, object, cx);
        let volume = cx.state.volume_of(&object.path).0.clone();
        let answer = ReadAnswer { content, grant, volume, applied: cx.state.revision() };
        self.reply(requester, Ok(Answer::Read(answer)), cx);
    }

    pub(super) fn answer_inspect(&self, inspect: &Inspect, cx: &StepContext<'_>) -> Option<Answer> {
        match inspect {
            Inspect::Holders { path } => Some(Answer::Holders(self.holder_infos(path, cx))),
            Inspect::PendingWrites { path } => Some(Answer::PendingWrites(self.wait_infos(path, cx))),
            Inspect::BlockedReads { path } => Some(Answer::BlockedReads(self.blocked_read_infos(path, cx))),
            Inspect::Volumes { path } => Some(Answer::Volumes(self.volume_infos(path, cx))),
            Inspect::Lease { id, keys_after } => Some(Answer::Lease(self.lease_info(*id, keys_after.as_ref(), cx))),
            Inspect::Locks { path } => Some(Answer::LockInfos(self.lock_infos(path, cx))),
            Inspect::Leases { after } => Some(Answer::Leases(self.lease_infos(*after, cx))),
            Inspect::Services { path, after } => Some(Answer::Services(self.services(path, after.as_ref(), cx))),
            Inspect::Cluster => None,
        }
    }

    pub(super) fn channel(&mut self, session: SessionId) -> &mut RecallChannel {
        self.recall_channels.entry(session).or_default()
    }
}

/// A page of the nodes at and below a path: the first nodes, up to the bounds of a page.
pub(super) fn list(
    path: &NodePath,
    after: Option<&NodePath>,
    nodes_max: u32,
    bounds: &LessorBounds,
    state: &State,
) -> ListPage {
    if nodes_max > LIST_NODES_MAX {
        reached(Bound::ListNodes);
    }
    let most = nodes_max.clamp(1, LIST_NODES_MAX) as usize;
    let mut page = ListPage { nodes: Vec::new(), revision: state.revision(), through: None };
    let (mut bytes, mut through): (usize, Option<&NodePath>) = (0, None);
    // Tombstones count too, because examining them takes time.
    for (looked_at, (path, node)) in state.nodes_and_tombstones_in(path, after).enumerate() {
        bytes += node.map_or(0, |node| path.as_str().len() + node.value.len() + NODE_BYTES);
        let is_long = page.nodes.len() == most;
        let is_full = is_long || (bytes > bounds.list_bytes_max && !page.nodes.is_empty());
        if is_full || looked_at == bounds.scan_max {
            if !is_long {
                reached(if is_full { Bound::ListBytes } else { Bound::Scan });
            }
            page.through = through.cloned();
            break;
        }
        if let Some(node) = node {
            page.nodes.push((path.clone(), Data { value: node.value.clone(), stat: node.stat() }));
        }
        through = Some(path);
    }
    page
}

/// About how many bytes a node takes in a list in addition to its path and value.
const NODE_BYTES: usize = 64;
