//! To which lease a put attaches its node.

use serde::{Deserialize, Serialize};

use crate::{id::LeaseId, lease_name::LeaseName};

/// The lease to which a put attaches its node. A node is attached to one lease at most. A lease
/// with [`REMOVED_NODES_MAX`](crate::state::State::REMOVED_NODES_MAX) nodes takes no more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Attach {
    /// No lease: the node exists until a write removes it. This is the default, as in etcd.
    #[default]
    Nothing,
    /// The node's attachment does not change.
    Unchanged,
    /// This key lease.
    Lease(LeaseId),
    /// The key lease that has this name when the request arrives at the leader (S7b).
    LeaseNamed(LeaseName),
    /// The writer's lease on the node's volume: the node shows that its session is alive.
    Session,
}
