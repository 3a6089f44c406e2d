//! All servers are killed at once while clients have leases, and started again (A26 and A35 in
//! docs/verification.md).

use std::time::{Duration, Instant};

use leasehold_protocol::volume::TICK_MAX;

use crate::{
    alone,
    common::{Cli, Cluster},
    world::World,
};

/// So long that the servers are back before the lease ends.
const LONG: Duration = Duration::from_secs(10);

const MARGIN: Duration = Duration::from_millis(150);

/// The most that a busy machine may add to a wait.
const GENEROUS: Duration = Duration::from_secs(5);

fn crash(cluster: &mut Cluster) {
    cluster.ids().into_iter().for_each(|id| cluster.kill(id));
    cluster.ids().into_iter().for_each(|id| cluster.spawn(id));
}

#[test]
fn lease_granted_before_crash_of_all_is_waited_for_after() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let cli: Cli = cluster.cli();
    cli.done(["volume", "create", "/long", "--term", "10s", "--skew-margin", "150ms"]);
    cli.done(["put", "/long/a", "before"]);
    let mut holder = cli.shell();
    let (asked, valid) = loop {
        let asked = Instant::now();
        let answer = holder.ask("get /long/a");
        if answer["source"] == "memory" {
            break (asked, Duration::from_millis(answer["valid_ms"].as_u64().expect("a number")));
        }
    };
    // It can no longer consent, and no server knows that it is gone.
    holder.process.pause(true);
    crash(&mut cluster);
    cluster.wait_until_it_serves();
    let (put, outage) = (Instant::now(), asked.elapsed());
    assert!(outage < valid, "the lease had ended when the servers were back: nothing is shown");
    cli.done(["--timeout", "40s", "put", "/long/a", "after"]);
    let written = asked.elapsed();
    println!("valid for {valid:?}; all servers were back after {outage:?}; written after {written:?}");
    assert!(written >= valid, "written after {written:?}, while the holder could read until {valid:?}");
    // A term, two ticks and the margin. Cluster time stood still while there was no leader.
    let most = LONG + 2 * TICK_MAX + MARGIN + outage + GENEROUS;
    assert!(written <= most, "the put took {:?}: expected at most {most:?} since the lease was seen", put.elapsed());
    holder.types("get /long/a");
    holder.process.pause(false);
    assert_eq!(holder.answer()["value"], "after");
}

#[test]
fn repeated_crashes_of_all_cause_no_expiry_or_stale_read() {
    let _alone = alone();
    let Some(mut world) = World::of(2) else { return };
    for host in ["c1", "c2"] {
        world.start(host);
        world.goes_on(host);
    }
    for crashes in 1..=4 {
        world.reads_from_memory("c1");
        world.reads_from_memory("c2");
        crash(&mut world.cluster);
        let out = world.goes_on("c1").max(world.goes_on("c2"));
        println!("crash {crashes}: everybody reads and writes again after {out:?}");
    }
    world.heal();
    world.finish();
    assert_eq!(world.history.tally().expired, 0, "an application was told that its session is gone");
}
