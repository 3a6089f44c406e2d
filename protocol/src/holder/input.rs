//! What the holder is told.

use std::collections::BTreeSet;

use super::Bounds;
use crate::planted::Planted;
use crate::{
    change::Watched,
    command::Write,
    id::{HoldId, LeaseId, Revision, Stamp},
    message::{Recall, Response},
    object::{Object, Value},
    path::Path,
    time::DriftAllowance,
};

/// What a holder is given once, when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// What the session calls itself, for people who look.
    pub name: String,
    /// How far this machine's clock may run from true time. Every span is shortened by it (T2).
    pub drift: DriftAllowance,
    /// Where this client stands among all, from 0 to 1000: a number drawn once by whoever starts it. Renewals and repeats
    /// of many clients are spread by it, so that they do not come all at once.
    pub spread_permille: u16,
    /// How much it keeps at a time.
    pub bounds: Bounds,
    /// Mistakes that a test build puts back.
    pub planted: Planted,
}

impl Config {
    /// The default drift allowance, no spread, no mistakes.
    pub fn new(name: impl Into<String>) -> Self {
        let (drift, bounds, planted) = (DriftAllowance::DEFAULT, Bounds::DEFAULT, Planted::default());
        Self { name: name.into(), drift, spread_permille: 0, bounds, planted }
    }
}

/// Names a read that the application waits for. Given by the shell, never twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// Names a write that the application waits for. Given by the shell, never twice, in rising order, and below 2^63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// Names a watch of the application. Given by the shell, never twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u64);

/// Names one sending of one request: what its answer is matched by. A request that is sent again gets a new ticket, so
/// that a term is counted from the very sending that was answered (T2), and an answer that nobody waits for any more is
/// known as such (S4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Something that happened on the client.
#[expect(clippy::large_enum_variant, reason = "an input is made, moved once, and taken apart")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Input {
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
    /// [`Effect::LeaseKept`](super::Effect::LeaseKept) and [`Effect::LeaseOver`](super::Effect::LeaseOver).
    Keep(LeaseId),
    /// The application does not want the key lease kept alive any more.
    LetGo(LeaseId),
    /// The application does not wait for the read any more.
    GiveUpRead(ReadId),
    /// The application does not wait for the write any more. Answered by [`Effect::WriteDone`](super::Effect::WriteDone)
    /// with an error that says whether it may still happen. A request for a write lease, or to share a
    /// hold, is not given up: its outcome has to be known.
    GiveUpWrite(WriteId),
    /// The answer to what was sent under this ticket.
    Answered {
        /// The ticket.
        ticket: Ticket,
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
        /// The volumes of which the cache served copies since it was last asked. Only those are kept renewed.
        used: BTreeSet<Path>,
    },
    /// A question that the rules do not know of has not been answered for a while. The server is asked for a sign of life if nothing was
    /// heard of it meanwhile.
    Probe,
    /// The application has no more use for the session.
    Close,
    /// The application watches a node or a subtree. What it is told comes as [`Effect::Changes`](super::Effect::Changes): with a watch
    /// from now on, first where it begins. The watch ends by [`Effect::WatchLost`](super::Effect::WatchLost), or by
    /// [`Input::GiveUpWatch`].
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
    /// The application has taken what it was told by [`Effect::Changes`](super::Effect::Changes), and wants more.
    WatchMore(WatchId),
    /// The application does not watch any more.
    GiveUpWatch(WatchId),
    /// The application sets the value of a node under a write lease. Only where [`Holder::cached`](super::Holder::cached) says that it may,
    /// at the same moment; ignored otherwise.
    SetCached {
        /// The hold.
        hold: HoldId,
        /// The node's value from now on.
        value: Value,
    },
    /// The application wants what it has set to be on the servers: told by
    /// [`Effect::CachingChanged`](super::Effect::CachingChanged).
    Flush(HoldId),
    /// The application gives a write lease up, and goes on holding the node. What it has set is flushed first.
    EndCaching(HoldId),
}
