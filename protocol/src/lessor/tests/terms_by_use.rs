//! Object terms that follow the use of their volume.

use super::*;
use crate::{
    lease_policy::{GrantPolicy, LeaseOffer, ObjectTerm, OnWrite},
    message::{CachedReads, ReadGaps},
};

const BY_USE: ObjectTerm = ObjectTerm::ByUse { least: TERM, most: Duration::from_secs(24 * 3600) };

fn settings(on_write: OnWrite) -> VolumeSettings {
    let term = match on_write {
        OnWrite::Recall | OnWrite::Update => BY_USE,
        OnWrite::Wait => ObjectTerm::ByUse { least: TERM / 2, most: TERM },
    };
    VolumeSettings::DEFAULT.with_policy(term, on_write, GrantPolicy::All).expect("valid")
}

impl World {
    fn present_term(&self) -> ObjectTerm {
        let root = NodePath::root();
        let settings = self.state.volume(&root).expect("the root").settings;
        self.lessor.terms_by_use.present(&root, &settings).object_term()
    }

    fn read_known(&mut self, session: SessionId, object: Object) -> ReadAnswer {
        let known = self.state.modify_revision(&object);
        self.request(session, Body::Read { object, known, lease: LeaseRequest::Implicit });
        let answer = answer(&self.step(LessorInput::Proven { round: self.lessor.round }));
        let Answer::Read(answer) = answer else { panic!("read: {answer:?}") };
        answer
    }

    fn report_reads(&mut self, session: SessionId, reads: u64) {
        let header = RequestHeader {
            session,
            epoch: self.state.epoch(),
            registration: self.registration(session),
            cached_reads: vec![CachedReads { volume: NodePath::root(), reads, gaps: ReadGaps::default() }],
            ..RequestHeader::default()
        };
        self.send(Request { header, body: Body::Heartbeat(Default::default()) });
    }

    /// The holder keeps its volume lease for a while, and reports reads from memory.
    fn use_for(&mut self, holder: SessionId, incarnation: Incarnation, span: Duration, reads: u64) {
        let end = self.now.after(span);
        while self.now < end {
            self.pass(TERM / 4);
            self.renew(holder, incarnation).expect("live");
        }
        self.report_reads(holder, reads);
    }

    /// The holder consents to each recall of the write, which takes effect.
    fn write_and_consent(&mut self, writer: SessionId, write: Write) {
        let effects = self.write(writer, write);
        for Recall { session, stamp, .. } in recalls(&effects) {
            self.step(LessorInput::Consent(Consent { session, stamp }));
        }
        self.commit();
    }

    /// A world whose leases do not pay: each write finds a lease that nobody has used.
    fn without_leases(settings: VolumeSettings) -> (Self, SessionId, SessionId, Incarnation) {
        let mut world = Self::with_settings(settings);
        let writer = world.session();
        let (holder, grant) = world.holder(&data("/a"));
        for _ in 0..40 {
            world.use_for(holder, grant.incarnation, TERM / 4, 0);
            world.read(holder, data("/a"));
            world.write_and_consent(writer, put("/a", b"1"));
            if world.present_term() == ObjectTerm::Zero {
                return (world, holder, writer, grant.incarnation);
            }
        }
        panic!("40 unused leases were recalled: {:?}", world.present_term())
    }
}

/// Most reads validate an unchanged copy, so a longer term saves messages.
#[test]
fn term_by_use_grows_while_it_saves_few_reads() {
    let mut world = World::with_settings(settings(OnWrite::Recall));
    let writer = world.session();
    world.write_and_consent(writer, put("/a", b"1"));
    let (holder, grant) = world.holder(&data("/a"));
    assert_eq!(grant.span, TERM, "a leader begins with the shortest term");
    world.use_for(holder, grant.incarnation, TERM, 80);
    assert_eq!(world.present_term(), ObjectTerm::Fixed(TERM), "no read asked");
    for _ in 0..30 {
        world.read_known(holder, data("/a"));
    }
    world.use_for(holder, grant.incarnation, TERM, 0);
    assert_eq!(world.present_term(), ObjectTerm::Fixed(4 * TERM));
    assert_eq!(world.read_known(holder, data("/a")).grant.map(|grant| grant.span), Some(4 * TERM));
    for _ in 0..5 {
        world.use_for(holder, grant.incarnation, 2 * TERM, 80);
    }
    assert_eq!(world.present_term(), ObjectTerm::Fixed(TERM), "hardly any read asks, also with a shorter term");
}

#[test]
fn leases_by_use_end_under_writes_and_return_with_reads() {
    let (mut world, holder, writer, incarnation) = World::without_leases(settings(OnWrite::Recall));
    let answer = world.read(holder, data("/a"));
    assert_eq!((answer.grant, answer.offer), (None, LeaseOffer::Nobody));
    let effects = world.write(writer, put("/a", b"2"));
    assert_eq!(recalls(&effects), [], "no write waits");
    world.commit();
    // Two reads for each write do not pay: one of them would fetch.
    for _ in 0..20 {
        world.use_for(holder, incarnation, TERM / 2, 0);
        (0..2).for_each(|_| drop(world.read(holder, data("/a"))));
        assert_eq!(recalls(&world.write(writer, put("/a", b"3"))), []);
        world.commit();
    }
    assert_eq!(world.present_term(), ObjectTerm::Zero);
    for _ in 0..20 {
        world.use_for(holder, incarnation, TERM / 2, 0);
        (0..4).for_each(|_| drop(world.read(holder, data("/a"))));
    }
    assert_eq!(world.present_term(), ObjectTerm::Fixed(TERM));
    assert!(world.read(holder, data("/a")).grant.is_some());
}

/// A write that sends no recall waits for the leases instead.
#[test]
fn leases_by_use_that_only_delay_writes_end_too() {
    let settings = settings(OnWrite::Wait);
    let mut world = World::with_settings(settings);
    let writer = world.session();
    let (holder, grant) = world.holder(&data("/a"));
    let mut waited = Vec::new();
    for _ in 0..40 {
        world.use_for(holder, grant.incarnation, TERM / 4, 0);
        world.read(holder, data("/a"));
        let start = world.now;
        let mut effects = world.write(writer, put("/a", b"1"));
        assert_eq!(recalls(&effects), []);
        effects.extend(world.commit());
        while replies(&effects).is_empty() {
            effects = world.pass(MILLI * 50);
            assert!(world.now.since(start) < 2 * TERM, "it waits for ever");
        }
        waited.push(world.now.since(start));
        world.renew(holder, grant.incarnation).expect("live");
    }
    assert!(waited[0] >= TERM / 2, "{waited:?}");
    assert_eq!((world.present_term(), waited.last()), (ObjectTerm::Zero, Some(&Duration::ZERO)));
}

/// The term is the leader's own. A new one, and new settings, begin anew with the shortest.
#[test]
fn new_leader_and_new_settings_begin_with_the_shortest_term() {
    let (mut world, ..) = World::without_leases(settings(OnWrite::Recall));
    world.fail_over();
    assert_eq!(world.present_term(), ObjectTerm::Fixed(TERM));
    let (mut world, holder, writer, _) = World::without_leases(settings(OnWrite::Recall));
    let least = ObjectTerm::ByUse { least: TERM * 2, most: TERM * 2 };
    let longer = settings(OnWrite::Recall).with_policy(least, OnWrite::Recall, GrantPolicy::All).expect("valid");
    world.write_and_consent(writer, Write::SetVolume { path: NodePath::root(), settings: longer });
    assert_eq!(world.present_term(), ObjectTerm::Fixed(TERM * 2));
    world.acquire(holder, None);
    assert_eq!(world.read(holder, data("/a")).grant.map(|grant| grant.span), Some(TERM * 2));
    let answer = answer(&world.request(SessionId(0), Body::Inspect(Inspect::Volumes { path: NodePath::root() })));
    let Answer::Volumes(volumes) = answer else { panic!("volumes: {answer:?}") };
    assert_eq!(volumes[0].present_object_term, ObjectTerm::Fixed(TERM * 2));
}

/// A client may report any number of reads.
#[test]
fn one_report_of_reads_from_memory_does_not_outweigh_all_writes() {
    let mut world = World::with_settings(settings(OnWrite::Recall));
    let (holder, grant) = world.holder(&data("/a"));
    world.report_reads(holder, u64::MAX);
    let writer = world.session();
    for _ in 0..100 {
        world.use_for(holder, grant.incarnation, TERM, 0);
        world.read(holder, data("/a"));
        world.write_and_consent(writer, put("/a", b"1"));
    }
    assert_eq!(world.present_term(), ObjectTerm::Zero, "the counts are recent");
}
