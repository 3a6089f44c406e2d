//! The configuration cache of a day: one writer, and readers that have cached copies.
//!
//! The writer puts growing numbers. So a few comparisons decide whether all reads of a node are
//! linearizable, however many there are:
//!
//! - a read that began after a put was acknowledged finds that number, or a later one;
//! - a read that ended before a put began does not find that number;
//! - a read that began after another one ended finds no earlier number than that did.
//!
//! Readers note reads of the same number together, so that a day's notes stay small.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use leasehold_client_cache::{Client, Content, NodePath, Options};
use serde::{Deserialize, Serialize};

use crate::{
    common::{Cli, Place},
    path,
    worker::{self, Notes, Role, until_told_to_stop},
    workload::now_ns,
};

/// How a process learns that it must be a reader.
pub(super) const READER: Role =
    Role { variable: "LEASEHOLD_TEST_READER", test: "day::a_day_in_the_life_of_a_cluster_breaks_no_promise" };

/// The top of the configuration, and the number of nodes below it.
const TOP: &str = "/config";
const NODES: usize = 4;

/// The time between two writes, and between two rounds of a reader.
const WRITE_PACE: Duration = Duration::from_millis(40);
const READ_PACE: Duration = Duration::from_millis(5);

/// One of this many rounds may ask a server. The others read from memory only.
const ROUNDS_PER_SERVER_READ: u64 = 10;

/// The most time until reads of one number are noted.
const NOTE_EVERY: Duration = Duration::from_millis(100);

/// The timeout of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The timeout of a write. It is long, because each write must be acknowledged.
const WRITE_TIMEOUT: &str = "60s";

/// The path of a node of the configuration.
fn node(number: usize) -> String {
    format!("{TOP}/{number}")
}

/// The task of a reader.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    endpoints: Vec<String>,
    name: String,
    notes: PathBuf,
}

/// Successive reads of one node by one reader that found the same number. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reads {
    node: usize,
    /// True if memory answered.
    cached: bool,
    number: u64,
    count: u64,
    /// When the first of them ended.
    ended: u64,
    /// When the last of them began.
    began: u64,
}

impl Reads {
    /// When the last of them began, if memory answered.
    pub(super) fn cached_at(&self) -> Option<u64> {
        self.cached.then_some(self.began)
    }
}

/// Reads until it is stopped.
pub(super) fn be_a_reader(task: Task) {
    until_told_to_stop(async {
        let options = Options::new(task.endpoints).name(&task.name).timeout(READ_TIMEOUT);
        let client = loop {
            // There may be no server at the moment.
            if let Ok(client) = Client::connect(options.clone()).await {
                break client;
            }
        };
        read(&client, &Notes::open(&task.notes)).await;
    });
}

async fn read(client: &Client, notes: &Notes) {
    let nodes: Vec<NodePath> = (0..NODES).map(|number| path(&node(number))).collect();
    let mut pending: BTreeMap<(usize, bool), Reads> = BTreeMap::new();
    let (mut rounds, mut noted) = (0, Instant::now());
    let mut pace = tokio::time::interval(READ_PACE);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        pace.tick().await;
        rounds += 1;
        for (node, path) in nodes.iter().enumerate() {
            let cached = rounds % ROUNDS_PER_SERVER_READ != 0;
            let began = now_ns();
            let found = if cached { from_memory(client, path) } else { from_anywhere(client, path).await };
            let Some(number) = found else { continue };
            let reads = Reads { node, cached, number, count: 1, ended: now_ns(), began };
            match pending.get_mut(&(node, cached)) {
                Some(same) if same.number == number => (same.count, same.began) = (same.count + 1, began),
                _ => {
                    if let Some(before) = pending.insert((node, cached), reads) {
                        notes.note(&before);
                    }
                }
            }
        }
        if noted.elapsed() >= NOTE_EVERY {
            std::mem::take(&mut pending).values().for_each(|reads| notes.note(reads));
            noted = Instant::now();
        }
    }
}

fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).expect("the writer writes text");
    text.parse().expect("the writer writes numbers")
}

fn from_memory(client: &Client, path: &NodePath) -> Option<u64> {
    match &*client.cached(path)? {
        Content::Data(Some(data)) => Some(number(&data.value)),
        _ => None,
    }
}

async fn from_anywhere(client: &Client, path: &NodePath) -> Option<u64> {
    // A client that is cut off gets no answer.
    let entry = client.get(path).await.ok()??;
    Some(number(&entry.value))
}

/// A reader process, as the test sees it.
pub(super) type Reader = worker::Worker<Reads>;

/// Starts a reader at a place.
pub(super) fn start_reader(place: &Place, endpoints: Vec<String>, name: &str, directory: &std::path::Path) -> Reader {
    let task = Task { endpoints, name: name.to_owned(), notes: worker::notes(directory, name) };
    Reader::start(place, READER, name, &task, &task.notes)
}

/// One put. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Put {
    pub(super) node: usize,
    pub(super) number: u64,
    pub(super) began: u64,
    /// When it was acknowledged. `None` if it was not, or not yet.
    pub(super) acknowledged: Option<u64>,
}

/// The writer: a shell, and a thread that sends lines to it.
#[derive(Debug)]
pub(super) struct Writer {
    stops: Arc<AtomicBool>,
    log: Arc<Mutex<Log>>,
    thread: Option<JoinHandle<()>>,
}

/// The puts of the writer.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The puts that [`Log::take`] has not taken.
    puts: Vec<Put>,
    /// For each node: how many puts were acknowledged, and how many were begun.
    acknowledged: [u64; NODES],
    begun: [u64; NODES],
    /// Answers that are errors.
    refused: Vec<String>,
    last_acknowledged: u64,
}

impl Log {
    /// Takes all puts that have ended, and all errors.
    pub(super) fn take(&mut self) -> (Vec<Put>, Vec<String>) {
        let open: Vec<Put> = self.puts.last().filter(|put| put.acknowledged.is_none()).cloned().into_iter().collect();
        let mut ended = std::mem::replace(&mut self.puts, open);
        ended.retain(|put| put.acknowledged.is_some());
        (ended, std::mem::take(&mut self.refused))
    }

    /// When the last acknowledged write began.
    pub(super) fn last_acknowledged(&self) -> u64 {
        self.last_acknowledged
    }
}

impl Writer {
    /// Creates the nodes, and begins to write.
    pub(super) fn start(cli: &Cli) -> Self {
        for number in 0..NODES {
            cli.done(["--timeout", "30s", "put", &node(number), "0"]);
        }
        let mut shell = cli.shell_with(&["--timeout", WRITE_TIMEOUT]);
        let (stops, log) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Log::default())));
        let (told, noted) = (Arc::clone(&stops), Arc::clone(&log));
        let thread = std::thread::spawn(move || {
            let note = || noted.lock().unwrap_or_else(PoisonError::into_inner);
            for number in 1.. {
                if told.load(Relaxed) {
                    break;
                }
                let (at, began) = (number as usize % NODES, now_ns());
                {
                    let mut log = note();
                    log.puts.push(Put { node: at, number, began, acknowledged: None });
                    log.begun[at] += 1;
                }
                let answer = shell.ask(&format!("put {} {number}", node(at)));
                {
                    let mut log = note();
                    if answer.get("error").is_none() {
                        log.puts.last_mut().expect("it was begun").acknowledged = Some(now_ns());
                        log.acknowledged[at] += 1;
                        log.last_acknowledged = began;
                    } else {
                        log.refused.push(answer.to_string());
                    }
                }
                std::thread::sleep(WRITE_PACE);
            }
            shell.close();
        });
        Self { stops, log, thread: Some(thread) }
    }

    /// The log of its puts.
    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes it finish.
    pub(super) fn stop(&mut self) {
        self.stops.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the shell answers");
        }
    }

    /// Reads all nodes from a server, and compares them with the acknowledged puts. A node's
    /// version counts its puts, so a put that is lost or done twice shows.
    pub(super) fn compare(&self, cli: &Cli) -> Result<u64, String> {
        let mut shell = cli.shell_with(&["--timeout", "30s"]);
        let mut compared = 0;
        let mut differences = Vec::new();
        for number in 0..NODES {
            let least = self.log().acknowledged[number];
            let found = shell.ask(&format!("get {}", node(number)));
            let most = self.log().begun[number];
            // [`Writer::start`] made one more put.
            let version = found["version"].as_u64().and_then(|version| version.checked_sub(1));
            match version {
                Some(version) if (least..=most).contains(&version) => compared += version,
                _ => differences.push(format!("{found}: expected {least} to {most} puts after the first")),
            }
        }
        shell.close();
        if differences.is_empty() { Ok(compared) } else { Err(differences.join("; ")) }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stops.store(true, Relaxed);
    }
}

/// Judges reads by puts.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// All puts of each node, in order. Of earlier rounds, only the last put.
    puts: BTreeMap<usize, Vec<Put>>,
    reads: Vec<Reads>,
}

/// The result of a judge.
#[derive(Debug, Default)]
pub(super) struct Judgement {
    pub(super) cached: u64,
    pub(super) others: u64,
    /// Reads that are not linearizable, and whether memory answered them.
    pub(super) violations: Vec<(bool, String)>,
}

impl Judge {
    /// Adds puts that have ended.
    pub(super) fn add_puts(&mut self, puts: &[Put]) {
        for put in puts {
            self.puts.entry(put.node).or_default().push(put.clone());
        }
    }

    /// Adds the notes of a reader.
    pub(super) fn add_reads(&mut self, reads: Vec<Reads>) {
        self.reads.extend(reads);
    }

    /// Judges what was added since the last call. All puts and reads that have begun must have
    /// ended, and must have been added.
    pub(super) fn judge(&mut self) -> Judgement {
        let mut judgement = Judgement::default();
        let reads = std::mem::take(&mut self.reads);
        for of in &reads {
            *(if of.cached { &mut judgement.cached } else { &mut judgement.others }) += of.count;
            let puts = self.puts.get(&of.node).map_or(&[][..], |puts| puts);
            let due = puts.iter().rev().find(|put| put.acknowledged.is_some_and(|at| at < of.began));
            if let Some(missed) = due.filter(|put| put.number > of.number) {
                judgement.violations.push((of.cached, format!("{of:?} missed {missed:?}")));
            }
            if let Some(early) = puts.iter().find(|put| put.number == of.number && put.began > of.ended) {
                judgement.violations.push((of.cached, format!("{of:?} was before {early:?}")));
            }
        }
        judgement.violations.extend(backwards(&reads));
        // Later reads may find the last put of each node.
        for puts in self.puts.values_mut() {
            puts.drain(..puts.len().saturating_sub(1));
        }
        judgement
    }
}

/// Reads that found an earlier number than a read that had ended before they began.
fn backwards(reads: &[Reads]) -> Vec<(bool, String)> {
    let mut violations = Vec::new();
    for node in 0..NODES {
        let of_node = || reads.iter().filter(|reads| reads.node == node).collect::<Vec<_>>();
        let (mut by_end, mut by_begin) = (of_node(), of_node());
        by_end.sort_by_key(|reads| reads.ended);
        by_begin.sort_by_key(|reads| reads.began);
        let (mut ended, mut latest) = (by_end.into_iter().peekable(), None::<&Reads>);
        for of in by_begin {
            while let Some(before) = ended.next_if(|before| before.ended < of.began) {
                latest = latest.filter(|latest| latest.number >= before.number).or(Some(before));
            }
            if let Some(latest) = latest.filter(|latest| latest.number > of.number) {
                violations.push((of.cached, format!("{of:?} is older than {latest:?}")));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(number: u64, began: u64, acknowledged: u64) -> Put {
        Put { node: 0, number, began, acknowledged: Some(acknowledged) }
    }

    fn reads(number: u64, ended: u64, began: u64) -> Reads {
        Reads { node: 0, cached: true, number, count: 2, ended, began }
    }

    fn judged(of: &[Reads]) -> Vec<String> {
        let mut judge = Judge::default();
        judge.add_puts(&[put(1, 10, 20), put(2, 30, 40), put(3, 50, 60)]);
        judge.add_reads(of.to_vec());
        judge.judge().violations.into_iter().map(|(_, why)| why).collect()
    }

    #[test]
    fn reads_while_a_put_is_under_way_may_find_either_number() {
        assert_eq!(judged(&[reads(1, 15, 39), reads(2, 40, 45), reads(2, 55, 59), reads(3, 61, 99)]), [""; 0]);
        assert_eq!(judged(&[reads(2, 31, 32), reads(3, 52, 99)]), [""; 0]);
    }

    #[test]
    fn read_older_than_an_acknowledged_put_is_found() {
        let violations = judged(&[reads(1, 35, 41)]);
        assert!(violations.len() == 1 && violations[0].contains("missed Put { node: 0, number: 2"), "{violations:?}");
    }

    #[test]
    fn read_of_a_number_before_its_put_began_is_found() {
        let violations = judged(&[reads(3, 49, 48)]);
        assert!(violations.len() == 1 && violations[0].contains("was before Put"), "{violations:?}");
    }

    #[test]
    fn read_that_goes_back_while_a_put_is_under_way_is_found() {
        let violations = judged(&[reads(2, 32, 32), reads(1, 34, 34)]);
        assert!(violations.len() == 1 && violations[0].contains("is older than"), "{violations:?}");
    }

    #[test]
    fn last_put_of_a_round_counts_in_the_next() {
        let mut judge = Judge::default();
        judge.add_puts(&[put(1, 10, 20), put(2, 30, 40)]);
        assert!(judge.judge().violations.is_empty());
        judge.add_reads(vec![reads(1, 50, 50)]);
        assert_eq!(judge.judge().violations.len(), 1);
    }
}
