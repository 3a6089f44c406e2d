//! Holders against the real lessor and the real state, with one leader and a network that only
//! delays. No read is older than what was acknowledged, or seen by a read, before it began.
//! Everything ends.
//!
//! The simulator covers elections, lost messages and drifting clocks. This test is the shortest way
//! to see that both halves of the rules work together.

use super::*;
use crate::{
    command::Proposal,
    id::RequestId,
    lease_policy::LeaseRequest,
    lessor::{self, Lessor},
    limits::Limits,
    planted::Planted,
    state::State,
    transaction::{Compare, Operation, Relation, Transaction},
};

mod day;
mod elections;
mod wire;

enum Event {
    ToServer(lessor::LessorInput),
    Commit(Proposal),
    ToClient(usize, HolderInput),
    /// On this client's connection. Dropped if that has ended.
    OnConnection(usize, u64, HolderInput),
}

#[derive(Default)]
struct User {
    cache: BTreeMap<Object, (Arc<Content>, CopyValidity)>,
    volumes: BTreeMap<NodePath, VolumeValidity>,
    used: BTreeSet<NodePath>,
    /// The revision that each read in flight must reach.
    reads: BTreeMap<ReadId, (Object, Revision)>,
    writes: BTreeMap<WriteId, Vec<Object>>,
}

struct Pair {
    /// The clients' clock.
    now: Instant,
    /// The start of the run, by the clients' clock and by the server's.
    began: [Instant; 2],
    numbers: super::random::Numbers,
    events: BTreeMap<(Instant, u64), Event>,
    count: u64,
    state: State,
    lessor: Lessor,
    commit_at: Instant,
    index: u64,
    in_flight: BTreeMap<RequestId, (usize, SendId)>,
    holders: Vec<Holder>,
    users: Vec<User>,
    newest: BTreeMap<Object, Revision>,
    hits: u64,
    reads: u64,
    written: u64,
    /// How often each client has sent each kind of request.
    sent: BTreeMap<(usize, &'static str), u64>,
    /// Checks the invariants after each step. Slow with very many copies.
    is_checked: bool,
    /// All messages in their encoded form, if they are recorded.
    wire: Option<Vec<Vec<u8>>>,
    /// Connections that lose packets, if any.
    lossy: Option<day::Lossy>,
    /// Clients that compete for a node, if any.
    contest: Option<elections::Contest>,
}

const KEYS: [&str; 4] = ["/k", "/k/a", "/v/a", "/v/b"];

impl Pair {
    fn new(seed: u64) -> Self {
        Self::beginning_at(seed, [at(1), at(1)])
    }

    /// The same, with these start times of the clients' clock and of the server's.
    fn beginning_at(seed: u64, began: [Instant; 2]) -> Self {
        let [now, server_now] = began;
        let state = State::new(crate::volume::VolumeSettings::DEFAULT);
        let config = lessor::LessorConfig {
            replica: 1,
            attempt: 1,
            drift: DriftAllowance::DEFAULT,
            limits: Limits::default(),
            bounds: lessor::LessorBounds::DEFAULT,
            planted: Planted::default(),
        };
        let lessor = Lessor::new(config, &state, Duration::ZERO, server_now);
        let mut pair = Self {
            now,
            began,
            numbers: super::random::Numbers(seed),
            events: BTreeMap::new(),
            count: 0,
            state,
            lessor,
            commit_at: now,
            index: 0,
            in_flight: BTreeMap::new(),
            holders: (0..3).map(|i| Holder::new(HolderConfig::new(format!("client {i}")))).collect(),
            users: (0..3).map(|_| User::default()).collect(),
            newest: BTreeMap::new(),
            hits: 0,
            reads: 0,
            written: 0,
            sent: BTreeMap::new(),
            is_checked: true,
            wire: None,
            lossy: None,
            contest: None,
        };
        pair.propose();
        for client in 0..3 {
            pair.later(10_000, Event::ToClient(client, HolderInput::Connected));
        }
        pair
    }

    fn later(&mut self, micros: u64, event: Event) {
        self.count += 1;
        self.events.insert((self.now.after(Duration::from_micros(micros)), self.count), event);
    }

    /// The server's clock.
    fn server_now(&self) -> Instant {
        self.began[1].after(self.now.since(self.began[0]))
    }

    /// Records a message in its encoded form, if messages are recorded.
    fn encode(&mut self, message: &impl serde::Serialize) {
        if let Some(wire) = &mut self.wire {
            wire.push(postcard::to_stdvec(message).expect("a message can be encoded"));
        }
    }

    /// Sends to a client, which gets it only if the connection still lasts.
    fn down(&mut self, client: usize, input: HolderInput) {
        if self.contest.as_ref().is_some_and(|contest| !contest.is_reached(client)) {
            return;
        }
        let (delay, connection) = match &mut self.lossy {
            Some(lossy) => lossy.down(client, self.now, &mut self.numbers),
            None => return self.later_to(client, input),
        };
        self.later(delay, Event::OnConnection(client, connection, input));
    }

    fn later_to(&mut self, client: usize, input: HolderInput) {
        let delay = self.delay();
        self.later(delay, Event::ToClient(client, input));
    }

    /// Sends to the server.
    fn up(&mut self, client: usize, input: lessor::LessorInput) {
        if self.contest.as_ref().is_some_and(|contest| !contest.is_reached(client)) {
            return;
        }
        let delay = match &mut self.lossy {
            Some(lossy) => lossy.up(client, self.now, &mut self.numbers),
            None => self.delay(),
        };
        self.later(delay, Event::ToServer(input));
    }

    /// Usually short, sometimes long: messages overtake each other.
    fn delay(&mut self) -> u64 {
        let most = if self.numbers.below(10) == 0 { 900_000 } else { 20_000 };
        1 + self.numbers.below(most)
    }

    fn lessor(&mut self, input: lessor::LessorInput) {
        for effect in self.lessor.step(input, &self.state, self.server_now()) {
            match effect {
                lessor::LessorEffect::Reply { id, response } => {
                    let (client, send_id) = self.in_flight.remove(&id).expect("the request was sent");
                    self.encode(&response);
                    self.down(client, HolderInput::Answered { send_id, response });
                }
                lessor::LessorEffect::Recall(recall) => {
                    let client = self.holders.iter().position(|holder| holder.session() == Some(recall.session));
                    self.encode(&recall);
                    if let Some(client) = client {
                        self.down(client, HolderInput::Recalled(recall));
                    }
                }
                lessor::LessorEffect::ClockChanged { session, beyond, .. } => {
                    panic!("session {session} reports an excess of one shared clock: {beyond:?}")
                }
                lessor::LessorEffect::Prove { round } => {
                    self.later(1000, Event::ToServer(lessor::LessorInput::Proven { round }))
                }
            }
        }
        self.propose();
    }

    fn propose(&mut self) {
        while let Some(proposal) = self.lessor.take_proposal(self.server_now()) {
            self.commit_at = self.commit_at.max(self.now.after(Duration::from_millis(2)));
            self.count += 1;
            self.events.insert((self.commit_at, self.count), Event::Commit(proposal));
        }
    }

    fn client(&mut self, client: usize, input: HolderInput) {
        let effects = self.holders[client].step(input, self.now);
        if self.is_checked {
            self.holders[client].check(self.now).expect("the invariants hold");
        }
        for effect in effects {
            self.carry_out(client, effect);
        }
    }

    fn carry_out(&mut self, client: usize, effect: HolderEffect) {
        if self.contest.is_some() && self.note_of_contest(client, &effect) {
            return;
        }
        let user = &mut self.users[client];
        match effect {
            HolderEffect::Send { send_id, request } => {
                let name = match &request.body {
                    Body::Acquire { .. } => "acquire",
                    Body::Read { .. } => "read",
                    Body::HolderReport(_) => "holder report",
                    Body::Heartbeat(_) => "heartbeat",
                    Body::KeepAlive { .. } => "keep alive",
                    _ => "other",
                };
                *self.sent.entry((client, name)).or_default() += 1;
                self.count += 1;
                let id = RequestId(self.count);
                self.in_flight.insert(id, (client, send_id));
                self.encode(&request);
                self.up(client, lessor::LessorInput::Request { id, request });
            }
            HolderEffect::Install { object, content, validity } => {
                user.cache.insert(object, (content, validity));
            }
            HolderEffect::CopyValidated { object, validity } => {
                user.cache.get_mut(&object).expect("never evicted").1 = validity
            }
            HolderEffect::SelectWanted(objects) => self.client(client, HolderInput::ReadNextValues(objects)),
            HolderEffect::Drop(objects) => objects.iter().for_each(|object| {
                user.cache.remove(object);
            }),
            HolderEffect::VolumeValidityChanged { volume, validity } => {
                user.volumes.insert(volume, validity);
            }
            HolderEffect::Consent(consent) => {
                self.encode(&consent);
                self.up(client, lessor::LessorInput::Consent(consent));
            }
            HolderEffect::Serve { reads, content, .. } => self.served(client, &reads, &content),
            HolderEffect::ServeCached { reads, object, .. } => {
                let content = Arc::clone(&user.cache.get(&object).expect("never evicted").0);
                self.served(client, &reads, &content);
            }
            HolderEffect::WriteDone { write, result } => {
                let objects = user.writes.remove(&write).expect("the write was sent");
                let written = result.expect("no write is refused");
                self.written += 1;
                let is_done = written.transaction.is_none_or(|transacted| transacted.succeeded());
                objects.into_iter().filter(|_| is_done).for_each(|object| self.seen(object, written.revision));
            }
            HolderEffect::Connection(SessionNews::Connected { .. } | SessionNews::Jeopardy { .. }) => {}
            HolderEffect::FindLeader { .. } => {
                self.client(client, HolderInput::Disconnected);
                let delay = self.lossy.as_mut().map_or(1000, |lossy| lossy.connect(client, &mut self.numbers));
                self.later(delay, Event::ToClient(client, HolderInput::Connected));
            }
            HolderEffect::KeyLeaseRenewed { .. } => {}
            other => panic!("no operation fails in this run: {other:?}"),
        }
    }

    fn seen(&mut self, object: Object, revision: Revision) {
        let newest = self.newest.entry(object).or_default();
        *newest = revision.max(*newest);
    }

    fn served(&mut self, client: usize, reads: &[ReadId], content: &Content) {
        for read in reads {
            let (object, floor) = self.users[client].reads.remove(read).expect("the read was sent");
            let found = content.modify_revision().unwrap_or_default();
            assert!(
                found >= floor,
                "{object} at {}: read revision {found}, but {floor} was known before the read",
                self.now
            );
            self.seen(object, found);
        }
    }

    /// A read, from memory if permitted.
    fn read(&mut self, client: usize, object: Object) {
        self.count += 1;
        let read = ReadId(self.count);
        let user = &mut self.users[client];
        user.reads.insert(read, (object.clone(), self.newest.get(&object).copied().unwrap_or_default()));
        self.reads += 1;
        if let Some((content, validity)) = user.cache.get(&object).cloned()
            && may_use(validity.lease(), &user.volumes.get(&validity.volume).copied().unwrap_or_default(), self.now)
        {
            user.used.insert(validity.volume);
            self.hits += 1;
            return self.served(client, &[read], &content);
        }
        self.client(client, HolderInput::Read { read, object, lease: LeaseRequest::Implicit });
    }

    fn write(&mut self, client: usize, change: Write, objects: Vec<Object>) {
        self.count += 1;
        let write = WriteId(self.count);
        self.users[client].writes.insert(write, objects);
        self.client(client, HolderInput::Write { write, change });
    }

    fn pass(&mut self, span: Duration) {
        self.until(self.now.after(span));
    }

    fn random_operation(&mut self, client: usize) {
        let object = data(KEYS[self.numbers.below(4) as usize]);
        if self.numbers.below(12) > 0 {
            return self.read(client, object);
        }
        let other = data(KEYS[self.numbers.below(4) as usize]);
        let known = self.newest.get(&other).copied().unwrap_or_default();
        if self.numbers.below(3) > 0 || other == object {
            return self.write(client, put(object.path.as_str()), vec![object]);
        }
        self.write(client, both_if(&object, &other, known), vec![object, other]);
    }

    fn until(&mut self, end: Instant) {
        while self.now < end {
            let next = self.events.first_key_value().map(|((at, _), _)| *at);
            let server_now = self.server_now();
            let deadline = self.now.after(self.lessor.next_deadline(server_now).since(server_now));
            let deadlines = (0..self.holders.len()).filter(|client| self.runs(*client));
            let wanted = deadlines.filter_map(|client| self.holders[client].next_deadline()).min();
            self.now = self
                .now
                .max([next, wanted, Some(deadline)].into_iter().flatten().min().expect("a next event or deadline"));
            if next == Some(self.now) {
                let (_, event) = self.events.pop_first().expect("a next event");
                let Some(event) = self.unless_put_off(event) else { continue };
                match event {
                    Event::ToServer(input) => self.lessor(input),
                    Event::ToClient(client, input) => self.client(client, input),
                    Event::OnConnection(client, connection, input) => {
                        if self.lossy.as_ref().is_some_and(|lossy| lossy.is_up(client, connection)) {
                            self.client(client, input);
                        }
                    }
                    Event::Commit(proposal) => {
                        self.index += 1;
                        let is_mine = self.lessor.is_mine(&proposal);
                        let applied = self.state.apply(self.index, &proposal);
                        assert!(is_mine);
                        self.note_who_holds();
                        self.lessor(lessor::LessorInput::committed(proposal.number, applied));
                    }
                }
            }
            for client in 0..self.holders.len() {
                let is_due = self.holders[client].next_deadline().is_some_and(|deadline| deadline <= self.now);
                if is_due && self.runs(client) {
                    let used = std::mem::take(&mut self.users[client].used);
                    self.client(client, HolderInput::Timeout { used });
                }
            }
            if deadline <= self.now {
                self.lessor(lessor::LessorInput::Timeout);
            }
        }
    }
}

/// Writes two nodes if one of them is at the known revision. Otherwise only compares.
fn both_if(one: &Object, other: &Object, known: Revision) -> Write {
    let compare = Compare::modify_revision(other.path.clone(), Relation::Equal, known);
    let put = |object: &Object| Operation::put(object.path.clone(), "both");
    Write::Transaction(Transaction::new().when(compare).then(put(one)).then(put(other)))
}

#[test]
fn holder_and_lessor_agree_in_random_runs() {
    let (mut hits, mut reads, mut written) = (0, 0, 0);
    for seed in 0..30 {
        let run = std::panic::catch_unwind(|| {
            let mut pair = Pair::new(seed);
            pair.until(at(2));
            if seed % 2 == 0 {
                let settings = crate::volume::VolumeSettings::DEFAULT;
                pair.write(0, Write::CreateVolume { path: path("/v"), settings }, vec![data("/v")]);
            }
            for _ in 0..2000 {
                // Sometimes no client does anything for longer than a term.
                let pause = if pair.numbers.below(300) == 0 { 15_000 } else { pair.numbers.below(40) };
                let end = pair.now.after(Duration::from_millis(1 + pause));
                pair.until(end);
                let client = pair.numbers.below(3) as usize;
                pair.random_operation(client);
            }
            let end = pair.now.after(Duration::from_secs(30));
            pair.until(end);
            for user in &pair.users {
                assert!(user.reads.is_empty() && user.writes.is_empty(), "{:?} {:?}", user.reads, user.writes);
            }
            (pair.hits, pair.reads, pair.written)
        });
        let Ok(counted) = run else { panic!("failed at seed {seed}; see above") };
        (hits, reads, written) = (hits + counted.0, reads + counted.1, written + counted.2);
    }
    assert!(hits * 3 > reads, "{hits} of {reads} reads from memory, {written} writes");
}

#[test]
fn node_put_after_volume_removal_is_not_reported_lost() {
    let mut pair = Pair::new(1);
    let step = |pair: &mut Pair, secs: u64| pair.pass(Duration::from_secs(secs));
    step(&mut pair, 2);
    let settings = crate::volume::VolumeSettings::DEFAULT;
    pair.write(1, Write::CreateVolume { path: path("/v"), settings }, vec![]);
    step(&mut pair, 3);
    for at in ["/k", "/v/a", "/k", "/v/a"] {
        pair.read(0, data(at));
        step(&mut pair, 2);
    }
    for top in ["/", "/v"] {
        assert!(!pair.holders[0].volume_remaining(&path(top), pair.now).is_zero(), "a lease on {top}");
    }
    pair.write(1, Write::RemoveVolume { path: path("/v") }, vec![]);
    while pair.state.volume(&path("/v")).is_some() {
        pair.pass(Duration::from_millis(1));
    }
    assert_eq!(pair.holders[0].volume_of(&path("/v/s")), path("/v"), "the client has not learned of the removal");
    let attach = crate::command::Attach::Session;
    let change = Write::Put { path: path("/v/s"), value: "v".into(), condition: Condition::Any, attach };
    pair.write(0, change, vec![]);
    // If the node were lost, an unexpected effect would fail the test.
    step(&mut pair, 60);
    assert!(pair.users[0].writes.is_empty());
    assert!(pair.state.node(&path("/v/s")).is_some(), "the outer lease is renewed");
}

/// The client is away for twice the volume term. Meanwhile 10 of its 10,000 objects change.
#[test]
fn unchanged_copies_are_revived_by_one_exchange() {
    const OBJECTS: usize = 10_000;
    let mut pair = Pair::new(1);
    pair.is_checked = false;
    let objects: Vec<Object> = (0..OBJECTS).map(|number| data(&format!("/{}/{number}", number % 100))).collect();
    pair.pass(Duration::from_secs(2));
    for part in objects.chunks(100) {
        let puts = part.iter().map(|object| Operation::put(object.path.clone(), "first"));
        pair.write(1, Write::Transaction(Transaction { then: puts.collect(), ..Transaction::new() }), part.to_vec());
        pair.pass(Duration::from_millis(100));
    }
    for object in &objects {
        pair.read(0, object.clone());
        pair.pass(Duration::from_micros(100));
    }
    pair.pass(Duration::from_secs(2));
    assert!(pair.users[0].reads.is_empty() && pair.users[0].cache.len() == OBJECTS);
    pair.pass(TERM * 2);
    assert!(pair.holders[0].volume_remaining(&NodePath::root(), pair.now).is_zero(), "an idle client renews no lease");
    let changed: Vec<Object> = objects.iter().step_by(OBJECTS / 10).cloned().collect();
    for object in &changed {
        pair.write(1, put(object.path.as_str()), vec![object.clone()]);
    }
    pair.pass(Duration::from_secs(2));
    assert!(pair.users[1].writes.is_empty(), "the write waits for no consent");

    (pair.hits, pair.reads) = (0, 0);
    pair.sent.clear();
    // The first read asks for the lease, and is then answered from memory.
    pair.read(0, objects[1].clone());
    pair.pass(Duration::from_secs(2));
    assert!(pair.users[0].reads.is_empty());
    assert_eq!(pair.sent.get(&(0, "acquire")), Some(&1));
    assert_eq!(pair.sent.get(&(0, "read")), None);
    // Serving checks that no read is older than what was known when it began.
    objects.iter().for_each(|object| pair.read(0, object.clone()));
    assert_eq!(pair.hits, (OBJECTS - changed.len()) as u64);
    pair.pass(Duration::from_secs(2));
    assert!(pair.users[0].reads.is_empty());
    assert_eq!(pair.sent.get(&(0, "acquire")), Some(&1));
    assert_eq!(pair.sent.get(&(0, "read")), Some(&(changed.len() as u64)));
    pair.holders[0].check(pair.now).expect("the invariants hold");
}
