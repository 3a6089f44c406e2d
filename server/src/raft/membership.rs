//! The leader's side of a change of members.
//!
//! Why letting a wiped replica in again is safe is argued in [`bootstrap`](super::bootstrap).

use std::collections::{BTreeMap, BTreeSet};

use openraft::{BasicNode, ChangeMembers, ReadPolicy, ServerState, async_runtime::WatchReceiver};

use super::{
    bootstrap::ask,
    node::Node,
    peer::{Joining, Readmission, Stage},
    types::alias::{Raft, StoredMembership, Vote},
};
use crate::store::standing::ClusterId;

/// A learner that is no further behind than this is caught up: an instant's worth of entries.
const CAUGHT_UP_ENTRIES: u64 = 1_000;
/// Removing takes two steps at most, and one more to see that it is done; a change under way by somebody else adds one.
const REMOVAL_STEPS: usize = 5;

/// What Raft knows at one moment.
struct Seen {
    state: ServerState,
    vote: Vote,
    effective: StoredMembership,
    committed: StoredMembership,
}

async fn see(raft: &Raft) -> Result<Seen, String> {
    let seen = raft.with_raft_state(|state| Seen {
        state: state.server_state,
        vote: *state.vote_ref(),
        effective: (**state.membership_state.effective()).clone(),
        committed: (**state.membership_state.committed()).clone(),
    });
    seen.await.map_err(|error| error.to_string())
}

impl Node {
    fn leader(&self) -> Option<(u64, String)> {
        self.leadership.borrow().leader.clone()
    }

    /// Lets an empty replica in again.
    pub(super) async fn readmit(&self, newcomer: u64, address: String, life: u64) -> Readmission {
        let (Some(raft), Some(standing)) = (self.raft(), self.standing()) else {
            return Readmission::Elsewhere { leader: None };
        };
        if !self.leadership.borrow().leads {
            return Readmission::Elsewhere { leader: self.leader() };
        }
        let membership = raft.metrics().borrow_watched().membership_config.clone();
        if !self.config.members.contains_key(&newcomer) && membership.get_node(&newcomer).is_none() {
            let members: Vec<u64> = membership.nodes().map(|(id, _)| *id).collect();
            return Readmission::Refused {
                reason: format!("replica {newcomer} is no member of this cluster: expected one of {members:?}"),
            };
        }
        // A request that was delayed until the replica had returned must not remove it.
        match ask(&address).await {
            Ok(report) if report.replica == newcomer && report.stage == (Stage::Empty { life }) => {}
            Ok(report) => {
                return Readmission::Later {
                    reason: format!("{address} is replica {} and {:?}", report.replica, report.stage),
                };
            }
            Err(error) => return Readmission::Later { reason: format!("{address} does not answer: {error}") },
        }
        let _changing = self.changing.lock().await;
        match remove_completely(&raft, newcomer).await {
            Ok(floor) => Readmission::Admitted { cluster: standing.cluster, root: standing.root, floor },
            Err(reason) => Readmission::Later { reason },
        }
    }

    /// Makes a replica that was let in a learner, and a voter once it has caught up.
    pub(super) async fn join(&self, cluster: ClusterId, newcomer: u64, address: String) -> Joining {
        let raft = match self.raft_of(cluster) {
            Ok(raft) => raft,
            Err(refusal) => return Joining::Later { reason: refusal.to_string() },
        };
        let _changing = self.changing.lock().await;
        let seen = match see(&raft).await {
            Ok(seen) if seen.state == ServerState::Leader => seen,
            Ok(_) => return Joining::Elsewhere { leader: self.leader() },
            Err(reason) => return Joining::Later { reason },
        };
        let is_settled = seen.effective == seen.committed && seen.effective.get_joint_config().len() == 1;
        if is_settled && seen.effective.voter_ids().any(|voter| voter == newcomer) {
            return Joining::Voter;
        }
        let result = match seen.effective.get_node(&newcomer) {
            None => add_learner(&raft, newcomer, &address).await,
            Some(_) => {
                let (matched, last) = progress(&raft, newcomer);
                let is_caught_up = matched.is_some() && matched.unwrap_or(0) + CAUGHT_UP_ENTRIES >= last.unwrap_or(0);
                if !is_caught_up {
                    return Joining::CatchingUp { matched, last };
                }
                promote(&raft, newcomer).await
            }
        };
        match result {
            Ok(()) => {
                let (matched, last) = progress(&raft, newcomer);
                Joining::CatchingUp { matched, last }
            }
            Err(reason) => Joining::Later { reason },
        }
    }
}

fn progress(raft: &Raft, replica: u64) -> (Option<u64>, Option<u64>) {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let matched = metrics.replication.as_ref().and_then(|replication| (*replication.get(&replica)?).map(|id| id.index));
    (matched, metrics.last_log_index)
}

/// Removes a replica so that it counts in no configuration, and returns the vote below which it must not vote then:
/// this leader's, proven after the call.
async fn remove_completely(raft: &Raft, replica: u64) -> Result<Vote, String> {
    for _ in 0..REMOVAL_STEPS {
        raft.ensure_linearizable(ReadPolicy::ReadIndex).await.map_err(|error| error.to_string())?;
        let seen = see(raft).await?;
        if seen.state != ServerState::Leader {
            return Err("this replica does not lead any more".to_owned());
        }
        let is_settled = seen.effective == seen.committed && seen.effective.get_joint_config().len() == 1;
        let is_voter = seen.effective.voter_ids().any(|voter| voter == replica);
        if !is_settled && !is_voter {
            // A joint configuration without it, or one that is not committed: finish that.
            change(raft, ChangeMembers::AddVoterIds(BTreeSet::new()), true).await?;
        } else if is_voter {
            tracing::info!(replica, "removing a replica that lost its store");
            remove(raft, replica).await?;
        } else if seen.effective.get_node(&replica).is_some() {
            change(raft, ChangeMembers::RemoveNodes(BTreeSet::from([replica])), true).await?;
        } else {
            return Ok(seen.vote);
        }
    }
    Err(format!("the membership changes too often to remove replica {replica}"))
}

async fn change(raft: &Raft, changes: ChangeMembers<u64, BasicNode>, retain: bool) -> Result<(), String> {
    raft.change_membership(changes, retain).await.map(drop).map_err(|error| error.to_string())
}

/// Adds a learner; does not wait until it has caught up.
pub(super) async fn add_learner(raft: &Raft, replica: u64, address: &str) -> Result<(), String> {
    tracing::info!(replica, address, "adding a learner");
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

/// The members with their addresses, and whether the vote of each counts. While that changes, only who votes before and
/// after is a voter.
pub(super) fn members(membership: &StoredMembership) -> BTreeMap<u64, (String, bool)> {
    let configurations = membership.get_joint_config();
    let votes = |id: &u64| !configurations.is_empty() && configurations.iter().all(|voters| voters.contains(id));
    membership.nodes().map(|(id, node)| (*id, (node.addr.clone(), votes(id)))).collect()
}
