//! Full tables: a further request is refused as busy with the limit, or read without a lease. What
//! is already there is served as before.

use super::*;
use crate::{
    change::WatchScope,
    command::Attach,
    id::LeaseId,
    limits::Limits,
    message::{CHANGES_BYTES_MAX, HolderReportPart, LIST_NODES_MAX},
    transaction::{Operation, Transaction},
    volume::Tracking,
};

fn busy(effects: &[LessorEffect]) -> Option<(String, usize, usize)> {
    match result(effects) {
        Err(Refusal::Busy { what, got, most }) => Some((what, got, most)),
        _ => None,
    }
}

fn is_busy(what: &str, got: usize, most: usize) -> Option<(String, usize, usize)> {
    Some((what.to_owned(), got, most))
}

fn open() -> Body {
    Body::Open { name: "one more than the bound".to_owned() }
}

#[test]
fn requests_beyond_the_proposal_queue_are_busy() {
    let mut world = World::new();
    let session = world.session();
    world.lessor.config.bounds.requests_waiting_max = 2;
    let acquire = || Body::Acquire { path: NodePath::root(), last_valid: None, read: None };
    assert_eq!(world.request(SessionId(0), open()), []);
    assert_eq!(world.request(session, acquire()), []);
    let full = is_busy("requests to propose", 2, 2);
    for (session, body) in [(SessionId(0), open()), (session, acquire()), (session, Body::Close)] {
        assert_eq!(busy(&world.request(session, body)), full);
    }
    // Writes have a bound of their own.
    assert_eq!(world.write(session, put("/a", b"1")), []);
    world.commit();
    assert_eq!(world.request(session, Body::Close), []);
    world.commit();
    assert!(world.state.session(session).is_none());
}

#[test]
fn sessions_beyond_the_bound_are_busy() {
    let mut world = World::new();
    let session = world.session();
    world.lessor.config.bounds.sessions_max = 2;
    assert_eq!(world.request(SessionId(0), open()), []);
    let full = is_busy("sessions", 2, 2);
    assert_eq!(busy(&world.request(SessionId(0), open())), full, "requests in flight count");
    world.commit();
    assert_eq!(busy(&world.request(SessionId(0), open())), full, "open sessions count");
    world.request(session, Body::Close);
    world.commit();
    assert_eq!(world.request(SessionId(0), open()), []);
}

#[test]
fn key_leases_beyond_the_bound_are_busy() {
    let mut world = World::new();
    let session = world.session();
    world.lessor.config.bounds.key_leases_max = 2;
    // A lease of this TTL needs no renewals worth counting.
    let grant = |id: u64| Write::GrantLease { id: Some(LeaseId(id)), name: None, ttl: Limits::TTL_MAX };
    assert_eq!([world.write(session, grant(1)), world.write(session, grant(2))], [[], []]);
    let full = is_busy("key leases", 2, 2);
    assert_eq!(busy(&world.write(session, grant(3))), full, "requests in flight count");
    world.commit();
    assert_eq!(busy(&world.write(session, grant(3))), full, "granted leases count");
    world.write(session, Write::RevokeLease { id: LeaseId(1), incarnation: None });
    assert_eq!(busy(&world.write(session, grant(3))), full, "the revocation is in flight");
    world.commit();
    assert_eq!(world.write(session, grant(2)), []);
    assert!(busy(&world.write(session, grant(3))).is_some());
    assert!(result(&world.commit()).is_err(), "lease 2 exists");
    assert_eq!(world.write(session, grant(3)), [], "a refused grant makes room again");
    world.commit();
    world.fail_over();
    world.lessor.config.bounds.key_leases_max = 2;
    world.request(session, Body::Register);
    assert_eq!(busy(&world.write(session, grant(4))), full, "leases of earlier epochs count");
    world.write(session, Write::RevokeLease { id: LeaseId(3), incarnation: None });
    world.commit();
    assert_eq!(world.write(session, grant(4)), []);
}

#[test]
fn objects_beyond_the_bound_are_read_without_a_lease() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let other = world.session();
    world.acquire(other, None);
    world.lessor.config.bounds.object_leases_max = 2;
    assert!(world.read(holder, data("/b")).grant.is_some());
    for (session, at) in [(holder, "/c"), (other, "/a")] {
        let read = world.read(session, data(at));
        assert_eq!((read.content, read.grant), (Some(Content::Data(None)), None));
    }
    assert!(world.read(holder, data("/a")).grant.is_some(), "the session has a lease on the volume");
    world.request(holder, Body::Close);
    world.commit();
    world.pass(TERM);
    assert!(world.read(other, data("/a")).grant.is_some(), "each request that ends makes room");
}

#[test]
fn list_beyond_the_bound_leaves_its_session_covering() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.fail_over();
    world.lessor.config.bounds.object_leases_max = 2;
    let answer = answer(&world.request(holder, Body::Register));
    let Answer::Registered { coverings } = answer else { panic!("registered: {answer:?}") };
    let report_part = |objects: u32| HolderReportPart {
        volume: NodePath::root(),
        incarnation: grant.incarnation,
        covering: coverings[0].number,
        part: 0,
        parts: 1,
        objects: (0..objects).map(|number| data(&format!("/{number}"))).collect(),
    };
    let is_covering =
        |world: &World| world.lessor.object_leases.track(&NodePath::root(), holder).map(|track| track.is_covering());
    world.request(holder, Body::HolderReport(report_part(3)));
    assert_eq!((is_covering(&world), world.lessor.object_leases.len()), (Some(true), 0));
    world.request(holder, Body::HolderReport(report_part(2)));
    assert_eq!((is_covering(&world), world.lessor.object_leases.len()), (Some(false), 2));
}

#[test]
fn transactions_beyond_the_remembered_results_are_busy() {
    let mut world = World::new();
    let sessions = [world.session(), world.session()];
    world.lessor.config.bounds.results_max = 4;
    let send = |world: &mut World, session: SessionId, sequence: u64, unanswered_from: u64| {
        let then = (0..2).map(|place| Operation::put(path(&format!("/{session}/{sequence}/{place}")), "")).collect();
        let write = Write::Transaction(Transaction { then, ..Transaction::new() });
        let header = RequestHeader {
            session,
            epoch: world.state.epoch(),
            registration: world.registration(session),
            sequence: Sequence(sequence),
            unanswered_from: Sequence(unanswered_from),
            ..RequestHeader::default()
        };
        let body = Body::Write { write, dropped: Vec::new(), seen: Stamp::default() };
        world.send(Request { header, body })
    };
    assert_eq!(send(&mut world, sessions[0], 1, 1), []);
    assert_eq!(send(&mut world, sessions[0], 2, 1), []);
    let full = is_busy("results of transactions to remember", 6, 4);
    assert_eq!(busy(&send(&mut world, sessions[0], 3, 1)), full, "requests in flight count");
    world.commit();
    assert_eq!(busy(&send(&mut world, sessions[0], 3, 1)), full, "remembered results count");
    assert_eq!(send(&mut world, sessions[1], 1, 1), [], "a session's first request is never refused");
    world.commit();
    assert_eq!(send(&mut world, sessions[0], 3, 3), [], "earlier results are forgotten too");
    world.commit();
    assert_eq!((world.state.results_remembered(), world.lessor.results_to_come), (4, 0));
    world.request(sessions[0], Body::Close);
    world.commit();
    assert_eq!(world.state.results_remembered(), 2);
}

#[test]
fn shorter_term_beyond_what_can_be_renewed_is_busy() {
    let mut world = World::new();
    let holders: Vec<_> = (0..9).map(|_| world.holder(&data("/a"))).collect();
    world.lessor.config.bounds.renewals_per_second_max = 1;
    let set = |millis: u64| {
        let (hour, margin) = (Duration::from_secs(3600), Duration::from_secs(1));
        let term = Duration::from_millis(millis);
        let settings = VolumeSettings::new(term, hour, margin, Tracking::Objects, DriftAllowance::DEFAULT);
        Write::SetVolume { path: NodePath::root(), settings: settings.expect("valid settings") }
    };
    let session = holders[0].0;
    let refused = world.write(session, set(5000));
    assert_eq!(busy(&refused), is_busy("renewals of leases in a second", 2, 1), "nine leases of 5 s");
    assert!(!replies(&world.write(session, set(9800))).iter().any(|reply| reply.result.is_err()));
    assert!(busy(&world.write(session, set(9300))).is_some(), "waiting requests count");
    // A longer term needs nothing more.
    assert!(!replies(&world.write(session, set(20_000))).iter().any(|reply| reply.result.is_err()));
}

#[test]
fn requested_sizes_are_cut_to_one_answer() {
    let mut world = World::new();
    let session = world.session();
    let value = Bytes::from(vec![b'v'; CHANGES_BYTES_MAX as usize * 2 / 3]);
    for _ in 0..3 {
        world.write(session, Write::put(path("/a"), value.clone()));
        world.commit();
    }
    let watched = WatchScope::Node(path("/a"));
    let wait = Duration::from_secs(1);
    let body = Body::Watch { watched, after: Some(Revision(0)), wait, bytes_max: u32::MAX };
    let answered = answer(&world.request(session, body));
    let Answer::Changes(changes) = answered else { panic!("changes: {answered:?}") };
    assert_eq!((changes.changes.len(), changes.through), (1, Revision(1)), "two nodes exceed the bound in bytes");
    let nodes = LIST_NODES_MAX as usize;
    world.fill(session, (0..=nodes).map(|number| (path(&format!("/b/{number}")), Attach::Nothing)));
    let body = Body::List { path: path("/b"), after: None, nodes_max: u32::MAX };
    let effects = world.request(SessionId(0), body);
    let [LessorEffect::Prove { round }] = effects[..] else { panic!("a list is proven like a read: {effects:?}") };
    let answered = answer(&world.step(LessorInput::Proven { round }));
    let Answer::Listed(listed) = answered else { panic!("listed: {answered:?}") };
    assert_eq!((listed.nodes.len(), listed.through.is_some()), (nodes, true));
}
