//! The clock by which leases are counted. It counts the time in which a machine is suspended (T1 in
//! docs/PROTOCOL.md, A3 in docs/verification.md). No server depends on another's clock (A2).
//!
//! A time namespace sets CLOCK_BOOTTIME of a process ahead and leaves CLOCK_MONOTONIC alone, as a
//! suspension does. It does so once, when the process starts. Debian's `libfaketime` moves both
//! while a process runs.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use leasehold_client_cache::{Client, Options, ReadSource};
use leasehold_protocol::time::Instant;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    alone,
    changes::{Changes, How},
    clocks::faketime,
    common::{
        Cluster, Missed, Place, SOON, Tool, eventually, require,
        stall::{check, measured_async},
    },
    ends::{Ends, grant},
    path,
    worker::{self, Notes, Role, Worker, until_told_to_stop},
    workload::now_ns,
};

/// The client's only way to read a clock.
#[allow(dead_code)]
#[path = "../../client-cache/src/clock.rs"]
mod client_clock;

const HOUR: Duration = Duration::from_secs(3600);

/// A place with clocks as after a suspension of this length. `None` if the test is skipped.
fn suspended_for(long: Duration) -> Option<Place> {
    let seconds = long.as_secs().to_string();
    let words = ["unshare", "--time", "--boottime", &seconds];
    let found = match Command::new(words[0]).args(&words[1..]).arg("true").output() {
        Ok(Output { status, .. }) if status.success() => Ok(Place::through(&words)),
        Ok(Output { stderr, .. }) => Err(String::from_utf8_lossy(&stderr).into_owned()),
        Err(error) => Err(error.to_string()),
    };
    require(Tool::TimeNamespaces, found)
}

/// The times of three clocks: the server's, the client's, and CLOCK_MONOTONIC.
fn clocks() -> [Duration; 3] {
    let monotonic = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has it");
    let [server, client] = [leasehold_server::clock::now(), client_clock::now()];
    [server.since(Instant::ZERO), client.since(Instant::ZERO), Duration::from(monotonic)]
}

#[test]
fn clocks_of_servers_and_clients_count_suspended_time() {
    const MARK: &str = "LEASEHOLD_TEST_CLOCKS";
    const SAYS: &str = "clocks: ";
    if std::env::var_os(MARK).is_some() {
        println!("\n{SAYS}{}", serde_json::to_string(&clocks()).expect("JSON can say it"));
        return;
    }
    let Some(place) = suspended_for(HOUR) else { return };
    let mut command = place.command(std::env::current_exe().expect("this binary"));
    let this = "lease_clocks::clocks_of_servers_and_clients_count_suspended_time";
    command.args([this, "--exact", "--nocapture"]).env(MARK, "1");
    let before = clocks();
    let output = command.output().expect("it runs");
    let after = clocks();
    let said = String::from_utf8_lossy(&output.stdout);
    let json = said.lines().find_map(|line| line.strip_prefix(SAYS)).unwrap_or_else(|| panic!("{output:?}"));
    let there: [Duration; 3] = serde_json::from_str(json).expect("three clocks");
    for ((there, counts), (before, after)) in
        there.into_iter().zip([HOUR, HOUR, Duration::ZERO]).zip(before.into_iter().zip(after))
    {
        assert!(
            there >= before + counts && there <= after + counts,
            "{there:?}: {before:?} to {after:?} and {counts:?}"
        );
    }
}

/// How a process learns that it must read one node again and again.
const READER: Role = Role {
    variable: "LEASEHOLD_TEST_READER",
    test: "lease_clocks::first_read_of_a_client_suspended_for_two_terms_asks_a_server",
};

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    endpoints: Vec<String>,
    notes: PathBuf,
}

/// One read. The time is by a clock that no tool changes.
#[derive(Debug, Serialize, Deserialize)]
struct Read {
    began: u64,
    is_from_memory: bool,
}

async fn read_on(task: Task) {
    let options = Options::new(task.endpoints).name("reader").timeout(SOON);
    let client = Client::connect(options).await.expect("the cluster serves");
    let (notes, node) = (Notes::open(&task.notes), path("/n/a"));
    let mut paces = interval(Duration::from_millis(1));
    paces.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        paces.tick().await;
        let began = now_ns();
        let read = client.read(&node).await.expect("the cluster serves");
        notes.note(&Read { began, is_from_memory: read.source == ReadSource::Memory });
    }
}

#[test]
fn first_read_of_a_client_suspended_for_two_terms_asks_a_server() {
    const TERM: Duration = Duration::from_secs(30);
    if let Some(task) = READER.task() {
        until_told_to_stop(read_on(task));
        return;
    }
    let _alone = alone();
    let Some(library) = faketime() else { return };
    let cluster = Cluster::start(1);
    cluster.cli().done(["volume", "create", "/n", "--term", &format!("{}s", TERM.as_secs())]);
    cluster.cli().done(["put", "/n/a", "here"]);
    let ahead = cluster.directory("ahead");
    fs::write(&ahead, "+0\n").expect("written");
    let place = Place::default().with("FAKETIME_NO_CACHE", "1").with("FAKETIME_TIMESTAMP_FILE", &ahead);
    let place = place.with("LD_PRELOAD", library);
    let task = Task { endpoints: cluster.endpoints(), notes: worker::notes(&cluster.directory(""), "reader") };
    let mut reader: Worker<Read> = Worker::start(&place, READER, "reader", &task, &task.notes);
    eventually("it reads from memory", || reader.news().iter().any(|read| read.is_from_memory).then_some(()));
    reader.process.pause(true);
    fs::write(&ahead, format!("+{}s\n", 2 * TERM.as_secs())).expect("written");
    let resumed = now_ns();
    reader.process.pause(false);
    let first = eventually("it reads again", || reader.news().into_iter().find(|read| read.began > resumed));
    assert!(!first.is_from_memory, "{first:?}, {:?} after it was resumed", Duration::from_nanos(first.began - resumed));
    reader.stop();
}

/// How late after its term a lease may end: two ticks of 250 ms (T6), a margin of 9 ms, and a
/// commit.
const BEYOND_TERM: Duration = Duration::from_millis(700);

const TTL: Duration = Duration::from_secs(4);

/// The TTL of a lease that is renewed while leaders are killed: so long that a busy machine does
/// not end it, and short beside an hour.
const KEPT_TTL: Duration = Duration::from_secs(30);

/// A key lease that nobody renews lasts for its term, and for the time without a leader.
async fn abandon(
    changes: &mut Changes,
    ends: &Ends,
    client: &Client,
    at: &str,
    change: Option<How>,
) -> Result<(), Missed> {
    let granted = grant(client, at, TTL).await;
    if let Some(how) = change {
        let out = changes.change(how).await;
        println!("{at}: no leader for {out:.2?}");
    }
    let told = ends.of(&granted.path).await;
    let (_, out) = changes.out(granted.asked, told);
    let lasted = Duration::from_nanos(told - granted.asked);
    check(&format!("{at} is gone"), lasted, TTL, TTL + out + BEYOND_TERM)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_with_clocks_hours_apart_end_no_lease_early() {
    let _alone = alone();
    let (Some(one), Some(two)) = (suspended_for(HOUR), suspended_for(2 * HOUR)) else { return };
    let mut changes = Changes::with_defaults();
    let leader = changes.cluster.leader();
    for (id, place) in changes.cluster.others(leader).into_iter().zip([one, two]) {
        changes.cluster.kill(id);
        changes.cluster.move_to(id, place);
        changes.cluster.spawn(id);
        changes.cluster.caught_up(&changes.cluster.ids());
    }
    let (keeper, looking) = (changes.cluster.client("keeper").await, changes.cluster.client("looking").await);
    let ends = Ends::watched_by(&looking).await;
    let kept = grant(&keeper, "/n/kept", KEPT_TTL).await;
    let lease = keeper.keep_lease_alive(kept.id).await.expect("it has only just begun");
    let (mut tries, mut led) = (0, vec![changes.cluster.leader()]);
    // First only the followers' clocks are wrong. Then one of them leads after a leader with
    // another clock. The first leader is paused until another leads. If it were killed, it could be
    // back in time to be elected again.
    for change in [None, Some(How::Stopped), Some(How::Killed)] {
        measured_async(async || {
            tries += 1;
            abandon(&mut changes, &ends, &keeper, &format!("/n/abandoned-{tries}"), change).await
        })
        .await;
        led.push(changes.cluster.leader());
    }
    led.dedup();
    assert!(led.len() > 1, "only server {led:?} has led");
    assert!(
        !ends.has(&kept.path) && !lease.on_lost().is_cancelled(),
        "a lease that is kept has ended; have led: {led:?}"
    );
    assert!(keeper.get(&kept.path).await.expect("the cluster serves").is_some());
}
