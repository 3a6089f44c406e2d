//! Transactions: the branch that the comparisons choose, applied as one change (S8 in
//! docs/PROTOCOL.md).
//!
//! The comparisons choose the branch when the footprint is computed, and again when the transaction
//! is applied. If the branch or its footprint has changed in between, the consents may not cover
//! it. Then the lessor gathers again, as for any write (S2).
//!
//! The operations of a branch are [independent](crate::transaction). So each is checked against the
//! state before all of them, and the footprint is the union of their footprints. They are applied
//! parents first. So an ancestor that has a put of its own is created once, with its value.

use std::collections::BTreeSet;

use super::{State, touched::Touched, writes::too_many_to_remove};
use crate::{
    command::{Condition, IntendedLeases, WriteRefusal, Written},
    id::{Revision, SessionId},
    object::{Object, ObjectSet, SETS_MAX},
    path::NodePath,
    reached::{Bound, reached},
    transaction::{Branch, FailedCompare, Operation, OperationResult, Transacted, Transaction, index_of},
};

/// The most sets of objects in the footprint of one operation. A put that creates a long chain of
/// nodes would have more. Its footprint is then the subtree of the topmost created node, and the
/// list that contains this node. So the number of paths bounds the sets of a transaction.
const OPERATION_SETS_MAX: usize = 3;

impl State {
    /// The first comparison that does not hold. `None` if all hold, which chooses [`Branch::Then`].
    fn failed_compare(&self, transaction: &Transaction) -> Option<FailedCompare> {
        let mut failed = transaction.compares.iter().enumerate().filter(|(_, compare)| {
            !compare.matches(self.data(&compare.path).as_ref(), |token| self.has_lock_in(&compare.path, token))
        });
        let (index, compare) = failed.next()?;
        // Under a write lease only the lock may be compared. The stat is not disclosed.
        let found = self.node(&compare.path).filter(|_| self.write_leased_lock(&compare.path).is_none());
        Some(FailedCompare { index: index_of(index), found: found.map(|node| node.stat()) })
    }

    /// The branch that the comparisons choose now.
    pub fn branch(&self, transaction: &Transaction) -> Branch {
        if self.failed_compare(transaction).is_none() { Branch::Then } else { Branch::Otherwise }
    }

    pub(super) fn transaction_footprint(
        &self,
        writer: SessionId,
        transaction: &Transaction,
        intended: &IntendedLeases,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        transaction.check_overlaps()?;
        self.branch_footprint(writer, (transaction, self.branch(transaction)), intended)
    }

    /// The objects that either branch would change now. A branch that would be refused adds none.
    pub fn footprint_of_both(
        &self,
        writer: SessionId,
        transaction: &Transaction,
        intended: &IntendedLeases,
    ) -> Vec<ObjectSet> {
        let footprint = |branch| self.branch_footprint(writer, (transaction, branch), intended).unwrap_or_default();
        let both: BTreeSet<ObjectSet> =
            footprint(Branch::Then).into_iter().chain(footprint(Branch::Otherwise)).collect();
        both.into_iter().collect()
    }

    fn branch_footprint(
        &self,
        writer: SessionId,
        (transaction, branch): (&Transaction, Branch),
        intended: &IntendedLeases,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        let mut seen = BTreeSet::new();
        let mut sets = Vec::new();
        let mut removed = 0;
        for (index, operation) in transaction.branch(branch).iter().enumerate() {
            let own = self.operation_footprint(writer, operation, intended).map_err(|refusal| {
                WriteRefusal::Operation { branch, index: index_of(index), refusal: Box::new(refusal) }
            })?;
            sets.extend(own.into_iter().filter(|set| seen.insert(set.clone())));
            if let Operation::Delete { path, recursive: true } = operation {
                removed += self.count_nodes_in(path, State::REMOVED_NODES_MAX);
                if removed > State::REMOVED_NODES_MAX {
                    reached(Bound::RemovedNodes);
                    let refusal = Box::new(too_many_to_remove(path, removed));
                    return Err(WriteRefusal::Operation { branch, index: index_of(index), refusal });
                }
            }
        }
        Ok(sets)
    }

    /// The number of nodes that a branch would create now, including missing ancestors, and the
    /// bytes of their paths. Each is the greater of the numbers of both branches.
    pub fn nodes_made(&self, transaction: &Transaction) -> (usize, usize) {
        let count = |branch| {
            let mut created: BTreeSet<NodePath> = BTreeSet::new();
            let puts = transaction.branch(branch).iter().filter(|operation| matches!(operation, Operation::Put { .. }));
            for path in puts.map(Operation::path) {
                let missing = std::iter::once(path.clone()).chain(path.ancestors());
                for node in missing.take_while(|above| self.node(above).is_none()) {
                    // The set already has the node and its missing ancestors.
                    if !created.insert(node) {
                        break;
                    }
                }
            }
            (created.len(), created.iter().map(|path| path.as_str().len()).sum::<usize>())
        };
        let (then, otherwise) = (count(Branch::Then), count(Branch::Otherwise));
        (then.0.max(otherwise.0), then.1.max(otherwise.1))
    }

    fn operation_footprint(
        &self,
        writer: SessionId,
        operation: &Operation,
        intended: &IntendedLeases,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        let sets = match operation {
            Operation::Put { path, attach, .. } => {
                self.put_footprint(writer, (path, attach), Condition::Any, intended)?
            }
            Operation::Delete { path, recursive } => self.delete_footprint(path, *recursive, Condition::Any)?,
        };
        if sets.len() <= OPERATION_SETS_MAX {
            return Ok(sets);
        }
        let topmost = operation.path().ancestors().take_while(|above| self.node(above).is_none()).last();
        let list = topmost.as_ref().and_then(NodePath::parent).map(|list| ObjectSet::One(Object::children(list)));
        Ok(topmost.map(ObjectSet::Subtree).into_iter().chain(list).collect())
    }

    /// Applies a transaction that is not refused. `sets` is its footprint.
    pub(super) fn transact(
        &mut self,
        writer: SessionId,
        transaction: &Transaction,
        sets: Vec<ObjectSet>,
        touched: &mut Touched,
    ) -> Written {
        let failed = self.failed_compare(transaction);
        let branch = if failed.is_none() { Branch::Then } else { Branch::Otherwise };
        let operations: Vec<&Operation> = transaction.branch(branch).iter().collect();
        let results = self.apply_operations(writer, &operations, sets, touched);
        let transacted = Transacted { failed, results };
        let puts = operations.iter().filter_map(|operation| match operation {
            Operation::Put { path, attach, .. } => Some((path, attach)),
            Operation::Delete { .. } => None,
        });
        let attached = self.attached_by(writer, puts);
        Written {
            revision: self.meta.revision,
            transaction: Some(Box::new(transacted)),
            attached,
            ..Written::default()
        }
    }

    /// Applies these operations as one change. The caller has checked them all. An empty list makes
    /// no change.
    fn apply_operations(
        &mut self,
        writer: SessionId,
        operations: &[&Operation],
        sets: Vec<ObjectSet>,
        touched: &mut Touched,
    ) -> Vec<OperationResult> {
        if operations.is_empty() {
            return Vec::new();
        }
        let revision = self.meta.revision.next();
        self.meta.revision = revision;
        let mut parents_first: Vec<usize> = (0..operations.len()).collect();
        parents_first.sort_by_key(|place| operations[*place].path());
        let mut results = vec![None; operations.len()];
        for place in parents_first {
            results[place] = self.apply_operation(writer, operations[place], revision, touched);
        }
        self.note_change(compact_to_subtree(sets), touched);
        results.into_iter().flatten().collect()
    }

    fn apply_operation(
        &mut self,
        writer: SessionId,
        operation: &Operation,
        revision: Revision,
        touched: &mut Touched,
    ) -> Option<OperationResult> {
        match operation {
            Operation::Put { path, value, attach } => {
                self.put(writer, path, value, attach, revision, touched).map(OperationResult::Put)
            }
            Operation::Delete { path, .. } => {
                Some(OperationResult::Deleted(self.remove_nodes(path, revision, touched)))
            }
        }
    }
}

/// The sets for the history. Many sets are replaced by one common subtree.
fn compact_to_subtree(sets: Vec<ObjectSet>) -> Vec<ObjectSet> {
    if sets.len() <= SETS_MAX {
        return sets;
    }
    reached(Bound::Sets);
    vec![ObjectSet::Subtree(NodePath::common_ancestor(sets.iter().map(ObjectSet::path)))]
}

#[cfg(test)]
mod tests;
