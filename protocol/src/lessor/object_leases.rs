//! The leader's record of object leases: its own grants, holder reports, and coverings (S2, S7).
//!
//! Object leases are not replicated. Each live volume lease has a [`VolumeTrack`]. The track is
//! exact, or *covering*: the leader then assumes that the session holds every object of the volume.
//! While a covering waits for a holder report, the leader also records object leases, from grants
//! and from the report. They matter when the covering ends.
//!
//! # Invalid at once, removed in parts
//!
//! One session may have a million object leases, and one consent or the end of one volume lease may
//! end them all. They become invalid at once: an object lease counts only while the [`VolumeTrack`]
//! of its incarnation exists, and no [`PendingDrop`] covers it. Later steps remove the entries from
//! memory, at most [`FORGOTTEN_PER_STEP`] entries each.

mod grant_order;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use crate::{
    id::{CoveringNumber, Incarnation, SessionId},
    message::CoveringLease,
    object::{Object, ObjectKind, ObjectSet},
    path::NodePath,
    reached::{self, reached},
    state::State,
    time::ClusterTime,
    work::{CountVisits, visit},
};

use grant_order::GrantOrder;

/// The most invalid entries that one step removes from memory. This takes about 0.1 ms.
const FORGOTTEN_PER_STEP: usize = 256;

/// The leader's view of the object leases under one volume lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct VolumeTrack {
    pub(super) incarnation: Incarnation,
    pub(super) tracking: CopyTracking,
    /// The number of entries in memory: valid ones, and dropped ones that are not removed yet.
    pub(super) entries: usize,
}

/// Whether the recorded object leases are all that the session can have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum CopyTracking {
    /// The session has no others.
    Exact,
    /// There may be others, until all parts of a holder report with this number have arrived. The
    /// leases of those end by `expires_at`. The leader records the leases that it grants.
    AwaitingReport { number: CoveringNumber, expires_at: ClusterTime, parts: BTreeSet<u32> },
    /// The leader records none, because the volume's settings say so or there would be too many.
    Covering,
}

impl VolumeTrack {
    #[cfg(test)]
    fn parts(&self) -> usize {
        if let CopyTracking::AwaitingReport { parts, .. } = &self.tracking { parts.len() } else { 0 }
    }

    /// When the leases of all copies that the leader does not know have ended, if that is known.
    fn unknown_until(&self) -> Option<ClusterTime> {
        match self.tracking {
            CopyTracking::AwaitingReport { expires_at, .. } => Some(expires_at),
            CopyTracking::Covering | CopyTracking::Exact => None,
        }
    }

    pub(super) fn is_covering(&self) -> bool {
        self.tracking != CopyTracking::Exact
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ObjectLease {
    /// From this time on the leader counts the lease as ended. It includes term, drift and margin
    /// (T3).
    pub(super) expires_at: ClusterTime,
    pub(super) source: GrantSource,
}

/// The sequence of an object lease's stamp in the leader's epoch, and whether a holder report named
/// the lease. Both are in one word, because there may be millions: the lowest bit is the flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct GrantSource(u64);

impl GrantSource {
    /// The leader granted the lease, with this stamp.
    pub(super) fn granted(sequence: u64) -> Self {
        Self(sequence << 1)
    }

    /// A holder report named the copy, and this leader has not granted it. The client may have
    /// dropped the copy by now. `sequence` is that of the last grant to the session.
    pub(super) fn reported(sequence: u64) -> Self {
        Self(sequence << 1 | 1)
    }

    pub(super) fn sequence(self) -> u64 {
        self.0 >> 1
    }

    pub(super) fn is_reported(self) -> bool {
        self.0 & 1 == 1
    }

    /// Merges two sources of one lease. A grant's own stamp outweighs a report: a consent to a
    /// recall after that grant then still drops the lease.
    fn and(self, other: Self) -> Self {
        let sequence = self.sequence().max(other.sequence());
        match (self.is_reported(), other.is_reported()) {
            (false, true) => self,
            (true, true) => Self::reported(sequence),
            (_, false) => Self::granted(sequence),
        }
    }
}

/// An object lease, and the incarnation of its volume lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct LeaseEntry {
    lease: ObjectLease,
    under: Incarnation,
}

/// The object leases of one session strictly below a node, under one volume lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SubtreeCopies {
    count: usize,
    /// No lease ends later than this.
    expires_at: ClusterTime,
    /// No stamp is later than this.
    newest: u64,
}

/// A session that may hold an object, for inspection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PossibleHolder {
    pub(super) session: SessionId,
    pub(super) volume: NodePath,
    /// When its object lease ends, if that is known.
    pub(super) expires_at: Option<ClusterTime>,
    /// The session may have copies that the leader does not know.
    pub(super) is_covering: bool,
}

/// When the last object lease of each session ends, by the volume of its volume lease.
type ExactHolders = BTreeMap<(SessionId, NodePath), ClusterTime>;

/// Object leases of one session under one volume lease, and when the last of them ends.
struct KnownCopies {
    session: SessionId,
    under: Incarnation,
    expires_at: ClusterTime,
}

/// The tracks of one volume, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct TrackTotals {
    /// How many sessions have a lease on the volume.
    pub(super) tracks: u64,
    /// How many of the sessions are covering.
    pub(super) coverings: u64,
    /// How many object leases are in memory under the volume leases.
    pub(super) entries: u64,
}

impl TrackTotals {
    /// The bytes of a track in `tracks` and `counting`, and of a covering in `coverings`.
    const TRACK_BYTES: usize =
        size_of::<((NodePath, SessionId), VolumeTrack)>() + size_of::<(Incarnation, (NodePath, SessionId))>();
    const COVERING_BYTES: usize = size_of::<(NodePath, SessionId)>();
    /// The bytes of an object lease in `leases` and `by_session`. The entries in `below` are few
    /// beside many leases. Paths share their text with the nodes.
    const ENTRY_BYTES: usize = size_of::<((Object, SessionId), LeaseEntry)>() + size_of::<Object>();
    /// A B-tree that fills up in order leaves its nodes about half full.
    const ROOM: usize = 2;

    /// About how many bytes of memory they take: for operators only.
    pub(super) fn bytes(&self) -> u64 {
        let all = [
            (self.tracks, Self::TRACK_BYTES),
            (self.coverings, Self::COVERING_BYTES),
            (self.entries, Self::ENTRY_BYTES),
        ];
        all.iter().map(|(count, bytes)| count.saturating_mul((bytes * Self::ROOM) as u64)).sum()
    }
}

/// Object leases that a session has dropped, and that are still in memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PendingDrop {
    /// Leases with stamps up to this are invalid. `None`: only leases whose volume lease has ended.
    through: Option<u64>,
    /// The next object to look at.
    next: Option<Object>,
}

/// All object leases and volume tracks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct ObjectLeases {
    tracks: BTreeMap<(NodePath, SessionId), VolumeTrack>,
    /// The sums of the tracks of each volume that has any.
    totals: BTreeMap<NodePath, TrackTotals>,
    /// The covering tracks. Each write needs them, and often none of ten thousand tracks is
    /// covering.
    coverings: BTreeSet<(NodePath, SessionId)>,
    /// The tracks under which object leases are recorded.
    counting: BTreeMap<Incarnation, (NodePath, SessionId)>,
    leases: BTreeMap<(Object, SessionId), LeaseEntry>,
    by_session: BTreeMap<SessionId, BTreeSet<Object>>,
    /// Sums of the object leases strictly below each node. A write of a subtree uses the sums,
    /// because each session may have very many leases.
    below: BTreeMap<NodePath, BTreeMap<(SessionId, Incarnation), SubtreeCopies>>,
    /// Drops whose entries are still in memory, by session and by the top of the dropped subtree.
    dropping: BTreeMap<(SessionId, NodePath), PendingDrop>,
    /// The leases of volumes with a lease limit, in the order of their last grants.
    grant_order: GrantOrder,
    /// Where the sweep for ended leases continues.
    swept: Option<(Object, SessionId)>,
}

const EVERYONE: (SessionId, SessionId) = (SessionId(0), SessionId(u64::MAX));

impl ObjectLeases {
    pub(super) fn track(&self, volume: &NodePath, session: SessionId) -> Option<&VolumeTrack> {
        self.tracks.get(&(volume.clone(), session))
    }

    pub(super) fn tracks(&self) -> impl Iterator<Item = (&NodePath, SessionId, &VolumeTrack)> {
        self.tracks.iter().counted().map(|((volume, session), track)| (volume, *session, track))
    }

    /// The sums of the volume's tracks.
    pub(super) fn totals_in(&self, volume: &NodePath) -> TrackTotals {
        self.totals.get(volume).copied().unwrap_or_default()
    }

    /// How many object leases are in memory, including invalid ones.
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    pub(super) fn lease(&self, object: &Object, session: SessionId) -> Option<&ObjectLease> {
        let entry = self.leases.get(&(object.clone(), session))?;
        self.is_live(&object.path, session, entry).then_some(&entry.lease)
    }

    /// Whether an entry is valid: its track exists, and the session has not dropped it.
    fn is_live(&self, path: &NodePath, session: SessionId, entry: &LeaseEntry) -> bool {
        self.counting.contains_key(&entry.under) && !self.is_dropped(path, session, entry.lease.source.sequence())
    }

    /// Whether the session has dropped all copies at and below the path with stamps up to `newest`.
    fn is_dropped(&self, path: &NodePath, session: SessionId, newest: u64) -> bool {
        let mut own = self.dropping.range((session, NodePath::root())..).map(|((of, _), _)| *of);
        if own.next() != Some(session) {
            return false;
        }
        let tops = std::iter::once(path.clone()).chain(path.ancestors()).counted();
        tops.filter_map(|top| self.dropping.get(&(session, top))).any(|dropping| Some(newest) <= dropping.through)
    }

    /// Begins to track a new volume lease. Object leases under an earlier one become invalid,
    /// because the client has stopped using those copies.
    pub(super) fn start_tracking(
        &mut self,
        volume: NodePath,
        session: SessionId,
        incarnation: Incarnation,
        tracking: CopyTracking,
    ) {
        self.end_tracking(&volume, session);
        let totals = self.totals.entry(volume.clone()).or_default();
        totals.tracks += 1;
        totals.coverings += u64::from(tracking != CopyTracking::Exact);
        let (key, track) = ((volume, session), VolumeTrack { incarnation, tracking, entries: 0 });
        if track.is_covering() {
            self.coverings.insert(key.clone());
        }
        if track.tracking != CopyTracking::Covering {
            self.counting.insert(incarnation, key.clone());
        }
        self.tracks.insert(key, track);
    }

    /// Tracks a volume lease in another way, because the volume's settings have changed. The
    /// session has no copy in the volume.
    pub(super) fn track_anew(&mut self, volume: &NodePath, session: SessionId, tracking: CopyTracking) {
        let key = (volume.clone(), session);
        let Some(track) = self.tracks.get_mut(&key) else { return };
        let was_covering = std::mem::replace(&mut track.tracking, tracking) != CopyTracking::Exact;
        if let Some(totals) = self.totals.get_mut(volume) {
            totals.coverings += u64::from(track.is_covering());
            totals.coverings -= u64::from(was_covering);
        }
        self.coverings.remove(&key);
        if track.is_covering() {
            self.coverings.insert(key.clone());
        }
        match track.tracking {
            CopyTracking::Covering => self.make_covering(&key),
            CopyTracking::Exact | CopyTracking::AwaitingReport { .. } => {
                self.counting.insert(track.incarnation, key);
            }
        }
    }

    /// Stops tracking a volume lease that has ended. Every object lease under it ends too (S2).
    pub(super) fn end_tracking(&mut self, volume: &NodePath, session: SessionId) {
        let key = (volume.clone(), session);
        let Some(track) = self.tracks.remove(&key) else { return };
        self.coverings.remove(&key);
        self.counting.remove(&track.incarnation);
        if let Some(totals) = self.totals.get_mut(volume) {
            totals.tracks -= 1;
            totals.coverings -= u64::from(track.is_covering());
            totals.entries -= track.entries as u64;
            if totals.tracks == 0 {
                self.totals.remove(volume);
            }
        }
        if track.entries > 0 {
            self.forget(session, volume.clone(), None);
        }
    }

    /// Records an object lease. If the volume lease would have more than `most`, the session
    /// becomes covering instead.
    pub(super) fn add(
        &mut self,
        volume: &NodePath,
        object: &Object,
        session: SessionId,
        lease: ObjectLease,
        most: usize,
        state: &State,
    ) {
        let key = (volume.clone(), session);
        let Some(under) = self.tracks.get(&key).filter(|track| track.tracking != CopyTracking::Covering) else {
            return;
        };
        let under = under.incarnation;
        if let Some(known) = self.leases.get(&(object.clone(), session)).copied() {
            if known.under == under && self.is_live(&object.path, session, &known) {
                let (expires_at, source) =
                    (known.lease.expires_at.max(lease.expires_at), known.lease.source.and(lease.source));
                return self.update(object, session, LeaseEntry { lease: ObjectLease { expires_at, source }, under });
            }
            self.remove_one(object, session);
        }
        if self.is_full(&key, most) {
            self.tidy_of(session, FORGOTTEN_PER_STEP);
        }
        if self.is_full(&key, most) {
            reached(reached::Bound::SessionObjects);
            return self.make_covering(&key);
        }
        if let (Some(track), Some(totals)) = (self.tracks.get_mut(&key), self.totals.get_mut(volume)) {
            track.entries += 1;
            totals.entries += 1;
        }
        let object = self.shared(object, state);
        self.by_session.entry(session).or_default().insert(object.clone());
        self.note_below(&object.path, session, under, lease, 1);
        self.leases.insert((object, session), LeaseEntry { lease, under });
    }

    /// Notes that a recorded lease of a volume with a lease limit was granted just now.
    pub(super) fn note_limited(&mut self, volume: &NodePath, object: &Object, session: SessionId) {
        if let Some(((object, _), _)) = self.leases.get_key_value(&(object.clone(), session)) {
            self.grant_order.note_grant(volume, object, session);
        }
    }

    /// Makes room for `most` leases in a volume with a lease limit. It looks at the least recently
    /// granted ones. Those that have ended are removed. It returns the others: they must be
    /// recalled.
    pub(super) fn make_room(&mut self, volume: &NodePath, most: usize, now: ClusterTime) -> Vec<(Object, SessionId)> {
        let oldest: Vec<_> = self.grant_order.oldest_in(volume).take(most).cloned().collect();
        let mut to_recall = Vec::new();
        for (object, session) in oldest {
            match self.lease(&object, session) {
                Some(lease) if lease.expires_at > now => {
                    self.grant_order.remove(&object, session);
                    to_recall.push((object, session));
                }
                _ => self.remove_one(&object, session),
            }
        }
        to_recall
    }

    fn is_full(&self, key: &(NodePath, SessionId), most: usize) -> bool {
        self.tracks.get(key).is_some_and(|track| track.entries >= most)
    }

    fn update(&mut self, object: &Object, session: SessionId, entry: LeaseEntry) {
        self.note_below(&object.path, session, entry.under, entry.lease, 0);
        if let Some(known) = self.leases.get_mut(&(object.clone(), session)) {
            *known = entry;
        }
    }

    fn make_covering(&mut self, key: &(NodePath, SessionId)) {
        let Some(track) = self.tracks.get_mut(key) else { return };
        if let Some(totals) = self.totals.get_mut(&key.0) {
            totals.entries -= track.entries as u64;
            totals.coverings += u64::from(!track.is_covering());
        }
        track.entries = 0;
        self.counting.remove(&track.incarnation);
        let (volume, session) = key.clone();
        track.tracking = CopyTracking::Covering;
        self.coverings.insert(key.clone());
        self.forget(session, volume, None);
    }

    /// Adds `more` entries to the sums of all nodes above the path, and includes the lease's end
    /// and stamp in their limits.
    fn note_below(&mut self, path: &NodePath, session: SessionId, under: Incarnation, lease: ObjectLease, more: usize) {
        let newest = lease.source.sequence();
        for above in above(path) {
            visit(1);
            if !self.below.contains_key(above)
                && let Some(top) = path.ancestors().find(|top| top.as_str() == above)
            {
                self.below.insert(top, BTreeMap::new());
            }
            let Some(holders) = self.below.get_mut(above) else { continue };
            let none = SubtreeCopies { count: 0, expires_at: lease.expires_at, newest };
            let below = holders.entry((session, under)).or_insert(none);
            below.count += more;
            (below.expires_at, below.newest) = (below.expires_at.max(lease.expires_at), below.newest.max(newest));
        }
    }

    /// Records that the session has dropped its copies in the set with stamps up to `through`.
    /// Later grants stay valid.
    pub(super) fn drop_through(&mut self, set: &ObjectSet, session: SessionId, through: u64) {
        match set {
            ObjectSet::One(object) => {
                if self.lease(object, session).is_some_and(|lease| lease.source.sequence() <= through) {
                    self.remove_one(object, session);
                }
            }
            ObjectSet::Subtree(top) => {
                if self.objects_of(session, top, None).next().is_some() {
                    self.forget(session, top.clone(), Some(through));
                }
            }
        }
    }

    /// Begins to remove the session's entries at and below `top` that are invalid, or have stamps
    /// up to `through`.
    fn forget(&mut self, session: SessionId, top: NodePath, through: Option<u64>) {
        let new = PendingDrop { through, next: None };
        let dropping = self.dropping.entry((session, top.clone())).or_insert(new);
        (dropping.through, dropping.next) = (dropping.through.max(through), None);
        self.forget_some(&(session, top), FORGOTTEN_PER_STEP);
    }

    pub(super) fn is_tidying(&self) -> bool {
        !self.dropping.is_empty()
    }

    /// Removes some invalid entries from memory.
    pub(super) fn tidy(&mut self) {
        if let Some(first) = self.dropping.first_key_value().map(|(key, _)| key.clone()) {
            self.forget_some(&first, FORGOTTEN_PER_STEP);
        }
    }

    fn tidy_of(&mut self, session: SessionId, most: usize) {
        let own = self.dropping.range((session, NodePath::root())..).next().map(|(key, _)| key.clone());
        if let Some(first) = own.filter(|(of, _)| *of == session) {
            self.forget_some(&first, most);
        }
    }

    fn forget_some(&mut self, key: &(SessionId, NodePath), most: usize) {
        let Some(PendingDrop { through, next }) = self.dropping.get(key).cloned() else { return };
        let (session, top) = key;
        let mut objects: Vec<Object> = self.objects_of(*session, top, next).take(most + 1).cloned().collect();
        let next = if objects.len() > most { objects.pop() } else { None };
        match (next, self.dropping.get_mut(key)) {
            (Some(next), Some(dropping)) => dropping.next = Some(next),
            _ => {
                self.dropping.remove(key);
            }
        }
        for object in objects {
            let is_dropped = |entry: &LeaseEntry| {
                Some(entry.lease.source.sequence()) <= through || !self.counting.contains_key(&entry.under)
            };
            if self.leases.get(&(object.clone(), *session)).is_some_and(is_dropped) {
                self.remove_one(&object, *session);
            }
        }
    }

    fn remove_one(&mut self, object: &Object, session: SessionId) {
        let Some(LeaseEntry { under, .. }) = self.leases.remove(&(object.clone(), session)) else { return };
        visit(1);
        self.grant_order.remove(object, session);
        if let Some(objects) = self.by_session.get_mut(&session) {
            objects.remove(object);
            if objects.is_empty() {
                self.by_session.remove(&session);
            }
        }
        for above in above(&object.path) {
            visit(1);
            let Some(holders) = self.below.get_mut(above) else { continue };
            let is_last = holders.get_mut(&(session, under)).is_none_or(|below| {
                below.count = below.count.saturating_sub(1);
                below.count == 0
            });
            if is_last {
                holders.remove(&(session, under));
                if holders.is_empty() {
                    self.below.remove(above);
                }
            }
        }
        let Some(key) = self.counting.get(&under) else { return };
        if let (Some(track), Some(totals)) = (self.tracks.get_mut(key), self.totals.get_mut(&key.0)) {
            track.entries = track.entries.saturating_sub(1);
            totals.entries = totals.entries.saturating_sub(1);
        }
    }

    /// The sessions that may hold the object, for inspection. It examines the first `most` entries
    /// of each kind.
    pub(super) fn few_holders(
        &self,
        object: &Object,
        most: usize,
        now: ClusterTime,
        state: &State,
    ) -> Vec<PossibleHolder> {
        let entries = self.by_lease(self.known_at(&ObjectSet::One(object.clone()), now).take(most).flatten());
        let known = entries.into_iter().map(|((session, volume), expires_at)| PossibleHolder {
            session,
            volume,
            expires_at: Some(expires_at),
            is_covering: false,
        });
        let mut holders: BTreeMap<SessionId, PossibleHolder> = known.map(|holder| (holder.session, holder)).collect();
        let volume = state.volume_of(&object.path).0;
        for (session, unknown_until) in self.coverings_of(volume, now).take(most) {
            let known = holders.remove(&session).and_then(|holder| holder.expires_at);
            let expires_at = unknown_until.map(|unknown_until| known.map_or(unknown_until, |at| at.max(unknown_until)));
            holders.insert(session, PossibleHolder { session, volume: volume.clone(), expires_at, is_covering: true });
        }
        holders.into_values().collect()
    }

    /// The number of entries examined, and the sessions with known object leases in the set: each
    /// with the volume and the latest end. `None` if it would examine more than `most` entries.
    pub(super) fn few_exact_holders(
        &self,
        set: &ObjectSet,
        now: ClusterTime,
        most: usize,
    ) -> Option<(usize, ExactHolders)> {
        let mut examined = 0;
        let known = self.known_at(set, now).take(most.saturating_add(1)).inspect(|_| examined += 1);
        let holders = self.by_lease(known.flatten());
        (examined <= most).then_some((examined, holders))
    }

    /// The latest end of each session's entries under each volume lease, by session and volume.
    fn by_lease(&self, known: impl Iterator<Item = KnownCopies>) -> ExactHolders {
        let mut holders = ExactHolders::new();
        for KnownCopies { session, under, expires_at } in known {
            if let Some((volume, _)) = self.counting.get(&under) {
                let latest = holders.entry((session, volume.clone())).or_insert(expires_at);
                *latest = expires_at.max(*latest);
            }
        }
        holders
    }

    /// Walks the entries of the set. Yields `None` for an entry that has ended or is invalid.
    fn known_at(&self, set: &ObjectSet, now: ClusterTime) -> impl Iterator<Item = Option<KnownCopies>> {
        let own = self.entries_at(set).map(|((object, session), entry)| {
            let known = KnownCopies { session: *session, under: entry.under, expires_at: entry.lease.expires_at };
            self.is_live(&object.path, *session, entry).then_some(known)
        });
        let below = self.below_in(set).map(|(top, session, under, below)| {
            let is_live = self.counting.contains_key(&under) && !self.is_dropped(top, session, below.newest);
            is_live.then_some(KnownCopies { session, under, expires_at: below.expires_at })
        });
        own.chain(below).map(move |known| known.filter(|known| known.expires_at > now))
    }

    /// The sessions with a known object lease in the set that has not ended.
    pub(super) fn sessions_in(&self, set: &ObjectSet, now: ClusterTime) -> BTreeSet<SessionId> {
        self.known_at(set, now).flatten().map(|known| known.session).collect()
    }

    /// The sessions that have a lease on the volume.
    pub(super) fn sessions_on(&self, volume: &NodePath) -> Vec<SessionId> {
        let tracks = self.tracks.range((volume.clone(), EVERYONE.0)..=(volume.clone(), EVERYONE.1)).counted();
        tracks.map(|((_, session), _)| *session).collect()
    }

    /// An upper bound of the stamps of the session's leases in the set; 0 if there are none.
    pub(super) fn newest_of(&self, set: &ObjectSet, session: SessionId) -> u64 {
        let own = match set {
            ObjectSet::One(object) => [self.lease(object, session), None],
            ObjectSet::Subtree(top) => {
                [Object::data(top.clone()), Object::children(top.clone())].map(|object| self.lease(&object, session))
            }
        };
        let own = own.into_iter().flatten().map(|lease| lease.source.sequence());
        let incarnations = (session, Incarnation(0))..=(session, Incarnation(u64::MAX));
        let below = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => self.below.get(top).map(|holders| holders.range(incarnations)),
        };
        let below = below.into_iter().flatten().map(|(_, below)| below.newest);
        own.chain(below).counted().max().unwrap_or_default()
    }

    /// The sessions that may have unknown copies in the volume at this time. For each, when the
    /// leases of these copies end, if that is known.
    pub(super) fn coverings_of(
        &self,
        volume: &NodePath,
        now: ClusterTime,
    ) -> impl Iterator<Item = (SessionId, Option<ClusterTime>)> {
        let coverings = self.covering_keys(volume).filter_map(|key| self.tracks.get_key_value(key));
        let coverings = coverings.map(|((_, session), track)| (*session, track.unknown_until()));
        coverings.filter(move |(_, expires_at)| expires_at.is_none_or(|expires_at| expires_at > now))
    }

    fn covering_keys(&self, volume: &NodePath) -> impl Iterator<Item = &(NodePath, SessionId)> {
        self.coverings.range((volume.clone(), EVERYONE.0)..=(volume.clone(), EVERYONE.1)).counted()
    }

    /// The valid entries of all sessions in the set.
    pub(super) fn leases_in(&self, set: &ObjectSet) -> impl Iterator<Item = (&(Object, SessionId), &ObjectLease)> {
        self.entries_in(set)
            .filter(|((object, session), entry)| self.is_live(&object.path, *session, entry))
            .map(|(key, entry)| (key, &entry.lease))
    }

    fn entries_in<'a>(
        &'a self,
        set: &ObjectSet,
    ) -> impl Iterator<Item = (&'a (Object, SessionId), &'a LeaseEntry)> + use<'a> {
        let below = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => Some((Object::children(top.bound_below()), Object::data(top.bound_after()))),
        };
        let below = below.map(|(from, to)| {
            let (from, to) = (Bound::Excluded((from, EVERYONE.1)), Bound::Excluded((to, EVERYONE.0)));
            self.leases.range((from, to))
        });
        self.entries_at(set).chain(below.into_iter().flatten().counted())
    }

    /// The valid entries of all sessions in these sets. `None` if the sets have more than `most`
    /// entries, valid or not.
    pub(super) fn few_leases_in(
        &self,
        sets: impl Iterator<Item = ObjectSet>,
        most: usize,
    ) -> Option<Vec<(&(Object, SessionId), &ObjectLease)>> {
        let all: Vec<_> = sets.flat_map(|set| self.entries_in(&set)).take(most + 1).collect();
        let is_live = |((object, session), entry): &(&(Object, SessionId), &LeaseEntry)| {
            self.is_live(&object.path, *session, entry)
        };
        (all.len() <= most).then(|| all.into_iter().filter(is_live).map(|(key, entry)| (key, &entry.lease)).collect())
    }

    /// The entries of the one object, or of the two objects of the topmost node.
    fn entries_at<'a>(
        &'a self,
        set: &ObjectSet,
    ) -> impl Iterator<Item = (&'a (Object, SessionId), &'a LeaseEntry)> + use<'a> {
        let (first, last) = match set {
            ObjectSet::One(object) => (object.clone(), object.clone()),
            ObjectSet::Subtree(top) => (Object::data(top.clone()), Object::children(top.clone())),
        };
        self.leases.range((first, EVERYONE.0)..=(last, EVERYONE.1)).counted()
    }

    /// The sums of the sessions that have entries strictly below the top of a subtree.
    fn below_in(&self, set: &ObjectSet) -> impl Iterator<Item = (&NodePath, SessionId, Incarnation, &SubtreeCopies)> {
        let found = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => self.below.get_key_value(top),
        };
        let found = found.into_iter().flat_map(|(top, holders)| holders.iter().map(move |holder| (top, holder)));
        found.map(|(top, ((session, under), below))| (top, *session, *under, below)).counted()
    }

    /// Asks the session for holder reports (S7). Each of its coverings in these volumes that a
    /// report can end gets a new number. Parts of earlier reports do not count for the new number.
    pub(super) fn request_holder_reports<'a>(
        &mut self,
        session: SessionId,
        volumes: impl Iterator<Item = &'a NodePath>,
        mut next: impl FnMut() -> CoveringNumber,
    ) -> Vec<CoveringLease> {
        let mut coverings = Vec::new();
        for volume in volumes {
            let Some(track) = self.tracks.get_mut(&(volume.clone(), session)) else { continue };
            if let CopyTracking::AwaitingReport { number, parts, .. } = &mut track.tracking {
                *number = next();
                parts.clear();
                coverings.push(CoveringLease {
                    volume: volume.clone(),
                    incarnation: track.incarnation,
                    number: *number,
                });
            }
        }
        coverings
    }

    /// Records the arrival of a part of a holder report. When all parts have arrived, the covering
    /// ends: the recorded leases are then all that the session can have (S7).
    pub(super) fn add_report_part(&mut self, volume: &NodePath, session: SessionId, part: u32, parts: u32) {
        let key = (volume.clone(), session);
        let Some(track) = self.tracks.get_mut(&key) else { return };
        if let CopyTracking::AwaitingReport { parts: seen, .. } = &mut track.tracking {
            seen.insert(part);
            if (0..parts).all(|part| seen.contains(&part)) {
                track.tracking = CopyTracking::Exact;
                self.coverings.remove(&key);
                if let Some(totals) = self.totals.get_mut(volume) {
                    totals.coverings -= 1;
                }
            }
        }
    }

    /// Examines `most` leases from where the last sweep stopped, and removes those that have ended.
    pub(super) fn sweep(&mut self, now: ClusterTime, most: usize) {
        let start = match self.swept.take() {
            Some(key) => Bound::Excluded(key),
            None => Bound::Unbounded,
        };
        let mut ended = Vec::new();
        for (seen, (key, entry)) in self.leases.range((start, Bound::Unbounded)).enumerate() {
            if seen == most {
                reached(reached::Bound::Sweep);
                break;
            }
            visit(1);
            self.swept = Some(key.clone());
            if entry.lease.expires_at <= now {
                ended.push(key.clone());
            }
        }
        if ended.is_empty() && self.swept.as_ref() == self.leases.last_key_value().map(|(key, _)| key) {
            self.swept = None;
        }
        for (object, session) in ended {
            self.remove_one(&object, session);
        }
    }

    /// The session's objects at and below `top`, from `from` on.
    fn objects_of(&self, session: SessionId, top: &NodePath, from: Option<Object>) -> impl Iterator<Item = &Object> {
        let is_before = |bound: &Object| from.as_ref().is_none_or(|from| from <= bound);
        let last = Object::children(top.clone());
        let own = is_before(&last).then(|| from.clone().unwrap_or(Object::data(top.clone()))..=last);
        // For the root, `first` is the root's own list.
        let first = Object::children(top.bound_below());
        let below = if is_before(&first) { Bound::Excluded(first) } else { Bound::Included(from.unwrap_or(first)) };
        let below = (below, Bound::Excluded(Object::data(top.bound_after())));
        let objects = self.by_session.get(&session).into_iter();
        let objects = objects.flat_map(move |objects| {
            own.clone().map(|own| objects.range(own)).into_iter().flatten().chain(objects.range(below.clone()))
        });
        objects.counted()
    }

    /// The object with a path whose text is shared with the node, or with other entries.
    fn shared(&self, object: &Object, state: &State) -> Object {
        let sibling = || {
            [ObjectKind::Data, ObjectKind::Children].into_iter().find_map(|kind| {
                let sibling = Object { path: object.path.clone(), kind };
                let known = self.leases.range((sibling.clone(), EVERYONE.0)..=(sibling, EVERYONE.1)).next();
                known.map(|((known, _), _)| known.path.clone())
            })
        };
        let path = state.interned_path(&object.path).cloned().or_else(sibling);
        Object { path: path.unwrap_or_else(|| object.path.clone()), kind: object.kind }
    }

    /// The number of entries of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("tracks", self.tracks.len()),
            ("tracks by volume", self.totals.len()),
            ("coverings", self.coverings.len()),
            ("tracks that count", self.counting.len()),
            ("parts of reports", self.tracks.values().map(|track| track.parts()).sum()),
            ("object leases", self.leases.len()),
            ("object leases by session", self.by_session.values().map(BTreeSet::len).sum()),
            ("holders below nodes", self.below.values().map(BTreeMap::len).sum()),
            ("nodes with holders below", self.below.len()),
            ("pending drops", self.dropping.len()),
            ("leases in the order of grants", self.grant_order.len()),
        ]
    }

    /// Checks that the tables agree.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut entries: BTreeMap<Incarnation, usize> = BTreeMap::new();
        for ((object, session), entry) in &self.leases {
            if !self.by_session.get(session).is_some_and(|objects| objects.contains(object)) {
                return Err(format!("the lease of {session} on {object} is not in the index by session"));
            }
            let is_forgotten = || {
                let mut tops = std::iter::once(object.path.clone()).chain(object.path.ancestors());
                tops.any(|top| self.dropping.contains_key(&(*session, top)))
            };
            if !self.counting.contains_key(&entry.under) && !is_forgotten() {
                return Err(format!("the lease of {session} on {object} is invalid, and no drop removes it"));
            }
            *entries.entry(entry.under).or_default() += 1;
        }
        let by_session: usize = self.by_session.values().map(BTreeSet::len).sum();
        if by_session != self.leases.len() {
            return Err(format!("{by_session} leases by session, {} by object", self.leases.len()));
        }
        if !self.coverings.iter().eq(self.tracks.iter().filter(|(_, track)| track.is_covering()).map(|(key, _)| key)) {
            return Err(format!("the coverings are {:?}, and do not match the tracks", self.coverings));
        }
        self.grant_order.check(|lease| self.leases.contains_key(lease))?;
        self.check_tracks(&entries)?;
        self.check_below()
    }

    fn check_tracks(&self, entries: &BTreeMap<Incarnation, usize>) -> Result<(), String> {
        let (mut totals, mut counting) = (BTreeMap::<_, TrackTotals>::new(), BTreeMap::new());
        for (key, track) in &self.tracks {
            let sums = totals.entry(key.0.clone()).or_default();
            sums.tracks += 1;
            sums.coverings += u64::from(track.is_covering());
            sums.entries += track.entries as u64;
            if track.tracking != CopyTracking::Covering {
                counting.insert(track.incarnation, key.clone());
            }
            let expected = entries.get(&track.incarnation).copied().unwrap_or_default();
            if track.entries != if track.tracking == CopyTracking::Covering { 0 } else { expected } {
                return Err(format!("{key:?} counts {} leases: expected {expected}", track.entries));
            }
        }
        if totals != self.totals || counting != self.counting {
            return Err("the sums by volume and the index by incarnation do not match the tracks".to_owned());
        }
        Ok(())
    }

    fn check_below(&self) -> Result<(), String> {
        let mut expected: BTreeMap<(&str, SessionId, Incarnation), SubtreeCopies> = BTreeMap::new();
        for ((object, session), LeaseEntry { lease, under }) in &self.leases {
            let newest = lease.source.sequence();
            for above in above(&object.path) {
                let none = SubtreeCopies { count: 0, expires_at: lease.expires_at, newest };
                let below = expected.entry((above, *session, *under)).or_insert(none);
                let (expires_at, newest) = (below.expires_at.max(lease.expires_at), below.newest.max(newest));
                *below = SubtreeCopies { count: below.count + 1, expires_at, newest };
            }
        }
        let found = self.below.iter().flat_map(|(top, holders)| holders.iter().map(move |of| (top.as_str(), of)));
        let found = found.map(|(top, ((session, under), below))| ((top, *session, *under), *below));
        let is_bound = |(key, found): (_, SubtreeCopies)| {
            let expected = expected.get(&key);
            expected.is_some_and(|expected| {
                (found.count, found.expires_at >= expected.expires_at, found.newest >= expected.newest)
                    == (expected.count, true, true)
            })
        };
        let count: usize = self.below.values().map(BTreeMap::len).sum();
        if count != expected.len() || !found.into_iter().all(is_bound) {
            return Err("the sums below the nodes do not match the leases".to_owned());
        }
        Ok(())
    }
}

/// The volumes that objects of the set belong to.
pub(super) fn volumes_of<'a>(set: &ObjectSet, state: &'a State) -> impl Iterator<Item = &'a NodePath> + use<'a> {
    let below = match set {
        ObjectSet::One(_) => None,
        ObjectSet::Subtree(top) => Some(state.volumes_below(top).map(|(volume, _)| volume)),
    };
    std::iter::once(state.volume_of(set.path()).0).chain(below.into_iter().flatten()).counted()
}

/// The paths of the nodes above a path as text, nearest first.
fn above(path: &NodePath) -> impl Iterator<Item = &str> {
    let text = path.as_str();
    let parent = |text: &'_ str| match text.rfind('/') {
        _ if text.len() == 1 => None,
        Some(0) | None => Some(1),
        Some(end) => Some(end),
    };
    std::iter::successors(parent(text).map(|end| &text[..end]), move |text| parent(text).map(|end| &text[..end]))
}

#[cfg(test)]
mod tests;
