//! Transactions: comparisons of nodes, and a list of operations for each result (etcd's `Txn`).
//!
//! The state makes all comparisons, and applies the chosen operations, at one position in the order
//! of changes. No reader sees a part of the effect. If a transaction changes anything, it is one
//! change, with one revision.
//!
//! # What a branch may not do
//!
//! The operations of a branch must be independent, so that their order does not matter:
//!
//! - No two operations name the same node.
//! - No operation names a node below one that the branch removes.
//! - No operation names a node below one that the branch attaches to a lease.
//!
//! Both branches are checked, not only the chosen one. So the refusal of a transaction does not
//! depend on the stored nodes.
//!
//! # What it does not know
//!
//! This module does not know the stored nodes. [`State::footprint`](crate::state::State::footprint)
//! computes the objects that a branch changes.

use std::{cmp::Ordering, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    attach::Attach,
    id::{Revision, Token},
    object::{Data, Stat, Value},
    path::NodePath,
};

/// Comparisons, and a list of operations for each result. The lists may be empty. An empty list of
/// comparisons always holds. An empty branch changes nothing and uses no revision.
///
/// ```
/// use leasehold_protocol::{path::NodePath, transaction::{Compare, Operation, Relation, Transaction}};
///
/// let (from, to) = (NodePath::parse("/from")?, NodePath::parse("/to")?);
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
    /// The comparisons, in order.
    pub compares: Vec<Compare>,
    /// The operations if all comparisons hold.
    pub then: Vec<Operation>,
    /// The operations if a comparison does not hold.
    pub otherwise: Vec<Operation>,
}

/// One of a transaction's two lists of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Branch {
    /// The branch if all comparisons hold.
    Then,
    /// The branch if a comparison does not hold.
    Otherwise,
}

/// Two operations of one branch that are not independent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// The branch.
    pub branch: Branch,
    /// The index of the first operation, from 0.
    pub first: u32,
    /// The index of the second operation, from 0.
    pub second: u32,
    /// The node of the second operation.
    pub path: NodePath,
}

/// A comparison with a stored node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Compare {
    /// The node.
    pub path: NodePath,
    /// The compared property, and the value to compare it with.
    pub target: CompareTarget,
}

/// The compared property of a node, the relation, and the operand. As in etcd, a node that does not
/// exist has version 0, revisions 0 and no value. No comparison with the value of such a node
/// holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CompareTarget {
    /// The value, in the order of bytes.
    Value(Relation, Value),
    /// The number of writes of the value since the node was created.
    Version(Relation, u64),
    /// The last change of the value.
    ModifyRevision(Relation, Revision),
    /// The change that created the node.
    CreateRevision(Relation, Revision),
    /// Whether the node exists.
    Exists(bool),
    /// Whether this node, or a descendant, is locked under this fencing token (S10). Tokens are
    /// never reused, so a comparison at the root tests whether the token is valid on any node.
    Locked(bool, Token),
}

/// The required relation of the stored property to the operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Relation {
    /// The stored property equals the operand.
    Equal,
    /// It differs.
    NotEqual,
    /// It is less.
    Less,
    /// It is greater.
    Greater,
}

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// Sets a node's value. Creates the node and its missing ancestors.
    Put {
        /// The node.
        path: NodePath,
        /// Its new value.
        value: Value,
        /// The lease to which the node is attached from now on.
        attach: Attach,
    },
    /// Removes a node. If it does not exist, the whole transaction is refused.
    Delete {
        /// The node.
        path: NodePath,
        /// Whether to remove all descendants too. If not, and the node has children, the whole
        /// transaction is refused.
        recursive: bool,
    },
}

/// The result of a transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transacted {
    /// The first comparison that did not hold. `None` if all held: the operations of
    /// [`Branch::Then`] were applied.
    pub failed: Option<FailedCompare>,
    /// The results of the chosen branch, in the order of its operations.
    pub results: Vec<OperationResult>,
}

/// A comparison that did not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FailedCompare {
    /// The index of the comparison, from 0.
    pub index: u32,
    /// The stat of the node. `None` if the node did not exist, or was under a write lease.
    pub found: Option<Stat>,
}

/// The result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OperationResult {
    /// A put: the node's new stat.
    Put(Stat),
    /// A delete: the number of removed nodes.
    Deleted(u64),
}

impl Transaction {
    /// The most comparisons (etcd's `max-txn-ops`).
    pub const COMPARES_MAX: usize = 128;
    /// The most operations in each branch (etcd's `max-txn-ops`).
    pub const OPERATIONS_MAX: usize = 128;
    /// The most bytes of all paths together. A message or an entry has each path at most five
    /// times: in the transaction, and in the sets of objects beside it. So a frame has room for the
    /// paths and the largest values.
    pub const PATHS_MAX_BYTES: usize = 256 << 10;
    /// The most nodes that either branch may create, including missing ancestors. They are counted
    /// in the state at the arrival of the request. Each is a row, and an event for watchers.
    pub const NODES_MADE_MAX: usize = 4096;
    /// The most bytes of the paths of these nodes. Each path occurs in a row and again in the
    /// history.
    pub const MADE_PATHS_MAX_BYTES: usize = 2 << 20;

    /// A transaction without comparisons and operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a comparison that must hold.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.compares.push(compare);
        self
    }

    /// Adds an operation for the case that all comparisons hold.
    #[must_use]
    pub fn then(mut self, operation: Operation) -> Self {
        self.then.push(operation);
        self
    }

    /// Adds an operation for the case that a comparison does not hold.
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

    /// All paths in the transaction.
    pub fn paths(&self) -> impl Iterator<Item = &NodePath> {
        self.compares.iter().map(|compare| &compare.path).chain(self.operations().map(Operation::path))
    }

    /// The bytes of all values in the transaction, including compared values.
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

    /// The bytes of all paths in the transaction.
    pub fn path_bytes(&self) -> usize {
        self.paths().map(|path| path.as_str().len()).sum()
    }

    /// Checks that the operations of each branch are independent.
    ///
    /// # Errors
    ///
    /// [`Overlap`] names two operations that are not independent.
    pub fn check_overlaps(&self) -> Result<(), Overlap> {
        [Branch::Then, Branch::Otherwise].into_iter().try_for_each(|branch| self.check_overlaps_of(branch))
    }

    fn check_overlaps_of(&self, branch: Branch) -> Result<(), Overlap> {
        let operations = self.branch(branch);
        for (place, one) in operations.iter().enumerate() {
            let other = operations[..place].iter().position(|other| one.excludes(other) || other.excludes(one));
            if let Some(other) = other {
                let (first, second, path) = (index_of(other), index_of(place), one.path().clone());
                return Err(Overlap { branch, first, second, path });
            }
        }
        Ok(())
    }
}

/// An index as `u32`. No list of a transaction has more elements than a `u32` can count.
pub(crate) fn index_of(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

impl Operation {
    /// A put that attaches its node to no lease.
    pub fn put(path: NodePath, value: impl AsRef<[u8]>) -> Self {
        Self::Put { path, value: Value::copy_from_slice(value.as_ref()), attach: Attach::Nothing }
    }

    /// A delete of a node without children.
    pub fn delete(path: NodePath) -> Self {
        Self::Delete { path, recursive: false }
    }

    /// The node.
    pub fn path(&self) -> &NodePath {
        match self {
            Self::Put { path, .. } | Self::Delete { path, .. } => path,
        }
    }

    /// Whether this operation forbids the other one in the same branch.
    fn excludes(&self, other: &Self) -> bool {
        let takes_all_below = match self {
            Self::Delete { .. } => true,
            Self::Put { attach, .. } => matches!(attach, Attach::Lease(_) | Attach::LeaseNamed(_) | Attach::Session),
        };
        self.path() == other.path() || (takes_all_below && self.path().contains(other.path()))
    }
}

impl Compare {
    /// Compares a node's value.
    pub fn value(path: NodePath, relation: Relation, value: impl AsRef<[u8]>) -> Self {
        Self { path, target: CompareTarget::Value(relation, Value::copy_from_slice(value.as_ref())) }
    }

    /// Compares the number of writes since a node was created.
    pub fn version(path: NodePath, relation: Relation, version: u64) -> Self {
        Self { path, target: CompareTarget::Version(relation, version) }
    }

    /// Compares the last change of a node's value.
    pub fn modify_revision(path: NodePath, relation: Relation, revision: Revision) -> Self {
        Self { path, target: CompareTarget::ModifyRevision(relation, revision) }
    }

    /// Compares the change that created a node.
    pub fn create_revision(path: NodePath, relation: Relation, revision: Revision) -> Self {
        Self { path, target: CompareTarget::CreateRevision(relation, revision) }
    }

    /// Holds if the node exists.
    pub fn exists(path: NodePath) -> Self {
        Self { path, target: CompareTarget::Exists(true) }
    }

    /// Holds if the node does not exist.
    pub fn absent(path: NodePath) -> Self {
        Self { path, target: CompareTarget::Exists(false) }
    }

    /// Holds if this node, or a descendant, is locked under the token.
    pub fn locked(path: NodePath, token: Token) -> Self {
        Self { path, target: CompareTarget::Locked(true, token) }
    }

    /// Whether the comparison holds. `data` is the stored node. `is_locked` returns whether a lock
    /// at or below the node has the token.
    pub fn matches(&self, data: Option<&Data>, is_locked: impl FnOnce(Token) -> bool) -> bool {
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
            CompareTarget::Locked(is_expected, token) => is_locked(*token) == *is_expected,
        }
    }
}

impl Relation {
    /// Whether the relation holds. `stored` is how the stored property compares with the operand.
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
    /// The notation of etcdctl.
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
            CompareTarget::Locked(true, token) => write!(f, "locked({path:?}) = \"{token}\""),
            CompareTarget::Locked(false, token) => write!(f, "locked({path:?}) != \"{token}\""),
        }
    }
}

#[cfg(test)]
mod tests;
