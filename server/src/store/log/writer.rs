//! The one thread that writes the log.
//!
//! It takes all calls that wait in the queue, writes them as one batch, fsyncs once, then answers.
//! Each key occurs once in a batch. fjall gives a whole batch one sequence number, so the order of
//! two writes of one key would be undefined. So a truncation ends a batch, and the last entry, the
//! vote and the progress of removal are written once at the batch's end.

use std::{io, ops::Range, sync::Arc};

use fjall::{OwnedWriteBatch as WriteBatch, PersistMode};
use openraft::storage::IOFlushed;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::{
    disk::LogDisk,
    tail::{LogTail, entry_bytes},
};
use crate::{
    raft::types::{
        TypeConfig,
        alias::{LogId, RaftEntry, Vote},
    },
    store::{durable_index::DurableIndex, poison::Poison},
};

type LogReply = oneshot::Sender<io::Result<()>>;

/// The most bytes in one batch. One call may exceed it.
const BATCH_MAX_BYTES: usize = 8 << 20;
/// The most purged entries that one batch removes: so few that no append is noticeably delayed.
const SWEEP_ENTRIES: u64 = 256;

/// A call to the writer.
pub(super) enum LogOp {
    /// Adds entries.
    Append { entries: Vec<RaftEntry>, callback: IOFlushed<TypeConfig> },
    /// Saves a vote.
    Vote { vote: Vote, reply: LogReply },
    /// Removes all entries from `from` on. Then `last` is the last entry.
    Truncate { from: u64, last: Option<LogId>, reply: LogReply },
    /// Moves the purge point. Then `last` is the last entry.
    Purge { upto: LogId, last: Option<LogId>, reply: LogReply },
    /// Ends the writer.
    Close { reply: oneshot::Sender<()> },
}

enum Waiter {
    Callback(IOFlushed<TypeConfig>),
    Reply(LogReply),
}

impl Waiter {
    fn answer(self, result: &io::Result<()>) {
        let result = match result {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        match self {
            Self::Callback(callback) => callback.io_completed(result),
            // The caller may have gone.
            Self::Reply(reply) => drop(reply.send(result)),
        }
    }
}

/// The batch that is being collected.
#[derive(Default)]
struct Gathered {
    entries: Vec<RaftEntry>,
    bytes: usize,
    vote: Option<Vote>,
    waiters: Vec<Waiter>,
}

pub(super) struct LogWriter {
    disk: LogDisk,
    durable_index: DurableIndex,
    tail: Arc<Mutex<LogTail>>,
    poison: Poison,
    /// The last entry on disk.
    last: Option<LogId>,
    /// The vote on disk.
    vote: Option<Vote>,
    /// The purged entries that are still to be removed.
    unswept: Range<u64>,
    /// The first index that is not purged. The removal of purged entries ends there.
    kept_from: u64,
}

impl LogWriter {
    pub(super) fn new(disk: LogDisk, durable_index: DurableIndex, tail: Arc<Mutex<LogTail>>, poison: Poison) -> Self {
        let (purged, last, vote) = {
            let tail = tail.lock();
            (tail.purged(), tail.last(), tail.vote())
        };
        let kept_from = purged.map_or(0, |purged| purged.index + 1);
        // If this cannot be read now, a later purge removes those entries. Nothing depends on it.
        let unswept = disk.unswept().unwrap_or(0..0);
        Self { disk, durable_index, tail, poison, last, vote, unswept, kept_from }
    }

    pub(super) fn run(mut self, mut calls: mpsc::Receiver<LogOp>) {
        while let Some(op) = self.next(&mut calls) {
            if let LogOp::Close { reply } = op {
                calls.close();
                let _ = reply.send(());
                return;
            }
            let mut next_op = Some(op);
            let mut gathered = Gathered::default();
            while let Some(op) = next_op.take() {
                match op {
                    LogOp::Append { entries, callback } => {
                        gathered.bytes += entries.iter().map(entry_bytes).sum::<usize>();
                        gathered.entries.extend(entries);
                        gathered.waiters.push(Waiter::Callback(callback));
                    }
                    LogOp::Vote { vote, reply } => {
                        gathered.vote = Some(vote);
                        gathered.waiters.push(Waiter::Reply(reply));
                    }
                    other => {
                        next_op = Some(other);
                        break;
                    }
                }
                if gathered.bytes < BATCH_MAX_BYTES {
                    next_op = calls.try_recv().ok();
                }
            }
            self.commit(gathered);
            match next_op {
                Some(LogOp::Truncate { from, last, reply }) => {
                    let result = self.guarded(|writer| writer.truncate(from, last));
                    Waiter::Reply(reply).answer(&result);
                }
                Some(LogOp::Purge { upto, last, reply }) => {
                    let result = self.guarded(|writer| writer.purge(upto, last));
                    Waiter::Reply(reply).answer(&result);
                }
                Some(LogOp::Close { reply }) => {
                    calls.close();
                    let _ = reply.send(());
                    return;
                }
                Some(LogOp::Append { .. } | LogOp::Vote { .. }) | None => {}
            }
        }
    }

    /// The next call. Removes purged entries while there is none.
    fn next(&mut self, calls: &mut mpsc::Receiver<LogOp>) -> Option<LogOp> {
        while !self.unswept.is_empty() {
            match calls.try_recv() {
                Ok(op) => return Some(op),
                Err(mpsc::error::TryRecvError::Disconnected) => return None,
                Err(mpsc::error::TryRecvError::Empty) => {
                    let swept = self.guarded(|writer| {
                        // Fsynced like all batches, to distinguish a torn batch from damage.
                        let mut batch = writer.disk.batch().durability(Some(PersistMode::SyncData));
                        let unswept = writer.sweep(&mut batch)?;
                        batch.commit().map_err(io::Error::other)?;
                        writer.unswept = unswept;
                        Ok(())
                    });
                    if swept.is_err() {
                        break;
                    }
                }
            }
        }
        calls.blocking_recv()
    }

    fn guarded(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.poison.check()?;
        write(self).inspect_err(|error| self.poison.poison(format!("the log could not be written: {error}")))
    }

    fn commit(&mut self, gathered: Gathered) {
        let Gathered { entries, vote, waiters, .. } = gathered;
        if waiters.is_empty() {
            return;
        }
        let result = self.guarded(|writer| writer.write(&entries, vote));
        if result.is_ok() {
            let mut tail = self.tail.lock();
            if let Some(vote) = vote {
                tail.vote_saved(vote);
            }
            if let Some(last) = entries.last() {
                tail.flushed_below(last.log_id.index + 1);
            }
        }
        for waiter in waiters {
            waiter.answer(&result);
        }
    }

    fn write(&mut self, entries: &[RaftEntry], vote: Option<Vote>) -> io::Result<()> {
        let mut batch = self.disk.batch().durability(Some(PersistMode::SyncData));
        for entry in entries {
            self.disk.put_entry(&mut batch, entry)?;
        }
        let last = entries.last().map_or(self.last, |entry| Some(entry.log_id));
        self.disk.put_last(&mut batch, last)?;
        if let Some(vote) = &vote {
            self.disk.put_vote(&mut batch, vote)?;
        }
        let unswept = self.sweep(&mut batch)?;
        batch.commit().map_err(io::Error::other)?;
        self.unswept = unswept;
        self.last = last;
        let is_durable = vote.is_some();
        self.vote = vote.or(self.vote);
        self.durable_index.record(self.last, self.vote, is_durable)
    }

    /// Adds the removal of some purged entries to the batch. Returns the rest.
    fn sweep(&self, batch: &mut WriteBatch) -> io::Result<Range<u64>> {
        if self.unswept.is_empty() {
            return Ok(self.unswept.clone());
        }
        let below = self.unswept.end.min(self.unswept.start.saturating_add(SWEEP_ENTRIES));
        for index in self.unswept.start..below {
            self.disk.remove_entry(batch, index);
        }
        let is_done = below == self.unswept.end;
        self.disk.put_swept(batch, if is_done { self.kept_from } else { below })?;
        Ok(below..self.unswept.end)
    }

    fn truncate(&mut self, from: u64, last: Option<LogId>) -> io::Result<()> {
        if last == self.last {
            return Ok(());
        }
        // First the durable index, with an fsync: it must never claim more than the log has.
        self.durable_index.record(last, self.vote, true)?;
        let end = self.last.map_or(from, |last| last.index + 1);
        let mut batch = self.disk.batch().durability(Some(PersistMode::SyncData));
        for index in from..end {
            self.disk.remove_entry(&mut batch, index);
        }
        self.disk.put_last(&mut batch, last)?;
        batch.commit().map_err(io::Error::other)?;
        self.last = last;
        self.tail.lock().flushed_below(from);
        Ok(())
    }

    fn purge(&mut self, upto: LogId, last: Option<LogId>) -> io::Result<()> {
        let existing = self.last.map_or(0, |last| last.index + 1);
        self.kept_from = self.kept_from.max(upto.index + 1);
        // There are no entries beyond the old end, so nothing to remove there.
        self.unswept.end = self.kept_from.min(existing).max(self.unswept.start);
        let mut batch = self.disk.batch().durability(Some(PersistMode::SyncData));
        self.disk.put_purged(&mut batch, &upto)?;
        self.disk.put_last(&mut batch, last)?;
        if self.unswept.is_empty() {
            self.disk.put_swept(&mut batch, self.kept_from)?;
        }
        batch.commit().map_err(io::Error::other)?;
        self.last = last;
        self.durable_index.record(self.last, self.vote, false)?;
        if self.unswept.is_empty() {
            self.unswept = self.kept_from..self.kept_from;
        }
        self.tail.lock().flushed_below(self.last.map_or(0, |last| last.index + 1));
        Ok(())
    }
}
