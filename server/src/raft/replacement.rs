//! Moving a replica whose machine is lost to another address.
//!
//! A replica does not move by itself: a second process with its id would evict it ([`bootstrap`]).
//! The operator stops it, and asks the leader to replace it. The leader removes it from the
//! membership, and adds it at the new address as a learner, which has no vote. Then the operator
//! starts the replica there with an empty store, and it rejoins like any replica that lost its
//! disk.
//!
//! **Guarantees.**
//!
//! - Nothing changes while the replica answers at its recorded address.
//! - The vote is removed before the address changes. So two processes at the two addresses are
//!   never both voters. If the old process returns, it is no member, and logs that (`removal.rs`).
//! - Each step can be repeated.
//!
//! **What it does not know.** Whether the old process has ended, if its address is silent. The
//! operator is responsible for that. If the process still runs behind a partition, it has no
//! effect: the membership of the majority no longer has its vote.
//!
//! [`bootstrap`]: super::bootstrap

use std::{collections::BTreeMap, time::Duration};

use openraft::async_runtime::WatchReceiver;

use super::{
    link::{PeerLink, ask},
    membership::add_anew,
    node::ReplicaNode,
    peer::{MembershipRefusal, PeerClient, PeerReport, ReplicaStage},
};
use crate::store::store_identity::ClusterId;

/// The most hints to follow from one server to the leader that it names.
const HINTS_MAX: usize = 4;
/// The pause between two rounds of requests.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl ReplicaNode {
    /// Records another address, from which the replica will rejoin.
    pub(super) async fn replace(&self, replica: u64, address: String) -> Result<(), MembershipRefusal> {
        let (raft, identity) = self.require_leader()?;
        let _changing = self.membership_lock.lock().await;
        let membership = raft.metrics().borrow_watched().membership_config.clone();
        let recorded = self.recorded_address(&membership, replica)?;
        let others = membership.nodes().filter(|(id, _)| **id != replica).map(|(id, node)| (*id, node.addr.clone()));
        let found = ask(&recorded).await.ok();
        if let Some(reason) = refusal(identity.cluster, replica, [&recorded, &address], &others.collect(), found) {
            return Err(MembershipRefusal::Refused { reason });
        }
        // An earlier request has recorded it.
        if membership.get_node(&replica).is_some_and(|node| node.addr == address) {
            return Ok(());
        }
        add_anew(&raft, replica, &address).await.map_err(|reason| MembershipRefusal::Retry { reason })?;
        tracing::info!(replica, recorded, address, "a replica is to come back at another address");
        Ok(())
    }
}

/// Why a replica cannot return at `address`, or `None` if it can. `found` is the report from the
/// recorded address, or `None` if that is silent.
fn refusal(
    cluster: ClusterId,
    replica: u64,
    [recorded, address]: [&str; 2],
    others: &BTreeMap<u64, String>,
    found: Option<PeerReport>,
) -> Option<String> {
    if others.is_empty() {
        return Some(format!("replica {replica}: the only member; no other has its data"));
    }
    if let Some((other, _)) = others.iter().find(|(_, theirs)| *theirs == address) {
        return Some(format!("{address}: the address of replica {other}; use another"));
    }
    let found = found.filter(|report| report.replica == replica)?;
    match found.stage {
        ReplicaStage::Started { cluster: its, .. } if its != cluster => None,
        ReplicaStage::Started { .. } if recorded == address => {
            Some(format!("replica {replica}: answers at {address} already; use another address"))
        }
        _ if recorded == address => None,
        _ => Some(format!("replica {replica}: answers at {recorded}; stop it, then repeat this command")),
    }
}

/// Why a replica was not replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// The leader refused. Nothing was changed.
    #[error("{reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// No leader confirmed the change in time. The replica may have lost its vote already. Ask
    /// again.
    #[error("no leader recorded the new address within {}s: {reason}", within.as_secs_f64())]
    Unavailable {
        /// How long leaders were searched.
        within: Duration,
        /// The last server's reason.
        reason: String,
    },
}

/// Asks the leader to record that `replica` returns at `address`. Asks one server after the other,
/// and follows their hints, for at most `within`.
pub async fn replace(endpoints: &[String], replica: u64, address: &str, within: Duration) -> Result<(), ReplaceError> {
    let mut said = "no server was asked".to_owned();
    let asking = async {
        loop {
            for endpoint in endpoints {
                let mut next = Some(endpoint.clone());
                for _ in 0..HINTS_MAX {
                    let Some(asked) = next.take() else { break };
                    let link = PeerLink::new(&asked);
                    let address = address.to_owned();
                    let call =
                        |client: PeerClient, context| async move { client.replace(context, replica, address).await };
                    match link.call(within, call).await {
                        Ok(Ok(())) => return Ok(()),
                        Ok(Err(MembershipRefusal::Refused { reason })) => return Err(ReplaceError::Refused { reason }),
                        Ok(Err(MembershipRefusal::Retry { reason })) => said = reason,
                        Ok(Err(MembershipRefusal::NotLeader { leader: Some((_, leader)) })) => next = Some(leader),
                        Ok(Err(MembershipRefusal::NotLeader { leader: None })) => said = format!("{asked}: no leader"),
                        Err(error) => said = error.to_string(),
                    }
                }
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    };
    match tokio::time::timeout(within, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(ReplaceError::Unavailable { within, reason: said }),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::volume::VolumeSettings;

    use super::{super::peer::KnownMembers, *};

    const CLUSTER: ClusterId = ClusterId { founder: 1, nonce: 7 };

    fn report(replica: u64, cluster: ClusterId) -> PeerReport {
        let stage = ReplicaStage::Started { cluster, leader: None, known: KnownMembers::default() };
        PeerReport { replica, members: BTreeMap::new(), root: VolumeSettings::DEFAULT, stage }
    }

    fn others() -> BTreeMap<u64, String> {
        BTreeMap::from([(1, "a:1".to_owned()), (3, "c:1".to_owned())])
    }

    #[test]
    fn silent_or_foreign_address_is_no_reason_to_refuse() {
        let refusal = |found| refusal(CLUSTER, 2, ["b:1", "d:1"], &others(), found);
        assert_eq!(refusal(None), None);
        assert_eq!(refusal(Some(report(3, CLUSTER))), None, "another replica listens there now");
        assert_eq!(refusal(Some(report(2, ClusterId { founder: 2, nonce: 8 }))), None, "it is of another cluster");
    }

    #[test]
    fn replica_that_answers_is_to_be_stopped_first() {
        let empty = PeerReport { stage: ReplicaStage::Empty { store_id: 5 }, ..report(2, CLUSTER) };
        for found in [report(2, CLUSTER), empty] {
            let reason = refusal(CLUSTER, 2, ["b:1", "d:1"], &others(), Some(found)).expect("refused");
            assert!(reason.contains("answers at b:1; stop it"), "{reason}");
        }
    }

    #[test]
    fn replica_is_not_replaced_by_itself() {
        let refusal = |found| refusal(CLUSTER, 2, ["b:1", "b:1"], &others(), found);
        let reason = refusal(Some(report(2, CLUSTER))).expect("refused");
        assert!(reason.contains("answers at b:1 already"), "{reason}");
        let empty = PeerReport { stage: ReplicaStage::Empty { store_id: 5 }, ..report(2, CLUSTER) };
        assert_eq!(refusal(Some(empty)), None, "it was recorded, and started");
        assert_eq!(refusal(None), None, "it was recorded, and is yet to be started");
    }

    #[test]
    fn address_of_another_member_and_the_only_member_are_refused() {
        let reason = refusal(CLUSTER, 2, ["b:1", "c:1"], &others(), None).expect("refused");
        assert!(reason.contains("c:1: the address of replica 3"), "{reason}");
        let reason = refusal(CLUSTER, 2, ["b:1", "d:1"], &BTreeMap::new(), None).expect("refused");
        assert!(reason.contains("the only member"), "{reason}");
    }
}
