//! The log's bound in bytes.
//!
//! Raft itself counts entries: how many cause a snapshot, and how many the log retains. But an
//! entry is a batch of commands: a few bytes on an idle cluster, [two
//! MiB](leasehold_protocol::lessor::LessorBounds::proposal_bytes_max) on a busy one. A restart
//! reads the whole log, and may apply much of it, so its bytes are bounded too. This task asks Raft
//! for a snapshot, and for a purge, when the bytes require it. Raft's own rules stay in force.
//!
//! **Guarantees.** Raft always purges only entries that a snapshot has, and that it is sending to
//! no follower. Bytes that are not applied do not count, because a snapshot would not have them.
//!
//! A snapshot is cheap: a view of rows that are written already, and one fsync.

use std::sync::Arc;

use openraft::{async_runtime::WatchReceiver, errors::Fatal};

use super::{
    machine::Raft,
    node::ReplicaNode,
    types::{TypeConfig, alias::LogId},
};

/// The positions of a replica's log, as indexes, or 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progress {
    applied: u64,
    snapshot: u64,
    purged: u64,
}

/// The last requests to Raft.
#[derive(Debug, Default)]
struct RequestedCompaction {
    /// The position of the last snapshot when the next was requested. Raft would ignore a second
    /// request until the next exists.
    after_snapshot: Option<u64>,
    /// The last entry that Raft was asked to purge.
    purge_upto: u64,
}

impl RequestedCompaction {
    /// Whether a snapshot is due, because of the bytes that were applied since the last snapshot.
    fn is_snapshot_due(&mut self, progress: Progress, applied_bytes: u64, bytes_max: u64) -> bool {
        let is_due = applied_bytes >= bytes_max && self.after_snapshot != Some(progress.snapshot);
        if is_due {
            self.after_snapshot = Some(progress.snapshot);
        }
        is_due
    }

    /// The last entry to purge now, if any. `kept_from` is the first entry to retain.
    fn purge_upto(&mut self, progress: Progress, kept_from: u64) -> Option<u64> {
        let upto = kept_from.saturating_sub(1).min(progress.snapshot);
        let is_due = upto > progress.purged.max(self.purge_upto);
        is_due.then(|| {
            self.purge_upto = upto;
            upto
        })
    }
}

impl ReplicaNode {
    /// Keeps the log within its bound, until Raft ends.
    pub(super) async fn bound_log(self: Arc<Self>, raft: Raft) {
        let mut metrics = raft.data_metrics();
        let mut asked = RequestedCompaction::default();
        loop {
            let progress = {
                let metrics = metrics.borrow_watched();
                let index = |id: &Option<LogId>| id.map_or(0, |id| id.index);
                Progress {
                    applied: index(&metrics.last_applied),
                    snapshot: index(&metrics.snapshot),
                    purged: index(&metrics.purged),
                }
            };
            if self.ask_for_room(&raft, progress, &mut asked).await.is_err() || metrics.changed().await.is_err() {
                // Raft has ended. `watch_raft` reports why.
                return;
            }
        }
    }

    async fn ask_for_room(
        &self,
        raft: &Raft,
        progress: Progress,
        asked: &mut RequestedCompaction,
    ) -> Result<(), Fatal<TypeConfig>> {
        let applied_bytes = self.log.bytes_between(progress.snapshot + 1, progress.applied + 1);
        if asked.is_snapshot_due(progress, applied_bytes, self.config.snapshot_bytes) {
            tracing::debug!(applied = progress.applied, bytes = applied_bytes, "a snapshot is due by bytes");
            raft.trigger().snapshot().await?;
        }
        if let Some(upto) = asked.purge_upto(progress, self.log.last_bytes_from(self.config.retained_bytes)) {
            raft.trigger().purge_log(upto).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_is_asked_for_once_until_it_is_there() {
        let mut asked = RequestedCompaction::default();
        let at = |applied, snapshot| Progress { applied, snapshot, purged: 0 };
        assert!(!asked.is_snapshot_due(at(10, 0), 99, 100));
        assert!(asked.is_snapshot_due(at(11, 0), 100, 100));
        assert!(!asked.is_snapshot_due(at(12, 0), 101, 100), "it is being taken");
        assert!(!asked.is_snapshot_due(at(13, 11), 20, 100));
        assert!(asked.is_snapshot_due(at(23, 11), 120, 100), "the next");
    }

    #[test]
    fn log_is_purged_up_to_a_snapshot_at_most() {
        let mut asked = RequestedCompaction::default();
        let at = |snapshot, purged| Progress { applied: 100, snapshot, purged };
        assert_eq!(asked.purge_upto(at(0, 0), 60), None, "no snapshot");
        assert_eq!(asked.purge_upto(at(50, 0), 60), Some(50));
        assert_eq!(asked.purge_upto(at(50, 0), 60), None, "it was asked for, and a follower may be reading");
        assert_eq!(asked.purge_upto(at(90, 50), 70), Some(69));
        assert_eq!(asked.purge_upto(at(90, 80), 75), None, "it is purged already");
        assert_eq!(asked.purge_upto(at(90, 80), 0), None);
    }
}
