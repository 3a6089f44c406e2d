//! The errors of wrong arguments, for the command line and the shell.
//!
//! Errors of clap stay over several lines. They suggest no hidden command, and know the words of
//! etcdctl and of shells for a command.

use clap::{
    Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::exit::CommandFailure;

/// Words of other programs, and the commands that do the same.
const SYNONYMS: [(&str, &str); 14] = [
    ("campaign", "elect"),
    ("cat", "get"),
    ("create", "put"),
    ("del", "rm"),
    ("delete", "rm"),
    ("deleteall", "rm"),
    ("dir", "ls"),
    ("list", "ls"),
    ("read", "get"),
    ("remove", "rm"),
    ("rmr", "rm"),
    ("set", "put"),
    ("start", "serve"),
    ("write", "put"),
];

/// The error of an unknown command, with suggestions. Synonyms of other programs lead to the
/// command, and hidden commands are left out.
pub(crate) fn with_suggestions(
    mut error: clap::Error,
    command: &Command,
    words: impl IntoIterator<Item = String>,
) -> clap::Error {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand).cloned() else { return error };
    let above = words.into_iter().take_while(|word| *word != unknown);
    let level = above.fold(command, |level, word| level.find_subcommand(&word).unwrap_or(level));
    let is_shown = |name: &str| level.find_subcommand(name).is_some_and(|command| !command.is_hide_set());
    let synonyms = SYNONYMS.iter().filter(|(word, _)| *word == unknown).map(|(_, name)| (*name).to_owned());
    let mut suggested: Vec<String> = synonyms.collect();
    if suggested.is_empty()
        && let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand)
    {
        suggested.clone_from(similar);
    }
    suggested.retain(|name| is_shown(name));
    match suggested.is_empty() {
        true => error.remove(ContextKind::SuggestedSubcommand),
        false => error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(suggested)),
    };
    error
}

/// The failure for clap's error.
pub(crate) fn failure(error: &clap::Error) -> CommandFailure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return CommandFailure::usage("command: missing; see --help");
    }
    let text = error.to_string();
    CommandFailure::usage_lines(text.strip_prefix("error: ").unwrap_or(&text))
}
