//! The demo of Leasehold: its main uses on real files, with real processes, in about half a minute.
//!
//! [`run`] starts replicas, readers and writers, each a process of its own. It kills the leader and
//! a client with SIGKILL, collects the clients' reports, and judges all reads at the end.
//!
//! What it guarantees:
//!
//! - It misses no stale read: `oracle` argues why.
//! - Dropping the future of [`run`] ends all processes and removes all files. If the demo itself is
//!   killed, its processes notice that, and do the same. With [`DemoOptions::keep`] the cluster
//!   stays.
//!
//! It does not know which program its processes run: it is given [`Launch`]es, and a program calls
//! [`run_client`] or [`when_abandoned`] for them. It prints nothing: it tells a [`Narrator`] what
//! happens, and returns a [`DemoReport`].
//!
//! It does not show that data survive a power failure, nor the behaviour of several machines.

mod client;
mod clock;
mod crowd;
mod error;
mod files;
mod launch;
mod oracle;
mod play;
mod reader;
mod replica;
mod replicas;
mod report;
mod session;
mod talk;
mod writer;
mod zipf;

use std::{fmt, ops::RangeInclusive, path::PathBuf, time::Duration};

use self::play::Play;
pub use self::{
    client::run_client,
    error::{ClientError, DemoError, ReplicasError},
    launch::Launch,
    replica::when_abandoned,
    replicas::Replicas,
    report::DemoReport,
};

/// How many replicas a demo can have: at least three, so that one can be killed.
pub const REPLICAS: RangeInclusive<usize> = 3..=9;

/// How many reading clients a demo can have: at least two, so that one can be killed.
pub const CLIENTS: RangeInclusive<usize> = 2..=64;

/// The minimum number of files. While there is no leader, readers need a second file: a file that
/// is being written has no cached copies.
const FILES_MIN: usize = 2;

/// What a demo does, and with which programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoOptions {
    /// The directory whose files are used: those that git tracks, else all.
    pub dir: PathBuf,
    /// How long clients read and write, approximately.
    pub length: Duration,
    /// The number of replicas, one of [`REPLICAS`].
    pub replicas: usize,
    /// The number of clients that read with a cache, one of [`CLIENTS`].
    pub clients: usize,
    /// Leave the cluster running at the end.
    pub keep: bool,
    /// Starts a replica; see [`Replicas::start`].
    pub replica: Launch,
    /// Starts a client: a program that calls [`run_client`].
    pub client: Launch,
}

/// Hears what happens while the demo runs.
pub trait Narrator {
    /// An event, in one line. Names of files in it may contain any character.
    fn tell(&self, event: &str);

    /// The counts so far, in one line. It replaces the last one.
    fn live(&self, counts: fmt::Arguments<'_>);
}

/// Runs the demo. The report says whether each read was fresh and each bound kept:
/// [`DemoReport::broken`].
pub async fn run(options: &DemoOptions, narrator: &dyn Narrator) -> Result<DemoReport, DemoError> {
    within("replicas", options.replicas, REPLICAS)?;
    within("clients", options.clients, CLIENTS)?;
    let found = files::find(&options.dir, &play::top())?;
    for skipped in &found.skipped {
        narrator.tell(skipped);
    }
    let mut play = Play::begin(options, narrator, found.files).await?;
    let mut report = play.perform().await?;
    report.endpoints = play.end().await;
    Ok(report)
}

fn within(what: &'static str, got: usize, expected: RangeInclusive<usize>) -> Result<(), DemoError> {
    if expected.contains(&got) { Ok(()) } else { Err(DemoError::Count { what, got, expected }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Silent;

    impl Narrator for Silent {
        fn tell(&self, _: &str) {}

        fn live(&self, _: fmt::Arguments<'_>) {}
    }

    #[tokio::test]
    async fn too_few_to_kill_one_are_refused() {
        let nothing = Launch { program: "nothing".into(), args: Vec::new() };
        let options = DemoOptions {
            dir: "/nowhere/at/all".into(),
            length: Duration::from_secs(1),
            replicas: 3,
            clients: 2,
            keep: false,
            replica: nothing.clone(),
            client: nothing,
        };
        let error = run(&options, &Silent).await.expect_err("no directory");
        assert!(matches!(error, DemoError::Io { .. }), "{error}");
        for options in [DemoOptions { replicas: 2, ..options.clone() }, DemoOptions { clients: 1, ..options }] {
            let error = run(&options, &Silent).await.expect_err("too few");
            assert!(matches!(error, DemoError::Count { .. }), "{error}");
        }
    }
}
