//! Bad input changes nothing, and the error says what was wrong and what was expected.

use crate::common::{Cli, Cluster, free_address};

#[test]
fn what_cannot_be_meant_is_wrong_usage() {
    // No case reaches a server.
    let cli = Cli::of(free_address());
    let cases: [(&[&str], &str); 24] = [
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
        (&["volume", "create", "/v", "--term", "soon"], "500ms"),
        (&["volume", "create", "/v", "--tracking", "all"], "objects"),
        (&["lease"], "grant, keep-alive, timetolive, revoke, list"),
        (&["lease", "grant"], "TTL"),
        (&["lease", "grant", "soon"], "a whole number of seconds"),
        (&["lease", "grant", "-1"], "a whole number of seconds"),
        (&["lease", "grant", "60", "--id", "xyz"], "hexadecimal digits"),
        (&["lease", "revoke", "0"], "hexadecimal digits"),
        (&["lease", "timetolive", "0x7b"], "hexadecimal digits"),
        (&["lease", "keep-alive", "1694d81417acd4754"], "1 to 16 hexadecimal digits"),
        (&["put", "/a", "1", "--lease", ""], "hexadecimal digits"),
        (&["register", "/a"], "VALUE"),
        (&["serve", "--id", "0"], "ids begin at 1"),
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
    assert!(message.contains("1048577 bytes exceed the limit of 1048576"), "{message}");

    let (status, kind, message) = cli.fails(["volume", "set", "/", "--skew-margin", "1ms"]);
    assert_eq!((status, kind.as_str()), (1, "volume_settings"));
    assert!(
        message.contains("skew margin 1ms: out of range; expected more than 20.5ms") && message.contains("1000 ppm"),
        "{message}"
    );
    let (status, _, message) = cli.fails(["volume", "create", "/v", "--term", "1ms"]);
    assert!(status == 1 && message.contains("term of 1ms: expected 200ms"), "{message}");
    let (status, _, message) = cli.fails(["volume", "create", "/v", "--term", "2s", "--object-term", "1s"]);
    assert!(status == 1 && message.contains("object term 1s: out of range; expected the volume term, 2s"), "{message}");

    for command in ["show", "set", "remove"] {
        let (status, kind, message) = cli.fails(["volume", command, "/a"]);
        assert_eq!((status, kind.as_str()), (1, "not_a_volume"), "{command}");
        assert!(message.contains("/a: not a volume; it belongs to volume /"), "{message}");
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
fn help_and_completions_are_answers() {
    let cli = Cli::of(free_address());
    let help = cli.run(["--help"]);
    assert_eq!(help.status, 0);
    for expected in ["serve", "shell", "LEASEHOLD_ENDPOINTS", "Exit status"] {
        assert!(help.text().contains(expected), "{expected}");
    }
    assert!(cli.run(["completions", "bash"]).text().contains("_leasehold"));
}
