//! Key leases through a change of the leader in every half of their term (A14): one that is kept alive is not cut short; those that nobody
//! keeps end after their term and not much later, however often there was no leader meanwhile.
//!
//! `LEASEHOLD_HALF_TERMS=40 cargo test --test processes abandoned -- --nocapture` goes on for longer.

use std::time::Duration;

use leasehold_client_cache::DriftAllowance;
use tokio::time::interval;

use crate::{
    alone,
    changes::{Changes, How},
    common::within,
    ends::{Ends, Granted, grant},
    figures::Figures,
    number,
};

/// How many leaders there are, unless told otherwise.
const HALVES: u64 = 6;

const TTL: Duration = Duration::from_secs(4);

/// What the ticks are a tenth of.
const VOLUME_TERM: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);

/// What a busy machine may add to a wait.
const GENEROUS: Duration = Duration::from_secs(2);

/// What the rule says that a lease may last beyond its term, apart from the times without a leader: two ticks, and the margin.
fn beyond() -> Duration {
    2 * TICK + DriftAllowance::DEFAULT.over(TTL + TICK) * 2 + Duration::from_millis(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_new_leader_every_half_term_a_kept_lease_lasts_and_an_abandoned_one_ends_in_bounded_time() {
    let _alone = alone();
    let mut changes = Changes::of(VOLUME_TERM);
    let (client, looking) = (changes.cluster.client("keeper").await, changes.cluster.client("looking").await);
    let ends = Ends::watched_by(&looking).await;
    let kept = grant(&client, "/n/kept", TTL).await;
    let lease = client.keep_lease(kept.id).await.expect("it has only just begun");
    let mut halves = interval(TTL / 2);
    let mut abandoned = Vec::new();
    for round in 0..number("LEASEHOLD_HALF_TERMS", HALVES) {
        halves.tick().await;
        abandoned.push(within("a grant", grant(&client, &format!("/n/abandoned-{round:03}"), TTL)).await);
        let how = if round % 3 == 2 { How::Stopped } else { How::Killed };
        let out = changes.change(how).await;
        println!("{how:?}: no leader for {out:.2?}; the kept lease is certain for {:.2?}", lease.certain_for());
    }
    let (mut late, mut beyond_outages) = (Vec::new(), Vec::new());
    for Granted { path, asked, answered, .. } in abandoned {
        let told = ends.of(&path).await;
        let lasted = Duration::from_nanos(told - asked);
        assert!(lasted >= TTL, "{path} was cut short after {lasted:?}");
        // A new leader counts from the last time in the log, which is a tick old as a rule.
        let over = Duration::from_nanos(told - answered).saturating_sub(TTL);
        let (count, out) = changes.out(asked, told);
        assert!(
            over <= beyond() + out + count * TICK + GENEROUS,
            "{path} lasted {over:?} too long; {count} times there was no leader, for {out:?} in all"
        );
        late.push(over);
        beyond_outages.push(over.saturating_sub(out));
    }
    println!("abandoned leases ended after their term of {TTL:?} and {}", late.into_iter().collect::<Figures>());
    println!("beyond times without a leader: {}", beyond_outages.into_iter().collect::<Figures>());
    println!("the rule allows {:?}, and a tick of {TICK:?} for each change of the leader", beyond());
    let is_over = lease.over().is_cancelled() || ends.has(&kept.path);
    let longest = changes.longest();
    assert!(!is_over || longest > TTL / 2, "a kept lease was cut short; at most {longest:?} without a leader");
}
