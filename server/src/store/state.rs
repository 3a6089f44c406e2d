//! The replicated state on disk: its rows, and the last applied entry, in one database.
//!
//! **Guarantees.**
//!
//! - Rows, the applied log id and the membership change in one atomic batch. So after a crash, the
//!   stored state is the state at one entry. This entry may be behind the last applied one, because
//!   nothing here is fsynced by itself. The log reaches back to it.
//! - [`StateStore::persisted_view`] fsyncs. Only such a view becomes a snapshot that lets Raft
//!   purge.
//! - A received snapshot is written to its own keyspace and fsynced, and becomes current by one
//!   fsynced batch. A crash leaves either the old state or the new one.
//!
//! **How.** One thread writes, in the order of the calls. Callers do not wait for rows to be
//! written, because clients are answered from memory. Views are MVCC snapshots of the database, and
//! lock nothing.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, UserValue};
use leasehold_protocol::state::{RowError, State};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::{mpsc, oneshot};

use super::{
    database,
    journal::Synced,
    poison::Poison,
    snapshot::{SnapshotFile, SnapshotFileError, SnapshotHeader, SnapshotRow, StateView},
};
use crate::raft::types::alias::{LogId, StoredMembership};

/// The most calls that wait for the writer. Each has the entries that Raft applied at once. If the
/// disk falls this far behind, applying waits.
const QUEUE_CALLS: usize = 64;
const MEMTABLE_MAX_BYTES: u64 = 32 << 20;
/// The size of the batches in which a whole state is written.
const LOAD_BATCH_BYTES: usize = 1 << 20;

/// The format of the state: of its rows and of its metadata. Raise it when their bytes change,
/// together with the format of [snapshots](super::snapshot::FORMAT), which have the same rows.
/// `server/tests/replica/formats.rs` detects a change. A state of another format is refused. Format
/// 1 did not record its number.
pub const STATE_FORMAT: u8 = 7;

const META: &str = "meta";
const ROWS: &str = "rows-";
const GENERATION: &str = "generation";
const APPLIED: &str = "applied";
const MEMBERSHIP: &str = "membership";

type StateReply<T> = oneshot::Sender<io::Result<T>>;
/// A row to store, or to remove if it has no value.
pub type RowChange = (Vec<u8>, Option<Vec<u8>>);

/// Why a state was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenStateError {
    /// The database cannot be opened or read.
    #[error("state: cannot be read: {0}")]
    Database(#[from] fjall::Error),
    /// This program does not read the state's format.
    #[error("state: format {got}; expected format {expected}")]
    Format {
        /// Its format.
        got: u8,
        /// The format that this program reads.
        expected: u8,
    },
    /// The rows do not form a state.
    #[error("state: damaged: {0}")]
    Rows(#[from] RowError),
    /// A metadata value does not decode.
    #[error("state: damaged: {name}: {cause}")]
    Meta {
        /// Its name.
        name: &'static str,
        /// The decoding error.
        cause: postcard::Error,
    },
    /// The rows are ahead of the applied entry that is recorded with them.
    #[error("state: damaged: its rows have applied entry {got}; expected at most {expected}")]
    Ahead {
        /// The applied entry of the rows.
        got: u64,
        /// The recorded entry.
        expected: u64,
    },
    /// The writer's thread could not be started.
    #[error("state: start the writer: {0}")]
    Thread(io::Error),
}

enum StateOp {
    Write { applied: LogId, membership: Option<StoredMembership>, rows: BTreeMap<Vec<u8>, Option<Vec<u8>>> },
    View { persist: bool, reply: StateReply<StateView> },
    Begin { state: Box<State>, reply: StateReply<()> },
    Install { header: SnapshotHeader, file: SnapshotFile, reply: StateReply<()> },
    Close { reply: StateReply<()> },
}

/// The state of one replica on disk. Clones are the same store.
#[derive(Clone)]
pub struct StateStore {
    queue: mpsc::Sender<StateOp>,
    poison: Poison,
    writer: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

/// A state that was read from disk. No thread writes to it yet.
pub(crate) struct LoadedState {
    disk: StateDisk,
    header: SnapshotHeader,
    state: Option<State>,
}

impl LoadedState {
    /// Reads the state in `dir`. This takes up to a second: fjall reads its journals.
    pub(crate) fn read(dir: &Path) -> Result<Self, OpenStateError> {
        let disk = StateDisk::open(dir)?;
        let (header, state) = disk.load()?;
        Ok(Self { disk, header, state })
    }
}

impl StateStore {
    /// Opens the state in `dir`. Returns the store, the applied entry and membership, and the
    /// state, or `None` if there is none yet.
    ///
    /// # Errors
    ///
    /// [`OpenStateError`]: it cannot be read, or is damaged.
    pub fn open(dir: &Path, poison: Poison) -> Result<(Self, SnapshotHeader, Option<State>), OpenStateError> {
        Self::start(LoadedState::read(dir)?, poison)
    }

    /// As [`StateStore::open`], of a state that was read before.
    pub(crate) fn start(
        loaded: LoadedState,
        poison: Poison,
    ) -> Result<(Self, SnapshotHeader, Option<State>), OpenStateError> {
        let LoadedState { disk, header, state } = loaded;
        let (queue, calls) = mpsc::channel(QUEUE_CALLS);
        let writer = StateWriter { disk, poison: poison.clone() };
        let writer = std::thread::Builder::new()
            .name("state-writer".into())
            .spawn(move || writer.run(calls))
            .map_err(OpenStateError::Thread)?;
        Ok((Self { queue, poison, writer: Arc::new(Mutex::new(Some(writer))) }, header, state))
    }

    /// Writes the rows that applying entries up to `applied` has changed. Does not wait for the
    /// disk. If a row is changed several times, the last change counts.
    ///
    /// # Errors
    ///
    /// The store is closed, or the replica has ended.
    pub async fn write(
        &self,
        applied: LogId,
        membership: Option<StoredMembership>,
        rows: impl IntoIterator<Item = RowChange>,
    ) -> io::Result<()> {
        self.poison.check()?;
        let rows = rows.into_iter().collect();
        self.queue.send(StateOp::Write { applied, membership, rows }).await.map_err(|_| closed())
    }

    /// The state after everything that was written before this call.
    ///
    /// # Errors
    ///
    /// The store is closed, or the replica has ended.
    pub async fn view(&self) -> io::Result<StateView> {
        self.call(|reply| StateOp::View { persist: false, reply }).await
    }

    /// As [`view`](Self::view), with an fsync: all of it is on the disk.
    ///
    /// # Errors
    ///
    /// The store is closed, or the replica has ended.
    pub async fn persisted_view(&self) -> io::Result<StateView> {
        self.call(|reply| StateOp::View { persist: true, reply }).await
    }

    /// Makes `state`, to which nothing has been applied, current and durable.
    ///
    /// # Errors
    ///
    /// The store is closed, or the replica has ended.
    pub async fn begin(&self, state: State) -> io::Result<()> {
        self.call(|reply| StateOp::Begin { state: Box::new(state), reply }).await
    }

    /// Makes a received snapshot the current state, durably.
    ///
    /// # Errors
    ///
    /// The store is closed, or the replica has ended.
    pub async fn install(&self, header: SnapshotHeader, file: SnapshotFile) -> io::Result<()> {
        self.call(|reply| StateOp::Install { header, file, reply }).await
    }

    /// The poison that ends the replica when this store fails.
    pub(crate) fn poison(&self) -> Poison {
        self.poison.clone()
    }

    /// Ends the writer. Then everything that was written before is on the disk. Later calls are
    /// refused.
    ///
    /// # Errors
    ///
    /// The last fsync failed. Closing twice is no error.
    pub async fn close(&self) -> io::Result<()> {
        let (reply, closed) = oneshot::channel();
        if self.queue.send(StateOp::Close { reply }).await.is_err() {
            return Ok(());
        }
        let result = closed.await.unwrap_or(Ok(()));
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            // The thread has answered and only returns, so this does not wait for a disk.
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
        result
    }

    async fn call<T>(&self, op: impl FnOnce(StateReply<T>) -> StateOp) -> io::Result<T> {
        self.poison.check()?;
        let (reply, answer) = oneshot::channel();
        self.queue.send(op(reply)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the state's store is closed")
}

struct StateDisk {
    dir: PathBuf,
    database: Database,
    meta: Keyspace,
    generation: u64,
    rows: Keyspace,
    /// No keyspace with this number or a higher one has ever existed.
    next_generation: u64,
}

impl StateDisk {
    fn open(dir: &Path) -> Result<Self, OpenStateError> {
        let first = rows_name(0);
        let keyspaces: [(&str, database::DatabaseOptions); 2] =
            [(META, KeyspaceCreateOptions::default), (&first, rows_options)];
        let database = database::open(dir, Synced::Sometimes, &keyspaces)?;
        let meta = database::keyspace(&database, dir, META, KeyspaceCreateOptions::default)?;
        let got = database::format(&database, &meta, STATE_FORMAT)?;
        if got != STATE_FORMAT {
            return Err(OpenStateError::Format { got, expected: STATE_FORMAT });
        }
        let generation = read(&meta, GENERATION)?.unwrap_or(0);
        let rows = keyspace(&database, dir, generation)?;
        let mut next_generation = generation + 1;
        // A crash left these while a snapshot was being received, or before the replaced state was
        // removed.
        for name in database.list_keyspace_names() {
            let Some(number) = name.strip_prefix(ROWS).and_then(|number| number.parse::<u64>().ok()) else { continue };
            next_generation = next_generation.max(number.saturating_add(1));
            if number != generation {
                let left = keyspace(&database, dir, number)?;
                database.delete_keyspace(left)?;
            }
        }
        Ok(Self { dir: dir.to_owned(), database, meta, generation, rows, next_generation })
    }

    fn load(&self) -> Result<(SnapshotHeader, Option<State>), OpenStateError> {
        let applied: Option<LogId> = read(&self.meta, APPLIED)?;
        let membership = read(&self.meta, MEMBERSHIP)?.unwrap_or_default();
        let header = SnapshotHeader { applied, membership };
        let mut failure = None;
        let mut is_empty = true;
        let mut rows = self.rows.iter();
        let state = State::from_rows(std::iter::from_fn(|| match rows.next()?.into_inner() {
            Ok((key, value)) => {
                is_empty = false;
                Some((key.to_vec(), value.to_vec()))
            }
            Err(error) => {
                failure = Some(error);
                None
            }
        }));
        if let Some(failure) = failure {
            return Err(failure.into());
        }
        if is_empty && header.applied.is_none() {
            return Ok((header, None));
        }
        let state = state?;
        let expected = header.applied.map_or(0, |applied| applied.index);
        if state.applied_index() > expected {
            return Err(OpenStateError::Ahead { got: state.applied_index(), expected });
        }
        Ok((header, Some(state)))
    }

    fn header(&self, at: &fjall::Snapshot) -> io::Result<SnapshotHeader> {
        let applied = decode(at.get(&self.meta, APPLIED).map_err(io::Error::other)?)?;
        let membership = decode(at.get(&self.meta, MEMBERSHIP).map_err(io::Error::other)?)?.unwrap_or_default();
        Ok(SnapshotHeader { applied, membership })
    }

    fn write(
        &self,
        applied: LogId,
        membership: Option<StoredMembership>,
        rows: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    ) -> io::Result<()> {
        let mut batch = self.database.batch();
        for (key, value) in rows {
            match value {
                Some(value) => batch.insert(&self.rows, key, value),
                None => batch.remove(&self.rows, key),
            }
        }
        batch.insert(&self.meta, APPLIED, encode(&applied)?);
        if let Some(membership) = membership {
            batch.insert(&self.meta, MEMBERSHIP, encode(&membership)?);
        }
        batch.commit().map_err(io::Error::other)
    }

    fn view(&self, persist: bool) -> io::Result<StateView> {
        let at = self.database.snapshot();
        if persist {
            self.database.persist(PersistMode::SyncAll).map_err(io::Error::other)?;
        }
        Ok(StateView::new(self.header(&at)?, self.rows.clone(), at))
    }

    /// Writes a whole state into a new keyspace, then makes it current.
    fn replace(
        &mut self,
        header: &SnapshotHeader,
        mut next_row: impl FnMut() -> Result<Option<SnapshotRow>, SnapshotFileError>,
    ) -> io::Result<()> {
        let generation = self.next_generation;
        self.next_generation += 1;
        let rows = keyspace(&self.database, &self.dir, generation).map_err(io::Error::other)?;
        let mut batch = self.database.batch();
        let mut bytes = 0;
        while let Some((key, value)) = next_row().map_err(io::Error::other)? {
            bytes += key.len() + value.len();
            batch.insert(&rows, key, value);
            if bytes >= LOAD_BATCH_BYTES {
                std::mem::replace(&mut batch, self.database.batch()).commit().map_err(io::Error::other)?;
                bytes = 0;
            }
        }
        batch.commit().map_err(io::Error::other)?;
        self.database.persist(PersistMode::SyncAll).map_err(io::Error::other)?;

        let mut switch = self.database.batch().durability(Some(PersistMode::SyncAll));
        switch.insert(&self.meta, GENERATION, encode(&generation)?);
        match &header.applied {
            Some(applied) => switch.insert(&self.meta, APPLIED, encode(applied)?),
            None => switch.remove(&self.meta, APPLIED),
        }
        switch.insert(&self.meta, MEMBERSHIP, encode(&header.membership)?);
        switch.commit().map_err(io::Error::other)?;

        let old = std::mem::replace(&mut self.rows, rows);
        self.generation = generation;
        self.database.delete_keyspace(old).map_err(io::Error::other)
    }
}

fn rows_name(generation: u64) -> String {
    format!("{ROWS}{generation}")
}

fn rows_options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_MAX_BYTES)
}

fn keyspace(database: &Database, dir: &Path, generation: u64) -> fjall::Result<Keyspace> {
    database::keyspace(database, dir, &rows_name(generation), rows_options)
}

fn read<T: DeserializeOwned>(meta: &Keyspace, name: &'static str) -> Result<Option<T>, OpenStateError> {
    let Some(bytes) = meta.get(name)? else { return Ok(None) };
    postcard::from_bytes(&bytes).map(Some).map_err(|cause| OpenStateError::Meta { name, cause })
}

fn decode<T: DeserializeOwned>(bytes: Option<UserValue>) -> io::Result<Option<T>> {
    bytes.map(|bytes| postcard::from_bytes(&bytes)).transpose().map_err(io::Error::other)
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_allocvec(value).map_err(io::Error::other)
}

struct StateWriter {
    disk: StateDisk,
    poison: Poison,
}

impl StateWriter {
    fn run(mut self, mut calls: mpsc::Receiver<StateOp>) {
        while let Some(op) = calls.blocking_recv() {
            // It is no error if nobody waits for a reply.
            match op {
                StateOp::Write { applied, membership, rows } => {
                    // A failure poisons the store, so later calls are refused.
                    let _ = self.guarded(|disk| disk.write(applied, membership, rows));
                }
                StateOp::View { persist, reply } => drop(reply.send(self.guarded(|disk| disk.view(persist)))),
                StateOp::Begin { state, reply } => {
                    let header = SnapshotHeader { applied: None, membership: StoredMembership::default() };
                    let mut rows = state.rows();
                    drop(reply.send(self.guarded(|disk| disk.replace(&header, || Ok(rows.next())))));
                }
                StateOp::Install { header, file, reply } => {
                    let installed = self.guarded(|disk| {
                        let mut rows = file.rows().map_err(io::Error::other)?;
                        disk.replace(&header, || rows.next_row())
                    });
                    drop(reply.send(installed));
                }
                StateOp::Close { reply } => {
                    calls.close();
                    let persisted =
                        self.guarded(|disk| disk.database.persist(PersistMode::SyncAll).map_err(io::Error::other));
                    drop(self.disk);
                    drop(reply.send(persisted));
                    return;
                }
            }
        }
    }

    fn guarded<T>(&mut self, work: impl FnOnce(&mut StateDisk) -> io::Result<T>) -> io::Result<T> {
        self.poison.check()?;
        work(&mut self.disk).inspect_err(|error| self.poison.poison(format!("the state could not be written: {error}")))
    }
}
