//! The ids and numbers of sessions, leases, locks, requests and changes.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $name {
            /// The next number.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }
    };
}

number! {
    /// Identifies a client. Leases belong to a session, and servers recognize repeated requests by
    /// it (Chubby, ZooKeeper). Assigned from a counter in the replicated state, and never reused.
    SessionId
}

number! {
    /// One leadership of one server process, named by the log index of the first entry that it
    /// committed as leader. (Yin et al. 1999 count server restarts.) 0 before any leadership.
    Epoch
}

number! {
    /// Distinguishes successive leases of one name. Each new lease gets a new number.
    Incarnation
}

number! {
    /// The id of a key lease (etcd). The client chooses it. If the client does not, the state
    /// chooses an id that it has not chosen before. Written in hexadecimal, as in etcd.
    LeaseId
}

number! {
    /// Grows when a volume is created, and with each change of its settings. Never reused for one
    /// path.
    VolumeGeneration
}

number! {
    /// The position of a change in the one order of all changes (etcd). 0 before any change.
    Revision
}

number! {
    /// The number of a write within its session. Counts from 1, without gaps.
    Sequence
}

number! {
    /// The number of one covering of a session's volume lease. By it, an older holder report cannot
    /// end a newer covering (S7).
    CoveringNumber
}

number! {
    /// The id of a lock, from its request to its end. Ids are in the order of arrival in the node's
    /// lock queue. They come from the same counter as [`Token`]s.
    LockId
}

number! {
    /// A fencing token. It grows with each grant of a lock on any node, also across leaders and
    /// restarts (Chubby's sequencer). A resource refuses a token lower than one that it has seen.
    Token
}

number! {
    /// The number of one write lease. The next write lease has a higher number, even of the same
    /// lock. Assigned from a counter in the replicated state, and never reused. 0 before any.
    WriteLeaseId
}

number! {
    /// The number of a request that a lessor has not answered yet. Local to the server.
    RequestId
}

/// The position in the order of all grants, recalls, new volume leases and outcomes of writes that
/// the lessor sends to one session.
///
/// Stamps of a later epoch are later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The epoch that assigned the stamp.
    pub epoch: Epoch,
    /// The position among the stamps that this epoch assigned to the session. Counts from 1.
    pub sequence: u64,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.sequence)
    }
}

impl fmt::LowerHex for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl Sequence {
    /// The most requests of a session with remembered outcomes (S9).
    pub const WINDOW: u64 = 1024;

    /// The highest number in the window of remembered outcomes that begins at this number (S9).
    pub(crate) fn window_end(self) -> Self {
        Self(self.0.saturating_add(Self::WINDOW - 1))
    }

    /// The lowest number in the window of remembered outcomes that ends at this number (S9).
    pub(crate) fn window_start(self) -> Self {
        Self(self.0.saturating_sub(Self::WINDOW - 1))
    }
}
