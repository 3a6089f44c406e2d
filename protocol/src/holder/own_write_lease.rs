//! The session's record of one write lease: its value, and its flush.

use crate::{lock::WriteLeaseStatus, object::Value};

/// The stage of a write lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum WriteLeaseStage {
    /// The client has requested it.
    Requested,
    /// The application reads and writes in memory.
    Open,
    /// It ends: the holder flushes the value, and the application can no longer set it.
    Ending,
}

/// The session's write lease on one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnWriteLease {
    pub(super) stage: WriteLeaseStage,
    /// The value that was set last, or else the value on the servers.
    pub(super) value: Value,
    pub(super) status: WriteLeaseStatus,
    pub(super) flush_in_flight: Option<FlushInFlight>,
    /// A flush with a value was sent, and its outcome is unknown: the servers may have that value.
    pub(super) is_outcome_unknown: bool,
}

/// A flush in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FlushInFlight {
    /// How many sets it covers: the value's `set_count` when it was sent.
    pub(super) through: u64,
    pub(super) has_value: bool,
    pub(super) ends_write_lease: bool,
}

impl OwnWriteLease {
    pub(super) fn requested() -> Self {
        Self {
            stage: WriteLeaseStage::Requested,
            value: Value::new(),
            status: WriteLeaseStatus::default(),
            flush_in_flight: None,
            is_outcome_unknown: false,
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.status.set_count > self.status.flushed_count
    }
}
