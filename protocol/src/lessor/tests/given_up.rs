//! Tests of writes that a client gives up. The leader drops them, unless they are proposed (S9).

use super::*;
use crate::transaction::{Operation, Transaction};

/// Sends a write of `/a`. It says that the session gives up all its earlier writes.
fn put_and_give_up_earlier(world: &mut World, writer: SessionId) -> Vec<LessorEffect> {
    world.sequence += 1;
    let sequence = Sequence(world.sequence);
    let header = RequestHeader {
        session: writer,
        epoch: world.state.epoch(),
        registration: world.registration(writer),
        sequence,
        unanswered_from: sequence,
        ..RequestHeader::default()
    };
    world.send(Request {
        header,
        body: Body::Write { write: put("/a", b"1"), dropped: Vec::new(), seen: Stamp::default() },
    })
}

#[test]
fn writes_given_up_do_not_fill_the_table() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, put("/a", b"0"));
    world.commit();
    let (reader, _) = world.holder(&data("/a"));
    let recall = recalls(&put_and_give_up_earlier(&mut world, writer)).remove(0);
    for _ in 0..100 {
        let refused = result(&put_and_give_up_earlier(&mut world, writer));
        let lowest = Sequence(world.sequence);
        let got = Sequence(world.sequence - 1);
        assert_eq!(refused, Err(Refusal::OutsideWindow { got, lowest, highest: lowest.window_end() }));
        assert_eq!((world.lessor.writes.len(), world.lessor.load_to_come), (1, 0));
        world.check();
    }
    assert_eq!(recall.session, reader);
    // Without a consent, the last one takes effect when the leases end.
    let answered = replies(&world.pass(TERM * 3));
    let is_written = |response: &&Response| matches!(response.result, Ok(Answer::Written { .. }));
    assert_eq!(answered.iter().filter(is_written).count(), 1);
    assert_eq!(world.lessor.writes.len(), 0);
}

#[test]
fn proposed_write_given_up_still_takes_effect() {
    let mut world = World::new();
    let writer = world.session();
    put_and_give_up_earlier(&mut world, writer);
    let proposal = world.lessor.take_proposal(world.now).expect("nobody has a copy");
    assert!(replies(&put_and_give_up_earlier(&mut world, writer)).is_empty(), "both are proposed");
    assert!(matches!(answer(&world.apply(&proposal)), Answer::Written { .. }));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
}

#[test]
fn write_behind_one_given_up_goes_on() {
    let mut world = World::new();
    let [writer, other] = [(); 2].map(|()| world.session());
    for node in ["/a", "/b"] {
        world.write(writer, put(node, b"0"));
        world.commit();
    }
    world.holder(&data("/a"));
    let then = ["/a", "/b"].map(|node| Operation::put(path(node), "1")).to_vec();
    let both = Write::Transaction(Transaction { then, ..Transaction::new() });
    assert_eq!(recalls(&world.write(writer, both)).len(), 1);
    assert!(recalls(&world.write(other, put("/b", b"2"))).is_empty(), "nobody has a copy of it");
    assert!(!world.lessor.has_proposal(), "it waits for the transaction");
    put_and_give_up_earlier(&mut world, writer);
    let written = answer(&world.commit());
    assert!(matches!(written, Answer::Written { .. }), "{written:?}");
    assert_eq!(world.state.node(&path("/b")).map(|node| node.version), Some(2));
}

#[test]
fn write_behind_one_given_up_still_waits_for_those_ahead() {
    let mut world = World::new();
    let [first, second, third] = [(); 3].map(|()| world.session());
    world.write(first, put("/a", b"0"));
    world.commit();
    let (reader, _) = world.holder(&data("/b"));
    let then = ["/a", "/b"].map(|node| Operation::put(path(node), "1")).to_vec();
    let both = Write::Transaction(Transaction { then, ..Transaction::new() });
    let recall = recalls(&world.write(first, both)).remove(0);
    // These two wait for the transaction alone, because nobody has a copy of `/a`.
    world.write(second, put("/a", b"2"));
    world.write(third, put("/a", b"3"));
    put_and_give_up_earlier(&mut world, second);
    assert!(!world.lessor.has_proposal(), "the third write passes the transaction");
    world.step(LessorInput::Consent(Consent { session: reader, stamp: recall.stamp }));
    world.commit();
    assert_eq!(world.state.node(&path("/a")).map(|node| node.version), Some(4));
}

#[test]
fn writes_given_up_together_propose_none_of_them() {
    let mut world = World::new();
    let [writer, other] = [(); 2].map(|()| world.session());
    world.write(writer, put("/a", b"0"));
    world.commit();
    world.holder(&data("/b"));
    let then = ["/a", "/b"].map(|node| Operation::put(path(node), "1")).to_vec();
    let both = Write::Transaction(Transaction { then, ..Transaction::new() });
    assert_eq!(recalls(&world.write(writer, both)).len(), 1);
    // These two wait for the transaction alone.
    world.write(writer, put("/a", b"2"));
    world.write(other, put("/a", b"3"));
    // A request that is no write gives all of them up.
    let header = RequestHeader {
        session: writer,
        epoch: world.state.epoch(),
        registration: world.registration(writer),
        sequence: Sequence(world.sequence + 1),
        unanswered_from: Sequence(world.sequence + 1),
        ..RequestHeader::default()
    };
    let refused = replies(&world.send(Request { header, body: Body::Heartbeat(Default::default()) }));
    let is_refused = |response: &&Response| matches!(response.result, Err(Refusal::OutsideWindow { .. }));
    assert_eq!(refused.iter().filter(is_refused).count(), 2);
    assert_eq!(world.lessor.writes.len(), 1, "the other session's write remains");
    world.check();
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    let node = world.state.node(&path("/a")).expect("the node exists");
    assert_eq!((node.version, node.value.as_ref()), (2, b"3".as_ref()));
}
