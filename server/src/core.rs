//! The server's core: the replicated state and, while this replica leads, the lessor, behind one
//! lock.
//!
//! Every event enters here as an input of the rules. The core executes every effect of the rules,
//! in order, under the lock. It sends replies to waiting calls, recalls to the connections of their
//! sessions, and requests for quorum rounds and proposals to their tasks. It decides nothing, and
//! does nothing slow under the lock.
//!
//! It does not know Raft. Committed entries arrive through [`Machine`]. Changes of leadership
//! arrive through [`ServerCore::become_leader`] and [`ServerCore::become_follower`].

mod registrations;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::{
    command::{AnyLease, Command, Proposal},
    id::{Epoch, RequestId, SessionId},
    lessor::{self, Lessor, LessorEffect, LessorInput},
    message::{Body, ClockInfo, Consent, DelayNotice, Recall, Refusal, Request, RequestHeader, Response},
    state::State,
    volume::VolumeSettings,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use self::registrations::Registrations;
use crate::{clock, raft::Machine};

/// Names one client connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// The queue of recalls for one connection.
pub type RecallSender = mpsc::Sender<Recall>;

/// The most recalls that wait to be sent on one connection. The core drops further ones. The client
/// finds a gap in the numbers of its recalls, and drops all its copies (S5). The lessor resends
/// each unanswered recall. A write that waits for a consent proceeds when the session's lease has
/// ended.
pub const RECALLS_WAITING_MAX: usize = 1 << 13;

/// Names one lessor of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LessorId(u64);

/// The receiver of one call's answer.
pub type ResponseReceiver = oneshot::Receiver<Response>;

/// The replicated state, the lessor, and the calls that wait for answers.
pub struct ServerCore {
    inner: Mutex<CoreState>,
    requests: AtomicU64,
    /// Signals that there is something to propose.
    proposals: Notify,
    /// Signals a full proposal, which need not wait for the previous one.
    full_proposals: Notify,
    /// Signals that the lessor was abandoned.
    abandoned: Notify,
    /// Requests for quorum rounds.
    proofs: mpsc::UnboundedSender<u64>,
    /// Counts the leaderships that have ended here. Client connections close at each change, so
    /// that clients look for the next leader at once.
    leaderships_ended: watch::Sender<u64>,
}

struct CoreState {
    state: State,
    lessor: Option<Lessor>,
    /// The id of the current lessor, or of the last one.
    lessor_id: LessorId,
    /// The leader's address, while this replica does not lead.
    leader: Option<String>,
    waiting: HashMap<RequestId, oneshot::Sender<Response>>,
    registrations: Registrations,
}

impl ServerCore {
    /// Returns a core with the first state of any cluster, and the receiver of its requests for
    /// quorum rounds.
    pub fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<u64>) {
        let (proofs, wanted) = mpsc::unbounded_channel();
        let inner = CoreState {
            state: State::new(VolumeSettings::DEFAULT),
            lessor: None,
            lessor_id: LessorId::default(),
            leader: None,
            waiting: HashMap::new(),
            registrations: Registrations::default(),
        };
        let core = Self {
            inner: Mutex::new(inner),
            requests: AtomicU64::new(0),
            proposals: Notify::new(),
            full_proposals: Notify::new(),
            abandoned: Notify::new(),
            proofs,
            leaderships_ended: watch::Sender::new(0),
        };
        (Arc::new(core), wanted)
    }

    /// Handles a request that arrived on a connection. The answer comes at once or later. The
    /// receiver fails if the core drops the call.
    pub fn request(&self, request: Request, connection: ConnectionId, recalls: &RecallSender) -> ResponseReceiver {
        let (sender, answer) = oneshot::channel();
        let mut inner = self.inner.lock();
        if inner.lessor.is_none() {
            let refusal = Refusal::NotLeader { leader: inner.leader.clone() };
            // The caller may have gone.
            let _ = sender.send(refusal_response(inner.state.epoch(), refusal));
            return answer;
        }
        let RequestHeader { session, registration, epoch, .. } = request.header;
        // Only the connection that a session registered on last may speak for it. The lessor
        // refuses sessions that do not exist.
        let is_register = request.body == Body::Register;
        if (is_register || !inner.registrations.is_on(session, connection)) && inner.state.session(session).is_some() {
            if !is_register {
                let expected = inner.state.epoch();
                let _ = sender.send(refusal_response(expected, Refusal::NotRegistered { got: epoch, expected }));
                return answer;
            }
            inner.registrations.register(session, registration, connection, recalls);
        }
        let id = RequestId(self.requests.fetch_add(1, Ordering::Relaxed));
        inner.waiting.insert(id, sender);
        self.step(&mut inner, LessorInput::Request { id, request });
        answer
    }

    /// Passes a client's consent to the lessor, if the session registered on this connection last.
    pub fn consent(&self, connection: ConnectionId, consent: Consent) {
        let mut inner = self.inner.lock();
        if inner.registrations.is_on(consent.session, connection) {
            self.step(&mut inner, LessorInput::Consent(consent));
        }
    }

    /// Passes a client's notice of a delayed consent to the lessor, like a consent.
    pub fn consent_delayed(&self, connection: ConnectionId, notice: DelayNotice) {
        let mut inner = self.inner.lock();
        if inner.registrations.is_on(notice.session, connection) {
            self.step(&mut inner, LessorInput::ConsentDelayed(notice));
        }
    }

    /// Passes the result of a quorum round to the lessor (S6).
    pub fn proof(&self, round: u64, is_proven: bool) {
        self.input(if is_proven { LessorInput::Proven { round } } else { LessorInput::NotProven { round } });
    }

    /// Steps the lessor at its deadline. Returns the time to the next deadline, or `None` while
    /// this replica does not lead.
    pub fn timeout(&self) -> Option<Duration> {
        let mut inner = self.inner.lock();
        self.step(&mut inner, LessorInput::Timeout);
        let now = clock::now();
        inner.lessor.as_ref().map(|lessor| lessor.next_deadline(now).since(now))
    }

    /// Waits for the next proposal, and returns it with its lessor's id. Dropping the future loses
    /// nothing.
    pub async fn next_proposal(&self) -> (LessorId, Proposal) {
        loop {
            match self.take_proposal_if(Lessor::has_proposal) {
                Some(proposal) => return proposal,
                None => self.proposals.notified().await,
            }
        }
    }

    /// Like [`next_proposal`](Self::next_proposal), but only for proposals that need not wait for
    /// the previous one ([`Lessor::has_full_proposal`]).
    pub async fn next_full_proposal(&self) -> (LessorId, Proposal) {
        loop {
            match self.take_proposal_if(Lessor::has_full_proposal) {
                Some(proposal) => return proposal,
                None => self.full_proposals.notified().await,
            }
        }
    }

    fn take_proposal_if(&self, is_ready: impl Fn(&Lessor) -> bool) -> Option<(LessorId, Proposal)> {
        let mut inner = self.inner.lock();
        let lessor_id = inner.lessor_id;
        let lessor = inner.lessor.as_mut().filter(|lessor| is_ready(lessor))?;
        lessor.take_proposal(clock::now()).map(|proposal| (lessor_id, proposal))
    }

    /// This replica has become leader, or was elected again. `heard` is how long it heard from the
    /// leader that proposed the latest entry, counted from the entry's arrival ([`Lessor::new`]).
    pub fn become_leader(&self, config: lessor::LessorConfig, heard: Duration) {
        let mut inner = self.inner.lock();
        self.step_down(&mut inner);
        let lessor = Lessor::new(config, &inner.state, heard, clock::now());
        inner.lessor = Some(lessor);
        inner.lessor_id.0 += 1;
        inner.leader = None;
        self.proposals.notify_one();
    }

    /// This replica does not lead. `leader` is the leader's address, if known.
    pub fn become_follower(&self, leader: Option<String>) {
        let mut inner = self.inner.lock();
        self.step_down(&mut inner);
        inner.leader = leader;
    }

    /// Ends the lessor with this id. One of its proposals failed, so it no longer knows what the
    /// log contains. If this replica still leads, it begins another epoch. If that lessor has ended
    /// already, this has no effect on its successor.
    pub fn abandon_lessor(&self, lessor_id: LessorId) {
        let mut inner = self.inner.lock();
        if inner.lessor_id == lessor_id && inner.lessor.is_some() {
            self.step_down(&mut inner);
            inner.leader = None;
            self.abandoned.notify_one();
        }
    }

    /// Waits until a lessor is abandoned. It may have a successor by then
    /// ([`ServerCore::has_lessor`]).
    pub async fn lessor_abandoned(&self) {
        self.abandoned.notified().await;
    }

    /// Whether this lessor is still the current one.
    pub fn is_lessor_current(&self, lessor_id: LessorId) -> bool {
        let inner = self.inner.lock();
        inner.lessor_id == lessor_id && inner.lessor.is_some()
    }

    /// Whether there is a lessor, even if its epoch has not begun.
    pub fn has_lessor(&self) -> bool {
        self.inner.lock().lessor.is_some()
    }

    /// Whether this replica leads and answers: the first entry of its leadership has been applied.
    pub fn is_serving(&self) -> bool {
        self.inner.lock().lessor.as_ref().is_some_and(|lessor| lessor.epoch().is_some())
    }

    /// The last applied epoch, the index of the last applied entry, and the revision after it.
    pub fn applied(&self) -> (Epoch, u64, leasehold_protocol::id::Revision) {
        let inner = self.inner.lock();
        (inner.state.epoch(), inner.state.applied_index(), inner.state.revision())
    }

    /// How many clients' clocks differ from this server's by more than allowed, and some of these
    /// clients. Empty while this server does not lead.
    pub fn clock_infos(&self) -> (u64, Vec<ClockInfo>) {
        let inner = self.inner.lock();
        inner.lessor.as_ref().map(|lessor| lessor.clock_infos(&inner.state)).unwrap_or_default()
    }

    /// Changes whenever a leadership ends here.
    pub fn leaderships_ended(&self) -> watch::Receiver<u64> {
        self.leaderships_ended.subscribe()
    }

    /// The connection has ended: the core sends nothing more on it.
    pub fn disconnected(&self, connection: ConnectionId) {
        self.inner.lock().registrations.disconnected(connection);
    }

    fn input(&self, input: LessorInput) {
        let mut inner = self.inner.lock();
        self.step(&mut inner, input);
    }

    fn step(&self, inner: &mut CoreState, input: LessorInput) {
        let CoreState { state, lessor: Some(lessor), .. } = inner else { return };
        let effects = lessor.step(input, state, clock::now());
        let (has_proposal, is_full) = (lessor.has_proposal(), lessor.has_full_proposal());
        self.execute_effects(inner, effects);
        if has_proposal {
            self.proposals.notify_one();
        }
        if is_full {
            self.full_proposals.notify_one();
        }
    }

    fn execute_effects(&self, inner: &mut CoreState, effects: Vec<LessorEffect>) {
        for effect in effects {
            match effect {
                LessorEffect::Reply { id, response } => {
                    if let Some(waiting) = inner.waiting.remove(&id) {
                        // The caller may have gone.
                        let _ = waiting.send(response);
                    }
                }
                LessorEffect::Recall(recall) => inner.registrations.recall(recall),
                LessorEffect::ClockChanged { session, name, beyond: Some(excess) } => {
                    tracing::warn!(%session, name, ppm = excess.ppm(), allowed_ppm = excess.allowed_ppm,
                        "a client's clock and this server's differ by more than allowed: the client serves nothing from memory");
                }
                LessorEffect::ClockChanged { session, name, beyond: None } => {
                    tracing::info!(%session, name, "a client's clock and this server's are within their allowances again");
                }
                LessorEffect::Prove { round } => {
                    // The task that proves leadership ends with the server.
                    let _ = self.proofs.send(round);
                }
            }
        }
    }

    /// Replaces the state, and returns the old one. Ends any lessor, because it knows only the old
    /// state.
    fn replace(&self, state: State) -> State {
        let mut inner = self.inner.lock();
        let led = inner.lessor.is_some();
        self.step_down(&mut inner);
        if led {
            self.abandoned.notify_one();
        }
        std::mem::replace(&mut inner.state, state)
    }

    fn step_down(&self, inner: &mut CoreState) {
        if let Some(lessor) = inner.lessor.take() {
            let effects = lessor.step_down(&inner.state, clock::now());
            self.execute_effects(inner, effects);
            self.leaderships_ended.send_modify(|ended| *ended += 1);
        }
        inner.waiting.clear();
        inner.registrations.clear();
    }
}

impl Machine for ServerCore {
    /// Applies a committed proposal. If the current lessor proposed it, passes the outcomes to that
    /// lessor. The beginning of another replica's epoch ends the lessor at once.
    fn apply(&self, index: u64, proposal: &Proposal) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut inner = self.inner.lock();
        let applied = inner.state.apply(index, proposal);
        let rows = applied.changed_rows.iter().map(|row| (row.encode(), inner.state.row(row))).collect();
        for session in proposal.commands.iter().filter_map(ended_session) {
            if inner.state.session(session).is_none() {
                inner.registrations.forget(session);
            }
        }
        let is_mine = inner.lessor.as_ref().is_some_and(|lessor| lessor.is_mine(proposal));
        if is_mine {
            self.step(&mut inner, LessorInput::committed(proposal.number, applied));
        } else if begins_epoch(proposal) && inner.lessor.as_ref().is_some_and(|lessor| lessor.epoch().is_some()) {
            // If the lessor's epoch has not begun, the lessor is newer than this entry, and stays.
            self.step_down(&mut inner);
            self.abandoned.notify_one();
        }
        rows
    }

    /// Leaves an empty state, so that no request is answered from the state that will be replaced.
    fn discard_state(&self) {
        let old = self.replace(State::new(VolumeSettings::DEFAULT));
        // It may be large, so it is freed outside the lock.
        drop(old);
    }

    fn restore(&self, state: State) {
        drop(self.replace(state));
    }
}

fn begins_epoch(proposal: &Proposal) -> bool {
    proposal.commands.iter().any(|command| matches!(command, Command::BeginEpoch { .. }))
}

/// The session that the command ends, if applying it has an effect.
fn ended_session(command: &Command) -> Option<SessionId> {
    match command {
        Command::CloseSession { session } | Command::Expire { lease: AnyLease::Session(session), .. } => Some(*session),
        _ => None,
    }
}

/// A refusal without promises and lapses.
pub(crate) fn refusal_response(epoch: Epoch, refusal: Refusal) -> Response {
    Response { epoch, promises: Vec::new(), lapses: Vec::new(), clocks: None, result: Err(refusal) }
}

impl std::fmt::Debug for ServerCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (epoch, index, revision) = self.applied();
        f.debug_struct("Core").field("epoch", &epoch).field("index", &index).field("revision", &revision).finish()
    }
}
