//! The lines that a person types into the shell: a terminal with a history.
//!
//! The history is the file `leasehold/history` in `$XDG_STATE_HOME`, or else in
//! `~/.local/state`. Only its owner can read it. It has the last [`LINES_MAX`] lines that were typed
//! on a terminal. A line that begins with a blank is not recorded, so that a secret value can be
//! kept out. Without a home directory there is no file.

use std::{
    collections::VecDeque,
    env, fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustyline::{CompletionType, Config, Editor, error::ReadlineError, history::DefaultHistory};

use super::completion::Completion;
use crate::words::{self, WordsError};

/// The prompt.
const PROMPT: &str = "leasehold> ";

/// The most lines of the history. A start cuts a file that has twice as many.
const LINES_MAX: usize = 1_000;

/// Lines from a terminal.
pub(super) struct Terminal {
    editor: Editor<Completion, DefaultHistory>,
    history: Option<PathBuf>,
    /// The rest of a pasted text.
    ahead: VecDeque<String>,
}

impl Terminal {
    pub(super) fn open(completion: Completion) -> io::Result<Self> {
        let config = Config::builder().max_history_size(LINES_MAX).map_err(io::Error::other)?;
        let config = config.completion_type(CompletionType::List).build();
        let mut editor = Editor::with_config(config).map_err(io::Error::other)?;
        editor.set_helper(Some(completion));
        let history = history_file(env::var_os("XDG_STATE_HOME"), env::var_os("HOME"));
        // The shell works without its history too.
        let lines = history.as_deref().and_then(|file| load(file).ok()).unwrap_or_default();
        for line in lines {
            let _ = editor.add_history_entry(line);
        }
        Ok(Self { editor, history, ahead: VecDeque::new() })
    }

    /// The next line. `None` at the end of the input.
    pub(super) fn next(&mut self) -> Option<io::Result<String>> {
        loop {
            if let Some(line) = self.ahead.pop_front() {
                self.record(&line);
                return Some(Ok(line));
            }
            match self.editor.readline(PROMPT) {
                Ok(text) => self.ahead.extend(commands(&text)),
                // Ctrl-C discards this line and does not end the shell.
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return None,
                Err(error) => return Some(Err(io::Error::other(error))),
            }
        }
    }

    fn record(&mut self, line: &str) {
        if !is_recorded(line) {
            return;
        }
        // A line that cannot be stored is no reason to stop.
        if self.editor.add_history_entry(line).unwrap_or_default()
            && let Some(file) = &self.history
        {
            let _ = append(file, line);
        }
    }
}

/// The commands of a text, one a line. A pasted text has several lines, and a quoted word may
/// contain line breaks.
fn commands(text: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        match commands.last_mut().filter(|_| is_open) {
            Some(command) => {
                command.push('\n');
                command.push_str(line);
            }
            None => commands.push(line.to_owned()),
        }
        let command = commands.last().map_or("", String::as_str);
        is_open = matches!(words::split(command), Err(WordsError::Quote { .. }));
    }
    commands
}

fn is_recorded(line: &str) -> bool {
    !line.is_empty() && !line.starts_with(char::is_whitespace) && !line.contains(char::is_control)
}

fn history_file(state: Option<std::ffi::OsString>, home: Option<std::ffi::OsString>) -> Option<PathBuf> {
    // The XDG specification ignores relative paths.
    let absolute = |path: std::ffi::OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let state = state.and_then(absolute).or_else(|| home.and_then(absolute).map(|home| home.join(".local/state")));
    state.map(|state| state.join("leasehold/history"))
}

/// The last lines of the file. Cuts a file that has become long.
fn load(file: &Path) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(file)?;
    let lines: Vec<String> = text.lines().filter(|line| is_recorded(line)).map(str::to_owned).collect();
    let last = lines[lines.len().saturating_sub(LINES_MAX)..].to_vec();
    if lines.len() >= 2 * LINES_MAX {
        let folder = file.parent().unwrap_or(Path::new("."));
        let mut shorter = tempfile::NamedTempFile::new_in(folder)?;
        last.iter().try_for_each(|line| writeln!(shorter, "{line}"))?;
        shorter.persist(file).map_err(|error| error.error)?;
    }
    Ok(last)
}

fn append(file: &Path, line: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    // One write, so that the lines of two shells do not mix.
    file.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn pasted_lines_are_commands_and_quotes_join_lines() {
        assert_eq!(commands("put /a 1\nput /b 2\n\nget /a"), ["put /a 1", "put /b 2", "", "get /a"]);
        assert_eq!(commands("put /a 'two\nlines'\nget /a"), ["put /a 'two\nlines'", "get /a"]);
        assert_eq!(commands("put /a 'open\nget /a"), ["put /a 'open\nget /a"]);
        assert_eq!(commands("get /a"), ["get /a"]);
    }

    #[test]
    fn history_keeps_last_lines_for_its_owner_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = history_file(Some(directory.path().into()), None).expect("a file");
        assert_eq!(file, directory.path().join("leasehold/history"));
        for number in 0..2 * LINES_MAX {
            append(&file, &format!("get /{number}")).expect("written");
        }
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
        let lines = load(&file).expect("read");
        assert_eq!((lines.len(), lines[0].as_str()), (LINES_MAX, "get /1000"));
        assert_eq!(fs::read_to_string(&file).expect("read").lines().count(), LINES_MAX, "it was cut");
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn history_leaves_out_lines_that_begin_with_a_blank() {
        assert!(is_recorded("get /a"));
        assert!(!is_recorded(" put /secret x") && !is_recorded("") && !is_recorded("put /a 'x\ny'"));
    }

    #[test]
    fn history_file_follows_xdg_and_needs_a_home() {
        let file = |state: &str, home: &str| history_file(Some(state.into()), Some(home.into()));
        assert_eq!(file("", "/h"), Some("/h/.local/state/leasehold/history".into()));
        assert_eq!(file("relative", "/h"), Some("/h/.local/state/leasehold/history".into()));
        assert_eq!(file("/s", "/h"), Some("/s/leasehold/history".into()));
        assert_eq!(history_file(None, None), None);
    }
}
