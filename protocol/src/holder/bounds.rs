//! Bounds of a holder's queues and tables.

use crate::{message::PUSH_REQUESTS_MAX, state::State};

/// The bounds of one holder.
///
/// A client uses [`HolderBounds::DEFAULT`]. The simulation sets lower ones, so that worlds of a few
/// operations reach each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HolderBounds {
    /// The most remembered recalls. Beyond it, the holder merges them into one recall of
    /// everything. That refuses some grants needlessly, and never accepts a wrong one.
    pub recalls_remembered_max: usize,
    /// The most known volumes, apart from those with a lease that holds, a node, a lock or a
    /// request. Before the holder learns of another, it forgets volumes that are not in use.
    pub volumes_max: usize,
    /// The most returns that wait for a request. Beyond it, the oldest is forgotten. The server may
    /// then recall a copy that was dropped, and gets a consent.
    pub returns_waiting_max: usize,
    /// The most consents that were replies to recalls and also wait for a request. Beyond it, the
    /// oldest is forgotten. If its reply was lost, the leader sends the recall again.
    pub consents_waiting_max: usize,
    /// The most objects for which consents are delayed, with the delayed consents that no answer
    /// has confirmed. Beyond it, the holder consents at once.
    pub delayed_consents_max: usize,
    /// The most objects whose next value is asked for at a time. Beyond it, the next read of the
    /// application asks.
    pub own_next_values_max: usize,
    /// The most write numbers from the lowest unanswered to the highest sent one: as many outcomes
    /// as servers remember for a session. Further writes wait until the lowest is answered.
    pub writes_out_max: u64,
    /// How many of these numbers are reserved for flushes. Writes that wait for a flush must leave
    /// a number for it.
    pub flushes_out_max: u64,
    /// How often one fetch waits for a volume lease before it reads without one. Twice for the
    /// believed volume, and twice for the real one.
    pub read_waits_max: u8,
}

impl HolderBounds {
    /// The bounds of a client.
    pub const DEFAULT: Self = Self {
        recalls_remembered_max: 4096,
        volumes_max: 4096,
        returns_waiting_max: 4096,
        consents_waiting_max: 256,
        delayed_consents_max: 256,
        own_next_values_max: PUSH_REQUESTS_MAX,
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
