//! *No set of requests that each pass their own check ends a leadership*: what a lessor wants
//! proposed is never larger than what its shell proposes. The shell refuses more, and gives the
//! lessor up for it (`server/src/proposals.rs`); what was asked for is asked for again, and so the
//! next leadership ends too.

use leasehold_protocol::command::Proposal;

/// Looks at a proposal as it would go into the log.
pub(crate) fn check(proposal: &Proposal, most: Option<usize>) -> Result<(), String> {
    let Some(most) = most else { return Ok(()) };
    let got = postcard::to_allocvec(proposal).map_err(|error| error.to_string())?.len();
    if got <= most {
        return Ok(());
    }
    let count = proposal.commands.len();
    Err(format!("a proposal of {count} commands has {got} bytes: the shell proposes at most {most}"))
}
