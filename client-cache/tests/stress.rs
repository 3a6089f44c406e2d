//! Many threads read from memory while others write: no read is older than a write that was acknowledged before it began.

// A helper fails as a test does.
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
use leasehold_client_cache::{Client, Content, Path};

const NODES: usize = 8;
const READERS: usize = 4;
const CLIENTS: usize = 3;
const RUNS: Duration = Duration::from_secs(3);
/// After so long it is given up that enough happens.
const RUNS_MAX: Duration = Duration::from_secs(60);
const HITS_MIN: u64 = 10_000;
const WRITES_MIN: u64 = 20;

/// A node that counts up, and the highest number that has been acknowledged.
#[derive(Debug)]
struct Counter {
    path: Path,
    acknowledged: AtomicU64,
}

fn number(content: &Content) -> u64 {
    match content {
        Content::Data(Some(data)) => std::str::from_utf8(&data.value).unwrap().parse().unwrap(),
        _ => panic!("it exists: {content:?}"),
    }
}

#[test]
fn no_read_is_stale_while_threads_read_and_others_write() {
    run(|_| {});
}

#[test]
fn no_read_is_stale_while_the_leader_is_killed_and_comes_back() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    run(|server| {
        runtime.block_on(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.stop().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        });
    });
}

/// Readers and writers, while `trouble` is made again and again; after each the server is made to lead if it does not.
fn run(mut trouble: impl FnMut(&mut Server)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut server, clients) = runtime.block_on(async {
        let server = Server::start(Duration::from_secs(2)).await;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(server.client().await);
        }
        for i in 0..NODES {
            clients[0].put(&path(&format!("/counter-{i}")), value(0)).await.unwrap();
        }
        (server, clients)
    });
    let counters: Arc<[Counter]> =
        (0..NODES).map(|i| Counter { path: path(&format!("/counter-{i}")), acknowledged: AtomicU64::new(0) }).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    for (writer, client) in clients.iter().enumerate() {
        let (client, counters, is_over) = (client.clone(), Arc::clone(&counters), Arc::clone(&is_over));
        runtime.spawn(write(client, counters, is_over, writer));
    }
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let client = &clients[reader % CLIENTS];
                let (counters, is_over, runtime) = (&counters, &is_over, runtime.handle());
                scope.spawn(move || read(client, counters, is_over, runtime))
            })
            .collect();
        let began = Instant::now();
        // On a busy machine it takes longer until enough has happened to mean something.
        while began.elapsed() < RUNS || (began.elapsed() < RUNS_MAX && !is_enough(&clients, &counters)) {
            trouble(&mut server);
            let _guard = runtime.enter();
            server.lead_if_stopped();
            thread::sleep(Duration::from_millis(10));
        }
        is_over.store(true, SeqCst);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(is_enough(&clients, &counters), "too little happened: {:?}, {counters:?}", clients[0].stats());
}

fn is_enough(clients: &[Client], counters: &[Counter]) -> bool {
    let hits: u64 = clients.iter().map(|client| client.stats().hits).sum();
    let written: u64 = counters.iter().map(|counter| counter.acknowledged.load(SeqCst)).sum();
    hits > HITS_MIN && written > WRITES_MIN
}

/// Counts up the nodes that are this writer's. A write that failed may have happened: its number is not used again.
async fn write(client: Client, counters: Arc<[Counter]>, is_over: Arc<AtomicBool>, writer: usize) {
    let mut number = 0;
    while !is_over.load(SeqCst) {
        number += 1;
        for counter in counters.iter().skip(writer).step_by(CLIENTS) {
            if client.put(&counter.path, value(number)).await.is_ok() {
                counter.acknowledged.fetch_max(number, SeqCst);
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Reads from memory what is there, and else from the server.
fn read(client: &Client, counters: &[Counter], is_over: &AtomicBool, runtime: &tokio::runtime::Handle) {
    let mut last = [0; NODES];
    while !is_over.load(SeqCst) {
        for (counter, last) in counters.iter().zip(&mut last) {
            let least = counter.acknowledged.load(SeqCst).max(*last);
            let got = match client.cached(&counter.path) {
                Some(content) => number(&content),
                None => match runtime.block_on(client.read(&counter.path)) {
                    Ok(read) => number(&read.content),
                    Err(_) => continue,
                },
            };
            assert!(got >= least, "{} was read as {got}: {least} had been acknowledged or read before", counter.path);
            *last = got;
        }
    }
}
