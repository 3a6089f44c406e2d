//! Transactions at their writer: the copies dropped, the leases requested, the nodes attached.

use super::*;
use crate::{
    command::{Attach, VolumeLease, WriteRefusal, Written},
    transaction::{Branch, Compare, FailedCompare, Operation, Transacted, Transaction},
};

fn put_op(at: &str) -> Operation {
    Operation::put(path(at), "v")
}

fn attach(at: &str) -> Operation {
    Operation::Put { path: path(at), value: "v".into(), attach: Attach::Session }
}

fn children(at: &str) -> ObjectSet {
    ObjectSet::One(Object::children(path(at)))
}

fn answer_to(failed: Option<FailedCompare>) -> Answer {
    let transaction = Some(Box::new(Transacted { failed, results: vec![] }));
    let attached = vec![VolumeLease { volume: NodePath::root(), incarnation: Incarnation(1) }];
    let written = Written { revision: Revision(30), transaction, attached, ..Written::default() };
    Answer::Written {
        written,
        stamp: stamp(9),
        grant: None,
        applied: Revision(30),
        key_lease: None,
        write_lease_data: None,
    }
}

const FAILED: Option<FailedCompare> = Some(FailedCompare { index: 0, found: None });

#[test]
fn transaction_writer_drops_footprint_of_both_branches_only() {
    let mut client = Client::cached().cache("/a/b", 3).cache("/c", 4);
    let transaction = Transaction::new()
        .when(Compare::exists(path("/c")))
        .then(put_op("/a"))
        .then(Operation::Delete { path: path("/d"), recursive: true })
        .otherwise(Operation::delete(path("/a/b")));
    let effects = client.write(1, Write::Transaction(transaction));
    let Body::Write { dropped, .. } = client.only(&effects).1.body else { panic!("{effects:?}") };
    let expected =
        [one("/a"), children("/a"), one("/a/b"), children("/a/b"), children("/"), ObjectSet::Subtree(path("/d"))];
    assert!(expected.iter().all(|set| dropped.contains(set)) && dropped.len() == expected.len(), "{dropped:?}");
    assert!(!client.may_serve("/a") && !client.may_serve("/a/b") && client.may_serve("/c"));
}

#[test]
fn transaction_answer_recalls_footprint_of_both_branches() {
    let mut client = Client::cached();
    let effects = client.write(1, Write::Transaction(Transaction::new().then(put_op("/a")).otherwise(put_op("/b"))));
    let write = client.only(&effects).0;
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    client.answer(write, answer_to(FAILED));
    client.answer(read, answer(Some(value(10)), Some(grant(4))));
    assert!(!client.may_serve("/b"), "the grant is older than the transaction");
}

#[test]
fn session_attachments_follow_chosen_branch() {
    let has_attached = |client: &Client, at: &str| {
        client.holder.volumes.get(&NodePath::root()).is_some_and(|root| root.attached.contains_key(&path(at)))
    };
    for failed in [None, FAILED] {
        let mut client = Client::leased();
        let effects = client.write(1, Write::put(path("/old"), "v".into()));
        let send_id = client.only(&effects).0;
        client.answer(send_id, answer_to(None));
        let transaction = Transaction::new().then(attach("/a")).otherwise(attach("/b"));
        let effects = client.write(2, Write::Transaction(transaction));
        let send_id = client.only(&effects).0;
        client.answer(send_id, answer_to(failed));
        assert_eq!((has_attached(&client, "/a"), has_attached(&client, "/b")), (failed.is_none(), failed.is_some()));
        let effects =
            client.write(3, Write::Transaction(Transaction::new().then(put_op("/a")).otherwise(put_op("/b"))));
        let send_id = client.only(&effects).0;
        client.answer(send_id, answer_to(failed));
        assert!(
            !has_attached(&client, "/a") && !has_attached(&client, "/b"),
            "the second transaction detached the nodes"
        );
    }
}

#[test]
fn transaction_waits_for_lease_its_node_attaches_to() {
    let mut client = Client::registered();
    let transaction = || Transaction::new().then(put_op("/a")).otherwise(attach("/b"));
    let effects = client.write(1, Write::Transaction(transaction()));
    let (send_id, request) = client.only(&effects);
    let body = Body::Acquire { path: path("/b"), last_valid: None, read: None };
    assert_eq!(request.body, body, "the lease is requested first");
    let acquired = AcquiredVolume { promise: promise("/", 1), stamp: stamp(1), revival: Revival::None, read: None };
    let effects = client.answer(send_id, Answer::Acquired(acquired));
    let Body::Write { write, .. } = client.only(&effects).1.body else { panic!("{effects:?}") };
    assert_eq!(write, Write::Transaction(transaction()));
}

#[test]
fn transaction_in_a_volume_that_was_not_known_is_sent_again() {
    let mut client = Client::leased();
    let effects = client.write(1, Write::Transaction(Transaction::new().then(attach("/v/a"))));
    let send_id = client.only(&effects).0;
    let refusal = Box::new(WriteRefusal::NoVolumeLease { path: path("/v/a"), volume: path("/v") });
    let effects =
        client.refuse(send_id, Refusal::Write(WriteRefusal::Operation { branch: Branch::Then, index: 0, refusal }));
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }), "{request:?}");
    let effects = client.answer(acquire, acquired("/v", 2, 50));
    assert!(matches!(client.only(&effects).1.body, Body::Write { write: Write::Transaction(_), .. }));
}

#[test]
fn transaction_keeps_the_leases_of_its_volumes_in_use() {
    let mut client = Client::leased();
    let put = |client: &mut Client, write| {
        let effects = client.write(write, Write::Transaction(Transaction::new().then(put_op("/a"))));
        let (send_id, request) = client.only(&effects);
        client.answer_renewing(send_id, answer_to(None));
        request.header.renew
    };
    client.now = at(106);
    assert_eq!(put(&mut client, 1), [root(1)]);
    client.now = at(112);
    assert_eq!(put(&mut client, 2), [root(1)]);
}
