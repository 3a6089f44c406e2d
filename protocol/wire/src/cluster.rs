//! The id of a cluster.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies one bootstrap. No two clusters have the same id, whatever their members are called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId {
    /// The replica that bootstrapped the cluster. From 1.
    pub founder: u64,
    /// A random number, new at each bootstrap.
    pub nonce: u128,
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x} (founded by replica {})", self.nonce, self.founder)
    }
}
