//! Bounds of requests and answers. The server refuses a request with a longer list, and nothing of
//! it takes effect (S10b, S12). It shortens answers and waits to the bound.

use std::time::Duration;

use super::{Body, Request, RequestHeader};
use crate::{
    id::{Epoch, SessionId},
    limits::LimitError,
    reached::{Bound, reached},
    transaction::Transaction,
};

/// The longest wait of a watch. After this time the server forgets the watch of a dead client.
pub const WATCH_WAIT_MAX: Duration = Duration::from_secs(60);

/// About the most bytes of changes in one answer. The first change may be longer, up to
/// [`State::CHANGE_BYTES_MAX`](crate::state::State::CHANGE_BYTES_MAX).
pub const CHANGES_BYTES_MAX: u32 = 1 << 20;

/// The most nodes in one page of a list, so that a page takes little time.
pub const LIST_NODES_MAX: u32 = 4096;

/// The most renewals of volume leases in one request. Each costs a promise in the answer. A session
/// with more leases renews the others with its next request.
pub const RENEWALS_MAX: usize = 1024;

/// The most consents in one request, for the same reason.
pub const CONSENTS_MAX: usize = 1024;

/// The most returns in one request. Returns are not urgent: if a copy is not returned, the lessor
/// recalls it when necessary.
pub const RETURNS_MAX: usize = 256;

/// The most volumes for which one request reports reads from memory: as many as a client counts
/// apart.
pub const CACHED_READS_MAX: usize = 256;

/// The shortest interval between two such reports: a report costs some bytes, and counting the
/// reads costs some time.
pub const CACHED_READS_INTERVAL: Duration = Duration::from_secs(1);

/// The most key leases that one request renews.
pub const KEEP_ALIVES_MAX: usize = 16_384;

/// The most objects in one part of a holder report, so that a part stays well below a frame.
pub const REPORT_PART_OBJECTS_MAX: usize = 512;

/// The most locks in one [`Body::AwaitLockStatus`].
pub const AWAIT_LOCK_STATUS_MAX: usize = 4096;

/// The most bytes of paths in such a request. The client counts them, so that the request fits into
/// a frame. The answer names locks by number, and fits too.
pub const AWAIT_LOCK_STATUS_BYTES_MAX: usize = 8 << 20;

/// The most sets of dropped copies that one write names: three for each operation of both branches
/// of a transaction.
pub const DROPPED_SETS_MAX: usize = 3 * 2 * Transaction::OPERATIONS_MAX;

impl RequestHeader {
    /// Whether the header names no session, and has no renewals, consents, returns or reports of
    /// reads. Clients send [`Body::List`], [`Body::Inspect`] and [`Body::Open`] with such headers.
    pub fn is_sessionless(&self) -> bool {
        let Self { session, renew, consents, returns, cached_reads, .. } = self;
        *session == SessionId(0)
            && renew.is_empty()
            && consents.is_empty()
            && returns.is_empty()
            && cached_reads.is_empty()
    }
}

impl Request {
    /// Whether the client adds a report of its reads from memory to this request, this long after
    /// its last report. The last request of a session always takes one.
    pub fn takes_cached_reads(&self, since_last: Duration) -> bool {
        let is_registered = self.header.session != SessionId(0) && self.header.epoch != Epoch(0);
        match self.body {
            Body::Open { .. } | Body::Register => false,
            Body::Close => is_registered,
            _ => is_registered && since_last >= CACHED_READS_INTERVAL,
        }
    }

    /// Checks the lengths of all lists in the request.
    ///
    /// # Errors
    ///
    /// [`LimitError::Request`], [`LimitError::Leases`] or [`LimitError::Locks`] with the numbers of
    /// a list that is too long.
    pub fn check_lengths(&self) -> Result<(), LimitError> {
        let RequestHeader { renew, consents, returns, cached_reads, .. } = &self.header;
        let list = match &self.body {
            Body::Write { dropped, .. } => {
                ("sets of dropped objects", Bound::DroppedSets, dropped.len(), DROPPED_SETS_MAX)
            }
            Body::HolderReport(part) => (
                "objects in a part of a holder report",
                Bound::ReportObjects,
                part.objects.len(),
                REPORT_PART_OBJECTS_MAX,
            ),
            Body::KeepAlive { leases } if leases.len() > KEEP_ALIVES_MAX => {
                reached(Bound::KeepAlives);
                return Err(LimitError::Leases { got: leases.len(), expected: KEEP_ALIVES_MAX });
            }
            Body::AwaitLockStatus { locks } if locks.len() > AWAIT_LOCK_STATUS_MAX => {
                reached(Bound::AwaitLockStatus);
                return Err(LimitError::Locks { got: locks.len(), expected: AWAIT_LOCK_STATUS_MAX });
            }
            Body::Open { .. }
            | Body::Register
            | Body::Close
            | Body::Heartbeat(_)
            | Body::Acquire { .. }
            | Body::Read { .. }
            | Body::AwaitRead { .. }
            | Body::ReadNextValue { .. }
            | Body::KeepAlive { .. }
            | Body::Inspect(_)
            | Body::AwaitLockStatus { .. }
            | Body::Watch { .. }
            | Body::List { .. } => ("lists", Bound::Returns, 0, 0),
        };
        let lists = [
            ("renewals", Bound::Renewals, renew.len(), RENEWALS_MAX),
            ("consents", Bound::Consents, consents.len(), CONSENTS_MAX),
            ("returns", Bound::Returns, returns.len(), RETURNS_MAX),
            ("volumes with reads from memory", Bound::CachedReads, cached_reads.len(), CACHED_READS_MAX),
            list,
        ];
        match lists.into_iter().find(|(_, _, got, expected)| got > expected) {
            Some((what, bound, got, expected)) => {
                reached(bound);
                Err(LimitError::Request { what: what.to_owned(), got, expected })
            }
            None => Ok(()),
        }
    }
}
