//! `edit`: edits a node's value in a file. Scripts stand in for editors.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use nix::sys::signal::Signal;

use crate::{
    common::{Cli, Cluster, eventually},
    running::Running,
};

/// A node in a volume with a short term, so that the leases of dead clients end soon.
fn cluster() -> Cluster {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["volume", "create", "/docs", "--term", "4s"]);
    cli.done(["put", "/docs/a.txt", "one"]);
    cluster
}

fn value(cli: &Cli) -> String {
    cli.done(["get", "/docs/a.txt"])["value"].as_str().expect("text").to_owned()
}

fn version(cli: &Cli) -> u64 {
    cli.done(["get", "/docs/a.txt"])["version"].as_u64().expect("a number")
}

/// The arguments that edit the node with a script, whose `$1` is the file.
fn edit(script: &str) -> Vec<String> {
    ["edit", "/docs/a.txt", "--", "sh", "-c", script, "editor"].map(str::to_owned).to_vec()
}

/// A named pipe that stops an editor's script until the test lets it go on.
struct Gate {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Gate {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("gate");
        assert!(Command::new("mkfifo").arg(&path).status().expect("it runs").success());
        Self { _directory: directory, path }
    }

    /// The command by which the script stops there.
    fn wait(&self) -> String {
        format!("read go < {}", self.path.display())
    }

    /// Waits until the editor has stopped there. It goes on when the returned file is dropped.
    fn reached(&self) -> File {
        eventually("the editor waits", || {
            let opened = OpenOptions::new().write(true).custom_flags(nix::libc::O_NONBLOCK).open(&self.path);
            opened.map_err(|error| error.to_string())
        })
    }
}

/// The file that an error names.
fn kept(message: &str) -> PathBuf {
    let (_, file) = message.trim_end().split_once("the last save is in ").unwrap_or_else(|| panic!("{message}"));
    PathBuf::from(file)
}

fn take(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("it is there");
    fs::remove_dir_all(file.parent().expect("a folder of its own")).expect("it can be removed");
    text
}

#[test]
fn edit_writes_changed_file_and_skips_unchanged_one() {
    let cluster = cluster();
    let cli = cluster.cli();
    let script = r#"[ "$(cat "$1")" = one ] && [ "$1" = "$LEASEHOLD_FILE" ] && [ "$LEASEHOLD_TOKEN" -gt 0 ] && printf two > "$1.new" && mv "$1.new" "$1" && basename "$1""#;
    let ran = cli.run(edit(script));
    assert_eq!(ran.status, 0, "{ran:?}");
    let lines: Vec<&str> = ran.text().lines().collect();
    assert!(lines[0] == "a.txt" && lines[1].starts_with("saved /docs/a.txt at revision "), "{lines:?}");
    assert_eq!((value(&cli).as_str(), version(&cli)), ("two", 2));
    let ran = cli.run(edit(r#"touch "$1"; dirname "$1""#));
    assert_eq!((ran.status, version(&cli)), (0, 2), "nothing was changed");
    let (directory, said) = ran.text().split_once('\n').expect("two lines");
    assert_eq!(said, "/docs/a.txt is unchanged\n");
    assert!(!Path::new(directory).exists(), "nothing is left behind");
    let mut arguments = edit(r#"printf three > "$1""#);
    arguments.insert(0, "--json".to_owned());
    let said = cli.run(arguments).json();
    assert_eq!((&said["path"], &said["saves"]), (&"/docs/a.txt".into(), &1.into()), "{said}");
    assert_eq!(said["revision"], cli.done(["get", "/docs/a.txt"])["revision"]);
    assert_eq!(cli.done(["holders", "/docs/a.txt"])["locks"].as_array().map(Vec::len), Some(0));
}

#[test]
fn edit_exits_with_editor_status_after_writing_saves() {
    let cluster = cluster();
    let cli = cluster.cli();
    assert_eq!(cli.run(edit(r#"printf two > "$1"; exit 7"#)).status, 7);
    assert_eq!(value(&cli), "two");
    assert_eq!(cli.run(["edit", "/docs/a.txt", "--", "/no/such/editor"]).status, 127);
    let usual = |variables: &[(&str, &str)]| {
        let mut command = cli.command(["edit", "/docs/a.txt"]);
        command.env_remove("VISUAL").env_remove("EDITOR").envs(variables.iter().copied());
        command.output().expect("the binary starts").status.code()
    };
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("script");
    fs::write(&script, "printf '%s' \"$1\" > \"$2\"").expect("it is written");
    let editor = |word: &str| format!("sh {} {word}", script.display());
    assert_eq!((usual(&[("EDITOR", &editor("three"))]), value(&cli).as_str()), (Some(0), "three"));
    let both = [("EDITOR", "false"), ("VISUAL", &editor("four"))];
    assert_eq!((usual(&both), value(&cli).as_str()), (Some(0), "four"));
    assert_eq!(usual(&[("VISUAL", "no-such-editor")]), Some(127));
}

#[test]
fn edit_creates_missing_node_on_save_unless_must_exist() {
    let cluster = cluster();
    let cli = cluster.cli();
    let marker = tempfile::tempdir().expect("a directory");
    let marker = marker.path().join("ran");
    let touch = ["touch".to_owned(), marker.display().to_string()];
    let edit = |options: &[&str]| {
        let arguments = ["edit", "/docs/new"].iter().chain(options).chain(&["--"]).map(|it| (*it).to_owned());
        arguments.chain(touch.clone()).collect::<Vec<_>>()
    };
    let (status, kind, message) = cli.fails(edit(&["--must-exist"]));
    assert_eq!((status, kind.as_str(), marker.exists()), (1, "not_found", false), "{message}");
    assert_eq!(cli.run(edit(&[])).status, 0);
    assert!(marker.exists());
    let (status, kind, message) = cli.fails(["get", "/docs/new"]);
    assert_eq!((status, kind.as_str()), (1, "not_found"), "nothing was saved: {message}");
    let save = ["edit", "/docs/new", "--", "sh", "-c", r#"printf new > "$1""#, "editor"];
    assert_eq!((cli.run(save).status, &cli.done(["get", "/docs/new"])["value"]), (0, &"new".into()));
    assert_eq!(cli.run(edit(&["--must-exist"])).status, 0);
}

#[test]
fn edit_saves_are_visible_while_lock_lasts_until_exit() {
    let (cluster, gates) = (cluster(), [Gate::new(), Gate::new()]);
    let cli = cluster.cli();
    let save = |text: &str| format!("printf {text} > \"$1.new\"; mv \"$1.new\" \"$1\"");
    let script = [save("two"), gates[0].wait(), save("three"), gates[1].wait(), "exit 0".to_owned()].join("; ");
    let mut running = Running::start(&cli, edit(&script));
    for (saved, gate) in ["two", "three"].into_iter().zip(&gates) {
        let there = gate.reached();
        eventually("the save is read", || {
            let found = value(&cli);
            if found == saved { Ok(()) } else { Err(found) }
        });
        let (status, kind, message) = cli.fails(["edit", "/docs/a.txt", "--try", "--", "true"]);
        assert_eq!((status, kind.as_str()), (1, "locked"), "{message}");
        drop(there);
    }
    assert_eq!(running.process.ended().code(), Some(0));
    assert_eq!((value(&cli).as_str(), version(&cli)), ("three", 3), "each save once");
    assert_eq!(cli.run(["edit", "/docs/a.txt", "--try", "--", "true"]).status, 0);
}

#[test]
fn what_somebody_else_has_written_meanwhile_is_not_overwritten() {
    let (cluster, gate) = (cluster(), Gate::new());
    let cli = cluster.cli();
    let mut running = Running::start(&cli, edit(&format!("{}; printf mine > \"$1\"", gate.wait())));
    let there = gate.reached();
    cli.done(["put", "/docs/a.txt", "theirs"]);
    drop(there);
    let mut errors = running.errors();
    assert_eq!(running.process.ended().code(), Some(1));
    let message = errors.next().expect("it says why").expect("text");
    assert!(message.contains("/docs/a.txt: modified by another client"), "{message}");
    assert_eq!((take(&kept(&message)).as_str(), value(&cli).as_str()), ("mine", "theirs"));
}

#[test]
fn what_somebody_else_has_removed_meanwhile_is_not_made_again() {
    let (cluster, gate) = (cluster(), Gate::new());
    let cli = cluster.cli();
    let mut running = Running::start(&cli, edit(&format!("{}; printf mine > \"$1\"", gate.wait())));
    let there = gate.reached();
    cli.done(["rm", "/docs/a.txt"]);
    drop(there);
    let mut errors = running.errors();
    assert_eq!(running.process.ended().code(), Some(1));
    let message = errors.next().expect("it says why").expect("text");
    assert_eq!(take(&kept(&message)), "mine");
    let (status, kind, message) = cli.fails(["get", "/docs/a.txt"]);
    assert_eq!((status, kind.as_str()), (1, "not_found"), "{message}");
}

#[test]
fn edit_without_server_saves_value_aside_and_editor_continues() {
    let (mut cluster, gate) = (cluster(), Gate::new());
    let cli = cluster.cli();
    let mut running = Running::start(&cli, edit(&format!("{}; printf mine > \"$1\"; echo saved", gate.wait())));
    let there = gate.reached();
    cluster.kill(1);
    drop(there);
    let mut errors = running.errors();
    assert!(matches!(running.process.ended().code(), Some(3 | 4)), "no server, or it is not known");
    assert_eq!(running.rest(), ["saved"], "by the editor");
    let message = errors.next().expect("it says why").expect("text");
    assert!(message.starts_with("leasehold: /docs/a.txt: "), "{message}");
    assert_eq!(take(&kept(&message)), "mine");
    cluster.spawn(1);
    cluster.wait_until_it_serves();
    assert_eq!(value(&cli), "one");
}

#[test]
fn edit_refused_by_server_saves_value_aside_with_reason() {
    let cluster = cluster();
    let cli = cluster.cli();
    for (bytes, limit) in [((1 << 20) + 1, 1 << 20), ((4 << 20) + 1, 4 << 20)] {
        let mut arguments = edit(&format!("head -c {bytes} /dev/zero > \"$1\""));
        arguments.insert(0, "--json".to_owned());
        let (status, kind, message) = cli.run(arguments).error();
        assert_eq!((status, kind.as_str()), (1, "limit"), "{message}");
        assert!(message.contains(&format!("{bytes} bytes")), "{message}");
        assert!(message.contains(&format!("{limit}; ")), "{message}");
        assert_eq!(take(&kept(&message)).len(), bytes);
    }
    assert_eq!((value(&cli).as_str(), version(&cli)), ("one", 1));
}

#[test]
fn an_editor_that_is_told_to_stop_has_written_what_it_saved() {
    let (cluster, gate) = (cluster(), Gate::new());
    let cli = cluster.cli();
    let mut running = Running::start(&cli, edit(&format!("printf two > \"$1\"; {}", gate.wait())));
    let _there = gate.reached();
    running.process.signal(Signal::SIGTERM);
    assert_eq!(running.process.ended().code(), Some(128 + 15));
    assert_eq!((value(&cli).as_str(), version(&cli)), ("two", 2));
    let (status, kind, message) = cli.fails(["edit", "/docs/a.txt", "--try", "--wait", "1s"]);
    assert_eq!((status, kind.as_str()), (2, "usage"), "{message}");
}

/// When the editor ends, its save still waits for a client that died with a cached copy.
#[test]
fn save_that_is_under_way_when_the_editor_ends_is_its_own() {
    let (cluster, gate) = (cluster(), Gate::new());
    let cli = cluster.cli();
    let mut reader = cli.shell();
    assert_eq!(reader.ask("get /docs/a.txt")["value"], "one");
    let mut running =
        Running::start(&cli, edit(&format!("{}; printf two > \"$1\"; {}; true", gate.wait(), gate.wait())));
    let before = gate.reached();
    reader.process.kill();
    drop(before);
    eventually("the save waits for the reader", || {
        let why = cli.done(["why", "/docs/a.txt"]);
        let waits = why["writes"].as_array().is_some_and(|waits| !waits.is_empty());
        waits.then_some(()).ok_or_else(|| why.to_string())
    });
    drop(gate.reached());
    let mut errors = running.errors();
    assert_eq!(running.process.ended().code(), Some(0), "{:?}", errors.next());
    assert_eq!((value(&cli).as_str(), version(&cli)), ("two", 2));
}
