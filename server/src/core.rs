//! The server's core: the replicated state and, while this replica leads, the lessor, behind one lock.
//!
//! Everything that happens comes in here as an input of the rules, and every effect of theirs is carried out here, in
//! order, under the lock: replies go to the calls that wait for them, recalls to the connections that sessions
//! registered on, proofs and proposals to the tasks that see to them. The core decides nothing, and nothing that takes
//! time is done under its lock.
//!
//! It does not know Raft: what is committed comes in through [`Machine`], whether this replica leads through
//! [`Core::lead`] and [`Core::follow`].

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
    lessor::{self, Effect, Input, Lessor},
    message::{Body, ClockInfo, Consent, Header, Recall, Refusal, Request, Response},
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
pub type Recalls = mpsc::Sender<Recall>;

/// The recalls that wait to be sent on one connection. One more is dropped, and nothing is lost by that: the lessor sends each
/// unanswered recall again, and a write that waits for one goes on when the session's lease has ended.
pub const RECALLS_WAITING_MAX: usize = 1 << 13;

/// Names one lessor of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generation(u64);

/// What a call gets: its answer, now or later.
pub type Answer = oneshot::Receiver<Response>;

/// The replicated state, the lessor, and who waits for what.
pub struct Core {
    inner: Mutex<Inner>,
    requests: AtomicU64,
    /// There is something to propose.
    proposals: Notify,
    /// There is so much that it need not wait.
    full_proposals: Notify,
    /// The lessor was given up.
    given_up: Notify,
    /// A proof of leadership is wanted.
    proofs: mpsc::UnboundedSender<u64>,
    /// Counts the leaderships that have ended here: clients' connections are closed then, so that they look for the next
    /// leader at once.
    ended: watch::Sender<u64>,
}

struct Inner {
    state: State,
    lessor: Option<Lessor>,
    /// The lessor's, or the last one's.
    generation: Generation,
    /// Where the leader listens, while this replica does not lead.
    leader: Option<String>,
    waiting: HashMap<RequestId, oneshot::Sender<Response>>,
    registrations: Registrations,
}

impl Core {
    /// A core with the state that every cluster begins with, and the proofs that it will want.
    pub fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<u64>) {
        let (proofs, wanted) = mpsc::unbounded_channel();
        let inner = Inner {
            state: State::new(VolumeSettings::DEFAULT),
            lessor: None,
            generation: Generation::default(),
            leader: None,
            waiting: HashMap::new(),
            registrations: Registrations::default(),
        };
        let core = Self {
            inner: Mutex::new(inner),
            requests: AtomicU64::new(0),
            proposals: Notify::new(),
            full_proposals: Notify::new(),
            given_up: Notify::new(),
            proofs,
            ended: watch::Sender::new(0),
        };
        (Arc::new(core), wanted)
    }

    /// Takes a request that came in on a connection. The answer comes at once, or later, or never if the core is dropped.
    pub fn request(&self, request: Request, connection: ConnectionId, recalls: &Recalls) -> Answer {
        let (sender, answer) = oneshot::channel();
        let mut inner = self.inner.lock();
        if inner.lessor.is_none() {
            let refusal = Refusal::NotLeader { leader: inner.leader.clone() };
            // Whoever asked may have gone.
            let _ = sender.send(bare(inner.state.epoch(), refusal));
            return answer;
        }
        let Header { session, registration, epoch, .. } = request.header;
        // Only the connection that a session registered on last may speak for it. The lessor
        // refuses sessions that do not exist.
        let is_register = request.body == Body::Register;
        if (is_register || !inner.registrations.is_on(session, connection)) && inner.state.session(session).is_some() {
            if !is_register {
                let expected = inner.state.epoch();
                let _ = sender.send(bare(expected, Refusal::NotRegistered { got: epoch, expected }));
                return answer;
            }
            inner.registrations.register(session, registration, connection, recalls);
        }
        let id = RequestId(self.requests.fetch_add(1, Ordering::Relaxed));
        inner.waiting.insert(id, sender);
        self.step(&mut inner, Input::Request { id, request });
        answer
    }

    /// A client has consented to a recall. It counts only if the session registered on this
    /// connection last.
    pub fn consent(&self, connection: ConnectionId, consent: Consent) {
        let mut inner = self.inner.lock();
        if inner.registrations.is_on(consent.session, connection) {
            self.step(&mut inner, Input::Consent(consent));
        }
    }

    /// A proof of leadership was had, or not (S6).
    pub fn proof(&self, round: u64, is_proven: bool) {
        self.input(if is_proven { Input::Proven { round } } else { Input::NotProven { round } });
    }

    /// The lessor's deadline has come. Returns when the next one does; none while this replica does not lead.
    pub fn timeout(&self) -> Option<Duration> {
        let mut inner = self.inner.lock();
        self.step(&mut inner, Input::Timeout);
        let now = clock::now();
        inner.lessor.as_ref().map(|lessor| lessor.next_deadline(now).since(now))
    }

    /// Waits until there is something to propose, and says for whom. Nothing is lost if the future is dropped.
    pub async fn next_proposal(&self) -> (Generation, Proposal) {
        loop {
            match self.take_proposal_if(Lessor::has_proposal) {
                Some(proposal) => return proposal,
                None => self.proposals.notified().await,
            }
        }
    }

    /// The same, of what need not wait for the last proposal ([`Lessor::has_full_proposal`]).
    pub async fn next_full_proposal(&self) -> (Generation, Proposal) {
        loop {
            match self.take_proposal_if(Lessor::has_full_proposal) {
                Some(proposal) => return proposal,
                None => self.full_proposals.notified().await,
            }
        }
    }

    fn take_proposal_if(&self, is_ready: impl Fn(&Lessor) -> bool) -> Option<(Generation, Proposal)> {
        let mut inner = self.inner.lock();
        let generation = inner.generation;
        let lessor = inner.lessor.as_mut().filter(|lessor| is_ready(lessor))?;
        lessor.take_proposal(clock::now()).map(|proposal| (generation, proposal))
    }

    /// This replica has become leader, or has been elected anew. It has heard from the leader of the latest entry for so long since
    /// that came in ([`Lessor::new`]).
    pub fn lead(&self, config: lessor::Config, heard: Duration) {
        let mut inner = self.inner.lock();
        self.step_down(&mut inner);
        let lessor = Lessor::new(config, &inner.state, heard, clock::now());
        inner.lessor = Some(lessor);
        inner.generation.0 += 1;
        inner.leader = None;
        self.proposals.notify_one();
    }

    /// This replica does not lead; another does, if known.
    pub fn follow(&self, leader: Option<String>) {
        let mut inner = self.inner.lock();
        self.step_down(&mut inner);
        inner.leader = leader;
    }

    /// A proposal of this lessor did not go through: it no longer knows what is in the log, and ends. If this replica leads
    /// still, it begins another epoch. Nothing happens if that lessor has ended: its successor has proposed nothing of the kind.
    pub fn give_up(&self, generation: Generation) {
        let mut inner = self.inner.lock();
        if inner.generation == generation && inner.lessor.is_some() {
            self.step_down(&mut inner);
            inner.leader = None;
            self.given_up.notify_one();
        }
    }

    /// Waits until a lessor is given up. It may have been succeeded since ([`Core::has_lessor`]).
    pub async fn given_up(&self) {
        self.given_up.notified().await;
    }

    /// Whether this lessor has not ended.
    pub fn has_lessor_of(&self, generation: Generation) -> bool {
        let inner = self.inner.lock();
        inner.generation == generation && inner.lessor.is_some()
    }

    /// Whether there is a lessor, begun or not.
    pub fn has_lessor(&self) -> bool {
        self.inner.lock().lessor.is_some()
    }

    /// Whether the first entry of this replica's leadership has been applied: it answers.
    pub fn serves(&self) -> bool {
        self.inner.lock().lessor.as_ref().is_some_and(|lessor| lessor.epoch().is_some())
    }

    /// The last epoch and the index of the last entry that were applied, with the revision that they led to.
    pub fn applied(&self) -> (Epoch, u64, leasehold_protocol::id::Revision) {
        let inner = self.inner.lock();
        (inner.state.epoch(), inner.state.applied_index(), inner.state.revision())
    }

    /// How many clients' clocks and this server's are beyond their allowances, as far as this server leads, and some of them.
    pub fn clock_infos(&self) -> (u64, Vec<ClockInfo>) {
        let inner = self.inner.lock();
        inner.lessor.as_ref().map(|lessor| lessor.clock_infos(&inner.state)).unwrap_or_default()
    }

    /// Changes whenever a leadership ends here.
    pub fn ended(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// The connection has ended: nothing is sent down it any more.
    pub fn disconnected(&self, connection: ConnectionId) {
        self.inner.lock().registrations.disconnected(connection);
    }

    fn input(&self, input: Input) {
        let mut inner = self.inner.lock();
        self.step(&mut inner, input);
    }

    fn step(&self, inner: &mut Inner, input: Input) {
        let Inner { state, lessor: Some(lessor), .. } = inner else { return };
        let effects = lessor.step(input, state, clock::now());
        let (has_proposal, is_full) = (lessor.has_proposal(), lessor.has_full_proposal());
        self.carry_out(inner, effects);
        if has_proposal {
            self.proposals.notify_one();
        }
        if is_full {
            self.full_proposals.notify_one();
        }
    }

    fn carry_out(&self, inner: &mut Inner, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Reply { id, response } => {
                    if let Some(waiting) = inner.waiting.remove(&id) {
                        // Whoever asked may have gone.
                        let _ = waiting.send(response);
                    }
                }
                Effect::Recall(recall) => inner.registrations.recall(recall),
                Effect::ClockChanged { session, name, beyond: Some(excess) } => {
                    tracing::warn!(%session, name, ppm = excess.ppm(), allowed_ppm = excess.allowed_ppm,
                        "a client's clock and this server's differ by more than allowed: the client serves nothing from memory");
                }
                Effect::ClockChanged { session, name, beyond: None } => {
                    tracing::info!(%session, name, "a client's clock and this server's are within their allowances again");
                }
                Effect::Prove { round } => {
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
            self.given_up.notify_one();
        }
        std::mem::replace(&mut inner.state, state)
    }

    fn step_down(&self, inner: &mut Inner) {
        if let Some(lessor) = inner.lessor.take() {
            let effects = lessor.step_down(&inner.state, clock::now());
            self.carry_out(inner, effects);
            self.ended.send_modify(|ended| *ended += 1);
        }
        inner.waiting.clear();
        inner.registrations.clear();
    }
}

impl Machine for Core {
    /// Applies a committed proposal and, if it is the lessor's, tells it. Another replica's leadership ends the lessor at once.
    fn apply(&self, index: u64, proposal: &Proposal) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut inner = self.inner.lock();
        let applied = inner.state.apply(index, proposal);
        let rows = applied.touched.iter().map(|row| (row.encode(), inner.state.row(row))).collect();
        for session in proposal.commands.iter().filter_map(ended_session) {
            if inner.state.session(session).is_none() {
                inner.registrations.forget(session);
            }
        }
        let is_mine = inner.lessor.as_ref().is_some_and(|lessor| lessor.is_mine(proposal));
        if is_mine {
            self.step(&mut inner, Input::committed(proposal.number, applied));
        } else if begins_epoch(proposal) && inner.lessor.as_ref().is_some_and(|lessor| lessor.epoch().is_some()) {
            // A lessor that has not begun is still to come: what is applied until then is older than it.
            self.step_down(&mut inner);
            self.given_up.notify_one();
        }
        rows
    }

    /// As if nothing had been applied yet: the replica has nothing to say of the state that goes.
    fn release(&self) {
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
pub(crate) fn bare(epoch: Epoch, refusal: Refusal) -> Response {
    Response { epoch, promises: Vec::new(), lapses: Vec::new(), result: Err(refusal) }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (epoch, index, revision) = self.applied();
        f.debug_struct("Core").field("epoch", &epoch).field("index", &index).field("revision", &revision).finish()
    }
}
