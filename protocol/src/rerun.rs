//! Runs one test of this binary again, alone in a process, with a given environment variable.

use std::process::Command;

/// The result of the test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TestResult {
    Passed,
    /// The test's output.
    Failed(String),
    /// The test did not run, or the process ended during the test. Contains the output.
    Nothing(String),
}

/// Runs the test with the given variable, and without the other variables of such runs.
pub(crate) fn run(test: &str, told: Option<(&str, String)>) -> TestResult {
    let binary = std::env::current_exe().expect("this binary");
    let mut command = Command::new(binary);
    command.args(["--exact", test, "--test-threads=1"]);
    for variable in ["LEASEHOLD_PLANT", "LEASEHOLD_REACHED"] {
        command.env_remove(variable);
    }
    command.envs(told);
    let output = command.output().expect("this binary runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // libtest succeeds if no test has the name, so only the test's own result line counts.
    match (output.status.success(), text.contains(" 1 passed; 0 failed;"), text.contains(" 0 passed; 1 failed;")) {
        (true, true, false) => TestResult::Passed,
        (false, false, true) => TestResult::Failed(text),
        _ => TestResult::Nothing(text),
    }
}
