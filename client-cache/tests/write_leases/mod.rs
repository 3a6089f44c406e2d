//! Write leases: a value in this client's memory, flushed when another client needs it.

// Helpers may panic, as tests do.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use futures::future::join_all;
use leasehold_client_cache::{
    Client, LockError, LockWait, Refusal, Value, WriteError, WriteLease, WriteLeaseError, WriteRefusal,
};

use crate::common::{SHORT_TERM, Server, path, until, within};

const TERM: Duration = Duration::from_secs(10);

async fn own(client: &Client) -> WriteLease {
    within(client.write_lease("/a").wait(LockWait::For(TERM * 3))).await.unwrap()
}

async fn found(client: &Client) -> Value {
    let entry = within(client.get("/a")).await.unwrap();
    entry.map(|entry| entry.value.clone()).unwrap_or_default()
}

async fn set(lease: &WriteLease, text: &'static str) {
    within(lease.set(text)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_set_is_in_memory_until_somebody_reads_it() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let lease = own(&one).await;
    assert_eq!(within(lease.get()).await.unwrap(), "", "it was made");
    let writes = server.asked("Write");
    for text in ["one", "two", "three"] {
        set(&lease, text).await;
        assert_eq!(within(lease.get()).await.unwrap(), text);
    }
    assert!(lease.is_dirty());
    assert_eq!(server.asked("Write"), writes, "nobody was asked");
    assert_eq!(found(&two).await, "three");
    assert_eq!(server.asked("Write"), writes + 1, "only the last was flushed");
    // The servers answer the reader and the owner on two connections: either answer can be first.
    until(|| !lease.is_dirty()).await;
    set(&lease, "four").await;
    assert_eq!(found(&two).await, "four");
    assert_eq!(found(&one).await, "four", "its own client reads it like any other");
    assert!(lease.remaining() > Duration::ZERO, "it was held all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_lease_with_longest_timeout_is_granted() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let lease = within(client.write_lease("/a").timeout(Duration::MAX)).await.unwrap();
    within(lease.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_with_longest_timeout_is_answered() {
    let server = Server::start(TERM).await;
    let client = within(Client::connect(server.options().timeout(Duration::MAX))).await.unwrap();
    assert_eq!(within(client.locks("/a")).await.unwrap(), []);
    let info = within(leasehold_client_cache::server_status(server.address(), Duration::MAX)).await.unwrap().info;
    assert_eq!(info.leader, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_flushed_is_there_and_the_next_one_goes_on_from_it() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let lease = own(&one).await;
    set(&lease, "one").await;
    let stat = within(lease.flush()).await.unwrap().expect("the server said something");
    assert_eq!(stat.value_len, 3);
    assert!(!lease.is_dirty());
    set(&lease, "two").await;
    let token = lease.token();
    within(lease.release()).await.unwrap();
    let next = own(&two).await;
    assert_eq!(within(next.get()).await.unwrap(), "two");
    assert!(next.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_dropped_is_flushed_and_given_back() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let lease = own(&one).await;
    set(&lease, "one").await;
    drop(lease);
    let next = own(&two).await;
    assert_eq!(within(next.get()).await.unwrap(), "one");
    drop(next);
    drop(own(&one).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_dropped_with_the_last_of_its_client_is_flushed_too() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let lease = own(&one).await;
    set(&lease, "one").await;
    drop(one);
    drop(lease);
    let next = own(&two).await;
    assert_eq!(within(next.get()).await.unwrap(), "one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_dropped_while_it_is_asked_for_is_given_back() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    for _ in 0..20 {
        let asked = tokio::spawn({
            let one = one.clone();
            async move { one.write_lease("/a").await }
        });
        tokio::task::yield_now().await;
        asked.abort();
        let _ = asked.await;
        within(own(&two).await.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_says_that_it_has_failed_whoever_was_told_of_the_loss() {
    let mut server = Server::start(SHORT_TERM).await;
    let one = server.client().await;
    let lease = own(&one).await;
    set(&lease, "one").await;
    server.stop().await;
    // Whichever call learns of the loss first, the flush fails.
    let told = tokio::time::timeout(SHORT_TERM * 2, lease.lost_change());
    let (flushed, told) = tokio::join!(within(lease.flush()), told);
    assert!(told.is_err() || told.is_ok_and(|lost| lost.value == "one"));
    assert!(matches!(&flushed, Err(WriteLeaseError::Lost(lost)) if lost.value == "one"), "{flushed:?}");
}

/// Closing the client ends the lease, and takes a while with many copies. The flush starts a little
/// later in each attempt, so that it meets different parts of the close.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn flush_confirms_nothing_that_ends_with_the_lease() {
    const COPIES: usize = 2_000;
    let (mut flushed_first, mut lost) = (0, 0);
    for attempt in 0..24 {
        let server = Server::start(TERM).await;
        let client = server.client().await;
        let paths: Vec<_> = (0..COPIES).map(|number| path(&format!("/n/{number}"))).collect();
        join_all(paths.iter().map(|path| client.get(path).into_future()))
            .await
            .into_iter()
            .for_each(|got| drop(got.unwrap()));
        let lease = Arc::new(own(&client).await);
        within(lease.flush()).await.unwrap();
        set(&lease, "precious").await;
        let at_once = Arc::new(Barrier::new(2));
        let runtime = tokio::runtime::Handle::current();
        let closing = std::thread::spawn({
            let (client, at_once, runtime) = (client.clone(), Arc::clone(&at_once), runtime.clone());
            move || {
                at_once.wait();
                runtime.block_on(client.close());
            }
        });
        let flushing = std::thread::spawn({
            let lease = Arc::clone(&lease);
            move || {
                at_once.wait();
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(100) * attempt {}
                runtime.block_on(lease.flush())
            }
        });
        closing.join().unwrap();
        let flushed = flushing.join().unwrap();
        let is_there = found(&server.client().await).await == "precious";
        match &flushed {
            Ok(_) => assert!(is_there, "attempt {attempt}: confirmed, and lost"),
            Err(WriteLeaseError::Lost(change)) => assert_eq!(change.value, "precious"),
            Err(error) => assert!(is_there, "attempt {attempt}: {error}, and what is lost is not handed back"),
        }
        flushed_first += u32::from(flushed.is_ok());
        lost += u32::from(flushed.is_err());
    }
    assert!(lost > 0, "{flushed_first} flushes came first, {lost} did not: expected some of these");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flush_fails_after_loss_was_reported_to_another_call() {
    let mut server = Server::start(SHORT_TERM).await;
    let client = server.client().await;
    let lease = own(&client).await;
    set(&lease, "one").await;
    server.stop().await;
    assert_eq!(within(lease.lost_change()).await.value, "one");
    let flushed = within(lease.flush()).await;
    assert!(matches!(flushed, Err(WriteLeaseError::Lock(LockError::Lost { .. }))), "{flushed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_waits_for_what_is_flushed_and_comes_after_it() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let lease = own(&one).await;
    set(&lease, "one").await;
    let refused = within(two.put("/a", "other's").if_absent()).await.unwrap_err();
    assert!(matches!(refused, WriteError::Refused(Refusal::Write(WriteRefusal::Exists { .. }))), "{refused:?}");
    let written = within(two.put("/a", "other's")).await.unwrap();
    assert_eq!(written.stat.unwrap().version, 3, "it was made, flushed, and then this");
    assert_eq!(within(lease.get()).await.unwrap(), "other's");
    set(&lease, "two").await;
    assert_eq!(found(&two).await, "two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_flushed_is_handed_back_once() {
    let mut server = Server::start(SHORT_TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let lease = own(&one).await;
    set(&lease, "one").await;
    within(lease.flush()).await.unwrap();
    set(&lease, "two").await;
    server.stop().await;
    let lost = within(lease.lost_change()).await;
    assert_eq!((lost.value, lost.path), (Value::from("two"), path("/a")));
    within(lease.on_lost().cancelled_owned()).await;
    let error = within(lease.set("three")).await.unwrap_err();
    assert!(matches!(error, WriteLeaseError::Lock(LockError::Lost { .. })), "{error:?}");
    server.lead();
    let next = own(&two).await;
    // On a slow machine, the value may have been sent just before the server stopped.
    let found = within(next.get()).await.unwrap();
    assert!(found == "one" || (lost.may_be_written && found == "two"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_tells_of_what_was_lost_before() {
    let mut server = Server::start(SHORT_TERM).await;
    let one = server.client().await;
    let lease = own(&one).await;
    set(&lease, "one").await;
    server.stop().await;
    within(lease.on_lost().cancelled_owned()).await;
    let error = within(lease.set("two")).await.unwrap_err();
    assert!(matches!(&error, WriteLeaseError::Lost(lost) if lost.value == "one"), "{error:?}");
    assert_eq!(error.to_string(), "what was set at /a under a write lease is lost: 3 bytes");
    let error = within(lease.release()).await.unwrap_err();
    assert!(matches!(error, WriteLeaseError::Lock(LockError::Lost { .. })), "once: {error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_set_outlives_a_change_of_leader() {
    let mut server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let lease = own(&one).await;
    set(&lease, "one").await;
    server.stop().await;
    server.lead();
    assert_eq!(found(&two).await, "one");
    set(&lease, "two").await;
    within(lease.release()).await.unwrap();
    assert_eq!(found(&two).await, "two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_lease_refuses_attached_node_and_oversized_value() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let lease = own(&one).await;
    let error = within(lease.set(vec![0; 17 << 20])).await.unwrap_err();
    assert!(matches!(error, WriteLeaseError::Write(WriteError::Limit { .. })), "{error:?}");
    within(lease.release()).await.unwrap();
    within(two.put("/a", "mine").attach(leasehold_client_cache::Attach::Session)).await.unwrap();
    let error = within(one.write_lease("/a")).await.unwrap_err();
    let is_leased = |error: &WriteLeaseError| {
        matches!(error, WriteLeaseError::Write(WriteError::Refused(Refusal::Write(WriteRefusal::Attached { .. }))))
    };
    assert!(is_leased(&error), "{error:?}");
    let mut checks = tokio::time::interval(Duration::from_millis(1));
    within(async {
        while !two.locks("/a").await.unwrap().is_empty() {
            checks.tick().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_flush_returns_value_with_reason_and_lease_stays() {
    let server = Server::start(TERM).await;
    let one = server.client().await;
    let lease = own(&one).await;
    set(&lease, "one").await;
    within(lease.flush()).await.unwrap();
    let large = vec![0; (1 << 20) + 1];
    within(lease.set(large.clone())).await.unwrap();
    let error = within(lease.flush()).await.unwrap_err();
    let WriteLeaseError::Lost(lost) = &error else { panic!("{error:?}") };
    assert!(lost.value == large && matches!(lost.refusal.as_deref(), Some(Refusal::Limit(_))));
    let text = error.to_string();
    assert!(text.ends_with("1048577 bytes, because value: 1048577 bytes exceed the limit of 1048576"), "{text}");
    assert_eq!(within(lease.get()).await.unwrap(), "one", "what was flushed last");
    set(&lease, "two").await;
    within(lease.release()).await.unwrap();
    assert_eq!(found(&one).await, "two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_that_many_add_to_under_write_leases_lose_nothing() {
    let server = Server::start(TERM).await;
    let mut adders = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = server.client().await;
        adders.spawn(async move {
            for _ in 0..25 {
                let lease = own(&client).await;
                for _ in 0..4 {
                    let text = String::from_utf8(within(lease.get()).await.unwrap().to_vec()).unwrap();
                    let next = text.parse::<u64>().unwrap_or_default() + 1;
                    within(lease.set(next.to_string())).await.unwrap();
                }
                within(lease.release()).await.unwrap();
            }
        });
    }
    let reader = server.client().await;
    let mut last = 0;
    while !adders.is_empty() {
        let text = String::from_utf8(found(&reader).await.to_vec()).unwrap();
        let now = text.parse::<u64>().unwrap_or_default();
        assert!(last <= now, "{last}, then {now}");
        last = now;
        while let Some(ended) = adders.try_join_next() {
            ended.unwrap();
        }
    }
    assert_eq!(found(&reader).await, "400");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_stays_with_server_while_its_read_is_blocked_long() {
    let term = Duration::from_secs(3);
    let server = Server::start(term).await;
    let reader = server.client().await;
    assert_eq!(found(&reader).await, "");
    let options = server.options();
    let gone = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let lease = runtime.block_on(async {
            let client = Client::connect(options).await.unwrap();
            let lease = own(&client).await;
            set(&lease, "one").await;
            lease
        });
        // Without a message, like a process that is killed.
        runtime.shutdown_background();
        lease
    });
    let gone = gone.await.unwrap();
    let registered = server.asked("Register");
    let began = Instant::now();
    assert_eq!(found(&reader).await, "", "what was not flushed is gone");
    let (waited, silence) = (began.elapsed(), term / 3);
    assert!(waited > silence * 2, "it waited for {waited:?} only");
    assert_eq!((server.asked("Register"), server.asked("AwaitRead")), (registered, 1));
    drop(gone);
}
