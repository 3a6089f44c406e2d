//! What the parts of one replica share: its stores, its store identity, and its Raft once started.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::state::State;
use openraft::{Instant as _, async_runtime::WatchReceiver};
use parking_lot::{Mutex, RwLock};
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    config::ReplicaConfig,
    error::ReplicaStartError,
    heard::Heard,
    incoming::{Incoming, Installing},
    leadership::RaftLeadership,
    machine::{Machine, Raft, StateMachine},
    network::PeerNetworks,
    peer::{KnownMembers, PeerRefusal, PeerReport, ReplicaStage},
    quorum::Quorum,
    reach::PeersReach,
    types::alias::StoredMembership,
};
use crate::store::{
    directory::{self, DirectoryLock, DirectoryLockError},
    log::LogStore,
    poison::Poison,
    snapshot::SnapshotHeader,
    state::{LoadedState, StateStore},
    store_identity::{self, ClusterId, Participation, StoreIdentity},
};

/// One replica.
pub(super) struct ReplicaNode {
    pub(super) config: ReplicaConfig,
    /// Released when the stores are closed and every task that writes in the directory has ended.
    directory: Mutex<Option<Arc<DirectoryLock>>>,
    pub(super) poison: Poison,
    pub(super) log: LogStore,
    pub(super) store: StateStore,
    /// The loaded state, until Raft starts with it.
    loaded: Mutex<Option<(SnapshotHeader, Option<State>)>>,
    machine: Arc<dyn Machine>,
    /// Distinguishes the successive stores of an empty replica.
    pub(super) store_id: u64,
    identity: Arc<RwLock<Option<StoreIdentity>>>,
    raft: RwLock<Option<Raft>>,
    pub(super) leadership: watch::Sender<RaftLeadership>,
    /// The Raft term that this replica has stepped down from, although Raft may still count it as
    /// that term's leader. Locked within `leadership`.
    stepped_down_term: Mutex<Option<u64>>,
    pub(super) heard: Mutex<Heard>,
    pub(super) incoming: Mutex<Option<Incoming>>,
    pub(super) installing: Mutex<Option<Installing>>,
    incoming_files: AtomicU64,
    /// Serializes changes of the store identity and of the membership.
    pub(super) membership_lock: tokio::sync::Mutex<()>,
    /// Read-locked while Raft gets a message by which this replica takes part. Write-locked while
    /// the replica leaves one bootstrap for another.
    pub(super) cluster_switch_lock: tokio::sync::RwLock<()>,
    starting: tokio::sync::Mutex<()>,
    /// How often this replica has asked the others for their stages.
    pub(super) rounds: AtomicU64,
    /// How many AppendEntries messages, heartbeats among them, have come from leaders.
    pub(super) messages: AtomicU64,
    /// Whether the other replicas answer.
    reaches: PeersReach,
    /// The membership that removed this replica, once known.
    pub(super) removed: Mutex<Option<KnownMembers>>,
    /// The task that brings this replica into its cluster.
    pub(super) bootstrapping: Mutex<Option<JoinHandle<()>>>,
    pub(super) closing: CancellationToken,
}

impl ReplicaNode {
    /// Locks the data directory, opens its stores, and checks that they belong together.
    pub(super) fn open(config: ReplicaConfig, machine: Arc<dyn Machine>) -> Result<Self, ReplicaStartError> {
        if !config.members.contains_key(&config.id) {
            return Err(ReplicaStartError::NotAMember {
                id: config.id,
                members: config.members.keys().copied().collect(),
            });
        }
        config.raft()?;
        let poison = Poison::default();
        let unusable = |error| ReplicaStartError::Directory { dir: config.dir.clone(), error };
        directory::create(&config.dir).map_err(unusable)?;
        let lock = DirectoryLock::take(&config.dir).map_err(|error| match error {
            DirectoryLockError::InUse { process } => ReplicaStartError::InUse { dir: config.dir.clone(), process },
            DirectoryLockError::Io(error) => unusable(error),
        })?;
        remove_incoming(&config.dir).map_err(unusable)?;
        let identity = store_identity::load(&config.dir, config.id)?;
        // Each reads its journals for up to a second.
        let (log, loaded) = std::thread::scope(|scope| {
            let loaded = scope.spawn(|| LoadedState::read(&config.dir.join("state")));
            let log = LogStore::open(&config.dir.join("log"), &config.dir.join("durable-index"), poison.clone());
            (log, loaded.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (log, loaded) = (log?, loaded?);
        let (store, header, state) = StateStore::start(loaded, poison.clone())?;

        let (last, vote) = log.last_and_vote();
        let has_log = last.is_some() || vote.is_some();
        let part = match (&identity, has_log, state.is_some()) {
            (None, true, _) | (None, _, true) => Some("store-identity"),
            (Some(_), true, false) => Some("state"),
            // A replica that has applied an entry has voted or accepted a leader before.
            (Some(_), false, true) if header.applied.is_some() => Some("log"),
            _ => None,
        };
        if let Some(part) = part {
            return Err(ReplicaStartError::Incomplete { dir: config.dir, part });
        }
        // Raft would continue with the rest of the log, and skip the entries in between.
        let (applied, purged) = (header.applied.map(|last| last.index), log.purged().map(|last| last.index));
        if applied < purged {
            return Err(ReplicaStartError::Gap { dir: config.dir, applied, purged });
        }
        Ok(Self {
            config,
            directory: Mutex::new(Some(Arc::new(lock))),
            poison,
            log,
            store,
            loaded: Mutex::new(Some((header, state))),
            machine,
            store_id: rand::random(),
            identity: Arc::new(RwLock::new(identity)),
            raft: RwLock::new(None),
            leadership: watch::Sender::new(RaftLeadership::default()),
            stepped_down_term: Mutex::new(None),
            heard: Mutex::default(),
            incoming: Mutex::new(None),
            installing: Mutex::new(None),
            incoming_files: AtomicU64::new(0),
            membership_lock: tokio::sync::Mutex::new(()),
            cluster_switch_lock: tokio::sync::RwLock::new(()),
            starting: tokio::sync::Mutex::new(()),
            rounds: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            reaches: PeersReach::default(),
            removed: Mutex::default(),
            bootstrapping: Mutex::new(None),
            closing: CancellationToken::new(),
        })
    }

    /// The lock of the data directory. The directory stays locked at least until the result is
    /// dropped.
    pub(super) fn directory(&self) -> io::Result<Arc<DirectoryLock>> {
        let directory = self.directory.lock().clone();
        directory.ok_or_else(|| io::Error::new(io::ErrorKind::BrokenPipe, "this replica is closed"))
    }

    /// The file for the next received snapshot. Each is new, because the last one may still be in
    /// use.
    pub(super) fn incoming_path(&self) -> PathBuf {
        let number = self.incoming_files.fetch_add(1, Ordering::Relaxed);
        self.config.dir.join(format!("{INCOMING}{number}"))
    }

    /// The last applied entry of the stored state, and its membership. Only valid before Raft
    /// starts.
    pub(super) fn stored_state(&self) -> (Option<u64>, StoredMembership) {
        let loaded = self.loaded.lock();
        let header = loaded.as_ref().map(|(header, _)| header);
        let applied = header.and_then(|header| header.applied).map(|applied| applied.index);
        (applied, header.map(|header| header.membership.clone()).unwrap_or_default())
    }

    pub(super) fn identity(&self) -> Option<StoreIdentity> {
        *self.identity.read()
    }

    /// Replaces the store identity, on the disk first.
    pub(super) async fn set_identity(&self, identity: Option<StoreIdentity>) -> io::Result<()> {
        self.poison.check()?;
        let (dir, directory) = (self.config.dir.clone(), self.directory()?);
        let stored = tokio::task::spawn_blocking(move || {
            let _directory = directory;
            match &identity {
                Some(identity) => store_identity::store(&dir, identity),
                None => store_identity::remove(&dir),
            }
        })
        .await
        .map_err(io::Error::other)?;
        stored.map_err(io::Error::other).inspect_err(|error| self.poison.poison(error.to_string()))?;
        *self.identity.write() = identity;
        Ok(())
    }

    pub(super) fn raft(&self) -> Option<Raft> {
        self.raft.read().clone()
    }

    /// The Raft of this cluster, or why this replica does not take part in it.
    pub(super) fn raft_of(&self, cluster: ClusterId) -> Result<Raft, PeerRefusal> {
        let replica = self.config.id;
        self.poison.check().map_err(|error| PeerRefusal::Stopped { replica, reason: error.to_string() })?;
        let (Some(identity), Some(raft)) = (self.identity(), self.raft()) else {
            return Err(PeerRefusal::NotStarted { replica });
        };
        if identity.cluster != cluster {
            return Err(PeerRefusal::OtherCluster { replica, got: identity.cluster, expected: cluster });
        }
        Ok(raft)
    }

    /// Whether this replica has voted or stored an entry.
    pub(super) fn has_participated(&self) -> bool {
        let (last, vote) = self.log.last_and_vote();
        last.is_some() || vote.is_some()
    }

    /// See [`Replica::cluster`](super::Replica::cluster).
    pub(super) fn cluster(&self) -> Option<ClusterId> {
        self.identity().filter(|_| self.has_participated()).map(|identity| identity.cluster)
    }

    pub(super) fn report(&self) -> PeerReport {
        let stage = match self.identity() {
            None => ReplicaStage::Empty { store_id: self.store_id },
            Some(identity) if self.has_participated() => {
                let known = self.raft().map(|raft| self::known(&raft)).unwrap_or_default();
                let leader = self.leadership.borrow().leader.clone();
                ReplicaStage::Started { cluster: identity.cluster, leader, known }
            }
            Some(identity) => ReplicaStage::Bootstrapping { cluster: identity.cluster },
        };
        PeerReport { replica: self.config.id, members: self.config.members.clone(), root: self.config.root, stage }
    }

    /// Starts Raft with this replica's store identity. Does nothing if Raft has started.
    pub(super) async fn start_raft(self: &Arc<Self>) -> Result<Raft, ReplicaStartError> {
        let _starting = self.starting.lock().await;
        if self.is_closing() {
            return Err(ReplicaStartError::Closing);
        }
        if let Some(raft) = self.raft() {
            return Ok(raft);
        }
        let identity = self.identity().ok_or(ReplicaStartError::NoIdentity)?;
        let (header, state) = self.loaded.lock().take().ok_or(ReplicaStartError::NoIdentity)?;
        let state = match state {
            Some(state) => state,
            None => {
                let state = State::new(identity.root);
                self.store.begin(state.clone()).await.map_err(ReplicaStartError::Store)?;
                state
            }
        };
        if let Participation::Rejoining { vote_floor } = identity.participation {
            self.save_vote_floor(vote_floor).await.map_err(ReplicaStartError::Store)?;
        }
        self.machine.restore(state);
        let machine = StateMachine::new(Arc::clone(&self.machine), self.store.clone(), header, self.incoming_path());
        let network = PeerNetworks {
            replica: self.config.id,
            identity: Arc::clone(&self.identity),
            append_timeout: self.config.timings.election_min,
            snapshot_stall: self.config.snapshot_stall,
            reaches: self.reaches.clone(),
        };
        let config = Arc::new(self.config.raft()?);
        let raft = Raft::new(self.config.id, config, network, self.log.clone(), machine)
            .await
            .map_err(|error| ReplicaStartError::Raft(error.to_string()))?;
        *self.raft.write() = Some(raft.clone());
        tokio::spawn(Arc::clone(self).watch_raft(raft.clone()));
        tokio::spawn(Arc::clone(self).bound_log(raft.clone()));
        tokio::spawn(Arc::clone(self).watch_removal(raft.clone()));
        Ok(raft)
    }

    /// Stores the vote floor of a [`Participation::Rejoining`], unless a later vote is stored.
    async fn save_vote_floor(&self, floor: super::types::alias::Vote) -> io::Result<()> {
        use openraft::storage::RaftLogStorage;
        let (_, vote) = self.log.last_and_vote();
        let is_kept = vote.is_some_and(|vote| matches!(vote.partial_cmp(&floor), Some(order) if order.is_ge()));
        if is_kept { Ok(()) } else { self.log.clone().save_vote(&floor).await }
    }

    /// Stops counting as the leader of this Raft term, for good.
    pub(super) fn step_down(&self, term: u64) {
        self.leadership.send_modify(|known| {
            *self.stepped_down_term.lock() = Some(term);
            if known.term == term {
                known.renounce(self.config.id);
            }
        });
    }

    fn publish_leadership(&self, mut leadership: RaftLeadership) {
        self.leadership.send_if_modified(|known| {
            if *self.stepped_down_term.lock() == Some(leadership.term) {
                leadership.renounce(self.config.id);
            }
            let is_new = *known != leadership;
            *known = leadership;
            is_new
        });
    }

    /// Publishes each change of leadership, and ends the replica when Raft has ended.
    async fn watch_raft(self: Arc<Self>, raft: Raft) {
        let mut metrics = raft.metrics();
        let check_every = self.config.timings.election_min;
        let mut quorum = Quorum::new(self.config.timings.election_max * 4, check_every, Instant::now());
        loop {
            let (leadership, ended) = {
                let metrics = metrics.borrow_watched();
                let membership = metrics.membership_config.membership();
                let leader = metrics.current_leader.and_then(|leader| {
                    let node = membership.get_node(&leader)?;
                    Some((leader, node.addr.clone()))
                });
                let led = metrics.state.is_leader().then_some(metrics.current_term);
                let is_alone = membership.voter_ids().all(|voter| voter == self.config.id);
                let acked = metrics.last_quorum_acked.map(|acked| acked.into_inner().elapsed());
                // A cluster of one needs no answers.
                let silence = if is_alone { Some(Duration::ZERO) } else { acked };
                let is_leader = quorum.leads(led, silence, Instant::now());
                let mut leadership = RaftLeadership { term: metrics.current_term, is_leader, leader };
                if !is_leader {
                    leadership.renounce(self.config.id);
                }
                (leadership, metrics.running_state.as_ref().err().map(ToString::to_string))
            };
            self.publish_leadership(leadership);
            let ended = match ended {
                Some(reason) => Some(reason),
                // The metrics do not change during silence, so the timeout checks again.
                None => match tokio::time::timeout(check_every, metrics.changed()).await {
                    Ok(changed) => changed.err().map(|_| "it is gone".to_owned()),
                    Err(_) => None,
                },
            };
            if let Some(reason) = ended {
                self.leadership.send_modify(|known| known.is_leader = false);
                if !self.is_closing() {
                    self.poison.poison(format!("Raft has stopped: {reason}"));
                }
                return;
            }
        }
    }

    /// Ends Raft and closes the stores. Then every applied entry is on the disk.
    pub(super) async fn close(&self) -> io::Result<()> {
        self.closing.cancel();
        let bootstrapping = self.bootstrapping.lock().take();
        if let Some(bootstrapping) = bootstrapping {
            // The task ends within the time limit of one answer.
            let _ = bootstrapping.await;
        }
        let _starting = self.starting.lock().await;
        let raft = self.raft.write().take();
        if let Some(raft) = raft
            && let Err(error) = raft.shutdown().await
        {
            tracing::warn!(%error, "Raft did not stop in good order");
        }
        let stored = self.store.close().await;
        self.log.close().await;
        // Removes its file while the directory is still locked.
        self.incoming.lock().take();
        self.directory.lock().take();
        stored
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// All other members of the configuration.
    pub(super) fn others(&self) -> BTreeMap<u64, String> {
        let mut others = self.config.members.clone();
        others.remove(&self.config.id);
        others
    }

    /// This replica's address in the configuration.
    pub(super) fn address(&self) -> &str {
        // `open` has checked that it is there.
        self.config.members.get(&self.config.id).map_or("", String::as_str)
    }
}

const INCOMING: &str = "incoming-";

/// Removes snapshots that were incomplete when the process ended.
fn remove_incoming(dir: &std::path::Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(INCOMING) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The committed members, and the index of their entry.
pub(super) fn known(raft: &Raft) -> KnownMembers {
    KnownMembers::of(&raft.metrics().borrow_watched().committed_membership_config)
}
