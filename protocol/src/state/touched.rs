//! Which rows an entry has changed.

use super::RowKey;

/// Rows that are to be stored anew, or removed. Noted as often as they change, and put in order once, at the end: an entry that ends a
/// thousand leases notes thousands.
#[derive(Debug, Default)]
pub(super) struct Touched(Vec<RowKey>);

impl Touched {
    pub(super) fn insert(&mut self, row: RowKey) {
        self.0.push(row);
    }

    pub(super) fn extend(&mut self, rows: impl IntoIterator<Item = RowKey>) {
        self.0.extend(rows);
    }

    /// Each row once, in order.
    pub(super) fn into_rows(mut self) -> Vec<RowKey> {
        self.0.sort_unstable();
        self.0.dedup();
        self.0
    }
}
