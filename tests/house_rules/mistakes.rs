//! The patches of `tests/mistakes` (see its README): each has its header, names tests that exist,
//! and applies to the tree. `tests/mistakes/run` checks that the tests find them.

use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Stdio},
};

use crate::{files, none, read, root, tests_that_run};

/// The most seeds that a patch may name: more take too long.
const SEEDS_MAX: u64 = 3_000;

/// A patch of `tests/mistakes/patches`.
struct Patch {
    name: String,
    text: String,
}

impl Patch {
    fn all() -> Vec<Self> {
        let folder = root().join("tests/mistakes/patches");
        let entries = std::fs::read_dir(&folder).expect("the folder of the patches");
        let mut patches: Vec<Self> = entries
            .map(|entry| {
                let path = entry.expect("an entry").path();
                let name = path.file_name().expect("a file").to_string_lossy().into_owned();
                Self { name, text: std::fs::read_to_string(&path).expect("a text") }
            })
            .collect();
        patches.sort_by(|one, other| one.name.cmp(&other.name));
        patches
    }

    /// The lines before the diff.
    fn header(&self) -> impl Iterator<Item = &str> {
        self.text.lines().take_while(|line| !line.starts_with("diff --git "))
    }

    /// The tests that find the mistake.
    fn found_by(&self) -> impl Iterator<Item = &str> {
        self.header().filter_map(|line| line.strip_prefix("Found by: "))
    }

    /// What is wrong with the name, the header, or the files that the patch changes.
    fn complaints(&self, known: &Known) -> Vec<String> {
        let mut complaints = Vec::new();
        let is_kebab = |name: &str| name.chars().all(|one| one.is_ascii_lowercase() || one == '-');
        if !self.name.strip_suffix(".patch").is_some_and(is_kebab) {
            complaints.push("expected a name like `grant-during-removal.patch`".to_owned());
        }
        if !self.header().next().is_some_and(|line| line.starts_with(|first: char| first.is_uppercase())) {
            complaints.push("expected a header that begins with a sentence about the mistake".to_owned());
        }
        if self.found_by().next().is_none() {
            complaints.push("expected `Found by: ` and a test in the header".to_owned());
        }
        complaints.extend(self.found_by().filter(|test| !known.has(test)).map(|test| {
            format!("{test}: not found: expected `unit` and a test, `seeds` and a count, or `world` and a world")
        }));
        let changed = self.text.lines().filter_map(|line| line.strip_prefix("+++ b/"));
        let elsewhere = changed.filter(|file| !file.starts_with("protocol/src/") || file.contains("tests"));
        complaints.extend(elsewhere.map(|file| format!("changes {file}: expected only rules")));
        complaints.into_iter().map(|what| format!("{}: {what}", self.name)).collect()
    }
}

/// The tests that a patch may name.
struct Known {
    units: BTreeSet<String>,
    worlds: String,
}

impl Known {
    fn new() -> Self {
        let rules = |name: &String| name.starts_with("protocol/src/");
        let units = tests_that_run(&root()).into_iter().filter(rules).map(|name| test_path(&name)).collect();
        let worlds = files().into_iter().filter(|file| file.name.starts_with("tests/exhaustive/src/worlds"));
        Self { units, worlds: worlds.map(|file| file.text).collect() }
    }

    fn has(&self, test: &str) -> bool {
        match test.split_once(' ') {
            Some(("unit", path)) => self.units.contains(path),
            Some(("seeds", count)) => count.parse().is_ok_and(|count: u64| (1..=SEEDS_MAX).contains(&count)),
            Some(("world", name)) => self.worlds.contains(&format!("\"{name}\"")),
            _ => false,
        }
    }
}

/// The path by which libtest names a test of the rules: `protocol/src/lessor/tests/reads.rs::name`
/// is `lessor::tests::reads::name`. A file whose own module has the tests has them in `tests`.
fn test_path(name: &str) -> String {
    let (file, test) = name.rsplit_once("::").expect("a file and a test");
    let file = file.trim_start_matches("protocol/src/").trim_end_matches(".rs").trim_end_matches("/mod");
    let module = file.replace('/', "::");
    let is_own = !module.split("::").any(|part| part == "tests");
    format!("{module}{}::{test}", if is_own { "::tests" } else { "" })
}

#[test]
fn each_patch_has_its_header_and_names_known_tests() {
    let known = Known::new();
    let patches = Patch::all();
    assert!(patches.len() > 50, "{} patches", patches.len());
    none(patches.iter().flat_map(|patch| patch.complaints(&known)).collect());
}

#[test]
fn each_patch_applies_to_the_tree() {
    let mut complaints = Vec::new();
    for patch in Patch::all() {
        let mut git = Command::new("git");
        git.args(["apply", "--check", "-"]).current_dir(root()).stdin(Stdio::piped()).stderr(Stdio::piped());
        // In a folder of another repository, git would skip the files without a word.
        git.env("GIT_CEILING_DIRECTORIES", root().parent().expect("a folder above"));
        let mut child = git.spawn().expect("git, which checks whether the patches apply");
        child.stdin.take().expect("a pipe").write_all(patch.text.as_bytes()).expect("git reads the patch");
        let output = child.wait_with_output().expect("git ends");
        if !output.status.success() {
            complaints.push(format!("{}: {}", patch.name, String::from_utf8_lossy(&output.stderr).trim()));
        }
    }
    none(complaints);
}

#[test]
fn each_planted_mistake_is_one_guarded_expression() {
    let list = read("protocol/src/planted.rs");
    let body = list.split_once("bugs! {\n").and_then(|(_, rest)| rest.split_once("\n}\n")).expect("the list").0;
    let bugs: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("    ")?.strip_suffix(',')).collect();
    let bugs: Vec<&str> = bugs.into_iter().filter(|name| name.chars().all(char::is_alphanumeric)).collect();
    assert!((20..=32).contains(&bugs.len()), "{} planted mistakes: expected some thirty", bugs.len());
    let is_rule = |name: &str| {
        let is_of = |part: &str| name.starts_with(&format!("protocol/src/{part}/"));
        ["holder", "lessor", "state"].into_iter().any(is_of) && !name.contains("tests") && !name.ends_with("check.rs")
    };
    let rules: String = files().into_iter().filter(|file| is_rule(&file.name)).map(|file| file.text).collect();
    let complaint = |bug: &&str| {
        let guards = rules.matches(&format!("Bug::{bug})")).count();
        (guards != 1).then(|| format!("{bug} is planted in {guards} places of the rules: expected one"))
    };
    none(bugs.iter().filter_map(complaint).collect());
}
