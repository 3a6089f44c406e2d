//! Leases in time: promises, renewals, postponed ends (T5, T6), and the revival of a returning
//! session's copies (S7).

use super::*;

#[test]
fn session_with_proposed_end_survives_if_it_acquires_first() {
    let mut world = World::new();
    let session = world.session();
    while !world.lessor.proposal_queue.commands().any(|command| matches!(command, Command::Expire { .. })) {
        world.commit();
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    let is_expiry = |(command, _): &(Command, ProposalReason)| matches!(command, Command::Expire { .. });
    let (command, reason) = world.lessor.proposal_queue.reorder(|waiting| {
        let place = waiting.iter().position(is_expiry);
        place.and_then(|place| waiting.remove(place)).expect("the end of the session")
    });
    world.acquire(session, None);
    world.lessor.proposal_queue.push(command, reason);
    world.commit();
    assert!(world.state.session(session).is_some() && !world.lessor.has_proposal());
}

#[test]
fn session_with_rare_acquisitions_does_not_expire() {
    let mut world = World::new();
    let session = world.session();
    // Each lease has ended before the next is acquired, and moves the session's horizon with its
    // own entry.
    for _ in 0..12 {
        world.acquire(session, None);
        world.pass(State::SESSION_TERM / 10);
        assert!(world.state.session(session).is_some(), "the session renewed a tenth of its term ago");
    }
}

#[test]
fn lease_committed_late_ends_at_its_horizon() {
    let mut world = World::new();
    let session = world.session();
    world.request(session, Body::Acquire { path: NodePath::root(), last_valid: None, read: None });
    let proposal = world.lessor.take_proposal(world.now).expect("the lease");
    // For two terms nothing is committed, and the clock runs on.
    let later = world.now.after(TERM * 2);
    while world.now < later {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    // After each step the check verifies that its end is not beyond its horizon.
    let answer = answer(&world.apply(&proposal));
    let Answer::Acquired(AcquiredVolume { promise, .. }) = answer else { panic!("acquired: {answer:?}") };
    assert_eq!(promise.span, Duration::ZERO);
}

#[test]
fn returning_session_learns_past_and_pending_changes() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    let revision = world.state.revision();
    world.write(writer, put("/changed", b"1"));
    world.commit();
    world.pass(2 * TERM);
    let (second, _) = world.holder(&data("/pending"));
    world.write(writer, put("/pending", b"1"));
    assert_eq!(world.waits("/pending")[0].holder, Some(second));
    let valid_at =
        LastValid { incarnation: grant.incarnation, generation: VolumeGeneration(grant.generation.0), revision };
    let AcquiredVolume { revival, .. } = world.acquire(holder, Some(valid_at));
    let Revival::AllExcept { changed, .. } = revival else { panic!("the history reaches back: {revival:?}") };
    for object in [data("/changed"), data("/pending")] {
        assert!(changed.contains(&ObjectSet::One(object.clone())), "{object} in {changed:?}");
    }
    assert_eq!(
        recalls(&world.write(writer, put("/a", b"1"))).len(),
        1,
        "the session is covering, and may have revived /a"
    );
}

#[test]
fn promise_stays_within_horizon_by_faster_clock() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let before = world.renew(holder, grant.incarnation).expect("live");
    assert!(before.span > TERM - TERM / 20, "{:?}", before.span);
    // The leader is paused: the ending clock stands still, the promising one does not.
    world.now = world.now.after(TERM / 2);
    let after = world.renew(holder, grant.incarnation).expect("no lease ended in the pause");
    assert!(after.span <= TERM / 2 + TERM / 5, "{:?}", after.span);
    assert!(world.lessor.clock.ending_time() < crate::time::ClusterTime::ZERO.after(TERM / 4));
}

#[test]
fn lease_with_proposed_end_is_not_renewed_though_horizon_moved() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    while !world.lessor.proposal_queue.commands().any(|command| matches!(command, Command::Expire { .. })) {
        world.commit();
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    assert!(world.renew(holder, grant.incarnation).is_err());
    assert_eq!(world.read(holder, data("/b")).grant, None, "no object is leased under the lease");
    world.commit();
    assert_eq!(world.state.lease(&AnyLease::Volume(holder, NodePath::root())), None);
}

impl World {
    /// A holder whose lease's end is proposed together with a tick that moves its horizon, and so
    /// postpones the end.
    pub(super) fn end_put_off(&mut self) -> (SessionId, Grant, AnyLease) {
        let (holder, grant) = self.holder(&data("/a"));
        while !self.lessor.proposal_queue.commands().any(|command| matches!(command, Command::Expire { .. })) {
            self.commit();
            self.now = self.now.after(clock::STEP_EVERY);
            self.step(LessorInput::Timeout);
        }
        let lease = AnyLease::Volume(holder, NodePath::root());
        let renewal = Renewal {
            lease: lease.clone(),
            incarnation: grant.incarnation,
            renewed_at: self.lessor.clock.ending_time(),
        };
        let tick = Command::Tick { renewals: vec![renewal] };
        self.lessor.proposal_queue.reorder(|waiting| waiting.push_front((tick, ProposalReason::Tick)));
        (holder, grant, lease)
    }
}

/// The end of the old lease, postponed because its horizon moved, can share an entry with the new
/// lease.
#[test]
fn postponed_end_of_old_lease_spares_its_successor() {
    let mut world = World::new();
    let (holder, _, lease) = world.end_put_off();
    let acquired = world.acquire(holder, None);
    world.pass(TERM / 2);
    let left = world.state.lease(&lease).map(|lease| lease.incarnation);
    assert_eq!(left, Some(acquired.promise.incarnation));
}

/// A volume was removed, and the client acquires leases on it and on the one above at once. Both
/// requests get the same lease.
#[test]
fn two_acquisitions_in_one_entry_revive_no_untracked_copies() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let Grant { incarnation, generation, .. } = grant;
    let last_valid = Some(LastValid { incarnation, generation, revision: world.state.revision() });
    world.request(holder, Body::Acquire { path: NodePath::root(), last_valid, read: None });
    world.request(holder, Body::Acquire { path: path("/v"), last_valid: None, read: None });
    let track = |world: &World| world.lessor.object_leases.track(&NodePath::root(), holder).cloned().expect("leased");
    for response in replies(&world.commit()) {
        let Ok(Answer::Acquired(acquired)) = response.result else { panic!("{response:?}") };
        assert_eq!((acquired.promise.incarnation, acquired.revival), (track(&world).incarnation, Revival::None));
    }
    assert!(!track(&world).is_covering());
    let left = world.state.lease(&AnyLease::Volume(holder, NodePath::root())).map(|lease| lease.incarnation);
    assert_eq!(left, Some(track(&world).incarnation));
}

#[test]
fn a_renewal_costs_no_entry_of_its_own() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    for _ in 0..100 {
        world.renew(holder, grant.incarnation).expect("live");
    }
    assert!(!world.lessor.has_proposal());
    world.pass(TERM);
    let entries = world.index;
    world.pass(TERM);
    let ticks = TERM.as_millis() / world.state.tick().as_millis();
    assert!(u128::from(world.index - entries) <= ticks + 2, "the ticks, and the end of the lease");
}

#[test]
fn next_deadline_is_the_end_of_the_next_lease() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let end = world.lessor.leases.get(&AnyLease::Volume(holder, NodePath::root())).expect("leased").ends_at;
    let ends_at = end.after(VolumeSettings::DEFAULT.skew_margin());
    world.pass(ends_at.since(world.lessor.clock.ending_time()) - 7 * MILLI);
    assert_eq!(world.lessor.next_deadline(world.now), world.now.after(7 * MILLI));
}

#[test]
fn each_revival_has_its_own_covering_number() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let revision = world.state.revision();
    let mut covering = || {
        let valid_at = LastValid { incarnation: grant.incarnation, generation: grant.generation, revision };
        let AcquiredVolume { revival, .. } = world.acquire(holder, Some(valid_at));
        let Revival::AllExcept { covering, .. } = revival else { panic!("the history reaches back: {revival:?}") };
        covering
    };
    assert_ne!(covering(), covering());
}

#[test]
fn renewed_lease_does_not_expire() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    for _ in 0..10 {
        world.pass(TERM / 2);
        let promise = world.renew(holder, grant.incarnation).expect("renewed in time");
        assert!(promise.span >= TERM / 2, "its horizon has moved: {:?}", promise.span);
    }
}

#[test]
fn session_with_requests_does_not_expire() {
    let mut world = World::new();
    let session = world.session();
    for _ in 0..4 {
        world.pass(State::SESSION_TERM / 2);
        let alive = result(&world.request(session, Body::Heartbeat(Default::default())));
        assert_eq!(alive, Ok(Answer::Heartbeat(Default::default())));
    }
}

#[test]
fn frequent_requests_cost_no_session_renewals() {
    let mut world = World::new();
    let session = world.session();
    let key = AnyLease::Session(session);
    let horizon = world.state.lease(&key).map(|lease| lease.horizon);
    for _ in 0..10 {
        world.pass(TERM / 2);
        world.request(session, Body::Heartbeat(Default::default()));
    }
    assert_eq!(world.state.lease(&key).map(|lease| lease.horizon), horizon);
}
