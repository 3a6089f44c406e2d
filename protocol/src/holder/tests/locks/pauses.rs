//! Locks of a client that was paused for longer than its term.

use super::*;

/// The session states that a step reports.
fn reported(effects: &[HolderEffect]) -> Vec<&SessionNews> {
    let states = effects.iter().filter_map(|effect| match effect {
        HolderEffect::Connection(state) => Some(state),
        _ => None,
    });
    states.collect()
}

/// A client that waits for a lock, and was paused past its term with no renewal in flight. Also its
/// requests to renew and for the lock's status.
fn paused() -> (Client, SendId, SendId) {
    let (mut client, _) = waiting();
    client.now = at(150);
    let effects = client.timeout(&[]);
    assert_eq!(reported(&effects), [&jeopardy(&["/"])]);
    let (heartbeat, renew) = keep_alive(&effects).expect("a heartbeat asks for a renewal");
    assert_eq!(renew, [root(1)]);
    let await_lock_status = sent(&effects).into_iter().find(|(_, body)| *body == awaits(LockStatus::Waiting));
    (client, heartbeat, await_lock_status.expect("the next AwaitLockStatus request is sent").0)
}

#[test]
fn paused_client_stays_in_lock_queue_if_servers_still_have_it() {
    let (mut client, heartbeat, await_lock_status) = paused();
    let effects = client.renew(heartbeat, promise("/", 1));
    assert_eq!(reported(&effects), [&SessionNews::Connected { session: SESSION }]);
    assert!(!effects.contains(&lock_lost()));
    let effects = client.answer(await_lock_status, Answer::LockStatuses(vec![(LOCK, granted(9, false))]));
    assert!(effects.contains(&HolderEffect::LockChanged { lock: LOCK, status: granted(9, false) }), "{effects:?}");
    assert_eq!(client.remaining(), TERM);
}

#[test]
fn grant_during_client_pause_counts_after_lease_renewal() {
    let (mut client, heartbeat, await_lock_status) = paused();
    let statuses = || Answer::LockStatuses(vec![(LOCK, granted(9, false))]);
    assert_eq!(
        client.answer(await_lock_status, statuses()),
        [],
        "the grant does not count: the lease has ended on this clock"
    );
    client.renew(heartbeat, promise("/", 1));
    client.now = client.holder.next_deadline().expect("the AwaitLockStatus request is repeated");
    let effects = client.timeout(&[]);
    let (await_lock_status, request) = client.only(&effects);
    assert_eq!(request.body, awaits(LockStatus::Waiting));
    let effects = client.answer(await_lock_status, statuses());
    assert!(effects.contains(&HolderEffect::LockChanged { lock: LOCK, status: granted(9, false) }), "{effects:?}");
    assert!(client.remaining() > Duration::ZERO);
}

#[test]
fn paused_client_is_in_jeopardy_until_its_lease_is_renewed() {
    let (mut client, send_id) = waiting();
    client.now = at(150);
    let effects = client.answer(send_id, Answer::LockStatuses(vec![(LOCK, granted(9, false))]));
    assert_eq!(reported(&effects), [&jeopardy(&["/"])], "{effects:?}");
    let (heartbeat, _) = keep_alive(&client.timeout(&[])).expect("a heartbeat asks for a renewal");
    assert_eq!(reported(&client.renew(heartbeat, promise("/", 1))), [&SessionNews::Connected { session: SESSION }]);
}

#[test]
fn paused_client_is_notified_if_servers_lost_its_position() {
    let (mut client, heartbeat, _) = paused();
    let lapses = vec![Lapse { volume: NodePath::root(), incarnation: Incarnation(1) }];
    let effects = client.respond(
        heartbeat,
        Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result: Ok(Answer::ReportReceived) },
    );
    assert!(effects.contains(&lock_lost()));
    assert_eq!(reported(&effects), [&SessionNews::Connected { session: SESSION }]);
}

#[test]
fn paused_client_without_leader_asks_next_for_its_position() {
    let (mut client, _) = waiting();
    client.step(HolderInput::Disconnected);
    client.now = client.holder.next_deadline().expect("the end of the lease has a deadline");
    assert_eq!((client.now, reported(&client.timeout(&[]))), (at(110), vec![&jeopardy(&["/"])]));
    client.now = at(120);
    let effects = client.step(HolderInput::Connected);
    let (_, request) = client.only(&effects);
    assert_eq!((request.body, request.header.renew), (Body::Register, vec![root(1)]));
}
