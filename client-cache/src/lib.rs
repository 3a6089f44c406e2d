//! The Leasehold client: linearizable reads from the client's own memory.
//!
//! A [`Client`] keeps a cached copy of each object that it reads, and answers later reads from it.
//! A read from memory needs no message, and is still linearizable. The leader delays each write
//! until every copy that the write makes stale has been dropped or can no longer be used.
//!
//! In the repository, `docs/guide.md` shows each feature once, `docs/glossary.md` defines the
//! words, and `docs/PROTOCOL.md` states the rules (S1, T2 and so on).
//!
//! # Concepts
//!
//! - A client caches *objects*: the data of a node, or the list of its children. *The node does not
//!   exist* is data too.
//! - Two leases protect each copy: a long *object lease* (1 h by default), and a short *volume
//!   lease* (10 s by default). The second one covers all copies in a *volume*, a subtree with its
//!   own [settings](VolumeSettings). The client uses a copy only while both hold on its own clock.
//! - Before a write, the leader *recalls* the copies, and each lease holder *consents*. A dead
//!   client delays the write for one volume term and a margin at most.
//! - A *session* owns a client's leases. [`ConnectionState`] reports its state.
//! - A *lock* ([`LockGuard`]) ends with its session's volume lease. Its *fencing token* lets a
//!   resource refuse requests of an earlier owner.
//! - An *attached* node is removed when its lease ends: a [`KeyLease`], or the volume lease of a
//!   session ([`Registration`]).
//! - A [`WriteError`] says whether the write [may still happen](WriteError::may_still_happen).
//!
//! # Structure
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
//! Each module states its own guarantees: `cache` (why a hit is linearizable), `driver` (atomic
//! steps), `connection` (which server), `policy` (which copies stay).
//! [`leasehold_protocol::holder`] has all rules.
//!
//! This crate knows nothing about Raft, replication and disks. It decides nothing about leases.

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

/// Compiles the README's program with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// Compiles the guide's programs with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide.md")]
struct Guide;
