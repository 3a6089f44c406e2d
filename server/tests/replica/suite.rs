//! Runs openraft's own test suite for stores on ours.

use std::sync::Arc;

use leasehold_protocol::{state::State, volume::VolumeSettings};
use leasehold_server::{
    raft::{machine::StateMachine, types::TypeConfig},
    store::{log::LogStore, poison::Poison, state::StateStore},
};
use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use tempfile::TempDir;

use crate::support::Keeper;

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().expect("a directory");
        let poison = Poison::default();
        let log =
            LogStore::open(&dir.path().join("log"), &dir.path().join("durable-index"), poison.clone()).expect("opens");
        let (store, header, state) = StateStore::open(&dir.path().join("state"), poison).expect("opens");
        assert!(state.is_none(), "nothing is there yet");
        store.begin(State::new(VolumeSettings::DEFAULT)).await.expect("begins");
        let machine = StateMachine::new(Arc::new(Keeper::default()), store, header, dir.path().join("incoming"));
        Ok((dir, log, machine))
    }
}

#[test]
fn openrafts_suite_finds_nothing() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(Suite::test_all(Builder)).expect("passes");
}
