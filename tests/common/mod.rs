//! Real processes for tests: clusters of servers with data in temporary directories, the commands that talk to them, and
//! waiting. Everything that a test starts is killed, by its id, when the test lets go of it.
//!
//! For the test binaries that want it: `#[path = "../common/mod.rs"] mod common;`

// Each test binary uses what it needs.
#![allow(dead_code, unused_imports)]

mod cli;
mod cluster;
mod port;
mod process;

use std::{
    future::Future,
    time::{Duration, Instant},
};

pub use self::{
    cli::{Cli, Ran, Shell},
    cluster::{Cluster, Site},
    port::free_address,
    process::{Place, Process, leasehold},
};

/// How long anything may take that is expected to happen: far more than it does on a loaded machine.
pub const SOON: Duration = Duration::from_secs(60);

/// How often to look whether something has happened.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a look has found: something, or what there was instead.
pub trait Look {
    /// What was looked for.
    type Found;

    /// The same, with words for what there was instead.
    fn found(self) -> Result<Self::Found, String>;
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "it is not so".to_owned())
    }
}

impl<T> Look for Result<T, String> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

/// Looks until there is something to be had.
///
/// # Panics
///
/// After [`SOON`], with what was looked for and what there was instead.
pub fn eventually<L: Look>(what: &str, mut look: impl FnMut() -> L) -> L::Found {
    let began = Instant::now();
    loop {
        match look().found() {
            Ok(found) => return found,
            Err(instead) if began.elapsed() > SOON => panic!("waited {SOON:?} until {what}: {instead}"),
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// The same, of what a client in this process has to be asked for.
pub async fn soon<L: Look, F: Future<Output = L>>(what: &str, mut look: impl FnMut() -> F) -> L::Found {
    let began = Instant::now();
    loop {
        match look().await.found() {
            Ok(found) => return found,
            Err(instead) if began.elapsed() > SOON => panic!("waited {SOON:?} until {what}: {instead}"),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// Waits for something that has to end.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what} took longer than {SOON:?}"),
    }
}
