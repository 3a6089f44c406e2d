//! What clients and servers say to each other.
//!
//! A client opens the connection; requests go up, responses come back, and [`Recall`]s come down
//! the same way. All of it may be lost with the connection, delayed, or (requests) sent twice.
//! docs/PROTOCOL.md goes through each message. Times are durations: each side counts them on its
//! own clock (T1).

mod bounds;
mod inspect;
mod refusal;

pub use bounds::*;
pub use inspect::*;
pub use refusal::Refusal;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    change::{Changes, Watched},
    command::{Write, Written},
    drift::{ClockAnswer, ClockQuestion},
    id::{CoveringNumber, Epoch, Incarnation, LeaseId, LockId, Revision, Sequence, SessionId, Stamp, VolumeGeneration},
    lock::LockStatus,
    object::{Content, Data, Object, ObjectSet},
    path::NodePath,
};

/// From a client to the server that it takes for the leader.
///
/// Lost: the client sends it again, to whichever server leads by then, under the same sequence.
/// Twice: reads and renewals are repeated, writes take effect once (S9).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// Who asks, and what rides along.
    pub header: RequestHeader,
    /// What is asked.
    pub body: Body,
}

/// What every request carries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestHeader {
    /// The client's session; 0 in requests that are nobody's, which carry no renewals, consents or
    /// returns: [`Body::Open`], [`Body::Inspect`], [`Body::List`].
    pub session: SessionId,
    /// The leadership that the session has registered with; 0 before it has.
    pub epoch: Epoch,
    /// Which of the session's registrations this belongs to. A client counts them up, over all its
    /// connections: what was sent under an earlier one, on a connection that it has given up since,
    /// is refused. In [`Body::Register`], the new number.
    pub registration: u64,
    /// The request's number in the session. Writes are numbered without gaps; other requests need
    /// no number and carry the one that the next write will have (S9).
    pub sequence: Sequence,
    /// All writes of the session below this have been answered or given up (S9).
    pub unanswered_from: Sequence,
    /// Volume leases to renew (T6); at most [`RENEWALS_MAX`].
    pub renew: Vec<Renew>,
    /// Recalls answered so far, of which the client does not know yet that the server knows (S5);
    /// at most [`CONSENTS_MAX`].
    pub consents: Vec<Stamp>,
    /// Copies given back without having been asked for, each with the stamp of its grant (S2); at
    /// most [`RETURNS_MAX`].
    pub returns: Vec<Return>,
}

/// Asks for more time on a volume lease. Answered by a [`Promise`], or by a [`Lapse`] if the lease
/// is gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Renew {
    /// The top of the volume.
    pub volume: NodePath,
    /// The lease that is meant. If that is gone, the answer is *expired*, never a new lease (T6).
    pub incarnation: Incarnation,
}

/// A copy that the client has dropped of its own accord.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Return {
    /// What it was a copy of.
    pub object: Object,
    /// The grant that it came with. A later grant is not given back by this.
    pub stamp: Stamp,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Body {
    /// An identity, please. Without a session. Twice: two sessions, one of which is forgotten after
    /// its term.
    Open {
        /// What the client calls itself, for people who look.
        name: String,
    },
    /// The session has found this leader: recalls may go down this connection from now on. Sent on
    /// each new connection before anything else of the session, with a new registration number. The
    /// only request of a session whose header may name another epoch.
    Register,
    /// The session ends: all its copies are dropped.
    Close,
    /// What rides along, renewals, consents, returns, and a comparison of clocks. Answered by
    /// [`Answer::Heartbeat`]: at once, or when the next tick is in the log and the renewals can be
    /// promised a whole term (docs/adr/0014).
    Heartbeat(ClockQuestion),
    /// A lease on the volume that `path` belongs to. From sending it on, the client has stopped
    /// using any lease that it had there, and takes no promise for it any more.
    Acquire {
        /// Any path in the volume.
        path: NodePath,
        /// The applied revision that came with the latest promise or grant of the lease that ended:
        /// copies that have not changed since are good again (Yin's delayed invalidation). None
        /// without copies.
        last_valid: Option<LastValid>,
    },
    /// The content of an object, and a lease on it if that can be had.
    Read {
        /// The object.
        object: Object,
        /// The modify revision of the copy that the client has and may not use any more: if the
        /// object still has it, the answer is [`Content`]-free.
        known: Option<Revision>,
    },
    /// The same again, after [`Answer::ReadBlocked`]: answered when nobody keeps the data to itself
    /// any more, which may be long in coming, but no longer than the holder's lease, and its
    /// margin. Lost: read again. Twice: the later takes the place of the earlier, which is refused
    /// with [`Refusal::Retry`].
    AwaitRead {
        /// The object.
        object: Object,
        /// As in [`Body::Read`].
        known: Option<Revision>,
    },
    /// A change (S2, S9).
    Write {
        /// The change.
        write: Write,
        /// The objects of which the client dropped its own copies when it sent this (S2w); at most
        /// [`DROPPED_SETS_MAX`].
        dropped: Vec<ObjectSet>,
        /// The highest stamp of the registered epoch that the client had seen by then. It refuses
        /// grants on those objects at or below it.
        seen: Stamp,
    },
    /// One piece of the list of objects that the session holds in a volume (S7). Only ever adds;
    /// never a consent.
    HolderReport(HolderReportPart),
    /// More time on key leases, please: each gets its full term again. Answered by
    /// [`Answer::Kept`], at once or when the next tick is in the log, as [`Body::Heartbeat`] is.
    /// Lost or twice: a lease that is gone stays gone.
    KeepAlive {
        /// The leases; at most [`KEEP_ALIVES_MAX`].
        leases: Vec<KeyLeaseRenewal>,
    },
    /// A look at the server's or the cluster's state, for people. Without a session.
    Inspect(Inspect),
    /// Tell me when one of these holds stands otherwise than I know. Answered by
    /// [`Answer::LockStatuses`] then, which may be long in coming. Lost: asked again. Twice: the
    /// later takes the place of the earlier.
    AwaitLocks {
        /// The holds, all that the session wants to hear of; at most [`AWAIT_LOCKS_MAX`].
        locks: Vec<AwaitedLock>,
    },
    /// What happens to a node or a subtree. Answered by [`Answer::Changes`] as soon as something
    /// has happened, and without changes when the wait is over, or when so much else happened that
    /// looking on would take long; refused with [`Refusal::Compacted`] if it is not known any more.
    /// What is told was committed, so no proof of leadership is needed; only what *now* is has to
    /// be proven. Lost: sent again from the same revision, to whoever leads. Twice: the same
    /// changes are told twice, and the client knows them by their revisions.
    Watch {
        /// What is watched.
        watched: Watched,
        /// The last change that is known: all later ones are to be told. None: from now on;
        /// answered at once, without changes.
        after: Option<Revision>,
        /// The server answers at the latest after so long, and at the latest after
        /// [`WATCH_WAIT_MAX`].
        wait: Duration,
        /// About how many bytes of changes are wanted at once; at most [`CHANGES_BYTES_MAX`]. One
        /// change is told in any case, whole.
        bytes_max: u32,
    },
    /// One page of all nodes in a subtree, with their data, at one revision. Without a session, and
    /// without leases. Lost, twice: read again.
    List {
        /// The topmost node.
        path: NodePath,
        /// The last node of the page before.
        after: Option<NodePath>,
        /// The most nodes that are wanted; at most [`LIST_NODES_MAX`].
        nodes_max: u32,
    },
}

impl Body {
    /// Whether the server answers it without waiting for other clients. A write may wait for their
    /// leases, a watch for their writes, news of holds for what they do, a list and a read that
    /// waits for what they flush.
    pub fn is_nonblocking(&self) -> bool {
        !matches!(
            self,
            Self::Write { .. }
                | Self::Watch { .. }
                | Self::AwaitLocks { .. }
                | Self::AwaitRead { .. }
                | Self::List { .. }
        )
    }
}

/// The longest that a server lets a watch wait: a client that has gone is not remembered for
/// longer.
pub const WATCH_WAIT_MAX: Duration = Duration::from_secs(60);

/// About the most bytes of changes in one answer, but for the first change, which may have
/// [`State::CHANGE_BYTES_MAX`](crate::state::State::CHANGE_BYTES_MAX).
pub const CHANGES_BYTES_MAX: u32 = 1 << 20;

/// The most nodes in one page of a list: a page is quick to make.
pub const LIST_NODES_MAX: u32 = 4096;

/// A hold that a session wants to hear of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AwaitedLock {
    /// The node.
    pub path: NodePath,
    /// The hold.
    pub lock: LockId,
    /// How it stands, as far as the session knows.
    pub known: LockStatus,
}

/// The most holds that one request asks after.
pub const AWAIT_LOCKS_MAX: usize = 4096;

/// The most bytes of paths that one such request has, by its sender's count: with its header it
/// fits into a frame, however long the paths are. The answer names holds by number, and fits.
pub const AWAIT_LOCKS_BYTES_MAX: usize = 8 << 20;

/// What a returning client last knew of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LastValid {
    /// The lease that ended.
    pub incarnation: Incarnation,
    /// The volume's generation at the time.
    pub generation: VolumeGeneration,
    /// The applied revision.
    pub revision: Revision,
}

/// One piece of the list of what a session holds in one volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HolderReportPart {
    /// The top of the volume.
    pub volume: NodePath,
    /// The lease under which the copies are held.
    pub incarnation: Incarnation,
    /// The covering that the whole list will end.
    pub covering: CoveringNumber,
    /// Which piece this is, from 0.
    pub part: u32,
    /// How many pieces there are.
    pub parts: u32,
    /// Objects held; at most [`REPORT_PART_OBJECTS_MAX`].
    pub objects: Vec<Object>,
}

/// Asks for more time on a key lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyLeaseRenewal {
    /// Its name.
    pub id: LeaseId,
    /// The lease that is meant: if that is gone the answer says so, though another may have its
    /// name by now (T6). None before the client has heard which it is.
    pub incarnation: Option<Incarnation>,
}

/// From a server to a client, to its request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Response {
    /// The leadership that answers. The client refuses promises and grants of an older one than it
    /// has registered with.
    pub epoch: Epoch,
    /// Renewed volume leases.
    pub promises: Vec<Promise>,
    /// Volume leases that were to be renewed and are gone.
    pub lapses: Vec<Lapse>,
    /// The answer.
    pub result: Result<Answer, Refusal>,
}

/// More time on a volume lease, counted by the client from before it sent the request (T2).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Promise {
    /// The top of the volume.
    pub volume: NodePath,
    /// The lease.
    pub incarnation: Incarnation,
    /// The volume's generation. Copies of an older one are not valid any more.
    pub generation: VolumeGeneration,
    /// How long from the sending of the request. Less than the volume's term if the horizon or an
    /// unanswered recall is nearer (T6, S5); zero if there is nothing to be promised.
    pub span: Duration,
    /// The volume's term, which renewals are paced by.
    pub term: Duration,
    /// The revision that was applied when the promise was made: what the copies are valid at.
    pub revision: Revision,
}

/// A volume lease is gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lapse {
    /// The top of the volume.
    pub volume: NodePath,
    /// The lease that is gone.
    pub incarnation: Incarnation,
}

/// An object lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grant {
    /// Its place in the order of the session's grants and recalls (S4).
    pub stamp: Stamp,
    /// The volume that the object belongs to.
    pub volume: NodePath,
    /// The session's lease on that volume.
    pub incarnation: Incarnation,
    /// The volume's generation.
    pub generation: VolumeGeneration,
    /// How long from the sending of the request.
    pub span: Duration,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Body::Open`].
    Opened {
        /// The new identity.
        session: SessionId,
        /// How long it is remembered without a sign of life.
        term: Duration,
    },
    /// To [`Body::Register`].
    Registered {
        /// The session's volume leases that this leader tracks as covering, and wants lists for
        /// (S7).
        coverings: Vec<CoveringLease>,
    },
    /// To [`Body::Close`].
    Closed,
    /// To [`Body::HolderReport`].
    ReportReceived,
    /// To [`Body::Heartbeat`]: what the leader's clock counted.
    Heartbeat(ClockAnswer),
    /// To [`Body::Acquire`].
    Acquired(AcquiredVolume),
    /// To [`Body::Read`] and [`Body::AwaitRead`].
    Read(ReadAnswer),
    /// To [`Body::Read`]: somebody keeps the data to itself (a write lease), and has been asked for
    /// it. NFSv4's `NFS4ERR_DELAY`. The client goes on with [`Body::AwaitRead`], and knows from
    /// then on that a server that does not answer is not silent.
    ReadBlocked,
    /// To [`Body::Write`]: it took effect.
    Written {
        /// What it did.
        written: Written,
        /// Counts as a recall of everything older on the objects it changed (S2w).
        stamp: Stamp,
        /// A lease on the data that a put wrote, so that the writer's next read is a hit. None
        /// after a transaction; nor in a repeated answer, in which the first one's lease may have
        /// ended (S9).
        grant: Option<Grant>,
        /// The revision that was applied when the grant was made.
        applied: Revision,
        /// More time on the key lease that was granted, counted by the client from before it sent
        /// the request (T2). In a repeated answer it is computed afresh; without a span if that
        /// lease is gone by then, though another may have its name.
        key_lease: Option<KeyLeasePromise>,
        /// After [`Write::TakeWriteLease`]: the data that its holder keeps to itself now. None if
        /// it does not any more.
        write_lease_data: Option<Box<Data>>,
    },
    /// To [`Body::Heartbeat`]: one for each that was asked for, in order.
    KeptAlive(Vec<KeyLeasePromise>),
    /// To [`Inspect::Holders`].
    Holders(Vec<HolderInfo>),
    /// To [`Inspect::PendingWrites`].
    PendingWrites(Vec<PendingWriteInfo>),
    /// To [`Inspect::BlockedReads`]: in the order of paths.
    BlockedReads(Vec<BlockedReadInfo>),
    /// To [`Inspect::Volumes`].
    Volumes(Vec<VolumeInfo>),
    /// To [`Inspect::Lease`]; none if there is no such lease.
    Lease(Option<LeaseInfo>),
    /// To [`Inspect::Leases`]: in order, without their nodes. If there are none, there are no more.
    Leases(Vec<LeaseInfo>),
    /// To [`Inspect::Cluster`].
    Cluster(ClusterInfo),
    /// To [`Body::AwaitLocks`]: those that stand otherwise, and how. None if a later request has
    /// taken the place of this one.
    LockStatuses(Vec<(LockId, LockStatus)>),
    /// To [`Inspect::LockStatuses`].
    LockInfos(Vec<LockInfo>),
    /// To [`Body::Watch`].
    Changes(Changes),
    /// To [`Body::List`].
    Listed(ListPage),
    /// To [`Inspect::Services`].
    Services(ServicePage),
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListPage {
    /// The nodes, in the order of paths.
    pub nodes: Vec<(NodePath, Data)>,
    /// What had been applied: the page is all that was there then, in its part of the subtree.
    pub revision: Revision,
    /// Up to which path, in the order of paths, it is complete: the next page begins after it.
    /// None: to the end.
    pub through: Option<NodePath>,
}

/// More time on a key lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyLeasePromise {
    /// The lease's name.
    pub id: LeaseId,
    /// Which lease of that name.
    pub incarnation: Incarnation,
    /// Its term, which renewals are paced by.
    pub ttl: Duration,
    /// What came of the keeping.
    pub result: KeepAliveResult,
}

/// What came of the keeping of a key lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeepAliveResult {
    /// It is promised for this long from the sending of the request: the term, or less if the
    /// horizon is nearer (T6).
    Renewed(Duration),
    /// It is not renewed now, and not known to be gone: its end is under way, and may come to
    /// nothing (T5). Its client asks again, and counts by its own clock meanwhile.
    Unconfirmed,
    /// It is gone: its end is applied, or there never was one. It comes back no more.
    NotFound,
}

/// A volume lease that the leader tracks as covering.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CoveringLease {
    /// The top of the volume.
    pub volume: NodePath,
    /// The lease.
    pub incarnation: Incarnation,
    /// The covering, which a list must name to end it.
    pub number: CoveringNumber,
}

/// A new lease on a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AcquiredVolume {
    /// The lease, counted like any promise.
    pub promise: Promise,
    /// Accepting the lease counts as a recall of everything in the volume that is stamped before
    /// this (S4).
    pub stamp: Stamp,
    /// What becomes of the copies that the client still has.
    pub revival: Revival,
}

/// What becomes of copies whose volume lease had ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Revival {
    /// None is good again as it is: each is revalidated as it is used.
    None,
    /// All are good again whose object lease still holds, but for these. The session is tracked as
    /// covering from now on.
    AllExcept {
        /// What changed since, and what a write is under way for.
        changed: Vec<ObjectSet>,
        /// The covering.
        covering: CoveringNumber,
    },
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadAnswer {
    /// The content; none if the object still has the revision that the request named.
    pub content: Option<Content>,
    /// A lease on it; none while a write of the object is under way (S3), or without a lease on its
    /// volume.
    pub grant: Option<Grant>,
    /// The volume that the object belongs to: the one to acquire for a lease.
    pub volume: NodePath,
    /// The revision that was applied when the answer was made.
    pub applied: Revision,
}

/// From a server to a client that may hold copies: drop them, and say so.
///
/// Sent down the connection that the session registered on. Lost: sent again with the next request
/// of the session and when it registers anew. Twice: consented to twice; the second has no effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recall {
    /// Whose copies.
    pub session: SessionId,
    /// Its place in the order of the session's grants and recalls; named by the consent.
    pub stamp: Stamp,
    /// Counts the recalls of this session in this epoch without gaps, from 1 (S5).
    pub number: u64,
    /// What to drop.
    pub sets: Vec<ObjectSet>,
}

/// From a client to the server that recalled: the copies are dropped, and grants stamped before
/// will not be cached.
///
/// The reply to a [`Recall`], and carried by requests too. Lost or twice: see there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Consent {
    /// Whose.
    pub session: SessionId,
    /// The recall that is answered.
    pub stamp: Stamp,
}
