//! Locks of a client that stood still for longer than its term.

use super::*;

/// The session states that a step reports.
fn told(effects: &[HolderEffect]) -> Vec<&ConnectionNews> {
    let states = effects.iter().filter_map(|effect| match effect {
        HolderEffect::Connection(state) => Some(state),
        _ => None,
    });
    states.collect()
}

/// A client that waits for a lock, and was paused past its term with no renewal in flight. Also its
/// requests to renew and for the lock's status.
fn stood_still() -> (Client, SendId, SendId) {
    let (mut client, _) = waiting();
    client.now = at(150);
    let effects = client.timeout(&[]);
    assert_eq!(told(&effects), [&ConnectionNews::Jeopardy]);
    let (alive, renew) = keep_alive(&effects).expect("it asks whether it still has its place");
    assert_eq!(renew, [root(1)]);
    let asked = sent(&effects).into_iter().find(|(_, body)| *body == awaits(LockStatus::Waiting));
    (client, alive, asked.expect("it asks on").0)
}

#[test]
fn paused_client_stays_in_lock_queue_if_servers_still_have_it() {
    let (mut client, alive, asked) = stood_still();
    let effects = client.renew(alive, promise("/", 1));
    assert_eq!(told(&effects), [&ConnectionNews::Connected { session: SESSION }]);
    assert!(!effects.contains(&over()));
    let effects = client.answer(asked, Answer::LockStatuses(vec![(HOLD, held(9, false))]));
    assert!(effects.contains(&HolderEffect::LockChanged { lock: HOLD, status: held(9, false) }), "{effects:?}");
    assert_eq!(client.certain(), TERM);
}

#[test]
fn grant_during_client_pause_counts_after_lease_renewal() {
    let (mut client, alive, asked) = stood_still();
    let granted = || Answer::LockStatuses(vec![(HOLD, held(9, false))]);
    assert_eq!(client.answer(asked, granted()), [], "not by this clock");
    client.renew(alive, promise("/", 1));
    client.now = client.holder.next_deadline().expect("it asks again");
    let effects = client.timeout(&[]);
    let (asked, request) = client.only(&effects);
    assert_eq!(request.body, awaits(LockStatus::Waiting));
    let effects = client.answer(asked, granted());
    assert!(effects.contains(&HolderEffect::LockChanged { lock: HOLD, status: held(9, false) }), "{effects:?}");
    assert!(client.certain() > Duration::ZERO);
}

#[test]
fn paused_client_is_in_jeopardy_until_its_lease_is_renewed() {
    let (mut client, ticket) = waiting();
    client.now = at(150);
    let effects = client.answer(ticket, Answer::LockStatuses(vec![(HOLD, held(9, false))]));
    assert_eq!(told(&effects), [&ConnectionNews::Jeopardy], "{effects:?}");
    let (alive, _) = keep_alive(&client.timeout(&[])).expect("it asks whether it still has its place");
    assert_eq!(told(&client.renew(alive, promise("/", 1))), [&ConnectionNews::Connected { session: SESSION }]);
}

#[test]
fn paused_client_is_notified_if_servers_lost_its_position() {
    let (mut client, alive, _) = stood_still();
    let lapses = vec![Lapse { volume: NodePath::root(), incarnation: Incarnation(1) }];
    let effects =
        client.respond(alive, Response { epoch: EPOCH, promises: vec![], lapses, result: Ok(Answer::ReportReceived) });
    assert!(effects.contains(&over()));
    assert_eq!(told(&effects), [&ConnectionNews::Connected { session: SESSION }]);
}

#[test]
fn paused_client_without_leader_asks_next_for_its_position() {
    let (mut client, _) = waiting();
    client.step(HolderInput::Disconnected);
    client.now = client.holder.next_deadline().expect("its end is noted");
    assert_eq!((client.now, told(&client.timeout(&[]))), (at(110), vec![&ConnectionNews::Jeopardy]));
    client.now = at(120);
    let effects = client.step(HolderInput::Connected);
    let (_, request) = client.only(&effects);
    assert_eq!((request.body, request.header.renew), (Body::Register, vec![root(1)]));
}
