//! The stores of one replica, and the calls that Raft makes on them.

use std::{io, path::Path, sync::Arc};

use futures::stream;
use leasehold_protocol::{command::Proposal, state::State, volume::VolumeSettings};
use leasehold_server::{
    raft::{
        machine::{Machine, StateMachine},
        types::TypeConfig,
    },
    store::{
        directory,
        log::LogStore,
        poison::Poison,
        snapshot::{self, SnapshotFile, StateSnapshot},
        state::{RowChange, StateStore},
        store_identity::{self, ClusterId, Participation, StoreIdentity},
    },
};
use openraft::{
    RaftSnapshotBuilder,
    storage::{IOFlushed, RaftLogStorage, RaftStateMachine},
    type_config::TypeConfigExt,
};
use parking_lot::Mutex;

use super::history::{Entry, Expected, LogId, Step, Vote, replayed};

/// The replica that owns the folder.
pub(crate) const REPLICA: u64 = 1;

/// Keeps the state in memory, like a replica.
pub(crate) struct Keeper(pub(crate) Mutex<State>);

impl Machine for Keeper {
    fn apply(&self, index: u64, proposal: &Proposal) -> Vec<RowChange> {
        let mut state = self.0.lock();
        let applied = state.apply(index, proposal);
        applied.changed_rows.iter().map(|key| (key.encode(), state.row(key))).collect()
    }

    fn discard_state(&self) {
        *self.0.lock() = State::new(VolumeSettings::DEFAULT);
    }

    fn restore(&self, state: State) {
        *self.0.lock() = state;
    }
}

/// Both stores, opened.
pub(crate) struct Stores {
    pub(crate) poison: Poison,
    pub(crate) log: LogStore,
    pub(crate) store: StateStore,
    pub(crate) machine: StateMachine,
    pub(crate) keeper: Arc<Keeper>,
    /// Whether a state was loaded.
    pub(crate) has_state: bool,
    incoming: u64,
}

pub(crate) fn founded() -> StoreIdentity {
    let cluster = ClusterId { founder: REPLICA, nonce: 5 };
    StoreIdentity {
        replica: REPLICA,
        cluster,
        root: VolumeSettings::DEFAULT,
        participation: Participation::Bootstrapped,
    }
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::other(error)
}

impl Stores {
    /// What the log has: its last entry and its vote.
    pub(crate) fn content(&self) -> String {
        format!("{:?}", self.log.last_and_vote())
    }

    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let poison = Poison::default();
        let log = LogStore::open(&dir.join("log"), &dir.join("durable-index"), poison.clone()).map_err(other)?;
        let (store, header, state) = StateStore::open(&dir.join("state"), poison.clone()).map_err(other)?;
        let has_state = state.is_some();
        let state = state.unwrap_or_else(|| State::new(VolumeSettings::DEFAULT));
        let keeper = Arc::new(Keeper(Mutex::new(state)));
        let machine = StateMachine::new(keeper.clone(), store.clone(), header, dir.join("incoming-0"));
        Ok(Self { poison, log, store, machine, keeper, has_state, incoming: 0 })
    }

    pub(crate) async fn close(self) -> io::Result<()> {
        let closed = self.store.close().await;
        self.log.close().await;
        closed?;
        self.poison.check()
    }

    /// Executes one step. Returns when all of it is acknowledged. `expected` is the content before
    /// it.
    pub(crate) async fn carry_out(&mut self, dir: &Path, expected: &Expected, step: &Step) -> io::Result<()> {
        match step {
            Step::Begin | Step::Reopen => unreachable!("by whoever opens the stores"),
            Step::Vote(vote) => self.log.save_vote(vote).await,
            Step::Append(batches) => self.append(batches).await,
            Step::Truncate(last) => self.log.truncate_after(*last).await,
            Step::Apply(upto) => {
                let from = expected.applied.map_or(0, |applied| applied + 1);
                let entries: Vec<Entry> =
                    expected.entries.range(from..(upto + 1).max(from)).map(|(_, entry)| entry.clone()).collect();
                // Raft passes several entries at once too.
                for some in entries.chunks(3) {
                    self.machine.apply(stream::iter(some.iter().map(|entry| Ok((entry.clone(), None))))).await?;
                }
                Ok(())
            }
            Step::Snapshot => self.machine.get_snapshot_builder().await.build_snapshot().await.map(drop),
            Step::Purge(upto) => self.log.purge(*upto).await,
            Step::Install(_) => self.install(dir, &expected.clone().after(step)).await,
        }
    }

    async fn append(&mut self, batches: &[Vec<Entry>]) -> io::Result<()> {
        let mut waiting = Vec::new();
        for entries in batches {
            let (flushed, is_flushed) = TypeConfig::oneshot();
            self.log.append(entries.clone(), IOFlushed::signal(flushed)).await?;
            waiting.push(is_flushed);
        }
        for is_flushed in waiting {
            is_flushed.await.map_err(other)??;
        }
        Ok(())
    }

    /// Receives a snapshot from a replica that is further ahead, and installs it.
    async fn install(&mut self, dir: &Path, target: &Expected) -> io::Result<()> {
        let applied = target.applied.and_then(|applied| target.entries.get(&applied)).map(|entry| entry.log_id);
        let (state, membership) = replayed(&target.entries, target.applied);
        let elsewhere = tempfile::tempdir()?;
        let (far, _, _) = StateStore::open(&elsewhere.path().join("state"), Poison::default()).map_err(other)?;
        far.begin(State::new(VolumeSettings::DEFAULT)).await?;
        let rows = state.rows().map(|(key, value)| (key, Some(value)));
        far.write(applied.expect("a snapshot of something"), Some(membership), rows).await?;
        self.incoming += 1;
        let mut file = SnapshotFile::create(&dir.join(format!("incoming-{}", self.incoming)), self.poison.clone())?;
        snapshot::write(&far.view().await?, &mut file)?;
        let checked = file.check().map_err(other)?;
        far.close().await?;
        let meta = checked.header.meta();
        self.machine.install_snapshot(&meta, StateSnapshot::Received(Box::new(checked))).await?;
        self.log.purge(applied.expect("a snapshot of something")).await
    }

    /// Returns the calls that are accepted although the stores have failed. There must be none.
    pub(crate) async fn accepted(&mut self) -> Vec<&'static str> {
        let last = LogId::new_term_index(u64::MAX, 0);
        let mut accepted = Vec::new();
        let mut tried = |name, outcome: io::Result<()>| {
            if outcome.is_ok() {
                accepted.push(name);
            }
        };
        tried("vote", self.log.save_vote(&Vote::new_committed(u64::MAX, REPLICA)).await);
        tried("append", self.append(&[Vec::new()]).await);
        tried("truncate", self.log.truncate_after(None).await);
        tried("purge", self.log.purge(last).await);
        tried("view", self.store.view().await.map(drop));
        tried("persisted view", self.store.persisted_view().await.map(drop));
        tried("rows", self.store.write(last, None, []).await);
        tried("state", self.store.begin(State::new(VolumeSettings::DEFAULT)).await);
        tried("snapshot", self.machine.get_snapshot_builder().await.build_snapshot().await.map(drop));
        accepted
    }
}

/// Opens the stores for the first time, like a replica that bootstraps its cluster.
pub(crate) async fn begin(dir: &Path) -> io::Result<Stores> {
    directory::create(dir)?;
    let stores = Stores::open(dir)?;
    store_identity::store(dir, &founded()).map_err(other)?;
    stores.store.begin(State::new(VolumeSettings::DEFAULT)).await?;
    Ok(stores)
}
