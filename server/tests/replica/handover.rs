//! Leadership transfers.

use std::time::{Duration, Instant};

use leasehold_server::raft::{Timings, TransferError};

use crate::support::{Cluster, eventually};

/// So long that no answer of a stopped follower counts as a late one.
const GONE_FOR: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_hands_over() {
    let cluster = Cluster::started(3).await;
    cluster.open_sessions(5).await;
    let leader = cluster.leader().await;
    cluster.running[&leader].replica.transfer_leadership().await.expect("the others are there");
    let others = || cluster.running.iter().filter(|(id, _)| **id != leader);
    eventually("another leader", || async {
        others().any(|(_, running)| running.replica.leadership().borrow().is_leader)
    })
    .await;
    cluster.open_sessions(5).await;
    cluster.agrees(10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_alone_goes_on_leading() {
    let cluster = Cluster::started(1).await;
    cluster.open_sessions(1).await;
    let replica = &cluster.running[&1].replica;
    let before = replica.leadership().borrow().clone();
    replica.transfer_leadership().await.expect("there is nobody");
    assert_eq!(*replica.leadership().borrow(), before);
    cluster.open_sessions(1).await;
}

/// Slow elections, to make them visible. A transfer takes a few round trips. With an election, it
/// takes the shortest election timeout.
const SLOW_ELECTIONS: Timings = Timings {
    heartbeat: Duration::from_millis(75),
    election_min: Duration::from_secs(2),
    election_max: Duration::from_secs(3),
};

/// The longest time without a leader: a second, for a few round trips on a busy machine.
const OUTAGE_MAX: Duration = Duration::from_millis(SLOW_ELECTIONS.election_min.as_millis() as u64 / 2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_with_one_follower_gone_goes_to_the_other() {
    for round in 0..6 {
        let mut cluster = Cluster::started_with(3, SLOW_ELECTIONS).await;
        cluster.open_sessions(5).await;
        cluster.agrees(5).await;
        let leader = cluster.leader().await;
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        // The higher id and the lower one in turn. Both logs match as far.
        let (gone, alive) = if round % 2 == 0 { (others[1], others[0]) } else { (others[0], others[1]) };
        cluster.stop(gone).await;
        tokio::time::sleep(GONE_FOR).await;

        let replica = &cluster.running[&leader].replica;
        let mut led = replica.leadership();
        let term = led.borrow_and_update().term;
        let laid_down = async {
            led.wait_for(|leadership| !leadership.is_leader).await.expect("it runs");
            Instant::now()
        };
        let (handed_over, began) = tokio::join!(replica.transfer_leadership(), laid_down);
        handed_over.expect("one of the others is there");
        let mut successor = cluster.running[&alive].replica.leadership();
        let elected = successor.wait_for(|leadership| leadership.is_leader).await.expect("it runs").clone();
        let outage = began.elapsed();
        println!("round {round}: {gone} is gone, {alive} leads after {outage:?}");
        assert_eq!(elected.term, term + 1, "replica {alive} was not the first to be elected");
        assert!(outage < OUTAGE_MAX, "nobody led for {outage:?}: an election was waited for");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_with_nobody_answering_keeps_leading() {
    let mut cluster = Cluster::started(2).await;
    cluster.open_sessions(5).await;
    cluster.agrees(5).await;
    let leader = cluster.leader().await;
    let other = 3 - leader;
    cluster.stop(other).await;
    let replica = &cluster.running[&leader].replica;
    let before = replica.leadership().borrow().clone();
    let failed = replica.transfer_leadership().await.expect_err("the other one is gone");
    let within = Timings::default().election_min;
    assert_eq!(failed, TransferError::NobodyAnswers { voters: vec![other], within });
    assert_eq!(replica.leadership().borrow().term, before.term, "it has not given its term up");
    let failed = replica.transfer_leadership_to(7).await.expect_err("there is no such voter");
    assert_eq!(failed, TransferError::NotAVoter { successor: 7, voters: vec![other] });
    cluster.start(other).await;
    cluster.open_sessions(5).await;
    cluster.agrees(10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_to_stopped_successor_ends_leadership_and_elects() {
    let mut cluster = Cluster::started(3).await;
    cluster.open_sessions(5).await;
    let leader = cluster.leader().await;
    let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    for other in &others {
        cluster.stop(*other).await;
    }

    let replica = cluster.running[&leader].replica.clone();
    let mut leadership = replica.leadership();
    let before = leadership.borrow().clone();
    let handing_over = replica.transfer_leadership_to(others[0]);
    let mut handing_over = Box::pin(handing_over);
    tokio::select! {
        _ = &mut handing_over => panic!("it waits for its successor, and leads"),
        lost = leadership.wait_for(|leadership| !leadership.is_leader) => {
            let now = lost.expect("it runs").clone();
            assert_eq!((now.term, now.leader), (before.term, None), "Raft takes it for the leader still");
        }
    }
    let failed = handing_over.await.expect_err("the successor is gone");
    assert!(matches!(failed, TransferError::NobodyTookOver { successor: gone, .. } if gone == others[0]), "{failed}");
    // Otherwise its heartbeats would prevent elections, while it takes no proposals in this Raft
    // term.
    let is_over = || leadership.borrow().term > before.term;
    eventually("its term is over", || async { is_over() }).await;
    for other in others {
        cluster.start(other).await;
    }
    // One of them leads in a later Raft term, and proposals are applied.
    cluster.open_sessions(5).await;
    let elected = cluster.leader().await;
    assert!(cluster.running[&elected].replica.leadership().borrow().term > before.term);
    cluster.agrees(10).await;
}
