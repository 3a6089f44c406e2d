//! The server's core: the replicated state and, while this replica leads, the lessor, behind one
//! lock.
//!
//! Everything that happens comes in here as an input of the rules, and every effect of theirs is
//! carried out here, in order, under the lock: replies go to the calls that wait for them, recalls
//! to the connections that sessions registered on, proofs and proposals to the tasks that see to
//! them. The core decides nothing, and nothing that takes time is done under its lock.
//!
//! It does not know Raft: what is committed comes in through [`Machine`], whether this replica
//! leads through [`ServerCore::lead`] and [`ServerCore::follow`].

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
    command::{Command, LeaseKey, Proposal},
    id::{Epoch, RequestId, SessionId},
    lessor::{self, Lessor, LessorEffect, LessorInput},
    message::{Body, ClockInfo, Consent, Recall, Refusal, Request, RequestHeader, Response},
    state::State,
    volume::VolumeSettings,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use self::registrations::Registrations;
use crate::{clock, raft::Machine};

/// Names one connection of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Where the recalls for one connection go.
pub type RecallSender = mpsc::Sender<Recall>;

/// The recalls that wait to be sent on one connection. One more is dropped, and nothing is lost by
/// that: the lessor sends each unanswered recall again, and a write that waits for one goes on when
/// the session's lease has ended.
pub const RECALLS_WAITING_MAX: usize = 1 << 13;

/// Names one lessor of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LessorId(u64);

/// What a call gets: its answer, now or later.
pub type ResponseReceiver = oneshot::Receiver<Response>;

/// The replicated state, the lessor, and who waits for what.
pub struct ServerCore {
    inner: Mutex<CoreState>,
    requests: AtomicU64,
    /// There is something to propose.
    proposals: Notify,
    /// There is so much that it need not wait.
    full_proposals: Notify,
    /// The lessor was given up.
    abandoned: Notify,
    /// A proof of leadership is wanted.
    proofs: mpsc::UnboundedSender<u64>,
    /// Counts the leaderships that have ended here: clients' connections are closed then, so that
    /// they look for the next leader at once.
    leaderships_ended: watch::Sender<u64>,
}

struct CoreState {
    state: State,
    lessor: Option<Lessor>,
    /// The lessor's, or the last one's.
    lessor_id: LessorId,
    /// Where the leader listens, while this replica does not lead.
    leader: Option<String>,
    waiting: HashMap<RequestId, oneshot::Sender<Response>>,
    registrations: Registrations,
}

impl ServerCore {
    /// A core with the state that every cluster begins with, and the proofs that it will want.
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

    /// Takes a request that came in on a connection. The answer comes at once, or later, or never
    /// if the core is dropped.
    pub fn request(&self, request: Request, connection: ConnectionId, recalls: &RecallSender) -> ResponseReceiver {
        let (sender, answer) = oneshot::channel();
        let mut inner = self.inner.lock();
        if inner.lessor.is_none() {
            let refusal = Refusal::NotLeader { leader: inner.leader.clone() };
            // Whoever asked may have gone.
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

    /// A client has consented to a recall. It counts only if the session registered on this
    /// connection last.
    pub fn consent(&self, connection: ConnectionId, consent: Consent) {
        let mut inner = self.inner.lock();
        if inner.registrations.is_on(consent.session, connection) {
            self.step(&mut inner, LessorInput::Consent(consent));
        }
    }

    /// A proof of leadership was had, or not (S6).
    pub fn proof(&self, round: u64, is_proven: bool) {
        self.input(if is_proven { LessorInput::Proven { round } } else { LessorInput::NotProven { round } });
    }

    /// The lessor's deadline has come. Returns when the next one does; none while this replica does
    /// not lead.
    pub fn timeout(&self) -> Option<Duration> {
        let mut inner = self.inner.lock();
        self.step(&mut inner, LessorInput::Timeout);
        let now = clock::now();
        inner.lessor.as_ref().map(|lessor| lessor.next_deadline(now).since(now))
    }

    /// Waits until there is something to propose, and says for whom. Nothing is lost if the future
    /// is dropped.
    pub async fn next_proposal(&self) -> (LessorId, Proposal) {
        loop {
            match self.take_proposal_if(Lessor::has_proposal) {
                Some(proposal) => return proposal,
                None => self.proposals.notified().await,
            }
        }
    }

    /// The same, of what need not wait for the last proposal ([`Lessor::has_full_proposal`]).
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

    /// This replica has become leader, or has been elected anew. It has heard from the leader of
    /// the latest entry for so long since that came in ([`Lessor::new`]).
    pub fn become_leader(&self, config: lessor::LessorConfig, heard: Duration) {
        let mut inner = self.inner.lock();
        self.step_down(&mut inner);
        let lessor = Lessor::new(config, &inner.state, heard, clock::now());
        inner.lessor = Some(lessor);
        inner.lessor_id.0 += 1;
        inner.leader = None;
        self.proposals.notify_one();
    }

    /// This replica does not lead; another does, if known.
    pub fn become_follower(&self, leader: Option<String>) {
        let mut inner = self.inner.lock();
        self.step_down(&mut inner);
        inner.leader = leader;
    }

    /// A proposal of this lessor did not go through: it no longer knows what is in the log, and
    /// ends. If this replica leads still, it begins another epoch. Nothing happens if that lessor
    /// has ended: its successor has proposed nothing of the kind.
    pub fn abandon_lessor(&self, lessor_id: LessorId) {
        let mut inner = self.inner.lock();
        if inner.lessor_id == lessor_id && inner.lessor.is_some() {
            self.step_down(&mut inner);
            inner.leader = None;
            self.abandoned.notify_one();
        }
    }

    /// Waits until a lessor is given up. It may have been succeeded since
    /// ([`ServerCore::has_lessor`]).
    pub async fn lessor_abandoned(&self) {
        self.abandoned.notified().await;
    }

    /// Whether this lessor has not ended.
    pub fn is_lessor_current(&self, lessor_id: LessorId) -> bool {
        let inner = self.inner.lock();
        inner.lessor_id == lessor_id && inner.lessor.is_some()
    }

    /// Whether there is a lessor, begun or not.
    pub fn has_lessor(&self) -> bool {
        self.inner.lock().lessor.is_some()
    }

    /// Whether the first entry of this replica's leadership has been applied: it answers.
    pub fn is_serving(&self) -> bool {
        self.inner.lock().lessor.as_ref().is_some_and(|lessor| lessor.epoch().is_some())
    }

    /// The last epoch and the index of the last entry that were applied, with the revision that
    /// they led to.
    pub fn applied(&self) -> (Epoch, u64, leasehold_protocol::id::Revision) {
        let inner = self.inner.lock();
        (inner.state.epoch(), inner.state.applied_index(), inner.state.revision())
    }

    /// How many clients' clocks and this server's are beyond their allowances, as far as this
    /// server leads, and some of them.
    pub fn clock_infos(&self) -> (u64, Vec<ClockInfo>) {
        let inner = self.inner.lock();
        inner.lessor.as_ref().map(|lessor| lessor.clock_infos(&inner.state)).unwrap_or_default()
    }

    /// Changes whenever a leadership ends here.
    pub fn leaderships_ended(&self) -> watch::Receiver<u64> {
        self.leaderships_ended.subscribe()
    }

    /// The connection has ended: nothing is sent down it any more.
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
                        // Whoever asked may have gone.
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
                    // The prover ends with the server.
                    let _ = self.proofs.send(round);
                }
            }
        }
    }

    /// Ends any lessor, as what it knows is of the old state. Returns that.
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
    /// Applies a committed proposal and, if it is the lessor's, tells it. Another replica's
    /// leadership ends the lessor at once.
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
            // A lessor that has not begun is still to come: what is applied until then is older
            // than it.
            self.step_down(&mut inner);
            self.abandoned.notify_one();
        }
        rows
    }

    /// As if nothing had been applied yet: the replica has nothing to say of the state that goes.
    fn discard_state(&self) {
        let old = self.replace(State::new(VolumeSettings::DEFAULT));
        // It may be large: it is taken apart outside the lock.
        drop(old);
    }

    fn restore(&self, state: State) {
        drop(self.replace(state));
    }
}

fn begins_epoch(proposal: &Proposal) -> bool {
    proposal.commands.iter().any(|command| matches!(command, Command::BeginEpoch { .. }))
}

/// The session that the command ends, if it is applied with effect.
fn ended_session(command: &Command) -> Option<SessionId> {
    match command {
        Command::CloseSession { session } | Command::Expire { lease: LeaseKey::Session(session), .. } => Some(*session),
        _ => None,
    }
}

/// A refusal without anything riding along.
pub(crate) fn refusal_response(epoch: Epoch, refusal: Refusal) -> Response {
    Response { epoch, promises: Vec::new(), lapses: Vec::new(), result: Err(refusal) }
}

impl std::fmt::Debug for ServerCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (epoch, index, revision) = self.applied();
        f.debug_struct("Core").field("epoch", &epoch).field("index", &index).field("revision", &revision).finish()
    }
}
