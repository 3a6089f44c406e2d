//! Who leads, as far as a replica knows.

/// The leadership, as far as this replica knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RaftLeadership {
    /// The Raft term. (An epoch is something else: the index of a leader's first entry.)
    pub term: u64,
    /// Whether this replica leads. A majority must have answered it within four of the longest
    /// election timeouts, and it must not have begun a leadership transfer.
    pub is_leader: bool,
    /// The leader and its address, if known.
    pub leader: Option<(u64, String)>,
}

impl RaftLeadership {
    /// Marks this replica as no leader, so that no client is sent to it.
    pub(super) fn renounce(&mut self, replica: u64) {
        self.is_leader = false;
        self.leader.take_if(|(leader, _)| *leader == replica);
    }
}
