//! The inputs of a lessor: everything that its shell passes to it.

use crate::{
    command::Outcome,
    id::{Incarnation, RequestId},
    message::{Consent, DelayNotice, Request},
    state::{Applied, ChangedLocks},
};

/// An input of a lessor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "an input is made, moved once, and taken apart")]
pub enum LessorInput {
    /// A client's request. Exactly one [`LessorEffect::Reply`](super::LessorEffect::Reply) with
    /// this id answers it.
    Request {
        /// Identifies the request among all unanswered requests.
        id: RequestId,
        /// The request.
        request: Request,
    },
    /// A client's answer to a recall.
    Consent(Consent),
    /// A client's notice that its consent comes later. Only inspections use it.
    ConsentDelayed(DelayNotice),
    /// The quorum round of [`LessorEffect::Prove`](super::LessorEffect::Prove) has succeeded, and
    /// everything that was committed before the round began has been applied (S6).
    Proven {
        /// The round's number.
        round: u64,
    },
    /// The quorum round has failed.
    NotProven {
        /// The round's number.
        round: u64,
    },
    /// A proposal of this lessor ([`Lessor::is_mine`](super::Lessor::is_mine)) was applied to the
    /// state just now.
    Committed {
        /// The proposal's number.
        number: u64,
        /// The outcomes of its commands.
        outcomes: Vec<Outcome>,
        /// The locks that changed:
        /// [`Applied::changed_locks`](crate::state::Applied::changed_locks).
        locks_changed: ChangedLocks,
        /// The leases whose nodes became orphans:
        /// [`Applied::new_orphans`](crate::state::Applied::new_orphans).
        orphaned: Vec<Incarnation>,
    },
    /// The time of [`Lessor::next_deadline`](super::Lessor::next_deadline) has come.
    Timeout,
}

impl LessorInput {
    /// The input for a proposal with this number, from the result of applying it.
    pub fn committed(number: u64, applied: Applied) -> Self {
        let locks_changed = applied.changed_locks();
        Self::Committed { number, outcomes: applied.outcomes, locks_changed, orphaned: applied.new_orphans }
    }
}
