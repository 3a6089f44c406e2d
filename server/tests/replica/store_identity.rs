//! The store identity, and data folders with a missing part.

use std::{collections::BTreeMap, fs, sync::Arc};

use leasehold_protocol::volume::VolumeSettings;
use leasehold_server::{
    raft::{Replica, ReplicaConfig, ReplicaStartError},
    store::store_identity::{self, ClusterId, Participation, StoreIdentity, StoreIdentityError},
};

use crate::support::{Cluster, Keeper};

fn identity() -> StoreIdentity {
    let cluster = ClusterId { founder: 1, nonce: 77 };
    StoreIdentity { replica: 2, cluster, root: VolumeSettings::DEFAULT, participation: Participation::Bootstrapped }
}

#[test]
fn a_standing_is_what_was_stored() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(store_identity::load(dir.path(), 2).expect("loads"), None);
    store_identity::store(dir.path(), &identity()).expect("stored");
    assert_eq!(store_identity::load(dir.path(), 2).expect("loads"), Some(identity()));
    let refused = store_identity::load(dir.path(), 3).expect_err("another's");
    assert!(matches!(refused, StoreIdentityError::Replica { got: 2, expected: 3, .. }), "{refused}");
    store_identity::remove(dir.path()).expect("removed");
    assert_eq!(store_identity::load(dir.path(), 2).expect("loads"), None);
}

#[test]
fn a_damaged_standing_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    store_identity::store(dir.path(), &identity()).expect("stored");
    let path = dir.path().join("store-identity");
    let bytes = fs::read(&path).expect("read");
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 4;
        fs::write(&path, &changed).expect("written");
        assert!(store_identity::load(dir.path(), 2).is_err(), "byte {place} changed");
        fs::write(&path, &bytes[..place]).expect("written");
        assert!(store_identity::load(dir.path(), 2).is_err(), "cut to {place} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_which_a_part_is_missing_is_refused() {
    for part in ["store-identity", "state", "log"] {
        let mut cluster = Cluster::started(1).await;
        cluster.open_sessions(3).await;
        cluster.stop(1).await;
        let path = cluster.dir(1).join(part);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("removed");
        let refused = cluster.start_with(cluster.config(1)).await.expect_err("refused");
        assert!(!refused.to_string().is_empty());
        assert!(
            matches!(refused, ReplicaStartError::Incomplete { .. } | ReplicaStartError::Log(_)),
            "{part}: {refused}"
        );
    }
}

#[tokio::test]
async fn a_replica_must_be_a_member() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = ReplicaConfig::new(4, dir.path(), BTreeMap::from([(1, "127.0.0.1:1".to_owned())]));
    let refused = Replica::start(config, Arc::new(Keeper::default())).await.err().expect("refused");
    assert!(matches!(refused, ReplicaStartError::NotAMember { id: 4, .. }), "{refused}");
}

/// All files directly in a folder.
fn files(dir: &std::path::Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let paths = fs::read_dir(dir).expect("read").map(|entry| entry.expect("read").path());
    paths.filter(|path| path.is_file()).map(|path| (path.clone(), fs::read(path).expect("read"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_in_use_is_not_touched() {
    let mut cluster = Cluster::started(1).await;
    cluster.open_sessions(3).await;
    // Like a snapshot that is being received.
    fs::write(cluster.dir(1).join("incoming-7"), "half").expect("written");
    let before = files(&cluster.dir(1));
    let refused = Replica::start(cluster.config(1), Arc::new(Keeper::default())).await.err().expect("refused");
    assert!(matches!(refused, ReplicaStartError::InUse { .. }), "{refused}");
    let says = refused.to_string();
    let expected =
        [&cluster.dir(1).display().to_string(), &format!("process {}", std::process::id()), "stop that process"];
    assert!(expected.iter().all(|part| says.contains(*part)), "{says}");
    assert_eq!(files(&cluster.dir(1)), before);
    cluster.open_sessions(1).await;
    cluster.stop(1).await;
    cluster.start(1).await;
    cluster.open_sessions(1).await;
}

/// Copies a folder with everything below it.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("read") {
        let entry = entry.expect("read");
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copied");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_lacks_what_the_log_has_purged_is_refused() {
    let mut cluster = Cluster::new(1).await;
    cluster.snapshot_entries = 10;
    cluster.start(1).await;
    cluster.open_sessions(3).await;
    cluster.stop(1).await;
    let (state, old) = (cluster.dir(1).join("state"), cluster.dir(1).join("old"));
    copy(&state, &old);
    cluster.start(1).await;
    // Far more entries than are retained, so the log is truncated more than once.
    cluster.open_sessions(100).await;
    cluster.stop(1).await;
    fs::remove_dir_all(&state).expect("removed");
    fs::rename(&old, &state).expect("put back");
    let refused = cluster.start_with(cluster.config(1)).await.expect_err("refused");
    assert!(matches!(refused, ReplicaStartError::Gap { .. }), "{refused}");
    assert!(refused.to_string().contains("copies the data of the other replicas"), "{refused}");
}
