//! The world: virtual time, and everything in it. One event after the other, in the order of (time, tie number).

use std::collections::{BTreeMap, VecDeque};

use leasehold_protocol::{
    planted::{Bug, Planted},
    state::State,
};

use crate::{
    client::Client,
    clock::Clock,
    event::{Event, Host},
    invariants,
    log::Log,
    network::Connection,
    oracle::Oracle,
    profile::{MS, Profile},
    rng::Rng,
    server::Server,
    tally::Tally,
    trace::Trace,
};

/// A machine's clock, and what happens to it while it is paused.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) clock: Clock,
    pub(crate) is_paused: bool,
    backlog: VecDeque<Event>,
}

impl Machine {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, is_paused: false, backlog: VecDeque::new() }
    }
}

/// Everything.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) profile: Profile,
    pub(crate) rng: Rng,
    pub(crate) planted: Planted,
    pub(crate) is_planted: bool,
    /// True time, in microseconds.
    pub(crate) now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    ties: u64,
    pub(crate) log: Log,
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) oracle: Oracle,
    /// Faults are over.
    pub(crate) is_healing: bool,
    pub(crate) lives: u64,
    pub(crate) requests: u64,
    pub(crate) trace: Trace,
    pub(crate) tally: Tally,
    violation: Option<String>,
    is_over: bool,
}

/// What a run came to.
#[derive(Debug)]
pub struct Report {
    /// What did not hold.
    pub violation: Option<String>,
    /// Of everything that happened: equal for equal runs.
    pub hash: u64,
    /// What happened, a line each; empty unless it was asked for.
    pub trace: String,
    /// Events.
    pub steps: u64,
    /// Entries that were committed.
    pub entries: u64,
    /// Virtual time that passed, in microseconds.
    pub micros: u64,
    /// How often what happened.
    pub tally: Tally,
}

/// Runs the world of a seed to its end, or to the first violation. A mistake is put back only in a build with the feature
/// `planted-bugs`.
pub fn run(seed: u64, bug: Option<Bug>, keeps_trace: bool) -> Report {
    let mut world = World::new(seed, bug, keeps_trace);
    let mut steps = 0;
    while world.violation.is_none() && !world.is_over {
        let Some(((at, _), event)) = world.queue.pop_first() else { break };
        world.now = at;
        steps += 1;
        world.trace.mark(&[at, event.code()]);
        world.arrive(event);
    }
    let now = world.now;
    let violation = world.violation.take();
    if let Some(violation) = &violation {
        world.trace.say(now, || format!("VIOLATION: {violation}"));
    }
    Report {
        violation,
        hash: world.trace.hash(),
        trace: world.trace.lines().to_owned(),
        steps,
        entries: world.log.last(),
        micros: now,
        tally: world.tally,
    }
}

/// The mistake, and the state with it.
#[cfg(feature = "planted-bugs")]
fn plant(bug: Option<Bug>, mut state: State) -> (Planted, State) {
    let planted = bug.map_or_else(Planted::default, Planted::one);
    state.plant(planted);
    (planted, state)
}

/// This build cannot make mistakes.
#[cfg(not(feature = "planted-bugs"))]
fn plant(_bug: Option<Bug>, state: State) -> (Planted, State) {
    (Planted::default(), state)
}

impl World {
    fn new(seed: u64, bug: Option<Bug>, keeps_trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let profile = Profile::random(seed, &mut rng);
        let (planted, first) = plant(bug, State::new(profile.volume));
        let mut machine = || Machine::new(Clock::random(profile.drift.ppm(), &mut rng));
        let servers = (0..profile.servers).map(|_| Server::new(machine(), first.clone())).collect();
        let clients = (0..profile.clients).map(|place| Client::new(place, machine())).collect();
        let oracle = Oracle::new(first, &profile.objects);
        let mut world = Self {
            profile,
            rng,
            planted,
            is_planted: bug.is_some(),
            now: 0,
            queue: BTreeMap::new(),
            ties: 0,
            log: Log::default(),
            servers,
            clients,
            connections: Vec::new(),
            oracle,
            is_healing: false,
            lives: 0,
            requests: 0,
            trace: Trace::new(keeps_trace),
            tally: Tally::default(),
            violation: None,
            is_over: false,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let profile = format!("{:?}", self.profile);
        self.trace.say(0, || profile);
        self.after(0, Event::Elect { again: false });
        for client in 0..self.clients.len() {
            self.after(MS, Event::Open { client, life: 0 });
            self.after(50 * MS, Event::Act { client });
        }
        let first = self.rng.wait(self.profile.fault_every);
        self.after(500 * MS + first, Event::Fault);
        let busy_until = self.profile.busy_until;
        self.at(busy_until, Event::Heal);
    }

    /// Something will happen at a true time.
    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.ties += 1;
        self.queue.insert((at.max(self.now), self.ties), event);
    }

    /// Something will happen after a span of true time.
    pub(crate) fn after(&mut self, span: u64, event: Event) {
        self.at(self.now + span, event);
    }

    /// An invariant may not hold.
    pub(crate) fn demand(&mut self, held: Result<(), String>) {
        if let Err(what) = held {
            self.violation.get_or_insert(what);
        }
    }

    pub(crate) fn machine(&mut self, host: Host) -> &mut Machine {
        match host {
            Host::Server(server) => &mut self.servers[server].machine,
            Host::Client(client) => &mut self.clients[client].machine,
        }
    }

    /// Something happens now, unless where it happens is paused: then it waits its turn.
    fn arrive(&mut self, event: Event) {
        let connections = &self.connections;
        let host = event.host(|of| connections[of].client, |of| connections[of].server);
        if let Some(host) = host {
            let machine = self.machine(host);
            if machine.is_paused {
                return machine.backlog.push_back(event);
            }
        }
        self.handle(event);
    }

    pub(crate) fn pause(&mut self, host: Host, span: u64) {
        let machine = self.machine(host);
        if !machine.is_paused {
            machine.is_paused = true;
            self.trace.say(self.now, || format!("{host:?} is paused for {span} us"));
            self.after(span, Event::Resume(host));
        }
    }

    pub(crate) fn resume(&mut self, host: Host) {
        if !std::mem::take(&mut self.machine(host).is_paused) {
            return;
        }
        self.trace.say(self.now, || format!("{host:?} goes on"));
        if let Host::Server(server) = host {
            let clock = self.servers[server].machine.clock.read(self.now);
            self.servers[server].waits.all_again(clock);
        }
        while !self.machine(host).is_paused && self.violation.is_none() {
            let Some(event) = self.machine(host).backlog.pop_front() else { break };
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Step { server, boot, at } => self.server_timer(server, boot, at),
            Event::Propose { server, boot } => self.propose(server, boot),
            Event::Commit { server, boot, term } => self.committed(server, boot, term),
            Event::Apply { server, boot } => self.apply(server, boot),
            Event::Replicate { server, boot, index } => self.replicate(server, boot, index),
            Event::Round { server, boot, term, round, index } => self.round(server, boot, term, round, index),
            Event::Verdict { server, boot, term, round, index, holds } => {
                self.verdict(server, boot, term, (round, index), holds);
            }
            Event::Learn { server, boot } => self.learn(server, boot),
            Event::Boot { server } => self.boot(server),
            Event::Up { connection, message } => self.server_hears(connection, message),
            Event::Down { connection, message } => self.client_hears(connection, message),
            Event::Connect { client, life, server } => self.connect(client, life, server),
            Event::Disconnect { client, life, connection } => self.disconnect(client, life, connection),
            Event::Timer { client, life, at } => self.client_timer(client, life, at),
            Event::Act { client } => self.act(client),
            Event::Open { client, life } => self.open(client, life),
            Event::Resume(host) => self.resume(host),
            Event::Fault => self.fault(),
            Event::Elect { again } => self.elect(again),
            Event::Heal => self.heal(),
            Event::Ask => self.ask(),
            Event::Judge => self.judge(),
        }
    }

    /// Faults are over: everybody is there again, and nobody begins anything.
    fn heal(&mut self) {
        self.is_healing = true;
        self.trace.say(self.now, || "faults are over".to_owned());
        for server in 0..self.servers.len() {
            self.boot(server);
            self.resume(Host::Server(server));
        }
        for client in 0..self.clients.len() {
            self.resume(Host::Client(client));
        }
        let leads = |(leader, _): (usize, u64)| self.servers[leader].lessor.is_some();
        if !self.log.leader.is_some_and(leads) {
            self.after(10 * MS, Event::Elect { again: false });
        }
        let terms = u64::try_from(self.profile.term_max().as_micros()).expect("short") * 5;
        self.after(6000 * MS + terms, Event::Ask);
        // A client that has been silent takes a while to notice that its connection is dead.
        self.after(12_000 * MS + terms, Event::Judge);
    }

    /// Nothing may be waiting any more. Every client reads everything.
    fn ask(&mut self) {
        for client in 0..self.clients.len() {
            self.demand(invariants::healing::check_nothing_waits(&self.clients[client]));
            self.clients[client].last_read.clear();
            for object in self.profile.objects.clone() {
                self.read(client, object);
            }
        }
    }

    fn judge(&mut self) {
        for client in &self.clients {
            if let Err(what) = invariants::healing::check_all_current(client, &self.oracle) {
                self.violation.get_or_insert(what);
            }
        }
        self.is_over = true;
    }
}
