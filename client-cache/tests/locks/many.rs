//! All locks of a client live under its volume lease, and end together, however many they are.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use leasehold_client_cache::{Client, LockGuard, LockWait, Token};

use crate::{
    common::{Server, within},
    recipes::proxy::Proxy,
    stall::{Missed, check, measured_async},
};

const LOCKS: usize = 1000;
const TERM: Duration = Duration::from_secs(5);
const MARGIN: Duration = Duration::from_millis(50);

/// How late a lease may end: up to a tick until its last renewal is in the log, and another until
/// its end is (T6). A tick is a tenth of the term, and 250 ms at most.
const TICKS: Duration = Duration::from_millis(2 * 250);

async fn lock_all(client: &Client, wait: LockWait) -> Vec<LockGuard> {
    let lock = async |number| client.lock(format!("/many/{number}")).wait(wait).await.unwrap();
    within(join_all((0..LOCKS).map(lock))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_locks_of_cut_off_client_end_with_its_lease() {
    measured_async(cut_off).await;
}

async fn cut_off() -> Result<(), Missed> {
    let server = Server::start_with_margin(TERM, MARGIN).await;
    let proxy = Proxy::before(&server).await;
    let (cut, other) = (proxy.client().await, server.client().await);
    let held = Arc::new(lock_all(&cut, LockWait::No).await);
    let tokens: Vec<Token> = held.iter().map(LockGuard::token).collect();
    let certain = held.iter().filter(|lock| lock.remaining() > TERM / 8);
    assert_eq!(certain.count(), LOCKS, "each can be asked how long it is certain");

    let waiting: Vec<_> = (0..LOCKS)
        .map(|number| {
            let (other, held) = (other.clone(), Arc::clone(&held));
            tokio::spawn(async move {
                let next = other.lock(format!("/many/{number}")).await.unwrap();
                (next, held[number].remaining(), Instant::now())
            })
        })
        .collect();
    let remaining = held.iter().map(LockGuard::remaining).min().unwrap_or_default();
    proxy.cut(true);
    let (cut_off, mut free) = (Instant::now(), Duration::ZERO);
    for (token, next) in tokens.into_iter().zip(within(join_all(waiting)).await) {
        let (next, remaining, at) = next.unwrap();
        assert_eq!(remaining, Duration::ZERO, "{} was somebody else's", next.path());
        assert!(next.token() > token);
        free = free.max(at - cut_off);
    }
    println!("{LOCKS} locks, certain for {remaining:.2?} when they were cut off, were all free after {free:.2?}");
    check("all locks are free", free, remaining, TERM + MARGIN + TICKS)
}
