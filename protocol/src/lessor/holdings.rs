//! Who holds which objects: the leader's memory of its own grants, and of what it cannot know (S7).
//!
//! Object leases are not replicated. For each live volume lease there is a [`Track`]: exact, or *covering* when
//! the leader does not know what the session holds and so assumes all of the volume. Exact entries are kept beside a
//! covering too: what is granted or listed meanwhile counts when the covering ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    id::{CoveringNumber, Incarnation, SessionId},
    message::Covering,
    object::{Kind, Object, ObjectSet},
    path::Path,
    planted::{Bug, Planted},
    state::State,
    time::ClusterTime,
};

/// What the leader knows of one volume lease's copies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Track {
    pub(super) incarnation: Incarnation,
    pub(super) mode: Mode,
    /// How many exact entries there are.
    pub(super) exact: usize,
}

/// Whether the exact entries are all that the session can hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Mode {
    /// They are.
    Exact,
    /// They may not be, until all pieces of a list that names the covering are in.
    Listed { number: CoveringNumber, pieces: BTreeSet<u32> },
    /// They are not kept: by the volume's settings, or because there would be too many.
    Covering,
}

impl Track {
    pub(super) fn is_covering(&self) -> bool {
        self.mode != Mode::Exact
    }
}

/// One object lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ObjectLease {
    /// The leader counts it as over from here on: term, drift and margin are in (T3).
    pub(super) over: ClusterTime,
    /// How the leader knows of it.
    pub(super) source: Source,
}

/// How the leader knows of an object lease, and the stamp that goes with it, in the leader's epoch. One word, as there may be
/// millions: the sequence, and in the lowest bit whether it was listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Source(u64);

impl Source {
    /// The leader granted it, by this stamp.
    pub(super) fn granted(sequence: u64) -> Self {
        Self(sequence << 1)
    }

    /// The client has told of it in a list, and nothing was granted since: it may have dropped it by now. The stamp is that
    /// of the last grant to the session.
    pub(super) fn listed(sequence: u64) -> Self {
        Self(sequence << 1 | 1)
    }

    pub(super) fn sequence(self) -> u64 {
        self.0 >> 1
    }

    pub(super) fn is_listed(self) -> bool {
        self.0 & 1 == 1
    }

    /// Both are known. A list says nothing newer of a copy than its own grant does: a consent that came after that still counts.
    fn and(self, other: Self) -> Self {
        let sequence = self.sequence().max(other.sequence());
        match (self.is_listed(), other.is_listed()) {
            (false, true) => self,
            (true, true) => Self::listed(sequence),
            (_, false) => Self::granted(sequence),
        }
    }
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Holdings {
    tracks: BTreeMap<(Path, SessionId), Track>,
    /// Those that are covering. Each write asks for them, and of ten thousand tracks there may be none.
    coverings: BTreeSet<(Path, SessionId)>,
    leases: BTreeMap<(Object, SessionId), ObjectLease>,
    by_session: BTreeMap<SessionId, BTreeSet<Object>>,
    /// Where the sweep for leases that are over goes on.
    swept: Option<(Object, SessionId)>,
    planted: Planted,
}

const EVERYONE: (SessionId, SessionId) = (SessionId(0), SessionId(u64::MAX));

impl Holdings {
    pub(super) fn new(planted: Planted) -> Self {
        Self { planted, ..Self::default() }
    }

    pub(super) fn track(&self, volume: &Path, session: SessionId) -> Option<&Track> {
        self.tracks.get(&(volume.clone(), session))
    }

    pub(super) fn tracks(&self) -> impl Iterator<Item = (&Path, SessionId, &Track)> {
        self.tracks.iter().map(|((volume, session), track)| (volume, *session, track))
    }

    /// How many sessions have a lease on this volume.
    pub(super) fn count_in(&self, volume: &Path) -> usize {
        let from = (volume.clone(), SessionId(0));
        self.tracks.range(from..).take_while(|((top, _), _)| top == volume).count()
    }

    pub(super) fn lease(&self, object: &Object, session: SessionId) -> Option<&ObjectLease> {
        self.leases.get(&(object.clone(), session))
    }

    /// A new volume lease. What was known under an older one no longer counts: the client has stopped using it.
    pub(super) fn start(
        &mut self,
        volume: Path,
        session: SessionId,
        incarnation: Incarnation,
        mode: Mode,
        state: &State,
    ) {
        self.forget_objects(&volume, session, state);
        let (key, track) = ((volume, session), Track { incarnation, mode, exact: 0 });
        match track.is_covering() {
            true => self.coverings.insert(key.clone()),
            false => self.coverings.remove(&key),
        };
        self.tracks.insert(key, track);
    }

    /// The volume lease is gone, and every object lease under it with it (S2).
    pub(super) fn end(&mut self, volume: &Path, session: SessionId, state: &State) {
        self.forget_objects(volume, session, state);
        let key = (volume.clone(), session);
        self.tracks.remove(&key);
        self.coverings.remove(&key);
    }

    /// Counts an object as leased. False if that would be one more than `most` in its volume: then nothing is kept of
    /// this volume's objects one by one, and the session is covering.
    pub(super) fn add(
        &mut self,
        volume: &Path,
        object: &Object,
        session: SessionId,
        lease: ObjectLease,
        most: usize,
        state: &State,
    ) {
        let Some(track) = self.tracks.get_mut(&(volume.clone(), session)) else { return };
        if track.mode == Mode::Covering {
            return;
        }
        if let Some(known) = self.leases.get_mut(&(object.clone(), session)) {
            known.over = known.over.max(lease.over);
            known.source = known.source.and(lease.source);
            return;
        }
        if track.exact >= most {
            if !self.planted.has(Bug::TooManyForgotten) {
                track.mode = Mode::Covering;
                self.coverings.insert((volume.clone(), session));
            }
            self.forget_objects(volume, session, state);
            return;
        }
        track.exact += 1;
        let object = self.shared(object, state);
        self.by_session.entry(session).or_default().insert(object.clone());
        self.leases.insert((object, session), lease);
    }

    /// Forgets the exact entries of one session in a set: it has dropped its copies.
    pub(super) fn remove(&mut self, set: &ObjectSet, session: SessionId, state: &State) {
        match set {
            ObjectSet::One(object) => self.remove_one(object, session, state),
            ObjectSet::Subtree(top) => {
                let objects: Vec<Object> = self.objects_of(session, top).cloned().collect();
                for object in objects {
                    self.remove_one(&object, session, state);
                }
            }
        }
    }

    /// Forgets one exact entry.
    pub(super) fn remove_one(&mut self, object: &Object, session: SessionId, state: &State) {
        if self.leases.remove(&(object.clone(), session)).is_some() {
            self.forget_by_session(session, object);
            let (volume, _) = state.volume_of(&object.path);
            if let Some(track) = self.tracks.get_mut(&(volume.clone(), session)) {
                track.exact = track.exact.saturating_sub(1);
            }
        }
    }

    /// The sessions that may hold an object of the set, by exact entry (with the latest end) or by covering (without).
    pub(super) fn holders(
        &self,
        set: &ObjectSet,
        now: ClusterTime,
        state: &State,
    ) -> Vec<(SessionId, Path, Option<ClusterTime>)> {
        let mut holders: BTreeMap<(SessionId, Path), Option<ClusterTime>> = BTreeMap::new();
        for ((object, session), lease) in self.leases_in(set) {
            if lease.over > now {
                let (volume, _) = state.volume_of(&object.path);
                let over = holders.entry((*session, volume.clone())).or_insert(Some(lease.over));
                *over = over.map(|over| over.max(lease.over));
            }
        }
        let mut add_coverings = |volume: &Path| {
            holders.extend(self.covering_keys(volume).map(|(volume, session)| ((*session, volume.clone()), None)));
        };
        add_coverings(state.volume_of(set.path()).0);
        if let ObjectSet::Subtree(top) = set {
            state.volumes_below(top).for_each(|(volume, _)| add_coverings(volume));
        }
        holders.into_iter().map(|((session, volume), over)| (session, volume, over)).collect()
    }

    /// The sessions that may hold anything of the volume, each with its lease on it.
    pub(super) fn coverings_of(&self, volume: &Path) -> impl Iterator<Item = (SessionId, Incarnation)> {
        let coverings = self.covering_keys(volume).filter_map(|key| self.tracks.get_key_value(key));
        coverings.map(|((_, session), track)| (*session, track.incarnation))
    }

    fn covering_keys(&self, volume: &Path) -> impl Iterator<Item = &(Path, SessionId)> {
        self.coverings.range((volume.clone(), EVERYONE.0)..=(volume.clone(), EVERYONE.1))
    }

    /// The exact entries of all sessions in a set.
    pub(super) fn leases_in(&self, set: &ObjectSet) -> impl Iterator<Item = (&(Object, SessionId), &ObjectLease)> {
        let (own, below) = match set {
            ObjectSet::One(object) => ((object.clone(), object.clone()), None),
            ObjectSet::Subtree(top) => (
                (Object::data(top.clone()), Object::children(top.clone())),
                Some((Object::data(top.bound_below()), Object::data(top.bound_after()))),
            ),
        };
        let own = self.leases.range((own.0, EVERYONE.0)..=(own.1, EVERYONE.1));
        let below = below.map(|(from, to)| self.leases.range((from, EVERYONE.0)..(to, EVERYONE.0)));
        own.chain(below.into_iter().flatten())
    }

    /// The coverings of a session in these volumes that a list can end, each with a new number, for it to be asked for lists (S7).
    /// What has come of earlier lists does not count towards these.
    pub(super) fn ask_for_lists<'a>(
        &mut self,
        session: SessionId,
        volumes: impl Iterator<Item = &'a Path>,
        mut next: impl FnMut() -> CoveringNumber,
    ) -> Vec<Covering> {
        let mut coverings = Vec::new();
        for volume in volumes {
            let Some(track) = self.tracks.get_mut(&(volume.clone(), session)) else { continue };
            if let Mode::Listed { number, pieces } = &mut track.mode {
                *number = next();
                if !self.planted.has(Bug::ListPiecesMixed) {
                    pieces.clear();
                }
                coverings.push(Covering { volume: volume.clone(), incarnation: track.incarnation, number: *number });
            }
        }
        coverings
    }

    /// A piece of the list that a covering was asked for has come. With the last of them the covering ends: what is known is all that the
    /// session can hold (S7).
    pub(super) fn piece_came(&mut self, volume: &Path, session: SessionId, piece: u32, pieces: u32) {
        let key = (volume.clone(), session);
        let Some(track) = self.tracks.get_mut(&key) else { return };
        if let Mode::Listed { pieces: seen, .. } = &mut track.mode {
            seen.insert(piece);
            if (0..pieces).all(|piece| seen.contains(&piece)) {
                track.mode = Mode::Exact;
                self.coverings.remove(&key);
            }
        }
    }

    /// Forgets some of the leases that are over, going on where it stopped last: looks at `most` of them.
    pub(super) fn sweep(&mut self, now: ClusterTime, most: usize, state: &State) {
        let start = match self.swept.take() {
            Some(key) => std::ops::Bound::Excluded(key),
            None => std::ops::Bound::Unbounded,
        };
        let mut over = Vec::new();
        for (seen, (key, lease)) in self.leases.range((start, std::ops::Bound::Unbounded)).enumerate() {
            if seen == most {
                break;
            }
            self.swept = Some(key.clone());
            if lease.over <= now {
                over.push(key.clone());
            }
        }
        if over.is_empty() && self.swept.as_ref() == self.leases.last_key_value().map(|(key, _)| key) {
            self.swept = None;
        }
        for (object, session) in over {
            self.remove_one(&object, session, state);
        }
    }

    /// A volume's borders have changed: forgets the exact entries at and below `top`, and counts the others anew.
    pub(super) fn resettle(&mut self, top: &Path, state: &State) {
        let below: Vec<(Object, SessionId)> =
            self.leases_in(&ObjectSet::Subtree(top.clone())).map(|(key, _)| key.clone()).collect();
        for (object, session) in below {
            self.leases.remove(&(object.clone(), session));
            self.forget_by_session(session, &object);
        }
        self.tracks.values_mut().for_each(|track| track.exact = 0);
        for (object, session) in self.leases.keys() {
            let (volume, _) = state.volume_of(&object.path);
            if let Some(track) = self.tracks.get_mut(&(volume.clone(), *session)) {
                track.exact += 1;
            }
        }
    }

    fn forget_objects(&mut self, volume: &Path, session: SessionId, state: &State) {
        let in_volume = |object: &&Object| state.volume_of(&object.path).0 == volume;
        let objects: Vec<Object> = self.objects_of(session, volume).filter(in_volume).cloned().collect();
        for object in objects {
            self.leases.remove(&(object.clone(), session));
            self.forget_by_session(session, &object);
        }
        if let Some(track) = self.tracks.get_mut(&(volume.clone(), session)) {
            track.exact = 0;
        }
    }

    fn objects_of(&self, session: SessionId, top: &Path) -> impl Iterator<Item = &Object> {
        let own = Object::data(top.clone())..=Object::children(top.clone());
        let below = Object::data(top.bound_below())..Object::data(top.bound_after());
        let objects = self.by_session.get(&session).into_iter();
        objects.flat_map(move |objects| objects.range(own.clone()).chain(objects.range(below.clone())))
    }

    fn forget_by_session(&mut self, session: SessionId, object: &Object) {
        if let Some(objects) = self.by_session.get_mut(&session) {
            objects.remove(object);
            if objects.is_empty() {
                self.by_session.remove(&session);
            }
        }
    }

    /// The object with the path's text shared with the node's, or with entries that there are already.
    fn shared(&self, object: &Object, state: &State) -> Object {
        let twin = || {
            [Kind::Data, Kind::Children].into_iter().find_map(|kind| {
                let twin = Object { path: object.path.clone(), kind };
                let known = self.leases.range((twin.clone(), EVERYONE.0)..=(twin, EVERYONE.1)).next();
                known.map(|((known, _), _)| known.path.clone())
            })
        };
        let path = state.kept_path(&object.path).cloned().or_else(twin);
        Object { path: path.unwrap_or_else(|| object.path.clone()), kind: object.kind }
    }

    /// The tables agree with each other.
    pub(super) fn check(&self, state: &State) -> Result<(), String> {
        let mut counts: BTreeMap<(Path, SessionId), usize> = BTreeMap::new();
        for (object, session) in self.leases.keys() {
            if !self.by_session.get(session).is_some_and(|objects| objects.contains(object)) {
                return Err(format!("the lease of {session} on {object} is missing among the session's"));
            }
            *counts.entry((state.volume_of(&object.path).0.clone(), *session)).or_default() += 1;
        }
        let by_session: usize = self.by_session.values().map(BTreeSet::len).sum();
        if by_session != self.leases.len() {
            return Err(format!("{by_session} leases by session, {} by object", self.leases.len()));
        }
        if !self.coverings.iter().eq(self.tracks.iter().filter(|(_, track)| track.is_covering()).map(|(key, _)| key)) {
            return Err(format!("the coverings are {:?}, not those of the tracks", self.coverings));
        }
        for (key, count) in &counts {
            match self.tracks.get(key) {
                Some(track) if track.exact == *count => {}
                Some(track) => return Err(format!("{key:?} counts {} leases and has {count}", track.exact)),
                None => return Err(format!("{key:?} has object leases without a volume lease")),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::VolumeSettings;

    #[test]
    fn a_list_makes_no_grant_newer_than_it_is() {
        let state = State::new(VolumeSettings::DEFAULT);
        let (session, object) = (SessionId(1), Object::data(Path::root()));
        let mut holdings = Holdings::default();
        holdings.start(Path::root(), session, Incarnation(1), Mode::Exact, &state);
        let mut add = |sequence, is_listed, seconds| {
            let over = ClusterTime::ZERO.after(std::time::Duration::from_secs(seconds));
            let source = if is_listed { Source::listed(sequence) } else { Source::granted(sequence) };
            let lease = ObjectLease { over, source };
            holdings.add(&Path::root(), &object, session, lease, 9, &state);
            let lease = holdings.lease(&object, session).expect("it was added");
            (lease.source.sequence(), lease.source.is_listed(), lease.over.as_micros() / 1_000_000)
        };
        assert_eq!(add(2, true, 10), (2, true, 10));
        assert_eq!(add(3, true, 9), (3, true, 10), "what was granted in between may be what it tells of");
        assert_eq!(add(4, false, 20), (4, false, 20));
        assert_eq!(add(9, true, 30), (4, false, 30), "a consent to a recall between 4 and 9 is a consent to it");
    }

    fn secs(secs: u64) -> ClusterTime {
        ClusterTime::ZERO.after(std::time::Duration::from_secs(secs))
    }

    /// One session's leases on objects with these names, which are over by then.
    fn leased(leases: &[(&str, u64)], state: &State) -> Holdings {
        let mut holdings = Holdings::default();
        holdings.start(Path::root(), SessionId(1), Incarnation(1), Mode::Exact, state);
        for (text, over) in leases {
            let lease = ObjectLease { over: secs(*over), source: Source::granted(1) };
            holdings.add(&Path::root(), &object(text), SessionId(1), lease, 9, state);
        }
        holdings
    }

    fn object(text: &str) -> Object {
        Object::data(Path::parse(text).expect("valid"))
    }

    #[test]
    fn an_object_lease_has_no_holder_from_the_moment_that_it_is_over() {
        let state = State::new(VolumeSettings::DEFAULT);
        let holdings = leased(&[("/a", 10)], &state);
        let set = ObjectSet::One(object("/a"));
        assert_eq!(holdings.holders(&set, secs(9), &state), [(SessionId(1), Path::root(), Some(secs(10)))]);
        assert_eq!(holdings.holders(&set, secs(10), &state), []);
    }

    #[test]
    fn leases_that_are_over_are_forgotten_some_at_a_time_and_all_in_the_end() {
        let state = State::new(VolumeSettings::DEFAULT);
        let sweep = |holdings: &mut Holdings, now| {
            holdings.sweep(secs(now), 2, &state);
            assert_eq!(holdings.check(&state), Ok(()));
            let names: Vec<_> = holdings.leases.keys().map(|(object, _)| object.path.to_string()).collect();
            names.concat()
        };
        let mut holdings = leased(&[("/a", 20), ("/b", 90), ("/c", 10), ("/d", 90)], &state);
        assert_eq!(sweep(&mut holdings, 10), "/a/b/c/d");
        assert_eq!(sweep(&mut holdings, 10), "/a/b/d", "it goes on behind those that it has seen");
        let swept: Vec<_> = (0..4).map(|_| sweep(&mut holdings, 20)).collect();
        assert_eq!(swept.last().map(String::as_str), Some("/b/d"), "and begins anew at the end");
        let swept: Vec<_> = (0..4).map(|_| sweep(&mut holdings, 90)).collect();
        assert_eq!(swept.last().map(String::as_str), Some(""));
    }
}
