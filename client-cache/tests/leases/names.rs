//! Key leases with names.

use std::time::Duration;

use futures::future::join_all;
use leasehold_client_cache::{
    Attach, InspectError, LeaseError, LeaseId, LeaseName, LeaseNameError, NodeOwner, Operation, Refusal, Transaction,
    WriteError, WriteRefusal,
};

use super::gone;
use crate::common::{Server, path, within};

const VOLUME_TERM: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);
const NAME: &str = "server1Lease";

fn name() -> LeaseName {
    NAME.parse().expect("a name")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_lease_is_granted_to_one_of_eight_clients() {
    let server = Server::start(VOLUME_TERM).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(server.client().await);
    }
    for round in 0..10 {
        let racers = clients.iter().map(|client| async { client.grant_lease(MINUTE).name(NAME).await });
        let results = within(join_all(racers)).await;
        let granted: Vec<LeaseId> = results.iter().filter_map(|result| result.as_ref().ok().copied()).collect();
        let [id] = granted[..] else { panic!("round {round}: {results:?}") };
        for error in results.into_iter().filter_map(Result::err) {
            assert!(error.is_exists() && !error.may_still_happen(), "{error}");
            assert_eq!(error.refusal(), Some(&WriteRefusal::LeaseNameExists { name: name(), id }));
        }
        let lease = clients[round % 8].lease(NAME).await.unwrap().unwrap();
        assert_eq!((lease.id, lease.ttl, lease.name), (id, MINUTE, Some(name())));
        clients[(round + 1) % 8].revoke_lease(NAME).await.unwrap();
        assert_eq!(clients[0].lease(NAME).await.unwrap(), None, "the name is free again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_stands_for_its_lease_in_every_call() {
    let server = Server::start(VOLUME_TERM).await;
    let (client, other) = (server.client().await, server.client().await);
    let id = client.grant_lease(MINUTE).id(LeaseId(7)).name(NAME).await.unwrap();
    assert_eq!(id, LeaseId(7), "a lease may have an id and a name");
    client.put("/a", "1").lease(NAME).await.unwrap();
    let put = Operation::Put { path: path("/b"), value: "2".into(), attach: Attach::LeaseNamed(name()) };
    client.transaction(Transaction::new().then(put)).await.unwrap();
    client.update("/c", |_| Some("3".into())).attach(Attach::LeaseNamed(name())).await.unwrap();
    for node in ["/a", "/b", "/c"] {
        let data = other.get(node).await.unwrap().expect("it was put");
        assert_eq!(data.stat.owner, Some(NodeOwner::Lease(id)), "{node}");
    }
    let whole = other.lease(NAME).with_nodes().await.unwrap().unwrap();
    assert_eq!(whole.nodes, ["/a", "/b", "/c"].map(path));
    assert_eq!(other.lease(id).with_nodes().await.unwrap().map(|lease| lease.nodes), Some(whole.nodes));
    let listed = other.admin().leases().await.unwrap();
    assert_eq!(listed.iter().map(|lease| (lease.id, lease.name.clone())).collect::<Vec<_>>(), [(id, Some(name()))]);

    let mut lease = other.keep_lease_alive(NAME).await.unwrap();
    assert_eq!(lease.id(), id);
    assert!(lease.remaining() > Duration::ZERO && lease.remaining() <= MINUTE);
    assert_eq!(client.revoke_lease(NAME).await.unwrap().removed, 3);
    within(lease.on_lost().cancelled()).await;
    assert_eq!(within(lease.renewed()).await, None);
    for node in ["/a", "/b", "/c"] {
        assert_eq!(other.get(node).await.unwrap(), None, "{node}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_is_free_once_its_lease_has_expired() {
    let server = Server::start(VOLUME_TERM).await;
    let client = server.client().await;
    client.grant_lease(Duration::from_millis(300)).name(NAME).await.unwrap();
    client.put("/a", "1").lease(NAME).await.unwrap();
    gone(&client, &path("/a")).await;
    client.grant_lease(MINUTE).name(NAME).await.unwrap();
    assert_eq!(client.lease(NAME).with_nodes().await.unwrap().unwrap().nodes, [], "the new lease has no nodes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_by_a_name_that_no_lease_has_say_so_and_change_nothing() {
    let server = Server::start(VOLUME_TERM).await;
    let client = server.client().await;
    let none = WriteError::Refused(Refusal::Write(WriteRefusal::LeaseNameNotFound { name: name() }));
    assert_eq!(client.put("/a", "1").lease(NAME).await, Err(none.clone()));
    assert_eq!(client.get("/a").await.unwrap(), None);
    assert_eq!(client.revoke_lease(NAME).await, Err(none.clone()));
    assert_eq!(none.to_string(), "lease \"server1Lease\": not found");
    assert_eq!(client.lease(NAME).await, Ok(None));
    assert_eq!(client.keep_lease_alive(NAME).await.unwrap_err(), LeaseError::NameNotFound { name: name() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_names_are_refused_before_anything_is_sent() {
    let server = Server::start(VOLUME_TERM).await;
    let client = server.client().await;
    let empty = || LeaseNameError::Length { got: 0, most: 256 };
    assert_eq!(client.grant_lease(MINUTE).name("").await, Err(WriteError::LeaseName(empty())));
    assert_eq!(client.put("/a", "1").lease("").await, Err(WriteError::LeaseName(empty())));
    assert_eq!(client.revoke_lease("").await, Err(WriteError::LeaseName(empty())));
    assert_eq!(client.lease("").await, Err(InspectError::LeaseName(empty())));
    assert_eq!(client.keep_lease_alive("").await.unwrap_err(), LeaseError::LeaseName(empty()));
    for bad in ["a\nb", &"x".repeat(257)] {
        let error = client.grant_lease(MINUTE).name(bad).await.unwrap_err();
        assert!(matches!(error, WriteError::LeaseName(_)) && error.to_string().contains("expected"), "{error}");
    }
    assert_eq!(client.admin().leases().await.unwrap(), []);
    client.grant_lease(MINUTE).name("x".repeat(256)).await.unwrap();
}
