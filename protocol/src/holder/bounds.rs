//! Bounds of a holder's queues and tables.

use crate::state::State;

/// The bounds of one holder.
///
/// A client uses [`HolderBounds::DEFAULT`]. The simulation sets lower ones, so that worlds of a few
/// operations reach each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HolderBounds {
    /// Remembered recalls. Beyond it they become one recall of everything. That one refuses some
    /// grants for nothing, and never accepts a wrong one.
    pub recalls_remembered_max: usize,
    /// Known volumes, because each step examines all of them. Beyond it, one that is not in use is
    /// forgotten.
    pub volumes_max: usize,
    /// Returns that wait for a request to carry them. Beyond it the oldest is forgotten. The server
    /// then recalls a copy that was dropped, and gets a consent.
    pub returns_waiting_max: usize,
    /// Numbers from the lowest unanswered write to the highest sent one: as many outcomes as
    /// servers remember for a session. Writes beyond it wait until the lowest is answered.
    pub writes_out_max: u64,
    /// How many of these numbers are for flushes only. Writes that wait for a flush must leave it a
    /// number.
    pub flushes_out_max: u64,
    /// How often one fetch waits for a volume lease before it reads without one. Twice for the
    /// volume that the client believes in, and twice for the real one.
    pub read_waits_max: u8,
}

impl HolderBounds {
    /// The bounds of a client.
    pub const DEFAULT: Self = Self {
        recalls_remembered_max: 4096,
        volumes_max: 4096,
        returns_waiting_max: 4096,
        writes_out_max: State::ANSWERS_MAX,
        flushes_out_max: 32,
        read_waits_max: 4,
    };
}

impl Default for HolderBounds {
    fn default() -> Self {
        Self::DEFAULT
    }
}
