//! Tests that this program accepts each command that the documents show.

use std::{fs, path::Path};

use clap::{Parser, error::ErrorKind};

use super::Cli;
use crate::words;

const DOCUMENTS: [&str; 3] = ["README.md", "docs/guide.md", "docs/operations.md"];

/// The shell variables of these commands, with a value for each. A longer name stands before its
/// prefix.
const VARIABLES: [(&str, &str); 4] = [("$CLUSTER", "1=127.0.0.1:7601"), ("$LEADER", "1"), ("$ID", "1"), ("$id", "1")];

/// The shell input of a text: all lines of `sh` blocks, and the lines of `console` blocks that have
/// a prompt.
fn shell_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut block = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), block) {
            (Some(_), Some(_)) => block = None,
            (Some(language), None) => block = Some(language),
            (None, Some("console")) => lines.extend(line.strip_prefix("$ ")),
            (None, Some("sh")) => lines.push(line),
            (None, _) => {}
        }
    }
    lines
}

/// The commands of a line without their redirections. It splits where a shell would, outside
/// quotes.
fn commands(line: &str) -> Vec<String> {
    let mut commands = vec![String::new()];
    let (mut quote, mut is_redirection) = (None, false);
    for c in line.chars() {
        match c {
            '\'' | '"' if quote == Some(c) => quote = None,
            '\'' | '"' if quote.is_none() => quote = Some(c),
            '|' | ';' | '&' | '(' | ')' if quote.is_none() => {
                is_redirection = false;
                commands.push(String::new());
                continue;
            }
            _ => {}
        }
        let Some(command) = commands.last_mut().filter(|_| !is_redirection) else { continue };
        if quote.is_none() && matches!(c, '<' | '>') {
            is_redirection = true;
            // In `2> log` the number names the stream.
            command.truncate(command.strip_suffix(" 2").map_or(command.len(), str::len));
        } else {
            command.push(c);
        }
    }
    commands
}

/// The arguments of each `leasehold` command of a text. A line that cannot be split is an error.
fn invocations(text: &str) -> Vec<Result<Vec<String>, String>> {
    let mut found = Vec::new();
    for command in shell_lines(text).into_iter().flat_map(commands) {
        let command = VARIABLES.iter().fold(command, |command, (name, value)| command.replace(name, value));
        match words::split(&command) {
            Ok(words) => {
                let at = words.iter().position(|word| word == "leasehold");
                found.extend(at.map(|at| Ok(words[at..].to_vec())));
            }
            Err(error) => found.push(Err(format!("{command}: {error}"))),
        }
    }
    found
}

/// The errors of the commands of a text.
fn complaints(text: &str) -> Vec<String> {
    let refused = invocations(text).into_iter().filter_map(|invocation| {
        let words = match invocation {
            Ok(words) => words,
            Err(error) => return Some(error),
        };
        let error = Cli::try_parse_from(&words).err()?;
        let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        (!is_help).then(|| format!("{}: {error}", words.join(" ")))
    });
    refused.collect()
}

#[test]
fn commands_in_documents_are_commands_of_this_program() {
    for name in DOCUMENTS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!invocations(&text).is_empty(), "{name}: no command was found");
        let complaints = complaints(&text);
        assert!(complaints.is_empty(), "{name}:\n{}", complaints.join("\n"));
    }
}

#[test]
fn wrong_commands_in_a_document_are_found() {
    let text = "\
leasehold frobnicate
```console
$ (echo get /a; sleep 1) | leasehold shell 2> log & X=$(leasehold get /a --jsn)
$ leasehold lock /a -- sh -c 'leasehold nope; true' && leasehold put /a
leasehold nope
```
```sh
time leasehold --timeout 30s put /a 2 > out & leasehold lease revoke $ID; leasehold put /b 2
leasehold get 'unclosed
```
";
    let found = complaints(text);
    let begins = ["leasehold get /a --jsn: error: unexpected argument", "leasehold put /a: error: the following"];
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(begins.iter().zip(&found).all(|(begin, found)| found.starts_with(begin)), "{found:#?}");
    assert!(found[2].contains("not closed"), "{found:#?}");
}
