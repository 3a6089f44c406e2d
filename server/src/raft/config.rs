//! The configuration of a replica.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use leasehold_protocol::volume::VolumeSettings;
use openraft::{Config, ConfigError, SnapshotPolicy};

/// The most entries in one message to a follower. 32, an earlier default of openraft's, costs two
/// thirds of the throughput.
const PAYLOAD_MAX_ENTRIES: u64 = 1024;
/// The default time without an acknowledgement after which a snapshot's sender gives up. The
/// receiver acknowledges each piece, and later that it is installing them. The total time is not
/// limited. A link below 35 kB/s is too slow: one [piece](crate::store::snapshot::PIECE_BYTES)
/// takes longer than this.
pub const SNAPSHOT_STALL: Duration = Duration::from_secs(30);

/// The default number of entries after which Raft takes a snapshot.
///
/// This bounds a restart if entries are small: on an idle cluster each entry has one command, and
/// [`SNAPSHOT_BYTES`] are very many of them.
pub const SNAPSHOT_ENTRIES: u64 = 50_000;
/// The default for the most entries that the log retains after a purge.
pub const RETAINED_ENTRIES: u64 = 5_000;

/// The default number of bytes of entries after which Raft takes a snapshot.
///
/// With [`RETAINED_BYTES`] this bounds what a restart reads from the log and applies.
/// `server/tests/replica/restart.rs` measures that. A smaller number would mean more fsyncs of the
/// state, because each snapshot begins with one.
pub const SNAPSHOT_BYTES: u64 = 64 << 20;
/// The default for the most bytes of entries that the log retains after a purge. A follower that
/// lacks more gets a snapshot, so this is some seconds of a busy cluster's entries.
pub const RETAINED_BYTES: u64 = 32 << 20;

/// Raft's timings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// The interval of the leader's heartbeats.
    pub heartbeat: Duration,
    /// The shortest time without a leader after which a follower campaigns.
    pub election_min: Duration,
    /// The longest such time. Each follower picks a time between both.
    pub election_max: Duration,
}

impl Default for Timings {
    /// A new leader serves after about a second on an ordinary network. A stall of a quarter of a
    /// second causes no election.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(75),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(600),
        }
    }
}

/// The configuration of a replica and its cluster.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// This replica's id among the members.
    pub id: u64,
    /// The data folder. It is created if it does not exist.
    pub dir: PathBuf,
    /// All members with their addresses, including this one. The same on all members at the
    /// bootstrap. After it, the cluster's own record counts.
    pub members: BTreeMap<u64, String>,
    /// The settings of the root volume at the bootstrap. The same on all members. After it, the
    /// cluster's own record counts.
    pub root: VolumeSettings,
    /// Raft's timings.
    pub timings: Timings,
    /// Raft takes a snapshot, and purges the log, after this many entries or `snapshot_bytes`.
    pub snapshot_entries: u64,
    /// The bytes of entries after which Raft takes a snapshot. See [`SNAPSHOT_BYTES`].
    pub snapshot_bytes: u64,
    /// The most entries that the log retains after a purge, for followers that are not far behind.
    pub retained_entries: u64,
    /// The most bytes of these entries. See [`RETAINED_BYTES`].
    pub retained_bytes: u64,
    /// A snapshot's sender gives up when the receiver has acknowledged nothing for this long. See
    /// [`SNAPSHOT_STALL`].
    pub snapshot_stall: Duration,
}

impl ReplicaConfig {
    /// The usual settings for a member of a cluster.
    pub fn new(id: u64, dir: impl Into<PathBuf>, members: BTreeMap<u64, String>) -> Self {
        Self {
            id,
            dir: dir.into(),
            members,
            root: VolumeSettings::DEFAULT,
            timings: Timings::default(),
            snapshot_entries: SNAPSHOT_ENTRIES,
            snapshot_bytes: SNAPSHOT_BYTES,
            retained_entries: RETAINED_ENTRIES,
            retained_bytes: RETAINED_BYTES,
            snapshot_stall: SNAPSHOT_STALL,
        }
    }

    /// openraft's configuration.
    pub(super) fn raft(&self) -> Result<Config, ConfigError> {
        let election_max = millis(self.timings.election_max);
        Config {
            cluster_name: "leasehold".to_owned(),
            heartbeat_interval: millis(self.timings.heartbeat),
            election_timeout_min: millis(self.timings.election_min),
            election_timeout_max: election_max,
            // `network` enforces our own limit. openraft only passes this on.
            install_snapshot_timeout: millis(self.snapshot_stall),
            max_payload_entries: PAYLOAD_MAX_ENTRIES,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_entries),
            max_in_snapshot_log_to_keep: self.retained_entries,
            // A follower gets log entries as long as the log has them.
            replication_lag_threshold: self.snapshot_entries.saturating_add(self.retained_entries),
            // A leader that has lost its quorum lets the others elect, instead of suppressing
            // elections for ever.
            quorum_loss_probe_interval: Some(election_max * 2),
            enable_pre_vote: Some(true),
            // A restarted leader must be elected again, because its lessor's memory is lost.
            enable_leader_restore: Some(false),
            backoff: "20ms 40ms ...400ms".to_owned(),
            ..Config::default()
        }
        .validate()
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
