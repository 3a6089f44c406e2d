//! Tests of the counts and of the refusals.

use std::time::Duration;

use super::{super::fixture::*, *};
use crate::{
    command::{AnyLease, Attach, Command, Condition, Outcome, Proposal, Written},
    id::{LeaseId, SessionId, Token},
    lock::LockMode,
    object::Value,
    quota::Quota,
    transaction::Compare,
    volume::VolumeSettings,
};

fn with_nodes(nodes: u64) -> VolumeSettings {
    settings(Duration::from_secs(5)).with_quota(Quota { nodes: Some(nodes), bytes: None })
}

fn with_bytes(bytes: u64) -> VolumeSettings {
    settings(Duration::from_secs(5)).with_quota(Quota { nodes: None, bytes: Some(bytes) })
}

fn create(at: &str, settings: VolumeSettings) -> Write {
    Write::CreateVolume { path: path(at), settings }
}

fn set(at: &str, settings: VolumeSettings) -> Write {
    Write::SetVolume { path: path(at), settings }
}

fn transaction(then: Vec<Operation>) -> Write {
    Write::Transaction(Transaction { then, ..Transaction::new() })
}

fn fixture() -> (Fixture, SessionId) {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    (fixture, session)
}

fn used(fixture: &Fixture, top: &str) -> (u64, u64) {
    assert_eq!(fixture.state.check(), Ok(()));
    let used = fixture.state.volume_use(&path(top));
    (used.nodes, used.bytes)
}

fn refused(at: &str, top: &str, figure: QuotaFigure, got: u64, most: u64) -> Result<Written, WriteRefusal> {
    Err(WriteRefusal::QuotaExceeded { path: path(at), volume: path(top), figure, got, most })
}

#[test]
fn paths_and_values_count_for_the_innermost_volume() {
    let (mut fixture, session) = fixture();
    assert_eq!(used(&fixture, "/"), (1, 1), "the root");
    fixture.put(session, "/a/b", "123");
    assert_eq!(used(&fixture, "/"), (3, 1 + 2 + 4 + 3));
    fixture.put(session, "/a/b", "1");
    assert_eq!(used(&fixture, "/"), (3, 8));
    fixture.write(session, create_volume("/a", 5)).expect("new");
    assert_eq!((used(&fixture, "/"), used(&fixture, "/a")), ((1, 1), (2, 7)));
    fixture.put(session, "/a/c/d", "");
    fixture.write(session, create_volume("/a/c", 5)).expect("new");
    fixture.write(session, create_volume("/x/v", 5)).expect("new");
    assert_eq!((used(&fixture, "/a"), used(&fixture, "/a/c")), ((2, 7), (2, 10)));
    assert_eq!((used(&fixture, "/"), used(&fixture, "/x/v")), ((2, 3), (1, 4)), "the volume's node is its own");
    fixture.write(session, Write::RemoveVolume { path: path("/a") }).expect("a volume");
    assert_eq!((used(&fixture, "/"), used(&fixture, "/a/c")), ((4, 10), (2, 10)), "an inner volume keeps its nodes");
    fixture.write(session, create_volume("/a", 5)).expect("new");
    assert_eq!((used(&fixture, "/"), used(&fixture, "/a"), used(&fixture, "/a/c")), ((2, 3), (2, 7), (2, 10)));
    fixture.write(session, delete("/a/b", false)).expect("a leaf");
    assert_eq!(used(&fixture, "/a"), (1, 2));
    assert_eq!(used(&fixture, "/none"), (0, 0));
}

#[test]
fn put_beyond_quota_is_refused_with_the_figures() {
    let (mut fixture, session) = fixture();
    fixture.write(session, create("/v", with_nodes(3))).expect("new");
    fixture.put(session, "/v/a", "");
    let before = fixture.state.revision();
    let refusal = fixture.write(session, put("/v/b/c", "")).expect_err("two more nodes");
    assert_eq!(Err(refusal.clone()), refused("/v/b/c", "/v", QuotaFigure::Nodes, 4, 3));
    assert_eq!(refusal.to_string(), "/v/b/c: the volume /v would have 4 nodes; its quota is 3");
    assert_eq!((fixture.state.revision(), used(&fixture, "/v").0), (before, 2));
    fixture.put(session, "/v/b", "as long as it likes");
    fixture.put(session, "/elsewhere/a/b/c", "");
    fixture.write(session, delete("/v/a", false)).expect("deletes go on");
    fixture.put(session, "/v/b/c", "");
    assert_eq!(used(&fixture, "/v").0, 3);
}

#[test]
fn value_beyond_quota_of_bytes_is_refused() {
    let (mut fixture, session) = fixture();
    // The paths take 2 and 4 bytes.
    fixture.write(session, create("/v", with_bytes(10))).expect("new");
    fixture.put(session, "/v/a", "1234");
    assert_eq!(used(&fixture, "/v"), (2, 10));
    let refusal = refused("/v/a", "/v", QuotaFigure::Bytes, 11, 10);
    assert_eq!(fixture.write(session, put("/v/a", "12345")), refusal);
    fixture.put(session, "/v/a", "4321");
    fixture.put(session, "/v/a", "");
    fixture.put(session, "/v/b", "");
    let error = fixture.write(session, put("/v/c", "")).expect_err("a path counts too").to_string();
    assert_eq!(error, "/v/c: the volume /v would have 14 bytes; its quota is 10");
}

#[test]
fn quota_below_present_use_refuses_growth_only() {
    let (mut fixture, session) = fixture();
    for at in ["/v/a", "/v/b", "/v/c"] {
        fixture.put(session, at, "1234");
    }
    let quota = Quota { nodes: Some(1), bytes: Some(1) };
    fixture.write(session, create("/v", settings(Duration::from_secs(5)).with_quota(quota))).expect("over at once");
    assert_eq!(used(&fixture, "/v"), (4, 26));
    fixture.put(session, "/v/a", "4321");
    fixture.put(session, "/v/a", "432");
    assert_eq!(
        fixture.write(session, put("/v/a", "4321")),
        refused("/v/a", "/v", QuotaFigure::Bytes, 26, 1),
        "what it was before counts no more"
    );
    assert_eq!(fixture.write(session, put("/v/d", "")), refused("/v/d", "/v", QuotaFigure::Nodes, 5, 1));
    fixture.write(session, delete("/v/b", false)).expect("deletes go on");
    fixture.write(session, set("/v", with_nodes(2))).expect("below the present use");
    fixture.write(session, set("/v", with_nodes(4))).expect("above it");
    fixture.put(session, "/v/d", "");
    fixture.write(session, set("/v", VolumeSettings::DEFAULT)).expect("no quota");
    fixture.put(session, "/v/e/f/g", "");
    assert_eq!(used(&fixture, "/v").0, 7);
}

#[test]
fn removed_inner_volume_may_take_the_outer_one_above_its_quota() {
    let (mut fixture, session) = fixture();
    fixture.write(session, create("/v", with_nodes(2))).expect("new");
    fixture.write(session, create_volume("/v/w", 5)).expect("new");
    fixture.put(session, "/v/w/a/b", "");
    fixture.put(session, "/v/x", "");
    fixture.write(session, Write::RemoveVolume { path: path("/v/w") }).expect("never refused for a quota");
    assert_eq!(used(&fixture, "/v").0, 5);
    assert_eq!(fixture.write(session, put("/v/y", "")), refused("/v/y", "/v", QuotaFigure::Nodes, 6, 2));
    fixture.write(session, create_volume("/v/w", 5)).expect("moving nodes away is always accepted");
    assert_eq!(used(&fixture, "/v").0, 2);
    let above = refused("/v/y/z", "/v", QuotaFigure::Nodes, 4, 2);
    assert_eq!(fixture.write(session, create_volume("/v/y/z/u", 5)), above, "the nodes above the new volume");
    fixture.write(session, create_volume("/v/z", 5)).expect("its node is its own");
    assert_eq!((used(&fixture, "/v").0, used(&fixture, "/v/z").0), (2, 1));
}

#[test]
fn net_effect_of_transaction_counts() {
    let (mut fixture, session) = fixture();
    fixture.write(session, create("/v", with_nodes(4))).expect("new");
    fixture.write(session, create("/w", with_bytes(20))).expect("new");
    for at in ["/v/a/b", "/v/c"] {
        fixture.put(session, at, "");
    }
    let before = fixture.state.revision();
    let put = |at: &str| Operation::put(path(at), "");
    let grows = transaction(vec![put("/other"), put("/v/d/e"), put("/v/d"), Operation::delete(path("/v/c"))]);
    assert_eq!(fixture.write(session, grows), refused("/v/d/e", "/v", QuotaFigure::Nodes, 5, 4));
    assert_eq!((fixture.state.revision(), fixture.state.node(&path("/other"))), (before, None), "all or nothing");
    let moves = transaction(vec![put("/v/d/e"), Operation::Delete { path: path("/v/a"), recursive: true }]);
    fixture.write(session, moves).expect("as many nodes as before");
    assert_eq!(used(&fixture, "/v").0, 4);

    let swapped = vec![Operation::put(path("/w/a"), "12345"), Operation::put(path("/w/b"), "12345")];
    fixture.write(session, transaction(swapped)).expect("2 + 9 + 9 bytes");
    let longer = vec![Operation::put(path("/w/a"), "1234567"), Operation::put(path("/w/b"), "1234")];
    assert_eq!(
        fixture.write(session, transaction(longer)),
        refused("/w/a", "/w", QuotaFigure::Bytes, 21, 20),
        "the values of both nodes"
    );
    let even = vec![Operation::put(path("/w/a"), "1234567"), Operation::put(path("/w/b"), "123")];
    fixture.write(session, transaction(even)).expect("one value grows as the other shrinks");
    let other = Transaction::new().when(Compare::absent(path("/"))).then(put("/v/x")).otherwise(put("/v/c"));
    fixture.write(session, Write::Transaction(other)).expect("only the chosen branch counts");
}

/// Also after a subtree with as many nodes as a command may delete.
#[test]
fn each_delete_of_transaction_makes_room() {
    let (mut fixture, session) = fixture();
    fixture.write(session, create("/v", VolumeSettings::DEFAULT)).expect("new");
    let puts: Vec<Operation> =
        (1..State::REMOVED_NODES_MAX).map(|number| Operation::put(path(&format!("/v/full/{number}")), "")).collect();
    let (epoch, time) = (fixture.state.epoch(), fixture.state.cluster_time());
    let fill = |puts: &[Operation]| fixture.command(session, transaction(puts.to_vec()));
    let commands = puts.chunks(Transaction::OPERATIONS_MAX).map(fill).collect();
    fixture.apply(&Proposal { epoch, number: 1, time, commands });
    let full = used(&fixture, "/v").1;
    fixture.put(session, "/v/leaf", &"x".repeat(1000));
    fixture.write(session, set("/v", with_bytes(used(&fixture, "/v").1))).expect("as much as there is");
    let value = "x".repeat(usize::try_from(full).expect("small") + 500);
    let moves = transaction(vec![
        Operation::Delete { path: path("/v/full"), recursive: true },
        Operation::delete(path("/v/leaf")),
        Operation::put(path("/v/new"), value.as_str()),
    ]);
    fixture.write(session, moves).expect("the leaf makes room too");
}

#[test]
fn ended_lease_makes_room_when_its_nodes_are_purged() {
    let (mut fixture, session) = fixture();
    fixture.write(session, create("/v", with_nodes(4))).expect("new");
    let lease = LeaseId(7);
    let grant = || Write::GrantLease { id: Some(lease), name: None, ttl: Duration::from_secs(9) };
    let attached = |at: &str| Write::Put {
        path: path(at),
        value: Value::from_static(b"v"),
        condition: Condition::Any,
        attach: Attach::Lease(lease),
    };
    fixture.write(session, grant()).expect("new");
    for at in ["/v/a/x", "/v/y", "/z"] {
        fixture.write(session, attached(at)).expect("there is room");
    }
    assert_eq!(used(&fixture, "/v"), (4, 2 + 4 + 7 + 5));
    let record = fixture.state.lease(&AnyLease::KeyLease(lease)).expect("granted").clone();
    let (incarnation, horizon) = (record.incarnation, record.horizon);
    let end = fixture.run(Command::Expire { lease: AnyLease::KeyLease(lease), incarnation, horizon });
    assert_eq!(end, Outcome::Expired, "the end of a lease is never refused");
    assert_eq!(fixture.write(session, put("/v/b", "")), refused("/v/b", "/v", QuotaFigure::Nodes, 5, 4));
    assert_eq!(fixture.run(Command::Purge { leases: vec![incarnation] }), Outcome::Purged { nodes: 3 });
    assert_eq!(used(&fixture, "/v"), (2, 6));
    fixture.put(session, "/v/b", "");

    fixture.write(session, grant()).expect("ended");
    fixture.write(session, attached("/v/y")).expect("the last room");
    fixture.write(session, Write::RevokeLease { id: lease, incarnation: None }).expect("granted");
    assert_eq!(used(&fixture, "/v").0, 3);
}

#[test]
fn flush_beyond_quota_is_refused_and_the_write_lease_can_end() {
    let (mut fixture, session) = fixture();
    fixture.write(session, create("/v", with_bytes(10))).expect("new");
    fixture.put(session, "/v/a", "1234");
    fixture.acquire(session, "/v");
    let lock = Write::Lock { path: path("/v/a"), mode: LockMode::Exclusive, wait: true, delay: Duration::ZERO };
    let lock = fixture.write(session, lock).expect("free").lock.expect("granted").lock;
    let token = fixture.state.locks().find_map(|(_, _, record)| record.token).expect("granted");
    fixture.write(session, Write::TakeWriteLease { path: path("/v/a"), lock }).expect("exclusive");
    let flush = |token: Token, value: Option<&'static str>| Write::Flush {
        path: path("/v/a"),
        lock,
        token,
        value: value.map(|value| Value::from_static(value.as_bytes())),
        ends_write_lease: true,
    };
    let refusal = refused("/v/a", "/v", QuotaFigure::Bytes, 11, 10);
    assert_eq!(fixture.write(session, flush(token, Some("12345"))), refusal);
    assert!(fixture.state.write_leased_lock(&path("/v/a")).is_some());
    fixture.write(session, flush(token, None)).expect("without a value");
    assert!(fixture.state.write_leased_lock(&path("/v/a")).is_none());
}
