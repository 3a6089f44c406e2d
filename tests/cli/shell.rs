//! The shell with piped input: one session, its cache, and recalls while it waits for a line.

use std::time::Instant;

use serde_json::json;

use crate::common::{Cluster, SOON, eventually};

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
