//! Checks names: a type's name means one type in the whole workspace, and a function's name is
//! short enough for a list of tests.

use std::collections::BTreeMap;

use super::{File, files, none};

/// The longest name of a function, in bytes.
const FUNCTION_NAME_MAX: usize = 60;

/// Names that several types share, with the reason. A name of only one type must leave the list.
const SHARED: &[(&str, &str)] = &[];

/// Names that had several meanings, or none that a stranger could guess. The glossary has the words
/// that replaced them.
const FORMER: &[&str] = &[
    "Gathering",
    "Inside",
    "Standing",
    "Taken",
    "Told",
    "Turn",
    "bury",
    "certain_for",
    "flights",
    "go_on",
    "holding",
    "holdings",
    "keep_house",
    "late_drops",
    "lay_down",
    "outbox",
    "scatter",
    "witness",
];

/// True if the file is shipped. Tests, examples and benches may reuse a type's name, because nobody
/// reads them side by side.
fn is_shipped(file: &File) -> bool {
    let folders = ["tests/", "examples/", "benches/"];
    file.is_rust()
        && !folders.iter().any(|folder| file.name.starts_with(folder) || file.name.contains(&format!("/{folder}")))
}

/// The types that a file defines at its top level: structs, enums, traits and aliases.
fn types(file: &File) -> impl Iterator<Item = &str> {
    let shipped = file.code().take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    shipped.filter_map(|(_, line)| {
        let item =
            ["pub(crate) ", "pub(super) ", "pub "].iter().find_map(|before| line.strip_prefix(before)).unwrap_or(line);
        let name = ["struct ", "enum ", "trait ", "type "].iter().find_map(|keyword| item.strip_prefix(keyword))?;
        name.split(|other: char| !other.is_alphanumeric()).next()
    })
}

/// The type names that several files define, each with its files.
fn shared(files: &[File]) -> BTreeMap<&str, Vec<&str>> {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files.iter().filter(|file| is_shipped(file)) {
        types(file).for_each(|name| places.entry(name).or_default().push(&file.name));
    }
    places.retain(|_, files| files.len() > 1);
    places
}

#[test]
fn type_name_means_one_type() {
    let files = files();
    let shared = shared(&files);
    let is_listed = |name: &str| SHARED.iter().any(|(listed, _)| *listed == name);
    let new = shared.iter().filter(|(name, _)| !is_listed(name));
    let new =
        new.map(|(name, files)| format!("{name} is defined in {}: expected one type of that name", files.join(", ")));
    let stale = SHARED.iter().filter(|(name, _)| !shared.contains_key(name));
    none(new.chain(stale.map(|(name, _)| format!("{name} is one type's name and needs no reason any more"))).collect());
}

#[test]
fn function_names_are_short() {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.is_rust()) {
        for (number, line) in file.code() {
            let names = line
                .split("fn ")
                .skip(1)
                .filter_map(|rest| rest.split(|other: char| !(other.is_alphanumeric() || other == '_')).next());
            let long = names.filter(|name| name.len() > FUNCTION_NAME_MAX);
            complaints.extend(long.map(|name| {
                format!(
                    "{}:{number}: {name} has {} characters: expected at most {FUNCTION_NAME_MAX}",
                    file.name,
                    name.len()
                )
            }));
        }
    }
    none(complaints);
}

#[test]
fn former_names_do_not_return() {
    let is_name = |text: &&str| FORMER.contains(text);
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.is_rust() && !file.name.ends_with("house_rules/names.rs")) {
        for (number, line) in file.code() {
            let words = line.split(|other: char| !(other.is_alphanumeric() || other == '_'));
            let found = words.filter(is_name);
            complaints.extend(
                found.map(|name| format!("{}:{number}: {name}: expected a word of docs/glossary.md", file.name)),
            );
        }
    }
    none(complaints);
}

#[test]
fn second_type_of_a_name_is_found() {
    let file = |name: &str, text: &str| File { name: name.to_owned(), text: text.to_owned() };
    let files = [
        file("protocol/src/one.rs", "pub struct Lease {\nenum Mode {\n#[cfg(test)]\nstruct World;\n"),
        file(
            "server/src/two.rs",
            "pub(crate) type Mode = u8;\n// struct Lease;\nstruct World;\n    type Error = ();\n",
        ),
        file("tests/three.rs", "struct Lease;\n"),
    ];
    let expected = BTreeMap::from([("Mode", vec!["protocol/src/one.rs", "server/src/two.rs"])]);
    assert_eq!(shared(&files), expected);
}
