//! *The answer to a write says which lease each node went with that it attached to its session*
//! (S7b): by that the client knows which nodes it loses with which of its leases.

use leasehold_protocol::{
    command::{Attach, Command, Outcome, Write, Written},
    path::NodePath,
    state::State,
    transaction::{Branch, Operation},
};

/// Checks what a command that has just been applied was answered with. A node that another command
/// of the entry has changed since is left out.
pub(crate) fn check(truth: &State, command: &Command, outcome: &Outcome) -> Result<(), String> {
    let (Command::Write { write, .. }, Outcome::Written(Ok(written))) = (command, outcome) else { return Ok(()) };
    for path in
        puts(write, written).into_iter().filter_map(|(path, attach)| (attach == Attach::Session).then_some(path))
    {
        let Some(node) = truth.node(path).filter(|node| node.modify_revision == written.revision) else { continue };
        let is = node.attachment.as_ref().map(|to| to.incarnation);
        let told = written.attached_to(path).map(|lease| lease.incarnation);
        if is != told {
            return Err(format!("{path} goes with lease {is:?}, and {write:?} was answered with {told:?}"));
        }
    }
    Ok(())
}

/// The nodes that the write has put, and what they were to go with.
fn puts<'a>(write: &'a Write, written: &Written) -> Vec<(&'a NodePath, Attach)> {
    match (write, &written.transaction) {
        (Write::Put { path, attach, .. }, _) => vec![(path, *attach)],
        (Write::Transaction(transaction), Some(done)) => {
            let branch = if done.failed.is_none() { Branch::Then } else { Branch::Otherwise };
            let put = |operation: &'a Operation| match operation {
                Operation::Put { path, attach, .. } => Some((path, *attach)),
                Operation::Delete { .. } => None,
            };
            transaction.branch(branch).iter().filter_map(put).collect()
        }
        _ => Vec::new(),
    }
}
