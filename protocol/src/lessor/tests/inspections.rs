//! The work of an inspection of very many things is bounded (S10b).
//!
//! No answer does more than its bounds allow. One also scans a list of fixed length: *services*
//! examines each change of the history once. [`State::HISTORY_MAX`] bounds its length.

use super::*;
use crate::{
    command::Attach, id::LeaseId, lease_policy::LeaseRequest, lock::LockMode, message::NodesAfter,
    state::LOCKS_PER_NODE_MAX,
};

const FEW: u64 = 1_000;
const MANY: u64 = 100_000;

/// The bounds of one answer, low enough that even few things exceed them.
const ROWS_MAX: usize = 100;
const PLACES_MAX: usize = 200;
const INSPECTION_BYTES_MAX: usize = 800;

/// The most that a request examines besides.
const ASIDE: u64 = 8;

impl World {
    /// A leader that lets very many requests wait, and a session.
    fn of_a_crowd() -> (Self, SessionId) {
        let mut world = Self { is_checked: false, ..Self::new() };
        world.begin_anew();
        let session = world.session();
        world.acquire(session, None);
        (world, session)
    }

    /// A new leader with the same bounds. It knows what was filled in.
    fn begin_anew(&mut self) {
        let many = usize::MAX >> 1;
        let bounds = LessorBounds {
            writes_max: many,
            writes_bytes_max: many,
            reads_max: many,
            blocked_reads_max: many,
            renewals_per_second_max: 1 << 30,
            rows_max: ROWS_MAX,
            scan_max: PLACES_MAX,
            inspection_bytes_max: INSPECTION_BYTES_MAX,
            ..LessorBounds::DEFAULT
        };
        let config = LessorConfig { bounds, ..config(self.lessor.config.attempt + 1) };
        self.lessor = Lessor::new(config, &self.state, Duration::ZERO, self.now);
        self.commit();
    }

    /// How much one answer examines, and how many rows it has.
    fn inspected(&mut self, inspect: Inspect) -> (u64, usize) {
        crate::work::take_visited();
        let effects = self.request(SessionId(0), Body::Inspect(inspect));
        let visited = crate::work::take_visited();
        let rows = match answer(&effects) {
            Answer::Holders(rows) => rows.len(),
            Answer::PendingWrites(rows) => rows.len(),
            Answer::BlockedReads(rows) => rows.len(),
            Answer::Volumes(rows) => rows.len(),
            Answer::Lease(lease) => lease.expect("the node exists").nodes.len(),
            Answer::Leases(rows) => rows.len(),
            Answer::LockInfos(page) => page.locks.len(),
            Answer::Services(page) => page.services.len(),
            other => panic!("for people: {other:?}"),
        };
        (visited, rows)
    }
}

fn at(number: u64) -> String {
    format!("/n/{number:05}")
}

fn grant(id: u64) -> Write {
    Write::GrantLease { id: Some(LeaseId(id)), name: None, ttl: TERM }
}

/// The same work with few and with many, and as many rows as an answer has room for.
fn assert_bounded(visited_max: usize, rows: usize, inspected: impl Fn(u64) -> (u64, usize)) {
    let [few, many] = [FEW, MANY].map(inspected);
    assert_eq!(few, many, "work and rows with {FEW} and with {MANY}");
    assert_eq!(many.1, rows);
    assert!(many.0 <= visited_max as u64 + ASIDE, "{} visited: expected at most {visited_max}", many.0);
}

#[test]
fn volumes_beyond_one_answer_are_not_examined() {
    assert_bounded(ROWS_MAX, ROWS_MAX, |count| {
        let (mut world, session) = World::of_a_crowd();
        let volume = |number| Write::CreateVolume { path: path(&at(number)), settings: VolumeSettings::DEFAULT };
        world.fill_with(session, (0..count).map(volume));
        assert_eq!(world.state.volumes_below(&path("/n")).count() as u64, count);
        world.begin_anew();
        world.inspected(Inspect::Volumes { path: path("/n") })
    });
}

#[test]
fn leases_beyond_one_answer_are_not_examined() {
    for after in [None, Some(LeaseId(FEW / 2))] {
        assert_bounded(ROWS_MAX, ROWS_MAX, |count| {
            let (mut world, session) = World::of_a_crowd();
            world.fill_with(session, (1..=count).map(grant));
            assert_eq!(world.state.key_leases_after(None).count() as u64, count);
            world.begin_anew();
            world.inspected(Inspect::Leases { after })
        });
    }
}

#[test]
fn nodes_of_a_lease_beyond_one_answer_are_not_examined() {
    // It also examines the first node without room, and the node that the request names.
    let fit = INSPECTION_BYTES_MAX / at(0).len();
    for (nodes_after, rows) in
        [(None, 0), (Some(NodesAfter::Nothing), fit), (Some(NodesAfter::Path(path(&at(FEW / 2)))), fit)]
    {
        assert_bounded(if rows == 0 { 0 } else { rows + 2 }, rows, |count| {
            let (mut world, session) = World::of_a_crowd();
            world.fill_with(session, std::iter::once(grant(1)));
            // A lease has no more nodes.
            let count = count.min(State::REMOVED_NODES_MAX as u64);
            world.fill(session, (0..count).map(|number| (path(&at(number)), Attach::Lease(LeaseId(1)))));
            let lease = world.state.lease(&AnyLease::KeyLease(LeaseId(1))).expect("it is granted");
            assert_eq!(world.state.attached_node_count(lease.incarnation) as u64, count);
            world.begin_anew();
            world.inspected(Inspect::Lease { id: LeaseId(1), nodes_after: nodes_after.clone() })
        });
    }
}

#[test]
fn locks_beyond_one_answer_are_not_examined() {
    assert_bounded(ROWS_MAX, ROWS_MAX, |count| {
        let (mut world, session) = World::of_a_crowd();
        world.fill(session, std::iter::once((path("/n"), Attach::Nothing)));
        let (mode, wait, delay) = (LockMode::Exclusive, true, Duration::ZERO);
        // A node has no more locks.
        let count = count.min(LOCKS_PER_NODE_MAX);
        for _ in 0..count {
            let session = world.session();
            world.acquire(session, None);
            world.fill_with(session, std::iter::once(Write::Lock { path: path("/n"), mode, wait, delay }));
        }
        assert_eq!(world.state.locks_on(&path("/n")).count() as u64, count);
        world.begin_anew();
        world.inspected(Inspect::Locks { path: path("/n"), after: None })
    });
}

/// A world with `count` nodes, attached to two leases or to none, and a history of `remembered`
/// changes.
fn registered(count: u64, are_attached: bool, remembered: usize) -> World {
    let (mut world, session) = World::of_a_crowd();
    world.state = world.state.with_history(remembered);
    world.fill_with(session, (0..2).map(grant));
    let attach = |number| if are_attached { Attach::Lease(LeaseId(number % 2)) } else { Attach::Nothing };
    world.fill(session, (0..count).map(|number| (path(&at(number)), attach(number))));
    assert_eq!(world.state.nodes_below(&path("/n")).count() as u64, count);
    world.begin_anew();
    world
}

#[test]
fn services_beyond_one_answer_are_not_examined() {
    let remembered = 10;
    for after in [None, Some(path(&at(FEW / 2)))] {
        let services = Inspect::Services { path: path("/n"), after };
        // Each change has one event.
        assert_bounded(ROWS_MAX + 2 * remembered, ROWS_MAX, |count| {
            registered(count, true, remembered).inspected(services.clone())
        });
        assert_bounded(PLACES_MAX + 2 * remembered, 0, |count| {
            registered(count, false, remembered).inspected(services.clone())
        });
    }
}

#[test]
fn services_scan_each_remembered_change_once() {
    let services = Inspect::Services { path: path("/n"), after: None };
    let [few, many] = [FEW, MANY].map(|count| {
        let remembered = (FEW / 2) as usize;
        registered(count, true, remembered).inspected(services.clone())
    });
    assert_eq!(few, many, "the history has the same number of changes");
    let most = FEW / 2;
    let (visited, rows) = few;
    // A change, its event, and its place among the nodes of the changes.
    assert!(rows == ROWS_MAX && visited <= 3 * most + 2 * ROWS_MAX as u64, "{visited} visited");
    assert!(visited >= 2 * most, "{visited} visited: each answer goes through the whole history");
}

/// A world in which `count` sessions hold `/a`, or may hold it after a failover.
fn world_with(count: u64, is_covering: bool) -> World {
    let (mut world, _) = World::of_a_crowd();
    for _ in 0..count {
        let session = world.session();
        world.acquire(session, None);
        if !is_covering {
            world.read(session, data("/a")).grant.expect("the write is not refused");
        }
    }
    if is_covering {
        world.begin_anew();
    }
    world
}

#[test]
fn holders_beyond_one_answer_are_not_examined() {
    for is_covering in [false, true] {
        // Copies of the data and of the list of children. No session has one of the list.
        let kinds = if is_covering { 2 } else { 1 };
        assert_bounded(kinds * PLACES_MAX, ROWS_MAX, |count| {
            world_with(count, is_covering).inspected(Inspect::Holders { path: path("/a") })
        });
    }
    let (visited, rows) = world_with(FEW, false).inspected(Inspect::Holders { path: path("/b") });
    assert!(rows == 0 && visited <= ASIDE, "leases on other objects are not examined");
}

/// Dropped copies that are still in memory are examined too.
#[test]
fn entries_of_copies_that_were_dropped_are_bounded() {
    assert_bounded(PLACES_MAX, 0, |count| {
        let mut world = world_with(count, false);
        let sessions: Vec<SessionId> = world.state.sessions().map(|(session, _)| session).collect();
        for session in sessions {
            world.lessor.object_leases.drop_through(&ObjectSet::Subtree(NodePath::root()), session, u64::MAX);
        }
        world.inspected(Inspect::Holders { path: path("/a") })
    });
}

/// A world in which `count` writes of `/a` wait for a holder that does not consent.
fn waited_for(count: u64) -> World {
    let (mut world, mut writer) = World::of_a_crowd();
    world.holder(&data("/a"));
    for number in 1..=count {
        world.write(writer, put("/a", b""));
        // No session has more writes without an answer.
        if number % Sequence::WINDOW == 0 {
            writer = world.session();
        }
    }
    assert_eq!(world.lessor.writes.len() as u64, count);
    world
}

/// A write is found by its path, and by each object of the node that it changes. The volumes of its
/// wait are examined twice: for its end, and for coverings.
#[test]
fn writes_of_one_node_beyond_one_answer_are_not_examined() {
    assert_bounded(5 * ROWS_MAX, ROWS_MAX, |count| {
        waited_for(count).inspected(Inspect::PendingWrites { path: path("/a") })
    });
    let (visited, rows) = waited_for(FEW).inspected(Inspect::PendingWrites { path: path("/b") });
    assert!(rows == 0 && visited <= ASIDE, "{visited} examined: reads of other nodes are not");
}

/// A world in which `count` reads of `/a` wait for the owner of a write lease.
fn with_blocked_reads(count: u64) -> World {
    let (mut world, holder) = World::of_a_crowd();
    world.fill_with(holder, std::iter::once(put("/a", b"")));
    let (mode, wait, delay) = (LockMode::Exclusive, false, Duration::ZERO);
    world.write(holder, Write::Lock { path: path("/a"), mode, wait, delay });
    world.commit();
    let (lock, _) = world.state.locks_on(&path("/a")).next().expect("the lock is granted");
    let seen = Stamp { epoch: world.state.epoch(), sequence: 1000 };
    let (write, dropped) = (Write::TakeWriteLease { path: path("/a"), lock }, vec![ObjectSet::One(data("/a"))]);
    world.request(holder, Body::Write { write, dropped, seen });
    world.commit();
    for _ in 0..count {
        let reader = world.session();
        world.request(reader, Body::AwaitRead { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
    }
    for _ in 0..2 {
        world.step(LessorInput::Proven { round: world.lessor.round });
    }
    while !world.lessor.proven_reads.is_empty() {
        world.step(LessorInput::Timeout);
    }
    assert_eq!(world.lessor.blocked_reads.count as u64, count);
    world
}

#[test]
fn reads_that_wait_beyond_one_answer_are_not_examined() {
    for (at, places, rows) in [("/a", PLACES_MAX, 1), ("/", PLACES_MAX, 0), ("/b", 0, 0)] {
        assert_bounded(places, rows, |count| {
            with_blocked_reads(count).inspected(Inspect::BlockedReads { path: path(at) })
        });
    }
}

#[test]
fn list_that_waits_for_a_node_below_is_found() {
    let mut world = with_blocked_reads(3);
    let reader = world.session();
    let list = Body::List { path: path("/"), after: Some(path("/")), nodes_max: 9 };
    world.request(reader, list);
    world.step(LessorInput::Proven { round: world.lessor.round });
    let mut waits =
        |at| match answer(&world.request(SessionId(0), Body::Inspect(Inspect::BlockedReads { path: path(at) }))) {
            Answer::BlockedReads(rows) => rows.iter().map(|row| (row.path.to_string(), row.reads)).collect::<Vec<_>>(),
            other => panic!("read waits: {other:?}"),
        };
    assert_eq!(waits("/"), [("/a".to_owned(), 1)], "the list begins at the node");
    assert_eq!(waits("/a"), [("/a".to_owned(), 4)], "reads of the node, and the list");
    assert_eq!(waits("/b"), []);
}
