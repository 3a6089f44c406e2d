//! Transactions: what must hold of some nodes, and what is done if it does or does not (etcd's
//! `Txn`).
//!
//! All comparisons are judged, and all operations of the branch that they choose are done, at one
//! place in the order of all changes: nobody sees some of it. A transaction that changes anything
//! is one change, with one revision.
//!
//! # What a branch may not do
//!
//! Its operations are independent of each other, so that their order means nothing: no node is
//! written twice, nothing is written at or below a node that is removed, and nothing below one that
//! is attached to a lease. Both branches are held to that, whichever is chosen, so that what is
//! refused does not depend on what is stored.
//!
//! # What it does not know
//!
//! What is stored: see [`State::footprint`](crate::state::State::footprint) for what a branch needs
//! of it.

use std::{cmp::Ordering, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    command::{Attach, WriteRefusal},
    id::{Revision, Token},
    object::{Data, Stat, Value},
    path::NodePath,
};

/// Comparisons, and an operation list for either result. Empty lists are allowed: no comparisons
/// always hold, and a branch without operations changes nothing and takes no revision.
///
/// ```
/// use leasehold_protocol::{path::Path, transaction::{Compare, Operation, Relation, Transaction}};
///
/// let (from, to) = (Path::parse("/from")?, Path::parse("/to")?);
/// let moved = Transaction::new()
///     .when(Compare::value(from.clone(), Relation::Equal, "7"))
///     .when(Compare::absent(to.clone()))
///     .then(Operation::delete(from))
///     .then(Operation::put(to, "7"));
/// assert_eq!(moved.compares[0].to_string(), r#"value("/from") = "7""#);
/// # Ok::<(), leasehold_protocol::path::PathError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transaction {
    /// What is compared, in order.
    pub compares: Vec<Compare>,
    /// What is done if all comparisons hold.
    pub then: Vec<Operation>,
    /// What is done if one of them does not.
    pub otherwise: Vec<Operation>,
}

/// One of a transaction's lists of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Branch {
    /// All comparisons hold.
    Then,
    /// One does not.
    Otherwise,
}

/// Something that is compared with what is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Compare {
    /// The node.
    pub path: NodePath,
    /// What of it, and with what.
    pub target: CompareTarget,
}

/// What of a node is compared, how, and with what. As in etcd, a node that does not exist has
/// version 0 and revisions 0, and no value: a comparison with its value does not hold, whichever it
/// is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CompareTarget {
    /// The bytes, in the order of bytes.
    Value(Relation, Value),
    /// How many times the value was written since the node was made.
    Version(Relation, u64),
    /// The last change of the value.
    ModifyRevision(Relation, Revision),
    /// The change that made the node.
    CreateRevision(Relation, Revision),
    /// Whether there is such a node.
    Exists(bool),
    /// Whether this node, or one below it, is held under this fencing token (S10). Tokens are never
    /// used again: the root says whether it is good at all.
    Locked(bool, Token),
}

/// How the stored thing has to be to the one named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Relation {
    /// The same.
    Equal,
    /// Another.
    NotEqual,
    /// Less than it.
    Less,
    /// More than it.
    Greater,
}

/// One of the things that a transaction does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// Sets a node's value; makes the node and the nodes above it that do not exist.
    Put {
        /// The node.
        path: NodePath,
        /// Its new value.
        value: Value,
        /// The lease that the node goes with from now on.
        attach: Attach,
    },
    /// Removes a node. If it does not exist the whole transaction is refused.
    Delete {
        /// The node.
        path: NodePath,
        /// With all that lies below it; otherwise a node with children is not removed, and the
        /// whole transaction is refused.
        recursive: bool,
    },
}

/// What a transaction did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transacted {
    /// The first comparison that did not hold. None: all held, and the operations of
    /// [`Branch::Then`] were done.
    pub failed: Option<FailedCompare>,
    /// What each operation of the chosen branch did, in their order.
    pub results: Vec<OperationResult>,
}

/// A comparison that did not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FailedCompare {
    /// Its place among the comparisons, from 0.
    pub index: u32,
    /// What was there; none if the node did not exist.
    pub found: Option<Stat>,
}

/// What an operation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OperationResult {
    /// A put: the node as it is since.
    Put(Stat),
    /// A delete: how many nodes were removed.
    Deleted(u64),
}

impl Transaction {
    /// The most comparisons (etcd's `max-txn-ops`).
    pub const COMPARES_MAX: usize = 128;
    /// The most operations in each branch (etcd's `max-txn-ops`).
    pub const OPERATIONS_MAX: usize = 128;
    /// The most bytes of all paths together. With the objects that a write names beside itself,
    /// each path comes at most five times in a message or entry: with the largest values it still
    /// fits.
    pub const PATHS_MAX_BYTES: usize = 256 << 10;
    /// The most nodes that either branch may make, with those above them that are missing when the
    /// request arrives: each is a row, and an event for watchers. Nodes that exist count for
    /// nothing.
    pub const NODES_MADE_MAX: usize = 4096;
    /// The most bytes that the paths of these nodes have: they come in a row each, and once more in
    /// the history.
    pub const MADE_PATHS_MAX_BYTES: usize = 2 << 20;

    /// Compares nothing and does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more comparison that has to hold.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.compares.push(compare);
        self
    }

    /// One more operation for when all comparisons hold.
    #[must_use]
    pub fn then(mut self, operation: Operation) -> Self {
        self.then.push(operation);
        self
    }

    /// One more operation for when one of the comparisons does not hold.
    #[must_use]
    pub fn otherwise(mut self, operation: Operation) -> Self {
        self.otherwise.push(operation);
        self
    }

    /// The operations of a branch.
    pub fn branch(&self, branch: Branch) -> &[Operation] {
        match branch {
            Branch::Then => &self.then,
            Branch::Otherwise => &self.otherwise,
        }
    }

    /// The operations of both branches.
    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.then.iter().chain(&self.otherwise)
    }

    /// All paths that it names.
    pub fn paths(&self) -> impl Iterator<Item = &NodePath> {
        self.compares.iter().map(|compare| &compare.path).chain(self.operations().map(Operation::path))
    }

    /// How many bytes all values have that it names, those that are compared included.
    pub fn value_bytes(&self) -> usize {
        let compared = self.compares.iter().map(|compare| match &compare.target {
            CompareTarget::Value(_, value) => value.len(),
            _ => 0,
        });
        let put = self.operations().map(|operation| match operation {
            Operation::Put { value, .. } => value.len(),
            Operation::Delete { .. } => 0,
        });
        compared.chain(put).sum()
    }

    /// How many bytes all paths have that it names.
    pub fn path_bytes(&self) -> usize {
        self.paths().map(|path| path.as_str().len()).sum()
    }

    /// The operations of each branch are independent of each other.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal::Overlap`] names two that are not.
    pub fn check_overlaps(&self) -> Result<(), WriteRefusal> {
        [Branch::Then, Branch::Otherwise].into_iter().try_for_each(|branch| self.check_overlaps_of(branch))
    }

    fn check_overlaps_of(&self, branch: Branch) -> Result<(), WriteRefusal> {
        let operations = self.branch(branch);
        for (place, one) in operations.iter().enumerate() {
            let other = operations[..place].iter().position(|other| one.excludes(other) || other.excludes(one));
            if let Some(other) = other {
                let (first, second, path) = (index_of(other), index_of(place), one.path().clone());
                return Err(WriteRefusal::Overlap { branch, first, second, path });
            }
        }
        Ok(())
    }
}

/// Places are few.
pub(crate) fn index_of(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

impl Operation {
    /// A put that attaches its node to no lease.
    pub fn put(path: NodePath, value: impl Into<Value>) -> Self {
        Self::Put { path, value: value.into(), attach: Attach::Nothing }
    }

    /// The removal of a node without children.
    pub fn delete(path: NodePath) -> Self {
        Self::Delete { path, recursive: false }
    }

    /// The node.
    pub fn path(&self) -> &NodePath {
        match self {
            Self::Put { path, .. } | Self::Delete { path, .. } => path,
        }
    }

    /// Whether the other may not stand in the same branch.
    fn excludes(&self, other: &Self) -> bool {
        let takes_all_below = match self {
            Self::Delete { .. } => true,
            Self::Put { attach, .. } => matches!(attach, Attach::Lease(_) | Attach::Session),
        };
        self.path() == other.path() || (takes_all_below && self.path().contains(other.path()))
    }
}

impl Compare {
    /// Of a node's value.
    pub fn value(path: NodePath, relation: Relation, value: impl Into<Value>) -> Self {
        Self { path, target: CompareTarget::Value(relation, value.into()) }
    }

    /// Of how many times a node was written since it was made.
    pub fn version(path: NodePath, relation: Relation, version: u64) -> Self {
        Self { path, target: CompareTarget::Version(relation, version) }
    }

    /// Of the last change of a node's value.
    pub fn modify_revision(path: NodePath, relation: Relation, revision: Revision) -> Self {
        Self { path, target: CompareTarget::ModifyRevision(relation, revision) }
    }

    /// Of the change that made a node.
    pub fn create_revision(path: NodePath, relation: Relation, revision: Revision) -> Self {
        Self { path, target: CompareTarget::CreateRevision(relation, revision) }
    }

    /// There is such a node.
    pub fn exists(path: NodePath) -> Self {
        Self { path, target: CompareTarget::Exists(true) }
    }

    /// There is no such node.
    pub fn absent(path: NodePath) -> Self {
        Self { path, target: CompareTarget::Exists(false) }
    }

    /// A node at or below this one is held under the token.
    pub fn locked(path: NodePath, token: Token) -> Self {
        Self { path, target: CompareTarget::Locked(true, token) }
    }

    /// Whether it holds, given what is stored of the node, and whether the token that it names is
    /// good there.
    pub fn matches(&self, data: Option<&Data>, is_held: impl FnOnce(Token) -> bool) -> bool {
        let stat = data.map(|data| data.stat);
        match &self.target {
            CompareTarget::Value(relation, value) => data.is_some_and(|data| relation.matches(data.value.cmp(value))),
            CompareTarget::Version(relation, version) => {
                relation.matches(stat.map_or(0, |stat| stat.version).cmp(version))
            }
            CompareTarget::ModifyRevision(relation, revision) => {
                relation.matches(stat.map_or(Revision(0), |stat| stat.modify_revision).cmp(revision))
            }
            CompareTarget::CreateRevision(relation, revision) => {
                relation.matches(stat.map_or(Revision(0), |stat| stat.create_revision).cmp(revision))
            }
            CompareTarget::Exists(exists) => data.is_some() == *exists,
            CompareTarget::Locked(held, token) => is_held(*token) == *held,
        }
    }
}

impl Relation {
    /// Whether something stands so to the one named.
    pub fn matches(self, stored: Ordering) -> bool {
        match self {
            Self::Equal => stored.is_eq(),
            Self::NotEqual => stored.is_ne(),
            Self::Less => stored.is_lt(),
            Self::Greater => stored.is_gt(),
        }
    }
}

impl Transacted {
    /// Whether all comparisons held.
    pub fn succeeded(&self) -> bool {
        self.failed.is_none()
    }

    /// The branch that was chosen.
    pub fn branch(&self) -> Branch {
        if self.succeeded() { Branch::Then } else { Branch::Otherwise }
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Then => "then",
            Self::Otherwise => "otherwise",
        })
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::Greater => ">",
        })
    }
}

impl fmt::Display for Compare {
    /// As etcdctl writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.as_str();
        match &self.target {
            CompareTarget::Value(relation, value) => {
                write!(f, "value({path:?}) {relation} {:?}", String::from_utf8_lossy(value))
            }
            CompareTarget::Version(relation, version) => write!(f, "version({path:?}) {relation} \"{version}\""),
            CompareTarget::ModifyRevision(relation, revision) => write!(f, "mod({path:?}) {relation} \"{revision}\""),
            CompareTarget::CreateRevision(relation, revision) => {
                write!(f, "create({path:?}) {relation} \"{revision}\"")
            }
            CompareTarget::Exists(exists) => write!(f, "exists({path:?}) = \"{exists}\""),
            CompareTarget::Locked(true, token) => write!(f, "held({path:?}) = \"{token}\""),
            CompareTarget::Locked(false, token) => write!(f, "held({path:?}) != \"{token}\""),
        }
    }
}

#[cfg(test)]
mod tests;
