//! What a client has given up is not in its own way when it asks again, though nobody has waited for the servers to know.

use std::time::Duration;

use leasehold_client_cache::{Client, Hold, LockError, LockOptions, Wait};
use tokio::task::JoinHandle;

use super::{TERM, exclusive, lock};
use crate::{
    common::{Server, path, until, within},
    recipes::until_children,
};

/// So often that what comes in any order comes in each.
const ROUNDS: usize = 20;

fn tries(client: &Client) -> JoinHandle<Result<Hold, LockError>> {
    let client = client.clone();
    tokio::spawn(async move { client.lock(&path("/a"), exclusive(Wait::No)).await })
}

/// The client tries to have the node, while what it has given up before is still on its way.
async fn has_it_next(server: &Server, client: &Client, give_up: impl AsyncFnOnce()) {
    let asked = server.asked("Write");
    server.hold_writes(true);
    give_up().await;
    let trying = tries(client);
    until(|| server.asked("Write") > asked).await;
    server.hold_writes(false);
    within(within(trying).await.unwrap().unwrap().release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_dropped_is_gone_before_its_client_asks_again() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    for _ in 0..ROUNDS {
        let hold = lock(&client, exclusive(Wait::No)).await;
        has_it_next(&server, &client, async || drop(hold)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_given_up_unanswered_is_gone_before_its_client_asks_again() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let options = exclusive(Wait::For(Duration::from_millis(5)));
    for _ in 0..ROUNDS {
        has_it_next(&server, &client, async || {
            let refused = client.lock(&path("/a"), options).await.unwrap_err();
            assert!(matches!(refused, LockError::NotGranted { .. }), "{refused:?}");
        })
        .await;
        has_it_next(&server, &client, async || {
            let asked = server.asked("Write");
            let dropped = tokio::spawn({
                let client = client.clone();
                async move { client.lock(&path("/a"), exclusive(Wait::Forever)).await }
            });
            until(|| server.asked("Write") > asked).await;
            dropped.abort();
            assert!(dropped.await.unwrap_err().is_cancelled());
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_again_waits_for_what_it_has_given_up_no_longer_than_for_anything() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let hold = lock(&client, exclusive(Wait::No)).await;
    server.hold_writes(true);
    drop(hold);
    let after = Duration::from_millis(20);
    let refused = client.lock(&path("/a"), exclusive(Wait::For(after))).await.unwrap_err();
    assert!(matches!(refused, LockError::NotGranted { after: waited, .. } if waited == after), "{refused:?}");
    let options = LockOptions { timeout: Some(after), ..exclusive(Wait::Forever) };
    let refused = client.lock(&path("/a"), options).await.unwrap_err();
    assert!(matches!(refused, LockError::TimedOut { after: waited, .. } if waited == after), "{refused:?}");
    // Elsewhere nothing is in the way.
    let elsewhere = client.clone();
    let waiting = tokio::spawn(async move { elsewhere.lock(&path("/b"), exclusive(Wait::No)).await });
    until(|| server.asked("Write") > 2).await;
    server.hold_writes(false);
    within(waiting).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_lease_that_was_dropped_is_flushed_and_gone_before_its_client_asks_again() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    for round in 0..ROUNDS {
        let lease = within(client.write_lease(&path("/a"), exclusive(Wait::No))).await.unwrap();
        let text = round.to_string();
        within(lease.set(text.clone())).await.unwrap();
        drop(lease);
        let lease = within(client.write_lease(&path("/a"), exclusive(Wait::No))).await.unwrap();
        assert_eq!(within(lease.get()).await.unwrap(), *text);
        within(lease.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_that_was_dropped_can_be_tried_for_at_once() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let semaphore = client.semaphore(&path("/s"), 1);
    for _ in 0..ROUNDS {
        let permit = within(semaphore.try_acquire()).await.unwrap();
        drop(permit.expect("nobody else has it"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_a_barrier_and_comes_again_counts_once() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    for round in 0..ROUNDS {
        let at = format!("/barrier{round}");
        let comes = |client: &Client| {
            let barrier = client.barrier(&path(&at), 2);
            tokio::spawn(async move { barrier.wait().await })
        };
        let first = comes(&one);
        until_children(&two, &at, 1).await;
        let asked = server.asked("Write");
        server.hold_writes(true);
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let again = comes(&one);
        until(|| server.asked("Write") > asked).await;
        server.hold_writes(false);
        until_children(&two, &at, 1).await;
        assert!(!again.is_finished(), "it was counted twice");
        within(comes(&two)).await.unwrap().unwrap();
        within(again).await.unwrap().unwrap();
    }
}
