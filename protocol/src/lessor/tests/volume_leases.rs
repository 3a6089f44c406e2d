//! Acquisitions of a volume lease whose predecessor is ending (T5).

use super::{removals::attached, *};
use crate::command::Attach;

/// Before each entry that ends the lease is applied, the client asks for the lease once more.
#[test]
fn repeated_acquisitions_do_not_prevent_a_proposed_end() {
    let mut world = World::new();
    let session = world.session();
    let first = world.acquire(session, None).promise.incarnation;
    world.write(session, attached("/a", Attach::Session));
    world.commit();
    let key = AnyLease::Volume(session, NodePath::root());
    world.pass(TERM);
    let ask = |world: &mut World| {
        world.request(session, Body::Acquire { path: NodePath::root(), last_valid: None, read: None })
    };
    assert_eq!(ask(&mut world), [], "the end is not decided: the request waits for the entry");
    while world.lessor.leases.get(&key).is_some_and(|end| !end.is_end_proposed) {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    let (mut entries, mut effects) = (0, Vec::new());
    while world.state.lease(&key).is_some_and(|lease| lease.incarnation == first) {
        entries += 1;
        assert!(entries <= 2, "the one that was asked for before moves the horizon once");
        world.now = world.now.after(MILLI);
        let proposal = world.lessor.take_proposal(world.now).expect("the end");
        effects.extend(ask(&mut world));
        world.apply(&proposal);
    }
    assert!(replies(&effects).iter().all(|reply| reply.result == Err(Refusal::Retry)), "{effects:?}");
    assert_eq!((entries, effects.len()), (2, 2));
    let second = world.acquire(session, None);
    assert!(second.promise.incarnation > first, "the session gets a new lease");
}

/// The volume may be removed before the request is applied. The request then means the lease above.
#[test]
fn acquisition_below_an_ending_lease_must_retry() {
    let mut world = World::new();
    let (session, maker) = (world.session(), world.session());
    world.acquire(session, None);
    world.write(session, attached("/a", Attach::Session));
    world.write(maker, Write::CreateVolume { path: path("/v"), settings: VolumeSettings::DEFAULT });
    let consents = recalls(&world.commit());
    assert_eq!(consents, [], "no session has a copy below the node");
    let key = AnyLease::Volume(session, NodePath::root());
    while world.lessor.leases.get(&key).is_some_and(|end| !end.is_end_proposed) {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    let ask = |world: &mut World, at: &str| {
        world.request(session, Body::Acquire { path: path(at), last_valid: None, read: None })
    };
    assert_eq!(result(&ask(&mut world, "/v/x")), Err(Refusal::Retry));
    world.commit();
    ask(&mut world, "/v/x");
    assert!(matches!(answer(&world.commit()), Answer::Acquired(_)), "the end is applied");
}

#[test]
fn lease_without_dependents_is_replaced_while_it_ends() {
    let mut world = World::new();
    let session = world.session();
    let first = world.acquire(session, None).promise.incarnation;
    let key = AnyLease::Volume(session, NodePath::root());
    while world.lessor.leases.get(&key).is_some_and(|end| !end.is_end_proposed) {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    assert!(world.state.lease(&key).is_some(), "its end is proposed and not applied");
    assert!(world.acquire(session, None).promise.incarnation > first);
}
