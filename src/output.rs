//! What goes to standard output and standard error.
//!
//! An answer is either JSON, one document on a line and nothing else, or text for people. Errors
//! are one line on standard error; with JSON, on standard output too.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::exit::{CliStatus, CommandFailure};

/// How an answer reads for people.
pub(crate) trait Text {
    /// Its lines.
    fn text(&self, out: &mut Vec<u8>);

    /// What is said beside the answer, on standard error, to those who want to know more.
    fn note(&self) -> Option<String> {
        None
    }

    /// The exit status that says so too: an answer can be that something was not so.
    fn status(&self) -> CliStatus {
        CliStatus::Done
    }
}

/// What a command answers.
pub(crate) trait CommandAnswer: Text + Send {
    /// The JSON document.
    fn json(&self) -> String;
}

impl<T: Serialize + Text + Send> CommandAnswer for T {
    fn json(&self) -> String {
        // Fails only for maps whose keys are no texts; we have none.
        serde_json::to_string(self).unwrap_or_else(|error| error_json("internal", &error.to_string()))
    }
}

/// Where answers go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// One JSON document for each answer.
    pub(crate) json: bool,
    /// Notes too.
    pub(crate) notes: bool,
}

impl Output {
    /// Prints an answer, flushed.
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

    /// Prints an error, flushed.
    pub(crate) fn failure(self, failure: &CommandFailure) {
        if self.json {
            print(format!("{}\n", error_json(failure.kind, &failure.message)).as_bytes());
        }
        eprint(&format!("leasehold: {}\n", failure.message));
    }

    /// Something to know that is neither an answer nor an error.
    pub(crate) fn notice(text: &str) {
        eprint(&format!("leasehold: {text}\n"));
    }

    /// Whether somebody watches who likes to see progress.
    pub(crate) fn is_watched(self) -> bool {
        !self.json && io::stderr().is_terminal()
    }
}

fn error_json(kind: &str, message: &str) -> String {
    serde_json::json!({ "error": { "kind": kind, "message": message } }).to_string()
}

/// Whoever has stopped reading does not want the rest: a closed pipe is no error.
fn print(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

fn eprint(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Rows under a head, in columns.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this head.
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// One row more.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// The table as text.
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

/// A node's name as people see it: without what would move their cursor.
pub(crate) fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["PATH", "TERM"]);
        table.row(["/a/long/path".to_owned(), "10s".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out);
        assert_eq!(String::from_utf8_lossy(&out), "PATH          TERM\n/a/long/path  10s\n");
    }
}
