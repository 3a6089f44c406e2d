//! Rows: the replicated state as keys and values in bytes, for the disk and for Raft snapshots.
//!
//! A key is a tag byte, then big-endian numbers, then the bytes of a path. This encoding preserves
//! order, so rows of one kind are adjacent, in the order of the maps in the state. A value is in
//! the [postcard](https://postcard.jamesmunns.com) format.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, de::DeserializeOwned};

use super::{History, Meta, State, history::HistoryEntry};
use crate::{
    command::{LeaseKey, WriteRefusal, Written},
    id::{Incarnation, LeaseId, LockId, Revision, Sequence, SessionId},
    path::{NodePath, PathError},
    planted::Bug,
};

/// The key of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowKey {
    /// The counters, the epoch and the cluster time: one row, which changes with every entry.
    Meta,
    /// A node.
    Node(NodePath),
    /// A volume.
    Volume(NodePath),
    /// A session.
    Session(SessionId),
    /// The remembered outcome of a session's request.
    Answer(SessionId, Sequence),
    /// A lease.
    Lease(LeaseKey),
    /// A change in the history: its objects and its events.
    Change(Revision),
    /// A lock on a node.
    Lock(LockId, NodePath),
    /// A lease whose nodes are purged, but not all reclaimed yet.
    Tombstone(Incarnation),
    /// A lease that ended because its session was closed, and whose nodes still exist.
    ClosedSessionOrphan(Incarnation),
}

/// The error of rows that do not form a state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RowError {
    /// A key is malformed.
    #[error("row key {key:02x?}: malformed; expected {expected}")]
    Key {
        /// The key.
        key: Vec<u8>,
        /// The expected content.
        expected: &'static str,
    },
    /// The path in a key is invalid.
    #[error("row key {key:02x?}: {cause}")]
    Path {
        /// The key.
        key: Vec<u8>,
        /// The error of the path.
        cause: PathError,
    },
    /// A value does not decode.
    #[error("row {key:?}: the value does not decode: {cause}")]
    Value {
        /// The row.
        key: RowKey,
        /// The error of the decoder.
        cause: String,
    },
    /// A row occurs twice.
    #[error("row {key:?}: duplicate")]
    Twice {
        /// The row.
        key: RowKey,
    },
    /// The row [`RowKey::Meta`] is missing.
    #[error("row {:?}: missing", RowKey::Meta)]
    MetaMissing,
    /// Each row is well-formed, but the rows contradict each other.
    #[error("rows contradict each other: {what}")]
    Inconsistent {
        /// The contradiction.
        what: String,
    },
}

const TAG_META: u8 = 0;
const TAG_NODE: u8 = 1;
const TAG_VOLUME: u8 = 2;
const TAG_SESSION: u8 = 3;
const TAG_ANSWER: u8 = 4;
const TAG_LEASE_SESSION: u8 = 5;
const TAG_LEASE_VOLUME: u8 = 6;
const TAG_LEASE_KEY: u8 = 7;
const TAG_LEASE_LOCK_DELAY: u8 = 8;
const TAG_CHANGE: u8 = 9;
const TAG_LOCK: u8 = 10;
const TAG_TOMBSTONE: u8 = 11;
const TAG_CLOSED_SESSION_ORPHAN: u8 = 12;

impl RowKey {
    /// The key as bytes, in the same order as [`RowKey`].
    pub fn encode(&self) -> Vec<u8> {
        let (tag, numbers, path): (u8, [Option<u64>; 2], &str) = match self {
            Self::Meta => (TAG_META, [None, None], ""),
            Self::Node(path) => (TAG_NODE, [None, None], path.as_str()),
            Self::Volume(top) => (TAG_VOLUME, [None, None], top.as_str()),
            Self::Session(id) => (TAG_SESSION, [Some(id.0), None], ""),
            Self::Answer(id, sequence) => (TAG_ANSWER, [Some(id.0), Some(sequence.0)], ""),
            Self::Lease(LeaseKey::Session(id)) => (TAG_LEASE_SESSION, [Some(id.0), None], ""),
            Self::Lease(LeaseKey::Volume(id, top)) => (TAG_LEASE_VOLUME, [Some(id.0), None], top.as_str()),
            Self::Lease(LeaseKey::Key(id)) => (TAG_LEASE_KEY, [Some(id.0), None], ""),
            Self::Lease(LeaseKey::LockDelay(id)) => (TAG_LEASE_LOCK_DELAY, [Some(id.0), None], ""),
            Self::Change(revision) => (TAG_CHANGE, [Some(revision.0), None], ""),
            Self::Lock(id, path) => (TAG_LOCK, [Some(id.0), None], path.as_str()),
            Self::Tombstone(lease) => (TAG_TOMBSTONE, [Some(lease.0), None], ""),
            Self::ClosedSessionOrphan(lease) => (TAG_CLOSED_SESSION_ORPHAN, [Some(lease.0), None], ""),
        };
        let mut bytes = Vec::with_capacity(1 + 16 + path.len());
        bytes.push(tag);
        for number in numbers.into_iter().flatten() {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(path.as_bytes());
        bytes
    }

    /// Decodes a key.
    ///
    /// # Errors
    ///
    /// [`RowError::Key`] or [`RowError::Path`] if the bytes are no key.
    pub fn decode(bytes: &[u8]) -> Result<Self, RowError> {
        let mut rest = KeyRest { key: bytes, rest: bytes };
        let key = match rest.tag()? {
            TAG_META => Self::Meta,
            TAG_NODE => Self::Node(rest.path()?),
            TAG_VOLUME => Self::Volume(rest.path()?),
            TAG_SESSION => Self::Session(SessionId(rest.number()?)),
            TAG_ANSWER => Self::Answer(SessionId(rest.number()?), Sequence(rest.number()?)),
            TAG_LEASE_SESSION => Self::Lease(LeaseKey::Session(SessionId(rest.number()?))),
            TAG_LEASE_VOLUME => Self::Lease(LeaseKey::Volume(SessionId(rest.number()?), rest.path()?)),
            TAG_LEASE_KEY => Self::Lease(LeaseKey::Key(LeaseId(rest.number()?))),
            TAG_LEASE_LOCK_DELAY => Self::Lease(LeaseKey::LockDelay(LockId(rest.number()?))),
            TAG_CHANGE => Self::Change(Revision(rest.number()?)),
            TAG_LOCK => Self::Lock(LockId(rest.number()?), rest.path()?),
            TAG_TOMBSTONE => Self::Tombstone(Incarnation(rest.number()?)),
            TAG_CLOSED_SESSION_ORPHAN => Self::ClosedSessionOrphan(Incarnation(rest.number()?)),
            _ => return Err(rest.malformed("a tag from 0 to 12")),
        };
        if rest.rest.is_empty() { Ok(key) } else { Err(rest.malformed("nothing more")) }
    }
}

/// The part of a key that is still to be read.
struct KeyRest<'a> {
    key: &'a [u8],
    rest: &'a [u8],
}

impl KeyRest<'_> {
    fn tag(&mut self) -> Result<u8, RowError> {
        let (tag, rest) = self.rest.split_first().ok_or_else(|| self.malformed("a tag"))?;
        self.rest = rest;
        Ok(*tag)
    }

    fn number(&mut self) -> Result<u64, RowError> {
        let (number, rest) = self.rest.split_first_chunk().ok_or_else(|| self.malformed("a number of 8 bytes"))?;
        self.rest = rest;
        Ok(u64::from_be_bytes(*number))
    }

    fn path(&mut self) -> Result<NodePath, RowError> {
        let text = std::str::from_utf8(self.rest).map_err(|_| self.malformed("a path in UTF-8"))?;
        let path = NodePath::parse(text).map_err(|cause| RowError::Path { key: self.key.to_vec(), cause })?;
        self.rest = &[];
        Ok(path)
    }

    fn malformed(&self, expected: &'static str) -> RowError {
        RowError::Key { key: self.key.to_vec(), expected }
    }
}

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
                self.locks.rows.get(id).filter(|(at, _)| at == path).map(|(_, hold)| encode(hold))
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
        let first = self.meta.history_start.0 + 1;
        let changes = (first..).zip(self.history.changes());
        let changes = changes.map(|(revision, change)| (RowKey::Change(Revision(revision)).encode(), encode(change)));
        let holds = self.locks().map(|(id, path, hold)| (RowKey::Lock(id, path.clone()).encode(), encode(hold)));
        let gone = self.attachments.tombstones.iter().map(|lease| (RowKey::Tombstone(*lease).encode(), encode(&())));
        let closed = self
            .attachments
            .closed_session_orphans
            .iter()
            .map(|lease| (RowKey::ClosedSessionOrphan(*lease).encode(), encode(&())));
        let named = meta.chain(nodes).chain(volumes).chain(sessions).chain(answers).chain(leases);
        named.chain(changes).chain(holds).chain(gone).chain(closed)
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
    leases: BTreeMap<LeaseKey, super::LeaseRecord>,
    changes: BTreeMap<Revision, HistoryEntry>,
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
                what: format!("the answer to request {sequence} of session {id}, which does not exist"),
            })?;
            session.answers.insert(sequence, answer);
        }
        let mut expected = meta.history_start;
        for got in self.changes.keys() {
            expected = Revision(expected.0.saturating_add(1));
            if *got != expected {
                let what = format!("the history goes on with change {got}: expected {expected}");
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
            leases: self.leases,
            locks: super::LockTable::of(self.locks),
            history: History::of(self.changes.into_values()),
            volume_lease_holders: Default::default(),
            tick_counts: Default::default(),
            tick: Default::default(),
            planted: Default::default(),
        };
        if !state.volumes.contains_key(&crate::path::NodePath::root()) {
            return Err(RowError::Inconsistent { what: "the root is not a volume".to_owned() });
        }
        state.index_volumes();
        state.index_last_changes();
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
        return Err(malformed(format!("{} bytes are left over: expected none", rest.len())));
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
        fixture.write(session, delete("/none", false)).expect_err("it does not exist");
        fixture
    }

    fn without(fixture: &Fixture, key: RowKey) -> Result<State, RowError> {
        let mut rows = fixture.rows.clone();
        assert!(rows.remove(&key.encode()).is_some(), "{key:?} is there");
        State::from_rows(rows)
    }

    #[test]
    fn keys_come_back_from_their_bytes_and_keep_their_order() {
        let (one, two) = (SessionId(1), SessionId(256));
        let keys = [
            RowKey::Meta,
            RowKey::Node(path("/")),
            RowKey::Node(path("/a")),
            RowKey::Node(path("/a-b")),
            RowKey::Node(path("/a/x")),
            RowKey::Volume(path("/")),
            RowKey::Session(one),
            RowKey::Session(two),
            RowKey::Answer(one, Sequence(255)),
            RowKey::Answer(one, Sequence(256)),
            RowKey::Answer(two, Sequence(1)),
            RowKey::Lease(LeaseKey::Session(one)),
            RowKey::Lease(LeaseKey::Session(two)),
            RowKey::Lease(LeaseKey::Volume(one, path("/b"))),
            RowKey::Lease(LeaseKey::Volume(two, path("/a"))),
            RowKey::Lease(LeaseKey::Key(LeaseId(1))),
            RowKey::Lease(LeaseKey::Key(LeaseId(256))),
            RowKey::Lease(LeaseKey::LockDelay(LockId(3))),
            RowKey::Change(Revision(9)),
            RowKey::Change(Revision(u64::MAX)),
            RowKey::Lock(LockId(1), path("/z")),
            RowKey::Lock(LockId(2), path("/a")),
            RowKey::Tombstone(Incarnation(1)),
            RowKey::Tombstone(Incarnation(256)),
            RowKey::ClosedSessionOrphan(Incarnation(1)),
        ];
        assert!(keys.is_sorted());
        let encoded = keys.each_ref().map(RowKey::encode);
        assert!(encoded.is_sorted());
        assert_eq!(encoded.map(|key| RowKey::decode(&key)), keys.map(Ok));
    }

    #[test]
    fn malformed_keys_are_refused_with_what_was_expected() {
        let expected = |key: &[u8]| match RowKey::decode(key) {
            Err(RowError::Key { expected, .. }) => expected,
            other => panic!("{other:?}"),
        };
        assert_eq!(expected(&[]), "a tag");
        assert_eq!(expected(&[13]), "a tag from 0 to 12");
        assert_eq!(expected(&[TAG_META, 0]), "nothing more");
        assert_eq!(expected(&[TAG_SESSION, 0, 0]), "a number of 8 bytes");
        assert_eq!(expected(&[TAG_NODE, 0xff]), "a path in UTF-8");
        assert!(matches!(RowKey::decode(&[TAG_NODE, b'a']), Err(RowError::Path { .. })));
    }

    #[test]
    fn the_rows_are_the_state() {
        let fixture = sample();
        let rows: Vec<_> = fixture.state.rows().collect();
        assert!(rows.is_sorted_by(|one, other| one.0 < other.0), "in order, each once");
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
    fn a_missing_row_is_missed() {
        let fixture = sample();
        let session = SessionId(1);
        let what = |key| match without(&fixture, key) {
            Err(RowError::Inconsistent { what }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(without(&fixture, RowKey::Meta), Err(RowError::MetaMissing));
        assert_eq!(what(RowKey::Node(path("/"))), "the root does not exist");
        assert_eq!(what(RowKey::Node(path("/a"))), "node /a/x exists, but not the node above it");
        assert_eq!(what(RowKey::Node(path("/a/x"))), "node /a counts 1 children: expected 0");
        assert_eq!(what(RowKey::Volume(path("/"))), "the root is not a volume");
        assert!(what(RowKey::Volume(path("/a"))).ends_with("is on a volume that is gone"));
        assert_eq!(what(RowKey::Lease(LeaseKey::Session(session))), "session 1 has no lease");
        assert!(what(RowKey::Session(session)).starts_with("the answer to request 1 of session 1"));
        assert_eq!(what(RowKey::Change(Revision(2))), "the history goes on with change 3: expected 2");
        assert!(what(RowKey::Change(Revision(4))).ends_with("expected them to end with 4"));
    }

    #[test]
    fn rows_that_are_there_twice_or_do_not_decode_are_refused() {
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
        let error = State::from_rows(rows().chain([longer])).expect_err("left over");
        assert!(error.to_string().contains("1 bytes are left over"), "{error}");
    }
}
