//! Writes to standard output and standard error.
//!
//! An answer is text for people, or one JSON document on a line and nothing else. An error is one
//! line on standard error, except those that clap and toml print over several lines. With JSON it
//! is always one line, and also a document on standard output.

use std::{
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use serde::Serialize;

use crate::exit::{CliStatus, CommandFailure};

/// An answer as text for people.
pub(crate) trait Text {
    /// Appends the lines of the answer.
    fn text(&self, out: &mut Vec<u8>);

    /// A remark for standard error, printed with `--verbose`.
    fn note(&self) -> Option<String> {
        None
    }

    /// The exit status of the answer. An answer can be negative, such as a comparison that failed.
    fn status(&self) -> CliStatus {
        CliStatus::Done
    }
}

/// The answer of a command.
pub(crate) trait CommandAnswer: Text + Send {
    fn json(&self) -> String;
}

impl<T: Serialize + Text + Send> CommandAnswer for T {
    fn json(&self) -> String {
        // Serialization fails only for maps with keys that are no strings; no answer has one.
        serde_json::to_string(self).unwrap_or_else(|error| error_json("internal", &error.to_string()))
    }
}

/// The output options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// Print one JSON document for each answer.
    pub(crate) json: bool,
    /// Print notes too.
    pub(crate) notes: bool,
}

impl Output {
    /// Prints an answer and flushes it.
    pub(crate) fn answer(self, answer: &dyn CommandAnswer) {
        let mut text = Vec::new();
        if self.json {
            text.extend_from_slice(answer.json().as_bytes());
            text.push(b'\n');
        } else {
            answer.text(&mut text);
        }
        print(&text);
        if let Some(note) = answer.note().filter(|_| self.notes && !self.json) {
            eprint(&format!("# {note}\n"));
        }
    }

    /// Prints an error and flushes it.
    pub(crate) fn failure(self, failure: &CommandFailure) {
        if self.json {
            print(format!("{}\n", error_json(failure.kind, &failure.message)).as_bytes());
        }
        let text = if self.json { &failure.message } else { failure.text() };
        eprint(&format!("leasehold: {text}\n"));
    }

    /// Prints a notice that is neither an answer nor an error.
    pub(crate) fn notice(text: &str) {
        eprint(&format!("leasehold: {text}\n"));
    }

    /// Whether to show progress: standard error is a terminal and the output is text.
    pub(crate) fn is_watched(self) -> bool {
        !self.json && io::stderr().is_terminal()
    }
}

fn error_json(kind: &str, message: &str) -> String {
    serde_json::json!({ "error": { "kind": kind, "message": message } }).to_string()
}

/// Ignores a closed pipe: the reader has stopped reading.
fn print(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

fn eprint(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Waits until the reader of standard output has closed its pipe. Never returns if standard output
/// is a file, or if the system cannot tell.
pub(crate) async fn reader_gone() {
    let (sender, gone) = tokio::sync::oneshot::channel();
    // A thread of its own: the runtime would wait for one of its own at the end.
    let watch = move || {
        let stdout = io::stdout();
        // Only errors are reported, such as a pipe without a reader.
        let mut source = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        loop {
            match poll(&mut source, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                Ok(_) if source[0].any() == Some(true) => {
                    // The receiver is dropped if the command ends for another reason.
                    let _ = sender.send(());
                    return;
                }
                // The sender stays, so that `gone` never ends.
                Ok(_) | Err(_) => std::thread::park(),
            }
        }
    };
    if std::thread::Builder::new().name("reader".to_owned()).spawn(watch).is_err() || gone.await.is_err() {
        std::future::pending().await
    }
}

/// A text table with a header row.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// Adds a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Appends the table as text.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            out.extend_from_slice(line.trim_end().as_bytes());
            out.push(b'\n');
        }
    }
}

/// A node's name for display. Control characters, which could move the cursor, are replaced.
pub(crate) fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A value on one line: `\\n` for a newline, and so on for other control characters and the
/// backslash.
pub(crate) fn escaped(text: &str) -> String {
    let escape = |c: char| if c.is_control() || c == '\\' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_value_is_one_line_and_can_be_read_back() {
        assert_eq!(escaped("a\nb\t\\ \u{1b}é"), r"a\nb\t\\ \u{1b}é");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["PATH", "TERM"]);
        table.row(["/a/long/path".to_owned(), "10s".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out);
        assert_eq!(String::from_utf8_lossy(&out), "PATH          TERM\n/a/long/path  10s\n");
    }
}
