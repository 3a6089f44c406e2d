//! `elect`: one of several candidates leads, and observers are notified of the leader.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    common::{Cli, Cluster, eventually},
    running::Running,
};

/// A volume whose term is short, so that a lost leader is replaced soon. It is long enough for a
/// busy machine to renew in time.
fn cluster() -> Cluster {
    let cluster = Cluster::start(1);
    cluster.cli().done(["volume", "create", "/jobs", "--term", "4s"]);
    cluster
}

fn candidate(cli: &Cli, name: &str) -> Running {
    Running::start(cli, ["--json", "elect", "/jobs/leader", name])
}

fn until_in_line(cli: &Cli, count: usize) {
    eventually("so many hold or wait", || {
        let holders = cli.done(["holders", "/jobs/leader"]);
        if holders["locks"].as_array().map_or(0, Vec::len) == count { Ok(()) } else { Err(format!("{holders}")) }
    });
}

fn token(said: &Value, name: &str) -> u64 {
    assert_eq!((&said["path"], &said["name"]), (&"/jobs/leader".into(), &name.into()), "{said}");
    said["token"].as_u64().expect("a token")
}

#[test]
fn candidates_lead_in_turn_after_resign_or_kill() {
    let cluster = cluster();
    let cli = cluster.cli();
    let observer = Running::start(&cli, ["--json", "elect", "/jobs/leader", "--observe"]);
    let names = ["one", "two", "three"];
    let mut candidates: Vec<Running> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        candidates.push(candidate(&cli, name));
        until_in_line(&cli, at + 1);
    }
    let mut tokens = Vec::new();
    for (name, candidate) in names.iter().zip(&mut candidates) {
        let said = candidate.json();
        assert!(said["remaining_ms"].as_u64().is_some_and(|certain| certain > 0), "{said}");
        tokens.push(token(&said, name));
        assert_eq!(token(&observer.json(), name), tokens[tokens.len() - 1]);
        match *name {
            "one" => {
                candidate.process.signal(Signal::SIGTERM);
                assert_eq!(candidate.process.ended().code(), Some(0));
            }
            _ => candidate.process.kill(),
        }
    }
    assert!(tokens.is_sorted_by(|one, other| one < other), "{tokens:?}");
    eventually("its name went with its lease", || (cli.run(["get", "/jobs/leader"]).status == 1).then_some(()));
    observer.process.signal(Signal::SIGTERM);
    assert_eq!(observer.rest(), Vec::<String>::new(), "each leader once");
}

#[test]
fn elect_command_runs_only_while_candidate_leads() {
    let mut cluster = cluster();
    let cli = cluster.cli();
    let said = cli.run(["elect", "/jobs/leader", "one", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN; exit 7"]);
    assert_eq!(said.status, 7);
    let first: u64 = said.text().trim().parse().expect("a token");
    let mut second = Running::start(&cli, ["elect", "/jobs/leader", "two", "--", "sh", "-c", "echo led; sleep 600"]);
    assert_eq!(second.line(), "led");
    let observer = Running::start(&cli, ["elect", "/jobs/leader", "--observe"]);
    let line = observer.line();
    let token = line.strip_prefix("leader two: token ").expect("a name and a token");
    assert!(token.parse::<u64>().expect("a token") > first, "{line}");
    let (status, kind, message) = cli.fails(["elect", "/jobs/leader", "three", "--try"]);
    assert_eq!((status, kind.as_str()), (1, "locked"), "{message}");
    let (status, kind, message) = cli.fails(["elect", "/jobs/leader", "three", "--wait", "100ms"]);
    assert_eq!((status, kind.as_str()), (1, "not_granted"), "{message}");
    cluster.kill(1);
    let mut errors = second.errors();
    assert_eq!(second.process.ended().code(), Some(1));
    assert!(second.process.has_ended().is_some());
    let said = errors.next().expect("it says why").expect("text");
    assert!(said.starts_with("leasehold: /jobs/leader: leadership lost"), "{said}");
}

#[test]
fn who_stands_still_past_its_term_has_lost_when_it_goes_on() {
    let cluster = cluster();
    let cli = cluster.cli();
    let mut first = candidate(&cli, "one");
    let old = token(&first.json(), "one");
    let second = candidate(&cli, "two");
    until_in_line(&cli, 2);
    first.process.pause(true);
    let new = token(&second.json(), "two");
    assert!(new > old);
    first.process.pause(false);
    assert_eq!(first.process.ended().code(), Some(1));
    let (status, kind, _) = cli.fails(["put", "/work", "late", "--token", &old.to_string()]);
    assert_eq!((status, kind.as_str()), (1, "token_not_held"));
    cli.done(["put", "/work", "good", "--token", &new.to_string()]);
}

#[test]
fn stopped_leader_hands_over_to_named_candidate_past_queue() {
    let cluster = cluster();
    let cli = cluster.cli();
    let observer = Running::start(&cli, ["--json", "elect", "/jobs/leader", "--observe"]);
    let mut first = Running::start(&cli, ["--json", "elect", "/jobs/leader", "one", "--hand-over", "three"]);
    until_in_line(&cli, 1);
    let mut second = candidate(&cli, "two");
    until_in_line(&cli, 2);
    let mut third = Running::start(&cli, ["--json", "elect", "/jobs/leader", "three", "--hand-over", "nobody"]);
    until_in_line(&cli, 3);
    let mut tokens = vec![token(&first.json(), "one")];
    first.process.signal(Signal::SIGTERM);
    assert_eq!(first.process.ended().code(), Some(0));
    tokens.push(token(&third.json(), "three"));
    // The leadership cannot be handed to a session that is not a candidate. The next candidate
    // leads, and an error says so.
    third.process.signal(Signal::SIGTERM);
    let mut errors = third.errors();
    assert_eq!(third.process.ended().code(), Some(1));
    let said = errors.find_map(|line| line.ok().filter(|line| line.contains("nobody")));
    assert!(said.is_some_and(|said| said.contains("the next candidate leads")));
    tokens.push(token(&second.json(), "two"));
    for (name, token_of) in ["one", "three", "two"].iter().zip(&tokens) {
        assert_eq!(token(&observer.json(), name), *token_of);
    }
    assert!(tokens.is_sorted_by(|one, other| one < other), "{tokens:?}");
    second.process.signal(Signal::SIGTERM);
    assert_eq!(second.process.ended().code(), Some(0));
}

#[test]
fn a_command_that_ends_hands_over_too() {
    let cluster = cluster();
    let cli = cluster.cli();
    let folder = tempfile::tempdir().expect("a folder");
    let end = folder.path().join("end");
    let until_end = format!("echo led; until [ -e {} ]; do sleep 0.02; done; exit 7", end.display());
    let mut first =
        Running::start(&cli, ["elect", "/jobs/leader", "one", "--hand-over", "three", "--", "sh", "-c", &until_end]);
    assert_eq!(first.line(), "led");
    let _second = candidate(&cli, "two");
    until_in_line(&cli, 2);
    let third = candidate(&cli, "three");
    until_in_line(&cli, 3);
    std::fs::write(end, "").expect("a file");
    assert_eq!(first.process.ended().code(), Some(7), "the status is the command's");
    token(&third.json(), "three");
    until_in_line(&cli, 2);
}

#[test]
fn a_candidate_needs_a_name_and_an_observer_has_none() {
    let cluster = cluster();
    let cli = cluster.cli();
    for arguments in [&["elect", "/jobs/leader"][..], &["elect", "/jobs/leader", "one", "--observe"]] {
        let (status, _, message) = cli.fails(arguments);
        assert_eq!(status, 2, "{message}");
    }
}
