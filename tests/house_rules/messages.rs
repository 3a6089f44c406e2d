//! Checks that the operations page explains each log line and final error of a shipped program.
//!
//! The page has tables whose first column quotes the message, with `<words>` for each placeholder.
//! The check reports a message without a row, and a row without a message. It leaves out lines of
//! the level `debug`, which are logged only on request, and messages that only quote another
//! message.

use std::collections::BTreeSet;

use super::{File, files, none, read};

/// The page that explains the messages.
const PAGE: &str = "docs/operations.md";

/// The folders of shipped programs, and the files of the rules with errors that end a command.
const SHIPPED: &[&str] = &[
    "client-cache/src/",
    "protocol/src/command/refusal.rs",
    "protocol/src/lease_name.rs",
    "protocol/src/limits.rs",
    "protocol/src/message/refusal.rs",
    "protocol/src/path.rs",
    "protocol/src/time.rs",
    "protocol/src/volume/error.rs",
    "protocol/wire/src/",
    "server/src/",
    "src/",
];

/// The headings of first columns that quote messages.
const HEADS: [&str; 2] = ["line", "error"];

/// The heading of first columns that list kinds of failures.
const KIND: [&str; 1] = ["kind"];

/// The commands name kinds of failures.
const COMMANDS: &str = "src/";

/// Errors that no operator sees: the file, a part that only this error has, and the reason.
const NOT_FOR_OPERATORS: &[(&str, &str, &str)] = &[
    ("client-cache/src/lock/hand_over.rs", "lock not handed over", "wraps an error for the program that hands over"),
    ("client-cache/src/lock/hand_over.rs", "lock may be handed over", "wraps an error for the program that hands over"),
    ("client-cache/src/status.rs", "changes of the connection's state were missed", "told to the program that listens"),
    ("client-cache/src/recipes/mod.rs", "is out of range; expected 1 to", "told to the program that uses the recipe"),
    (
        "client-cache/src/recipes/mod.rs",
        "all clients must use the same numbers",
        "told to the program that uses the recipe",
    ),
    ("client-cache/src/status.rs", "the client is closed", "told to the program that listens"),
    ("server/src/raft/error.rs", "membership not changed", "told to a program that changes members"),
    ("server/src/store/directory.rs", " has it", "becomes the error of the start that names the process"),
];

/// A message of the code: its line, and its fixed parts between the placeholders.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    line: usize,
    pieces: Vec<String>,
}

impl Message {
    /// True if this text is the message with `<words>` in place of each placeholder.
    fn is_quoted_by(&self, text: &str) -> bool {
        self.pieces == pieces(text, ['<', '>'])
    }

    fn shown(&self) -> String {
        self.pieces.join("{}")
    }
}

/// A source without its tests and comments. The lines keep their numbers.
fn shipped_code(source: &str) -> String {
    let lines = source.lines().take_while(|line| *line != "mod tests {");
    let code: Vec<&str> = lines.map(|line| if line.trim_start().starts_with("//") { "" } else { line }).collect();
    code.join("\n")
}

/// The messages of a source, without those of its tests.
fn messages(source: &str) -> Vec<Message> {
    let code = shipped_code(source);
    let mut messages = Vec::new();
    for begin in ["error!(", "warn!(", "info!(", "#[error("] {
        for (at, _) in code.match_indices(begin) {
            let is_word = code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
            if is_word && !begin.starts_with('#') {
                continue;
            }
            let line = code[..at].matches('\n').count() + 1;
            let pieces = match text_of(&code[at + begin.len()..]) {
                Some(text) => pieces(&text, ['{', '}']),
                None if begin.starts_with('#') => continue,
                None => Vec::new(),
            };
            messages.push(Message { line, pieces });
        }
    }
    messages.sort_by_key(|message| message.line);
    messages
}

/// The first argument that is a literal, from here to the closing parenthesis.
fn text_of(arguments: &str) -> Option<String> {
    let (mut depth, mut begins) = (0_usize, true);
    let mut chars = arguments.chars();
    while let Some(one) = chars.next() {
        match one {
            '"' => {
                let text = literal(&mut chars);
                if begins {
                    return Some(text);
                }
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return None,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        begins = (begins && one.is_whitespace()) || (one == ',' && depth == 0);
    }
    None
}

/// The text of a literal whose first quote has been read.
fn literal(chars: &mut std::str::Chars<'_>) -> String {
    let mut text = String::new();
    while let Some(one) = chars.next() {
        match one {
            '"' => break,
            '\\' => match chars.next() {
                Some('\n') => *chars = chars.as_str().trim_start().chars(),
                other => text.extend(other),
            },
            one => text.push(one),
        }
    }
    text
}

/// The text before, between and after the placeholders, which `open` and `close` enclose.
fn pieces(text: &str, [open, close]: [char; 2]) -> Vec<String> {
    let mut rests = text.split(open);
    let first = rests.next().map(str::to_owned);
    let further = rests.map(|rest| rest.split_once(close).map_or(rest, |(_, after)| after).to_owned());
    first.into_iter().chain(further).collect()
}

/// The quotations in first columns with one of these headings, each with its line.
fn quoted(page: &str, heads: &[&str]) -> Vec<(usize, String)> {
    let (mut quoted, mut is_table) = (Vec::new(), false);
    for (number, line) in page.lines().enumerate() {
        let Some(cell) = line.strip_prefix("| ").and_then(|row| row.split(" | ").next()) else {
            is_table = false;
            continue;
        };
        is_table |= heads.contains(&cell);
        let texts = cell.split('`').skip(1).step_by(2).filter(|_| is_table);
        quoted.extend(texts.map(|text| (number + 1, text.to_owned())));
    }
    quoted
}

/// Messages that are not on the page, and rows of the page without a message.
fn complaints(sources: &[File], page: &str, exempt: &[(&str, &str, &str)]) -> Vec<String> {
    let quoted = quoted(page, &HEADS);
    let mut is_used = vec![false; quoted.len()];
    let mut exempt: Vec<_> = exempt.iter().map(|exempt| (exempt, false)).collect();
    let mut complaints = Vec::new();
    for file in sources {
        for message in messages(&file.text) {
            let place = format!("{}:{}", file.name, message.line);
            if message.pieces.is_empty() {
                complaints.push(format!("{place}: a line of the log without a literal: expected one"));
                continue;
            }
            if !message.pieces.iter().any(|piece| piece.contains(char::is_alphabetic)) {
                continue;
            }
            let shown = message.shown();
            let is_exempt = |(name, part, _): &(&str, &str, &str)| *name == file.name && shown.contains(part);
            if let Some((_, is_met)) = exempt.iter_mut().find(|(one, _)| is_exempt(one)) {
                *is_met = true;
                continue;
            }
            let rows: Vec<_> = (0..quoted.len()).filter(|row| message.is_quoted_by(&quoted[*row].1)).collect();
            if rows.is_empty() {
                complaints.push(format!("{place}: {shown:?} is in no first column of {PAGE}"));
            }
            for row in rows {
                is_used[row] = true;
            }
        }
    }
    let stale = quoted.iter().zip(is_used).filter(|(_, is_used)| !is_used);
    complaints.extend(stale.map(|((line, text), _)| format!("{PAGE}:{line}: nothing says {text:?}")));
    let unmet = exempt.into_iter().filter(|(_, is_met)| !is_met);
    complaints.extend(unmet.map(|((name, part, _), _)| format!("{name} has no message with {part:?}")));
    complaints
}

/// The kinds of failures that a source names.
fn kinds(source: &str) -> BTreeSet<String> {
    let code = shipped_code(source);
    let begins = [
        "refused(",
        "Self::new(CliStatus::Usage,",
        "Self::new(CliStatus::Unavailable,",
        "Self::new(CliStatus::Unknown,",
    ];
    let made = begins.iter().flat_map(|begin| code.split(begin).skip(1));
    let made = made.filter_map(|rest| rest.trim_start().strip_prefix('"'));
    let table = code.split("fn kind_of(").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap_or_default();
    let chosen = table.split("=> \"").skip(1);
    made.chain(chosen).filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
}

#[test]
fn each_kind_of_failure_is_explained_to_operators() {
    let is_command = |file: &File| file.is_rust() && file.name.starts_with(COMMANDS);
    let named: BTreeSet<String> =
        files().iter().filter(|file| is_command(file)).flat_map(|file| kinds(&file.text)).collect();
    assert!(named.len() > 40, "the kinds were not found: {named:?}");
    let explained: BTreeSet<String> = quoted(&read(PAGE), &KIND).into_iter().map(|(_, kind)| kind).collect();
    let missing = named.difference(&explained).map(|kind| format!("kind {kind:?} is in no first column of {PAGE}"));
    let stale = explained.difference(&named).map(|kind| format!("{PAGE}: no failure is of the kind {kind:?}"));
    none(missing.chain(stale).collect());
}

#[test]
fn kinds_are_found_where_failures_are_made() {
    let text = "
        CommandFailure::refused(\"full\", text);
        CommandFailure::refused(
            \"torn\",
            text,
        )
        // CommandFailure::refused(\"of_a_comment\", text)
        Self::new(CliStatus::Usage, \"usage\", message)
fn kind_of(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotFound => \"not_found\",
        Refusal::Operation(refusal) => kind_of(refusal),
    }
}
fn other() -> &'static str {
    match 1 {
        _ => \"something else\",
    }
}
";
    let expected = ["full", "not_found", "torn", "usage"].map(str::to_owned);
    assert_eq!(kinds(text), BTreeSet::from(expected));
}

#[test]
fn each_message_is_explained_to_operators() {
    let is_shipped = |file: &File| {
        let is_test = file.name.contains("/tests/") || file.name.ends_with("/tests.rs");
        file.is_rust() && !is_test && SHIPPED.iter().any(|place| file.name.starts_with(place))
    };
    let sources: Vec<File> = files().into_iter().filter(is_shipped).collect();
    let count: usize = sources.iter().map(|file| messages(&file.text).len()).sum();
    assert!(count > 200, "the messages were not found: {count}");
    none(complaints(&sources, &read(PAGE), NOT_FOR_OPERATORS));
}

#[test]
fn message_without_row_and_row_without_message_are_found() {
    let text = r#"
        // tracing::error!("of a comment");
        tracing::warn!(list = list.join(","), "the {disk}\
            is full: {} left");
        tracing::debug!("seldom asked for");
        info!(%reason);
        #[error(transparent)]
        #[error("{}: {source}", path.display())]
        #[error(
            "no \"name\" for {got}",
            got = "it"
        )]
        #[error("for a program")]
mod tests {
        tracing::warn!("of a test");
"#;
    let owned = |pieces: &[&str]| pieces.iter().map(|piece| (*piece).to_owned()).collect();
    let found: Vec<(usize, Vec<String>)> =
        messages(text).into_iter().map(|message| (message.line, message.pieces)).collect();
    let expected: [(usize, Vec<String>); 5] = [
        (3, owned(&["the ", "is full: ", " left"])),
        (6, owned(&[])),
        (8, owned(&["", ": ", ""])),
        (9, owned(&["no \"name\" for ", ""])),
        (13, owned(&["for a program"])),
    ];
    assert_eq!(found, expected);

    let source = || File { name: "a.rs".to_owned(), text: text.replace("info!(%reason)", "") };
    let page =
        "| line | what to do |\n| --- | --- |\n| `the <disk>is full: <n> left` | |\n| `no \"name\" for <it>` | |\n";
    let exempt = [("a.rs", "for a program", "shown to nobody")];
    let all = |page: &str, exempt| complaints(&[source()], page, exempt);
    assert_eq!(all(page, &exempt), Vec::<String>::new());
    let differs = all(&page.replace("is full", "is empty"), &exempt);
    assert_eq!(differs.len(), 2, "a message without a row, and a row without a message: {differs:?}");
    assert_eq!(all(&page.replace("<n>", ""), &exempt).len(), 2, "nothing stands for the placeholder");
    assert_eq!(all(&page.replace("<it>", "<it> and more"), &exempt).len(), 2, "more stands for the placeholder");
    assert_eq!(all(&page.replace("| line |", "| name |"), &exempt).len(), 2, "a table about something else");
    assert_eq!(all(page, &[]).len(), 1, "a message that nobody explains");
    assert_eq!(all(page, &[exempt[0], ("a.rs", "is gone", "none")]).len(), 1, "nothing to leave out");
    let silent = File { name: "a.rs".to_owned(), text: "info!(%reason);".to_owned() };
    assert_eq!(complaints(&[silent], "", &[]).len(), 1, "a line without a text");
}
