//! A value that a write lease lost.

use std::fmt;

use leasehold_protocol::{message::Refusal, object::Value, path::NodePath};

/// A value that was set under a write lease, and lost before a flush was confirmed.
///
/// ```no_run
/// # async fn example(lease: leasehold_client_cache::WriteLease) -> Result<(), Box<dyn std::error::Error>> {
/// let lost = lease.lost_change().await;
/// eprintln!("{lost}");
/// std::fs::write("minutes.lost", &lost.value)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the value is only here"]
#[non_exhaustive]
pub struct LostChange {
    /// The node.
    pub path: NodePath,
    /// The value that was set last. Earlier values that were not flushed are not reported.
    pub value: Value,
    /// Whether a flush was sent and not answered. Then the servers may have this value, or an
    /// earlier one.
    pub may_be_written: bool,
    /// Why the servers refused it. The lock is still owned then. `None` if the lock ended first.
    pub refusal: Option<Box<Refusal>>,
}

impl fmt::Display for LostChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what was set at {} under a write lease is lost: {} bytes", self.path, self.value.len())?;
        self.refusal.as_ref().map_or(Ok(()), |refusal| write!(f, ", because {refusal}"))
    }
}
