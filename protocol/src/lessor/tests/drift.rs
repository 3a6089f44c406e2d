//! Drift supervision: what the leader counts, and what it reports of clients beyond their
//! allowances.

use super::*;
use crate::{
    drift::{ClockAnswer, ClockQuestion, Excess, SinceExchange},
    message::{CLOCK_INFOS_MAX, ClockInfo},
};

fn reported(effects: &[LessorEffect]) -> Vec<(SessionId, Option<Excess>)> {
    let change = |effect: &LessorEffect| match effect {
        LessorEffect::ClockChanged { session, beyond, .. } => Some((*session, *beyond)),
        _ => None,
    };
    effects.iter().filter_map(change).collect()
}

fn excess() -> Excess {
    Excess { client: Duration::from_secs(1), server: Duration::from_secs(2), allowed_ppm: 2_000 }
}

fn saying(excess: Option<Excess>) -> Body {
    Body::Heartbeat(ClockQuestion { excess, ..ClockQuestion::default() })
}

#[test]
fn leader_counts_from_the_registration_and_from_each_keep_alive() {
    let mut world = World::new();
    let session = world.session();
    let registration = world.registration(session);
    world.pass(Duration::from_secs(1));
    let ask = |mark, references| Body::Heartbeat(ClockQuestion { mark, references, excess: None });
    let alive = |effects: &[LessorEffect]| match answer(effects) {
        Answer::Heartbeat(ClockAnswer { since, .. }) => since,
        other => panic!("alive: {other:?}"),
    };
    let since = |mark, secs| SinceExchange { mark, span: Duration::from_secs(secs) };
    let first = world.request(session, ask(7, [registration, 0, 0, 0]));
    assert_eq!(alive(&first), [since(registration, 1)]);
    world.pass(Duration::from_secs(3));
    let second = world.request(session, ask(8, [registration, 7, 0, 0]));
    assert_eq!(alive(&second), [since(registration, 4), since(7, 3)]);
}

#[test]
fn drifting_client_is_reported_once_and_listed() {
    let mut world = World::new();
    let (session, other) = (world.session(), world.session());
    assert_eq!(reported(&world.request(session, saying(None))), []);
    assert_eq!(reported(&world.request(session, saying(Some(excess())))), [(session, Some(excess()))]);
    assert_eq!(reported(&world.request(session, saying(Some(excess())))), [], "told already");
    let info = ClockInfo { session, name: "test".to_owned(), excess: excess() };
    assert_eq!(world.lessor.clock_infos(&world.state), (1, vec![info]));
    assert_eq!(reported(&world.request(other, saying(None))), []);
    assert_eq!(reported(&world.request(session, saying(None))), [(session, None)]);
    assert_eq!(world.lessor.clock_infos(&world.state), (0, vec![]));
}

#[test]
fn ended_session_is_not_listed_as_drifting() {
    let mut world = World::new();
    let session = world.session();
    world.request(session, saying(Some(excess())));
    world.request(session, Body::Close);
    world.commit();
    assert_eq!(world.lessor.clock_infos(&world.state), (0, vec![]));
}

#[test]
fn drifting_clients_are_all_counted_and_some_listed() {
    let mut world = World::new();
    let sessions: Vec<SessionId> = (0..=CLOCK_INFOS_MAX).map(|_| world.session()).collect();
    for session in &sessions {
        world.request(*session, saying(Some(excess())));
    }
    let (count, infos) = world.lessor.clock_infos(&world.state);
    assert_eq!((count, infos.len()), (CLOCK_INFOS_MAX as u64 + 1, CLOCK_INFOS_MAX));
}

#[test]
fn question_with_a_request_for_a_lease_is_answered_with_it() {
    let mut world = World::new();
    let session = world.session();
    let registration = world.registration(session);
    world.pass(Duration::from_secs(1));
    let clocks = Some(Box::new(ClockQuestion { mark: 7, references: [registration, 0, 0, 0], excess: None }));
    let header = RequestHeader { session, epoch: world.state.epoch(), registration, clocks, ..Default::default() };
    let body = Body::Acquire { path: NodePath::root(), last_valid: None, read: None };
    assert_eq!(replies(&world.send(Request { header, body })), []);
    world.now = world.now.after(MILLI * 30);
    let response = replies(&world.commit()).pop().expect("the lease is committed");
    let clocks = response.clocks.expect("the question is answered");
    assert_eq!(clocks.since, [SinceExchange { mark: registration, span: Duration::from_secs(1) }]);
    assert_eq!(clocks.delay, MILLI * 30, "the client knows how long the commit took");
    let ask = Body::Heartbeat(ClockQuestion { mark: 8, references: [7, 0, 0, 0], excess: None });
    let Answer::Heartbeat(ClockAnswer { since, .. }) = answer(&world.request(session, ask)) else { panic!("alive") };
    assert_eq!(since, [SinceExchange { mark: 7, span: MILLI * 30 }], "the leader noted the arrival");
}
