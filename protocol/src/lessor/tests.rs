//! Each rule by itself: a state, one step, the exact effects.

mod mistakes;
mod volumes;
mod writes;

use bytes::Bytes;

use super::*;
use crate::{
    command::{Condition, Renewal, Write, WriteRefusal},
    id::{Generation, Incarnation, Sequence, Stamp},
    message::{Acquired, Body, Covering, Header, HeldPiece, Inspect, ReadAnswer, Revival},
    object::{Content, ObjectSet},
    volume::VolumeSettings,
};

const MILLI: Duration = Duration::from_millis(1);
const TERM: Duration = Duration::from_secs(10);

/// One replica that commits whatever its lessor proposes, when it is told to.
struct World {
    state: State,
    lessor: Lessor,
    now: Instant,
    index: u64,
    requests: u64,
    sequence: u64,
    registrations: BTreeMap<SessionId, u64>,
}

fn path(text: &str) -> Path {
    Path::parse(text).expect("a valid path")
}

fn data(text: &str) -> Object {
    Object::data(path(text))
}

fn put(text: &str, value: &'static [u8]) -> Write {
    Write::Put { path: path(text), value: Bytes::from_static(value), condition: Condition::Any }
}

fn config(attempt: u64) -> Config {
    Config {
        replica: 1,
        attempt,
        drift: DriftAllowance::DEFAULT,
        limits: Limits::default(),
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
        let lessor = Lessor::new(config(1), &state, now);
        Self { state, lessor, now, index: 0, requests: 0, sequence: 0, registrations: BTreeMap::new() }
    }

    /// Another leader takes over the state.
    fn fail_over(&mut self) {
        self.lessor = Lessor::new(config(self.lessor.config.attempt + 1), &self.state, self.now);
        self.commit();
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        let effects = self.lessor.step(input, &self.state, self.now);
        self.lessor.check(&self.state).expect("the invariants hold");
        effects
    }

    /// Commits everything that is proposed, and what follows from it.
    fn commit(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some(proposal) = self.lessor.take_proposal(self.now) {
            effects.extend(self.apply(&proposal));
        }
        effects
    }

    fn apply(&mut self, proposal: &Proposal) -> Vec<Effect> {
        self.index += 1;
        let outcomes = self.state.apply(self.index, proposal).outcomes;
        assert!(self.lessor.is_mine(proposal));
        self.step(Input::Committed { number: proposal.number, outcomes })
    }

    /// Lets time pass in steps that the clock does not clamp.
    fn pass(&mut self, span: Duration) -> Vec<Effect> {
        let end = self.now.after(span);
        let mut effects = Vec::new();
        while self.now < end {
            self.now = self.now.after(clock::STEP_EVERY).min(end);
            effects.extend(self.step(Input::Timeout));
            effects.extend(self.commit());
        }
        effects
    }

    fn request(&mut self, session: SessionId, body: Body) -> Vec<Effect> {
        self.sequence += 1;
        if body == Body::Register {
            *self.registrations.entry(session).or_default() += 1;
        }
        let header = Header {
            session,
            epoch: self.state.epoch(),
            registration: self.registration(session),
            sequence: Sequence(self.sequence),
            unanswered_from: Sequence(self.sequence),
            ..Header::default()
        };
        self.send(Request { header, body })
    }

    fn registration(&self, session: SessionId) -> u64 {
        self.registrations.get(&session).copied().unwrap_or_default()
    }

    fn send(&mut self, request: Request) -> Vec<Effect> {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.step(Input::Request { id, request })
    }

    /// A session that has registered.
    fn session(&mut self) -> SessionId {
        self.request(SessionId(0), Body::Open { name: "test".to_owned() });
        let answer = answer(&self.commit());
        let Answer::Opened { session, .. } = answer else { panic!("opened: {answer:?}") };
        self.request(session, Body::Register);
        session
    }

    fn acquire(&mut self, session: SessionId, valid_at: Option<LastValid>) -> Acquired {
        self.request(session, Body::Acquire { path: Path::root(), valid_at });
        let answer = answer(&self.commit());
        let Answer::Acquired(acquired) = answer else { panic!("acquired: {answer:?}") };
        acquired
    }

    fn read(&mut self, session: SessionId, object: Object) -> ReadAnswer {
        self.request(session, Body::Read { object, known: None });
        let answer = answer(&self.step(Input::Proven { round: self.lessor.round }));
        let Answer::Read(answer) = answer else { panic!("read: {answer:?}") };
        answer
    }

    /// A session with a lease on an object.
    fn holder(&mut self, object: &Object) -> (SessionId, Grant) {
        let session = self.session();
        self.acquire(session, None);
        let grant = self.read(session, object.clone()).grant.expect("nothing stands against it");
        (session, grant)
    }

    fn write(&mut self, session: SessionId, write: Write) -> Vec<Effect> {
        self.request(session, Body::Write { write, dropped: Vec::new(), seen: Stamp::default() })
    }

    fn renew(&mut self, session: SessionId, incarnation: Incarnation) -> Result<Promise, Lapse> {
        let header = Header {
            session,
            epoch: self.state.epoch(),
            registration: self.registration(session),
            renew: vec![Renew { volume: Path::root(), incarnation }],
            ..Header::default()
        };
        let effects = self.send(Request { header, body: Body::KeepAlive });
        let mut response = replies(&effects).pop().expect("answered at once");
        response.promises.pop().ok_or_else(|| response.lapses.pop().expect("a promise or a lapse"))
    }

    fn waits(&mut self, text: &str) -> Vec<crate::message::WaitInfo> {
        let answer = answer(&self.request(SessionId(0), Body::Inspect(Inspect::Waits { path: path(text) })));
        let Answer::Waits(waits) = answer else { panic!("waits: {answer:?}") };
        waits
    }
}

fn replies(effects: &[Effect]) -> Vec<Response> {
    let reply = |effect: &Effect| match effect {
        Effect::Reply { response, .. } => Some(response.clone()),
        Effect::Recall(_) | Effect::Prove { .. } => None,
    };
    effects.iter().filter_map(reply).collect()
}

fn result(effects: &[Effect]) -> Result<Answer, Refusal> {
    let replies = replies(effects);
    let [response] = replies.as_slice() else { panic!("one reply in {effects:?}") };
    response.result.clone()
}

fn answer(effects: &[Effect]) -> Answer {
    result(effects).expect("not refused")
}

fn recalls(effects: &[Effect]) -> Vec<Recall> {
    let recall = |effect: &Effect| match effect {
        Effect::Recall(recall) => Some(recall.clone()),
        Effect::Reply { .. } | Effect::Prove { .. } => None,
    };
    effects.iter().filter_map(recall).collect()
}

#[test]
fn nothing_is_answered_before_the_first_entry_of_the_epoch() {
    let mut world = World::before_the_epoch();
    let effects = world.request(SessionId(0), Body::Open { name: String::new() });
    assert_eq!(result(&effects), Err(Refusal::Retry));
}

#[test]
fn a_read_waits_for_a_round_that_begins_after_it() {
    let mut world = World::new();
    let session = world.session();
    let read = |object| Body::Read { object, known: None };
    assert_eq!(world.request(session, read(data("/a"))), [Effect::Prove { round: 2 }]);
    assert_eq!(world.request(session, read(data("/b"))), [], "the round under way may have missed a write");
    let effects = world.step(Input::Proven { round: 2 });
    assert_eq!(replies(&effects).len(), 1);
    assert_eq!(effects.last(), Some(&Effect::Prove { round: 3 }));
    assert_eq!(result(&world.step(Input::NotProven { round: 3 })), Err(Refusal::Retry));
}

#[test]
fn a_lease_needs_a_volume_lease() {
    let mut world = World::new();
    let session = world.session();
    let before = world.read(session, data("/a"));
    assert_eq!((before.grant, before.content), (None, Some(Content::Data(None))));
    let Acquired { promise, revival, .. } = world.acquire(session, None);
    assert_eq!((promise.span, promise.term, revival), (TERM, TERM, Revival::None));
    let grant = world.read(session, data("/a")).grant.expect("granted");
    assert_eq!(grant.incarnation, promise.incarnation);
}

#[test]
fn a_write_waits_for_consent_and_no_longer() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    let effects = world.write(writer, put("/a", b"1"));
    let [recall] = recalls(&effects).try_into().expect("one holder");
    let recall: Recall = recall;
    assert_eq!((recall.session, recall.number), (holder, 1));
    assert!(recall.sets.contains(&ObjectSet::One(data("/a"))) && recall.stamp > grant.stamp);
    assert_eq!(world.commit(), [], "nothing is proposed without the consent");
    assert_eq!(world.waits("/a")[0].holder, Some(holder));
    world.step(Input::Consent(Consent { session: holder, stamp: recall.stamp }));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
}

#[test]
fn a_consent_to_another_stamp_is_no_consent() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    for stamp in [grant.stamp, Stamp { epoch: Epoch(99), ..grant.stamp }] {
        world.step(Input::Consent(Consent { session: holder, stamp }));
        assert_eq!(world.commit(), []);
    }
}

#[test]
fn a_silent_holder_delays_a_write_by_its_volume_term_and_the_margin() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let writer = world.session();
    let start = world.now;
    world.write(writer, put("/a", b"1"));
    let margin = VolumeSettings::DEFAULT.skew_margin();
    let effects = world.pass(TERM + margin - MILLI);
    assert_eq!(replies(&effects), [], "its copy may be in use");
    let effects = world.pass(2 * clock::STEP_EVERY);
    assert!(matches!(answer(&effects), Answer::Written { .. }));
    assert!(world.now.since(start) <= TERM + margin + 2 * clock::STEP_EVERY);
    assert_eq!(world.state.leases_of(holder).count(), 1, "only the session itself is left");
}

#[test]
fn renewing_does_not_help_a_holder_that_owes_a_consent() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    world.pass(TERM / 2);
    let promise = world.renew(holder, grant.incarnation).expect("its lease holds still");
    assert!(promise.span <= TERM / 2, "{:?}", promise.span);
    let effects = world.pass(TERM / 2 + VolumeSettings::DEFAULT.skew_margin() + 2 * clock::STEP_EVERY);
    assert!(replies(&effects).iter().any(|reply| matches!(reply.result, Ok(Answer::Written { .. }))));
    assert!(world.renew(holder, grant.incarnation).is_err(), "expired, never a new lease");
}

#[test]
fn no_lease_is_granted_while_a_write_is_under_way() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let other = world.session();
    world.acquire(other, None);
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    let read = world.read(other, data("/a"));
    assert_eq!((read.content, read.grant), (Some(Content::Data(None)), None), "the old value, and no lease");
    assert!(world.read(other, data("/b")).grant.is_some());
}

#[test]
fn writes_of_one_object_enter_the_log_in_order_without_waiting_for_each_others_commit() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    world.write(writer, put("/a", b"2"));
    let proposal = world.lessor.take_proposal(world.now).expect("both are ready");
    let values = proposal.commands.iter().map(|command| match command {
        Command::Write { write: Write::Put { value, .. }, .. } => value.clone(),
        other => panic!("a put: {other:?}"),
    });
    assert_eq!(values.collect::<Vec<_>>(), [Bytes::from_static(b"1"), Bytes::from_static(b"2")]);
    assert_eq!(replies(&world.apply(&proposal)).len(), 2);
}

#[test]
fn the_writer_is_exempt_only_by_its_stamp() {
    let mut world = World::new();
    let (writer, grant) = world.holder(&data("/a"));
    let dropped = vec![ObjectSet::One(data("/a"))];
    let seen = Stamp { sequence: grant.stamp.sequence - 1, ..grant.stamp };
    let body = |seen| Body::Write { write: put("/a", b"1"), dropped: dropped.clone(), seen };
    let effects = world.request(writer, body(seen));
    let [recall] = recalls(&effects).try_into().expect("it was granted a lease that it had not seen");
    let recall: Recall = recall;
    world.step(Input::Consent(Consent { session: writer, stamp: recall.stamp }));
    let Answer::Written { grant: Some(grant), .. } = answer(&world.commit()) else { panic!("with a lease") };
    let effects = world.request(writer, body(grant.stamp));
    assert_eq!(recalls(&effects), []);
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
}

#[test]
fn a_repeated_write_takes_effect_once_and_its_answer_carries_no_lease() {
    let mut world = World::new();
    let (writer, _) = world.holder(&data("/a"));
    let body = Body::Write {
        write: put("/a", b"1"),
        dropped: vec![ObjectSet::One(data("/a"))],
        seen: Stamp { epoch: world.state.epoch(), sequence: u64::MAX },
    };
    let effects = world.request(writer, body.clone());
    assert_eq!(recalls(&effects), []);
    let Answer::Written { written, grant: Some(_), .. } = answer(&world.commit()) else { panic!("with a lease") };
    world.sequence -= 1;
    let Answer::Written { written: again, grant: None, .. } = answer(&world.request(writer, body)) else {
        panic!("answered at once, without a lease")
    };
    assert_eq!((again, world.lessor.has_proposal()), (written, false));
}

#[test]
fn after_a_failover_every_session_with_a_volume_lease_is_asked_until_it_has_told_what_it_holds() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    world.fail_over();
    world.request(writer, Body::Register);
    let effects = world.write(writer, put("/b", b"1"));
    assert_eq!(recalls(&effects), [], "it has not registered: there is nowhere to send it");
    let effects = world.request(holder, Body::Register);
    let [covering] = match answer(&effects[..1]) {
        Answer::Registered { coverings } => coverings.try_into().expect("one volume"),
        other => panic!("registered: {other:?}"),
    };
    let covering: Covering = covering;
    assert_eq!(recalls(&effects).len(), 1, "it may hold /b");
    let stamp = recalls(&effects)[0].stamp;
    world.step(Input::Consent(Consent { session: holder, stamp }));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    let piece = HeldPiece {
        volume: Path::root(),
        incarnation: grant.incarnation,
        covering: covering.number,
        piece: 0,
        pieces: 1,
        objects: vec![data("/a")],
    };
    let old = HeldPiece { covering: CoveringNumber(covering.number.0 + 1), ..piece.clone() };
    world.request(holder, Body::Held(old));
    assert_eq!(recalls(&world.write(writer, put("/c", b"1"))).len(), 1, "another covering's list ends nothing");
    world.request(holder, Body::Held(piece));
    assert_eq!(recalls(&world.write(writer, put("/d", b"1"))), []);
    assert_eq!(recalls(&world.write(writer, put("/a", b"1"))).len(), 1);
}

#[test]
fn what_was_sent_before_the_latest_registration_has_no_effect() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let header = Header {
        session: holder,
        epoch: world.state.epoch(),
        registration: world.registration(holder),
        ..Header::default()
    };
    world.request(holder, Body::Register);
    let straggler = Body::Acquire { path: Path::root(), valid_at: None };
    let effects = world.send(Request { header: header.clone(), body: straggler });
    assert!(matches!(result(&effects), Err(Refusal::NotRegistered { .. })));
    assert!(!world.lessor.has_proposal());
    let effects = world.send(Request { header, body: Body::Register });
    assert!(matches!(result(&effects), Err(Refusal::NotRegistered { .. })), "an old registration neither");
}

#[test]
fn a_list_counts_for_the_registration_that_asked_for_it() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.fail_over();
    let covering = |world: &mut World| match answer(&world.request(holder, Body::Register)) {
        Answer::Registered { coverings } => coverings[0].number,
        other => panic!("registered: {other:?}"),
    };
    let piece = |covering, piece, pieces| {
        Body::Held(HeldPiece {
            volume: Path::root(),
            incarnation: grant.incarnation,
            covering,
            piece,
            pieces,
            objects: Vec::new(),
        })
    };
    let first = covering(&mut world);
    world.request(holder, piece(first, 0, 2));
    let second = covering(&mut world);
    assert_ne!(first, second);
    world.request(holder, piece(second, 1, 2));
    let writer = world.session();
    assert_eq!(recalls(&world.write(writer, put("/b", b"1"))).len(), 1, "piece 0 of the second list is missing");
}

#[test]
fn a_session_whose_end_was_proposed_lives_on_if_it_acquires_a_lease_first() {
    let mut world = World::new();
    let session = world.session();
    while !world.lessor.outbox.iter().any(|(command, _)| matches!(command, Command::Expire { .. })) {
        world.commit();
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(Input::Timeout);
    }
    let is_expiry = |(command, _): &(Command, Reason)| matches!(command, Command::Expire { .. });
    let place = world.lessor.outbox.iter().position(is_expiry).expect("the end of the session");
    let expiry = world.lessor.outbox.remove(place);
    world.acquire(session, None);
    world.lessor.outbox.push(expiry);
    world.commit();
    assert!(world.state.session(session).is_some() && !world.lessor.has_proposal());
}

#[test]
fn a_lease_that_was_too_long_in_coming_promises_nothing_and_ends_at_its_horizon() {
    let mut world = World::new();
    let session = world.session();
    world.request(session, Body::Acquire { path: Path::root(), valid_at: None });
    let proposal = world.lessor.take_proposal(world.now).expect("the lease");
    // For two terms nothing is committed, and the clock goes on.
    let later = world.now.after(TERM * 2);
    while world.now < later {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(Input::Timeout);
    }
    // That its end is not beyond its horizon is looked at after each step.
    let answer = answer(&world.apply(&proposal));
    let Answer::Acquired(Acquired { promise, .. }) = answer else { panic!("acquired: {answer:?}") };
    assert_eq!(promise.span, Duration::ZERO);
}

#[test]
fn a_new_leader_starts_every_lease_at_its_horizon() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let horizon = world.state.lease(&LeaseKey::Volume(holder, Path::root())).expect("leased").horizon;
    world.fail_over();
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    let margin = VolumeSettings::DEFAULT.skew_margin();
    let left = horizon.after(margin).since(world.lessor.clock.ending());
    let effects = world.pass(left - MILLI);
    assert_eq!(replies(&effects), []);
    let effects = world.pass(2 * clock::STEP_EVERY);
    assert!(matches!(answer(&effects), Answer::Written { .. }));
}

#[test]
fn a_returning_session_is_told_what_changed_and_what_is_about_to() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    let revision = world.state.revision();
    world.write(writer, put("/changed", b"1"));
    world.commit();
    world.pass(2 * TERM);
    let (second, _) = world.holder(&data("/pending"));
    world.write(writer, put("/pending", b"1"));
    assert_eq!(world.waits("/pending")[0].holder, Some(second));
    let valid_at = LastValid { incarnation: grant.incarnation, generation: Generation(grant.generation.0), revision };
    let Acquired { revival, .. } = world.acquire(holder, Some(valid_at));
    let Revival::AllBut { changed, .. } = revival else { panic!("the history reaches back: {revival:?}") };
    for object in [data("/changed"), data("/pending")] {
        assert!(changed.contains(&ObjectSet::One(object.clone())), "{object} in {changed:?}");
    }
    assert_eq!(recalls(&world.write(writer, put("/a", b"1"))).len(), 1, "it is covering: it may have revived /a");
}

#[test]
fn a_promise_never_reaches_beyond_the_horizon_by_the_clock_that_is_not_slow() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let before = world.renew(holder, grant.incarnation).expect("live");
    assert!(before.span > TERM - TERM / 20, "{:?}", before.span);
    // The leader is paused: the ending clock stands still, the promising one does not.
    world.now = world.now.after(TERM / 2);
    let after = world.renew(holder, grant.incarnation).expect("nobody lost anything to the pause");
    assert!(after.span <= TERM / 2 + TERM / 5, "{:?}", after.span);
    assert!(world.lessor.clock.ending() < crate::time::ClusterTime::ZERO.after(TERM / 4));
}

#[test]
fn a_lease_whose_end_is_proposed_is_not_renewed_even_if_its_horizon_moved() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    while !world.lessor.outbox.iter().any(|(command, _)| matches!(command, Command::Expire { .. })) {
        world.commit();
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(Input::Timeout);
    }
    assert!(world.renew(holder, grant.incarnation).is_err());
    world.commit();
    assert_eq!(world.state.lease(&LeaseKey::Volume(holder, Path::root())), None);
}

impl World {
    /// A holder whose lease's end is proposed together with a tick that moves its horizon, and so puts the end off.
    fn end_put_off(&mut self) -> (SessionId, Grant, LeaseKey) {
        let (holder, grant) = self.holder(&data("/a"));
        while !self.lessor.outbox.iter().any(|(command, _)| matches!(command, Command::Expire { .. })) {
            self.commit();
            self.now = self.now.after(clock::STEP_EVERY);
            self.step(Input::Timeout);
        }
        let lease = LeaseKey::Volume(holder, Path::root());
        let renewal = Renewal { lease: lease.clone(), incarnation: grant.incarnation, at: self.lessor.clock.ending() };
        self.lessor.outbox.insert(0, (Command::Tick { renewals: vec![renewal] }, Reason::Tick));
        (holder, grant, lease)
    }
}

/// The end of the old lease, put off because its horizon moved, and the new lease can share an entry.
#[test]
fn a_new_lease_is_not_ended_in_place_of_the_one_that_it_replaces() {
    let mut world = World::new();
    let (holder, _, lease) = world.end_put_off();
    let acquired = world.acquire(holder, None);
    world.pass(TERM / 2);
    let left = world.state.lease(&lease).map(|lease| lease.incarnation);
    assert_eq!(left, Some(acquired.promise.incarnation));
}

#[test]
fn what_a_deposed_leader_had_proposed_is_unknown_and_the_rest_is_to_be_sent_again() {
    let mut world = World::new();
    let writer = world.session();
    for node in ["/held", "/free"] {
        world.write(writer, put(node, b"0"));
        world.commit();
    }
    let (_, _) = world.holder(&data("/held"));
    world.write(writer, put("/held", b"1"));
    world.write(writer, put("/free", b"1"));
    let effects = world.lessor.clone().step_down(&world.state, world.now);
    let results: Vec<_> = replies(&effects).into_iter().map(|response| response.result).collect();
    assert_eq!(results, [Err(Refusal::Retry), Err(Refusal::Unknown)]);
}

#[test]
fn a_write_that_its_consents_no_longer_cover_gathers_the_others_too() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    world.commit();
    let (holder, _) = world.holder(&Object::children(Path::root()));
    let consent = |world: &mut World, effects: &[Effect]| {
        for recall in recalls(effects) {
            world.step(Input::Consent(Consent { session: holder, stamp: recall.stamp }));
        }
    };
    let delete = Write::Delete { path: path("/a"), recursive: false, condition: Condition::Any };
    let mut effects = world.write(writer, delete);
    // By now it changes a value; when its turn comes it makes a node, and so changes the root's children.
    effects.extend(world.write(writer, put("/a", b"2")));
    consent(&mut world, &effects);
    let effects = world.commit();
    consent(&mut world, &effects);
    world.commit();
    let children = world.state.children(&Path::root()).expect("the root is there");
    assert_eq!(children.names, ["a"]);
    assert_eq!(world.lessor.writes.len(), 0);
}

#[test]
fn bad_input_changes_nothing_and_says_what_was_expected() {
    let mut world = World::new();
    let writer = world.session();
    let big = Write::Put { path: path("/a"), value: vec![0; (1 << 20) + 1].into(), condition: Condition::Any };
    let refusal = result(&world.write(writer, big)).expect_err("too long");
    assert_eq!(refusal.to_string(), "the value has 1048577 bytes: expected at most 1048576");
    let gone = SessionId(999);
    let effects = world.request(gone, Body::KeepAlive);
    assert_eq!(result(&effects), Err(Refusal::SessionGone { session: gone }));
    assert!(!world.lessor.has_proposal());
}

#[test]
fn a_refused_write_recalls_nobody() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    let write = Write::Delete { path: path("/a"), recursive: false, condition: Condition::Any };
    assert_eq!(recalls(&world.write(writer, write)), []);
    assert_eq!(result(&world.commit()), Err(Refusal::Write(WriteRefusal::NotFound { path: path("/a") })));
}

#[test]
fn a_renewal_costs_no_entry_of_its_own() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    for _ in 0..100 {
        world.renew(holder, grant.incarnation).expect("live");
    }
    assert!(!world.lessor.has_proposal());
    world.pass(TERM);
    let entries = world.index;
    world.pass(TERM);
    assert!(world.index - entries <= 12, "a tick each tenth of a term, and the end of the lease");
}

#[test]
fn leader_changes_prolong_an_abandoned_lease_by_two_ticks_at_most() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let start = world.now;
    let key = LeaseKey::Volume(holder, Path::root());
    while world.state.lease(&key).is_some() {
        world.pass(TERM / 2);
        world.fail_over();
        assert!(world.now.since(start) < 3 * TERM, "it ends");
    }
    // Looked at every half term, so it is seen up to that much late.
    assert!(world.now.since(start) <= TERM + TERM / 5 + VolumeSettings::DEFAULT.skew_margin() + TERM / 2);
}
