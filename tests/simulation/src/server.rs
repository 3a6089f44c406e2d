//! A server: a replica of the state and, while it leads or believes so, a lessor. It is the shell
//! around the rules, as thin as the real one is meant to be.

use std::{mem, time::Duration};

use leasehold_model::{
    committed::{self, WriteKey},
    server::{ServerEvent, ServerShell, lessor_config, not_leader},
};
use leasehold_protocol::{
    command::{Outcome, Proposal, WriteRefusal},
    holder::SendId,
    id::{Epoch, RequestId},
    lessor::{LessorBounds, LessorConfig, LessorInput},
    message::{Answer, Body, Refusal, Request, Response},
    state::State,
    time::{ClusterTime, Instant},
};

use crate::{
    event::{Down, Event, Host, Up},
    invariants::{self, renewed_key_leases::RenewedKeyLeases, waits::Waits},
    judges::Judge,
    oracle::innermost,
    profile::{MS, WAIT_MAX},
    raft::{Payload, Raft},
    world::{Machine, World},
};

/// The address of an answer: the connection, the sending, and the name that a write has.
type Address = (usize, SendId, WriteKey);

/// In a wide world, a lessor's tables are checked only in one event of this many.
const CHECKED_EVERY: u64 = 4;

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) machine: Machine,
    pub(crate) raft: Raft,
    pub(crate) state: State,
    /// The last entry that was applied to it.
    pub(crate) applied: u64,
    /// The state on disk, and its last entry.
    pub(crate) stored: (State, u64),
    /// Up to this index, its committed entries were checked.
    pub(crate) agreed: u64,
    pub(crate) shell: ServerShell<Address, usize>,
    /// The lessor's Raft term.
    pub(crate) term: u64,
    /// The number of the server's process, and the number of the first since its disk was lost.
    pub(crate) boot: u64,
    pub(crate) born: u64,
    pub(crate) is_up: bool,
    pub(crate) is_applying: bool,
    /// Its disk stalls until then, and so does the handing over of proposals to Raft.
    pub(crate) stalled_until: u64,
    /// When the last proposal handed over reaches Raft. Proposals keep their order.
    hand_at: u64,
    is_proposing: bool,
    timer: u64,
    /// Quorum rounds that succeeded, and wait for entries to be applied.
    pub(crate) proofs: Vec<(u64, u64)>,
    pub(crate) waits: Waits,
    /// The key leases that its lessor has renewed.
    pub(crate) renewed_key_leases: RenewedKeyLeases,
    /// When the lessor's epoch began, on its own clock, and where the cluster clock had to start.
    pub(crate) begun: Option<(Instant, ClusterTime)>,
    /// The time heard from the last leader beyond its last entry, as passed to the lessor.
    heard: Duration,
}

impl Server {
    pub(crate) fn new(machine: Machine, state: State) -> Self {
        Self {
            machine,
            raft: Raft::new(),
            stored: (state.clone(), 0),
            state,
            applied: 0,
            agreed: 0,
            shell: ServerShell::default(),
            term: 0,
            boot: 0,
            born: 0,
            is_up: true,
            is_applying: false,
            stalled_until: 0,
            hand_at: 0,
            is_proposing: false,
            timer: 0,
            proofs: Vec::new(),
            waits: Waits::default(),
            renewed_key_leases: RenewedKeyLeases::default(),
            begun: None,
            heard: Duration::ZERO,
        }
    }

    pub(crate) fn is(&self, boot: u64) -> bool {
        self.is_up && self.boot == boot
    }

    /// Proposals that the shell has not handed to Raft arrive later.
    pub(crate) fn hand_late(&mut self, at: u64) {
        self.hand_at = self.hand_at.max(at);
    }

    /// The disk of a server that is down is lost.
    pub(crate) fn wipe(&mut self, life: u64, first: State) {
        self.raft.wipe(life);
        self.born = self.boot;
        self.stored = (first, 0);
    }
}

impl World {
    /// One step of a server's lessor. Carries out its effects in order.
    pub(crate) fn step_lessor(&mut self, place: usize, input: LessorInput) {
        let server = &mut self.servers[place];
        if server.shell.lessor.is_none() {
            return;
        }
        let clock = server.machine.clock.read(self.now);
        self.trace.say(self.now, || format!("server {place} <- {input:?}"));
        let events = server.shell.step(input, &server.state, clock);
        // Large tables are checked more rarely. Tables that differ stay so.
        let is_checked = self.profile.swarm.is_none() || self.steps.is_multiple_of(CHECKED_EVERY);
        let held = if is_checked { server.shell.check(&server.state) } else { Ok(()) };
        self.demand(held.map_err(|what| format!("server {place}: {what}")));
        self.freeze(Host::Server(place));
        self.carry_out(place, events);
        self.watch_waits(place);
        self.schedule_lessor(place);
    }

    /// Checks that no write waits too long, while a quorum lives. A quorum lives while the leader's
    /// entries are committed and applied in time. Unapplied entries stop the leader's clock (T4)
    /// like uncommitted ones (seed 12370).
    fn watch_waits(&mut self, place: usize) {
        let server = &self.servers[place];
        let Some(leading) = server.raft.leading() else { return };
        let clock = server.machine.clock.read(self.now);
        let most = self.profile.commit_max();
        let is_late = |after: u64, most: u64| {
            let oldest = leading.appended.range(after + 1..).next();
            oldest.is_some_and(|(_, since)| self.now - since > most)
        };
        let is_applied_late = is_late(server.applied, most + self.profile.apply * WAIT_MAX);
        let is_hindered = is_late(server.raft.commit, most) || self.now < server.stalled_until + most;
        if is_applied_late && !is_hindered {
            self.tally.add("steps in which writes were not judged: entries were applied late");
        }
        let is_hindered = is_hindered || is_applied_late;
        let server = &mut self.servers[place];
        if is_hindered {
            server.waits.all_again(clock);
            server.renewed_key_leases.clear();
        } else {
            let held = server.waits.check(&self.profile, clock);
            let revoked = server.waits.check_revocations(&self.profile, clock);
            self.demand(held);
            self.demand_by(Judge::Revocations, revoked);
        }
    }

    /// Schedules the lessor's deadline and its proposals.
    fn schedule_lessor(&mut self, place: usize) {
        let late = self.rng.below(MS);
        let wait = self.rng.below(self.profile.sync / 2 + 1);
        let server = &mut self.servers[place];
        let Some(lessor) = &server.shell.lessor else { return };
        let clock = server.machine.clock.read(self.now);
        let at = server.machine.clock.when(lessor.next_deadline(clock)).max(self.now) + late;
        server.timer = at;
        let boot = server.boot;
        let wait = if lessor.has_full_proposal() { 0 } else { wait };
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
            self.step_lessor(place, LessorInput::Timeout);
        }
    }

    fn carry_out(&mut self, place: usize, events: Vec<ServerEvent<Address, usize>>) {
        for event in events {
            self.trace.say(self.now, || format!("server {place} -> {event:?}"));
            match event {
                ServerEvent::Answer(id, (connection, send_id, key), response) => {
                    self.servers[place].waits.end(id);
                    self.record_answer(place, key, &response);
                    self.send_down(connection, Down::Response(send_id, response));
                }
                ServerEvent::Recall(to, recall) => {
                    self.tally.add("recalls sent");
                    self.send_down(to, Down::Recall(recall));
                }
                ServerEvent::Prove(round) => self.prove(place, round),
                ServerEvent::Wrong(what) => self.demand(Err(format!("server {place}: {what}"))),
            }
        }
    }

    /// Records answers about key leases, and refusals of writes before they are proposed.
    fn record_answer(&mut self, place: usize, key: WriteKey, response: &Response) {
        let server = &mut self.servers[place];
        let clock = server.machine.clock.read(self.now);
        match &response.result {
            Ok(Answer::KeptAlive(promises)) => {
                promises.iter().for_each(|promise| server.renewed_key_leases.renewed(promise, clock))
            }
            Ok(Answer::Written { key_lease: Some(promise), .. }) => {
                let held = self.grants.check(key, promise);
                self.demand_by(Judge::Grants, held);
            }
            // Not in the log: the client may begin it anew, and cancel it first (wide seed 2165).
            Err(Refusal::Write(refusal)) if matches!(innermost(refusal), WriteRefusal::NoVolumeLease { .. }) => {
                self.oracle.once.was_misplaced(key);
            }
            Err(Refusal::OutsideWindow { .. }) => self.tally.add("answers about writes outside of the window"),
            _ => {}
        }
    }

    /// The delay of an epoch's first entry on its way to Raft.
    fn first_late(&mut self, proposal: &Proposal) -> u64 {
        let most = self.swarm().map_or(0, |swarm| swarm.first_late);
        if proposal.epoch == Epoch(0) && most > 0 && !self.is_healing { self.rng.below(most) } else { 0 }
    }

    /// A message arrives from a client.
    pub(crate) fn server_hears(&mut self, connection: usize, message: Up) {
        let place = self.connections[connection].server;
        if !self.servers[place].is_up || self.is_lost(connection) || self.was_refused(connection, &message) {
            return;
        }
        match message {
            Up::Consent(consent) => self.step_lessor(place, LessorInput::Consent(consent)),
            Up::ConsentDelayed(notice) => self.note_delay(place, notice),
            Up::Request(send_id, request) => self.server_is_asked(place, connection, send_id, *request),
        }
    }

    pub(crate) fn server_handles(&mut self, place: usize, connection: usize, send_id: SendId, request: Request) {
        let server = &mut self.servers[place];
        let Some(lessor) = &server.shell.lessor else {
            let leader = server.raft.leader.filter(|leader| *leader != place).map(|leader| leader.to_string());
            self.tally.add("requests to servers that do not lead");
            return self.send_down(connection, Down::Response(send_id, Box::new(not_leader(leader))));
        };
        let has_begun = lessor.epoch().is_some();
        self.requests += 1;
        let id = RequestId(self.requests);
        let key = (request.header.session, request.header.sequence);
        if let (Body::Write { write, .. }, true) = (&request.body, has_begun) {
            let clock = server.machine.clock.read(self.now);
            server.waits.begin(id, key, write, clock);
        }
        let input = server.shell.receive(id, (connection, send_id, key), connection, request);
        self.step_lessor(place, input);
    }

    /// The shell takes the lessor's proposals. Each reaches Raft a moment later, or after a stall.
    pub(crate) fn propose(&mut self, place: usize, boot: u64) {
        if !self.servers[place].is(boot) {
            return;
        }
        self.servers[place].is_proposing = false;
        let clock = self.servers[place].machine.clock.read(self.now);
        while let Some(proposal) = self.servers[place].shell.take_proposal(clock) {
            let after = self.rng.below(MS / 2) + self.first_late(&proposal);
            let held = invariants::proposals::check(&proposal, self.swarm().map(|swarm| swarm.proposal_max_bytes));
            self.demand_by(Judge::Proposals, held);
            let held = invariants::epochs::check(&proposal, self.servers[place].begun, clock);
            self.demand_by(Judge::Epochs, held);
            let server = &mut self.servers[place];
            server.hand_at = server.hand_at.max(self.now + after).max(server.stalled_until);
            let at = server.hand_at;
            self.at(at, Event::Hand { server: place, boot, proposal: Box::new(proposal) });
        }
    }

    /// A proposal reaches Raft. If Raft leads, it takes the proposal, whichever leadership made it.
    pub(crate) fn hand(&mut self, place: usize, boot: u64, proposal: Proposal) {
        let server = &self.servers[place];
        if !server.is(boot) {
            return;
        }
        let is_its_own = server.shell.is_mine(&proposal);
        // An epoch's first entry never follows that of a later epoch. The real shell hands it over
        // only when all earlier proposals are settled, and no lessor would remain to lead by it.
        if proposal.epoch == Epoch(0) && !is_its_own {
            return;
        }
        match (server.raft.is_leader(), is_its_own) {
            (true, is_its_own) => {
                if !is_its_own {
                    self.tally.add("proposals appended in a later leadership");
                }
                self.trace.say(self.now, || format!("server {place} appends {proposal:?}"));
                self.append(place, Payload::Proposal(proposal));
            }
            // The shell cannot tell whether Raft took it.
            (false, true) => {
                self.tally.add("proposals that Raft did not take");
                self.step_down(place);
            }
            (false, false) => {}
        }
    }

    pub(crate) fn go_on_applying(&mut self, place: usize) {
        let after = self.rng.wait(self.profile.apply);
        let server = &mut self.servers[place];
        if !server.is_applying && server.applied < server.raft.commit {
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
        let index = server.applied + 1;
        let Some(entry) = server.raft.entry(index).filter(|_| index <= server.raft.commit).cloned() else { return };
        server.applied = index;
        if let Some(leading) = server.raft.leading_mut() {
            leading.appended.retain(|appended, _| *appended > index);
        }
        if let Payload::Proposal(proposal) = &entry.payload {
            self.apply_proposal(place, index, proposal);
        }
        let is_stored = self.rng.chance(30);
        let server = &mut self.servers[place];
        if is_stored && server.applied <= server.raft.synced {
            server.stored = (server.state.clone(), server.applied);
        }
        self.settle_proofs(place);
        self.go_on_applying(place);
    }

    fn apply_proposal(&mut self, place: usize, index: u64, proposal: &Proposal) {
        let server = &mut self.servers[place];
        let is_mine = server.shell.is_mine(proposal);
        let applied = server.state.apply(index, proposal);
        let held = self.oracle.check_replica(place, &server.state, self.profile.swarm.is_some());
        let clock = server.machine.clock.read(self.now);
        for (key, _, outcome) in committed::writes(proposal, &applied.outcomes) {
            if *outcome == Outcome::MissingConsents {
                server.waits.again(key, clock);
            }
        }
        self.demand(held);
        if is_mine {
            if proposal.epoch == Epoch(0) {
                let server = &mut self.servers[place];
                server.begun = Some((clock, server.state.cluster_time().after(server.heard)));
            }
            let server = &mut self.servers[place];
            let held = server.renewed_key_leases.check(proposal, &applied.outcomes, clock);
            self.demand_by(Judge::RenewedKeyLeases, held);
            self.step_lessor(place, LessorInput::committed(proposal.number, applied));
        }
    }

    /// A quorum round has run out of time.
    pub(crate) fn unproven(&mut self, place: usize, boot: u64, round: u64) {
        let server = &mut self.servers[place];
        if !server.is(boot) || server.proofs.iter().any(|(proof, _)| *proof == round) {
            return;
        }
        let was_waiting = server.raft.leading_mut().is_none_or(|leading| leading.proofs.remove(&round).is_some());
        if was_waiting && server.shell.lessor.is_some() {
            self.tally.add("leaderships not proven");
            self.step_lessor(place, LessorInput::NotProven { round });
        }
    }

    /// Notifies the lessor of each quorum round whose commit index has been applied.
    pub(crate) fn settle_proofs(&mut self, place: usize) {
        let server = &mut self.servers[place];
        let applied = server.applied;
        let (ready, rest) = mem::take(&mut server.proofs).into_iter().partition(|(_, index)| *index <= applied);
        server.proofs = rest;
        let ready: Vec<(u64, u64)> = ready;
        for (round, _) in ready {
            self.step_lessor(place, LessorInput::Proven { round });
        }
    }

    /// The shell learns that its Raft leads.
    pub(crate) fn lead(&mut self, place: usize, boot: u64, term: u64) {
        let server = &self.servers[place];
        if !server.is(boot) || !server.raft.is_leader() || server.raft.term != term {
            return;
        }
        self.step_down(place);
        let config = LessorConfig {
            limits: self.profile.limits,
            bounds: self.swarm().map_or(LessorBounds::DEFAULT, |swarm| swarm.bounds),
            ..lessor_config(place as u64, self.rng.bits(), self.profile.drift, self.planted)
        };
        let server = &mut self.servers[place];
        let clock = server.machine.clock.read(self.now);
        server.term = term;
        server.hand_at = self.now;
        let read = |at| server.machine.clock.read(at);
        let heard = server.raft.proposer.map(|heard| read(heard.last).since(read(heard.received))).unwrap_or_default();
        if !heard.is_zero() {
            self.tally.add("leaders that heard the last one beyond its last entry");
        }
        server.heard = heard;
        server.shell.lead(config, &server.state, heard, clock);
        self.go_on_applying(place);
        self.schedule_lessor(place);
    }

    /// The server no longer leads, and knows it.
    pub(crate) fn step_down(&mut self, place: usize) {
        let server = &mut self.servers[place];
        server.proofs.clear();
        server.waits.clear();
        server.renewed_key_leases.clear();
        server.begun = None;
        if server.shell.lessor.is_some() {
            self.trace.say(self.now, || format!("server {place} steps down"));
            self.tally.add("lessors that stepped down");
        }
        let clock = server.machine.clock.read(self.now);
        let events = server.shell.step_down(&server.state, clock);
        self.carry_out(place, events);
    }

    /// The shell of a deposed leader learns of it.
    pub(crate) fn learn(&mut self, place: usize, boot: u64) {
        let server = &self.servers[place];
        let leads = server.raft.is_leader() && server.raft.term == server.term;
        if server.is(boot) && server.shell.lessor.is_some() && !leads {
            self.step_down(place);
        }
    }

    /// The shell gives its lessor up while Raft still leads, and starts a new one. The reason would
    /// be a proposal of unknown outcome.
    pub(crate) fn give_up_lessor(&mut self, place: usize) {
        let (boot, term) = (self.servers[place].boot, self.servers[place].raft.term);
        self.step_down(place);
        self.lead(place, boot, term);
    }

    /// The server's process ends. It loses its memory, and keeps what it stored.
    pub(crate) fn crash(&mut self, place: usize) {
        self.trace.say(self.now, || format!("server {place} crashes"));
        let server = &mut self.servers[place];
        let unsynced = server.raft.last() - server.raft.synced;
        server.is_up = false;
        server.boot += 1;
        server.shell.crash();
        (server.is_applying, server.is_proposing, server.stalled_until) = (false, false, 0);
        server.raft.crash();
        server.proofs.clear();
        server.waits.clear();
        server.renewed_key_leases.clear();
        server.begun = None;
        self.tally.add_many("unsynced entries lost in a crash", unsynced);
        for connection in 0..self.connections.len() {
            if self.connections[connection].server == place {
                self.break_connection(connection);
            }
        }
    }

    pub(crate) fn boot(&mut self, place: usize) {
        let server = &mut self.servers[place];
        if server.is_up {
            return;
        }
        server.is_up = true;
        (server.state, server.applied) = server.stored.clone();
        server.raft.commit = server.applied;
        server.agreed = server.applied;
        server.raft.heard = self.now;
        let boot = server.boot;
        self.trace.say(self.now, || format!("server {place} starts"));
        self.await_leader(place);
        self.ask_for_readmission(place, boot);
    }
}
