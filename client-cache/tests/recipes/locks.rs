//! Mutexes and read-write locks: what their types add to locks.

use std::time::Duration;

use leasehold_client_cache::{LockError, LockMode, LockWait, Refusal, WriteError, WriteRefusal};

use super::{TERM, clients};
use crate::common::{Server, within};

const SHORT: Duration = Duration::from_millis(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_is_locked_by_one_and_who_only_tries_is_told_so() {
    let server = Server::start(TERM).await;
    let [one, two] = clients(&server).await;
    let (first, second) = (one.mutex("/m"), two.mutex("/m"));
    let guard = within(first.lock()).await.unwrap();
    assert!(guard.remaining() > TERM / 2 && guard.mode() == LockMode::Exclusive);
    assert!(within(second.try_lock()).await.unwrap().is_none());
    assert!(within(second.lock_timeout(SHORT)).await.unwrap().is_none());
    let token = guard.token();
    guard.release().await.unwrap();
    let guard = within(second.try_lock()).await.unwrap().unwrap();
    assert!(guard.token() > token);
    drop(guard);
    assert!(within(first.lock_timeout(TERM)).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rw_lock_is_shared_upgraded_and_downgraded() {
    let server = Server::start(TERM).await;
    let [one, two] = clients(&server).await;
    let (first, second) = (one.rw_lock("/l"), two.rw_lock("/l"));
    let (reader, other) = (within(first.read()).await.unwrap(), within(second.try_read()).await.unwrap().unwrap());
    assert!(within(first.try_write()).await.unwrap().is_none());
    assert!(within(first.write_timeout(SHORT)).await.unwrap().is_none());
    let (reader, error) = reader.upgrade(LockWait::For(SHORT)).await.unwrap_err();
    assert!(matches!(error, LockError::NotGranted { .. }), "{error:?}");
    let upgrading = tokio::spawn(reader.upgrade(LockWait::Forever));
    let mut other = other;
    within(other.contended()).await;
    let (other, error) = other.upgrade(LockWait::Forever).await.unwrap_err();
    let LockError::Write(WriteError::Refused(Refusal::Write(WriteRefusal::UpgradePending { .. }))) = error else {
        panic!("{error:?}")
    };
    other.release().await.unwrap();
    let mut writer = within(upgrading).await.unwrap().unwrap();
    assert_eq!(writer.mode(), LockMode::Exclusive);
    assert!(within(second.try_read()).await.unwrap().is_none());
    let waiting = tokio::spawn(async move { second.read().await });
    within(writer.contended()).await;
    let reader = writer.downgrade().await.unwrap();
    let other = within(waiting).await.unwrap().unwrap();
    assert_eq!((reader.mode(), other.mode()), (LockMode::Shared, LockMode::Shared));
    drop((reader, other));
    within(first.write()).await.unwrap().release().await.unwrap();
}
