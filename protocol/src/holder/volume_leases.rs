//! The known volumes, their leases, and when the leases must be renewed.
//!
//! A lease's deadline never moves back (T6). A lease stops counting in one of these ways:
//!
//! - its time passes on this clock. If it still exists on the servers, a promise may renew it;
//! - the server says that it has lapsed, or the volume no longer exists, or the session has ended;
//! - the client sends a request for a new lease, or a server refuses such a request that was sent
//!   more than once. The old lease ends at once, unless nodes or locks may depend on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{HolderConfig, RenewalMode, pace::Pace, validity::VolumeValidity};
use crate::{
    id::{CoveringNumber, Incarnation, LockId, Revision, Stamp, VolumeGeneration},
    lease_policy::LeaseOffer,
    message::{LastValid, Promise, RENEWALS_MAX, Renew},
    object::ObjectSet,
    path::NodePath,
    reached::{Bound, reached},
    time::Instant,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnVolumeLease {
    pub(super) incarnation: Incarnation,
    /// The oldest incarnation whose copies are valid under this one.
    pub(super) since: Incarnation,
    pub(super) generation: VolumeGeneration,
    /// The applied revision of this incarnation's latest promise or grant. The copies are valid at
    /// this revision.
    pub(super) revision: Revision,
    /// When it ends on this client's clock.
    pub(super) until: Instant,
    /// The stamp of the answer that began the lease. The holder refuses older grants (S4).
    pub(super) stamp: Stamp,
    pub(super) pace: Pace,
    /// The holder has handled its end on this client's clock.
    pub(super) has_expired: bool,
    /// The leader tracks the session as covering, and the holder has not reported its copies.
    pub(super) unreported: Option<Unreported>,
}

/// A holder report that is owed. The holder waits with it, because a client that reads a few
/// objects and leaves again would report for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Unreported {
    pub(super) covering: CoveringNumber,
    /// A renewal sent at or after this time starts the report, when a promise answers it.
    pub(super) due: Instant,
}

impl Unreported {
    /// For how many terms the holder waits. A client that renews its lease after that time will
    /// probably go on using its copies.
    pub(super) const TERMS: u32 = 2;
}

/// The data of the ended lease that the request for a new lease needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct EndedLease {
    pub(super) last: LastValid,
    pub(super) since: Incarnation,
    pub(super) unreported: Option<Unreported>,
}

/// The holder's record of an attached node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct AttachedNode {
    /// The incarnation of the lease.
    pub(super) incarnation: Incarnation,
    /// The revision of the put that attached the node.
    pub(super) revision: Revision,
}

/// A volume, with or without a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct KnownVolume {
    pub(super) lease: Option<OwnVolumeLease>,
    pub(super) ended: Option<EndedLease>,
    /// The stamp of the answer that began its last lease. An older answer that arrives later names
    /// a lease that the server has replaced.
    pub(super) begun: Stamp,
    /// Which reads get object leases, by the last answer to a read. Other reads use no volume
    /// lease.
    pub(super) offer: LeaseOffer,
    /// Whether the volume was used since its last renewal was sent.
    pub(super) is_used: bool,
    /// This session's nodes that are attached to the lease. While there are any, the holder renews
    /// the lease even if the application reads nothing.
    pub(super) attached: BTreeMap<NodePath, AttachedNode>,
    /// This session's locks under the lease. While there are any, the holder renews the lease too.
    pub(super) locks: BTreeSet<LockId>,
    /// The validity that was last reported to the cache.
    pub(super) validity_notified: VolumeValidity,
}

impl KnownVolume {
    /// Ends the lease at this client. The caller handles attached nodes and locks, because the
    /// servers may grant the same lease again.
    pub(super) fn end_lease(&mut self) {
        if let Some(lease) = self.lease.take() {
            let OwnVolumeLease { incarnation, generation, revision, since, unreported, .. } = lease;
            self.ended = Some(EndedLease { last: LastValid { incarnation, generation, revision }, since, unreported });
        }
    }

    /// The lease, if its time has not passed.
    pub(super) fn live(&self, now: Instant) -> Option<&OwnVolumeLease> {
        self.lease.as_ref().filter(|lease| now < lease.until)
    }

    /// Whether nodes or locks depend on the lease.
    pub(super) fn has_dependents(&self) -> bool {
        !self.attached.is_empty() || !self.locks.is_empty()
    }

    /// Whether the holder may send a request only to renew this lease.
    fn renews_ahead(&self, mode: RenewalMode) -> bool {
        mode == RenewalMode::Ahead || self.has_dependents()
    }

    /// Whether a request of the application may renew the lease.
    fn renews(&self, mode: RenewalMode) -> bool {
        mode != RenewalMode::Never || self.has_dependents()
    }

    /// Whether the lease is needed: it is in use, or its renewal is wanted.
    fn is_needed(&self, mode: RenewalMode) -> bool {
        self.is_used || self.is_renewal_wanted(mode)
    }

    /// Whether to ask for a renewal even if the lease has ended on this clock, because it may still
    /// exist on the server.
    fn is_renewal_wanted(&self, mode: RenewalMode) -> bool {
        let is_renewal_pending = self.lease.as_ref().is_some_and(|lease| lease.pace.is_renewal_pending);
        self.renews_ahead(mode) && (self.has_dependents() || is_renewal_pending)
    }
}

/// Selects the renewals in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RenewalSelection<'a> {
    /// The request is about this path. It renews the lease on the path's volume, and those of
    /// `Due`.
    OnPath(&'a NodePath),
    /// The request is about no path. It renews the leases in use that were last renewed at least a
    /// third of a term ago.
    Due,
    /// The request renews nothing, because its answer may come after the leases have ended.
    NoRenewal,
    /// A heartbeat. It renews the needed leases that are renewed ahead (`renews_ahead`), also those
    /// that have ended on this clock but perhaps not on the server.
    Ahead,
    /// The request is the first to a leader, or must learn whether a lease still exists. It renews
    /// all leases in use.
    All,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct KnownVolumes {
    map: BTreeMap<NodePath, KnownVolume>,
    /// The highest stamp that began a lease on a forgotten volume.
    forgotten_stamp: Stamp,
    /// Bound of `map`.
    volumes_max: usize,
    renewal: RenewalMode,
}

impl KnownVolumes {
    /// Knows only the root, which is always a volume.
    pub(super) fn new(config: &HolderConfig) -> Self {
        let map = BTreeMap::from([(NodePath::root(), KnownVolume::default())]);
        let (volumes_max, renewal) = (config.bounds.volumes_max, config.renewal);
        Self { map, forgotten_stamp: Stamp::default(), volumes_max, renewal }
    }

    /// The nearest known volume at or above a path.
    pub(super) fn nearest(&self, path: &NodePath) -> NodePath {
        let found = at_and_above(path.as_str()).find_map(|top| self.map.get_key_value(top));
        found.map_or_else(NodePath::root, |(top, _)| top.clone())
    }

    pub(super) fn get(&self, top: &NodePath) -> Option<&KnownVolume> {
        self.map.get(top)
    }

    pub(super) fn get_mut(&mut self, top: &NodePath) -> Option<&mut KnownVolume> {
        self.map.get_mut(top)
    }

    /// Adds the volume with this top, if it is unknown, and returns it.
    pub(super) fn learn(&mut self, top: &NodePath) -> &mut KnownVolume {
        let begun = self.forgotten_stamp;
        self.map.entry(top.clone()).or_insert_with(|| KnownVolume { begun, ..KnownVolume::default() })
    }

    /// The stamp of the answer that began the volume's last lease. For an unknown volume, an upper
    /// bound of that stamp.
    pub(super) fn begun(&self, top: &NodePath) -> Stamp {
        self.get(top).map_or(self.forgotten_stamp, |volume| volume.begun)
    }

    /// Selects a volume to forget if too many are known. Its lease must have ended, and no write in
    /// flight may add a node or a lock to it.
    pub(super) fn to_be_forgotten(&self, may_have_dependents: impl Fn(&NodePath) -> bool) -> Option<NodePath> {
        if self.map.len() < self.volumes_max {
            return None;
        }
        reached(Bound::Volumes);
        let is_idle = |volume: &KnownVolume| {
            !volume.has_dependents() && volume.lease.as_ref().is_none_or(|lease| lease.has_expired)
        };
        let is_idle = |top: &NodePath, volume| !top.is_root() && is_idle(volume) && !may_have_dependents(top);
        self.map.iter().find(|(top, volume)| is_idle(top, volume)).map(|(top, _)| top.clone())
    }

    /// Forgets a volume. Never the root.
    pub(super) fn forget(&mut self, top: &NodePath) {
        if !top.is_root()
            && let Some(volume) = self.map.remove(top)
        {
            self.forgotten_stamp = self.forgotten_stamp.max(volume.begun);
        }
    }

    /// The known volumes at and above a path.
    pub(super) fn at_and_above(&self, path: &NodePath) -> Vec<NodePath> {
        let tops = at_and_above(path.as_str()).filter_map(|top| self.map.get_key_value(top));
        tops.map(|(top, _)| top.clone()).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodePath, &KnownVolume)> {
        self.map.iter()
    }

    /// Notes a use of the volume that the path belongs to.
    pub(super) fn touch(&mut self, path: &NodePath) {
        let top = self.nearest(path);
        self.learn(&top).is_used = true;
    }

    /// Which reads of the path get object leases, as far as known.
    pub(super) fn offer(&self, path: &NodePath) -> LeaseOffer {
        self.get(&self.nearest(path)).map_or_else(LeaseOffer::default, |volume| volume.offer)
    }

    /// The renewals for a request. If the answer may be late (`is_quick` is false), later requests
    /// repeat the renewals. `may_have_dependents` says whether a write in flight may attach a node
    /// or a lock to the lease.
    pub(super) fn renewals(
        &mut self,
        reason: RenewalSelection<'_>,
        is_quick: bool,
        may_have_dependents: impl Fn(&NodePath) -> bool,
        now: Instant,
    ) -> Vec<Renew> {
        let touched = match reason {
            RenewalSelection::OnPath(path) => Some(self.nearest(path)),
            RenewalSelection::Due | RenewalSelection::Ahead | RenewalSelection::All => None,
            RenewalSelection::NoRenewal => return Vec::new(),
        };
        let mut chosen: Vec<(Instant, NodePath)> = Vec::new();
        for (top, volume) in &self.map {
            let Some(lease) = &volume.lease else { continue };
            let is_touched = touched.as_ref() == Some(top);
            let is_due = match reason {
                RenewalSelection::Ahead | RenewalSelection::All => true,
                _ => now >= lease.pace.piggyback_from() && now < lease.until,
            };
            if !is_touched && !is_due {
                continue;
            }
            let may_renew = match reason {
                RenewalSelection::Ahead => volume.renews_ahead(self.renewal),
                _ => volume.renews(self.renewal),
            };
            let is_needed = is_touched || volume.is_needed(self.renewal);
            let fits = (may_renew && is_needed) || may_have_dependents(top);
            chosen.extend(fits.then(|| (lease.pace.due, top.clone())));
        }
        // The leases that are due first are chosen. If `is_quick`, they are due later from now on,
        // so the next request renews the others.
        if chosen.len() > RENEWALS_MAX {
            chosen.sort_unstable();
            chosen.truncate(RENEWALS_MAX);
        }
        let mut renewals = Vec::with_capacity(chosen.len());
        for (_, top) in chosen {
            let Some(volume) = self.map.get_mut(&top) else { continue };
            let Some(lease) = &mut volume.lease else { continue };
            renewals.push(Renew { volume: top, incarnation: lease.incarnation });
            if is_quick {
                lease.pace.renewal_sent(lease.until, now);
                volume.is_used = false;
            }
        }
        renewals
    }

    /// Whether a request to renew must be sent now. Schedules a later check of idle volumes. A lease
    /// is not idle if a write in flight may attach a node or a lock to it (`may_have_dependents`).
    pub(super) fn are_due(&mut self, may_have_dependents: impl Fn(&NodePath) -> bool, now: Instant) -> bool {
        let mut due = false;
        for (top, volume) in &mut self.map {
            let (is_needed, is_renewal_wanted) =
                (volume.is_needed(self.renewal), volume.is_renewal_wanted(self.renewal));
            if !volume.renews_ahead(self.renewal) {
                continue;
            }
            let Some(lease) = &mut volume.lease else { continue };
            // A lease that has ended here may still exist on the server: ask, if that is wanted.
            let is_ended_for_good = now >= lease.until && !is_renewal_wanted;
            if now < lease.pace.due || is_ended_for_good {
                continue;
            }
            if is_needed || may_have_dependents(top) {
                due = true;
            } else {
                lease.pace.idle(now);
            }
        }
        due
    }

    /// Records leases whose time has passed since the last call. Returns the volumes of those that
    /// were needed: they had nodes or locks, their renewals were unanswered, or they were in use
    /// without a leader.
    pub(super) fn note_expired(&mut self, has_leader: bool, now: Instant) -> Vec<NodePath> {
        let mut in_jeopardy = Vec::new();
        for (top, volume) in &mut self.map {
            let is_renewal_wanted = volume.is_renewal_wanted(self.renewal);
            let Some(lease) = &mut volume.lease else { continue };
            if now >= lease.until && !lease.has_expired {
                lease.has_expired = true;
                if is_renewal_wanted || (volume.is_used && !has_leader) {
                    in_jeopardy.push(top.clone());
                }
            }
        }
        in_jeopardy
    }

    /// When the next action on a lease is due.
    pub(super) fn next_deadline(&self, has_leader: bool) -> Option<Instant> {
        let deadline = |volume: &KnownVolume| {
            let lease = volume.lease.as_ref()?;
            match (has_leader, lease.has_expired) {
                (true, false) if volume.renews_ahead(self.renewal) => Some(lease.pace.due.min(lease.until)),
                (true, false) => Some(lease.until),
                (true, true) => volume.is_renewal_wanted(self.renewal).then_some(lease.pace.due),
                (false, false) => Some(lease.until),
                (false, true) => None,
            }
        };
        self.map.values().filter_map(deadline).min()
    }

    /// Whether a lease in use has ended on this clock and still waits for its renewal.
    pub(super) fn are_overdue(&self) -> bool {
        let has_expired = |volume: &&KnownVolume| volume.lease.as_ref().is_some_and(|lease| lease.has_expired);
        self.map.values().filter(has_expired).any(|volume| volume.is_renewal_wanted(self.renewal))
    }

    /// Whether some lease will hold at that time without another promise.
    pub(super) fn are_live_at(&self, time: Instant) -> bool {
        self.map.values().any(|volume| volume.live(time).is_some())
    }

    /// The shortest term of the present leases.
    pub(super) fn shortest_term(&self) -> Option<Duration> {
        self.map.values().filter_map(|volume| volume.lease.as_ref()).map(|lease| lease.pace.term).min()
    }

    /// Forgets all reports that are owed: with the next registration, the leader says which it
    /// needs.
    pub(super) fn forget_unreported(&mut self) {
        for volume in self.map.values_mut() {
            volume.lease.iter_mut().for_each(|lease| lease.unreported = None);
            volume.ended.iter_mut().for_each(|ended| ended.unreported = None);
        }
    }

    /// The volumes for which a report is owed, and to which objects of these sets may belong.
    pub(super) fn unreported_in(&self, sets: &[ObjectSet]) -> Vec<NodePath> {
        let is_unreported =
            |volume: &KnownVolume| volume.lease.as_ref().is_some_and(|lease| lease.unreported.is_some());
        let mut unreported = self.map.iter().filter(|(_, volume)| is_unreported(volume)).map(|(top, _)| top).peekable();
        if unreported.peek().is_none() {
            return Vec::new();
        }
        let nearest: BTreeSet<NodePath> = sets.iter().map(|set| self.nearest(set.path())).collect();
        let contains =
            |top: &NodePath| sets.iter().any(|set| matches!(set, ObjectSet::Subtree(within) if within.contains(top)));
        unreported.filter(|top| nearest.contains(*top) || contains(top)).cloned().collect()
    }

    /// The lease that a promise renews. `None` if the promise names another incarnation, or is from
    /// before a change of the volume's borders or settings.
    pub(super) fn promised(&mut self, promise: &Promise) -> Option<&mut OwnVolumeLease> {
        let lease = self.map.get_mut(&promise.volume)?.lease.as_mut()?;
        (lease.incarnation == promise.incarnation && promise.generation >= lease.generation).then_some(lease)
    }
}

/// A path and the paths above it, nearest first. They are text, so that lookups allocate nothing.
pub(super) fn at_and_above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| match path.rfind('/') {
        Some(0) if path.len() == 1 => None,
        Some(0) => Some("/"),
        Some(at) => Some(&path[..at]),
        None => None,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::HolderBounds, *};

    #[test]
    fn the_nearest_volume_is_the_longest_known_top() {
        let path = |text: &str| NodePath::parse(text).expect("valid");
        let mut volumes = KnownVolumes::new(&HolderConfig::new("test"));
        volumes.learn(&path("/a"));
        volumes.learn(&path("/a/b/c"));
        assert_eq!(volumes.nearest(&path("/a/b/c/d")), path("/a/b/c"));
        assert_eq!(volumes.nearest(&path("/a/b")), path("/a"));
        assert_eq!(volumes.nearest(&path("/ab")), NodePath::root());
        assert_eq!(volumes.at_and_above(&path("/a/b/c")), [path("/a/b/c"), path("/a"), NodePath::root()]);
        assert_eq!(volumes.at_and_above(&NodePath::root()), [NodePath::root()]);
    }

    #[test]
    fn volume_without_lease_is_forgotten_first_and_never_root() {
        let path = |text: &str| NodePath::parse(text).expect("valid");
        let lease = |has_expired| OwnVolumeLease {
            incarnation: Incarnation(1),
            since: Incarnation(1),
            generation: VolumeGeneration(1),
            revision: Revision(0),
            until: Instant::ZERO,
            stamp: Stamp::default(),
            pace: Pace::new(Instant::ZERO, Duration::ZERO, Duration::ZERO, 0, Instant::ZERO),
            has_expired,
            unreported: None,
        };
        let mut volumes = KnownVolumes::new(&HolderConfig::new("test"));
        volumes.learn(&path("/0")).lease = Some(lease(false));
        volumes.learn(&path("/1")).lease = Some(lease(true));
        volumes.learn(&path("/2")).lease = Some(lease(true));
        for number in 4..HolderBounds::DEFAULT.volumes_max {
            assert_eq!(volumes.to_be_forgotten(|_| false), None);
            volumes.learn(&path(&format!("/a{number}")));
        }
        assert_eq!(volumes.to_be_forgotten(|_| false), Some(path("/1")));
        assert_eq!(
            volumes.to_be_forgotten(|top| *top == path("/1")),
            Some(path("/2")),
            "a write may attach a node to /1"
        );
        volumes.learn(&path("/zz"));
        assert_eq!(volumes.to_be_forgotten(|_| false), Some(path("/1")));
    }

    #[test]
    fn renewals_beyond_one_request_join_the_next() {
        let (term, now) = (Duration::from_secs(10), Instant::ZERO.after(Duration::from_secs(100)));
        let mut volumes = KnownVolumes::new(&HolderConfig::new("test"));
        let count = 2 * RENEWALS_MAX + 1;
        for number in 0..count {
            let volume = volumes.learn(&NodePath::parse(&format!("/{number}")).expect("a path"));
            let pace = Pace::new(now, term, term, 500, now);
            volume.is_used = true;
            volume.lease = Some(OwnVolumeLease {
                incarnation: Incarnation(1),
                since: Incarnation(1),
                generation: VolumeGeneration(1),
                revision: Revision(0),
                until: now.after(term),
                stamp: Stamp::default(),
                pace,
                has_expired: false,
                unreported: None,
            });
        }
        // All requests are sent before the first answer.
        let later = now.after(Duration::from_secs(6));
        let mut renewed = BTreeSet::new();
        for _ in 0..3 {
            assert!(volumes.are_due(|_| false, later));
            let renewals = volumes.renewals(RenewalSelection::Due, true, |_| false, later);
            assert_eq!(renewals.len(), RENEWALS_MAX);
            renewed.extend(renewals.into_iter().map(|renew| renew.volume));
        }
        assert_eq!(renewed.len(), count);
        assert!(!volumes.are_due(|_| false, later));
    }
}
