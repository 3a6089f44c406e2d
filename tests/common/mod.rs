//! Real processes for tests: clusters of servers with data in temporary directories, commands for
//! them, and waiting. When a test drops a process, the process is killed by its id.
//!
//! A test binary includes this with `#[path = "../common/mod.rs"] mod common;`.

// Each test binary uses only a part.
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

/// The longest wait for something that must happen: far more than a loaded machine needs.
pub const SOON: Duration = Duration::from_secs(90);

/// The time between two checks of a condition.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// The most that one check adds to the time waited.
const CHECK_MAX: Duration = Duration::from_secs(5);

/// The result of one check: the value, or a text about the present state.
pub trait CheckResult {
    /// The value.
    type Found;

    /// The value, or a text about the present state.
    fn found(self) -> Result<Self::Found, String>;
}

impl<T> CheckResult for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "it is not so".to_owned())
    }
}

impl<T> CheckResult for Result<T, String> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

/// The time waited. A check that took longer than [`CHECK_MAX`], perhaps because the machine
/// stalled, counts as [`CHECK_MAX`].
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
        self.waited += self.last.elapsed().min(CHECK_MAX);
        self.last = Instant::now();
        self.waited > SOON
    }
}

/// Repeats a check until it returns a value.
///
/// # Panics
///
/// After [`SOON`]. The message has the condition and the last state.
pub fn eventually<C: CheckResult>(what: &str, mut check: impl FnMut() -> C) -> C::Found {
    let mut patience = Patience::default();
    loop {
        match check().found() {
            Ok(found) => return found,
            Err(instead) if patience.is_over() => panic!("waited {SOON:?} until {what}: {instead}"),
            Err(_) => std::thread::sleep(CHECK_EVERY),
        }
    }
}

/// [`eventually`] for an asynchronous check, such as a request of a client in this process.
pub async fn soon<C: CheckResult, F: Future<Output = C>>(what: &str, mut check: impl FnMut() -> F) -> C::Found {
    let mut patience = Patience::default();
    loop {
        match check().await.found() {
            Ok(found) => return found,
            Err(instead) if patience.is_over() => panic!("waited {SOON:?} until {what}: {instead}"),
            Err(_) => tokio::time::sleep(CHECK_EVERY).await,
        }
    }
}

/// Waits for work that must end within [`SOON`].
pub async fn within<T>(what: &str, work: impl IntoFuture<Output = T>) -> T {
    match tokio::time::timeout(SOON, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what} took longer than {SOON:?}"),
    }
}
