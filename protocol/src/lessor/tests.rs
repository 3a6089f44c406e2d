//! Tests of each rule: a state, one step, its exact effects. This file has their small world.

mod bounds;
mod consents;
mod costs;
mod counters;
mod crowd;
mod delayed_consents;
mod drift;
mod failovers;
mod first_reads;
mod given_up;
mod growth;
mod headers;
mod inspections;
mod key_leases;
mod lease_limits;
mod leases;
mod load;
mod locks;
mod many_sessions;
mod mistakes;
mod next_values;
mod outages;
mod policies;
mod proposals;
mod reads;
mod removals;
mod renewals;
mod replaced;
mod rounds;
mod services;
mod sizes;
mod terms_by_use;
mod transactions;
mod volume_leases;
mod volume_terms;
mod volumes;
mod watch_costs;
mod watch_reports;
mod watches;
mod work;
mod write_leases;
mod writes;

use bytes::Bytes;

use super::*;
use crate::{
    command::{Condition, IntendedLeases, Outcome, Renewal, Write, WriteRefusal},
    id::{Incarnation, Sequence, Stamp, VolumeGeneration},
    lease_policy::LeaseRequest,
    message::{
        AcquiredVolume, Body, Consent, CoveringLease, Grant, HolderReportPart, Inspect, Lapse, LastValid, Promise,
        ReadAnswer, Recall, Request, RequestHeader, Revival,
    },
    object::{Content, ObjectSet},
    volume::VolumeSettings,
};

const MILLI: Duration = Duration::from_millis(1);
const TERM: Duration = Duration::from_secs(10);

/// One replica. It commits what its lessor proposes when the test calls `commit`.
struct World {
    state: State,
    lessor: Lessor,
    now: Instant,
    index: u64,
    requests: u64,
    sequence: u64,
    registrations: BTreeMap<SessionId, u64>,
    /// Whether the invariants are checked after each step, which takes long with very many
    /// sessions.
    is_checked: bool,
}

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("a valid path")
}

fn data(text: &str) -> Object {
    Object::data(path(text))
}

fn put(text: &str, value: &'static [u8]) -> Write {
    Write::put(path(text), Bytes::from_static(value))
}

fn config(attempt: u64) -> LessorConfig {
    LessorConfig {
        replica: 1,
        attempt,
        drift: DriftAllowance::DEFAULT,
        limits: Limits::default(),
        bounds: LessorBounds::DEFAULT,
        planted: Planted::default(),
    }
}

impl World {
    /// A leader whose epoch has begun.
    fn new() -> Self {
        let mut world = Self::before_the_epoch();
        world.commit();
        world
    }

    fn before_the_epoch() -> Self {
        let state = State::new(VolumeSettings::DEFAULT);
        let now = Instant::from_micros(1_000_000);
        let lessor = Lessor::new(config(1), &state, Duration::ZERO, now);
        Self {
            state,
            lessor,
            now,
            index: 0,
            requests: 0,
            sequence: 0,
            registrations: BTreeMap::new(),
            is_checked: true,
        }
    }

    /// A new leader continues with the same state.
    fn fail_over(&mut self) {
        self.lessor = Lessor::new(config(self.lessor.config.attempt + 1), &self.state, Duration::ZERO, self.now);
        self.commit();
    }

    fn step(&mut self, input: LessorInput) -> Vec<LessorEffect> {
        let effects = self.lessor.step(input, &self.state, self.now);
        if self.is_checked {
            self.check();
        }
        effects
    }

    fn check(&self) {
        self.lessor.check(&self.state).expect("the invariants hold");
    }

    /// Commits all proposals, and those that follow from them.
    fn commit(&mut self) -> Vec<LessorEffect> {
        let mut effects = Vec::new();
        while let Some(proposal) = self.lessor.take_proposal(self.now) {
            effects.extend(self.apply(&proposal));
        }
        effects
    }

    fn apply(&mut self, proposal: &Proposal) -> Vec<LessorEffect> {
        self.index += 1;
        let applied = self.state.apply(self.index, proposal);
        assert!(self.lessor.is_mine(proposal));
        self.step(LessorInput::committed(proposal.number, applied))
    }

    /// Lets time pass in steps that the clock does not clamp.
    fn pass(&mut self, span: Duration) -> Vec<LessorEffect> {
        let end = self.now.after(span);
        let mut effects = Vec::new();
        while self.now < end {
            self.now = self.now.after(clock::STEP_EVERY).min(end);
            effects.extend(self.step(LessorInput::Timeout));
            effects.extend(self.commit());
        }
        effects
    }

    fn request(&mut self, session: SessionId, body: Body) -> Vec<LessorEffect> {
        self.sequence += 1;
        if body == Body::Register {
            *self.registrations.entry(session).or_default() += 1;
        }
        let header = RequestHeader {
            session,
            epoch: self.state.epoch(),
            registration: self.registration(session),
            sequence: Sequence(self.sequence),
            unanswered_from: self.lessor.writes.lowest_sequence(session).unwrap_or(Sequence(self.sequence)),
            ..RequestHeader::default()
        };
        self.send(Request { header, body })
    }

    /// Calls `asks` with a leader that answers renewals without waiting for a tick. So a promise is
    /// what the horizon leaves.
    fn at_once<T>(&mut self, asks: impl FnOnce(&mut Self) -> T) -> T {
        let most = std::mem::take(&mut self.lessor.config.bounds.renewals_waiting_max);
        let answered = asks(self);
        self.lessor.config.bounds.renewals_waiting_max = most;
        answered
    }

    fn registration(&self, session: SessionId) -> u64 {
        self.registrations.get(&session).copied().unwrap_or_default()
    }

    fn send(&mut self, request: Request) -> Vec<LessorEffect> {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.step(LessorInput::Request { id, request })
    }

    /// A session that has registered.
    fn session(&mut self) -> SessionId {
        self.request(SessionId(0), Body::Open { name: "test".to_owned() });
        let answer = answer(&self.commit());
        let Answer::Opened { session, .. } = answer else { panic!("opened: {answer:?}") };
        self.request(session, Body::Register);
        session
    }

    fn acquire(&mut self, session: SessionId, last_valid: Option<LastValid>) -> AcquiredVolume {
        self.request(session, Body::Acquire { path: NodePath::root(), last_valid, read: None });
        let answer = answer(&self.commit());
        let Answer::Acquired(acquired) = answer else { panic!("acquired: {answer:?}") };
        acquired
    }

    fn read(&mut self, session: SessionId, object: Object) -> ReadAnswer {
        self.request(session, Body::Read { object, known: None, lease: LeaseRequest::Implicit });
        let answer = answer(&self.step(LessorInput::Proven { round: self.lessor.round }));
        let Answer::Read(answer) = answer else { panic!("read: {answer:?}") };
        answer
    }

    /// A session with a lease on an object.
    fn holder(&mut self, object: &Object) -> (SessionId, Grant) {
        let session = self.session();
        self.acquire(session, None);
        let grant = self.read(session, object.clone()).grant.expect("the write is not refused");
        (session, grant)
    }

    fn write(&mut self, session: SessionId, write: Write) -> Vec<LessorEffect> {
        self.request(session, Body::Write { write, dropped: Vec::new(), seen: Stamp::default() })
    }

    /// The promise; if there is none, the lapse, if any.
    fn renew(&mut self, session: SessionId, incarnation: Incarnation) -> Result<Promise, Option<Lapse>> {
        let header = RequestHeader {
            session,
            epoch: self.state.epoch(),
            registration: self.registration(session),
            renew: vec![Renew { volume: NodePath::root(), incarnation }],
            ..RequestHeader::default()
        };
        let effects = self.at_once(|world| world.send(Request { header, body: Body::Heartbeat(Default::default()) }));
        let mut response = replies(&effects).pop().expect("answered at once");
        assert!(response.promises.len() + response.lapses.len() <= 1, "{response:?}");
        response.promises.pop().ok_or_else(|| response.lapses.pop())
    }

    fn waits(&mut self, text: &str) -> Vec<crate::message::PendingWriteInfo> {
        let answer = answer(&self.request(SessionId(0), Body::Inspect(Inspect::PendingWrites { path: path(text) })));
        let Answer::PendingWrites(waits) = answer else { panic!("waits: {answer:?}") };
        waits
    }
}

fn replies(effects: &[LessorEffect]) -> Vec<Response> {
    let reply = |effect: &LessorEffect| match effect {
        LessorEffect::Reply { response, .. } => Some(response.clone()),
        LessorEffect::Recall(_) | LessorEffect::Prove { .. } | LessorEffect::ClockChanged { .. } => None,
    };
    effects.iter().filter_map(reply).collect()
}

fn result(effects: &[LessorEffect]) -> Result<Answer, Refusal> {
    let replies = replies(effects);
    let [response] = replies.as_slice() else { panic!("one reply in {effects:?}") };
    response.result.clone()
}

fn answer(effects: &[LessorEffect]) -> Answer {
    result(effects).expect("not refused")
}

fn recalls(effects: &[LessorEffect]) -> Vec<Recall> {
    let recall = |effect: &LessorEffect| match effect {
        LessorEffect::Recall(recall) => Some(recall.clone()),
        LessorEffect::Reply { .. } | LessorEffect::Prove { .. } | LessorEffect::ClockChanged { .. } => None,
    };
    effects.iter().filter_map(recall).collect()
}
