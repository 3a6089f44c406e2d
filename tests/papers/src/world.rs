//! Clients and a leader, and a network that only delays. The world counts the messages between
//! them. What the applications do, and when, comes from outside.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use leasehold_model::{
    client::{ClientEvent, ClientShell},
    queue::EventQueue,
    rng::Rng,
    server::{ServerEvent, ServerShell, lessor_config},
};
use leasehold_protocol::{
    command::{Proposal, Write},
    holder::{HolderConfig, HolderEffect, HolderInput, ReadFailure, RenewalMode, SendId, SessionNews},
    id::RequestId,
    lease_policy::LeaseRequest,
    lessor::LessorInput,
    message::{Answer, Body, CachedReads, Consent, Inspect, ReadGaps, Request, RequestHeader, VolumeStats},
    object::Object,
    path::NodePath,
    planted::Planted,
    state::State,
    time::{DriftAllowance, Instant},
    volume::VolumeSettings,
};

use crate::counts::{Counts, Purpose};

/// From a client to the server, or back: the V system's propagation, and the handling at both ends.
pub(crate) const DELAY: Duration = Duration::from_micros(2_500);
/// The time that a commit takes, and a proof of leadership.
pub(crate) const COMMIT: Duration = Duration::from_millis(1);

/// The applications of all clients.
pub(crate) trait Applications {
    /// What one of them does at some time.
    type Operation;

    /// The time of an operation has come.
    fn act(&mut self, operation: Self::Operation, world: &mut World<Self::Operation>);
}

enum Event<O> {
    Request { client: usize, send_id: SendId, request: Request },
    Consent(Consent),
    ToClient(usize, HolderInput),
    Commit(Proposal),
    Proven(u64),
    Act(O),
}

struct Client {
    shell: ClientShell,
    /// The holder's next deadline.
    due: Option<Instant>,
    /// Reads from memory since the last report of them, and when that was.
    unreported: u64,
    reported_at: Instant,
    /// For each object, when a grant arrived that no read has followed.
    granted: BTreeMap<Object, Instant>,
    gaps: ReadGaps,
    /// The objects that the application has read since their copies were last offered anew.
    wanted: BTreeSet<Object>,
}

impl Client {
    /// A grant has arrived. A read after several grants counts from the first.
    fn note_grant(&mut self, object: &Object, now: Instant) {
        self.granted.entry(object.clone()).or_insert(now);
    }

    /// The application reads, from memory or not.
    fn note_read(&mut self, object: &Object, now: Instant) {
        self.wanted.insert(object.clone());
        if let Some(granted) = self.granted.remove(object) {
            self.gaps.add(now.since(granted));
        }
    }

    /// Reports reads from memory, as the library does.
    fn report_reads(&mut self, request: &mut Request, now: Instant) {
        if request.takes_cached_reads(now.since(self.reported_at)) && (self.unreported > 0 || !self.gaps.is_empty()) {
            let (reads, gaps) = (std::mem::take(&mut self.unreported), std::mem::take(&mut self.gaps));
            request.header.cached_reads = vec![CachedReads { volume: NodePath::root(), reads, gaps }];
            self.reported_at = now;
        }
    }
}

pub(crate) struct World<O> {
    now: Instant,
    counts: Counts,
    /// Nothing is counted before this time.
    counts_from: Instant,
    /// How long a commit takes, and a proof of leadership.
    commit: Duration,
    events: EventQueue<Instant, Event<O>>,
    requests: u64,
    state: State,
    /// The address of an answer is the client, with the purpose of the request.
    server: ServerShell<(usize, SendId, Purpose), usize>,
    /// The lessor's next deadline, as of its last step.
    server_due: Instant,
    committed: Instant,
    clients: Vec<Client>,
    renewal: RenewalMode,
    /// The processor time of the lessor's steps while messages were counted.
    leader_time: Duration,
    /// The deadlines of all clients.
    due: BTreeSet<(Instant, usize)>,
}

impl<O> World<O> {
    /// A leader, and clients that are not connected yet. Counting begins after the warm-up.
    pub(crate) fn new(settings: VolumeSettings, clients: usize, warm_up: Duration, commit: Duration) -> Self {
        Self::renewing(settings, clients, warm_up, commit, RenewalMode::Ahead)
    }

    /// Like `new`. The clients renew volume leases in this mode.
    pub(crate) fn renewing(
        settings: VolumeSettings,
        clients: usize,
        warm_up: Duration,
        commit: Duration,
        renewal: RenewalMode,
    ) -> Self {
        let now = Instant::from_micros(1_000_000);
        let state = State::new(settings);
        let mut server = ServerShell::default();
        let config = lessor_config(1, 1, DriftAllowance::DEFAULT, Planted::default());
        server.lead(config, &state, Duration::ZERO, now);
        let client = |client: usize| {
            let shell = ClientShell::new(config_of(client, clients, renewal), false);
            Client {
                shell,
                due: None,
                unreported: 0,
                reported_at: now,
                granted: BTreeMap::new(),
                gaps: ReadGaps::default(),
                wanted: BTreeSet::new(),
            }
        };
        let mut world = Self {
            now,
            counts: Counts::default(),
            counts_from: now.after(warm_up),
            commit,
            events: EventQueue::default(),
            requests: 0,
            state,
            server,
            server_due: now,
            committed: now,
            clients: (0..clients).map(client).collect(),
            renewal,
            leader_time: Duration::ZERO,
            due: BTreeSet::new(),
        };
        world.propose();
        world
    }

    /// A client connects after a while.
    pub(crate) fn connect(&mut self, client: usize, after: Duration) {
        self.later(after, Event::ToClient(client, HolderInput::Connected));
    }

    /// A client starts anew, with an empty cache, and connects.
    pub(crate) fn reopen(&mut self, client: usize) {
        let config = config_of(client, self.clients.len(), self.renewal);
        self.clients[client].shell.restart(config, false);
        self.step_client(client, HolderInput::Connected);
    }

    /// A client closes its session.
    pub(crate) fn close(&mut self, client: usize) {
        self.step_client(client, HolderInput::Close);
    }

    /// How many copies the clients have, valid or not.
    pub(crate) fn copies(&self) -> u64 {
        self.clients.iter().map(|client| client.shell.cache.copies.len() as u64).sum()
    }

    /// The processor time of the lessor's steps while messages were counted.
    pub(crate) fn leader_time(&self) -> Duration {
        self.leader_time
    }

    /// An application does something after a while.
    pub(crate) fn plan(&mut self, after: Duration, operation: O) {
        self.later(after, Event::Act(operation));
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// How many object leases the clients have at this time. The leader knows them for a margin
    /// longer.
    pub(crate) fn object_leases(&self) -> u64 {
        let copies = self.clients.iter().flat_map(|client| client.shell.cache.copies.values());
        copies.filter(|copy| copy.validity.until > self.now).count() as u64
    }

    /// An application does something at the next event of a Poisson process with `rate` events a
    /// second; never if the rate is 0.
    pub(crate) fn plan_poisson(&mut self, rng: &mut Rng, rate: f64, operation: O) {
        if let Some(wait) = rng.poisson_wait(rate) {
            self.plan(Duration::from_micros(wait), operation);
        }
    }

    /// The application of a client reads.
    pub(crate) fn read(&mut self, client: usize, object: Object) {
        let is_hit = self.clients[client].shell.hit(&object, self.now).is_some();
        if self.now >= self.counts_from {
            self.counts.read(is_hit);
        }
        self.clients[client].unreported += u64::from(is_hit);
        self.clients[client].note_read(&object, self.now);
        let shell = &mut self.clients[client].shell;
        if !is_hit {
            // A read without a copy fetches data. That is no delay for consistency, unless nobody
            // may keep copies.
            let is_polled = !self.state.volume(&NodePath::root()).expect("the root").settings.has_object_leases();
            let has_copy = is_polled || shell.cache.copies.contains_key(&object);
            let (_, input) =
                shell.begin_read(object, LeaseRequest::Implicit, (usize::from(has_copy), self.now.as_micros()));
            self.step_client(client, input);
        }
    }

    /// The application of a client writes.
    pub(crate) fn write(&mut self, client: usize, change: Write) {
        let (_, input) = self.clients[client].shell.begin_write(change, self.now.as_micros());
        self.step_client(client, input);
    }

    /// What was counted.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// What the leader has counted for the root volume.
    pub(crate) fn volume_stats(&mut self) -> VolumeStats {
        self.requests += 1;
        let (nobody, path) = (usize::MAX, NodePath::root());
        let request = Request { header: RequestHeader::default(), body: Body::Inspect(Inspect::VolumeStats { path }) };
        let asker = (nobody, SendId(0), Purpose::Opening);
        let input = self.server.receive(RequestId(self.requests), asker, nobody, request);
        let events = self.server.step(input, &self.state, self.now);
        let stats = events.into_iter().find_map(|event| match event {
            ServerEvent::Answer(_, asked, response) if asked.0 == nobody => match response.result {
                Ok(Answer::VolumeStats(stats)) => stats,
                other => panic!("the stats of a volume: {other:?}"),
            },
            _ => None,
        });
        *stats.expect("the root is a volume")
    }

    /// Runs for a while.
    pub(crate) fn run(&mut self, applications: &mut impl Applications<Operation = O>, span: Duration) {
        let end = self.now.after(span);
        while self.now < end {
            let next = self.events.next_at();
            let client_due = self.due.first().copied();
            let first = next.into_iter().chain(client_due.map(|(at, _)| at)).fold(self.server_due, Instant::min);
            self.now = self.now.max(first);
            if next == Some(first) {
                let (_, event) = self.events.pop().expect("it is there");
                self.happen(event, applications);
            } else if let Some((_, client)) = client_due.filter(|(at, _)| *at == first) {
                let input = self.clients[client].shell.timeout();
                self.step_client(client, input);
            } else {
                self.step_server(LessorInput::Timeout);
            }
        }
    }

    fn happen(&mut self, event: Event<O>, applications: &mut impl Applications<Operation = O>) {
        match event {
            Event::Request { client, send_id, request } => {
                self.requests += 1;
                let (id, purpose) = (RequestId(self.requests), Purpose::of(&request));
                if !matches!(purpose, Purpose::Push) {
                    self.count(purpose);
                }
                let input = self.server.receive(id, (client, send_id, purpose), client, request);
                self.step_server(input);
            }
            Event::Consent(consent) => {
                self.count(Purpose::Recall);
                self.step_server(LessorInput::Consent(consent));
            }
            Event::ToClient(client, input) => self.step_client(client, input),
            Event::Commit(proposal) => {
                assert!(self.server.is_mine(&proposal), "the proposal is of this lessor");
                let applied = self.state.apply(self.state.applied_index() + 1, &proposal);
                self.step_server(LessorInput::committed(proposal.number, applied));
            }
            Event::Proven(round) => self.step_server(LessorInput::Proven { round }),
            Event::Act(operation) => applications.act(operation, self),
        }
    }

    fn later(&mut self, span: Duration, event: Event<O>) {
        self.events.add(self.now.after(span), event);
    }

    fn count(&mut self, purpose: Purpose) {
        if self.now >= self.counts_from {
            self.counts.message(purpose, self.now);
        }
    }

    /// Something that began at `since` has ended.
    fn delayed(&mut self, since: u64, count: impl FnOnce(&mut Counts, Duration)) {
        let since = Instant::from_micros(since);
        if since >= self.counts_from {
            count(&mut self.counts, self.now.since(since));
        }
    }

    fn step_client(&mut self, place: usize, input: HolderInput) {
        let mut inputs = VecDeque::from([input]);
        let mut has_consented = false;
        while let Some(input) = inputs.pop_front() {
            for effect in self.clients[place].shell.holder.step(input, self.now) {
                if let HolderEffect::Install { object, .. } | HolderEffect::CopyValidated { object, .. } = &effect {
                    self.clients[place].note_grant(object, self.now);
                }
                if let HolderEffect::SelectWanted(mut objects) = effect {
                    objects.retain(|object| self.clients[place].wanted.remove(object));
                    inputs.push_back(HolderInput::ReadNextValues(objects));
                    continue;
                }
                match self.clients[place].shell.carry_out(effect, &mut inputs) {
                    // A volume without reads lapses.
                    ClientEvent::Done => {}
                    ClientEvent::Served(served, _) => {
                        for (_, read) in served.into_iter().filter(|(_, read)| read.begun == 1) {
                            self.delayed(read.since, Counts::validated);
                        }
                    }
                    ClientEvent::WriteDone(_, write, result) => {
                        result.expect("nothing refuses it");
                        self.delayed(write.expect("it waits for ever").since, Counts::written);
                    }
                    ClientEvent::Effect(HolderEffect::Send { send_id, mut request }) => {
                        let is_push_request = matches!(request.body, Body::ReadNextValue { .. });
                        assert!(has_consented || !is_push_request, "a request for a push is part of a consent");
                        if !is_push_request {
                            self.clients[place].report_reads(&mut request, self.now);
                        }
                        self.later(DELAY, Event::Request { client: place, send_id, request });
                    }
                    ClientEvent::Effect(HolderEffect::Consent(consent)) => {
                        has_consented = true;
                        self.later(DELAY, Event::Consent(consent));
                    }
                    ClientEvent::Effect(HolderEffect::Connection(news)) => {
                        assert!(!matches!(news, SessionNews::Expired { .. }), "{news:?}");
                    }
                    // The application has closed the session.
                    ClientEvent::Effect(
                        HolderEffect::Closed | HolderEffect::ReadFailed { error: ReadFailure::Closed, .. },
                    ) => {}
                    other => panic!("nothing fails here: {other:?}"),
                }
            }
        }
        let client = &mut self.clients[place];
        if let Some(old) = client.due.take() {
            self.due.remove(&(old, place));
        }
        client.due = client.shell.holder.next_deadline().map(|deadline| deadline.max(self.now));
        self.due.extend(client.due.map(|due| (due, place)));
    }

    fn step_server(&mut self, input: LessorInput) {
        let started = std::time::Instant::now();
        let events = self.server.step(input, &self.state, self.now);
        if self.now >= self.counts_from {
            self.leader_time += started.elapsed();
        }
        for event in events {
            match event {
                ServerEvent::Answer(_, (client, send_id, purpose), response) => {
                    self.count(purpose);
                    let input = HolderInput::Answered { send_id, response: *response };
                    self.later(DELAY, Event::ToClient(client, input));
                }
                ServerEvent::Recall(to, recall) => {
                    self.count(Purpose::Recall);
                    self.later(DELAY, Event::ToClient(to, HolderInput::Recalled(recall)));
                }
                ServerEvent::Prove(round) => self.later(self.commit, Event::Proven(round)),
                ServerEvent::Wrong(what) => panic!("{what}"),
            }
        }
        let lessor = self.server.lessor.as_ref().expect("it leads for ever");
        self.server_due = lessor.next_deadline(self.now);
        self.propose();
    }

    fn propose(&mut self) {
        while let Some(proposal) = self.server.take_proposal(self.now) {
            self.committed = self.committed.max(self.now.after(self.commit));
            self.events.add(self.committed, Event::Commit(proposal));
        }
    }
}

/// The configuration of a client. The clients spread their renewals over time.
fn config_of(client: usize, clients: usize, renewal: RenewalMode) -> HolderConfig {
    let spread_permille = u16::try_from(client * 1000 / clients).expect("less than a thousand");
    HolderConfig { spread_permille, renewal, ..HolderConfig::new(format!("client {client}")) }
}
