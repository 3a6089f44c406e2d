//! Identities: who, under which leadership, in which order.

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
            /// The one after this.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }
    };
}

number! {
    /// A client's identity: what its requests are deduplicated by and what its leases belong to
    /// (Chubby, ZooKeeper). Assigned from a counter in the replicated state and never used again.
    SessionId
}

number! {
    /// One leadership of one server process: the log index of the first entry that it committed as
    /// leader (Yin et al. 1999 count server restarts). 0 before any leadership.
    Epoch
}

number! {
    /// The number of a volume lease, new each time that the lease is acquired.
    Incarnation
}

number! {
    /// Names a key lease (etcd). Chosen by whoever asks for the lease, or by the state, which never
    /// chooses one that it has chosen before. Written in hexadecimal, as etcd does.
    LeaseId
}

number! {
    /// How often a volume's settings or borders have changed.
    VolumeGeneration
}

number! {
    /// The position of a change in the one order of all changes (etcd). 0 before any change.
    Revision
}

number! {
    /// The number of a request within its session. Counts from 1.
    Sequence
}

number! {
    /// Names one covering of one session's volume lease, so that an old list cannot end a newer
    /// covering (S7).
    CoveringNumber
}

number! {
    /// Names a hold on a node, from the moment that it is asked for to its end: the order of
    /// arrival in the node's queue. From the same counter as [`Token`]s.
    LockId
}

number! {
    /// A fencing token: grows from each grant of a hold to the next, on whatever node, over all
    /// leaders and restarts (Chubby's sequencer). Whoever is asked to act for a holder refuses a
    /// token that is lower than one that it has seen.
    Token
}

number! {
    /// Names one write lease, from its grant to its end: the next one, of the same hold too, has a
    /// higher number. Assigned from a counter in the replicated state and never used again. 0
    /// before any.
    WriteLeaseId
}

number! {
    /// Names one request that a lessor has been asked and has not answered yet. Local to the
    /// server.
    RequestId
}

/// The order of all grants and recalls that one session gets.
///
/// Stamps of different epochs are ordered by epoch: a later leadership is later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The leadership under which it was given.
    pub epoch: Epoch,
    /// Its place among the stamps that this epoch gave to the session. Counts from 1.
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
    /// The highest number in the window of remembered outcomes that begins here (S9).
    pub(crate) fn window_end(self) -> Self {
        Self(self.0.saturating_add(crate::state::State::ANSWERS_MAX - 1))
    }

    /// The lowest number in the window of remembered outcomes that ends here (S9).
    pub(crate) fn window_start(self) -> Self {
        Self(self.0.saturating_sub(crate::state::State::ANSWERS_MAX - 1))
    }
}
