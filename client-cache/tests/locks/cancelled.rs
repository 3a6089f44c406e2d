//! A call that returned an error, or was dropped, is cancelled: its request does not happen later.

use std::time::Duration;

use futures::future::join_all;
use leasehold_client_cache::{Client, LockError, LockGuard, LockMode, LockWait, ReadError, WriteError};
use leasehold_protocol::{command::Write, state::State};

use super::{TERM, exclusive, shared};
use crate::common::{SHORT_TERM, Server, path, until, within};

async fn until_async(mut holds: impl AsyncFnMut() -> bool) {
    let mut checks = tokio::time::interval(Duration::from_millis(1));
    within(async {
        while !holds().await {
            checks.tick().await;
        }
    })
    .await;
}

/// A client with a short timeout, but longer than a stall of the machine.
async fn hasty(server: &Server) -> Client {
    within(Client::connect(server.options().timeout(Duration::from_secs(2)))).await.unwrap()
}

/// Takes a shared lock without waiting: there is no exclusive owner and no waiter, and this
/// client's pending releases have ended.
async fn shares(client: &Client) {
    within(shared(client, LockWait::No).await.release()).await.unwrap();
}

/// Delays the answers to an upgrade and to its cancellation until the upgrade has timed out.
async fn upgrade_times_out(server: &Server, hold: &mut LockGuard, wait: LockWait) {
    let asked = server.asked("Write");
    server.hold_writes(|write| matches!(write, Write::ChangeLockMode { .. }));
    let error = hold.upgrade(wait).await.unwrap_err();
    match wait {
        LockWait::For(after) => assert_eq!(error, LockError::NotGranted { path: path("/a"), after }),
        _ => assert!(matches!(error, LockError::Write(WriteError::TimedOut { .. })), "{wait:?}: {error:?}"),
    }
    until(|| server.asked("Write") >= asked + 2).await;
    server.hold_writes(|_| false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_that_timed_out_unanswered_is_withdrawn() {
    let server = Server::start(TERM).await;
    let (client, other) = (hasty(&server).await, server.client().await);
    let mut hold = shared(&client, LockWait::No).await;
    for wait in [LockWait::No, LockWait::For(Duration::from_millis(200)), LockWait::Forever] {
        upgrade_times_out(&server, &mut hold, wait).await;
        shares(&client).await;
        shares(&other).await;
        assert_eq!(hold.mode(), LockMode::Shared);
    }
    within(hold.upgrade(LockWait::No)).await.unwrap();
    assert_eq!(hold.mode(), LockMode::Exclusive);
}

/// The client has sent as many writes as may be unanswered, so the upgrade waits behind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_that_was_not_sent_in_time_is_not_granted() {
    // The holder keeps the others for flushes.
    const SENT: u64 = State::ANSWERS_MAX - 32;
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let mut hold = shared(&client, LockWait::No).await;
    let before = server.asked("Write");
    server.hold_writes(|write| matches!(write, Write::Put { .. }));
    let put = |number: u64| {
        let client = client.clone();
        async move { client.put(format!("/n/{number}"), "").await }
    };
    let puts = tokio::spawn(join_all((0..=SENT).map(put).collect::<Vec<_>>()));
    until(|| server.asked("Write") == before + SENT).await;
    let after = Duration::from_millis(200);
    let error = within(hold.upgrade(LockWait::For(after))).await.unwrap_err();
    assert_eq!(error, LockError::NotGranted { path: path("/a"), after });
    assert_eq!((server.asked("Write"), hold.mode()), (before + SENT, LockMode::Shared), "it was not sent");
    server.hold_writes(|_| false);
    assert!(within(puts).await.unwrap().iter().all(Result::is_ok));
    within(hold.upgrade(LockWait::No)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_can_be_tried_again_as_soon_as_it_timed_out() {
    let server = Server::start(TERM).await;
    let client = hasty(&server).await;
    let mut hold = shared(&client, LockWait::No).await;
    for _ in 0..2 {
        upgrade_times_out(&server, &mut hold, LockWait::Forever).await;
        within(hold.upgrade(LockWait::No)).await.unwrap();
        // An exclusive lock stays exclusive, even if no server answers.
        server.hold_writes(|write| matches!(write, Write::ChangeLockMode { .. }));
        assert_eq!(within(hold.upgrade(LockWait::No)).await.unwrap(), hold.token());
        server.hold_writes(|_| false);
        assert_eq!(hold.mode(), LockMode::Exclusive);
        within(hold.downgrade()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_that_timed_out_beside_a_reader_is_withdrawn() {
    let server = Server::start(TERM).await;
    let (client, other, third) = (hasty(&server).await, server.client().await, server.client().await);
    let mut hold = shared(&client, LockWait::No).await;
    let reader = shared(&other, LockWait::No).await;
    upgrade_times_out(&server, &mut hold, LockWait::For(Duration::from_millis(200))).await;
    // A waiting upgrade would be in the way.
    shares(&client).await;
    shares(&third).await;
    within(reader.release()).await.unwrap();
    shares(&third).await;
    assert_eq!(hold.mode(), LockMode::Shared);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downgrade_that_nobody_answered_is_done_when_somebody_does() {
    let mut server = Server::start(TERM).await;
    let (client, other) = (hasty(&server).await, server.client().await);
    let mut hold = exclusive(&client, LockWait::No).await;
    server.stop().await;
    let error = within(hold.downgrade()).await.unwrap_err();
    assert!(matches!(error, LockError::Write(WriteError::TimedOut { .. })), "{error:?}");
    assert_eq!(hold.mode(), LockMode::Shared);
    server.lead();
    within(shared(&other, LockWait::Forever).await.release()).await.unwrap();
    within(hold.upgrade(LockWait::No)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_that_timed_out_unsent_are_never_sent() {
    let mut server = Server::start(SHORT_TERM).await;
    let client = hasty(&server).await;
    within(client.get("/x")).await.unwrap();
    server.stop().await;
    // The client knows that no server can be reached.
    let is_alone = async || matches!(client.get("/y").await, Err(ReadError::Unavailable { .. }));
    until_async(is_alone).await;
    let asked = server.asked("Write");
    let at = path("/a");
    for refused in
        join_all((0..100).map(|_| client.lock(&at).wait(LockWait::For(Duration::from_millis(100))).into_future())).await
    {
        let error = refused.unwrap_err();
        assert!(matches!(error, LockError::Write(WriteError::Unavailable { .. }) | LockError::NotGranted { .. }));
    }
    server.lead();
    // The answer comes after all earlier requests were sent.
    drop(within(client.lock(&at).timeout(TERM)).await.unwrap());
    assert!(server.asked("Write") < asked + 50, "this lock and its end, and none of the hundred");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_dropped_with_a_lock_unanswered_ends() {
    let server = Server::start(SHORT_TERM).await;
    let (client, other) = (hasty(&server).await, server.client().await);
    let registered = within(client.register("/s", "here")).await.unwrap();
    let asked = server.asked("Write");
    server.hold_writes(|write| matches!(write, Write::Lock { .. }));
    client.lock("/a").await.unwrap_err();
    assert!(server.asked("Write") > asked, "it was sent");
    drop((registered, client));
    // Its lease ends by itself, and the node with it, while the request is still unanswered.
    until_async(async || other.get("/s").await.unwrap().is_none()).await;
    server.hold_writes(|_| false);
    drop(within(other.lock("/a")).await.unwrap());
}
