//! The Leasehold client: linearizable reads from the client's own memory.
//!
//! A [`Client`] keeps a cached copy of each object that it reads, and answers later reads from it.
//! A read from memory needs no message, and is still linearizable. The leader delays each write
//! until every copy that the write makes stale has been dropped or can no longer be used.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold_client_cache::{Client, Options};
//!
//! let client = Client::connect(Options::new(["127.0.0.1:7600"])).await?;
//! client.put("/config/web/port", "8080").if_absent().await?;
//! let node = client.get("/config/web/port").await?.ok_or("just written")?;
//! assert_eq!(&node.value[..], b"8080");
//! # Ok(())
//! # }
//! ```
//!
//! In the repository, `docs/guide.md` shows each feature once, `docs/glossary.md` defines the
//! words, and `docs/PROTOCOL.md` states the rules (S1, T2 and so on).
//!
//! # By task
//!
//! | task | call |
//! | --- | --- |
//! | read through the cache | [`Client::get`], [`children`](Client::children), [`stat`](Client::stat); [`read`](Client::read) also says where the answer came from |
//! | read only from memory | [`Client::cached`] |
//! | write | [`Client::put`], [`delete`](Client::delete) |
//! | read, change and write one node | [`Client::update`] |
//! | write several nodes at once, or under a condition | [`Client::transaction`] |
//! | read several nodes as of one moment | [`Client::snapshot`] |
//! | read a subtree, and then follow its changes | [`Client::list_and_watch`]; [`mirror`](Client::mirror) keeps it in memory |
//! | follow changes from now on, or from a revision | [`Client::watch`] |
//! | let one process work at a time | [`Client::lock`], [`mutex`](Client::mutex), [`rw_lock`](Client::rw_lock), [`semaphore`](Client::semaphore) |
//! | let processes wait for each other | [`Client::barrier`], [`double_barrier`](Client::double_barrier) |
//! | elect a leader | [`Client::campaign`], [`leader`](Client::leader), [`observe`](Client::observe) |
//! | say that a service is alive, and find the others | [`Client::register`], [`registry`](Client::registry) |
//! | let nodes end with a lease | [`Client::grant_lease`], [`keep_lease_alive`](Client::keep_lease_alive), [`PutBuilder::lease`] |
//! | write one node often, in memory | [`Client::write_lease`] |
//! | learn of outages | [`Client::events`], [`session_state`](Client::session_state) |
//! | operate a cluster | [`Client::admin`], [`server_status`] |
//!
//! # Calls
//!
//! A call with options returns a builder: its methods set options, and `.await` makes the call. A
//! path is text or a [`NodePath`]. Locks, leases and the like have `remaining` and `on_lost`. When
//! `remaining` reaches zero, `on_lost` is cancelled (after a suspension of the machine, up to a
//! second later). Before `remaining` is zero, nobody else can have the lock or lease. The `on_lost`
//! of a registration is cancelled only when its lease has ended for good. A type that yields items
//! is a [`Stream`](futures::Stream).
//!
//! # Concepts
//!
//! - A client caches *objects*: the data of a node, or the list of its children. *The node does not
//!   exist* is data too.
//! - Two leases protect each copy: a long *object lease* (1 h by default), and a short *volume
//!   lease* (10 s by default). The second one covers all copies in a *volume*, a subtree with its
//!   own [settings](VolumeSettings). The client uses a copy only while both hold on its own clock.
//! - Before a write, the leader *recalls* the copies, and each lease holder *consents*. A dead
//!   client delays the write for one volume term and a margin at most (longer in rare cases and
//!   after a change of leader: `docs/guide.md`).
//! - A *session* owns a client's leases. [`SessionState`] reports its state.
//! - A *lock* ([`LockGuard`]) ends with its session's volume lease. Its *fencing token* lets a
//!   resource refuse requests of an earlier owner.
//! - An *attached* node is removed when its lease ends: a [`KeyLease`], or the volume lease of a
//!   session ([`Registration`]).
//! - A [`WriteError`] says whether the write [may still happen](WriteError::may_still_happen).
//!
//! # Inside
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
//! steps), `connection` (which server), `eviction` (which copies stay).
//! [`leasehold_protocol::holder`] has all rules.
//!
//! This crate knows nothing about Raft, replication and disks. It decides nothing about leases.

pub mod recipes;

mod admin;
mod broadcast;
mod cache;
mod cache_counters;
mod call;
mod client;
mod clock;
mod connection;
mod copy_map;
mod driver;
mod dropped_copies;
mod election;
mod error;
mod eviction;
mod inspect;
mod key_lease;
mod lease_ref;
mod list;
mod lock;
mod lost_change;
mod mirror;
mod options;
mod own_cluster;
mod path_hash;
mod pending_release;
mod read;
mod recent;
mod registration;
mod session_log;
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

pub use admin::{Admin, VolumeBuilder};
pub use cache::ENTRY_OVERHEAD_BYTES;
pub use cache_counters::VolumeCacheStats;
pub use client::Client;
pub use election::{CampaignBuilder, ElectedLeader, ElectedLeaders, Leadership};
pub use error::{
    ConnectError, EnsureVolumeError, InspectError, LeaseError, LockError, ReadError, SnapshotError, Unavailable,
    UpdateError, WatchError, WriteError, WriteLeaseError,
};
pub use inspect::{ServerStatus, server_status};
pub use key_lease::{GrantLeaseBuilder, KeyLease, LeaseInfoBuilder};
pub use lease_ref::LeaseRef;
pub use leasehold_wire::ClusterId;
pub use list::Subtree;
pub use lock::{HandOverError, LockBuilder, LockGuard, LockWait};
pub use lost_change::LostChange;
pub use mirror::{Mirror, MirrorChanges, Mirrored};
pub use options::Options;
pub use read::{Listing, NodeData, NodeStat, Read, ReadBuilder, ReadFuture, ReadSource};
pub use registration::{RegisterBuilder, Registration};
pub use shared_content::SharedContent;
pub use snapshot::{Snapshot, SnapshotReadBuilder};
pub use stats::Stats;
pub use status::{Events, EventsError, SessionState};
pub use transaction::{TransactionBuilder, TransactionOutcome, UpdateBuilder, Updated};
pub use watch::{Watch, WatchBuilder, WatchItem};
pub use write::{DeleteBuilder, PutBuilder};
pub use write_lease::{WriteLease, WriteLeaseBuilder};

pub use leasehold_protocol::{
    advice,
    change::{Change, ChangeReason, Event, EventKind},
    command::{Attach, Condition, WriteRefusal, Written},
    drift::Excess as ClockExcess,
    holder::RenewalMode,
    id::{LeaseId, LockId, Revision, SessionId, Token},
    lease_name::{LEASE_NAME_MAX_BYTES, LeaseName, LeaseNameError},
    lease_policy::{GrantPolicy, LeaseRequest, ObjectTerm, OnWrite},
    lock::{LockMode, LockOutcome, LockStatus},
    message::{
        BlockedReadInfo, ClockInfo, ClusterInfo, CoveringInfo, DelayReason, HolderInfo, LeaseInfo, LockInfo,
        MemberInfo, PendingWriteInfo, ReadGaps, Refusal, ServiceHealth, ServiceInfo, SpanCounts, VolumeCounts,
        VolumeInfo, VolumeStats, WaitCounts,
    },
    object::{Children, Content, Data, NodeOwner, ObjectKind, Stat, Value},
    path::{NodePath, PathError},
    quota::{Quota, QuotaFigure, VolumeUse},
    time::{DriftAllowance, DriftError},
    transaction::{Branch, Compare, CompareTarget, FailedCompare, Operation, OperationResult, Relation, Transaction},
    volume::{Tracking, VolumeError, VolumeSettings, VolumeTerm},
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::Stream;

    use super::{
        recipes::{BarrierGuard, Members, MutexGuard, Permit, ReadGuard, WriteGuard},
        *,
    };

    fn is_stream<T: Stream + Unpin + Send + Sync>() {}

    fn is_guard<T: Send + Sync>(_: fn(&T) -> CancellationToken, _: fn(&T) -> Duration) {}

    /// It compiles only if that is so.
    #[test]
    fn handles_are_streams_and_guards_report_loss() {
        is_stream::<Watch>();
        is_stream::<Events>();
        is_stream::<MirrorChanges>();
        is_stream::<ElectedLeaders>();
        is_stream::<Members>();
        is_guard::<LockGuard>(|guard| guard.on_lost(), |guard| guard.remaining());
        is_guard::<WriteLease>(|lease| lease.on_lost(), |lease| lease.remaining());
        is_guard::<KeyLease>(|lease| lease.on_lost(), |lease| lease.remaining());
        is_guard::<Registration>(|registration| registration.on_lost(), |registration| registration.remaining());
        is_guard::<Leadership>(|leadership| leadership.on_lost(), |leadership| leadership.remaining());
        is_guard::<MutexGuard>(|guard| guard.on_lost(), |guard| guard.remaining());
        is_guard::<ReadGuard>(|guard| guard.on_lost(), |guard| guard.remaining());
        is_guard::<WriteGuard>(|guard| guard.on_lost(), |guard| guard.remaining());
        is_guard::<Permit>(|permit| permit.on_lost(), |permit| permit.remaining());
        is_guard::<BarrierGuard>(|guard| guard.on_lost(), |guard| guard.remaining());
    }
}
