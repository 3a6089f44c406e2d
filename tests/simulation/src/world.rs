//! The world: virtual time, and everything in it. Events happen one by one, in the order of time
//! and a tie number.

use std::collections::{BTreeSet, VecDeque};

use leasehold_model::{
    clock::Clock,
    planting::{plant, planted},
    queue::EventQueue,
    rng::Rng,
};
use leasehold_protocol::{
    drift::Excess,
    id::{LeaseId, Revision},
    planted::{Bug, Planted},
    state::State,
    time::Instant,
};

use crate::{
    client::Client,
    consent_delays::ConsentDelays,
    event::{Event, Host},
    invariants::{elections::Elected, grants::Grants, linearizability::Observations, uncovered::Uncovered},
    judges::Judge,
    lease_names::LeaseNames,
    network::Connection,
    oracle::Oracle,
    profile::{Fault, MS, Profile, SECOND},
    quotas::Quotas,
    raft::{SERVERS, peers::Links},
    reached,
    reported_reads::ReportedReads,
    server::Server,
    tally::Tally,
    trace::Trace,
};

/// A machine's clock, and the events that wait while it is paused.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) clock: Clock,
    /// The error of its wall clock, which nothing reads.
    pub(crate) wall: u64,
    pub(crate) is_paused: bool,
    /// It will be paused in the middle of its next step, for this long.
    pub(crate) freezes_for: Option<u64>,
    /// Messages of the step in which it was paused leave at this time.
    pub(crate) sends_from: u64,
    backlog: VecDeque<Event>,
}

impl Machine {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, wall: 0, is_paused: false, freezes_for: None, sends_from: 0, backlog: VecDeque::new() }
    }
}

/// Selects the random stream of wide worlds: its draws leave all others unchanged.
const WIDE: u64 = 0x77_69_64_65;

/// The whole simulated world.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) profile: Profile,
    /// Faults and judges that this run leaves out.
    pub(crate) without: BTreeSet<Fault>,
    unjudged: BTreeSet<Judge>,
    stops_never: bool,
    pub(crate) rng: Rng,
    pub(crate) quotas: Quotas,
    pub(crate) consent_delays: ConsentDelays,
    pub(crate) lease_names: LeaseNames,
    pub(crate) reported_reads: ReportedReads,
    pub(crate) planted: Planted,
    pub(crate) is_planted: bool,
    /// The state of an empty disk.
    pub(crate) first: State,
    /// True time, in microseconds, and the number of the event.
    pub(crate) now: u64,
    pub(crate) steps: u64,
    queue: EventQueue<u64, Event>,
    pub(crate) links: Links,
    pub(crate) elected: Elected,
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) oracle: Oracle,
    pub(crate) uncovered: Uncovered,
    pub(crate) grants: Grants,
    pub(crate) observations: Observations,
    /// The key leases that clients know to have been granted.
    pub(crate) leases: Vec<LeaseId>,
    /// Faults have stopped.
    pub(crate) is_healing: bool,
    /// The step in which faults stopped.
    pub(crate) healed_in: u64,
    /// When locks were last granted or ended.
    pub(crate) locks_changed_at: u64,
    /// The revision when the final reads began.
    pub(crate) asked_at: Revision,
    /// The histories have been judged. In a long world, sessions are still to be judged.
    pub(crate) is_judged: bool,
    /// The leases and orphans that had outlived their owner then.
    pub(crate) left: BTreeSet<String>,
    pub(crate) lives: u64,
    pub(crate) requests: u64,
    pub(crate) trace: Trace,
    pub(crate) tally: Tally,
    violation: Option<String>,
    pub(crate) is_over: bool,
}

/// What to run.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Decides everything that the other fields leave open.
    pub seed: u64,
    /// A mistake to put back; only in a build with the feature `planted-bugs`.
    pub bug: Option<Bug>,
    /// Faults to leave out.
    pub without: BTreeSet<Fault>,
    /// Judges to leave out. It shows what the others find in rules that are known to break these.
    pub unjudged: BTreeSet<Judge>,
    /// No judge is asked, so the run goes on to its end. Other judges then check the histories.
    pub stops_never: bool,
    /// The run ends after this many events.
    pub steps: Option<u64>,
    /// Half of the worlds are wide: their applications do more of everything, and leaders have
    /// lower limits.
    pub is_wide: bool,
    /// Whether the trace is kept.
    pub keeps_trace: bool,
}

impl Plan {
    /// The complete world of a seed.
    pub fn of(seed: u64, bug: Option<Bug>) -> Self {
        Self { seed, bug, ..Self::default() }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The invariant that broke.
    pub violation: Option<String>,
    /// A hash of everything that happened: equal for equal runs.
    pub hash: u64,
    /// What happened, one line for each event; empty unless the plan keeps the trace.
    pub trace: String,
    /// The number of events.
    pub steps: u64,
    /// The number of committed entries.
    pub entries: u64,
    /// The number of operations in the histories: answered, or abandoned.
    pub operations: usize,
    /// The observations of clients, for the nodes that are judged by these alone.
    pub observations: Observations,
    /// Virtual time that passed, in microseconds.
    pub micros: u64,
    /// How often each thing happened.
    pub tally: Tally,
}

/// Runs a world to its end, or to the first violation.
pub fn run(plan: &Plan) -> Report {
    reached::begin();
    let mut world = World::new(plan);
    while world.violation.is_none() && !world.is_over && plan.steps.is_none_or(|most| world.steps < most) {
        let Some((at, event)) = world.queue.pop() else { break };
        world.now = at;
        world.steps += 1;
        world.trace.mark(&[at, event.code()]);
        world.arrive(event);
    }
    reached::note(&mut world.tally);
    let now = world.now;
    let violation = world.violation.take();
    if let Some(violation) = &violation {
        world.trace.say(now, || format!("VIOLATION: {violation}"));
    }
    Report {
        violation,
        hash: world.trace.hash(),
        trace: world.trace.lines().to_owned(),
        steps: world.steps,
        entries: world.oracle.log.len() as u64,
        operations: world.observations.len(),
        observations: world.observations,
        micros: now,
        tally: world.tally,
    }
}

impl World {
    fn new(plan: &Plan) -> Self {
        let mut rng = Rng::new(plan.seed);
        let mut profile = Profile::random(&mut rng);
        if plan.is_wide {
            profile.widen(&mut Rng::new(plan.seed ^ WIDE));
        }
        crate::adaptive_terms::draw(plan.seed, &mut profile);
        crate::update_policy::draw(plan.seed, &mut profile);
        crate::adaptive_terms::draw_by_use(plan.seed, &mut profile);
        let mut quotas = Quotas::new(plan.seed);
        profile.volume = quotas.draw(profile.volume);
        profile.inner.iter_mut().for_each(|settings| *settings = quotas.draw(*settings));
        let mut first = State::new(profile.volume).with_history(profile.history);
        plant(&mut first, plan.bug);
        let mut machine = |host: Host| {
            let clock = match (profile.rogue, host) {
                // Only a slow client's clock and a fast server's clock can do harm.
                (Some(rogue), Host::Client(_)) if rogue == host => Clock::with_random_origin(-400_000, &mut rng),
                (Some(rogue), Host::Server(_)) if rogue == host => Clock::with_random_origin(800_000, &mut rng),
                _ => Clock::random(profile.drift, &mut rng),
            };
            Machine::new(clock)
        };
        let server = |place| Server::new(machine(Host::Server(place)), first.clone());
        let servers = (0..SERVERS).map(server).collect();
        let clients = (0..profile.clients).map(|place| Client::new(place, machine(Host::Client(place)))).collect();
        let oracle = Oracle::new(first.clone(), &profile.objects);
        let lease_names = LeaseNames::new(plan.seed, &profile);
        let mut world = Self {
            profile,
            without: plan.without.clone(),
            unjudged: plan.unjudged.clone(),
            stops_never: plan.stops_never,
            rng,
            quotas,
            consent_delays: ConsentDelays::new(plan.seed),
            lease_names,
            reported_reads: ReportedReads::default(),
            planted: planted(plan.bug),
            is_planted: plan.bug.is_some(),
            first,
            now: 0,
            steps: 0,
            queue: EventQueue::default(),
            links: Links::default(),
            elected: Elected::default(),
            servers,
            clients,
            connections: Vec::new(),
            oracle,
            uncovered: Uncovered::default(),
            grants: Grants::default(),
            observations: Observations::default(),
            leases: Vec::new(),
            is_healing: false,
            healed_in: 0,
            locks_changed_at: 0,
            asked_at: Revision(0),
            is_judged: false,
            left: BTreeSet::new(),
            lives: 0,
            requests: 0,
            trace: Trace::new(plan.keeps_trace),
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
        for server in 0..SERVERS {
            self.await_leader(server);
        }
        for client in 0..self.clients.len() {
            self.after(MS, Event::Open { client, life: 0 });
            self.after(50 * MS, Event::Act { client });
        }
        let first = self.rng.wait(self.profile.fault_every);
        self.after(SECOND + first, Event::Fault);
        if let Some(every) = self.swarm().map(|swarm| swarm.alone_every).filter(|every| *every > 0) {
            self.after(SECOND + every, Event::LeaderAlone);
        }
        let busy_until = self.profile.busy_until;
        self.at(busy_until, Event::Heal);
    }

    /// Schedules an event at a true time.
    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.queue.add(at.max(self.now), event);
    }

    /// Schedules an event after a span of true time.
    pub(crate) fn after(&mut self, span: u64, event: Event) {
        self.at(self.now + span, event);
    }

    /// Records the violation if an invariant does not hold.
    pub(crate) fn demand(&mut self, held: Result<(), String>) {
        if let (Err(what), false) = (held, self.stops_never) {
            self.violation.get_or_insert(what);
        }
    }

    /// Records the violation if an invariant does not hold, unless the run leaves this judge out.
    pub(crate) fn demand_by(&mut self, judge: Judge, held: Result<(), String>) {
        if !self.unjudged.contains(&judge) {
            self.demand(held.map_err(|what| format!("{}: {what}", judge.name())));
        }
    }

    /// Records a violation by a client.
    pub(crate) fn complain(&mut self, client: usize, what: String) {
        self.demand_at(client, Err(what));
    }

    /// Records the violation if an invariant about a client does not hold.
    pub(crate) fn demand_at(&mut self, client: usize, held: Result<(), String>) {
        self.demand(held.map_err(|what| format!("client {client}: {what}")));
    }

    /// Records the violation if an invariant about a client's copies does not hold. A clock beyond
    /// the allowance excuses it.
    pub(crate) fn demand_of(&mut self, client: usize, held: Result<(), String>) {
        if held.is_err() && self.is_put_down_to_clocks(client) {
            self.tally.add("stale reads put down to a clock beyond the allowance");
        } else {
            self.demand_at(client, held);
        }
    }

    /// A client reports that its clock and the leader's are beyond the allowance, or are within it
    /// again. A client must not do so without cause.
    pub(crate) fn clock_changed(&mut self, client: usize, beyond: Option<Excess>) {
        let Some(excess) = beyond else { return self.tally.add("clocks found within the allowance again") };
        self.tally.add("clocks found beyond the allowance");
        if !self.is_put_down_to_clocks(client) {
            self.complain(client, format!("it takes a clock within the allowance for wrong: {excess}"));
        }
    }

    /// Whether a clock beyond the allowance explains staleness at this client: the client's own, or
    /// any server's.
    pub(crate) fn is_put_down_to_clocks(&self, client: usize) -> bool {
        match self.profile.rogue {
            Some(Host::Client(rogue)) => rogue == client,
            Some(Host::Server(_)) => true,
            None => false,
        }
    }

    pub(crate) fn machine(&mut self, host: Host) -> &mut Machine {
        match host {
            Host::Server(server) => &mut self.servers[server].machine,
            Host::Client(client) => &mut self.clients[client].machine,
        }
    }

    /// Handles an event now, or queues it while its machine is paused.
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

    /// The machine has just stepped its rules. It is paused here if it is due to pause in the
    /// middle of a step.
    pub(crate) fn freeze(&mut self, host: Host) {
        if let Some(span) = self.machine(host).freezes_for.take()
            && !self.is_healing
        {
            self.machine(host).sends_from = self.now + span;
            self.tally.add("pauses in the middle of a step");
            self.pause(host, span);
        }
    }

    pub(crate) fn resume(&mut self, host: Host) {
        if !std::mem::take(&mut self.machine(host).is_paused) {
            return;
        }
        self.trace.say(self.now, || format!("{host:?} goes on"));
        self.machine(host).sends_from = 0;
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
            Event::Hand { server, boot, proposal } => self.hand(server, boot, *proposal),
            Event::Apply { server, boot } => self.apply(server, boot),
            Event::Peer { from, boot, to, message } => self.peer_hears(to, (from, boot), *message),
            Event::Synced { server, boot, upto, answer } => self.synced(server, boot, upto, answer),
            Event::Campaign { server, boot } => self.campaign(server, boot),
            Event::Beat { server, boot, term } => self.beat(server, boot, term),
            Event::Lead { server, boot, term } => self.lead(server, boot, term),
            Event::Unproven { server, boot, round } => self.unproven(server, boot, round),
            Event::Readmission { server, boot } => self.ask_for_readmission(server, boot),
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
            Event::LeaderAlone => self.leave_leader_alone(),
            Event::Heal => self.heal(),
            Event::Ask => self.ask(),
            Event::Judge => self.judge(),
            Event::JudgeLeft => self.judge_left(),
            Event::JudgeSessions => self.judge_sessions(),
        }
    }

    pub(crate) fn client_clock(&self, client: usize) -> Instant {
        self.clients[client].machine.clock.read(self.now)
    }

    /// No usable copy of the client is old (S2).
    pub(crate) fn check_copies(&mut self, client: usize) {
        let held = self.clients[client].shell.check_copies(&self.oracle.truth, self.client_clock(client));
        self.demand_of(client, held);
    }
}
