//! Command lines: run to their end, or a shell that goes on.

use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{
    process::{BINARY, signal_process},
    within,
};

/// A command line that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    /// Its exit status.
    pub(crate) status: i32,
    /// What it printed: one document.
    pub(crate) json: Value,
    /// What it printed on standard error.
    pub(crate) stderr: String,
}

impl Done {
    /// The document of a command that was done.
    #[track_caller]
    pub(crate) fn expect_done(self) -> Value {
        assert_eq!(self.status, 0, "{self:?}");
        self.json
    }

    /// The kind and the message of a command that was not done, which says the same on both outputs.
    #[track_caller]
    pub(crate) fn expect_failed(self, status: i32) -> (String, String) {
        assert_eq!(self.status, status, "{self:?}");
        let field = |name: &str| self.json["error"][name].as_str().unwrap_or_default().to_owned();
        let (kind, message) = (field("kind"), field("message"));
        assert!(!kind.is_empty() && !message.is_empty(), "{self:?}");
        assert!(self.stderr.contains(&message), "{self:?}");
        (kind, message)
    }
}

fn command(endpoints: &[String]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["--json", "--endpoints", &endpoints.join(",")]);
    command.env_remove("RUST_LOG").env_remove("LEASEHOLD_ENDPOINTS").kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command line with `--json`.
pub(crate) async fn leasehold(endpoints: &[String], args: &[&str]) -> Done {
    leasehold_with_input(endpoints, args, b"").await
}

/// The same, with something on its standard input.
pub(crate) async fn leasehold_with_input(endpoints: &[String], args: &[&str], input: &[u8]) -> Done {
    let mut child = command(endpoints).args(args).stdin(Stdio::piped()).spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    let write = async move {
        // It may not want it.
        let _ = stdin.write_all(input).await;
    };
    let what = format!("leasehold {}", args.join(" "));
    let (output, ()) = within(&what, async { tokio::join!(child.wait_with_output(), write) }).await;
    let output = output.expect("a child of ours");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    Done {
        status: output.status.code().unwrap_or(-1),
        json: serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{what} printed {stdout:?}: {error}")),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// `leasehold shell --json`. Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Shell {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Shell {
    /// Starts a shell.
    pub(crate) fn start(endpoints: &[String], args: &[&str]) -> Self {
        let mut command = command(endpoints);
        // Nobody reads what goes to people.
        let command = command.arg("shell").args(args).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary starts");
        let stdin = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, stdin, lines }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Stops it where it is, or lets it go on.
    pub(crate) fn pause(&self, pauses: bool) {
        signal_process(self.id(), if pauses { Signal::SIGSTOP } else { Signal::SIGCONT });
    }

    /// Types a line.
    pub(crate) async fn send(&mut self, line: &str) {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await.expect("the shell reads");
        self.stdin.flush().await.expect("the shell reads");
    }

    /// The next answer.
    pub(crate) async fn answer(&mut self) -> Value {
        let line = within("the shell's answer", self.lines.next_line()).await.expect("readable");
        serde_json::from_str(&line.expect("the shell goes on")).expect("one document a line")
    }

    /// Types a line and waits for its answer.
    pub(crate) async fn run(&mut self, line: &str) -> Value {
        self.send(line).await;
        self.answer().await
    }

    /// Ends the input; the exit status.
    pub(crate) async fn end(self) -> i32 {
        let Self { mut child, stdin, mut lines } = self;
        drop(stdin);
        let status = within("the shell's end", child.wait()).await.expect("a child of ours");
        let mut rest = Vec::new();
        lines.get_mut().read_to_end(&mut rest).await.expect("readable");
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
        status.code().unwrap_or(-1)
    }
}
