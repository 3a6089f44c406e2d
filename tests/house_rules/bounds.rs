//! Checks that the protocol crate counts each named bound where it takes effect. A bound that
//! cannot be counted is listed with the reason.

use std::collections::BTreeSet;

use super::{File, files, is_rule, none, read};

/// The file that counts and lists the bounds.
const LISTS: &str = "protocol/src/reached.rs";
/// Structures whose fields are all bounds.
const STRUCTURES: &[(&str, &str)] = &[
    ("protocol/src/lessor/bounds.rs", "pub struct LessorBounds {"),
    ("protocol/src/holder/bounds.rs", "pub struct HolderBounds {"),
    ("protocol/src/limits.rs", "pub struct Limits {"),
];

/// Bounds that are settings of a volume.
const SETTINGS: &[&str] = &["lease_limit", "quota_nodes", "quota_bytes"];

/// The name of the constant that the line declares, if it is named like a bound.
fn constant(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("const ")?;
    let is_declaration = before.trim().is_empty() || before.trim().starts_with("pub");
    let name = rest.split(':').next().filter(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))?;
    let is_bound = name.ends_with("_MAX") || name.contains("_MAX_");
    (is_declaration && is_bound).then_some(name)
}

/// The bounds that a file of the rules names, without those of its tests.
fn bounds(file: &File) -> Vec<String> {
    let is_test = file.name.contains("/tests/") || file.name.ends_with("/tests.rs");
    let lines = || file.text.lines().filter(|_| !is_test).take_while(|line| *line != "mod tests {");
    let constants = lines().filter_map(constant).map(str::to_owned);
    let structures = STRUCTURES.iter().filter(|(name, _)| *name == file.name);
    let fields = structures.flat_map(|(_, begin)| {
        let body = lines().skip_while(move |line| line != begin).skip(1).take_while(|line| *line != "}");
        body.filter_map(|line| line.strip_prefix("    pub ")?.split(':').next().map(str::to_owned))
    });
    constants.chain(fields).collect()
}

/// The quoted names of a list, from the line that begins with `begin` to the line `close`.
fn quoted<'a>(source: &'a str, begin: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    let body = source.lines().skip_while(move |line| !line.starts_with(begin)).skip(1);
    body.take_while(move |line| *line != close).filter_map(|line| line.split('"').nth(1))
}

#[test]
fn every_bound_is_counted_or_says_why_not() {
    let lists = read(LISTS);
    let counted: BTreeSet<&str> = quoted(&lists, "bounds! {", "}").collect();
    let listed: BTreeSet<&str> = quoted(&lists, "pub const NOT_COUNTED", "];").collect();
    assert!(counted.len() > 50 && !listed.is_empty(), "the lists were not found");
    let mut complaints: Vec<String> =
        counted.intersection(&listed).map(|name| format!("{LISTS}: {name} is counted, and listed as not")).collect();
    let mut named = BTreeSet::new();
    for file in files().iter().filter(|file| is_rule(file)) {
        for bound in bounds(file) {
            if !counted.contains(&*bound) && !listed.contains(&*bound) {
                complaints.push(format!("{}: {bound} is neither counted nor listed in {LISTS}", file.name));
            }
            named.insert(bound);
        }
    }
    named.extend(SETTINGS.iter().map(|name| (*name).to_owned()));
    let stale = counted.union(&listed).filter(|name| !named.contains(**name));
    complaints.extend(stale.map(|name| format!("{LISTS}: nothing is named {name}")));
    none(complaints);
}
