//! What the holder wants done.

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
    message::{Consent, Refusal, Request},
    object::{Content, Object, Value},
    path::NodePath,
    time::Instant,
};

/// Something to be done by the shell, in the order given. Those that touch the cache are done
/// before the next step begins and before any later effect of the same step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HolderEffect {
    /// Send a request on the current connection; its answer is
    /// [`HolderInput::Answered`](super::HolderInput::Answered).
    Send {
        /// What the answer is matched by.
        send_id: SendId,
        /// The request.
        request: Request,
    },
    /// Keep this copy, in place of any other of the object.
    Install {
        /// What it is a copy of.
        object: Object,
        /// The copy.
        content: Arc<Content>,
        /// What it may be used by.
        validity: CopyValidity,
    },
    /// The copy that the cache has of the object is good again by this. If the cache has lost it,
    /// it says [`HolderInput::Evicted`](super::HolderInput::Evicted) with the stamp given here.
    Revalidate {
        /// What it is a copy of.
        object: Object,
        /// What it may be used by from now on.
        validity: CopyValidity,
    },
    /// Drop the copies of these objects: no read may be served from them from now on. The cache has
    /// none that the holder does not know of.
    Drop(Vec<Object>),
    /// Drop all copies and forget all volumes: the session is over.
    DropAll,
    /// The volume's copies may be used by this from now on. Copies that may not be used stay in the
    /// cache, to be validated anew, until they are dropped or evicted.
    VolumeValidityChanged {
        /// The top of the volume.
        volume: NodePath,
        /// What its copies may be used by; `until` is the origin of the clock when they may not be.
        validity: VolumeValidity,
    },
    /// Tell the server that the copies are dropped. Always after their [`HolderEffect::Drop`].
    Consent(Consent),
    /// Answer these reads with this.
    Serve {
        /// The reads.
        reads: Vec<ReadId>,
        /// What they read.
        object: Object,
        /// What they get.
        content: Arc<Content>,
        /// The revision that was applied when the server answered.
        applied: Revision,
        /// How long it stays valid on this client's clock; none if it came without leases that
        /// hold.
        valid_until: Option<Instant>,
    },
    /// Answer these reads with the content that the cache keeps, whether or not it may be used
    /// again. If the cache has lost it, it says
    /// [`HolderInput::Evicted`](super::HolderInput::Evicted) and puts the reads in anew.
    ServeCached {
        /// The reads.
        reads: Vec<ReadId>,
        /// What they read.
        object: Object,
        /// The copy's grant.
        stamp: Stamp,
        /// How long it stays valid on this client's clock; none if it has no leases that hold.
        valid_until: Option<Instant>,
    },
    /// These reads cannot be answered.
    ReadFailed {
        /// The reads.
        reads: Vec<ReadId>,
        /// Why.
        error: ReadFailure,
    },
    /// The write has ended, for the application at least.
    WriteDone {
        /// The write.
        write: WriteId,
        /// What came of it.
        result: Result<Written, WriteFailure>,
    },
    /// A key lease has been granted or renewed: it is certain until then on this client's clock.
    KeyLeaseRenewed {
        /// The lease's name.
        id: LeaseId,
        /// Which lease of that name.
        incarnation: Incarnation,
        /// Its term.
        ttl: Duration,
        /// When it ends, if it is not renewed.
        until: Instant,
    },
    /// A key lease that was to be kept alive is over, or can no longer be relied on: told once, at
    /// the latest when this client's clock says so. It is not kept alive any more.
    KeyLeaseLost {
        /// The lease.
        id: LeaseId,
    },
    /// The lease on a volume is over for good, and with it these nodes, which the session had
    /// attached to it.
    AttachedNodesLost {
        /// The nodes.
        nodes: Vec<NodePath>,
    },
    /// A hold stands otherwise than was told last, or than the outcome of its write says.
    LockChanged {
        /// The hold.
        lock: LockId,
        /// How it stands. Not that it is over.
        status: LockStatus,
    },
    /// These holds are over: lost with their lease, or held under one whose time has passed on this
    /// clock. Told once of each, and not of one that the application has given back. The server may
    /// still count them: they are to be given back to it.
    LocksLost {
        /// The holds.
        locks: Vec<LockId>,
    },
    /// A write lease stands otherwise than was told last: from the answer to
    /// [`Write::TakeWriteLease`](crate::command::Write::TakeWriteLease) on, until it is an ordinary
    /// hold again, or over.
    WriteLeaseChanged {
        /// The hold.
        lock: LockId,
        /// How it stands.
        status: WriteLeaseStatus,
    },
    /// What the application has set under a write lease was not flushed, and will not be: the hold
    /// was over first, or given back, or the servers have refused it. Comes before the
    /// [`HolderEffect::LocksLost`] that tells of the hold.
    FlushLost {
        /// The hold.
        lock: LockId,
        /// What it set last.
        value: Value,
        /// A flush was sent, and what came of it is not known: this value or one that it set
        /// earlier may be there.
        may_be_there: bool,
        /// Why the servers have refused it, if they have.
        refusal: Option<Refusal>,
    },
    /// Tell the application: the state of the session has changed to this. Each change is told
    /// once.
    Connection(ConnectionNews),
    /// Tell the application, and the log: this client's clock and the leader's ran further apart
    /// than they are allowed to, and nothing is served from memory; or, none, they are within their
    /// allowances again. Each change is told once.
    ClockExcessChanged {
        /// What both counted.
        excess: Option<Excess>,
    },
    /// Give up the current connection and look for the leader.
    /// [`HolderInput::Disconnected`](super::HolderInput::Disconnected) and
    /// [`HolderInput::Connected`](super::HolderInput::Connected) follow.
    FindLeader {
        /// Where it may be.
        hint: Option<String>,
    },
    /// The session is closed, as was asked for. Nothing follows.
    Closed,
    /// Tell the application what has happened to what it watches: each change once, whole, in
    /// order. Nothing more is asked for on behalf of the watch until
    /// [`HolderInput::WatchMore`](super::HolderInput::WatchMore).
    Changes {
        /// The watch.
        watch: WatchId,
        /// What has happened, and how far it has been told. Without changes it is a progress mark.
        changes: Changes,
    },
    /// The watch is over.
    WatchLost {
        /// The watch.
        watch: WatchId,
        /// Why.
        error: WatchFailure,
    },
}

/// What the application is told about its session (Chubby's states).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionNews {
    /// A leader answers.
    Connected {
        /// The session that it knows.
        session: SessionId,
    },
    /// Leases have ended on this client's clock because nothing was heard in time. The session may
    /// be alive or not.
    Jeopardy,
    /// The session is gone, and all that depended on it. Reads go on under a new one, of which
    /// [`ConnectionNews::Connected`] tells.
    Expired {
        /// The session that is gone.
        session: SessionId,
    },
}

/// Why a read was not answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ReadFailure {
    /// The server refused it for good.
    #[error(transparent)]
    Refused(Refusal),
    /// The session was closed by the application.
    #[error("the session is closed")]
    Closed,
}

/// Why a watch is over.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WatchFailure {
    /// It is not known any more what happened after the last change that was told: start over from
    /// a fresh read.
    #[error("the changes after {after} are not all known any more: expected a fresh read, and a watch after it")]
    Compacted {
        /// The last change that was told, or from which the watch was to begin.
        after: Revision,
        /// The least that could be watched after when this was said.
        oldest: Revision,
    },
    /// The server refused it for good.
    #[error(transparent)]
    Refused(Refusal),
    /// The session was closed by the application.
    #[error("the session is closed")]
    Closed,
}

/// Why a write was not acknowledged. Says whether it may still take effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WriteFailure {
    /// The server refused it for good: it changed nothing and never will.
    #[error(transparent)]
    Refused(Refusal),
    /// It was never sent: it changed nothing and never will.
    #[error("the write was given up before it was sent: it changed nothing")]
    NotSent,
    /// It was sent and its outcome was not heard: it may have taken effect, or may still.
    #[error("the write was sent, and its outcome is not known: it may have taken effect, or may still")]
    OutcomeUnknown,
}

impl WriteFailure {
    /// Whether the write may have taken effect, or may still.
    pub fn may_still_happen(&self) -> bool {
        matches!(self, Self::OutcomeUnknown)
    }
}
