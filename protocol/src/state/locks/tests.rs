//! Locks are granted in order, beside compatible ones, under live leases.

use super::{
    super::{ChangedLocks, fixture::*},
    *,
};
use crate::{
    command::{Command, Outcome, Write},
    transaction::{Compare, Operation, Transaction},
    work::take_visited,
};

const ZERO: Duration = Duration::ZERO;

fn lock(at: &str, mode: LockMode, wait: bool) -> Write {
    Write::Lock { path: path(at), mode, wait, delay: ZERO }
}

fn convert(at: &str, lock: LockId, mode: LockMode, wait: bool) -> Write {
    Write::ChangeLockMode { path: path(at), lock, mode, wait }
}

fn unlock(at: &str, lock: LockId) -> Write {
    Write::Unlock { path: path(at), lock }
}

/// Sessions with a lease on the root, and their requests.
struct Waiters {
    fixture: Fixture,
    sessions: Vec<SessionId>,
}

impl Waiters {
    fn new(count: usize) -> Self {
        let mut fixture = Fixture::new();
        let sessions = (0..count).map(|_| fixture.open()).collect::<Vec<_>>();
        for session in &sessions {
            fixture.acquire(*session, "/");
        }
        Self { fixture, sessions }
    }

    fn ask(&mut self, place: usize, write: Write) -> Result<Option<LockOutcome>, WriteRefusal> {
        let written = self.fixture.write(self.sessions[place], write)?;
        Ok(written.lock.map(|grant| *grant))
    }

    fn lock(&mut self, place: usize, mode: LockMode) -> (LockId, Option<Token>) {
        let grant = self.ask(place, lock("/a", mode, true)).expect("the request may wait").expect("a lock");
        (grant.lock, grant.token)
    }

    fn token(&self, id: LockId) -> Option<Token> {
        match self.fixture.state.lock_status(&path("/a"), id) {
            LockStatus::Granted { token, .. } => Some(token),
            LockStatus::Waiting | LockStatus::Ended => None,
        }
    }

    fn lease(&self, place: usize) -> AnyLease {
        AnyLease::Volume(self.sessions[place], path("/"))
    }

    fn expire(&mut self, lease: AnyLease) {
        let found = self.fixture.state.lease(&lease).expect("a lease");
        let (incarnation, horizon) = (found.incarnation, found.horizon);
        assert_eq!(self.fixture.run(Command::Expire { lease, incarnation, horizon }), Outcome::Expired);
    }
}

use LockMode::{Exclusive, Shared};

#[test]
fn lock_names_its_volume_lease_and_changes_no_node() {
    let mut waiters = Waiters::new(1);
    let grant = waiters.ask(0, lock("/a/b", Exclusive, false)).expect("free").expect("a lock");
    let incarnation = waiters.fixture.state.lease(&waiters.lease(0)).expect("a lease").incarnation;
    let expected = LockOutcome {
        path: path("/a/b"),
        lock: LockId(1),
        mode: Exclusive,
        token: Some(Token(2)),
        volume: path("/"),
        incarnation,
    };
    assert_eq!(grant, expected);
    assert_eq!((waiters.fixture.state.revision().0, waiters.fixture.state.node(&path("/a"))), (0, None));
    assert!(
        waiters.fixture.state.has_lock_in(&NodePath::root(), Token(2))
            && !waiters.fixture.state.has_lock_in(&NodePath::root(), Token(1))
    );
}

#[test]
fn locks_are_granted_in_order_and_readers_starve_no_writer() {
    let mut waiters = Waiters::new(5);
    let (first, token) = waiters.lock(0, Shared);
    assert!(token.is_some());
    let (writer, token) = waiters.lock(1, Exclusive);
    assert_eq!(token, None);
    let readers = [waiters.lock(2, Shared), waiters.lock(3, Shared)];
    assert!(readers.iter().all(|(_, token)| token.is_none()), "the readers came after the writer");
    let last = waiters.lock(4, Exclusive).0;
    waiters.ask(0, unlock("/a", first)).expect("the lock is granted");
    let granted = waiters.token(writer).expect("the writer is next");
    waiters.ask(1, unlock("/a", writer)).expect("the lock is granted");
    let [one, two] = readers.map(|(id, _)| waiters.token(id).expect("both readers"));
    assert!(granted < one && one < two, "tokens grow");
    waiters.ask(2, unlock("/a", readers[0].0)).expect("the lock is granted");
    assert_eq!(waiters.token(last), None, "one reader still has its lock");
    waiters.ask(3, unlock("/a", readers[1].0)).expect("the lock is granted");
    assert!(waiters.token(last).is_some_and(|last| last > two));
}

#[test]
fn try_lock_refusal_names_the_lock_owner() {
    let mut waiters = Waiters::new(3);
    let (_, token) = waiters.lock(0, Exclusive);
    waiters.lock(1, Shared);
    let refusal =
        WriteRefusal::Locked { path: path("/a"), owner: waiters.sessions[0], token: token.expect("free"), waiting: 1 };
    assert_eq!(waiters.ask(2, lock("/a", Shared, false)), Err(refusal.clone()));
    assert_eq!(refusal.to_string(), "/a: locked by session 1 under token 2; 1 waiting");
    assert_eq!(waiters.fixture.state.locks().count(), 2, "the request left no lock");
}

#[test]
fn lock_needs_a_lease_on_the_nodes_volume() {
    let mut waiters = Waiters::new(1);
    waiters.ask(0, create_volume("/v", 5)).expect("new");
    let refusal = WriteRefusal::NoVolumeLease { path: path("/v/a"), volume: path("/v") };
    assert_eq!(waiters.ask(0, lock("/v/a", Shared, true)), Err(refusal));
}

#[test]
fn lock_queue_skips_waiters_whose_lease_ended() {
    let mut waiters = Waiters::new(3);
    let (first, _) = waiters.lock(0, Exclusive);
    let (second, _) = waiters.lock(1, Exclusive);
    let (third, _) = waiters.lock(2, Exclusive);
    waiters.expire(waiters.lease(1));
    assert_eq!(waiters.fixture.state.lock_status(&path("/a"), second), LockStatus::Ended);
    waiters.expire(waiters.lease(0));
    assert_eq!(waiters.fixture.state.lock_status(&path("/a"), first), LockStatus::Ended);
    assert!(waiters.token(third).is_some(), "the ended waiter before it gets no lock");
}

#[test]
fn closed_session_and_new_lease_leave_no_lock() {
    let mut waiters = Waiters::new(2);
    waiters.lock(0, Exclusive);
    let (second, _) = waiters.lock(1, Exclusive);
    let lease = waiters.fixture.state.lease(&waiters.lease(0)).expect("a lease").incarnation;
    waiters.fixture.acquire(waiters.sessions[0], "/a");
    let earlier = waiters.fixture.state.lease(&waiters.lease(0)).expect("a lease").incarnation;
    assert_eq!(earlier, lease, "a lease with locks is not replaced");
    waiters.fixture.run(Command::CloseSession { session: waiters.sessions[0] });
    assert!(waiters.token(second).is_some());
    let refusal = WriteRefusal::VolumeInUse { path: path("/v"), session: waiters.sessions[1] };
    waiters.ask(1, create_volume("/v", 5)).expect("new");
    waiters.fixture.acquire(waiters.sessions[1], "/v");
    waiters.ask(1, lock("/v/x", Shared, false)).expect("free");
    assert_eq!(waiters.ask(1, Write::RemoveVolume { path: path("/v") }), Err(refusal));
}

#[test]
fn only_its_owner_releases_a_lock() {
    let mut waiters = Waiters::new(2);
    let (lock, _) = waiters.lock(0, Exclusive);
    let not_found = |at: &str| Err(WriteRefusal::LockNotFound { path: path(at), lock });
    assert_eq!(waiters.ask(1, unlock("/a", lock)), not_found("/a"));
    assert_eq!(waiters.ask(0, unlock("/b", lock)), not_found("/b"));
    assert_eq!(waiters.ask(0, unlock("/a", lock)), Ok(None));
    assert_eq!(waiters.ask(0, unlock("/a", lock)), not_found("/a"));
}

#[test]
fn upgrade_waits_for_other_owners_and_gets_new_token() {
    let mut waiters = Waiters::new(4);
    let (one, old) = waiters.lock(0, Shared);
    let (two, _) = waiters.lock(1, Shared);
    let (writer, _) = waiters.lock(2, Exclusive);
    let granted = waiters.ask(0, convert("/a", one, Exclusive, false));
    assert!(matches!(granted, Err(WriteRefusal::Locked { owner, .. }) if owner == waiters.sessions[1]), "{granted:?}");
    let grant = waiters.ask(0, convert("/a", one, Exclusive, true)).expect("the request may wait").expect("a lock");
    assert_eq!((grant.mode, grant.token), (Shared, old), "the lock is still shared");
    let refusal = Err(WriteRefusal::UpgradePending { path: path("/a") });
    assert_eq!(waiters.ask(1, convert("/a", two, Exclusive, true)), refusal, "two upgrades would wait for each other");
    assert_eq!(waiters.lock(3, Shared).1, None, "no new lock overtakes the upgrade");
    waiters.ask(1, unlock("/a", two)).expect("the lock is granted");
    let status = waiters.fixture.state.lock_status(&path("/a"), one);
    let LockStatus::Granted { token, mode: Exclusive, is_contended: true } = status else { panic!("{status:?}") };
    assert!(Some(token) > old && !waiters.fixture.state.has_lock_in(&NodePath::root(), old.expect("held")));
    assert_eq!(waiters.token(writer), None, "the upgrade overtakes the waiters");
}

#[test]
fn shared_lock_is_contended_while_an_upgrade_waits() {
    let mut waiters = Waiters::new(2);
    let (one, _) = waiters.lock(0, LockMode::Shared);
    let (two, _) = waiters.lock(1, LockMode::Shared);
    waiters.ask(1, convert("/a", two, LockMode::Exclusive, true)).expect("the request may wait");
    let is_contended = |id| match waiters.fixture.state.lock_status(&path("/a"), id) {
        LockStatus::Granted { is_contended, .. } => is_contended,
        other => panic!("expected a lock, got {other:?}"),
    };
    assert_eq!((is_contended(one), is_contended(two)), (true, false));
}

#[test]
fn downgrade_admits_shared_waiters_and_leaves_token_unchanged() {
    let mut waiters = Waiters::new(2);
    let (one, token) = waiters.lock(0, Exclusive);
    let (two, _) = waiters.lock(1, Shared);
    let waits = Err(WriteRefusal::LockNotGranted { path: path("/a"), lock: two });
    assert_eq!(waiters.ask(1, convert("/a", two, Exclusive, true)), waits);
    waiters.ask(0, convert("/a", one, Shared, true)).expect("the lock is granted");
    assert_eq!(waiters.token(one), token);
    assert!(waiters.token(two).is_some());
}

#[test]
fn lost_lock_blocks_its_node_for_the_lock_delay() {
    let mut waiters = Waiters::new(2);
    let delay = Duration::from_secs(7);
    let write = Write::Lock { path: path("/a"), mode: Exclusive, wait: true, delay };
    let grant = waiters.ask(0, write).expect("free").expect("a lock");
    let (second, _) = waiters.lock(1, Exclusive);
    waiters.fixture.time = seconds(100);
    waiters.expire(waiters.lease(0));
    assert_eq!(waiters.token(second), None);
    assert_eq!(waiters.fixture.state.lock_status(&path("/a"), grant.lock), LockStatus::Ended);
    assert!(!waiters.fixture.state.has_lock_in(&NodePath::root(), grant.token.expect("free")));
    let lease =
        waiters.fixture.state.lease(&AnyLease::LockDelay(grant.lock)).expect("the lock delay has its own lease");
    assert_eq!(
        (lease.term(), lease.horizon),
        (delay, seconds(107).after(crate::volume::TICK_MAX)),
        "the lock delay and a tick"
    );
    waiters.expire(AnyLease::LockDelay(grant.lock));
    assert!(waiters.token(second).is_some());
}

#[test]
fn released_lock_has_no_lock_delay() {
    let mut waiters = Waiters::new(3);
    let write = || Write::Lock { path: path("/a"), mode: Exclusive, wait: true, delay: Duration::from_secs(7) };
    let first = waiters.ask(0, write()).expect("free").expect("a lock").lock;
    let second = waiters.ask(1, write()).expect("the request may wait").expect("a lock").lock;
    let (third, _) = waiters.lock(2, Exclusive);
    waiters.ask(0, unlock("/a", first)).expect("the lock is granted");
    assert!(waiters.token(second).is_some());
    waiters.fixture.run(Command::CloseSession { session: waiters.sessions[1] });
    assert!(waiters.token(third).is_some(), "a closed session no longer uses its locks");
}

#[test]
fn locks_on_a_node_are_bounded() {
    let mut waiters = Waiters::new(1);
    for _ in 0..LOCKS_PER_NODE_MAX {
        waiters.fixture.state.lock(waiters.sessions[0], &path("/a"), (Shared, ZERO), &mut Touched::default());
    }
    let refusal = WriteRefusal::TooManyLocks { path: path("/a"), got: LOCKS_PER_NODE_MAX, most: LOCKS_PER_NODE_MAX };
    assert_eq!(waiters.ask_without_rows(lock("/a", Shared, true)), Err(refusal));
}

#[test]
fn locks_under_a_lease_are_bounded() {
    let mut waiters = Waiters::new(2);
    let mut last = None;
    for number in 0..LOCKS_PER_LEASE_MAX {
        let (session, at) = (waiters.sessions[0], path(&format!("/{number}")));
        last = waiters.fixture.state.lock(session, &at, (Exclusive, ZERO), &mut Touched::default()).lock;
    }
    let (got, most) = (LOCKS_PER_LEASE_MAX, LOCKS_PER_LEASE_MAX);
    let refusal = WriteRefusal::LeaseFull { path: path("/a"), got, most };
    let room = |waiters: &Waiters, of: usize| waiters.fixture.state.check_lock_room(waiters.sessions[of], &path("/a"));
    assert_eq!(room(&waiters, 0), Err(refusal));
    assert_eq!(room(&waiters, 1), Ok(()), "another session has another lease");
    waiters.fixture.state.unlock(last.expect("a lock").lock, &mut Touched::default());
    assert_eq!(room(&waiters, 0), Ok(()));
}

impl Waiters {
    /// The refusal of the first session's write. Does not compare rows, because the test stored
    /// none.
    fn ask_without_rows(&self, write: Write) -> Result<(), WriteRefusal> {
        self.fixture.footprint(self.sessions[0], &write).map(|_| ())
    }
}

#[test]
fn applied_entry_names_changed_locks_by_node() {
    let mut waiters = Waiters::new(2);
    let (first, _) = waiters.lock(0, Exclusive);
    let (second, _) = waiters.lock(1, Exclusive);
    let write = lock("/b", Shared, true);
    let command = waiters.fixture.command(waiters.sessions[0], write);
    let other = LockId(4);
    let on = |at: &str, locks: &[LockId]| (path(at), locks.iter().copied().collect());
    assert_eq!(waiters.fixture.apply_command(command).changed_locks(), ChangedLocks::from([on("/b", &[other])]));
    let lease = waiters.lease(0);
    let found = waiters.fixture.state.lease(&lease).expect("a lease");
    let (incarnation, horizon) = (found.incarnation, found.horizon);
    let applied = waiters.fixture.apply_command(Command::Expire { lease, incarnation, horizon });
    let expected = ChangedLocks::from([on("/a", &[first, second]), on("/b", &[other])]);
    assert_eq!(applied.changed_locks(), expected);
}

#[test]
fn write_with_token_takes_effect_only_under_its_lock() {
    let mut waiters = Waiters::new(2);
    let (id, token) = waiters.lock(0, Exclusive);
    let token = token.expect("free");
    let at = |top: &str, token| {
        let transaction = Transaction::new().when(Compare::locked(path(top), token));
        Write::Transaction(transaction.then(Operation::put(path("/out"), "x")))
    };
    let is_done = |waiters: &mut Waiters, top: &str, token| {
        // Any session may present the token on behalf of its owner.
        let written = waiters.fixture.write(waiters.sessions[1], at(top, token)).expect("not refused");
        written.transaction.expect("a transaction").succeeded()
    };
    assert!(is_done(&mut waiters, "/", token) && is_done(&mut waiters, "/a", token));
    assert!(!is_done(&mut waiters, "/b", token) && !is_done(&mut waiters, "/", Token(token.0 + 1)));
    waiters.lock(1, Exclusive);
    waiters.ask(0, unlock("/a", id)).expect("the lock is granted");
    assert!(!is_done(&mut waiters, "/", token), "another session has the lock");
    assert!(is_done(&mut waiters, "/a", Token(4)));
}

fn hand_over(at: &str, lock: LockId, successor: LockId) -> Write {
    Write::HandOver { path: path(at), lock, successor }
}

#[test]
fn hand_over_skips_queue_in_one_entry_with_larger_token() {
    let mut waiters = Waiters::new(4);
    let (one, token) = waiters.lock(0, Exclusive);
    let (two, _) = waiters.lock(1, Exclusive);
    let (three, _) = waiters.lock(2, Exclusive);
    assert_eq!(waiters.ask(0, hand_over("/a", one, three)), Ok(None));
    assert!(waiters.token(three) > token && waiters.token(two).is_none());
    assert_eq!(waiters.fixture.state.lock_status(&path("/a"), one), LockStatus::Ended);
    assert!(!waiters.fixture.state.has_lock_in(&path("/a"), token.expect("the lock was granted")));
    // The order of arrival counts again: the first waiter is still the first.
    let token = waiters.token(three);
    let (four, _) = waiters.lock(3, Exclusive);
    assert_eq!(waiters.ask(2, unlock("/a", three)), Ok(None));
    assert!(waiters.token(two) > token && waiters.token(four).is_none());
}

#[test]
fn shared_waiters_are_granted_with_a_shared_successor() {
    let mut waiters = Waiters::new(4);
    let (one, _) = waiters.lock(0, Exclusive);
    let (two, _) = waiters.lock(1, Shared);
    let (three, _) = waiters.lock(2, Shared);
    let (four, _) = waiters.lock(3, Exclusive);
    waiters.ask(0, hand_over("/a", one, three)).expect("the successor waits");
    assert!(
        waiters.token(three).is_some() && waiters.token(two) > waiters.token(three) && waiters.token(four).is_none()
    );
}

#[test]
fn hand_over_needs_sole_owner_and_waiting_successor() {
    let mut waiters = Waiters::new(4);
    let (one, token) = waiters.lock(0, Exclusive);
    let (two, _) = waiters.lock(1, Exclusive);
    let not_found = |lock| Err(WriteRefusal::LockNotFound { path: path("/a"), lock });
    let no_successor = |successor| Err(WriteRefusal::SuccessorNotWaiting { path: path("/a"), successor });
    assert_eq!(waiters.ask(1, hand_over("/a", one, two)), not_found(one));
    assert_eq!(
        waiters.ask(1, hand_over("/a", two, one)),
        Err(WriteRefusal::LockNotGranted { path: path("/a"), lock: two })
    );
    for to in [one, LockId(99)] {
        assert_eq!(waiters.ask(0, hand_over("/a", one, to)), no_successor(to));
    }
    let (other, _) = waiters.lock(2, Exclusive);
    waiters.ask(2, unlock("/a", other)).expect("its own");
    assert_eq!(waiters.ask(0, hand_over("/a", one, other)), no_successor(other));
    assert_eq!(waiters.token(one), token, "the lock is unchanged");
    waiters.ask(0, convert("/a", one, Shared, true)).expect("held");
    waiters.ask(1, unlock("/a", two)).expect("its own");
    let (three, _) = waiters.lock(2, Shared);
    let (four, _) = waiters.lock(3, Exclusive);
    let refused = waiters.ask(0, hand_over("/a", one, four));
    assert!(matches!(refused, Err(WriteRefusal::Locked { .. })), "{refused:?}");
    assert!(waiters.token(three).is_some());
}

#[test]
fn hand_over_to_ended_waiter_is_refused() {
    let mut waiters = Waiters::new(2);
    let (one, _) = waiters.lock(0, Exclusive);
    let (two, _) = waiters.lock(1, Exclusive);
    waiters.expire(waiters.lease(1));
    let refused = Err(WriteRefusal::SuccessorNotWaiting { path: path("/a"), successor: two });
    assert_eq!(waiters.ask(0, hand_over("/a", one, two)), refused);
}

#[test]
fn mode_change_to_the_present_mode_is_applied_at_once() {
    for mode in [Shared, Exclusive] {
        let mut waiters = Waiters::new(2);
        let (id, token) = waiters.lock(0, mode);
        let grant = waiters.ask(0, convert("/a", id, mode, true)).expect("the lock is granted").expect("a lock");
        assert_eq!((grant.mode, grant.token), (mode, token));
        // It does not block later shared locks, as a lock that waits for an upgrade would.
        let (next, granted) = waiters.lock(1, Shared);
        assert_eq!(granted.is_some(), mode == Shared);
        waiters.ask(0, unlock("/a", id)).expect("the lock is granted");
        assert!(waiters.token(next).is_some());
    }
}

/// The session owns the node without a delay, and waits for it a second time with one.
#[test]
fn waiter_whose_lease_ended_leaves_no_lock_delay() {
    let mut waiters = Waiters::new(2);
    waiters.lock(0, Exclusive);
    let delay = Duration::from_secs(60);
    let request = Write::Lock { path: path("/a"), mode: Exclusive, wait: true, delay };
    assert_eq!(waiters.ask(0, request).expect("the request may wait").expect("a lock").token, None);
    let (other, _) = waiters.lock(1, Exclusive);
    waiters.expire(waiters.lease(0));
    assert!(waiters.token(other).is_some(), "a lock that was never granted has no lock delay");
}

/// What the release of an exclusive lock examines before `count` waiting readers.
fn visited_by_release_before(count: u64) -> u64 {
    let mut waiters = Waiters::new(1);
    let (session, at) = (waiters.sessions[0], path("/a"));
    let state = &mut waiters.fixture.state;
    state.lock(session, &at, (Exclusive, ZERO), &mut Touched::default());
    (0..count).for_each(|_| drop(state.lock(session, &at, (Shared, ZERO), &mut Touched::default())));
    take_visited();
    state.unlock(LockId(1), &mut Touched::default());
    let visited = take_visited();
    assert_eq!(state.locks_on(&at).filter(|(_, record)| record.token.is_some()).count() as u64, count);
    visited
}

#[test]
fn release_before_many_readers_grants_them_in_one_pass() {
    assert_eq!([10, 1_000].map(|count| visited_by_release_before(count).div_ceil(count)), [2, 2]);
}

#[test]
fn status_of_a_shared_lock_examines_no_other_lock() {
    let mut waiters = Waiters::new(1);
    let (session, at) = (waiters.sessions[0], path("/a"));
    let state = &mut waiters.fixture.state;
    (0..1_000).for_each(|_| drop(state.lock(session, &at, (Shared, ZERO), &mut Touched::default())));
    take_visited();
    let status = state.lock_status(&at, LockId(1));
    assert!(matches!(status, LockStatus::Granted { is_contended: false, .. }), "{status:?}");
    assert!(take_visited() <= 2);
}
