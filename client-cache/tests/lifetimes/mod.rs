//! Clients, handles and calls that end early: with their runtime, by a drop, or in the middle of a
//! call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::StreamExt;
use leasehold_client_cache::{EventsError, LockError, Options, ReadError, SessionState, WatchError, WriteLeaseError};
use leasehold_protocol::command::Write;
use tokio::runtime::{Builder, Runtime};

use crate::{
    TERM,
    common::{Server, path, until, within},
    recipes::proxy::Proxy,
};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

fn exists(server: &Server, node: &str) -> bool {
    server.with_state(|state| state.node(&path(node)).is_some())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_request_whose_runtime_ended_blocks_nobody() {
    let server = Server::start(TERM).await;
    let (client, second) = (server.client().await, server.client().await);
    let other = runtime();
    server.hold_writes(|_| true);
    other.spawn({
        let client = client.clone();
        async move { client.lock("/a").await }
    });
    until(|| server.asked("Write") > 0).await;
    other.shutdown_background();
    server.hold_writes(|_| false);
    within(within(second.lock("/a")).await.unwrap().release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_lease_whose_runtime_ended_is_flushed_when_dropped() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let other = runtime();
    let lease = within(other.spawn({
        let client = client.clone();
        async move { client.write_lease("/a").await }
    }));
    let lease = lease.await.unwrap().unwrap();
    lease.set("two").await.unwrap();
    other.shutdown_background();
    drop(lease);
    let value = || server.with_state(|state| state.node(&path("/a")).map(|node| node.value.clone()));
    until(|| value().is_some_and(|value| value == "two")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_whose_runtime_ended_ends_all_calls_and_handles() {
    let server = Server::start(TERM).await;
    let home = runtime();
    let options = server.options();
    let client = home.spawn(async move { leasehold_client_cache::Client::connect(options).await });
    let client = client.await.unwrap().unwrap();
    let lock = client.lock("/a").await.unwrap();
    let registration = client.register("/b", "here").await.unwrap();
    let id = client.grant_lease(TERM).await.unwrap();
    let key_lease = client.keep_lease_alive(id).await.unwrap();
    let mut watch = client.watch("/").await.unwrap();
    let mut events = client.events();
    let queued = {
        let client = client.clone();
        tokio::spawn(async move { client.lock("/a").await })
    };
    until(|| server.with_state(|state| state.locks().count() == 2)).await;
    home.shutdown_background();
    within(lock.on_lost().cancelled()).await;
    within(registration.on_lost().cancelled()).await;
    within(key_lease.on_lost().cancelled()).await;
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert!(within(queued).await.unwrap().is_err());
    while within(watch.next()).await != Err(WatchError::Closed) {}
    while within(events.next()).await != Ok(SessionState::Closed) {}
    assert_eq!(within(events.next()).await, Err(EventsError::Ended));
    assert_eq!(within(client.get("/a")).await, Err(ReadError::Closed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_closes_without_an_answer_ends_all_handles() {
    let server = Server::start(TERM).await;
    let proxy = Proxy::before(&server).await;
    let options = Options::new([proxy.address()]).name("behind a proxy");
    let client = leasehold_client_cache::Client::connect(options.timeout(Duration::from_millis(500))).await.unwrap();
    let registration = client.register("/b", "here").await.unwrap();
    let id = client.grant_lease(TERM * 10).await.unwrap();
    let key_lease = client.keep_lease_alive(id).await.unwrap();
    proxy.cut(true);
    within(client.close()).await;
    assert!(key_lease.on_lost().is_cancelled() && registration.on_lost().is_cancelled());
    assert_eq!(*client.session_state().borrow(), SessionState::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_under_a_guard_ends_when_the_guard_is_dropped() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let lock = client.lock("/a").await.unwrap();
    let leadership = client.campaign("/e", "me").await.unwrap();
    let permit = client.semaphore("/s", 1).acquire().await.unwrap();
    let id = client.grant_lease(TERM).await.unwrap();
    let key_lease = client.keep_lease_alive(id).await.unwrap();
    let ends = [lock.on_lost(), leadership.on_lost(), permit.on_lost(), key_lease.on_lost()];
    assert!(ends.iter().all(|end| !end.is_cancelled()));
    drop((lock, leadership, permit, key_lease));
    for end in ends {
        within(end.cancelled()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resignation_that_nobody_waits_for_removes_the_proclamation() {
    let server = Server::start(TERM).await;
    let (client, next) = (server.client().await, server.client().await);
    for is_timeout in [false, true] {
        let leadership = client.campaign("/e", "me").timeout(Duration::from_millis(50));
        let leadership = leadership.await.unwrap();
        assert!(exists(&server, "/e"));
        let asked = server.asked("Write");
        server.hold_writes(|write| matches!(write, Write::Transaction(_)));
        let resigning = tokio::spawn(leadership.resign());
        until(|| server.asked("Write") > asked).await;
        if is_timeout {
            let late = within(resigning).await.unwrap().unwrap_err();
            assert!(matches!(late, LockError::Write(_)), "{late:?}");
        } else {
            resigning.abort();
        }
        assert!(exists(&server, "/e"));
        server.hold_writes(|_| false);
        until(|| !exists(&server, "/e")).await;
        drop(within(next.campaign("/e", "next")).await.unwrap());
        until(|| !exists(&server, "/e")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_when_the_client_is_closed() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let (_, mut of_dropped) = client.mirror("/a").await.unwrap().changes();
    assert_eq!(within(of_dropped.next()).await, None, "the mirror was dropped");
    let mut members = client.registry("/s").members().await.unwrap();
    let mut leaders = client.observe("/e");
    let mut nowhere = client.observe("no path");
    assert!(matches!(nowhere.next().await, Err(WatchError::Path(_))));
    assert!(matches!(StreamExt::next(&mut nowhere).await, Some(Err(WatchError::Path(_)))));
    assert_eq!(StreamExt::next(&mut nowhere).await, None);
    within(client.close()).await;
    assert_eq!(within(StreamExt::next(&mut members)).await, Some(Err(WatchError::Closed)));
    assert_eq!(within(StreamExt::next(&mut members)).await, None);
    assert_eq!(within(StreamExt::next(&mut leaders)).await, Some(Err(WatchError::Closed)));
    assert_eq!(within(StreamExt::next(&mut leaders)).await, None);
}

/// On a runtime with one thread, other tasks run only when this one lets them. The client's own
/// tasks are among them.
#[tokio::test]
async fn loop_of_reads_from_memory_lets_other_tasks_run() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    client.put("/a", "one").await.unwrap();
    client.get("/a").await.unwrap();
    let turns = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&turns);
    let other = tokio::spawn(async move {
        loop {
            counting.fetch_add(1, Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let mut reads = 0;
    while turns.load(Relaxed) < 10 {
        client.get("/a").await.unwrap();
        reads += 1;
        assert!(reads < 100_000, "{} turns of another task in {reads} reads", turns.load(Relaxed));
    }
    other.abort();
}

/// The thread stands still until the lock has ended. So the work is polled before the timer can
/// notice the end.
#[tokio::test]
async fn work_under_a_lock_that_ended_unnoticed_is_not_polled() {
    let server = Server::start(Duration::from_secs(1)).await;
    let client = server.client().await;
    let lock = client.lock("/a").await.unwrap();
    let work = async {
        while !lock.remaining().is_zero() {
            std::thread::yield_now();
        }
        tokio::task::yield_now().await;
        panic!("the work goes on without the lock");
    };
    let ended: Result<(), LockError> = lock.run(work).await;
    assert_eq!(ended, Err(LockError::Lost { path: path("/a") }));
}

/// The runtime is dropped while its thread unwinds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_whose_runtime_panics_ends_all_handles() {
    let server = Server::start(TERM).await;
    let (options, (give, given)) = (server.options(), tokio::sync::oneshot::channel());
    let home = std::thread::spawn(move || {
        Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(async {
            let client = leasehold_client_cache::Client::connect(options).await.unwrap();
            let (lock, lease) = (client.lock("/a").await.unwrap(), client.write_lease("/w").await.unwrap());
            lease.set("two").await.unwrap();
            let _ = give.send((lock, lease, client.events(), client.clone()));
            panic!("a test panics on purpose");
        })
    });
    let (lock, lease, mut events, client) = within(given).await.unwrap();
    within(lock.on_lost().cancelled()).await;
    let lost = within(lease.flush()).await.unwrap_err();
    assert!(matches!(&lost, WriteLeaseError::Lost(lost) if lost.value == "two"), "{lost:?}");
    while within(events.next()).await != Ok(SessionState::Closed) {}
    assert_eq!(within(client.events().next()).await, Err(EventsError::Ended));
    assert_eq!(within(client.get("/a")).await, Err(ReadError::Closed));
    assert!(home.join().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_whose_tasks_never_ran_ends() {
    let options = Options::new(["127.0.0.1:1"]).connect_lazily();
    let client = std::thread::spawn(|| {
        let home = Builder::new_current_thread().enable_all().build().expect("a runtime");
        home.block_on(leasehold_client_cache::Client::connect(options)).unwrap()
    });
    let client = client.join().unwrap();
    assert_eq!(*client.session_state().borrow(), SessionState::Closed);
}
