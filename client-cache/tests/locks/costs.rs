//! The cost of locks. While they last, the client only renews their one lease. When another client
//! waits for the node, it gets it within a second.

use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use leasehold_client_cache::{LockGuard, LockWait};

use super::exclusive;
use crate::{
    common::{Server, within},
    stall::{Missed, check, measured_async},
};

const LOCKS: usize = 100;

/// The term of leases that last for a few terms.
const TERM: Duration = Duration::from_secs(2);

/// A term so long that no test waits for its end.
const LONG_TERM: Duration = Duration::from_secs(60);
const MARGIN: Duration = Duration::from_secs(1);

/// A client renews a volume lease 2.5 times in a term. There may be one more, because the first and
/// the last are a whole interval apart.
const RENEWALS_PER_TERM: f64 = 2.5;

/// The requests that locks need beside renewals.
const LOCK_REQUESTS: [&str; 4] = ["Write", "Acquire", "Read", "KeepAlive"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_locks_for_two_terms_cost_the_renewals_of_one_lease() {
    measured_async(keep_locks).await;
}

async fn keep_locks() -> Result<(), Missed> {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let take = async |number| client.lock(format!("/many/{number}")).wait(LockWait::No).await.unwrap();
    let held: Vec<LockGuard> = within(join_all((0..LOCKS).map(take))).await;
    let asked = || (LOCK_REQUESTS.map(|kind| server.asked(kind)), server.asked("Heartbeat"));
    let ((before, renewed_before), waits_before) = (asked(), server.asked("AwaitLockStatus"));
    let began = Instant::now();
    let lasting = tokio::time::timeout(2 * TERM, held[0].on_lost().cancelled()).await;
    let terms = began.elapsed().as_secs_f64() / TERM.as_secs_f64();
    let ((after, renewed), certain) = (asked(), held.iter().filter(|lock| !lock.remaining().is_zero()).count());
    if lasting.is_ok() || certain < LOCKS {
        return Err(Missed(format!("{certain} of {LOCKS} locks last")));
    }
    assert_eq!(after, before, "{LOCK_REQUESTS:?}: expected only renewals of the volume lease");
    let waits = server.asked("AwaitLockStatus") - waits_before;
    assert!(waits <= 1, "asked {waits} times to be told of locks, about which nothing changed");
    let renewals = renewed - renewed_before;
    assert!(renewals as f64 <= RENEWALS_PER_TERM * terms + 1.0, "{renewals} renewals in {terms:.2} terms");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_another_wants_is_handed_over_within_a_second() {
    measured_async(hand_over).await;
}

async fn hand_over() -> Result<(), Missed> {
    let server = Server::start_with_margin(LONG_TERM, MARGIN).await;
    let (one, two) = (server.client().await, server.client().await);
    let mut held = exclusive(&one, LockWait::No).await;
    let token = held.token();
    let (before, asked) = (server.asked("Write"), Instant::now());
    let give_back = async {
        held.contended().await;
        held.release().await.unwrap();
    };
    let (next, ()) = within(join(exclusive(&two, LockWait::Forever), give_back)).await;
    let took = asked.elapsed();
    assert!(next.token() > token);
    assert_eq!(server.asked("Write") - before, 2, "one asked, and the other gave the node back");
    check("the node is handed over", took, Duration::ZERO, Duration::ZERO)
}
