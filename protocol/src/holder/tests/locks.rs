//! Locks: owned only under their lease and by this clock, asked about while they last, and reported
//! once when lost.

mod pauses;

use super::*;
use crate::{
    command::{WriteRefusal, Written},
    id::{LockId, Token},
    lock::{LockGrant, LockMode, LockStatus},
    message::{AWAIT_LOCKS_MAX, AwaitedLock, CONSENTS_MAX, Lapse, RENEWALS_MAX, RETURNS_MAX},
    path::PATH_MAX_BYTES,
};

const HOLD: LockId = LockId(4);

fn lock() -> Write {
    Write::Lock { path: path("/a"), mode: LockMode::Exclusive, wait: true, delay: Duration::ZERO }
}

fn taken(token: Option<u64>, incarnation: u64) -> Answer {
    let taken = LockGrant {
        path: path("/a"),
        lock: HOLD,
        mode: LockMode::Exclusive,
        token: token.map(Token),
        volume: NodePath::root(),
        incarnation: Incarnation(incarnation),
    };
    written_answer(Written { lock: Some(Box::new(taken)), ..Written::default() })
}

fn held(token: u64, is_contended: bool) -> LockStatus {
    LockStatus::Granted { token: Token(token), mode: LockMode::Exclusive, is_contended }
}

fn awaits(known: LockStatus) -> Body {
    Body::AwaitLocks { locks: vec![AwaitedLock { path: path("/a"), lock: HOLD, known }] }
}

fn over() -> HolderEffect {
    HolderEffect::LocksLost { locks: vec![HOLD] }
}

impl Client {
    /// Requests a lock, and gets this answer.
    fn lock(&mut self, token: Option<u64>, incarnation: u64) -> Vec<HolderEffect> {
        let effects = self.write(5, lock());
        let ticket = self.only(&effects).0;
        self.answer(ticket, taken(token, incarnation))
    }

    fn certain(&self) -> Duration {
        self.holder.lock_remaining(HOLD, self.now)
    }
}

/// A client that waits for a lock, and its request for the lock's status.
fn waiting() -> (Client, SendId) {
    let mut client = Client::leased();
    let effects = client.lock(None, 1);
    let (ticket, body) = sent(&effects).pop().expect("it asks");
    assert_eq!(body, awaits(LockStatus::Waiting));
    assert_eq!(client.certain(), Duration::ZERO);
    (client, ticket)
}

#[test]
fn a_lock_waits_for_a_lease_on_its_volume() {
    let mut client = Client::registered();
    let effects = client.write(5, lock());
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }));
    let effects = client.answer(acquire, acquired("/", 1, 1));
    assert!(matches!(client.only(&effects).1.body, Body::Write { write: Write::Lock { .. }, .. }));
}

#[test]
fn lock_in_unknown_volume_is_resent_once_with_new_sequence() {
    let mut client = Client::leased();
    let effects = client.write(5, lock());
    let (ticket, first) = client.only(&effects);
    let refusal = |volume: &str| Refusal::Write(WriteRefusal::NoVolumeLease { path: path("/a"), volume: path(volume) });
    let effects = client.refuse(ticket, refusal("/a"));
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }));
    let effects = client.answer(acquire, acquired("/a", 2, 50));
    let (ticket, second) = client.only(&effects);
    assert!(second.header.sequence > first.header.sequence && !matches!(second.body, Body::Heartbeat(_)));
    let effects = client.refuse(ticket, refusal("/a"));
    let error = Err(WriteFailure::Refused(refusal("/a")));
    assert!(effects.contains(&HolderEffect::WriteDone { write: WriteId(5), result: error }), "{effects:?}");
}

#[test]
fn lock_whose_volume_lease_was_replaced_is_sent_again_once() {
    let mut client = Client::leased();
    let effects = client.write(5, lock());
    let (ticket, first) = client.only(&effects);
    let refusal = || Refusal::Write(WriteRefusal::NoVolumeLease { path: path("/a"), volume: path("/") });
    let effects = client.refuse(ticket, refusal());
    let (ticket, second) = client.only(&effects);
    assert!(second.header.sequence > first.header.sequence, "the first number has its outcome");
    let effects = client.refuse(ticket, refusal());
    let told = HolderEffect::WriteDone { write: WriteId(5), result: Err(WriteFailure::Refused(refusal())) };
    assert!(effects.contains(&told), "{effects:?}");
}

#[test]
fn a_hold_is_certain_for_as_long_as_its_lease_on_this_clock() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    assert_eq!(client.certain(), TERM);
    client.now = at(110).before(Duration::from_micros(1));
    assert!(client.certain() > Duration::ZERO);
    client.now = at(110);
    assert_eq!(client.certain(), Duration::ZERO, "whatever the connection does");
    assert!(client.timeout(&[]).contains(&over()), "though nothing was heard");
    assert!(!client.timeout(&[]).contains(&over()), "once");
}

#[test]
fn waiter_outlives_local_lease_end_but_late_grant_is_unused() {
    let (mut client, ticket) = waiting();
    client.now = at(110);
    assert!(!client.timeout(&[]).contains(&over()), "the lease may be renewed yet");
    let effects = client.answer(ticket, Answer::LockStatuses(vec![(HOLD, held(9, false))]));
    assert_eq!(effects, [], "nobody knows whether it is still held");
    assert_eq!(client.certain(), Duration::ZERO);
}

#[test]
fn downgrade_counts_as_shared_from_request_on() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    client.now = at(100).after(Duration::from_millis(100));
    let effects = client.timeout(&[]);
    let asked = client.only(&effects).0;
    let lower = Write::ChangeLockMode { path: path("/a"), lock: HOLD, mode: LockMode::Shared, wait: true };
    client.write(6, lower.clone());
    let done = HolderEffect::WriteDone { write: WriteId(7), result: Err(WriteFailure::NotSent) };
    assert_eq!(client.write(7, lower), [done], "one thing at a time");
    let effects = client.answer(asked, Answer::LockStatuses(vec![(HOLD, held(9, true))]));
    let status = LockStatus::Granted { token: Token(9), mode: LockMode::Shared, is_contended: true };
    assert!(
        effects.contains(&HolderEffect::LockChanged { lock: HOLD, status }),
        "the leader did not know: {effects:?}"
    );
}

#[test]
fn grant_under_other_lease_is_lost_at_once() {
    let mut client = Client::leased();
    let effects = client.lock(Some(9), 8);
    assert_eq!(effects.last(), Some(&over()));
    assert_eq!(client.certain(), Duration::ZERO);
}

#[test]
fn one_that_waits_is_told_its_turn_and_asks_on() {
    let (mut client, ticket) = waiting();
    let effects = client.answer(ticket, Answer::LockStatuses(vec![(HOLD, held(9, false))]));
    assert!(effects.contains(&HolderEffect::LockChanged { lock: HOLD, status: held(9, false) }));
    assert_eq!(client.certain(), TERM);
    let (ticket, body) = sent(&effects).pop().expect("it asks on");
    assert_eq!(body, awaits(held(9, false)));
    let effects = client.answer(ticket, Answer::LockStatuses(vec![(HOLD, held(9, true))]));
    assert!(effects.contains(&HolderEffect::LockChanged { lock: HOLD, status: held(9, true) }), "somebody waits");
}

#[test]
fn what_is_past_is_not_taken_for_news() {
    let (mut client, ticket) = waiting();
    let effects = client.answer(ticket, Answer::LockStatuses(vec![(HOLD, held(9, false))]));
    let (ticket, _) = sent(&effects).pop().expect("it asks on");
    for past in [LockStatus::Waiting, held(8, true), held(9, false)] {
        assert!(!super::super::locks::is_newer(held(9, false), past), "{past:?}");
    }
    let shared = LockStatus::Granted { token: Token(9), mode: LockMode::Shared, is_contended: false };
    assert!(super::super::locks::is_newer(held(9, false), shared), "alone first, then with others");
    assert!(!super::super::locks::is_newer(shared, held(9, false)));
    let effects = client.answer(ticket, Answer::LockStatuses(vec![(HOLD, LockStatus::Waiting)]));
    assert!(!effects.iter().any(|effect| matches!(effect, HolderEffect::LockChanged { .. })), "{effects:?}");
}

#[test]
fn owned_lock_is_queried_only_after_a_while() {
    let mut client = Client::leased();
    let effects = client.lock(Some(9), 1);
    assert_eq!(sent(&effects), []);
    let due = client.holder.next_deadline().expect("it is to be asked after");
    assert_eq!(due, at(100).after(Duration::from_millis(100)));
    client.now = due;
    assert_eq!(
        client.only(&client.holder.clone().step(HolderInput::Timeout { used: BTreeSet::new() }, due)).1.body,
        awaits(held(9, false))
    );
    client.write(6, Write::Unlock { path: path("/a"), lock: HOLD });
    let asks = |effects: &[HolderEffect]| sent(effects).iter().any(|(_, body)| matches!(body, Body::AwaitLocks { .. }));
    assert!(!asks(&client.timeout(&[])), "it was given back");
}

#[test]
fn released_lock_ends_at_once_and_is_never_reported_lost() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    client.write(6, Write::Unlock { path: path("/a"), lock: HOLD });
    assert_eq!(client.certain(), Duration::ZERO, "before the server knows");
    let effects = client.step(HolderInput::Close);
    assert!(!effects.contains(&over()));
}

#[test]
fn locks_are_lost_once_with_lease_session_or_client() {
    let gone = |client: &mut Client| {
        let effects = client.read(9, "/z");
        client.only(&effects).0
    };
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let read = gone(&mut client);
    let lapses = vec![Lapse { volume: NodePath::root(), incarnation: Incarnation(1) }];
    let result = Ok(answer(Some(value(9)), None));
    let effects = client.respond(read, Response { epoch: EPOCH, promises: vec![], lapses, result });
    assert!(effects.contains(&over()));
    assert!(!client.step(HolderInput::Close).contains(&over()));

    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let read = gone(&mut client);
    assert!(client.refuse(read, Refusal::SessionNotFound { session: SESSION }).contains(&over()));

    let mut client = Client::leased();
    client.lock(Some(9), 1);
    assert!(client.step(HolderInput::Close).contains(&over()));
}

#[test]
fn lease_with_locks_is_renewed_without_reads() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let mut renewals = 0;
    for _ in 0..20 {
        client.now = client.holder.next_deadline().expect("always something").max(client.now);
        for (ticket, request) in requests(&client.timeout(&[])) {
            match request.body {
                Body::Heartbeat(_) => {
                    renewals += usize::from(!request.header.renew.is_empty());
                    client.renew(ticket, promise("/", 1));
                }
                Body::AwaitLocks { .. } => assert!(request.header.renew.is_empty(), "its answer is long in coming"),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(renewals >= 3 && client.certain() > Duration::ZERO);
}

#[test]
fn a_request_that_waits_for_long_is_made_anew() {
    let (mut client, first) = waiting();
    let asked = |effects: &[HolderEffect]| {
        let mut asked = sent(effects).into_iter().filter(|(_, body)| matches!(body, Body::AwaitLocks { .. }));
        asked.next().map(|(ticket, _)| ticket)
    };
    let mut second = None;
    while second.is_none() {
        client.now = client.holder.next_deadline().expect("always something").max(client.now);
        let effects = client.timeout(&[]);
        second = asked(&effects);
        for (ticket, request) in requests(&effects) {
            if matches!(request.body, Body::Heartbeat(_)) {
                client.renew(ticket, promise("/", 1));
            }
        }
    }
    assert_eq!(client.now, at(120));
    let told = || Answer::LockStatuses(vec![(HOLD, held(9, false))]);
    assert_eq!(client.answer(first, Answer::LockStatuses(vec![])), [], "it has been overtaken");
    let effects = client.answer(second.expect("asked"), told());
    assert!(effects.contains(&HolderEffect::LockChanged { lock: HOLD, status: held(9, false) }), "{effects:?}");
}

/// The locks that the step's request names, and its send id.
fn asked_after(effects: &[HolderEffect]) -> Option<(SendId, Vec<LockId>)> {
    requests(effects).into_iter().find_map(|(ticket, request)| match request.body {
        Body::AwaitLocks { locks } => Some((ticket, locks.into_iter().map(|hold| hold.lock).collect())),
        _ => None,
    })
}

#[test]
fn holds_beyond_one_request_are_asked_after_in_turn() {
    let mut client = Client::leased();
    let count = AWAIT_LOCKS_MAX as u64 + 10;
    for number in 1..=count {
        let hold = LockGrant {
            path: path("/a"),
            lock: LockId(number),
            mode: LockMode::Exclusive,
            token: (number != count).then_some(Token(number)),
            volume: NodePath::root(),
            incarnation: Incarnation(1),
        };
        client.holder.apply_lock_grant(
            &lock(),
            &Written { lock: Some(Box::new(hold)), ..Written::default() },
            client.now,
        );
    }
    // After a reconnection the leader knows none of them.
    client.step(HolderInput::Disconnected);
    let register = client.step(HolderInput::Connected);
    let register = client.only(&register).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let (_, first) = asked_after(&effects).expect("it asks at once");
    assert_eq!(first.len(), AWAIT_LOCKS_MAX);
    client.now = client.now.after(Duration::from_secs(1));
    let effects = client.timeout(&[]);
    let (ticket, second) = asked_after(&effects).expect("the others have their turn");
    assert_eq!(second.len(), AWAIT_LOCKS_MAX);
    let named: BTreeSet<LockId> = first.into_iter().chain(second).collect();
    assert_eq!(named, (1..=count).map(LockId).collect());
    let granted = held(count, false);
    let effects = client.answer(ticket, Answer::LockStatuses(vec![(LockId(count), granted)]));
    assert!(effects.contains(&HolderEffect::LockChanged { lock: LockId(count), status: granted }), "{effects:?}");
}

/// `FRAME_MAX_BYTES` of the wire.
const FRAME_BYTES_MAX: usize = 16 << 20;

fn encoded_bytes(value: &impl serde::Serialize) -> usize {
    postcard::to_allocvec(value).expect("plain data").len()
}

#[test]
fn holds_with_long_paths_are_asked_after_in_turn() {
    let mut client = Client::leased();
    let dirs = format!("/{}", "d".repeat(255)).repeat(15);
    for number in 1..=AWAIT_LOCKS_MAX as u64 {
        let path = path(&format!("{dirs}/{number:0>255}"));
        assert_eq!(path.as_str().len(), PATH_MAX_BYTES);
        let (id, mode, token) = (LockId(number), LockMode::Exclusive, Some(Token(number)));
        let taken = LockGrant { path, lock: id, mode, token, volume: NodePath::root(), incarnation: Incarnation(1) };
        client.holder.apply_lock_grant(
            &lock(),
            &Written { lock: Some(Box::new(taken)), ..Written::default() },
            client.now,
        );
    }
    client.step(HolderInput::Disconnected);
    let register = client.step(HolderInput::Connected);
    let register = client.only(&register).0;
    let mut effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let mut named = BTreeSet::new();
    for _ in 0..2 {
        let longest = requests(&effects).iter().map(|(_, request)| encoded_bytes(request)).max();
        // The most in a header: renewals and returns, each with the longest path.
        let header = (RENEWALS_MAX + RETURNS_MAX) * (PATH_MAX_BYTES + 100) + CONSENTS_MAX * 20;
        assert!(longest.is_some_and(|longest| longest + header < FRAME_BYTES_MAX), "{longest:?}");
        named.extend(asked_after(&effects).expect("the next have their turn").1);
        client.now = client.now.after(Duration::from_secs(1));
        effects = client.timeout(&[]);
    }
    assert_eq!(named, (1..=AWAIT_LOCKS_MAX as u64).map(LockId).collect());
    let told = (0..AWAIT_LOCKS_MAX as u64).map(|_| (LockId(u64::MAX), held(u64::MAX, true))).collect();
    let promises = RENEWALS_MAX * (PATH_MAX_BYTES + 100);
    assert!(encoded_bytes(&Answer::LockStatuses(told)) + promises < FRAME_BYTES_MAX, "the answer fits too");
}

#[test]
fn another_connection_is_asked_anew() {
    let (mut client, ticket) = waiting();
    client.step(HolderInput::Disconnected);
    assert_eq!(client.answer(ticket, Answer::LockStatuses(vec![(HOLD, held(9, false))])), [], "nobody listens there");
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let asked: Vec<Body> = sent(&effects).into_iter().map(|(_, body)| body).collect();
    assert!(asked.contains(&awaits(LockStatus::Waiting)), "{asked:?}");
}

#[test]
fn a_leader_that_cannot_tell_is_asked_again_later() {
    let (mut client, ticket) = waiting();
    assert_eq!(sent(&client.refuse(ticket, Refusal::Retry)), []);
    client.now = at(100).after(Duration::from_millis(100));
    let (_, body) = sent(&client.timeout(&[])).pop().expect("it asks again");
    assert_eq!(body, awaits(LockStatus::Waiting));
}

#[test]
fn handed_over_lock_ends_at_once_and_returns_only_if_refused() {
    let hand_over = || Write::HandOver { path: path("/a"), lock: HOLD, successor: LockId(5) };
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let effects = client.write(6, hand_over());
    let ticket = client.only(&effects).0;
    assert_eq!(client.certain(), Duration::ZERO, "before the server knows");
    let effects = client.write(7, hand_over());
    assert!(matches!(effects[..], [HolderEffect::WriteDone { result: Err(WriteFailure::NotSent), .. }]), "{effects:?}");
    let refusal = Refusal::Write(WriteRefusal::SuccessorNotWaiting { path: path("/a"), successor: LockId(5) });
    client.refuse(ticket, refusal);
    assert!(client.certain() > Duration::ZERO, "it is held as before");

    let effects = client.write(8, hand_over());
    let ticket = client.only(&effects).0;
    let written = Written::default();
    let effects = client.answer(
        ticket,
        Answer::Written {
            written,
            stamp: stamp(41),
            grant: None,
            applied: Revision(31),
            key_lease: None,
            write_lease_data: None,
        },
    );
    assert_eq!(client.certain(), Duration::ZERO);
    assert!(!effects.contains(&over()), "whoever has given it away knows");
    assert!(client.holder.locks.by_id.is_empty(), "it is nobody's business any more");

    let mut client = Client::leased();
    client.lock(Some(9), 1);
    client.write(6, hand_over());
    client.step(HolderInput::CancelWrite(WriteId(6)));
    assert_eq!(client.certain(), Duration::ZERO, "nobody knows");
}
