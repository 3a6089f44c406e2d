//! Plants each mistake of [`BY_RULE`]. The test that the list names must find it.
//!
//! This binary runs itself. `LEASEHOLD_PLANT` names the mistake, and libtest's `--exact` the test.
//! To see by hand all tests that find one:
//! `LEASEHOLD_PLANT=NoProbe cargo test -p leasehold-protocol --lib`.

use std::{sync::LazyLock, thread};

use super::{BY_RULE, Bug};
use crate::rerun::{TestResult, run};

/// Names the planted mistake.
const VARIABLE: &str = "LEASEHOLD_PLANT";

/// The mistake that this process has planted.
pub(super) fn chosen() -> Option<Bug> {
    #[expect(clippy::disallowed_methods, reason = "a test is told by whoever runs it")]
    static CHOSEN: LazyLock<Option<Bug>> = LazyLock::new(|| {
        let name = std::env::var(VARIABLE).ok()?;
        Some(name.parse().unwrap_or_else(|error| panic!("{VARIABLE}: {error}")))
    });
    *CHOSEN
}

fn with(test: &str, bug: Bug) -> TestResult {
    run(test, Some((VARIABLE, format!("{bug:?}"))))
}

#[test]
fn each_mistake_is_found_by_the_test_that_it_names() {
    if chosen().is_some() {
        return;
    }
    let complaint = |(bug, test): &(Bug, &str)| match (run(test, None), with(test, *bug)) {
        (TestResult::Passed, TestResult::Failed(_)) => None,
        (without, with) => Some(format!("{bug:?}: {test}: without it {without:?}, with it {with:?}")),
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let parts = BY_RULE.chunks(BY_RULE.len().div_ceil(workers));
    let complaints: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || part.iter().filter_map(complaint))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn a_test_that_does_not_exist_finds_nothing() {
    if chosen().is_none() {
        assert!(matches!(with("planted::tests::nobody_wrote_this", Bug::NoProbe), TestResult::Nothing(_)));
    }
}
