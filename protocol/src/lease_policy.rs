//! The lease policy of a volume: how long object leases last ([`ObjectTerm`]), who gets them
//! ([`GrantPolicy`]), and what a write does about them ([`OnWrite`]).
//!
//! No policy makes a read stale. A policy chooses between messages, the delay of writes, and the
//! leader's memory. `docs/guide.md` says which policy to choose, and S2, S3 and S7 in
//! `docs/PROTOCOL.md` say why each is safe.
//!
//! This module does not know which leases exist. The lessor grants and ends them.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// How long the object leases of a volume last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ObjectTerm {
    /// There are no object leases. Each read asks a server, and no write waits for a reader
    /// (polling).
    Zero,
    /// Each lease lasts this long.
    Fixed(Duration),
    /// A lease ends only by a recall, by a return, or with its volume lease (callbacks, as in AFS).
    /// A dead client still delays a write by no more than a volume term and the margin.
    Infinite,
    /// A lease lasts for a share of the time since the object last changed (Alex, Cate 1992). Data
    /// that has not changed for long will probably not change soon.
    Adaptive {
        /// The share, in percent; 1 to 100.
        percent: u32,
        /// The shortest term. It also applies to nodes that do not exist.
        least: Duration,
        /// The longest term.
        most: Duration,
    },
    /// The term follows the use of the volume: the more often its objects are read between two
    /// writes, the longer. If leases do not pay, there are none for the time being. A lease pays if
    /// it saves more messages than it costs (Gray and Cheriton 1989, section 3.1).
    ///
    /// The leader decides from its recent counts. `docs/guide.md` has the rule.
    ByUse {
        /// The shortest term. A new leader begins with it.
        least: Duration,
        /// The longest term.
        most: Duration,
    },
}

impl ObjectTerm {
    /// The share that Alex uses, in percent.
    pub const ADAPTIVE_PERCENT: u32 = 20;

    /// The term of a lease on an object that last changed `age` ago. `age` gives `None` if the node
    /// does not exist. Only an adaptive term asks for it. The result is `None` if there are no
    /// leases. Of a term by use, the result is the shortest: only the leader knows the present one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use leasehold_protocol::lease_policy::ObjectTerm;
    ///
    /// let hours = |hours: u64| Duration::from_secs(hours * 3600);
    /// let alex = ObjectTerm::Adaptive { percent: 20, least: Duration::from_secs(10), most: hours(24) };
    /// assert_eq!(alex.after(|| Some(hours(10))), Some(hours(2)));
    /// assert_eq!(alex.after(|| Some(Duration::ZERO)), Some(Duration::from_secs(10)));
    /// assert_eq!(ObjectTerm::Zero.after(|| Some(hours(10))), None);
    /// ```
    pub fn after(&self, age: impl FnOnce() -> Option<Duration>) -> Option<Duration> {
        match *self {
            Self::Zero => None,
            Self::Fixed(term) => Some(term),
            Self::Infinite => Some(Duration::MAX),
            Self::Adaptive { percent, least, most } => {
                let share = age().map_or(Duration::ZERO, |age| age.saturating_mul(percent) / 100);
                Some(share.clamp(least, most))
            }
            Self::ByUse { least, .. } => Some(least),
        }
    }

    /// The longest term of any lease, or zero if there are none.
    pub fn longest(&self) -> Duration {
        match *self {
            Self::Zero => Duration::ZERO,
            Self::Fixed(term) => term,
            Self::Infinite => Duration::MAX,
            Self::Adaptive { most, .. } | Self::ByUse { most, .. } => most,
        }
    }
}

impl From<Duration> for ObjectTerm {
    fn from(term: Duration) -> Self {
        if term.is_zero() { Self::Zero } else { Self::Fixed(term) }
    }
}

impl fmt::Display for ObjectTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("0"),
            Self::Fixed(term) => write!(f, "{term:?}"),
            Self::Infinite => f.write_str("infinite"),
            Self::Adaptive { percent, least, most } => write!(f, "adaptive:{percent}%:{least:?}:{most:?}"),
            Self::ByUse { least, most } => write!(f, "by-use:{least:?}:{most:?}"),
        }
    }
}

/// Which reads are answered with an object lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GrantPolicy {
    /// All reads.
    All,
    /// Reads that ask for one (Cao and Liu 1998: the explicit request for a lease).
    OnRequest,
    /// All reads. But a client's first lease on an object is short. When the client validates its
    /// copy later, it gets a lease of the object term (Cao and Liu's two tiers). So clients that
    /// read only once do not fill the leader's memory, and do not delay writes for long.
    Returning {
        /// The term of the first lease.
        first: Duration,
    },
}

/// What a write does about the object leases on what it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OnWrite {
    /// The leader recalls them. The write goes on when all holders have consented, or can no longer
    /// use their copies.
    Recall,
    /// The leader sends no recall. The write waits until the object leases have ended. The object
    /// term must be no longer than the volume term, nor than a minute. So the wait is no longer
    /// than a volume term and the margin.
    ///
    /// Four things are recalled all the same:
    ///
    /// - data under a write lease;
    /// - the writer's own copies, if the writer is not exempt (S2w);
    /// - nodes of leases that have ended;
    /// - copies of a session that is recalled for another volume. A write can change objects of
    ///   several volumes. If a session is recalled for one of them, it is recalled for all.
    ///
    /// When the write is applied, it may have to change more objects than on its arrival. Then
    /// the leader recalls the leases on all of them. It does not wait for their ends a second
    /// time.
    Wait,
    /// As [`OnWrite::Recall`]. But a client that read a recalled copy asks with its consent for the
    /// new value. When the write has ended, the server pushes it to the client with a new lease. So
    /// the client's next read is a hit. Caches of processors call this *write-update*, and
    /// [`OnWrite::Recall`] *write-invalidate*. For each client that read its copy, a write costs
    /// one message more, and saves one read.
    Update,
}

impl OnWrite {
    /// Whether the leader recalls the object leases on what a write changes.
    pub fn recalls(self) -> bool {
        match self {
            Self::Recall | Self::Update => true,
            Self::Wait => false,
        }
    }
}

/// What a read asks for: whether it wants an object lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LeaseRequest {
    /// No lease: the reader will not read the object again soon.
    Unwanted,
    /// A lease, if the volume grants one to all readers.
    #[default]
    Implicit,
    /// The same, by a reader that has a copy, and may not use it at the moment. A client chooses
    /// this by itself for an implicit request.
    Returning,
    /// A lease of the full object term, if the volume grants any leases.
    Explicit,
}

/// Which reads of a volume get an object lease, as the answer to a read says it. The client
/// acquires no volume lease for other reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LeaseOffer {
    /// None, because the object term of the volume is zero.
    Nobody,
    /// Reads that ask for one.
    OnRequest,
    /// All reads that want one.
    #[default]
    Everybody,
}

impl LeaseOffer {
    /// Whether a read with this request can get a lease.
    pub fn is_open_to(self, request: LeaseRequest) -> bool {
        match self {
            Self::Nobody => false,
            Self::OnRequest => request == LeaseRequest::Explicit,
            Self::Everybody => request != LeaseRequest::Unwanted,
        }
    }
}
