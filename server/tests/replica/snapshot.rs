//! The state on disk, and snapshots of it.

use std::{
    io::Write,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use leasehold_protocol::{command::Proposal, id::Epoch, state::State, volume::VolumeSettings};
use leasehold_server::{
    raft::{Machine, machine::StateMachine, types::TypeConfig},
    store::{
        poison::Poison,
        snapshot::{self, CheckedSnapshot, FORMAT, SnapshotFile, SnapshotFileError, StateSnapshot},
        state::{RowChange, StateStore},
    },
};
use openraft::{storage::RaftStateMachine, type_config::alias::LogIdOf, vote::RaftLeaderId};
use tempfile::TempDir;

use crate::support::{Keeper, begin_epoch, open_session};

fn log_id(index: u64) -> LogIdOf<TypeConfig> {
    LogIdOf::<TypeConfig>::new(openraft::impls::leader_id_std::LeaderId::new(1, 1).to_committed(), index)
}

fn open(dir: &TempDir) -> (StateStore, snapshot::SnapshotHeader, Option<State>) {
    StateStore::open(&dir.path().join("state"), Poison::default()).expect("opens")
}

/// A store with some sessions, and its state.
async fn filled(dir: &TempDir) -> (StateStore, State) {
    let (store, header, none) = open(dir);
    assert!(none.is_none() && header.applied.is_none());
    let mut state = State::new(VolumeSettings::DEFAULT);
    store.begin(state.clone()).await.expect("begins");
    for index in 1..40 {
        let proposal = if index == 1 { begin_epoch(1) } else { open_session(Epoch(1), index) };
        let touched = state.apply(index, &proposal).changed_rows;
        let rows: Vec<_> = touched.iter().map(|key| (key.encode(), state.row(key))).collect();
        store.write(log_id(index), None, rows).await.expect("written");
    }
    (store, state)
}

async fn encoded(store: &StateStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot::write(&store.view().await.expect("viewed"), &mut bytes).expect("written");
    bytes
}

fn received(dir: &Path, bytes: &[u8]) -> Result<snapshot::CheckedSnapshot, SnapshotFileError> {
    let mut file = SnapshotFile::create(&dir.join("incoming"), Poison::default())?;
    file.write_all(bytes)?;
    file.check()
}

#[tokio::test]
async fn the_state_is_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, state) = filled(&dir).await;
    store.close().await.expect("closed");
    drop(store);
    let (_, header, loaded) = open(&dir);
    assert_eq!((header.applied, loaded), (Some(log_id(39)), Some(state)));
}

#[tokio::test]
async fn a_snapshot_becomes_the_state_of_another_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, state) = filled(&dir).await;
    let bytes = encoded(&store).await;

    let other = tempfile::tempdir().expect("a directory");
    let (target, _, _) = open(&other);
    target.begin(State::new(VolumeSettings::DEFAULT)).await.expect("begins");
    let checked = received(other.path(), &bytes).expect("a snapshot");
    let loaded = checked.load().expect("a state");
    assert_eq!((&loaded, checked.header.applied), (&state, Some(log_id(39))));
    target.install(checked.header, checked.file).await.expect("installed");
    assert_eq!(encoded(&target).await, bytes, "the same state has the same snapshot");
    target.close().await.expect("closed");
    drop(target);
    let (_, header, loaded) = open(&other);
    assert_eq!((header.applied, loaded), (Some(log_id(39)), Some(state)));
    let left: Vec<_> = std::fs::read_dir(other.path()).expect("read").collect();
    assert_eq!(left.len(), 1, "only the state: {left:?}");
}

#[tokio::test]
async fn a_view_stays_what_it_was() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, mut state) = filled(&dir).await;
    let view = store.persisted_view().await.expect("viewed");
    let before = state.clone();
    let touched = state.apply(40, &open_session(Epoch(1), 40)).changed_rows;
    let rows: Vec<_> = touched.iter().map(|key| (key.encode(), state.row(key))).collect();
    store.write(log_id(40), None, rows).await.expect("written");
    assert_ne!(encoded(&store).await.len(), 0);
    let mut bytes = Vec::new();
    snapshot::write(&view, &mut bytes).expect("written");
    let checked = received(dir.path(), &bytes).expect("a snapshot");
    assert_eq!((checked.load().expect("a state"), checked.header.applied), (before, Some(log_id(39))));
}

#[tokio::test]
async fn a_state_that_a_crash_left_half_written_is_ignored() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, state) = filled(&dir).await;
    store.close().await.expect("closed");
    drop(store);
    {
        let database = fjall::Database::builder(dir.path().join("state")).open().expect("opens");
        let half = database.keyspace("rows-7", Default::default).expect("made");
        half.insert([9, 9, 9], "garbage").expect("written");
        database.persist(fjall::PersistMode::SyncAll).expect("persists");
    }
    for _ in 0..2 {
        let (store, header, loaded) = open(&dir);
        assert_eq!((header.applied, loaded.as_ref()), (Some(log_id(39)), Some(&state)));
        store.close().await.expect("closed");
    }
}

#[tokio::test]
async fn no_change_of_a_snapshot_goes_unnoticed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, _) = filled(&dir).await;
    let bytes = encoded(&store).await;
    for length in 0..bytes.len() {
        assert!(received(dir.path(), &bytes[..length]).is_err(), "cut to {length} bytes");
    }
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 1 << (place % 8);
        assert!(received(dir.path(), &changed).is_err(), "byte {place} changed");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(matches!(received(dir.path(), &longer), Err(SnapshotFileError::Trailing)));
}

#[tokio::test]
async fn garbage_is_refused_without_reserving_what_it_asks_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let of_format = |format: u8| [&b"LSHSNAP"[..], &[format]].concat();
    let old = [of_format(FORMAT - 1), b"rest".to_vec()].concat();
    let refused = received(dir.path(), &old);
    assert!(matches!(refused, Err(SnapshotFileError::Format { expected: FORMAT, got }) if got == FORMAT - 1));
    assert!(matches!(received(dir.path(), b"LSHSNIP\x01rest"), Err(SnapshotFileError::Magic { .. })));
    let mut lies = of_format(FORMAT);
    lies.extend_from_slice(&u32::MAX.to_le_bytes());
    let refused = received(dir.path(), &lies).expect_err("refused");
    assert!(matches!(refused, SnapshotFileError::Length { what: "header", got: u32::MAX, .. }), "{refused}");
    let mut random: u64 = 7;
    for _ in 0..2_000 {
        let mut bytes = of_format(FORMAT);
        for _ in 0..64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.push((random >> 56) as u8);
        }
        assert!(received(dir.path(), &bytes).is_err());
    }
}

/// Keeps the state, and checks that it has one at a time.
#[derive(Default)]
struct Counting {
    keeper: Keeper,
    is_released: std::sync::atomic::AtomicBool,
    restored: std::sync::atomic::AtomicUsize,
}

impl Machine for Counting {
    fn apply(&self, index: u64, proposal: &Proposal) -> Vec<RowChange> {
        self.keeper.apply(index, proposal)
    }

    fn discard_state(&self) {
        self.keeper.discard_state();
        self.is_released.store(true, Ordering::SeqCst);
    }

    fn restore(&self, state: State) {
        assert!(self.is_released.swap(false, Ordering::SeqCst), "the old state is still there");
        self.restored.fetch_add(1, Ordering::SeqCst);
        self.keeper.restore(state);
    }
}

/// An empty store, its machine, and a checked snapshot for it.
async fn receiving(dir: &TempDir, bytes: &[u8]) -> (StateStore, Arc<Counting>, StateMachine, CheckedSnapshot) {
    let (store, header, _) = open(dir);
    store.begin(State::new(VolumeSettings::DEFAULT)).await.expect("begins");
    let counting = Arc::new(Counting::default());
    let machine = StateMachine::new(counting.clone(), store.clone(), header, dir.path().join("scratch"));
    (store, counting, machine, received(dir.path(), bytes).expect("well formed"))
}

#[tokio::test]
async fn installed_snapshot_replaces_a_state_that_was_let_go() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, state) = filled(&dir).await;
    let other = tempfile::tempdir().expect("a directory");
    let (_, counting, mut machine, checked) = receiving(&other, &encoded(&store).await).await;
    let meta = checked.header.meta();
    machine.install_snapshot(&meta, StateSnapshot::Received(Box::new(checked))).await.expect("installed");
    assert_eq!(counting.restored.load(Ordering::SeqCst), 1);
    assert_eq!(*counting.keeper.state.lock(), state);
}

#[tokio::test]
async fn snapshot_that_is_no_state_replaces_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, _) = filled(&dir).await;
    // Well formed as a snapshot, but the row does not belong to a state.
    store.write(log_id(40), None, [(vec![0xee, 1], Some(vec![1]))]).await.expect("written");
    let other = tempfile::tempdir().expect("a directory");
    let (target, counting, mut machine, checked) = receiving(&other, &encoded(&store).await).await;
    let meta = checked.header.meta();
    let refused = machine.install_snapshot(&meta, StateSnapshot::Received(Box::new(checked))).await;
    let refused = refused.expect_err("no state").to_string();
    assert!(refused.starts_with("snapshot: row key "), "{refused}");
    assert_eq!(counting.restored.load(Ordering::SeqCst), 0);
    target.close().await.expect("closed");
    drop((target, machine));
    let (_, header, loaded) = open(&other);
    assert_eq!((header.applied, loaded), (None, Some(State::new(VolumeSettings::DEFAULT))));
}
