//! The object leases of volumes with a [lease limit](crate::volume::VolumeSettings::lease_limit),
//! in the order in which they end.
//!
//! Owns the order, and how many leases of each volume are in it. A lease that the leader recalls
//! to keep the limit leaves the order at once. Some leases in it may have ended. Does not know
//! what the limit is, nor whether a lease is valid.

use std::collections::BTreeMap;

use crate::{id::SessionId, object::Object, path::NodePath, time::ClusterTime, work::CountVisits};

/// A position in the order: the volume, the end of the lease, and a number that grows with each
/// grant. So leases without an end are in the order of their last grants.
type EndPosition = (NodePath, ClusterTime, u64);

/// The order, with an index by lease and the number of leases of each volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct EndOrder {
    leases: BTreeMap<EndPosition, (Object, SessionId)>,
    positions: BTreeMap<(Object, SessionId), EndPosition>,
    counts: BTreeMap<NodePath, usize>,
    last: u64,
}

impl EndOrder {
    /// About how much memory a lease takes in the two tables.
    pub(super) const LEASE_BYTES: usize = 2 * size_of::<(EndPosition, (Object, SessionId))>();

    /// Puts a lease in its position.
    pub(super) fn insert(&mut self, volume: &NodePath, lease: (Object, SessionId), expires_at: ClusterTime) {
        self.remove(&lease);
        self.last += 1;
        let position = (volume.clone(), expires_at, self.last);
        self.leases.insert(position.clone(), lease.clone());
        self.positions.insert(lease, position);
        *self.counts.entry(volume.clone()).or_default() += 1;
    }

    /// Removes a lease, if it is in the order.
    pub(super) fn remove(&mut self, lease: &(Object, SessionId)) {
        let Some(position) = self.positions.remove(lease) else { return };
        self.leases.remove(&position);
        if let Some(count) = self.counts.get_mut(&position.0) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&position.0);
            }
        }
    }

    /// Whether no volume has leases in the order: most clusters have no limit.
    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// The number of leases of the volume.
    pub(super) fn count_in(&self, volume: &NodePath) -> usize {
        self.counts.get(volume).copied().unwrap_or_default()
    }

    /// The leases of the volume, those that end first before the others.
    pub(super) fn first_in(&self, volume: &NodePath) -> impl Iterator<Item = &(Object, SessionId)> {
        let from_first = self.leases.range((volume.clone(), ClusterTime::ZERO, 0)..);
        from_first.take(self.count_in(volume)).map(|(_, lease)| lease).counted()
    }

    /// The number of leases in the order.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Checks that the tables agree, and that `is_in_memory` holds for each lease.
    pub(super) fn check(&self, is_in_memory: impl Fn(&(Object, SessionId)) -> bool) -> Result<(), String> {
        let is_listed =
            |(position, lease): (&EndPosition, &(Object, SessionId))| self.positions.get(lease) == Some(position);
        let counted: usize = self.counts.values().sum();
        if !self.leases.iter().all(is_listed)
            || self.positions.len() != self.leases.len()
            || counted != self.leases.len()
        {
            return Err("the tables of the order of ends differ".to_owned());
        }
        match self.positions.keys().find(|lease| !is_in_memory(lease)) {
            Some((object, session)) => {
                Err(format!("{session} has no lease on {object}, and it is in the order of ends"))
            }
            None => Ok(()),
        }
    }
}
