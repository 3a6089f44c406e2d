//! Service registrations: nodes that are attached to their session's lease.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use leasehold_client_cache::{Attach, NodeOwner, NodePath, Refusal, ServiceHealth, WriteError, WriteRefusal};

use super::{SLACK, asked_until, gone};
use crate::common::{Server, path, within};

const TERM: Duration = Duration::from_secs(1);
/// The term of leases that must last, even if the machine stalls for a while.
const LONG_TERM: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_registered_until_it_leaves() {
    let server = Server::start(LONG_TERM).await;
    let (service, watcher) = (server.client().await, server.client().await);
    let node = path("/services/web");
    let began = Instant::now();
    let registration = service.register(&node, "here").await.unwrap();
    assert_eq!(registration.path(), &node);
    let entry = watcher.get(&node).await.unwrap().unwrap();
    assert_eq!((&entry.value[..], entry.stat.modify_revision), (&b"here"[..], registration.epoch()));
    let stat = watcher.stat(&node).await.unwrap().unwrap();
    assert_eq!(stat.owner, service.session().map(NodeOwner::Session));
    // There are no other requests for a term and a half: the client renews the lease because a node
    // is attached to it.
    asked_until(|| async { began.elapsed() > LONG_TERM * 3 / 2 }).await;
    assert!(watcher.get(&node).await.unwrap().is_some());
    let certain = registration.remaining();
    assert!(certain > Duration::ZERO && certain <= LONG_TERM && !registration.on_lost().is_cancelled());
    let written = registration.leave().await.unwrap();
    assert_eq!((written.removed, watcher.get(&node).await.unwrap()), (1, None));
    assert_eq!(watcher.children("/services").await.unwrap().unwrap().names, [""; 0]);
}

/// The node stays under the lease that it was attached to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_made_later_does_not_prolong_a_registration() {
    let server = Server::start(LONG_TERM).await;
    let (service, operator) = (server.client().await, server.client().await);
    let registration = service.register("/services/web", "here").await.unwrap();
    operator.admin().create_volume("/services").term(5 * LONG_TERM).await.unwrap();
    operator.put("/services/other", "").await.unwrap();
    let lease = path("/services/other");
    asked_until(|| async {
        service.get(&lease).await.unwrap();
        service.volume_remaining(&lease) > LONG_TERM
    })
    .await;
    let remaining = registration.remaining();
    assert!(remaining > Duration::ZERO && remaining <= LONG_TERM, "{remaining:?}");
    assert!(!registration.on_lost().is_cancelled());
    registration.leave().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_the_session_ends_what_it_registered_at_once() {
    let server = Server::start(20 * TERM).await;
    let (service, watcher) = (server.client().await, server.client().await);
    let node = path("/services/web");
    let registration = service.register(&node, "here").await.unwrap();
    let over = registration.on_lost();
    assert!(watcher.get(&node).await.unwrap().is_some());
    service.close().await;
    assert!(over.is_cancelled());
    assert_eq!(registration.remaining(), Duration::ZERO);
    let closed = Instant::now();
    gone(&watcher, &node).await;
    assert!(closed.elapsed() < 10 * TERM, "long before its term: {:?}", closed.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_service_registration_expires_after_its_term() {
    let server = Server::start(TERM).await;
    let (service, watcher) = (server.client().await, server.client().await);
    let node = path("/services/web");
    let registration = service.register(&node, "here").await.unwrap();
    let certain = registration.remaining();
    let dropped = Instant::now();
    drop((registration, service));
    let gone = gone(&watcher, &node).await;
    assert!(certain > Duration::ZERO);
    assert!(gone - dropped >= certain, "gone {:?} later: certain were {certain:?}", gone - dropped);
    assert!(gone - dropped <= TERM + SLACK, "gone {:?} later", gone - dropped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_server_ends_no_registration() {
    let mut server = Server::start(TERM).await;
    let (service, watcher) = (server.client().await, server.client().await);
    let node = path("/services/web");
    let registration = service.register(&node, "here").await.unwrap();
    server.stop().await;
    asked_until(|| async { registration.remaining() == Duration::ZERO }).await;
    assert!(!registration.on_lost().is_cancelled(), "without a server, no lease ends");
    server.lead();
    asked_until(|| async { registration.remaining() > Duration::ZERO }).await;
    let entry = watcher.get(&node).await.unwrap().unwrap();
    assert_eq!(entry.stat.modify_revision, registration.epoch());
    assert!(!registration.on_lost().is_cancelled());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whose_place_is_taken_does_not_remove_his_successor() {
    let server = Server::start(TERM).await;
    let (first, second) = (server.client().await, server.client().await);
    let node = path("/services/web");
    let registration = first.register(&node, "first").await.unwrap();
    let taken = second.register(&node, "second").await.unwrap_err();
    assert!(matches!(&taken, WriteError::Refused(Refusal::Write(WriteRefusal::Exists { .. }))), "{taken:?}");
    let successor = second.register(&node, "second").replace(true).await.unwrap();
    assert!(successor.epoch() > registration.epoch(), "it only grows");
    assert_eq!(first.get(&node).await.unwrap().unwrap().stat.create_revision, successor.epoch());
    let error = registration.leave().await.unwrap_err();
    let is_another = matches!(&error, WriteError::Refused(Refusal::Write(WriteRefusal::RevisionDiffers { .. })));
    assert!(is_another, "{error:?}");
    assert_eq!(&first.get(&node).await.unwrap().unwrap().value[..], b"second");
    first.close().await;
    assert_eq!(&second.get(&node).await.unwrap().unwrap().value[..], b"second", "it went with another");
    within(successor.leave()).await.unwrap();

    // A node that somebody else has written stays.
    let registration = second.register(&node, "second").await.unwrap();
    let watcher = server.client().await;
    watcher.put(&node, "for good").if_revision(registration.epoch()).await.unwrap();
    second.close().await;
    assert_eq!(&watcher.get(&node).await.unwrap().unwrap().value[..], b"for good");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registered_value_can_be_updated() {
    let server = Server::start(LONG_TERM).await;
    let (service, other) = (server.client().await, server.client().await);
    let node = path("/services/web");
    let mut registration = service.register(&node, "first").await.unwrap();
    let epoch = registration.epoch();
    let written = registration.update("second").await.unwrap();
    let entry = other.get(&node).await.unwrap().unwrap();
    assert_eq!((&entry.value[..], entry.stat.modify_revision), (&b"second"[..], written.revision));
    assert_eq!(entry.stat.owner, service.session().map(NodeOwner::Session));
    assert_eq!((registration.epoch(), registration.revision()), (epoch, written.revision));
    assert_eq!(entry.stat.create_revision, epoch, "the epoch can be read and compared");
    assert!(registration.remaining() > Duration::ZERO && !registration.on_lost().is_cancelled());
    other.put(&node, "theirs").attach(Attach::Unchanged).await.unwrap();
    let error = registration.update("third").await.unwrap_err();
    let is_another = matches!(&error, WriteError::Refused(Refusal::Write(WriteRefusal::RevisionDiffers { .. })));
    assert!(is_another, "{error:?}");
    let mut registration = service.register(&node, "again").await.unwrap();
    registration.update("last").await.unwrap();
    assert_eq!(registration.leave().await.unwrap().removed, 1);
    assert_eq!(other.get(&node).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn register_with_own_node_there_replaces_it() {
    let server = Server::start(LONG_TERM).await;
    let (service, other) = (server.client().await, server.client().await);
    let node = path("/services/web");
    let first = service.register(&node, "first").await.unwrap();
    let again = service.register(&node, "again").await.unwrap();
    assert!(again.epoch() > first.epoch(), "it is a new registration");
    let entry = other.get(&node).await.unwrap().unwrap();
    assert_eq!((&entry.value[..], entry.stat.create_revision), (&b"again"[..], again.epoch()));
    first.leave().await.expect_err("the node is the second one's");
    let taken = other.register(&node, "other").await.unwrap_err();
    assert!(matches!(&taken, WriteError::Refused(Refusal::Write(WriteRefusal::Exists { .. }))), "{taken:?}");
    again.leave().await.unwrap();

    // A node without a lease is nobody's registration.
    other.put(&node, "for good").await.unwrap();
    let taken = service.register(&node, "third").await.unwrap_err();
    assert!(matches!(&taken, WriteError::Refused(Refusal::Write(WriteRefusal::Exists { .. }))), "{taken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn register_after_an_unknown_outcome_succeeds() {
    let server = Server::start(LONG_TERM).await;
    let service = server.client().await;
    let node = path("/services/web");
    service.put("/services/other", "so that the session is known").await.unwrap();
    // Nobody waits for the outcome, but the node is put.
    service.put(&node, "unknown").attach(Attach::Session).await.unwrap();
    let registration = service.register(&node, "known").await.unwrap();
    let entry = service.get(&node).await.unwrap().unwrap();
    assert_eq!((&entry.value[..], entry.stat.modify_revision), (&b"known"[..], registration.epoch()));
    assert_eq!(entry.stat.owner, service.session().map(NodeOwner::Session));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_listing_returns_all_services_across_pages() {
    const SERVICES: usize = 2100;
    let server = Server::start(20 * TERM).await;
    let client = server.client().await;
    let lease = client.grant_lease(600 * TERM).await.unwrap();
    let nodes: Vec<NodePath> = (0..SERVICES).map(|number| path(&format!("/services/{number:05}"))).collect();
    let puts = nodes.iter().map(|node| client.put(node, "here").lease(lease).into_future());
    stream::iter(puts).buffer_unordered(64).try_for_each(|_| async { Ok(()) }).await.unwrap();
    let services = client.admin().services("/services").await.unwrap();
    assert!(services.iter().map(|service| &service.path).eq(&nodes), "{} services", services.len());
    assert!(services.iter().all(|service| service.health == ServiceHealth::Live));
    assert_eq!(server.asked("Inspect"), 3, "parts");
}
