//! The effects of a holder: the actions that it wants from the driver.

use std::{sync::Arc, time::Duration};

use super::{
    input::{ReadId, SendId, WatchId, WriteId},
    validity::{CopyValidity, VolumeValidity},
};
use crate::{
    change::Changes,
    command::Written,
    drift::Excess,
    id::{Incarnation, LeaseId, LockId, Revision, SessionId, Stamp},
    lock::{LockStatus, WriteLeaseStatus},
    message::{Consent, DelayNotice, Refusal, Request},
    object::{Content, Object, Value},
    path::NodePath,
    time::Instant,
};

/// An action for the driver. The driver executes effects in order. It completes an effect on the
/// cache before the next effect and before the next step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "an effect is made, moved once, and taken apart")]
pub enum HolderEffect {
    /// Send a request on the current connection.
    /// [`HolderInput::Answered`](super::HolderInput::Answered) brings its answer.
    Send {
        /// Identifies the sending, so that its answer can be matched.
        send_id: SendId,
        /// The request.
        request: Request,
    },
    /// Cache this copy, in place of any other copy of the object.
    Install {
        /// The object of the copy.
        object: Object,
        /// The content of the copy.
        content: Arc<Content>,
        /// Until when the copy may be used, and under which lease.
        validity: CopyValidity,
    },
    /// Use the cache's copy of the object again, with this validity. If the cache no longer has the
    /// copy, it sends [`HolderInput::Evicted`](super::HolderInput::Evicted) with the stamp in
    /// `validity`.
    CopyValidated {
        /// The object of the copy.
        object: Object,
        /// The new validity.
        validity: CopyValidity,
    },
    /// Find out which of these copies the application wanted. A copy is wanted if a read asked for
    /// it since it was installed, or was answered from it since its lease was granted. Give their
    /// objects to [`HolderInput::ReadNextValues`](super::HolderInput::ReadNextValues) after this
    /// step. The next effect drops the copies.
    SelectWanted(Vec<Object>),
    /// Drop the copies of these objects, and serve no read from them from now on. The cache has no
    /// copies that the holder does not know of.
    Drop(Vec<Object>),
    /// Drop all copies and forget all volumes, because the session has ended.
    DropAll,
    /// Apply this validity to the volume's copies. Copies that may not be used stay in the cache
    /// until they are dropped or evicted, because a server may validate them.
    VolumeValidityChanged {
        /// The top of the volume.
        volume: NodePath,
        /// The new validity. If the copies may not be used, `until` is [`Instant::ZERO`].
        validity: VolumeValidity,
    },
    /// Send the consent to the server. It always follows the [`HolderEffect::Drop`] of the copies.
    Consent(Consent),
    /// Reply to the recall that its consent comes later. A server shows the reason to people.
    ConsentDelayed(DelayNotice),
    /// Answer these reads with this content.
    Serve {
        /// The reads.
        reads: Vec<ReadId>,
        /// The object that was read.
        object: Object,
        /// Its content.
        content: Arc<Content>,
        /// The revision that was applied when the server answered.
        applied: Revision,
        /// Until when the content is valid on this client's clock. `None` if no leases protect it.
        valid_until: Option<Instant>,
    },
    /// Answer these reads with the content in the cache, even if `valid_until` is `None`. If the
    /// cache no longer has it, it sends [`HolderInput::Evicted`](super::HolderInput::Evicted) and
    /// then the reads again.
    ServeCached {
        /// The reads.
        reads: Vec<ReadId>,
        /// The object that was read.
        object: Object,
        /// The stamp of the copy's grant.
        stamp: Stamp,
        /// Until when the copy is valid on this client's clock. `None` if no leases protect it.
        valid_until: Option<Instant>,
    },
    /// These reads have failed.
    ReadFailed {
        /// The reads.
        reads: Vec<ReadId>,
        /// The reason.
        error: ReadFailure,
    },
    /// The write has ended, at least for the application.
    WriteDone {
        /// The write.
        write: WriteId,
        /// Its outcome.
        result: Result<Written, WriteFailure>,
    },
    /// A key lease was granted or renewed.
    KeyLeaseRenewed {
        /// The lease.
        id: LeaseId,
        /// Identifies the lease among all leases of that id.
        incarnation: Incarnation,
        /// The lease's term.
        ttl: Duration,
        /// When it ends on this client's clock without another renewal.
        until: Instant,
    },
    /// A key lease that the holder renewed has ended, or may have ended. Reported once, at the
    /// latest at its end on this client's clock. The holder no longer renews it.
    KeyLeaseLost {
        /// The lease.
        id: LeaseId,
    },
    /// The volume lease to which the session attached these nodes has ended.
    AttachedNodesLost {
        /// Each node, with the revision of the put that attached it.
        nodes: Vec<(NodePath, Revision)>,
    },
    /// The status of a lock has changed since the last report, or since the outcome of its write.
    LockChanged {
        /// The lock.
        lock: LockId,
        /// The new status. Never [`LockStatus::Ended`].
        status: LockStatus,
    },
    /// These locks are lost: their lease has ended, or its time has passed on this clock. Reported
    /// once for each lock, and never for a lock that the application has released.
    LocksLost {
        /// The locks.
        locks: Vec<LockId>,
        /// The servers may still have the locks, so the client has to release them there. False if
        /// a server has said that the locks or the session have ended.
        may_remain: bool,
    },
    /// The status of a write lease has changed. Reported from the answer to
    /// [`Write::TakeWriteLease`](crate::command::Write::TakeWriteLease) on, until the write lease
    /// has ended or the lock is lost.
    WriteLeaseChanged {
        /// The lock.
        lock: LockId,
        /// The new status.
        status: WriteLeaseStatus,
    },
    /// A value that was set under a write lease will never be flushed. The lock was lost or
    /// released before the flush, or the servers refused the value. It precedes the
    /// [`HolderEffect::LocksLost`] of the lock.
    FlushLost {
        /// The lock.
        lock: LockId,
        /// The value that was set last.
        value: Value,
        /// True if a flush was sent and its outcome is unknown. The servers may have this value or
        /// an earlier one.
        may_be_written: bool,
        /// The servers' refusal, if there was one.
        refusal: Option<Refusal>,
    },
    /// Notify the application of the session's new state. Each change is reported once.
    Connection(SessionNews),
    /// Notify the application and the log that this client's clock and the leader's ran too far
    /// apart, or no longer do. While they do, no read is served from memory. Each change is
    /// reported once.
    ClockExcessChanged {
        /// The spans that both clocks counted. `None` if both are within their allowances again.
        excess: Option<Excess>,
    },
    /// Close the current connection, and look for the leader.
    /// [`HolderInput::Disconnected`](super::HolderInput::Disconnected) and
    /// [`HolderInput::Connected`](super::HolderInput::Connected) follow.
    FindLeader {
        /// The leader's address, if a server named one.
        hint: Option<String>,
    },
    /// The session is closed, as the application requested. No effect follows.
    Closed,
    /// Report the changes in the scope of a watch: each change once, complete and in order. The
    /// holder asks for more only after [`HolderInput::WatchMore`](super::HolderInput::WatchMore).
    Changes {
        /// The watch.
        watch: WatchId,
        /// The changes, and the revision through which all are reported. Without changes it is a
        /// progress mark.
        changes: Changes,
    },
    /// The watch has ended.
    WatchLost {
        /// The watch.
        watch: WatchId,
        /// The reason.
        error: WatchFailure,
    },
}

/// The session's state, as reported to the application (Chubby's states).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionNews {
    /// A leader answers.
    Connected {
        /// The session.
        session: SessionId,
    },
    /// Leases have ended on this client's clock because no server answered in time. The session may
    /// be alive or not. This is reported again when the lease of another volume ends.
    Jeopardy {
        /// The volumes whose leases have ended, without those that a server has renewed since.
        /// Empty if only the session's own lease has ended.
        volumes: Vec<NodePath>,
    },
    /// The session has expired, with everything that depended on it. Reads continue under a new
    /// session, which [`SessionNews::Connected`] reports.
    Expired {
        /// The expired session.
        session: SessionId,
    },
}

/// Why a read failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ReadFailure {
    /// The server refused the read for good.
    #[error(transparent)]
    Refused(Refusal),
    /// The application closed the session.
    #[error("the session is closed")]
    Closed,
}

/// Why a watch ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WatchFailure {
    /// The history no longer has all changes after `after`. Start over from a fresh read.
    #[error("revision {after} is compacted; a watch can begin after {earliest_after}; read again and watch from there")]
    Compacted {
        /// The last revision that was reported, or after which the watch was to begin.
        after: Revision,
        /// The lowest revision after which a watch could begin when the server answered.
        earliest_after: Revision,
    },
    /// The server refused the watch for good.
    #[error(transparent)]
    Refused(Refusal),
    /// The application closed the session.
    #[error("the session is closed")]
    Closed,
}

/// Why a write was not acknowledged, and whether it may still take effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WriteFailure {
    /// The server refused it for good. It changed nothing, and never will.
    #[error(transparent)]
    Refused(Refusal),
    /// It was never sent. It changed nothing, and never will.
    #[error("the write was not sent; it changed nothing")]
    NotSent,
    /// It was sent, and its outcome is unknown. It may have taken effect, or may still.
    #[error("the outcome of the write is unknown; it may have taken effect, or may still")]
    OutcomeUnknown,
}

impl WriteFailure {
    /// Whether the write may have taken effect, or may still.
    pub fn may_still_happen(&self) -> bool {
        matches!(self, Self::OutcomeUnknown)
    }
}
