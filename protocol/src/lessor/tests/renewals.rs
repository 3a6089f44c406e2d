//! Renew-only requests: when they wait for a tick, and what they are promised (T6).

use super::*;
use crate::{
    id::LeaseId,
    lease_policy::LeaseRequest,
    message::{KeepAliveResult, KeyLeasePromise, KeyLeaseRenewal},
    reached::{Bound, take_reached},
};

const ONE: LeaseId = LeaseId(1);
const TICK: Duration = Duration::from_millis(250);

impl World {
    /// A heartbeat that renews the session's lease on the root.
    fn keep_alive(&mut self, session: SessionId, incarnation: Incarnation) -> Vec<LessorEffect> {
        self.renew_with((session, incarnation), Body::Heartbeat(Default::default()))
    }

    /// A request with which the session renews its lease on the root.
    fn renew_with(&mut self, (session, incarnation): (SessionId, Incarnation), body: Body) -> Vec<LessorEffect> {
        let header = RequestHeader {
            session,
            epoch: self.state.epoch(),
            registration: self.registration(session),
            renew: vec![Renew { volume: NodePath::root(), incarnation }],
            ..RequestHeader::default()
        };
        self.send(Request { header, body })
    }

    fn keep_key(&mut self, session: SessionId) -> Vec<LessorEffect> {
        let leases = vec![KeyLeaseRenewal { id: ONE, incarnation: None }];
        self.request(session, Body::KeepAlive { leases })
    }

    /// A session with a lease on the root, and a key lease, both half a term old.
    fn half_a_term_old() -> (Self, SessionId, Incarnation) {
        let mut world = World::new();
        let session = world.session();
        let incarnation = world.acquire(session, None).promise.incarnation;
        world.write(session, Write::GrantLease { id: Some(ONE), name: None, ttl: TERM });
        world.commit();
        world.pass(TERM / 2);
        (world, session, incarnation)
    }

    /// Lets time pass in small steps up to the first answer.
    fn until_answered(&mut self, most: Duration) -> Vec<Response> {
        let end = self.now.after(most);
        while self.now < end {
            let answered = replies(&self.pass(Duration::from_millis(10)));
            if !answered.is_empty() {
                return answered;
            }
        }
        Vec::new()
    }
}

fn kept_span(response: &Response) -> KeepAliveResult {
    let Ok(Answer::KeptAlive(promises)) = &response.result else { panic!("kept: {response:?}") };
    let [KeyLeasePromise { result, .. }] = promises.as_slice() else { panic!("one: {promises:?}") };
    *result
}

#[test]
fn renewal_at_half_a_term_is_promised_a_whole_term_by_the_tick() {
    let (mut world, session, incarnation) = World::half_a_term_old();
    assert_eq!(replies(&world.keep_alive(session, incarnation)), [], "the answer waits for the tick");
    assert_eq!(replies(&world.keep_key(session)), []);
    let sent = world.now;
    let answered = world.until_answered(2 * TICK);
    assert!(world.now.since(sent) <= TICK, "{:?}", world.now.since(sent));
    let [alive, promises] = answered.as_slice() else { panic!("both: {answered:?}") };
    assert_eq!(alive.promises.iter().map(|promise| promise.span).collect::<Vec<_>>(), [TERM]);
    assert_eq!(kept_span(promises), KeepAliveResult::Renewed(TERM));
    let Ok(Answer::Heartbeat(answer)) = &alive.result else { panic!("alive: {alive:?}") };
    assert_eq!(answer.delay, world.now.since(sent), "the client does not take it for a slow network");
}

/// Planted: `LongerPromiseNotCounted`.
#[test]
fn lease_promised_a_whole_term_by_the_tick_lasts_that_long() {
    let (mut world, session, incarnation) = World::half_a_term_old();
    world.keep_alive(session, incarnation);
    world.keep_key(session);
    let sent = world.now;
    assert_eq!(world.until_answered(2 * TICK).len(), 2);
    world.pass(sent.after(TERM).since(world.now));
    assert!(world.state.lease(&AnyLease::Volume(session, NodePath::root())).is_some(), "the promise ends here");
    assert!(world.state.lease(&AnyLease::KeyLease(ONE)).is_some(), "the promise ends here");
    world.pass(TERM / 10);
    assert!(world.state.lease(&AnyLease::Volume(session, NodePath::root())).is_none(), "counted from the arrival");
    assert!(world.state.lease(&AnyLease::KeyLease(ONE)).is_none(), "counted from the arrival");
}

#[test]
fn promise_after_a_tick_stays_within_the_horizon() {
    let (mut world, session, incarnation) = World::half_a_term_old();
    world.keep_alive(session, incarnation);
    let arrived = world.now;
    // The tick with this renewal is not committed for as long as the request waits.
    while !world.lessor.has_proposal() {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    let tick = world.lessor.take_proposal(world.now).expect("a tick");
    let horizon = world.state.lease(&AnyLease::Volume(session, NodePath::root())).expect("a lease").horizon;
    let answered = loop {
        world.now = world.now.after(clock::STEP_EVERY);
        let answered = replies(&world.step(LessorInput::Timeout));
        if !answered.is_empty() {
            break answered;
        }
    };
    let waited = world.now.since(arrived);
    assert!(waited >= 2 * TICK && waited <= 2 * TICK + clock::STEP_EVERY, "{waited:?}");
    let span = answered[0].promises[0].span;
    let promising = world.lessor.clock.promising_time(world.now).expect("the epoch has begun");
    assert_eq!(promising.after(span).before(waited), horizon, "what the horizon leaves, counted from the arrival");
    world.apply(&tick);
}

#[test]
fn renewal_that_gains_little_by_a_tick_is_answered_at_once() {
    let mut world = World::new();
    let session = world.session();
    let incarnation = world.acquire(session, None).promise.incarnation;
    world.pass(TERM / 16);
    let answered = replies(&world.keep_alive(session, incarnation));
    let [Promise { span, .. }] = answered[0].promises.as_slice() else { panic!("{answered:?}") };
    assert!(*span < TERM && *span >= TERM / 8 * 7, "{span:?}");
}

/// If the request waited for a tick, its client would lose the short lease meanwhile.
#[test]
fn renewal_beside_a_short_remaining_lease_is_answered_at_once() {
    for ttl in [200, 400, 1_000] {
        let (mut world, session, incarnation) = World::half_a_term_old();
        let (short, ttl) = (LeaseId(2), Duration::from_millis(ttl));
        world.write(session, Write::GrantLease { id: Some(short), name: None, ttl });
        world.commit();
        world.pass(ttl / 2);
        let leases = vec![KeyLeaseRenewal { id: short, incarnation: None }];
        let answered = replies(&world.renew_with((session, incarnation), Body::KeepAlive { leases }));
        assert_eq!(answered.len(), 1, "a lease of {ttl:?} beside one of {TERM:?}");
    }
}

#[test]
fn renewal_beyond_a_ticks_bound_waits_for_the_next_tick() {
    let (mut world, session, incarnation) = World::half_a_term_old();
    // A tick has room for one lease: the one on the root, whose horizon is nearer than that of the
    // key lease.
    world.lessor.config.bounds.tick_bytes_max = 1;
    world.keep_alive(session, incarnation);
    world.keep_key(session);
    let answered = world.until_answered(2 * TICK);
    let spans = answered.iter().map(|response| match response.promises.as_slice() {
        [promise] => KeepAliveResult::Renewed(promise.span),
        _ => kept_span(response),
    });
    assert_eq!(spans.collect::<Vec<_>>(), vec![KeepAliveResult::Renewed(TERM); 2]);
}

#[test]
fn renewal_with_little_time_left_is_answered_at_once() {
    let (mut world, session, incarnation) = World::half_a_term_old();
    world.pass(TERM / 2 - TICK);
    let answered = replies(&world.keep_alive(session, incarnation));
    assert!(answered[0].promises[0].span < 4 * TICK, "{answered:?}");
}

#[test]
fn renewal_limited_by_an_unanswered_recall_is_answered_at_once() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    world.write(writer, put("/a", b"2"));
    world.pass(TERM / 2);
    let answered = replies(&world.keep_alive(holder, grant.incarnation));
    assert!(answered[0].promises[0].span <= TERM / 2, "a tick moves no bound of S5: {answered:?}");
}

#[test]
fn lease_ended_before_the_tick_is_not_promised() {
    let (mut world, session, _) = World::half_a_term_old();
    world.keep_key(session);
    world.write(session, Write::RevokeLease { id: ONE, incarnation: None });
    let answered = replies(&world.pass(2 * TICK));
    let promises: Vec<_> =
        answered.iter().filter(|response| matches!(response.result, Ok(Answer::KeptAlive(_)))).collect();
    assert_eq!(promises.iter().map(|response| kept_span(response)).collect::<Vec<_>>(), [KeepAliveResult::NotFound]);
}

#[test]
fn renewal_of_session_ended_before_the_tick_is_refused() {
    let (mut world, session, incarnation) = World::half_a_term_old();
    world.keep_alive(session, incarnation);
    world.request(session, Body::Close);
    let answered = replies(&world.pass(2 * TICK));
    let refused = Err(Refusal::SessionNotFound { session });
    assert!(answered.iter().any(|response| response.result == refused), "{answered:?}");
}

/// One request waits for a tick, and one for a proof. The volume changes meanwhile.
#[test]
fn waiting_renewal_gets_the_generation_at_its_answer() {
    let generation = |world: &World| world.state.volume(&NodePath::root()).expect("a volume").generation;
    for body in [
        Body::Heartbeat(Default::default()),
        Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit },
    ] {
        let (mut world, session, incarnation) = World::half_a_term_old();
        let before = generation(&world);
        assert_eq!(replies(&world.renew_with((session, incarnation), body)), [], "the request waits");
        world.write(session, Write::SetVolume { path: NodePath::root(), settings: VolumeSettings::DEFAULT });
        let mut answered = replies(&world.commit());
        assert!(generation(&world) > before);
        answered.extend(replies(&world.step(LessorInput::Proven { round: world.lessor.round })));
        answered.extend(world.until_answered(2 * TICK));
        let promised = answered.iter().flat_map(|response| &response.promises);
        let promised: Vec<_> = promised.map(|promise| promise.generation).collect();
        assert_eq!(promised, [generation(&world)], "{answered:?}");
    }
}

#[test]
fn leader_that_steps_down_answers_its_waiting_renewals() {
    let (mut world, session, incarnation) = World::half_a_term_old();
    world.keep_alive(session, incarnation);
    let refused = replies(&world.lessor.clone().step_down(&world.state, world.now));
    assert_eq!(refused.iter().map(|response| response.result.clone()).collect::<Vec<_>>(), [Err(Refusal::Retry)]);
}

#[test]
fn renewals_beyond_the_bound_are_answered_at_once() {
    let (mut world, session, incarnation) = World::half_a_term_old();
    world.lessor.config.bounds.renewals_waiting_max = 1;
    take_reached();
    assert_eq!(replies(&world.keep_alive(session, incarnation)), []);
    let answered = replies(&world.keep_alive(session, incarnation));
    assert!(answered[0].promises[0].span < TERM, "{answered:?}");
    assert_eq!(take_reached().get(&Bound::RenewalsWaiting), Some(&1));
    assert_eq!(world.until_answered(2 * TICK).len(), 1);
}

#[test]
fn renewals_beyond_a_steps_bound_are_answered_next_step() {
    let (mut world, session, incarnation) = World::half_a_term_old();
    world.lessor.config.bounds.renewals_answered_per_step = 1;
    (0..3).for_each(|_| assert_eq!(replies(&world.keep_alive(session, incarnation)), []));
    assert_eq!(world.until_answered(2 * TICK).len(), 1, "others are served between two steps");
    let soon = world.lessor.next_deadline(world.now).since(world.now);
    assert!(soon <= Duration::from_millis(1), "{soon:?}");
    assert_eq!(replies(&world.step(LessorInput::Timeout)).len(), 1);
    assert_eq!(replies(&world.step(LessorInput::Timeout)).len(), 1);
    assert_eq!(replies(&world.step(LessorInput::Timeout)).len(), 0);
}

/// A renewal counts from its arrival, never from its answer.
#[test]
fn answer_of_a_tick_is_no_sign_of_life() {
    let (mut world, session, incarnation) = World::half_a_term_old();
    world.keep_alive(session, incarnation);
    assert_eq!(world.until_answered(2 * TICK).len(), 1);
    let horizon =
        |world: &World| world.state.lease(&AnyLease::Volume(session, NodePath::root())).map(|lease| lease.horizon);
    let before = horizon(&world);
    world.pass(TERM / 2);
    assert_eq!(horizon(&world), before, "no later tick has the renewal again");
}
