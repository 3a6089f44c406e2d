//! Key leases that are renewed, abandoned, revoked or lost.

use std::{
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use leasehold_client_cache::{LeaseError, LeaseId, LeaseInfo, Refusal, WriteError, WriteRefusal};

use super::{SLACK, gone};
use crate::{
    common::{Server, path, within},
    stall::{Missed, check, measured_async},
};

const TTL: Duration = Duration::from_secs(1);
/// The TTL of leases that must last, even if the machine stalls for a while.
const LONG_TTL: Duration = Duration::from_secs(4);
const VOLUME_TERM: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_lease_lives_with_its_handle_then_expires() {
    let server = Server::start(VOLUME_TERM).await;
    let (client, watcher) = (server.client().await, server.client().await);
    let began = Instant::now();
    let id = client.grant_lease(LONG_TTL).await.unwrap();
    let mut lease = client.keep_lease_alive(id).await.unwrap();
    client.put("/a", "alive").lease(id).await.unwrap();
    let mut renewals = 0;
    while began.elapsed() < LONG_TTL * 3 / 2 {
        let certain = within(lease.renewed()).await.expect("it is kept");
        assert!(certain <= LONG_TTL, "{certain:?}");
        renewals += 1;
    }
    assert!(renewals >= 2, "{renewals} renewals in a term and a half");
    assert!(watcher.lease(id).await.unwrap().is_some() && !lease.on_lost().is_cancelled());

    // The certain time counts from before the last renewal was sent.
    let certain = lease.remaining();
    let let_go = Instant::now();
    drop(lease);
    assert!(certain > Duration::ZERO && certain <= LONG_TTL);
    let gone = gone(&watcher, &path("/a")).await;
    assert!(gone - let_go >= certain, "gone {:?} later: certain were {certain:?}", gone - let_go);
    assert!(gone - let_go <= LONG_TTL + SLACK, "gone {:?} later", gone - let_go);
    assert_eq!(watcher.lease(id).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_nobody_keeps_lasts_for_its_term_from_the_grant() {
    measured_async(abandon).await;
}

async fn abandon() -> Result<(), Missed> {
    let server = Server::start(VOLUME_TERM).await;
    let (client, watcher) = (server.client().await, server.client().await);
    let before = Instant::now();
    let id = client.grant_lease(TTL).await.unwrap();
    client.put("/a", "for a while").lease(id).await.unwrap();
    let gone = gone(&watcher, &path("/a")).await;
    assert_eq!(watcher.lease(id).await.unwrap(), None);
    // A lease lasts longer by a margin of 2 ms and a clock step of 50 ms. Both are within the
    // allowance.
    check("the node of an abandoned lease is gone", gone - before, TTL, TTL)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_lease_is_lost_by_client_clock_during_server_outage() {
    let mut server = Server::start(VOLUME_TERM).await;
    let (client, watcher) = (server.client().await, server.client().await);
    let id = client.grant_lease(TTL).await.unwrap();
    let lease = client.keep_lease_alive(id).await.unwrap();
    client.put("/a", "alive").lease(id).await.unwrap();
    server.stop().await;
    let over = lease.on_lost();
    let stopped = Instant::now();
    let certain = lease.remaining();
    let was_over = over.is_cancelled();
    within(over.cancelled()).await;
    let told = Instant::now();
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert!(!was_over && certain > Duration::ZERO, "it is not over because of the servers");
    assert!(told - stopped <= certain + SLACK, "told {:?} later: certain were {certain:?}", told - stopped);

    // No leader has ended the lease. The next leader gives it the time that it had left, so its TTL
    // is not over.
    server.lead();
    let info = watcher.lease(id).await.unwrap().expect("no lease ends because of an outage");
    assert!(info.ttl == TTL && info.remaining <= 2 * TTL, "{info:?}");
    // The lost handle does not recover by itself. A new handle renews the lease.
    assert!(lease.on_lost().is_cancelled() && lease.remaining() == Duration::ZERO);
    let again = client.keep_lease_alive(id).await.unwrap();
    assert!(!again.on_lost().is_cancelled() && again.remaining() > Duration::ZERO);
    assert_eq!(&watcher.get("/a").await.unwrap().unwrap().value[..], b"alive");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_keeps_a_lease_hears_once_that_another_has_revoked_it() {
    let server = Server::start(VOLUME_TERM).await;
    let (client, other) = (server.client().await, server.client().await);
    let id = client.grant_lease(TTL).id(LeaseId(7)).await.unwrap();
    assert_eq!(id, LeaseId(7));
    let (mut lease, second) = (client.keep_lease_alive(id).await.unwrap(), client.keep_lease_alive(id).await.unwrap());
    client.put("/a", "alive").lease(id).await.unwrap();
    let written = other.revoke_lease(id).await.unwrap();
    assert_eq!((written.removed, other.get("/a").await.unwrap()), (1, None));
    within(async { while lease.renewed().await.is_some() {} }).await;
    assert!(lease.on_lost().is_cancelled() && second.on_lost().is_cancelled());
    assert_eq!(within(lease.renewed()).await, None);

    // The id is free: a new lease with it is another lease.
    client.grant_lease(TTL).id(LeaseId(7)).await.unwrap();
    assert!(lease.on_lost().is_cancelled());
    assert_eq!(other.get("/a").await.unwrap(), None);
    let refused = within(lease.revoke()).await.unwrap_err();
    let not_found = Refusal::Write(WriteRefusal::LeaseNotFound { id });
    assert!(matches!(refused, WriteError::Refused(refusal) if refusal == not_found));
    assert!(client.lease(id).await.unwrap().is_some(), "a handle revokes no lease but its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_handles_keeps_the_lease() {
    let server = Server::start(VOLUME_TERM).await;
    let client = server.client().await;
    let id = client.grant_lease(LONG_TTL).await.unwrap();
    let (one, mut other) = (client.keep_lease_alive(id).await.unwrap(), client.keep_lease_alive(id).await.unwrap());
    drop(one);
    let began = Instant::now();
    while began.elapsed() < LONG_TTL * 3 / 2 {
        assert!(within(other.renewed()).await.is_some());
    }
    assert!(client.lease(id).await.unwrap().is_some());
    let written = within(other.revoke()).await.unwrap();
    assert_eq!((written.removed, client.lease(id).await.unwrap()), (0, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_says_why_and_leaves_nothing() {
    let server = Server::start(VOLUME_TERM).await;
    let client = server.client().await;
    let (unknown, node) = (LeaseId(99), path("/a"));
    let refused = |error: WriteError| match error {
        WriteError::Refused(Refusal::Write(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let put = client.put(&node, "1").lease(unknown).await.unwrap_err();
    assert_eq!(refused(put), WriteRefusal::LeaseNotFound { id: unknown });
    assert_eq!(client.get(&node).await.unwrap(), None, "a put with an unknown lease leaves no key");
    assert_eq!(client.lease(unknown).await.unwrap(), None);
    assert_eq!(client.keep_lease_alive(unknown).await.unwrap_err(), LeaseError::NotFound { id: unknown });
    let revoked = client.revoke_lease(unknown).await.unwrap_err();
    assert_eq!(refused(revoked), WriteRefusal::LeaseNotFound { id: unknown });

    client.grant_lease(VOLUME_TERM).id(LeaseId(99)).await.unwrap();
    let taken = client.grant_lease(TTL).id(LeaseId(99)).await.unwrap_err();
    assert_eq!(refused(taken), WriteRefusal::LeaseExists { id: unknown });
    assert_eq!(client.lease(unknown).await.unwrap().unwrap().ttl, VOLUME_TERM, "it is as it was");
    for ttl in [Duration::ZERO, Duration::from_millis(199), Duration::from_secs(367 * 24 * 3600)] {
        let error = client.grant_lease(ttl).await.unwrap_err();
        assert!(matches!(&error, WriteError::Refused(Refusal::Limit(_))) && !error.may_still_happen(), "{error:?}");
    }
    assert_eq!(client.admin().leases().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_stays_attached_to_last_lease_across_leader_change() {
    let mut server = Server::start(VOLUME_TERM).await;
    let client = server.client().await;
    let long = Duration::from_secs(3600);
    let one = client.grant_lease(long).await.unwrap();
    let other = client.grant_lease(long).await.unwrap();
    let [moved, freed, taken] = ["/moved", "/freed", "/taken"].map(path);
    client.put(&moved, "1").lease(one).await.unwrap();
    client.put(&moved, "2").lease(other).await.unwrap();
    client.put(&freed, "1").lease(one).await.unwrap();
    client.put(&freed, "2").await.unwrap();
    client.put(&taken, "1").await.unwrap();
    client.put(&taken, "2").lease(one).await.unwrap();
    server.stop().await;
    server.lead();
    let nodes = |info: Option<LeaseInfo>| info.unwrap().nodes;
    assert_eq!(nodes(client.lease(one).with_nodes().await.unwrap()), slice::from_ref(&taken));
    assert_eq!(nodes(client.lease(other).with_nodes().await.unwrap()), slice::from_ref(&moved));
    client.revoke_lease(one).await.unwrap();
    assert_eq!(client.get(&taken).await.unwrap(), None);
    assert!(client.get(&moved).await.unwrap().is_some() && client.get(&freed).await.unwrap().is_some());
    client.revoke_lease(other).await.unwrap();
    assert!(client.get(&moved).await.unwrap().is_none() && client.get(&freed).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_leases_of_a_client_are_renewed_together() {
    const LEASES: usize = 300;
    let server = Server::start(VOLUME_TERM).await;
    let client = server.client().await;
    let mut leases = Vec::new();
    for _ in 0..LEASES {
        let id = client.grant_lease(LONG_TTL).await.unwrap();
        leases.push(client.keep_lease_alive(id).await.unwrap());
    }
    let is_lost = Arc::new(AtomicBool::new(false));
    for lease in &leases {
        let (over, is_lost) = (lease.on_lost(), Arc::clone(&is_lost));
        tokio::spawn(async move {
            over.cancelled().await;
            is_lost.store(true, SeqCst);
        });
    }
    let (before, began) = (server.asked("KeepAlive"), Instant::now());
    while began.elapsed() < LONG_TTL * 3 / 2 {
        assert!(within(leases[0].renewed()).await.is_some());
    }
    assert!(!is_lost.load(SeqCst));
    let (asked, terms) = (server.asked("KeepAlive") - before, began.elapsed().as_secs_f64() / LONG_TTL.as_secs_f64());
    assert!((asked as f64) < terms * LEASES as f64 / 4.0, "{asked} messages for {LEASES} leases in {terms} terms");
}
