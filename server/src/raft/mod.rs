//! Raft: one order of all proposals, on a majority of the replicas' disks.
//!
//! [`Replica`] is the handle for the rest of the server. It drives a [`Machine`], which has the
//! state in memory and answers clients, and it reports who leads. openraft does the consensus. Its
//! interface changes from version to version, so only this module and [`store`](crate::store) use
//! it.
//!
//! **Guarantees.**
//!
//! - A proposal is applied once it is on the disks of a majority, in one order on all replicas.
//! - A restarted leader must be elected again, in a later Raft term. Leadership is not restored.
//! - Reads need [`Replica::prove_leadership`]. openraft's lease is not enough: a restart forgets
//!   it.
//! - A replica that lost its disk rejoins without danger to acknowledged writes ([`bootstrap`]).
//!
//! **What it does not know.** The meaning of proposals; epochs, which the core derives.

pub mod bootstrap;
mod compaction;
mod config;
mod error;
mod heard;
mod identity;
mod incoming;
mod leadership;
mod leadership_transfer;
mod link;
pub mod machine;
mod membership;
mod network;
mod node;
mod notice;
pub mod peer;
mod peer_server;
mod quorum;
mod reach;
mod removal;
pub mod replacement;
mod replica;
pub mod types;

pub use self::{
    config::{
        RETAINED_BYTES, RETAINED_ENTRIES, ReplicaConfig, SNAPSHOT_BYTES, SNAPSHOT_ENTRIES, SNAPSHOT_STALL, Timings,
    },
    error::{LeadershipError, MembershipError, ProposeError, ReplicaStartError},
    leadership::RaftLeadership,
    leadership_transfer::TransferError,
    machine::Machine,
    peer_server::PeerServer,
    replica::{PROPOSAL_MAX_BYTES, ProposedEntry, Replica, ReplicaInfo},
};
