//! What the holder is told.

use std::collections::BTreeSet;

use super::HolderBounds;
use crate::planted::Planted;
use crate::{
    change::Watched,
    command::Write,
    id::{LeaseId, LockId, Revision, Stamp},
    message::{Recall, Response},
    object::{Object, Value},
    path::NodePath,
    time::DriftAllowance,
};

/// What a holder is given once, when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HolderConfig {
    /// What the session calls itself, for people who look.
    pub name: String,
    /// How far this machine's clock may run from true time. Every span is shortened by it (T2).
    pub drift_allowance: DriftAllowance,
    /// Where this client stands among all, from 0 to 1000: a number drawn once by whoever starts
    /// it. Renewals and repeats of many clients are spread by it, so that they do not come all at
    /// once.
    pub spread_permille: u16,
    /// How much it keeps at a time.
    pub bounds: HolderBounds,
    /// Mistakes that a test build puts back.
    pub planted: Planted,
}

impl HolderConfig {
    /// The default drift allowance, no spread, no mistakes.
    pub fn new(name: impl Into<String>) -> Self {
        let (drift_allowance, bounds, planted) = (DriftAllowance::DEFAULT, HolderBounds::DEFAULT, Planted::default());
        Self { name: name.into(), drift_allowance, spread_permille: 0, bounds, planted }
    }
}

/// Names a read that the application waits for. Given by the shell, never twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// Names a write that the application waits for. Given by the shell, never twice, in rising order,
/// and below 2^63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// Names a watch of the application. Given by the shell, never twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u64);

/// Names one sending of one request: what its answer is matched by. A request that is sent again
/// gets a new ticket, so that a term is counted from the very sending that was answered (T2), and
/// an answer that nobody waits for any more is known as such (S4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub u64);

/// Something that happened on the client.
#[expect(clippy::large_enum_variant, reason = "an input is made, moved once, and taken apart")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HolderInput {
    /// A connection to a server that may lead is up. One that was up before is over.
    Connected,
    /// The connection is over. Answers that were still to come on it will be ignored.
    Disconnected,
    /// The application reads an object of which the cache has no copy that may be used.
    Read {
        /// The read.
        read: ReadId,
        /// What it reads.
        object: Object,
    },
    /// The application writes.
    Write {
        /// The write.
        write: WriteId,
        /// The change.
        change: Write,
    },
    /// The application wants a key lease kept alive from now on. What comes of it is told by
    /// [`HolderEffect::KeyLeaseRenewed`](super::HolderEffect::KeyLeaseRenewed) and
    /// [`HolderEffect::KeyLeaseLost`](super::HolderEffect::KeyLeaseLost).
    KeepAlive(LeaseId),
    /// The application does not want the key lease kept alive any more.
    StopKeepAlive(LeaseId),
    /// The application does not wait for the read any more.
    CancelRead(ReadId),
    /// The application does not wait for the write any more. Answered by
    /// [`HolderEffect::WriteDone`](super::HolderEffect::WriteDone) with an error that says whether
    /// it may still happen. A request for a write lease, or to share a hold, is not given up: its
    /// outcome has to be known.
    CancelWrite(WriteId),
    /// The answer to what was sent under this ticket.
    Answered {
        /// The ticket.
        send_id: SendId,
        /// The answer.
        response: Response,
    },
    /// A recall came down the connection.
    Recalled(Recall),
    /// The cache has dropped a copy of its own accord, or found that it does not have it any more.
    Evicted {
        /// What it was a copy of.
        object: Object,
        /// The copy's grant. Ignored if the copy has had a later one since.
        stamp: Stamp,
    },
    /// The time of [`Holder::next_deadline`](super::Holder::next_deadline) has come.
    Timeout {
        /// The volumes of which the cache served copies since it was last asked. Only those are
        /// kept renewed.
        used: BTreeSet<NodePath>,
    },
    /// A question that the rules do not know of has not been answered for a while. The server is
    /// asked for a sign of life if nothing was heard of it meanwhile.
    Probe,
    /// The application has no more use for the session.
    Close,
    /// The application watches a node or a subtree. What it is told comes as
    /// [`HolderEffect::Changes`](super::HolderEffect::Changes): with a watch from now on, first
    /// where it begins. The watch ends by
    /// [`HolderEffect::WatchLost`](super::HolderEffect::WatchLost), or by
    /// [`HolderInput::CancelWatch`].
    Watch {
        /// The watch.
        watch: WatchId,
        /// What is watched.
        watched: Watched,
        /// The last change that the application knows; none to watch from now on.
        after: Option<Revision>,
        /// About how many bytes of changes the application takes at once.
        bytes_max: u32,
    },
    /// The application has taken what it was told by
    /// [`HolderEffect::Changes`](super::HolderEffect::Changes), and wants more.
    WatchMore(WatchId),
    /// The application does not watch any more.
    CancelWatch(WatchId),
    /// The application sets the value of a node under a write lease. Only where
    /// [`Holder::cached`](super::Holder::cached) says that it may, at the same moment; ignored
    /// otherwise.
    SetUnderWriteLease {
        /// The hold.
        lock: LockId,
        /// The node's value from now on.
        value: Value,
    },
    /// The application wants what it has set to be on the servers: told by
    /// [`HolderEffect::WriteLeaseChanged`](super::HolderEffect::WriteLeaseChanged).
    Flush(LockId),
    /// The application gives a write lease up, and goes on holding the node. What it has set is
    /// flushed first.
    ReleaseWriteLease(LockId),
}
