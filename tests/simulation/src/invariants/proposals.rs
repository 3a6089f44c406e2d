//! *No set of requests that each pass their own check ends a leadership*. The lessor never proposes
//! more bytes than its shell accepts. The shell would refuse, and give the lessor up (see
//! `server/src/proposals.rs`). Clients would repeat their requests, and end the next leadership
//! too.

use leasehold_protocol::command::Proposal;

/// Checks the encoded size of a proposal.
pub(crate) fn check(proposal: &Proposal, most: Option<usize>) -> Result<(), String> {
    let Some(most) = most else { return Ok(()) };
    let got = postcard::to_allocvec(proposal).map_err(|error| error.to_string())?.len();
    if got <= most {
        return Ok(());
    }
    let count = proposal.commands.len();
    Err(format!("a proposal of {count} commands has {got} bytes: the shell proposes at most {most}"))
}
