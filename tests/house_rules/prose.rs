//! Checks the width of prose: comments and documents are wrapped at 100 columns.

use super::{File, files, none};

/// The most characters of a line of prose.
const COLUMNS: usize = 100;

/// The prose of a line: a comment without its marks, or a line of a document.
fn prose<'a>(file: &File, line: &'a str) -> Option<&'a str> {
    let line = line.trim_start();
    let marks = ["///", "//!", "//"];
    if file.is_rust() { marks.iter().find_map(|mark| line.strip_prefix(mark)).map(str::trim_start) } else { Some(line) }
}

/// The lines of prose that are too wide, each with its number and width. Tables, code, a line that
/// is one code span, and a line with a link or an address can be wider.
fn wide_lines(file: &File) -> Vec<(usize, usize)> {
    let mut wide = Vec::new();
    let mut is_code = false;
    for (number, line) in file.text.lines().enumerate() {
        let Some(prose) = prose(file, line) else {
            is_code = false;
            continue;
        };
        let is_fence = prose.starts_with("```");
        is_code ^= is_fence;
        let width = line.chars().count();
        let may_be_wide = is_code
            || is_fence
            || prose.starts_with(['|', '`'])
            || prose.starts_with("(`")
            || ["](", "://"].iter().any(|link| prose.contains(link));
        if width > COLUMNS && !may_be_wide {
            wide.push((number + 1, width));
        }
    }
    wide
}

#[test]
fn prose_is_wrapped_at_100_columns() {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.is_rust() || file.name.ends_with(".md")) {
        let complain = |(line, width)| format!("{}:{line}: {width} columns: expected at most {COLUMNS}", file.name);
        complaints.extend(wide_lines(file).into_iter().map(complain));
    }
    none(complaints);
}

#[test]
fn wide_prose_is_found() {
    let words = "word ".repeat(21);
    let file = |name: &str, text: String| File { name: name.to_owned(), text };
    let wide = |name: &str, text: String| wide_lines(&file(name, text)).into_iter().map(|(line, _)| line).collect();
    let found: Vec<usize> = wide("a.rs", format!("//! short\n/// {words}\nlet text = \"{words}\";\n// {words}\n"));
    assert_eq!(found, [2, 4]);
    let found: Vec<usize> = wide("a.rs", format!("/// ```\n/// {words}\n/// ```\n/// {words}\n/// | {words} |\n"));
    assert_eq!(found, [4]);
    let found: Vec<usize> =
        wide("a.md", format!("{words}\n| {words} |\n```\n{words}\n```\n[{words}](a.md)\n{words}\n"));
    assert_eq!(found, [1, 7]);
}
