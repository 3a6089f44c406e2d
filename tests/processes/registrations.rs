//! Registrations while a leader has no majority (T4 and T5 in docs/PROTOCOL.md). Its clients lose
//! nothing by that. Afterwards the client and the servers agree on who is registered.
//!
//! `LEASEHOLD_REGISTRATIONS=5 cargo test --test processes registrations -- --nocapture` runs for
//! longer.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    alone,
    common::{Cluster, soon, within},
    number, path,
};

/// How often the leader is left alone by default.
const ROUNDS: u64 = 2;

const TERM: Duration = Duration::from_secs(2);

/// Far longer than the lease of the node.
const ALONE_FOR: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_without_a_majority_ends_no_registration() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let term = format!("{}s", TERM.as_secs());
    cluster.cli().done(["volume", "create", "/jobs", "--term", &term, "--skew-margin", "50ms"]);
    let client = cluster.client("worker").await;
    let here = path("/jobs/worker");
    for _ in 0..number("LEASEHOLD_REGISTRATIONS", ROUNDS) {
        let leader = cluster.leader();
        let registration = within("a registration", client.register(&here, "here")).await.expect("free");
        for id in cluster.others(leader) {
            cluster.kill(id);
        }
        sleep(ALONE_FOR).await;
        assert!(!registration.on_lost().is_cancelled(), "a leader that can commit nothing has ended it");
        for id in cluster.others(leader) {
            cluster.spawn(id);
        }
        cluster.caught_up(&cluster.ids());
        // Whichever server leads, the lease goes on, and its node exists.
        soon("the registration is certain again", || async {
            let over = registration.on_lost().is_cancelled();
            assert!(!over, "it was kept all the time, and told to be over when the servers were back");
            (!registration.remaining().is_zero()).then_some(())
        })
        .await;
        let found = client.get(&here).await.expect("the cluster serves").expect("it is there");
        assert_eq!(found.stat.create_revision, registration.epoch(), "the same registration");
        // Its own node does not prevent a new registration, as after an attempt of unknown outcome.
        let again = within("a registration", client.register(&here, "again"));
        let again = again.await.expect("its own node is replaced");
        within("a farewell", again.leave()).await.expect("it is there");
        assert_eq!(client.get(&here).await.expect("the cluster serves"), None);
    }
    client.close().await;
}
