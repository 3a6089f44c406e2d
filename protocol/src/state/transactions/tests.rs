//! The effects of transactions on the tree, and their refusals.

use super::{super::fixture::*, *};
use crate::{
    command::{AnyLease, Attach, Command, IntendedLeases, Outcome, Write},
    id::{LeaseId, Sequence},
    object::{Stat, Value},
    transaction::{Compare, Relation},
};

fn fixture() -> (Fixture, SessionId) {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    (fixture, session)
}

fn put_op(at: &str, value: &'static str) -> Operation {
    Operation::put(path(at), value)
}

fn delete_op(at: &str) -> Operation {
    Operation::delete(path(at))
}

fn has(at: &str, value: &'static str) -> Compare {
    Compare::value(path(at), Relation::Equal, value)
}

fn transact(fixture: &mut Fixture, session: SessionId, transaction: Transaction) -> (Revision, Transacted) {
    let written = fixture.write(session, Write::Transaction(transaction)).expect("the write is not refused");
    let transacted = *written.transaction.clone().expect("a transaction's results");
    assert_eq!((written.stat, written.removed, written.lease), (None, 0, None));
    (written.revision, transacted)
}

fn put_result(create: u64, modify: u64, version: u64, value_len: u64) -> OperationResult {
    let (create_revision, modify_revision) = (Revision(create), Revision(modify));
    OperationResult::Put(Stat { create_revision, modify_revision, version, value_len, owner: None })
}

#[test]
fn transaction_is_one_change_with_results_in_order() {
    let (mut fixture, session) = fixture();
    fixture.put(session, "/gone/below", "");
    fixture.put(session, "/kept", "one");
    let transaction = Transaction::new()
        .then(put_op("/new/b", "bb"))
        .then(Operation::Delete { path: path("/gone"), recursive: true })
        .then(put_op("/new", "n"))
        .then(put_op("/kept", "two"))
        .then(put_op("/new/a", ""));
    let footprint = fixture.footprint(session, &Write::Transaction(transaction.clone()));
    let sets = vec![subtree("/new"), children("/"), subtree("/gone"), data("/new"), children("/new"), data("/kept")];
    assert_eq!(footprint, Ok(sets.clone()));
    let (revision, transacted) = transact(&mut fixture, session, transaction);
    let results = vec![
        put_result(3, 3, 1, 2),
        OperationResult::Deleted(2),
        put_result(3, 3, 1, 1),
        put_result(2, 3, 2, 3),
        put_result(3, 3, 1, 0),
    ];
    assert_eq!((revision, transacted), (Revision(3), Transacted { failed: None, results }));
    assert_eq!(fixture.state.change(Revision(3)).map(|change| &change.sets), Some(&sets), "one change in the history");
    assert_eq!(fixture.state.data(&path("/new")).expect("made").value, "n", "the ancestor has its own value");
}

#[test]
fn transaction_changes_list_of_children_once() {
    let (mut fixture, session) = fixture();
    fixture.put(session, "/a/x", "");
    let transaction = Transaction::new()
        .then(put_op("/a/y", ""))
        .then(delete_op("/a/x"))
        .then(put_op("/a/z", ""))
        .then(put_op("/b/c", ""))
        .then(put_op("/b/d", ""));
    transact(&mut fixture, session, transaction);
    let children = |at: &str| fixture.state.children(&path(at)).expect("the node exists");
    assert_eq!((children("/a").names, children("/a").version), (vec!["y".to_owned(), "z".to_owned()], 2));
    assert_eq!((children("/b").names, children("/b").version), (vec!["c".to_owned(), "d".to_owned()], 1));
    assert_eq!((children("/").version, children("/").modify_revision), (2, Revision(2)));
}

#[test]
fn compares_choose_branch_and_first_failure_is_named() {
    let (mut fixture, session) = fixture();
    fixture.put(session, "/a", "one");
    let transaction = |value| {
        Transaction::new()
            .when(Compare::exists(path("/a")))
            .when(has("/a", value))
            .when(Compare::absent(path("/b")))
            .then(put_op("/a", "two"))
            .otherwise(put_op("/b", "other"))
    };
    let write = |value| Write::Transaction(transaction(value));
    assert_eq!(fixture.footprint(session, &write("one")), Ok(vec![data("/a")]));
    assert_eq!(fixture.footprint(session, &write("none")), Ok(vec![data("/b"), children("/b"), children("/")]));
    let (revision, transacted) = transact(&mut fixture, session, transaction("one"));
    assert_eq!((revision, transacted.branch(), transacted.failed), (Revision(2), Branch::Then, None));
    let found = fixture.state.node(&path("/a")).map(|node| node.stat());
    let (revision, transacted) = transact(&mut fixture, session, transaction("one"));
    assert_eq!((revision, transacted.branch()), (Revision(3), Branch::Otherwise));
    assert_eq!(transacted.failed, Some(FailedCompare { index: 1, found }));
    let (_, transacted) = transact(&mut fixture, session, Transaction::new().when(Compare::exists(path("/none"))));
    assert_eq!(transacted.failed, Some(FailedCompare { index: 0, found: None }));
}

#[test]
fn empty_branch_changes_nothing_and_takes_no_revision() {
    let (mut fixture, session) = fixture();
    fixture.put(session, "/a", "one");
    let transaction = Transaction::new().when(has("/a", "two")).then(put_op("/a", "three"));
    let before = (fixture.state.revision(), fixture.state.data(&path("/a")));
    let (revision, transacted) = transact(&mut fixture, session, transaction);
    assert_eq!((revision, transacted.results.len(), transacted.succeeded()), (Revision(1), 0, false));
    assert_eq!((fixture.state.revision(), fixture.state.data(&path("/a"))), before);
}

#[test]
fn transaction_with_refused_operation_does_nothing() {
    let (mut fixture, session) = fixture();
    fixture.put(session, "/a/b", "");
    fixture
        .write(session, Write::GrantLease { id: Some(LeaseId(7)), name: None, ttl: std::time::Duration::from_secs(9) })
        .expect("new");
    let attach =
        |at: &str, id| Operation::Put { path: path(at), value: Value::new(), attach: Attach::Lease(LeaseId(id)) };
    let refused = [
        (delete_op("/none"), WriteRefusal::NotFound { path: path("/none") }),
        (delete_op("/a"), WriteRefusal::HasChildren { path: path("/a"), children: 1 }),
        (delete_op("/"), WriteRefusal::Root { path: path("/") }),
        (attach("/a", 7), WriteRefusal::NotALeaf { path: path("/a") }),
        (attach("/c", 8), WriteRefusal::LeaseNotFound { id: LeaseId(8) }),
    ];
    let nodes = |fixture: &Fixture| {
        fixture.state.nodes_from(&NodePath::root()).map(|(at, _)| at.to_string()).collect::<Vec<_>>()
    };
    for (operation, refusal) in refused {
        let transaction = Transaction::new().then(put_op("/new", "1")).then(operation);
        let refusal = match refusal {
            // All nodes are below the root.
            WriteRefusal::Root { .. } => {
                WriteRefusal::Overlap { branch: Branch::Then, first: 0, second: 1, path: path("/") }
            }
            refusal => WriteRefusal::Operation { branch: Branch::Then, index: 1, refusal: Box::new(refusal) },
        };
        assert_eq!(fixture.write(session, Write::Transaction(transaction)), Err(refusal));
        assert_eq!(
            (nodes(&fixture), fixture.state.revision()),
            (vec!["/".to_owned(), "/a".to_owned(), "/a/b".to_owned()], Revision(1))
        );
    }
    let either = Transaction::new().when(has("/a", "x")).then(delete_op("/none")).otherwise(put_op("/new", "1"));
    let (_, transacted) = transact(&mut fixture, session, either);
    assert_eq!(transacted.results, [put_result(2, 2, 1, 1)], "a refusal in the other branch does not count");
}

#[test]
fn overlapping_operations_are_refused_in_either_branch() {
    let (mut fixture, session) = fixture();
    let transaction =
        Transaction::new().then(put_op("/a", "")).otherwise(put_op("/b", "")).otherwise(put_op("/b", "2"));
    let refusal = WriteRefusal::Overlap { branch: Branch::Otherwise, first: 0, second: 1, path: path("/b") };
    assert_eq!(fixture.footprint(session, &Write::Transaction(transaction.clone())), Err(refusal.clone()));
    assert_eq!(fixture.write(session, Write::Transaction(transaction)), Err(refusal));
    assert_eq!(fixture.state.revision(), Revision(0));
}

#[test]
fn transaction_whose_branch_changed_is_not_covered() {
    let (mut fixture, session) = fixture();
    fixture.put(session, "/flag", "a");
    let transaction =
        Transaction::new().when(has("/flag", "a")).then(put_op("/x", "then")).otherwise(put_op("/y", "otherwise"));
    let write = Write::Transaction(transaction.clone());
    let consented = fixture.footprint(session, &write).expect("the write is not refused");
    assert_eq!(consented[0], data("/x"));
    fixture.put(session, "/flag", "b");
    let command = |consented| Command::Write {
        session,
        sequence: Sequence(9),
        unanswered_from: Sequence(1),
        write: write.clone(),
        consented,
        intended: IntendedLeases::default(),
        attached_through: Revision(0),
    };
    assert_eq!(fixture.run(command(consented)), Outcome::MissingConsents);
    assert_eq!(fixture.state.revision(), Revision(2));
    let both = fixture.state.footprint_of_both(session, &transaction, &IntendedLeases::default());
    let expected = [children("/"), data("/x"), children("/x"), data("/y"), children("/y")];
    assert!(both.len() == expected.len() && expected.iter().all(|set| both.contains(set)), "{both:?}");
    let first = fixture.run(command(both));
    let Outcome::Written(Ok(written)) = &first else { panic!("{first:?}") };
    assert_eq!(written.transaction.as_ref().expect("a transaction's results").branch(), Branch::Otherwise);
    fixture.put(session, "/flag", "a");
    assert_eq!(fixture.run(command(vec![])), first, "a repeated request gets the same outcome (S9)");
    assert!(fixture.state.node(&path("/x")).is_none());
}

#[test]
fn transaction_footprint_is_bounded_per_operation() {
    let (mut fixture, session) = fixture();
    fixture.put(session, "/deep", "");
    let deep = format!("/deep{}", "/x".repeat(40));
    let chain = Transaction::new().then(put_op(&deep, ""));
    let footprint = fixture.footprint(session, &Write::Transaction(chain));
    assert_eq!(footprint, Ok(vec![subtree("/deep/x"), children("/deep")]));
    let many = |top: &str| Transaction {
        then: (0..100).map(|number| put_op(&format!("{top}/{number:03}"), "")).collect(),
        ..Transaction::new()
    };
    fixture.put(session, "/all", "");
    let write = Write::Transaction(many("/all"));
    assert_eq!(fixture.footprint(session, &write).map(|sets| sets.len()), Ok(201));
    let (revision, _) = transact(&mut fixture, session, many("/all"));
    let sets = fixture.state.change(revision).map(|change| &change.sets);
    assert_eq!(sets, Some(&vec![subtree("/all")]), "the history has their common subtree");
    assert_eq!(fixture.state.children(&path("/all")).expect("the node exists").version, 1);
}

#[test]
fn transaction_attaches_nodes_as_each_operation_says() {
    let (mut fixture, session) = fixture();
    let grant = Write::GrantLease { id: Some(LeaseId(7)), name: None, ttl: std::time::Duration::from_secs(9) };
    fixture.write(session, grant).expect("new");
    fixture.acquire(session, "/");
    let attach = |at: &str, attach| Operation::Put { path: path(at), value: Value::new(), attach };
    let transaction = Transaction::new()
        .then(attach("/s/one", Attach::Session))
        .then(attach("/s/two", Attach::Lease(LeaseId(7))))
        .then(put_op("/s", "stays"));
    transact(&mut fixture, session, transaction);
    let removed = fixture
        .write(session, Write::RevokeLease { id: LeaseId(7), incarnation: None })
        .expect("the node exists")
        .removed;
    assert_eq!(removed, 1);
    assert_eq!(fixture.state.children(&path("/s")).expect("the node exists").names, ["one"]);
}

#[test]
fn answer_names_the_leases_of_the_branch_that_was_done() {
    let (mut fixture, session) = fixture();
    fixture.acquire(session, "/");
    let lease = fixture.state.lease(&AnyLease::Volume(session, path("/"))).expect("acquired").incarnation;
    let attach = |at: &str| Operation::Put { path: path(at), value: Value::default(), attach: Attach::Session };
    let both = |compare| {
        Write::Transaction(Transaction::new().when(compare).then(attach("/then")).otherwise(put_op("/otherwise", "")))
    };
    let result = |fixture: &mut Fixture, write| {
        let written = fixture.write(session, write).expect("the write is not refused");
        ["/then", "/otherwise"].map(|at| written.attached_to(&path(at)).map(|lease| lease.incarnation))
    };
    assert_eq!(result(&mut fixture, both(Compare::absent(path("/none"))))[0], Some(lease));
    assert_eq!(result(&mut fixture, both(Compare::exists(path("/none")))), [None, None]);
    let transaction = Transaction::new().when(Compare::exists(path("/none")));
    let transaction = transaction.then(put_op("/then", "")).otherwise(attach("/otherwise"));
    assert_eq!(result(&mut fixture, Write::Transaction(transaction))[1], Some(lease));
}
