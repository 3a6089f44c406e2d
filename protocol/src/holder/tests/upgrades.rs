//! What the answer to a write says about a lock: new or old, under a lease that holds or not.

use super::*;
use crate::{
    command::Written,
    id::{LockId, Token},
    lock::{LockGrant, LockMode, LockStatus},
};

const HOLD: LockId = LockId(4);

fn taken(mode: LockMode, token: Option<u64>) -> Answer {
    let taken = LockGrant {
        path: path("/a"),
        lock: HOLD,
        mode,
        token: token.map(Token),
        volume: NodePath::root(),
        incarnation: Incarnation(1),
    };
    written_answer(Written { lock: Some(Box::new(taken)), ..Written::default() })
}

fn held(mode: LockMode, token: u64) -> LockStatus {
    LockStatus::Granted { token: Token(token), mode, is_contended: false }
}

fn lock(client: &mut Client, mode: LockMode) -> SendId {
    let effects = client.write(5, Write::Lock { path: path("/a"), mode, wait: true, delay: Duration::ZERO });
    client.only(&effects).0
}

/// A client that owns a shared lock and has asked for an upgrade.
fn upgrading() -> (Client, SendId) {
    let mut client = Client::leased();
    let ticket = lock(&mut client, LockMode::Shared);
    client.answer(ticket, taken(LockMode::Shared, Some(9)));
    let mode = LockMode::Exclusive;
    let effects = client.write(6, Write::ChangeLockMode { path: path("/a"), lock: HOLD, mode, wait: true });
    let ticket = client.only(&effects).0;
    (client, ticket)
}

/// The status of the lock as the client knows it, from its next request about locks.
fn known(client: &mut Client) -> (SendId, LockStatus) {
    client.now = client.now.after(Duration::from_millis(100));
    let of = |(ticket, body)| match body {
        Body::AwaitLocks { locks } => Some((ticket, locks[0].known)),
        _ => None,
    };
    sent(&client.timeout(&[])).into_iter().find_map(of).expect("it asks")
}

#[test]
fn upgrade_is_known_by_its_answer() {
    let (mut client, ticket) = upgrading();
    client.answer(ticket, taken(LockMode::Exclusive, Some(10)));
    assert_eq!(known(&mut client).1, held(LockMode::Exclusive, 10));
}

#[test]
fn answer_to_an_upgrade_takes_back_nothing_that_was_told_since() {
    let (mut client, ticket) = upgrading();
    let (asked, before) = known(&mut client);
    assert_eq!(before, held(LockMode::Shared, 9));
    client.answer(asked, Answer::LockStatuses(vec![(HOLD, held(LockMode::Exclusive, 10))]));
    client.answer(ticket, taken(LockMode::Shared, Some(9)));
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let asked = sent(&effects).into_iter().find_map(|(_, body)| match body {
        Body::AwaitLocks { locks } => Some(locks[0].known),
        _ => None,
    });
    assert_eq!(asked, Some(held(LockMode::Exclusive, 10)));
}

#[test]
fn lock_that_is_answered_after_its_lease_is_over() {
    let mut client = Client::leased();
    let ticket = lock(&mut client, LockMode::Exclusive);
    client.now = at(110);
    let effects = client.answer(ticket, taken(LockMode::Exclusive, Some(9)));
    assert_eq!(effects.last(), Some(&HolderEffect::LocksLost { locks: vec![HOLD] }));
}

#[test]
fn wait_that_is_answered_after_its_lease_goes_on() {
    let mut client = Client::leased();
    let ticket = lock(&mut client, LockMode::Exclusive);
    client.now = at(110);
    let effects = client.answer(ticket, taken(LockMode::Exclusive, None));
    assert!(!effects.contains(&HolderEffect::LocksLost { locks: vec![HOLD] }), "it may be renewed yet");
    assert!(sent(&effects).iter().any(|(_, body)| matches!(body, Body::AwaitLocks { .. })), "it asks: {effects:?}");
}

/// The lock counts as shared from the request on. If the client cancelled the request, the servers
/// would count the lock as exclusive for ever.
#[test]
fn request_to_share_is_not_given_up() {
    let mut client = Client::leased();
    let ticket = lock(&mut client, LockMode::Exclusive);
    client.answer(ticket, taken(LockMode::Exclusive, Some(9)));
    client.step(HolderInput::Disconnected);
    client.write(6, Write::ChangeLockMode { path: path("/a"), lock: HOLD, mode: LockMode::Shared, wait: true });
    assert_eq!(client.step(HolderInput::CancelWrite(WriteId(6))), []);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let convert =
        |(ticket, body)| matches!(body, Body::Write { write: Write::ChangeLockMode { .. }, .. }).then_some(ticket);
    let convert = sent(&effects).into_iter().find_map(convert).expect("it is sent");
    let effects = client.answer(convert, taken(LockMode::Shared, Some(9)));
    assert!(
        effects.iter().any(|effect| matches!(effect, HolderEffect::WriteDone { write: WriteId(6), result: Ok(_) }))
    );
}
