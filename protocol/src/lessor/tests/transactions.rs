//! Transactions: which holders are asked, when the branch changes, and what is refused on arrival.

use std::collections::VecDeque;

use super::*;
use crate::{
    command::Attach,
    id::LeaseId,
    limits::LimitError,
    transaction::{Branch, Compare, Operation, Relation, Transaction},
};

fn has(at: &str, value: &'static str) -> Compare {
    Compare::value(path(at), Relation::Equal, value)
}

fn put_op(at: &str) -> Operation {
    Operation::put(path(at), "x")
}

impl World {
    fn transact(&mut self, session: SessionId, transaction: Transaction) -> Vec<LessorEffect> {
        self.write(session, Write::Transaction(transaction))
    }

    /// A write that need not wait.
    fn written(&mut self, session: SessionId, write: Write) {
        self.write(session, write);
        self.commit();
    }
}

fn branch_of(effects: &[LessorEffect]) -> Branch {
    let Answer::Written { written, grant: None, .. } = answer(effects) else { panic!("{effects:?}") };
    written.transaction.expect("a transaction's results").branch()
}

#[test]
fn transaction_recalls_its_whole_footprint_in_one_recall_each() {
    let mut world = World::new();
    let (one, _) = world.holder(&data("/a"));
    world.read(one, data("/b"));
    world.read(one, data("/c"));
    let (other, _) = world.holder(&data("/b"));
    let writer = world.session();
    let transaction = Transaction::new().then(put_op("/a")).then(put_op("/b")).otherwise(put_op("/c"));
    let effects = world.transact(writer, transaction);
    let mut recalls = recalls(&effects);
    recalls.sort_by_key(|recall| recall.session);
    let sets = |all: &[&str]| all.iter().map(|at| ObjectSet::One(data(at))).collect::<Vec<_>>();
    let recalled: Vec<_> = recalls.iter().map(|recall| (recall.session, recall.sets.clone())).collect();
    assert_eq!(recalled, [(one, sets(&["/a", "/b"])), (other, sets(&["/b"]))], "the sets of the chosen branch");
    for at in ["/a", "/b"] {
        assert_eq!(world.read(writer, data(at)).grant, None, "no lease on either while consents are gathered (S3)");
    }
    world.consent_to(&recalls[0]);
    assert!(!world.lessor.has_proposal(), "the other holder has not consented");
    world.consent_to(&recalls[1]);
    assert_eq!(branch_of(&world.commit()), Branch::Then);
}

#[test]
fn transaction_whose_branch_changes_recalls_both_branches() {
    let mut world = World::new();
    let writer = world.session();
    world.written(writer, put("/flag", b"a"));
    let (holder, _) = world.holder(&data("/y"));
    let transaction = Transaction::new().when(has("/flag", "a")).then(put_op("/x")).otherwise(put_op("/y"));
    // Both wait for the same entry, and the flag's comes first.
    let other = world.session();
    world.write(other, put("/flag", b"b"));
    assert_eq!(recalls(&world.transact(writer, transaction)), [], "no session has a copy of the written nodes");
    let effects = world.commit();
    let [recall] = recalls(&effects).try_into().expect("one recall");
    assert_eq!((recall.session, &recall.sets), (holder, &vec![ObjectSet::One(data("/y"))]));
    let covered = |world: &World, at: &str| world.lessor.writes.changes_object(&data(at));
    assert!(covered(&world, "/x") && covered(&world, "/y"), "the write need not gather a third time");
    world.consent_to(&recall);
    assert_eq!(branch_of(&world.commit()), Branch::Otherwise);
    assert!(!covered(&world, "/x") && !covered(&world, "/y"));
}

#[test]
fn transaction_writer_is_exempt_for_dropped_sets() {
    let mut world = World::new();
    let (writer, grant) = world.holder(&data("/a"));
    let transaction = Transaction::new().then(put_op("/a")).then(put_op("/b"));
    let (write, seen) = (Write::Transaction(transaction), grant.stamp);
    let dropped = ["/a", "/b"].map(|at| ObjectSet::One(data(at))).to_vec();
    let effects = world.request(writer, Body::Write { write, dropped, seen });
    assert_eq!(recalls(&effects), []);
    assert_eq!(branch_of(&world.commit()), Branch::Then);
}

#[test]
fn invalid_transaction_is_refused_before_any_recall() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    let many = Transaction { compares: vec![Compare::exists(path("/a")); 129], ..Transaction::new() };
    let effects = world.transact(writer, many.then(put_op("/a")));
    let limit = LimitError::Transaction { what: "comparisons".to_owned(), got: 129, expected: 128 };
    assert_eq!((result(&effects), recalls(&effects)), (Err(Refusal::Limit(limit)), vec![]));
    let effects = world.transact(writer, Transaction::new().otherwise(put_op("/a")).otherwise(put_op("/a")));
    let overlap = WriteRefusal::Overlap { branch: Branch::Otherwise, first: 0, second: 1, path: path("/a") };
    assert_eq!((result(&effects), recalls(&effects)), (Err(Refusal::Write(overlap)), vec![]));
}

#[test]
fn nothing_is_attached_to_a_lease_that_is_ending() {
    let mut world = World::new();
    let writer = world.session();
    let ttl = Duration::from_secs(5);
    world.written(writer, Write::GrantLease { id: Some(LeaseId(7)), name: None, ttl });
    let key = AnyLease::KeyLease(LeaseId(7));
    while !world.lessor.leases.get(&key).expect("the write waits for the end of the write lease").is_end_proposed {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    let attach = |id| Operation::Put { path: path("/a"), value: Bytes::new(), attach: Attach::Lease(LeaseId(id)) };
    let chosen = Transaction::new().then(put_op("/b")).then(attach(7));
    let effects = world.transact(writer, chosen);
    let refusal = Box::new(WriteRefusal::LeaseNotFound { id: LeaseId(7) });
    let expected = WriteRefusal::Operation { branch: Branch::Then, index: 1, refusal };
    assert_eq!(result(&effects), Err(Refusal::Write(expected)));
    assert_eq!(
        replies(&world.transact(writer, Transaction::new().otherwise(attach(7)))),
        [],
        "the branch is not chosen"
    );
}

/// Each write of a stream puts the compared node, and deletes one node more above the node of the
/// transaction. When the transaction gathers again, the next of them is already on its way into the
/// log.
#[test]
fn stream_of_puts_makes_a_transaction_gather_three_times() {
    const DEPTH: usize = 12;
    let mut world = World::new();
    let (writer, streamer) = (world.session(), world.session());
    let above = |depth| "/p".repeat(depth);
    world.written(streamer, put("/flag", b""));
    world.written(streamer, put(&above(DEPTH), b""));
    let delete = |depth| Operation::Delete { path: path(&above(depth)), recursive: true };
    let change = |depth| Write::Transaction(Transaction::new().then(put_op("/flag")).then(delete(depth)));
    world.write(streamer, change(DEPTH));
    let put = put_op(&(above(DEPTH) + "/x"));
    world.transact(writer, Transaction::new().when(Compare::exists(path("/flag"))).then(put));
    let mut on_their_way = VecDeque::from_iter(world.lessor.take_proposal(world.now));
    let (mut uncovered, mut answered) = (0, 0);
    for depth in (1..DEPTH).rev() {
        world.write(streamer, change(depth));
        on_their_way.extend(world.lessor.take_proposal(world.now));
        let Some(proposal) = on_their_way.pop_front() else { break };
        world.index += 1;
        let applied = world.state.apply(world.index, &proposal);
        uncovered += applied.outcomes.iter().filter(|outcome| **outcome == Outcome::MissingConsents).count();
        let effects = world.step(LessorInput::committed(proposal.number, applied));
        let one_result = |reply: &Response| {
            let Ok(Answer::Written { written, .. }) = &reply.result else { return false };
            written.transaction.as_ref().is_some_and(|transacted| transacted.results.len() == 1)
        };
        answered += replies(&effects).iter().filter(|reply| one_result(reply)).count();
    }
    assert_eq!((uncovered, answered), (2, 1));
}
