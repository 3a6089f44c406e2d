//! A process of a test's own that can be killed, stopped and cut off as a whole, and writes down
//! what it did.
//!
//! The process is this test binary again, told by its surroundings what to be: it runs one test of
//! it alone, which does that instead of testing. It goes on until its input ends: whoever started
//! it may have been killed. Its notes are a file, one JSON document on each line, and of a process
//! that was killed all that it has written down is there.

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

/// What a process can be: the variable that tells it what to do, and the test that does it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Role {
    /// Its value is a task, as JSON.
    pub(crate) variable: &'static str,
    /// By its full name.
    pub(crate) test: &'static str,
}

impl Role {
    /// The task of this process, if it is to be that.
    pub(crate) fn task<T: DeserializeOwned>(&self) -> Option<T> {
        let json = std::env::var(self.variable).ok()?;
        Some(serde_json::from_str(&json).expect("a task"))
    }
}

/// Nanoseconds on the clock of all processes of this machine, which is the one that leases are
/// counted by: `CLOCK_BOOTTIME`.
pub(crate) fn boottime_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Where the notes of a process go.
pub(crate) fn notes(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("client-{name}.notes"))
}

/// Notes that are being written.
#[derive(Debug)]
pub(crate) struct Notes(Mutex<File>);

impl Notes {
    /// Opens them.
    pub(crate) fn open(file: &Path) -> Self {
        Self(Mutex::new(File::options().create(true).append(true).open(file).expect("a file for notes")))
    }

    /// Writes something down.
    pub(crate) fn note<N: Serialize>(&self, note: &N) {
        let mut line = serde_json::to_vec(note).expect("JSON can say it");
        line.push(b'\n');
        // In one call: whoever is killed has written the line or not.
        self.0.lock().expect("nobody panics").write_all(&line).expect("there is room");
    }
}

/// Does something until it is done or this process's input ends. Returns what it came to.
pub(crate) fn until_told_to_stop<T>(work: impl Future<Output = T>) -> Option<T> {
    let (sender, over) = oneshot::channel();
    std::thread::spawn(move || {
        // However the input ends, it has.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        // It may be done already.
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

/// Such a process, as the test sees it, with notes of this kind. Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Worker<N> {
    /// The process.
    pub(crate) process: Process,
    /// What it is called.
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

    /// What it has written down since this was last asked.
    pub(crate) fn news(&mut self) -> Vec<N> {
        let mut notes = Vec::new();
        // There is none before it has begun.
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

    /// Has it finish what it does, and waits until it has.
    pub(crate) fn stop(&mut self) {
        self.input = None;
        let status = self.process.ended();
        assert!(status.success(), "{} ended with {status}", self.name);
    }
}
