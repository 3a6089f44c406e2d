//! Tests of comparisons and of overlapping operations.

use super::*;
use crate::id::LeaseId;

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("a valid path")
}

fn stored(value: &'static str, create: u64, modify: u64, version: u64) -> Data {
    let (create_revision, modify_revision) = (Revision(create), Revision(modify));
    let stat = Stat { create_revision, modify_revision, version, value_len: value.len() as u64, owner: None };
    Data { value: Value::from_static(value.as_bytes()), stat }
}

#[test]
fn a_comparison_holds_as_its_relation_says() {
    let data = stored("m", 3, 7, 2);
    let true_for = |make: &dyn Fn(Relation) -> Compare| {
        let all = [Relation::Equal, Relation::NotEqual, Relation::Less, Relation::Greater];
        all.map(|relation| make(relation).matches(Some(&data), |_| false))
    };
    let (same, less, more) = ([true, false, false, false], [false, true, true, false], [false, true, false, true]);
    for (than, expected) in [("m", same), ("n", less), ("ma", less), ("l", more), ("", more)] {
        assert_eq!(true_for(&|relation| Compare::value(path("/a"), relation, than)), expected, "{than}");
    }
    for (than, expected) in [(2, same), (3, less), (1, more)] {
        assert_eq!(true_for(&|relation| Compare::version(path("/a"), relation, than)), expected);
    }
    for (than, expected) in [(7, same), (8, less), (3, more)] {
        assert_eq!(true_for(&|relation| Compare::modify_revision(path("/a"), relation, Revision(than))), expected);
    }
    for (than, expected) in [(3, same), (7, less), (2, more)] {
        assert_eq!(true_for(&|relation| Compare::create_revision(path("/a"), relation, Revision(than))), expected);
    }
    assert!(
        Compare::exists(path("/a")).matches(Some(&data), |_| false)
            && !Compare::absent(path("/a")).matches(Some(&data), |_| false)
    );
}

#[test]
fn absent_node_compares_as_zero_and_has_no_value() {
    let at = || path("/none");
    assert!(Compare::absent(at()).matches(None, |_| false) && !Compare::exists(at()).matches(None, |_| false));
    assert!(Compare::version(at(), Relation::Equal, 0).matches(None, |_| false));
    assert!(!Compare::version(at(), Relation::Greater, 0).matches(None, |_| false));
    assert!(Compare::modify_revision(at(), Relation::Less, Revision(1)).matches(None, |_| false));
    assert!(Compare::create_revision(at(), Relation::Equal, Revision(0)).matches(None, |_| false));
    for relation in [Relation::Equal, Relation::NotEqual, Relation::Less, Relation::Greater] {
        assert!(!Compare::value(at(), relation, "").matches(None, |_| false), "{relation}");
    }
}

#[test]
fn operations_of_one_branch_must_not_overlap() {
    let put = |at: &str| Operation::put(path(at), "x");
    let attach = |at: &str| Operation::Put { path: path(at), value: Value::new(), attach: Attach::Lease(LeaseId(1)) };
    let keep = |at: &str| Operation::Put { path: path(at), value: Value::new(), attach: Attach::Unchanged };
    let delete = |at: &str| Operation::delete(path(at));
    let of = |one: &Operation, other: &Operation| {
        Transaction { then: vec![put("/z"), one.clone(), other.clone()], ..Transaction::new() }.check_overlaps()
    };
    for (one, other) in [
        (put("/a"), put("/a")),
        (put("/a"), delete("/a")),
        (delete("/a"), put("/a/b")),
        (delete("/a"), delete("/a/b/c")),
        (attach("/a"), put("/a/b")),
        (attach("/a"), delete("/a/b")),
    ] {
        let overlap = |path: &NodePath| Err(Overlap { branch: Branch::Then, first: 1, second: 2, path: path.clone() });
        assert_eq!(of(&one, &other), overlap(other.path()), "{one:?} {other:?}");
        assert_eq!(of(&other, &one), overlap(one.path()), "{other:?} {one:?}");
    }
    for (one, other) in [
        (put("/a"), put("/a/b")),
        (keep("/a"), put("/a/b")),
        (put("/a"), delete("/a/b")),
        (delete("/a"), put("/ab")),
        (delete("/a/b"), attach("/a/c")),
    ] {
        assert_eq!((of(&one, &other), of(&other, &one)), (Ok(()), Ok(())), "{one:?} {other:?}");
    }
    let either = Transaction::new().then(put("/a")).otherwise(delete("/a"));
    assert_eq!(either.check_overlaps(), Ok(()));
    let twice = Transaction::new().otherwise(put("/a")).otherwise(put("/a"));
    let overlap = Overlap { branch: Branch::Otherwise, first: 0, second: 1, path: path("/a") };
    assert_eq!(twice.check_overlaps(), Err(overlap.clone()));
    assert_eq!(
        crate::command::WriteRefusal::from(overlap).to_string(),
        "operations 1 and 2 of branch otherwise: both affect /a; operations of one branch must be independent"
    );
}

#[test]
fn it_is_as_large_as_all_that_it_names() {
    let transaction = Transaction::new()
        .when(Compare::value(path("/abc"), Relation::Equal, "12345"))
        .when(Compare::exists(path("/a")))
        .then(Operation::put(path("/bc"), "123"))
        .otherwise(Operation::delete(path("/d")));
    assert_eq!((transaction.value_bytes(), transaction.path_bytes()), (8, 4 + 2 + 3 + 2));
}
