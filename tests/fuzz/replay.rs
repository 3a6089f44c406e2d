//! Gives each stored input of the fuzzer to its target again. If a fault that the fuzzer found
//! comes back, this test finds it at once.

#[path = "src/lib.rs"]
mod drivers;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

/// The stored inputs of a target, in order.
fn kept(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<PathBuf> = entries.map(|entry| entry.expect("a file of ours").path()).collect();
    inputs.sort();
    inputs
}

#[test]
fn fuzz_corpus_replays_without_panic() {
    let mut failed = Vec::new();
    for (name, run) in drivers::TARGETS {
        let inputs = kept(name);
        assert!(!inputs.is_empty(), "{name} has no inputs");
        for input in inputs {
            let data = fs::read(&input).expect("a file of ours");
            if catch_unwind(AssertUnwindSafe(|| run(&data))).is_err() {
                failed.push(input.display().to_string());
            }
        }
    }
    assert!(failed.is_empty(), "see above; these fail:\n{}", failed.join("\n"));
}

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    let names = |folder: &str| {
        let entries = fs::read_dir(root.join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let names = entries.map(|entry| PathBuf::from(entry.expect("a file of ours").file_name()));
        let mut names: Vec<String> =
            names.map(|name| name.file_stem().unwrap_or_default().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let expected: Vec<String> = drivers::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert!(expected.is_sorted());
    assert_eq!(names("corpus"), expected);
    assert_eq!(names("fuzz_targets"), expected);
}
