//! The log's bound in bytes.
//!
//! Raft itself counts entries: it takes a snapshot after so many, and keeps so many. An entry is a
//! batch of commands, though: a few bytes on an idle cluster, [two
//! MiB](leasehold_protocol::lessor::Bounds::proposal_bytes_max) on a busy one. A restart reads the
//! whole log and may have to apply much of it, so its bytes are bounded too. This task asks Raft
//! for a snapshot, and to purge, as soon as the bytes say so; Raft's own rules go on beside it.
//!
//! **Guarantees.** Raft purges what it has a snapshot of and no follower is being sent, whoever
//! asks it to. What has not been applied counts for no snapshot: it would not be in it.
//!
//! A snapshot is cheap: it is a view of the rows, which are on the disk already but for the last
//! fsync.

use std::sync::Arc;

use openraft::{async_runtime::WatchReceiver, errors::Fatal};

use super::{
    node::ReplicaNode,
    types::{
        TypeConfig,
        alias::{LogId, Raft},
    },
};

/// Where a replica is, as far as its log is concerned: indexes, or 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progress {
    applied: u64,
    snapshot: u64,
    purged: u64,
}

/// What Raft has been asked for.
#[derive(Debug, Default)]
struct RequestedCompaction {
    /// Where the last snapshot was when another was asked for. A second request would be ignored
    /// until that is there.
    after_snapshot: Option<u64>,
    /// The entry that it was asked to purge up to.
    purge_upto: u64,
}

impl RequestedCompaction {
    /// Whether a snapshot is due, as so many bytes have been applied since the last one.
    fn is_snapshot_due(&mut self, progress: Progress, applied_bytes: u64, bytes_max: u64) -> bool {
        let is_due = applied_bytes >= bytes_max && self.after_snapshot != Some(progress.snapshot);
        if is_due {
            self.after_snapshot = Some(progress.snapshot);
        }
        is_due
    }

    /// The entry up to which to purge, if `kept_from` is the first that is to stay.
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
    /// Keeps the log within its bytes, until Raft ends.
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
                // Raft has ended. Whoever follows it says why.
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
