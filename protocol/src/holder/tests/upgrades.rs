//! Lock grants in the answers to writes: newer or older than the known status, with or without a
//! lease that still holds.

use super::*;
use crate::{
    command::Written,
    id::{LockId, Token},
    lock::{LockMode, LockOutcome, LockStatus},
};

const LOCK: LockId = LockId(4);

fn lock_outcome(mode: LockMode, token: Option<u64>) -> Answer {
    let grant = LockOutcome {
        path: path("/a"),
        lock: LOCK,
        mode,
        token: token.map(Token),
        volume: NodePath::root(),
        incarnation: Incarnation(1),
    };
    written_answer(Written { lock: Some(Box::new(grant)), ..Written::default() })
}

fn granted(mode: LockMode, token: u64) -> LockStatus {
    LockStatus::Granted { token: Token(token), mode, is_contended: false }
}

fn lock(client: &mut Client, mode: LockMode) -> SendId {
    let effects = client.write(5, Write::Lock { path: path("/a"), mode, wait: true, delay: Duration::ZERO });
    client.only(&effects).0
}

/// A client that owns a shared lock and has asked for an upgrade.
fn upgrading() -> (Client, SendId) {
    let mut client = Client::leased();
    let send_id = lock(&mut client, LockMode::Shared);
    client.answer(send_id, lock_outcome(LockMode::Shared, Some(9)));
    let mode = LockMode::Exclusive;
    let effects = client.write(6, Write::ChangeLockMode { path: path("/a"), lock: LOCK, mode, wait: true });
    let send_id = client.only(&effects).0;
    (client, send_id)
}

/// The status of the lock as the client knows it, from its next request about locks.
fn known_status(client: &mut Client) -> (SendId, LockStatus) {
    client.now = client.now.after(Duration::from_millis(100));
    let first_known = |(send_id, body)| match body {
        Body::AwaitLockStatus { locks } => Some((send_id, locks[0].known)),
        _ => None,
    };
    sent(&client.timeout(&[])).into_iter().find_map(first_known).expect("an AwaitLockStatus request is sent")
}

#[test]
fn upgrade_is_known_by_its_answer() {
    let (mut client, send_id) = upgrading();
    client.answer(send_id, lock_outcome(LockMode::Exclusive, Some(10)));
    assert_eq!(known_status(&mut client).1, granted(LockMode::Exclusive, 10));
}

#[test]
fn late_upgrade_answer_does_not_undo_reported_grant() {
    let (mut client, send_id) = upgrading();
    let (await_lock_status, status) = known_status(&mut client);
    assert_eq!(status, granted(LockMode::Shared, 9));
    client.answer(await_lock_status, Answer::LockStatuses(vec![(LOCK, granted(LockMode::Exclusive, 10))]));
    client.answer(send_id, lock_outcome(LockMode::Shared, Some(9)));
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let known = sent(&effects).into_iter().find_map(|(_, body)| match body {
        Body::AwaitLockStatus { locks } => Some(locks[0].known),
        _ => None,
    });
    assert_eq!(known, Some(granted(LockMode::Exclusive, 10)));
}

#[test]
fn lock_granted_after_its_lease_ended_is_lost() {
    let mut client = Client::leased();
    let send_id = lock(&mut client, LockMode::Exclusive);
    client.now = at(110);
    let effects = client.answer(send_id, lock_outcome(LockMode::Exclusive, Some(9)));
    assert_eq!(effects.last(), Some(&HolderEffect::LocksLost { locks: vec![LOCK], may_remain: true }));
}

#[test]
fn waiting_lock_answered_after_its_lease_ended_stays() {
    let mut client = Client::leased();
    let send_id = lock(&mut client, LockMode::Exclusive);
    client.now = at(110);
    let effects = client.answer(send_id, lock_outcome(LockMode::Exclusive, None));
    assert!(
        !effects.contains(&HolderEffect::LocksLost { locks: vec![LOCK], may_remain: true }),
        "the lease may still be renewed"
    );
    assert!(
        sent(&effects).iter().any(|(_, body)| matches!(body, Body::AwaitLockStatus { .. })),
        "an AwaitLockStatus request is sent: {effects:?}"
    );
}

/// The lock counts as shared from the request on. If the client cancelled the request, the servers
/// would count the lock as exclusive for ever.
#[test]
fn downgrade_cannot_be_cancelled() {
    let mut client = Client::leased();
    let send_id = lock(&mut client, LockMode::Exclusive);
    client.answer(send_id, lock_outcome(LockMode::Exclusive, Some(9)));
    client.step(HolderInput::Disconnected);
    client.write(6, Write::ChangeLockMode { path: path("/a"), lock: LOCK, mode: LockMode::Shared, wait: true });
    assert_eq!(client.step(HolderInput::CancelWrite(WriteId(6))), []);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let downgrade =
        |(send_id, body)| matches!(body, Body::Write { write: Write::ChangeLockMode { .. }, .. }).then_some(send_id);
    let downgrade = sent(&effects).into_iter().find_map(downgrade).expect("the downgrade is sent");
    let effects = client.answer(downgrade, lock_outcome(LockMode::Shared, Some(9)));
    assert!(
        effects.iter().any(|effect| matches!(effect, HolderEffect::WriteDone { write: WriteId(6), result: Ok(_) }))
    );
}
