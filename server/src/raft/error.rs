//! Why a replica does not start, and why it refuses calls of the server.

use std::{io, path::PathBuf};

use openraft::ConfigError;

use crate::store::{
    log::OpenLogError,
    state::OpenStateError,
    store_identity::{ClusterId, StoreIdentityError},
};

/// Why a replica does not start, or cannot enter its cluster.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaStartError {
    /// The replica is not among the members.
    #[error("replica {id}: not a member; expected one of {members:?}")]
    NotAMember {
        /// The replica.
        id: u64,
        /// The members.
        members: Vec<u64>,
    },
    /// The timings contradict each other.
    #[error("timings: {0}")]
    Timings(#[from] ConfigError),
    /// The data folder cannot be created or written.
    #[error("{}: not usable as the data folder: {error}", dir.display())]
    Directory {
        /// The folder.
        dir: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another process, or another replica of this process, uses the data folder.
    #[error(
        "{}: in use by {}; stop that process, or give this replica its own folder",
        dir.display(),
        process.map_or_else(|| "another process".to_owned(), |process| format!("process {process}"))
    )]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// The other process, if known.
        process: Option<u32>,
    },
    /// The store identity cannot be read.
    #[error(transparent)]
    Identity(#[from] StoreIdentityError),
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] OpenLogError),
    /// The state cannot be opened.
    #[error(transparent)]
    State(#[from] OpenStateError),
    /// A part of the data folder is missing.
    #[error(
        "{}: {part} is missing; restore it, or empty the folder, which deletes its data, and start \
         again; the replica then copies the data of the other replicas",
        dir.display()
    )]
    Incomplete {
        /// The folder.
        dir: PathBuf,
        /// The missing part.
        part: &'static str,
    },
    /// The state lacks entries that the log no longer has.
    #[error(
        "{}: entries are missing between the state, which ends at {}, and the log, which begins \
         after {}; empty the folder, which deletes its data, and start again; the replica then \
         copies the data of the other replicas",
        dir.display(),
        applied.map_or_else(|| "(none)".to_owned(), |entry| entry.to_string()),
        purged.map_or_else(|| "(none)".to_owned(), |entry| entry.to_string())
    )]
    Gap {
        /// The folder.
        dir: PathBuf,
        /// The index of the last entry that the state has.
        applied: Option<u64>,
        /// The index of the last purged entry.
        purged: Option<u64>,
    },
    /// The configured address differs from the one that the cluster has recorded.
    #[error(
        "{}: replica {replica} of cluster {cluster} has the address {recorded}, not {configured}; \
         use {replica}={recorded} in --cluster, and --listen for a local address; to move the \
         replica, run leasehold cluster replace {replica} {configured} and empty its folder",
        dir.display()
    )]
    Address {
        /// The folder.
        dir: PathBuf,
        /// The replica.
        replica: u64,
        /// Its cluster.
        cluster: ClusterId,
        /// Its address in the cluster's membership.
        recorded: String,
        /// Its address in the configuration.
        configured: String,
    },
    /// The configured members differ from the cluster's members.
    #[error(
        "{}: belongs to cluster {cluster}, bootstrapped with --cluster {recorded}, not \
         {configured}; use the first list, or empty the folder, which deletes its data, to join \
         another cluster",
        dir.display()
    )]
    Members {
        /// The folder.
        dir: PathBuf,
        /// Its cluster.
        cluster: ClusterId,
        /// The stored members.
        recorded: String,
        /// The configured members.
        configured: String,
    },
    /// The replica has no store identity.
    #[error("this replica has no record of its cluster")]
    NoIdentity,
    /// The replica is being closed.
    #[error("this replica is stopping")]
    Closing,
    /// A store failed.
    #[error("store: {0}")]
    Store(io::Error),
    /// Raft does not start.
    #[error("start Raft: {0}")]
    Raft(String),
    /// Another replica listens at a member's address.
    #[error("{address}: replica {got} listens there; expected replica {expected}")]
    OtherReplica {
        /// The address.
        address: String,
        /// The replica that listens there.
        got: u64,
        /// The expected replica.
        expected: u64,
    },
    /// Two members have different configurations.
    #[error("replica {replica}: configured with {got}; expected {expected}")]
    Configuration {
        /// The other member.
        replica: u64,
        /// Its configuration.
        got: String,
        /// The expected configuration.
        expected: String,
    },
    /// The cluster does not admit this replica.
    #[error("the cluster refuses this replica: {reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
}

/// Why a proposal was not applied, or why that is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This replica does not lead. Nothing was proposed.
    #[error("this replica is not the leader; the leader is {}", leader.as_deref().unwrap_or("unknown"))]
    NotLeader {
        /// The leader's address, if known.
        leader: Option<String>,
    },
    /// This replica leads, but has no quorum at the moment. Nothing was proposed.
    #[error("no quorum has acknowledged this leader recently")]
    Retry,
    /// This replica stopped leading after the proposal, which may still be applied.
    #[error("the leader changed after the proposal; it may still be applied")]
    Unknown,
    /// The proposal is too long. Nothing was proposed.
    #[error("proposal: {got} bytes exceed the limit of {most}")]
    TooLarge {
        /// Its length.
        got: usize,
        /// The bound.
        most: usize,
    },
    /// This replica has ended. The proposal may have been made.
    #[error("this replica has stopped: {reason}")]
    Fatal {
        /// The reason.
        reason: String,
    },
}

/// Why leadership could not be proven.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeadershipError {
    /// This replica does not lead.
    #[error("this replica is not the leader; the leader is {}", leader.as_deref().unwrap_or("unknown"))]
    NotLeader {
        /// The leader's address, if known.
        leader: Option<String>,
    },
    /// No quorum has answered in time.
    #[error("no quorum has acknowledged this leader in time")]
    Retry,
    /// This replica has ended.
    #[error("this replica has stopped: {reason}")]
    Fatal {
        /// The reason.
        reason: String,
    },
}

/// Why the membership was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("membership not changed: {reason}")]
pub struct MembershipError {
    /// The reason.
    pub reason: String,
}
