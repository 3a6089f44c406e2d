//! Replicas on real sockets: they bootstrap a cluster, replicate, lose disks and rejoin.

use std::collections::BTreeSet;

use leasehold_protocol::id::Epoch;
use leasehold_server::raft::{LeadershipError, ProposeError};

use crate::support::{Cluster, begin_epoch, eventually, open_session};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_found_a_cluster_and_agree() {
    let cluster = Cluster::started(3).await;
    cluster.open_sessions(20).await;
    cluster.agrees(20).await;

    let leader = cluster.leader().await;
    cluster.running[&leader].replica.prove_leadership().await.expect("it leads");
    let follower = if leader == 1 { 2 } else { 1 };
    let follower = &cluster.running[&follower].replica;
    let refused = follower.prove_leadership().await.expect_err("it follows");
    assert_eq!(refused, LeadershipError::NotLeader { leader: cluster.members.get(&leader).cloned() });
    let proposed = follower.submit(begin_epoch(0)).await.expect("Raft runs");
    let refused = proposed.await.expect_err("it follows");
    assert_eq!(refused, ProposeError::NotLeader { leader: cluster.members.get(&leader).cloned() });
    let info = cluster.running[&leader].replica.info();
    assert!(info.members.iter().all(|member| member.matched.is_some()), "{info:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_replica_cluster_state_survives_restarts() {
    let mut cluster = Cluster::started(1).await;
    cluster.open_sessions(5).await;
    let mut terms = BTreeSet::new();
    for _ in 0..3 {
        let before = cluster.running[&1].keeper.state.lock().clone();
        cluster.leader().await;
        let term = cluster.running[&1].replica.leadership().borrow().term;
        assert!(terms.insert(term), "a restarted leader is elected again, in a later term");
        cluster.stop(1).await;
        cluster.start(1).await;
        cluster.leader().await;
        cluster.running[&1].replica.prove_leadership().await.expect("it leads");
        assert_eq!(*cluster.running[&1].keeper.state.lock(), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_proposals_under_way_keep_their_order() {
    let cluster = Cluster::started(3).await;
    let epoch = Epoch(cluster.propose(begin_epoch(0)).await);
    let leader = cluster.leader().await;
    let replica = &cluster.running[&leader].replica;
    let mut under_way = Vec::new();
    for number in 0..500 {
        under_way.push(replica.submit(open_session(epoch, number)).await.expect("submitted"));
    }
    let mut last = 0;
    for proposed in under_way {
        let index = proposed.await.expect("applied");
        assert!(index > last, "{index} after {last}");
        last = index;
    }
    cluster.agrees(500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_cluster_has_what_it_acknowledged() {
    let mut cluster = Cluster::started(3).await;
    cluster.open_sessions(30).await;
    for id in 1..=3 {
        cluster.stop(id).await;
    }
    for id in 1..=3 {
        cluster.start(id).await;
    }
    cluster.open_sessions(1).await;
    cluster.agrees(31).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_follower_is_let_in_again_and_counts_again() {
    let mut cluster = Cluster::started(3).await;
    cluster.open_sessions(10).await;
    cluster.agrees(10).await;
    let leader = cluster.leader().await;
    let wiped = if leader == 3 { 2 } else { 3 };
    cluster.stop(wiped).await;
    cluster.wipe(wiped);
    cluster.open_sessions(10).await;
    cluster.start(wiped).await;
    cluster.agrees(20).await;

    // It is now one of the two that make a majority.
    let other = (1..=3).find(|id| *id != leader && *id != wiped).expect("a third");
    cluster.stop(other).await;
    cluster.open_sessions(10).await;
    cluster.start(other).await;
    cluster.agrees(30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_leader_is_let_in_again() {
    let mut cluster = Cluster::started(3).await;
    cluster.open_sessions(10).await;
    cluster.agrees(10).await;
    let wiped = cluster.leader().await;
    cluster.stop(wiped).await;
    cluster.wipe(wiped);
    cluster.start(wiped).await;
    cluster.agrees(10).await;
    cluster.open_sessions(5).await;
    cluster.agrees(15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_while_it_comes_back_comes_back() {
    let mut cluster = Cluster::started(3).await;
    cluster.open_sessions(10).await;
    cluster.agrees(10).await;
    let wiped = if cluster.leader().await == 3 { 2 } else { 3 };
    cluster.stop(wiped).await;
    cluster.wipe(wiped);
    cluster.start(wiped).await;
    let identity = cluster.dir(wiped).join("store-identity");
    eventually("let in", || async { identity.exists() }).await;
    cluster.stop(wiped).await;
    cluster.start(wiped).await;
    cluster.stop(wiped).await;
    cluster.wipe(wiped);
    cluster.start(wiped).await;
    cluster.open_sessions(5).await;
    cluster.agrees(15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_far_behind_gets_a_snapshot() {
    let mut cluster = Cluster::new(3).await;
    cluster.snapshot_entries = 40;
    for id in 1..=3 {
        cluster.start(id).await;
    }
    cluster.open_sessions(10).await;
    cluster.agrees(10).await;
    let wiped = if cluster.leader().await == 3 { 2 } else { 3 };
    cluster.stop(wiped).await;
    cluster.wipe(wiped);
    cluster.open_sessions(300).await;
    cluster.start(wiped).await;
    cluster.agrees(310).await;
    cluster.stop(wiped).await;
    cluster.start(wiped).await;
    cluster.open_sessions(1).await;
    cluster.agrees(311).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_founded_when_all_its_members_are_there() {
    let mut cluster = Cluster::new(3).await;
    cluster.start(2).await;
    cluster.start(3).await;
    // With all three, one round or two are enough to bootstrap.
    let have_asked = || [2, 3].iter().all(|empty| cluster.running[empty].replica.rounds() >= 10);
    eventually("both have asked around ten times", || async { have_asked() }).await;
    for empty in [2, 3] {
        assert!(!cluster.dir(empty).join("store-identity").exists(), "{empty} might have forgotten what 1 has");
    }
    cluster.start(1).await;
    cluster.open_sessions(1).await;
    cluster.agrees(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_configured_differently_say_so() {
    let mut cluster = Cluster::new(3).await;
    cluster.start(1).await;
    let mut config = cluster.config(2);
    config.members.remove(&3);
    cluster.start_with(config).await.expect("opens");
    let reason = cluster.running[&2].replica.fatal().await;
    assert!(reason.contains("replica 1: configured with members"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_replica_learns_by_which_entry_it_was_removed() {
    let cluster = Cluster::started(3).await;
    cluster.open_sessions(1).await;
    cluster.agrees(1).await;
    let leader = cluster.leader().await;
    let removed = if leader == 3 { 2 } else { 3 };
    let replica = &cluster.running[&removed].replica;
    assert_eq!(replica.removed(), None);
    cluster.running[&leader].replica.remove(removed).await.expect("removed");
    eventually("it has learnt of it", || async { replica.removed().is_some() }).await;
    let known = replica.removed().expect("it was removed");
    let mut left = cluster.members.clone();
    left.remove(&removed);
    assert_eq!(known.members, left);
    assert!(known.entry > Some(0), "{known:?}");
    let others = cluster.running.iter().filter(|(id, _)| **id != removed);
    assert!(others.map(|(_, other)| other.replica.removed()).all(|known| known.is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_can_be_removed_and_added() {
    let mut cluster = Cluster::started(3).await;
    cluster.open_sessions(5).await;
    let leader = cluster.leader().await;
    let removed = if leader == 3 { 2 } else { 3 };
    let address = cluster.members[&removed].clone();
    let replica = cluster.running[&leader].replica.clone();
    replica.remove(removed).await.expect("removed");
    assert_eq!(replica.info().members.len(), 2);
    cluster.stop(removed).await;
    cluster.open_sessions(5).await;
    cluster.start(removed).await;
    eventually("added", || async { replica.add_learner(removed, &address).await.is_ok() }).await;
    eventually("promoted", || async { replica.promote(removed).await.is_ok() }).await;
    cluster.agrees(10).await;
}
