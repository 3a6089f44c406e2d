//! Indexes the waits of pending writes by the event that ends each: a consent, the end of a volume
//! lease, or a time.

use std::collections::BTreeSet;

use crate::{
    id::{Incarnation, SessionId, Stamp},
    path::NodePath,
    time::ClusterTime,
    work::{CountVisits, visit},
};

use super::{ConsentWait, PendingWriteId};

/// All waits. A write has at most one wait for each session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::lessor) struct ConsentWaits {
    by_stamp: BTreeSet<(SessionId, Stamp, PendingWriteId)>,
    by_lease: BTreeSet<(SessionId, NodePath, Incarnation, PendingWriteId)>,
    by_expiry: BTreeSet<(ClusterTime, SessionId, PendingWriteId)>,
}

impl ConsentWaits {
    pub(in crate::lessor) fn insert(&mut self, write_id: PendingWriteId, session: SessionId, wait: &ConsentWait) {
        visit(1 + wait.leases.len());
        self.by_stamp.extend(wait.stamp.map(|stamp| (session, stamp, write_id)));
        self.by_lease.extend(wait.leases.iter().map(|(volume, lease)| (session, volume.clone(), *lease, write_id)));
        self.by_expiry.extend(wait.expires_at.map(|expires_at| (expires_at, session, write_id)));
    }

    pub(in crate::lessor) fn remove(&mut self, write_id: PendingWriteId, session: SessionId, wait: &ConsentWait) {
        visit(1 + wait.leases.len());
        if let Some(stamp) = wait.stamp {
            self.by_stamp.remove(&(session, stamp, write_id));
        }
        for (volume, lease) in &wait.leases {
            self.by_lease.remove(&(session, volume.clone(), *lease, write_id));
        }
        if let Some(expires_at) = wait.expires_at {
            self.by_expiry.remove(&(expires_at, session, write_id));
        }
    }

    /// The writes that wait for the session's consent to this recall.
    pub(in crate::lessor) fn of_stamp(&self, session: SessionId, stamp: Stamp) -> Vec<PendingWriteId> {
        let found = self.by_stamp.range((session, stamp, 0)..=(session, stamp, PendingWriteId::MAX)).counted();
        found.map(|(_, _, write_id)| *write_id).collect()
    }

    /// The writes that wait because of copies that the session may have under its present or
    /// earlier leases on the volume.
    pub(in crate::lessor) fn of_volume(&self, session: SessionId, volume: &NodePath) -> Vec<PendingWriteId> {
        let first = (session, volume.clone(), Incarnation(0), 0);
        let last = (session, volume.clone(), Incarnation(u64::MAX), PendingWriteId::MAX);
        self.by_lease.range(first..=last).counted().map(|(_, _, _, write_id)| *write_id).collect()
    }

    /// The waits for object leases that have ended.
    pub(in crate::lessor) fn expired(&self, now: ClusterTime) -> Vec<(SessionId, PendingWriteId)> {
        let expired = self.by_expiry.iter().take_while(|(expires_at, ..)| *expires_at <= now).counted();
        expired.map(|(_, session, write_id)| (*session, *write_id)).collect()
    }

    /// When the next wait for object leases ends.
    pub(in crate::lessor) fn next_expiry(&self) -> Option<ClusterTime> {
        self.by_expiry.first().map(|(expires_at, ..)| *expires_at)
    }

    #[cfg(test)]
    pub(in crate::lessor) fn size(&self) -> usize {
        self.by_stamp.len() + self.by_lease.len() + self.by_expiry.len()
    }
}
