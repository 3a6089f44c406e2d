//! Real processes for tests: clusters of servers with data in temporary directories, the commands
//! that talk to them, and waiting. Everything that a test starts is killed, by its id, when the
//! test lets go of it.
//!
//! For the test binaries that want it: `#[path = "../common/mod.rs"] mod common;`

// Each test binary uses what it needs.
#![allow(dead_code, unused_imports)]

mod cli;
mod cluster;
mod port;
mod process;
pub mod stall;
mod tools;

use std::{
    future::Future,
    time::{Duration, Instant},
};

pub use self::{
    cli::{Cli, Ran, Shell},
    cluster::{Cluster, Site},
    port::free_address,
    process::{Place, Process, leasehold},
    stall::{ALLOWANCE, Missed},
    tools::{ALLOW_SKIPS, SKIPPED_FILE, Tool, require},
};

/// How long anything may take that is expected to happen: far more than it does on a loaded
/// machine.
pub const SOON: Duration = Duration::from_secs(90);

/// How often to look whether something has happened.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What one look takes at most, of the time that is waited.
const LOOK_MAX: Duration = Duration::from_secs(5);

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

/// How long has been waited. A look that took long, because the machine stood still perhaps, counts
/// as [`LOOK_MAX`].
struct Patience {
    waited: Duration,
    last: Instant,
}

impl Default for Patience {
    fn default() -> Self {
        Self { waited: Duration::ZERO, last: Instant::now() }
    }
}

impl Patience {
    fn is_over(&mut self) -> bool {
        self.waited += self.last.elapsed().min(LOOK_MAX);
        self.last = Instant::now();
        self.waited > SOON
    }
}

/// Looks until there is something to be had.
///
/// # Panics
///
/// After [`SOON`], with what was looked for and what there was instead.
pub fn eventually<L: Look>(what: &str, mut look: impl FnMut() -> L) -> L::Found {
    let mut patience = Patience::default();
    loop {
        match look().found() {
            Ok(found) => return found,
            Err(instead) if patience.is_over() => panic!("waited {SOON:?} until {what}: {instead}"),
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// The same, of what a client in this process has to be asked for.
pub async fn soon<L: Look, F: Future<Output = L>>(what: &str, mut look: impl FnMut() -> F) -> L::Found {
    let mut patience = Patience::default();
    loop {
        match look().await.found() {
            Ok(found) => return found,
            Err(instead) if patience.is_over() => panic!("waited {SOON:?} until {what}: {instead}"),
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
