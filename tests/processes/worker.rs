//! A process that a test can kill, pause and cut off as a whole, and that records what it did.
//!
//! The process is this test binary again. A variable of its environment has its task. It runs only
//! one test, which does the task instead of testing. It runs until its input ends, because the
//! process that started it may have been killed. Its notes are a file with one JSON document on
//! each line. All notes that a killed process has written are there.

use std::{
    fs::File,
    future::Future,
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    marker::PhantomData,
    path::{Path, PathBuf},
    process::{ChildStdin, Stdio},
    sync::Mutex,
};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::oneshot;

use crate::common::{Place, Process};

/// A role of a process: the variable with its task, and the test that does the task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Role {
    /// The value of this variable is the task, as JSON.
    pub(crate) variable: &'static str,
    /// The full name of the test.
    pub(crate) test: &'static str,
}

impl Role {
    /// The task of this process, if it has this role.
    pub(crate) fn task<T: DeserializeOwned>(&self) -> Option<T> {
        let json = std::env::var(self.variable).ok()?;
        Some(serde_json::from_str(&json).expect("a task"))
    }
}

/// Nanoseconds on `CLOCK_BOOTTIME`, by which leases are counted, and which all processes share.
pub(crate) fn boottime_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The file for the notes of a process.
pub(crate) fn notes(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("client-{name}.notes"))
}

/// The notes that a process is writing.
#[derive(Debug)]
pub(crate) struct Notes(Mutex<File>);

impl Notes {
    /// Opens the file.
    pub(crate) fn open(file: &Path) -> Self {
        Self(Mutex::new(File::options().create(true).append(true).open(file).expect("a file for notes")))
    }

    /// Writes a note.
    pub(crate) fn note<N: Serialize>(&self, note: &N) {
        let mut line = serde_json::to_vec(note).expect("JSON can say it");
        line.push(b'\n');
        // In one call, so that a killed process has written the whole line or nothing.
        self.0.lock().expect("nobody panics").write_all(&line).expect("there is room");
    }
}

/// Does the work until it is done or this process's input ends. Returns its result.
pub(crate) fn until_told_to_stop<T>(work: impl Future<Output = T>) -> Option<T> {
    let (sender, over) = oneshot::channel();
    std::thread::spawn(move || {
        // With or without an error, the input has ended.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        // The work may be done already.
        let _ = sender.send(());
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::select! {
            done = work => Some(done),
            _ = over => None,
        }
    })
}

/// A process with a role, as the test sees it, with notes of this type. Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Worker<N> {
    /// The process.
    pub(crate) process: Process,
    /// Its name.
    pub(crate) name: String,
    input: Option<ChildStdin>,
    notes: PathBuf,
    /// How far the notes have been read.
    offset: u64,
    kind: PhantomData<N>,
}

impl<N: for<'a> Deserialize<'a>> Worker<N> {
    /// Starts a process of this name at a place.
    pub(crate) fn start<T: Serialize>(place: &Place, role: Role, name: &str, task: &T, notes: &Path) -> Self {
        let this = std::env::current_exe().expect("this binary");
        let json = serde_json::to_string(task).expect("JSON can say it");
        let mut command = place.command(this);
        command.args([role.test, "--exact", "--nocapture", "--test-threads", "1"]);
        command.env(role.variable, json).stdin(Stdio::piped());
        let mut process = Process::start(command, &notes.with_extension("log"));
        let input = process.take_input();
        Self { process, name: name.to_owned(), input, notes: notes.to_owned(), offset: 0, kind: PhantomData }
    }

    /// The notes that it has written since the last call.
    pub(crate) fn news(&mut self) -> Vec<N> {
        let mut notes = Vec::new();
        // There is no file before it has begun.
        let Ok(mut file) = File::open(&self.notes) else { return notes };
        file.seek(SeekFrom::Start(self.offset)).expect("it only grows");
        let mut lines = BufReader::new(file);
        let mut line = String::new();
        while lines.read_line(&mut line).expect("readable") > 0 && line.ends_with('\n') {
            notes.push(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")));
            self.offset += line.len() as u64;
            line.clear();
        }
        notes
    }

    /// Ends its input, and waits until it has ended.
    pub(crate) fn stop(&mut self) {
        self.input = None;
        let status = self.process.ended();
        assert!(status.success(), "{} ended with {status}", self.name);
    }
}
