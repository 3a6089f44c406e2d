//! What a committed entry did, command by command.

use leasehold_protocol::{
    command::{AnyLease, Command, Outcome, Proposal, Write},
    id::{Incarnation, Sequence, SessionId},
};

/// Names a write in the log.
pub type WriteKey = (SessionId, Sequence);

/// The writes of an entry, each with its outcome.
pub fn writes<'a>(
    proposal: &'a Proposal,
    outcomes: &'a [Outcome],
) -> impl Iterator<Item = (WriteKey, &'a Write, &'a Outcome)> {
    proposal.commands.iter().zip(outcomes).filter_map(|(command, outcome)| match command {
        Command::Write { session, sequence, write, .. } => Some(((*session, *sequence), write, outcome)),
        _ => None,
    })
}

/// The leases that expired with an entry.
pub fn expired<'a>(
    proposal: &'a Proposal,
    outcomes: &'a [Outcome],
) -> impl Iterator<Item = (&'a AnyLease, Incarnation)> {
    proposal.commands.iter().zip(outcomes).filter_map(|(command, outcome)| match (command, outcome) {
        (Command::Expire { lease, incarnation, .. }, Outcome::Expired) => Some((lease, *incarnation)),
        _ => None,
    })
}
