//! The keys of rows: a tag byte, then big-endian numbers, then the bytes of a path.

use crate::{
    command::AnyLease,
    id::{Incarnation, LeaseId, LockId, Revision, Sequence, SessionId},
    path::{NodePath, PathError},
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
    Lease(AnyLease),
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
            Self::Lease(AnyLease::Session(id)) => (TAG_LEASE_SESSION, [Some(id.0), None], ""),
            Self::Lease(AnyLease::Volume(id, top)) => (TAG_LEASE_VOLUME, [Some(id.0), None], top.as_str()),
            Self::Lease(AnyLease::KeyLease(id)) => (TAG_LEASE_KEY, [Some(id.0), None], ""),
            Self::Lease(AnyLease::LockDelay(id)) => (TAG_LEASE_LOCK_DELAY, [Some(id.0), None], ""),
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
            TAG_LEASE_SESSION => Self::Lease(AnyLease::Session(SessionId(rest.number()?))),
            TAG_LEASE_VOLUME => Self::Lease(AnyLease::Volume(SessionId(rest.number()?), rest.path()?)),
            TAG_LEASE_KEY => Self::Lease(AnyLease::KeyLease(LeaseId(rest.number()?))),
            TAG_LEASE_LOCK_DELAY => Self::Lease(AnyLease::LockDelay(LockId(rest.number()?))),
            TAG_CHANGE => Self::Change(Revision(rest.number()?)),
            TAG_LOCK => Self::Lock(LockId(rest.number()?), rest.path()?),
            TAG_TOMBSTONE => Self::Tombstone(Incarnation(rest.number()?)),
            TAG_CLOSED_SESSION_ORPHAN => Self::ClosedSessionOrphan(Incarnation(rest.number()?)),
            _ => return Err(rest.malformed("a tag from 0 to 12")),
        };
        if rest.rest.is_empty() { Ok(key) } else { Err(rest.malformed("the end of the key")) }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("a path")
    }

    #[test]
    fn row_keys_decode_from_their_bytes_and_keep_their_order() {
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
            RowKey::Lease(AnyLease::Session(one)),
            RowKey::Lease(AnyLease::Session(two)),
            RowKey::Lease(AnyLease::Volume(one, path("/b"))),
            RowKey::Lease(AnyLease::Volume(two, path("/a"))),
            RowKey::Lease(AnyLease::KeyLease(LeaseId(1))),
            RowKey::Lease(AnyLease::KeyLease(LeaseId(256))),
            RowKey::Lease(AnyLease::LockDelay(LockId(3))),
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
        assert_eq!(expected(&[TAG_META, 0]), "the end of the key");
        assert_eq!(expected(&[TAG_SESSION, 0, 0]), "a number of 8 bytes");
        assert_eq!(expected(&[TAG_NODE, 0xff]), "a path in UTF-8");
        assert!(matches!(RowKey::decode(&[TAG_NODE, b'a']), Err(RowError::Path { .. })));
    }
}
