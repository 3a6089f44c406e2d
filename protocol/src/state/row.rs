//! Rows: the replicated state as keys and values in bytes, for the disk and for Raft snapshots.
//!
//! A key is a tag byte, then big-endian numbers, then the bytes of a path. This encoding preserves
//! order, so rows of one kind are adjacent, in the order of the maps in the state. A value is in
//! the [postcard](https://postcard.jamesmunns.com) format.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    History, Meta, State,
    history::StoredChange,
    row_key::{RowError, RowKey},
};
use crate::{
    command::{AnyLease, WriteRefusal, Written},
    id::{Incarnation, LockId, Revision, Sequence, SessionId},
    path::NodePath,
    planted::Bug,
};

impl State {
    /// The present value of a row. `None` if there is no such row.
    pub fn row(&self, key: &RowKey) -> Option<Vec<u8>> {
        match key {
            RowKey::Meta => Some(encode(&self.meta)),
            RowKey::Node(path) => self.nodes.get(path).map(encode),
            RowKey::Volume(top) => self.volumes.get(top).map(encode),
            RowKey::Session(id) => self.sessions.get(id).map(encode),
            RowKey::Answer(id, sequence) => self.sessions.get(id)?.answers.get(sequence).map(encode),
            RowKey::Lease(key) => self.leases.get(key).map(encode),
            RowKey::Change(revision) => self.change(*revision).map(encode),
            RowKey::Lock(id, path) => {
                self.locks.rows.get(id).filter(|(locked, _)| locked == path).map(|(_, record)| encode(record))
            }
            RowKey::Tombstone(lease) => self.attachments.tombstones.contains(lease).then(|| encode(&())),
            RowKey::ClosedSessionOrphan(lease) => {
                self.attachments.closed_session_orphans.contains(lease).then(|| encode(&()))
            }
        }
    }

    /// All rows, in the order of their keys. A Raft snapshot consists of these rows. The iterator
    /// encodes each row only when it returns it.
    pub fn rows(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        let meta = std::iter::once((RowKey::Meta.encode(), encode(&self.meta)));
        let nodes = self.nodes.iter().map(|(path, node)| (RowKey::Node(path.clone()).encode(), encode(node)));
        let volumes = self.volumes.iter().map(|(top, volume)| (RowKey::Volume(top.clone()).encode(), encode(volume)));
        let sessions = self.sessions.iter().map(|(id, session)| (RowKey::Session(*id).encode(), encode(session)));
        let remembered = self.sessions.iter().filter(|_| !self.planted.has(Bug::OutcomesNotInSnapshots));
        let answers = remembered.flat_map(|(id, session)| {
            session.answers.iter().map(|(sequence, answer)| (RowKey::Answer(*id, *sequence).encode(), encode(answer)))
        });
        let leases = self.leases.iter().map(|(key, lease)| (RowKey::Lease(key.clone()).encode(), encode(lease)));
        let oldest = self.meta.compacted_through.0 + 1;
        let changes = (oldest..).zip(self.history.changes());
        let changes = changes.map(|(revision, change)| (RowKey::Change(Revision(revision)).encode(), encode(change)));
        let locks = self.locks().map(|(id, path, record)| (RowKey::Lock(id, path.clone()).encode(), encode(record)));
        let tombstones =
            self.attachments.tombstones.iter().map(|lease| (RowKey::Tombstone(*lease).encode(), encode(&())));
        let closed = self
            .attachments
            .closed_session_orphans
            .iter()
            .map(|lease| (RowKey::ClosedSessionOrphan(*lease).encode(), encode(&())));
        let named = meta.chain(nodes).chain(volumes).chain(sessions).chain(answers).chain(leases);
        named.chain(changes).chain(locks).chain(tombstones).chain(closed)
    }

    /// Builds a state from its rows, in any order.
    ///
    /// # Errors
    ///
    /// [`RowError`] if a row is malformed, or if [`State::check`] finds that the rows do not form a
    /// state.
    pub fn from_rows(rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<Self, RowError> {
        let mut reader = RowReader::default();
        for (key, value) in rows {
            reader.read(RowKey::decode(&key)?, &value)?;
        }
        reader.finish()
    }
}

/// The rows read so far.
#[derive(Default)]
struct RowReader {
    meta: Option<Meta>,
    nodes: BTreeMap<NodePath, super::NodeRecord>,
    volumes: BTreeMap<NodePath, super::VolumeRecord>,
    sessions: BTreeMap<SessionId, super::SessionRecord>,
    answers: BTreeMap<(SessionId, Sequence), Result<Written, WriteRefusal>>,
    leases: BTreeMap<AnyLease, super::LeaseRecord>,
    changes: BTreeMap<Revision, StoredChange>,
    locks: BTreeMap<LockId, (NodePath, super::LockRecord)>,
    tombstones: BTreeSet<Incarnation>,
    closed_session_orphans: BTreeSet<Incarnation>,
}

impl RowReader {
    fn read(&mut self, key: RowKey, value: &[u8]) -> Result<(), RowError> {
        let is_new = match key.clone() {
            RowKey::Meta => self.meta.replace(decode(&key, value)?).is_none(),
            RowKey::Node(path) => self.nodes.insert(path, decode(&key, value)?).is_none(),
            RowKey::Volume(top) => self.volumes.insert(top, decode(&key, value)?).is_none(),
            RowKey::Session(id) => self.sessions.insert(id, decode(&key, value)?).is_none(),
            RowKey::Answer(id, sequence) => self.answers.insert((id, sequence), decode(&key, value)?).is_none(),
            RowKey::Lease(lease) => self.leases.insert(lease, decode(&key, value)?).is_none(),
            RowKey::Change(revision) => self.changes.insert(revision, decode(&key, value)?).is_none(),
            RowKey::Lock(id, path) => self.locks.insert(id, (path, decode(&key, value)?)).is_none(),
            RowKey::Tombstone(lease) => decode(&key, value).map(|()| self.tombstones.insert(lease))?,
            RowKey::ClosedSessionOrphan(lease) => {
                decode(&key, value).map(|()| self.closed_session_orphans.insert(lease))?
            }
        };
        if is_new { Ok(()) } else { Err(RowError::Twice { key }) }
    }

    fn finish(mut self) -> Result<State, RowError> {
        let meta = self.meta.ok_or(RowError::MetaMissing)?;
        for ((id, sequence), answer) in self.answers {
            let session = self.sessions.get_mut(&id).ok_or_else(|| RowError::Inconsistent {
                what: format!("request {sequence} has an answer, and its session {id} does not exist"),
            })?;
            session.answers.insert(sequence, answer);
        }
        let mut expected = meta.compacted_through;
        for revision in self.changes.keys() {
            expected = Revision(expected.0.saturating_add(1));
            if *revision != expected {
                let what = format!("change {revision} follows in the history: expected {expected}");
                return Err(RowError::Inconsistent { what });
            }
        }
        let mut state = State {
            attachments: super::Attachments::of(
                &self.nodes,
                &self.leases,
                (self.tombstones, self.closed_session_orphans),
            ),
            meta,
            nodes: self.nodes,
            volumes: self.volumes,
            result_count: self.sessions.values().map(super::SessionRecord::results).sum(),
            sessions: self.sessions,
            lease_names: Default::default(),
            leases: self.leases,
            locks: super::LockTable::of(self.locks),
            history: History::of(self.changes.into_values()),
            volume_lease_holders: Default::default(),
            tick_counts: Default::default(),
            volume_uses: Default::default(),
            tick: Default::default(),
            planted: Default::default(),
        };
        if !state.volumes.contains_key(&crate::path::NodePath::root()) {
            return Err(RowError::Inconsistent { what: "the root is not a volume".to_owned() });
        }
        state.index_volumes();
        state.index_lease_names()?;
        state.index_history();
        state.check().map_err(|what| RowError::Inconsistent { what })?;
        Ok(state)
    }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("plain data in memory always encodes")
}

fn decode<T: DeserializeOwned>(key: &RowKey, value: &[u8]) -> Result<T, RowError> {
    let malformed = |cause: String| RowError::Value { key: key.clone(), cause };
    let (decoded, rest) = postcard::take_from_bytes(value).map_err(|error| malformed(error.to_string()))?;
    if !rest.is_empty() {
        return Err(malformed(format!("{} bytes follow the value: expected none", rest.len())));
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};

    fn sample() -> Fixture {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        for at in ["/a/x", "/a-b", "/a0/y"] {
            fixture.put(session, at, "value");
        }
        fixture.write(session, create_volume("/a", 5)).expect("new");
        fixture.acquire(session, "/a");
        fixture.write(session, delete("/none", false)).expect_err("the node does not exist");
        fixture
    }

    fn without(fixture: &Fixture, key: RowKey) -> Result<State, RowError> {
        let mut rows = fixture.rows.clone();
        assert!(rows.remove(&key.encode()).is_some(), "{key:?} is one of the rows");
        State::from_rows(rows)
    }

    #[test]
    fn the_rows_are_the_state() {
        let fixture = sample();
        let rows: Vec<_> = fixture.state.rows().collect();
        assert!(rows.is_sorted_by(|one, other| one.0 < other.0), "the rows are in order, each once");
        assert_eq!(State::from_rows(rows.iter().rev().cloned()), Ok(fixture.state.clone()));
        for (key, value) in rows {
            let key = RowKey::decode(&key).expect("a key");
            assert_eq!(fixture.state.row(&key), Some(value), "{key:?}");
        }
        assert_eq!(fixture.state.row(&RowKey::Node(path("/none"))), None);
        assert_eq!(fixture.state.row(&RowKey::Change(Revision(0))), None);
        assert_eq!(fixture.state.row(&RowKey::Change(Revision(5))), None);
    }

    #[test]
    fn rows_without_one_row_are_refused() {
        let fixture = sample();
        let session = SessionId(1);
        let contradiction = |key| match without(&fixture, key) {
            Err(RowError::Inconsistent { what }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(without(&fixture, RowKey::Meta), Err(RowError::MetaMissing));
        assert_eq!(contradiction(RowKey::Node(path("/"))), "the root does not exist");
        assert_eq!(contradiction(RowKey::Node(path("/a"))), "node /a/x exists, and its parent does not");
        assert_eq!(contradiction(RowKey::Node(path("/a/x"))), "node /a counts 1 children: expected 0");
        assert_eq!(contradiction(RowKey::Volume(path("/"))), "the root is not a volume");
        assert!(contradiction(RowKey::Volume(path("/a"))).ends_with("its volume does not exist"));
        assert_eq!(contradiction(RowKey::Lease(AnyLease::Session(session))), "session 1 has no lease");
        assert!(contradiction(RowKey::Session(session)).starts_with("request 1 has an answer"));
        assert_eq!(contradiction(RowKey::Change(Revision(2))), "change 3 follows in the history: expected 2");
        assert!(contradiction(RowKey::Change(Revision(4))).ends_with("expected the last to be 4"));
    }

    #[test]
    fn duplicate_and_malformed_rows_are_refused() {
        let fixture = sample();
        let rows = || fixture.state.rows();
        let key = RowKey::Node(path("/a"));
        let row = (key.encode(), fixture.state.row(&key).expect("a row"));
        assert_eq!(State::from_rows(rows().chain([row.clone()])), Err(RowError::Twice { key }));
        let session = RowKey::Session(SessionId(7));
        let cut = (session.encode(), vec![9]);
        assert!(matches!(State::from_rows(rows().chain([cut])), Err(RowError::Value { key, .. }) if key == session));
        let mut longer = row;
        longer.0 = RowKey::Node(path("/a/z")).encode();
        longer.1.push(0);
        let error = State::from_rows(rows().chain([longer])).expect_err("a byte follows the value");
        assert!(error.to_string().contains("1 bytes follow the value"), "{error}");
    }
}
