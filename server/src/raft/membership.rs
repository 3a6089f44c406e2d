//! The leader's side of membership changes.
//!
//! [`bootstrap`](super::bootstrap) argues why a wiped replica can rejoin safely.

use std::collections::{BTreeMap, BTreeSet};

use openraft::{BasicNode, ChangeMembers, ReadPolicy, ServerState, async_runtime::WatchReceiver};

use super::{
    link::ask,
    machine::Raft,
    node::ReplicaNode,
    peer::{Admitted, Joining, MembershipRefusal, PeerReport, ReplicaStage},
    types::alias::{StoredMembership, Vote},
};
use crate::store::store_identity::{ClusterId, StoreIdentity};

/// The largest lag of a learner that counts as caught up: what a busy cluster writes in an instant.
const CAUGHT_UP_ENTRIES: u64 = 1_000;
/// A removal takes two steps at most, and one to check that it is done. A change by another caller
/// adds one.
const REMOVAL_STEPS: usize = 5;

/// Raft's state at one moment.
struct RaftView {
    state: ServerState,
    vote: Vote,
    effective: StoredMembership,
    committed: StoredMembership,
}

async fn see(raft: &Raft) -> Result<RaftView, String> {
    let seen = raft.with_raft_state(|state| RaftView {
        state: state.server_state,
        vote: *state.vote_ref(),
        effective: (**state.membership_state.effective()).clone(),
        committed: (**state.membership_state.committed()).clone(),
    });
    seen.await.map_err(|error| error.to_string())
}

impl ReplicaNode {
    /// Lets an empty replica rejoin.
    pub(super) async fn rejoin(
        &self,
        newcomer: u64,
        address: String,
        store_id: u64,
    ) -> Result<Admitted, MembershipRefusal> {
        let (raft, identity) = self.require_leader()?;
        let membership = raft.metrics().borrow_watched().membership_config.clone();
        let recorded = self.recorded_address(&membership, newcomer)?;
        let found = ask(&recorded).await;
        if let Some(reason) = refusal(identity.cluster, newcomer, [&recorded, &address], found.as_ref().ok()) {
            return Err(MembershipRefusal::Refused { reason });
        }
        // A delayed request must not remove a replica that has rejoined since.
        match found {
            Ok(report) if report.replica == newcomer && report.stage == (ReplicaStage::Empty { store_id }) => {}
            Ok(report) => {
                let found = described(&report);
                return Err(retry(format!("{recorded}: {found}; expected replica {newcomer}")));
            }
            Err(error) => return Err(retry(format!("{recorded}: no answer: {error}"))),
        }
        let _changing = self.membership_lock.lock().await;
        let vote_floor = add_anew(&raft, newcomer, &recorded).await.map_err(retry)?;
        Ok(Admitted { cluster: identity.cluster, root: identity.root, vote_floor })
    }

    /// This replica's Raft and store identity, if it leads.
    pub(super) fn require_leader(&self) -> Result<(Raft, StoreIdentity), MembershipRefusal> {
        let parts = self.raft().zip(self.identity());
        let (raft, identity) = parts.ok_or(MembershipRefusal::NotLeader { leader: None })?;
        if self.leadership.borrow().is_leader { Ok((raft, identity)) } else { Err(self.not_leader()) }
    }

    fn not_leader(&self) -> MembershipRefusal {
        MembershipRefusal::NotLeader { leader: self.leadership.borrow().leader.clone() }
    }

    /// The address of a replica: the one in the membership, or the configured one while the replica
    /// is removed in order to rejoin.
    pub(super) fn recorded_address(
        &self,
        membership: &StoredMembership,
        replica: u64,
    ) -> Result<String, MembershipRefusal> {
        let recorded = membership.get_node(&replica).map(|node| node.addr.clone());
        recorded.or_else(|| self.config.members.get(&replica).cloned()).ok_or_else(|| {
            let members: Vec<u64> = membership.nodes().map(|(id, _)| *id).collect();
            let reason = format!("replica {replica}: not a member of this cluster; expected one of {members:?}");
            MembershipRefusal::Refused { reason }
        })
    }

    /// Makes a rejoining replica a voter once it has caught up.
    pub(super) async fn join(
        &self,
        cluster: ClusterId,
        newcomer: u64,
        address: String,
    ) -> Result<Joining, MembershipRefusal> {
        let raft = self.raft_of(cluster).map_err(|refusal| retry(refusal.to_string()))?;
        let _changing = self.membership_lock.lock().await;
        let seen = see(&raft).await.map_err(retry)?;
        if seen.state != ServerState::Leader {
            return Err(self.not_leader());
        }
        let is_settled = seen.effective == seen.committed && seen.effective.get_joint_config().len() == 1;
        if is_settled && seen.effective.voter_ids().any(|voter| voter == newcomer) {
            return Ok(Joining::Voter);
        }
        // Only an operator can record another address for a member.
        let recorded = self.recorded_address(&seen.effective, newcomer)?;
        if recorded != address {
            return Err(MembershipRefusal::Refused { reason: other_address(newcomer, &recorded, &address) });
        }
        match seen.effective.get_node(&newcomer) {
            None => add_learner(&raft, newcomer, &address).await.map_err(retry)?,
            Some(_) => {
                let (matched, last) = progress(&raft, newcomer);
                let is_caught_up = matched.is_some() && matched.unwrap_or(0) + CAUGHT_UP_ENTRIES >= last.unwrap_or(0);
                if !is_caught_up {
                    return Ok(Joining::CatchingUp { matched, last });
                }
                promote(&raft, newcomer).await.map_err(retry)?;
            }
        }
        let (matched, last) = progress(&raft, newcomer);
        Ok(Joining::CatchingUp { matched, last })
    }
}

fn retry(reason: String) -> MembershipRefusal {
    MembershipRefusal::Retry { reason }
}

/// Why a rejoin from the address `asked` is refused for good, or `None` if it is not. `found` is
/// the report from the recorded address, or `None` if that is silent.
///
/// Only the process at the recorded address may rejoin. A second process with the same id would
/// evict the first.
fn refusal(
    cluster: ClusterId,
    newcomer: u64,
    [recorded, asked]: [&str; 2],
    found: Option<&PeerReport>,
) -> Option<String> {
    let takes_part =
        |stage: &ReplicaStage| matches!(stage, ReplicaStage::Started { cluster: its, .. } if *its == cluster);
    let is_healthy = |report: &PeerReport| report.replica == newcomer && takes_part(&report.stage);
    if found.is_some_and(is_healthy) {
        return Some(format!(
            "replica {newcomer} is healthy at {recorded}, and a second process asks as replica {newcomer} from \
             {asked}; stop the second process, or start it with the id of a member that is lost"
        ));
    }
    (recorded != asked).then(|| other_address(newcomer, recorded, asked))
}

/// Describes the replica that answers at an address.
fn described(report: &PeerReport) -> String {
    let replica = report.replica;
    match &report.stage {
        ReplicaStage::Empty { .. } => format!("replica {replica} with an empty folder, started anew"),
        ReplicaStage::Bootstrapping { cluster } => {
            format!("replica {replica}, which takes part in the bootstrap of cluster {cluster}")
        }
        ReplicaStage::Started { cluster, .. } => format!("replica {replica} of cluster {cluster}"),
    }
}

fn other_address(newcomer: u64, recorded: &str, asked: &str) -> String {
    format!(
        "replica {newcomer} is recorded at {recorded} and asks from {asked}; start it at the recorded address, with \
         {newcomer}={recorded} in --cluster, or have the new one recorded first: leasehold cluster replace {newcomer} \
         {asked}"
    )
}

fn progress(raft: &Raft, replica: u64) -> (Option<u64>, Option<u64>) {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let matched = metrics.replication.as_ref().and_then(|replication| (*replication.get(&replica)?).map(|id| id.index));
    (matched, metrics.last_log_index)
}

/// Removes a replica from every configuration. Returns the floor of its later votes: this leader's
/// vote, which was proven after the call.
async fn remove_completely(raft: &Raft, replica: u64) -> Result<Vote, String> {
    for _ in 0..REMOVAL_STEPS {
        raft.ensure_linearizable(ReadPolicy::ReadIndex).await.map_err(|error| error.to_string())?;
        let seen = see(raft).await?;
        if seen.state != ServerState::Leader {
            return Err("this replica is no longer the leader".to_owned());
        }
        let is_settled = seen.effective == seen.committed && seen.effective.get_joint_config().len() == 1;
        let is_voter = seen.effective.voter_ids().any(|voter| voter == replica);
        if !is_settled && !is_voter {
            // Complete a joint configuration without the replica, or one that is not committed.
            change(raft, ChangeMembers::AddVoterIds(BTreeSet::new()), true).await?;
        } else if is_voter {
            tracing::info!(replica, "removing a replica that has lost its data, so that it can rejoin");
            remove(raft, replica).await?;
        } else if seen.effective.get_node(&replica).is_some() {
            change(raft, ChangeMembers::RemoveNodes(BTreeSet::from([replica])), true).await?;
        } else {
            return Ok(seen.vote);
        }
    }
    Err(format!("the membership changes too often to remove replica {replica}"))
}

/// Removes a replica completely, then adds it as a learner, so that the membership still records an
/// address for it. If the leader dies in between, the configured address counts. Returns the same
/// as [`remove_completely`].
///
/// Changing the address in place is not enough: the leader would still send to the old one.
pub(super) async fn add_anew(raft: &Raft, replica: u64, address: &str) -> Result<Vote, String> {
    let floor = remove_completely(raft, replica).await?;
    add_learner(raft, replica, address).await?;
    Ok(floor)
}

async fn change(raft: &Raft, changes: ChangeMembers<u64, BasicNode>, retain: bool) -> Result<(), String> {
    raft.change_membership(changes, retain).await.map(drop).map_err(|error| error.to_string())
}

/// Adds a learner. Does not wait until it has caught up.
pub(super) async fn add_learner(raft: &Raft, replica: u64, address: &str) -> Result<(), String> {
    tracing::info!(replica, address, "adding a replica as a learner");
    raft.add_learner(replica, BasicNode::new(address), false).await.map(drop).map_err(|error| error.to_string())
}

/// Makes a learner a voter.
pub(super) async fn promote(raft: &Raft, replica: u64) -> Result<(), String> {
    tracing::info!(replica, "making a learner a voter");
    change(raft, ChangeMembers::AddVoterIds(BTreeSet::from([replica])), true).await
}

/// Removes a voter or learner.
pub(super) async fn remove(raft: &Raft, replica: u64) -> Result<(), String> {
    let is_voter = raft.voter_ids().any(|voter| voter == replica);
    let replicas = BTreeSet::from([replica]);
    if is_voter {
        change(raft, ChangeMembers::RemoveVoters(replicas), false).await
    } else {
        change(raft, ChangeMembers::RemoveNodes(replicas), true).await
    }
}

/// The members with their addresses, and whether each is a voter. During a joint change, only
/// replicas that vote before and after it are voters.
pub(super) fn members(membership: &StoredMembership) -> BTreeMap<u64, (String, bool)> {
    let configurations = membership.get_joint_config();
    let votes = |id: &u64| !configurations.is_empty() && configurations.iter().all(|voters| voters.contains(id));
    membership.nodes().map(|(id, node)| (*id, (node.addr.clone(), votes(id)))).collect()
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::volume::VolumeSettings;

    use super::{super::peer::KnownMembers, *};

    fn report(replica: u64, stage: ReplicaStage) -> PeerReport {
        PeerReport { replica, members: BTreeMap::new(), root: VolumeSettings::DEFAULT, stage }
    }

    const CLUSTER: ClusterId = ClusterId { founder: 1, nonce: 7 };

    fn started(cluster: ClusterId) -> ReplicaStage {
        ReplicaStage::Started { cluster, leader: None, known: KnownMembers::default() }
    }

    #[test]
    fn readmission_from_recorded_address_is_not_refused() {
        let empty = report(2, ReplicaStage::Empty { store_id: 5 });
        assert_eq!(refusal(CLUSTER, 2, ["a:1", "a:1"], Some(&empty)), None);
        assert_eq!(refusal(CLUSTER, 2, ["a:1", "a:1"], None), None, "it may answer later");
        let other = report(3, started(CLUSTER));
        assert_eq!(refusal(CLUSTER, 2, ["a:1", "a:1"], Some(&other)), None, "replica 2 is not there");
        let stranger = report(2, started(ClusterId { founder: 2, nonce: 8 }));
        assert_eq!(refusal(CLUSTER, 2, ["a:1", "a:1"], Some(&stranger)), None, "it is of another cluster");
    }

    #[test]
    fn readmission_from_another_address_names_both_addresses() {
        for found in [None, Some(report(2, ReplicaStage::Empty { store_id: 5 })), Some(report(2, started(CLUSTER)))] {
            let reason = refusal(CLUSTER, 2, ["a:1", "b:2"], found.as_ref()).expect("refused");
            assert!(reason.contains("a:1") && reason.contains("b:2"), "{reason}");
        }
    }

    #[test]
    fn readmission_beside_a_healthy_replica_is_refused() {
        let reason = refusal(CLUSTER, 2, ["a:1", "a:1"], Some(&report(2, started(CLUSTER)))).expect("refused");
        assert!(reason.contains("healthy at a:1"), "{reason}");
    }
}
