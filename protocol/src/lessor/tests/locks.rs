//! Requests that wait for changes of locks. The state's tests cover how locks are granted.

use super::*;
use crate::{
    command::Written,
    id::{LockId, Token},
    lock::{LockMode, LockOutcome, LockStatus},
    message::{AwaitedLock, LockInfo, LockPage},
    work::take_visited,
};

use LockMode::{Exclusive, Shared};

impl World {
    fn lock(&mut self, session: SessionId, mode: LockMode, delay: Duration) -> LockOutcome {
        self.lock_at("/a", session, mode, delay)
    }

    fn lock_at(&mut self, at: &str, session: SessionId, mode: LockMode, delay: Duration) -> LockOutcome {
        self.write(session, Write::Lock { path: path(at), mode, wait: true, delay });
        match answer(&self.commit()) {
            Answer::Written { written: Written { lock: Some(grant), .. }, .. } => *grant,
            other => panic!("expected a lock, got {other:?}"),
        }
    }

    fn locker(&mut self, mode: LockMode) -> (SessionId, LockOutcome) {
        let session = self.session();
        self.acquire(session, None);
        let grant = self.lock(session, mode, Duration::ZERO);
        (session, grant)
    }

    fn await_lock(&mut self, session: SessionId, lock: LockId, known: LockStatus) -> Vec<LessorEffect> {
        let locks = vec![AwaitedLock { path: path("/a"), lock, known }];
        self.request(session, Body::AwaitLockStatus { locks })
    }

    fn infos(&mut self) -> Vec<LockInfo> {
        let mut infos = Vec::new();
        loop {
            let page = self.page_after(infos.last().map(|last: &LockInfo| last.lock));
            infos.extend(page.locks);
            if page.through.is_none() {
                return infos;
            }
        }
    }

    fn page_after(&mut self, after: Option<LockId>) -> LockPage {
        match answer(&self.request(SessionId(0), Body::Inspect(Inspect::Locks { path: path("/a"), after }))) {
            Answer::LockInfos(page) => page,
            other => panic!("expected locks, got {other:?}"),
        }
    }
}

fn granted(grant: &LockOutcome, is_contended: bool) -> LockStatus {
    LockStatus::Granted { token: grant.token.expect("the lock is granted"), mode: grant.mode, is_contended }
}

fn reported(effects: &[LessorEffect]) -> Vec<Vec<(LockId, LockStatus)>> {
    let reported = |response: Response| match response.result {
        Ok(Answer::LockStatuses(reported)) => Some(reported),
        _ => None,
    };
    replies(effects).into_iter().filter_map(reported).collect()
}

#[test]
fn lock_grant_answers_only_the_granted_waiter() {
    let mut world = World::new();
    let (first, one) = world.locker(Exclusive);
    let (second, two) = world.locker(Exclusive);
    let (third, three) = world.locker(Exclusive);
    assert_eq!((two.token, three.token), (None, None));
    for (session, grant) in [(second, &two), (third, &three)] {
        assert_eq!(world.await_lock(session, grant.lock, LockStatus::Waiting), []);
    }
    world.write(first, Write::Unlock { path: path("/a"), lock: one.lock });
    let status = LockStatus::Granted { token: Token(5), mode: Exclusive, is_contended: true };
    assert_eq!(reported(&world.commit()), [[(two.lock, status)]]);
}

#[test]
fn lock_owner_learns_that_a_session_waits() {
    let mut world = World::new();
    let (first, one) = world.locker(Shared);
    assert_eq!(world.await_lock(first, one.lock, granted(&one, false)), []);
    let second = world.session();
    world.acquire(second, None);
    world.write(second, Write::Lock { path: path("/a"), mode: Exclusive, wait: true, delay: Duration::ZERO });
    assert_eq!(reported(&world.commit()), [[(one.lock, granted(&one, true))]]);
}

#[test]
fn known_lock_status_is_answered_at_once_by_any_leader() {
    let mut world = World::new();
    let (session, one) = world.locker(Exclusive);
    world.fail_over();
    world.request(session, Body::Register);
    let effects = world.await_lock(session, one.lock, LockStatus::Waiting);
    assert_eq!(reported(&effects), [[(one.lock, granted(&one, false))]]);
    let effects = world.await_lock(session, LockId(99), LockStatus::Waiting);
    assert_eq!(reported(&effects), [[(LockId(99), LockStatus::Ended)]]);
}

#[test]
fn later_lock_wait_replaces_earlier_and_all_are_answered() {
    let mut world = World::new();
    let (session, one) = world.locker(Exclusive);
    assert_eq!(world.await_lock(session, one.lock, granted(&one, false)), []);
    let effects = world.await_lock(session, one.lock, granted(&one, false));
    assert_eq!(reported(&effects), [[]], "the earlier request");
    let effects = world.request(session, Body::Register);
    assert!(matches!(&replies(&effects)[0].result, Err(Refusal::Retry)), "{effects:?}");
    assert_eq!(world.await_lock(session, one.lock, granted(&one, false)), []);
    let effects = world.lessor.clone().step_down(&world.state, world.now);
    assert!(matches!(&replies(&effects)[..], [Response { result: Err(Refusal::Retry), .. }]));
    world.request(session, Body::Close);
    let effects = world.commit();
    assert_eq!(reported(&effects), [[(one.lock, LockStatus::Ended)]]);
}

#[test]
fn lock_ends_with_its_lease_and_margin() {
    let mut world = World::new();
    let (_, one) = world.locker(Exclusive);
    let (second, two) = world.locker(Exclusive);
    let incarnation = two.incarnation;
    let mut passed = Duration::ZERO;
    while world.state.lock_status(&path("/a"), one.lock) != LockStatus::Ended {
        world.pass(clock::STEP_EVERY);
        passed += clock::STEP_EVERY;
        world.renew(second, incarnation).expect("the lease exists");
    }
    let margin = VolumeSettings::DEFAULT.skew_margin();
    assert!(passed >= TERM + margin && passed < TERM + margin + world.state.tick() * 2, "{passed:?}");
    assert!(matches!(world.state.lock_status(&path("/a"), two.lock), LockStatus::Granted { .. }));
}

#[test]
fn lost_lock_blocks_node_for_its_delay_across_failover() {
    for fails_over in [false, true] {
        let mut world = World::new();
        let first = world.session();
        world.acquire(first, None);
        let delay = TERM * 3;
        world.lock(first, Exclusive, delay);
        let (second, two) = world.locker(Exclusive);
        let mut passed = Duration::ZERO;
        let mut lost_after = None;
        while world.state.lock_status(&path("/a"), two.lock) == LockStatus::Waiting {
            world.pass(TERM / 10);
            passed += TERM / 10;
            world.renew(second, two.incarnation).expect("the lease exists");
            if lost_after.is_none() && world.infos().iter().any(|info| info.is_lost) {
                lost_after = Some(passed);
                if fails_over {
                    world.fail_over();
                    world.request(second, Body::Register);
                }
            }
        }
        let lasted = passed - lost_after.expect("the lock was lost");
        assert!(lasted + TERM / 10 >= delay && lasted <= delay + TERM, "{lasted:?}");
    }
}

#[test]
fn lost_shared_locks_block_node_for_their_lock_delays() {
    let mut world = World::new();
    let first = world.session();
    world.acquire(first, None);
    world.lock(first, Shared, TERM);
    world.lock(first, Shared, TERM * 2);
    let are_lost = |world: &mut World| world.infos().iter().filter(|info| info.is_lost).count();
    while are_lost(&mut world) == 0 {
        world.pass(TERM / 10);
    }
    assert_eq!(are_lost(&mut world), 2, "with one lease");
    world.pass(TERM * 3 / 2);
    assert_eq!(are_lost(&mut world), 1);
    world.pass(TERM);
    assert_eq!(are_lost(&mut world), 0);
}

#[test]
fn a_lock_under_a_lease_whose_end_is_proposed_is_refused() {
    let mut world = World::new();
    let session = world.session();
    world.acquire(session, None);
    let is_end = |command: &Command| matches!(command, Command::Expire { lease: AnyLease::Volume(..), .. });
    while !world.lessor.proposal_queue.commands().any(is_end) {
        world.commit();
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    let effects =
        world.write(session, Write::Lock { path: path("/a"), mode: Shared, wait: true, delay: Duration::ZERO });
    let refusal = WriteRefusal::NoVolumeLease { path: path("/a"), volume: NodePath::root() };
    assert_eq!(result(&effects), Err(Refusal::Write(refusal)));
}

#[test]
fn lock_infos_list_the_queue() {
    let mut world = World::new();
    let (first, one) = world.locker(Exclusive);
    let (second, two) = world.locker(Shared);
    let infos = world.infos();
    let rows: Vec<_> = infos.iter().map(|info| (info.lock, info.session, info.mode, info.token)).collect();
    assert_eq!(rows, [(one.lock, first, Exclusive, one.token), (two.lock, second, Shared, None)]);
    assert!(infos.iter().all(|info| info.name == "test" && info.remaining > TERM && !info.is_lost));
}

#[test]
fn lock_requests_beyond_limits_are_refused_with_numbers() {
    let mut world = World::new();
    let (session, one) = world.locker(Exclusive);
    let awaited = AwaitedLock { path: path("/a"), lock: one.lock, known: granted(&one, false) };
    let most = crate::message::AWAIT_LOCK_STATUS_MAX;
    let effects = world.request(session, Body::AwaitLockStatus { locks: vec![awaited; most + 1] });
    let error = crate::limits::LimitError::Locks { got: most + 1, expected: most };
    assert_eq!(result(&effects), Err(error.into()));
    let delay = Limits::DELAY_MAX + MILLI;
    let effects = world.write(session, Write::Lock { path: path("/b"), mode: Shared, wait: true, delay });
    let error = crate::limits::LimitError::LockDelay { path: path("/b"), got: delay, most: Limits::DELAY_MAX };
    assert_eq!(result(&effects), Err(error.into()));
}

#[test]
fn upgrading_owner_learns_that_the_last_waiter_left() {
    let mut world = World::new();
    let (first, one) = world.locker(Shared);
    world.locker(Shared);
    world.write(first, Write::ChangeLockMode { path: path("/a"), lock: one.lock, mode: Exclusive, wait: true });
    world.commit();
    let (waiter, waiting) = world.locker(Exclusive);
    assert_eq!(world.await_lock(first, one.lock, granted(&one, true)), []);
    world.write(waiter, Write::Unlock { path: path("/a"), lock: waiting.lock });
    assert_eq!(reported(&world.commit()), [[(one.lock, granted(&one, false))]]);
}

/// Sessions that share a node, and as many others nodes. Each awaits changes of all its locks.
struct Sharers {
    world: World,
    sharers: Vec<(SessionId, Vec<LockOutcome>)>,
}

impl Sharers {
    fn new(count: usize) -> Self {
        let mut world = World { is_checked: false, ..World::new() };
        let mut sharers = Vec::new();
        for _ in 0..count {
            let session = world.session();
            world.acquire(session, None);
            let nodes = ["/a", "/b", "/c", "/d"];
            let grants = nodes.map(|at| world.lock_at(at, session, Shared, Duration::ZERO));
            sharers.push((session, grants.to_vec()));
        }
        let mut sharers = Self { world, sharers };
        sharers.await_all(false);
        sharers.world.check();
        sharers
    }

    fn await_all(&mut self, is_contended: bool) {
        for (session, grants) in &self.sharers {
            let known = |grant: &LockOutcome| granted(grant, is_contended && grant.path == path("/a"));
            let awaited =
                |grant: &LockOutcome| AwaitedLock { path: grant.path.clone(), lock: grant.lock, known: known(grant) };
            let locks = grants.iter().map(awaited).collect();
            assert_eq!(self.world.request(*session, Body::AwaitLockStatus { locks }), []);
        }
    }

    /// How many sessions get a report of the change of a lock, and what the entry and its step
    /// examine.
    fn change(&mut self, session: SessionId, write: Write) -> (usize, u64) {
        self.world.write(session, write);
        let proposal = self.world.lessor.take_proposal(self.world.now).expect("the write");
        take_visited();
        let reports = reported(&self.world.apply(&proposal)).len();
        let visited = take_visited();
        self.world.check();
        (reports, visited)
    }
}

/// What an unlock examines that concerns no other session, and what the arrival and the departure
/// of an exclusive waiter examine for each of the `count` sessions that share the node.
fn visited_for_sharers(count: usize) -> [u64; 3] {
    let mut sharers = Sharers::new(count + 1);
    let (leaving, grants) = sharers.sharers.pop().expect("a session");
    sharers.world.request(leaving, Body::AwaitLockStatus { locks: Vec::new() });
    let (reports, unlock) = sharers.change(leaving, Write::Unlock { path: path("/a"), lock: grants[0].lock });
    assert_eq!(reports, 0);
    let write = Write::Lock { path: path("/a"), mode: Exclusive, wait: true, delay: Duration::ZERO };
    let (reports, arrival) = sharers.change(leaving, write);
    assert_eq!(reports, count);
    sharers.await_all(true);
    let waiter = sharers.world.state.locks_on(&path("/a")).last().expect("it waits").0;
    let (reports, departure) = sharers.change(leaving, Write::Unlock { path: path("/a"), lock: waiter });
    assert_eq!(reports, count);
    [unlock, arrival / count as u64, departure / count as u64]
}

#[test]
fn change_of_a_shared_node_examines_only_what_it_reports() {
    let [few, many] = [20, 200].map(visited_for_sharers);
    assert_eq!(many, few, "an unlock, and for each session the arrival and the departure of a waiter");
    assert!(many.iter().all(|visited| *visited <= 16), "{many:?}");
}

/// The number of elements that an unlock examines, on a node with `count` lost locks in their lock
/// delay.
fn visited_beside_lost_locks(count: usize) -> u64 {
    let mut world = World { is_checked: false, ..World::new() };
    let silent = world.session();
    world.acquire(silent, None);
    (0..count).for_each(|_| drop(world.lock(silent, Shared, Limits::DELAY_MAX)));
    while world.infos().iter().all(|info| !info.is_lost) {
        world.pass(TERM / 10);
    }
    let session = world.session();
    world.acquire(session, None);
    let own = world.lock(session, Shared, Duration::ZERO);
    world.write(session, Write::Unlock { path: path("/a"), lock: own.lock });
    let proposal = world.lessor.take_proposal(world.now).expect("the write");
    take_visited();
    world.apply(&proposal);
    let visited = take_visited();
    world.check();
    assert_eq!(world.infos().iter().filter(|info| info.is_lost).count(), count);
    visited
}

#[test]
fn change_beside_lost_locks_does_not_examine_them() {
    assert_eq!(visited_beside_lost_locks(200), visited_beside_lost_locks(20));
}

#[test]
fn locks_beyond_one_answer_come_in_pages() {
    let mut world = World::new();
    world.lessor.config.bounds.rows_max = 2;
    let locks: Vec<LockId> = (0..5).map(|_| world.locker(LockMode::Exclusive).1.lock).collect();
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = world.page_after(after);
        pages.push(page.locks.iter().map(|info| info.lock).collect::<Vec<_>>());
        after = page.through;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, [&locks[..2], &locks[2..4], &locks[4..]]);
    // The lock at which the page ended was released since.
    let owner = world.state.locks_on(&path("/a")).find(|(id, _)| *id == locks[1]).expect("it waits").1.session;
    world.write(owner, Write::Unlock { path: path("/a"), lock: locks[1] });
    world.commit();
    let page = world.page_after(Some(locks[1]));
    assert_eq!((page.locks.len(), page.through), (2, Some(locks[3])));
    world.lessor.config.bounds.rows_max = 3;
    assert_eq!(world.page_after(Some(locks[1])).through, None, "the page ends with the last lock");
}
