//! Volume leases in messages: promises, new leases, and the copies of clients that return.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ReadAnswer;
use crate::{
    id::{CoveringNumber, Incarnation, Revision, Stamp, VolumeGeneration},
    lease_policy::LeaseRequest,
    object::{Object, ObjectSet},
    path::NodePath,
};

/// More time on a volume lease. The client counts it from before it sent the request (T2).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Promise {
    /// The top of the volume.
    pub volume: NodePath,
    /// The lease.
    pub incarnation: Incarnation,
    /// The volume's generation. Copies of older generations are not valid.
    pub generation: VolumeGeneration,
    /// The promised time from the sending of the request. It is less than the volume's term if the
    /// horizon or an unanswered recall limits it (T6, S5). It may be zero.
    pub span: Duration,
    /// The volume's term. It sets the pace of renewals.
    pub term: Duration,
    /// The last revision that was applied when the leader made the promise. The copies are valid at
    /// this revision.
    pub revision: Revision,
}

/// A volume lease that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lapse {
    /// The top of the volume.
    pub volume: NodePath,
    /// The lease that has ended.
    pub incarnation: Incarnation,
}

/// The state of a volume as a returning client last knew it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LastValid {
    /// The lease that ended.
    pub incarnation: Incarnation,
    /// The volume's generation at that time.
    pub generation: VolumeGeneration,
    /// The revision at which the copies were last valid.
    pub revision: Revision,
}

/// A read that a request for a lease on its volume brings along. The fields are those of
/// [`Body::Read`](super::Body::Read).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FirstRead {
    /// The object.
    pub object: Object,
    /// The modify revision of the client's copy.
    pub known: Option<Revision>,
    /// The object lease that the read asks for.
    pub lease: LeaseRequest,
}

/// A new lease on a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AcquiredVolume {
    /// The first promise of the lease.
    pub promise: Promise,
    /// Under this lease, the client refuses each grant with an earlier or equal stamp (S4).
    pub stamp: Stamp,
    /// Which of the client's copies become valid again.
    pub revival: Revival,
    /// The answer to the read in the request. None if there was none, if the data is under a write
    /// lease, if the leader has answered enough reads in this step, or if it must refuse the read.
    /// Then the client sends the read on its own.
    pub read: Option<Box<ReadAnswer>>,
}

/// Which copies become valid again after their volume lease ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Revival {
    /// No copy from under an earlier lease. The client validates each such copy before it uses it.
    ///
    /// The named lease may be one that the client ended when it asked for a new lease. Then the
    /// leader has extended that lease, and never stopped tracking the copies under it. So these
    /// copies are valid at once.
    None,
    /// All copies whose object leases still hold, except for copies of `changed`. From now on, the
    /// lessor tracks the session as covering.
    AllExcept {
        /// The objects that changed, that pending writes may change, or that are under write
        /// leases.
        changed: Vec<ObjectSet>,
        /// The number of the covering.
        covering: CoveringNumber,
        /// Whether the client reports its copies at once. Otherwise it reports with a later recall
        /// or renewal (S7). True in volumes whose writes send no recalls: there each write waits
        /// for a client that has not reported.
        reports_at_once: bool,
    },
}

/// A volume lease that the leader tracks as covering.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CoveringLease {
    /// The top of the volume.
    pub volume: NodePath,
    /// The lease.
    pub incarnation: Incarnation,
    /// The number of the covering. A holder report must name it to end the covering.
    pub number: CoveringNumber,
}

/// One part of a session's holder report for one volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HolderReportPart {
    /// The top of the volume.
    pub volume: NodePath,
    /// The lease under which the session has the copies.
    pub incarnation: Incarnation,
    /// The covering that the whole report ends.
    pub covering: CoveringNumber,
    /// The index of this part, from 0.
    pub part: u32,
    /// The number of parts.
    pub parts: u32,
    /// Objects with a cached copy whose object lease holds; at most
    /// [`REPORT_PART_OBJECTS_MAX`](super::REPORT_PART_OBJECTS_MAX).
    pub objects: Vec<Object>,
}
