//! The world: virtual time, and everything in it. Events happen one by one, in the order of time
//! and a tie number.

use std::collections::{BTreeSet, VecDeque};

use leasehold_model::{
    clock::Clock,
    committed,
    planting::{plant, planted},
    queue::EventQueue,
    rng::Rng,
};
use leasehold_protocol::{
    command::{Outcome, Proposal, Write},
    drift::Excess,
    id::{LeaseId, Revision},
    lessor::LessorBounds,
    planted::{Bug, Planted},
    state::State,
    time::Instant,
};

use crate::{
    churn::MANY,
    client::Client,
    event::{Event, Host},
    invariants::{self, elections::Elected, grants::Grants, linearizability::Told, uncovered::Uncovered},
    judges::Judge,
    network::Connection,
    oracle::Oracle,
    profile::{Fault, MS, Profile, SECOND},
    quotas::Quotas,
    raft::{Payload, SERVERS, peers::Links},
    reached,
    server::Server,
    swarm::Swarm,
    tally::{self, Tally},
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

/// About how many bytes of memory a pending write takes at a leader.
const WRITE_BYTES: usize = 1500;

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
    uncovered: Uncovered,
    pub(crate) grants: Grants,
    pub(crate) told: Told,
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
    pub told: Told,
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
        operations: world.told.len(),
        told: world.told,
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
        let mut world = Self {
            profile,
            without: plan.without.clone(),
            unjudged: plan.unjudged.clone(),
            stops_never: plan.stops_never,
            rng,
            quotas,
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
            told: Told::default(),
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

    /// A server has learned that more entries are committed.
    pub(crate) fn committed(&mut self, place: usize) {
        let raft = &self.servers[place].raft;
        let (from, commit) = (self.servers[place].agreed, raft.commit);
        for index in self.oracle.log.len() as u64 + 1..=commit {
            if let Some(entry) = self.servers[place].raft.entry(index).cloned() {
                self.oracle.log.push((self.servers[place].raft.term, entry.clone()));
                if let Payload::Proposal(proposal) = &entry.payload {
                    self.commit(index, proposal);
                }
            }
        }
        if commit > from {
            let held = invariants::agreement::check(place, &self.servers[place].raft, from, &self.oracle.log);
            self.demand(held);
            self.servers[place].agreed = commit;
            self.go_on_applying(place);
        }
    }

    /// A quorum has the entry, so its position in the order is final.
    fn commit(&mut self, index: u64, proposal: &Proposal) {
        self.trace.say(self.now, || format!("committed {index}: {proposal:?}"));
        let outcomes = match self.oracle.commit(index, proposal) {
            Ok(outcomes) => outcomes,
            Err(what) => return self.demand(Err(what)),
        };
        self.trace.say(self.now, || format!("outcomes of {index}: {outcomes:?}"));
        let held = self.uncovered.check(proposal, &outcomes);
        self.demand_by(Judge::Uncovered, held);
        self.grants.commit(proposal, &outcomes, &self.oracle.truth);
        self.outcomes(proposal, &outcomes);
        if std::mem::take(&mut self.oracle.have_holds_changed) {
            self.locks_changed_at = self.now;
        }
        self.trace.mark(&[index, self.oracle.truth.revision().0, self.oracle.truth.cluster_time().as_micros()]);
        for client in 0..self.clients.len() {
            self.check_copies(client);
        }
        self.check_write_leases();
        self.check_compared(proposal, &outcomes);
    }

    /// Examines the outcomes of an entry.
    fn outcomes(&mut self, proposal: &Proposal, outcomes: &[Outcome]) {
        for (command, outcome) in proposal.commands.iter().zip(outcomes) {
            self.tally.add(tally::outcome_name(command, outcome));
            self.count_wide(command, outcome);
        }
        for (lease, incarnation) in committed::expired(proposal, outcomes) {
            for client in 0..self.clients.len() {
                let held = self.clients[client].shell.check_ended(lease, incarnation, self.client_clock(client));
                self.demand_of(client, held);
            }
        }
        // A revocation does not ask the clients that renew the lease, and a later lease of that
        // name is another one.
        for (_, write, outcome) in committed::writes(proposal, outcomes) {
            if let (Write::RevokeLease { id }, Outcome::Written(Ok(_))) = (write, outcome) {
                for client in &mut self.clients {
                    client.shell.key_leases.until.remove(id);
                }
            }
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

    /// Faults stop. Every machine runs again, and applications begin nothing new.
    fn heal(&mut self) {
        (self.is_healing, self.healed_in) = (true, self.steps);
        self.links = Links::default();
        self.trace.say(self.now, || "faults are over".to_owned());
        // Messages of a machine that was paused in a step still leave at their time (seed 4444).
        let hosts =
            self.clients.iter().map(|client| &client.machine).chain(self.servers.iter().map(|server| &server.machine));
        let frozen = hosts.map(|machine| machine.sends_from).max().unwrap_or_default().saturating_sub(self.now);
        // A stalled disk resumes at its time. Proposals handed over wait until then, and so do
        // writes (seed 5068).
        for server in 0..self.servers.len() {
            self.boot(server);
            self.resume(Host::Server(server));
        }
        for client in 0..self.clients.len() {
            self.clients[client].isolated_until = 0;
            self.resume(Host::Client(client));
            self.all_watch_on(client);
            // From now on only leases that no client renews end by themselves, and they do so soon.
            let kept = self.clients[client].shell.key_leases.renewed.clone();
            // Where few leases are granted, unneeded ones take the room of sessions.
            let lets_go = self.swarm().is_none_or(Swarm::has_few_leases);
            for id in kept.into_iter().filter(|_| lets_go) {
                self.let_go(client, id);
            }
        }
        let terms = u64::try_from(self.profile.term_max().as_micros()).expect("short") * 5;
        let calm = terms + frozen + self.replay() + self.drain();
        self.after(6 * SECOND + calm, Event::Ask);
        // A client that was silent needs a while to notice a dead connection.
        self.after(12 * SECOND + calm + self.rereads(), Event::Judge);
    }

    /// How much longer the final reads take if a leader takes few reads at a time. A client repeats
    /// its refused reads together, after up to 2 s and in the same order. The last is answered late
    /// (seed 45691).
    fn rereads(&self) -> u64 {
        let Some(LessorBounds { reads_max, .. }) = self.swarm().map(|swarm| swarm.bounds) else { return 0 };
        let (objects, taken) = (self.oracle.versions.all().len() as u64, reads_max.max(1) as u64);
        let all = objects * self.clients.len() as u64;
        if all <= taken { 0 } else { 4 * SECOND + objects.div_ceil(taken) * 2 * SECOND }
    }

    /// How long the open writes take if a leader takes few at a time. It refuses the others as
    /// busy, and clients repeat them within seconds.
    fn drain(&self) -> u64 {
        let Some(LessorBounds { writes_max, writes_bytes_max, results_max, .. }) =
            self.swarm().map(|swarm| swarm.bounds)
        else {
            return 0;
        };
        // Beyond the bound of results, each session has one transaction at a time.
        let remembered = results_max / usize::try_from(MANY).expect("small");
        let taken = writes_max.min(writes_bytes_max / WRITE_BYTES).min(remembered).max(1) as u64;
        let open: u64 = self.clients.iter().map(|client| client.shell.writes.len() as u64).sum();
        if open <= taken { 0 } else { 4 * SECOND + open.div_ceil(taken) * 600 * MS }
    }

    /// How long the server that is furthest behind needs to apply the committed entries. In a long
    /// world it may have minutes of work, and may be the leader (seed 7384).
    fn replay(&self) -> u64 {
        let committed = self.oracle.log.len() as u64;
        let behind = self.servers.iter().map(|server| committed.saturating_sub(server.state.applied_index())).max();
        behind.unwrap_or_default() * self.profile.apply * 2
    }
}
