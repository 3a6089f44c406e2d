//! A replica that was removed from its cluster logs that.
//!
//! Raft does not notify a removed replica. The leader sends it nothing from the removing entry on,
//! and its own log may end before that entry. To the replica it looks as if there were no leader.
//! So a replica that has heard from no leader for a while asks the others which members they know,
//! and logs the answer. It changes nothing: Raft has removed it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    link::ask,
    machine::Raft,
    node::{ReplicaNode, known},
    notice::Notice,
    peer::{KnownMembers, ReplicaStage},
};
use crate::store::store_identity::{ClusterId, Participation};

/// How often a replica without a leader asks the others.
const ASK_EVERY: Duration = Duration::from_secs(2);

impl ReplicaNode {
    /// Checks whether this replica was removed, until it is closed.
    pub(super) async fn watch_removal(self: Arc<Self>, raft: Raft) {
        let mut notice = Notice::default();
        let mut heard = self.messages.load(Ordering::Relaxed);
        loop {
            tokio::select! {
                () = tokio::time::sleep(ASK_EVERY.max(self.config.timings.election_max * 4)) => {}
                () = self.closing.cancelled() => return,
            }
            let messages = self.messages.load(Ordering::Relaxed);
            let is_silent = messages == std::mem::replace(&mut heard, messages);
            // A rejoining replica is not a member yet.
            let is_returning = self
                .identity()
                .is_none_or(|identity| matches!(identity.participation, Participation::Rejoining { .. }));
            if !is_silent || is_returning || self.leadership.borrow().is_leader {
                notice.ends();
                self.removed.lock().take();
                continue;
            }
            let Some(cluster) = self.cluster() else { continue };
            let Some(removed) = self.removal(cluster, &known(&raft)).await else { continue };
            *self.removed.lock() = Some(removed.clone());
            if notice.is_due(removed.entry, Instant::now()) {
                let members: Vec<String> = removed.members.iter().map(|(id, at)| format!("{id}={at}")).collect();
                tracing::warn!(
                    replica = self.config.id,
                    %cluster,
                    entry = removed.entry,
                    members = members.join(","),
                    "this replica was removed from its cluster, by the membership of this entry, and serves nobody: \
                     stop it; to take part again, empty its folder and start it at its recorded address"
                );
            }
        }
    }

    /// The membership without this replica, if another replica knows one.
    async fn removal(&self, cluster: ClusterId, own: &KnownMembers) -> Option<KnownMembers> {
        let asked = self.others().into_values().map(|address| async move { ask(&address).await.ok() });
        let reports = futures::future::join_all(asked).await;
        let theirs = reports.into_iter().flatten().filter_map(|report| match report.stage {
            ReplicaStage::Started { cluster: its, known, .. } if its == cluster => Some(known),
            _ => None,
        });
        removing((self.config.id, self.address()), own, theirs.collect())
    }
}

/// The latest membership that others know, if it removes this replica. It does if it is later than
/// this replica's own, and lacks this replica or has it at another address.
fn removing((id, address): (u64, &str), own: &KnownMembers, theirs: Vec<KnownMembers>) -> Option<KnownMembers> {
    let latest = theirs.into_iter().max_by_key(|known| known.entry)?;
    let is_there = latest.members.get(&id).is_some_and(|recorded| recorded == address);
    (latest.entry > own.entry && !is_there).then_some(latest)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn known(entry: u64, members: &[u64]) -> KnownMembers {
        let members: BTreeMap<u64, String> = members.iter().map(|id| (*id, format!("host{id}:1"))).collect();
        KnownMembers { entry: Some(entry), members }
    }

    #[test]
    fn later_membership_without_the_replica_removes_it() {
        let own = known(4, &[1, 2, 3]);
        let removing = |id: u64, own: &KnownMembers, theirs| removing((id, &format!("host{id}:1")), own, theirs);
        assert_eq!(removing(3, &own, vec![known(4, &[1, 2, 3]), known(9, &[1, 2])]), Some(known(9, &[1, 2])));
        assert_eq!(removing(3, &own, vec![known(9, &[1, 2, 3])]), None, "it is only cut off");
        assert_eq!(removing(3, &own, vec![known(2, &[1, 2])]), None, "it was added since");
        assert_eq!(removing(3, &own, vec![known(7, &[1, 2]), known(9, &[1, 2, 3])]), None, "it was let in again");
        assert_eq!(removing(3, &own, Vec::new()), None, "nobody answers");
    }

    #[test]
    fn later_membership_with_another_address_removes_it() {
        let (own, later) = (known(4, &[1, 2, 3]), known(9, &[1, 2, 3]));
        assert_eq!(removing((3, "host4:1"), &own, vec![later.clone()]), Some(later.clone()));
        assert_eq!(removing((3, "host3:1"), &own, vec![later]), None);
    }
}
