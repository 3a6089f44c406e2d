//! *The ending clock stands still until the epoch begins* (T4), because no client can renew
//! before.

use std::time::Duration;

use leasehold_protocol::{
    command::Proposal,
    id::Epoch,
    time::{ClusterTime, Instant},
};

/// The inaccuracy of the simulator itself.
const SLACK: Duration = Duration::from_millis(1);

/// Checks the cluster time of a proposal. `begun` says when the lessor's epoch began, and where its
/// clock had to start: at the log's time plus the time heard.
pub(crate) fn check(proposal: &Proposal, begun: Option<(Instant, ClusterTime)>, now: Instant) -> Result<(), String> {
    let Some((at, logged)) = begun.filter(|_| proposal.epoch != Epoch(0)) else { return Ok(()) };
    let most = logged.after(now.since(at)).after(SLACK);
    if proposal.time <= most {
        return Ok(());
    }
    Err(format!(
        "cluster time is {} at {:?} after the epoch began, when its clock was to start from {logged}: expected {most} at most",
        proposal.time,
        now.since(at)
    ))
}
