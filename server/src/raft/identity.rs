//! Whether a replica is started with the identity that its data folder has.
//!
//! The folder records the cluster's members: the latest membership in the log, or in the state.
//! `--cluster` and `--id` name them again at each start. The cluster's own record counts. So a
//! different option would have no effect, and the operator would not notice.
//! [`ReplicaNode::check_identity`] compares both before the replica takes part:
//!
//! - *This replica's address differs* → refused, because the others would not reach it. If both
//!   lists have only this replica, there are no others: a warning.
//! - *The list differs, and the members are those of the bootstrap* → refused: one list is wrong.
//! - *The list differs, and the members have changed since the bootstrap* → a warning: the list is
//!   outdated.
//!
//! The folder's replica id is compared when the store identity is read
//! ([`store_identity`](crate::store::store_identity)).

use std::collections::BTreeMap;

use openraft::{RaftLogReader, entry::RaftEntry};

use super::{error::ReplicaStartError, node::ReplicaNode, types::alias::StoredMembership};
use crate::store::store_identity::ClusterId;

/// The index of the entry that bootstraps a cluster.
const BOOTSTRAP_INDEX: u64 = 0;

/// Members and their addresses.
type MemberAddresses = BTreeMap<u64, String>;

/// How the configuration differs from the stored membership.
#[derive(Debug, Clone, PartialEq, Eq)]
enum IdentityDifference {
    /// This replica's address differs: recorded, configured.
    Address(String, String),
    /// The members of the bootstrap differ.
    Members,
    /// The members have changed since the bootstrap, and the configuration differs from them.
    Outdated,
    /// A cluster of one has another address: recorded, configured.
    Alone(String, String),
}

/// Compares the configured members with the stored ones. `is_bootstrap` says whether the stored
/// ones are those of the bootstrap.
fn compare(
    id: u64,
    configured: &MemberAddresses,
    stored: &MemberAddresses,
    is_bootstrap: bool,
) -> Option<IdentityDifference> {
    if stored.is_empty() || configured == stored {
        return None;
    }
    if let (Some(recorded), Some(address)) = (stored.get(&id), configured.get(&id))
        && recorded != address
    {
        let (recorded, address) = (recorded.clone(), address.clone());
        let is_alone = stored.len() == 1 && configured.len() == 1;
        return Some(if is_alone {
            IdentityDifference::Alone(recorded, address)
        } else {
            IdentityDifference::Address(recorded, address)
        });
    }
    Some(if is_bootstrap { IdentityDifference::Members } else { IdentityDifference::Outdated })
}

/// The members in the format of `--cluster`.
fn listed(members: &MemberAddresses) -> String {
    let members: Vec<String> = members.iter().map(|(id, address)| format!("{id}={address}")).collect();
    members.join(",")
}

impl ReplicaNode {
    /// Compares the stored membership with the configuration.
    ///
    /// # Errors
    ///
    /// - [`ReplicaStartError::Address`], [`ReplicaStartError::Members`]: they contradict each
    ///   other.
    /// - [`ReplicaStartError::Store`]: the log cannot be read.
    pub(super) async fn check_identity(&self) -> Result<(), ReplicaStartError> {
        let Some(identity) = self.identity() else { return Ok(()) };
        let membership = self.stored_membership().await.map_err(ReplicaStartError::Store)?;
        let stored: MemberAddresses = membership.nodes().map(|(id, node)| (*id, node.addr.clone())).collect();
        let is_bootstrap = membership.log_id().is_none_or(|log_id| log_id.index == BOOTSTRAP_INDEX);
        let configured = &self.config.members;
        let (id, dir, cluster) = (self.config.id, self.config.dir.clone(), identity.cluster);
        match compare(id, configured, &stored, is_bootstrap) {
            None => Ok(()),
            Some(IdentityDifference::Address(recorded, configured)) => {
                Err(ReplicaStartError::Address { dir, replica: id, cluster, recorded, configured })
            }
            Some(IdentityDifference::Members) => Err(ReplicaStartError::Members {
                dir,
                cluster,
                recorded: listed(&stored),
                configured: listed(configured),
            }),
            Some(IdentityDifference::Alone(recorded, configured)) => {
                warn_alone(cluster, &recorded, &configured);
                Ok(())
            }
            Some(IdentityDifference::Outdated) => {
                warn_outdated(cluster, &listed(&stored), &listed(configured));
                Ok(())
            }
        }
    }

    /// The latest stored membership, committed or not: the one that Raft starts with.
    async fn stored_membership(&self) -> std::io::Result<StoredMembership> {
        let (applied, mut membership) = self.stored_state();
        let mut log = self.log.clone();
        let mut next = applied.map_or(0, |applied| applied + 1);
        if let Some(purged) = self.log.purged() {
            next = next.max(purged.index + 1);
        }
        let end = self.log.last_and_vote().0.map_or(0, |last| last.index + 1);
        while next < end {
            let entries = log.limited_get_log_entries(next, end).await?;
            let Some(last) = entries.last() else { break };
            next = last.log_id.index + 1;
            for entry in &entries {
                if let Some(members) = entry.get_membership() {
                    membership = StoredMembership::new(Some(entry.log_id), members);
                }
            }
        }
        Ok(membership)
    }
}

fn warn_alone(cluster: ClusterId, recorded: &str, configured: &str) {
    tracing::warn!(
        %cluster,
        recorded,
        configured,
        "this cluster of one has recorded another address than it is started with: the recorded one goes on to be \
         named to clients; to change it, export the data, empty the folder, start again and import the data"
    );
}

fn warn_outdated(cluster: ClusterId, recorded: &str, configured: &str) {
    tracing::warn!(
        %cluster,
        recorded,
        configured,
        "--cluster differs from the members that this cluster has now: the recorded members count; start the replica \
         with these in --cluster"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(list: &[(u64, &str)]) -> MemberAddresses {
        list.iter().map(|(id, address)| (*id, (*address).to_owned())).collect()
    }

    #[test]
    fn equal_members_and_an_empty_store_differ_in_nothing() {
        let three = members(&[(1, "a:1"), (2, "b:1"), (3, "c:1")]);
        assert_eq!(compare(1, &three, &three, true), None);
        assert_eq!(compare(1, &three, &MemberAddresses::new(), true), None);
    }

    #[test]
    fn other_members_than_at_the_founding_are_refused() {
        let (one, three) = (members(&[(1, "a:1")]), members(&[(1, "a:1"), (2, "b:1"), (3, "c:1")]));
        assert_eq!(compare(1, &three, &one, true), Some(IdentityDifference::Members));
        assert_eq!(compare(1, &one, &three, true), Some(IdentityDifference::Members));
        assert_eq!(compare(1, &one, &three, false), Some(IdentityDifference::Outdated), "they have changed since");
    }

    #[test]
    fn another_address_of_its_own_is_refused_unless_it_is_alone() {
        let (two, moved) = (members(&[(1, "a:1"), (2, "b:1")]), members(&[(1, "a:2"), (2, "b:1")]));
        let differs = ("a:1".to_owned(), "a:2".to_owned());
        for is_bootstrap in [true, false] {
            let difference = compare(1, &moved, &two, is_bootstrap);
            assert_eq!(difference, Some(IdentityDifference::Address(differs.0.clone(), differs.1.clone())));
        }
        let (one, alone) = (members(&[(1, "a:1")]), members(&[(1, "a:2")]));
        assert_eq!(compare(1, &alone, &one, true), Some(IdentityDifference::Alone(differs.0, differs.1)));
    }

    #[test]
    fn removed_replica_with_the_old_list_is_only_warned() {
        let (two, three) = (members(&[(1, "a:1"), (2, "b:1")]), members(&[(1, "a:1"), (2, "b:1"), (3, "c:1")]));
        assert_eq!(compare(3, &three, &two, false), Some(IdentityDifference::Outdated));
    }
}
