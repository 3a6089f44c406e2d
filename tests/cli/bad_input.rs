//! Bad input changes nothing. The error names the subject and the problem.

use crate::common::{Cli, Cluster, free_address};

#[test]
fn malformed_arguments_are_wrong_usage() {
    // No case reaches a server.
    let cli = Cli::of(free_address());
    let cases: [(&[&str], &str); 27] = [
        (&["get", "/a//b"], "empty component at byte 3"),
        (&["get", "/a/"], "empty component"),
        (&["get", "/a/../b"], "\"..\""),
        (&["get", ""], "/"),
        (&["put", "/a"], "VALUE"),
        (&["put", "/a", "1", "--create", "--if-revision", "3"], "cannot be used with"),
        (&["put", "/a", "1", "--if-revision", "x"], "--if-revision"),
        (&["frobnicate"], "frobnicate"),
        (&["get", "/a", "--timeout", "5"], "500ms"),
        (&["get", "/a", "--endpoints", "nowhere"], "HOST:PORT"),
        (&["volume", "create", "/v", "--term", "soon"], "adaptive:10s:60s:100"),
        (&["volume", "create", "/v", "--tracking", "all"], "objects"),
        (&["lease"], "grant, keep-alive, timetolive, revoke, list"),
        (&["lease", "grant"], "TTL"),
        (&["lease", "grant", "soon"], "not a whole number of seconds"),
        (&["lease", "grant", "-1"], "not a whole number of seconds"),
        (&["lease", "grant", "--until", "18:00"], "not a time in UTC, such as 2026-12-24T18:00:00Z"),
        (&["lease", "grant", "--until", "1989-12-03T00:00:00Z"], "has passed, expected a time to come"),
        (&["lease", "grant", "60", "--until", "2999-12-24T18:00:00Z"], "cannot be used with"),
        (&["lease", "grant", "60", "--id", "xyz"], "hexadecimal digits"),
        (&["lease", "revoke", "0"], "hexadecimal digits"),
        (&["lease", "timetolive", "0x7b"], "hexadecimal digits"),
        (&["lease", "keep-alive", "1694d81417acd4754"], "1 to 16 hexadecimal digits"),
        (&["put", "/a", "1", "--lease", ""], "hexadecimal digits"),
        (&["register", "/a"], "VALUE"),
        (&["serve", "--id", "0"], "replica 0: invalid id"),
        (&["serve", "--cluster", "1=a:1,2"], "N=HOST:PORT"),
    ];
    for (arguments, expected) in cases {
        let (status, kind, message) = cli.fails(arguments);
        assert_eq!((status, kind.as_str()), (2, "usage"), "{arguments:?}: {message}");
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
    let long = format!("/{}", "x".repeat(256));
    let (status, _, message) = cli.fails(["get", long.as_str()]);
    assert!(status == 2 && message.contains("256 bytes exceed the limit of 255"), "{message}");
}

#[test]
fn server_limits_are_refused_with_numbers_and_no_change() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["put", "/a", "1"]);
    let before = cli.done(["cluster", "status"])["revision"].clone();

    let large = cli.run_with(["--json", "put", "/large", "-"], &vec![b'x'; (1 << 20) + 1]);
    let (status, kind, message) = large.error();
    assert_eq!((status, kind.as_str()), (1, "limit"));
    assert!(
        message.starts_with("/large: ") && message.contains("1048577 bytes exceed the limit of 1048576"),
        "{message}"
    );

    let (status, kind, message) = cli.fails(["volume", "set", "/", "--skew-margin", "1ms"]);
    assert_eq!((status, kind.as_str()), (1, "volume_settings"));
    assert!(message.contains("expected more than 20.5ms") && message.contains("1000 ppm"), "{message}");
    let (status, _, message) = cli.fails(["volume", "create", "/v", "--term", "1ms"]);
    assert!(status == 1 && message.contains("volume term 1ms: out of range; expected 200ms"), "{message}");
    let (status, _, message) = cli.fails(["volume", "create", "/v", "--term", "2s", "--object-term", "100ms"]);
    assert!(status == 1 && message.contains("object term 100ms: out of range; expected 200ms to 8784h"), "{message}");

    let (status, kind, message) = cli.fails(["lease", "grant", "9000h"]);
    assert_eq!((status, kind.as_str()), (1, "limit"));
    assert!(message.contains("TTL 9000h of a key lease: out of range; expected "), "{message}");
    assert!(message.ends_with(" to 8784h"), "{message}");
    let (_, _, message) = cli.fails(["lock", "/a", "--delay", "2h", "--", "true"]);
    assert_eq!(message, "/a: lock delay 2h exceeds the limit of 1m");

    for command in ["show", "set", "remove"] {
        let (status, kind, message) = cli.fails(["volume", command, "/a"]);
        assert_eq!((status, kind.as_str()), (1, "not_a_volume"), "{command}");
        assert!(message.starts_with("/a: not a volume; it belongs to volume /"), "{message}");
    }
    assert_eq!(cli.done(["cluster", "status"])["revision"], before);
}

#[test]
fn without_a_server_the_status_is_3() {
    let cli = Cli::of(free_address());
    for arguments in [&["get", "/a"][..], &["put", "/a", "1"], &["cluster", "status"], &["shell"], &["why", "/a"]] {
        let (status, kind, message) = cli.fails(["--timeout", "300ms"].iter().chain(arguments));
        assert_eq!((status, kind.as_str()), (3, "unavailable"), "{arguments:?}");
        assert!(message.contains(&cli.endpoints), "{message}");
    }
}

#[test]
fn error_begins_with_its_subject_once() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["put", "/a/b", "1"]);
    let said = |arguments: &[&str]| {
        let ran = cli.run(arguments);
        assert_eq!((ran.status, ran.text()), (1, ""), "{ran:?}");
        ran.stderr
    };
    assert_eq!(said(&["get", "/hello"]), "leasehold: /hello: not found\n");
    assert_eq!(said(&["rm", "-r", "hello"]), "leasehold: /hello: not found\n");
    assert_eq!(said(&["export", "/hello", "out"]), "leasehold: /hello: not found\n");
    assert_eq!(said(&["import", "no/such", "/a"]).split(": ").nth(1), Some("no/such"));
    let never_granted = "leasehold: lease 0000000000000abc: not found\n";
    for command in ["timetolive", "revoke", "keep-alive"] {
        assert_eq!(said(&["lease", command, "abc"]), never_granted, "{command}");
    }
    assert_eq!(said(&["put", "/a/c", "1", "--lease", "abc"]), never_granted);
    for arguments in [&["put", "/a/b", "2", "--create"][..], &["rm", "/a"], &["volume", "show", "/a"]] {
        let said = said(arguments);
        let path = arguments[if arguments[0] == "volume" { 2 } else { 1 }];
        assert!(said.starts_with(&format!("leasehold: {path}")), "{said}");
        assert_eq!(said.matches(&format!("{path}: ")).count().max(1), 1, "{said}");
    }
    let token = said(&["put", "/a/b", "2", "--token", "99"]);
    assert!(token.starts_with("leasehold: token 99: no current lock"), "{token}");
}

#[test]
fn wrong_usage_keeps_its_lines_except_with_json() {
    // No case reaches a server.
    let cli = Cli::of(free_address());
    let ran = cli.run(["get", "/a", "--jsn"]);
    assert_eq!((ran.status, ran.text()), (2, ""));
    assert!(ran.stderr.starts_with("leasehold: unexpected argument '--jsn' found\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("\nUsage: leasehold get"), "{}", ran.stderr);
    let (status, _, message) = cli.fails(["get", "/a", "--jsn"]);
    assert!(status == 2 && message.contains("; Usage: leasehold get"), "{message}");

    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("leasehold.toml");
    std::fs::write(&file, "listen_at = 1\n").expect("written");
    let ran = cli.run(["serve", "--config", file.to_str().expect("UTF-8")]);
    assert_eq!(ran.status, 2, "{ran:?}");
    assert!(ran.stderr.starts_with(&format!("leasehold: {}: TOML parse error", file.display())), "{}", ran.stderr);
    assert!(ran.stderr.contains("\n1 | listen_at = 1\n"), "{}", ran.stderr);
}

#[test]
fn unknown_command_is_answered_with_a_command_that_exists() {
    let cli = Cli::of(free_address());
    for (word, command) in [("del", "rm"), ("list", "ls")] {
        let (status, _, message) = cli.fails([word, "/a"]);
        assert!(status == 2 && message.contains(&format!("exists: '{command}'")), "{message}");
    }
    let (_, _, message) = cli.fails(["demo-clien"]);
    assert!(!message.contains("demo-client'"), "{message}");
}

#[test]
fn help_and_completions_are_answers() {
    let cli = Cli::of(free_address());
    let help = cli.run(["--help"]);
    assert_eq!(help.status, 0);
    for expected in ["serve", "shell", "LEASEHOLD_ENDPOINTS", "Exit status"] {
        assert!(help.text().contains(expected), "{expected}");
    }
    let help = cli.run(["put", "--help"]);
    let (options, global) = help.text().split_once("Global options:").expect("a section of their own");
    assert!(options.contains("--create") && !options.contains("--endpoints"), "{options}");
    assert!(global.contains("--endpoints") && global.contains("[default: 15s]"), "{global}");
    let help = cli.run(["serve", "--help"]);
    assert!(!help.text().contains("--endpoints") && !help.text().contains("--timeout"), "{help:?}");
    assert!(cli.run(["completions", "bash"]).text().contains("_leasehold"));
}

#[test]
fn each_command_that_help_shows_has_a_man_page() {
    let cli = Cli::of(free_address());
    let directory = tempfile::tempdir().expect("a directory");
    let pages = directory.path().join("share/man1");
    let pages_text = pages.to_str().expect("UTF-8");
    assert_eq!(cli.run(["man", pages_text]).text(), format!("man pages in {pages_text}\n"));
    assert_eq!(cli.done(["man", pages_text])["directory"], pages_text);
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap_or_default();
    for name in ["leasehold.1", "leasehold-put.1", "leasehold-volume-create.1", "leasehold-lease-grant.1"] {
        assert!(page(name).starts_with(".ie"), "{name}: {:?}", page(name));
    }
    assert!(page("leasehold-put.1").contains("if\\-revision") && page("leasehold.1").contains("health"));
    for name in ["leasehold-guard.1", "leasehold-help.1", "leasehold-volume-help.1"] {
        assert!(!pages.join(name).exists(), "{name}");
    }
    let (put, serve) = (page("leasehold-put.1"), page("leasehold-serve.1"));
    assert!(put.contains("endpoints") && !serve.contains("endpoints") && serve.contains("cluster"), "{serve}");
    let file = directory.path().join("file");
    std::fs::write(&file, "").expect("written");
    let (status, kind, message) = cli.fails(["man", file.to_str().expect("UTF-8")]);
    assert_eq!((status, kind.as_str()), (1, "io"), "{message}");
    assert!(message.starts_with(&format!("{}: ", file.display())), "{message}");
}
