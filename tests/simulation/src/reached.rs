//! Which bounds of a lessor a world has reached, as far as its answers and proposals show it. A bound that no world reaches is one that
//! nobody has tried.

use leasehold_protocol::{
    command::{Command, Proposal},
    lessor::Bounds,
    message::{Answer, Refusal, Response},
};

use crate::tally::Tally;

/// What the tally counts each of these bounds as, in the order of [`Bounds`]. The others cannot be told from answers and proposals.
pub const REACHED: [&str; 9] = [
    "bound reached: proposal_commands_max",
    "bound reached: writes_max",
    "bound reached: writes_bytes_max",
    "bound reached: reads_max",
    "bound reached: tick_bytes_max",
    "bound reached: watches_max",
    "bound reached: session_watches_max",
    "bound reached: removal_leases_per_round",
    "bound reached: rows_max",
];

/// A renewal of a key lease weighs this much in a tick, and one of a volume lease more.
const RENEWAL_BYTES: usize = 32;

/// Notes which bounds a proposal is full by.
pub(crate) fn note_proposal(tally: &mut Tally, bounds: &Bounds, proposal: &Proposal) {
    if proposal.commands.len() >= bounds.proposal_commands_max {
        tally.add("bound reached: proposal_commands_max");
    }
    for command in &proposal.commands {
        match command {
            Command::Tick { renewals } if renewals.len() * RENEWAL_BYTES >= bounds.tick_bytes_max => {
                tally.add("bound reached: tick_bytes_max");
            }
            Command::Remove { leases } if leases.len() >= bounds.removal_leases_per_round => {
                tally.add("bound reached: removal_leases_per_round");
            }
            _ => {}
        }
    }
}

/// Notes which bound an answer tells of.
pub(crate) fn note_answer(tally: &mut Tally, bounds: &Bounds, response: &Response) {
    let rows = match &response.result {
        Err(Refusal::Busy { what, .. }) => match what.as_str() {
            "writes" => return tally.add("bound reached: writes_max"),
            "bytes of writes" => return tally.add("bound reached: writes_bytes_max"),
            "reads" => return tally.add("bound reached: reads_max"),
            "reads that wait for write leases" => return tally.add("bound reached: parked_max"),
            "watches" => return tally.add("bound reached: watches_max"),
            "watches of the session" => return tally.add("bound reached: session_watches_max"),
            _ => return,
        },
        Ok(Answer::Holders(rows)) => rows.len(),
        Ok(Answer::Waits(rows)) => rows.len(),
        Ok(Answer::Volumes(rows)) => rows.len(),
        Ok(Answer::Leases(rows)) => rows.len(),
        Ok(Answer::HoldInfos(rows)) => rows.len(),
        _ => return,
    };
    if rows >= bounds.rows_max {
        tally.add("bound reached: rows_max");
    }
}
