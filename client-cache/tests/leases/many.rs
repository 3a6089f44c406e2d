//! Very many leases that one client renews over one connection.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use leasehold_client_cache::{Client, KeyLease};

use crate::common::{Server, within};

const LEASES: usize = 10_000;
/// The servers' tick is 250 ms then: a tenth of it would be more.
const VOLUME_TERM: Duration = Duration::from_secs(10);
const TERM: Duration = Duration::from_secs(6);
/// Leases that are granted at one time.
const AT_ONCE: usize = 256;

/// A client renews when half of a term is left, and one message renews all its leases with that
/// term.
const MESSAGES_PER_TERM_MAX: f64 = 2.0;

async fn grant_and_keep(client: &Client) -> KeyLease {
    let id = client.grant_lease(TERM).await.unwrap();
    client.keep_lease_alive(id).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_each_half_term_renews_ten_thousand_leases() {
    let server = Server::start(VOLUME_TERM).await;
    let client = server.client().await;
    let granting = (0..LEASES).map(|_| grant_and_keep(&client));
    let mut leases: Vec<KeyLease> = within(stream::iter(granting).buffer_unordered(AT_ONCE).collect()).await;

    // The leases that were granted first are due first. After a term, one message renews all of
    // them.
    let granted = Instant::now();
    while granted.elapsed() < TERM {
        assert!(within(leases[0].renewed()).await.is_some());
    }
    let (before, began) = (server.asked("KeepAlive"), Instant::now());
    while began.elapsed() < 2 * TERM {
        assert!(within(leases[0].renewed()).await.is_some());
    }
    let (asked, terms) = (server.asked("KeepAlive") - before, began.elapsed().as_secs_f64() / TERM.as_secs_f64());
    let over = leases.iter().filter(|lease| lease.on_lost().is_cancelled()).count();
    assert_eq!(over, 0, "leases of {LEASES} that are over");
    assert_eq!(within(client.admin().leases()).await.unwrap().len(), LEASES);
    // The first and the last of the messages are half a term apart.
    let most = MESSAGES_PER_TERM_MAX * terms + 1.0;
    assert!(
        asked as f64 <= most,
        "{asked} messages for {LEASES} leases in {terms:.2} terms: expected at most {most:.1}"
    );
}
