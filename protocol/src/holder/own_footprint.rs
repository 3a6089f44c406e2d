//! What a write of this client may change, as far as the client knows. The client drops its own
//! copies of these objects before it sends the write. So the leader recalls them from this client
//! only if it has granted a later lease on them (S2w).

use std::collections::BTreeSet;

use crate::{
    command::{Attach, Condition, Write},
    object::{Object, ObjectSet},
    path::NodePath,
    transaction::Operation,
};

/// The objects that a write may change, as far as the writer can tell cheaply. If the write changes
/// others too, the leader recalls those from the writer. A put of a node that is known to exist
/// changes no list of children. For a transaction, both branches count, because the client learns
/// only from the answer which one was chosen.
pub(super) fn may_change(write: &Write, is_known_to_exist: bool) -> Vec<ObjectSet> {
    let one = ObjectSet::One;
    let parent = |path: &NodePath| path.parent().map(|parent| one(Object::children(parent)));
    let node = |path: &NodePath| vec![one(Object::data(path.clone())), one(Object::children(path.clone()))];
    let mut sets = match write {
        Write::TakeWriteLease { path, .. } | Write::Flush { path, .. } => return vec![one(Object::data(path.clone()))],
        Write::Put { path, .. } if is_known_to_exist => return vec![one(Object::data(path.clone()))],
        Write::Put { path, .. } | Write::Delete { path, recursive: false, .. } => node(path),
        Write::Delete { path, recursive: true, .. }
        | Write::CreateVolume { path, .. }
        | Write::SetVolume { path, .. }
        | Write::RemoveVolume { path } => vec![ObjectSet::Subtree(path.clone())],
        Write::Transaction(transaction) => {
            let all: BTreeSet<ObjectSet> = transaction.operations().flat_map(operation_may_change).collect();
            return all.into_iter().collect();
        }
        // The client does not know all nodes of a key lease.
        Write::GrantLease { .. }
        | Write::RevokeLease { .. }
        | Write::RevokeLeaseNamed { .. }
        // A lock changes no data.
        | Write::Lock { .. }
        | Write::ChangeLockMode { .. }
        | Write::Unlock { .. }
        | Write::HandOver { .. } => return Vec::new(),
    };
    sets.extend(write.path().and_then(parent));
    sets
}

fn operation_may_change(operation: &Operation) -> Vec<ObjectSet> {
    let (path, attach) = (operation.path().clone(), Attach::Nothing);
    let equivalent_write = match operation {
        Operation::Put { .. } => Write::Put { path, value: Default::default(), condition: Condition::Any, attach },
        Operation::Delete { recursive, .. } => Write::Delete { path, recursive: *recursive, condition: Condition::Any },
    };
    may_change(&equivalent_write, false)
}
