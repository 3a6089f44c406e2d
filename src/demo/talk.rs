//! What the demo and its clients say to each other: one JSON document a line, on the client's
//! standard input and output.

use serde::{Deserialize, Serialize};

use super::oracle::{Ack, Run};

/// From the demo to a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerOrder {
    /// The first: what to do.
    Task(Task),
    /// Begin.
    Go,
    /// Stop reading, keep the leases, and say what they are: the last order to a client that is
    /// going to be killed.
    Hold {
        /// Have a copy of this file for certain, by its place in the list.
        file: u32,
    },
    /// Stop, report, and end.
    Stop,
}

/// What a client is for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Where the servers are.
    pub(crate) endpoints: Vec<String>,
    /// What its session is called.
    pub(crate) name: String,
    /// Where its random numbers begin.
    pub(crate) seed: u64,
    /// The nodes, most popular first.
    pub(crate) files: Vec<String>,
    /// The places in the list of those that it writes; a client that writes none reads.
    pub(crate) writes: Vec<u32>,
}

/// From a client to the demo.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// All files have been read once; what was to be cached is cached.
    Ready,
    /// What was done since the last report.
    Report(WorkerReport),
    /// It reads no more, everything is reported, and it holds a lease on the file that was named.
    Holding {
        /// How long it is certain to be able to use its copy, in milliseconds.
        certain_ms: u64,
    },
    /// It cannot go on.
    Failed {
        /// Why.
        message: String,
    },
}

/// What a client did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct WorkerReport {
    /// Reads answered from memory.
    pub(crate) from_memory: u64,
    /// Reads answered by a server.
    pub(crate) from_server: u64,
    /// Reads and writes that failed, each with what it failed with, up to a few.
    pub(crate) failures: Vec<String>,
    /// How many failed.
    pub(crate) failed: u64,
    /// All reads.
    pub(crate) runs: Vec<Run>,
    /// All acknowledged writes, in order.
    pub(crate) acks: Vec<Ack>,
    /// How long cached reads took, by sample: nanoseconds, and how many.
    pub(crate) cached_ns: Vec<(u64, u64)>,
    /// The longest times between two cached reads in a row, from and to in nanoseconds: one for
    /// each tenth of a second.
    pub(crate) gaps: Vec<(u64, u64)>,
    /// Requests and consents sent since the client was made.
    pub(crate) messages_sent: u64,
}
