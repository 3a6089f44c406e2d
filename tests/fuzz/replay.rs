//! Gives each stored input of the fuzzer to its target again. If a fault that the fuzzer found
//! comes back, this test finds it at once.

#[path = "corpus.rs"]
mod corpus;
#[path = "src/lib.rs"]
mod drivers;

use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

#[test]
fn fuzz_corpus_replays_without_panic() {
    let mut failed = Vec::new();
    for input in corpus::inputs() {
        let target = drivers::TARGETS.iter().find(|(name, _)| *name == input.target);
        let (_, run) = target.unwrap_or_else(|| panic!("{} is no target", input.target));
        if catch_unwind(AssertUnwindSafe(|| run(&input.data))).is_err() {
            failed.push(format!("{}/{}", input.target, input.name));
        }
    }
    assert!(failed.is_empty(), "see above; these fail:\n{}", failed.join("\n"));
}

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/fuzz_targets");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let files = entries.map(|entry| PathBuf::from(entry.expect("a file of ours").file_name()));
    let programs: BTreeSet<String> =
        files.map(|name| name.file_stem().unwrap_or_default().to_string_lossy().into_owned()).collect();
    let fed: BTreeSet<String> = corpus::inputs().into_iter().map(|input| input.target).collect();
    let expected: BTreeSet<String> = drivers::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(expected.len(), drivers::TARGETS.len());
    assert_eq!(fed, expected);
    assert_eq!(programs, expected);
}
