//! Raft's log and vote on disk.
//!
//! **Guarantees.**
//!
//! - Everything that [`append`](RaftLogStorage::append) and
//!   [`save_vote`](RaftLogStorage::save_vote) acknowledged survives a crash of the machine. One
//!   thread writes, in the order of the calls. It writes its queue as one batch with one fsync, and
//!   only then calls the callbacks (group commit; fjall has none).
//! - A failure poisons the replica (see [`Poison`]).
//! - [`LogStore::open`] refuses a log that is shorter than acknowledged: its replica would break
//!   its promises. The log must be gapless from the purge point to the last acknowledged index,
//!   each entry with its checksum, and reach the [durable index](super::durable_index).
//!
//! **How it reads.** Entries that are not on disk yet, and a bounded number of recent ones, are in
//! memory. Replication and applying normally read those. Older entries are read from the disk, off
//! the runtime's threads.
//!
//! **What it does not know.** The meaning of entries, and when the log may be purged. Raft decides
//! that by snapshots, which are on disk before Raft gets them ([`super::state`]).

mod disk;
mod sizes;
mod tail;
mod writer;

use std::{
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    path::Path,
    sync::Arc,
};

use openraft::{
    OptionalSend, RaftLogReader,
    storage::{IOFlushed, LogState, RaftLogStorage},
    type_config::alias::EntryOf,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use self::{disk::LogDisk, tail::LogTail, writer::LogOp};
use super::poison::Poison;
use crate::raft::types::{
    TypeConfig,
    alias::{LogId, RaftEntry, Vote},
};

pub use self::disk::{LOG_FORMAT, OpenLogError};

/// The most calls that wait for the writer. When the queue is full, Raft waits. One call can have
/// many entries, so far fewer calls than this arrive during one fsync.
const QUEUE_CALLS: usize = 1024;

/// The most bytes of entries that one read for replication takes from disk, and from memory, unless
/// a single entry is larger. With the bound on a proposal, both fit into a frame.
pub const READ_MAX_BYTES: usize = 4 << 20;

/// The log of one replica. Clones are the same log.
#[derive(Clone)]
pub struct LogStore {
    shared: Arc<LogShared>,
}

struct LogShared {
    /// `None` once the log is closed.
    disk: Mutex<Option<LogDisk>>,
    tail: Arc<Mutex<LogTail>>,
    queue: mpsc::Sender<LogOp>,
    poison: Poison,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl LogStore {
    /// Opens the log in `dir`, or creates an empty one. `durable_index` is its file.
    ///
    /// # Errors
    ///
    /// The log cannot be read, or has less than was acknowledged.
    pub fn open(dir: &Path, durable_index: &Path, poison: Poison) -> Result<Self, OpenLogError> {
        let (disk, tail, index) = LogDisk::open(dir, durable_index)?;
        let tail = Arc::new(Mutex::new(tail));
        let (queue, calls) = mpsc::channel(QUEUE_CALLS);
        let writer = writer::LogWriter::new(disk.clone(), index, Arc::clone(&tail), poison.clone());
        let writer = std::thread::Builder::new()
            .name("log-writer".into())
            .spawn(move || writer.run(calls))
            .map_err(OpenLogError::Thread)?;
        let writer = Mutex::new(Some(writer));
        Ok(Self { shared: Arc::new(LogShared { disk: Mutex::new(Some(disk)), tail, queue, poison, writer }) })
    }

    /// The last entry, or the purge point if there is no entry, and the vote.
    pub fn last_and_vote(&self) -> (Option<LogId>, Option<Vote>) {
        let tail = self.shared.tail.lock();
        (tail.last(), tail.vote())
    }

    /// The last purged entry. The applied entries must reach at least that far.
    pub fn purged(&self) -> Option<LogId> {
        self.shared.tail.lock().purged()
    }

    /// The approximate size of the log's entries in `[start, end)`: exact to 256 KiB and one entry.
    pub fn bytes_between(&self, start: u64, end: u64) -> u64 {
        self.shared.tail.lock().sizes().between(start, end)
    }

    /// The approximate smallest index from which on the entries have at most `bytes`.
    pub fn last_bytes_from(&self, bytes: u64) -> u64 {
        self.shared.tail.lock().sizes().last_bytes_from(bytes)
    }

    /// Ends the writer once all earlier calls are on disk, and closes the database. Later calls are
    /// refused.
    pub async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        // Both errors mean that the writer has ended already.
        if self.shared.queue.send(LogOp::Close { reply }).await.is_ok() {
            let _ = closed.await;
        }
        self.shared.disk.lock().take();
        let writer = self.shared.writer.lock().take();
        if let Some(writer) = writer {
            // The thread has answered and only returns, so this does not wait for a disk.
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
    }

    async fn call(&self, op: impl FnOnce(oneshot::Sender<io::Result<()>>) -> LogOp) -> io::Result<()> {
        self.shared.poison.check()?;
        let (reply, answer) = oneshot::channel();
        self.shared.queue.send(op(reply)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// The log's entries in `[start, end)`, up to `most_bytes` but at least one.
    async fn read(&self, start: u64, end: u64, most_bytes: usize) -> io::Result<Vec<RaftEntry>> {
        self.shared.poison.check()?;
        let (mut entries, cold) = self.shared.tail.lock().read(start, end, most_bytes);
        if cold.is_empty() {
            return Ok(entries);
        }
        let disk = self.shared.disk.lock().clone().ok_or_else(closed)?;
        let read = tokio::task::spawn_blocking(move || disk.read(cold, most_bytes));
        let (mut older, is_whole) = read.await.map_err(io::Error::other)??;
        if is_whole {
            older.append(&mut entries);
        }
        Ok(older)
    }
}

/// Decodes an entry from its bytes on disk, and encodes it again.
///
/// It is hidden because only the fuzzer (`tests/fuzz`) needs it. The format of entries is private,
/// and the other way to its decoder needs a database for each input.
///
/// # Errors
///
/// The error with which the log would refuse the entry.
#[doc(hidden)]
pub fn rewritten_entry(key: &[u8], value: &[u8]) -> io::Result<Vec<u8>> {
    disk::rewritten(key, value)
}

/// The bytes of an entry on disk.
///
/// It is hidden because only the test of the format needs it.
///
/// # Errors
///
/// The codec cannot represent the entry.
#[doc(hidden)]
pub fn written_entry(entry: &EntryOf<TypeConfig>) -> io::Result<Vec<u8>> {
    disk::written(entry)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the log is closed")
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        self.read(start, end, usize::MAX).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<RaftEntry>> {
        self.read(start, end, READ_MAX_BYTES).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.shared.poison.check()?;
        Ok(self.shared.tail.lock().vote())
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.shared.poison.check()?;
        let tail = self.shared.tail.lock();
        Ok(LogState { last_purged_log_id: tail.purged(), last_log_id: tail.last() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = *vote;
        self.call(|reply| LogOp::Vote { vote, reply }).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.shared.poison.check()?;
        let entries: Vec<RaftEntry> = entries.into_iter().collect();
        self.shared.tail.lock().append(&entries)?;
        self.shared.queue.send(LogOp::Append { entries, callback }).await.map_err(|_| closed())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        let (from, last) = self.shared.tail.lock().truncate_after(last_log_id);
        self.call(|reply| LogOp::Truncate { from, last, reply }).await
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        let last = self.shared.tail.lock().purge(log_id);
        self.call(|reply| LogOp::Purge { upto: log_id, last, reply }).await
    }
}
