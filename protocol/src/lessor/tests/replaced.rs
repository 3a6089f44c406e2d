//! A name gets another lease or volume while a request waits. The request means the one that it
//! found (S7b).

use super::super::writes::{ClientWrite, PendingWrite, PendingWriteId, PendingWrites, WriteKind};
use super::*;
use crate::message::KeepAliveResult;
use crate::{
    command::{Attach, Written},
    id::LeaseId,
    lease_name::LeaseName,
    transaction::{Operation, Transaction},
};

const ONE: LeaseId = LeaseId(9);
const TTL: Duration = Duration::from_secs(4);
const LONG: Duration = Duration::from_secs(60);
const GONE: WriteRefusal = WriteRefusal::LeaseNotFound { id: ONE };
const REVOKE: Write = Write::RevokeLease { id: ONE, incarnation: None };

fn attached(text: &str, attach: Attach) -> Write {
    Write::Put { path: path(text), value: Bytes::from_static(b"v"), condition: Condition::Any, attach }
}

fn grant(ttl: Duration) -> Write {
    Write::GrantLease { id: Some(ONE), name: None, ttl }
}

fn volume(text: &str) -> Write {
    Write::CreateVolume { path: path(text), settings: VolumeSettings::DEFAULT }
}

fn refusals(effects: &[LessorEffect]) -> Vec<Refusal> {
    replies(effects).into_iter().filter_map(|response| response.result.err()).collect()
}

impl World {
    fn done(&mut self, session: SessionId, write: Write) -> Written {
        self.write(session, write);
        match answer(&self.commit()) {
            Answer::Written { written, .. } => written,
            other => panic!("written: {other:?}"),
        }
    }

    fn there(&self, text: &str) -> bool {
        self.state.node(&path(text)).is_some()
    }
}

#[test]
fn revocation_that_waits_spares_the_lease_granted_anew() {
    let mut world = World::new();
    let (writer, revoker) = (world.session(), world.session());
    world.done(writer, grant(TTL));
    world.done(writer, attached("/a", Attach::Lease(ONE)));
    world.done(writer, put("/list", b""));
    world.holder(&data("/a"));
    assert_eq!(replies(&world.write(revoker, REVOKE)), [], "the write waits for the holder");
    world.pass(TTL + Duration::from_secs(1));
    assert!(world.state.lease(&AnyLease::KeyLease(ONE)).is_none(), "the lease has expired");
    world.done(writer, grant(LONG));
    world.done(writer, attached("/list/b", Attach::Lease(ONE)));
    world.holder(&data("/list/b"));
    let effects = world.pass(TERM * 2);
    assert_eq!(refusals(&effects), [Refusal::Write(GONE)]);
    assert!(world.there("/list/b") && !world.there("/a"), "only nodes of the first lease are removed");
}

fn name() -> LeaseName {
    LeaseName::parse("server1Lease").expect("a name")
}

fn grant_named(ttl: Duration) -> Write {
    Write::GrantLease { id: None, name: Some(name()), ttl }
}

#[test]
fn put_by_name_that_waits_spares_the_lease_granted_anew() {
    let mut world = World::new();
    let (first, second) = (world.session(), world.session());
    world.done(first, grant_named(TTL));
    world.done(first, put("/x", b"old"));
    world.holder(&data("/x"));
    let write = attached("/x", Attach::LeaseNamed(name()));
    assert_eq!(replies(&world.write(second, write.clone())), [], "the put waits for the holder");
    world.pass(TTL + Duration::from_secs(1));
    let renewed = world.done(first, grant_named(LONG)).lease.expect("the lease has expired");
    let effects = world.pass(TERM * 2);
    assert_eq!(refusals(&effects), [Refusal::Write(WriteRefusal::LeaseNameNotFound { name: name() })]);
    let node = world.state.node(&path("/x")).expect("it exists");
    assert_eq!((node.value.as_ref(), &node.attachment), (&b"old"[..], &None), "the put changed nothing");
    world.write(second, write);
    world.pass(TERM);
    let owner = world.state.node(&path("/x")).and_then(|node| node.attachment.as_deref());
    assert_eq!(owner.map(|to| to.incarnation), Some(renewed.incarnation), "a new request means the new lease");
}

/// The revocation, the second grant and the put are in one entry of the log.
#[test]
fn put_by_name_behind_revocation_spares_lease_granted_anew() {
    let mut world = World::new();
    let (first, second) = (world.session(), world.session());
    world.done(first, grant_named(LONG));
    let put = || Operation::Put { path: path("/y"), value: Bytes::new(), attach: Attach::LeaseNamed(name()) };
    world.write(first, Write::RevokeLeaseNamed { name: name() });
    world.write(first, grant_named(LONG));
    world.write(second, attached("/x", Attach::LeaseNamed(name())));
    world.write(second, Write::Transaction(Transaction::new().then(put())));
    world.write(first, Write::RevokeLeaseNamed { name: name() });
    let refusals = refusals(&world.commit());
    let none = || WriteRefusal::LeaseNameNotFound { name: name() };
    assert!(
        matches!(&refusals[..], [
            Refusal::Write(first),
            Refusal::Write(WriteRefusal::Operation { refusal, .. }),
            Refusal::Write(last)
        ] if [first, last, refusal] == [&none(), &none(), &none()]),
        "{refusals:?}"
    );
    assert!(world.state.lease_named(&name()).is_some() && !world.there("/x") && !world.there("/y"));
}

#[test]
fn revocation_by_name_that_waits_spares_the_lease_granted_anew() {
    let mut world = World::new();
    let (writer, revoker) = (world.session(), world.session());
    let revoke = || Write::RevokeLeaseNamed { name: name() };
    world.done(writer, grant_named(TTL));
    world.done(writer, attached("/a", Attach::LeaseNamed(name())));
    world.holder(&data("/a"));
    assert_eq!(replies(&world.write(revoker, revoke())), [], "the write waits for the holder");
    world.pass(TTL + Duration::from_secs(1));
    let key = AnyLease::KeyLease(world.done(writer, grant_named(LONG)).lease.expect("the lease has expired").id);
    let effects = world.pass(TERM * 2);
    assert_eq!(refusals(&effects), [Refusal::Write(WriteRefusal::LeaseNameNotFound { name: name() })]);
    assert!(world.state.lease(&key).is_some() && world.lessor.leases.get(&key).is_some(), "it lives");
    world.done(revoker, revoke());
    assert!(world.state.lease(&key).is_none() && world.lessor.leases.get(&key).is_none(), "it is forgotten");
}

#[test]
fn put_by_name_of_lease_with_proposed_end_is_refused() {
    let mut world = World::new();
    let session = world.session();
    world.done(session, grant_named(TTL));
    let key = AnyLease::KeyLease(world.state.lease_named(&name()).expect("granted"));
    while !world.lessor.leases.get(&key).expect("it lives").is_end_proposed {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    let refused = world.write(session, attached("/x", Attach::LeaseNamed(name())));
    assert_eq!(refusals(&refused), [Refusal::Write(WriteRefusal::LeaseNameNotFound { name: name() })]);
}

#[test]
fn pending_requests_intend_leases_of_their_arrival() {
    let mut world = World::new();
    let (first, second) = (world.session(), world.session());
    let both =
        Transaction::new().then(Operation::Put { path: path("/y"), value: Bytes::new(), attach: Attach::Lease(ONE) });
    world.acquire(second, None);
    world.done(first, grant(TTL));
    world.write(first, REVOKE);
    world.write(first, grant(TTL));
    world.write(second, attached("/x", Attach::Lease(ONE)));
    world.write(second, Write::Transaction(both));
    world.write(first, REVOKE);
    let refusals = refusals(&world.commit());
    assert!(
        matches!(
            refusals[..],
            [Refusal::Write(GONE), Refusal::Write(WriteRefusal::Operation { .. }), Refusal::Write(GONE)]
        ),
        "{refusals:?}"
    );
    assert!(world.state.lease(&AnyLease::KeyLease(ONE)).is_some() && !world.there("/x") && !world.there("/y"));
}

#[test]
fn request_repeated_to_next_leader_intends_present_leases() {
    let mut world = World::new();
    let (session, other) = (world.session(), world.session());
    world.done(session, grant(TTL));
    let write = attached("/x", Attach::Lease(ONE));
    world.write(session, write.clone());
    let number = world.sequence;
    world.lessor.take_proposal(world.now).expect("the put, which is lost with its leader");
    world.fail_over();
    world.request(session, Body::Register);
    world.request(other, Body::Register);
    world.done(other, REVOKE);
    world.done(other, grant(TTL));
    sending(&mut world, session, number, write);
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }), "the put had no outcome, and arrives again");
    assert!(world.there("/x"));
}

/// Two entries are in flight at any time, each with a put that attaches a node.
#[test]
fn revocation_passes_a_stream_of_attachments() {
    for attach in [Attach::Lease(ONE), Attach::Unchanged] {
        let mut world = World::new();
        let (first, second) = (world.session(), world.session());
        world.done(first, grant(LONG));
        world.done(second, attached("/x", Attach::Lease(ONE)));
        world.write(second, attached("/x", attach.clone()));
        let mut on_its_way = world.lessor.take_proposal(world.now).expect("a put");
        world.write(first, REVOKE);
        let mut entries = 0;
        while world.state.lease(&AnyLease::KeyLease(ONE)).is_some() {
            entries += 1;
            assert!(entries < 5, "{attach:?}: the revocation waits for one attachment after the other");
            world.write(second, attached("/x", attach.clone()));
            world.write(second, attached(&format!("/new-{entries}"), attach.clone()));
            let next = world.lessor.take_proposal(world.now);
            world.apply(&on_its_way);
            on_its_way = next.or_else(|| world.lessor.take_proposal(world.now)).expect("the revocation, or a put");
        }
    }
}

/// Each put attaches another node that exists already. So the queue of their list keeps nothing in
/// order.
#[test]
fn revocation_is_uncovered_twice_by_a_stream_at_most() {
    let mut world = World::new();
    let (first, second) = (world.session(), world.session());
    world.done(first, grant(LONG));
    let node = |number: usize| format!("/n{number}");
    for number in 0..12 {
        world.done(second, Write::put(path(&node(number)), Bytes::new()));
    }
    world.write(second, attached(&node(0), Attach::Lease(ONE)));
    let mut on_its_way = world.lessor.take_proposal(world.now);
    world.write(first, REVOKE);
    let mut uncovered = 0;
    for number in 1..12 {
        world.write(second, attached(&node(number), Attach::Lease(ONE)));
        let next = world.lessor.take_proposal(world.now);
        let Some(proposal) = on_its_way.take() else { break };
        world.index += 1;
        let applied = world.state.apply(world.index, &proposal);
        uncovered += applied.outcomes.iter().filter(|outcome| **outcome == Outcome::MissingConsents).count();
        world.step(LessorInput::committed(proposal.number, applied));
        on_its_way = next.or_else(|| world.lessor.take_proposal(world.now));
    }
    let is_there = world.state.lease(&AnyLease::KeyLease(ONE)).is_some();
    assert_eq!((uncovered, is_there), (2, false), "by what was before it, and by what came while it was on its way");
}

/// The revocation is behind an attachment that waits for a consent, and ahead of a later one.
#[test]
fn revocation_is_uncovered_by_no_attachment_that_waits() {
    let mut world = World::new();
    let (session, other) = (world.session(), world.session());
    world.done(session, grant(LONG));
    world.done(session, put("/a", b"0"));
    let (holder, _) = world.holder(&data("/a"));
    let recall = recalls(&world.write(session, attached("/a", Attach::Lease(ONE)))).remove(0);
    world.write(session, REVOKE);
    world.write(other, attached("/b", Attach::Lease(ONE)));
    assert_eq!(world.lessor.take_proposal(world.now), None, "no write may overtake the first");
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    let mut uncovered = 0;
    while let Some(proposal) = world.lessor.take_proposal(world.now) {
        world.index += 1;
        let applied = world.state.apply(world.index, &proposal);
        uncovered += applied.outcomes.iter().filter(|outcome| **outcome == Outcome::MissingConsents).count();
        assert!(uncovered <= 1, "once for what it followed into the log, got {uncovered}");
        world.step(LessorInput::committed(proposal.number, applied));
    }
    assert!(world.state.lease(&AnyLease::KeyLease(ONE)).is_none() && !world.there("/a") && !world.there("/b"));
}

#[test]
fn removal_of_a_volume_is_answered_under_registrations() {
    let mut world = World::new();
    let (first, second) = (world.session(), world.session());
    world.done(first, volume("/v"));
    world.request(second, Body::Acquire { path: path("/v"), last_valid: None, read: None });
    world.commit();
    world.write(second, attached("/v/0", Attach::Session));
    let mut on_its_way = world.lessor.take_proposal(world.now).expect("a put");
    world.write(first, Write::RemoveVolume { path: path("/v") });
    for number in 1..5 {
        world.write(second, attached(&format!("/v/{number}"), Attach::Session));
        let next = world.lessor.take_proposal(world.now).expect("the removal, or a put");
        let carries = WriteRefusal::VolumeInUse { path: path("/v"), session: second };
        if refusals(&world.apply(&on_its_way)).contains(&Refusal::Write(carries)) {
            return;
        }
        on_its_way = next;
    }
    panic!("the removal waits for one registration after the other");
}

/// The session sends a write again, under its old number.
fn sending(world: &mut World, session: SessionId, number: u64, write: Write) -> Vec<LessorEffect> {
    let header = RequestHeader {
        session,
        epoch: world.state.epoch(),
        registration: world.registration(session),
        sequence: Sequence(number),
        unanswered_from: Sequence(number),
        ..RequestHeader::default()
    };
    world.send(Request { header, body: Body::Write { write, dropped: Vec::new(), seen: Stamp::default() } })
}

#[test]
fn repeated_grant_is_about_the_lease_that_it_granted() {
    let mut world = World::new();
    let (first, second) = (world.session(), world.session());
    let granted = world.done(first, grant(TTL)).lease.expect("the lease is granted");
    let number = world.sequence;
    let promise = |answer| match answer {
        Answer::Written { written, key_lease, .. } => (written.lease, key_lease.expect("of a lease")),
        other => panic!("written: {other:?}"),
    };
    let (lease, promised) = promise(answer(&sending(&mut world, first, number, grant(TTL))));
    assert_eq!(
        (lease, promised.incarnation, promised.result),
        (Some(granted), granted.incarnation, KeepAliveResult::Renewed(TTL))
    );
    world.done(second, REVOKE);
    let replacement = world.done(second, grant(TTL)).lease.expect("the lease is granted");
    assert!(replacement.incarnation > granted.incarnation);
    let (lease, promised) = promise(answer(&sending(&mut world, first, number, grant(TTL))));
    assert_eq!(
        (lease, promised.incarnation, promised.result),
        (Some(granted), granted.incarnation, KeepAliveResult::NotFound),
        "the lease has ended"
    );
}

/// Two revocations have been found uncovered, in either order, and the later one leaves. The
/// attachment still waits for the earlier one.
#[test]
fn attachment_waits_for_the_remaining_revocation() {
    let lease = Incarnation(7);
    let ready = |left: Option<(PendingWrite, Vec<PendingWriteId>)>| left.expect("the write waits").1;
    for is_last_found_first in [false, true] {
        let mut writes = PendingWrites::default();
        let revocation = || PendingWrite::new(WriteKind::Purge(BTreeSet::from([lease])), Vec::new(), Instant::ZERO);
        let [first, second] = [revocation(), revocation()].map(|pending| writes.enter(pending));
        for write_id in [first, second] {
            writes.proposed(write_id);
        }
        for write_id in if is_last_found_first { [second, first] } else { [first, second] } {
            writes.set_footprint(write_id, Vec::new());
        }
        let attachment = ClientWrite {
            session: SessionId(1),
            sequence: Sequence(1),
            unanswered_from: Sequence(1),
            write: attached("/a", Attach::Lease(ONE)),
            intended: IntendedLeases { leases: BTreeSet::from([lease]), ..IntendedLeases::default() },
            revoked: None,
            requesters: Vec::new(),
            grants_to: RequestId(0),
            dropped: Vec::new(),
            seen: Stamp::default(),
            load: 0,
        };
        let attachment =
            writes.enter(PendingWrite::new(WriteKind::Client(Box::new(attachment)), Vec::new(), Instant::ZERO));
        if is_last_found_first {
            assert_eq!(writes.proposed(second), [], "the revocation may be uncovered again");
            assert_eq!(writes.check(), Ok(()));
        }
        assert_eq!(ready(writes.leave(second)), [], "the write would pass the first revocation");
        assert_eq!(writes.check(), Ok(()));
        assert_eq!(ready(writes.leave(first)), [attachment]);
    }
}
