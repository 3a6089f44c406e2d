//! Linearizable reads from the client's own memory.
//!
//! A [`Client`] keeps copies of what it reads and answers from them, for as long as its leases say
//! that nobody has changed them. Reading a cached copy costs no message and no lock of its own, and
//! is still linearizable; writes wait until every copy that they make stale has been given up or
//! can no longer be used.
//!
//! ```text
//!              get ──► cache ── hit ──► content                       any thread, no waiting
//!                        │ miss
//!                        ▼
//!   timer ──────────► driver ──► holder (the rules: leasehold-protocol)     one lock
//!                      ▲  │
//!              answers │  │ requests
//!              recalls │  ▼ consents
//!                     connection ◄──► the leader                       found again when it is lost
//! ```
//!
//! What is guaranteed, and what each layer owes for it, is written where it is done: `cache` (why a
//! hit is linearizable), `driver` (atomic steps), `connection` (which server), `policy` (what is
//! kept), and [`leasehold_protocol::holder`] for all rules.
//!
//! What this crate does not know: Raft, replication, disks. It decides nothing about leases.

mod cache;
mod client;
mod clock;
mod connection;
mod driver;
mod election;
mod error;
mod inspect;
mod key_lease;
mod list;
mod lock;
mod mirror;
mod options;
mod own_cluster;
mod path_hash;
mod pending_release;
mod policy;
mod read;
mod recipes;
mod shared_content;
mod snapshot;
mod stats;
mod status;
mod sync;
mod transaction;
mod volume_leases;
mod watch;
mod write;
mod write_lease;

pub use cache::ENTRY_OVERHEAD_BYTES;
pub use client::Client;
pub use election::{CampaignOptions, ElectedLeader, ElectedLeaders, Leadership};
pub use error::{
    ConnectError, InspectError, LeaseError, LockError, ReadError, SnapshotError, Unavailable, UpdateError, WatchError,
    WriteError, WriteLeaseError,
};
pub use inspect::{ServerStatus, server_status};
pub use key_lease::{KeyLease, LeaseOptions, RegisterCondition, RegisterOptions, Registration};
pub use leasehold_wire::ClusterId;
pub use list::Subtree;
pub use lock::{HandOverError, LockGuard, LockOptions, LockWait};
pub use mirror::{Mirror, MirrorChanges, Mirrored};
pub use options::Options;
pub use read::{Listing, NodeData, NodeStat, Read, ReadOptions, ReadSource};
pub use recipes::{
    Barrier, BarrierGuard, DoubleBarrier, Member, MemberEvent, Members, Mutex, MutexGuard, Permit, ReadGuard,
    RecipeError, Registry, RwLock, Semaphore, WriteGuard,
};
pub use shared_content::SharedContent;
pub use snapshot::Snapshot;
pub use stats::Stats;
pub use status::{ConnectionState, Events, EventsError};
pub use transaction::{TransactionOutcome, UpdateOptions, Updated};
pub use watch::{Watch, WatchItem, WatchOptions};
pub use write::{DeleteOptions, PutOptions};
pub use write_lease::{LostChange, WriteLease};

pub use leasehold_protocol::{
    change::{Change, ChangeReason, Event, EventKind},
    command::{Attach, Condition, Write, WriteRefusal, Written},
    drift::Excess as ClockExcess,
    id::{LeaseId, LockId, Revision, SessionId, Token},
    lock::{LockGrant, LockMode, LockStatus},
    message::{
        BlockedReadInfo, ClockInfo, ClusterInfo, CoveringInfo, HolderInfo, LeaseInfo, LockInfo, MemberInfo,
        PendingWriteInfo, Refusal, ServiceHealth, ServiceInfo, VolumeInfo,
    },
    object::{Children, Content, Data, NodeOwner, ObjectKind, Stat, Value},
    path::{NodePath, PathError},
    time::{DriftAllowance, DriftError},
    transaction::{Branch, Compare, CompareTarget, FailedCompare, Operation, OperationResult, Relation, Transaction},
    volume::{Tracking, VolumeError, VolumeSettings},
};

pub use tokio_util::sync::CancellationToken;

/// The README's program is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The guide's programs are compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide.md")]
struct Guide;
