//! Bounds of a holder's queues and tables: what one client keeps at a time.

use crate::state::State;

/// The bounds of one holder.
///
/// A client uses [`HolderBounds::DEFAULT`]. The simulation sets them low, so that worlds of a few
/// operations reach each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HolderBounds {
    /// Recalls remembered at once. Beyond it they are taken together as one of everything, which
    /// refuses some grants for nothing and none wrongly.
    pub recalls_remembered_max: usize,
    /// Volumes known at once. Beyond it one that is not in use makes room: each step looks at all
    /// of them.
    pub volumes_max: usize,
    /// Copies given back that wait for a request to carry them. The oldest are forgotten beyond it:
    /// the server then asks for what is not there, and is told so.
    pub returns_waiting_max: usize,
    /// The numbers between the lowest write that is unanswered and the highest that is sent, at
    /// most: as many as there are outcomes that servers remember for a session. Writes beyond it
    /// wait until the lowest is answered.
    pub writes_out_max: u64,
    /// So many of them are for what is flushed: writes that wait for a flush must not leave it
    /// without a number.
    pub flushes_out_max: u64,
    /// How often one fetch waits for a volume lease before it reads without: for the volume
    /// believed in, the real one, and once more for each if it went to others.
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
