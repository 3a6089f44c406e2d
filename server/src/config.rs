//! A server's configuration, from the command line or from a file.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use leasehold_protocol::{limits::Limits, time::DriftAllowance};
use serde::{Deserialize, Serialize};

use crate::raft::{RETAINED_BYTES, RETAINED_ENTRIES, ReplicaConfig, SNAPSHOT_BYTES, SNAPSHOT_ENTRIES, Timings};

/// The longest election timeout. A cluster that waits longer than an hour for a leader is of no
/// use. Raft's timers must not overflow at multiples of this time.
pub const ELECTION_MAX_MS: u64 = 3_600_000;

/// A replica's configuration. A configuration file is TOML with these field names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// This replica's number in the cluster, from 1.
    pub id: u64,
    /// The data folder. It is created if it does not exist.
    pub data: PathBuf,
    /// The address to listen on, for clients and for peers: `host:port`. Port 0 picks a free port.
    pub listen: String,
    /// All replicas by number, with the addresses at which other replicas and clients reach them.
    /// Empty for a cluster of one.
    #[serde(with = "by_number")]
    pub cluster: BTreeMap<u64, String>,
    /// How far the clocks of servers and clients may drift, in parts per million.
    pub drift_ppm: u32,
    /// How large the data of users may be.
    pub limits: Limits,
    /// Raft's timings and sizes.
    pub raft: RaftConfig,
}

/// Raft's timings and sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RaftConfig {
    /// The interval of the leader's heartbeats, in milliseconds.
    pub heartbeat_ms: u64,
    /// The shortest time without a leader after which a replica campaigns, in milliseconds.
    pub election_min_ms: u64,
    /// The longest such time, in milliseconds. Each replica picks a time between both.
    pub election_max_ms: u64,
    /// Raft takes a snapshot after this many log entries, or after `snapshot_bytes`.
    pub snapshot_entries: u64,
    /// The bytes of log entries after which Raft takes a snapshot.
    pub snapshot_bytes: u64,
    /// The most entries that the log retains after a snapshot, for replicas that are a little
    /// behind.
    pub keep_entries: u64,
    /// The most bytes of these entries.
    pub keep_bytes: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            id: 1,
            data: PathBuf::from("leasehold-data"),
            listen: "127.0.0.1:7600".to_owned(),
            cluster: BTreeMap::new(),
            drift_ppm: DriftAllowance::DEFAULT.ppm(),
            limits: Limits::default(),
            raft: RaftConfig::default(),
        }
    }
}

impl Default for RaftConfig {
    fn default() -> Self {
        Self {
            heartbeat_ms: 75,
            election_min_ms: 300,
            election_max_ms: 600,
            snapshot_entries: SNAPSHOT_ENTRIES,
            snapshot_bytes: SNAPSHOT_BYTES,
            keep_entries: RETAINED_ENTRIES,
            keep_bytes: RETAINED_BYTES,
        }
    }
}

/// Why a server cannot run with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The replica is not a member of its own cluster.
    #[error("replica {id}: not in --cluster; expected one of {members:?}")]
    NotAMember {
        /// The replica.
        id: u64,
        /// The members.
        members: Vec<u64>,
    },
    /// A replica's number is 0. Numbers start at 1.
    #[error("replica 0: invalid id; ids begin at 1")]
    IdZero,
    /// An address is not `host:port`.
    #[error("address {got:?}: invalid; expected HOST:PORT")]
    Address {
        /// The configured text.
        got: String,
    },
    /// Two replicas have the same address.
    #[error("replicas {one} and {other} have the same address {address}; each needs its own")]
    SameAddress {
        /// One of the two.
        one: u64,
        /// The other one.
        other: u64,
        /// Their address.
        address: String,
    },
    /// With these timings, no leader would last.
    #[error(
        "heartbeat of {heartbeat_ms} ms, elections after {election_min_ms} to {election_max_ms} \
         ms: inconsistent; expected raft.election_min_ms to be at least three heartbeats and \
         below raft.election_max_ms, which is at most {ELECTION_MAX_MS}"
    )]
    Timings {
        /// The heartbeat interval.
        heartbeat_ms: u64,
        /// The shortest election timeout.
        election_min_ms: u64,
        /// The longest election timeout.
        election_max_ms: u64,
    },
    /// A limit is out of bounds.
    #[error(transparent)]
    Limit(#[from] leasehold_protocol::limits::LimitError),
    /// The drift allowance is out of bounds.
    #[error(transparent)]
    Drift(#[from] leasehold_protocol::time::DriftError),
}

impl ServerConfig {
    /// Checks the configuration, and fills in the list of a cluster of one.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names what was expected.
    pub fn checked(mut self) -> Result<Self, ConfigError> {
        if self.id == 0 || self.cluster.contains_key(&0) {
            return Err(ConfigError::IdZero);
        }
        if !self.cluster.is_empty() && !self.cluster.contains_key(&self.id) {
            return Err(ConfigError::NotAMember { id: self.id, members: self.cluster.keys().copied().collect() });
        }
        if self.cluster.is_empty() {
            self.cluster.insert(self.id, self.listen.clone());
        }
        self.check_addresses()?;
        self.limits.check()?;
        DriftAllowance::from_ppm(self.drift_ppm)?;
        let RaftConfig { heartbeat_ms, election_min_ms, election_max_ms, .. } = self.raft;
        let is_in_order = election_min_ms >= heartbeat_ms.saturating_mul(3) && election_max_ms > election_min_ms;
        if heartbeat_ms == 0 || !is_in_order || election_max_ms > ELECTION_MAX_MS {
            return Err(ConfigError::Timings { heartbeat_ms, election_min_ms, election_max_ms });
        }
        Ok(self)
    }

    /// The part of the configuration that Raft and the store need.
    pub(crate) fn replica(&self) -> ReplicaConfig {
        let timings = Timings {
            heartbeat: Duration::from_millis(self.raft.heartbeat_ms),
            election_min: Duration::from_millis(self.raft.election_min_ms),
            election_max: Duration::from_millis(self.raft.election_max_ms),
        };
        ReplicaConfig {
            timings,
            snapshot_entries: self.raft.snapshot_entries,
            snapshot_bytes: self.raft.snapshot_bytes,
            retained_entries: self.raft.keep_entries,
            retained_bytes: self.raft.keep_bytes,
            ..ReplicaConfig::new(self.id, &self.data, self.cluster.clone())
        }
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
        for (id, address) in &self.cluster {
            check_address(address)?;
            if let Some(one) = seen.insert(address, *id) {
                return Err(ConfigError::SameAddress { one, other: *id, address: address.clone() });
            }
        }
        check_address(&self.listen)
    }

    /// The drift allowance.
    pub fn drift(&self) -> DriftAllowance {
        DriftAllowance::from_ppm(self.drift_ppm).unwrap_or(DriftAllowance::DEFAULT)
    }
}

fn check_address(address: &str) -> Result<(), ConfigError> {
    let port =
        address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    port.map(|_| ()).ok_or_else(|| ConfigError::Address { got: address.to_owned() })
}

/// The keys of a TOML table are strings.
mod by_number {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(cluster: &BTreeMap<u64, String>, serializer: S) -> Result<S::Ok, S::Error> {
        let texts: BTreeMap<String, &String> = cluster.iter().map(|(id, address)| (id.to_string(), address)).collect();
        texts.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u64, String>, D::Error> {
        let texts = BTreeMap::<String, String>::deserialize(deserializer)?;
        let number = |id: String| {
            id.parse().map_err(|_| D::Error::custom(format!("replica {id:?}: invalid id; ids are numbers from 1")))
        };
        texts.into_iter().map(|(id, address)| Ok((number(id)?, address))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(members: &[(u64, &str)]) -> BTreeMap<u64, String> {
        members.iter().map(|(id, address)| (*id, (*address).to_owned())).collect()
    }

    #[test]
    fn a_server_without_options_is_a_cluster_of_one() {
        let config = ServerConfig::default().checked().expect("valid");
        assert_eq!(config.cluster, cluster(&[(1, "127.0.0.1:7600")]));
    }

    #[test]
    fn what_cannot_work_is_refused_with_what_was_expected() {
        let stranger =
            ServerConfig { id: 4, cluster: cluster(&[(1, "a:1"), (2, "b:1"), (3, "c:1")]), ..ServerConfig::default() };
        assert!(matches!(stranger.checked(), Err(ConfigError::NotAMember { id: 4, .. })));
        let twins = ServerConfig { cluster: cluster(&[(1, "a:1"), (2, "a:1")]), ..ServerConfig::default() };
        assert!(matches!(twins.checked(), Err(ConfigError::SameAddress { one: 1, other: 2, .. })));
        let nowhere = ServerConfig { listen: "7600".to_owned(), ..ServerConfig::default() };
        assert!(matches!(nowhere.checked(), Err(ConfigError::Address { .. })));
        let raft =
            RaftConfig { heartbeat_ms: 100, election_min_ms: 250, election_max_ms: 600, ..RaftConfig::default() };
        assert!(matches!(ServerConfig { raft, ..ServerConfig::default() }.checked(), Err(ConfigError::Timings { .. })));
    }

    #[test]
    fn timings_that_cannot_be_counted_with_are_refused() {
        let refused = |heartbeat_ms, election_min_ms, election_max_ms| {
            let raft = RaftConfig { heartbeat_ms, election_min_ms, election_max_ms, ..RaftConfig::default() };
            let config = ServerConfig { raft, ..ServerConfig::default() };
            matches!(config.checked(), Err(ConfigError::Timings { .. }))
        };
        assert!(refused(u64::MAX / 2, u64::MAX - 1, u64::MAX), "three heartbeats are beyond all numbers");
        assert!(refused(1, 3, u64::MAX));
        assert!(refused(75, 300, ELECTION_MAX_MS + 1));
        assert!(!refused(75, 300, ELECTION_MAX_MS));
    }
}
