//! Shared parts of the tests: a machine that only keeps the state, and replicas that listen.

use std::{collections::BTreeMap, future::Future, path::PathBuf, sync::Arc, time::Duration};

use leasehold_protocol::{
    command::{Command, Proposal},
    id::Epoch,
    state::State,
    time::ClusterTime,
    volume::VolumeSettings,
};
use leasehold_server::raft::{Machine, ProposeError, Replica, ReplicaConfig, ReplicaStartError, Timings};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};

/// The longest wait of any test, far beyond what the steps need.
const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, waiting).await.is_ok(), "in vain: {what}");
}

/// Keeps the state, and serves no clients.
pub struct Keeper {
    pub state: Mutex<State>,
}

impl Default for Keeper {
    fn default() -> Self {
        Self { state: Mutex::new(State::new(VolumeSettings::DEFAULT)) }
    }
}

impl Machine for Keeper {
    fn apply(&self, index: u64, proposal: &Proposal) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut state = self.state.lock();
        let applied = state.apply(index, proposal);
        applied.changed_rows.iter().map(|key| (key.encode(), state.row(key))).collect()
    }

    fn discard_state(&self) {
        *self.state.lock() = State::new(VolumeSettings::DEFAULT);
    }

    fn restore(&self, state: State) {
        *self.state.lock() = state;
    }
}

pub fn begin_epoch(replica: u64) -> Proposal {
    let commands = vec![Command::BeginEpoch { replica, attempt: 1 }];
    Proposal { epoch: Epoch(0), number: 1, time: ClusterTime::ZERO, commands }
}

pub fn open_session(epoch: Epoch, number: u64) -> Proposal {
    let commands = vec![Command::OpenSession { name: format!("session {number}") }];
    Proposal { epoch, number, time: ClusterTime::from_micros(number), commands }
}

/// A replica with its listener.
pub struct Running {
    pub replica: Replica,
    pub keeper: Arc<Keeper>,
    listener: JoinHandle<()>,
}

/// Some replicas on this machine.
pub struct Cluster {
    dirs: TempDir,
    pub members: BTreeMap<u64, String>,
    pub running: BTreeMap<u64, Running>,
    /// After this many entries the log is truncated, and half as many stay.
    pub snapshot_entries: u64,
    pub timings: Timings,
}

impl Cluster {
    /// Chooses addresses. Starts no replica.
    pub async fn new(size: u64) -> Self {
        let mut members = BTreeMap::new();
        let mut held = Vec::new();
        for id in 1..=size {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            members.insert(id, listener.local_addr().expect("an address").to_string());
            held.push(listener);
        }
        drop(held);
        let dirs = tempfile::tempdir().expect("a directory");
        Self { dirs, members, running: BTreeMap::new(), snapshot_entries: 50_000, timings: Timings::default() }
    }

    pub async fn started(size: u64) -> Self {
        Self::started_with(size, Timings::default()).await
    }

    pub async fn started_with(size: u64, timings: Timings) -> Self {
        let mut cluster = Self::new(size).await;
        cluster.timings = timings;
        for id in 1..=size {
            cluster.start(id).await;
        }
        cluster
    }

    pub fn dir(&self, id: u64) -> PathBuf {
        self.dirs.path().join(id.to_string())
    }

    pub fn config(&self, id: u64) -> ReplicaConfig {
        let mut config = ReplicaConfig::new(id, self.dir(id), self.members.clone());
        config.snapshot_entries = self.snapshot_entries;
        config.timings = self.timings;
        config.retained_entries = self.snapshot_entries / 2;
        config
    }

    pub async fn start(&mut self, id: u64) {
        let config = self.config(id);
        self.start_with(config).await.expect("starts");
    }

    pub async fn start_with(&mut self, config: ReplicaConfig) -> Result<(), ReplicaStartError> {
        let id = config.id;
        let listener = TcpListener::bind(self.members[&id].as_str()).await.expect("the port is free");
        let keeper = Arc::new(Keeper::default());
        let replica = Replica::start(config, Arc::clone(&keeper) as Arc<dyn Machine>).await?;
        let service = replica.peer_service();
        let listener = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                connections.spawn(async move {
                    if let Ok(accepted) = leasehold_wire::accept(stream, None).await {
                        service.serve_connection(accepted.stream).await;
                    }
                });
            }
        });
        self.running.insert(id, Running { replica, keeper, listener });
        Ok(())
    }

    pub async fn stop(&mut self, id: u64) {
        let Running { replica, listener, .. } = self.running.remove(&id).expect("runs");
        listener.abort();
        let _ = listener.await;
        replica.shutdown().await.expect("stops");
    }

    pub fn wipe(&self, id: u64) {
        std::fs::remove_dir_all(self.dir(id)).expect("removed");
    }

    /// Waits for a leader, and returns its id.
    pub async fn leader(&self) -> u64 {
        let leads = |running: &Running| running.replica.leadership().borrow().is_leader;
        eventually("a leader", || async { self.running.values().any(leads) }).await;
        match self.running.iter().find(|(_, running)| leads(running)) {
            Some((id, _)) => *id,
            None => Box::pin(self.leader()).await,
        }
    }

    /// Proposes on the current leader, until one has applied the proposal.
    pub async fn propose(&self, proposal: Proposal) -> u64 {
        let mut index = None;
        let index_ref = &mut index;
        let proposing = async {
            while index_ref.is_none() {
                let leader = self.leader().await;
                let applied = match self.running[&leader].replica.submit(proposal.clone()).await {
                    Ok(proposed) => proposed.await,
                    Err(error) => Err(error),
                };
                match applied {
                    Ok(applied) => *index_ref = Some(applied),
                    Err(ProposeError::Fatal { reason }) => panic!("replica {leader} ended: {reason}"),
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        tokio::time::timeout(DEADLINE, proposing).await.expect("proposed");
        index.expect("proposed")
    }

    /// Opens sessions in a new epoch.
    pub async fn open_sessions(&self, count: u64) {
        let epoch = Epoch(self.propose(begin_epoch(0)).await);
        for number in 0..count {
            self.propose(open_session(epoch, number)).await;
        }
    }

    /// Waits until all replicas have this many sessions, are voters, and have equal states.
    pub async fn agrees(&self, sessions: usize) {
        eventually("all replicas with all sessions", || async {
            self.running.values().all(|running| running.keeper.state.lock().sessions().count() == sessions)
        })
        .await;
        self.all_vote().await;
        let states = || self.running.values().map(|running| running.keeper.state.lock().clone());
        eventually("equal states", || async {
            let states: Vec<State> = states().collect();
            states.windows(2).all(|pair| pair[0] == pair[1])
        })
        .await;
    }

    pub async fn all_vote(&self) {
        eventually("all members are voters", || async {
            self.running.values().all(|running| {
                let members = running.replica.info().members;
                members.len() == self.members.len() && members.iter().all(|member| member.is_voter)
            })
        })
        .await;
    }
}
