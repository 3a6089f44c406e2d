//! What the tests are made of: processes, clusters, command lines, and waiting.

mod cli;
mod cluster;
mod files;
mod port;
mod process;

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold_client_cache::Path;
use tokio::sync::{Mutex, MutexGuard};

pub(crate) use cli::{Shell, leasehold, leasehold_with_input};
pub(crate) use cluster::Cluster;
pub(crate) use files::{make, tree};

/// Far more than anything takes here that has to happen, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How often to look whether something has happened.
const LOOK_EVERY: Duration = Duration::from_millis(20);

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// To be held by each test while it runs.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().await
}

/// Looks until there is something, for as long as [`PATIENCE`].
pub(crate) async fn eventually<T, F: Future<Output = Result<T, String>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(instead) if began.elapsed() > PATIENCE => panic!("waited {PATIENCE:?} until {what}: {instead}"),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// Waits for something that has to end.
pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what} took longer than {PATIENCE:?}"),
    }
}

/// A path that is known to be one.
pub(crate) fn path(text: &str) -> Path {
    Path::parse(text).expect("a valid path")
}
