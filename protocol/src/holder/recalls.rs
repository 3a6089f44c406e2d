//! Handles recalls: drops copies, consents, remembers the recalls that can still overtake a grant,
//! and counts recalls.
//!
//! S4: a recall that overtakes a grant still wins. In the hard case, the answer to a read is
//! delayed, and the recall arrives first. The client has no copy and consents. The write takes
//! effect, and then the old value arrives with a lease. So the holder remembers a recall until
//! every earlier request that may bring a grant is answered or abandoned. Until then it caches no
//! grant stamped at or before the recall: `accept_grant` in `object_leases.rs` refuses it.
//!
//! S5: recalls are numbered for each session and epoch without gaps. After a gap the holder does
//! not know which objects the lost recalls named, and drops all copies.

use std::collections::{BTreeMap, VecDeque};

use super::{Holder, HolderBounds, HolderEffect, input::SendId, volume_leases::at_and_above};
use crate::{
    id::{Epoch, Stamp},
    message::{Consent, DelayNotice, DelayReason, Recall},
    object::{Object, ObjectSet},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    time::Instant,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RememberedRecall {
    /// The holder caches no grant that is stamped at or before this.
    through: Stamp,
    /// The first send id after the recall. While an earlier request may still bring such a grant,
    /// the recall is remembered.
    mark: SendId,
}

/// The remembered recalls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RecallMemory {
    epoch: Epoch,
    last_number: u64,
    objects: BTreeMap<Object, RememberedRecall>,
    subtrees: BTreeMap<NodePath, RememberedRecall>,
    by_mark: VecDeque<(SendId, ObjectSet)>,
    /// Bound of `by_mark`.
    recalls_max: usize,
}

impl RecallMemory {
    pub(super) fn new(bounds: &HolderBounds) -> Self {
        Self {
            epoch: Epoch::default(),
            last_number: 0,
            objects: BTreeMap::new(),
            subtrees: BTreeMap::new(),
            by_mark: VecDeque::new(),
            recalls_max: bounds.recalls_remembered_max,
        }
    }

    /// If the epoch is newer, counts recalls from 1 again. Those of older epochs no longer count.
    pub(super) fn begin_epoch(&mut self, epoch: Epoch) {
        if epoch > self.epoch {
            (self.epoch, self.last_number) = (epoch, 0);
        }
    }

    /// Counts a recall. Returns whether earlier recalls are missing.
    pub(super) fn count_recall(&mut self, recall: &Recall) -> bool {
        self.begin_epoch(recall.stamp.epoch);
        if recall.stamp.epoch < self.epoch {
            return false;
        }
        let gap = recall.number > self.last_number.saturating_add(1);
        self.last_number = self.last_number.max(recall.number);
        gap
    }

    /// Remembers a recall. While a request with a send id below `mark` may bring a grant, the
    /// holder caches no grant on the set with a stamp up to `through`.
    pub(super) fn remember(&mut self, set: &ObjectSet, through: Stamp, mark: SendId) {
        let memory = match set {
            ObjectSet::One(object) => self.objects.entry(object.clone()).or_insert(RememberedRecall { through, mark }),
            ObjectSet::Subtree(top) => self.subtrees.entry(top.clone()).or_insert(RememberedRecall { through, mark }),
        };
        *memory = RememberedRecall { through: through.max(memory.through), mark };
        // Marks never fall. If a set comes twice in a row with one mark, it is listed once.
        if self.by_mark.back().is_none_or(|(last, other)| *last != mark || other != set) {
            self.by_mark.push_back((mark, set.clone()));
        }
        if self.by_mark.len() > self.recalls_max {
            reached(Bound::RecallsRemembered);
            self.merge(mark);
        }
    }

    fn merge(&mut self, mark: SendId) {
        let all = self.objects.values().chain(self.subtrees.values());
        let through = all.map(|memory| memory.through).max().unwrap_or_default();
        self.clear();
        self.remember(&ObjectSet::Subtree(NodePath::root()), through, mark);
    }

    /// Forgets recalls that can no longer overtake a grant. `oldest` is the send id of the oldest
    /// request that may bring one.
    pub(super) fn forget(&mut self, oldest: Option<SendId>) {
        while let Some((mark, set)) = self.by_mark.front() {
            if oldest.is_some_and(|oldest| oldest < *mark) {
                break;
            }
            match set {
                ObjectSet::One(object) if self.objects.get(object).is_some_and(|memory| memory.mark == *mark) => {
                    self.objects.remove(object);
                }
                ObjectSet::Subtree(top) if self.subtrees.get(top).is_some_and(|memory| memory.mark == *mark) => {
                    self.subtrees.remove(top);
                }
                _ => {}
            }
            self.by_mark.pop_front();
        }
    }

    fn clear(&mut self) {
        self.objects.clear();
        self.subtrees.clear();
        self.by_mark.clear();
    }

    /// Whether a recall has overtaken a grant on the object (S4).
    pub(super) fn overtook(&self, object: &Object, stamp: Stamp) -> bool {
        let one = self.objects.get(object);
        let mut trees = at_and_above(object.path.as_str()).filter_map(|top| self.subtrees.get(top));
        one.is_some_and(|memory| stamp <= memory.through) || trees.any(|memory| stamp <= memory.through)
    }

    /// Checks that each remembered recall is still needed, given the oldest live send id.
    pub(super) fn check(&self, oldest: Option<SendId>) -> Result<(), String> {
        for (mark, set) in &self.by_mark {
            if oldest.is_none_or(|oldest| oldest >= *mark) {
                return Err(format!("the recall of {set:?} is remembered, but all earlier requests have ended"));
            }
        }
        if self.objects.len() + self.subtrees.len() > self.by_mark.len() {
            return Err("a remembered recall is not listed by its mark".to_owned());
        }
        Ok(())
    }
}

impl Holder {
    /// Handles a recall: drops the copies, valid or not, and then consents. It may first flush
    /// dirty data, or delay the consent and keep the copies meanwhile.
    pub(super) fn recalled(&mut self, recall: &Recall, now: Instant) {
        let Some(session) = self.session() else { return };
        if recall.session != session {
            return;
        }
        self.heard_at = self.heard_at.max(now);
        self.stamp_seen = self.stamp_seen.max(recall.stamp);
        let everything = [ObjectSet::Subtree(NodePath::root())];
        let has_gap = self.recalls.count_recall(recall);
        let sets = if has_gap { &everything[..] } else { &recall.sets };
        let delayed = |reason| HolderEffect::ConsentDelayed(DelayNotice { session, stamp: recall.stamp, reason });
        if self.end_recalled_write_leases(recall.stamp, sets) {
            self.drop_and_overtake(sets, recall.stamp);
            return self.effects.push(delayed(DelayReason::Flushing));
        }
        let in_use = if has_gap { None } else { self.delay_consent(recall, now) };
        if let Some(at_most) = in_use {
            return self.effects.push(delayed(DelayReason::InUse { at_most }));
        }
        if recall.offers_next_values && !has_gap {
            self.select_wanted(sets);
        }
        let consent = HolderEffect::Consent(Consent { session, stamp: recall.stamp });
        self.piggyback.consent(recall.stamp, &self.config.bounds);
        let has_copies = self.planted(Bug::ConsentWithoutDrop) || self.drop_and_overtake(sets, recall.stamp);
        self.effects.push(consent);
        // The client has none of these objects. If it owes a report, the leader counts it as
        // covering, so the holder reports now.
        if !has_copies {
            self.volumes.unreported_in(&recall.sets).iter().for_each(|top| self.start_owed_report(top, now));
        }
    }

    /// Drops the copies of these sets. Refuses grants on them that are still in flight and stamped
    /// up to `through`. Returns whether there were copies.
    pub(super) fn drop_and_overtake(&mut self, sets: &[ObjectSet], through: Stamp) -> bool {
        let mut dropped = Vec::new();
        for set in sets {
            dropped.extend(self.copies.remove_where(set, |_| true));
            self.recalls.remember(set, through, self.in_flight.next());
        }
        let has_copies = !dropped.is_empty();
        self.ask_to_drop(dropped);
        has_copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(sequence: u64) -> Stamp {
        Stamp { epoch: Epoch(1), sequence }
    }

    #[test]
    fn recall_is_remembered_until_all_earlier_requests_end() {
        let object = Object::data(NodePath::parse("/a/b").expect("valid"));
        let one = ObjectSet::One(object.clone());
        let tree = ObjectSet::Subtree(NodePath::parse("/a").expect("valid"));
        let mut recalls = RecallMemory::new(&HolderBounds::DEFAULT);
        recalls.remember(&one, stamp(5), SendId(3));
        recalls.remember(&tree, stamp(4), SendId(4));
        recalls.remember(&one, stamp(2), SendId(5));
        recalls.forget(Some(SendId(3)));
        assert!(recalls.overtook(&object, stamp(5)), "a second recall prolongs the memory of the first");
        recalls.forget(Some(SendId(4)));
        assert!(recalls.overtook(&object, stamp(5)) && !recalls.overtook(&object, stamp(6)));
        recalls.forget(Some(SendId(5)));
        assert!(!recalls.overtook(&object, stamp(1)));
        assert_eq!(recalls, RecallMemory::new(&HolderBounds::DEFAULT));
    }

    #[test]
    fn second_recall_of_subtree_prolongs_memory_of_first() {
        let object = Object::data(NodePath::parse("/a/b").expect("valid"));
        let tree = ObjectSet::Subtree(NodePath::parse("/a").expect("valid"));
        let mut recalls = RecallMemory::new(&HolderBounds::DEFAULT);
        recalls.remember(&tree, stamp(5), SendId(3));
        recalls.remember(&tree, stamp(2), SendId(5));
        recalls.forget(Some(SendId(4)));
        assert!(recalls.overtook(&object, stamp(5)));
        recalls.forget(Some(SendId(5)));
        assert!(!recalls.overtook(&object, stamp(5)));
    }

    #[test]
    fn too_many_recalls_become_one_of_everything() {
        let mut recalls = RecallMemory::new(&HolderBounds::DEFAULT);
        for i in 0..=HolderBounds::DEFAULT.recalls_remembered_max {
            let path = NodePath::parse(&format!("/{i}")).expect("valid");
            recalls.remember(&ObjectSet::One(Object::data(path)), stamp(9), SendId(2));
        }
        let other = Object::data(NodePath::parse("/other").expect("valid"));
        assert!(recalls.overtook(&other, stamp(9)) && !recalls.overtook(&other, stamp(10)));
        assert_eq!(recalls.by_mark.len(), 1);
        assert_eq!(recalls.check(Some(SendId(1))), Ok(()));
    }

    #[test]
    fn recalls_are_counted_for_each_epoch_from_one() {
        let recall = |epoch, number| {
            let stamp = Stamp { epoch: Epoch(epoch), sequence: 10 * number };
            Recall { session: crate::id::SessionId(1), stamp, number, sets: Vec::new(), offers_next_values: false }
        };
        let mut recalls = RecallMemory::new(&HolderBounds::DEFAULT);
        let mut gaps = |epoch, numbers: &[u64]| {
            numbers.iter().map(|number| recalls.count_recall(&recall(epoch, *number))).collect::<Vec<_>>()
        };
        assert_eq!(gaps(1, &[1, 2, 4, 5, 5]), [false, false, true, false, false], "a repeated recall is no gap");
        assert_eq!(gaps(2, &[2, 3]), [true, false], "recall 1 of the epoch is missing");
        assert_eq!(gaps(1, &[9]), [false], "recalls of an older epoch do not count");
        assert_eq!(gaps(2, &[4, 6]), [false, true]);
    }
}
