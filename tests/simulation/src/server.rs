//! A server: a replica of the state, and while it leads, or believes that it does, a lessor. The shell around the rules, as
//! thin as the real one is meant to be.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
};

use leasehold_protocol::{
    command::{Command, Outcome, Proposal},
    holder::Ticket,
    id::{Epoch, RequestId, SessionId},
    lessor::{Config, Effect, Input, Lessor},
    message::{Answer, Body, Refusal, Request, Response},
    state::State,
};

use crate::{
    event::{Down, Event, Up},
    invariants::{self, waits::Waits},
    profile::MS,
    world::{Machine, World},
};

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) machine: Machine,
    pub(crate) state: State,
    pub(crate) lessor: Option<Lessor>,
    /// The Raft term that the lessor is of.
    pub(crate) term: u64,
    /// Which process of the server this is.
    pub(crate) boot: u64,
    pub(crate) is_up: bool,
    /// What it knows to be committed.
    known: u64,
    is_applying: bool,
    /// What it appended and a quorum does not have yet.
    pub(crate) tail: VecDeque<Proposal>,
    /// What its shell was about to hand to Raft when it stopped leading.
    pub(crate) held: VecDeque<Proposal>,
    pub(crate) commit_at: u64,
    is_proposing: bool,
    timer: u64,
    /// The connection that each session registered on last, and under which number: the one that gets recalls.
    routes: BTreeMap<SessionId, (u64, usize)>,
    asked: BTreeMap<RequestId, (usize, Ticket)>,
    /// Proofs of leadership that wait for entries to be applied.
    proofs: Vec<(u64, u64)>,
    pub(crate) waits: Waits,
}

impl Server {
    pub(crate) fn new(machine: Machine, state: State) -> Self {
        Self {
            machine,
            state,
            lessor: None,
            term: 0,
            boot: 0,
            is_up: true,
            known: 0,
            is_applying: false,
            tail: VecDeque::new(),
            held: VecDeque::new(),
            commit_at: 0,
            is_proposing: false,
            timer: 0,
            routes: BTreeMap::new(),
            asked: BTreeMap::new(),
            proofs: Vec::new(),
            waits: Waits::default(),
        }
    }

    fn is(&self, boot: u64) -> bool {
        self.is_up && self.boot == boot
    }
}

impl World {
    /// One step of a server's lessor, and its effects in order.
    fn step_lessor(&mut self, place: usize, input: Input) {
        let server = &mut self.servers[place];
        let Some(lessor) = &mut server.lessor else { return };
        let clock = server.machine.clock.read(self.now);
        self.trace.say(self.now, || format!("server {place} <- {input:?}"));
        let effects = lessor.step(input, &server.state, clock);
        let held = lessor.check(&server.state);
        self.demand(held.map_err(|what| format!("server {place}: {what}")));
        self.carry_out(place, effects);
        self.watch_waits(place);
        self.look_after_lessor(place);
    }

    fn watch_waits(&mut self, place: usize) {
        let server = &self.servers[place];
        if self.log.is_led_by(place, server.term) {
            let clock = server.machine.clock.read(self.now);
            let held = server.waits.check(&self.profile, clock);
            self.demand(held);
        }
    }

    /// Sees to the lessor's deadline and its proposals.
    fn look_after_lessor(&mut self, place: usize) {
        let late = self.rng.below(MS);
        let wait = self.rng.below(self.profile.commit / 2 + 1);
        let server = &mut self.servers[place];
        let Some(lessor) = &server.lessor else { return };
        let clock = server.machine.clock.read(self.now);
        let at = server.machine.clock.when(lessor.next_deadline(clock)).max(self.now) + late;
        server.timer = at;
        let boot = server.boot;
        let proposes = lessor.has_proposal() && !server.is_proposing;
        server.is_proposing |= proposes;
        self.at(at, Event::Step { server: place, boot, at });
        if proposes {
            self.after(wait, Event::Propose { server: place, boot });
        }
    }

    pub(crate) fn server_timer(&mut self, place: usize, boot: u64, at: u64) {
        let server = &self.servers[place];
        if server.is(boot) && server.timer == at {
            self.step_lessor(place, Input::Timeout);
        }
    }

    fn carry_out(&mut self, place: usize, effects: Vec<Effect>) {
        for effect in effects {
            self.trace.say(self.now, || format!("server {place} -> {effect:?}"));
            match effect {
                Effect::Reply { id, response } => {
                    self.servers[place].waits.end(id);
                    if let Some((connection, ticket)) = self.servers[place].asked.remove(&id) {
                        self.send_down(connection, Down::Response(ticket, Box::new(response)));
                    }
                }
                Effect::Recall(recall) => {
                    if let Some(&(_, connection)) = self.servers[place].routes.get(&recall.session) {
                        self.send_down(connection, Down::Recall(recall));
                    }
                }
                Effect::Prove { round } => self.prove(place, round),
            }
        }
    }

    /// Something came up a connection.
    pub(crate) fn server_hears(&mut self, connection: usize, message: Up) {
        let place = self.connections[connection].server;
        if !self.servers[place].is_up || self.is_lost(connection) {
            return;
        }
        match message {
            Up::Consent(consent) => self.step_lessor(place, Input::Consent(consent)),
            Up::Request(ticket, request) => self.server_is_asked(place, connection, ticket, *request),
        }
    }

    fn server_is_asked(&mut self, place: usize, connection: usize, ticket: Ticket, request: Request) {
        let server = &mut self.servers[place];
        let session = request.header.session;
        let Some(lessor) = &server.lessor else {
            let leader = self.log.leader.map(|(leader, _)| leader.to_string());
            return self.refuse(connection, ticket, Refusal::NotLeader { leader });
        };
        let epoch = lessor.epoch();
        if let Body::Register = request.body {
            let route = (request.header.registration, connection);
            let last = server.routes.entry(session).or_insert(route);
            *last = route.max(*last);
        }
        self.requests += 1;
        let id = RequestId(self.requests);
        server.asked.insert(id, (connection, ticket));
        if let (Body::Write { .. }, Some(_)) = (&request.body, epoch) {
            let clock = server.machine.clock.read(self.now);
            server.waits.begin(id, (session, request.header.sequence), clock);
        }
        self.step_lessor(place, Input::Request { id, request });
    }

    fn refuse(&mut self, connection: usize, ticket: Ticket, refusal: Refusal) {
        let result: Result<Answer, Refusal> = Err(refusal);
        let response = Response { epoch: Epoch(0), promises: Vec::new(), lapses: Vec::new(), result };
        self.send_down(connection, Down::Response(ticket, Box::new(response)));
    }

    /// The server appends what its lessor has to propose.
    pub(crate) fn propose(&mut self, place: usize, boot: u64) {
        let server = &mut self.servers[place];
        if !server.is(boot) {
            return;
        }
        server.is_proposing = false;
        let clock = server.machine.clock.read(self.now);
        while let Some(proposal) = self.servers[place].lessor.as_mut().and_then(|lessor| lessor.take_proposal(clock)) {
            self.append(place, proposal);
        }
    }

    /// An entry goes to the others. They have it after a while, if the server still leads.
    pub(crate) fn append(&mut self, place: usize, proposal: Proposal) {
        self.trace.say(self.now, || format!("server {place} appends {proposal:?}"));
        let delay = self.rng.wait(self.profile.commit);
        let server = &mut self.servers[place];
        server.tail.push_back(proposal);
        server.commit_at = server.commit_at.max(self.now + delay);
        let (boot, term, at) = (server.boot, server.term, server.commit_at);
        self.at(at, Event::Commit { server: place, boot, term });
    }

    pub(crate) fn committed(&mut self, place: usize, boot: u64, term: u64) {
        let server = &mut self.servers[place];
        if server.is(boot) && self.log.is_led_by(place, term) {
            if let Some(proposal) = server.tail.pop_front() {
                self.commit(proposal);
            }
            self.servers[place].known = self.log.last();
            self.go_on_applying(place);
        }
    }

    /// A quorum has the entry: it is in the one order.
    pub(crate) fn commit(&mut self, proposal: Proposal) {
        let index = self.log.push(proposal.clone());
        self.trace.say(self.now, || format!("committed {index}: {proposal:?}"));
        let outcomes = self.oracle.commit(index, &proposal);
        if let Ok(outcomes) = &outcomes {
            self.trace.say(self.now, || format!("outcomes of {index}: {outcomes:?}"));
        }
        match outcomes {
            Ok(outcomes) => self.outcomes(&proposal, &outcomes),
            Err(what) => self.demand(Err(what)),
        }
        self.trace.mark(&[index, self.oracle.truth.revision().0, self.oracle.truth.cluster_time().as_micros()]);
        for client in 0..self.clients.len() {
            let held = invariants::consents::check(&self.clients[client], &self.oracle.truth, self.now);
            self.demand(held);
        }
        for server in 0..self.servers.len() {
            let after = self.rng.wait(self.profile.commit);
            let boot = self.servers[server].boot;
            self.after(after, Event::Replicate { server, boot, index });
        }
    }

    /// Looks at what an entry did.
    fn outcomes(&mut self, proposal: &Proposal, outcomes: &[Outcome]) {
        for (command, outcome) in proposal.commands.iter().zip(outcomes) {
            self.tally.add(match outcome {
                Outcome::EpochBegun { .. } => "epochs",
                Outcome::VolumeAcquired { .. } => "leases acquired",
                Outcome::Expired => "leases expired",
                Outcome::HorizonMoved { .. } => "expiries put off",
                Outcome::NotHeld => "expiries of leases that are gone",
                Outcome::Written(Ok(_)) => "writes done",
                Outcome::Written(Err(_)) => "writes refused",
                Outcome::NotCovered => "writes not covered",
                Outcome::EpochOver => "commands of an epoch that is over",
                Outcome::SessionOpened { .. } => "sessions opened",
                Outcome::SessionClosed => "sessions closed",
                Outcome::SessionGone => "commands of sessions that are gone",
                Outcome::BelowWindow { .. } | Outcome::BeyondWindow { .. } => "writes outside of the window",
                Outcome::Ticked => "ticks",
            });
            if let (Command::Expire { lease, .. }, Outcome::Expired) = (command, outcome) {
                for client in 0..self.clients.len() {
                    let clock = self.clients[client].machine.clock.read(self.now);
                    let held = invariants::expiry::check(&self.clients[client], lease, clock);
                    self.demand(held);
                }
            }
        }
    }

    /// The server hears what is committed, unless it still believes that it leads another term.
    pub(crate) fn replicate(&mut self, place: usize, boot: u64, index: u64) {
        let server = &mut self.servers[place];
        if server.is(boot) && server.lessor.is_none() {
            server.known = server.known.max(index);
            self.go_on_applying(place);
        }
    }

    pub(crate) fn go_on_applying(&mut self, place: usize) {
        let after = self.rng.wait(self.profile.apply);
        let server = &mut self.servers[place];
        if !server.is_applying && server.state.applied_index() < server.known {
            server.is_applying = true;
            let boot = server.boot;
            self.after(after, Event::Apply { server: place, boot });
        }
    }

    pub(crate) fn apply(&mut self, place: usize, boot: u64) {
        let server = &mut self.servers[place];
        if !server.is(boot) {
            return;
        }
        server.is_applying = false;
        let index = server.state.applied_index() + 1;
        let Some(proposal) = self.log.entry(index).filter(|_| index <= server.known).cloned() else { return };
        let is_mine = server.lessor.as_ref().is_some_and(|lessor| lessor.is_mine(&proposal));
        let outcomes = server.state.apply(index, &proposal).outcomes;
        let mut held = invariants::replicas::check(place, &server.state, &self.oracle.truth);
        if index.is_multiple_of(64) {
            held = held.and(invariants::replicas::check_rows(place, &server.state));
        }
        let clock = server.machine.clock.read(self.now);
        for (command, outcome) in proposal.commands.iter().zip(&outcomes) {
            if let (Command::Write { session, sequence, .. }, Outcome::NotCovered) = (command, outcome) {
                server.waits.again((*session, *sequence), clock);
            }
        }
        self.demand(held);
        if is_mine {
            self.step_lessor(place, Input::Committed { number: proposal.number, outcomes });
        }
        self.settle_proofs(place);
        self.go_on_applying(place);
    }

    /// Asks the others whether the server still leads.
    fn prove(&mut self, place: usize, round: u64) {
        let server = &self.servers[place];
        let (boot, term, index) = (server.boot, server.term, server.known);
        let after = self.rng.wait(self.profile.commit);
        self.after(after, Event::Round { server: place, boot, term, round, index });
    }

    /// The others answer. If they follow another by now they say so, or nothing at all.
    pub(crate) fn round(&mut self, place: usize, boot: u64, term: u64, round: u64, index: u64) {
        let holds = self.log.is_led_by(place, term);
        if holds || self.rng.chance(500) {
            let is_slow = self.rng.chance(40) && !self.is_healing;
            let after = if is_slow { self.rng.between(50, 1500) * MS } else { self.rng.wait(self.profile.commit) };
            self.after(after, Event::Verdict { server: place, boot, term, round, index, holds });
        }
    }

    pub(crate) fn verdict(&mut self, place: usize, boot: u64, term: u64, (round, index): (u64, u64), holds: bool) {
        let server = &mut self.servers[place];
        if !server.is(boot) || server.term != term {
            return;
        }
        if holds {
            server.proofs.push((round, index));
            self.settle_proofs(place);
        } else {
            self.step_lessor(place, Input::NotProven { round });
        }
    }

    /// Tells the lessor of the proofs for which everything has been applied that was committed when they began.
    fn settle_proofs(&mut self, place: usize) {
        let server = &mut self.servers[place];
        let applied = server.state.applied_index();
        let (ready, rest) = mem::take(&mut server.proofs).into_iter().partition(|(_, index)| *index <= applied);
        server.proofs = rest;
        let ready: Vec<(u64, u64)> = ready;
        for (round, _) in ready {
            self.step_lessor(place, Input::Proven { round });
        }
    }

    /// The server has won an election.
    pub(crate) fn lead(&mut self, place: usize, term: u64) {
        self.step_down(place);
        self.log.attempts += 1;
        let config = Config {
            replica: place as u64,
            attempt: self.log.attempts,
            drift: self.profile.drift,
            limits: self.profile.limits,
            planted: self.planted,
        };
        let last = self.log.last();
        let server = &mut self.servers[place];
        let clock = server.machine.clock.read(self.now);
        server.term = term;
        server.known = last;
        server.commit_at = self.now;
        server.lessor = Some(Lessor::new(config, &server.state, clock));
        self.go_on_applying(place);
        self.look_after_lessor(place);
    }

    /// The server leads no more, and knows it.
    pub(crate) fn step_down(&mut self, place: usize) {
        let server = &mut self.servers[place];
        server.tail.clear();
        server.proofs.clear();
        server.waits.clear();
        if let Some(lessor) = server.lessor.take() {
            let clock = server.machine.clock.read(self.now);
            let effects = lessor.step_down(&server.state, clock);
            self.trace.say(self.now, || format!("server {place} steps down"));
            self.carry_out(place, effects);
        }
        // Every request gets one answer, sooner or later; when the lessor ends, at once.
        let server = &mut self.servers[place];
        let left = std::mem::take(&mut server.asked);
        server.routes.clear();
        if !left.is_empty() {
            self.demand(Err(format!("server {place} stepped down and left requests unanswered: {left:?}")));
        }
    }

    /// A deposed leader hears of its successor.
    pub(crate) fn learn(&mut self, place: usize, boot: u64) {
        let server = &self.servers[place];
        if server.is(boot) && server.lessor.is_some() && !self.log.is_led_by(place, server.term) {
            self.step_down(place);
            self.servers[place].known = self.log.last();
            self.go_on_applying(place);
        }
    }

    /// The server's process ends. Its memory is gone, what it stored is not.
    pub(crate) fn crash(&mut self, place: usize) {
        self.trace.say(self.now, || format!("server {place} crashes"));
        let server = &mut self.servers[place];
        server.is_up = false;
        server.boot += 1;
        server.lessor = None;
        (server.is_applying, server.is_proposing) = (false, false);
        server.held.clear();
        server.proofs.clear();
        server.asked.clear();
        server.routes.clear();
        server.waits.clear();
        for connection in 0..self.connections.len() {
            if self.connections[connection].server == place {
                self.break_connection(connection);
            }
        }
    }

    pub(crate) fn boot(&mut self, place: usize) {
        let last = self.log.last();
        let server = &mut self.servers[place];
        if !server.is_up {
            server.is_up = true;
            server.known = last;
            self.go_on_applying(place);
        }
    }
}
