//! The messages between clients and servers.
//!
//! A client opens the connection and sends requests. Responses, [`Recall`]s and pushes come back.
//! Any message may be delayed, or lost with its connection, and a client may send a request twice.
//! The comments say what follows: after *Lost* if the message is lost, after *Twice* if it arrives
//! twice. `docs/PROTOCOL.md` describes each message. Times are durations, and each side counts them
//! on its own clock (T1).

mod bounds;
mod inspect;
mod read_gaps;
mod recall;
mod refusal;
mod volume_leases;
mod volume_stats;

pub use bounds::*;
pub use inspect::*;
pub use read_gaps::ReadGaps;
pub use recall::{
    Consent, DelayNotice, DelayReason, PUSH_REQUESTS_MAX, PUSH_WAIT_MAX, Push, PushRequest, Recall, RecallReply,
};
pub use refusal::Refusal;
pub use volume_leases::*;
pub use volume_stats::{CachedReads, SpanCounts, VolumeCounts, VolumeStats, WaitCounts};

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    change::{Changes, WatchScope},
    command::{Write, Written},
    drift::{ClockAnswer, ClockQuestion},
    id::{Epoch, Incarnation, LeaseId, LockId, Revision, Sequence, SessionId, Stamp, VolumeGeneration},
    lease_policy::{LeaseOffer, LeaseRequest},
    lock::LockStatus,
    object::{Content, Data, Object, ObjectSet},
    path::NodePath,
};

/// From a client to the server that it believes to be the leader.
///
/// Lost: the client sends it again to the present leader, a write under the same sequence. Twice:
/// the server repeats a read or a renewal, and a write takes effect once (S9).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// The sender, and piggybacked renewals, consents and returns.
    pub header: RequestHeader,
    /// The request itself.
    pub body: Body,
}

/// The header of each request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestHeader {
    /// The client's session. 0 means no session. Only [`Body::Open`], [`Body::Inspect`] and
    /// [`Body::List`] may have 0. Then the header has no renewals, consents, returns or reads from
    /// memory.
    pub session: SessionId,
    /// The epoch with which the session has registered. 0 before it has.
    pub epoch: Epoch,
    /// The number of the session's registration, or the new one in [`Body::Register`]. A client
    /// counts over all its connections. The server refuses requests of earlier registrations, such
    /// as late ones of an abandoned connection.
    pub registration: u64,
    /// The number of the write. Writes are numbered without gaps. Other requests name the number of
    /// the next write, and do not use it up (S9).
    pub sequence: Sequence,
    /// All writes of the session below this number have been answered or cancelled (S9).
    pub unanswered_from: Sequence,
    /// Volume leases to renew (T6); at most [`RENEWALS_MAX`].
    pub renew: Vec<Renew>,
    /// The stamps of recalls to which the client consents. It repeats each until the server has
    /// answered a request that had it. Of the consents that it also sent as replies to recalls, it
    /// repeats only the latest (S5). At most [`CONSENTS_MAX`].
    pub consents: Vec<Stamp>,
    /// Copies that the client dropped without a recall, each with the stamp of its grant (S2); at
    /// most [`RETURNS_MAX`].
    pub returns: Vec<Return>,
    /// Reads that the client has answered from memory since it last reported them, by volume.
    /// Counters use them, and object terms by use. Lost or twice: they count too low or too high.
    /// At most [`CACHED_READS_MAX`].
    pub cached_reads: Vec<CachedReads>,
    /// A comparison of clocks beside what the body asks for. [`Response::clocks`] has the answer.
    /// Lost or twice: as for [`Body::Heartbeat`].
    pub clocks: Option<Box<ClockQuestion>>,
}

/// Asks for more time on a volume lease. The answer has a [`Promise`], a [`Lapse`] if the lease has
/// ended, or neither while its end is proposed (T5).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Renew {
    /// The top of the volume.
    pub volume: NodePath,
    /// The lease to renew. If it has ended, the answer is a [`Lapse`], never a new lease (T6).
    pub incarnation: Incarnation,
}

/// A copy that the client has dropped without a recall.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Return {
    /// The object of the copy.
    pub object: Object,
    /// The stamp of its grant. A later grant stays valid.
    pub stamp: Stamp,
}

/// The kinds of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Body {
    /// Asks for a new session. Sent without a session. Twice: the server makes two sessions, and
    /// forgets the unused one after its term.
    Open {
        /// The client's name for itself, for operators.
        name: String,
    },
    /// Registers the session with this leader. From now on the server sends the session's recalls
    /// down this connection. Sent on each new connection before any other request of the session,
    /// with a new registration number. Only in this request, the header may name another epoch.
    Register,
    /// Ends the session. The client has dropped all its copies.
    Close,
    /// Only what the header has (renewals, consents, returns, reads from memory), and a comparison
    /// of clocks. Lost: the client sends another one. Twice: harmless. [`Answer::Heartbeat`] comes
    /// at once, or when the next tick is committed and the renewals can be promised a whole term
    /// (`docs/adr/0014`).
    Heartbeat(ClockQuestion),
    /// Asks for a lease on the volume of `path`. By sending it, the client ends its old lease
    /// there: it uses no copies under that lease, and accepts no promise for it (`docs/adr/0004`).
    Acquire {
        /// Any path in the volume.
        path: NodePath,
        /// The applied revision of the latest promise or grant of the lease that ended. Copies that
        /// have not changed since become valid again (Yin's delayed invalidation). None without
        /// copies.
        last_valid: Option<LastValid>,
        /// A read that the server answers together with the lease. The client sends no other
        /// request for it.
        read: Option<FirstRead>,
    },
    /// Asks for the content of an object, and for a lease on it if one is available.
    Read {
        /// The object.
        object: Object,
        /// The modify revision of the client's copy, which the client may no longer use. If the
        /// object still has this revision, the answer has no [`Content`].
        known: Option<Revision>,
        /// Whether the reader wants a lease.
        lease: LeaseRequest,
    },
    /// The same read, after [`Answer::ReadBlocked`]. The server answers when the write lease has
    /// ended. That may take as long as the owner's lease and its margin. Lost: the client reads
    /// again. Twice: the server refuses the earlier request with [`Refusal::Retry`].
    AwaitRead {
        /// The object.
        object: Object,
        /// As in [`Body::Read`].
        known: Option<Revision>,
        /// As in [`Body::Read`].
        lease: LeaseRequest,
    },
    /// A read of the value that the pending writes of the object leave, for the client's cache.
    /// Sent after a recall that [offers](Recall::offers_next_values) it: usually with the consent,
    /// as a [`PushRequest`]. The server answers as to [`Body::Read`], when the writes have ended
    /// that are pending at the arrival. If the object is under a write lease by then, the answer is
    /// [`Answer::ReadBlocked`], and the write lease is not recalled. Lost: the next read of the
    /// application asks by itself. Twice: while the earlier request waits, the later one replaces
    /// it ([`Refusal::Retry`]).
    ReadNextValue {
        /// The object.
        object: Object,
        /// As in [`Body::Read`].
        lease: LeaseRequest,
    },
    /// A write (S2, S9).
    Write {
        /// The change.
        write: Write,
        /// The objects whose copies the client dropped when it sent this (S2w); at most
        /// [`DROPPED_SETS_MAX`].
        dropped: Vec<ObjectSet>,
        /// The highest stamp of the registered epoch that the client had seen at that time. The
        /// client refuses grants on those objects at or below this stamp.
        seen: Stamp,
    },
    /// One part of a holder report (S7). It only adds object leases, and is never a consent.
    HolderReport(HolderReportPart),
    /// Renews key leases for their full TTLs. [`Answer::KeptAlive`] comes at once, or when the next
    /// tick is committed, as for [`Body::Heartbeat`]. Lost or twice: harmless. A lease that has
    /// ended never comes back.
    KeepAlive {
        /// The leases; at most [`KEEP_ALIVES_MAX`].
        leases: Vec<KeyLeaseRenewal>,
    },
    /// Asks for the state of the server or the cluster, for operators. Sent without a session.
    Inspect(Inspect),
    /// Waits until the status of one of these locks differs from the known one. Then
    /// [`Answer::LockStatuses`] comes, perhaps after a long time. Lost: the client asks again.
    /// Twice: the later request replaces the earlier one, which gets an empty answer.
    AwaitLockStatus {
        /// The locks whose status the session awaits; at most [`AWAIT_LOCK_STATUS_MAX`].
        locks: Vec<AwaitedLock>,
    },
    /// Watches a node or a subtree. The server answers with [`Answer::Changes`]:
    ///
    /// - with changes, as soon as there are any;
    /// - without changes, when the wait ends.
    ///
    /// If too many bytes of reports are on their way, the server holds changes back. When the wait
    /// ends, its answer covers only the revisions before the changes that it holds back. The next
    /// request of a watch acknowledges its last report, and all earlier reports to the session.
    ///
    /// Changes are committed, so they need no proof of leadership. Only a watch without `after`
    /// needs one. The server refuses with [`Refusal::Compacted`] if a change after the revision is
    /// compacted, or is stored without its events. Lost: the client asks the next leader from the
    /// same revision. Twice: the client ignores the answer to an earlier sending.
    Watch {
        /// The scope of the watch.
        watched: WatchScope,
        /// The last known change: the watch reports all later changes. None: the watch begins now,
        /// and the first answer only says at which revision.
        after: Option<Revision>,
        /// The longest time until the answer; at most [`WATCH_WAIT_MAX`]. While reports are held
        /// up, some seconds more.
        wait: Duration,
        /// About the most bytes of changes in one answer; at most [`CHANGES_BYTES_MAX`]. The first
        /// change may exceed it.
        bytes_max: u32,
    },
    /// Asks for one page of all nodes of a subtree with their data, as of one revision. Sent
    /// without a session, and grants no leases. Lost or twice: the client reads again.
    List {
        /// The top of the subtree.
        path: NodePath,
        /// The end of the previous page: its [`through`](ListPage::through).
        after: Option<NodePath>,
        /// The most nodes in the page; at most [`LIST_NODES_MAX`].
        nodes_max: u32,
    },
}

impl Body {
    /// Whether the server answers without waiting for other clients. A write may wait for leases, a
    /// watch for writes, and an [`AwaitLockStatus`](Self::AwaitLockStatus) for other locks. A list
    /// and an [`AwaitRead`](Self::AwaitRead) may wait for flushes, and a
    /// [`ReadNextValue`](Self::ReadNextValue) for writes.
    pub fn is_nonblocking(&self) -> bool {
        !matches!(
            self,
            Self::Write { .. }
                | Self::Watch { .. }
                | Self::AwaitLockStatus { .. }
                | Self::AwaitRead { .. }
                | Self::ReadNextValue { .. }
                | Self::List { .. }
        )
    }
}

/// A lock whose status a session awaits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AwaitedLock {
    /// The node.
    pub path: NodePath,
    /// The id of the lock.
    pub lock: LockId,
    /// The status that the session knows.
    pub known: LockStatus,
}

/// Asks for more time on a key lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyLeaseRenewal {
    /// The id of the lease.
    pub id: LeaseId,
    /// The lease to renew. If it has ended, the answer says so, even if the id now stands for
    /// another lease (T6). None until the client knows the incarnation.
    pub incarnation: Option<Incarnation>,
}

/// From a server to a client: the answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Response {
    /// The epoch that answers. The client accepts promises, lapses and grants only if it has
    /// registered with this epoch.
    pub epoch: Epoch,
    /// Renewed volume leases.
    pub promises: Vec<Promise>,
    /// Volume leases that the client asked to renew, and that have ended.
    pub lapses: Vec<Lapse>,
    /// The answer to [`RequestHeader::clocks`]; `None` if there was no question, or if the leader
    /// did not handle the request.
    pub clocks: Option<Box<ClockAnswer>>,
    /// The answer or the refusal.
    pub result: Result<Answer, Refusal>,
}

/// A lease on an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grant {
    /// The position in the order of the session's grants and recalls (S4).
    pub stamp: Stamp,
    /// The volume of the object.
    pub volume: NodePath,
    /// The session's lease on that volume.
    pub incarnation: Incarnation,
    /// The volume's generation.
    pub generation: VolumeGeneration,
    /// The term, from the sending of the request.
    pub span: Duration,
}

/// The answers to requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Body::Open`].
    Opened {
        /// The new session.
        session: SessionId,
        /// How long the server remembers the session without a sign of life: at most this long, and
        /// at least three quarters of it.
        term: Duration,
    },
    /// To [`Body::Register`].
    Registered {
        /// The session's volume leases for which this leader wants a holder report (S7).
        coverings: Vec<CoveringLease>,
    },
    /// To [`Body::Close`].
    Closed,
    /// To [`Body::HolderReport`].
    ReportReceived,
    /// To [`Body::Heartbeat`]: the leader's clock comparison.
    Heartbeat(ClockAnswer),
    /// To [`Body::Acquire`].
    Acquired(AcquiredVolume),
    /// To [`Body::Read`], [`Body::AwaitRead`] and [`Body::ReadNextValue`].
    Read(ReadAnswer),
    /// To [`Body::Read`]: another session has the data under a write lease, and the leader has
    /// recalled it (like NFSv4's `NFS4ERR_DELAY`). The client continues with [`Body::AwaitRead`],
    /// for which it does not count the server as silent. To [`Body::ReadNextValue`]: the same, but
    /// the leader has recalled nothing, and the client waits no longer.
    ReadBlocked,
    /// To [`Body::Write`]: the write took effect.
    Written {
        /// The outcome.
        written: Written,
        /// Counts as a recall of all older copies of the objects that the writer dropped (S2w).
        stamp: Stamp,
        /// A lease on the data that a put wrote, so that the writer's next read is a hit. None
        /// after a transaction, in a volume whose policy grants none to a put, and in the answer to
        /// a request that came after the put was proposed (S6, S9).
        grant: Option<Grant>,
        /// The revision that was applied when the grant was made.
        applied: Revision,
        /// The promise of a granted key lease. The client counts it from the sending of the request
        /// (T2). For a repeated answer the lessor computes it afresh, or says that the lease has
        /// ended, even if another lease has the id.
        key_lease: Option<KeyLeasePromise>,
        /// After [`Write::TakeWriteLease`]: the data, which only the owner uses from now on. None
        /// if the write lease has ended.
        write_lease_data: Option<Box<Data>>,
    },
    /// To [`Body::KeepAlive`]: one for each requested lease, in order.
    KeptAlive(Vec<KeyLeasePromise>),
    /// To [`Inspect::Holders`].
    Holders(Vec<HolderInfo>),
    /// To [`Inspect::PendingWrites`].
    PendingWrites(Vec<PendingWriteInfo>),
    /// To [`Inspect::BlockedReads`], in the order of paths.
    BlockedReads(Vec<BlockedReadInfo>),
    /// To [`Inspect::Volumes`].
    Volumes(Vec<VolumeInfo>),
    /// To [`Inspect::VolumeStats`]. None if the node is not the top of a volume.
    VolumeStats(Option<Box<VolumeStats>>),
    /// To [`Inspect::Lease`] and `Inspect::LeaseNamed`. None if there is no such lease.
    Lease(Option<LeaseInfo>),
    /// To [`Inspect::Leases`]: in order, without nodes. Empty after the last lease.
    Leases(Vec<LeaseInfo>),
    /// To [`Inspect::Cluster`].
    Cluster(ClusterInfo),
    /// To [`Body::AwaitLockStatus`]: the locks whose status differs, and the new statuses. Empty if
    /// a later request has replaced this one.
    LockStatuses(Vec<(LockId, LockStatus)>),
    /// To [`Inspect::Locks`].
    LockInfos(LockPage),
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
    /// The applied revision. The page has all nodes of its range of paths as of this revision.
    pub revision: Revision,
    /// The end of the page's range of paths. The next page begins after it. None: the page ends the
    /// list.
    pub through: Option<NodePath>,
}

/// More time on a key lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyLeasePromise {
    /// The id of the lease.
    pub id: LeaseId,
    /// The incarnation of the lease.
    pub incarnation: Incarnation,
    /// The TTL. It sets the pace of renewals.
    pub ttl: Duration,
    /// The result of the renewal.
    pub result: KeepAliveResult,
}

/// The result of the renewal of a key lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeepAliveResult {
    /// The lease is promised for this time from the sending of the request: the TTL, or less if the
    /// horizon is nearer (T6).
    Renewed(Duration),
    /// The lease is not renewed, because its end is proposed. The end may never be applied (T5).
    /// The client asks again, and counts by its own clock until then.
    Unconfirmed,
    /// The lease has ended, or never existed. It never comes back.
    NotFound,
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadAnswer {
    /// The content. None if the object still has the revision in the request.
    pub content: Option<Content>,
    /// A lease on the object. None while a write of the object is pending (S3), if the session has
    /// no lease on the volume, or if the volume's policy grants none to this read.
    pub grant: Option<Grant>,
    /// The volume of the object. A client acquires it to get a lease.
    pub volume: NodePath,
    /// Which reads of the volume get a lease.
    pub offer: LeaseOffer,
    /// The revision that was applied when the answer was made.
    pub applied: Revision,
}
