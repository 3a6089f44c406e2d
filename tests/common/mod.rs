//! Real processes for tests: servers on free loopback ports with data in temporary directories, and the commands that
//! talk to them. Everything that a test starts is killed, by its id, when the test lets go of it.
//!
//! For the test binaries that want it: `#[path = "../common/mod.rs"] mod common;`

// Each test binary uses what it needs.
#![allow(dead_code)]

use std::{
    ffi::OsStr,
    fs::File,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// How long anything may take that is expected to happen: far more than it does on a loaded machine.
pub const SOON: Duration = Duration::from_secs(30);

/// How often a server is started anew because somebody else took its port.
const START_ATTEMPTS: usize = 10;

/// The binary, with no options of the surroundings.
pub fn leasehold() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.env_remove("LEASEHOLD_ENDPOINTS").env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Waits until there is something to be had.
///
/// # Panics
///
/// After [`SOON`], with `what` was waited for.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < SOON, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A loopback address that nobody listens on at the moment.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

/// A process that is killed when it is let go of.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Its id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).expect("an id"));
        kill(pid, signal).expect("the process has not been waited for, so its id is its own");
    }

    /// Kills it as a crash would, and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        self.0.wait().expect("a child can be waited for");
    }

    /// Waits until it ends by itself.
    pub fn ended(&mut self) -> ExitStatus {
        eventually("the process ends", || self.0.try_wait().expect("a child can be waited for"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One server process.
#[derive(Debug)]
pub struct Server {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: String,
    arguments: Vec<String>,
    log: PathBuf,
}

impl Server {
    /// Starts `serve` with these arguments, logging into a file; none if it ends at once.
    fn start(arguments: Vec<String>, address: &str, log: &Path) -> Option<Self> {
        let stderr = File::options().create(true).append(true).open(log).expect("a log file");
        let mut child = leasehold()
            .args(["--json", "serve"])
            .args(&arguments)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the binary starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it says where it listens");
        let process = Process(child);
        let said: Value = serde_json::from_str(&line).expect("one JSON document");
        if said.get("error").is_some() {
            assert!(line.contains("cannot listen"), "the server did not start: {line}");
            return None;
        }
        assert_eq!(said["address"], address);
        Some(Self { process, address: address.to_owned(), arguments, log: log.to_owned() })
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on its data, after it has ended.
    pub fn restart(&mut self) {
        let again =
            eventually("the server starts again", || Self::start(self.arguments.clone(), &self.address, &self.log));
        *self = again;
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Servers that form one cluster.
#[derive(Debug)]
pub struct Cluster {
    /// Replica 1 first.
    pub servers: Vec<Server>,
    /// Where they keep their data and logs.
    pub directory: tempfile::TempDir,
}

impl Cluster {
    /// Starts a cluster of this many replicas, and waits until it serves.
    pub fn start(replicas: usize) -> Self {
        for _ in 0..START_ATTEMPTS {
            if let Some(cluster) = Self::try_start(replicas) {
                cluster.wait_until_it_serves();
                return cluster;
            }
        }
        panic!("{START_ATTEMPTS} times somebody else took a port that was free");
    }

    fn try_start(replicas: usize) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let addresses: Vec<String> = (0..replicas).map(|_| free_address()).collect();
        let members = addresses.iter().zip(1..).map(|(address, id)| format!("{id}={address}")).collect::<Vec<_>>();
        let servers = addresses.iter().zip(1..).map(|(address, id)| {
            let data = directory.path().join(format!("data-{id}"));
            let mut arguments =
                vec!["--id".to_owned(), id.to_string(), "--data".to_owned(), data.display().to_string()];
            arguments.extend(["--listen".to_owned(), address.clone()]);
            if replicas > 1 {
                arguments.extend(["--cluster".to_owned(), members.join(",")]);
            }
            Server::start(arguments, address, &directory.path().join(format!("log-{id}")))
        });
        Some(Self { servers: servers.collect::<Option<Vec<_>>>()?, directory })
    }

    /// Waits until reads are answered.
    pub fn wait_until_it_serves(&self) {
        let cli = self.cli();
        eventually("the cluster serves", || (cli.run(["--timeout", "1s", "stat", "/"]).status == 0).then_some(()));
    }

    /// All addresses, as `--endpoints` wants them.
    pub fn endpoints(&self) -> String {
        self.servers.iter().map(|server| server.address.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Commands for this cluster.
    pub fn cli(&self) -> Cli {
        Cli { endpoints: self.endpoints() }
    }

    /// The index of the server that leads.
    pub fn leader(&self) -> usize {
        let cli = self.cli();
        let leader =
            eventually("there is a leader", || cli.run(["--json", "cluster", "status"]).json()["leader"].as_u64());
        usize::try_from(leader).expect("a small number") - 1
    }
}

/// Runs commands against a cluster.
#[derive(Debug, Clone)]
pub struct Cli {
    /// The servers.
    pub endpoints: String,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    /// Its exit status.
    pub status: i32,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it said beside that.
    pub stderr: String,
}

impl Cli {
    /// A command that is yet to be started.
    pub fn command(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = leasehold();
        command.env("LEASEHOLD_ENDPOINTS", &self.endpoints).args(arguments);
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Ran {
        let output = self.command(arguments).output().expect("the binary starts");
        Ran::new(output)
    }

    /// Runs a command to its end, with this on its standard input.
    pub fn run_with(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>, input: &[u8]) -> Ran {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        std::thread::scope(|scope| {
            // Whoever refuses its input may not read all of it.
            scope.spawn(move || drop(stdin.write_all(input)));
            Ran::new(child.wait_with_output().expect("it ends"))
        })
    }

    /// Runs a command that is expected to be done, and gives its JSON document.
    pub fn done(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Value {
        let arguments: Vec<_> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        let ran =
            self.run([OsStr::new("--json")].into_iter().chain(arguments.iter().map(|argument| argument.as_ref())));
        assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
        assert!(ran.json().get("error").is_none(), "{arguments:?}: {ran:?}");
        ran.json()
    }

    /// Runs a command that is expected to fail, and gives its status, the error's kind and its message.
    pub fn fails(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> (i32, String, String) {
        let arguments: Vec<_> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        let ran =
            self.run([OsStr::new("--json")].into_iter().chain(arguments.iter().map(|argument| argument.as_ref())));
        ran.error()
    }

    /// Starts a shell that answers in JSON.
    pub fn shell(&self) -> Shell {
        Shell::start(self.command(["--json", "shell"]))
    }
}

impl Ran {
    fn new(output: std::process::Output) -> Self {
        Self {
            status: output.status.code().expect("it was not killed"),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// Standard output, as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("UTF-8")
    }

    /// Standard output, which is one JSON document on one line and nothing else.
    pub fn json(&self) -> Value {
        let text = self.text();
        assert!(text.ends_with('\n') && text.lines().count() == 1, "one line: {self:?}");
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The status, and what both outputs say of the error.
    pub fn error(&self) -> (i32, String, String) {
        let error = &self.json()["error"];
        let said = |field: &str| error[field].as_str().unwrap_or_else(|| panic!("no {field}: {self:?}")).to_owned();
        let (kind, message) = (said("kind"), said("message"));
        assert_eq!(self.stderr.lines().count(), 1, "one line on standard error: {self:?}");
        assert!(self.stderr.contains(&message), "the same on both: {self:?}");
        assert_ne!(self.status, 0);
        (self.status, kind, message)
    }
}

/// A shell in a pipe.
#[derive(Debug)]
pub struct Shell {
    /// Its process.
    pub process: Process,
    input: Option<ChildStdin>,
    answers: mpsc::Receiver<String>,
}

impl Shell {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, answers) = mpsc::channel();
        // Ends with the shell's output, or when nobody wants the answers any more.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let input = child.stdin.take();
        Self { process: Process(child), input, answers }
    }

    /// Types a line.
    pub fn types(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the input has not been closed");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("the shell reads");
    }

    /// The next answer.
    pub fn answer(&mut self) -> Value {
        let line = self.answers.recv_timeout(SOON).expect("an answer in time");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Types a line and gives its answer.
    pub fn ask(&mut self, line: &str) -> Value {
        self.types(line);
        self.answer()
    }

    /// Ends its input, and waits for it to end.
    pub fn close(mut self) -> ExitStatus {
        self.input = None;
        self.process.ended()
    }
}
