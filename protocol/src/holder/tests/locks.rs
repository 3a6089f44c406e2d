//! Locks: owned only under their lease and by this clock, awaited while they last, and reported
//! once when lost.

mod pauses;

use super::*;
use crate::{
    command::{WriteRefusal, Written},
    id::{LockId, Token},
    lock::{LockMode, LockOutcome, LockStatus},
    message::{AWAIT_LOCK_STATUS_MAX, AwaitedLock, CONSENTS_MAX, Lapse, RENEWALS_MAX, RETURNS_MAX},
    path::PATH_MAX_BYTES,
};

pub(super) const LOCK: LockId = LockId(4);

fn lock() -> Write {
    Write::Lock { path: path("/a"), mode: LockMode::Exclusive, wait: true, delay: Duration::ZERO }
}

fn lock_outcome(token: Option<u64>, incarnation: u64) -> Answer {
    let grant = LockOutcome {
        path: path("/a"),
        lock: LOCK,
        mode: LockMode::Exclusive,
        token: token.map(Token),
        volume: NodePath::root(),
        incarnation: Incarnation(incarnation),
    };
    written_answer(Written { lock: Some(Box::new(grant)), ..Written::default() })
}

fn granted(token: u64, is_contended: bool) -> LockStatus {
    LockStatus::Granted { token: Token(token), mode: LockMode::Exclusive, is_contended }
}

fn awaits(known: LockStatus) -> Body {
    Body::AwaitLockStatus { locks: vec![AwaitedLock { path: path("/a"), lock: LOCK, known }] }
}

fn lock_lost() -> HolderEffect {
    HolderEffect::LocksLost { locks: vec![LOCK], may_remain: true }
}

/// The lock is lost, and a server has said that it has ended.
fn lock_ended() -> HolderEffect {
    HolderEffect::LocksLost { locks: vec![LOCK], may_remain: false }
}

impl Client {
    /// Requests a lock, and gets this answer.
    pub(super) fn lock(&mut self, token: Option<u64>, incarnation: u64) -> Vec<HolderEffect> {
        let effects = self.write(5, lock());
        let send_id = self.only(&effects).0;
        self.answer(send_id, lock_outcome(token, incarnation))
    }

    fn remaining(&self) -> Duration {
        self.holder.lock_remaining(LOCK, self.now)
    }
}

/// A client that waits for a lock, and its request for the lock's status.
fn waiting() -> (Client, SendId) {
    let mut client = Client::leased();
    let effects = client.lock(None, 1);
    let (send_id, body) = sent(&effects).pop().expect("an AwaitLockStatus request is sent");
    assert_eq!(body, awaits(LockStatus::Waiting));
    assert_eq!(client.remaining(), Duration::ZERO);
    (client, send_id)
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
    let (send_id, first) = client.only(&effects);
    let refusal = |volume: &str| Refusal::Write(WriteRefusal::NoVolumeLease { path: path("/a"), volume: path(volume) });
    let effects = client.refuse(send_id, refusal("/a"));
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }));
    let effects = client.answer(acquire, acquired("/a", 2, 50));
    let (send_id, second) = client.only(&effects);
    assert!(second.header.sequence > first.header.sequence && !matches!(second.body, Body::Heartbeat(_)));
    let effects = client.refuse(send_id, refusal("/a"));
    let error = Err(WriteFailure::Refused(refusal("/a")));
    assert!(effects.contains(&HolderEffect::WriteDone { write: WriteId(5), result: error }), "{effects:?}");
}

#[test]
fn lock_whose_volume_lease_was_replaced_is_sent_again_once() {
    let mut client = Client::leased();
    let effects = client.write(5, lock());
    let (send_id, first) = client.only(&effects);
    let refusal = || Refusal::Write(WriteRefusal::NoVolumeLease { path: path("/a"), volume: path("/") });
    let effects = client.refuse(send_id, refusal());
    let (send_id, second) = client.only(&effects);
    assert!(second.header.sequence > first.header.sequence, "the first number has a recorded outcome");
    let effects = client.refuse(send_id, refusal());
    let reported = HolderEffect::WriteDone { write: WriteId(5), result: Err(WriteFailure::Refused(refusal())) };
    assert!(effects.contains(&reported), "{effects:?}");
}

#[test]
fn lock_remaining_equals_lease_remaining_by_local_clock() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    assert_eq!(client.remaining(), TERM);
    client.now = at(110).before(Duration::from_micros(1));
    assert!(client.remaining() > Duration::ZERO);
    client.now = at(110);
    assert_eq!(client.remaining(), Duration::ZERO, "the lock has ended without news from the connection");
    assert!(client.timeout(&[]).contains(&lock_lost()), "the lock is reported lost without a connection");
    assert!(!client.timeout(&[]).contains(&lock_lost()), "the loss is reported once");
}

#[test]
fn waiter_outlives_local_lease_end_but_late_grant_is_unused() {
    let (mut client, send_id) = waiting();
    client.now = at(110);
    assert!(!client.timeout(&[]).contains(&lock_lost()), "the lease may still be renewed");
    let effects = client.answer(send_id, Answer::LockStatuses(vec![(LOCK, granted(9, false))]));
    assert_eq!(effects, [], "the grant does not count after the lease ended on this clock");
    assert_eq!(client.remaining(), Duration::ZERO);
}

#[test]
fn downgrade_counts_as_shared_from_request_on() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    client.now = at(100).after(Duration::from_millis(100));
    let effects = client.timeout(&[]);
    let await_lock_status = client.only(&effects).0;
    let lower = Write::ChangeLockMode { path: path("/a"), lock: LOCK, mode: LockMode::Shared, wait: true };
    client.write(6, lower.clone());
    let done = HolderEffect::WriteDone { write: WriteId(7), result: Err(WriteFailure::NotSent) };
    assert_eq!(client.write(7, lower), [done], "one change of a lock is in flight at a time");
    let effects = client.answer(await_lock_status, Answer::LockStatuses(vec![(LOCK, granted(9, true))]));
    let status = LockStatus::Granted { token: Token(9), mode: LockMode::Shared, is_contended: true };
    assert!(
        effects.contains(&HolderEffect::LockChanged { lock: LOCK, status }),
        "the leader reported before it applied the downgrade: {effects:?}"
    );
}

#[test]
fn grant_under_other_lease_is_lost_at_once() {
    let mut client = Client::leased();
    let effects = client.lock(Some(9), 8);
    assert_eq!(effects.last(), Some(&lock_lost()));
    assert_eq!(client.remaining(), Duration::ZERO);
}

#[test]
fn waiting_lock_reports_its_grant_and_awaits_contention() {
    let (mut client, send_id) = waiting();
    let effects = client.answer(send_id, Answer::LockStatuses(vec![(LOCK, granted(9, false))]));
    assert!(effects.contains(&HolderEffect::LockChanged { lock: LOCK, status: granted(9, false) }));
    assert_eq!(client.remaining(), TERM);
    let (send_id, body) = sent(&effects).pop().expect("the next AwaitLockStatus request is sent");
    assert_eq!(body, awaits(granted(9, false)));
    let effects = client.answer(send_id, Answer::LockStatuses(vec![(LOCK, granted(9, true))]));
    assert!(
        effects.contains(&HolderEffect::LockChanged { lock: LOCK, status: granted(9, true) }),
        "another session waits"
    );
}

#[test]
fn outdated_lock_status_is_not_reported() {
    let (mut client, send_id) = waiting();
    let effects = client.answer(send_id, Answer::LockStatuses(vec![(LOCK, granted(9, false))]));
    let (send_id, _) = sent(&effects).pop().expect("the next AwaitLockStatus request is sent");
    for outdated in [LockStatus::Waiting, granted(8, true), granted(9, false)] {
        assert!(!super::super::locks::is_newer(granted(9, false), outdated), "{outdated:?}");
    }
    let shared = LockStatus::Granted { token: Token(9), mode: LockMode::Shared, is_contended: false };
    assert!(super::super::locks::is_newer(granted(9, false), shared), "under one token, shared follows exclusive");
    assert!(!super::super::locks::is_newer(shared, granted(9, false)));
    let effects = client.answer(send_id, Answer::LockStatuses(vec![(LOCK, LockStatus::Waiting)]));
    assert!(!effects.iter().any(|effect| matches!(effect, HolderEffect::LockChanged { .. })), "{effects:?}");
}

#[test]
fn owned_lock_is_queried_only_after_a_while() {
    let mut client = Client::leased();
    let effects = client.lock(Some(9), 1);
    assert_eq!(sent(&effects), []);
    let due = client.holder.next_deadline().expect("the AwaitLockStatus request has a deadline");
    assert_eq!(due, at(100).after(Duration::from_millis(100)));
    client.now = due;
    assert_eq!(
        client.only(&client.holder.clone().step(HolderInput::Timeout { used: BTreeSet::new() }, due)).1.body,
        awaits(granted(9, false))
    );
    client.write(6, Write::Unlock { path: path("/a"), lock: LOCK });
    let asks =
        |effects: &[HolderEffect]| sent(effects).iter().any(|(_, body)| matches!(body, Body::AwaitLockStatus { .. }));
    assert!(!asks(&client.timeout(&[])), "the lock was released");
}

#[test]
fn released_lock_ends_at_once_and_is_never_reported_lost() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    client.write(6, Write::Unlock { path: path("/a"), lock: LOCK });
    assert_eq!(client.remaining(), Duration::ZERO, "the lock ends before the server applies the write");
    let effects = client.step(HolderInput::Close);
    assert!(!effects.contains(&lock_lost()));
}

#[test]
fn locks_are_lost_once_with_lease_session_or_client() {
    let send_read = |client: &mut Client| {
        let effects = client.read(9, "/z");
        client.only(&effects).0
    };
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let read = send_read(&mut client);
    let lapses = vec![Lapse { volume: NodePath::root(), incarnation: Incarnation(1) }];
    let result = Ok(answer(Some(value(9)), None));
    let effects = client.respond(read, Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result });
    assert!(effects.contains(&lock_lost()));
    assert!(!client.step(HolderInput::Close).contains(&lock_lost()));

    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let read = send_read(&mut client);
    assert!(client.refuse(read, Refusal::SessionNotFound { session: SESSION }).contains(&lock_ended()));

    let mut client = Client::leased();
    client.lock(Some(9), 1);
    assert!(client.step(HolderInput::Close).contains(&lock_lost()));
}

#[test]
fn lease_with_locks_is_renewed_without_reads() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let mut renewals = 0;
    for _ in 0..20 {
        client.now = client.holder.next_deadline().expect("a lease is to be renewed").max(client.now);
        for (send_id, request) in requests(&client.timeout(&[])) {
            match request.body {
                Body::Heartbeat(_) => {
                    renewals += usize::from(!request.header.renew.is_empty());
                    client.renew(send_id, promise("/", 1));
                }
                Body::AwaitLockStatus { .. } => {
                    assert!(request.header.renew.is_empty(), "an AwaitLockStatus request renews no lease")
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(renewals >= 3 && client.remaining() > Duration::ZERO);
}

#[test]
fn await_locks_unanswered_for_long_is_repeated() {
    let (mut client, first) = waiting();
    let await_lock_status = |effects: &[HolderEffect]| {
        let mut requests = sent(effects).into_iter().filter(|(_, body)| matches!(body, Body::AwaitLockStatus { .. }));
        requests.next().map(|(send_id, _)| send_id)
    };
    let mut second = None;
    while second.is_none() {
        client.now = client.holder.next_deadline().expect("a lease is to be renewed").max(client.now);
        let effects = client.timeout(&[]);
        second = await_lock_status(&effects);
        for (send_id, request) in requests(&effects) {
            if matches!(request.body, Body::Heartbeat(_)) {
                client.renew(send_id, promise("/", 1));
            }
        }
    }
    assert_eq!(client.now, at(120));
    let reported = || Answer::LockStatuses(vec![(LOCK, granted(9, false))]);
    assert_eq!(client.answer(first, Answer::LockStatuses(vec![])), [], "a later request has replaced this one");
    let effects = client.answer(second.expect("the request is repeated"), reported());
    assert!(effects.contains(&HolderEffect::LockChanged { lock: LOCK, status: granted(9, false) }), "{effects:?}");
}

/// The locks that the step's request names, and its send id.
fn awaited(effects: &[HolderEffect]) -> Option<(SendId, Vec<LockId>)> {
    requests(effects).into_iter().find_map(|(send_id, request)| match request.body {
        Body::AwaitLockStatus { locks } => Some((send_id, locks.into_iter().map(|awaited| awaited.lock).collect())),
        _ => None,
    })
}

#[test]
fn locks_beyond_one_request_are_named_in_turn() {
    let mut client = Client::leased();
    let count = AWAIT_LOCK_STATUS_MAX as u64 + 10;
    for number in 1..=count {
        let grant = LockOutcome {
            path: path("/a"),
            lock: LockId(number),
            mode: LockMode::Exclusive,
            token: (number != count).then_some(Token(number)),
            volume: NodePath::root(),
            incarnation: Incarnation(1),
        };
        client.holder.apply_lock_outcome(
            &lock(),
            &Written { lock: Some(Box::new(grant)), ..Written::default() },
            client.now,
        );
    }
    // After a reconnection the leader knows none of them.
    client.step(HolderInput::Disconnected);
    let register = client.step(HolderInput::Connected);
    let register = client.only(&register).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let (_, first) = awaited(&effects).expect("an AwaitLockStatus request is sent at once");
    assert_eq!(first.len(), AWAIT_LOCK_STATUS_MAX);
    client.now = client.now.after(Duration::from_secs(1));
    let effects = client.timeout(&[]);
    let (send_id, second) = awaited(&effects).expect("a request names the other locks");
    assert_eq!(second.len(), AWAIT_LOCK_STATUS_MAX);
    let named: BTreeSet<LockId> = first.into_iter().chain(second).collect();
    assert_eq!(named, (1..=count).map(LockId).collect());
    let status = granted(count, false);
    let effects = client.answer(send_id, Answer::LockStatuses(vec![(LockId(count), status)]));
    assert!(effects.contains(&HolderEffect::LockChanged { lock: LockId(count), status }), "{effects:?}");
}

/// `FRAME_MAX_BYTES` of the wire.
const FRAME_BYTES_MAX: usize = 16 << 20;

fn encoded_bytes(value: &impl serde::Serialize) -> usize {
    postcard::to_allocvec(value).expect("plain data").len()
}

#[test]
fn locks_with_long_paths_are_named_in_turn() {
    let mut client = Client::leased();
    let dirs = format!("/{}", "d".repeat(255)).repeat(15);
    for number in 1..=AWAIT_LOCK_STATUS_MAX as u64 {
        let path = path(&format!("{dirs}/{number:0>255}"));
        assert_eq!(path.as_str().len(), PATH_MAX_BYTES);
        let (id, mode, token) = (LockId(number), LockMode::Exclusive, Some(Token(number)));
        let grant = LockOutcome { path, lock: id, mode, token, volume: NodePath::root(), incarnation: Incarnation(1) };
        client.holder.apply_lock_outcome(
            &lock(),
            &Written { lock: Some(Box::new(grant)), ..Written::default() },
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
        named.extend(awaited(&effects).expect("a request names the next locks").1);
        client.now = client.now.after(Duration::from_secs(1));
        effects = client.timeout(&[]);
    }
    assert_eq!(named, (1..=AWAIT_LOCK_STATUS_MAX as u64).map(LockId).collect());
    let reported = (0..AWAIT_LOCK_STATUS_MAX as u64).map(|_| (LockId(u64::MAX), granted(u64::MAX, true))).collect();
    let promises = RENEWALS_MAX * (PATH_MAX_BYTES + 100);
    assert!(
        encoded_bytes(&Answer::LockStatuses(reported)) + promises < FRAME_BYTES_MAX,
        "the answer fits into a frame"
    );
}

#[test]
fn await_locks_is_repeated_on_next_connection() {
    let (mut client, send_id) = waiting();
    client.step(HolderInput::Disconnected);
    assert_eq!(
        client.answer(send_id, Answer::LockStatuses(vec![(LOCK, granted(9, false))])),
        [],
        "the answer of the ended connection is ignored"
    );
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let bodies: Vec<Body> = sent(&effects).into_iter().map(|(_, body)| body).collect();
    assert!(bodies.contains(&awaits(LockStatus::Waiting)), "{bodies:?}");
}

#[test]
fn refused_await_locks_is_repeated_later() {
    let (mut client, send_id) = waiting();
    assert_eq!(sent(&client.refuse(send_id, Refusal::Retry)), []);
    client.now = at(100).after(Duration::from_millis(100));
    let (_, body) = sent(&client.timeout(&[])).pop().expect("the AwaitLockStatus request is repeated");
    assert_eq!(body, awaits(LockStatus::Waiting));
}

#[test]
fn handed_over_lock_ends_at_once_and_returns_only_if_refused() {
    let hand_over = || Write::HandOver { path: path("/a"), lock: LOCK, successor: LockId(5) };
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let effects = client.write(6, hand_over());
    let send_id = client.only(&effects).0;
    assert_eq!(client.remaining(), Duration::ZERO, "the lock ends before the server applies the write");
    let effects = client.write(7, hand_over());
    assert!(matches!(effects[..], [HolderEffect::WriteDone { result: Err(WriteFailure::NotSent), .. }]), "{effects:?}");
    let refusal = Refusal::Write(WriteRefusal::SuccessorNotWaiting { path: path("/a"), successor: LockId(5) });
    client.refuse(send_id, refusal);
    assert!(client.remaining() > Duration::ZERO, "the session owns the lock again");

    let effects = client.write(8, hand_over());
    let send_id = client.only(&effects).0;
    let written = Written::default();
    let effects = client.answer(
        send_id,
        Answer::Written {
            written,
            stamp: stamp(41),
            grant: None,
            applied: Revision(31),
            key_lease: None,
            write_lease_data: None,
        },
    );
    assert_eq!(client.remaining(), Duration::ZERO);
    assert!(!effects.contains(&lock_lost()), "a lock that was handed over is not reported lost");
    assert!(client.holder.locks.by_id.is_empty(), "the holder has forgotten the lock");

    let mut client = Client::leased();
    client.lock(Some(9), 1);
    client.write(6, hand_over());
    client.step(HolderInput::CancelWrite(WriteId(6)));
    assert_eq!(client.remaining(), Duration::ZERO, "the outcome of the hand-over is unknown");
}
