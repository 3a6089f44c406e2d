//! A pending write: what it changes, what it waits for, and who gets its answer (S2, S3, S7b).
//!
//! Owns the parts of one write. Guarantees that `bytes` always counts the current footprint and
//! waits. Does not know other writes, except by their numbers.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::{IntendedLeases, Write},
    id::{Incarnation, LeaseId, RequestId, Revision, Sequence, SessionId, Stamp},
    object::ObjectSet,
    path::NodePath,
    time::{ClusterTime, Instant},
};

use super::super::{Requester, counters::Unhashed};

/// Numbers pending writes in the order of arrival.
pub(in crate::lessor) type PendingWriteId = u64;

/// About how many bytes of memory a write takes in addition to its parts.
const PENDING_BYTES: usize = 1 << 10;
/// About how many bytes a part of a transaction takes in addition to its encoding.
const PART_BYTES: usize = 128;
/// About how many bytes a set of objects and its queue entries take in addition to its path.
const SET_BYTES: usize = 192;

/// About how many bytes a wait for one session takes, with its entries in the indexes. Measured: a
/// leader with 200 covering sessions and 50 to 400 waiting puts of one node allocated 640 to 680
/// bytes for each pair of a put and a session, on a 64-bit machine.
const WAIT_BYTES: usize = 640;
/// About how many bytes an unanswered recall of one set takes, with its entries in the indexes. If
/// each put made a recall of its own, the same leader allocated 1,080 to 1,100 bytes for each pair.
/// This is the difference.
const RECALL_BYTES: usize = 450;
/// About how many bytes each further set of a recall takes. A put that makes a node and two missing
/// parents recalls seven sets. With such puts, the leader allocated 1,680 to 1,710 bytes for each
/// pair. A further lease of a wait counts as much.
const PLACE_BYTES: usize = 104;

/// A write from its arrival to its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::lessor) struct PendingWrite {
    pub(in crate::lessor) kind: WriteKind,
    /// The objects for which the lessor gathers consents.
    pub(in crate::lessor) footprint: Vec<ObjectSet>,
    /// The lessor also gathers consents for the nodes that are attached to `purged_leases` at this
    /// revision.
    pub(in crate::lessor) gathered_at: Revision,
    /// The sessions that the write waits for: for a consent, or for the ends of leases.
    pub(in crate::lessor) waits: BTreeMap<SessionId, ConsentWait>,
    pub(in crate::lessor) is_proposed: bool,
    pub(in crate::lessor) since: Instant,
    /// About how many bytes of memory it takes, with its waits. Computed when it enters, and again
    /// when `footprint` or `waits` change.
    pub(super) bytes: usize,
    /// The nearest earlier blocking writes (`blocks_later`) that it waits for. Each shares an
    /// object with this write. If this write removes nodes of leases, some may instead attach nodes
    /// to such a lease, or remove its nodes too.
    pub(super) ahead: BTreeSet<PendingWriteId>,
    /// For each of its `attaching_leases`: the last earlier revocation or purge that blocks it
    /// (`blocks_later`).
    pub(super) revocations_ahead: BTreeSet<PendingWriteId>,
    /// The volume in whose counters it counts. None for a purge, and for a write without a path.
    pub(super) counted_in: Unhashed<Option<NodePath>>,
    /// It was applied once without effect, because its consents did not cover all objects that it
    /// would have changed.
    pub(super) was_uncovered: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::lessor) enum WriteKind {
    Client(Box<ClientWrite>),
    /// The purge of the nodes that were attached to these ended leases.
    Purge(BTreeSet<Incarnation>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::lessor) struct ClientWrite {
    pub(in crate::lessor) session: SessionId,
    pub(in crate::lessor) sequence: Sequence,
    pub(in crate::lessor) unanswered_from: Sequence,
    pub(in crate::lessor) write: Write,
    /// The leases and volumes that its names stood for on arrival (S7b).
    pub(in crate::lessor) intended: IntendedLeases,
    /// The key lease that a revocation ends.
    pub(in crate::lessor) revoked: Option<LeaseId>,
    /// The requests that wait for the answer: more than one if it was sent again.
    pub(in crate::lessor) requesters: Vec<Requester>,
    /// The last of these requests that arrived before the write was proposed. With the answer to a
    /// put, only this request may get an object lease. A later request may have been sent after a
    /// new epoch began. If this leader granted it a lease, the new leader could already count that
    /// lease as ended (S6, S9).
    pub(in crate::lessor) grants_to: RequestId,
    /// The copies that the writer dropped when it last sent the write, and the highest stamp that
    /// it had seen (S2w).
    pub(in crate::lessor) dropped: Vec<ObjectSet>,
    pub(in crate::lessor) seen: Stamp,
    /// The load that it adds (S10b), as computed on arrival.
    pub(in crate::lessor) load: u64,
}

/// A write's wait for one session: for a consent, or for an end of leases instead.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::lessor) struct ConsentWait {
    /// The stamp of the recall that the session must answer. None if it was not asked.
    pub(in crate::lessor) stamp: Option<Stamp>,
    /// The volume leases under which the session may hold copies. The wait ends when none of them
    /// is left (T5).
    pub(in crate::lessor) leases: BTreeMap<NodePath, Incarnation>,
    /// When the last of the object leases ends, if that is known (T3).
    pub(in crate::lessor) expires_at: Option<ClusterTime>,
    /// How many sets the recall names, if the lessor made it for this wait. 0 if an earlier recall
    /// serves this wait too.
    pub(in crate::lessor) sets_recalled: usize,
}

impl ConsentWait {
    /// About how many bytes of memory it takes, with the recall that was made for it.
    pub(super) fn bytes(&self) -> usize {
        let recall = match self.sets_recalled {
            0 => 0,
            sets => RECALL_BYTES + (sets - 1) * PLACE_BYTES,
        };
        WAIT_BYTES + self.leases.len().saturating_sub(1) * PLACE_BYTES + recall
    }
}

impl PendingWrite {
    pub(in crate::lessor) fn new(kind: WriteKind, footprint: Vec<ObjectSet>, since: Instant) -> Self {
        Self {
            kind,
            footprint,
            gathered_at: Revision(0),
            waits: BTreeMap::new(),
            is_proposed: false,
            since,
            bytes: 0,
            ahead: BTreeSet::new(),
            revocations_ahead: BTreeSet::new(),
            counted_in: Unhashed(None),
            was_uncovered: false,
        }
    }

    pub(in crate::lessor) fn is_ready(&self) -> bool {
        !self.is_proposed && self.ahead.is_empty() && self.revocations_ahead.is_empty() && self.waits.is_empty()
    }

    /// The leases whose nodes this write removes.
    pub(in crate::lessor) fn purged_leases(&self) -> &BTreeSet<Incarnation> {
        static NONE: BTreeSet<Incarnation> = BTreeSet::new();
        match &self.kind {
            WriteKind::Client(request) if request.write.is_revocation() => &request.intended.leases,
            WriteKind::Client(_) => &NONE,
            WriteKind::Purge(leases) => leases,
        }
    }

    /// The leases to which this write attaches nodes, or under which it requests a lock.
    pub(super) fn attaching_leases(&self) -> &BTreeSet<Incarnation> {
        static NONE: BTreeSet<Incarnation> = BTreeSet::new();
        match &self.kind {
            WriteKind::Client(request) if !request.write.is_revocation() => &request.intended.leases,
            WriteKind::Client(_) | WriteKind::Purge(_) => &NONE,
        }
    }

    pub(in crate::lessor) fn client_write(&self) -> Option<&ClientWrite> {
        match &self.kind {
            WriteKind::Client(request) => Some(request),
            WriteKind::Purge(_) => None,
        }
    }

    /// Whether later writes that share an object with it, or attach nodes to its `purged_leases`,
    /// must wait for it: until it is proposed. If it `was_uncovered`, until it ends. Otherwise a
    /// stream of later writes could change what it needs, each time that it gathers, for ever
    /// (S7b).
    pub(super) fn blocks_later(&self) -> bool {
        !self.is_proposed || self.was_uncovered
    }

    /// Whether it passes earlier writes of the same data. A flush does: they wait for it (S10).
    pub(super) fn passes(&self) -> bool {
        self.client_write().is_some_and(|request| matches!(request.write, Write::Flush { .. }))
    }

    /// Computes about how many bytes of memory it takes. No wait has begun yet.
    pub(super) fn count_bytes(&mut self) {
        self.bytes = self.own_bytes() + footprint_bytes(&self.footprint);
    }

    /// The bytes that its parts account for.
    pub(super) fn expected_bytes(&self) -> usize {
        let waits: usize = self.waits.values().map(ConsentWait::bytes).sum();
        self.own_bytes() + footprint_bytes(&self.footprint) + waits
    }

    /// Replaces the footprint, after a proposal whose consents did not cover all objects. The write
    /// gathers consents again, and is proposed again.
    pub(super) fn set_footprint(&mut self, footprint: Vec<ObjectSet>) {
        (self.is_proposed, self.was_uncovered) = (false, true);
        self.bytes = self.bytes + footprint_bytes(&footprint) - footprint_bytes(&self.footprint);
        self.footprint = footprint;
    }

    /// Replaces the sets that the client has dropped, when it sends the write again.
    pub(super) fn replace_dropped(&mut self, dropped: Vec<ObjectSet>) {
        if let WriteKind::Client(request) = &mut self.kind {
            self.bytes = self.bytes + footprint_bytes(&dropped) - footprint_bytes(&request.dropped);
            request.dropped = dropped;
        }
    }

    /// About how many bytes of memory it takes without its footprint.
    fn own_bytes(&self) -> usize {
        let request_bytes = self.client_write().map_or(0, |request| {
            let parts = match &request.write {
                Write::Transaction(transaction) => transaction.compares.len() + transaction.operations().count(),
                _ => 0,
            };
            request.write.encoded_bytes() + parts * PART_BYTES + footprint_bytes(&request.dropped)
        });
        PENDING_BYTES + request_bytes
    }

    pub(in crate::lessor) fn path(&self) -> Option<&NodePath> {
        self.client_write().and_then(|request| request.write.path())
    }

    pub(super) fn request(&self) -> Option<(SessionId, Sequence)> {
        self.client_write().map(|request| (request.session, request.sequence))
    }
}

fn footprint_bytes(footprint: &[ObjectSet]) -> usize {
    footprint.iter().map(|set| SET_BYTES + set.path().as_str().len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;

    #[test]
    fn footprint_bytes_count_paths_and_queue_entries() {
        let path = |text| NodePath::parse(text).expect("a valid path");
        let footprint = [ObjectSet::One(Object::data(path("/a/x"))), ObjectSet::Subtree(path("/b"))];
        assert_eq!(footprint_bytes(&footprint), 2 * SET_BYTES + 4 + 2);
    }
}
