//! The log: what survives a restart, and what it refuses to start with.

use std::{fs, path::Path};

use leasehold_server::{
    raft::types::{Logged, TypeConfig},
    store::{
        log::{LogStore, OpenLogError},
        poison::Poison,
    },
};
use openraft::{
    EntryPayload, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
    type_config::{
        TypeConfigExt,
        alias::{EntryOf, LogIdOf, VoteOf},
    },
    vote::RaftLeaderId,
};
use tempfile::TempDir;

use crate::support::open_session;

type Entry = EntryOf<TypeConfig>;
type LogId = LogIdOf<TypeConfig>;
type Vote = VoteOf<TypeConfig>;

fn log_id(term: u64, index: u64) -> LogId {
    let leader = openraft::impls::leader_id_std::LeaderId::new(term, 1);
    LogId::new(leader.to_committed(), index)
}

fn entry(term: u64, index: u64) -> Entry {
    let proposal = open_session(leasehold_protocol::id::Epoch(1), index);
    Entry { log_id: log_id(term, index), payload: EntryPayload::Normal(Logged::new(proposal).expect("encodes")) }
}

fn open(dir: &Path) -> Result<LogStore, OpenLogError> {
    LogStore::open(&dir.join("log"), &dir.join("durable-index"), Poison::default())
}

async fn append(log: &mut LogStore, term: u64, indexes: std::ops::Range<u64>) {
    let (flushed, is_flushed) = TypeConfig::oneshot();
    let entries: Vec<Entry> = indexes.map(|index| entry(term, index)).collect();
    log.append(entries, IOFlushed::signal(flushed)).await.expect("appended");
    is_flushed.await.expect("answered").expect("flushed");
}

async fn read(log: &mut LogStore) -> Vec<LogId> {
    let entries = log.try_get_log_entries(0..1_000_000).await.expect("read");
    entries.into_iter().map(|entry| entry.log_id).collect()
}

/// Writes a log of 20 entries, and closes it.
async fn written(dir: &TempDir) {
    let mut log = open(dir.path()).expect("opens");
    log.save_vote(&Vote::new_committed(3, 1)).await.expect("saved");
    for first in (0..20).step_by(4) {
        append(&mut log, 3, first..first + 4).await;
    }
    log.close().await;
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    written(&dir).await;
    let mut log = open(dir.path()).expect("opens");
    assert_eq!(read(&mut log).await, (0..20).map(|index| log_id(3, index)).collect::<Vec<_>>());
    assert_eq!(log.read_vote().await.expect("read"), Some(Vote::new_committed(3, 1)));
    let entries = log.try_get_log_entries(7..8).await.expect("read");
    assert_eq!(entries, vec![entry(3, 7)]);
}

#[tokio::test]
async fn cutting_and_purging_survive_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    written(&dir).await;
    let mut log = open(dir.path()).expect("opens");
    log.truncate_after(Some(log_id(3, 14))).await.expect("cut");
    append(&mut log, 4, 15..30).await;
    log.purge(log_id(3, 9)).await.expect("purged");
    let expected: Vec<LogId> =
        (10..15).map(|index| log_id(3, index)).chain((15..30).map(|index| log_id(4, index))).collect();
    assert_eq!(read(&mut log).await, expected);
    log.close().await;

    let mut log = open(dir.path()).expect("opens");
    assert_eq!(read(&mut log).await, expected);
    let state = log.get_log_state().await.expect("read");
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(log_id(3, 9)), Some(log_id(4, 29))));
    // A snapshot from far ahead.
    log.purge(log_id(9, 1_000)).await.expect("purged");
    append(&mut log, 9, 1_001..1_003).await;
    log.close().await;
    let mut log = open(dir.path()).expect("opens");
    assert_eq!(read(&mut log).await, vec![log_id(9, 1_001), log_id(9, 1_002)]);
}

#[tokio::test]
async fn a_hole_is_not_appended() {
    let dir = tempfile::tempdir().expect("a directory");
    written(&dir).await;
    let mut log = open(dir.path()).expect("opens");
    let refused = log.append([entry(3, 21)], IOFlushed::noop()).await.expect_err("a hole");
    assert!(refused.to_string().contains("entry 21") && refused.to_string().contains("expected 20"), "{refused}");
}

/// Changes the log through its database.
fn tamper(dir: &TempDir, change: impl FnOnce(&fjall::Database, &fjall::Keyspace)) {
    let database = fjall::Database::builder(dir.path().join("log")).open().expect("opens");
    let entries = database.keyspace("entries", Default::default).expect("opens");
    change(&database, &entries);
    database.persist(fjall::PersistMode::SyncAll).expect("persists");
}

#[tokio::test]
async fn a_log_without_its_end_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    written(&dir).await;
    tamper(&dir, |_, entries| entries.remove(19_u64.to_be_bytes()).expect("removed"));
    let refused = open(dir.path()).err().expect("refused");
    assert!(matches!(refused, OpenLogError::Short { .. }), "{refused}");
    assert!(refused.to_string().contains("acknowledged"), "{refused}");
}

#[tokio::test]
async fn a_log_with_a_hole_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    written(&dir).await;
    tamper(&dir, |_, entries| entries.remove(7_u64.to_be_bytes()).expect("removed"));
    let refused = open(dir.path()).err().expect("refused");
    assert!(refused.to_string().contains("expected 7"), "{refused}");
}

#[tokio::test]
async fn a_changed_entry_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    written(&dir).await;
    tamper(&dir, |_, entries| {
        let mut value = entries.get(7_u64.to_be_bytes()).expect("read").expect("there").to_vec();
        *value.last_mut().expect("not empty") ^= 1;
        entries.insert(7_u64.to_be_bytes(), value).expect("written");
    });
    let refused = open(dir.path()).err().expect("refused");
    assert!(refused.to_string().contains("entry 7") && refused.to_string().contains("checksum"), "{refused}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("read") {
        let entry = entry.expect("read");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("known").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

/// fjall takes damage in the middle of its journal for a torn end. The entries and the log's own
/// last index are lost together. Only the durable index reveals that.
#[tokio::test]
async fn log_that_lost_its_last_batches_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    written(&dir).await;
    let earlier = tempfile::tempdir().expect("a directory");
    copy(&dir.path().join("log"), earlier.path());

    let mut log = open(dir.path()).expect("opens");
    append(&mut log, 3, 20..24).await;
    log.close().await;
    drop(log);
    fs::remove_dir_all(dir.path().join("log")).expect("removed");
    copy(earlier.path(), &dir.path().join("log"));
    let refused = open(dir.path()).err().expect("refused");
    assert!(matches!(refused, OpenLogError::Short { .. }), "{refused}");

    fs::remove_dir_all(dir.path().join("log")).expect("removed");
    let refused = open(dir.path()).err().expect("refused");
    assert!(matches!(refused, OpenLogError::OldVote { .. }), "{refused}");
}

/// The log's only journal.
fn journal(dir: &Path) -> std::path::PathBuf {
    fs::read_dir(dir.join("log"))
        .expect("read")
        .map(|entry| entry.expect("read").path())
        .find(|path| path.extension().is_some_and(|extension| extension == "jnl"))
        .expect("a journal")
}

#[tokio::test]
async fn a_torn_journal_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    written(&dir).await;
    let journal = journal(dir.path());
    let bytes = fs::read(&journal).expect("read");
    // In the middle of the content. The file is longer than that.
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("not empty");
    let mut damaged = bytes;
    for byte in &mut damaged[end / 2..end / 2 + 64] {
        *byte ^= 0x5a;
    }
    fs::write(&journal, damaged).expect("written");
    let refused = open(dir.path()).err().expect("refused");
    assert!(!refused.to_string().is_empty());
}

#[tokio::test]
async fn a_journal_that_is_in_use_is_not_touched() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(dir.path()).expect("opens");
    append(&mut log, 1, 0..3).await;
    let journal = journal(dir.path());
    // As if the other process were in the middle of a write.
    let bytes = fs::read(&journal).expect("read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("not empty") + 1;
    let half = [&bytes[..end], &[1_u8; 20]].concat();
    fs::write(&journal, &half).expect("written");
    assert!(open(dir.path()).is_err(), "it is locked");
    assert_eq!(fs::read(&journal).expect("read"), half);
    log.close().await;
}

#[tokio::test]
async fn a_poisoned_store_refuses_everything() {
    let dir = tempfile::tempdir().expect("a directory");
    let poison = Poison::default();
    let mut log =
        LogStore::open(&dir.path().join("log"), &dir.path().join("durable-index"), poison.clone()).expect("opens");
    append(&mut log, 1, 0..1).await;
    poison.poison("the disk is on fire");
    assert!(log.append([entry(1, 1)], IOFlushed::noop()).await.is_err());
    assert!(log.save_vote(&Vote::new(2, 1)).await.is_err());
    assert!(log.try_get_log_entries(0..1).await.is_err());
    poison.poison("a later failure");
    assert_eq!(&*poison.reason().await, "the disk is on fire");
}
