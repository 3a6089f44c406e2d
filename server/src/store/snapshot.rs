//! Snapshots: the replicated state as a stream of rows, from one replica to another.
//!
//! ```text
//! magic "LSHSNAP" and a format version byte
//! header    length u32, then postcard: the applied log id and the membership
//! row       1, key length u32, value length u32, key, value; keys ascend strictly
//! end       0, row count u64, crc32 of everything before the crc
//! ```
//!
//! Numbers are little-endian. The count and the crc are last, so a view is sent in one pass.
//!
//! **Guarantees.** [`SnapshotFile::check`] reads a received file completely before anything of it
//! is used: its format, the order and number of its rows, and its checksum. It has one row in
//! memory at a time. [`CheckedSnapshot::load`] builds the state after the replica has dropped the
//! one that it replaces, so memory has one state. For any bytes, both return an error rather than
//! panic. Beyond the rows' own size, they allocate no more than the bound of one row.

use std::{
    fmt,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use fjall::{Keyspace, Readable, UserKey, UserValue};
use leasehold_protocol::state::{RowError, State};
use serde::{Deserialize, Serialize};

use super::poison::Poison;
use crate::raft::types::{
    TypeConfig,
    alias::{LogId, SnapshotMeta, StoredMembership},
};

const MAGIC: &[u8; 7] = b"LSHSNAP";
/// The format of a snapshot, its rows included. Raise it when its bytes change, together with that
/// of the [state](super::state::STATE_FORMAT). `server/tests/replica/formats.rs` detects a change.
pub const FORMAT: u8 = 6;
const ROW: u8 = 1;
const END: u8 = 0;

/// The membership of a cluster of hundreds is far smaller.
const HEADER_MAX_BYTES: u32 = 1 << 20;
/// A key is a path and two numbers.
const KEY_MAX_BYTES: u32 = 64 << 10;
/// A value is a node with its data, or the list of objects that one change touched.
const VALUE_MAX_BYTES: u32 = 64 << 20;
/// The size of the pieces in which a snapshot is sent.
pub const PIECE_BYTES: usize = 1 << 20;
/// The largest snapshot that is received. No machine has memory for such a state.
pub const SNAPSHOT_MAX_BYTES: u64 = 1 << 40;

/// Why bytes are not a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFileError {
    /// The file cannot be read.
    #[error("snapshot: cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The bytes do not begin like a snapshot.
    #[error("snapshot: begins with {got:02x?}; expected {MAGIC:02x?}")]
    Magic {
        /// The first bytes.
        got: [u8; 7],
    },
    /// This program does not read the snapshot's format.
    #[error("snapshot: format {got}; expected format {expected}")]
    Format {
        /// Its format.
        got: u8,
        /// The format that this program reads.
        expected: u8,
    },
    /// A length exceeds its bound.
    #[error("snapshot: a {what} of {got} bytes exceeds the limit of {most}")]
    Length {
        /// The item with this length.
        what: &'static str,
        /// The recorded length.
        got: u32,
        /// The bound.
        most: u32,
    },
    /// The header does not decode.
    #[error("snapshot: the header does not decode: {0}")]
    Header(postcard::Error),
    /// The rows are not in ascending order.
    #[error("snapshot: out of order at row {row}")]
    Order {
        /// The number of the row, from 0.
        row: u64,
    },
    /// A tag is unknown.
    #[error("snapshot: unknown tag {got}; expected {ROW} or {END}")]
    Tag {
        /// The tag.
        got: u8,
    },
    /// The number of rows differs from the recorded one.
    #[error("snapshot: {got} rows; expected {expected}")]
    Count {
        /// The number of rows.
        got: u64,
        /// The recorded number.
        expected: u64,
    },
    /// The checksum differs.
    #[error("snapshot: checksum {got:08x}; expected {expected:08x}")]
    Checksum {
        /// The checksum of the bytes.
        got: u32,
        /// The recorded checksum.
        expected: u32,
    },
    /// Bytes follow the end.
    #[error("snapshot: bytes after the end")]
    Trailing,
    /// The rows do not form a state.
    #[error("snapshot: {0}")]
    Rows(#[from] RowError),
    /// The state's applied entry is beyond the header's.
    #[error("snapshot: its state has applied entry {got}; expected at most {expected}")]
    Ahead {
        /// The state's applied entry.
        got: u64,
        /// The header's applied entry.
        expected: u64,
    },
}

/// A key and a value.
pub type SnapshotRow = (Vec<u8>, Vec<u8>);

/// The position of a snapshot in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    /// The last entry that was applied.
    pub applied: Option<LogId>,
    /// The membership at that entry.
    pub membership: StoredMembership,
}

impl SnapshotHeader {
    /// The header in Raft's type.
    pub fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() }
    }
}

/// The state at one moment, unaffected by later writes.
pub struct StateView {
    header: SnapshotHeader,
    rows: Keyspace,
    at: fjall::Snapshot,
}

impl fmt::Debug for StateView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateView").field("header", &self.header).finish_non_exhaustive()
    }
}

impl StateView {
    pub(super) fn new(header: SnapshotHeader, rows: Keyspace, at: fjall::Snapshot) -> Self {
        Self { header, rows, at }
    }

    /// The last applied entry, and the membership then.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// The rows, in the order of their keys.
    pub fn rows(&self) -> impl Iterator<Item = io::Result<(UserKey, UserValue)>> + use<> {
        self.at.iter(&self.rows).map(|item| item.into_inner().map_err(io::Error::other))
    }
}

/// A snapshot that Raft sends or installs.
#[derive(Debug)]
pub enum StateSnapshot {
    /// A view of this replica's state.
    View(StateView),
    /// A received snapshot, checked.
    Received(Box<CheckedSnapshot>),
}

/// A [`StateSnapshot`] with its position in the log.
pub(crate) type RaftSnapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, StateSnapshot>;

/// A received snapshot that has been read and checked completely.
#[derive(Debug)]
pub struct CheckedSnapshot {
    /// Its position in the log.
    pub header: SnapshotHeader,
    /// The file with the rows.
    pub file: SnapshotFile,
}

impl CheckedSnapshot {
    /// Builds the state from the rows. Reads the disk.
    ///
    /// # Errors
    ///
    /// [`SnapshotFileError`]: the rows do not form a state, or are ahead of the header, or the file
    /// can no longer be read.
    pub fn load(&self) -> Result<State, SnapshotFileError> {
        let mut rows = self.file.rows()?;
        let mut failure = None;
        let state = State::from_rows(std::iter::from_fn(|| match rows.next_row() {
            Ok(row) => row,
            Err(error) => {
                failure = Some(error);
                None
            }
        }));
        if let Some(failure) = failure {
            return Err(failure);
        }
        let state = state?;
        let expected = self.header.applied.map_or(0, |applied| applied.index);
        if state.applied_index() > expected {
            return Err(SnapshotFileError::Ahead { got: state.applied_index(), expected });
        }
        Ok(state)
    }
}

/// A file with a snapshot, removed when this is dropped. A failed write ends the replica, because
/// its disk is full or broken.
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    file: File,
    poison: Poison,
}

impl Drop for SnapshotFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the file of a snapshot that is not needed any more");
        }
    }
}

impl SnapshotFile {
    /// Creates an empty file, or empties one that a crash has left.
    ///
    /// # Errors
    ///
    /// The file cannot be created, or the replica has ended.
    pub fn create(path: &Path, poison: Poison) -> io::Result<Self> {
        poison.check()?;
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.inspect_err(|error| poison_by(&poison, error))?;
        Ok(Self { path: path.to_owned(), file, poison })
    }

    /// Reads and checks the whole file.
    ///
    /// # Errors
    ///
    /// [`SnapshotFileError`]: it is damaged, or is not a snapshot.
    pub fn check(self) -> Result<CheckedSnapshot, SnapshotFileError> {
        let mut rows = self.rows()?;
        while rows.next_row()?.is_some() {}
        let SnapshotReader { header, .. } = rows;
        Ok(CheckedSnapshot { header, file: self })
    }

    /// The rows, from the first.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or does not begin like a snapshot.
    pub fn rows(&self) -> Result<SnapshotReader<BufReader<File>>, SnapshotFileError> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        SnapshotReader::new(BufReader::with_capacity(PIECE_BYTES, file))
    }
}

/// Appends.
impl Write for SnapshotFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        written.inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                poison_by(&self.poison, error);
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn poison_by(poison: &Poison, error: &io::Error) {
    poison.poison(format!("a snapshot could not be written to the disk: {error}"));
}

/// Writes a snapshot of a view.
///
/// # Errors
///
/// The view cannot be read, or `out` failed.
pub fn write(view: &StateView, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(PIECE_BYTES, Hashing { inner: out, crc: crc32fast::Hasher::new() });
    out.write_all(MAGIC)?;
    out.write_all(&[FORMAT])?;
    let header = postcard::to_allocvec(view.header()).map_err(io::Error::other)?;
    out.write_all(&length(&header, HEADER_MAX_BYTES)?)?;
    out.write_all(&header)?;
    let mut count: u64 = 0;
    for row in view.rows() {
        let (key, value) = row?;
        out.write_all(&[ROW])?;
        out.write_all(&length(&key, KEY_MAX_BYTES)?)?;
        out.write_all(&length(&value, VALUE_MAX_BYTES)?)?;
        out.write_all(&key)?;
        out.write_all(&value)?;
        count += 1;
    }
    out.write_all(&[END])?;
    out.write_all(&count.to_le_bytes())?;
    let Hashing { mut inner, crc } = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    inner.write_all(&crc.finalize().to_le_bytes())?;
    inner.flush()
}

fn length(bytes: &[u8], most: u32) -> io::Result<[u8; 4]> {
    match u32::try_from(bytes.len()) {
        Ok(length) if length <= most => Ok(length.to_le_bytes()),
        _ => Err(io::Error::other(format!("row: {} bytes exceed the limit of {most}", bytes.len()))),
    }
}

struct Hashing<T> {
    inner: T,
    crc: crc32fast::Hasher,
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Reads a snapshot row by row.
pub struct SnapshotReader<R> {
    inner: R,
    crc: crc32fast::Hasher,
    header: SnapshotHeader,
    last_key: Vec<u8>,
    count: u64,
    is_done: bool,
}

impl<R: Read> SnapshotReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    ///
    /// The input is not a snapshot, or cannot be read.
    pub fn new(inner: R) -> Result<Self, SnapshotFileError> {
        let header = SnapshotHeader { applied: None, membership: StoredMembership::default() };
        let crc = crc32fast::Hasher::new();
        let mut reader = Self { inner, crc, header, last_key: Vec::new(), count: 0, is_done: false };
        let got: [u8; 7] = reader.read_array()?;
        if got != *MAGIC {
            return Err(SnapshotFileError::Magic { got });
        }
        let [got] = reader.read_array()?;
        if got != FORMAT {
            return Err(SnapshotFileError::Format { got, expected: FORMAT });
        }
        let length = reader.read_length("header", HEADER_MAX_BYTES)?;
        let bytes = reader.read_bytes(length)?;
        let (header, rest) = postcard::take_from_bytes(&bytes).map_err(SnapshotFileError::Header)?;
        if !rest.is_empty() {
            return Err(SnapshotFileError::Header(postcard::Error::SerdeDeCustom));
        }
        reader.header = header;
        Ok(reader)
    }

    /// The position of the snapshot in the log.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// The next row, or `None` at a correct end.
    ///
    /// # Errors
    ///
    /// [`SnapshotFileError`]. The reader is then unusable.
    pub fn next_row(&mut self) -> Result<Option<SnapshotRow>, SnapshotFileError> {
        if self.is_done {
            return Ok(None);
        }
        match self.read_array::<1>()? {
            [ROW] => {
                let key_length = self.read_length("key", KEY_MAX_BYTES)?;
                let value_length = self.read_length("value", VALUE_MAX_BYTES)?;
                let key = self.read_bytes(key_length)?;
                let value = self.read_bytes(value_length)?;
                if self.count > 0 && key <= self.last_key {
                    return Err(SnapshotFileError::Order { row: self.count });
                }
                self.last_key.clone_from(&key);
                self.count += 1;
                Ok(Some((key, value)))
            }
            [END] => self.end().map(|()| None),
            [got] => Err(SnapshotFileError::Tag { got }),
        }
    }

    fn end(&mut self) -> Result<(), SnapshotFileError> {
        self.is_done = true;
        let expected = u64::from_le_bytes(self.read_array()?);
        if self.count != expected {
            return Err(SnapshotFileError::Count { got: self.count, expected });
        }
        let got = self.crc.clone().finalize();
        let expected = u32::from_le_bytes(self.read_array()?);
        if got != expected {
            return Err(SnapshotFileError::Checksum { got, expected });
        }
        match self.inner.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(SnapshotFileError::Trailing),
        }
    }

    fn read_array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.crc.update(&bytes);
        Ok(bytes)
    }

    fn read_length(&mut self, what: &'static str, most: u32) -> Result<u32, SnapshotFileError> {
        let got = u32::from_le_bytes(self.read_array()?);
        if got > most { Err(SnapshotFileError::Length { what, got, most }) } else { Ok(got) }
    }

    fn read_bytes(&mut self, length: u32) -> io::Result<Vec<u8>> {
        // The buffer grows only with the bytes that exist, so a wrong length costs nothing.
        let mut bytes = Vec::new();
        let read = (&mut self.inner).take(u64::from(length)).read_to_end(&mut bytes)?;
        if read < length as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.crc.update(&bytes);
        Ok(bytes)
    }
}

/// The pieces of a view's snapshot, in order, each at most [`PIECE_BYTES`]. A blocking thread makes
/// them. The channel ends after the last piece or an error. The channel has room for few pieces, so
/// the view is read as fast as it is sent.
pub fn pieces(view: StateView) -> tokio::sync::mpsc::Receiver<io::Result<bytes::Bytes>> {
    /// Enough for reading and sending to overlap.
    const AHEAD: usize = 2;
    let (sender, receiver) = tokio::sync::mpsc::channel(AHEAD);
    let sender = Arc::new(sender);
    tokio::task::spawn_blocking(move || {
        let pieces = PieceWriter { sender: Arc::clone(&sender) };
        if let Err(error) = write(&view, BufWriter::with_capacity(PIECE_BYTES, pieces)) {
            // The receiver may have gone, which is often why the write failed.
            drop(sender.blocking_send(Err(error)));
        }
    });
    receiver
}

struct PieceWriter {
    sender: Arc<tokio::sync::mpsc::Sender<io::Result<bytes::Bytes>>>,
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        let sent = self.sender.blocking_send(Ok(bytes::Bytes::copy_from_slice(piece)));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
