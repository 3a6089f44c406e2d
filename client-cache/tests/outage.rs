//! Outages of the servers, as users see them.

mod common;

use std::time::{Duration, Instant};

use common::{SHORT_TERM, Server, path, value, within};
use leasehold_client_cache::{
    Client, ConnectError, NodePath, Options, ReadError, ReadSource, SessionState, Unavailable, WriteError,
};
use tokio::net::TcpListener;

const TERM: Duration = SHORT_TERM;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_reads_last_until_lease_end_then_jeopardy_once() {
    let mut server = Server::start(TERM).await;
    let client = server.client().await;
    let (node, mut events) = (path("/a"), client.events());
    client.put(&node, "one").await.unwrap();
    client.get(&node).await.unwrap();
    server.stop().await;
    // Cached reads continue without a server, and end by this client's own clock: not earlier and
    // not later.
    let before = Instant::now();
    let certain = client.volume_remaining(&node);
    let began = Instant::now();
    assert!(Duration::ZERO < certain && certain <= TERM, "{certain:?}");
    let (mut hits, mut last_hit) = (0_u32, Duration::ZERO);
    while client.cached(&node).is_some() {
        (hits, last_hit) = (hits + 1, began.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let ended = before.elapsed();
    assert!(hits > 0 && ended >= certain, "{hits} reads from memory until {ended:?}: certain were {certain:?}");
    assert!(last_hit <= certain, "read from memory {last_hit:?} later: certain were {certain:?}");
    let jeopardy = SessionState::Jeopardy { volumes: vec![NodePath::root()] };
    assert_eq!(within(events.next()).await, Ok(jeopardy.clone()));
    assert_eq!(*client.session_state().borrow(), jeopardy);
    assert_eq!(client.cached(&node), None);
    let timeout = Duration::from_millis(50);
    let error = client.read(&node).timeout(timeout).await.unwrap_err();
    assert!(
        matches!(
            &error,
            ReadError::Unavailable { source: Unavailable::NoLeader { .. }, .. }
                | ReadError::Unavailable { source: Unavailable::NoServer { .. }, .. }
        ),
        "{error:?}"
    );

    // The server returns: the session resumes, and one event reports it.
    let session = client.session().unwrap();
    server.lead();
    assert_eq!(within(events.next()).await, Ok(SessionState::Connected { session }));
    assert_eq!(&client.get(&node).await.unwrap().unwrap().value[..], b"one");
    assert_eq!(client.read(&node).await.unwrap().source, ReadSource::Memory);
    client.put(&node, "two").await.unwrap();
    assert_eq!(server.asked("Open"), 1, "the session is the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_reads_never_stop_while_a_leader_is_replaced_in_time() {
    let mut server = Server::start(Duration::from_secs(20)).await;
    let (client, writer) = (server.client().await, server.client().await);
    let (node, mut events) = (path("/a"), client.events());
    writer.put(&node, value(0)).await.unwrap();
    client.get(&node).await.unwrap();
    for number in 1..=3 {
        server.stop().await;
        assert!(client.cached(&node).is_some());
        server.lead();
        assert!(client.cached(&node).is_some());
        // The new leader does not know of the copy, and still recalls it (S7).
        within(writer.put(&node, value(number))).await.unwrap();
        assert_eq!(client.cached(&node), None);
        assert_eq!(client.get(&node).await.unwrap().unwrap().value, value(number));
    }
    let changed = tokio::time::timeout(Duration::ZERO, events.next()).await;
    assert!(changed.is_err(), "nothing was in jeopardy: {changed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_and_writes_in_flight_reach_next_leader() {
    let mut server = Server::start(TERM).await;
    let client = server.client().await;
    client.put("/a", "one").await.unwrap();
    server.stop().await;
    let (reader, writer) = (client.clone(), client.clone());
    let read = tokio::spawn(async move { reader.get("/b").await });
    let write = tokio::spawn(async move { writer.put("/a", "two").await });
    common::until(|| client.stats().misses == 1 && client.stats().writes == 2).await;
    server.lead();
    assert_eq!(within(read).await.unwrap(), Ok(None));
    within(write).await.unwrap().unwrap();
    assert_eq!(&client.get("/a").await.unwrap().unwrap().value[..], b"two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_without_any_server_reports_not_sent() {
    let mut server = Server::start(TERM).await;
    let client = server.client().await;
    server.stop().await;
    drop(server);
    let timeout = Duration::from_millis(200);
    // The first one may have been on its way when the server stopped.
    let _ = client.delete("/a").timeout(timeout).await;
    let error = client.delete("/a").timeout(timeout).await.unwrap_err();
    let is_no_server = matches!(&error, WriteError::Unavailable { source: Unavailable::NoServer { .. }, .. });
    assert!(is_no_server && !error.may_still_happen(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_client_connects_when_a_server_leads() {
    let mut server = Server::start(TERM).await;
    server.stop().await;
    let options = server.options().connect_lazily().timeout(Duration::from_millis(200));
    let client = within(Client::connect(options)).await.unwrap();
    assert_eq!(client.session(), None);
    let error = client.get("/a").await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    server.lead();
    let is_connected = |state: &SessionState| matches!(state, SessionState::Connected { .. });
    within(client.session_state().wait_for(is_connected)).await.unwrap();
    client.put("/a", "1").timeout(TERM).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_to_nobody_says_so() {
    assert!(matches!(Client::connect(Options::new([""; 0])).await, Err(ConnectError::NoEndpoints)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let options = Options::new([address.as_str()]).timeout(Duration::from_millis(100));
    let error = Client::connect(options).await.unwrap_err();
    let ConnectError::Unavailable { source: Unavailable::NoServer { endpoints, .. }, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(endpoints, &[address]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_endpoint_may_be_dead() {
    let server = Server::start(TERM).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = listener.local_addr().unwrap().to_string();
    drop(listener);
    let options = Options::new([dead.as_str(), server.address()]).timeout(Duration::from_secs(60));
    let client = Client::connect(options).await.unwrap();
    assert_eq!(client.get("/a").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_client_stops_and_its_leases_expire() {
    let server = Server::start(TERM).await;
    let (client, writer) = (server.client().await, server.client().await);
    let node = path("/a");
    client.get(&node).await.unwrap();
    drop(client);
    let began = Instant::now();
    writer.put(&node, "one").await.unwrap();
    let waited = began.elapsed();
    assert!(waited >= TERM / 2, "it waited {waited:?} for the lease");
}
