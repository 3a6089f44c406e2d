//! The object leases of volumes with a [lease limit](crate::volume::VolumeSettings::lease_limit),
//! in the order of their last grants.
//!
//! The leader does not see reads that a client answers from memory. So the least recently granted
//! lease is the best guess which lease is used least.
//!
//! This module does not know whether a lease is valid, nor what the limit is.

use std::collections::BTreeMap;

use crate::{id::SessionId, object::Object, path::NodePath, work::CountVisits};

/// A place in the order: the volume, and a number that grows with each grant.
type Place = (NodePath, u64);

/// The leases in memory of all volumes with a limit, except those that the leader has recalled to
/// make room.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct GrantOrder {
    leases: BTreeMap<Place, (Object, SessionId)>,
    places: BTreeMap<(Object, SessionId), Place>,
    last: u64,
}

impl GrantOrder {
    /// Puts a lease that was granted just now behind all others of its volume.
    pub(super) fn note_grant(&mut self, volume: &NodePath, object: &Object, session: SessionId) {
        self.remove(object, session);
        self.last += 1;
        let (place, lease) = ((volume.clone(), self.last), (object.clone(), session));
        self.leases.insert(place.clone(), lease.clone());
        self.places.insert(lease, place);
    }

    /// Removes a lease that is no longer in memory, or is recalled to make room.
    pub(super) fn remove(&mut self, object: &Object, session: SessionId) {
        // Most clusters have no limit, and this is part of each removal of a lease.
        if self.places.is_empty() {
            return;
        }
        if let Some(place) = self.places.remove(&(object.clone(), session)) {
            self.leases.remove(&place);
        }
    }

    /// The leases of the volume, the least recently granted one first.
    pub(super) fn oldest_in(&self, volume: &NodePath) -> impl Iterator<Item = &(Object, SessionId)> {
        let all = self.leases.range((volume.clone(), 0)..=(volume.clone(), u64::MAX));
        all.map(|(_, lease)| lease).counted()
    }

    /// The number of leases in the order.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Checks that both tables agree, and that `is_in_memory` holds for each lease.
    pub(super) fn check(&self, is_in_memory: impl Fn(&(Object, SessionId)) -> bool) -> Result<(), String> {
        let agree = self.leases.iter().all(|(place, lease)| self.places.get(lease) == Some(place));
        if !agree || self.leases.len() != self.places.len() {
            return Err("the order of grants by place and by lease differ".to_owned());
        }
        match self.places.keys().find(|lease| !is_in_memory(lease)) {
            Some((object, session)) => {
                Err(format!("{session} has no lease on {object}, and it is in the order of grants"))
            }
            None => Ok(()),
        }
    }
}
