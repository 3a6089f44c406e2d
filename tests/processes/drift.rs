//! Clocks beyond the drift allowance are noticed, and clients with them read nothing from memory
//! (A38 in docs/verification.md).
//!
//! The clocks run at other rates from the start of their processes (`clocks.rs` says how). The
//! client's log is that of its process. An operator sees the servers' log and `cluster status`.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    alone,
    clocks::{at_rate, faketime, start_at},
    common::eventually,
    worker::notes,
    world::{TERM, World, server},
};

/// The most time from a client's first read from memory to its last, if its clock or the leader's
/// runs at twice the other's speed. It is half a second by the client's clock, which is a second if
/// that clock is the slow one. A busy machine may add three seconds.
const FOUND_WITHIN: Duration = Duration::from_secs(4);

/// The words of a log about a clock beyond the allowance.
const BEYOND: &str = "differ by more than allowed";

/// Waits until this many clocks are shown as beyond the allowance. Returns their clients.
fn shown(world: &World, count: u64) -> Vec<Value> {
    eventually(&format!("{count} clocks are shown as beyond the allowance"), || {
        let status = world.cluster.status()?;
        let clocks = status["clocks"].as_array().filter(|_| status["clocks_beyond"].as_u64() == Some(count));
        clocks.cloned().ok_or_else(|| status.to_string())
    })
}

/// How often the log of a host's client has these words.
fn said_by_client(world: &World, host: &str) -> usize {
    let name = &world.worker(host).name;
    let log = notes(&world.cluster.directory(""), name).with_extension("log");
    std::fs::read_to_string(log).expect("a client has a log").matches(BEYOND).count()
}

fn said_by_servers(world: &World) -> usize {
    world.cluster.ids().into_iter().map(|id| world.cluster.log(id).matches(BEYOND).count()).sum()
}

fn assert_ppm(clock: &Value, expected: i64) {
    let ppm = clock["ppm"].as_i64().expect("a number");
    assert!((ppm - expected).abs() <= expected.abs() / 5, "{clock}: expected about {expected} ppm");
    assert_eq!(clock["allowed_ppm"], 2_000, "twice the default allowance");
}

/// Lets the client at a host write for this long.
fn goes_on_for(world: &mut World, host: &str, span: Duration) {
    let from = Instant::now();
    while from.elapsed() < span {
        world.writes(host);
    }
}

/// Cuts a client off while another writes. Then the client must read nothing from memory.
fn reads_nothing_from_memory(world: &mut World, host: &str, writer: &str) {
    let before = world.progress(host).cached;
    for id in world.cluster.ids().into_iter().map(server) {
        world.network.cut_both(host, &id);
    }
    goes_on_for(world, writer, 2 * TERM);
    world.network.heal_all();
    world.goes_on_without_memory(host);
    assert_eq!(world.progress(host).cached, before, "nothing was read from memory meanwhile");
}

#[test]
fn client_at_half_or_double_speed_stops_reading_from_memory() {
    let _alone = alone();
    let Some(library) = faketime() else { return };
    for (rate, ppm) in [(0.5, -500_000), (2.0, 1_000_000)] {
        let Some(mut world) = World::of(2) else { return };
        world.start("c2");
        world.goes_on("c2");
        let bent = at_rate(&library, &world.place("c1"), rate);
        start_at(&mut world, "c1", &bent);
        let began = eventually("c1 reads from memory", || Some(world.progress("c1").cached).filter(|begin| *begin > 0));
        let clocks = shown(&world, 1);
        assert_eq!(clocks[0]["name"], world.worker("c1").name.as_str());
        assert_ppm(&clocks[0], ppm);
        world.goes_on_without_memory("c1");
        let stopped = world.progress("c1").cached;
        let found_after = Duration::from_nanos(stopped - began);
        println!("client x{rate}: its last read from memory was {found_after:?} after the first seen");
        assert!(found_after <= FOUND_WITHIN, "client x{rate}: {found_after:?}");

        reads_nothing_from_memory(&mut world, "c1", "c2");
        assert_eq!((said_by_client(&world, "c1"), said_by_client(&world, "c2")), (1, 0), "once by whom it concerns");
        assert_eq!(said_by_servers(&world), 1, "one leader, and one line");
        world.stop_clients();
        world.history.assert_linearizable();
    }
}

#[test]
fn leader_at_double_speed_stops_its_clients_until_another_leads() {
    let _alone = alone();
    let Some(library) = faketime() else { return };
    let Some(mut world) = World::of(2) else { return };
    let fast = at_rate(&library, &world.place("s1"), 2.0);
    world.cluster.kill(1);
    world.cluster.move_to(1, fast);
    world.cluster.spawn(1);
    loop {
        let leader = world.cluster.leader();
        if leader == 1 {
            break;
        }
        world.cluster.stop(leader, Signal::SIGTERM);
        world.cluster.spawn(leader);
        world.cluster.wait_until_it_serves();
    }
    world.start("c1");
    world.start("c2");
    for clock in shown(&world, 2) {
        assert_ppm(&clock, -500_000);
    }
    for host in ["c1", "c2"] {
        world.goes_on_without_memory(host);
    }
    // The next leader has a right clock.
    world.cluster.stop(1, Signal::SIGTERM);
    world.cluster.wait_until_it_serves();
    assert_ne!(world.cluster.leader(), 1);
    shown(&world, 0);
    for host in ["c1", "c2"] {
        world.reads_from_memory(host);
        assert_eq!(said_by_client(&world, host), 1);
    }
    world.stop_clients();
    world.history.assert_linearizable();
}

#[test]
fn stopped_processes_are_not_taken_for_wrong_clocks() {
    let _alone = alone();
    let Some(mut world) = World::of(2) else { return };
    world.start("c1");
    world.start("c2");
    for pause in [TERM / 4, TERM, 2 * TERM] {
        world.goes_on("c1");
        world.worker("c1").process.pause(true);
        goes_on_for(&mut world, "c2", pause);
        world.worker("c1").process.pause(false);
        world.goes_on("c1");
        let leader = world.cluster.leader();
        world.cluster.pause(leader, true);
        // If the pause is long enough, the others elect a leader, and the client finds it.
        let from = Instant::now();
        while from.elapsed() < pause {
            world.gather();
        }
        world.cluster.pause(leader, false);
        world.goes_on("c2");
    }
    shown(&world, 0);
    let said = ["c1", "c2"].map(|host| said_by_client(&world, host));
    assert_eq!((said, said_by_servers(&world)), ([0, 0], 0));
    world.heal();
    world.finish();
}
