//! Command lines: a command that runs to its end, or a shell that stays open.

use std::{
    ffi::{OsStr, OsString},
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
};

use serde_json::Value;

use super::{Place, Process, SOON};

/// Runs commands against a cluster.
#[derive(Debug, Clone)]
pub struct Cli {
    /// Where the commands run.
    pub place: Place,
    /// The servers' addresses, separated by commas.
    pub endpoints: String,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    /// Its exit status.
    pub status: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
}

impl Cli {
    /// Commands for these servers, on this machine.
    pub fn of(endpoints: impl Into<String>) -> Self {
        Self { place: Place::default(), endpoints: endpoints.into() }
    }

    /// A command that is not started yet.
    pub fn command(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = self.place.leasehold();
        command.env("LEASEHOLD_ENDPOINTS", &self.endpoints).args(arguments);
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Ran {
        Ran::new(self.command(arguments).output().expect("the binary starts"))
    }

    /// Runs a command to its end with this standard input.
    pub fn run_with(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>, input: &[u8]) -> Ran {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        std::thread::scope(|scope| {
            // A command that refuses its input may not read all of it.
            scope.spawn(move || drop(stdin.write_all(input)));
            Ran::new(child.wait_with_output().expect("it ends"))
        })
    }

    /// Runs a command that must succeed, and returns its JSON document.
    pub fn done(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Value {
        let arguments = with_json(arguments);
        let ran = self.run(&arguments);
        assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
        assert!(ran.json().get("error").is_none(), "{arguments:?}: {ran:?}");
        ran.json()
    }

    /// Runs a command that must fail. Returns its status, and the error's kind and message.
    pub fn fails(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> (i32, String, String) {
        self.run(with_json(arguments)).error()
    }

    /// Starts a shell that answers in JSON.
    pub fn shell(&self) -> Shell {
        self.shell_with(&[])
    }

    /// Starts a shell that answers in JSON, with these options.
    pub fn shell_with(&self, options: &[&str]) -> Shell {
        Shell::start(self.command([&["--json", "shell"], options].concat()))
    }
}

fn with_json(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Vec<OsString> {
    std::iter::once("--json".into()).chain(arguments.into_iter().map(|it| it.as_ref().to_owned())).collect()
}

impl Ran {
    fn new(output: Output) -> Self {
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

    /// Standard output, which must be exactly one JSON document on one line.
    pub fn json(&self) -> Value {
        let text = self.text();
        assert!(text.ends_with('\n') && text.lines().count() == 1, "one line: {self:?}");
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The status, and the error's kind and message. Both outputs must have the same message.
    pub fn error(&self) -> (i32, String, String) {
        let error = &self.json()["error"];
        let said = |field: &str| error[field].as_str().unwrap_or_else(|| panic!("no {field}: {self:?}")).to_owned();
        let (kind, message) = (said("kind"), said("message"));
        let (error, notices) = self.stderr.lines().rev().collect::<Vec<_>>().split_first().map_or_else(
            || panic!("one line on standard error: {self:?}"),
            |(error, notices)| ((*error).to_owned(), notices.join("\n")),
        );
        assert!(notices.lines().all(|line| line.contains(": waiting for ")), "one line on standard error: {self:?}");
        assert!(error.contains(&message), "the same on both: {self:?}");
        assert_ne!(self.status, 0);
        (self.status, kind, message)
    }
}

/// A shell whose input and output are pipes.
#[derive(Debug)]
pub struct Shell {
    /// Its process.
    pub process: Process,
    input: Option<ChildStdin>,
    answers: mpsc::Receiver<String>,
}

impl Shell {
    fn start(mut command: Command) -> Self {
        // Standard error is for people. No test reads it.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, answers) = mpsc::channel();
        // Ends with the shell's output, or when the receiver of the answers is dropped.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let input = child.stdin.take();
        Self { process: Process::of(child), input, answers }
    }

    /// Sends a line.
    pub fn types(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the input has not been closed");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("the shell reads");
    }

    /// Waits for the next answer.
    pub fn answer(&mut self) -> Value {
        let line = self.answers.recv_timeout(SOON).expect("an answer in time");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The next answer, if it has arrived.
    pub fn answered(&mut self) -> Option<String> {
        self.answers.try_recv().ok()
    }

    /// Sends a line, and waits for its answer.
    pub fn ask(&mut self, line: &str) -> Value {
        self.types(line);
        self.answer()
    }

    /// Closes its input, and waits until it ends. It must print nothing more.
    pub fn close(mut self) -> ExitStatus {
        self.input = None;
        let status = self.process.ended();
        let rest: Vec<String> = self.answers.iter().collect();
        assert!(rest.is_empty(), "{rest:?}");
        status
    }
}
