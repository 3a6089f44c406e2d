//! In which order writes wait. Run by tests after every step.

use std::collections::{BTreeMap, BTreeSet};

use super::{PendingWriteId, PendingWrites};

/// With more writes that wait this is not looked at: each is compared with all.
const MANY_WRITES: usize = 32;

impl PendingWrites {
    /// A write waits behind each that came first and shares an object with it, itself or behind
    /// others (S3).
    pub(in crate::lessor) fn check_order(&self) -> Result<(), String> {
        let waiting = || self.pending.iter().filter(|(_, pending)| !pending.is_proposed);
        if waiting().nth(MANY_WRITES).is_some() {
            return Ok(());
        }
        let mut behind: BTreeMap<PendingWriteId, BTreeSet<PendingWriteId>> = BTreeMap::new();
        for (turn, pending) in waiting() {
            let mut all = pending.ahead.clone();
            all.extend(pending.ahead.iter().filter_map(|other| behind.get(other)).flatten());
            let shares = |sets: &[_]| pending.covers.iter().any(|own| sets.iter().any(|set| own.overlaps(set)));
            let mut first = waiting().take_while(|(other, _)| *other < turn);
            if let Some((other, _)) = first.find(|(other, one)| !all.contains(other) && shares(&one.covers))
                && !pending.passes()
            {
                return Err(format!("write {turn} does not wait behind {other}, which came first"));
            }
            behind.insert(*turn, all);
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

    /// Writes of these sets, one after the other. Their turns.
    fn enter<const N: usize>(writes: &mut PendingWrites, sets: [ObjectSet; N]) -> [PendingWriteId; N] {
        let turns = sets
            .map(|set| writes.enter(PendingWrite::new(WriteKind::Purge(BTreeSet::new()), vec![set], Instant::ZERO)));
        assert_eq!(writes.check_order(), Ok(()));
        turns
    }

    #[test]
    fn bytes_of_covers_are_those_of_their_paths_and_places() {
        let covers = [one("/a/x"), subtree("/b")];
        assert_eq!(super::super::covers_bytes(&covers), 2 * super::super::SET_BYTES + 4 + 2);
    }

    #[test]
    fn writes_of_subtrees_wait_for_what_came_first_inside() {
        let mut writes = PendingWrites::default();
        enter(&mut writes, [subtree("/a/b"), subtree("/a"), one("/a/b/c"), subtree("/"), one("/a/x"), subtree("/a")]);
        let mut writes = PendingWrites::default();
        enter(&mut writes, [one("/a/x"), one("/a/y"), subtree("/"), one("/a/y"), one("/b"), subtree("/a")]);
    }

    #[test]
    fn write_that_gathers_again_is_waited_for_again() {
        for first in [one("/a/x"), subtree("/a"), subtree("/a/x"), subtree("/")] {
            let mut writes = PendingWrites::default();
            let [turn, ..] =
                enter(&mut writes, [first, one("/a/x"), one("/a/x"), subtree("/a/x"), subtree("/a"), one("/b")]);
            writes.proposed(turn);
            assert_eq!(writes.check_order(), Ok(()));
            writes.cover(turn, vec![subtree("/a")]);
            assert_eq!(writes.check_order(), Ok(()));
            writes.proposed(turn);
            writes.cover(turn, vec![one("/a/x")]);
            assert_eq!(writes.check_order(), Ok(()));
        }
    }
}
