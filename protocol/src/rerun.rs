//! Runs a test of this binary once more, alone in a process that is told something by its
//! environment.

use std::process::Command;

/// What the test says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TestResult {
    Passed,
    /// With what it printed.
    Failed(String),
    /// The test did not run, or the process ended before the test did.
    Nothing(String),
}

/// Runs the test with this variable of the environment, and none that other runs were told by.
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
    // libtest is content when no test has the name: what counts is the test's own line.
    match (output.status.success(), text.contains(" 1 passed; 0 failed;"), text.contains(" 0 passed; 1 failed;")) {
        (true, true, false) => TestResult::Passed,
        (false, false, true) => TestResult::Failed(text),
        _ => TestResult::Nothing(text),
    }
}
