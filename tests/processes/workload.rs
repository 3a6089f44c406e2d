//! A client in a process of its own, that can be killed, stopped and cut off as a whole: it reads,
//! writes and deletes on a few paths, and writes down what it did.
//!
//! All processes note times by one clock, which is read by asking the kernel and not through libc:
//! tools that bend the clock of a process do not reach it. A read is written down when it has
//! ended. A write is written down before it is sent, and again when it has ended: of a client that
//! was killed it is known what it may have done.

use std::{
    io::Read,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold_client_cache::{
    Client, Condition, ConnectionState, Content, DeleteOptions, DriftAllowance, NodePath, Options, PutOptions,
    WriteError,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{
    alone,
    common::{Cluster, Place, eventually},
    path,
    worker::{self, Notes, Role},
};

/// What a process is that is to be a client.
const CLIENT: Role =
    Role { variable: "LEASEHOLD_TEST_CLIENT", test: "workload::a_client_process_writes_down_what_it_did" };

/// How long a read may take.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a write may take: with the volumes' terms here, long enough for a dead client's lease
/// to end.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a client is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Where the servers are.
    pub(crate) endpoints: Vec<String>,
    /// What its session is called, and its values begin with. Each client of a history has its own.
    pub(crate) name: String,
    /// The nodes that it reads and writes.
    pub(crate) paths: Vec<String>,
    /// Where its random numbers begin.
    pub(crate) seed: u64,
    /// How far clocks may drift, as it is told.
    pub(crate) drift_ppm: u32,
    /// Of a thousand operations, how many are writes.
    pub(crate) writes_permille: u32,
    /// Between two operations.
    pub(crate) pace: Duration,
    /// Where it writes down what it did.
    pub(crate) notes: PathBuf,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operation {
    /// Its number among its client's. Written down twice, the later counts.
    pub(crate) number: u64,
    /// On which node.
    pub(crate) path: String,
    /// What.
    pub(crate) kind: Kind,
    /// When it began, in nanoseconds.
    pub(crate) begin: u64,
    /// When it ended, in nanoseconds.
    pub(crate) end: u64,
    /// What came of it.
    pub(crate) outcome: Outcome,
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// A read that only memory may answer.
    Cached,
    /// A read that a server may have to answer.
    Read,
    /// A put of a value that is put only once.
    Put(String),
    /// A put of such a value, if the node was last changed by this revision; 0: if it does not
    /// exist.
    Compare(String, u64),
    /// A deletion.
    Delete,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// A read found this value, of this revision.
    Found(String, u64),
    /// A read found that there is no node.
    Absent,
    /// A write took effect, at this revision.
    Written(u64),
    /// The node was not as the write wanted it to be: it changed nothing.
    Refused,
    /// It was not done, and never will be; or a read that was not answered.
    Failed(String),
    /// A write that may have taken effect, or may still.
    Unknown,
}

/// What a client says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Note {
    /// An operation.
    Operation(Operation),
    /// The application was told that its session is gone.
    Expired,
}

/// Nanoseconds on the clock of all processes of this machine.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A client at work: what its threads share.
struct Work {
    task: Task,
    paths: Vec<NodePath>,
    client: Client,
    notes: Notes,
    numbers: AtomicU64,
    stop: AtomicBool,
}

impl Work {
    /// Reads from memory only, as fast as it is told to.
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

    /// Reads and writes, wherever the answer comes from.
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
        let put = |condition| PutOptions { condition, timeout: Some(WRITE_TIMEOUT), ..PutOptions::default() };
        let written = match &operation.kind {
            Kind::Delete => {
                let options = DeleteOptions { timeout: Some(WRITE_TIMEOUT), ..DeleteOptions::default() };
                self.client.delete(path, options).await
            }
            Kind::Compare(_, 0) => self.client.put_with(path, value, put(Condition::Absent)).await,
            Kind::Compare(_, revision) => {
                let condition = Condition::Revision(leasehold_client_cache::Revision(*revision));
                self.client.put_with(path, value, put(condition)).await
            }
            _ => self.client.put_with(path, value, put(Condition::Any)).await,
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

    /// Writes down what the application is told.
    async fn listen(&self) {
        let mut events = self.client.events();
        while let Ok(event) = events.next().await {
            if matches!(event, ConnectionState::Expired { .. }) {
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

/// Is a client, until the input ends. What the library warns of is in the process's log.
fn be_a_client(task: Task) {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&over);
    std::thread::spawn(move || {
        // However the input ends, it has.
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

/// In a process that is to be a client: the client.
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
