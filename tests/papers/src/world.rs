//! Clients that read and write as Poisson processes, and a leader. Counts the messages between
//! them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use leasehold_protocol::{
    command::{Proposal, Write},
    holder::{self, Holder, HolderEffect, HolderInput, ReadId, SendId, WriteId},
    id::{RequestId, SessionId},
    lease_policy::LeaseRequest,
    lessor::{self, Lessor},
    limits::Limits,
    message::{Body, Request},
    object::Object,
    path::NodePath,
    planted::Planted,
    state::State,
    time::{DriftAllowance, Instant},
    volume::{Tracking, VolumeSettings},
};
use leasehold_simulation::rng::Rng;

use crate::gray_cheriton::{Load, client_term};

/// The rates of reads and writes, the sharing of files, and the volume term.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// Decides the times of all reads and writes.
    pub seed: u64,
    /// The number of clients.
    pub clients: usize,
    /// How many of them read and write the same files.
    pub sharing: usize,
    /// Files of each such group, all in one volume. Each read and each write picks one of them.
    pub files: u64,
    /// Reads per second by each client.
    pub reads: f64,
    /// Writes per second by each client.
    pub writes: f64,
    /// The volume term. Object leases last for a day.
    pub term: Duration,
    /// For how long messages are counted.
    pub measured: Duration,
}

impl Workload {
    /// The V system's rates: 20 clients, counted for 3,000 s.
    pub fn v_system(seed: u64, sharing: usize, files: u64, term: Duration) -> Self {
        let measured = Duration::from_secs(3000);
        Self { seed, clients: 20, sharing, files, reads: 0.864, writes: 0.040, term, measured }
    }

    /// The paper's formula for this workload, in messages per second, with one lease for each file.
    /// A client of Leasehold counts a term from its request, and shortens it by the drift
    /// allowance. The server waits for the margin.
    pub fn formula(&self) -> f64 {
        let files = self.files as f64;
        let (clients, sharing) = (self.clients as f64, self.sharing as f64);
        let of_each = Load { clients, reads: self.reads / files, writes: self.writes / files, sharing };
        let allowance = DriftAllowance::DEFAULT.over(self.term).as_secs_f64();
        files * of_each.messages(client_term(self.term.as_secs_f64(), 2.0 * DELAY.as_secs_f64(), allowance))
    }

    /// A number of counted messages, per second.
    pub fn per_second(&self, messages: u64) -> f64 {
        messages as f64 / self.measured.as_secs_f64()
    }
}

/// The messages that the server sent and received while they were counted, and the applications'
/// reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that only renew, and their answers.
    pub renewals: u64,
    /// Requests for a new volume lease, and their answers.
    pub acquisitions: u64,
    /// Parts of holder reports, which a leader wants after a revival, and their answers.
    pub lists: u64,
    /// Reads that validate a copy, and their answers.
    pub validations: u64,
    /// Recalls, and consents to them.
    pub recalls: u64,
    /// Reads of data that was recalled, and their answers. Any cache has to fetch that.
    pub fetches: u64,
    /// Writes, and their answers: the same with any term.
    pub writes: u64,
    /// Reads of the applications.
    pub reads: u64,
    /// Reads that were answered from memory, without a message.
    pub hits: u64,
}

impl Counts {
    /// The messages for consistency: all except fetches and writes.
    pub fn consistency(&self) -> u64 {
        self.renewals + self.acquisitions + self.lists + self.validations + self.recalls
    }

    fn of(&mut self, kind: Kind) -> Option<&mut u64> {
        match kind {
            Kind::Renewal => Some(&mut self.renewals),
            Kind::Acquisition => Some(&mut self.acquisitions),
            Kind::List => Some(&mut self.lists),
            Kind::Validation => Some(&mut self.validations),
            Kind::Recall => Some(&mut self.recalls),
            Kind::Fetch => Some(&mut self.fetches),
            Kind::Write => Some(&mut self.writes),
            Kind::Opening => None,
        }
    }
}

/// The purpose of a message.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Renewal,
    Acquisition,
    List,
    Validation,
    Recall,
    Fetch,
    Write,
    /// A session begins.
    Opening,
}

impl Kind {
    fn of(body: &Body) -> Self {
        match body {
            Body::Heartbeat(_) => Self::Renewal,
            Body::Acquire { .. } => Self::Acquisition,
            Body::HolderReport(_) => Self::List,
            Body::Read { known: Some(_), .. } => Self::Validation,
            Body::Read { known: None, .. } => Self::Fetch,
            Body::Write { .. } => Self::Write,
            Body::Open { .. } | Body::Register => Self::Opening,
            other => panic!("the model sends no such request: {other:?}"),
        }
    }
}

/// From a client to the server, or back: the V system's propagation, and the handling at both ends.
const DELAY: Duration = Duration::from_micros(2_500);
/// The time that a commit takes.
const COMMIT: Duration = Duration::from_millis(1);
/// The margin: the paper's ε.
const MARGIN: Duration = Duration::from_millis(100);
/// Object leases outlast every run.
const OBJECT_TERM: Duration = Duration::from_secs(24 * 3600);
/// The time before messages are counted: clients make the files, and all clients read some.
const WARM_UP: Duration = Duration::from_secs(60);

enum Event {
    ToServer(Kind, lessor::LessorInput),
    ToClient(usize, HolderInput),
    Commit(Proposal),
    Proven(u64),
    Read(usize),
    Write(usize),
    Make(usize, u64),
}

struct World {
    load: Workload,
    rng: Rng,
    now: Instant,
    counts: Counts,
    /// Nothing is counted before this time.
    counts_from: Instant,
    events: BTreeMap<(Instant, u64), Event>,
    numbers: u64,
    state: State,
    lessor: Lessor,
    /// The lessor's next deadline, as of its last step.
    lessor_due: Instant,
    committed: Instant,
    in_flight: BTreeMap<RequestId, (usize, SendId, Kind)>,
    holders: Vec<Holder>,
    sessions: BTreeMap<SessionId, usize>,
    /// Volumes whose copies served reads since the holder last received this list.
    used: Vec<BTreeSet<NodePath>>,
    wakes: BTreeSet<(Instant, usize)>,
    wake: Vec<Option<Instant>>,
}

/// Runs the workload, and returns the counts.
///
/// # Panics
///
/// If the term is out of bounds, or if something happens that is impossible without a fault.
pub fn run(load: Workload) -> Counts {
    let mut world = World::new(load);
    let end = world.counts_from.after(load.measured);
    world.run_until(end);
    world.counts
}

impl World {
    fn new(load: Workload) -> Self {
        let now = Instant::from_micros(1_000_000);
        let drift = DriftAllowance::DEFAULT;
        let settings = VolumeSettings::new(load.term, OBJECT_TERM, MARGIN, Tracking::Objects, drift);
        let state = State::new(settings.expect("a term within bounds"));
        let config = lessor::LessorConfig {
            replica: 1,
            attempt: 1,
            drift,
            limits: Limits::default(),
            bounds: lessor::LessorBounds::DEFAULT,
            planted: Planted::default(),
        };
        let lessor = Lessor::new(config, &state, Duration::ZERO, now);
        let holder = |client: usize| {
            let spread_permille = u16::try_from(client * 1000 / load.clients).expect("less than a thousand");
            Holder::new(holder::HolderConfig {
                spread_permille,
                ..holder::HolderConfig::new(format!("client {client}"))
            })
        };
        let mut world = Self {
            load,
            rng: Rng::new(load.seed),
            now,
            counts: Counts::default(),
            counts_from: now.after(WARM_UP),
            events: BTreeMap::new(),
            numbers: 0,
            state,
            lessor,
            lessor_due: now,
            committed: now,
            in_flight: BTreeMap::new(),
            holders: (0..load.clients).map(holder).collect(),
            sessions: BTreeMap::new(),
            used: vec![BTreeSet::new(); load.clients],
            wakes: BTreeSet::new(),
            wake: vec![None; load.clients],
        };
        world.propose();
        world.begin();
        world
    }

    /// All clients connect. The first of each group makes its files. Then all read and write.
    fn begin(&mut self) {
        for client in 0..self.load.clients {
            self.later(COMMIT * 10, Event::ToClient(client, HolderInput::Connected));
            if client % self.load.sharing == 0 {
                let makes = (0..self.load.files).map(|file| Event::Make(client, file));
                makes.for_each(|make| self.later(COMMIT * 100, make));
            }
            self.later(WARM_UP / 20, Event::Read(client));
            self.later(WARM_UP / 20, Event::Write(client));
        }
    }

    fn later(&mut self, span: Duration, event: Event) {
        self.at(self.now.after(span), event);
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.numbers += 1;
        self.events.insert((at, self.numbers), event);
    }

    fn count(&mut self, kind: Kind) {
        if self.now >= self.counts_from
            && let Some(count) = self.counts.of(kind)
        {
            *count += 1;
        }
    }

    fn run_until(&mut self, end: Instant) {
        while self.now < end {
            let next = self.events.first_key_value().map(|((at, _), _)| *at);
            let wake = self.wakes.first().map(|(at, _)| *at);
            let first = next.into_iter().chain(wake).fold(self.lessor_due, Instant::min);
            self.now = self.now.max(first);
            if next == Some(first) {
                let ((_, _), event) = self.events.pop_first().expect("it is there");
                self.happen(event);
            } else if let Some((_, client)) = self.wakes.first().copied().filter(|(at, _)| *at == first) {
                let used = std::mem::take(&mut self.used[client]);
                self.client(client, HolderInput::Timeout { used });
            } else {
                self.lessor(lessor::LessorInput::Timeout);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToServer(kind, input) => {
                self.count(kind);
                self.lessor(input);
            }
            Event::ToClient(client, input) => self.client(client, input),
            Event::Commit(proposal) => {
                assert!(self.lessor.is_mine(&proposal), "the proposal is of this lessor");
                let applied = self.state.apply(self.state.applied_index() + 1, &proposal);
                self.lessor(lessor::LessorInput::committed(proposal.number, applied));
            }
            Event::Proven(round) => self.lessor(lessor::LessorInput::Proven { round }),
            Event::Read(client) => {
                self.read(client);
                self.again(self.load.reads, Event::Read(client));
            }
            Event::Write(client) => {
                let file = self.rng.below(self.load.files);
                self.write(client, file);
                self.again(self.load.writes, Event::Write(client));
            }
            Event::Make(client, file) => self.write(client, file),
        }
    }

    fn again(&mut self, rate: f64, event: Event) {
        if let Some(wait) = self.rng.poisson_wait(rate) {
            self.later(Duration::from_micros(wait), event);
        }
    }

    fn file(&self, client: usize, file: u64) -> NodePath {
        let text = format!("/group-{}/file-{file}", client / self.load.sharing);
        NodePath::parse(&text).expect("made of valid components")
    }

    fn read(&mut self, client: usize) {
        let file = self.rng.below(self.load.files);
        let object = Object::data(self.file(client, file));
        let is_hit = self.holders[client].may_serve(&object, self.now);
        if self.now >= self.counts_from {
            self.counts.reads += 1;
            self.counts.hits += u64::from(is_hit);
        }
        if is_hit {
            let volume = self.holders[client].volume_of(&object.path);
            self.used[client].insert(volume);
        } else {
            self.numbers += 1;
            self.client(
                client,
                HolderInput::Read { read: ReadId(self.numbers), object, lease: LeaseRequest::Implicit },
            );
        }
    }

    fn write(&mut self, client: usize, file: u64) {
        self.numbers += 1;
        let change = Write::put(self.file(client, file), "content".into());
        self.client(client, HolderInput::Write { write: WriteId(self.numbers), change });
    }

    fn client(&mut self, client: usize, input: HolderInput) {
        for effect in self.holders[client].step(input, self.now) {
            match effect {
                HolderEffect::Send { send_id, request } => self.send(client, send_id, request),
                HolderEffect::Consent(consent) => {
                    self.later(DELAY, Event::ToServer(Kind::Recall, lessor::LessorInput::Consent(consent)));
                }
                HolderEffect::Connection(holder::ConnectionNews::Connected { session }) => {
                    self.sessions.insert(session, client);
                }
                HolderEffect::WriteDone { result, .. } => drop(result.expect("nothing refuses it")),
                // Contents do not matter here, and a volume without reads lapses.
                HolderEffect::Install { .. }
                | HolderEffect::Revalidate { .. }
                | HolderEffect::Drop(_)
                | HolderEffect::DropAll
                | HolderEffect::VolumeValidityChanged { .. }
                | HolderEffect::Serve { .. }
                | HolderEffect::ServeCached { .. }
                | HolderEffect::Connection(holder::ConnectionNews::Jeopardy) => {}
                other => panic!("nothing fails here: {other:?}"),
            }
        }
        if let Some(old) = self.wake[client].take() {
            self.wakes.remove(&(old, client));
        }
        if let Some(deadline) = self.holders[client].next_deadline() {
            self.wake[client] = Some(deadline.max(self.now));
            self.wakes.insert((deadline.max(self.now), client));
        }
    }

    fn send(&mut self, client: usize, send_id: SendId, request: Request) {
        self.numbers += 1;
        let (id, kind) = (RequestId(self.numbers), Kind::of(&request.body));
        self.in_flight.insert(id, (client, send_id, kind));
        self.later(DELAY, Event::ToServer(kind, lessor::LessorInput::Request { id, request }));
    }

    fn lessor(&mut self, input: lessor::LessorInput) {
        for effect in self.lessor.step(input, &self.state, self.now) {
            match effect {
                lessor::LessorEffect::Reply { id, response } => {
                    let (client, send_id, kind) = self.in_flight.remove(&id).expect("the request was sent");
                    self.count(kind);
                    self.later(DELAY, Event::ToClient(client, HolderInput::Answered { send_id, response }));
                }
                lessor::LessorEffect::Recall(recall) => {
                    self.count(Kind::Recall);
                    let client = self.sessions[&recall.session];
                    self.later(DELAY, Event::ToClient(client, HolderInput::Recalled(recall)));
                }
                lessor::LessorEffect::ClockChanged { .. } => {}
                lessor::LessorEffect::Prove { round } => self.later(COMMIT, Event::Proven(round)),
            }
        }
        self.lessor_due = self.lessor.next_deadline(self.now);
        self.propose();
    }

    fn propose(&mut self) {
        while let Some(proposal) = self.lessor.take_proposal(self.now) {
            self.committed = self.committed.max(self.now.after(COMMIT));
            self.at(self.committed, Event::Commit(proposal));
        }
    }
}
