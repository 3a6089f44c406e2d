//! A leader that cannot commit ends no lease, and answers of none that it has lapsed (T4, T5). A
//! late answer renews from the arrival of its request.

use super::*;
use crate::{
    id::LeaseId,
    lease_policy::LeaseRequest,
    lock::LockMode,
    message::{KeepAliveResult, KeyLeaseRenewal},
};

const ONE: LeaseId = LeaseId(1);

impl World {
    /// Lets time pass without a quorum: proposals are taken and not committed. Calls `each` after
    /// each step.
    fn stall(&mut self, span: Duration, mut each: impl FnMut(&mut Self)) -> Vec<Proposal> {
        let end = self.now.after(span);
        let mut proposals = Vec::new();
        while self.now < end {
            self.now = self.now.after(clock::STEP_EVERY);
            self.step(LessorInput::Timeout);
            proposals.extend(self.lessor.take_proposal(self.now));
            each(self);
        }
        proposals
    }

    fn keep_one(&mut self, session: SessionId) -> KeepAliveResult {
        let leases = vec![KeyLeaseRenewal { id: ONE, incarnation: None }];
        let Answer::KeptAlive(promises) =
            answer(&self.at_once(|world| world.request(session, Body::KeepAlive { leases })))
        else {
            panic!("kept")
        };
        promises[0].result
    }

    fn grant_one(&mut self, session: SessionId) {
        self.write(session, Write::GrantLease { id: Some(ONE), name: None, ttl: TERM });
        self.commit();
    }

    /// Commits until the end of a lease is proposed, but does not commit the end.
    fn until_an_end_is_proposed(&mut self) {
        let is_end = |command: &Command| matches!(command, Command::Expire { .. });
        while !self.lessor.proposal_queue.commands().any(is_end) {
            self.commit();
            self.now = self.now.after(clock::STEP_EVERY);
            self.step(LessorInput::Timeout);
        }
    }
}

#[test]
fn key_lease_is_promised_within_its_horizon_after_a_pause() {
    let mut world = World::new();
    let session = world.session();
    world.grant_one(session);
    // The leader is paused: the ending clock stands still, the promising one does not.
    world.now = world.now.after(TERM / 2);
    let KeepAliveResult::Renewed(span) = world.keep_one(session) else { panic!("no lease ended in the pause") };
    assert!(span <= TERM / 2 + TERM / 5, "{span:?}");
    assert!(world.lessor.clock.ending_time() < ClusterTime::ZERO.after(TERM / 4));
}

#[test]
fn leader_without_a_quorum_ends_no_lease() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.grant_one(holder);
    world.pass(TERM / 2);
    // The first promise reaches no further than the horizon in the log (T6), so the client asks
    // again.
    for _ in 0..2 {
        world.renew(holder, grant.incarnation).expect("alive");
        assert!(matches!(world.keep_one(holder), KeepAliveResult::Renewed(_)));
        world.pass(world.state.tick());
    }
    // The next renewal is due: a little less than half of the term is left.
    world.pass(TERM * 6 / 10 - clock::STEP_EVERY);
    let proposals = world.stall(3 * TERM, |world| {
        assert_ne!(
            world.renew(holder, grant.incarnation),
            Err(Some(Lapse { volume: NodePath::root(), incarnation: grant.incarnation }))
        );
        assert_ne!(world.keep_one(holder), KeepAliveResult::NotFound);
    });
    let mut commands = proposals.iter().flat_map(|proposal| &proposal.commands);
    assert_eq!(commands.find(|command| matches!(command, Command::Expire { .. })), None);
    for proposal in &proposals {
        world.apply(proposal);
    }
    // Horizons move with the next entry.
    world.pass(2 * clock::STEP_EVERY);
    let promise = world.renew(holder, grant.incarnation).expect("kept all the time");
    assert!(promise.span > TERM / 2, "{promise:?}");
    assert!(matches!(world.keep_one(holder), KeepAliveResult::Renewed(span) if span > TERM / 2));
    world.pass(TERM / 2);
    assert!(world.state.lease(&AnyLease::Volume(holder, NodePath::root())).is_some());
    assert!(world.state.lease(&AnyLease::KeyLease(ONE)).is_some());
}

#[test]
fn end_that_is_proposed_and_not_applied_is_no_lapse() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.until_an_end_is_proposed();
    assert_eq!(world.renew(holder, grant.incarnation), Err(None), "the lease is neither promised nor ended");
    world.commit();
    let lapse = Lapse { volume: NodePath::root(), incarnation: grant.incarnation };
    assert_eq!(world.renew(holder, grant.incarnation), Err(Some(lapse)));
}

#[test]
fn key_lease_whose_end_is_not_applied_is_not_gone() {
    let mut world = World::new();
    let session = world.session();
    world.grant_one(session);
    world.until_an_end_is_proposed();
    assert_eq!(world.keep_one(session), KeepAliveResult::Unconfirmed);
    world.commit();
    assert_eq!(world.keep_one(session), KeepAliveResult::NotFound);
}

/// The waiting client is dead when it is answered. The answer must not prolong its lock.
#[test]
fn late_answer_renews_from_the_arrival_of_its_request() {
    let mut world = World::new();
    let (client, grant) = world.holder(&data("/own"));
    world.write(
        client,
        Write::Lock { path: path("/lock"), mode: LockMode::Exclusive, wait: true, delay: Duration::ZERO },
    );
    world.commit();
    world.pass(TERM / 20);
    world.holder(&data("/x"));
    // Its horizon moves with the next tick, so that the request can renew it for a whole term (T6).
    world.renew(client, grant.incarnation).expect("alive");
    world.pass(world.state.tick());
    world.sequence += 1;
    let header = RequestHeader {
        session: client,
        epoch: world.state.epoch(),
        registration: world.registration(client),
        sequence: Sequence(world.sequence),
        unanswered_from: Sequence(world.sequence),
        renew: vec![Renew { volume: NodePath::root(), incarnation: grant.incarnation }],
        ..RequestHeader::default()
    };
    let body = Body::Write { write: put("/x", b"1"), dropped: Vec::new(), seen: Stamp::default() };
    let arrived = world.now;
    assert_eq!(replies(&world.send(Request { header, body })), [], "the write waits for the silent holder of /x");
    let mut promised = Vec::new();
    while world.state.locks_on(&path("/lock")).next().is_some() {
        promised.extend(replies(&world.pass(clock::STEP_EVERY)));
        let margin = VolumeSettings::DEFAULT.skew_margin();
        assert!(world.now.since(arrived) <= TERM + margin + 2 * clock::STEP_EVERY, "renewed by its answer");
    }
    let promises: Vec<&Promise> = promised.iter().flat_map(|response| &response.promises).collect();
    assert_eq!(promises.len(), 1, "{promised:?}");
    assert!(promises[0].span > TERM / 2, "counted by its client from sending on: {promises:?}");
}

#[test]
fn renewal_of_a_lease_that_ends_before_the_answer_is_a_lapse() {
    let mut world = World::new();
    let (client, grant) = world.holder(&data("/own"));
    let renew = Renew { volume: NodePath::root(), incarnation: grant.incarnation };
    let header = RequestHeader {
        session: client,
        epoch: world.state.epoch(),
        registration: world.registration(client),
        renew: vec![renew],
        ..RequestHeader::default()
    };
    world.send(Request { header, body: Body::Read { object: data("/b"), known: None, lease: LeaseRequest::Implicit } });
    // Another request of the session replaces the lease before leadership is proved.
    world.acquire(client, None);
    let effects = world.step(LessorInput::Proven { round: world.lessor.round });
    let [response] = replies(&effects).try_into().expect("one answer");
    assert_eq!(response.lapses, [Lapse { volume: NodePath::root(), incarnation: grant.incarnation }]);
    assert_eq!(response.promises, []);
}

#[test]
fn margin_of_a_key_lease_is_the_drift_of_both_clocks_and_more() {
    let seconds = Duration::from_secs;
    let drift = DriftAllowance::from_ppm(1_000).expect("within bounds");
    assert_eq!(key_lease_margin(seconds(90), seconds(10), drift), seconds(100) / 1_000 * 2 + MILLI);
}
