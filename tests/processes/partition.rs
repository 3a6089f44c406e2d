//! Networks that are cut, in both directions or in one.

use std::time::Duration;

use crate::{
    alone,
    workload::now_ns,
    world::{TERM, WAIT_MAX, World, server},
};

/// The most that a busy machine may add to a wait.
const GENEROUS: Duration = Duration::from_secs(2);

/// How long writes may be out while clients reach the leader that was cut off. It refuses clients
/// when no majority has answered it for four election times, 2.4 s. By then another leader leads.
pub(crate) const OUTAGE_MAX: Duration = Duration::from_secs(6);

/// A world in which two clients work.
fn world() -> Option<World> {
    let mut world = World::of(2)?;
    for host in ["c1", "c2"] {
        world.start(host);
        world.goes_on(host);
    }
    Some(world)
}

/// Lets a client write for two terms.
fn for_two_terms(world: &mut World, host: &str) {
    let from = now_ns();
    while Duration::from_nanos(now_ns() - from) < 2 * TERM {
        world.writes(host);
    }
}

/// Cuts the leader off from the other servers. The clients still reach all servers.
fn a_leader_is_cut_off(is_heard: bool, hears: bool) {
    let _alone = alone();
    let Some(mut world) = world() else { return };
    let old = world.cluster.leader();
    for other in world.cluster.others(old).into_iter().map(server) {
        if !is_heard {
            world.network.cut(&server(old), &other);
        }
        if !hears {
            world.network.cut(&other, &server(old));
        }
    }
    let out = world.writes("c1").max(world.writes("c2"));
    let new = world.cluster.leader();
    assert_ne!(new, old, "who cannot be heard, or cannot hear, cannot have committed anything");
    assert!(out < OUTAGE_MAX, "writes were out for {out:?}");
    for_two_terms(&mut world, "c1");
    world.heal();
    world.finish();
    println!("leader heard: {is_heard}, hears: {hears}: all writers had gone on after {out:?}");
}

#[test]
fn leader_cut_off_both_ways_is_replaced_without_stale_read() {
    a_leader_is_cut_off(false, false);
}

#[test]
fn unheard_leader_is_replaced_without_stale_read() {
    a_leader_is_cut_off(false, true);
}

#[test]
fn deaf_leader_is_replaced_without_stale_read() {
    a_leader_is_cut_off(true, false);
}

/// Cuts a client off from all servers. The other client writes what it has cached.
fn a_client_is_cut_off(is_heard: bool, hears: bool) {
    let _alone = alone();
    let Some(mut world) = world() else { return };
    world.reads_from_memory("c1");
    for id in world.cluster.ids().into_iter().map(server) {
        if !is_heard {
            world.network.cut("c1", &id);
        }
        if !hears {
            world.network.cut(&id, "c1");
        }
    }
    // Writes wait once for the copies of c1, and not again.
    for_two_terms(&mut world, "c2");
    let longest = world.history.tally().longest_write;
    assert!(longest <= WAIT_MAX + GENEROUS, "a write took {longest:?}: expected at most {WAIT_MAX:?}, or a bit more");
    let quickest = (0..5).map(|_| world.writes("c2")).min().expect("some");
    assert!(quickest < TERM / 2, "writes go on waiting for a client that has lost its lease: {quickest:?}");
    world.heal();
    world.finish();
    println!("client heard: {is_heard}, hears: {hears}: the longest write took {longest:?}, later ones {quickest:?}");
}

#[test]
fn client_cut_off_both_ways_delays_write_by_its_lease() {
    a_client_is_cut_off(false, false);
}

#[test]
fn client_with_lost_consents_delays_write_by_its_lease() {
    a_client_is_cut_off(false, true);
}

#[test]
fn client_without_recalls_delays_write_by_its_lease() {
    a_client_is_cut_off(true, false);
}
