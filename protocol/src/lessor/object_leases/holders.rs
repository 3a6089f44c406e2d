//! Who may hold copies of a set of objects (S2).
//!
//! Owns nothing: it combines the entries, the sums below nodes, the tracks and the pending drops.
//! Guarantees that it misses no valid lease, and names no end that is too early. Does not know what
//! a write does with the holders.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    id::SessionId,
    object::{Object, ObjectSet},
    path::NodePath,
    state::State,
    time::ClusterTime,
    work::CountVisits,
};

use super::{
    ObjectLeases,
    entries::{LeaseEntry, ObjectLease, RecordingId},
};

/// A session that may hold an object, for inspection.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::lessor) struct PossibleHolder {
    pub(in crate::lessor) session: SessionId,
    pub(in crate::lessor) volume: NodePath,
    /// When its object lease ends, if that is known.
    pub(in crate::lessor) expires_at: Option<ClusterTime>,
    /// The session may have copies that the leader does not know.
    pub(in crate::lessor) is_covering: bool,
}

/// For each session and each volume on which it has a lease: when its last object lease ends.
type ExactHolders = BTreeMap<(SessionId, NodePath), ClusterTime>;

/// Object leases of one session in one recording, and when the last of them ends.
struct KnownCopies {
    session: SessionId,
    recording: RecordingId,
    expires_at: ClusterTime,
}

impl ObjectLeases {
    /// Whether an entry is valid: its recording goes on, and the session has not dropped the copy.
    pub(super) fn is_live(&self, path: &NodePath, session: SessionId, entry: &LeaseEntry) -> bool {
        self.is_valid(path, session, entry.recording, entry.lease.source.sequence())
    }

    /// Whether any lease of this recording with a stamp up to `newest` can be valid, at and
    /// below the path.
    fn is_valid(&self, path: &NodePath, session: SessionId, recording: RecordingId, newest: u64) -> bool {
        self.tracks.recorded_volume(recording).is_some() && !self.drops.is_dropped(path, session, newest)
    }

    /// The sessions that may hold the object, for inspection. It examines at most `most` known
    /// object leases, and at most `most` coverings.
    pub(in crate::lessor) fn few_holders(
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
    pub(in crate::lessor) fn few_exact_holders(
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

    /// The sessions with a known object lease in the set that has not ended.
    pub(in crate::lessor) fn sessions_in(&self, set: &ObjectSet, now: ClusterTime) -> BTreeSet<SessionId> {
        self.known_at(set, now).flatten().map(|known| known.session).collect()
    }

    /// An upper bound of the stamps of the session's leases in the set; 0 if there are none.
    pub(in crate::lessor) fn newest_of(&self, set: &ObjectSet, session: SessionId) -> u64 {
        let own = match set {
            ObjectSet::One(object) => [self.lease(object, session), None],
            ObjectSet::Subtree(top) => {
                [Object::data(top.clone()), Object::children(top.clone())].map(|object| self.lease(&object, session))
            }
        };
        let own = own.into_iter().flatten().map(|lease| lease.source.sequence()).counted();
        own.chain(self.sums.newest_of(set, session)).max().unwrap_or_default()
    }

    /// The valid entries of all sessions in the set.
    pub(in crate::lessor) fn leases_in(
        &self,
        set: &ObjectSet,
    ) -> impl Iterator<Item = (&(Object, SessionId), &ObjectLease)> {
        self.entries
            .within(set)
            .filter(|((object, session), entry)| self.is_live(&object.path, *session, entry))
            .map(|(key, entry)| (key, &entry.lease))
    }

    /// The valid entries of all sessions in these sets. `None` if the sets have more than `most`
    /// entries, valid or not.
    pub(in crate::lessor) fn few_leases_in(
        &self,
        sets: impl Iterator<Item = ObjectSet>,
        most: usize,
    ) -> Option<Vec<(&(Object, SessionId), &ObjectLease)>> {
        let all: Vec<_> = sets.flat_map(|set| self.entries.within(&set)).take(most + 1).collect();
        let is_live = |((object, session), entry): &(&(Object, SessionId), &LeaseEntry)| {
            self.is_live(&object.path, *session, entry)
        };
        (all.len() <= most).then(|| all.into_iter().filter(is_live).map(|(key, entry)| (key, &entry.lease)).collect())
    }

    /// Walks the entries of the set. Yields `None` for an entry that has ended or is invalid.
    fn known_at(&self, set: &ObjectSet, now: ClusterTime) -> impl Iterator<Item = Option<KnownCopies>> {
        let own = self.entries.at(set).map(|((object, session), entry)| {
            let known =
                KnownCopies { session: *session, recording: entry.recording, expires_at: entry.lease.expires_at };
            self.is_live(&object.path, *session, entry).then_some(known)
        });
        let below = self.sums.below(set).map(|(top, session, recording, below)| {
            let is_valid = self.is_valid(top, session, recording, below.newest);
            is_valid.then_some(KnownCopies { session, recording, expires_at: below.expires_at })
        });
        own.chain(below).map(move |known| known.filter(|known| known.expires_at > now))
    }

    /// The latest end of each session's entries under each volume lease, by session and volume.
    fn by_lease(&self, known: impl Iterator<Item = KnownCopies>) -> ExactHolders {
        let mut holders = ExactHolders::new();
        for KnownCopies { session, recording, expires_at } in known {
            if let Some(volume) = self.tracks.recorded_volume(recording) {
                let latest = holders.entry((session, volume.clone())).or_insert(expires_at);
                *latest = expires_at.max(*latest);
            }
        }
        holders
    }
}
