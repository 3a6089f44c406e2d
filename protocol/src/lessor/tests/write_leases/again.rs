//! A write lease ends, and the same lock gets another. A request that waited for the first does not
//! wait for the second (S7b).

use super::*;
use crate::transaction::{Compare, Operation, Transaction};

/// The owner flushes, and takes the node again before its first request is applied. The recall of
/// the first write lease is still unanswered.
fn taken_again_in_one_entry(world: &mut World, holder: SessionId) -> Vec<LessorEffect> {
    let value = Some(Bytes::from_static(b"new"));
    world.write(holder, Write::Flush { path: path("/a"), lock: LOCK, token: Token(2), value, ends_write_lease: true });
    world.ask_to_cache(holder);
    let proposal = world.lessor.take_proposal(world.now).expect("both");
    assert_eq!(proposal.commands.len(), 2);
    world.apply(&proposal)
}

#[test]
fn read_of_a_write_lease_taken_again_is_answered_once() {
    let mut world = World::new();
    let holder = world.caching();
    let reader = world.session();
    world.acquire(reader, None);
    let first = recalls(&world.ask_for(reader, "/a")).remove(0);
    let effects = taken_again_in_one_entry(&mut world, holder);
    let is_read = |effect: &LessorEffect| {
        matches!(effect, LessorEffect::Reply { response: Response { result: Ok(Answer::Read(_)), .. }, .. })
    };
    let read: Vec<LessorEffect> = effects.into_iter().filter(is_read).collect();
    assert_eq!(read_value(&read), (b"new".to_vec(), false), "the first write lease has ended, and a second has begun");
    let second = recalls(&world.ask_for(reader, "/a")).remove(0);
    assert!(second.stamp > first.stamp, "another write lease, another recall");
    assert_eq!(world.step(LessorInput::Consent(Consent { session: holder, stamp: first.stamp })), []);
    let recalled = world.lessor.recall_channel(holder).recalled(first.stamp);
    assert_eq!(recalled, None, "the consent to the first recall counts under the second write lease");
    let effects = world.flush(holder, None, true);
    assert_eq!(effects.iter().filter(|effect| is_read(effect)).count(), 1);
}

#[test]
fn list_of_a_write_lease_taken_again_is_answered_once() {
    let mut world = World::new();
    let holder = world.caching();
    let effects = world.list(Some("/"));
    assert_eq!((recalls(&effects).len(), replies(&effects).len()), (1, 0));
    let effects = taken_again_in_one_entry(&mut world, holder);
    let listed = replies(&effects).into_iter().find_map(|response| match response.result {
        Ok(Answer::Listed(page)) => Some(page.nodes),
        _ => None,
    });
    let nodes = listed.expect("the first write lease has ended");
    assert_eq!(
        nodes.iter().map(|(path, data)| (path.as_str(), &data.value[..])).collect::<Vec<_>>(),
        [("/a", &b"new"[..])]
    );
}

/// A consent that arrives under the next write lease still counts. So it must not bound the owner's
/// promises any longer.
#[test]
fn late_consent_counts_under_the_next_write_lease() {
    let mut world = World::new();
    let holder = world.caching();
    let reader = world.session();
    let recall = recalls(&world.ask_for(reader, "/a")).remove(0);
    world.flush(holder, None, true);
    world.cache(holder).expect("the owner has the node again");
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    assert_eq!(world.lessor.recall_channel(holder).unanswered_since(), None);
}

#[test]
fn repeated_request_brings_no_write_lease_that_is_over() {
    let mut world = World::new();
    let session = world.caching();
    world.flush(session, None, true);
    let (from, epoch) = (world.sequence + 1, world.state.epoch());
    let registration = world.registration(session);
    let send = |world: &mut World, sequence: u64, write: Write| {
        let (sequence, unanswered_from) = (Sequence(sequence), Sequence(from));
        let header =
            RequestHeader { session, epoch, registration, sequence, unanswered_from, ..RequestHeader::default() };
        let (dropped, seen) = (vec![ObjectSet::One(data("/a"))], Stamp { epoch, sequence: 1000 });
        let mut effects = world.send(Request { header, body: Body::Write { write, dropped, seen } });
        effects.extend(world.commit());
        match answer(&effects) {
            Answer::Written { write_lease_data, .. } => write_lease_data.is_some(),
            other => panic!("written: {other:?}"),
        }
    };
    let cache = || Write::TakeWriteLease { path: path("/a"), lock: LOCK };
    assert!(send(&mut world, from, cache()));
    assert!(send(&mut world, from, cache()), "the answer has the node's value again");
    let (lock, token, value) = (LOCK, Token(2), None);
    send(&mut world, from + 1, Write::Flush { path: path("/a"), lock, token, value, ends_write_lease: true });
    assert!(!send(&mut world, from, cache()), "another session may write the node now");
}

/// A recall of the owner's copy is unanswered. One entry finds that a transaction which compares
/// the node lacks consents, and begins a write lease on the node.
#[test]
fn recall_before_the_write_lease_is_not_reused_after_it() {
    let mut world = World::new();
    let holder = world.caching();
    world.flush(holder, None, true);
    let other = world.session();
    world.write(other, put("/x", b"1"));
    world.commit();
    world.read(holder, data("/a")).grant.expect("no write lease is left");
    world.write(other, put("/a", b"2"));
    let earlier = world.lessor.recall_channel(holder).unanswered_since();
    assert!(earlier.is_some(), "the owner's copy is recalled");
    // The client gives up its put, so that the owner can take the node again.
    let sequence = Sequence(world.sequence + 1);
    let (epoch, registration) = (world.state.epoch(), world.registration(other));
    let header = RequestHeader {
        session: other,
        epoch,
        registration,
        sequence,
        unanswered_from: sequence,
        ..Default::default()
    };
    world.send(Request { header, body: Body::Heartbeat(Default::default()) });
    assert_eq!(world.lessor.writes.len(), 0);
    world.write(other, Write::Delete { path: path("/x"), recursive: false, condition: Condition::Any });
    let put = Operation::put(path("/x"), "3");
    world.write(other, Write::Transaction(Transaction::new().when(Compare::exists(path("/a"))).then(put)));
    world.ask_to_cache(holder);
    let proposal = world.lessor.take_proposal(world.now).expect("all three");
    assert_eq!(proposal.commands.len(), 3);
    let recalls = recalls(&world.apply(&proposal));
    assert_eq!(recalls.len(), 1, "the recall of the copy does not cover the write lease");
    assert_eq!((recalls[0].session, &recalls[0].sets[..]), (holder, &[ObjectSet::One(data("/a"))][..]));
}
