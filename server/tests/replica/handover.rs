//! Leaders that give their leadership to another.

use leasehold_server::raft::HandOverError;

use crate::support::{Cluster, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_hands_over() {
    let cluster = Cluster::started(3).await;
    cluster.open_sessions(5).await;
    let leader = cluster.leader().await;
    cluster.running[&leader].replica.hand_over().await.expect("the others are there");
    let others = || cluster.running.iter().filter(|(id, _)| **id != leader);
    eventually("another leader", || async { others().any(|(_, running)| running.replica.leadership().borrow().leads) })
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
    replica.hand_over().await.expect("there is nobody");
    assert_eq!(*replica.leadership().borrow(), before);
    cluster.open_sessions(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_successor_is_gone_leads_no_more_and_whoever_comes_is_elected() {
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
    let handing_over = replica.hand_over();
    let mut handing_over = Box::pin(handing_over);
    tokio::select! {
        _ = &mut handing_over => panic!("it waits for its successor, and leads"),
        lost = leadership.wait_for(|leadership| !leadership.leads) => {
            let now = lost.expect("it runs").clone();
            assert_eq!((now.term, now.leader), (before.term, None), "Raft takes it for the leader still");
        }
    }
    let failed = handing_over.await.expect_err("the successor is gone");
    assert!(
        matches!(failed, HandOverError::NobodyTookOver { successor: gone, .. } if others.contains(&gone)),
        "{failed}"
    );
    // Else its heartbeats would keep whoever comes from standing for election, and it takes no proposals in this term.
    let is_over = || leadership.borrow().term > before.term;
    eventually("its term is over", || async { is_over() }).await;
    for other in others {
        cluster.start(other).await;
    }
    // One of them leads, in a later term, and proposals go through.
    cluster.open_sessions(5).await;
    let elected = cluster.leader().await;
    assert!(cluster.running[&elected].replica.leadership().borrow().term > before.term);
    cluster.agrees(10).await;
}
