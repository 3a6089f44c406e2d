//! Checks the order in which writes wait (S3). Tests run this check after every step.

use std::collections::{BTreeMap, BTreeSet};

use super::{PendingWriteId, PendingWrites};

/// The check compares each write with all others, so it is skipped with more unproposed writes.
const MANY_WRITES: usize = 32;

impl PendingWrites {
    /// Checks that a write waits, directly or behind others, for each earlier one that shares an
    /// object with it (S3).
    pub(in crate::lessor) fn check_order(&self) -> Result<(), String> {
        let unproposed = || self.pending.iter().filter(|(_, pending)| !pending.is_proposed);
        if unproposed().nth(MANY_WRITES).is_some() {
            return Ok(());
        }
        let mut behind: BTreeMap<PendingWriteId, BTreeSet<PendingWriteId>> = BTreeMap::new();
        for (write_id, pending) in unproposed() {
            let mut all = pending.ahead.clone();
            all.extend(pending.ahead.iter().filter_map(|other| behind.get(other)).flatten());
            let shares = |sets: &[_]| pending.footprint.iter().any(|set| sets.iter().any(|other| set.overlaps(other)));
            let mut earlier = unproposed().take_while(|(other, _)| *other < write_id);
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
    fn footprint_bytes_count_paths_and_queue_entries() {
        let footprint = [one("/a/x"), subtree("/b")];
        assert_eq!(super::super::footprint_bytes(&footprint), 2 * super::super::SET_BYTES + 4 + 2);
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
