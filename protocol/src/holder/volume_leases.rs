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

use super::{
    HolderConfig, RenewalMode,
    known_volume::{KnownVolume, VolumeMut},
    path_counts::PathCounts,
    volume_index::{VolumeIndex, VolumeKeys},
};
use crate::{
    id::{LockId, Stamp},
    lease_policy::LeaseOffer,
    message::{Promise, RENEWALS_MAX, Renew},
    object::ObjectSet,
    path::NodePath,
    reached::{Bound, reached},
    time::Instant,
    work::CountVisits,
};

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
    index: VolumeIndex,
    /// The nodes that sent writes may attach, and the nodes that they may lock.
    attaching: PathCounts,
    /// The highest stamp that began a lease on a forgotten volume.
    forgotten_stamp: Stamp,
    /// Bound of `map`.
    volumes_max: usize,
    renewal: RenewalMode,
}

impl KnownVolumes {
    /// Knows only the root, which is always a volume.
    pub(super) fn new(config: &HolderConfig) -> Self {
        let (volumes_max, renewal) = (config.bounds.volumes_max, config.renewal);
        let (map, index, attaching, forgotten_stamp) = Default::default();
        let mut volumes = Self { map, index, attaching, forgotten_stamp, volumes_max, renewal };
        volumes.learn(&NodePath::root());
        volumes
    }

    /// The nearest known volume at or above a path.
    pub(super) fn nearest(&self, path: &NodePath) -> NodePath {
        let found = at_and_above(path.as_str()).find_map(|top| self.map.get_key_value(top));
        found.map_or_else(NodePath::root, |(top, _)| top.clone())
    }

    pub(super) fn get(&self, top: &NodePath) -> Option<&KnownVolume> {
        self.map.get(top)
    }

    pub(super) fn get_mut<'a>(&'a mut self, top: &'a NodePath) -> Option<VolumeMut<'a>> {
        let volume = self.map.get_mut(top)?;
        let before = volume.keys(self.renewal);
        Some(VolumeMut::new(top, volume, &mut self.index, self.renewal, before))
    }

    /// Adds the volume with this top, if it is unknown, and returns it.
    pub(super) fn learn<'a>(&'a mut self, top: &'a NodePath) -> VolumeMut<'a> {
        let before = self.map.get(top).map_or(VolumeKeys::default(), |volume| volume.keys(self.renewal));
        let volume = self.map.entry(top.clone()).or_insert_with(|| {
            let may_gain_dependents = self.attaching.any_within(top);
            KnownVolume { begun: self.forgotten_stamp, may_gain_dependents, ..KnownVolume::default() }
        });
        VolumeMut::new(top, volume, &mut self.index, self.renewal, before)
    }

    /// The stamp of the answer that began the volume's last lease. For an unknown volume, an upper
    /// bound of that stamp.
    pub(super) fn begun(&self, top: &NodePath) -> Stamp {
        self.get(top).map_or(self.forgotten_stamp, |volume| volume.begun)
    }

    /// Selects a volume to forget if too many are known. Never the root. Its lease must have ended,
    /// and no new lease is requested. No write in flight may add a node or a lock to it.
    pub(super) fn to_be_forgotten(&self) -> Option<NodePath> {
        if self.map.len() < self.volumes_max {
            return None;
        }
        reached(Bound::Volumes);
        self.index.forgettable().find(|top| !top.is_root()).cloned()
    }

    /// Forgets a volume. Never the root.
    pub(super) fn forget(&mut self, top: &NodePath) {
        if !top.is_root()
            && let Some(volume) = self.map.remove(top)
        {
            self.index.shift(top, &volume.keys(self.renewal), &VolumeKeys::default());
            self.forgotten_stamp = self.forgotten_stamp.max(volume.begun);
        }
    }

    /// The known volumes at and above a path.
    pub(super) fn at_and_above(&self, path: &NodePath) -> Vec<NodePath> {
        let tops = at_and_above(path.as_str()).filter_map(|top| self.map.get_key_value(top));
        tops.map(|(top, _)| top.clone()).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodePath, &KnownVolume)> {
        self.map.iter().counted()
    }

    /// Checks that the index has the places of all volumes.
    ///
    /// `attaching` are the nodes that sent writes may attach or lock.
    pub(super) fn check(&self, attaching: PathCounts) -> Result<(), String> {
        if self.attaching != attaching {
            return Err(format!("writes may attach {:?}, expected {attaching:?}", self.attaching));
        }
        let is_wrong =
            |(top, volume): &(&NodePath, &KnownVolume)| volume.may_gain_dependents != attaching.any_within(top);
        if let Some((top, volume)) = self.map.iter().find(is_wrong) {
            return Err(format!("volume {top}: may_gain_dependents is {}", volume.may_gain_dependents));
        }
        let mut expected = VolumeIndex::default();
        self.map
            .iter()
            .for_each(|(top, volume)| expected.shift(top, &VolumeKeys::default(), &volume.keys(self.renewal)));
        if self.index != expected {
            return Err(format!("the index of volumes is {:?}, expected {expected:?}", self.index));
        }
        Ok(())
    }

    /// A write was sent that may attach this node or lock it.
    pub(super) fn begin_attaching(&mut self, path: &NodePath) {
        self.attaching.add(path);
        self.note_attaching(path);
    }

    /// Such a write has ended.
    pub(super) fn end_attaching(&mut self, path: &NodePath) {
        self.attaching.remove(path);
        self.note_attaching(path);
    }

    /// All such writes have ended.
    pub(super) fn end_all_attaching(&mut self) {
        let paths = self.attaching.take();
        paths.iter().for_each(|path| self.note_attaching(path));
    }

    fn note_attaching(&mut self, path: &NodePath) {
        for top in self.at_and_above(path) {
            let may_gain = self.attaching.any_within(&top);
            if let Some(mut volume) = self.get_mut(&top) {
                volume.may_gain_dependents = may_gain;
            }
        }
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
    /// repeat the renewals.
    pub(super) fn renewals(&mut self, reason: RenewalSelection<'_>, is_quick: bool, now: Instant) -> Vec<Renew> {
        let may_renew = |volume: &KnownVolume| volume.renews(self.renewal) || volume.may_gain_dependents;
        let touched = match reason {
            RenewalSelection::OnPath(path) => Some(self.nearest(path)),
            RenewalSelection::Due | RenewalSelection::Ahead | RenewalSelection::All => None,
            RenewalSelection::NoRenewal => return Vec::new(),
        };
        let touched = touched.filter(|top| self.get(top).is_some_and(may_renew));
        let mut chosen: BTreeSet<NodePath> = touched.into_iter().collect();
        // First come the leases without a renewal in flight, and of these the ones that joined
        // first. So the next request renews the others.
        let room = RENEWALS_MAX - chosen.len();
        match reason {
            // A lease that must be renewed is in both lists, so this looks at twice the room.
            RenewalSelection::Ahead => {
                for top in self.index.ahead(now).take(2 * room) {
                    if chosen.len() < RENEWALS_MAX {
                        chosen.insert(top.clone());
                    }
                }
            }
            RenewalSelection::All => chosen.extend(self.index.needed().take(room).cloned()),
            _ => chosen.extend(self.index.joining(now).take(room).cloned()),
        }
        let mut renewals = Vec::with_capacity(chosen.len());
        for top in chosen {
            let Some(mut volume) = self.get_mut(&top) else { continue };
            let Some(lease) = &mut volume.lease else { continue };
            renewals.push(Renew { volume: top.clone(), incarnation: lease.incarnation });
            if is_quick {
                lease.pace.renewal_sent(lease.until, now);
                volume.is_used = false;
            }
        }
        renewals
    }

    /// Whether a request to renew must be sent now. Schedules a later check of idle volumes. A
    /// lease is not idle if a write in flight may attach a node or a lock to it.
    pub(super) fn are_due(&mut self, now: Instant) -> bool {
        while let Some(top) = self.index.idle(now)
            && let Some(mut volume) = self.get_mut(&top)
            && let Some(lease) = &mut volume.lease
        {
            lease.pace.idle(now);
        }
        self.index.is_due(now)
    }

    /// Records leases whose time has passed since the last call. Returns the volumes of those that
    /// were needed: they had nodes or locks, their renewals were unanswered, or they were in use
    /// without a leader.
    pub(super) fn note_expired(&mut self, has_leader: bool, now: Instant) -> Vec<NodePath> {
        let (mode, mut in_jeopardy) = (self.renewal, Vec::new());
        while let Some(top) = self.index.ended(now) {
            let Some(mut volume) = self.get_mut(&top) else { break };
            let is_in_jeopardy = volume.is_renewal_wanted(mode) || (volume.is_used && !has_leader);
            if let Some(lease) = &mut volume.lease {
                lease.has_expired = true;
            }
            drop(volume);
            in_jeopardy.extend(is_in_jeopardy.then_some(top));
        }
        in_jeopardy
    }

    /// When the next action on a lease is due.
    pub(super) fn next_deadline(&self, has_leader: bool) -> Option<Instant> {
        self.index.next_deadline(has_leader)
    }

    /// Whether a lease in use has ended on this clock and still waits for its renewal.
    pub(super) fn are_overdue(&self) -> bool {
        self.index.are_overdue()
    }

    /// Whether some lease will hold at that time, which has not passed, without another promise.
    pub(super) fn are_live_at(&self, time: Instant) -> bool {
        self.index.last_end().is_some_and(|until| time < until)
    }

    /// The earliest end of the leases that hold now. `None` if there are none.
    pub(super) fn first_end(&self) -> Option<Instant> {
        self.index.first_end()
    }

    /// Whether a volume has nodes or locks and no lease that holds now.
    pub(super) fn have_late_dependents(&self) -> bool {
        self.index.have_late_dependents()
    }

    /// The granted locks whose lease does not hold now.
    pub(super) fn ended_grants(&self) -> BTreeSet<LockId> {
        let volumes = self.index.ended_grants().filter_map(|top| self.map.get(top));
        volumes.flat_map(|volume| &volume.granted_locks).copied().collect()
    }

    /// The locks whose values must be flushed now, because the renewal of their lease is late.
    pub(super) fn flushes_due(&self, now: Instant) -> BTreeSet<LockId> {
        let volumes = self.index.flushes_due(now).filter_map(|top| self.map.get(top));
        volumes.flat_map(|volume| &volume.unflushed).copied().collect()
    }

    /// When the next flush is due.
    pub(super) fn flush_deadline(&self) -> Option<Instant> {
        self.index.flush_deadline()
    }

    /// The shortest term of the present leases.
    pub(super) fn shortest_term(&self) -> Option<Duration> {
        self.index.shortest_term()
    }

    /// Forgets all reports that are owed: with the next registration, the leader says which it
    /// needs.
    pub(super) fn forget_unreported(&mut self) {
        for volume in self.map.values_mut() {
            volume.lease.iter_mut().for_each(|lease| lease.unreported = None);
            volume.ended.iter_mut().for_each(|ended| ended.unreported = None);
        }
        self.index.clear_unreported();
    }

    /// The volumes for which a report is owed, and to which objects of these sets may belong.
    pub(super) fn unreported_in(&self, sets: &[ObjectSet]) -> Vec<NodePath> {
        let mut unreported: BTreeSet<NodePath> = sets.iter().map(|set| self.nearest(set.path())).collect();
        unreported.retain(|top| self.index.is_unreported(top));
        for set in sets {
            if let ObjectSet::Subtree(within) = set {
                unreported.extend(self.index.unreported_below(within).cloned());
            }
        }
        unreported.into_iter().collect()
    }

    /// The volume whose lease a promise renews. `None` if the promise names another incarnation, or
    /// is from before a change of the volume's borders or settings.
    pub(super) fn promised<'a>(&'a mut self, promise: &'a Promise) -> Option<VolumeMut<'a>> {
        let volume = self.get_mut(&promise.volume)?;
        let is_renewed = volume
            .lease
            .as_ref()
            .is_some_and(|lease| lease.incarnation == promise.incarnation && promise.generation >= lease.generation);
        is_renewed.then_some(volume)
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
    use super::{
        super::{HolderBounds, known_volume::OwnVolumeLease, pace::Pace},
        *,
    };
    use crate::id::{Incarnation, Revision, VolumeGeneration};

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
            assert_eq!(volumes.to_be_forgotten(), None);
            volumes.learn(&path(&format!("/a{number}")));
        }
        assert_eq!(volumes.to_be_forgotten(), Some(path("/1")));
        volumes.begin_attaching(&path("/1/node"));
        assert_eq!(volumes.to_be_forgotten(), Some(path("/2")), "a write may attach a node to /1");
        volumes.learn(&path("/2")).is_requested = true;
        assert_eq!(volumes.to_be_forgotten(), Some(path("/a10")), "a lease on /2 is requested");
        volumes.end_attaching(&path("/1/node"));
        volumes.learn(&path("/zz"));
        assert_eq!(volumes.to_be_forgotten(), Some(path("/1")));
    }

    /// This many volumes in use, with leases of these terms that began now.
    fn leased(count: usize, term: impl Fn(usize) -> Duration, now: Instant) -> KnownVolumes {
        let mut volumes = KnownVolumes::new(&HolderConfig::new("test"));
        for number in 0..count {
            let top = NodePath::parse(&format!("/{number}")).expect("a path");
            let (term, mut volume) = (term(number), volumes.learn(&top));
            volume.is_used = true;
            volume.lease = Some(OwnVolumeLease {
                incarnation: Incarnation(1),
                since: Incarnation(1),
                generation: VolumeGeneration(1),
                revision: Revision(0),
                until: now.after(term),
                stamp: Stamp::default(),
                pace: Pace::new(now, term, term, 500, now),
                has_expired: false,
                unreported: None,
            });
        }
        volumes
    }

    #[test]
    fn renewals_beyond_one_request_join_the_next() {
        let (term, now) = (Duration::from_secs(10), Instant::ZERO.after(Duration::from_secs(100)));
        let count = 2 * RENEWALS_MAX + 1;
        let mut volumes = leased(count, |_| term, now);
        // All requests are sent before the first answer.
        let later = now.after(Duration::from_secs(6));
        let mut renewed = BTreeSet::new();
        for _ in 0..3 {
            assert!(volumes.are_due(later));
            let renewals = volumes.renewals(RenewalSelection::Due, true, later);
            assert_eq!(renewals.len(), RENEWALS_MAX);
            renewed.extend(renewals.into_iter().map(|renew| renew.volume));
        }
        assert_eq!(renewed.len(), count);
        assert!(!volumes.are_due(later));
    }

    /// Its renewal was in flight when the connection ended. The others are not due, and answered.
    #[test]
    fn heartbeat_renews_due_lease_before_leases_that_are_not_due() {
        let (term, now) = (Duration::from_secs(10), Instant::ZERO.after(Duration::from_secs(100)));
        let mut volumes = leased(2 * RENEWALS_MAX, |_| term, now);
        let due = NodePath::parse("/7").expect("a path");
        let mut volume = volumes.get_mut(&due).expect("it is known");
        let lease = volume.lease.as_mut().expect("it is leased");
        lease.pace.renewal_sent(lease.until, now);
        let later = lease.pace.due;
        lease.until = now.after(2 * term);
        drop(volume);
        for number in (0..2 * RENEWALS_MAX).filter(|number| *number != 7) {
            let top = NodePath::parse(&format!("/{number}")).expect("a path");
            let mut volume = volumes.get_mut(&top).expect("it is known");
            let lease = volume.lease.as_mut().expect("it is leased");
            (lease.pace.due, lease.until) = (later.after(Duration::from_secs(1)), later.after(term));
        }
        assert!(volumes.are_due(later));
        let renewals = volumes.renewals(RenewalSelection::Ahead, true, later);
        assert!(renewals.len() == RENEWALS_MAX && renewals.iter().any(|renew| renew.volume == due));
        assert!(!volumes.are_due(later), "nothing else is due");
    }

    #[test]
    fn renewals_of_mixed_terms_take_turns() {
        let now = Instant::ZERO.after(Duration::from_secs(100));
        let count = 2 * RENEWALS_MAX;
        // Half of the leases are due. The other half has joined, and is due later than the next
        // attempt to renew the first half.
        let mut volumes = leased(count, |number| Duration::from_secs(if number % 2 == 0 { 10 } else { 24 }), now);
        let later = now.after(Duration::from_secs(6));
        let mut renewed = BTreeSet::new();
        for _ in 0..2 {
            let renewals = volumes.renewals(RenewalSelection::Due, true, later);
            renewed.extend(renewals.into_iter().map(|renew| renew.volume));
        }
        assert_eq!(renewed.len(), count);
    }
}
