//! A test that lacks a tool fails, or is noted as skipped. This runs one in a process without
//! tools.

use std::process::{Command, Output};

use crate::common::{ALLOW_SKIPS, SKIPPED_FILE};

/// A test that needs a network namespace.
const NEEDY: &str = "network::tests::a_cut_is_in_one_direction_and_heals";

/// Runs [`NEEDY`] where no program is found.
fn without_tools(allow: Option<&str>, notes: &std::path::Path) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a test binary"));
    command.args([NEEDY, "--exact"]).env("PATH", "/nowhere").env(SKIPPED_FILE, notes).env_remove(ALLOW_SKIPS);
    command.envs(allow.map(|value| (ALLOW_SKIPS, value)));
    command.output().expect("it starts")
}

#[test]
fn a_test_without_its_tool_fails_and_says_what_it_needs() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let notes = folder.path().join("skipped");
    for allow in [None, Some(""), Some("0")] {
        let output = without_tools(allow, &notes);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "it has passed: {said}");
        assert!(said.contains("needs network namespaces: root, and `ip` (Debian: iproute2)"), "{said}");
        assert!(!notes.exists(), "it was noted as skipped");
    }
}

#[test]
fn a_test_without_its_tool_is_noted_where_skips_are_allowed() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let notes = folder.path().join("skipped");
    for count in 1..=2 {
        let output = without_tools(Some("1"), &notes);
        assert!(output.status.success(), "{output:?}");
        let noted = std::fs::read_to_string(&notes).expect("it was noted");
        assert_eq!(noted.lines().count(), count, "{noted}");
        assert!(noted.lines().all(|line| line.starts_with(&format!("{NEEDY}: no network namespaces: "))), "{noted}");
    }
}
