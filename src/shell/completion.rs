//! Completes commands and paths on a terminal.
//!
//! The children of a node come from the session's cache, or from a server. If no server answers
//! soon, nothing is completed. Names that would need quotes are not offered.

use std::time::Duration;

use clap::Command;
use leasehold_client_cache::Client;
use rustyline::{Context, Helper, completion::Completer, highlight::Highlighter, hint::Hinter, validate::Validator};
use tokio::runtime::Handle;

use crate::{arguments, words};

/// How long a person waits for a list of children.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// The commands, and a client that lists children.
pub(super) struct Completion {
    command: Command,
    client: Client,
    runtime: Handle,
}

impl Completion {
    pub(super) fn new(command: Command, client: Client, runtime: Handle) -> Self {
        Self { command, client, runtime }
    }

    fn children(&self, parent: &str) -> Vec<String> {
        let Ok(parent) = arguments::path(parent) else { return Vec::new() };
        let children = self.runtime.block_on(async {
            // A timer is made within the runtime.
            tokio::time::timeout(ANSWER_TIMEOUT, self.client.children(&parent)).await
        });
        let Ok(Ok(Some(children))) = children else { return Vec::new() };
        children.names.clone()
    }
}

impl Completer for Completion {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let (begins, word) = last_word(&line[..at]);
        let before: Vec<&str> = line[..begins].split_whitespace().collect();
        if let Some(names) = subcommands(&self.command, &before) {
            return Ok((begins, matching(names, word, "", " ")));
        }
        let Some(slash) = word.rfind('/') else { return Ok((begins, Vec::new())) };
        let (parent, name) = (&word[..slash.max(1)], &word[slash + 1..]);
        Ok((begins, matching(self.children(parent), name, &word[..=slash], "")))
    }
}

impl Hinter for Completion {
    type Hint = String;
}

impl Highlighter for Completion {}
impl Validator for Completion {}
impl Helper for Completion {}

/// Where the last word begins, and the word. It is empty after a blank.
fn last_word(text: &str) -> (usize, &str) {
    let begins = text.rfind(char::is_whitespace).map_or(0, |blank| blank + 1);
    (begins, &text[begins..])
}

/// The commands that can follow these words. `None` if an argument follows.
fn subcommands(command: &Command, before: &[&str]) -> Option<Vec<String>> {
    let level = before.iter().try_fold(command, |level, word| level.find_subcommand(word))?;
    let shown = level.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<String> = shown.map(|command| command.get_name().to_owned()).collect();
    (!names.is_empty()).then_some(names)
}

/// The names that begin with `begin`, between two texts.
fn matching(names: Vec<String>, begin: &str, before: &str, after: &str) -> Vec<String> {
    let is_one_word = |name: &String| words::split(name).is_ok_and(|words| words == [name.as_str()]);
    let matching = names.into_iter().filter(|name| name.starts_with(begin) && is_one_word(name));
    matching.map(|name| format!("{before}{name}{after}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_words_are_completed_and_arguments_are_not() {
        let command = super::super::command();
        let names = |before: &[&str]| subcommands(&command, before);
        let first = names(&[]).expect("commands");
        assert!(first.iter().any(|name| name == "get") && first.iter().all(|name| name != "watch"), "{first:?}");
        assert!(names(&["lease"]).is_some_and(|names| names.iter().any(|name| name == "grant")));
        assert_eq!(names(&["get"]), None);
        assert_eq!(names(&["lease", "grant"]), None);
        assert_eq!(names(&["nope"]), None);
    }

    #[test]
    fn names_that_need_quotes_are_not_offered() {
        let names = ["web", "web two", "we'b", "wide", "x"].map(str::to_owned).to_vec();
        assert_eq!(matching(names, "w", "/a/", ""), ["/a/web", "/a/wide"]);
        assert_eq!((last_word("get /a/w"), last_word("get "), last_word("ge")), ((4, "/a/w"), (4, ""), (0, "ge")));
    }
}
