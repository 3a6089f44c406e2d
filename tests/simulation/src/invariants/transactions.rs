//! *A transaction does its whole chosen branch as one change, or nothing* (etcd's `Txn`; the known
//! failure is that readers see half of one). Judged by the nodes before and after it, with a
//! separate evaluation of the comparisons.

use std::{cmp::Ordering, collections::BTreeMap};

use leasehold_protocol::{
    command::{Command, Outcome, Proposal, Write, Written},
    id::Token,
    object::Data,
    path::NodePath,
    state::{RequestStatus, State},
    transaction::{Branch, CompareTarget, Operation, Relation, Transaction},
};

/// Whether an entry has transactions.
pub(crate) fn has_any(proposal: &Proposal) -> bool {
    let is_one = |command: &Command| matches!(command, Command::Write { write: Write::Transaction(_), .. });
    proposal.commands.iter().any(is_one)
}

/// Checks the transactions of an entry that had these outcomes: `twin` applies the commands again,
/// one by one.
pub(crate) fn check(mut twin: State, proposal: &Proposal, outcomes: &[Outcome]) -> Result<(), String> {
    if proposal.commands.iter().any(|command| matches!(command, Command::BeginEpoch { .. })) {
        return Ok(());
    }
    for (command, outcome) in proposal.commands.iter().zip(outcomes) {
        let before = Tree::of(&twin);
        let is_new = match command {
            Command::Write { session, sequence, .. } => {
                matches!(twin.request_status(*session, *sequence), Some(RequestStatus::Unanswered))
            }
            _ => false,
        };
        let alone = Proposal { commands: vec![command.clone()], ..proposal.clone() };
        twin.apply(twin.applied_index() + 1, &alone);
        let Command::Write { write: Write::Transaction(transaction), .. } = command else { continue };
        let after = Tree::of(&twin);
        let held = match outcome {
            Outcome::Written(Ok(written)) if is_new => done(&before, &after, transaction, written),
            _ if before == after => Ok(()),
            _ => Err("the refused transaction changed the tree".to_owned()),
        };
        held.map_err(|what| format!("{transaction:?}, {outcome:?}: {what}"))?;
    }
    Ok(())
}

/// All nodes.
#[derive(Debug, PartialEq)]
struct Tree {
    revision: u64,
    nodes: BTreeMap<NodePath, Data>,
    /// The locked nodes, by fencing token.
    held: BTreeMap<Token, NodePath>,
}

impl Tree {
    fn of(state: &State) -> Self {
        let node = |(path, _): (&NodePath, _)| Some((path.clone(), state.data(path)?));
        let nodes = state.nodes_from(&NodePath::root()).filter_map(node).collect();
        let locks = state.locks().filter(|(_, _, lock)| lock.lease.session().is_some());
        let held = locks.filter_map(|(_, path, lock)| Some((lock.token?, path.clone()))).collect();
        Self { revision: state.revision().0, nodes, held }
    }
}

fn done(before: &Tree, after: &Tree, transaction: &Transaction, written: &Written) -> Result<(), String> {
    let Some(transacted) = &written.transaction else {
        return Err("the outcome does not name the branch and its results".to_owned());
    };
    let failed = transaction.compares.iter().position(|compare| {
        let is_held = |token| before.held.get(&token).is_some_and(|held| compare.path.contains(held));
        !is_fulfilled(&compare.target, before.nodes.get(&compare.path), is_held)
    });
    if transacted.failed.map(|failed| failed.index as usize) != failed {
        return Err(format!("the outcome names another comparison than the first that fails, {failed:?}"));
    }
    let operations = transaction.branch(if failed.is_none() { Branch::Then } else { Branch::Otherwise });
    if after.revision != before.revision + u64::from(!operations.is_empty()) {
        return Err(format!("the transaction moved the state from revision {} to {}", before.revision, after.revision));
    }
    if let Some(operation) = operations.iter().find(|operation| !is_done(after, operation)) {
        return Err(format!("the transaction did not do {operation:?}"));
    }
    let all = before.nodes.keys().chain(after.nodes.keys());
    let mut changed = all.filter(|path| before.nodes.get(*path) != after.nodes.get(*path));
    match changed.find(|path| !operations.iter().any(|operation| may_change(before, operation, path))) {
        Some(path) => Err(format!("the transaction changed {path} without an operation on it")),
        None => Ok(()),
    }
}

fn is_fulfilled(target: &CompareTarget, stored: Option<&Data>, is_held: impl Fn(Token) -> bool) -> bool {
    let is = |relation: &Relation, order: Ordering| match relation {
        Relation::Equal => order == Ordering::Equal,
        Relation::NotEqual => order != Ordering::Equal,
        Relation::Less => order == Ordering::Less,
        Relation::Greater => order == Ordering::Greater,
    };
    let number = |of: fn(&Data) -> u64| stored.map_or(0, of);
    match target {
        CompareTarget::Value(relation, value) => stored.is_some_and(|data| is(relation, data.value.cmp(value))),
        CompareTarget::Version(relation, than) => is(relation, number(|data| data.stat.version).cmp(than)),
        CompareTarget::ModifyRevision(relation, than) => {
            is(relation, number(|data| data.stat.modify_revision.0).cmp(&than.0))
        }
        CompareTarget::CreateRevision(relation, than) => {
            is(relation, number(|data| data.stat.create_revision.0).cmp(&than.0))
        }
        CompareTarget::Exists(exists) => stored.is_some() == *exists,
        CompareTarget::Locked(held, token) => is_held(*token) == *held,
    }
}

fn is_done(after: &Tree, operation: &Operation) -> bool {
    match operation {
        Operation::Put { path, value, .. } => after
            .nodes
            .get(path)
            .is_some_and(|data| data.value == value && data.stat.modify_revision.0 == after.revision),
        Operation::Delete { path, .. } => !after.nodes.contains_key(path),
    }
}

/// Whether the operation may change the node. A put also makes missing parents, and a delete
/// removes the subtree.
fn may_change(before: &Tree, operation: &Operation, path: &NodePath) -> bool {
    match operation {
        Operation::Put { path: own, .. } => own == path || (path.contains(own) && !before.nodes.contains_key(path)),
        Operation::Delete { path: own, .. } => own.contains(path),
    }
}
