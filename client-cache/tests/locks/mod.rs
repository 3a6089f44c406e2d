//! Locks, which end with their client.

// Helpers may panic, as tests do.
#![allow(clippy::unwrap_used)]

mod cancelled;
mod costs;
mod many;
mod pending_releases;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold_client_cache::{
    Client, LockError, LockGuard, LockMode, LockWait, Refusal, Token, WriteError, WriteRefusal,
};

use crate::{
    common::{SHORT_TERM, Server, path, settings, until, within},
    recipes::proxy::Proxy,
    stall::{ALLOWANCE, Missed, measured_async},
};

const TERM: Duration = Duration::from_secs(10);

async fn shared(client: &Client, wait: LockWait) -> LockGuard {
    within(client.lock("/a").shared().wait(wait)).await.unwrap()
}

async fn exclusive(client: &Client, wait: LockWait) -> LockGuard {
    within(client.lock("/a").wait(wait)).await.unwrap()
}

/// The number of lock owners and of waiters.
async fn counts(client: &Client) -> (usize, usize) {
    let holds = client.locks("/a").await.unwrap();
    let held = holds.iter().filter(|hold| hold.token.is_some()).count();
    (held, holds.len() - held)
}

async fn until_counts(client: &Client, expected: (usize, usize)) {
    let mut checks = tokio::time::interval(Duration::from_millis(1));
    within(async {
        while counts(client).await != expected {
            checks.tick().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_held_by_one_until_it_is_given_back_and_tokens_grow() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let first = exclusive(&one, LockWait::No).await;
    assert!(first.remaining() > TERM / 2 && !first.on_lost().is_cancelled() && first.mode() == LockMode::Exclusive);
    let refused = two.lock("/a").wait(LockWait::No).await.unwrap_err();
    let LockError::Write(WriteError::Refused(Refusal::Write(WriteRefusal::Locked { owner, token, .. }))) = refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!((Some(owner), token), (one.session(), first.token()));
    let token = first.token();
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { exclusive(&two, LockWait::Forever).await }
    });
    until_counts(&one, (1, 1)).await;
    first.release().await.unwrap();
    let second = within(waiting).await.unwrap();
    assert!(second.token() > token);
    drop(second);
    until_counts(&one, (0, 0)).await;
}

/// An application may use the token as its own stop signal. The lock must not seem lost then: a
/// dropped guard of a lost lock sends no release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_whose_token_was_cancelled_still_releases_the_lock() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let guard = exclusive(&one, LockWait::No).await;
    guard.on_lost().cancel();
    assert!(!guard.on_lost().is_cancelled() && guard.remaining() > TERM / 2);
    drop(guard);
    exclusive(&two, LockWait::Forever).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_so_long_withdraws_then() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let _held = exclusive(&one, LockWait::No).await;
    let after = Duration::from_millis(50);
    let began = Instant::now();
    let refused = two.lock("/a").wait(LockWait::For(after)).await.unwrap_err();
    assert!(matches!(refused, LockError::NotGranted { after: waited, .. } if waited == after), "{refused:?}");
    assert!(began.elapsed() >= after);
    until_counts(&one, (1, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_nobody_waits_for_any_more_leaves_nothing() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let held = exclusive(&one, LockWait::No).await;
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { exclusive(&two, LockWait::Forever).await }
    });
    until_counts(&one, (1, 1)).await;
    waiting.abort();
    until_counts(&one, (1, 0)).await;
    held.release().await.unwrap();
    // Cancelled before the answer.
    let node = path("/a");
    for _ in 0..50 {
        let asked = two.lock(&node);
        let _ = tokio::time::timeout(Duration::ZERO, asked).await;
        exclusive(&two, LockWait::No).await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_owners_release_when_notified_of_waiter() {
    let server = Server::start(TERM).await;
    let clients = [server.client().await, server.client().await, server.client().await];
    let mut readers = vec![shared(&clients[0], LockWait::No).await, shared(&clients[1], LockWait::No).await];
    assert!(readers.iter().all(|reader| !reader.is_contended()));
    let writer = tokio::spawn({
        let client = clients[2].clone();
        async move { exclusive(&client, LockWait::Forever).await }
    });
    for mut reader in readers.drain(..) {
        within(reader.contended()).await;
        assert!(reader.is_contended());
        reader.release().await.unwrap();
    }
    assert_eq!(within(writer).await.unwrap().mode(), LockMode::Exclusive);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_waits_to_be_alone_and_second_upgrade_is_refused() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let (mut first, mut second) = (shared(&one, LockWait::No).await, shared(&two, LockWait::No).await);
    let before = first.token();
    let in_vain = first.upgrade(LockWait::For(Duration::from_millis(30))).await.unwrap_err();
    assert!(matches!(in_vain, LockError::NotGranted { .. }), "{in_vain:?}");
    assert_eq!((first.token(), first.mode()), (before, LockMode::Shared), "it is held as before");
    let upgrading = tokio::spawn(async move {
        let token = within(first.upgrade(LockWait::Forever)).await.unwrap();
        (first, token)
    });
    within(second.contended()).await;
    let refused = second.upgrade(LockWait::Forever).await.unwrap_err();
    let LockError::Write(WriteError::Refused(Refusal::Write(WriteRefusal::UpgradePending { .. }))) = refused else {
        panic!("{refused:?}")
    };
    second.release().await.unwrap();
    let (mut first, token) = within(upgrading).await.unwrap();
    assert!(token > before && first.token() == token && first.mode() == LockMode::Exclusive);
    let waiting = tokio::spawn(async move { shared(&two, LockWait::Forever).await });
    within(first.contended()).await;
    first.downgrade().await.unwrap();
    let second = within(waiting).await.unwrap();
    assert_eq!((first.mode(), first.token(), second.mode()), (LockMode::Shared, token, LockMode::Shared));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_ends_by_own_clock_before_another_session_gets_it() {
    measured_async(cut_off_a_holder).await;
}

/// The server serves another client all the time, so that it could get the node too early. The
/// lease lasts for the machine's allowance after its holder must know that it has ended.
async fn cut_off_a_holder() -> Result<(), Missed> {
    let server = Server::start_with_margin(SHORT_TERM, ALLOWANCE).await;
    let proxy = Proxy::before(&server).await;
    let (one, two) = (proxy.client().await, server.client().await);
    let held = Arc::new(exclusive(&one, LockWait::No).await);
    let (over, token) = (held.on_lost(), held.token());
    let next = tokio::spawn({
        let (two, held) = (two.clone(), Arc::clone(&held));
        async move { (exclusive(&two, LockWait::Forever).await, held.remaining(), held.on_lost().is_cancelled()) }
    });
    until_counts(&two, (1, 1)).await;
    assert!(held.remaining() > Duration::ZERO && !over.is_cancelled());
    proxy.cut(true);
    let (next, remaining, was_told) = within(next).await.unwrap();
    assert_eq!(remaining, Duration::ZERO, "two have it at once");
    if !was_told {
        return Err(Missed("a holder was not told before another had the node".to_owned()));
    }
    assert_eq!(held.token(), Token(0), "whoever asks is told too");
    proxy.cut(false);
    assert!(next.token() > token);
    let held = Arc::into_inner(held).unwrap();
    assert!(matches!(held.release().await, Err(LockError::Lost { .. })));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_outlives_a_change_of_leader() {
    let mut server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let held = exclusive(&one, LockWait::No).await;
    let waiting = tokio::spawn(async move { exclusive(&two, LockWait::Forever).await });
    until_counts(&one, (1, 1)).await;
    server.stop().await;
    server.lead();
    until_counts(&one, (1, 1)).await;
    assert!(!held.on_lost().is_cancelled());
    held.release().await.unwrap();
    within(waiting).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_in_unknown_volume_uses_lease_of_that_volume() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    one.get("/x").await.unwrap();
    assert!(one.volume_remaining(&path("/x")) > Duration::ZERO, "it has a lease on the root");
    two.admin().create_volume("/a").settings(settings(TERM * 2)).await.unwrap();
    let held = exclusive(&one, LockWait::No).await;
    assert!(held.remaining() > TERM, "{:?}", held.remaining());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_closes_gives_all_its_holds_back() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let held = exclusive(&one, LockWait::No).await;
    let waiting = tokio::spawn(async move { exclusive(&two, LockWait::Forever).await });
    let other = server.client().await;
    until_counts(&other, (1, 1)).await;
    one.close().await;
    assert!(held.on_lost().is_cancelled());
    until(|| held.remaining().is_zero()).await;
    drop(within(waiting).await.unwrap());
    let refused = one.lock("/a").wait(LockWait::No).await.unwrap_err();
    assert!(matches!(refused, LockError::Write(WriteError::SessionEnded { .. })), "{refused:?}");
}
