//! Pending releases do not block their own client, even if nobody waits for the servers' answer.

use std::time::Duration;

use leasehold_client_cache::{Client, Leadership, LockError, LockGuard, LockMode, LockWait, recipes::Permit};
use leasehold_protocol::command::Write;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{TERM, exclusive, shared, until_counts};
use crate::{
    common::{Server, until, within},
    recipes::{proxy::Proxy, until_children},
};

/// Often enough that requests arrive in each order.
const ROUNDS: usize = 20;

fn tries(client: &Client) -> JoinHandle<Result<LockGuard, LockError>> {
    let client = client.clone();
    tokio::spawn(async move { client.lock("/a").wait(LockWait::No).await })
}

/// The client tries to lock the node while its earlier release is still on its way.
async fn has_it_next(server: &Server, client: &Client, give_up: impl AsyncFnOnce()) {
    let asked = server.asked("Write");
    server.hold_writes(|_| true);
    give_up().await;
    let trying = tries(client);
    until(|| server.asked("Write") > asked).await;
    server.hold_writes(|_| false);
    within(within(trying).await.unwrap().unwrap().release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_dropped_is_gone_before_its_client_asks_again() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    for _ in 0..ROUNDS {
        let hold = exclusive(&client, LockWait::No).await;
        has_it_next(&server, &client, async || drop(hold)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_lock_request_ends_before_client_asks_again() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    for _ in 0..ROUNDS {
        has_it_next(&server, &client, async || {
            let refused = client.lock("/a").wait(LockWait::For(Duration::from_millis(5))).await.unwrap_err();
            assert!(matches!(refused, LockError::NotGranted { .. }), "{refused:?}");
        })
        .await;
        has_it_next(&server, &client, async || {
            let asked = server.asked("Write");
            let dropped = tokio::spawn({
                let client = client.clone();
                async move { client.lock("/a").await }
            });
            until(|| server.asked("Write") > asked).await;
            dropped.abort();
            assert!(dropped.await.unwrap_err().is_cancelled());
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_lock_waits_for_own_pending_release_up_to_timeout() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let hold = exclusive(&client, LockWait::No).await;
    server.hold_writes(|write| matches!(write, Write::Unlock { .. }));
    drop(hold);
    let after = Duration::from_millis(20);
    let refused = client.lock("/a").wait(LockWait::No).timeout(after).await.unwrap_err();
    assert!(matches!(refused, LockError::TimedOut { after: waited, .. } if waited == after), "{refused:?}");
    let _elsewhere = within(client.lock("/b").wait(LockWait::No)).await.unwrap();
    // A request that waits is queued by the server.
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { exclusive(&client, LockWait::Forever).await }
    });
    until_counts(&client, (1, 1)).await;
    server.hold_writes(|_| false);
    drop(within(waiting).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wait_is_too_long() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let mut hold = shared(&client, LockWait::For(Duration::MAX)).await;
    within(hold.upgrade(LockWait::For(Duration::MAX))).await.unwrap();
    assert_eq!(hold.mode(), LockMode::Exclusive);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_that_is_given_up_is_in_nobody_s_way() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let mut first = shared(&one, LockWait::No).await;
    let mut second = shared(&two, LockWait::No).await;
    {
        let mut upgrading = std::pin::pin!(first.upgrade(LockWait::Forever));
        tokio::select! {
            granted = &mut upgrading => panic!("not beside another: {granted:?}"),
            () = within(second.contended()) => {}
        }
    }
    // Only one upgrade can wait. This try waits until the first one is cancelled.
    shared(&one, LockWait::No).await.release().await.unwrap();
    let upgraded = tokio::spawn(async move { second.upgrade(LockWait::Forever).await.map(|_| second) });
    within(first.contended()).await;
    assert_eq!(first.mode(), LockMode::Shared);
    within(first.release()).await.unwrap();
    assert_eq!(within(upgraded).await.unwrap().unwrap().mode(), LockMode::Exclusive);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_write_lease_is_flushed_before_client_asks_again() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    for round in 0..ROUNDS {
        let lease = within(client.write_lease("/a").wait(LockWait::No)).await.unwrap();
        let text = round.to_string();
        within(lease.set(text.clone())).await.unwrap();
        drop(lease);
        let lease = within(client.write_lease("/a").wait(LockWait::No)).await.unwrap();
        assert_eq!(within(lease.get()).await.unwrap(), *text);
        within(lease.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_that_was_dropped_can_be_tried_for_at_once() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let semaphore = client.semaphore("/s", 1);
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
            let barrier = client.barrier(&at, 2);
            tokio::spawn(async move { barrier.wait().await })
        };
        let first = comes(&one);
        until_children(&two, &at, 1).await;
        server.hold_writes(|write| matches!(write, Write::Delete { .. }));
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let again = comes(&one);
        // More than enough time to join twice.
        for _ in 0..10 {
            two.locks(&at).await.unwrap();
        }
        assert!(!again.is_finished(), "it was counted twice");
        server.hold_writes(|_| false);
        within(comes(&two)).await.unwrap().unwrap();
        within(again).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_dropped_can_campaign_at_once() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    for _ in 0..ROUNDS {
        drop(within(client.campaign("/e", "me").wait(LockWait::No)).await.unwrap());
    }
}

/// A client whose locks are lost by its own clock, while the servers still have its lease and renew
/// it.
async fn stood_still<T>(proxy: &Proxy, held: T, over: impl Fn(&T) -> CancellationToken) -> T {
    proxy.cut(true);
    within(over(&held).cancelled()).await;
    proxy.cut(false);
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_permit_or_leadership_blocks_nobody_under_live_lease() {
    let server = Server::start_with_margin(Duration::from_secs(1), TERM * 6).await;
    let proxy = Proxy::before(&server).await;
    let (client, other) = (proxy.client().await, server.client().await);
    let permit = within(client.semaphore("/s", 1).acquire()).await.unwrap();
    let _permit = stood_still(&proxy, permit, Permit::on_lost).await;
    drop(within(other.semaphore("/s", 1).acquire()).await.unwrap());
    let leader = within(client.campaign("/e", "me")).await.unwrap();
    drop(stood_still(&proxy, leader, Leadership::on_lost).await);
    let mut checks = tokio::time::interval(Duration::from_millis(1));
    within(async {
        while other.leader("/e").await.unwrap().is_some() {
            checks.tick().await;
        }
    })
    .await;
}
