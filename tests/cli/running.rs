//! A command that keeps running, and its output line by line.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Lines},
    process::{ChildStderr, Stdio},
    sync::mpsc,
};

use crate::common::{Cli, Process, SOON};

/// A command that keeps running.
#[derive(Debug)]
pub struct Running {
    /// Its process.
    pub process: Process,
    lines: mpsc::Receiver<String>,
    errors: Option<Lines<BufReader<ChildStderr>>>,
}

impl Running {
    /// Starts the command.
    pub fn start(cli: &Cli, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let mut command = cli.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        // Ends with the command's output, or when the receiver of the lines is dropped.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let errors = child.stderr.take().map(|stderr| BufReader::new(stderr).lines());
        Self { process: Process::of(child), lines, errors }
    }

    /// Waits for the next line.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(SOON).expect("a line in time")
    }

    /// Waits for the next line, which must be a JSON document.
    pub fn json(&self) -> serde_json::Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The lines of standard error. They can be taken once.
    pub fn errors(&mut self) -> Lines<BufReader<ChildStderr>> {
        self.errors.take().expect("nobody has taken it")
    }

    /// All further lines, to the end of its output.
    pub fn rest(&self) -> Vec<String> {
        self.lines.iter().collect()
    }
}
