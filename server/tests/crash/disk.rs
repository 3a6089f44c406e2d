//! Child processes on a disk that fails: builds `faults.c`, runs a child with it, and collects what
//! the child leaves.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::child;

/// A child that takes longer hangs. This is far beyond what one needs on a busy machine.
const CHILD_TIMEOUT: Duration = Duration::from_secs(120);

/// The fault at a call; see `faults.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Eio,
    Enospc,
    Short,
    Kill,
    Half,
    Lose,
    Torn,
    /// No call fails. When the process exits, the machine crashes.
    Crash,
}

impl Fault {
    pub(crate) const ALL: [Self; 7] =
        [Self::Eio, Self::Enospc, Self::Short, Self::Kill, Self::Half, Self::Lose, Self::Torn];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Eio => "eio",
            Self::Enospc => "enospc",
            Self::Short => "short",
            Self::Kill => "kill",
            Self::Half => "half",
            Self::Lose => "lose",
            Self::Torn => "torn",
            Self::Crash => "crash",
        }
    }

    /// Whether the fault kills the process.
    pub(crate) fn kills(self) -> bool {
        matches!(self, Self::Kill | Self::Half | Self::Lose | Self::Torn)
    }
}

/// The library that makes a disk fail, built once in each test process.
fn library() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let (source, library) = (dir.path().join("faults.c"), dir.path().join("faults.so"));
        fs::write(&source, include_str!("faults.c")).expect("written");
        // The C compiler that Rust links with.
        let built = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o"])
            .args([&library, &source])
            .output()
            .expect("cc runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        (dir, library)
    });
    path
}

/// A folder whose disk fails, and the files beside it.
pub(crate) struct Disk {
    dir: TempDir,
}

/// How a child ended, and what it left.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit status; `None` if it was killed.
    pub(crate) status: Option<i32>,
    /// Whether it hung and was therefore killed.
    pub(crate) hung: bool,
    /// The call at which the fault happened, if it happened.
    pub(crate) at: Option<String>,
    /// The number of calls, if it reached its end.
    pub(crate) calls: Option<u64>,
    /// The lines that it recorded as acknowledged.
    pub(crate) acknowledged: Vec<String>,
    pub(crate) stderr: String,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for part in ["disk", "grave"] {
            fs::create_dir(dir.path().join(part)).expect("made");
        }
        Self { dir }
    }

    /// The child's data folder. The child creates it.
    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("disk").join("data")
    }

    /// A killed child writes to this file what is not durable yet. The next child reads it.
    pub(crate) fn undo(&self) -> PathBuf {
        self.beside("undo")
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the test with this name in this program as a child, with a fault at a call. `told` has
    /// environment variables for the child and for the disk.
    pub(crate) fn run(&self, test: &str, fault: Fault, at: u64, seed: u64, told: &[(&str, &str)]) -> Ended {
        for old in ["report", "acknowledged", "stderr"] {
            // Left by an earlier child, or not there.
            let _ = fs::remove_file(self.beside(old));
        }
        let stderr = fs::File::create(self.beside("stderr")).expect("made");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .envs(told.iter().copied())
            .env(child::DIR, self.data())
            .env(child::ACKNOWLEDGED, self.beside("acknowledged"))
            .env("LD_PRELOAD", library())
            .env("FAULTS_ROOT", self.beside("disk"))
            .env("FAULTS_GRAVE", self.beside("grave"))
            .env("FAULTS_KIND", fault.name())
            .env("FAULTS_AT", at.to_string())
            .env("FAULTS_SEED", seed.to_string())
            .env("FAULTS_REPORT", self.beside("report"))
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let (status, hung) = wait(command.spawn().expect("this program starts"));
        let text = |name: &str| fs::read_to_string(self.beside(name)).unwrap_or_default();
        let report = text("report");
        let said = |word: &str| report.lines().find_map(|line| line.strip_prefix(word)).map(str::to_owned);
        Ended {
            status,
            hung,
            at: said("at "),
            calls: said("total ").map(|total| total.parse().expect("a number")),
            acknowledged: text("acknowledged").lines().map(str::to_owned).collect(),
            stderr: text("stderr"),
        }
    }

    /// Keeps the files for inspection.
    pub(crate) fn keep(self) -> PathBuf {
        self.dir.keep()
    }
}

/// Waits until the child ends, or kills it if it hangs. Returns its status, and whether it hung.
fn wait(mut child: Child) -> (Option<i32>, bool) {
    let until = Instant::now() + CHILD_TIMEOUT;
    loop {
        match child.try_wait().expect("a child of ours") {
            Some(status) => return (status.code(), false),
            None if Instant::now() > until => {
                child.kill().expect("a child of ours");
                child.wait().expect("a child of ours");
                return (None, true);
            }
            // Nothing reports when a child ends.
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}
