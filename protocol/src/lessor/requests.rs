//! What clients ask, up to where it is answered or begins to wait.

use std::time::Duration;

use crate::{
    change::Changes,
    command::{Command, LeaseKey},
    id::{CoveringNumber, Epoch, RequestId, Sequence, SessionId, Stamp},
    message::{
        Answer, Body, Consent, Header, HeldPiece, Inspect, LIST_NODES_MAX, Listed, ReadAnswer, Refusal, Request,
    },
    object::{Content, Data, ObjectSet},
    path::Path,
    planted::Bug,
    reached::{Bound, reached},
    state::State,
};

use super::{
    Asker, Bounds, Effect, Lessor, Reason, StepContext, WaitingRead, Wanted,
    channel::{Channel, RECALL_AGAIN},
    holdings::{Mode, ObjectLease, Source},
    renewals::RenewalAnswer,
    watching::Wish,
};

impl Lessor {
    pub(super) fn request(&mut self, id: RequestId, request: Request, turn: &mut StepContext<'_>) {
        let lengths = request.check_lengths();
        let Request { header, body } = request;
        let is_sessionless = header.is_sessionless();
        let mut asker = Asker { id, session: header.session, renewed: Vec::new() };
        let Some(epoch) = self.epoch.filter(|epoch| *epoch == turn.state.epoch()) else {
            if let (Body::Read { object, known }, true) = (body, self.planted(Bug::ReadBeforeFirstEntry)) {
                let wanted = Wanted::Object { object, known, waits: false };
                return self.answer_read(&WaitingRead { asker, wanted }, turn);
            }
            return self.reply_bare(&asker, Err(Refusal::Retry), turn);
        };
        if let Err(error) = lengths {
            return self.reply_bare(&asker, Err(error.into()), turn);
        }
        let numbers = (header.sequence, header.unanswered_from);
        let may_be_sessionless = matches!(body, Body::Open { .. } | Body::Inspect(_) | Body::List { .. });
        if (is_sessionless && may_be_sessionless) || self.enter(&mut asker, header, &body, epoch, turn) {
            self.ask(asker, numbers, body, turn);
        }
    }

    /// The one way in for whatever speaks for a session: the session exists, and has registered with this epoch. What the
    /// header carries takes effect. False if the request has been answered.
    fn enter(
        &mut self,
        asker: &mut Asker,
        header: Header,
        body: &Body,
        epoch: Epoch,
        turn: &mut StepContext<'_>,
    ) -> bool {
        let session = asker.session;
        if turn.state.session(session).is_none() {
            self.reply_bare(asker, Err(Refusal::SessionGone { session }), turn);
            return false;
        }
        if let Body::Register = body {
            if !self.channel(session).register(header.registration) {
                let refusal = Refusal::NotRegistered { got: epoch, expected: epoch };
                self.reply_bare(asker, Err(refusal), turn);
                return false;
            }
            self.clocks.registered(session, header.registration, turn.now);
        } else if header.epoch != epoch || !self.is_current(session, header.registration) {
            let refusal = Refusal::NotRegistered { got: header.epoch, expected: epoch };
            self.reply_bare(asker, Err(refusal), turn);
            return false;
        }
        self.sign_of_life(session, turn);
        for stamp in header.consents {
            self.consent(Consent { session, stamp }, turn);
        }
        for given_back in header.returns {
            self.drop_older(session, &ObjectSet::One(given_back.object), given_back.stamp);
        }
        // From its arrival on, however long the answer takes; after the consents, which bound it (S5).
        asker.renewed = self.renew_all(session, header.renew, turn);
        if *body != Body::Register {
            self.recall_again(session, turn);
        }
        true
    }

    fn ask(&mut self, asker: Asker, numbers: (Sequence, Sequence), body: Body, turn: &mut StepContext<'_>) {
        let session = asker.session;
        if let Some(refusal) = self.no_room_for(&body, turn.state) {
            return self.reply_bare(&asker, Err(refusal), turn);
        }
        match body {
            Body::Register => self.registered(&asker, turn),
            Body::Open { name } => self.open(asker, name, turn),
            Body::Inspect(inspect) => self.inspect(&asker, &inspect, turn),
            Body::List { path, after, nodes_max } => {
                self.read(WaitingRead { asker, wanted: Wanted::List { path, after, nodes_max } }, turn);
            }
            Body::KeepAlive(question) => {
                let answer = self.compare_clocks(session, &question, turn);
                self.answer_renewal(asker, RenewalAnswer::Alive(answer), turn);
            }
            Body::Close => self.propose(Command::CloseSession { session }, Reason::Close(asker)),
            Body::Acquire { path, valid_at } => {
                if let Err(error) = self.config.limits.check_path(&path) {
                    return self.reply(&asker, Err(error.into()), turn);
                }
                if self.may_extend_ending(session, &path, turn.state) {
                    return self.reply(&asker, Err(Refusal::Retry), turn);
                }
                let load = self.load_of_acquiring(session, &path, turn.state);
                if let Some(refusal) = self.beyond_load(load) {
                    return self.reply_bare(&asker, Err(refusal), turn);
                }
                self.load_to_come += load;
                self.propose(Command::AcquireVolume { session, path }, Reason::Acquire(asker, valid_at, load));
            }
            Body::KeepLeases { leases } => self.keep_leases(asker, &leases, turn),
            Body::Read { object, known } => {
                self.read(WaitingRead { asker, wanted: Wanted::Object { object, known, waits: false } }, turn);
            }
            Body::AwaitRead { object, known } => {
                self.read(WaitingRead { asker, wanted: Wanted::Object { object, known, waits: true } }, turn);
            }
            Body::Watch { watched, after, wait, bytes_max } => {
                self.watch(asker, Wish { watched, after, bytes_max }, wait, turn);
            }
            Body::Write { write, dropped, seen } => self.write(asker, numbers, write, (dropped, seen), turn),
            Body::AwaitHolds { holds } => self.await_holds(asker, holds, turn),
            Body::Held(piece) => {
                self.held(session, &piece, turn);
                self.reply(&asker, Ok(Answer::Noted), turn);
            }
        }
    }

    /// Whether a request for a volume lease may give more time to one whose end has been proposed, because nodes or holds go with it.
    /// With a stream of such requests its horizon would move before each end that is proposed, and it would never end (T5). The
    /// volume that the path is in may be removed before the request is applied: then the path is in one of the volumes above.
    fn may_extend_ending(&self, session: SessionId, path: &Path, state: &State) -> bool {
        let tops = std::iter::once(path.clone()).chain(path.ancestors());
        let keys = tops.map(|top| LeaseKey::Volume(session, top));
        let mut ending = keys.filter(|key| self.ends.get(key).is_some_and(|end| end.is_ending));
        ending.any(|key| state.carries(&key))
    }

    fn open(&mut self, asker: Asker, name: String, turn: &mut StepContext<'_>) {
        let load = Self::load_of_session();
        let refusal = self.config.limits.check_session_name(&name).err().map(Refusal::from);
        if let Some(refusal) = refusal.or_else(|| self.beyond_load(load)) {
            return self.reply_bare(&asker, Err(refusal), turn);
        }
        self.load_to_come += load;
        self.sessions_to_come += 1;
        self.propose(Command::OpenSession { name }, Reason::Open(asker));
    }

    /// The session has found this leader. It is told for which volumes a list of what it holds is wanted (S7), and gets the
    /// recalls that could not be sent before.
    ///
    /// Each registration asks for lists of its own: pieces of one that was begun under an earlier registration do not count.
    fn registered(&mut self, asker: &Asker, turn: &mut StepContext<'_>) {
        let session = asker.session;
        // What was asked on an earlier connection, nobody waits for any more.
        self.stop_awaiting(session, Refusal::Retry, turn);
        self.forget_watches(session, &Refusal::Retry, turn);
        self.forget_parked(session, &Refusal::Retry, turn);
        let volumes = turn.state.leases_of(session).filter_map(|(key, _)| key.volume());
        let coverings = &mut self.coverings;
        let coverings = self.holdings.ask_for_lists(session, volumes, || {
            *coverings = coverings.next();
            *coverings
        });
        self.reply(asker, Ok(Answer::Registered { coverings }), turn);
        turn.effects
            .extend(self.channel(session).again(turn.now, Duration::ZERO, usize::MAX).into_iter().map(Effect::Recall));
    }

    /// Whether the request belongs to the session's latest registration with this epoch.
    fn is_current(&self, session: SessionId, registration: u64) -> bool {
        let is_current = |channel: &Channel| channel.is_current(registration);
        self.channels.get(&session).is_some_and(is_current) || self.planted(Bug::LateRequestHonoured)
    }

    fn recall_again(&mut self, session: SessionId, turn: &mut StepContext<'_>) {
        let (channel, most) = (self.channels.entry(session).or_default(), self.config.bounds.recalls_again_max);
        let again = channel.again(turn.now, RECALL_AGAIN, most);
        if again.len() == most {
            reached(Bound::RecallsAgain);
        }
        turn.effects.extend(again.into_iter().map(Effect::Recall));
    }

    /// The session has dropped what this recall named (S2). A consent to any other stamp has no effect.
    pub(super) fn consent(&mut self, consent: Consent, turn: &mut StepContext<'_>) {
        let Consent { session, stamp } = consent;
        if let Some(kept) = self.still_keeps(session, stamp, turn.state) {
            return self.note_early(kept, consent, turn);
        }
        let Some(recall) = self.channels.get_mut(&session).and_then(|channel| channel.consent(stamp)) else { return };
        for set in &recall.sets {
            self.drop_older(session, set, stamp);
        }
        if self.planted(Bug::ConsentWithoutStamp) {
            return self.end_waits(session, |_| true);
        }
        self.end_waits_consented(session, stamp);
    }

    /// Forgets leases of the session in the set that were granted before the stamp; a later grant stands (S2). The session consents, or
    /// gives a copy back, and names the stamp that this answers.
    fn drop_older(&mut self, session: SessionId, set: &ObjectSet, stamp: Stamp) {
        let through = if self.planted(Bug::OlderReturnTaken) { u64::MAX } else { stamp.sequence };
        if Some(stamp.epoch) == self.epoch {
            self.holdings.drop_through(set, session, through);
        }
    }

    /// One piece of a list of what the session holds (S7). It only ever adds, and is never a consent; a list that names another
    /// lease or covering is an old one and ends nothing. Nor does one of more pieces than a session may hold objects: what has
    /// come of a list is remembered.
    fn held(&mut self, session: SessionId, piece: &HeldPiece, turn: &StepContext<'_>) {
        let HeldPiece { volume, incarnation, covering, piece, pieces, objects } = piece;
        if piece >= pieces || *pieces as usize > self.config.limits.session_objects_max.max(1) {
            return;
        }
        let Some(track) = self.holdings.track(volume, session) else { return };
        let is_of = |number: &CoveringNumber| number == covering || self.planted(Bug::ListOfOldCovering);
        let is_current = (track.incarnation == *incarnation || self.planted(Bug::ListOfOldIncarnation))
            && matches!(&track.mode, Mode::Listed { number, .. } if is_of(number));
        let Some((_, settings)) = is_current.then(|| turn.state.volume_of(volume)) else { return };
        let over = self.clock.ending().after(settings.settings.object_wait(self.config.drift));
        if self.planted(Bug::ListReplaces) {
            self.holdings.drop_through(&ObjectSet::Subtree(volume.clone()), session, u64::MAX);
        }
        // Which grant each copy came with is not told: the last there was is as late as it can have been (S2, S2w).
        let sequence = self.channels.get(&session).map_or(0, Channel::last_grant);
        let most = self.config.limits.session_objects_max;
        // The piece is not in: the session stays covering.
        if self.holdings.len() + objects.len() > self.config.bounds.object_leases_max {
            reached(Bound::ObjectLeases);
            return;
        }
        for object in objects.iter().filter(|object| turn.state.volume_of(&object.path).0 == volume) {
            self.holdings.add(
                volume,
                object,
                session,
                ObjectLease { over, source: Source::listed(sequence) },
                most,
                turn.state,
            );
        }
        self.holdings.piece_came(volume, session, *piece, *pieces);
    }

    /// A read waits for a quorum round that begins after its arrival: if one is under way, for the next (S6).
    pub(super) fn read(&mut self, read: WaitingRead, turn: &mut StepContext<'_>) {
        let path = match &read.wanted {
            Wanted::Object { object, .. } => Some(&object.path),
            Wanted::List { path, .. } => Some(path),
            Wanted::Now => None,
        };
        if let Some(Err(error)) = path.map(|path| self.config.limits.check_path(path)) {
            return self.reply(&read.asker, Err(error.into()), turn);
        }
        let got = self.proven.len() + self.proving.len() + self.next_round.len();
        let most = self.config.bounds.reads_max;
        if got >= most {
            reached(Bound::Reads);
            let refusal = Refusal::Busy { what: "reads".to_owned(), got, most };
            return self.reply_bare(&read.asker, Err(refusal), turn);
        }
        let is_list = matches!(read.wanted, Wanted::List { .. });
        if self.planted(Bug::ReadWithoutProof) || (is_list && self.planted(Bug::ListWithoutProof)) {
            return self.answer_read(&read, turn);
        }
        let joins = !self.proving.is_empty() && self.planted(Bug::JoinRoundUnderWay);
        let round = if joins { &mut self.proving } else { &mut self.next_round };
        round.push(read);
        self.begin_round(turn);
    }

    fn begin_round(&mut self, turn: &mut StepContext<'_>) {
        if self.proving.is_empty() && !self.next_round.is_empty() {
            self.round = self.round.wrapping_add(1);
            self.proving = std::mem::take(&mut self.next_round);
            turn.effects.push(Effect::Prove { round: self.round });
        }
    }

    pub(super) fn proven(&mut self, round: u64, turn: &mut StepContext<'_>) {
        if round == self.round {
            self.proven.extend(std::mem::take(&mut self.proving));
            self.answer_proven(turn);
            self.begin_round(turn);
        }
    }

    /// Answers reads whose proof is there, as many as one step may. The others follow at once: what was proven is that this replica led
    /// after they came, and they are answered from what is applied by then.
    pub(super) fn answer_proven(&mut self, turn: &mut StepContext<'_>) {
        let Bounds { reads_per_step, content_bytes_max, .. } = self.config.bounds;
        for _ in 0..reads_per_step.max(1) {
            let Some(read) = self.proven.pop_front() else { return };
            self.answer_read(&read, turn);
            if turn.read_bytes >= content_bytes_max {
                return;
            }
        }
        if !self.proven.is_empty() {
            reached(Bound::ReadsPerStep);
        }
    }

    pub(super) fn not_proven(&mut self, round: u64, turn: &mut StepContext<'_>) {
        if round == self.round {
            for read in std::mem::take(&mut self.proving) {
                self.reply_bare(&read.asker, Err(Refusal::Retry), turn);
            }
            self.begin_round(turn);
        }
    }

    pub(super) fn answer_read(&mut self, read: &WaitingRead, turn: &mut StepContext<'_>) {
        self.answer_freed(read, None, turn);
    }

    /// Answers a read that has waited for the end of a write lease on the node `freed`, if on any.
    pub(super) fn answer_freed(&mut self, read: &WaitingRead, freed: Option<&Path>, turn: &mut StepContext<'_>) {
        let WaitingRead { asker, wanted } = read;
        let (object, known) = match wanted {
            Wanted::Object { object, .. } if freed != Some(&object.path) && self.is_kept(object, turn.state) => {
                return self.put_off(read, object, turn);
            }
            Wanted::Object { object, known, .. } => (object, known),
            Wanted::List { path, after, nodes_max } => {
                let page = list(path, after.as_ref(), *nodes_max, &self.config.bounds, turn.state);
                turn.read_bytes += page.nodes.iter().map(|(_, data)| NODE_BYTES + data.value.len()).sum::<usize>();
                return self.answer_list(read, (page, freed), turn);
            }
            Wanted::Now => {
                let changes = Changes { changes: Vec::new(), through: turn.state.revision() };
                return self.reply(asker, Ok(Answer::Changes(changes)), turn);
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
                return self.reply(asker, Err(error.into()), turn);
            }
        };
        turn.read_bytes += content.as_ref().map_or(0, Content::weight);
        let grant = self.grant(asker.session, object, turn);
        let volume = turn.state.volume_of(&object.path).0.clone();
        let answer = ReadAnswer { content, grant, volume, applied: turn.state.revision() };
        self.reply(asker, Ok(Answer::Read(answer)), turn);
    }

    pub(super) fn answer_inspect(&self, inspect: &Inspect, turn: &StepContext<'_>) -> Option<Answer> {
        match inspect {
            Inspect::Holders { path } => Some(Answer::Holders(self.holder_infos(path, turn))),
            Inspect::Waits { path } => Some(Answer::Waits(self.wait_infos(path, turn))),
            Inspect::ReadWaits { path } => Some(Answer::ReadWaits(self.read_wait_infos(path, turn))),
            Inspect::Volumes { path } => Some(Answer::Volumes(self.volume_infos(path, turn))),
            Inspect::Lease { id, keys_after } => Some(Answer::Lease(self.lease_info(*id, keys_after.as_ref(), turn))),
            Inspect::Holds { path } => Some(Answer::HoldInfos(self.hold_infos(path, turn))),
            Inspect::Leases { after } => Some(Answer::Leases(self.lease_infos(*after, turn))),
            Inspect::Services { path, after } => Some(Answer::Services(self.services(path, after.as_ref(), turn))),
            Inspect::Cluster => None,
        }
    }

    /// The channel of a session, for its stamps.
    pub(super) fn channel(&mut self, session: SessionId) -> &mut Channel {
        self.channels.entry(session).or_default()
    }
}

/// A page of the nodes at and below a path: as many as fit, and one at least if there is one.
pub(super) fn list(path: &Path, after: Option<&Path>, nodes_max: u32, bounds: &Bounds, state: &State) -> Listed {
    if nodes_max > LIST_NODES_MAX {
        reached(Bound::ListNodes);
    }
    let most = nodes_max.clamp(1, LIST_NODES_MAX) as usize;
    let mut page = Listed { nodes: Vec::new(), revision: state.revision(), through: None };
    let (mut bytes, mut through): (usize, Option<&Path>) = (0, None);
    // Those that are gone and not buried yet take time too.
    for (looked_at, (path, node)) in state.places_in(path, after).enumerate() {
        bytes += node.map_or(0, |node| path.as_str().len() + node.value.len() + NODE_BYTES);
        let is_long = page.nodes.len() == most;
        let is_full = is_long || (bytes > bounds.list_bytes_max && !page.nodes.is_empty());
        if is_full || looked_at == bounds.places_max {
            if !is_long {
                reached(if is_full { Bound::ListBytes } else { Bound::Places });
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
