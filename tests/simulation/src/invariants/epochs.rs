//! *The clamped clock runs from the moment the epoch begins, not before: until then nobody can
//! renew* (T4).

use std::time::Duration;

use leasehold_protocol::{
    command::Proposal,
    id::Epoch,
    time::{ClusterTime, Instant},
};

/// What the simulator itself may be off by.
const SLACK: Duration = Duration::from_millis(1);

/// Looks at a proposal of a lessor whose epoch began at a moment, when its clock was to start from
/// a time: that of the log, and what the last leader was heard for beyond it.
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
