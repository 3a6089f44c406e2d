//! One server process.

use std::{
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The binary that is tested.
pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");

/// The lines of a log that are printed when a test fails.
const LOG_LINES: usize = 40;

/// A server process. Killed when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `leasehold serve` with these arguments; what it says is appended to `log`.
    pub(super) fn serve(args: &[String], log: &Path) -> Self {
        let open = || -> File { OpenOptions::new().create(true).append(true).open(log).expect("a log file") };
        let child = Command::new(BINARY)
            .arg("serve")
            .args(args)
            .env_remove("RUST_LOG")
            .env_remove("LEASEHOLD_ENDPOINTS")
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .spawn()
            .expect("the binary starts");
        Self { child, log: log.to_owned() }
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) {
        signal_process(self.child.id(), signal);
    }

    /// Kills it, and waits until it has gone.
    pub(super) fn kill(mut self) {
        self.end();
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of ours")
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = &lines[lines.len().saturating_sub(LOG_LINES)..];
            eprintln!("--- the end of {}:\n{}", self.log.display(), end.join("\n"));
        }
    }
}

/// Sends a signal to a child that has not been waited for. One that stops it has done so when this returns.
pub(super) fn signal_process(id: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(id).expect("process ids are small"));
    kill(pid, signal).expect("a child of ours");
    while signal == Signal::SIGSTOP && !is_stopped(id) {
        std::thread::yield_now();
    }
}

/// Whether all threads of a process are stopped. The signal is taken by one of them, and the others go on until it is.
fn is_stopped(id: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).expect("a child of ours");
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // After the name, which is in brackets and may hold anything.
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        assert!(!matches!(state, Some('Z' | 'X')), "process {id} has ended");
        // A thread that ends while it is looked at has no state.
        state.is_none_or(|state| state == 'T')
    })
}
