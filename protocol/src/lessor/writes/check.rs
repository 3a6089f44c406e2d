//! Checks that the tables of pending writes agree, and the order in which writes wait (S3). Tests
//! run these checks after every step.

use std::collections::{BTreeMap, BTreeSet};

use super::{PendingWrite, PendingWriteId, PendingWrites, waits::ConsentWaits};

/// The most blocking writes that `check_order` checks. With more it checks none, because it
/// compares each write with all others.
const MANY_WRITES: usize = 32;

impl PendingWrites {
    /// Checks that the tables agree.
    pub(in crate::lessor) fn check(&self) -> Result<(), String> {
        let mut waits = ConsentWaits::default();
        for (write_id, pending) in &self.pending {
            pending.waits.iter().for_each(|(session, wait)| waits.insert(*write_id, *session, wait));
            if pending.path().is_some_and(|path| !self.by_path.contains(&(path.clone(), *write_id))) {
                return Err(format!("write {write_id} is not in the index by path"));
            }
            if pending.request().is_some_and(|request| self.by_request.get(&request) != Some(write_id)) {
                return Err(format!("write {write_id} is not in the index by request"));
            }
            self.revocations.check(*write_id, pending)?;
            self.check_ahead(*write_id, pending)?;
            self.check_revocations_ahead(*write_id, pending)?;
        }
        if waits != self.waits {
            return Err("the indexes of waits do not match the writes".to_owned());
        }
        if let Some((write_id, pending)) =
            self.pending.iter().find(|(_, pending)| pending.bytes != pending.expected_bytes())
        {
            let (got, expected) = (pending.bytes, pending.expected_bytes());
            return Err(format!("write {write_id} is counted as {got} bytes: expected {expected}"));
        }
        let bytes: usize = self.pending.values().map(|pending| pending.bytes).sum();
        if self.bytes != bytes {
            return Err(format!("the writes are counted as {} bytes: expected {bytes}", self.bytes));
        }
        let expected = |count: fn(&PendingWrite) -> usize| self.pending.values().map(count).sum::<usize>();
        if (self.behind.pairs(), self.behind_revocations.pairs())
            != (expected(|pending| pending.ahead.len()), expected(|pending| pending.revocations_ahead.len()))
        {
            return Err("the indexes `behind` and `behind_revocations` do not match the writes".to_owned());
        }
        self.queues.check(&self.pending)
    }

    /// Checks that each write ahead will release this one.
    fn check_ahead(&self, write_id: PendingWriteId, pending: &PendingWrite) -> Result<(), String> {
        for other in &pending.ahead {
            let waits_behind = self.behind.contains(*other, write_id);
            if *other >= write_id || !waits_behind || !self.pending.get(other).is_some_and(PendingWrite::blocks_later) {
                return Err(format!("write {write_id} waits behind {other}, which will not release it"));
            }
        }
        Ok(())
    }

    /// Checks that the write waits for each revocation that it must, and that each will release it.
    fn check_revocations_ahead(&self, write_id: PendingWriteId, pending: &PendingWrite) -> Result<(), String> {
        let leases = pending.attaching_leases().iter();
        let mut revocations = leases.filter_map(|lease| self.revocations.last_of(*lease, write_id));
        let passes = |other: &PendingWriteId| !pending.is_proposed && !pending.revocations_ahead.contains(other);
        if let Some(other) = revocations.find(passes) {
            return Err(format!("write {write_id} attaches nodes to a lease that {other} revokes, and passes it"));
        }
        let blocks = |other: &PendingWriteId| {
            self.behind_revocations.contains(*other, write_id)
                && self.pending.get(other).is_some_and(PendingWrite::blocks_later)
        };
        if let Some(other) = pending.revocations_ahead.iter().find(|other| !blocks(other)) {
            return Err(format!("write {write_id} waits for revocation {other}, which will not release it"));
        }
        Ok(())
    }

    /// Checks that a write waits, directly or behind others, for each earlier one that shares an
    /// object with it (S3).
    pub(in crate::lessor) fn check_order(&self) -> Result<(), String> {
        let blocking = || self.pending.iter().filter(|(_, pending)| pending.blocks_later());
        if blocking().nth(MANY_WRITES).is_some() {
            return Ok(());
        }
        let mut behind: BTreeMap<PendingWriteId, BTreeSet<PendingWriteId>> = BTreeMap::new();
        for (write_id, pending) in blocking() {
            let mut all = pending.ahead.clone();
            all.extend(pending.ahead.iter().filter_map(|other| behind.get(other)).flatten());
            let shares = |sets: &[_]| pending.footprint.iter().any(|set| sets.iter().any(|other| set.overlaps(other)));
            let mut earlier = blocking().take_while(|(other, _)| *other < write_id);
            if let Some((other, _)) =
                earlier.find(|(other, earlier)| !all.contains(other) && shares(&earlier.footprint))
                && !pending.passes()
            {
                return Err(format!("write {write_id} does not wait for the earlier write {other}"));
            }
            behind.insert(*write_id, all);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PendingWrite, WriteKind};
    use super::*;
    use crate::{
        object::{Object, ObjectSet},
        path::NodePath,
        time::Instant,
    };

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("a valid path")
    }

    fn one(text: &str) -> ObjectSet {
        ObjectSet::One(Object::data(path(text)))
    }

    fn subtree(text: &str) -> ObjectSet {
        ObjectSet::Subtree(path(text))
    }

    /// Adds a write of each set, in order. Returns their ids.
    fn enter<const N: usize>(writes: &mut PendingWrites, sets: [ObjectSet; N]) -> [PendingWriteId; N] {
        let write_ids = sets
            .map(|set| writes.enter(PendingWrite::new(WriteKind::Purge(BTreeSet::new()), vec![set], Instant::ZERO)));
        assert_eq!(writes.check_order(), Ok(()));
        write_ids
    }

    #[test]
    fn subtree_writes_wait_for_earlier_writes_inside() {
        let mut writes = PendingWrites::default();
        enter(&mut writes, [subtree("/a/b"), subtree("/a"), one("/a/b/c"), subtree("/"), one("/a/x"), subtree("/a")]);
        let mut writes = PendingWrites::default();
        enter(&mut writes, [one("/a/x"), one("/a/y"), subtree("/"), one("/a/y"), one("/b"), subtree("/a")]);
    }

    #[test]
    fn later_writes_wait_for_a_write_that_gathers_again() {
        for first in [one("/a/x"), subtree("/a"), subtree("/a/x"), subtree("/")] {
            let mut writes = PendingWrites::default();
            let [write_id, ..] =
                enter(&mut writes, [first, one("/a/x"), one("/a/x"), subtree("/a/x"), subtree("/a"), one("/b")]);
            writes.proposed(write_id);
            assert_eq!(writes.check_order(), Ok(()));
            writes.set_footprint(write_id, vec![subtree("/a")]);
            assert_eq!(writes.check_order(), Ok(()));
            writes.proposed(write_id);
            writes.set_footprint(write_id, vec![one("/a/x")]);
            assert_eq!(writes.check_order(), Ok(()));
        }
    }
}
