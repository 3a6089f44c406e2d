//! Finds the volumes that a step must act on, without a walk over all known volumes.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
    time::Duration,
};

use crate::{
    path::NodePath,
    time::Instant,
    work::{CountVisits, visit},
};

/// After every deadline.
const EVER: Instant = Instant::from_micros(u64::MAX);

/// Volumes with a key each, in the order of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
struct InOrder<K>(BTreeSet<(K, NodePath)>);

impl<K> Default for InOrder<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Copy + Ord> InOrder<K> {
    /// Moves a volume from one key to another. Without a key, it is not in the order.
    fn shift(&mut self, top: &NodePath, before: Option<K>, after: Option<K>) {
        if before == after {
            return;
        }
        if let Some(key) = before {
            self.0.remove(&(key, top.clone()));
        }
        if let Some(key) = after {
            self.0.insert((key, top.clone()));
        }
    }

    fn first(&self) -> Option<K> {
        visit(1);
        self.0.first().map(|(key, _)| *key)
    }

    /// The first volume, if its key is at most `most`.
    fn through(&self, most: K) -> Option<NodePath> {
        visit(1);
        self.0.first().filter(|(key, _)| *key <= most).map(|(_, top)| top.clone())
    }
}

/// When a request may renew a lease. First come the leases without a renewal in flight, and of
/// these the ones that may be renewed for longest.
type JoinOrder = (bool, Instant);

impl InOrder<JoinOrder> {
    /// The volumes whose leases a request may renew at this time.
    fn at(&self, now: Instant) -> impl Iterator<Item = &NodePath> {
        let up_to = move |is_pending: bool| {
            let from = ((is_pending, Instant::ZERO), NodePath::root());
            self.0.range(from..).take_while(move |((pending, at), _)| *pending == is_pending && *at <= now)
        };
        up_to(false).chain(up_to(true)).map(|(_, top)| top).counted()
    }
}

/// The places of one volume in the index. The default has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct VolumeKeys {
    /// The end of a lease, until the holder has handled it.
    pub(super) ending: Option<Instant>,
    /// A needed lease that any request may renew.
    pub(super) joining: Option<JoinOrder>,
    /// Like `joining`, for a lease that has ended on this clock.
    pub(super) late: Option<JoinOrder>,
    /// A needed lease that a heartbeat renews, whether it has ended on this clock or not.
    pub(super) ahead: Option<JoinOrder>,
    /// When a needed lease must be renewed by a request of its own.
    pub(super) due: Option<Instant>,
    /// When to check again whether an idle volume is in use.
    pub(super) idle: Option<Instant>,
    /// The term of a lease.
    pub(super) term: Option<Duration>,
    /// A needed lease that has ended on this clock and waits for its renewal.
    pub(super) overdue: Option<()>,
    /// A lease for which a holder report is owed.
    pub(super) unreported: Option<()>,
    /// Nodes or locks without a lease that holds on this clock.
    pub(super) late_dependents: Option<()>,
    /// Granted locks without a lease that holds on this clock.
    pub(super) ended_grants: Option<()>,
    /// When a value under a write lease must be flushed, because the renewal is late.
    pub(super) flush: Option<Instant>,
    /// Nothing in use.
    pub(super) forgettable: Option<()>,
}

/// All known volumes, ordered by when a step must act on them.
///
/// It owns no facts: the places of a volume follow from the volume (`KnownVolume::keys`), and
/// `VolumeMut` updates them with each change. So no search depends on the number of volumes, only
/// on the number of those found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct VolumeIndex {
    ending: InOrder<Instant>,
    joining: InOrder<JoinOrder>,
    late: InOrder<JoinOrder>,
    ahead: InOrder<JoinOrder>,
    due: InOrder<Instant>,
    idle: InOrder<Instant>,
    terms: InOrder<Duration>,
    overdue: InOrder<()>,
    unreported: InOrder<()>,
    late_dependents: InOrder<()>,
    ended_grants: InOrder<()>,
    forgettable: InOrder<()>,
    flushes: InOrder<Instant>,
}

/// Hashes nothing, because everything follows from the volumes.
impl Hash for VolumeIndex {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl VolumeIndex {
    pub(super) fn shift(&mut self, top: &NodePath, before: &VolumeKeys, after: &VolumeKeys) {
        self.ending.shift(top, before.ending, after.ending);
        self.joining.shift(top, before.joining, after.joining);
        self.late.shift(top, before.late, after.late);
        self.ahead.shift(top, before.ahead, after.ahead);
        self.due.shift(top, before.due, after.due);
        self.idle.shift(top, before.idle, after.idle);
        self.terms.shift(top, before.term, after.term);
        self.overdue.shift(top, before.overdue, after.overdue);
        self.unreported.shift(top, before.unreported, after.unreported);
        self.late_dependents.shift(top, before.late_dependents, after.late_dependents);
        self.ended_grants.shift(top, before.ended_grants, after.ended_grants);
        self.flushes.shift(top, before.flush, after.flush);
        self.forgettable.shift(top, before.forgettable, after.forgettable);
    }

    /// A volume whose lease has ended at this time, and whose end is not handled.
    pub(super) fn ended(&self, now: Instant) -> Option<NodePath> {
        self.ending.through(now)
    }

    /// When the first lease ends, or must be renewed if the client has a leader.
    pub(super) fn next_deadline(&self, has_leader: bool) -> Option<Instant> {
        let renewal = self.due.first().into_iter().chain(self.idle.first()).min().filter(|_| has_leader);
        self.ending.first().into_iter().chain(renewal).min()
    }

    /// The earliest end of the leases that have not ended on this clock.
    pub(super) fn first_end(&self) -> Option<Instant> {
        self.ending.first()
    }

    /// The latest end of the leases that have not ended on this clock.
    pub(super) fn last_end(&self) -> Option<Instant> {
        self.ending.0.last().map(|(until, _)| *until)
    }

    /// Whether a needed lease must be renewed now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.through(now).is_some()
    }

    /// An idle volume that must be checked now.
    pub(super) fn idle(&self, now: Instant) -> Option<NodePath> {
        self.idle.through(now)
    }

    /// The volumes whose leases any request renews at this time.
    pub(super) fn joining(&self, now: Instant) -> impl Iterator<Item = &NodePath> {
        self.joining.at(now)
    }

    /// The volumes whose leases a heartbeat renews: first those that must be renewed now.
    pub(super) fn ahead(&self, now: Instant) -> impl Iterator<Item = &NodePath> {
        let due = self.due.0.iter().take_while(move |(due, _)| *due <= now).map(|(_, top)| top).counted();
        due.chain(self.ahead.at(EVER))
    }

    /// The volumes whose leases are needed.
    pub(super) fn needed(&self) -> impl Iterator<Item = &NodePath> {
        self.late.at(EVER).chain(self.joining.at(EVER))
    }

    pub(super) fn shortest_term(&self) -> Option<Duration> {
        self.terms.first()
    }

    pub(super) fn are_overdue(&self) -> bool {
        self.overdue.first().is_some()
    }

    pub(super) fn have_late_dependents(&self) -> bool {
        self.late_dependents.first().is_some()
    }

    pub(super) fn is_unreported(&self, top: &NodePath) -> bool {
        self.unreported.0.contains(&((), top.clone()))
    }

    /// The volumes at and below a path for which a holder report is owed.
    pub(super) fn unreported_below(&self, path: &NodePath) -> impl Iterator<Item = &NodePath> {
        let below = self.unreported.0.range(((), path.bound_below())..).map(|(_, top)| top).counted();
        let below = below.take_while(|top| path.contains(top));
        self.unreported.0.get(&((), path.clone())).map(|(_, top)| top).into_iter().chain(below)
    }

    /// The volumes with granted locks whose lease does not hold.
    pub(super) fn ended_grants(&self) -> impl Iterator<Item = &NodePath> {
        self.ended_grants.0.iter().map(|(_, top)| top).counted()
    }

    /// When the first value must be flushed.
    pub(super) fn flush_deadline(&self) -> Option<Instant> {
        self.flushes.first()
    }

    /// The volumes with values that must be flushed now.
    pub(super) fn flushes_due(&self, now: Instant) -> impl Iterator<Item = &NodePath> {
        self.flushes.0.iter().counted().take_while(move |(late_from, _)| *late_from <= now).map(|(_, top)| top)
    }

    /// The volumes that the holder may forget, perhaps with the root.
    pub(super) fn forgettable(&self) -> impl Iterator<Item = &NodePath> {
        self.forgettable.0.iter().map(|(_, top)| top).counted()
    }

    pub(super) fn clear_unreported(&mut self) {
        self.unreported.0.clear();
    }
}
