//! Applies the log to the replicated state.
//!
//! Committed entries are applied in memory first, and clients are answered from memory. Right
//! after, the changed rows are stored, in one batch for all entries that Raft delivered at once.

use std::{io, sync::Arc};

use futures::{Stream, TryStreamExt};
use leasehold_protocol::{command::Proposal, state::State};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine},
};
use parking_lot::Mutex;

use super::types::{
    TypeConfig,
    alias::{LogId, SnapshotMeta, StoredMembership},
};
use crate::store::{
    poison::Poison,
    snapshot::{self, RaftSnapshot, SnapshotFile, SnapshotHeader, StateSnapshot, StateView},
    state::{RowChange, StateStore},
};

/// Raft, as this server instantiates it.
pub(super) type Raft = openraft::Raft<TypeConfig, StateMachine>;

/// The replicated state, as Raft uses it: in log order, from one task.
pub trait Machine: Send + Sync + 'static {
    /// Applies one committed proposal. Returns the rows to store: each encoded key with its value,
    /// or `None` to remove it.
    fn apply(&self, index: u64, proposal: &Proposal) -> Vec<RowChange>;

    /// A snapshot is about to replace the state: drops it, and serves nothing from it. There is no
    /// memory for two states. [`restore`](Machine::restore) follows, unless the process ends first.
    fn discard_state(&self);

    /// Installs a state that was received in a snapshot, or loaded at the start.
    fn restore(&self, state: State);
}

/// Raft's view of the state. A snapshot is a view of the store, taken anew each time that it is
/// sent. A view that lived for hours would retain all rows that were overwritten since.
pub struct StateMachine {
    machine: Arc<dyn Machine>,
    store: StateStore,
    applied: Option<LogId>,
    membership: StoredMembership,
    /// Whether Raft has been given a snapshot in this process.
    has_snapshot: Arc<Mutex<bool>>,
    /// The file for a snapshot of a view that is installed locally, without a network.
    scratch: std::path::PathBuf,
}

impl StateMachine {
    /// Continues from the loaded state, which `machine` already has.
    pub fn new(
        machine: Arc<dyn Machine>,
        store: StateStore,
        loaded: SnapshotHeader,
        scratch: std::path::PathBuf,
    ) -> Self {
        let SnapshotHeader { applied, membership } = loaded;
        Self { machine, store, applied, membership, has_snapshot: Arc::default(), scratch }
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = StateSnapshot;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut rows: Vec<RowChange> = Vec::new();
        let mut membership = None;
        let mut applied = None;
        while let Some((entry, responder)) = entries.try_next().await? {
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(logged) => {
                    rows.append(&mut self.machine.apply(entry.log_id.index, logged.proposal()));
                }
                EntryPayload::Membership(changed) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), changed);
                    membership = Some(self.membership.clone());
                }
            }
            self.applied = Some(entry.log_id);
            applied = self.applied;
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        match applied {
            Some(applied) => self.store.write(applied, membership, rows).await,
            None => Ok(()),
        }
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder { store: self.store.clone(), has_snapshot: Arc::clone(&self.has_snapshot) }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: StateSnapshot) -> io::Result<()> {
        let checked = match snapshot {
            StateSnapshot::Received(checked) => *checked,
            StateSnapshot::View(view) => {
                let (path, poison) = (self.scratch.clone(), self.store.poison());
                tokio::task::spawn_blocking(move || through_a_file(&view, &path, poison))
                    .await
                    .map_err(io::Error::other)??
            }
        };
        if checked.header.meta() != *meta {
            let message = format!("snapshot of {:?}; expected {:?}", checked.header.applied, meta.last_log_id);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        // Raft has accepted the snapshot, and applies nothing more to the old state. On the disk
        // the old state stays current until the new one is complete.
        self.machine.discard_state();
        let loading = tokio::task::spawn_blocking(move || checked.load().map(|state| (checked, state)));
        let (checked, state) = loading.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
        self.store.install(checked.header.clone(), checked.file).await?;
        self.applied = checked.header.applied;
        self.membership = checked.header.membership;
        tracing::info!(entry = self.applied.map(|applied| applied.index), "the state was replaced by a snapshot");
        self.machine.restore(state);
        *self.has_snapshot.lock() = true;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<RaftSnapshot>> {
        if !*self.has_snapshot.lock() {
            return Ok(None);
        }
        // The current state is at least as new as the snapshot that Raft knows of.
        Ok(Some(of_view(self.store.persisted_view().await?)))
    }
}

fn of_view(view: StateView) -> RaftSnapshot {
    RaftSnapshot { meta: view.header().meta(), snapshot: StateSnapshot::View(view) }
}

fn through_a_file(view: &StateView, path: &std::path::Path, poison: Poison) -> io::Result<snapshot::CheckedSnapshot> {
    let mut file = SnapshotFile::create(path, poison)?;
    snapshot::write(view, &mut file)?;
    file.check().map_err(io::Error::other)
}

/// Makes the snapshot that lets Raft purge the log. All of it is on the disk when Raft gets it.
pub struct SnapshotBuilder {
    store: StateStore,
    has_snapshot: Arc<Mutex<bool>>,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = StateSnapshot;

    async fn build_snapshot(&mut self) -> io::Result<RaftSnapshot> {
        let view = self.store.persisted_view().await?;
        *self.has_snapshot.lock() = true;
        Ok(of_view(view))
    }
}
