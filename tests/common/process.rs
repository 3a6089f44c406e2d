//! One process: where it is started, and how it is ended.

use std::{
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::eventually;

/// How many of the last lines of a log are printed when a test fails.
const LOG_LINES: usize = 40;

/// Where a process runs: the words before the program on its command line, and the binary.
#[derive(Debug, Clone, Default)]
pub struct Place {
    words: Vec<String>,
    /// `None` for the binary that Cargo built for the tests.
    binary: Option<PathBuf>,
}

impl Place {
    /// Starts programs through this command line. It must replace itself by the program (`exec`),
    /// so that the program keeps its process id.
    pub fn through(words: &[&str]) -> Self {
        Self { words: words.iter().map(|word| (*word).to_owned()).collect(), binary: None }
    }

    /// The same place, with more words before the program. They must `exec` it too.
    #[must_use]
    pub fn then(&self, words: &[&str]) -> Self {
        let more = words.iter().map(|word| (*word).to_owned());
        Self { words: self.words.iter().cloned().chain(more).collect(), binary: self.binary.clone() }
    }

    /// The same place, with another binary of Leasehold.
    #[must_use]
    pub fn with_binary(&self, binary: &Path) -> Self {
        Self { words: self.words.clone(), binary: Some(binary.to_owned()) }
    }

    /// The same place, with an environment variable.
    #[must_use]
    pub fn with(&self, name: &str, value: impl AsRef<OsStr>) -> Self {
        let value = value.as_ref().to_str().expect("UTF-8");
        self.then(&["env", &format!("{name}={value}")])
    }

    /// A program at this place that is not started yet.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let Some((first, rest)) = self.words.split_first() else { return Command::new(program) };
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command
    }

    /// The binary, without environment variables that would set its options.
    pub fn leasehold(&self) -> Command {
        let built = Path::new(env!("CARGO_BIN_EXE_leasehold"));
        let mut command = self.command(self.binary.as_deref().unwrap_or(built));
        command.env_remove("LEASEHOLD_ENDPOINTS").env_remove("RUST_LOG").stdin(Stdio::null());
        command
    }
}

/// The binary on this machine, without environment variables that would set its options.
pub fn leasehold() -> Command {
    Place::default().leasehold()
}

/// A process that is killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: Option<PathBuf>,
}

impl Process {
    /// A child that is running already.
    pub fn of(child: Child) -> Self {
        Self { child, log: None }
    }

    /// Starts a process. Its output is appended to the file `log`. If the test fails, the end of
    /// the log is printed.
    pub fn start(mut command: Command, log: &Path) -> Self {
        let open = || File::options().create(true).append(true).open(log).expect("a log file");
        let child = command.stdout(open()).stderr(open()).spawn().expect("the binary starts");
        Self { child, log: Some(log.to_owned()) }
    }

    /// Its standard input, if that is piped and has not been taken.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal. After SIGSTOP, this returns only when all its threads have stopped.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.id()).expect("process ids are small"));
        kill(pid, signal).expect("it has not been waited for, so its id is its own");
        while signal == Signal::SIGSTOP && !is_stopped(self.id()) {
            std::thread::yield_now();
        }
    }

    /// Pauses it (SIGSTOP), or resumes it (SIGCONT).
    pub fn pause(&self, pauses: bool) {
        self.signal(if pauses { Signal::SIGSTOP } else { Signal::SIGCONT });
    }

    /// Kills it as a crash would, and waits until it has ended.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        self.child.wait().expect("a child can be waited for");
    }

    /// Its exit status, if it has ended.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Waits until it ends by itself.
    pub fn ended(&mut self) -> ExitStatus {
        eventually("the process ends", || self.has_ended())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if let Some(log) = self.log.as_ref().filter(|_| std::thread::panicking()) {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let end = &lines[lines.len().saturating_sub(LOG_LINES)..];
            eprintln!("--- the end of {}:\n{}", log.display(), end.join("\n"));
        }
    }
}

/// True if all threads of a process are stopped. One thread takes the signal, and the others run on
/// until then.
fn is_stopped(id: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).expect("a child of ours");
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // After the name, which is in parentheses and may contain any character.
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        assert!(!matches!(state, Some('Z' | 'X')), "process {id} has ended");
        // A thread that ends during the check has no state.
        state.is_none_or(|state| state == 'T')
    })
}
