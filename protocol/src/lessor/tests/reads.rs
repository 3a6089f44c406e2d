//! Reads, and the leases that come with them (S3, S6).

use super::*;
use crate::{
    lease_policy::LeaseRequest,
    limits::LimitError,
    transaction::{Operation, Transaction},
};

#[test]
fn nothing_is_answered_before_the_first_entry_of_the_epoch() {
    let mut world = World::before_the_epoch();
    let effects = world.request(SessionId(0), Body::Open { name: String::new() });
    assert_eq!(result(&effects), Err(Refusal::Retry));
    assert_eq!((world.lessor.epoch(), world.lessor.has_proposal()), (None, true));
    world.commit();
    assert_eq!((world.lessor.epoch(), world.lessor.has_proposal()), (Some(world.state.epoch()), false));
}

#[test]
fn a_read_waits_for_a_round_that_begins_after_it() {
    let mut world = World::new();
    let session = world.session();
    let read = |object| Body::Read { object, known: None, lease: LeaseRequest::Implicit };
    assert_eq!(world.request(session, read(data("/a"))), [LessorEffect::Prove { round: 2 }]);
    assert_eq!(world.request(session, read(data("/b"))), [], "the round in flight may have missed a write");
    let effects = world.step(LessorInput::Proven { round: 2 });
    assert_eq!(replies(&effects).len(), 1);
    assert_eq!(effects.last(), Some(&LessorEffect::Prove { round: 3 }));
    assert_eq!(result(&world.step(LessorInput::NotProven { round: 3 })), Err(Refusal::Retry));
}

#[test]
fn a_lease_needs_a_volume_lease() {
    let mut world = World::new();
    let session = world.session();
    let before = world.read(session, data("/a"));
    assert_eq!((before.grant, before.content), (None, Some(Content::Data(None))));
    let AcquiredVolume { promise, revival, .. } = world.acquire(session, None);
    assert_eq!((promise.span, promise.term, revival), (TERM, TERM, Revival::None));
    let grant = world.read(session, data("/a")).grant.expect("granted");
    assert_eq!(grant.incarnation, promise.incarnation);
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
fn next_round_begins_when_a_round_fails() {
    let mut world = World::new();
    let session = world.session();
    let read = |world: &mut World| {
        world.request(session, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit })
    };
    assert!(matches!(read(&mut world)[..], [LessorEffect::Prove { .. }]));
    assert_eq!(read(&mut world), [], "the read waits for the next round");
    let failed = world.lessor.round;
    let effects = world.step(LessorInput::NotProven { round: failed });
    assert_eq!(result(&effects), Err(Refusal::Retry));
    assert!(effects.contains(&LessorEffect::Prove { round: world.lessor.round }) && world.lessor.round != failed);
}

#[test]
fn bad_input_changes_nothing_and_says_what_was_expected() {
    let mut world = World::new();
    let writer = world.session();
    let big = Write::put(path("/a"), vec![0; (1 << 20) + 1].into());
    let refusal = result(&world.write(writer, big)).expect_err("too long");
    assert_eq!(refusal.to_string(), "value: 1048577 bytes exceed the limit of 1048576");
    let unknown = SessionId(999);
    let effects = world.request(unknown, Body::Heartbeat(Default::default()));
    assert_eq!(result(&effects), Err(Refusal::SessionNotFound { session: unknown }));
    assert!(!world.lessor.has_proposal());
}

#[test]
fn reads_that_wait_for_a_proof_are_bounded() {
    let mut world = World::new();
    let session = world.session();
    let waiting = || WaitingRead {
        requester: Requester { id: RequestId(0), session, renewed: Vec::new(), clocks: None },
        target: ReadTarget::Object {
            object: data("/a"),
            known: None,
            waits: ReadWait::Nothing,
            lease: LeaseRequest::Implicit,
        },
    };
    world.lessor.round_reads = vec![waiting(); LessorBounds::DEFAULT.reads_max / 2];
    world.lessor.next_round_reads = vec![waiting(); LessorBounds::DEFAULT.reads_max / 2 - 1];
    let read = Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit };
    assert_eq!(world.request(session, read.clone()), []);
    let busy = Refusal::Busy {
        what: "reads".to_owned(),
        got: LessorBounds::DEFAULT.reads_max,
        most: LessorBounds::DEFAULT.reads_max,
    };
    assert_eq!(result(&world.request(session, read)), Err(busy));
}

#[test]
fn a_reader_that_has_the_newest_content_is_told_so() {
    let mut world = World::new();
    let session = world.session();
    world.write(session, put("/a", b"1"));
    world.commit();
    let newest = world.state.modify_revision(&data("/a")).expect("the node exists");
    let mut content = |object, known| {
        world.request(session, Body::Read { object, known, lease: LeaseRequest::Implicit });
        match answer(&world.step(LessorInput::Proven { round: world.lessor.round })) {
            Answer::Read(answer) => answer.content,
            other => panic!("read: {other:?}"),
        }
    };
    assert_eq!(content(data("/a"), Some(newest)), None);
    assert!(content(data("/a"), Some(Revision(newest.0 - 1))).is_some());
    assert!(content(data("/a"), None).is_some());
    assert!(content(data("/none"), None).is_some(), "the node does not exist");
}

#[test]
fn content_too_long_for_an_answer_is_refused_with_numbers() {
    let mut world = World::new();
    world.lessor.config.bounds.content_bytes_max = 1000;
    let session = world.session();
    let mut read = |len| {
        let write = Write::put(path("/a"), vec![0; len].into());
        world.write(session, write);
        world.commit();
        world.request(session, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
        result(&world.step(LessorInput::Proven { round: world.lessor.round }))
    };
    assert!(read(1000).is_ok());
    let refusal = read(1001).expect_err("too long");
    assert_eq!(refusal.to_string(), "answer: 1001 bytes exceed the limit of 1000");
}

#[test]
fn reads_of_one_round_are_answered_in_parts() {
    let mut world = World::new();
    world.lessor.config.bounds.reads_per_step = 2;
    let session = world.session();
    world.request(session, Body::Read { object: data("/0"), known: None, lease: LeaseRequest::Implicit });
    for number in 1..=5 {
        let object = data(&format!("/{number}"));
        assert_eq!(world.request(session, Body::Read { object, known: None, lease: LeaseRequest::Implicit }), []);
    }
    let round = world.lessor.round;
    assert_eq!(replies(&world.step(LessorInput::Proven { round })).len(), 1);
    let read = |effects: &[LessorEffect]| replies(effects).iter().filter(|reply| reply.result.is_ok()).count();
    let effects = world.step(LessorInput::Proven { round: round + 1 });
    assert_eq!((read(&effects), world.lessor.next_deadline(world.now)), (2, world.now.after(MILLI)));
    assert_eq!(read(&world.step(LessorInput::Timeout)), 2, "whatever comes next");
    assert_eq!(read(&world.step(LessorInput::Timeout)), 1);
    assert!(world.lessor.next_deadline(world.now) > world.now.after(MILLI));
}

#[test]
fn large_contents_are_answered_one_in_a_step() {
    let mut world = World::new();
    let session = world.session();
    world.write(session, put("/a", b"0123456789"));
    world.commit();
    world.lessor.config.bounds.content_bytes_max = 10;
    world.request(session, Body::Read { object: data("/other"), known: None, lease: LeaseRequest::Implicit });
    for _ in 0..3 {
        world.request(session, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
    }
    let round = world.lessor.round;
    world.step(LessorInput::Proven { round });
    assert_eq!(replies(&world.step(LessorInput::Proven { round: round + 1 })).len(), 1);
    assert_eq!([(); 3].map(|()| replies(&world.step(LessorInput::Timeout)).len()), [1, 1, 0]);
}

#[test]
fn list_that_is_too_long_is_refused_unread() {
    let mut world = World::new();
    let session = world.session();
    let children = 4000;
    let puts = |from: usize| {
        let puts = (from..from + 100).map(|number| Operation::put(path(&format!("/d/{number:04}")), ""));
        Write::Transaction(Transaction { then: puts.collect(), ..Transaction::new() })
    };
    for from in (0..children).step_by(100) {
        world.write(session, puts(from));
        world.commit();
    }
    let weight = children * (4 + 24);
    let read = |world: &mut World, most: usize| {
        world.lessor.config.bounds.content_bytes_max = most;
        let object = Object::children(path("/d"));
        world.request(session, Body::Read { object, known: None, lease: LeaseRequest::Implicit });
        crate::work::take_visited();
        let result = result(&world.step(LessorInput::Proven { round: world.lessor.round }));
        (result, crate::work::take_visited())
    };
    let refused = |got, expected| Err(LimitError::Content { got, expected }.into());
    // Refused by its count alone.
    let (result, visited) = read(&mut world, children * 25 - 1);
    assert_eq!(result, refused(children * 25, children * 25 - 1));
    assert!(visited < 10, "{visited}");
    // Refused while reading the names, at the first one that does not fit.
    let (result, visited) = read(&mut world, children * 25);
    assert!(matches!(result, Err(Refusal::Limit(LimitError::Content { .. }))), "{result:?}");
    assert!(visited <= children as u64 * 25 / 28 + 10, "{visited}");
    let (result, _) = read(&mut world, weight);
    let Ok(Answer::Read(ReadAnswer { content: Some(Content::Children(Some(list))), .. })) = result else {
        panic!("it fits: {result:?}")
    };
    assert_eq!(list.names.len(), children);
}

/// A node counts with its path, its value and 64 bytes: 2 + 10 + 64 and 4 + 10 + 64 are 154.
#[test]
fn page_of_a_list_has_as_many_bytes_as_its_bound() {
    let mut world = World::new();
    let session = world.session();
    for text in ["/a", "/a/x", "/a/y"] {
        world.write(session, put(text, b"0123456789"));
        world.commit();
    }
    for (most, last) in [(153, "/a"), (154, "/a/x"), (155, "/a/x"), (231, "/a/x")] {
        let bounds = LessorBounds { list_bytes_max: most, ..LessorBounds::DEFAULT };
        let page = super::super::reads::list(&path("/a"), None, 9, &bounds, &world.state);
        assert_eq!(page.through, Some(path(last)), "{most} bytes");
    }
    let bounds = LessorBounds { list_bytes_max: 232, ..LessorBounds::DEFAULT };
    assert_eq!(super::super::reads::list(&path("/a"), None, 9, &bounds, &world.state).through, None);
}

/// Each page has one node with one byte. Two pages have as much content as one step answers with.
#[test]
fn lists_of_one_step_are_bounded_by_what_they_have() {
    let mut world = World::new();
    let session = world.session();
    world.write(session, put("/a", b"1"));
    world.commit();
    world.lessor.config.bounds.content_bytes_max = 2 * (64 + 1);
    for _ in 0..5 {
        world.request(session, Body::List { path: path("/a"), after: None, nodes_max: 9 });
    }
    let round = world.lessor.round;
    assert_eq!(replies(&world.step(LessorInput::Proven { round })).len(), 1, "the others wait for the next round");
    let effects = world.step(LessorInput::Proven { round: round + 1 });
    assert_eq!((replies(&effects).len(), world.lessor.proven_reads.len()), (2, 2));
}
