//! House rules that no compiler checks (like TigerBeetle's `tidy.zig`): what the rules crate must
//! not use, how each file begins, and what the documents must name.

mod bounds;
mod circles;
mod glossary;
mod messages;
mod mistakes;
mod names;
mod prose;
mod tests_that_run;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use tests_that_run::tests_that_run;

/// The most lines of a file that gives no reason.
const LINES_MAX: usize = 500;

/// Longer files, each with its reason. A file that becomes short enough must leave the list.
const LONGER: &[(&str, &str)] = &[];

/// Tests that sleep, each with the reason why it cannot wait for a condition.
const SLEEPERS: &[(&str, &str)] = &[
    (
        "client-cache/tests/common/mod.rs",
        "looks for a condition of which nobody tells; keeps its stand-in server's time",
    ),
    ("client-cache/tests/swarm/main.rs", "disturbs at a pace; looks for a condition of which nobody tells"),
    ("client-cache/tests/outage.rs", "looks how long something goes on"),
    ("client-cache/tests/stress.rs", "looks for a condition of which nobody tells; how fast writers are"),
    ("server/src/raft/network/tests.rs", "is a receiver that is slow: that is what is tested"),
    ("server/src/server.rs", "looks for a condition of which nobody tells; how fast a client asks"),
    ("server/tests/crash/disk.rs", "looks whether a child has ended, of which nobody tells"),
    ("server/tests/crash/server.rs", "asks again until a server is elected, of which nobody tells"),
    ("server/tests/replica/handover.rs", "a follower is gone for longer than its last answer counts"),
    ("server/tests/replica/support.rs", "looks for a condition of which nobody tells"),
    ("tests/common/mod.rs", "looks for a condition of which nobody tells"),
    ("tests/common/stall.rs", "sleeps to see how late it is woken"),
    ("tests/processes/abandoned.rs", "kills a leader when a lease has a certain age"),
    ("tests/processes/day/listing.rs", "how often an operator checks"),
    ("tests/processes/day/programs.rs", "how often a supervisor checks"),
    ("tests/processes/day/settings.rs", "how fast a writer works"),
    ("tests/processes/failover.rs", "reads at a pace, for as long as reads must go on"),
    ("tests/processes/nemesis.rs", "how long each trouble lasts"),
    ("tests/processes/quorum.rs", "looks how long something goes on"),
    ("tests/processes/registrations.rs", "leaves a leader alone for longer than a lease lasts"),
    ("tests/processes/stalls.rs", "keeps a process stopped for as long as a stall lasts"),
    ("tests/processes/workload.rs", "how fast a client works"),
];

/// Crates that the rules must not depend on, directly or indirectly.
const IMPURE_CRATES: &[&str] = &[
    "async-std",
    "dashmap",
    "fjall",
    "futures",
    "getrandom",
    "libc",
    "mio",
    "moka",
    "nix",
    "openraft",
    "parking_lot",
    "rand",
    "rustix",
    "smol",
    "socket2",
    "tarpc",
    "tokio",
    "tracing",
];

/// Impure words that only test builds of the rules have: file, word and reason.
const IMPURE_IN_TESTS: &[(&str, &str, &str)] = &[
    ("protocol/src/planted/tests.rs", "std::env", "runs this test binary with a mistake put back"),
    ("protocol/src/planted/tests.rs", "std::thread", "runs this test binary with a mistake put back"),
    ("protocol/src/reached/tests.rs", "std::env", "runs this test binary with a bound that is not to be reached"),
    ("protocol/src/rerun.rs", "std::env", "runs this test binary, in unit tests only"),
    ("protocol/src/rerun.rs", "std::process", "runs this test binary, in unit tests only"),
    ("protocol/src/reached.rs", "thread_local!", "counts which bounds took effect, in test builds only"),
    ("protocol/src/work.rs", "thread_local!", "counts what a step looks at, in test builds only"),
];

/// Words that the rules must not use.
const IMPURE_WORDS: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "std::sync::Mutex",
    "HashMap",
    "HashSet",
    "RandomState",
    "rand::",
    "static mut",
    "thread_local!",
    "tokio::",
];

struct File {
    name: String,
    text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.name.ends_with(".rs")
    }

    /// The lines without comments, with their numbers.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(number, line)| (number + 1, line));
        lines.map(|(number, line)| (number, line.split("//").next().unwrap_or_default()))
    }

    /// The lines of tests: all lines of a test file, else the lines after the first `#[cfg(test)]`.
    fn test_code(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_test = self.name.contains("tests/") || self.name.ends_with("/tests.rs");
        let begin = if is_test { Some(0) } else { self.text.lines().position(|line| line.starts_with("#[cfg(test)]")) };
        let begin = begin.unwrap_or(usize::MAX);
        self.code().filter(move |(number, _)| *number > begin)
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All text files of the repository.
fn files() -> Vec<File> {
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of ours").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_symlink() || ["target", ".git", "leasehold-data"].iter().any(|skipped| name == *skipped) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let name = path.strip_prefix(root()).expect("it is below").to_string_lossy().into_owned();
                files.push(File { name, text });
            }
        }
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(files.len() > 100, "the repository was not found");
    files
}

fn is_rule(file: &File) -> bool {
    file.is_rust() && Path::new(&file.name).starts_with("protocol/src")
}

fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// The normal dependencies of a crate, direct and indirect. Those of its tests are left out.
fn dependencies(of: &str) -> Vec<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let arguments = ["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--package", of];
    let tree = Command::new(cargo).args(arguments).current_dir(root()).output().expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let text = String::from_utf8(tree.stdout).expect("text");
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// The names of an enum's variants, from source that rustfmt has formatted.
fn variants(source: &str, name: &str) -> Vec<String> {
    let begin = format!("pub enum {name} {{");
    let body = source.lines().skip_while(|line| *line != begin).skip(1).take_while(|line| *line != "}");
    let names = body.filter_map(|line| {
        let rest = line.strip_prefix("    ")?;
        rest.starts_with(|first: char| first.is_ascii_uppercase())
            .then(|| rest.split(|other: char| !other.is_alphanumeric()).next().unwrap_or_default().to_owned())
    });
    names.collect()
}

#[test]
fn protocol_crate_has_no_impure_dependencies() {
    let crates = dependencies("leasehold-protocol");
    assert!(crates.iter().any(|name| name == "serde"), "{crates:?}");
    none(crates.into_iter().filter(|name| IMPURE_CRATES.contains(&name.as_str())).collect());
}

#[test]
fn the_rules_read_no_clock_and_do_nothing_themselves() {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| is_rule(file)) {
        for (number, line) in file.code() {
            let is_listed =
                |word: &str| IMPURE_IN_TESTS.iter().any(|(name, listed, _)| (*name, *listed) == (&*file.name, word));
            let words = IMPURE_WORDS.iter().filter(|word| line.contains(*word) && !is_listed(word));
            complaints.extend(words.map(|word| format!("{}:{number}: {word}", file.name)));
        }
    }
    none(complaints);
}

#[test]
fn server_and_client_never_see_each_other() {
    assert!(!dependencies("leasehold-server").contains(&"leasehold-client-cache".to_owned()));
    assert!(!dependencies("leasehold-client-cache").contains(&"leasehold-server".to_owned()));
}

#[test]
fn the_rules_are_linted_by_what_everybody_is_and_more() {
    let common = read("clippy.toml");
    for name in ["protocol/clippy.toml", "protocol/wire/clippy.toml"] {
        assert!(read(name).contains(&common), "{name} lacks what clippy.toml says");
    }
}

#[test]
fn every_module_says_what_it_is_for() {
    let files = files();
    let silent = files.iter().filter(|file| file.is_rust() && !file.text.starts_with("//!"));
    none(silent.map(|file| format!("{} does not begin with //!", file.name)).collect());
}

#[test]
fn nothing_is_left_undone() {
    // Assembled at run time, so that this file does not contain them.
    let undone = ["todo", "dbg", "unimplemented"].map(|name| format!("{name}!("));
    let ignored = format!("#[{}", "ignore");
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.is_rust()) {
        for (number, line) in file.code() {
            if undone.iter().any(|one| line.contains(one)) || line.contains(&ignored) {
                complaints.push(format!("{}:{number}: {}", file.name, line.trim()));
            }
        }
    }
    none(complaints);
}

#[test]
fn no_test_sleeps_where_it_could_wait_for_something() {
    let sleeps = ["thread", "time"].map(|module| format!("{module}::{}", "sleep("));
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.is_rust() && SLEEPERS.iter().all(|(name, _)| *name != file.name)) {
        let lines = file.test_code().filter(|(_, line)| sleeps.iter().any(|sleep| line.contains(sleep)));
        complaints.extend(lines.map(|(number, line)| format!("{}:{number}: {}", file.name, line.trim())));
    }
    none(complaints);
}

#[test]
fn files_are_short_or_have_a_reason() {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.is_rust()) {
        let lines = file.text.lines().count();
        let is_listed = LONGER.iter().any(|(name, _)| *name == file.name);
        if lines > LINES_MAX && !is_listed {
            complaints.push(format!("{} has {lines} lines: expected at most {LINES_MAX}, or a reason", file.name));
        }
        if lines <= LINES_MAX && is_listed {
            complaints.push(format!("{} has {lines} lines and needs no reason any more", file.name));
        }
    }
    none(complaints);
}

#[test]
fn no_file_names_the_machine_that_it_was_written_on() {
    let places = ["root", "work", "home"].map(|folder| format!("/{folder}/"));
    let mut complaints = Vec::new();
    for file in files() {
        for (number, line) in file.text.lines().enumerate() {
            if places.iter().any(|place| line.starts_with(place) || line.contains(&format!(" {place}"))) {
                complaints.push(format!("{}:{}: {}", file.name, number + 1, line.trim()));
            }
        }
    }
    none(complaints);
}

#[test]
fn the_protocol_page_names_every_message_and_command() {
    let page = read("docs/PROTOCOL.md");
    let (messages, commands) = (read("protocol/src/message.rs"), read("protocol/src/command.rs"));
    let (inspections, refusals) = (read("protocol/src/message/inspect.rs"), read("protocol/src/message/refusal.rs"));
    let enums = [
        (&messages, "Body"),
        (&messages, "Answer"),
        (&refusals, "Refusal"),
        (&inspections, "Inspect"),
        (&commands, "Command"),
        (&commands, "Write"),
    ];
    let mut complaints = Vec::new();
    for (source, name) in enums {
        let variants = variants(source, name);
        assert!(variants.len() > 3, "the variants of {name}: {variants:?}");
        let full = variants.iter().map(|variant| format!("{name}::{variant}"));
        complaints.extend(full.filter(|full| !page.contains(full)).map(|full| format!("{full} is not on the page")));
    }
    none(complaints);
}

/// The rows of the verification page: number, mechanism, tests, verdict.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| -"));
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// The tests that a text names: `path::name` in backticks.
fn named_tests(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|quoted| quoted.rsplit_once("::").is_some_and(|(file, _)| file.ends_with(".rs")))
}

#[test]
fn every_mechanism_and_rule_has_a_row_that_says_what_shows_it() {
    let page = read("docs/verification.md");
    let rows = rows(&page);
    let mechanisms = (1..=71).map(|number| format!("A{number}"));
    let safety = (1..=12).map(|number| format!("S{number}")).chain(["S2w", "S7b"].map(str::to_owned));
    let names = mechanisms.chain(safety).chain((1..=7).map(|number| format!("T{number}")));
    let complaint = |name: String| {
        let own: Vec<_> = rows.iter().filter(|row| row[0] == name).collect();
        let [row] = own[..] else { return Some(format!("{name} has {} rows: expected one", own.len())) };
        let [_, _, shown_by, verdict] = row[..] else { return Some(format!("{name}: expected four columns")) };
        let (verdict, missing) = verdict.split_once(": ").unwrap_or((verdict, ""));
        let names_test = named_tests(shown_by).next().is_some();
        let is_right = match verdict {
            "shown" | "measured" => names_test && missing.is_empty(),
            "part" => !shown_by.is_empty() && !missing.is_empty(),
            "no" => !missing.is_empty(),
            _ => false,
        };
        (!is_right).then(|| format!("{name}: {verdict:?} does not fit what shows it and what is missing"))
    };
    none(names.filter_map(complaint).collect());
}

#[test]
fn each_test_that_a_document_names_is_one_that_runs() {
    let tests = tests_that_run(&root());
    let files = files();
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.name.ends_with(".md")) {
        let missing = named_tests(&file.text).filter(|named| !tests.contains(*named));
        complaints.extend(missing.map(|named| format!("{}: {named} is not a test that runs", file.name)));
    }
    none(complaints);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.name.ends_with(".md")) {
        let folder = root().join(&file.name).parent().expect("a file is in a folder").to_owned();
        let links = file.text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let local = links.filter(|link| !link.starts_with('#') && !link.contains("://") && !link.contains(' '));
        for link in local.filter(|link| !folder.join(link.split('#').next().unwrap_or_default()).exists()) {
            complaints.push(format!("{}: {link} does not exist", file.name));
        }
    }
    none(complaints);
}
