//! `lock`: runs a command under a lock on a node, with the conventions of flock(1).

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{sys::signal::Signal, unistd::Pid};
use serde_json::Value;

use crate::{
    common::{
        Cli, Cluster, Missed, eventually,
        stall::{check, measured},
    },
    guards::{guard_of, is_running},
    running::Running,
};

const TERM: Duration = Duration::from_secs(4);
const MARGIN: Duration = Duration::from_millis(50);

/// How late a lease may end: a tick until its last renewal is in the log, and a tick until its end
/// is (T6 in docs/PROTOCOL.md). A tick is a tenth of the term, and at most 250 ms.
const TICKS: Duration = Duration::from_millis(2 * 250);

/// A volume whose term is short, so that lost locks end soon. It is long enough for a busy machine
/// to renew in time.
fn cluster() -> Cluster {
    let cluster = Cluster::start(1);
    let (term, margin) = (format!("{}s", TERM.as_secs()), format!("{}ms", MARGIN.as_millis()));
    cluster.cli().done(["volume", "create", "/jobs", "--term", &term, "--skew-margin", &margin]);
    cluster
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// A command that logs that it runs, and goes on until a file exists.
fn job(directory: &Path, name: &str) -> Vec<String> {
    let (log, end) = (directory.join("log"), directory.join(format!("{name}.end")));
    let script = format!(
        "echo begin {name} $LEASEHOLD_TOKEN >> {log}; until [ -e {end} ]; do sleep 0.02; done; echo end {name} >> {log}",
        log = log.display(),
        end = end.display()
    );
    vec!["sh".to_owned(), "-c".to_owned(), script]
}

fn log(directory: &Path) -> Vec<String> {
    let text = fs::read_to_string(directory.join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn end(directory: &Path, name: &str) {
    fs::write(directory.join(format!("{name}.end")), "").expect("it can be written");
}

fn lock(cli: &Cli, options: &[&str], command: &[String]) -> Running {
    let command = command.iter().map(String::as_str);
    Running::start(
        cli,
        ["lock", "/jobs/nightly"].into_iter().chain(options.iter().copied()).chain(["--"]).chain(command),
    )
}

fn until_log(directory: &Path, lines: usize) -> Vec<String> {
    eventually("the jobs have said so much", || {
        let log = log(directory);
        if log.len() >= lines { Ok(log) } else { Err(format!("{log:?}")) }
    })
}

/// The fencing tokens, in the order in which the jobs began.
fn tokens(log: &[String]) -> Vec<u64> {
    let begun = log.iter().filter_map(|line| line.strip_prefix("begin "));
    begun.map(|rest| rest.rsplit(' ').next().expect("a token").parse().expect("a number")).collect()
}

fn until_waiting(cli: &Cli, count: usize) {
    eventually("others wait", || {
        let holders = cli.done(["holders", "/jobs/nightly"]);
        let locks = holders["locks"].as_array().expect("a list");
        let waiting = locks.iter().filter(|lock| lock["token"].is_null()).count();
        if waiting == count { Ok(()) } else { Err(format!("{holders}")) }
    });
}

/// Standard output has the document and nothing else. So the command writes to standard error.
#[test]
fn command_under_a_lock_ends_with_one_json_document() {
    let cluster = cluster();
    let cli = cluster.cli();
    let script = ["--", "sh", "-c", "echo said; exit 7"];
    for begin in [&["lock", "/jobs/a"][..], &["elect", "/jobs/b", "one"]] {
        for form in [&["--json"][..], &["-w", "json"], &["-wjson"]] {
            let ran = cli.run([form, begin, &script].concat());
            let ended = ran.json();
            assert_eq!((ran.status, ran.stderr.as_str()), (7, "said\n"), "{ran:?}");
            assert_eq!((&ended["path"], &ended["status"]), (&begin[1].into(), &7.into()));
            assert!(ended["token"].is_u64(), "{ended}");
        }
        assert_eq!(cli.run([begin, &script].concat()).text(), "said\n");
    }
    let missing = cli.run(["--json", "lock", "/jobs/a", "--", "/no/such/command"]);
    assert_eq!((missing.status, &missing.json()["status"]), (127, &127.into()));
    let _owner = lock_for_good(&cli);
    for begin in [&["lock", "/jobs/a", "--try"][..], &["elect", "/jobs/a", "one", "--try"]] {
        for command in [&[][..], &["--", "true"]] {
            let (status, kind, _) = cli.run([&["-w", "json"][..], begin, command].concat()).error();
            assert_eq!((status, kind.as_str()), (1, "locked"), "{begin:?} {command:?}");
        }
    }
    let misused = cli.run(["-wjson", "lock", "/jobs/a", "--trie", "--", "true"]).error();
    assert_eq!((misused.0, misused.1.as_str()), (2, "usage"));
}

/// Owns a lock until it is dropped.
fn lock_for_good(cli: &Cli) -> Running {
    let owner = Running::start(cli, ["--json", "lock", "/jobs/a"]);
    assert_eq!(owner.json()["path"], "/jobs/a");
    owner
}

#[test]
fn one_command_runs_at_a_time_and_each_gets_a_higher_token() {
    let (cluster, directory) = (cluster(), scratch());
    let (cli, at) = (cluster.cli(), directory.path());
    let mut first = lock(&cli, &[], &job(at, "one"));
    until_log(at, 1);
    let mut second = lock(&cli, &[], &job(at, "two"));
    until_waiting(&cli, 1);
    end(at, "one");
    assert_eq!(first.process.ended().code(), Some(0));
    end(at, "two");
    assert_eq!(second.process.ended().code(), Some(0));
    let log = until_log(at, 4);
    let order: Vec<&str> =
        log.iter().map(|line| &line[..line.find(|c: char| c.is_ascii_digit()).unwrap_or(line.len())]).collect();
    assert_eq!(order, ["begin one ", "end one", "begin two ", "end two"]);
    assert!(tokens(&log).is_sorted_by(|one, other| one < other), "{log:?}");
}

#[test]
fn the_habits_of_flock_are_kept() {
    let (cluster, directory) = (cluster(), scratch());
    let (cli, at) = (cluster.cli(), directory.path());
    let ran = |script: &str| cli.run(["lock", "/jobs/x", "--", "sh", "-c", script]).status;
    assert_eq!((ran("exit 0"), ran("exit 7"), ran("kill -TERM $$")), (0, 7, 128 + 15));
    assert_eq!(cli.run(["lock", "/jobs/x", "--", "/no/such/command"]).status, 127);
    let mut readers = [lock(&cli, &["--read"], &job(at, "r1")), lock(&cli, &["--read"], &job(at, "r2"))];
    until_log(at, 2);
    let (status, kind, message) = cli.fails(["lock", "/jobs/nightly", "--try"]);
    assert_eq!((status, kind.as_str()), (1, "locked"), "{message}");
    assert!(message.starts_with("/jobs/nightly") && message.contains("; locked by lock@"), "{message}");
    let (status, kind, message) = cli.fails(["lock", "/jobs/nightly", "--wait", "100ms"]);
    assert_eq!((status, kind.as_str()), (1, "not_granted"), "{message}");
    assert!(message.contains("; locked by lock@") && message.ends_with(" and 1 other"), "{message}");
    ["r1", "r2"].iter().for_each(|name| end(at, name));
    readers.iter_mut().for_each(|reader| assert_eq!(reader.process.ended().code(), Some(0)));
    assert_eq!(cli.run(["lock", "/jobs/nightly", "--try", "--", "true"]).status, 0);
    let (status, _, message) = cli.fails(["lock", "/jobs/nightly", "--try", "--wait", "1s"]);
    assert_eq!(status, 2, "{message}");
}

#[test]
fn lock_without_command_lasts_until_stopped() {
    let cluster = cluster();
    let cli = cluster.cli();
    let mut held = Running::start(&cli, ["--json", "lock", "/jobs/nightly"]);
    let said = held.json();
    assert_eq!((&said["path"], &said["mode"]), (&"/jobs/nightly".into(), &"exclusive".into()));
    let token = said["token"].as_u64().expect("a token");
    let holders = cli.done(["holders", "/jobs/nightly"]);
    assert_eq!(holders["locks"][0]["token"], token);
    held.process.signal(Signal::SIGTERM);
    assert_eq!(held.process.ended().code(), Some(0));
    let next = Running::start(&cli, ["lock", "/jobs/nightly", "--try"]);
    let line = next.line();
    let next = line.strip_prefix("locked /jobs/nightly: token ").expect("it says what it is");
    assert!(next.parse::<u64>().expect("a token") > token);
}

/// The process whose id the script wrote to a file.
fn noted(file: &Path) -> Pid {
    let id = eventually("it has been noted", || fs::read_to_string(file).ok()?.trim().parse().ok());
    Pid::from_raw(id)
}

/// A command with a child. The script writes both process ids to files.
fn family(directory: &Path) -> (Vec<String>, [PathBuf; 2]) {
    let files = ["parent", "child"].map(|name| directory.join(name));
    let [parent, child] = files.each_ref().map(|file| file.display());
    let script = format!("sleep 600 & echo $! > {child}; echo $$ > {parent}; wait");
    (vec!["sh".to_owned(), "-c".to_owned(), script], files)
}

#[test]
fn killed_owner_ends_its_command_and_next_starts_in_time() {
    measured(kill_a_holder);
}

fn kill_a_holder() -> Result<(), Missed> {
    let (cluster, directory) = (cluster(), scratch());
    let (cli, at) = (cluster.cli(), directory.path());
    let (command, [parent, _]) = family(at);
    let first = lock(&cli, &[], &command);
    let parent = noted(&parent);
    let second = lock(&cli, &[], &job(at, "two"));
    until_waiting(&cli, 1);
    let token = cli.done(["holders", "/jobs/nightly"])["locks"][0]["token"].clone();
    first.process.signal(Signal::SIGKILL);
    let killed = Instant::now();
    // The servers are asked after the kill. So at the kill, more was left than they report.
    let holders = cli.done(["holders", "/jobs/nightly"]);
    if holders["locks"][0]["token"] != token {
        return Err(Missed("the next had the node before the servers were asked".to_owned()));
    }
    let left = what_the_holder_has_left(&holders);
    eventually("the command is gone", || (!is_running(parent)).then_some(()));
    until_log(at, 1);
    let free = killed.elapsed();
    end(at, "two");
    drop(second);
    if left.is_zero() {
        return Err(Missed("the holder had not renewed its lease for a term".to_owned()));
    }
    check("another command runs", free, left, TERM + MARGIN + TICKS)
}

/// How long nobody else can get the lock, by the servers.
fn what_the_holder_has_left(holders: &Value) -> Duration {
    Duration::from_millis(holders["locks"][0]["remaining_ms"].as_u64().unwrap_or_else(|| panic!("{holders}")))
}

#[test]
fn cut_off_command_is_stopped_with_its_descendants() {
    let (mut cluster, directory) = (cluster(), scratch());
    let cli = cluster.cli();
    let (command, files) = family(directory.path());
    let mut held = lock(&cli, &[], &command);
    let family = files.map(|file| noted(&file));
    cluster.kill(1);
    let mut errors = held.errors();
    assert_eq!(held.process.ended().code(), Some(1));
    assert!(family.into_iter().all(|process| !is_running(process)), "before the holder has ended");
    let said = errors.next().expect("it says why").expect("text");
    assert!(said.starts_with("leasehold: /jobs/nightly: lock lost"), "{said}");
}

#[test]
fn group_paused_past_term_is_ended_and_its_token_refused() {
    let (cluster, directory) = (cluster(), scratch());
    let (cli, at) = (cluster.cli(), directory.path());
    let (command, files) = family(at);
    let mut first = lock(&cli, &[], &command);
    let family = files.map(|file| noted(&file));
    let token = cli.done(["holders", "/jobs/nightly"])["locks"][0]["token"].as_u64().expect("it is held");
    let holder = Pid::from_raw(first.process.id().try_into().expect("an id"));
    // The guard is stopped too. Otherwise it would end the command in time.
    let all: Vec<Pid> = family.into_iter().chain([holder, guard_of(&first.process)]).collect();
    all.iter().for_each(|process| nix::sys::signal::kill(*process, Signal::SIGSTOP).expect("it is there"));
    let second = lock(&cli, &[], &job(at, "two"));
    until_log(at, 1);
    assert!(family.into_iter().all(is_running), "they stand still");
    // The first ones to go on may end the others, which are then not there.
    for process in &all {
        match nix::sys::signal::kill(*process, Signal::SIGCONT) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(error) => panic!("{process}: {error}"),
        }
    }
    assert_eq!(first.process.ended().code(), Some(1));
    assert!(family.into_iter().all(|process| !is_running(process)));
    let (old, new) = (token.to_string(), tokens(&log(at))[0].to_string());
    let (status, kind, message) = cli.fails(["put", "/result", "late", "--token", &old]);
    assert_eq!((status, kind.as_str()), (1, "token_not_held"), "{message}");
    let put = cli.done(["put", "/result", "good", "--token", &new]);
    let (status, kind, _) = cli.fails(["put", "/result", "again", "--token", &new, "--create"]);
    assert_eq!((status, kind.as_str()), (1, "exists"));
    let revision = put["revision"].to_string();
    let again = cli.done(["put", "/result", "again", "--token", &new, "--if-revision", &revision]);
    assert_eq!(again["version"], 2);
    assert_eq!(cli.done(["get", "/result"])["value"], "again");
    end(at, "two");
    drop(second);
}
