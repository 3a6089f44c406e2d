//! Why a demo, its replicas or one of its clients fails.

use std::{io, ops::RangeInclusive, path::PathBuf, process::ExitStatus, time::Duration};

use leasehold_client_cache::{ConnectError, ReadError, WriteError};
use leasehold_protocol::path::PathError;

use crate::FILES_MIN;

/// Why the demo ended without a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The demo cannot have as many, or as few, of these.
    #[error("{what}: {got}: expected a number from {} to {}", expected.start(), expected.end())]
    Count {
        /// What is counted.
        what: &'static str,
        /// The number in the options.
        got: usize,
        /// The possible numbers.
        expected: RangeInclusive<usize>,
    },
    /// The directory has too few files that can be imported.
    #[error(
        "files to import in {}: {count}: expected {FILES_MIN} at least, one that is written and one that is not{}",
        dir.display(),
        skipped.iter().map(|skipped| format!("; {skipped}")).collect::<String>()
    )]
    TooFewFiles {
        /// The directory.
        dir: PathBuf,
        /// How many files it has.
        count: usize,
        /// The files that were left out, each with the reason.
        skipped: Vec<String>,
    },
    /// The writers write all files, so no other file is left.
    #[error("all files are written: expected one that is not")]
    AllAreWritten,
    /// The operating system refuses something.
    #[error("{what}")]
    Io {
        /// What the demo cannot do, or with which file.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// A file could not be imported.
    #[error("{}", file.display())]
    Import {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: Box<WriteError>,
    },
    /// No session could be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A write of the demo itself failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A replica failed.
    #[error(transparent)]
    Replicas(#[from] ReplicasError),
    /// A client ended by itself.
    #[error("client {client} is gone: {how}")]
    ClientGone {
        /// Its number, from 0.
        client: usize,
        /// How it ended.
        how: String,
    },
    /// A client reported that it failed.
    #[error("{message}")]
    ClientFailed {
        /// What it reported.
        message: String,
    },
    /// The clients did not do what was awaited.
    #[error("waited {after:?} for {awaited}, in vain")]
    Overdue {
        /// How long the demo waited.
        after: Duration,
        /// What it waited for.
        awaited: &'static str,
    },
}

impl DemoError {
    pub(crate) fn io(what: impl ToString) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.to_string(), source }
    }
}

/// Why a cluster of processes failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicasError {
    /// The operating system refuses something.
    #[error("{what}")]
    Io {
        /// What cannot be done.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// No replica led in time.
    #[error("no replica led within {within:?}{logs}")]
    NoLeader {
        /// How long that took at least.
        within: Duration,
        /// The ends of the replicas' logs, to be appended to a sentence.
        logs: String,
    },
    /// A replica that was started again found no leader in time.
    #[error("replica {id} found no leader within {within:?}{logs}")]
    NotRejoined {
        /// The replica.
        id: usize,
        /// How long it looked at least.
        within: Duration,
        /// The ends of the replicas' logs, to be appended to a sentence.
        logs: String,
    },
    /// A replica ended by itself.
    #[error("replica {id} ended with {status}{log}")]
    Ended {
        /// The replica.
        id: usize,
        /// How it ended.
        status: ExitStatus,
        /// The end of its log, to be appended to a sentence.
        log: String,
    },
    /// The replica was killed, or never started.
    #[error("replica {id} is not running: expected one that is")]
    NotRunning {
        /// The replica.
        id: usize,
    },
}

impl ReplicasError {
    pub(crate) fn io(what: impl ToString) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.to_string(), source }
    }
}

/// Why a client of the demo failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Standard input did not begin with a task: the process was not started by the demo.
    #[error("this command is the demo's own: expected its orders on standard input")]
    NoTask,
    /// An order could not be read.
    #[error("standard input")]
    Input(#[source] io::Error),
    /// A line is not an order.
    #[error("a line that is not an order")]
    Order(#[source] serde_json::Error),
    /// A file of the task has no valid path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// An order names a file that the task does not have.
    #[error("there is no file {0}")]
    NoFile(u32),
    /// No session could be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A read failed that the client cannot do without.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// An error and all its causes, in one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
