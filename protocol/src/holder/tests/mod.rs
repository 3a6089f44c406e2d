//! One state, one step, the exact effects. The invariants are checked after each step.

mod attachments;
mod clocks;
mod delayed_consents;
mod first_reads;
mod growth;
mod holder_reports;
mod key_leases;
mod leases;
mod locks;
mod mistakes;
mod next_values;
mod pace;
mod policies;
mod random;
mod reads;
mod recalls;
mod sessions;
mod transactions;
mod upgrades;
mod volumes;
mod watches;
mod with_lessor;
mod write_leases;
mod writes;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::*;
use crate::{
    command::{Condition, Write, Written},
    id::{CoveringNumber, Incarnation, Revision, Sequence, VolumeGeneration},
    lease_policy::{LeaseOffer, LeaseRequest},
    message::{
        AcquiredVolume, Answer, Body, Consent, FirstRead, Grant, Promise, ReadAnswer, Recall, Refusal, Renew, Request,
        Response, Revival,
    },
    object::{Content, Data, ObjectSet, Stat},
    time::DriftAllowance,
};

const SESSION: SessionId = SessionId(7);
const EPOCH: Epoch = Epoch(3);
const TERM: Duration = Duration::from_secs(10);
const OBJECT_TERM: Duration = Duration::from_secs(100);
const SESSION_TERM: Duration = Duration::from_secs(60);

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("a valid path")
}

fn data(text: &str) -> Object {
    Object::data(path(text))
}

fn one(text: &str) -> ObjectSet {
    ObjectSet::One(data(text))
}

fn at(secs: u64) -> Instant {
    Instant::ZERO.after(Duration::from_secs(secs))
}

fn stamp(sequence: u64) -> Stamp {
    Stamp { epoch: EPOCH, sequence }
}

/// The answer to a write, without a grant.
fn written_answer(written: Written) -> Answer {
    Answer::Written {
        written,
        stamp: stamp(40),
        grant: None,
        applied: Revision(30),
        key_lease: None,
        write_lease_data: None,
    }
}

fn value(revision: u64) -> Content {
    let stat = Stat {
        create_revision: Revision(1),
        modify_revision: Revision(revision),
        version: 1,
        value_len: 1,
        owner: None,
    };
    Content::Data(Some(Data { value: "v".into(), stat }))
}

fn put(text: &str) -> Write {
    Write::put(path(text), "v".into())
}

fn promise(volume: &str, incarnation: u64) -> Promise {
    Promise {
        volume: path(volume),
        incarnation: Incarnation(incarnation),
        generation: VolumeGeneration(1),
        span: TERM,
        term: TERM,
        revision: Revision(1),
    }
}

fn grant(sequence: u64) -> Grant {
    Grant {
        stamp: stamp(sequence),
        volume: NodePath::root(),
        incarnation: Incarnation(1),
        generation: VolumeGeneration(1),
        span: OBJECT_TERM,
    }
}

fn answer(content: Option<Content>, grant: Option<Grant>) -> Answer {
    Answer::Read(read_answer("/", content, grant))
}

/// The answer to a read of an object in this volume.
fn read_answer(volume: &str, content: Option<Content>, grant: Option<Grant>) -> ReadAnswer {
    ReadAnswer { content, grant, volume: path(volume), offer: LeaseOffer::Everybody, applied: Revision(20) }
}

fn recall(sequence: u64, number: u64, sets: Vec<ObjectSet>) -> Recall {
    Recall { session: SESSION, stamp: stamp(sequence), number, sets, offers_next_values: false }
}

fn consent(sequence: u64) -> HolderEffect {
    HolderEffect::Consent(Consent { session: SESSION, stamp: stamp(sequence) })
}

fn validity(sequence: u64, incarnation: u64, until: Instant) -> CopyValidity {
    CopyValidity { stamp: stamp(sequence), volume: NodePath::root(), incarnation: Incarnation(incarnation), until }
}

fn volume_valid(volume: &str, since: u64, until: Instant) -> HolderEffect {
    HolderEffect::VolumeValidityChanged {
        volume: path(volume),
        validity: VolumeValidity { since: Incarnation(since), until },
    }
}

/// The send ids and bodies of the requests among the effects.
fn sent(effects: &[HolderEffect]) -> Vec<(SendId, Body)> {
    requests(effects).into_iter().map(|(send_id, request)| (send_id, request.body)).collect()
}

fn keep_alive(effects: &[HolderEffect]) -> Option<(SendId, Vec<Renew>)> {
    let found = requests(effects).into_iter().find(|(_, request)| matches!(request.body, Body::Heartbeat(_)));
    found.map(|(send_id, request)| (send_id, request.header.renew))
}

fn jeopardy(volumes: &[&str]) -> SessionNews {
    SessionNews::Jeopardy { volumes: volumes.iter().map(|text| path(text)).collect() }
}

fn root(incarnation: u64) -> Renew {
    Renew { volume: NodePath::root(), incarnation: Incarnation(incarnation) }
}

fn requests(effects: &[HolderEffect]) -> Vec<(SendId, Request)> {
    let send = |effect: &HolderEffect| match effect {
        HolderEffect::Send { send_id, request } => Some((*send_id, request.clone())),
        _ => None,
    };
    effects.iter().filter_map(send).collect()
}

/// A holder and its clock.
struct Client {
    holder: Holder,
    now: Instant,
}

impl Client {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(configure: impl FnOnce(&mut HolderConfig)) -> Self {
        let mut config = HolderConfig::new("test");
        config.drift_allowance = DriftAllowance::from_ppm(0).expect("within bounds");
        configure(&mut config);
        Self { holder: Holder::new(config), now: at(0) }
    }

    /// Registered at 100 s. Compares clocks only with requests that renew.
    fn registered() -> Self {
        let mut client = Self::new().connect();
        client.holder.settle_clocks();
        client
    }

    fn connect(mut self) -> Self {
        self.now = at(100);
        let effects = self.step(HolderInput::Connected);
        let open = self.only(&effects).0;
        let effects = self.answer(open, Answer::Opened { session: SESSION, term: SESSION_TERM });
        let register = self.only(&effects).0;
        self.answer(register, Answer::Registered { coverings: vec![] });
        self
    }

    /// With a lease on the root: incarnation 1, stamp 1, requested at 100 s.
    fn leased() -> Self {
        Self::registered().lease()
    }

    fn lease(mut self) -> Self {
        let effects = self.read(1, "/first");
        let acquire = self.only(&effects).0;
        let effects = self.answer(acquire, acquired("/", 1, 1));
        let read = self.only(&effects).0;
        self.answer_renewing(read, answer(Some(value(9)), None));
        self
    }

    /// Also with a copy of `/a`: revision 10, stamp 2, until 200 s.
    fn cached() -> Self {
        Self::leased().cache("/a", 2)
    }

    fn cache(mut self, text: &str, sequence: u64) -> Self {
        let effects = self.read(1000 + sequence, text);
        let read = self.only(&effects).0;
        self.answer_renewing(read, answer(Some(value(10)), Some(grant(sequence))));
        assert!(self.may_serve(text));
        self
    }

    fn step(&mut self, input: HolderInput) -> Vec<HolderEffect> {
        let effects = self.holder.step(input, self.now);
        self.holder.check(self.now).expect("the invariants hold");
        effects
    }

    fn read(&mut self, read: u64, text: &str) -> Vec<HolderEffect> {
        self.step(HolderInput::Read { read: ReadId(read), object: data(text), lease: LeaseRequest::Implicit })
    }

    fn write(&mut self, write: u64, change: Write) -> Vec<HolderEffect> {
        self.step(HolderInput::Write { write: WriteId(write), change })
    }

    fn respond(&mut self, send_id: SendId, response: Response) -> Vec<HolderEffect> {
        self.step(HolderInput::Answered { send_id, response })
    }

    fn answer(&mut self, send_id: SendId, answer: Answer) -> Vec<HolderEffect> {
        self.respond(
            send_id,
            Response { epoch: EPOCH, promises: vec![], lapses: vec![], clocks: None, result: Ok(answer) },
        )
    }

    /// Answers with a promise for the lease on the root.
    fn answer_renewing(&mut self, send_id: SendId, answer: Answer) -> Vec<HolderEffect> {
        let promises = vec![promise("/", 1)];
        self.respond(send_id, Response { epoch: EPOCH, promises, lapses: vec![], clocks: None, result: Ok(answer) })
    }

    fn refuse(&mut self, send_id: SendId, refusal: Refusal) -> Vec<HolderEffect> {
        self.respond(
            send_id,
            Response { epoch: EPOCH, promises: vec![], lapses: vec![], clocks: None, result: Err(refusal) },
        )
    }

    fn renew(&mut self, send_id: SendId, promise: Promise) -> Vec<HolderEffect> {
        let result = Ok(Answer::ReportReceived);
        self.respond(send_id, Response { epoch: EPOCH, promises: vec![promise], lapses: vec![], clocks: None, result })
    }

    fn recall(&mut self, recall: Recall) -> Vec<HolderEffect> {
        self.step(HolderInput::Recalled(recall))
    }

    fn timeout(&mut self, used: &[&str]) -> Vec<HolderEffect> {
        self.step(HolderInput::Timeout { used: used.iter().map(|text| path(text)).collect::<BTreeSet<_>>() })
    }

    fn may_serve(&self, text: &str) -> bool {
        self.holder.may_serve(&data(text), self.now)
    }

    /// The only request among the effects.
    fn only(&self, effects: &[HolderEffect]) -> (SendId, Request) {
        let mut requests = requests(effects);
        assert_eq!(requests.len(), 1, "{effects:?}");
        requests.remove(0)
    }
}

/// The read that comes along with a request for a lease.
fn first_read(text: &str, known: Option<u64>) -> Option<FirstRead> {
    let lease = known.map_or(LeaseRequest::Implicit, |_| LeaseRequest::Returning);
    Some(FirstRead { object: data(text), known: known.map(Revision), lease })
}

fn acquired(volume: &str, incarnation: u64, sequence: u64) -> Answer {
    let promise = promise(volume, incarnation);
    Answer::Acquired(AcquiredVolume { promise, stamp: stamp(sequence), revival: Revival::None, read: None })
}

fn served(reads: &[u64], text: &str, content: Content, valid_until: Option<Instant>) -> HolderEffect {
    HolderEffect::Serve {
        reads: reads.iter().map(|read| ReadId(*read)).collect(),
        object: data(text),
        content: Arc::new(content),
        applied: Revision(20),
        valid_until,
    }
}

fn served_cached(reads: &[u64], text: &str, sequence: u64, valid_until: Option<Instant>) -> HolderEffect {
    let reads = reads.iter().map(|read| ReadId(*read)).collect();
    HolderEffect::ServeCached { reads, object: data(text), stamp: stamp(sequence), valid_until }
}

fn installed(text: &str, revision: u64, validity: CopyValidity) -> HolderEffect {
    HolderEffect::Install { object: data(text), content: Arc::new(value(revision)), validity }
}
