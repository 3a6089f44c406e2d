//! The messages between the demo and its clients: one JSON document per line, on the client's
//! standard input and output.

use serde::{Deserialize, Serialize};

use crate::oracle::{Ack, Run};

/// From the demo to a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerOrder {
    /// The first order: the client's task.
    Task(Task),
    /// Begin.
    Go,
    /// Stop reading, keep the leases, and report how long they certainly last. The last order to a
    /// client before it is killed.
    Hold {
        /// The index of the file to cache.
        file: u32,
    },
    /// Stop, report, and exit.
    Stop,
}

/// The task of a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The addresses of the servers.
    pub(crate) endpoints: Vec<String>,
    /// The name of its session.
    pub(crate) name: String,
    /// The random seed.
    pub(crate) seed: u64,
    /// The nodes, most popular first.
    pub(crate) files: Vec<String>,
    /// The indices of the files that it writes. A client that writes none reads.
    pub(crate) writes: Vec<u32>,
}

/// From a client to the demo.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// The client is warmed up: it has read all files, or those that it writes.
    Ready,
    /// Everything since the last report.
    Report(WorkerReport),
    /// The client has stopped reading and reported everything. It has a cached copy of the named
    /// file.
    Holding {
        /// How long the copy is certainly valid, in milliseconds.
        certain_ms: u64,
    },
    /// The client failed.
    Failed { message: String },
}

/// What a client did since the last report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct WorkerReport {
    /// Reads answered from memory.
    pub(crate) from_memory: u64,
    /// Reads answered by a server.
    pub(crate) from_server: u64,
    /// The errors of failed reads and writes, up to a few.
    pub(crate) failures: Vec<String>,
    /// The number of failed reads and writes.
    pub(crate) failed: u64,
    /// All reads.
    pub(crate) runs: Vec<Run>,
    /// All acknowledged writes, in order.
    pub(crate) acks: Vec<Ack>,
    /// The sampled latencies of cached reads: nanoseconds and count.
    pub(crate) cached_ns: Vec<(u64, u64)>,
    /// The longest intervals between consecutive cached reads, from and to in nanoseconds, one for
    /// each tenth of a second.
    pub(crate) gaps: Vec<(u64, u64)>,
    /// Until when the client's lease on the files certainly lasts, in nanoseconds.
    pub(crate) lease_until: u64,
    /// Requests and consents sent since the client was created.
    pub(crate) messages_sent: u64,
}
