//! Holds: granted in order, beside those that they go with, under leases that live.

use super::{super::fixture::*, *};
use crate::{
    command::{Command, Outcome, Write},
    transaction::{Compare, Operation, Transaction},
};

const ZERO: Duration = Duration::ZERO;

fn lock(at: &str, mode: HoldMode, wait: bool) -> Write {
    Write::Lock { path: path(at), mode, wait, delay: ZERO }
}

fn convert(at: &str, hold: HoldId, mode: HoldMode, wait: bool) -> Write {
    Write::Convert { path: path(at), hold, mode, wait }
}

fn unlock(at: &str, hold: HoldId) -> Write {
    Write::Unlock { path: path(at), hold }
}

/// Sessions with a lease on the root, and what they ask for.
struct Crowd {
    fixture: Fixture,
    sessions: Vec<SessionId>,
}

impl Crowd {
    fn new(count: usize) -> Self {
        let mut fixture = Fixture::new();
        let sessions = (0..count).map(|_| fixture.open()).collect::<Vec<_>>();
        for session in &sessions {
            fixture.acquire(*session, "/");
        }
        Self { fixture, sessions }
    }

    fn ask(&mut self, place: usize, write: Write) -> Result<Option<Taken>, WriteRefusal> {
        let written = self.fixture.write(self.sessions[place], write)?;
        Ok(written.taken.map(|taken| *taken))
    }

    fn lock(&mut self, place: usize, mode: HoldMode) -> (HoldId, Option<Token>) {
        let taken = self.ask(place, lock("/a", mode, true)).expect("it may wait").expect("a hold");
        (taken.hold, taken.token)
    }

    fn token(&self, hold: HoldId) -> Option<Token> {
        match self.fixture.state.hold_status(&path("/a"), hold) {
            HoldStatus::Held { token, .. } => Some(token),
            HoldStatus::Waiting | HoldStatus::Over => None,
        }
    }

    fn lease(&self, place: usize) -> LeaseKey {
        LeaseKey::Volume(self.sessions[place], path("/"))
    }

    fn expire(&mut self, lease: LeaseKey) {
        let found = self.fixture.state.lease(&lease).expect("a lease");
        let (incarnation, horizon) = (found.incarnation, found.horizon);
        assert_eq!(self.fixture.run(Command::Expire { lease, incarnation, horizon }), Outcome::Expired);
    }
}

use HoldMode::{Exclusive, Shared};

#[test]
fn lock_names_its_volume_lease_and_changes_no_node() {
    let mut crowd = Crowd::new(1);
    let taken = crowd.ask(0, lock("/a/b", Exclusive, false)).expect("free").expect("a hold");
    let incarnation = crowd.fixture.state.lease(&crowd.lease(0)).expect("a lease").incarnation;
    let expected = Taken {
        path: path("/a/b"),
        hold: HoldId(1),
        mode: Exclusive,
        token: Some(Token(2)),
        volume: path("/"),
        incarnation,
    };
    assert_eq!(taken, expected);
    assert_eq!((crowd.fixture.state.revision().0, crowd.fixture.state.node(&path("/a"))), (0, None));
    assert!(
        crowd.fixture.state.is_held_under(&Path::root(), Token(2))
            && !crowd.fixture.state.is_held_under(&Path::root(), Token(1))
    );
}

#[test]
fn locks_are_granted_in_order_and_readers_starve_no_writer() {
    let mut crowd = Crowd::new(5);
    let (first, token) = crowd.lock(0, Shared);
    assert!(token.is_some());
    let (writer, token) = crowd.lock(1, Exclusive);
    assert_eq!(token, None);
    let readers = [crowd.lock(2, Shared), crowd.lock(3, Shared)];
    assert!(readers.iter().all(|(_, token)| token.is_none()), "they came after the writer");
    let last = crowd.lock(4, Exclusive).0;
    crowd.ask(0, unlock("/a", first)).expect("it is held");
    let held = crowd.token(writer).expect("its turn");
    crowd.ask(1, unlock("/a", writer)).expect("it is held");
    let [one, two] = readers.map(|(hold, _)| crowd.token(hold).expect("both, together"));
    assert!(held < one && one < two, "tokens grow");
    crowd.ask(2, unlock("/a", readers[0].0)).expect("it is held");
    assert_eq!(crowd.token(last), None, "one reader is left");
    crowd.ask(3, unlock("/a", readers[1].0)).expect("it is held");
    assert!(crowd.token(last).is_some_and(|last| last > two));
}

#[test]
fn who_does_not_wait_is_told_who_is_in_the_way() {
    let mut crowd = Crowd::new(3);
    let (_, token) = crowd.lock(0, Exclusive);
    crowd.lock(1, Shared);
    let refusal =
        WriteRefusal::Held { path: path("/a"), holder: crowd.sessions[0], token: token.expect("free"), waiting: 1 };
    assert_eq!(crowd.ask(2, lock("/a", Shared, false)), Err(refusal.clone()));
    assert_eq!(refusal.to_string(), "/a is held by session 1 under token 2, and 1 wait for it: expected it to be free");
    assert_eq!(crowd.fixture.state.holds().count(), 2, "nothing is left of it");
}

#[test]
fn a_hold_needs_a_lease_on_the_volume_of_its_node() {
    let mut crowd = Crowd::new(1);
    crowd.ask(0, create_volume("/v", 5)).expect("new");
    let refusal = WriteRefusal::NoVolumeLease { path: path("/v/a"), volume: path("/v") };
    assert_eq!(crowd.ask(0, lock("/v/a", Shared, true)), Err(refusal));
}

#[test]
fn lock_queue_skips_waiters_whose_lease_ended() {
    let mut crowd = Crowd::new(3);
    let (first, _) = crowd.lock(0, Exclusive);
    let (second, _) = crowd.lock(1, Exclusive);
    let (third, _) = crowd.lock(2, Exclusive);
    crowd.expire(crowd.lease(1));
    assert_eq!(crowd.fixture.state.hold_status(&path("/a"), second), HoldStatus::Over);
    crowd.expire(crowd.lease(0));
    assert_eq!(crowd.fixture.state.hold_status(&path("/a"), first), HoldStatus::Over);
    assert!(crowd.token(third).is_some(), "the dead one before it is not granted anything");
}

#[test]
fn a_closed_session_and_a_new_lease_leave_no_hold() {
    let mut crowd = Crowd::new(2);
    crowd.lock(0, Exclusive);
    let (second, _) = crowd.lock(1, Exclusive);
    let lease = crowd.fixture.state.lease(&crowd.lease(0)).expect("a lease").incarnation;
    crowd.fixture.acquire(crowd.sessions[0], "/a");
    let kept = crowd.fixture.state.lease(&crowd.lease(0)).expect("a lease").incarnation;
    assert_eq!(kept, lease, "a lease under which there are holds is not replaced");
    crowd.fixture.run(Command::CloseSession { session: crowd.sessions[0] });
    assert!(crowd.token(second).is_some());
    let refusal = WriteRefusal::VolumeCarries { path: path("/v"), session: crowd.sessions[1] };
    crowd.ask(1, create_volume("/v", 5)).expect("new");
    crowd.fixture.acquire(crowd.sessions[1], "/v");
    crowd.ask(1, lock("/v/x", Shared, false)).expect("free");
    assert_eq!(crowd.ask(1, Write::RemoveVolume { path: path("/v") }), Err(refusal));
}

#[test]
fn only_its_session_gives_a_hold_back() {
    let mut crowd = Crowd::new(2);
    let (hold, _) = crowd.lock(0, Exclusive);
    let not_found = |at: &str| Err(WriteRefusal::HoldNotFound { path: path(at), hold });
    assert_eq!(crowd.ask(1, unlock("/a", hold)), not_found("/a"));
    assert_eq!(crowd.ask(0, unlock("/b", hold)), not_found("/b"));
    assert_eq!(crowd.ask(0, unlock("/a", hold)), Ok(None));
    assert_eq!(crowd.ask(0, unlock("/a", hold)), not_found("/a"));
}

#[test]
fn upgrade_waits_for_other_owners_and_gets_new_token() {
    let mut crowd = Crowd::new(4);
    let (one, old) = crowd.lock(0, Shared);
    let (two, _) = crowd.lock(1, Shared);
    let (writer, _) = crowd.lock(2, Exclusive);
    let held = crowd.ask(0, convert("/a", one, Exclusive, false));
    assert!(matches!(held, Err(WriteRefusal::Held { holder, .. }) if holder == crowd.sessions[1]), "{held:?}");
    let taken = crowd.ask(0, convert("/a", one, Exclusive, true)).expect("it may wait").expect("a hold");
    assert_eq!((taken.mode, taken.token), (Shared, old), "it is held shared meanwhile");
    let refusal = Err(WriteRefusal::UpgradePending { path: path("/a") });
    assert_eq!(crowd.ask(1, convert("/a", two, Exclusive, true)), refusal, "they would wait for each other");
    assert_eq!(crowd.lock(3, Shared).1, None, "nobody new comes before it");
    crowd.ask(1, unlock("/a", two)).expect("it is held");
    let status = crowd.fixture.state.hold_status(&path("/a"), one);
    let HoldStatus::Held { token, mode: Exclusive, is_wanted: true } = status else { panic!("{status:?}") };
    assert!(Some(token) > old && !crowd.fixture.state.is_held_under(&Path::root(), old.expect("held")));
    assert_eq!(crowd.token(writer), None, "it goes before those who wait for the node");
}

#[test]
fn shared_hold_is_wanted_while_another_waits_to_be_exclusive() {
    let mut crowd = Crowd::new(2);
    let (one, _) = crowd.lock(0, HoldMode::Shared);
    let (two, _) = crowd.lock(1, HoldMode::Shared);
    crowd.ask(1, convert("/a", two, HoldMode::Exclusive, true)).expect("it may wait");
    let is_wanted = |hold| match crowd.fixture.state.hold_status(&path("/a"), hold) {
        HoldStatus::Held { is_wanted, .. } => is_wanted,
        other => panic!("held: {other:?}"),
    };
    assert_eq!((is_wanted(one), is_wanted(two)), (true, false));
}

#[test]
fn downgrade_admits_shared_waiters_and_leaves_token_unchanged() {
    let mut crowd = Crowd::new(2);
    let (one, token) = crowd.lock(0, Exclusive);
    let (two, _) = crowd.lock(1, Shared);
    let waits = Err(WriteRefusal::HoldWaits { path: path("/a"), hold: two });
    assert_eq!(crowd.ask(1, convert("/a", two, Exclusive, true)), waits);
    crowd.ask(0, convert("/a", one, Shared, true)).expect("it is held");
    assert_eq!(crowd.token(one), token);
    assert!(crowd.token(two).is_some());
}

#[test]
fn a_lost_hold_keeps_its_node_for_the_delay_that_was_asked_for() {
    let mut crowd = Crowd::new(2);
    let delay = Duration::from_secs(7);
    let write = Write::Lock { path: path("/a"), mode: Exclusive, wait: true, delay };
    let taken = crowd.ask(0, write).expect("free").expect("a hold");
    let (second, _) = crowd.lock(1, Exclusive);
    crowd.fixture.time = seconds(100);
    crowd.expire(crowd.lease(0));
    assert_eq!(crowd.token(second), None);
    assert_eq!(crowd.fixture.state.hold_status(&path("/a"), taken.hold), HoldStatus::Over);
    assert!(!crowd.fixture.state.is_held_under(&Path::root(), taken.token.expect("free")));
    let lease = crowd.fixture.state.lease(&LeaseKey::Delay(taken.hold)).expect("a lease of its own");
    assert_eq!(
        (lease.term(), lease.horizon),
        (delay, seconds(107).after(crate::volume::TICK_MAX)),
        "the delay and a tick from then"
    );
    crowd.expire(LeaseKey::Delay(taken.hold));
    assert!(crowd.token(second).is_some());
}

#[test]
fn a_hold_with_a_delay_that_is_given_back_keeps_nobody_waiting() {
    let mut crowd = Crowd::new(3);
    let write = || Write::Lock { path: path("/a"), mode: Exclusive, wait: true, delay: Duration::from_secs(7) };
    let first = crowd.ask(0, write()).expect("free").expect("a hold").hold;
    let second = crowd.ask(1, write()).expect("it may wait").expect("a hold").hold;
    let (third, _) = crowd.lock(2, Exclusive);
    crowd.ask(0, unlock("/a", first)).expect("it is held");
    assert!(crowd.token(second).is_some());
    crowd.fixture.run(Command::CloseSession { session: crowd.sessions[1] });
    assert!(crowd.token(third).is_some(), "a client that closes its session has stopped");
}

#[test]
fn there_are_so_many_holds_on_a_node_and_no_more() {
    let mut crowd = Crowd::new(1);
    for _ in 0..HOLDS_PER_NODE_MAX {
        crowd.fixture.state.lock(crowd.sessions[0], &path("/a"), (Shared, ZERO), &mut Touched::default());
    }
    let refusal = WriteRefusal::TooManyHolds { path: path("/a"), got: HOLDS_PER_NODE_MAX, most: HOLDS_PER_NODE_MAX };
    assert_eq!(crowd.ask_without_rows(lock("/a", Shared, true)), Err(refusal));
}

impl Crowd {
    /// What the first session is refused, without a look at rows that were never stored.
    fn ask_without_rows(&self, write: Write) -> Result<(), WriteRefusal> {
        self.fixture.footprint(self.sessions[0], &write).map(|_| ())
    }
}

#[test]
fn the_lessor_is_told_which_nodes_holds_have_changed() {
    let mut crowd = Crowd::new(2);
    crowd.lock(0, Exclusive);
    crowd.lock(1, Exclusive);
    let write = lock("/b", Shared, true);
    let command = crowd.fixture.command(crowd.sessions[0], write);
    assert_eq!(crowd.fixture.apply_command(command).held(), BTreeSet::from([path("/b")]));
    let lease = crowd.lease(0);
    let found = crowd.fixture.state.lease(&lease).expect("a lease");
    let (incarnation, horizon) = (found.incarnation, found.horizon);
    let applied = crowd.fixture.apply_command(Command::Expire { lease, incarnation, horizon });
    assert_eq!(applied.held(), BTreeSet::from([path("/a"), path("/b")]));
}

#[test]
fn a_write_with_a_token_is_done_only_while_the_token_is_good() {
    let mut crowd = Crowd::new(2);
    let (hold, token) = crowd.lock(0, Exclusive);
    let token = token.expect("free");
    let at = |top: &str, token| {
        let transaction = Transaction::new().when(Compare::held(path(top), token));
        Write::Transaction(transaction.then(Operation::put(path("/out"), "x")))
    };
    let is_done = |crowd: &mut Crowd, top: &str, token| {
        // Whoever shows the token acts for its holder.
        let written = crowd.fixture.write(crowd.sessions[1], at(top, token)).expect("not refused");
        written.transaction.expect("a transaction").succeeded()
    };
    assert!(is_done(&mut crowd, "/", token) && is_done(&mut crowd, "/a", token));
    assert!(!is_done(&mut crowd, "/b", token) && !is_done(&mut crowd, "/", Token(token.0 + 1)));
    crowd.lock(1, Exclusive);
    crowd.ask(0, unlock("/a", hold)).expect("it is held");
    assert!(!is_done(&mut crowd, "/", token), "another has the node");
    assert!(is_done(&mut crowd, "/a", Token(4)));
}

fn hand_over(at: &str, hold: HoldId, to: HoldId) -> Write {
    Write::HandOver { path: path(at), hold, to }
}

#[test]
fn hand_over_skips_queue_in_one_entry_with_larger_token() {
    let mut crowd = Crowd::new(4);
    let (one, token) = crowd.lock(0, Exclusive);
    let (two, _) = crowd.lock(1, Exclusive);
    let (three, _) = crowd.lock(2, Exclusive);
    assert_eq!(crowd.ask(0, hand_over("/a", one, three)), Ok(None));
    assert!(crowd.token(three) > token && crowd.token(two).is_none());
    assert_eq!(crowd.fixture.state.hold_status(&path("/a"), one), HoldStatus::Over);
    assert!(!crowd.fixture.state.is_held_under(&path("/a"), token.expect("it was held")));
    // From there on it goes in the order of arrival: the first is still the first.
    let token = crowd.token(three);
    let (four, _) = crowd.lock(3, Exclusive);
    assert_eq!(crowd.ask(2, unlock("/a", three)), Ok(None));
    assert!(crowd.token(two) > token && crowd.token(four).is_none());
}

#[test]
fn who_shares_with_a_successor_gets_the_node_with_it() {
    let mut crowd = Crowd::new(4);
    let (one, _) = crowd.lock(0, Exclusive);
    let (two, _) = crowd.lock(1, Shared);
    let (three, _) = crowd.lock(2, Shared);
    let (four, _) = crowd.lock(3, Exclusive);
    crowd.ask(0, hand_over("/a", one, three)).expect("it waits");
    assert!(crowd.token(three).is_some() && crowd.token(two) > crowd.token(three) && crowd.token(four).is_none());
}

#[test]
fn hand_over_needs_sole_owner_and_waiting_successor() {
    let mut crowd = Crowd::new(4);
    let (one, token) = crowd.lock(0, Exclusive);
    let (two, _) = crowd.lock(1, Exclusive);
    let not_found = |hold| Err(WriteRefusal::HoldNotFound { path: path("/a"), hold });
    let no_successor = |to| Err(WriteRefusal::NoSuccessor { path: path("/a"), to });
    assert_eq!(crowd.ask(1, hand_over("/a", one, two)), not_found(one));
    assert_eq!(crowd.ask(1, hand_over("/a", two, one)), Err(WriteRefusal::HoldWaits { path: path("/a"), hold: two }));
    for to in [one, HoldId(99)] {
        assert_eq!(crowd.ask(0, hand_over("/a", one, to)), no_successor(to));
    }
    let (other, _) = crowd.lock(2, Exclusive);
    crowd.ask(2, unlock("/a", other)).expect("its own");
    assert_eq!(crowd.ask(0, hand_over("/a", one, other)), no_successor(other));
    assert_eq!(crowd.token(one), token, "it is held as before");
    crowd.ask(0, convert("/a", one, Shared, true)).expect("held");
    crowd.ask(1, unlock("/a", two)).expect("its own");
    let (three, _) = crowd.lock(2, Shared);
    let (four, _) = crowd.lock(3, Exclusive);
    let refused = crowd.ask(0, hand_over("/a", one, four));
    assert!(matches!(refused, Err(WriteRefusal::Held { .. })), "{refused:?}");
    assert!(crowd.token(three).is_some());
}

#[test]
fn a_successor_whose_lease_has_ended_is_no_successor() {
    let mut crowd = Crowd::new(2);
    let (one, _) = crowd.lock(0, Exclusive);
    let (two, _) = crowd.lock(1, Exclusive);
    crowd.expire(crowd.lease(1));
    let refused = Err(WriteRefusal::NoSuccessor { path: path("/a"), to: two });
    assert_eq!(crowd.ask(0, hand_over("/a", one, two)), refused);
}

#[test]
fn hold_that_is_made_what_it_is_waits_for_nothing() {
    for mode in [Shared, Exclusive] {
        let mut crowd = Crowd::new(2);
        let (hold, token) = crowd.lock(0, mode);
        let taken = crowd.ask(0, convert("/a", hold, mode, true)).expect("it is held").expect("a hold");
        assert_eq!((taken.mode, taken.token), (mode, token));
        // It is not in line before others, as one that waits to be exclusive would be.
        let (next, granted) = crowd.lock(1, Shared);
        assert_eq!(granted.is_some(), mode == Shared);
        crowd.ask(0, unlock("/a", hold)).expect("it is held");
        assert!(crowd.token(next).is_some());
    }
}

/// The session holds the node without a delay, and waits for it once more with one.
#[test]
fn waiter_whose_lease_ended_leaves_no_lock_delay() {
    let mut crowd = Crowd::new(2);
    crowd.lock(0, Exclusive);
    let delay = Duration::from_secs(60);
    let again = Write::Lock { path: path("/a"), mode: Exclusive, wait: true, delay };
    assert_eq!(crowd.ask(0, again).expect("it may wait").expect("a hold").token, None);
    let (other, _) = crowd.lock(1, Exclusive);
    crowd.expire(crowd.lease(0));
    assert!(crowd.token(other).is_some(), "what was never held is not kept for a while");
}
