//! Tests of write leases: their conditions, the writes that they block, and flushes.

use super::{super::fixture::*, *};
use crate::{
    command::{AnyLease, Command, Condition, Outcome},
    id::Revision,
    transaction::{Compare, Operation, Relation, Transaction},
};

use LockMode::{Exclusive, Shared};

fn lock(mode: LockMode) -> Write {
    Write::Lock { path: path("/a"), mode, wait: true, delay: std::time::Duration::ZERO }
}

fn cache(lock: LockId) -> Write {
    Write::TakeWriteLease { path: path("/a"), lock }
}

fn flush(lock: LockId, token: u64, value: Option<&str>, ends_write_lease: bool) -> Write {
    let value = value.map(|value| Value::copy_from_slice(value.as_bytes()));
    Write::Flush { path: path("/a"), lock, token: Token(token), value, ends_write_lease }
}

/// A node `/a`, and a session with a write lease on it: lock 1, token 2. Also returns another
/// session.
fn writer() -> (Fixture, SessionId, SessionId) {
    let mut fixture = Fixture::new();
    let (session, other) = (fixture.open(), fixture.open());
    for one in [session, other] {
        fixture.acquire(one, "/");
    }
    fixture.put(session, "/a", "old");
    fixture.write(session, lock(Exclusive)).expect("the node is not locked");
    fixture.write(session, cache(LOCK)).expect("the lock is exclusive");
    (fixture, session, other)
}

const LOCK: LockId = LockId(1);

fn value(fixture: &Fixture) -> Vec<u8> {
    fixture.state.node(&path("/a")).expect("the node exists").value.to_vec()
}

#[test]
fn write_lease_needs_exclusive_lock_on_unattached_node() {
    let mut fixture = Fixture::new();
    let (session, other) = (fixture.open(), fixture.open());
    for one in [session, other] {
        fixture.acquire(one, "/");
    }
    let not_found = WriteRefusal::LockNotFound { path: path("/a"), lock: LOCK };
    assert_eq!(fixture.write(session, cache(LOCK)), Err(not_found.clone()));
    fixture.write(session, lock(Shared)).expect("the node is not locked");
    assert_eq!(fixture.write(other, cache(LOCK)), Err(not_found), "the lock belongs to another session");
    let shared = WriteRefusal::NotExclusive { path: path("/a"), lock: LOCK };
    assert_eq!(fixture.write(session, cache(LOCK)), Err(shared));
    let convert = Write::ChangeLockMode { path: path("/a"), lock: LOCK, mode: Exclusive, wait: false };
    fixture.write(session, convert).expect("no other session has a lock");
    assert_eq!(fixture.write(session, cache(LOCK)), Err(WriteRefusal::NotFound { path: path("/a") }));
    let attached =
        Write::Put { path: path("/a"), value: Value::new(), condition: Condition::Any, attach: Attach::Session };
    fixture.write(session, attached).expect("there is a lease");
    assert_eq!(fixture.write(session, cache(LOCK)), Err(WriteRefusal::Attached { path: path("/a") }));
    fixture.put(session, "/a", "stays");
    let before = fixture.state.revision();
    assert_eq!(fixture.footprint(session, &cache(LOCK)), Ok(vec![data("/a")]), "the footprint is that of a change");
    assert_eq!(
        fixture.write(session, cache(LOCK)).expect("the lock is exclusive").revision,
        before,
        "the data does not change"
    );
    assert_eq!(fixture.state.write_leased_lock(&path("/a")).map(|(id, _)| id), Some(LOCK));
    fixture.write(session, cache(LOCK)).expect("a repetition changes nothing");
    let waits = fixture.write(other, lock(Exclusive)).expect("the request waits").lock.expect("a lock").lock;
    let refusal = WriteRefusal::LockNotGranted { path: path("/a"), lock: waits };
    assert_eq!(fixture.write(other, cache(waits)), Err(refusal));
}

#[test]
fn write_lease_defers_writes_and_compares_of_its_data() {
    let (mut fixture, session, other) = writer();
    let compare = |target| Compare { path: path("/a"), target };
    let transaction = |compare| {
        let then = vec![Operation::Delete { path: path("/b"), recursive: false }];
        Write::Transaction(Transaction { compares: vec![compare], then, otherwise: Vec::new() })
    };
    let put_off = [
        put("/a", "new"),
        delete("/a", false),
        create_volume("/a", 5),
        Write::SetVolume { path: NodePath::root(), settings: crate::volume::VolumeSettings::DEFAULT },
        transaction(compare(CompareTarget::Version(Relation::Equal, 1))),
        transaction(compare(CompareTarget::Exists(false))),
    ];
    for write in put_off {
        for requester in [session, other] {
            let command = fixture.command(requester, write.clone());
            assert_eq!(fixture.run(command), Outcome::MissingConsents, "{write:?} of {requester}");
        }
    }
    for write in
        [put("/b", "beside"), put("/a/b", "below"), transaction(compare(CompareTarget::Locked(true, Token(2))))]
    {
        let command = fixture.command(other, write.clone());
        assert!(matches!(fixture.run(command), Outcome::Written(_)), "{write:?}");
    }
    assert_eq!(value(&fixture), b"old");
}

#[test]
fn flushed_value_is_visible_and_write_lease_continues() {
    let (mut fixture, session, other) = writer();
    let written = fixture.write(session, flush(LOCK, 2, Some("new"), false)).expect("under its token");
    assert_eq!((written.revision, written.stat.expect("a stat").version), (Revision(2), 2));
    assert_eq!(value(&fixture), b"new");
    let command = fixture.command(other, put("/a", "other's"));
    assert_eq!(fixture.run(command), Outcome::MissingConsents);
    let written = fixture.write(session, flush(LOCK, 2, None, true)).expect("under its token");
    assert_eq!((written.revision, written.stat), (Revision(2), None), "the flush has no value");
    fixture.put(other, "/a", "other's");
    let refusal = WriteRefusal::NotAWriteLease { path: path("/a"), lock: LOCK };
    assert_eq!(fixture.write(session, flush(LOCK, 2, Some("late"), false)), Err(refusal));
    assert!(fixture.state.has_lock_in(&path("/a"), Token(2)), "the lock is still granted");
    assert_eq!(value(&fixture), b"other's");
}

#[test]
fn flush_with_wrong_token_or_session_is_refused() {
    let (mut fixture, session, other) = writer();
    let expected = Token(2);
    let refusal = WriteRefusal::TokenMismatch { path: path("/a"), lock: LOCK, got: Token(1), expected };
    assert_eq!(fixture.write(session, flush(LOCK, 1, Some("old"), false)), Err(refusal));
    let refusal = WriteRefusal::LockNotFound { path: path("/a"), lock: LOCK };
    assert_eq!(fixture.write(other, flush(LOCK, 2, Some("new"), false)), Err(refusal));
    assert_eq!(value(&fixture), b"old");
}

#[test]
fn write_lease_ends_with_its_lock() {
    let ends: [fn(&mut Fixture, SessionId); 4] = [
        |fixture, session| {
            fixture.write(session, Write::Unlock { path: path("/a"), lock: LOCK }).expect("the lock is granted");
        },
        |fixture, session| {
            let write = Write::ChangeLockMode { path: path("/a"), lock: LOCK, mode: Shared, wait: false };
            fixture.write(session, write).expect("the lock is granted");
        },
        |fixture, session| {
            assert_eq!(fixture.run(Command::CloseSession { session }), Outcome::SessionClosed);
        },
        |fixture, session| {
            let lease = AnyLease::Volume(session, NodePath::root());
            let found = fixture.state.lease(&lease).expect("a lease");
            let (incarnation, horizon) = (found.incarnation, found.horizon);
            assert_eq!(fixture.run(Command::Expire { lease, incarnation, horizon }), Outcome::Expired);
        },
    ];
    for end in ends {
        let (mut fixture, session, other) = writer();
        end(&mut fixture, session);
        assert!(fixture.state.write_leased_lock(&path("/a")).is_none());
        fixture.put(other, "/a", "other's");
        assert_eq!(fixture.state.check(), Ok(()));
    }
}

#[test]
fn lost_write_lease_with_delay_blocks_lockers_not_readers() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.acquire(session, "/");
    fixture.put(session, "/a", "old");
    let delay = std::time::Duration::from_secs(5);
    let write = Write::Lock { path: path("/a"), mode: Exclusive, wait: true, delay };
    fixture.write(session, write).expect("the node is not locked");
    fixture.write(session, cache(LOCK)).expect("the lock is exclusive");
    let lease = AnyLease::Volume(session, NodePath::root());
    let found = fixture.state.lease(&lease).expect("a lease");
    let (incarnation, horizon) = (found.incarnation, found.horizon);
    assert_eq!(fixture.run(Command::Expire { lease, incarnation, horizon }), Outcome::Expired);
    assert_eq!(fixture.state.locks_on(&path("/a")).count(), 1, "the lock delay");
    assert!(fixture.state.write_leased_lock(&path("/a")).is_none());
    assert_eq!(fixture.state.check(), Ok(()));
}

#[test]
fn write_leases_are_found_in_sets_that_contain_them() {
    let (fixture, ..) = writer();
    let found = |set: ObjectSet| fixture.state.write_leased_in(&set).cloned().collect::<Vec<_>>();
    for set in [data("/a"), subtree("/a"), subtree("/")] {
        assert_eq!(found(set.clone()), [path("/a")], "{set:?}");
    }
    for set in [children("/a"), children("/"), data("/b"), subtree("/a/b"), subtree("/b")] {
        assert_eq!(found(set.clone()), [], "{set:?}");
    }
}
