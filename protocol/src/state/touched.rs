//! The rows and leases that an entry has changed.

use super::row_key::RowKey;
use crate::id::Incarnation;

/// Rows to write or to remove. Each change adds a row. The list is sorted and deduplicated once, at
/// the end, because an entry that ends a thousand leases adds thousands of rows.
#[derive(Debug, Default)]
pub(super) struct Touched {
    rows: Vec<RowKey>,
    /// The leases whose nodes became orphans.
    orphaned: Vec<Incarnation>,
}

impl Touched {
    pub(super) fn insert(&mut self, row: RowKey) {
        self.rows.push(row);
    }

    pub(super) fn extend(&mut self, rows: impl IntoIterator<Item = RowKey>) {
        self.rows.extend(rows);
    }

    /// Records that the lease has ended and left orphans.
    pub(super) fn note_orphan(&mut self, lease: Incarnation) {
        self.orphaned.push(lease);
    }

    /// Each row once, in order, and the leases that left orphans.
    pub(super) fn into_parts(mut self) -> (Vec<RowKey>, Vec<Incarnation>) {
        self.rows.sort_unstable();
        self.rows.dedup();
        (self.rows, self.orphaned)
    }
}
