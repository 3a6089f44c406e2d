//! The name of a cluster.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names one founding: no two clusters have the same, whatever their members are called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId {
    /// The replica that founded it. From 1.
    pub founder: u64,
    /// Random, and new each time that a founder begins.
    pub nonce: u128,
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x} (founded by replica {})", self.nonce, self.founder)
    }
}
