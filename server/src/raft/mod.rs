//! Raft: one order of all proposals, on a majority of the replicas' disks.
//!
//! [`Replica`] is the handle for the rest of the server. It drives a [`Machine`], which keeps the
//! state in memory and answers clients, and it says who leads. openraft does the consensus; it is
//! hidden in here and in [`store`](crate::store), as its interface changes from version to version.
//!
//! **Guarantees.** A proposal is applied once it is on the disks of a majority, in one order on all
//! replicas. A restarted leader has to be elected again, in a later term (leadership is not
//! restored). Reads may be served after [`Replica::prove_leadership`] and by nothing cheaper:
//! openraft's lease forgets over a restart what it has granted. A replica whose disk was lost comes
//! back without endangering what was acknowledged ([`bootstrap`]).
//!
//! **What it does not know.** What proposals mean; epochs, which the core makes of its own first
//! entry.

pub mod bootstrap;
mod compaction;
mod config;
mod heard;
mod identity;
mod incoming;
mod leadership_transfer;
pub mod machine;
mod membership;
mod network;
mod node;
mod notice;
pub mod peer;
mod quorum;
mod reach;
mod removal;
pub mod replacement;
mod replica;
pub mod types;

pub use self::{
    config::{RETAINED_BYTES, ReplicaConfig, SNAPSHOT_BYTES, SNAPSHOT_STALL, Timings},
    leadership_transfer::TransferError,
    machine::Machine,
    peer::PeerServer,
    replica::{
        LeadershipError, MembershipError, PROPOSAL_MAX_BYTES, ProposeError, ProposedEntry, RaftLeadership, Replica,
        ReplicaInfo, ReplicaStartError,
    },
};
