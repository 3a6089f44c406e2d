//! A client in its own process, which a test can kill, pause and cut off as a whole. It reads,
//! writes and deletes a few nodes, and records its operations.
//!
//! All processes take times from one clock. They read it from the kernel and not through libc, so
//! tools that change a process's clock do not reach it. A read is recorded when it has ended. A
//! write is recorded before it is sent, and again when it has ended. So it is known what a killed
//! client may have written.

use std::{
    io::Read,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold_client_cache::{Client, Condition, Content, DriftAllowance, NodePath, Options, SessionState, WriteError};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{
    alone,
    common::{Cluster, Place, eventually},
    path,
    worker::{self, Notes, Role},
};

/// How a process learns that it must be a client.
const CLIENT: Role =
    Role { variable: "LEASEHOLD_TEST_CLIENT", test: "workload::a_client_process_writes_down_what_it_did" };

/// The timeout of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The timeout of a write. With these volumes' terms, a dead client's lease ends before it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The task of a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The servers' addresses.
    pub(crate) endpoints: Vec<String>,
    /// The name of its session, with which its values begin. Each client of a history has its own.
    pub(crate) name: String,
    /// The nodes that it reads and writes.
    pub(crate) paths: Vec<String>,
    /// The seed of its random numbers.
    pub(crate) seed: u64,
    /// The drift allowance that it is given.
    pub(crate) drift_ppm: u32,
    /// How many of a thousand operations are writes.
    pub(crate) writes_permille: u32,
    /// The time between two operations.
    pub(crate) pace: Duration,
    /// The file for its notes.
    pub(crate) notes: PathBuf,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operation {
    /// Its number among the client's operations. If it is recorded twice, the later record counts.
    pub(crate) number: u64,
    /// The node's path.
    pub(crate) path: String,
    /// The kind of operation.
    pub(crate) kind: Kind,
    /// When it began, in nanoseconds.
    pub(crate) begin: u64,
    /// When it ended, in nanoseconds.
    pub(crate) end: u64,
    /// The result.
    pub(crate) outcome: Outcome,
}

/// The kind of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// A read that only memory may answer.
    Cached,
    /// A read that a server may have to answer.
    Read,
    /// A put of a value that is put only once.
    Put(String),
    /// A put of such a value if the node's last change has this revision; 0: if there is no node.
    Compare(String, u64),
    /// A deletion.
    Delete,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// A read found this value, of this revision.
    Found(String, u64),
    /// A read found that there is no node.
    Absent,
    /// A write took effect, at this revision.
    Written(u64),
    /// The condition of the write did not hold, so it changed nothing.
    Refused,
    /// A write that was not done and never will be, or a read that was not answered.
    Failed(String),
    /// A write that may have taken effect, or may still.
    Unknown,
}

/// A note of a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Note {
    /// An operation.
    Operation(Operation),
    /// The client reported that its session has expired.
    Expired,
}

/// Nanoseconds on a clock that all processes of this machine share.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A client at work: the state that its threads share.
struct Work {
    task: Task,
    paths: Vec<NodePath>,
    client: Client,
    notes: Notes,
    numbers: AtomicU64,
    stop: AtomicBool,
}

impl Work {
    /// Reads from memory only, at the pace of the task.
    fn read_from_memory(&self) {
        let mut next = 0;
        while !self.stop.load(Relaxed) {
            let path = &self.paths[next % self.paths.len()];
            next += 1;
            let begin = now_ns();
            if let Some(content) = self.client.cached(path) {
                self.done(path, Kind::Cached, begin, found(&content));
            }
            std::thread::sleep(self.task.pace);
        }
    }

    /// Reads and writes. Memory or a server answers.
    async fn read_and_write(&self) {
        let mut random = SmallRng::seed_from_u64(self.task.seed);
        let mut seen = vec![0; self.paths.len()];
        while !self.stop.load(Relaxed) {
            let at = random.random_range(0..self.paths.len());
            if random.random_range(0..1000) < self.task.writes_permille {
                self.write(at, &mut seen[at], &mut random).await;
            } else {
                self.read(at, &mut seen[at]).await;
            }
            tokio::time::sleep(self.task.pace).await;
        }
    }

    async fn read(&self, at: usize, seen: &mut u64) {
        let begin = now_ns();
        let outcome = match self.client.get(&self.paths[at]).await {
            Ok(Some(entry)) => {
                Outcome::Found(String::from_utf8_lossy(&entry.value).into_owned(), entry.stat.modify_revision.0)
            }
            Ok(None) => Outcome::Absent,
            Err(error) => Outcome::Failed(error.to_string()),
        };
        *seen = match &outcome {
            Outcome::Found(_, revision) => *revision,
            Outcome::Absent => 0,
            _ => *seen,
        };
        self.done(&self.paths[at], Kind::Read, begin, outcome);
    }

    async fn write(&self, at: usize, seen: &mut u64, random: &mut SmallRng) {
        let path = &self.paths[at];
        let number = self.numbers.fetch_add(1, Relaxed);
        let value = format!("{}:{number}", self.task.name);
        let kind = match random.random_range(0..10) {
            0 => Kind::Delete,
            1..=3 => Kind::Compare(value.clone(), *seen),
            _ => Kind::Put(value.clone()),
        };
        let begin = now_ns();
        let mut operation =
            Operation { number, path: path.to_string(), kind, begin, end: begin, outcome: Outcome::Unknown };
        self.notes.note(&Note::Operation(operation.clone()));
        let put = || self.client.put(path, value).timeout(WRITE_TIMEOUT);
        let written = match &operation.kind {
            Kind::Delete => self.client.delete(path).timeout(WRITE_TIMEOUT).await,
            Kind::Compare(_, 0) => put().if_absent().await,
            Kind::Compare(_, revision) => {
                let condition = Condition::Revision(leasehold_client_cache::Revision(*revision));
                put().condition(condition).await
            }
            _ => put().await,
        };
        operation.end = now_ns();
        operation.outcome = match written {
            Ok(written) => Outcome::Written(written.revision.0),
            Err(WriteError::Refused(leasehold_client_cache::Refusal::Write(_))) => Outcome::Refused,
            Err(error) if error.may_still_happen() => Outcome::Unknown,
            Err(error) => Outcome::Failed(error.to_string()),
        };
        if let Outcome::Written(revision) = operation.outcome {
            *seen = if operation.kind == Kind::Delete { 0 } else { revision };
        }
        self.notes.note(&Note::Operation(operation));
    }

    fn done(&self, path: &NodePath, kind: Kind, begin: u64, outcome: Outcome) {
        let (number, path) = (self.numbers.fetch_add(1, Relaxed), path.to_string());
        self.notes.note(&Note::Operation(Operation { number, path, kind, begin, end: now_ns(), outcome }));
    }

    /// Records when the session has expired.
    async fn listen(&self) {
        let mut events = self.client.events();
        while let Ok(event) = events.next().await {
            if matches!(event, SessionState::Expired { .. }) {
                self.notes.note(&Note::Expired);
            }
        }
    }
}

fn found(content: &Content) -> Outcome {
    match content {
        Content::Data(Some(data)) => {
            Outcome::Found(String::from_utf8_lossy(&data.value).into_owned(), data.stat.modify_revision.0)
        }
        _ => Outcome::Absent,
    }
}

/// Runs a client until the input ends. The library's warnings go to the process's log.
fn be_a_client(task: Task) {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&over);
    std::thread::spawn(move || {
        // With or without an error, the input has ended.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.store(true, Relaxed);
    });
    let drift = DriftAllowance::from_ppm(task.drift_ppm).expect("an allowance");
    let options = Options::new(task.endpoints.clone()).name(&task.name).timeout(READ_TIMEOUT).drift(drift);
    let client = loop {
        match runtime.block_on(Client::connect(options.clone())) {
            Ok(client) => break client,
            // There may be no server at the moment.
            Err(_) if !over.load(Relaxed) => {}
            Err(_) => return,
        }
    };
    let notes = Notes::open(&task.notes);
    let work = Arc::new(Work {
        paths: task.paths.iter().map(|text| path(text)).collect(),
        task,
        client,
        notes,
        numbers: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    });
    let reader = std::thread::spawn({
        let work = Arc::clone(&work);
        move || work.read_from_memory()
    });
    let listening = runtime.spawn({
        let work = Arc::clone(&work);
        async move { work.listen().await }
    });
    let working = runtime.spawn({
        let work = Arc::clone(&work);
        async move { work.read_and_write().await }
    });
    while !over.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
    work.stop.store(true, Relaxed);
    runtime.block_on(working).expect("it only reads and writes");
    reader.join().expect("it only reads");
    listening.abort();
    runtime.block_on(work.client.close());
}

/// A client process, as the test sees it.
pub(crate) type Worker = worker::Worker<Note>;

/// Starts a client.
pub(crate) fn start(place: &Place, task: &Task) -> Worker {
    Worker::start(place, CLIENT, &task.name, task, &task.notes)
}

/// If the process must be a client, this runs the client.
#[test]
fn a_client_process_writes_down_what_it_did() {
    if let Some(task) = CLIENT.task() {
        return be_a_client(task);
    }
    let _alone = alone();
    let cluster = Cluster::start(1);
    let task = Task {
        endpoints: cluster.endpoints(),
        name: "one".to_owned(),
        paths: vec!["/a".to_owned(), "/b".to_owned()],
        seed: 1,
        drift_ppm: DriftAllowance::DEFAULT.ppm(),
        writes_permille: 300,
        pace: Duration::from_millis(1),
        notes: worker::notes(&cluster.directory(""), "one"),
    };
    let mut worker = start(&Place::default(), &task);
    let mut history = crate::history::History::default();
    eventually("it has done something of each kind", || {
        history.add(&task.name, worker.news());
        let tally = history.tally();
        if tally.cached > 50 && tally.reads > 50 && tally.written > 50 && tally.refused > 0 {
            Ok(())
        } else {
            Err(format!("{tally:?}"))
        }
    });
    worker.stop();
    history.add(&task.name, worker.news());
    assert_eq!(history.tally().unknown, 0, "nothing was in its way");
    history.assert_linearizable();
}
