//! What clients ask, up to where it is answered or begins to wait.

use std::time::Duration;

use crate::{
    change::Changes,
    command::{Command, LeaseKey},
    id::{CoveringNumber, Epoch, RequestId, Sequence, SessionId, Stamp},
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
    pub(super) fn handle_request(&mut self, id: RequestId, request: Request, turn: &mut StepContext<'_>) {
        let lengths = request.check_lengths();
        let Request { header, body } = request;
        let is_sessionless = header.is_sessionless();
        let mut requester = Requester { id, session: header.session, renewed: Vec::new() };
        let Some(epoch) = self.epoch.filter(|epoch| *epoch == turn.state.epoch()) else {
            if let (Body::Read { object, known }, true) = (body, self.planted(Bug::ReadBeforeFirstEntry)) {
                let wanted = ReadTarget::Object { object, known, waits: false };
                return self.answer_read(&WaitingRead { requester, wanted }, turn);
            }
            return self.reply_without_promises(&requester, Err(Refusal::Retry), turn);
        };
        if let Err(error) = lengths {
            return self.reply_without_promises(&requester, Err(error.into()), turn);
        }
        let numbers = (header.sequence, header.unanswered_from);
        let may_be_sessionless = matches!(body, Body::Open { .. } | Body::Inspect(_) | Body::List { .. });
        if (is_sessionless && may_be_sessionless) || self.admit(&mut requester, header, &body, epoch, turn) {
            self.dispatch(requester, numbers, body, turn);
        }
    }

    /// The one way in for whatever speaks for a session: the session exists, and has registered
    /// with this epoch. What the header carries takes effect. False if the request has been
    /// answered.
    fn admit(
        &mut self,
        asker: &mut Requester,
        header: RequestHeader,
        body: &Body,
        epoch: Epoch,
        turn: &mut StepContext<'_>,
    ) -> bool {
        let session = asker.session;
        if turn.state.session(session).is_none() {
            self.reply_without_promises(asker, Err(Refusal::SessionNotFound { session }), turn);
            return false;
        }
        if let Body::Register = body {
            if !self.channel(session).register(header.registration) {
                let refusal = Refusal::NotRegistered { got: epoch, expected: epoch };
                self.reply_without_promises(asker, Err(refusal), turn);
                return false;
            }
            self.drift_reports.registered(session, header.registration, turn.now);
        } else if header.epoch != epoch || !self.is_current(session, header.registration) {
            let refusal = Refusal::NotRegistered { got: header.epoch, expected: epoch };
            self.reply_without_promises(asker, Err(refusal), turn);
            return false;
        }
        self.renew_session_lease(session, turn);
        for stamp in header.consents {
            self.consent(Consent { session, stamp }, turn);
        }
        for given_back in header.returns {
            self.drop_older(session, &ObjectSet::One(given_back.object), given_back.stamp);
        }
        // From its arrival on, however long the answer takes; after the consents, which bound it
        // (S5).
        asker.renewed = self.renew_all(session, header.renew, turn);
        if *body != Body::Register {
            self.resend_recalls(session, turn);
        }
        true
    }

    fn dispatch(
        &mut self,
        requester: Requester,
        numbers: (Sequence, Sequence),
        body: Body,
        turn: &mut StepContext<'_>,
    ) {
        let session = requester.session;
        if let Some(refusal) = self.no_room_for(&body, turn.state) {
            return self.reply_without_promises(&requester, Err(refusal), turn);
        }
        match body {
            Body::Register => self.handle_registration(&requester, turn),
            Body::Open { name } => self.open(requester, name, turn),
            Body::Inspect(inspect) => self.inspect(&requester, &inspect, turn),
            Body::List { path, after, nodes_max } => {
                self.read(WaitingRead { requester, wanted: ReadTarget::List { path, after, nodes_max } }, turn);
            }
            Body::Heartbeat(question) => {
                let answer = self.compare_clocks(session, &question, turn);
                self.answer_renewal(requester, RenewalAnswer::Heartbeat(answer), turn);
            }
            Body::Close => self.propose(Command::CloseSession { session }, ProposalReason::Close(requester)),
            Body::Acquire { path, last_valid } => {
                if let Err(error) = self.config.limits.check_path(&path) {
                    return self.reply(&requester, Err(error.into()), turn);
                }
                if self.may_extend_ending(session, &path, turn.state) {
                    return self.reply(&requester, Err(Refusal::Retry), turn);
                }
                let load = self.load_of_acquiring(session, &path, turn.state);
                if let Some(refusal) = self.beyond_load(load) {
                    return self.reply_without_promises(&requester, Err(refusal), turn);
                }
                self.load_to_come += load;
                self.propose(
                    Command::AcquireVolume { session, path },
                    ProposalReason::Acquire(requester, last_valid, load),
                );
            }
            Body::KeepAlive { leases } => self.keep_alive(requester, &leases, turn),
            Body::Read { object, known } => {
                self.read(WaitingRead { requester, wanted: ReadTarget::Object { object, known, waits: false } }, turn);
            }
            Body::AwaitRead { object, known } => {
                self.read(WaitingRead { requester, wanted: ReadTarget::Object { object, known, waits: true } }, turn);
            }
            Body::Watch { watched, after, wait, bytes_max } => {
                self.watch(requester, WatchRequest { watched, after, bytes_max }, wait, turn);
            }
            Body::Write { write, dropped, seen } => self.write(requester, numbers, write, (dropped, seen), turn),
            Body::AwaitLocks { locks } => self.await_locks(requester, locks, turn),
            Body::HolderReport(piece) => {
                self.add_holder_report_part(session, &piece, turn);
                self.reply(&requester, Ok(Answer::ReportReceived), turn);
            }
        }
    }

    /// Whether a request for a volume lease may give more time to one whose end has been proposed,
    /// because nodes or holds go with it. With a stream of such requests its horizon would move
    /// before each end that is proposed, and it would never end (T5). The volume that the path is
    /// in may be removed before the request is applied: then the path is in one of the volumes
    /// above.
    fn may_extend_ending(&self, session: SessionId, path: &NodePath, state: &State) -> bool {
        let tops = std::iter::once(path.clone()).chain(path.ancestors());
        let keys = tops.map(|top| LeaseKey::Volume(session, top));
        let mut ending = keys.filter(|key| self.lease_ends.get(key).is_some_and(|end| end.is_end_proposed));
        ending.any(|key| state.has_dependents(&key))
    }

    fn open(&mut self, asker: Requester, name: String, turn: &mut StepContext<'_>) {
        let load = Self::load_of_session();
        let refusal = self.config.limits.check_session_name(&name).err().map(Refusal::from);
        if let Some(refusal) = refusal.or_else(|| self.beyond_load(load)) {
            return self.reply_without_promises(&asker, Err(refusal), turn);
        }
        self.load_to_come += load;
        self.sessions_to_come += 1;
        self.propose(Command::OpenSession { name }, ProposalReason::Open(asker));
    }

    /// The session has found this leader. It is told for which volumes a list of what it holds is
    /// wanted (S7), and gets the recalls that could not be sent before.
    ///
    /// Each registration asks for lists of its own: pieces of one that was begun under an earlier
    /// registration do not count.
    fn handle_registration(&mut self, asker: &Requester, turn: &mut StepContext<'_>) {
        let session = asker.session;
        // What was asked on an earlier connection, nobody waits for any more.
        self.refuse_awaited_locks(session, Refusal::Retry, turn);
        self.refuse_watches(session, &Refusal::Retry, turn);
        self.refuse_blocked_reads(session, &Refusal::Retry, turn);
        let volumes = turn.state.leases_of(session).filter_map(|(key, _)| key.volume());
        let coverings = &mut self.coverings;
        let coverings = self.object_leases.request_holder_reports(session, volumes, || {
            *coverings = coverings.next();
            *coverings
        });
        self.reply(asker, Ok(Answer::Registered { coverings }), turn);
        turn.effects.extend(
            self.channel(session)
                .resend_overdue(turn.now, Duration::ZERO, usize::MAX)
                .into_iter()
                .map(LessorEffect::Recall),
        );
    }

    /// Whether the request belongs to the session's latest registration with this epoch.
    fn is_current(&self, session: SessionId, registration: u64) -> bool {
        let is_current = |channel: &RecallChannel| channel.is_current(registration);
        self.recall_channels.get(&session).is_some_and(is_current) || self.planted(Bug::LateRequestHonoured)
    }

    fn resend_recalls(&mut self, session: SessionId, turn: &mut StepContext<'_>) {
        let (channel, most) = (self.recall_channels.entry(session).or_default(), self.config.bounds.recalls_again_max);
        let again = channel.resend_overdue(turn.now, RECALL_RESEND_INTERVAL, most);
        if again.len() == most {
            reached(Bound::RecallsAgain);
        }
        turn.effects.extend(again.into_iter().map(LessorEffect::Recall));
    }

    /// The session has dropped what this recall named (S2). A consent to any other stamp has no
    /// effect.
    pub(super) fn consent(&mut self, consent: Consent, turn: &mut StepContext<'_>) {
        let Consent { session, stamp } = consent;
        if let Some(kept) = self.write_leased_node(session, stamp, turn.state) {
            return self.note_early(kept, consent, turn);
        }
        let Some(recall) = self.recall_channels.get_mut(&session).and_then(|channel| channel.consent(stamp)) else {
            return;
        };
        for set in &recall.sets {
            self.drop_older(session, set, stamp);
        }
        if self.planted(Bug::ConsentWithoutStamp) {
            return self.end_waits(session, |_| true);
        }
        self.end_waits_consented(session, stamp);
    }

    /// Forgets leases of the session in the set that were granted before the stamp; a later grant
    /// stands (S2). The session consents, or gives a copy back, and names the stamp that this
    /// answers.
    fn drop_older(&mut self, session: SessionId, set: &ObjectSet, stamp: Stamp) {
        let through = if self.planted(Bug::OlderReturnTaken) { u64::MAX } else { stamp.sequence };
        if Some(stamp.epoch) == self.epoch {
            self.object_leases.drop_through(set, session, through);
        }
    }

    /// One piece of a list of what the session holds (S7). It only ever adds, and is never a
    /// consent; a list that names another lease or covering is an old one and ends nothing. Nor
    /// does one of more pieces than a session may hold objects: what has come of a list is
    /// remembered.
    fn add_holder_report_part(&mut self, session: SessionId, piece: &HolderReportPart, turn: &StepContext<'_>) {
        let HolderReportPart { volume, incarnation, covering, part, parts, objects } = piece;
        if part >= parts || *parts as usize > self.config.limits.session_objects_max.max(1) {
            return;
        }
        let Some(track) = self.object_leases.track(volume, session) else { return };
        let is_of = |number: &CoveringNumber| number == covering || self.planted(Bug::ReportOfOldCovering);
        let is_current = (track.incarnation == *incarnation || self.planted(Bug::ReportOfOldIncarnation))
            && matches!(&track.tracking, CopyTracking::AwaitingReport { number, .. } if is_of(number));
        let Some((_, settings)) = is_current.then(|| turn.state.volume_of(volume)) else { return };
        let over = self.clock.expiry_time().after(settings.settings.object_wait(self.config.drift));
        if self.planted(Bug::ReportReplaces) {
            self.object_leases.drop_through(&ObjectSet::Subtree(volume.clone()), session, u64::MAX);
        }
        // Which grant each copy came with is not told: the last there was is as late as it can have
        // been (S2, S2w).
        let sequence = self.recall_channels.get(&session).map_or(0, RecallChannel::last_grant);
        let most = self.config.limits.session_objects_max;
        // The piece is not in: the session stays covering.
        if self.object_leases.len() + objects.len() > self.config.bounds.object_leases_max {
            reached(Bound::ObjectLeases);
            return;
        }
        for object in objects.iter().filter(|object| turn.state.volume_of(&object.path).0 == volume) {
            self.object_leases.add(
                volume,
                object,
                session,
                ObjectLease { over, source: GrantSource::reported(sequence) },
                most,
                turn.state,
            );
        }
        self.object_leases.add_report_part(volume, session, *part, *parts);
    }

    /// A read waits for a quorum round that begins after its arrival: if one is under way, for the
    /// next (S6).
    pub(super) fn read(&mut self, read: WaitingRead, turn: &mut StepContext<'_>) {
        let path = match &read.wanted {
            ReadTarget::Object { object, .. } => Some(&object.path),
            ReadTarget::List { path, .. } => Some(path),
            ReadTarget::CurrentRevision => None,
        };
        if let Some(Err(error)) = path.map(|path| self.config.limits.check_path(path)) {
            return self.reply(&read.requester, Err(error.into()), turn);
        }
        let got = self.proven_reads.len() + self.round_reads.len() + self.next_round_reads.len();
        let most = self.config.bounds.reads_max;
        if got >= most {
            reached(Bound::Reads);
            let refusal = Refusal::Busy { what: "reads".to_owned(), got, most };
            return self.reply_without_promises(&read.requester, Err(refusal), turn);
        }
        let is_list = matches!(read.wanted, ReadTarget::List { .. });
        if self.planted(Bug::ReadWithoutProof) || (is_list && self.planted(Bug::ListWithoutProof)) {
            return self.answer_read(&read, turn);
        }
        let joins = !self.round_reads.is_empty() && self.planted(Bug::JoinRoundUnderWay);
        let round = if joins { &mut self.round_reads } else { &mut self.next_round_reads };
        round.push(read);
        self.begin_round(turn);
    }

    fn begin_round(&mut self, turn: &mut StepContext<'_>) {
        if self.round_reads.is_empty() && !self.next_round_reads.is_empty() {
            self.round = self.round.wrapping_add(1);
            self.round_reads = std::mem::take(&mut self.next_round_reads);
            turn.effects.push(LessorEffect::Prove { round: self.round });
        }
    }

    pub(super) fn handle_proof(&mut self, round: u64, turn: &mut StepContext<'_>) {
        if round == self.round {
            self.proven_reads.extend(std::mem::take(&mut self.round_reads));
            self.answer_proven(turn);
            self.begin_round(turn);
        }
    }

    /// Answers reads whose proof is there, as many as one step may. The others follow at once: what
    /// was proven is that this replica led after they came, and they are answered from what is
    /// applied by then.
    pub(super) fn answer_proven(&mut self, turn: &mut StepContext<'_>) {
        let LessorBounds { reads_per_step, content_bytes_max, .. } = self.config.bounds;
        for _ in 0..reads_per_step.max(1) {
            let Some(read) = self.proven_reads.pop_front() else { return };
            self.answer_read(&read, turn);
            if turn.read_bytes >= content_bytes_max {
                return;
            }
        }
        if !self.proven_reads.is_empty() {
            reached(Bound::ReadsPerStep);
        }
    }

    pub(super) fn handle_proof_failure(&mut self, round: u64, turn: &mut StepContext<'_>) {
        if round == self.round {
            for read in std::mem::take(&mut self.round_reads) {
                self.reply_without_promises(&read.requester, Err(Refusal::Retry), turn);
            }
            self.begin_round(turn);
        }
    }

    pub(super) fn answer_read(&mut self, read: &WaitingRead, turn: &mut StepContext<'_>) {
        self.answer_freed(read, None, turn);
    }

    /// Answers a read that has waited for the end of a write lease on the node `freed`, if on any.
    pub(super) fn answer_freed(&mut self, read: &WaitingRead, freed: Option<&NodePath>, turn: &mut StepContext<'_>) {
        let WaitingRead { requester, wanted } = read;
        let (object, known) = match wanted {
            ReadTarget::Object { object, .. }
                if freed != Some(&object.path) && self.is_under_write_lease(object, turn.state) =>
            {
                return self.defer_read(read, object, turn);
            }
            ReadTarget::Object { object, known, .. } => (object, known),
            ReadTarget::List { path, after, nodes_max } => {
                let page = list(path, after.as_ref(), *nodes_max, &self.config.bounds, turn.state);
                turn.read_bytes += page.nodes.iter().map(|(_, data)| NODE_BYTES + data.value.len()).sum::<usize>();
                return self.answer_list(read, (page, freed), turn);
            }
            ReadTarget::CurrentRevision => {
                let changes = Changes { changes: Vec::new(), through: turn.state.revision() };
                return self.reply(requester, Ok(Answer::Changes(changes)), turn);
            }
        };
        let is_unchanged = known.is_some() && *known == turn.state.modify_revision(object);
        let content = match is_unchanged {
            true => Ok(None),
            false => turn.state.content_within(object, self.config.bounds.content_bytes_max).map(Some),
        };
        let content = match content {
            Ok(content) => content,
            Err(error) => {
                reached(Bound::ContentBytes);
                return self.reply(requester, Err(error.into()), turn);
            }
        };
        turn.read_bytes += content.as_ref().map_or(0, Content::weight);
        let grant = self.grant(requester.session, object, turn);
        let volume = turn.state.volume_of(&object.path).0.clone();
        let answer = ReadAnswer { content, grant, volume, applied: turn.state.revision() };
        self.reply(requester, Ok(Answer::Read(answer)), turn);
    }

    pub(super) fn answer_inspect(&self, inspect: &Inspect, turn: &StepContext<'_>) -> Option<Answer> {
        match inspect {
            Inspect::Holders { path } => Some(Answer::Holders(self.holder_infos(path, turn))),
            Inspect::PendingWrites { path } => Some(Answer::PendingWrites(self.wait_infos(path, turn))),
            Inspect::BlockedReads { path } => Some(Answer::BlockedReads(self.blocked_read_infos(path, turn))),
            Inspect::Volumes { path } => Some(Answer::Volumes(self.volume_infos(path, turn))),
            Inspect::Lease { id, keys_after } => Some(Answer::Lease(self.lease_info(*id, keys_after.as_ref(), turn))),
            Inspect::Locks { path } => Some(Answer::LockInfos(self.lock_infos(path, turn))),
            Inspect::Leases { after } => Some(Answer::Leases(self.lease_infos(*after, turn))),
            Inspect::Services { path, after } => Some(Answer::Services(self.services(path, after.as_ref(), turn))),
            Inspect::Cluster => None,
        }
    }

    /// The channel of a session, for its stamps.
    pub(super) fn channel(&mut self, session: SessionId) -> &mut RecallChannel {
        self.recall_channels.entry(session).or_default()
    }
}

/// A page of the nodes at and below a path: as many as fit, and one at least if there is one.
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
    // Those that are gone and not buried yet take time too.
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

/// About what a node takes in a list beside its path and value.
const NODE_BYTES: usize = 64;
