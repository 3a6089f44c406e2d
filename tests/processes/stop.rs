//! Servers are stopped by a signal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold_client_cache::{Client, NodePath};
use nix::sys::signal::Signal;

use crate::{
    alone,
    common::{Cluster, soon},
    path,
};

/// With a leadership transfer, a successor leads in a heartbeat or two, or later on a busy machine.
const WRITE_GAP_MAX: Duration = Duration::from_secs(5);

/// Writes numbers to a node, one after the other, until it is stopped. Returns the last number, and
/// the longest time from one acknowledgement to the next.
async fn write_on(client: Client, node: NodePath, last: Arc<AtomicU64>, stops: Arc<AtomicBool>) -> (u64, Duration) {
    let (mut number, mut longest, mut acknowledged) = (0, Duration::ZERO, Instant::now());
    while !stops.load(Ordering::Relaxed) {
        number += 1;
        client.put(&node, number.to_string()).await.expect("there always is a quorum");
        longest = longest.max(acknowledged.elapsed());
        acknowledged = Instant::now();
        last.store(number, Ordering::Relaxed);
    }
    (number, longest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_told_to_stop_hands_over_and_exits_with_0() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let client = cluster.client("writer").await;
    let node = path("/counter");
    let (last, stops) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writing = tokio::spawn(write_on(client.clone(), node.clone(), Arc::clone(&last), Arc::clone(&stops)));
    let more_by = async |number: u64| {
        let from = last.load(Ordering::Relaxed);
        soon("writes go on", || async {
            let now = last.load(Ordering::Relaxed);
            if now >= from + number { Ok(()) } else { Err(format!("{now}, from {from}")) }
        })
        .await;
    };
    more_by(50).await;
    let old = cluster.leader();
    let told = Instant::now();
    let status = cluster.stop(old, Signal::SIGTERM);
    let stopped_after = told.elapsed();
    assert_eq!(status.code(), Some(0), "{status}");
    more_by(50).await;
    let new = cluster.leader();
    assert_ne!(new, old);
    stops.store(true, Ordering::Relaxed);
    let (number, gap) = writing.await.expect("all writes were acknowledged");
    println!("stopped after {stopped_after:?}; the longest gap between writes was {gap:?}");
    assert!(gap < WRITE_GAP_MAX, "writes were out for {gap:?}");
    let entry = cluster.client("reader").await.get(&node).await.expect("served").expect("there");
    assert_eq!((&entry.value[..], entry.stat.version), (number.to_string().as_bytes(), number));
    cluster.spawn(old);
    cluster.caught_up(&cluster.ids());
    cluster.assert_all_run();
}

#[test]
fn lone_server_stopped_and_restarted_has_everything() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    let cli = cluster.cli();
    for number in 0..20 {
        cli.done(["put", &format!("/a/{number}"), &number.to_string()]);
    }
    cli.done(["volume", "create", "/v", "--term", "7s"]);
    let before = cli.done(["tree", "/"]);
    let told = Instant::now();
    let status = cluster.stop(1, Signal::SIGTERM);
    println!("stopped after {:?}", told.elapsed());
    assert_eq!(status.code(), Some(0), "{status}");
    cluster.spawn(1);
    cluster.wait_until_it_serves();
    assert_eq!(cli.done(["tree", "/"]), before);
    for number in 0..20 {
        let got = cli.done(["get", &format!("/a/{number}")]);
        assert_eq!((got["value"].as_str(), got["version"].as_u64()), (Some(number.to_string().as_str()), Some(1)));
    }
    let volume = cli.done(["volume", "show", "/v"]);
    assert_eq!(volume["term_ms"], 7000, "{volume}");
}
