//! A third of all packets is lost at random (A9 in docs/verification.md).
//!
//! `LEASEHOLD_LOSS_SECONDS=600 cargo test --test processes loss -- --nocapture` runs for longer.

use std::time::Duration;

use crate::{
    alone,
    common::{Tool, require},
    nemesis::seconds,
    workload::now_ns,
    world::World,
};

/// How long it runs by default.
const LONG: Duration = Duration::from_secs(25);

#[test]
fn third_of_packets_lost_causes_no_expiry_or_stale_read() {
    let _alone = alone();
    let Some(mut world) = World::of(3) else { return };
    for host in ["c1", "c2", "c3"] {
        world.start(host);
        world.goes_on(host);
    }
    let calm = world.history.tally().clone();
    for host in world.network.hosts() {
        let Some(()) = require(Tool::PacketLoss, world.network.lose(&host, 1.0 / 3.0)) else { return };
    }
    let (from, long) = (now_ns(), seconds("LEASEHOLD_LOSS_SECONDS", LONG));
    while Duration::from_nanos(now_ns() - from) < long {
        for host in world.clients() {
            world.goes_on(&host);
        }
    }
    let lossy = world.history.tally().clone();
    world.heal();
    world.finish();
    assert_eq!(lossy.expired, 0, "an application was told that its session is gone");
    println!(
        "{} writes took effect and {} reads came from memory in {long:?} with a third of all packets lost",
        lossy.written - calm.written,
        lossy.cached - calm.cached
    );
}
