//! *The answer to a write names the lease of each node that it attached to the writer's session*
//! (S7b). From that the client knows which nodes it loses when one of its leases ends.

use leasehold_protocol::{
    command::{Attach, Command, Outcome, Write, Written},
    path::NodePath,
    state::State,
    transaction::{Branch, Operation},
};

/// Checks the outcome of a command that was just applied. It skips a node that a later command of
/// the entry changed.
pub(crate) fn check(truth: &State, command: &Command, outcome: &Outcome) -> Result<(), String> {
    let (Command::Write { write, .. }, Outcome::Written(Ok(written))) = (command, outcome) else { return Ok(()) };
    for path in
        puts(write, written).into_iter().filter_map(|(path, attach)| (*attach == Attach::Session).then_some(path))
    {
        let Some(node) = truth.node(path).filter(|node| node.modify_revision == written.revision) else { continue };
        let is = node.attachment.as_ref().map(|to| to.incarnation);
        let answered = written.attached_to(path).map(|lease| lease.incarnation);
        if is != answered {
            return Err(format!(
                "node {path} is attached to lease {is:?}, but the answer to {write:?} names {answered:?}"
            ));
        }
    }
    Ok(())
}

/// The nodes that the write put, each with the requested attachment.
fn puts<'a>(write: &'a Write, written: &Written) -> Vec<(&'a NodePath, &'a Attach)> {
    match (write, &written.transaction) {
        (Write::Put { path, attach, .. }, _) => vec![(path, attach)],
        (Write::Transaction(transaction), Some(done)) => {
            let branch = if done.failed.is_none() { Branch::Then } else { Branch::Otherwise };
            let put = |operation: &'a Operation| match operation {
                Operation::Put { path, attach, .. } => Some((path, attach)),
                Operation::Delete { .. } => None,
            };
            transaction.branch(branch).iter().filter_map(put).collect()
        }
        _ => Vec::new(),
    }
}
