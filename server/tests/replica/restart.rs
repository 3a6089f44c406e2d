//! The size of the log, and how soon a killed replica serves again.
//!
//! The replica is a process of its own, a cluster of one with the default bounds. SIGKILL ends it
//! in the middle of its writes. Then this process opens what is left.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::Path as File,
    process::{Child, Command as Process, Stdio},
    time::{Duration, Instant},
};

use leasehold_protocol::{
    command::{Command, IntendedLeases, Proposal, Write},
    id::{Epoch, Revision, Sequence, SessionId},
    object::{ObjectSet, Value},
    path::NodePath,
    time::ClusterTime,
};
use leasehold_server::{
    raft::{RETAINED_BYTES, ReplicaConfig, SNAPSHOT_BYTES, SNAPSHOT_ENTRIES},
    store::{log::LogStore, poison::Poison},
};

use crate::support::{Cluster, begin_epoch, open_session};

/// Marks this process as the child, and names its data folder.
const DIR: &str = "LEASEHOLD_RESTART_DIR";
const THE_CHILD: &str = "restart::puts_are_taken_until_the_process_is_killed";
/// The number of puts in all.
const PUTS: &str = "LEASEHOLD_RESTART_PUTS";

/// The number of puts in an entry.
const ENTRY: &str = "LEASEHOLD_RESTART_ENTRY";

/// Some hundred commands for each entry, like those of a server under load.
const ENTRY_PUTS: u64 = 250;
/// The puts in flight.
const PUTS_IN_FLIGHT: u64 = 1000;
const VALUE_BYTES: usize = 1024;
const NODES: u64 = 10_000;
/// How often the replica is killed, spread over its writes.
const KILLS: u64 = 4;

/// How far the log may exceed its bounds: entries that arrive while a snapshot is made, and the
/// inexactness of the sizes.
const LOG_SLACK_BYTES: u64 = 16 << 20;

fn proposal(epoch: Epoch, number: u64, commands: Vec<Command>) -> Proposal {
    Proposal { epoch, number, time: ClusterTime::from_micros(number), commands }
}

fn put(session: SessionId, sequence: u64) -> Command {
    let path = NodePath::parse(&format!("/data/{}", sequence % NODES)).expect("a path");
    let value: Value = format!("{sequence:0VALUE_BYTES$}").into();
    Command::Write {
        session,
        sequence: Sequence(sequence),
        unanswered_from: Sequence(sequence),
        write: Write::put(path, value),
        consented: vec![ObjectSet::Subtree(NodePath::parse("/").expect("the root"))],
        intended: IntendedLeases::default(),
        attached_through: Revision(0),
    }
}

/// The child: accepts puts. Prints after each entry how many it has acknowledged, and the processor
/// time that they took.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_are_taken_until_the_process_is_killed() {
    let dir = std::env::var_os(DIR);
    // Run by itself, this shows that the puts take effect.
    let enough = if dir.is_some() { u64::MAX } else { 4 * ENTRY_PUTS };
    let entry_puts = number(ENTRY, ENTRY_PUTS);
    let own = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::new(1).await;
    let dir = dir.map_or_else(|| own.path().to_owned(), Into::into);
    cluster.start_with(ReplicaConfig::new(1, dir, cluster.members.clone())).await.expect("starts");
    let epoch = Epoch(cluster.propose(begin_epoch(1)).await);
    cluster.propose(open_session(epoch, 1)).await;
    let running = &cluster.running[&1];
    let session = running.keeper.state.lock().sessions().map(|(id, _)| id).max().expect("it was opened");
    let before = running.keeper.state.lock().revision();
    let worked = processor_time();
    let mut in_flight = std::collections::VecDeque::new();
    let mut acknowledged = 0;
    for entry in 0_u64.. {
        let first = entry * entry_puts + 1;
        if first > enough {
            break;
        }
        let commands = (first..first + entry_puts).map(|sequence| put(session, sequence)).collect();
        let submitted = running.replica.submit(proposal(epoch, entry + 2, commands)).await.expect("it leads");
        in_flight.push_back(submitted);
        if in_flight.len() as u64 >= PUTS_IN_FLIGHT / entry_puts {
            in_flight.pop_front().expect("not empty").await.expect("applied");
            acknowledged += entry_puts;
            println!("acknowledged {acknowledged} {}", (processor_time() - worked).as_micros());
        }
    }
    for submitted in in_flight {
        submitted.await.expect("applied");
    }
    assert_eq!(running.keeper.state.lock().revision().0 - before.0, enough, "each put is a change");
    cluster.stop(1).await;
}

/// A child that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The number that a variable of the environment has, or `default` if it is not set.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Runs the child until it has acknowledged this many puts, so many in each entry, then kills it.
/// Returns the processor time that they took.
fn run_until(dir: &File, puts: u64, entry_puts: u64) -> Duration {
    let mut child = Process::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", THE_CHILD, "--nocapture"]).env(DIR, dir);
    child.env(ENTRY, entry_puts.to_string()).stdout(Stdio::piped());
    let mut child = Killed(child.spawn().expect("starts"));
    let lines = BufReader::new(child.0.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    let mut acknowledged = lines.filter_map(|line| {
        let (count, work) = line.strip_prefix("acknowledged ")?.split_once(' ')?;
        Some((count.parse::<u64>().ok()?, Duration::from_micros(work.parse().ok()?)))
    });
    let enough = acknowledged.find(|(count, _)| *count >= puts);
    enough.unwrap_or_else(|| panic!("it ended by itself before it had acknowledged {puts}")).1
}

/// The disk space of a folder.
fn disk_bytes(dir: &File) -> u64 {
    let entries = fs::read_dir(dir).expect("read").map(|entry| entry.expect("read"));
    entries
        .map(|entry| match entry.metadata().expect("read") {
            found if found.is_dir() => disk_bytes(&entry.path()),
            found => found.blocks() * 512,
        })
        .sum()
}

/// Another child: starts a replica on the remaining files. Prints the elapsed time until it served,
/// and the processor time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_serves_what_was_put_before() {
    let own = tempfile::tempdir().expect("a directory");
    let is_child = std::env::var_os(DIR).is_some();
    let dir = std::env::var_os(DIR).map_or_else(|| own.path().join("data"), Into::into);
    if !is_child {
        // Run by itself, this begins with a replica that was killed early.
        run_until(&dir, ENTRY_PUTS, ENTRY_PUTS);
    }
    let mut cluster = Cluster::new(1).await;
    let (started, worked) = (Instant::now(), processor_time());
    cluster.start_with(ReplicaConfig::new(1, dir, cluster.members.clone())).await.expect("starts");
    let running = &cluster.running[&1];
    let mut leadership = running.replica.leadership();
    leadership.wait_for(|leadership| leadership.is_leader).await.expect("it runs");
    running.replica.prove_leadership().await.expect("it leads, and has applied all that was committed");
    let (took, work) = (started.elapsed(), processor_time() - worked);
    let revision = running.keeper.state.lock().revision().0;
    println!("served {} {} {revision}", took.as_micros(), work.as_micros());
    assert!(revision >= ENTRY_PUTS, "revision {revision}: expected what was acknowledged");
    cluster.stop(1).await;
}

fn processor_time() -> Duration {
    let used = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
    used.expect("a clock that every process has").into()
}

/// The results of the second child: elapsed time, processor time, and its revision.
fn restart(dir: &File) -> (Duration, Duration, u64) {
    let mut child = Process::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", "restart::replica_serves_what_was_put_before", "--nocapture"]).env(DIR, dir);
    let output = child.output().expect("runs");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let served = text.lines().find_map(|line| line.strip_prefix("served "));
    let served = served.unwrap_or_else(|| panic!("it has not served: {text}{errors}"));
    let numbers: Vec<u64> = served.split(' ').map(|number| number.parse().expect("a number")).collect();
    let [took, work, revision] = numbers[..] else { panic!("{served}: expected three numbers") };
    (Duration::from_micros(took), Duration::from_micros(work), revision)
}

/// Kills a replica this often, spread over its puts, and starts it again each time. All restarts
/// together must take less processor time than all puts took. A bound in seconds would depend on
/// the machine.
fn kill_and_restart(kills: u64, puts: u64, entry_puts: u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let (mut all_restarts, mut all_puts) = (Duration::ZERO, Duration::ZERO);
    for kill in 1..=kills {
        let puts_work = run_until(&data, puts / kills, entry_puts);
        let (log, state) = (disk_bytes(&data.join("log")) >> 20, disk_bytes(&data.join("state")) >> 20);
        let entries = log_bytes(&data);
        let (took, work, revision) = restart(&data);
        let puts = puts * kill / kills;
        println!(
            "killed after {puts} puts, {entry_puts} in an entry: {} MiB of entries in the log; on disk log {log} MiB, \
             state {state} MiB; served after {took:.2?}, {work:.2?} of them work; the puts took {puts_work:.2?} of work",
            entries >> 20
        );
        assert!(revision >= puts, "revision {revision}: expected at least {puts}, which were acknowledged");
        let most = SNAPSHOT_BYTES + RETAINED_BYTES + LOG_SLACK_BYTES;
        assert!(entries <= most, "{entries} bytes of entries in the log: expected at most {most}");
        all_restarts += work;
        all_puts += puts_work;
    }
    assert!(all_restarts < all_puts, "restarts took {all_restarts:?} of work: expected less than {all_puts:?}");
}

#[test]
fn killed_replica_restarts_with_less_work_than_its_puts() {
    kill_and_restart(KILLS, number(PUTS, 160_000), ENTRY_PUTS);
}

/// If each entry has one put, the log reaches the bound on entries long before that on bytes.
#[test]
fn killed_replica_with_small_entries_restarts_as_soon() {
    // Each kill comes just before the snapshot, with up to 1,000 more puts in flight.
    kill_and_restart(2, 2 * (SNAPSHOT_ENTRIES - 1_200), 1);
}

/// The size of the entries in the log of a stopped replica.
fn log_bytes(data: &File) -> u64 {
    let log = LogStore::open(&data.join("log"), &data.join("durable-index"), Poison::default()).expect("opens");
    let bytes = log.bytes_between(0, u64::MAX);
    tokio::runtime::Runtime::new().expect("a runtime").block_on(log.close());
    bytes
}
