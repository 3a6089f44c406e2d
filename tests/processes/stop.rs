//! Servers are told to stop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold_client_cache::{Client, Path};

use crate::harness::{Cluster, alone, eventually, leasehold, path};

/// With a handover a successor is there within a heartbeat or two; on a busy machine later.
const WRITE_GAP_MAX: Duration = Duration::from_secs(5);

/// Writes numbers to a node, one after the other, until it is told to stop. Returns the last, and the longest time from one
/// acknowledgement to the next.
async fn write_on(client: Client, node: Path, last: Arc<AtomicU64>, stops: Arc<AtomicBool>) -> (u64, Duration) {
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
    let _alone = alone().await;
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client("writer").await;
    let node = path("/counter");
    let (last, stops) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writing = tokio::spawn(write_on(client.clone(), node.clone(), Arc::clone(&last), Arc::clone(&stops)));
    let more_by = async |number: u64| {
        let from = last.load(Ordering::Relaxed);
        eventually("writes go on", || async {
            let now = last.load(Ordering::Relaxed);
            if now >= from + number { Ok(()) } else { Err(format!("{now}, from {from}")) }
        })
        .await;
    };
    more_by(50).await;
    let old = cluster.leader().await;
    let told = Instant::now();
    let status = cluster.terminate(old).await;
    let stopped_after = told.elapsed();
    assert_eq!(status.code(), Some(0), "{status}");
    more_by(50).await;
    let new = cluster.leader().await;
    assert_ne!(new, old);
    stops.store(true, Ordering::Relaxed);
    let (number, gap) = writing.await.expect("all writes were acknowledged");
    println!("stopped after {stopped_after:?}; the longest gap between writes was {gap:?}");
    assert!(gap < WRITE_GAP_MAX, "writes were out for {gap:?}");
    let entry = cluster.client("reader").await.get(&node).await.expect("served").expect("there");
    assert_eq!((&entry.value[..], entry.stat.version), (number.to_string().as_bytes(), number));
    cluster.spawn(old);
    cluster.caught_up(&cluster.ids()).await;
    cluster.assert_all_run();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_server_that_was_told_to_stop_has_everything_when_it_is_started_again() {
    let _alone = alone().await;
    let mut cluster = Cluster::start(1).await;
    let endpoints = cluster.endpoints();
    for number in 0..20 {
        leasehold(&endpoints, &["put", &format!("/a/{number}"), &number.to_string()]).await.expect_done();
    }
    leasehold(&endpoints, &["volume", "create", "/v", "--term", "7s"]).await.expect_done();
    let before = leasehold(&endpoints, &["tree", "/"]).await.expect_done();
    let told = Instant::now();
    let status = cluster.terminate(1).await;
    println!("stopped after {:?}", told.elapsed());
    assert_eq!(status.code(), Some(0), "{status}");
    cluster.spawn(1);
    cluster.leader().await;
    assert_eq!(leasehold(&endpoints, &["tree", "/"]).await.expect_done(), before);
    for number in 0..20 {
        let got = leasehold(&endpoints, &["get", &format!("/a/{number}")]).await.expect_done();
        assert_eq!((got["value"].as_str(), got["version"].as_u64()), (Some(number.to_string().as_str()), Some(1)));
    }
    let volume = leasehold(&endpoints, &["volume", "show", "/v"]).await.expect_done();
    assert_eq!(volume["term_ms"], 7000, "{volume}");
}
