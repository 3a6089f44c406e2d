//! The test that [`BY_TESTS_OF_RULES`] names for a bound reaches it.
//!
//! This binary runs itself. `LEASEHOLD_REACHED` names a bound, and any test that reaches it fails.
//! To see by hand all tests that reach one:
//! `LEASEHOLD_REACHED=Depth cargo test -p leasehold-protocol --lib`.

use std::{sync::LazyLock, thread};

use super::{BY_TESTS_OF_RULES, Bound};
use crate::rerun::{TestResult, run};

/// Names the bound that fails a test.
const VARIABLE: &str = "LEASEHOLD_REACHED";

/// Called when a bound is reached. Fails the test if this process was started with that bound.
pub(super) fn expected(bound: Bound) {
    #[expect(clippy::disallowed_methods, reason = "a test is told by whoever runs it")]
    static NAME: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(VARIABLE).ok());
    if let Some(name) = &*NAME {
        assert!(*name != format!("{bound:?}"), "{}", bound.name());
    }
}

#[test]
fn each_bound_is_reached_by_the_test_that_it_names() {
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let complaint = |(bound, test): &(Bound, &str)| match run(test, Some((VARIABLE, format!("{bound:?}")))) {
        TestResult::Failed(text) if text.contains(bound.name()) => None,
        said => Some(format!("{bound:?}: {test} does not reach it: {said:?}")),
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let parts = BY_TESTS_OF_RULES.chunks(BY_TESTS_OF_RULES.len().div_ceil(workers));
    let complaints: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || part.iter().filter_map(complaint))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}
