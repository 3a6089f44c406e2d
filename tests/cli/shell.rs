//! The shell with piped input: one session, its cache, and recalls while it waits for a line.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::json;

use crate::common::{Cluster, Process, SOON, eventually, leasehold};

#[test]
fn the_second_get_comes_from_memory_until_somebody_else_writes() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    cli.done(["put", "/a", "1"]);
    assert_eq!(shell.ask("get /a")["source"], "server");
    let second = shell.ask("get /a");
    assert_eq!((&second["source"], &second["value"]), (&json!("memory"), &json!("1")));
    let began = Instant::now();
    cli.done(["put", "/a", "2"]);
    assert!(began.elapsed() < SOON / 6, "the shell consented while it waited for a line, long before its lease ended");
    let third = shell.ask("get /a");
    assert_eq!((&third["source"], &third["value"]), (&json!("server"), &json!("2")));
    assert_eq!(shell.ask("get /a")["source"], "memory");
    let stats = shell.ask("stats");
    assert_eq!((&stats["hits"], &stats["recalls"]), (&json!(2), &json!(1)), "{stats}");
    assert_eq!(shell.close().code(), Some(0));
}

#[test]
fn a_session_is_kept_while_nobody_types() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    cli.done(["volume", "create", "/v", "--term", "2s"]);
    cli.done(["put", "/v/a", "1"]);
    assert_eq!(shell.ask("get /v/a")["source"], "server");
    // Several terms. The volume is in use, so the shell renews its lease.
    for _ in 0..50 {
        assert_eq!(shell.ask("sleep 100ms"), json!({ "slept_ms": 100 }));
        assert_eq!(shell.ask("get /v/a")["value"], "1");
    }
    let stats = shell.ask("stats");
    assert_eq!(stats["server_reads"], 1, "the copy was good all the time: {stats}");
}

/// An old answer is given only to a read that accepts one, and says how old it is.
#[test]
fn max_stale_is_answered_from_memory_with_the_age() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    cli.done(["volume", "create", "/v", "--object-term", "0"]);
    cli.done(["put", "/v/a", "1"]);
    let first = shell.ask("get /v/a --max-stale 1h");
    assert_eq!((&first["source"], &first["age_ms"]), (&json!("server"), &json!(null)));
    cli.done(["put", "/v/a", "2"]);
    let old = shell.ask("get /v/a --max-stale 1h");
    assert_eq!((&old["source"], &old["value"]), (&json!("memory"), &json!("1")));
    assert!(old["age_ms"].as_u64().is_some(), "{old}");
    assert_eq!(shell.ask("get /v/a")["value"], "2", "other reads are as fresh as ever");
    assert_eq!(shell.ask("get /v/a --max-stale 0ms")["value"], "2");
    shell.ask("put /v/b 1");
    assert_eq!(shell.ask("get /v/a --max-stale 1h")["source"], "server", "it may depend on the client's own write");
    assert_eq!(shell.ask("stats")["stale_hits"], 1);
}

#[test]
fn shell_answers_each_line_and_survives_errors() {
    let cluster = Cluster::start(1);
    let mut shell = cluster.cli().shell();
    assert_eq!(shell.ask("put '/a b' \"two words\"")["path"], "/a b");
    shell.types("");
    shell.types("   # a comment");
    assert_eq!(shell.ask("get \"/a b\"")["value"], "two words", "empty lines and comments have no answer");
    let kind = |answer: serde_json::Value| answer["error"]["kind"].as_str().map(str::to_owned);
    assert_eq!(kind(shell.ask("get /nope")).as_deref(), Some("not_found"));
    assert_eq!(kind(shell.ask("get 'unclosed")).as_deref(), Some("usage"));
    assert_eq!(kind(shell.ask("frobnicate")).as_deref(), Some("usage"));
    assert_eq!(kind(shell.ask("put /a -")).as_deref(), Some("usage"));
    assert!(shell.ask("help")["help"].as_str().is_some_and(|help| help.contains("stats")));
    assert_eq!(kind(shell.ask("put /a 1 --if-revision 99")).as_deref(), Some("not_found"));
    assert_eq!(shell.ask("ls /")["children"], json!(["a b"]));
    shell.types("exit");
    assert_eq!(shell.process.ended().code(), Some(1), "that of the last line that failed");
}

#[test]
fn shell_unlocks_its_lock_and_refuses_others() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    let token = shell.ask("lock /a")["token"].as_u64().expect("a token");
    assert_eq!(cli.fails(["lock", "/a", "--try"]).1, "locked");
    assert_eq!(shell.ask("unlock a"), json!({ "path": "/a" }));
    let again = shell.ask("lock /a --try")["token"].as_u64().expect("it is free");
    assert!(again > token);
    assert_eq!(shell.ask("unlock /a")["path"], "/a");
    let refused = shell.ask("unlock /a");
    assert_eq!(refused["error"], json!({ "kind": "lock_not_found", "message": "/a: not locked by this shell" }));
    assert_eq!(cli.done(["holders", "/a"])["locks"], json!([]));
}

#[test]
fn shell_help_lists_only_commands_that_it_runs() {
    let cluster = Cluster::start(1);
    let mut shell = cluster.cli().shell();
    let help = shell.ask("help")["help"].as_str().expect("text").to_owned();
    let is_listed = |name: &str| help.lines().any(|line| line.split_whitespace().next() == Some(name));
    assert!(is_listed("unlock") && is_listed("get") && !is_listed("watch") && !is_listed("edit"), "{help}");
    let refused = shell.ask("watch /a");
    let message = "watch: not available in the shell; run it on the command line";
    assert_eq!(refused["error"], json!({ "kind": "usage", "message": message }));
}

/// A shell on a terminal of its own, which `script` makes.
#[test]
fn shell_runs_pasted_lines_completes_and_keeps_history() {
    let cluster = Cluster::start(1);
    let (cli, state) = (cluster.cli(), tempfile::tempdir().expect("a directory"));
    let program = leasehold().get_program().to_str().expect("UTF-8").to_owned();
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &format!("{program} shell")]).arg(state.path().join("typescript"));
    command.env("TERM", "xterm");
    command.env("LEASEHOLD_ENDPOINTS", &cli.endpoints).env("XDG_STATE_HOME", state.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("script starts");
    let mut input = child.stdin.take().expect("it is piped");
    let mut process = Process::of(child);
    // Once as a terminal that marks what is pasted, and once as one that does not.
    let marked = "\x1b[200~put /a 1\nput /b 'two\nlines'\n put /secret 1\nput /c 3\x1b[201~\r";
    input.write_all(marked.as_bytes()).expect("it reads");
    input.write_all(b"put /d 4\rput /e 5\rput /f 6\r").expect("it reads");
    let expected = json!(["a", "b", "c", "d", "e", "f", "secret"]);
    eventually("all lines have run", || {
        let children = cli.done(["ls", "/"])["children"].clone();
        if children == expected { Ok(()) } else { Err(children.to_string()) }
    });
    assert_eq!(cli.done(["get", "/b"])["value"], "two\nlines");
    // Tab completes a command and the names of children.
    input.write_all(b"pu\t/dir/leaf 7\rrm /di\t/le\t\rexit\r").expect("it reads");
    assert_eq!(process.ended().code(), Some(0));
    let history = std::fs::read_to_string(state.path().join("leasehold/history")).expect("a history");
    assert_eq!(history, "put /a 1\nput /c 3\nput /d 4\nput /e 5\nput /f 6\nput /dir/leaf 7\nrm /dir/leaf\nexit\n");
    assert_eq!(cli.done(["ls", "/dir"])["children"], json!([]));
}

#[test]
fn people_are_told_where_a_value_came_from() {
    let cluster = Cluster::start(1);
    let ran = cluster.cli().run_with(["shell"], b"put /a 1\nget /a\nget /a\n");
    assert_eq!((ran.status, ran.text()), (0, "revision 1\n1\n1\n"));
    assert!(ran.stderr.contains("# from memory, revision 1, valid for"), "{ran:?}");
}

#[test]
fn a_shell_that_is_told_to_stop_gives_its_leases_back() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    shell.ask("put /a 1");
    shell.ask("get /a");
    assert_eq!(cli.done(["holders", "/a"])["holders"].as_array().map(Vec::len), Some(1));
    shell.process.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(shell.process.ended().code(), Some(0));
    eventually("the leases are back", || {
        cli.done(["holders", "/a"])["holders"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
}
