//! The tests that `cargo test --workspace` runs, read from the sources.
//!
//! Cargo names the tested targets, and `mod` leads from each to its files. A test there is a
//! function with a test attribute, or a line of a macro of that file that makes tests. Tests that
//! depend on a feature or are ignored do not count. The gate fails if a test was skipped
//! (`.ci/test`).
//!
//! This does not use `--list` of the test binaries: the house rules alone would have to build them
//! all.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// Conditions that hold wherever the tests run.
const MET: [&str; 2] = ["#[cfg(test)]", "#[cfg(target_os = \"linux\")]"];

/// All tests that run, as `path/to/file.rs::name`.
pub(crate) fn tests_that_run(root: &Path) -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for source in tested_targets(root) {
        let folder = source.parent().expect("a file is in a folder").to_owned();
        visit(root, &source, &folder, &mut tests);
    }
    tests
}

/// The first file of each target that `cargo test --workspace` builds as a test.
fn tested_targets(root: &Path) -> Vec<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let arguments = ["metadata", "--offline", "--no-deps", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(root).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().expect("targets"));
    let tested = targets.filter(|target| target["test"] == true);
    tested.map(|target| PathBuf::from(target["src_path"].as_str().expect("a path"))).collect()
}

/// Adds the tests of a file and of the modules that it declares, which are in `folder`.
fn visit(root: &Path, file: &Path, folder: &Path, tests: &mut BTreeSet<String>) {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy().into_owned();
    let macros = macros_of_tests(&text);
    let (mut attributes, mut is_in_macro, mut skipped_to) = (Vec::new(), false, None);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(end) = &skipped_to {
            skipped_to = (line != end).then(|| String::clone(end));
            continue;
        }
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        if code.starts_with("#[") {
            let mut whole = code.to_owned();
            while !whole.ends_with(']') {
                let Some(more) = lines.next() else { break };
                whole += more.trim();
            }
            attributes.push(whole);
            continue;
        }
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        let attributes = std::mem::take(&mut attributes);
        let is_met = attributes.iter().all(|one| !one.starts_with("#[cfg") || MET.contains(&one.as_str()));
        let is_test = attributes.iter().any(|one| one == "#[test]" || one.starts_with("#[tokio::test"));
        let is_ignored = attributes.iter().any(|one| one[2..].starts_with("ignore"));
        if let Some(module) = declared(code, "mod ") {
            if code.ends_with('{') && !is_met {
                skipped_to = Some(format!("{indent}}}"));
            } else if code.ends_with(';') && is_met {
                let (file, folder) = find(module, &attributes, file, folder);
                visit(root, &file, &folder, tests);
            }
        } else if let Some(function) = declared(code, "fn ").filter(|_| is_test && is_met && !is_ignored) {
            tests.insert(format!("{name}::{function}"));
        } else if macros.iter().any(|made| line == format!("{made}! {{")) {
            is_in_macro = true;
        } else if line == "}" {
            is_in_macro = false;
        } else if let Some((test, _)) = code.split_once(':').filter(|_| is_in_macro && indent.len() == 4) {
            tests.insert(format!("{name}::{test}"));
        }
    }
}

/// The name after a keyword, with any visibility, `async` or not.
fn declared<'a>(code: &'a str, keyword: &str) -> Option<&'a str> {
    let code = ["pub(crate) ", "pub(super) ", "pub "].iter().find_map(|word| code.strip_prefix(word)).unwrap_or(code);
    let rest = code.strip_prefix("async ").unwrap_or(code).strip_prefix(keyword)?;
    rest.split(|other: char| !other.is_alphanumeric() && other != '_').next()
}

/// The macros of a file that make tests.
fn macros_of_tests(text: &str) -> Vec<&str> {
    let bodies = text.split("macro_rules! ").skip(1);
    let making = bodies.filter(|body| body.split("\n}").next().is_some_and(|own| own.contains("#[test]")));
    making.filter_map(|body| body.split(' ').next()).collect()
}

/// The file of a module, and the folder of its own modules.
fn find(module: &str, attributes: &[String], file: &Path, folder: &Path) -> (PathBuf, PathBuf) {
    let given = attributes.iter().find_map(|one| one.strip_prefix("#[path = \"")?.strip_suffix("\"]"));
    if let Some(path) = given {
        let file = file.parent().expect("a file is in a folder").join(path);
        let folder = file.parent().expect("a file is in a folder").to_owned();
        return (file, folder);
    }
    let below = folder.join(module);
    let beside = folder.join(format!("{module}.rs"));
    (if beside.is_file() { beside } else { below.join("mod.rs") }, below)
}

#[test]
fn tests_are_found_and_nothing_else_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = tests_that_run(root);
    let has = |name: &str| tests.contains(name);
    assert!(has("tests/house_rules/tests_that_run.rs::tests_are_found_and_nothing_else_is"));
    assert!(has("tests/simulation/tests/planted.rs::serving_after_expiry_is_found"), "made by a macro");
    assert!(has("client-cache/tests/locks/mod.rs::lock_ends_by_own_clock_before_another_session_gets_it"), "by a path");
    assert!(!has("tests/house_rules/tests_that_run.rs::tests_that_run"), "no test");
    assert!(!has("protocol/src/lessor/mod.rs::step"), "no test");
}
