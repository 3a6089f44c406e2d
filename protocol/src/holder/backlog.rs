//! The writes that wait for a sequence.

use std::collections::BTreeMap;

use super::WriteId;
use crate::work::visit;

/// A queue of writes. Any of them can leave it at the cost of a look-up, because an application
/// may cancel thousands at a time.
///
/// Each write is in it at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Backlog {
    order: BTreeMap<i64, WriteId>,
    positions: BTreeMap<WriteId, i64>,
}

impl Backlog {
    pub(super) fn push_front(&mut self, write_id: WriteId) {
        let first = self.order.first_key_value().map_or(0, |(position, _)| *position);
        self.insert(first - 1, write_id);
    }

    pub(super) fn push_back(&mut self, write_id: WriteId) {
        let last = self.order.last_key_value().map_or(0, |(position, _)| *position);
        self.insert(last + 1, write_id);
    }

    fn insert(&mut self, position: i64, write_id: WriteId) {
        self.remove(write_id);
        self.order.insert(position, write_id);
        self.positions.insert(write_id, position);
    }

    pub(super) fn first(&self) -> Option<WriteId> {
        self.order.first_key_value().map(|(_, write_id)| *write_id)
    }

    pub(super) fn pop(&mut self) -> Option<WriteId> {
        visit(1);
        let (_, write_id) = self.order.pop_first()?;
        self.positions.remove(&write_id);
        Some(write_id)
    }

    pub(super) fn remove(&mut self, write_id: WriteId) {
        visit(1);
        if let Some(position) = self.positions.remove(&write_id) {
            self.order.remove(&position);
        }
    }

    pub(super) fn contains(&self, write_id: WriteId) -> bool {
        self.positions.contains_key(&write_id)
    }

    /// Checks that both maps list the same writes.
    pub(super) fn check(&self) -> Result<(), String> {
        let listed = self.order.iter().all(|(position, write_id)| self.positions.get(write_id) == Some(position));
        if !listed || self.order.len() != self.positions.len() {
            return Err(format!("the positions of waiting writes are wrong: {self:?}"));
        }
        Ok(())
    }
}
