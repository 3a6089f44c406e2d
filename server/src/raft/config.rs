//! What a replica has to be told.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use leasehold_protocol::volume::VolumeSettings;
use openraft::{Config, ConfigError, SnapshotPolicy};

/// The entries that one message to a follower has at most. 32, an earlier default of openraft's,
/// costs two thirds of the throughput.
const PAYLOAD_MAX_ENTRIES: u64 = 1024;
/// A snapshot is given up when its receiver has acknowledged nothing of it for this long, unless
/// set otherwise: no piece of it, and, once it has all of them, not that it is at work on them.
/// However long it takes otherwise, it goes on. A link that moves less than one
/// [piece](crate::store::snapshot::PIECE_BYTES) in this time, 35 kB/s, is too slow.
pub const SNAPSHOT_STALL: Duration = Duration::from_secs(30);

/// The bytes of entries after which a snapshot is taken, unless set otherwise.
///
/// With [`RETAINED_BYTES`] this bounds what a restart reads of the log and applies of it: see
/// `server/tests/replica/restart.rs`, which measures it. Fewer bytes would mean more fsyncs of the
/// state, which each snapshot begins with.
pub const SNAPSHOT_BYTES: u64 = 64 << 20;
/// The bytes of entries that stay at most when the log is cut, unless set otherwise. A follower
/// that lacks more is sent a snapshot, so this is a few seconds of a busy cluster's entries.
pub const RETAINED_BYTES: u64 = 32 << 20;

/// How fast Raft moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// A leader is heard of this often.
    pub heartbeat: Duration,
    /// A follower campaigns when it has not heard of a leader for between this,
    pub election_min: Duration,
    /// and this.
    pub election_max: Duration,
}

impl Default for Timings {
    /// About a second until a new leader serves, on an ordinary network; a stall of a quarter of a
    /// second changes nothing.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(75),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(600),
        }
    }
}

/// A replica and its cluster.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Which of the members this is.
    pub id: u64,
    /// Where it keeps its data. Made if it does not exist.
    pub dir: PathBuf,
    /// All members and where they listen, this one included. The same on all of them when the
    /// cluster is founded; afterwards the cluster's own record counts.
    pub members: BTreeMap<u64, String>,
    /// What the root volume promises until somebody changes it. The same on all members; afterwards
    /// the cluster's own record counts.
    pub root: VolumeSettings,
    /// How fast Raft moves.
    pub timings: Timings,
    /// A snapshot is taken, and the log cut, after this many entries,
    pub snapshot_entries: u64,
    /// or this many bytes of entries, whichever comes first. See [`SNAPSHOT_BYTES`].
    pub snapshot_bytes: u64,
    /// When the log is cut, at most this many entries stay, for followers that are not far behind,
    pub retained_entries: u64,
    /// of at most this many bytes. See [`RETAINED_BYTES`].
    pub retained_bytes: u64,
    /// A snapshot is given up when nothing of it has been acknowledged for this long. See
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
            snapshot_entries: 50_000,
            snapshot_bytes: SNAPSHOT_BYTES,
            retained_entries: 5_000,
            retained_bytes: RETAINED_BYTES,
            snapshot_stall: SNAPSHOT_STALL,
        }
    }

    /// As openraft wants it.
    pub(super) fn raft(&self) -> Result<Config, ConfigError> {
        let election_max = millis(self.timings.election_max);
        Config {
            cluster_name: "leasehold".to_owned(),
            heartbeat_interval: millis(self.timings.heartbeat),
            election_timeout_min: millis(self.timings.election_min),
            election_timeout_max: election_max,
            // Ours counts, see `network`: openraft only hands this on.
            install_snapshot_timeout: millis(self.snapshot_stall),
            max_payload_entries: PAYLOAD_MAX_ENTRIES,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_entries),
            max_in_snapshot_log_to_keep: self.retained_entries,
            // A follower is sent the log as long as it is there.
            replication_lag_threshold: self.snapshot_entries.saturating_add(self.retained_entries),
            // A leader that has lost its quorum lets the others elect, instead of keeping them
            // quiet for ever.
            quorum_loss_probe_interval: Some(election_max * 2),
            enable_pre_vote: Some(true),
            // A restarted leader must be elected again: its memory is gone, and with it what it has
            // granted.
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
