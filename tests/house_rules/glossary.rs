//! Checks that each word of the glossary is defined where the glossary says.

use super::{none, read, root};

const PAGE: &str = "docs/glossary.md";

/// The heading of the column that says where a word is defined.
const COLUMN: &str = "defined in";

/// The faults in a glossary's rows. `read` returns the text of a file, or `None` without a file.
fn complaints(page: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let (Some(word), Some(place)) = (cells.first(), cells.get(3)) else {
            complaints.push(format!("{line}: expected a word, its meaning, its source and where it is defined"));
            continue;
        };
        if *place == COLUMN {
            continue;
        }
        let quoted: Vec<&str> = place.split('`').skip(1).step_by(2).collect();
        let (name, file) = match quoted[..] {
            [file] => (None, file),
            [name, file] => (Some(name), file),
            _ => {
                complaints.push(format!("{word}: {place:?}: expected a file, or a name and a file"));
                continue;
            }
        };
        match (read(file), name) {
            (None, _) => complaints.push(format!("{word}: {file} does not exist")),
            (Some(text), Some(name)) if !declares(&text, name) => {
                complaints.push(format!("{word}: {file} declares no {name}"));
            }
            _ => {}
        }
    }
    complaints
}

/// True if a line of the source declares the name: an item, a variant, a field, or a macro line.
fn declares(source: &str, name: &str) -> bool {
    let code = source.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.starts_with("use "));
    code.filter_map(|line| line.find(name).map(|at| (&line[..at], &line[at + name.len()..]))).any(|(before, after)| {
        let keyword = before.split_whitespace().next_back().unwrap_or("pub");
        let is_item = ["pub", "pub(crate)", "struct", "enum", "fn", "type", "const"].contains(&keyword);
        let is_whole = after.is_empty() || after.starts_with([' ', '(', '{', '<', ',', ':', ';']);
        is_item && is_whole && !after.starts_with("::")
    })
}

#[test]
fn each_word_is_defined_where_the_glossary_says() {
    let page = read(PAGE);
    assert!(page.matches("\n| ").count() > 80, "the rows of {PAGE} were not found");
    none(complaints(&page, |file| std::fs::read_to_string(root().join(file)).ok()));
}

#[test]
fn wrong_rows_of_a_glossary_are_found() {
    let page = "\
| word | meaning | source | defined in |
| --- | --- | --- | --- |
| epoch | one leadership | Yin | `Epoch` in `id.rs` |
| term | how long | etcd | `id.rs` |
| promise | the answer | | `Promise` in `id.rs` |
| lock | taken | | `Epoch` in `lock.rs` |
| stamp | an order | | id.rs |
| node |
";
    let text =
        "use message::Promise;\n// pub struct Promise;\nnumber! {\n    Epoch\n}\nfn grant(promise: Promise) {}\n";
    let found = complaints(page, |file| (file == "id.rs").then(|| text.to_owned()));
    let expected = [
        "promise: id.rs declares no Promise",
        "lock: lock.rs does not exist",
        "stamp: \"id.rs\": expected a file, or a name and a file",
        "| node |: expected a word, its meaning, its source and where it is defined",
    ];
    assert_eq!(found, expected);
}
