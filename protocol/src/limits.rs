//! Limits on the sizes of requests and stored data.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    command::Write,
    path::{COMPONENT_MAX_BYTES, NodePath, PATH_MAX_BYTES, PathError},
    reached::{Bound, reached},
    transaction::Transaction,
    volume::VolumeSettings,
};

/// The configurable limits of a server. It refuses larger requests, with the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The longest value, in bytes.
    pub value_max_bytes: usize,
    /// The longest component of a path, in bytes; at most [`COMPONENT_MAX_BYTES`].
    pub component_max_bytes: usize,
    /// The longest path, in bytes; at most [`PATH_MAX_BYTES`].
    pub path_max_bytes: usize,
    /// The most components of a path; at most [`Limits::DEPTH_MAX`]. A put makes all missing
    /// ancestors of its node, so the depth bounds its cost.
    pub depth_max: usize,
    /// The most object leases of one session in one volume. Beyond it the server tracks the session
    /// as covering.
    pub session_objects_max: usize,
    /// The longest name of a session, in bytes.
    pub session_name_max_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            value_max_bytes: 1 << 20,
            component_max_bytes: COMPONENT_MAX_BYTES,
            path_max_bytes: PATH_MAX_BYTES,
            depth_max: 64,
            session_objects_max: 1 << 20,
            session_name_max_bytes: 256,
        }
    }
}

/// The limit that was exceeded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum LimitError {
    /// The value is too long.
    #[error("value: {got} bytes exceed the limit of {expected}")]
    Value {
        /// Its length in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
    /// The path or one of its components is too long.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The path has too many components.
    #[error("path: {got} components exceed the limit of {expected} (limits.depth_max)")]
    Depth {
        /// The number of components.
        got: usize,
        /// The bound.
        expected: usize,
    },
    /// The content is too long for one answer, such as a list of very many children.
    #[error("answer: {got} bytes exceed the limit of {expected}")]
    Content {
        /// Its approximate length in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
    /// The write is too long for an entry of the log.
    #[error("write: {got} encoded bytes exceed the limit of {expected}")]
    Write {
        /// The length of its encoding in bytes.
        got: usize,
        /// The bound in bytes: [`Write::BYTES_MAX`](crate::command::Write::BYTES_MAX).
        expected: usize,
    },
    /// The session's name is too long.
    #[error("session name: {got} bytes exceed the limit of {expected}")]
    SessionName {
        /// Its length in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
    /// The TTL of a key lease is out of bounds.
    #[error("TTL {got:?} of a key lease: out of range; expected {least:?} to {most:?}")]
    Ttl {
        /// The requested TTL.
        got: Duration,
        /// The lower bound.
        least: Duration,
        /// The upper bound.
        most: Duration,
    },
    /// A list in a request is too long.
    #[error("request: {got} {what} exceed the limit of {expected}")]
    Request {
        /// The elements of the list, in the plural.
        what: String,
        /// Their number.
        got: usize,
        /// The bound.
        expected: usize,
    },
    /// One request names too many key leases.
    #[error("request: {got} key leases exceed the limit of {expected}")]
    Leases {
        /// Their number.
        got: usize,
        /// The bound.
        expected: usize,
    },
    /// One request names too many locks.
    #[error("request: {got} locks exceed the limit of {expected}")]
    Locks {
        /// Their number.
        got: usize,
        /// The bound.
        expected: usize,
    },
    /// The lock delay is too long.
    #[error("{path}: lock delay {got:?} exceeds the limit of {most:?}")]
    LockDelay {
        /// The node.
        path: NodePath,
        /// The requested delay.
        got: Duration,
        /// The upper bound.
        most: Duration,
    },
    /// A configured limit is above its own bound.
    #[error("{limit} = {got}: exceeds the limit of {expected}")]
    Configuration {
        /// The name of the limit.
        limit: String,
        /// The configured value.
        got: usize,
        /// The upper bound.
        expected: usize,
    },
    /// A transaction is too large in one respect.
    #[error("transaction: {got} {what} exceed the limit of {expected}")]
    Transaction {
        /// The counted parts, in the plural.
        what: String,
        /// The count.
        got: usize,
        /// The bound.
        expected: usize,
    },
}

impl Limits {
    /// The upper bound of `value_max_bytes`: a message with such a value fits into a frame.
    pub const VALUE_MAX_BYTES: usize = 4 << 20;

    /// The upper bound of `depth_max`. If other writes remove the ancestors of its nodes, a pending
    /// transaction makes at most this many nodes for each operation.
    pub const DEPTH_MAX: usize = 256;

    /// Checks the limits themselves.
    ///
    /// # Errors
    ///
    /// [`LimitError::Configuration`] with the name of the limit that is above its bound.
    pub fn check(&self) -> Result<(), LimitError> {
        let bounds = [
            ("value_max_bytes", Bound::ValueMax, self.value_max_bytes, Self::VALUE_MAX_BYTES),
            ("component_max_bytes", Bound::ComponentMax, self.component_max_bytes, COMPONENT_MAX_BYTES),
            ("path_max_bytes", Bound::PathMax, self.path_max_bytes, PATH_MAX_BYTES),
            ("depth_max", Bound::DepthMax, self.depth_max, Self::DEPTH_MAX),
        ];
        for (limit, bound, got, expected) in bounds {
            if got > expected {
                reached(bound);
                return Err(LimitError::Configuration { limit: limit.to_owned(), got, expected });
            }
        }
        Ok(())
    }

    /// Checks the length of a write's encoding. Other methods check its parts.
    ///
    /// # Errors
    ///
    /// [`LimitError::Write`] with the numbers.
    pub fn check_write(&self, write: &Write) -> Result<(), LimitError> {
        match write.encoded_bytes() {
            got if got > Write::BYTES_MAX => {
                reached(Bound::WriteBytes);
                Err(LimitError::Write { got, expected: Write::BYTES_MAX })
            }
            _ => Ok(()),
        }
    }

    /// Checks a value's length.
    ///
    /// # Errors
    ///
    /// [`LimitError::Value`] with the numbers.
    pub fn check_value(&self, value: &[u8]) -> Result<(), LimitError> {
        match value.len() {
            got if got > self.value_max_bytes => {
                reached(Bound::ValueBytes);
                Err(LimitError::Value { got, expected: self.value_max_bytes })
            }
            _ => Ok(()),
        }
    }

    /// Checks a path's lengths and its depth.
    ///
    /// # Errors
    ///
    /// [`LimitError::Path`] or [`LimitError::Depth`] with the numbers.
    pub fn check_path(&self, path: &NodePath) -> Result<(), LimitError> {
        let text = path.as_str();
        if text.len() > self.path_max_bytes {
            reached(Bound::PathBytes);
            return Err(PathError::TooLong { got: text.len(), expected: self.path_max_bytes }.into());
        }
        match text.split('/').map(str::len).max() {
            Some(got) if got > self.component_max_bytes => {
                reached(Bound::ComponentBytes);
                return Err(PathError::ComponentTooLong { got, expected: self.component_max_bytes }.into());
            }
            _ => {}
        }
        match path.depth() {
            got if got > self.depth_max => {
                reached(Bound::Depth);
                Err(LimitError::Depth { got, expected: self.depth_max })
            }
            _ => Ok(()),
        }
    }

    /// The shortest TTL of a key lease: the shortest term of a volume lease.
    pub const TTL_MIN: Duration = VolumeSettings::TERM_MIN;
    /// The longest TTL of a key lease: about a year.
    pub const TTL_MAX: Duration = VolumeSettings::OBJECT_TERM_MAX;

    /// Checks the TTL of a key lease.
    ///
    /// # Errors
    ///
    /// [`LimitError::Ttl`] with the numbers.
    pub fn check_ttl(&self, ttl: Duration) -> Result<(), LimitError> {
        if (Self::TTL_MIN..=Self::TTL_MAX).contains(&ttl) {
            return Ok(());
        }
        if ttl > Self::TTL_MAX {
            reached(Bound::TtlMax);
        }
        Err(LimitError::Ttl { got: ttl, least: Self::TTL_MIN, most: Self::TTL_MAX })
    }

    /// The longest lock delay: Chubby's bound.
    pub const DELAY_MAX: Duration = Duration::from_secs(60);

    /// Checks a lock delay: how long a node stays taken after its lock was lost.
    ///
    /// # Errors
    ///
    /// [`LimitError::LockDelay`] with the numbers.
    pub fn check_lock_delay(&self, path: &NodePath, delay: Duration) -> Result<(), LimitError> {
        if delay <= Self::DELAY_MAX {
            return Ok(());
        }
        reached(Bound::DelayMax);
        Err(LimitError::LockDelay { path: path.clone(), got: delay, most: Self::DELAY_MAX })
    }

    /// Checks a transaction's lengths. All its values together may be as long as one value.
    ///
    /// # Errors
    ///
    /// [`LimitError::Transaction`] with the numbers; [`LimitError::Path`] or [`LimitError::Depth`]
    /// for the first path beyond its limits.
    pub fn check_transaction(&self, transaction: &Transaction) -> Result<(), LimitError> {
        let Transaction { compares, then, otherwise } = transaction;
        let operations = then.len().max(otherwise.len());
        let bounds = [
            ("comparisons", Bound::Compares, compares.len(), Transaction::COMPARES_MAX),
            ("operations in one branch", Bound::Operations, operations, Transaction::OPERATIONS_MAX),
            ("bytes of values", Bound::ValueBytes, transaction.value_bytes(), self.value_max_bytes),
            ("bytes of paths", Bound::TransactionPaths, transaction.path_bytes(), Transaction::PATHS_MAX_BYTES),
        ];
        if let Some((what, bound, got, expected)) = bounds.into_iter().find(|(_, _, got, expected)| got > expected) {
            reached(bound);
            return Err(LimitError::Transaction { what: what.to_owned(), got, expected });
        }
        transaction.paths().try_for_each(|path| self.check_path(path))
    }

    /// Checks how many nodes a transaction would make, and the bytes of their paths.
    ///
    /// # Errors
    ///
    /// [`LimitError::Transaction`] with the numbers.
    pub fn check_nodes_made(&self, (nodes, path_bytes): (usize, usize)) -> Result<(), LimitError> {
        let bounds = [
            ("nodes to make, with those above them", Bound::NodesMade, nodes, Transaction::NODES_MADE_MAX),
            ("bytes of paths of nodes to make", Bound::MadePaths, path_bytes, Transaction::MADE_PATHS_MAX_BYTES),
        ];
        match bounds.into_iter().find(|(_, _, got, expected)| got > expected) {
            Some((what, bound, got, expected)) => {
                reached(bound);
                Err(LimitError::Transaction { what: what.to_owned(), got, expected })
            }
            None => Ok(()),
        }
    }

    /// Checks a session name's length.
    ///
    /// # Errors
    ///
    /// [`LimitError::SessionName`] with the numbers.
    pub fn check_session_name(&self, name: &str) -> Result<(), LimitError> {
        match name.len() {
            got if got > self.session_name_max_bytes => {
                reached(Bound::SessionNameBytes);
                Err(LimitError::SessionName { got, expected: self.session_name_max_bytes })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::Revision,
        transaction::{Compare, Operation, Relation},
    };

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("a valid path")
    }

    fn too_much(what: &str, got: usize, expected: usize) -> Result<(), LimitError> {
        Err(LimitError::Transaction { what: what.to_owned(), got, expected })
    }

    #[test]
    fn a_transaction_is_bounded_in_each_of_its_parts() {
        let limits = Limits { value_max_bytes: 10, component_max_bytes: 100, ..Limits::default() };
        let at = |number: usize| path(&format!("/{number}"));
        let compare = |number: usize| Compare::modify_revision(at(number), Relation::Equal, Revision(1));
        let full = Transaction {
            compares: (0..128).map(compare).collect(),
            then: (0..128).map(|number| Operation::put(at(number), "")).collect(),
            otherwise: (0..128).map(|number| Operation::delete(at(number))).collect(),
        };
        assert_eq!(limits.check_transaction(&full), Ok(()));
        let beyond = full.clone().when(compare(128));
        assert_eq!(limits.check_transaction(&beyond), too_much("comparisons", 129, 128));
        for beyond in [full.clone().then(Operation::delete(at(128))), full.otherwise(Operation::delete(at(128)))] {
            assert_eq!(limits.check_transaction(&beyond), too_much("operations in one branch", 129, 128));
        }
        let values = |last: &'static str| {
            Transaction::new()
                .when(Compare::value(path("/a"), Relation::Equal, "1234"))
                .then(Operation::put(path("/b"), "123"))
                .otherwise(Operation::put(path("/b"), last))
        };
        assert_eq!(limits.check_transaction(&values("123")), Ok(()));
        assert_eq!(limits.check_transaction(&values("1234")), too_much("bytes of values", 11, 10));
        let long = path(&format!("/{}", "x".repeat(101)));
        let error = PathError::ComponentTooLong { got: 101, expected: 100 }.into();
        assert_eq!(limits.check_transaction(&Transaction::new().when(Compare::exists(long))), Err(error));
        let long = |number: usize| path(&format!("{}/{number:04}", "/x".repeat(2045)));
        let limits = Limits { depth_max: 4096, ..limits };
        let paths = |count: usize| Transaction {
            then: (0..count).map(|number| Operation::delete(long(number))).collect(),
            ..Transaction::new()
        };
        assert_eq!(limits.check_transaction(&paths(64)), Ok(()));
        assert_eq!(limits.check_transaction(&paths(65)), too_much("bytes of paths", 65 * 4095, 256 << 10));
    }

    #[test]
    fn path_deeper_than_the_limit_is_refused_with_its_depth() {
        let limits = Limits::default();
        let deep = |depth: usize| path(&"/x".repeat(depth));
        assert_eq!(limits.check_path(&deep(64)), Ok(()));
        let error = limits.check_path(&deep(65)).expect_err("too deep");
        assert_eq!(error.to_string(), "path: 65 components exceed the limit of 64 (limits.depth_max)");
        let configured = Limits { depth_max: Limits::DEPTH_MAX + 1, ..limits };
        let (got, expected) = (Limits::DEPTH_MAX + 1, Limits::DEPTH_MAX);
        let error = LimitError::Configuration { limit: "depth_max".to_owned(), got, expected };
        assert_eq!(configured.check(), Err(error));
    }

    #[test]
    fn lengths_and_terms_beyond_their_limits_are_refused() {
        let limits = Limits { path_max_bytes: 4, session_name_max_bytes: 2, ..Limits::default() };
        assert_eq!(limits.check_path(&path("/abc")), Ok(()));
        let too_long = PathError::TooLong { got: 5, expected: 4 };
        assert_eq!(limits.check_path(&path("/abcd")), Err(too_long.into()));
        assert_eq!(limits.check_session_name("ab"), Ok(()));
        assert_eq!(limits.check_session_name("abc"), Err(LimitError::SessionName { got: 3, expected: 2 }));
        let (got, expected) = (Limits::VALUE_MAX_BYTES + 1, Limits::VALUE_MAX_BYTES);
        let configured = Limits { value_max_bytes: got, ..limits };
        let error = LimitError::Configuration { limit: "value_max_bytes".to_owned(), got, expected };
        assert_eq!(configured.check(), Err(error));
        let second = Duration::from_secs(1);
        assert_eq!(limits.check_ttl(Limits::TTL_MAX), Ok(()));
        assert!(matches!(limits.check_ttl(Limits::TTL_MAX + second), Err(LimitError::Ttl { .. })));
        assert_eq!(limits.check_lock_delay(&path("/a"), Limits::DELAY_MAX), Ok(()));
        assert!(matches!(
            limits.check_lock_delay(&path("/a"), Limits::DELAY_MAX + second),
            Err(LimitError::LockDelay { .. })
        ));
    }
}
