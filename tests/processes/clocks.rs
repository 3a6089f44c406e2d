//! Wrong clocks (A2, A3 and A38 in docs/verification.md): wall clocks, which must not matter, and
//! clocks of elapsed time, within the drift allowance and beyond it.
//!
//! Debian's `libfaketime` changes the time that a process gets from libc. With a rate it changes
//! all clocks alike: CLOCK_BOOTTIME, CLOCK_MONOTONIC, the timeouts of waits and the wall clock.
//! With FAKETIME_DONT_FAKE_MONOTONIC and no rate it changes only the wall clock (tried with
//! 0.9.10). The notes of clients use a clock that it does not reach.

use std::{fs, path::PathBuf, time::Duration};

use crate::{
    alone,
    common::{Place, Tool, require},
    world::{MARGIN, TERM, WAIT_MAX, World, server},
};

/// The drift allowance of tests whose rates are within it: five percent.
const ALLOWANCE_PPM: u32 = 50_000;

/// More than twice the allowance over a term and a tick, which is 220 ms.
const WIDE_MARGIN: Duration = Duration::from_millis(250);

/// The most that a busy machine may add to a wait.
const GENEROUS: Duration = Duration::from_secs(2);

/// The library that changes clocks. `None` if it is not installed and the test is skipped.
pub(crate) fn faketime() -> Option<PathBuf> {
    const FILE: &str = "faketime/libfaketimeMT.so.1";
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|folder| folder.path());
    let library = folders.map(|folder| folder.join(FILE)).find(|library| library.exists());
    require(Tool::Faketime, library.ok_or_else(|| format!("/usr/lib/*/{FILE} does not exist")))
}

/// A place where time runs faster by this factor.
pub(crate) fn at_rate(library: &std::path::Path, place: &Place, rate: f64) -> Place {
    place.with("LD_PRELOAD", library).with("FAKETIME", format!("+0 x{rate}"))
}

/// A place where the wall clock is off by the present content of a file.
fn with_wall_clock(library: &std::path::Path, place: &Place, file: &std::path::Path) -> Place {
    let bent = place.with("FAKETIME_DONT_FAKE_MONOTONIC", "1").with("FAKETIME_CACHE_DURATION", "1");
    bent.with("FAKETIME_TIMESTAMP_FILE", file).with("LD_PRELOAD", library)
}

/// Restarts all servers at other places.
fn move_servers(world: &mut World, to: impl Fn(&World, u64) -> Place) {
    for id in world.cluster.ids() {
        world.cluster.kill(id);
        let place = to(world, id);
        world.cluster.move_to(id, place);
        world.cluster.spawn(id);
    }
    world.cluster.wait_until_it_serves();
}

pub(crate) fn start_at(world: &mut World, host: &str, place: &Place) {
    let task = world.task(host);
    world.start_as(host, place, &task);
}

#[test]
fn wall_clocks_that_are_hours_off_and_jump_change_nothing() {
    let _alone = alone();
    let Some(library) = faketime() else { return };
    let Some(mut world) = World::of(2) else { return };
    let file = |world: &World, host: &str| world.cluster.directory(&format!("wall-clock-{host}"));
    let set = |world: &World, offsets: [&str; 3]| {
        for (host, offset) in ["s1", "s2", "c1"].into_iter().zip(offsets) {
            fs::write(file(world, host), format!("{offset}\n")).expect("written");
        }
    };
    set(&world, ["+1h", "-1h", "-1h"]);
    move_servers(&mut world, |world, id| match server(id).as_str() {
        "s3" => world.place("s3"),
        host => with_wall_clock(&library, &world.place(host), &file(world, host)),
    });
    let bent = with_wall_clock(&library, &world.place("c1"), &file(&world, "c1"));
    start_at(&mut world, "c1", &bent);
    world.start("c2");
    for offsets in [["+1h", "-1h", "-1h"], ["-1h", "+1h", "+1h"], ["+0", "+30d", "-30d"]] {
        set(&world, offsets);
        // The library reads the file once in a second.
        let (from, long) = (std::time::Instant::now(), Duration::from_secs(2));
        while from.elapsed() < long {
            world.goes_on("c1");
            world.goes_on("c2");
        }
    }
    let longest = world.history.tally().longest_write;
    assert!(longest < TERM, "a write took {longest:?}, though all holders were there to consent");
    // A lease lasts as long as with right clocks.
    world.worker("c1").process.pause(true);
    let waited = world.writes("c2");
    world.worker("c1").process.pause(false);
    assert!(waited <= WAIT_MAX + GENEROUS, "a write waited {waited:?} for a stopped client");
    world.heal();
    world.finish();
    assert_eq!(world.history.tally().expired, 0, "an application was told that its session is gone");
}

/// Cuts a client off several times while another client writes. The client's clock runs at one
/// rate, the servers' clocks at another.
fn cut_off(world: &mut World, library: &std::path::Path, client: f64, servers: f64, times: u32) {
    move_servers(world, |world, id| at_rate(library, &world.place(&server(id)), servers));
    let bent = at_rate(library, &world.place("c1"), client);
    // It caches everything and writes nothing, so it waits for nobody while it is cut off.
    let task = crate::workload::Task { writes_permille: 0, pace: Duration::from_millis(1), ..world.task("c1") };
    world.start_as("c1", &bent, &task);
    world.start("c2");
    world.goes_on("c2");
    for _ in 0..times {
        world.reads_from_memory("c1");
        for id in world.cluster.ids().into_iter().map(server) {
            world.network.cut_both("c1", &id);
        }
        // Until writes no longer wait for it.
        let from = std::time::Instant::now();
        while from.elapsed() < 2 * TERM {
            world.writes("c2");
        }
        world.network.heal_all();
    }
    world.reads_from_memory("c1");
    world.stop_clients();
}

#[test]
fn drift_within_allowance_causes_no_stale_read() {
    let _alone = alone();
    let Some(library) = faketime() else { return };
    // First, the servers' clocks are fast: they end the lease while the client still counts on it.
    // Then the other way round.
    for (client, servers) in [(0.955, 1.045), (1.045, 0.955)] {
        let Some(mut world) = World::with_drift(2, ALLOWANCE_PPM, WIDE_MARGIN) else { return };
        cut_off(&mut world, &library, client, servers, 3);
        world.history.assert_linearizable();
        println!("client x{client}, servers x{servers}: {:?}", world.history.tally());
    }
}

/// True if a client at a tenth of the speed reads stale data. It is cut off right after its first
/// read from memory.
fn reads_stale_when_cut_off_at_once(world: &mut World, library: &std::path::Path) -> bool {
    world.start("c2");
    world.goes_on("c2");
    let bent = at_rate(library, &world.place("c1"), 0.1);
    start_at(world, "c1", &bent);
    world.reads_from_memory("c1");
    for id in world.cluster.ids().into_iter().map(server) {
        world.network.cut_both("c1", &id);
    }
    let from = std::time::Instant::now();
    while from.elapsed() < 2 * TERM {
        world.writes("c2");
    }
    world.network.heal_all();
    world.stop_clients();
    let outcome = world.history.check();
    println!("{outcome:?}");
    outcome.is_err()
}

#[test]
fn stale_reads_by_a_clock_that_nobody_could_check_are_found() {
    let _alone = alone();
    let Some(library) = faketime() else { return };
    assert!(MARGIN < TERM / 10);
    // This shows that the tests would find stale reads. The client compares clocks after 5 s. If a
    // busy machine cuts it off later than that, it reads nothing from memory, and this tries again.
    for _ in 0..3 {
        let Some(mut world) = World::of(2) else { return };
        if reads_stale_when_cut_off_at_once(&mut world, &library) {
            return;
        }
    }
    panic!("a clock at a tenth of the speed led to no stale read");
}
