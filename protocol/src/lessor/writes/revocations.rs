//! The pending writes that remove the nodes of leases, and those that attach nodes, by lease (S7b).
//!
//! Owns these indexes. Guarantees the order of the writes of one lease: it names the last
//! revocation or purge that a write with an attachment must wait for, and the attachments that a
//! revocation or purge must wait for. Does not know the writes, nor whether they wait.

use std::collections::BTreeSet;

use crate::{id::Incarnation, work::CountVisits};

use super::{PendingWrite, PendingWriteId};

type LeaseIndex = BTreeSet<(Incarnation, PendingWriteId)>;

/// The writes of each lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Revocations {
    /// The leases whose nodes pending writes remove, with the write.
    purging: LeaseIndex,
    /// The entries of `purging` whose write is not proposed.
    purging_unproposed: LeaseIndex,
    /// The entries of `purging` whose write `was_uncovered`.
    purging_uncovered: LeaseIndex,
    /// The `attaching_leases` of unproposed writes, with the write.
    attaching: LeaseIndex,
}

impl Revocations {
    /// Adds a write that is not proposed, or is to be proposed again.
    pub(super) fn enter(&mut self, write_id: PendingWriteId, pending: &PendingWrite) {
        add(&mut self.purging, pending.purged_leases(), write_id);
        add(&mut self.purging_unproposed, pending.purged_leases(), write_id);
        add(&mut self.attaching, pending.attaching_leases(), write_id);
    }

    /// Marks a write as proposed.
    pub(super) fn proposed(&mut self, write_id: PendingWriteId, pending: &PendingWrite) {
        take_out(&mut self.attaching, pending.attaching_leases(), write_id);
        take_out(&mut self.purging_unproposed, pending.purged_leases(), write_id);
    }

    /// Marks a write as uncovered. It blocks writes that attach nodes until it leaves.
    pub(super) fn uncovered(&mut self, write_id: PendingWriteId, pending: &PendingWrite) {
        add(&mut self.purging_uncovered, pending.purged_leases(), write_id);
    }

    pub(super) fn leave(&mut self, write_id: PendingWriteId, pending: &PendingWrite) {
        self.proposed(write_id, pending);
        take_out(&mut self.purging_uncovered, pending.purged_leases(), write_id);
        take_out(&mut self.purging, pending.purged_leases(), write_id);
    }

    /// Whether any pending write removes the nodes of a lease.
    pub(super) fn is_purging(&self) -> bool {
        !self.purging.is_empty()
    }

    /// Whether a pending write removes the nodes of the lease.
    pub(super) fn is_purging_lease(&self, lease: Incarnation) -> bool {
        ids_of(&self.purging, lease, 0, PendingWriteId::MAX).next().is_some()
    }

    /// The earlier unproposed writes that a revocation or purge of these leases must wait for: for
    /// each lease the last revocation or purge, and the later writes that attach nodes.
    pub(super) fn ahead(&self, purged: &BTreeSet<Incarnation>, write_id: PendingWriteId) -> BTreeSet<PendingWriteId> {
        let mut ahead = BTreeSet::new();
        for lease in purged {
            let last = ids_of(&self.purging_unproposed, *lease, 0, write_id).next_back();
            ahead.extend(last);
            ahead.extend(ids_of(&self.attaching, *lease, last.unwrap_or_default(), write_id).counted());
        }
        ahead
    }

    /// Of the revocations and purges of the lease with ids below `before`, the last one that blocks
    /// writes which attach nodes.
    pub(super) fn last_of(&self, lease: Incarnation, before: PendingWriteId) -> Option<PendingWriteId> {
        let last = |index| ids_of(index, lease, 0, before).next_back();
        last(&self.purging_unproposed).max(last(&self.purging_uncovered))
    }

    /// The unproposed writes, from id `from` on, that attach nodes to these leases.
    pub(super) fn attaching_to(
        &self,
        leases: &BTreeSet<Incarnation>,
        from: PendingWriteId,
    ) -> impl Iterator<Item = PendingWriteId> {
        leases.iter().flat_map(move |lease| ids_of(&self.attaching, *lease, from, PendingWriteId::MAX)).counted()
    }

    /// The number of entries of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [(&'static str, usize); 3] {
        [
            ("purged leases", self.purging.len()),
            ("revocations", self.purging_unproposed.len() + self.purging_uncovered.len()),
            ("attachments", self.attaching.len()),
        ]
    }

    /// Checks that the indexes have this write where they must.
    pub(super) fn check(&self, write_id: PendingWriteId, pending: &PendingWrite) -> Result<(), String> {
        let is_in = |index: &LeaseIndex, lease: &Incarnation| index.contains(&(*lease, write_id));
        let is_indexed = pending.purged_leases().iter().all(|lease| {
            is_in(&self.purging, lease)
                && is_in(&self.purging_unproposed, lease) != pending.is_proposed
                && is_in(&self.purging_uncovered, lease) == pending.was_uncovered
        });
        if !is_indexed
            || pending.attaching_leases().iter().any(|lease| is_in(&self.attaching, lease) == pending.is_proposed)
        {
            return Err(format!("write {write_id} is not in the indexes by lease"));
        }
        Ok(())
    }
}

/// The writes of an index for this lease, with ids from `from` on and below `before`.
fn ids_of(
    index: &LeaseIndex,
    lease: Incarnation,
    from: PendingWriteId,
    before: PendingWriteId,
) -> impl DoubleEndedIterator<Item = PendingWriteId> {
    index.range((lease, from)..(lease, before)).map(|(_, write_id)| *write_id)
}

fn add(index: &mut LeaseIndex, leases: &BTreeSet<Incarnation>, write_id: PendingWriteId) {
    index.extend(leases.iter().map(|lease| (*lease, write_id)));
}

fn take_out(index: &mut LeaseIndex, leases: &BTreeSet<Incarnation>, write_id: PendingWriteId) {
    for lease in leases {
        index.remove(&(*lease, write_id));
    }
}
