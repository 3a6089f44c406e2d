//! `watch`: prints each change as a line.

use std::time::{Duration, Instant};

use leasehold_client_cache::DriftAllowance;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    common::{ALLOWANCE, Cli, Cluster, Process, eventually, stall::Stalls},
    running::Running,
};

/// Starts a watch, and waits until it has begun.
fn watch(cli: &Cli, arguments: &[&str]) -> Running {
    let running = Running::start(cli, [&["--json", "watch", "--progress"], arguments].concat());
    assert_eq!(running.json()["kind"], "progress");
    running
}

/// The next line that is not a progress mark.
fn event(running: &Running) -> Value {
    loop {
        let line = running.json();
        if line["kind"] != "progress" {
            return line;
        }
    }
}

fn put(revision: u64, path: &str, value: &str) -> Value {
    let (kind, reason, encoding) = ("put", "request", "utf8");
    json!({ "revision": revision, "kind": kind, "path": path, "reason": reason, "value": value, "encoding": encoding })
}

fn delete(revision: u64, path: &str, reason: &str) -> Value {
    let nothing = Value::Null;
    json!({ "revision": revision, "kind": "delete", "path": path, "reason": reason, "value": nothing, "encoding": nothing })
}

#[test]
fn each_change_below_a_path_is_told_until_the_watch_is_stopped() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["put", "/a/x", "before"]);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut running = watch(&cli, &["/a"]);
        let revision = cli.done(["put", "/a/b/c", "1"])["revision"].as_u64().expect("a revision");
        cli.done(["put", "/b", "elsewhere"]);
        cli.done(["rm", "-r", "/a/b"]);
        let expected = [
            put(revision, "/a/b", ""),
            put(revision, "/a/b/c", "1"),
            delete(revision + 2, "/a/b/c", "request"),
            delete(revision + 2, "/a/b", "request"),
        ];
        assert_eq!(expected.each_ref().map(|_| event(&running)), expected);
        running.process.signal(signal);
        assert_eq!(running.process.ended().code(), Some(0), "{signal}");
    }
}

#[test]
fn watch_starts_from_any_revision_and_can_watch_node_alone() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    for value in ["1", "2", "3"] {
        cli.done(["put", "/a/x", value]);
    }
    let running = Running::start(&cli, ["watch", "/a", "--from", "2"]);
    assert_eq!([running.line(), running.line()], ["2 put /a/x 2", "3 put /a/x 3"]);
    let node = Running::start(&cli, ["watch", "/a", "--from", "1", "--node"]);
    assert_eq!(node.line(), "1 put /a");
    let future = Running::start(&cli, ["watch", "/a", "--from", "6"]);
    for value in ["4", "5", "6"] {
        cli.done(["put", "/a/x", value]);
    }
    assert_eq!(future.line(), "6 put /a/x 6");
}

#[test]
fn what_goes_with_a_lease_is_told_with_why() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let mut ids = Vec::new();
    for (ttl, path) in [("60", "/s/revoked"), ("1", "/s/expired")] {
        let id = cli.done(["lease", "grant", ttl])["id"].as_str().expect("a lease").to_owned();
        ids.push(id.clone());
        let running = watch(&cli, &[path]);
        let revision = cli.done(["put", path, "v", "--lease", &id])["revision"].as_u64().expect("a revision");
        if ttl == "60" {
            cli.done(["lease", "revoke", &id]);
        }
        assert_eq!(event(&running)["revision"], revision);
        let reason = path.strip_prefix("/s/").expect("a path");
        assert_eq!(event(&running), delete(revision + 1, path, reason));
    }
    let mut service = Running::start(&cli, ["--json", "register", "/s/service", "here"]);
    service.json();
    let running = watch(&cli, &["/s/service"]);
    service.process.kill();
    let gone = event(&running);
    assert_eq!((&gone["kind"], &gone["reason"]), (&json!("delete"), &json!("expired")), "it was not heard of");
}

#[test]
fn watch_marks_binary_values_and_escapes_newlines() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let text = "two\nlines\\";
    cli.run_with(["put", "/a", "-"], text.as_bytes());
    cli.run_with(["put", "/b", "-"], &[0, 0xff, b'\n']);
    let running = Running::start(&cli, ["watch", "/", "--from", "1"]);
    assert_eq!([running.line(), running.line()], [r"1 put /a two\nlines\\", "2 put /b (base64) AP8K"]);
    let json = Running::start(&cli, ["--json", "watch", "/", "--from", "1"]);
    assert_eq!((json.json()["value"].as_str(), json.json()["encoding"].as_str()), (Some(text), Some("base64")));
}

#[test]
fn watch_ends_when_its_reader_closes_the_pipe() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["put", "/a", "1"]);
    for arguments in [&["watch", "/a", "--from", "1"][..], &["elect", "/jobs/leader", "--observe"]] {
        let mut command = cli.command(arguments);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("the binary starts");
        let mut stdout = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
        let mut process = Process::of(child);
        if arguments[0] == "watch" {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut stdout, &mut line).expect("a line");
        }
        // No change comes after this.
        drop(stdout);
        assert_eq!(process.ended().code(), Some(0), "{arguments:?}");
    }
}

const TTL: Duration = Duration::from_secs(2);

/// The margin of a key lease: 1 ms plus twice the drift allowance over the term and a 250 ms tick.
fn margin() -> Duration {
    DriftAllowance::DEFAULT.over(TTL + Duration::from_millis(250)) * 2 + Duration::from_millis(1)
}

/// The most time from the end of the term and the margin until a watcher is notified.
const HEARD_WITHIN: Duration = Duration::from_millis(500);

#[test]
fn watcher_hears_of_expiry_within_500_ms_of_term_and_margin() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    // One run may meet a slow disk, which [`Stalls`] does not see.
    let mut took: Vec<Duration> = (0..3).map(|_| hear_of_expiry(&cli)).collect();
    took.sort_unstable();
    let most = TTL + margin() + HEARD_WITHIN;
    assert!(took[1] <= most, "a watcher heard of the end after {took:?}: expected {most:?} at most in two of three");
}

/// The time from the grant's answer until the watcher is notified, without stalls of the machine.
fn hear_of_expiry(cli: &Cli) -> Duration {
    let running = watch(cli, &["/members/one"]);
    let (stalls, asked) = (Stalls::watched(), Instant::now());
    let granted = cli.done(["lease", "grant", &format!("{}s", TTL.as_secs())]);
    let answered = Instant::now();
    let id = granted["id"].as_str().expect("a lease");
    let put = cli.done(["put", "/members/one", "here", "--lease", id]);
    assert_eq!(event(&running)["revision"], put["revision"]);
    let told = event(&running);
    let heard = Instant::now();
    assert_eq!((&told["kind"], &told["reason"]), (&json!("delete"), &json!("expired")));
    assert!(heard - asked >= TTL, "heard of the end {:?} after the lease was asked for", heard - asked);
    (heard - answered).saturating_sub(stalls.during(answered, heard).min(ALLOWANCE))
}

#[test]
fn a_watch_goes_on_over_the_loss_of_leaders_without_a_gap() {
    let mut cluster = Cluster::start(3);
    let cli = cluster.cli();
    let running = watch(&cli, &["/n"]);
    let mut expected = Vec::new();
    for round in 0..3 {
        for number in 0..5 {
            let value = format!("{round}.{number}");
            let written = eventually("a write is done", || {
                let ran = cli.run(["--json", "put", "/n", &value]);
                if ran.status == 0 { Ok(ran.json()) } else { Err(ran.error().2) }
            });
            expected.push((written["revision"].as_u64().expect("a revision"), value));
        }
        let leader = cluster.leader();
        cluster.kill(leader);
        cluster.spawn(leader);
        cluster.wait_until_it_serves();
    }
    let mut told = Vec::new();
    let last = expected.last().expect("writes").0;
    while told.last().is_none_or(|(revision, _)| *revision < last) {
        let event = event(&running);
        told.push((event["revision"].as_u64().expect("a revision"), event["value"].as_str().expect("text").to_owned()));
    }
    assert!(told.is_sorted_by(|one, other| one.0 < other.0), "each once, in order: {told:?}");
    // A write of unknown outcome may have taken effect twice, because two commands sent it.
    let acknowledged: Vec<_> = told.into_iter().filter(|one| expected.contains(one)).collect();
    assert_eq!(acknowledged, expected);
}

#[test]
fn a_watch_that_cannot_go_on_or_cannot_be_meant_says_so() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let mut shell = cli.shell();
    let refused = shell.ask("watch /a");
    assert_eq!(refused["error"]["kind"], "usage", "a line of the shell has one answer: {refused}");
    assert_eq!(cli.fails(["watch", "/a", "--from", "-1"]).0, 2);
    let alone = Cli::of("127.0.0.1:1");
    assert_eq!(alone.fails(["--timeout", "300ms", "watch", "/a"]).0, 3);
}
