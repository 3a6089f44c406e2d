//! The compared systems and their clusters: three servers on loopback (Redis: one), with default
//! settings where possible.

use std::{
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use leasehold_bench::process::resident_bytes;
use tempfile::TempDir;

use crate::{
    closed_loop::{Line, Lines, Load},
    etcd, leasehold,
    process::{Process, free_ports},
    redis,
    watched::Watchers,
    zookeeper,
};

/// Time limit for a cluster to serve.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How often servers are asked for the leader.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// The length of all values.
pub(crate) const VALUE_BYTES: usize = 256;

/// The term of leases: they are revoked before it ends.
pub(crate) const LEASE_TERM: Duration = Duration::from_secs(3_600);

/// Nodes below one parent.
pub(crate) const GROUP: u64 = 1_000;

/// A system to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum System {
    Leasehold,
    Etcd,
    Zookeeper,
    Redis,
}

impl System {
    /// All systems, in the order of their turns.
    pub(crate) const ALL: [Self; 4] = [Self::Leasehold, Self::Etcd, Self::Zookeeper, Self::Redis];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Leasehold => "Leasehold",
            Self::Etcd => "etcd",
            Self::Zookeeper => "ZooKeeper",
            Self::Redis => "Redis, one server",
        }
    }

    /// The measured loads and their labels.
    pub(crate) fn loads(self) -> &'static [(Load, &'static str)] {
        match self {
            Self::Leasehold => &[
                (Load::Write, "Leasehold"),
                (Load::Read, "Leasehold, linearizable, no lease taken"),
                (Load::Lease, "Leasehold"),
                (Load::Lock, "Leasehold"),
            ],
            Self::Etcd => &[
                (Load::Write, "etcd"),
                (Load::Read, "etcd, linearizable"),
                (Load::LocalRead, "etcd, serializable, all servers"),
                (Load::Lease, "etcd"),
                (Load::Lock, "etcd"),
            ],
            Self::Zookeeper => &[
                (Load::Write, "ZooKeeper"),
                (Load::Read, "ZooKeeper, sync + read"),
                (Load::LocalRead, "ZooKeeper, local, all servers"),
            ],
            Self::Redis => &[(Load::Write, "Redis, one server"), (Load::Read, "Redis, one server")],
        }
    }

    /// Whether the system is one server, without failover.
    pub(crate) fn is_single(self) -> bool {
        self == Self::Redis
    }

    /// The version that the system's program prints. The error names a missing program.
    pub(crate) fn version(self, leasehold: &Path) -> Result<String> {
        match self {
            Self::Leasehold => first_line(Command::new(leasehold).arg("--version")),
            Self::Etcd => first_line(Command::new(etcd::program()?).arg("--version")),
            Self::Zookeeper => first_line(Command::new("java").args([
                "-cp",
                &zookeeper::classpath()?,
                "org.apache.zookeeper.version.VersionInfoMain",
            ])),
            Self::Redis => first_line(Command::new(redis::program()?).arg("--version")),
        }
    }
}

fn first_line(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned())
}

/// Running servers. On drop they are killed and their data is removed.
#[derive(Debug)]
pub(crate) struct Cluster {
    system: System,
    // Dropped before the folder, so that the servers end before it is removed.
    processes: Vec<Option<Process>>,
    endpoints: Vec<String>,
    leader: usize,
    _dir: TempDir,
}

impl Cluster {
    /// Starts a cluster below `dir` and waits until it serves.
    pub(crate) async fn start(system: System, leasehold: &Path, dir: &Path) -> Result<Self> {
        let dir =
            tempfile::Builder::new().prefix(system.name().split(',').next().unwrap_or_default()).tempdir_in(dir)?;
        let ports = free_ports(9)?;
        let (commands, served) = match system {
            System::Leasehold => leasehold::commands(leasehold, dir.path(), &ports),
            System::Etcd => etcd::commands(&etcd::program()?, dir.path(), &ports),
            System::Zookeeper => zookeeper::commands(&zookeeper::classpath()?, dir.path(), &ports)?,
            System::Redis => redis::commands(&redis::program()?, dir.path(), &ports),
        };
        let endpoints = served.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let mut cluster = Self { system, processes: Vec::new(), endpoints, leader: 0, _dir: dir };
        for (number, command) in commands.into_iter().enumerate() {
            let log = cluster._dir.path().join(format!("{number}.log"));
            cluster.processes.push(Some(Process::start(command, log)?));
        }
        cluster.leader = cluster.find_leader().await.with_context(|| format!("starting {}", system.name()))?;
        Ok(cluster)
    }

    async fn find_leader(&mut self) -> Result<usize> {
        let began = Instant::now();
        let mut last = None;
        while began.elapsed() < START_TIMEOUT {
            for number in 0..self.endpoints.len() {
                self.processes.iter_mut().flatten().try_for_each(Process::check)?;
                match self.is_leader(number).await {
                    Ok(true) => return Ok(number),
                    Ok(false) => {}
                    Err(error) => last = Some(error),
                }
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
        bail!("no server led within {START_TIMEOUT:?}: {last:?}")
    }

    async fn is_leader(&self, number: usize) -> Result<bool> {
        let endpoint = &self.endpoints[number];
        match self.system {
            System::Leasehold => leasehold::is_leader(endpoint, number).await,
            System::Etcd => etcd::is_leader(endpoint).await,
            System::Zookeeper => zookeeper::is_leader(endpoint).await,
            System::Redis => redis::answers(endpoint).await,
        }
    }

    /// Opens `count` connections for a load: to the leader, or spread over all servers for local
    /// reads.
    pub(crate) async fn lines(&self, load: Load, count: usize) -> Result<Lines> {
        let mut lines = Vec::new();
        for number in 0..count {
            let at = if load == Load::LocalRead { number % self.endpoints.len() } else { 0 };
            lines.push(self.line(load, (self.leader + at) % self.endpoints.len()).await?);
        }
        Ok(lines)
    }

    async fn line(&self, load: Load, server: usize) -> Result<Arc<dyn Line>> {
        let endpoint = &self.endpoints[server];
        match self.system {
            System::Leasehold => leasehold::line(&self.endpoints, endpoint, load).await,
            System::Etcd => etcd::line(endpoint).await,
            System::Zookeeper => zookeeper::line(endpoint).await,
            System::Redis => redis::line(endpoint).await,
        }
    }

    /// Creates the parents of the nodes.
    pub(crate) async fn make_parents(&self, nodes: u64) -> Result<()> {
        match self.system {
            System::Zookeeper => zookeeper::make_parents(&self.endpoints[self.leader], nodes).await,
            // Leasehold creates parents with the nodes; the others have none.
            System::Leasehold | System::Etcd | System::Redis => Ok(()),
        }
    }

    /// Nanoseconds per cached read by this many threads. `None` if the system's client has no
    /// cache.
    pub(crate) async fn cached_read_ns(&self, threads: usize, nodes: u64, span: Duration) -> Result<Option<f64>> {
        match self.system {
            System::Leasehold => leasehold::cached_read_ns(&self.endpoints, threads, nodes, span).await.map(Some),
            System::Redis => redis::cached_read_ns(&self.endpoints[0], threads, nodes, span).await.map(Some),
            System::Etcd | System::Zookeeper => Ok(None),
        }
    }

    /// Watches of node 0 on one connection to the leader. `None` if the system has no watch that
    /// returns each change.
    pub(crate) async fn watched(&self, watchers: usize) -> Result<Option<Watchers>> {
        match self.system {
            System::Leasehold => leasehold::watched(&self.endpoints, watchers).await.map(Some),
            System::Etcd => etcd::watched(&self.endpoints[self.leader], watchers).await.map(Some),
            System::Zookeeper | System::Redis => Ok(None),
        }
    }

    /// The process ids of all running servers.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.processes.iter().flatten().map(Process::id)
    }

    pub(crate) fn leader_resident_bytes(&self) -> Result<u64> {
        let leader = self.processes[self.leader].as_ref().context("the leader was killed")?;
        Ok(resident_bytes(leader.id())?)
    }

    /// Connections for writes to the servers that do not lead.
    pub(crate) async fn survivors(&self) -> Result<Lines> {
        let mut lines = Vec::new();
        for server in (0..self.endpoints.len()).filter(|server| *server != self.leader) {
            lines.push(self.line(Load::Write, server).await?);
        }
        Ok(lines)
    }

    /// Kills the leader with SIGKILL.
    pub(crate) fn kill_leader(&mut self) -> Result<()> {
        let leader = self.processes[self.leader].take();
        leader.context("the leader was killed before")?.kill()
    }
}

/// The path or name of a node.
pub(crate) fn path_of(node: u64) -> String {
    format!("/peers/{}/{}", node / GROUP, node % GROUP)
}

/// The value of a node.
pub(crate) fn value(node: u64) -> Vec<u8> {
    let mut bytes = vec![b'.'; VALUE_BYTES];
    bytes[..8].copy_from_slice(&node.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_paths_of_their_own_in_groups() {
        assert_eq!(path_of(0), "/peers/0/0");
        assert_eq!(path_of(99_999), "/peers/99/999");
        assert_eq!(value(7).len(), VALUE_BYTES);
        assert_ne!(value(7), value(8));
    }

    #[test]
    fn every_system_writes_and_reads_what_was_last_written() {
        for system in System::ALL {
            for load in [Load::Write, Load::Read] {
                assert!(system.loads().iter().any(|(measured, _)| *measured == load), "{system:?} {load:?}");
            }
        }
    }
}
