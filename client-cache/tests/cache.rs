//! The cache as users see it: reads from memory, recalls, sharing, eviction, and closing the
//! client. The modules test locks, leases, watches and recipes.

mod common;
#[path = "elections/mod.rs"]
mod elections;
#[path = "inspect/mod.rs"]
mod inspect;
#[path = "leases/mod.rs"]
mod leases;
#[path = "lifetimes/mod.rs"]
mod lifetimes;
#[path = "locks/mod.rs"]
mod locks;
#[path = "recipes/mod.rs"]
mod recipes;
// Shared with the tests of whole processes, which use more of it.
#[allow(dead_code)]
#[path = "../../tests/common/stall.rs"]
mod stall;
mod watches;
#[path = "write_leases/mod.rs"]
mod write_leases;

use std::time::{Duration, Instant};

use common::{Server, path, until, value, within};
use futures::future::join_all;
use leasehold_client_cache::{
    Client, ConnectError, Content, ObjectKind, OnWrite, ReadError, ReadSource, Refusal, RenewalMode, SessionState,
    VolumeCacheStats, VolumeCounts, WriteError, WriteRefusal, advice::NoPrediction,
};

const TERM: Duration = Duration::from_secs(10);

/// Longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_miss_is_read_once_and_then_answered_from_memory() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    let path = path("/a/b");
    let written = writer.put(&path, "one").await.unwrap();
    assert_eq!(reader.cached(&path), None);
    let first = reader.read(&path).await.unwrap();
    let second = reader.read(&path).await.unwrap();
    assert_eq!((first.source, second.source), (ReadSource::Server, ReadSource::Memory));
    assert_eq!((&first.content, first.revision), (&second.content, Some(written.revision)));
    assert!(second.valid_for.unwrap() > TERM / 2 && second.valid_for.unwrap() <= TERM);
    let certain = reader.volume_remaining(&path);
    assert!(certain <= TERM && reader.cached_for(&path).unwrap() <= certain);
    let entry = reader.get(&path).await.unwrap().unwrap();
    assert_eq!((&entry.value[..], entry.stat), (&b"one"[..], written.stat.unwrap()));
    assert_eq!(reader.children(common::path("/a")).await.unwrap().unwrap().names, ["b"]);
    let stats = reader.stats();
    assert_eq!((stats.hits, stats.misses, stats.server_reads, stats.copies), (2, 2, 2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_a_node_does_not_exist_is_cached_until_somebody_makes_it() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    let path = path("/a");
    assert_eq!(reader.get(&path).await.unwrap(), None);
    assert_eq!(reader.cached(&path).as_deref(), Some(&Content::Data(None)));
    assert_eq!(reader.stat(&path).await.unwrap(), None);
    writer.put(&path, "made").await.unwrap();
    assert_eq!(reader.cached(&path), None);
    assert_eq!(&reader.get(&path).await.unwrap().unwrap().value[..], b"made");
    assert_eq!(reader.stats().recalls, 1);
}

/// The leases end during an outage. Then only a read that accepts an old content gets the copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_whose_leases_ended_serves_reads_that_accept_its_age() {
    let mut server = Server::start(Duration::from_secs(1)).await;
    let client = server.client().await;
    let (path, hour) = (path("/a"), Duration::from_secs(3600));
    client.put(&path, "one").await.unwrap();
    client.get(&path).await.unwrap();
    let fresh = client.read(&path).max_stale(hour).await.unwrap();
    assert_eq!((fresh.source, fresh.age), (ReadSource::Memory, None), "its leases hold");
    server.stop().await;
    until(|| client.cached(&path).is_none()).await;
    let old = client.read(&path).max_stale(hour).await.unwrap();
    assert_eq!((&old.content, old.source, old.valid_for), (&fresh.content, ReadSource::Memory, None));
    let age = old.age.unwrap();
    assert!(age < PATIENCE, "{age:?}");
    let later = client.read(&path).max_stale(hour).await.unwrap().age.unwrap();
    assert!(later > age, "it grows older: {later:?}");
    let soon = Duration::from_millis(100);
    for read in [client.read(&path), client.read(&path).max_stale(Duration::ZERO)] {
        let failed = read.timeout(soon).await.unwrap_err();
        assert!(matches!(failed, ReadError::Unavailable { .. } | ReadError::TimedOut { .. }), "{failed}");
    }
    assert_eq!(client.stats().stale_hits, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_recalls_others_copy_before_it_is_acknowledged() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    let path = path("/a");
    for number in 0..50 {
        writer.put(&path, value(number)).await.unwrap();
        assert_eq!(reader.cached(&path), None, "the copy was dropped before the write was acknowledged");
        assert_eq!(reader.get(&path).await.unwrap().unwrap().value, value(number));
        assert_eq!(reader.read(&path).await.unwrap().source, ReadSource::Memory);
    }
    assert_eq!(reader.stats().recalls, 49);
}

/// The write waits meanwhile, so what the client reads is not stale. No other request brings the
/// consent: the client has compared clocks, and its lease is fresh or is never renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_delays_consents_reads_on_from_memory() {
    const DELAY: Duration = Duration::from_millis(300);
    for renewal in [RenewalMode::Ahead, RenewalMode::Never] {
        let server = Server::start(TERM).await;
        let writer = server.client().await;
        let options = server.options().consent_delay(DELAY).renewal(renewal);
        let reader = Client::connect(options).await.unwrap();
        writer.put("/a", "one").await.unwrap();
        reader.get("/a").await.unwrap();
        until(|| server.asked("Heartbeat") >= 2).await;
        reader.get("/b").await.unwrap();
        let began = Instant::now();
        let writing = tokio::spawn(async move { writer.put("/a", "two").await.map(|_| began.elapsed()) });
        until(|| reader.stats().recalls == 1).await;
        let mut from_memory = 0;
        loop {
            let is_written = writing.is_finished();
            let is_in_use = reader.cached(&path("/a")).is_some();
            assert!(!is_written || !is_in_use, "the write waits until the copy is dropped");
            if !is_in_use {
                break;
            }
            from_memory += 1;
            tokio::task::yield_now().await;
        }
        let waited = within(writing).await.unwrap().unwrap();
        assert!(from_memory > 0 && waited >= DELAY, "{renewal:?}: {from_memory} reads, the write took {waited:?}");
        assert!(waited < TERM / 4, "{renewal:?}: the consent has a request of its own, after {waited:?}");
        assert_eq!(&reader.get("/a").await.unwrap().unwrap().value[..], b"two");
    }
}

/// In a volume that updates, the reader's next read after each write of another client is a hit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn value_of_a_write_reaches_a_reader_with_a_new_lease() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    writer.admin().create_volume("/v").on_write(OnWrite::Update).await.unwrap();
    writer.put("/v/a", "0").await.unwrap();
    reader.get("/v/a").await.unwrap();
    for number in 1..=10 {
        let value = number.to_string();
        writer.put("/v/a", &value).await.unwrap();
        // The copy is usable again without a call of the application.
        until(|| reader.cached(&path("/v/a")).is_some()).await;
        let asked = server.asked("Read");
        assert_eq!(&reader.get("/v/a").await.unwrap().unwrap().value[..], value.as_bytes());
        assert_eq!((server.asked("Read"), server.asked("ReadNextValue")), (asked, number));
        assert_eq!(server.asked("Push"), number, "the consent has asked for it");
    }
    // Nobody reads the eleventh value, so the twelfth is not asked for.
    for value in ["11", "12"] {
        writer.put("/v/a", value).await.unwrap();
        until(|| server.asked("ReadNextValue") == 11).await;
    }
    until(|| reader.stats().recalls == 12).await;
    assert_eq!((reader.cached(&path("/v/a")), server.asked("ReadNextValue")), (None, 11));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writers_next_read_comes_from_memory() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let path = path("/a");
    // The first write may come before the lease on the volume.
    client.get(&path).await.unwrap();
    let before = client.stats();
    let asked = ["Write", "Read", "AwaitRead", "Acquire"].map(|kind| server.asked(kind)).iter().sum::<u64>();
    for number in 0..10 {
        client.put(&path, value(number)).await.unwrap();
        let read = client.read(&path).await.unwrap();
        assert_eq!(read.source, ReadSource::Memory);
        assert_eq!(client.get(&path).await.unwrap().unwrap().value, value(number));
    }
    let stats = client.stats();
    assert_eq!((stats.server_reads, stats.writes), (before.server_reads, 10));
    // Heartbeats compare clocks meanwhile. They do not count.
    let sent = ["Write", "Read", "AwaitRead", "Acquire"].map(|kind| server.asked(kind)).iter().sum::<u64>();
    assert_eq!(sent, asked + 10, "a write and its reads cost one message");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_misses_share_one_request() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    // So that the client has a lease on the volume.
    client.get("/other").await.unwrap();
    server.hold_reads(true);
    let asked = server.asked("Read");
    let path = path("/a");
    let reads: Vec<_> = (0..100)
        .map(|_| {
            let (client, path) = (client.clone(), path.clone());
            tokio::spawn(async move { client.get(&path).await })
        })
        .collect();
    until(|| client.stats().misses == 101).await;
    server.hold_reads(false);
    for read in within(join_all(reads)).await {
        assert_eq!(read.unwrap().unwrap(), None);
    }
    assert_eq!(server.asked("Read") - asked, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_there_is_no_room_for_is_dropped_and_given_back() {
    let server = Server::start(TERM).await;
    let room_for = 20;
    // A value of 1,000 bytes, at a path of up to 8 bytes.
    let capacity = room_for * (leasehold_client_cache::ENTRY_OVERHEAD_BYTES + 1008);
    let client = Client::connect(server.options().cache_capacity_bytes(capacity)).await.unwrap();
    let paths: Vec<_> = (0..100).map(|i| path(&format!("/node-{i:02}"))).collect();
    // So that the client has a lease on the volume, and each write grants an object lease.
    client.get("/").await.unwrap();
    for path in &paths {
        client.put(path, vec![b'x'; 1000]).await.unwrap();
    }
    until(|| client.stats().copies <= room_for).await;
    let evicted = client.stats().evictions;
    assert!((100 - room_for..=101).contains(&evicted), "{evicted}");
    // The next request returns the evicted copies to the server: then it counts no lease on them.
    let other = server.client().await;
    within(async {
        loop {
            client.read("/elsewhere").await.unwrap();
            let mut held = 0;
            for path in &paths {
                held += other.admin().holders(path).await.unwrap().len() as u64;
            }
            if held <= room_for {
                break;
            }
            client.delete("/elsewhere").await.unwrap_err();
        }
    })
    .await;
}

/// Reads the node until a read comes from memory.
async fn until_cached(client: &Client, text: &str) {
    within(async { while client.read(text).await.expect("a server answers").source != ReadSource::Memory {} }).await;
}

/// What a reader's cache has counted in this volume.
fn counted(client: &Client, volume: &str) -> VolumeCacheStats {
    client.volume_stats().get(&path(volume)).copied().unwrap_or_default()
}

fn misses(stats: &VolumeCacheStats) -> [u64; 5] {
    [stats.misses_first, stats.misses_capacity, stats.misses_recalled, stats.misses_written, stats.misses_expired]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_and_misses_are_counted_by_volume_and_cause() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    writer.admin().create_volume("/v").await.unwrap();
    // The first reads may come before the lease on the volume.
    until_cached(&reader, "/v/other").await;
    let before = counted(&reader, "/v");
    for text in ["/v/a", "/v/a", "/v/a", "/b"] {
        reader.get(text).await.unwrap();
    }
    let (root, inner) = (counted(&reader, "/"), counted(&reader, "/v"));
    let since = |stats: &VolumeCacheStats| {
        let [first, others @ ..] = misses(stats);
        (stats.hits - before.hits, first - before.misses_first, others)
    };
    assert_eq!(since(&inner), (2, 1, [0; 4]), "{inner:?}");
    assert_eq!((root.hits, misses(&root)), (0, [1, 0, 0, 0, 0]), "{root:?}");
    writer.put("/v/a", "1").await.unwrap();
    reader.get("/v/a").await.unwrap();
    assert_eq!(since(&counted(&reader, "/v")), (2, 1, [0, 1, 0, 0]));
    reader.put("/v/a/child", "1").await.unwrap();
    reader.children("/v/a").await.unwrap();
    reader.delete("/v/a/child").await.unwrap();
    reader.children("/v/a").await.unwrap();
    assert_eq!(since(&counted(&reader, "/v")), (2, 2, [0, 1, 1, 0]), "its own write dropped the list");
    assert_eq!(reader.stats().hits, counted(&reader, "/v").hits, "the sum");
    let all: u64 = ["/", "/v"].iter().flat_map(|volume| misses(&counted(&reader, volume))).sum();
    assert_eq!(reader.stats().misses, all, "the sum");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_that_is_recalled_unread_is_false_sharing() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    for (number, reads) in [3, 1, 1, 2].into_iter().enumerate() {
        for _ in 0..reads {
            reader.get("/a").await.unwrap();
        }
        writer.put("/a", value(number as u64)).await.unwrap();
    }
    // The first read of each round asked the server.
    let stats = counted(&reader, "/");
    assert_eq!((stats.copies_recalled, stats.copies_recalled_unread, stats.hits), (4, 2, 3), "{stats:?}");
    assert_eq!(misses(&stats), [1, 0, 3, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misses_of_evicted_and_of_expired_copies_are_counted() {
    const SHORT: Duration = Duration::from_millis(500);
    let server = Server::start(TERM).await;
    let client = Client::connect(server.options().cache_capacity_bytes(0)).await.unwrap();
    client.get("/").await.unwrap();
    client.get("/a").await.unwrap();
    until(|| client.stats().copies == 0).await;
    client.get("/a").await.unwrap();
    assert_eq!(misses(&counted(&client, "/")), [2, 1, 0, 0, 0]);

    let client = server.client().await;
    client.get("/").await.unwrap();
    client.admin().create_volume("/short").term(SHORT).object_term(SHORT).await.unwrap();
    until_cached(&client, "/short/a").await;
    let before = counted(&client, "/short").misses_expired;
    until(|| client.cached(&path("/short/a")).is_none()).await;
    client.get("/short/a").await.unwrap();
    assert_eq!(counted(&client, "/short").misses_expired, before + 1);
}

/// The leader's counters, as the API gives them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_counts_reads_recalls_and_consents_of_all_clients() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    for number in 0..3 {
        reader.get("/a").await.unwrap();
        writer.put("/a", value(number)).await.unwrap();
    }
    let stats = writer.admin().volume_stats("/").await.unwrap().unwrap();
    let VolumeCounts { recalls, writes, consents, waits, .. } = &stats.counts;
    assert_eq!((*recalls, consents.count, *writes, waits.consent.count), (3, 3, 3, 3), "{stats:?}");
    assert!(consents.longest <= stats.counted_for && waits.consent.total >= consents.total, "{stats:?}");
    assert!(stats.volume_leases >= 1 && stats.lease_bytes > 0, "{stats:?}");
    assert_eq!(writer.admin().volume_stats("/a").await.unwrap(), None, "no volume");
}

/// A client reports its reads from memory with its requests, at most once a second, and with the
/// last one. So no more are counted than there were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_from_memory_are_reported_to_the_leader() {
    let server = Server::start(TERM).await;
    let (observer, reader) = (server.client().await, server.client().await);
    observer.admin().create_volume("/v").await.unwrap();
    until_cached(&reader, "/v/a").await;
    for _ in 0..200 {
        reader.get("/v/a").await.unwrap();
    }
    let hits = counted(&reader, "/v").hits;
    assert!(hits >= 200, "{hits}");
    let reported = async || observer.admin().volume_stats("/v").await.unwrap().unwrap().counts.reads_from_memory;
    assert!(reported().await <= hits);
    reader.close().await;
    assert_eq!(reported().await, hits, "the last request reports the rest");
    let gaps = observer.admin().volume_stats("/v").await.unwrap().unwrap().counts.read_gaps;
    assert!((1..=2).contains(&gaps.count()), "only the first hit after a grant counts: {gaps:?}");
    let advice = observer.admin().advise("/v").await.unwrap().unwrap();
    assert_eq!(advice.predictions, Err(NoPrediction::TooShort), "{advice:?}");
    assert!(advice.workload.from_memory > 0.9 && advice.workload.round_trip > Duration::ZERO, "{advice:?}");
    assert_eq!(observer.admin().advise("/v/a").await.unwrap(), None, "no volume");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stat_is_of_one_moment_while_children_come_and_go() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    let node = path("/a");
    writer.put(&node, "0").await.unwrap();
    let writing = tokio::spawn(async move {
        for number in 1..=100_u64 {
            // The value is the number of children, or one less.
            writer.put(format!("/a/{number}"), "").await.unwrap();
            writer.put("/a", value(number)).await.unwrap();
        }
    });
    loop {
        let stat = reader.stat(&node).await.unwrap().unwrap();
        assert!(stat.child_count == stat.version - 1 || stat.child_count == stat.version, "{stat:?}");
        if stat.version == 101 {
            break;
        }
    }
    writing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_say_what_was_expected_and_change_nothing() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let path = path("/a");
    let written = client.put(&path, "one").await.unwrap();
    let error = client.put(&path, "two").if_absent().await.unwrap_err();
    let create_revision = written.revision;
    let expected = WriteRefusal::Exists { path: path.clone(), create_revision };
    assert_eq!(error, WriteError::Refused(Refusal::Write(expected)));
    assert!(!error.may_still_happen());
    let error = client.put(&path, vec![0; 9 << 20]).await.unwrap_err();
    assert!(matches!(error, WriteError::Limit { .. }), "{error}");
    assert_eq!(&client.get(&path).await.unwrap().unwrap().value[..], b"one");
    assert_eq!(client.admin().volumes(&common::path("/")).await.unwrap().len(), 1);
    assert_eq!(client.admin().cluster().await.unwrap().replica, 1);
    let info = leasehold_client_cache::server_status(server.address(), Duration::from_secs(60)).await.unwrap().info;
    assert_eq!(info.leader, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_made_or_removed_keeps_reads_right() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    let (top, node) = (path("/v"), path("/v/a"));
    for number in 0..5 {
        writer.put(&node, value(number)).await.unwrap();
        assert_eq!(reader.get(&node).await.unwrap().unwrap().value, value(number));
        if number % 2 == 0 {
            writer.admin().create_volume(&top).settings(common::settings(Duration::from_secs(2))).await.unwrap();
        } else {
            writer.admin().remove_volume(&top).await.unwrap();
        }
        assert_eq!(reader.get(&node).await.unwrap().unwrap().value, value(number));
        assert_eq!(reader.read(&node).await.unwrap().source, ReadSource::Memory);
        let most = if number % 2 == 0 { Duration::from_secs(2) } else { TERM };
        assert!(reader.volume_remaining(&node) <= most);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_gives_everything_back() {
    let server = Server::start(TERM).await;
    let (client, other) = (server.client().await, server.client().await);
    let path = path("/a");
    let mut events = client.events();
    client.get(&path).await.unwrap();
    assert_eq!(other.admin().holders(&path).await.unwrap().len(), 1);
    let clone = client.clone();
    within(client.close()).await;
    let mut state = events.next().await;
    // `connect` waits for the session. Its registration may be reported only now.
    if matches!(state, Ok(SessionState::Connected { .. })) {
        state = events.next().await;
    }
    assert_eq!(state, Ok(SessionState::Closed));
    assert_eq!(other.admin().holders(&path).await.unwrap(), []);
    assert_eq!(clone.cached(&path), None);
    assert_eq!(clone.get(&path).await, Err(ReadError::Closed));
    assert_eq!(clone.put(&path, "").await, Err(WriteError::SessionEnded { path: Some(path.clone()) }));
    assert_eq!(clone.session(), None);
    within(clone.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_and_writes_that_nobody_waits_for_leave_nothing_behind() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    client.get("/other").await.unwrap();
    server.hold_reads(true);
    let node = path("/a");
    let error = client.read(&node).kind(ObjectKind::Children).timeout(Duration::from_millis(5)).await.unwrap_err();
    assert_eq!(error, ReadError::TimedOut { path: node.clone(), after: Duration::from_millis(5) });
    assert!(tokio::time::timeout(Duration::from_millis(5), client.get(&node)).await.is_err());
    server.hold_reads(false);
    assert_eq!(client.get(&node).await.unwrap(), None);
    client.put(&node, "one").await.unwrap();
    assert_eq!(&client.get(&node).await.unwrap().unwrap().value[..], b"one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_too_long_is_refused_at_once() {
    let server = Server::start(TERM).await;
    let error = within(Client::connect(server.options().name("x".repeat(257)))).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Refused(Refusal::Limit(_))), "{error}");
    assert!(error.to_string().contains("257"), "{error}");
}
