//! What an entry has changed.

use super::RowKey;
use crate::id::Incarnation;

/// Rows that are to be stored anew, or removed. Noted as often as they change, and put in order
/// once, at the end: an entry that ends a thousand leases notes thousands.
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

    /// The lease has ended and left nodes behind.
    pub(super) fn note_orphan(&mut self, lease: Incarnation) {
        self.orphaned.push(lease);
    }

    /// Each row once, in order; and the leases whose nodes became orphans.
    pub(super) fn into_parts(mut self) -> (Vec<RowKey>, Vec<Incarnation>) {
        self.rows.sort_unstable();
        self.rows.dedup();
        (self.rows, self.orphaned)
    }
}
