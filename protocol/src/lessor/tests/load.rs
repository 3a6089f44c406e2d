//! Very many leases: a renewed lease lives, whatever its name. A lease that could not be renewed in
//! time is not granted (S10b).

use super::*;
use crate::{
    id::LeaseId,
    message::{KeepAliveResult, KeyLeasePromise, KeyLeaseRenewal},
};

impl World {
    /// Grants leases of these names, in one entry.
    fn grant_leases(&mut self, session: SessionId, names: std::ops::Range<u64>, ttl: Duration) {
        for name in names {
            self.write(session, Write::GrantLease { id: Some(LeaseId(name)), name: None, ttl });
        }
        self.commit();
    }

    fn keep_leases(&mut self, session: SessionId, names: impl Iterator<Item = u64>) -> Vec<KeyLeasePromise> {
        let leases = names.map(|name| KeyLeaseRenewal { id: LeaseId(name), incarnation: None }).collect();
        let Answer::KeptAlive(promises) =
            answer(&self.at_once(|world| world.request(session, Body::KeepAlive { leases })))
        else {
            panic!("kept")
        };
        promises
    }

    fn key_leases(&self) -> usize {
        self.state.key_leases_after(None).count()
    }
}

#[test]
fn more_renewals_than_a_tick_takes_all_live() {
    const LEASES: u64 = 300;
    let mut world = World::new();
    // A tick has room for four.
    world.lessor.config.bounds.tick_bytes_max = 4 * AnyLease::KeyLease(ONE).renewal_bytes_max();
    let session = world.session();
    world.grant_leases(session, 1..LEASES + 1, TERM);
    for step in 0..100 {
        // Each is renewed once in three seconds: a thirtieth of them every tenth of a second.
        let due = (1..=LEASES).filter(|name| name % 30 == step % 30);
        let promises = world.keep_leases(session, due);
        assert!(
            promises.iter().all(|promises| matches!(promises.result, KeepAliveResult::Renewed(_))),
            "step {step}: {promises:?}"
        );
        world.pass(TERM / 100);
    }
    assert_eq!(world.key_leases() as u64, LEASES);
}

const ONE: LeaseId = LeaseId(1);

#[test]
fn volume_leases_beyond_what_a_tick_takes_all_live() {
    let mut world = World::new();
    world.lessor.config.bounds.tick_bytes_max = 1;
    let holders: Vec<_> = (0..40).map(|_| world.holder(&data("/a"))).collect();
    for step in 0..100 {
        for (holder, grant) in holders.iter().skip(step % 30).step_by(30) {
            world.renew(*holder, grant.incarnation).expect("kept every three seconds");
        }
        world.pass(TERM / 100);
    }
}

#[test]
fn leases_beyond_what_can_be_renewed_are_refused_as_busy() {
    let mut world = World::new();
    world.lessor.config.bounds.renewals_per_second_max = 1;
    let session = world.session();
    let busy = |effects: &[LessorEffect]| match result(effects) {
        Err(Refusal::Busy { got, most, .. }) => Some((got, most)),
        _ => None,
    };
    // A session needs a six-hundredth: so nine leases of ten seconds fit, and ten do not. All are
    // in flight at once.
    for name in 1..=9 {
        let effects = world.write(session, Write::GrantLease { id: Some(LeaseId(name)), name: None, ttl: TERM });
        assert_eq!(replies(&effects), [], "{name}");
    }
    let tenth = Write::GrantLease { id: Some(LeaseId(10)), name: None, ttl: TERM };
    assert_eq!(busy(&world.write(session, tenth.clone())), Some((2, 1)), "requests in flight count");
    world.commit();
    assert_eq!(busy(&world.write(session, tenth)), Some((2, 1)), "granted leases count");
    let acquire = Body::Acquire { path: NodePath::root(), last_valid: None, read: None };
    assert_eq!(busy(&world.request(session, acquire.clone())), Some((2, 1)));
    // A longer one needs less.
    assert_eq!(
        replies(&world.write(session, Write::GrantLease { id: Some(LeaseId(10)), name: None, ttl: 20 * TERM })),
        []
    );
    world.commit();
    // Each that ends makes room.
    world.write(session, Write::RevokeLease { id: LeaseId(1), incarnation: None });
    world.commit();
    world.acquire(session, None);
    // A lease that replaces another needs nothing more.
    world.acquire(session, None);
    let opens =
        (0..600).map(|_| world.request(SessionId(0), Body::Open { name: "one more than the bound".to_owned() }));
    let opens: Vec<_> = opens.collect();
    let room = opens.iter().position(|effects| !replies(effects).is_empty()).expect("the bound refuses some");
    assert!((1..60).contains(&room), "{room}");
    assert_eq!(busy(&opens[room]), Some((2, 1)));
    world.commit();
    assert_eq!(world.lessor.load_to_come, 0);
}

#[test]
fn lease_asked_for_by_a_session_that_closes_adds_no_load() {
    let mut world = World::new();
    let session = world.session();
    world.request(session, Body::Close);
    world.request(session, Body::Acquire { path: NodePath::root(), last_valid: None, read: None });
    assert!(world.lessor.load_to_come > 0);
    world.commit();
    assert_eq!(world.lessor.load_to_come, 0, "the session has ended");
}

#[test]
fn write_without_more_load_is_not_refused_beyond_the_bound() {
    let mut world = World::new();
    let session = world.session();
    world.acquire(session, None);
    world.lessor.config.bounds.renewals_per_second_max = 0;
    assert_eq!(world.lessor.beyond_load(0), None);
    assert!(world.lessor.beyond_load(1).is_some());
    world.acquire(session, None);
}
