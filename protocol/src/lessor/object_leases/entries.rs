//! The entries of object leases, valid or not, by object and by session.
//!
//! Owns each entry in memory, and the place where the sweep for ended leases continues. Guarantees
//! that the index by session has the same entries. Does not know which entries are valid: that
//! depends on the tracks and on the pending drops.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use crate::{
    id::SessionId,
    object::{Object, ObjectKind, ObjectSet},
    path::NodePath,
    reached::{self, reached},
    state::State,
    time::ClusterTime,
    work::{CountVisits, visit},
};

use super::EVERYONE;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lessor) struct ObjectLease {
    /// From this time on the leader counts the lease as ended. It includes term, drift and margin
    /// (T3).
    pub(in crate::lessor) expires_at: ClusterTime,
    pub(in crate::lessor) source: GrantSource,
}

impl ObjectLease {
    /// Merges two records of one lease.
    pub(super) fn and(self, other: Self) -> Self {
        Self { expires_at: self.expires_at.max(other.expires_at), source: self.source.and(other.source) }
    }
}

/// The sequence of an object lease's stamp in the leader's epoch, and whether a holder report named
/// the lease. Both are in one word, because there may be millions: the lowest bit is the flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lessor) struct GrantSource(u64);

impl GrantSource {
    /// The leader granted the lease, with this stamp.
    pub(in crate::lessor) fn granted(sequence: u64) -> Self {
        Self(sequence << 1)
    }

    /// A holder report named the copy, and this leader has not granted it. The client may have
    /// dropped the copy by now. `sequence` is that of the last grant to the session.
    pub(in crate::lessor) fn reported(sequence: u64) -> Self {
        Self(sequence << 1 | 1)
    }

    pub(in crate::lessor) fn sequence(self) -> u64 {
        self.0 >> 1
    }

    pub(in crate::lessor) fn is_reported(self) -> bool {
        self.0 & 1 == 1
    }

    /// Merges two sources of one lease. If this leader has granted the lease, the grant's own stamp
    /// counts, and not the report's. So a consent to any later recall drops the lease.
    fn and(self, other: Self) -> Self {
        let sequence = self.sequence().max(other.sequence());
        match (self.is_reported(), other.is_reported()) {
            (false, true) => self,
            (true, true) => Self::reported(sequence),
            (_, false) => Self::granted(sequence),
        }
    }
}

/// A time during which the leader records the object leases of a track. If it stops and begins
/// again, that is another recording, and the entries of the earlier one stay invalid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RecordingId(pub(super) u64);

/// An object lease, and the recording to which it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LeaseEntry {
    pub(super) lease: ObjectLease,
    pub(super) recording: RecordingId,
}

/// All entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct LeaseEntries {
    leases: BTreeMap<(Object, SessionId), LeaseEntry>,
    by_session: BTreeMap<SessionId, BTreeSet<Object>>,
    /// Where the sweep for ended leases continues.
    swept: Option<(Object, SessionId)>,
}

impl LeaseEntries {
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    pub(super) fn get(&self, object: &Object, session: SessionId) -> Option<&LeaseEntry> {
        self.leases.get(&(object.clone(), session))
    }

    /// The entry with its key, whose path shares its text with the node.
    pub(super) fn get_key_value(
        &self,
        object: &Object,
        session: SessionId,
    ) -> Option<(&(Object, SessionId), &LeaseEntry)> {
        self.leases.get_key_value(&(object.clone(), session))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Object, SessionId, &LeaseEntry)> {
        self.leases.iter().map(|((object, session), entry)| (object, *session, entry))
    }

    /// The entries of all sessions in the set.
    pub(super) fn within<'a>(
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
        self.at(set).chain(below.into_iter().flatten().counted())
    }

    /// The entries of the one object, or of the two objects of the topmost node.
    pub(super) fn at<'a>(
        &'a self,
        set: &ObjectSet,
    ) -> impl Iterator<Item = (&'a (Object, SessionId), &'a LeaseEntry)> + use<'a> {
        let (first, last) = match set {
            ObjectSet::One(object) => (object.clone(), object.clone()),
            ObjectSet::Subtree(top) => (Object::data(top.clone()), Object::children(top.clone())),
        };
        self.leases.range((first, EVERYONE.0)..=(last, EVERYONE.1)).counted()
    }

    /// The session's objects at and below `top`, from `from` on.
    pub(super) fn objects_of(
        &self,
        session: SessionId,
        top: &NodePath,
        from: Option<Object>,
    ) -> impl Iterator<Item = &Object> {
        let is_before = |bound: &Object| from.as_ref().is_none_or(|from| from <= bound);
        let last = Object::children(top.clone());
        let own = is_before(&last).then(|| from.clone().unwrap_or(Object::data(top.clone()))..=last);
        // Below the root, the range would begin with the root's own list. That is in `own`
        // already.
        let first = Object::children(top.bound_below());
        let below = if is_before(&first) { Bound::Excluded(first) } else { Bound::Included(from.unwrap_or(first)) };
        let below = (below, Bound::Excluded(Object::data(top.bound_after())));
        let objects = self.by_session.get(&session).into_iter();
        let objects = objects.flat_map(move |objects| {
            own.clone().map(|own| objects.range(own)).into_iter().flatten().chain(objects.range(below.clone()))
        });
        objects.counted()
    }

    /// Adds an entry. The session has no other entry for the object.
    pub(super) fn add(&mut self, object: Object, session: SessionId, entry: LeaseEntry) {
        self.by_session.entry(session).or_default().insert(object.clone());
        self.leases.insert((object, session), entry);
    }

    /// Replaces an entry.
    pub(super) fn update(&mut self, object: &Object, session: SessionId, entry: LeaseEntry) {
        if let Some(known) = self.leases.get_mut(&(object.clone(), session)) {
            *known = entry;
        }
    }

    pub(super) fn remove(&mut self, object: &Object, session: SessionId) -> Option<LeaseEntry> {
        let entry = self.leases.remove(&(object.clone(), session))?;
        if let Some(objects) = self.by_session.get_mut(&session) {
            objects.remove(object);
            if objects.is_empty() {
                self.by_session.remove(&session);
            }
        }
        Some(entry)
    }

    /// Examines `most` leases from where the last sweep stopped. Returns those that have ended, for
    /// removal.
    pub(super) fn sweep(&mut self, now: ClusterTime, most: usize) -> Vec<(Object, SessionId)> {
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
        // After the last lease, the next sweep begins with the first. If some leases have ended,
        // `swept` stays: the next sweep then finds nothing, and the one after it begins anew.
        if ended.is_empty() && self.swept.as_ref() == self.leases.last_key_value().map(|(key, _)| key) {
            self.swept = None;
        }
        ended
    }

    /// The object with a path whose text is shared with the node, or with other entries.
    pub(super) fn shared(&self, object: &Object, state: &State) -> Object {
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
    pub(super) fn sizes(&self) -> [(&'static str, usize); 2] {
        [
            ("object leases", self.leases.len()),
            ("object leases by session", self.by_session.values().map(BTreeSet::len).sum()),
        ]
    }

    /// Checks that the tables agree.
    pub(super) fn check(&self) -> Result<(), String> {
        for (object, session) in self.leases.keys() {
            if !self.by_session.get(session).is_some_and(|objects| objects.contains(object)) {
                return Err(format!("the lease of {session} on {object} is not in the index by session"));
            }
        }
        let by_session: usize = self.by_session.values().map(BTreeSet::len).sum();
        if by_session != self.leases.len() {
            return Err(format!("{by_session} leases by session, {} by object", self.leases.len()));
        }
        Ok(())
    }
}
