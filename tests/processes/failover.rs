//! The leader is killed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold_client_cache::{Client, DriftAllowance, NodePath, ReadSource, Tracking, VolumeSettings};

use crate::{
    alone,
    common::{Cluster, soon},
    path,
};

/// After a failover, a live holder's consent ends the wait of a write. A write that takes this long
/// has waited for the end of a lease of [`TERM`] instead.
const WRITE_OUTAGE_MAX: Duration = Duration::from_secs(25);

/// So long that a write which waits for a lease's end is not mistaken for one that got a consent.
const TERM: Duration = Duration::from_secs(60);

/// Longer than the root's volume term. Reads that go on for this long need leases that the new
/// leader has renewed.
const READS_GO_ON: Duration = Duration::from_secs(11);

/// Reads a node from memory again and again, in its own thread, until it is stopped.
struct Reader {
    stops: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Reads>,
}

/// The counts of a reader.
#[derive(Debug, Default)]
struct Reads {
    count: u64,
    not_from_memory: u64,
    longest_gap: Duration,
}

impl Reader {
    fn start(client: &Client, node: &NodePath) -> Self {
        let (stops, client, node) = (Arc::new(AtomicBool::new(false)), client.clone(), node.clone());
        let told = Arc::clone(&stops);
        let thread = std::thread::spawn(move || {
            let mut reads = Reads::default();
            let mut last = Instant::now();
            while !told.load(Ordering::Relaxed) {
                match client.cached(&node) {
                    Some(_) => {
                        reads.count += 1;
                        reads.longest_gap = reads.longest_gap.max(last.elapsed());
                        last = Instant::now();
                    }
                    None => reads.not_from_memory += 1,
                }
                // The servers need the processors too.
                std::thread::sleep(Duration::from_micros(200));
            }
            reads
        });
        Self { stops, thread }
    }

    fn stop(self) -> Reads {
        self.stops.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only reads")
    }
}

/// Reads until the answer comes from memory.
async fn cache(client: &Client, node: &NodePath) {
    soon(&format!("{node} is read from memory"), || async {
        let read = client.read(node).await.expect("the cluster serves");
        if read.source == ReadSource::Memory { Ok(()) } else { Err(format!("{:?}", read.source)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_kill_spares_cached_reads_and_writes_resume_soon() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let (reader, writer) = (cluster.client("reader").await, cluster.client("writer").await);
    let (steady, shared) = (path("/steady"), path("/long/shared"));
    let hour = Duration::from_secs(3600);
    let settings = VolumeSettings::new(TERM, hour, TERM / 10, Tracking::Objects, DriftAllowance::DEFAULT);
    writer.admin().create_volume("/long").settings(settings.expect("valid")).await.expect("created");
    writer.put(&steady, "steady").await.expect("written");
    writer.put(&shared, "before").await.expect("written");
    cache(&reader, &steady).await;
    cache(&reader, &shared).await;

    let old = cluster.leader();
    let reads = Reader::start(&reader, &steady);
    let killed = Instant::now();
    cluster.kill(old);
    writer.put(&shared, "after").await.expect("the other two are a quorum");
    let outage = killed.elapsed();
    assert_eq!(&reader.get(&shared).await.expect("served").expect("there").value[..], b"after");
    assert!(outage < WRITE_OUTAGE_MAX, "a write waited {outage:?} for a holder that was alive");
    tokio::time::sleep(READS_GO_ON.saturating_sub(killed.elapsed())).await;
    let reads = reads.stop();
    println!("writes were out for {outage:?}; {reads:?}");
    assert!(reads.count > 0);
    assert_eq!(reads.not_from_memory, 0, "cached reads had a gap: {reads:?}");

    // The killed server comes back and catches up.
    let new = cluster.leader();
    assert_ne!(new, old);
    cluster.spawn(old);
    let status = cluster.caught_up(&cluster.ids());
    assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{status}");
    cluster.assert_all_run();
}
