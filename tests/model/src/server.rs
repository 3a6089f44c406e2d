//! The shell of a server: its lessor while it leads or believes so, and where answers and recalls
//! go. As thin as the real one is meant to be.
//!
//! `A` is the address of an answer: whatever the world needs to send it. `L` names a connection:
//! recalls go to the one of the session's latest registration.

use std::{collections::BTreeMap, fmt, time::Duration};

use leasehold_protocol::{
    command::Proposal,
    id::{Epoch, RequestId, SessionId},
    lessor::{Lessor, LessorBounds, LessorConfig, LessorEffect, LessorInput},
    limits::Limits,
    message::{Body, Recall, Refusal, Request, Response},
    planted::Planted,
    state::State,
    time::{DriftAllowance, Instant},
};

/// A server without its network, its log and its state.
#[derive(Debug, Clone, Hash)]
pub struct ServerShell<A, L> {
    /// The rules, while the server leads or believes so.
    pub lessor: Option<Lessor>,
    /// The latest registration of each session, and its connection.
    routes: BTreeMap<SessionId, (u64, L)>,
    /// The requests without an answer.
    waiting: BTreeMap<RequestId, A>,
}

/// What the world does after a step of a server.
#[derive(Debug)]
pub enum ServerEvent<A, L> {
    /// Send the answer to this request.
    Answer(RequestId, A, Box<Response>),
    /// Send a recall on this connection.
    Recall(L, Recall),
    /// Begin this quorum round: ask the other servers whether this one leads.
    Prove(u64),
    /// The lessor broke an invariant.
    Wrong(String),
}

impl<A, L> Default for ServerShell<A, L> {
    fn default() -> Self {
        Self { lessor: None, routes: BTreeMap::new(), waiting: BTreeMap::new() }
    }
}

impl<A: fmt::Debug, L: Ord + Copy> ServerShell<A, L> {
    /// The server leads, and takes its proposals next. `heard` is the time heard from the last
    /// leader beyond its last entry.
    pub fn lead(&mut self, config: LessorConfig, state: &State, heard: Duration, now: Instant) {
        self.lessor = Some(Lessor::new(config, state, heard, now));
    }

    /// The lowest number that no waiting request has.
    pub fn free_id(&self) -> RequestId {
        (1..).map(RequestId).find(|id| !self.waiting.contains_key(id)).unwrap_or_default()
    }

    /// A request arrives on a connection, at a server with a lessor. Returns the lessor's input.
    pub fn receive(&mut self, id: RequestId, to: A, connection: L, request: Request) -> LessorInput {
        if let Body::Register = request.body {
            let route = (request.header.registration, connection);
            let last = self.routes.entry(request.header.session).or_insert(route);
            *last = route.max(*last);
        }
        self.waiting.insert(id, to);
        LessorInput::Request { id, request }
    }

    /// One step of the lessor. Nothing happens without one.
    pub fn step(&mut self, input: LessorInput, state: &State, now: Instant) -> Vec<ServerEvent<A, L>> {
        let effects = self.lessor.as_mut().map(|lessor| lessor.step(input, state, now));
        self.events(effects.unwrap_or_default())
    }

    /// The lessor's tables are sound.
    pub fn check(&self, state: &State) -> Result<(), String> {
        self.lessor.as_ref().map_or(Ok(()), |lessor| lessor.check(state))
    }

    /// The next proposal, if the lessor has one.
    pub fn take_proposal(&mut self, now: Instant) -> Option<Proposal> {
        self.lessor.as_mut()?.take_proposal(now)
    }

    /// Whether the present lessor made the proposal.
    pub fn is_mine(&self, proposal: &Proposal) -> bool {
        self.lessor.as_ref().is_some_and(|lessor| lessor.is_mine(proposal))
    }

    /// The server no longer leads, and knows it. Every request gets one answer, at the latest now.
    pub fn step_down(&mut self, state: &State, now: Instant) -> Vec<ServerEvent<A, L>> {
        let effects = self.lessor.take().map(|lessor| lessor.step_down(state, now));
        let mut events = self.events(effects.unwrap_or_default());
        self.routes.clear();
        let left = std::mem::take(&mut self.waiting);
        if !left.is_empty() {
            events.push(ServerEvent::Wrong(format!("the lessor stepped down and left requests unanswered: {left:?}")));
        }
        events
    }

    /// The process has ended, and its memory with it.
    pub fn crash(&mut self) {
        *self = Self::default();
    }

    fn events(&mut self, effects: Vec<LessorEffect>) -> Vec<ServerEvent<A, L>> {
        effects.into_iter().filter_map(|effect| self.event(effect)).collect()
    }

    fn event(&mut self, effect: LessorEffect) -> Option<ServerEvent<A, L>> {
        match effect {
            LessorEffect::Reply { id, response } => Some(match self.waiting.remove(&id) {
                Some(to) => ServerEvent::Answer(id, to, Box::new(response)),
                None => ServerEvent::Wrong(format!("no request waits for the answer {id:?}, {response:?}")),
            }),
            // Nobody hears recalls of a session that has not registered here.
            LessorEffect::Recall(recall) => {
                let (_, to) = *self.routes.get(&recall.session)?;
                Some(ServerEvent::Recall(to, recall))
            }
            LessorEffect::ClockChanged { .. } => None,
            LessorEffect::Prove { round } => Some(ServerEvent::Prove(round)),
        }
    }
}

/// The configuration of a lessor with the default limits and bounds.
pub fn lessor_config(replica: u64, attempt: u64, drift: DriftAllowance, planted: Planted) -> LessorConfig {
    let (limits, bounds) = (Limits::default(), LessorBounds::DEFAULT);
    LessorConfig { replica, attempt, drift, limits, bounds, planted }
}

/// The answer of a server that does not lead. `leader` is the address of the one that does.
pub fn not_leader(leader: Option<String>) -> Response {
    let result = Err(Refusal::NotLeader { leader });
    Response { epoch: Epoch(0), promises: Vec::new(), lapses: Vec::new(), clocks: None, result }
}
