//! The effects of a lessor: all that it wants its shell to do.

use crate::{
    drift::Excess,
    id::{RequestId, SessionId},
    message::{Recall, Response},
};

/// A request of the lessor to its shell. The shell executes effects in order.
#[expect(clippy::large_enum_variant, reason = "an effect is made, moved once, and taken apart")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LessorEffect {
    /// Answer a request.
    Reply {
        /// The request.
        id: RequestId,
        /// The answer.
        response: Response,
    },
    /// Ask a client for consent, on the connection of its latest registration.
    Recall(Recall),
    /// Begin a quorum round that proves that this replica leads (S6). The shell reports its end as
    /// [`LessorInput::Proven`](super::LessorInput::Proven) or
    /// [`LessorInput::NotProven`](super::LessorInput::NotProven). At most one round is in flight.
    Prove {
        /// Names the round.
        round: u64,
    },
    /// Log that a session's clock and this server's differ by more than their allowances, or no
    /// longer do. While they differ, the session serves nothing from memory.
    ClockChanged {
        /// The session.
        session: SessionId,
        /// The session's name.
        name: String,
        /// The spans that both clocks counted; `None` if they are within their allowances again.
        beyond: Option<Excess>,
    },
}
