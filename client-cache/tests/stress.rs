//! Many threads read from memory while others write. No read is older than a write that was
//! acknowledged before the read began.

// Helpers may panic, as tests do.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use common::{Server, path, value};
use leasehold_client_cache::{Client, Content, NodePath};

const NODES: usize = 8;
const READERS: usize = 4;
const CLIENTS: usize = 3;
/// How often trouble is made, at least.
const TROUBLES: usize = 5;
/// The least number of reads from memory before each trouble.
const HITS_BETWEEN: u64 = 5_000;
/// The least number of acknowledged writes before each trouble: some for each node.
const WRITES_BETWEEN: u64 = 24;
/// While the server is down, the test waits for this many reads from memory, or until all leases
/// have ended.
const HITS_WITHOUT_SERVER: u64 = 1_000;
/// The least number of outages with that many reads. If writers have just recalled all copies,
/// there is nothing to read.
const OUTAGES_WITH_HITS: usize = 3;
/// The most outages.
const OUTAGES_MAX: usize = 30;
/// How long a reader waits for a server. Then it reads the next node, which may be in memory.
const READ_MAX: Duration = Duration::from_millis(20);
/// How often the test polls.
const CHECK_EVERY: Duration = Duration::from_millis(1);
/// The longest time for enough to happen.
const ENOUGH_MAX: Duration = Duration::from_secs(60);

/// A node that counts up, and the highest number that has been acknowledged.
#[derive(Debug)]
struct Counter {
    path: NodePath,
    acknowledged: AtomicU64,
}

/// Ends everything when it is dropped, also after a failure, so that no thread waits for ever.
struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// What has happened so far.
struct Happened<'a> {
    clients: &'a [Client],
    writes: &'a AtomicU64,
    is_over: &'a AtomicBool,
}

impl Happened<'_> {
    fn hits(&self) -> u64 {
        self.clients.iter().map(|client| client.stats().hits).sum()
    }

    fn writes(&self) -> u64 {
        self.writes.load(SeqCst)
    }

    /// Whether a volume lease lets some client read its copies from memory.
    fn holds_lease(&self) -> bool {
        self.clients.iter().any(|client| client.volume_remaining(&NodePath::root()) > Duration::ZERO)
    }

    fn wait(&self, what: &str, holds: impl Fn() -> bool) {
        let began = Instant::now();
        while !holds() && !self.is_over.load(SeqCst) {
            let stats: Vec<_> = self.clients.iter().map(Client::stats).collect();
            assert!(began.elapsed() < ENOUGH_MAX, "in vain: {what}: {} writes, {stats:?}", self.writes());
            thread::sleep(CHECK_EVERY);
        }
    }

    /// Waits for this many more reads from memory and writes.
    fn wait_for_more(&self, hits: u64, writes: u64) {
        let (hits, writes) = (self.hits() + hits, self.writes() + writes);
        self.wait("enough reads from memory and writes", || self.hits() >= hits && self.writes() >= writes);
    }
}

fn number(content: &Content) -> u64 {
    match content {
        Content::Data(Some(data)) => std::str::from_utf8(&data.value).unwrap().parse().unwrap(),
        _ => panic!("it exists: {content:?}"),
    }
}

#[test]
fn no_read_is_stale_while_threads_read_and_others_write() {
    let mut rounds = 0;
    run(|_, _| {
        rounds += 1;
        rounds < TROUBLES
    });
}

#[test]
fn no_read_is_stale_while_the_leader_is_killed_and_comes_back() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut outages, mut with_hits) = (0, 0);
    run(|server, happened| {
        runtime.block_on(server.stop());
        let hits = happened.hits() + HITS_WITHOUT_SERVER;
        happened.wait("reads from memory without a server, or the end of all leases", || {
            happened.hits() >= hits || !happened.holds_lease()
        });
        outages += 1;
        with_hits += usize::from(happened.hits() >= hits);
        assert!(
            with_hits >= OUTAGES_WITH_HITS || outages < OUTAGES_MAX,
            "in {with_hits} of {outages} outages copies were read: expected {OUTAGES_WITH_HITS}"
        );
        outages < TROUBLES || with_hits < OUTAGES_WITH_HITS
    });
    println!("in {with_hits} of {outages} outages copies were read at least {HITS_WITHOUT_SERVER} times");
}

/// Runs readers and writers, and calls `trouble` until it returns false. After each call the server
/// leads again.
fn run(mut trouble: impl FnMut(&mut Server, &Happened<'_>) -> bool) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut server, clients) = runtime.block_on(async {
        let server = Server::start(Duration::from_secs(2)).await;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(server.client().await);
        }
        for i in 0..NODES {
            clients[0].put(format!("/counter-{i}"), value(0)).await.unwrap();
        }
        (server, clients)
    });
    let counters: Arc<[Counter]> =
        (0..NODES).map(|i| Counter { path: path(&format!("/counter-{i}")), acknowledged: AtomicU64::new(0) }).collect();
    let (is_over, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    for (writer, client) in clients.iter().enumerate() {
        let (client, counters) = (client.clone(), Arc::clone(&counters));
        runtime.spawn(write(client, counters, (Arc::clone(&is_over), Arc::clone(&writes)), writer));
    }
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let client = &clients[reader % CLIENTS];
                let (counters, is_over, runtime) = (&counters, &is_over, runtime.handle());
                scope.spawn(move || read(client, counters, is_over, runtime))
            })
            .collect();
        let ends_all = EndsAll(&is_over);
        let happened = Happened { clients: &clients, writes: &writes, is_over: &is_over };
        let mut goes_on = true;
        while goes_on && !is_over.load(SeqCst) {
            happened.wait_for_more(HITS_BETWEEN, WRITES_BETWEEN);
            goes_on = trouble(&mut server, &happened);
            let _guard = runtime.enter();
            server.lead_if_stopped();
        }
        happened.wait_for_more(HITS_BETWEEN, WRITES_BETWEEN);
        drop(ends_all);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// Counts up the writer's own nodes. A write that failed may have happened, so its number is not
/// used again.
async fn write(
    client: Client,
    counters: Arc<[Counter]>,
    (is_over, writes): (Arc<AtomicBool>, Arc<AtomicU64>),
    writer: usize,
) {
    let mut number = 0;
    while !is_over.load(SeqCst) {
        number += 1;
        for counter in counters.iter().skip(writer).step_by(CLIENTS) {
            if client.put(&counter.path, value(number)).await.is_ok() {
                counter.acknowledged.fetch_max(number, SeqCst);
                writes.fetch_add(1, SeqCst);
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Reads from memory, or else from the server.
fn read(client: &Client, counters: &[Counter], is_over: &AtomicBool, runtime: &tokio::runtime::Handle) {
    let (_ends_all, mut last) = (EndsAll(is_over), [0; NODES]);
    while !is_over.load(SeqCst) {
        for (counter, last) in counters.iter().zip(&mut last) {
            let least = counter.acknowledged.load(SeqCst).max(*last);
            let got = match client.cached(&counter.path) {
                Some(content) => number(&content),
                None => match runtime.block_on(client.read(&counter.path).timeout(READ_MAX).into_future()) {
                    Ok(read) => number(&read.content),
                    Err(_) => continue,
                },
            };
            assert!(got >= least, "{} was read as {got}: {least} had been acknowledged or read before", counter.path);
            *last = got;
        }
    }
}
