//! The inputs of the holder, and its configuration.

use std::{collections::BTreeSet, time::Duration};

use super::HolderBounds;
use crate::planted::Planted;
use crate::{
    change::WatchScope,
    command::Write,
    id::{LeaseId, LockId, Revision, Stamp},
    lease_policy::LeaseRequest,
    message::{Recall, Response},
    object::{Object, Value},
    path::NodePath,
    time::DriftAllowance,
};

/// When a client renews its volume leases. Leases with attached nodes or locks are always renewed
/// ahead.
///
/// No choice makes a read stale. A lease that is not renewed ends, and the next read gets a new
/// one. If nothing has changed, that makes the client's copies valid again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RenewalMode {
    /// While the volume is in use, a message of its own renews the lease before it ends, so no read
    /// waits for a lease. Other requests renew it too.
    #[default]
    Ahead,
    /// Only reads and writes that go to the servers renew the lease. This saves messages if the
    /// application reads rarely or in short visits. In return, the first read after the end of a
    /// lease waits for a server.
    OnDemand,
    /// Nothing renews the lease. So a write waits for a dead client at most for the rest of one
    /// term, and the margin.
    Never,
}

/// Configuration of a holder, fixed when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HolderConfig {
    /// The session's name, for operators.
    pub name: String,
    /// How far this machine's clock may run from true time. The holder shortens each span by it
    /// (T2).
    pub drift_allowance: DriftAllowance,
    /// A number from 0 to 1000, drawn once by the code that starts the client. It spreads the
    /// renewals and retries of many clients over time.
    pub spread_permille: u16,
    /// When to renew volume leases.
    pub renewal: RenewalMode,
    /// For how long a recalled copy that may still be used stays in use, before the holder
    /// consents. At most half of the time that remains of the session's shortest volume lease.
    pub consent_delay: Duration,
    /// Bounds of the holder's queues and tables.
    pub bounds: HolderBounds,
    /// Bugs that a test build puts back.
    pub planted: Planted,
}

impl HolderConfig {
    /// The default drift allowance and bounds, no spread, consents without delay, and the default
    /// of [`Planted`].
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            drift_allowance: DriftAllowance::DEFAULT,
            spread_permille: 0,
            renewal: RenewalMode::Ahead,
            consent_delay: Duration::ZERO,
            bounds: HolderBounds::DEFAULT,
            planted: Planted::default(),
        }
    }
}

/// Identifies a read of the application. The driver never uses an id twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// Identifies a write of the application. The driver uses ids in rising order, below 2^63, and
/// never twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// Identifies a watch of the application. The driver never uses an id twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u64);

/// Identifies one sending of one request. The answer names it too. A request that is sent again
/// gets a new id. So a term counts from exactly the sending that was answered (T2), and the holder
/// recognizes answers to abandoned requests (S4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub u64);

/// An event on the client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HolderInput {
    /// A connection to a server that may lead is up. An earlier connection has ended.
    Connected,
    /// The connection has ended. The holder ignores answers that arrive from it later.
    Disconnected,
    /// The application reads an object, and the cache has no usable copy.
    Read {
        /// The read.
        read: ReadId,
        /// The object.
        object: Object,
        /// Whether it wants a lease.
        lease: LeaseRequest,
    },
    /// The application writes.
    Write {
        /// The write.
        write: WriteId,
        /// The change.
        change: Write,
    },
    /// The application asks the holder to renew a key lease from now on.
    /// [`HolderEffect::KeyLeaseRenewed`](super::HolderEffect::KeyLeaseRenewed) and
    /// [`HolderEffect::KeyLeaseLost`](super::HolderEffect::KeyLeaseLost) report the results.
    KeepAlive(LeaseId),
    /// The application stops the renewal of a key lease.
    StopKeepAlive(LeaseId),
    /// The application cancels a read.
    CancelRead(ReadId),
    /// The application cancels a write. The holder ends it by
    /// [`HolderEffect::WriteDone`](super::HolderEffect::WriteDone), whose error says whether the
    /// write may still happen. It does not cancel a request for a write lease or a downgrade,
    /// because the client must know the outcome.
    CancelWrite(WriteId),
    /// A server has answered a request.
    Answered {
        /// The sending that was answered.
        send_id: SendId,
        /// The answer.
        response: Response,
    },
    /// A recall has arrived.
    Recalled(Recall),
    /// Those of the copies in [`HolderEffect::SelectWanted`](super::HolderEffect::SelectWanted)
    /// that the application wanted: ask for their next values.
    ReadNextValues(Vec<Object>),
    /// The cache has evicted a copy, or finds that it does not have the copy.
    Evicted {
        /// The object of the copy.
        object: Object,
        /// The stamp of the copy's grant. If the holder's copy has a later grant, the holder
        /// ignores the input.
        stamp: Stamp,
    },
    /// The time of [`Holder::next_deadline`](super::Holder::next_deadline) has come.
    Timeout {
        /// The volumes whose copies the cache has served since the last timeout. The holder renews
        /// leases in use, and those with attached nodes or locks.
        used: BTreeSet<NodePath>,
    },
    /// A request that the holder does not know of has waited for a while. If the server is silent,
    /// the holder asks it for a sign of life.
    Probe,
    /// The application closes the session.
    Close,
    /// The application watches a node or a subtree.
    /// [`HolderEffect::Changes`](super::HolderEffect::Changes) reports the changes. For a watch
    /// without `after`, the first report says where the watch begins.
    /// [`HolderEffect::WatchLost`](super::HolderEffect::WatchLost) or [`HolderInput::CancelWatch`]
    /// ends the watch.
    Watch {
        /// The watch.
        watch: WatchId,
        /// The node or the subtree.
        watched: WatchScope,
        /// The last revision that the application knows. `None` to watch from now on.
        after: Option<Revision>,
        /// About how many bytes of changes one report may have.
        bytes_max: u32,
    },
    /// The application has consumed the last
    /// [`HolderEffect::Changes`](super::HolderEffect::Changes), and wants more.
    WatchMore(WatchId),
    /// The application ends a watch.
    CancelWatch(WatchId),
    /// The application sets the value of a node under a write lease. The holder ignores the input
    /// unless [`Holder::write_lease_value`](super::Holder::write_lease_value) returns a value at
    /// the same time.
    SetUnderWriteLease {
        /// The lock of the write lease.
        lock: LockId,
        /// The node's new value.
        value: Value,
    },
    /// The application asks the holder to write the last value that it set to the servers.
    /// [`HolderEffect::WriteLeaseChanged`](super::HolderEffect::WriteLeaseChanged) reports it.
    Flush(LockId),
    /// The application ends a write lease. The lock remains. The holder flushes the value first.
    ReleaseWriteLease(LockId),
}
