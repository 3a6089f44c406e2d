//! `txn`: comparisons and operations from standard input or options, the answer, the exit status.

use serde_json::json;

use crate::common::{Cli, Cluster, free_address};

fn kind(answer: &serde_json::Value) -> Option<&str> {
    answer["error"]["kind"].as_str()
}

#[test]
fn txn_reads_etcdctl_syntax_and_reports_results() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let revision = cli.done(["put", "/config", "old"])["revision"].as_u64().expect("a number");
    let input = b"# is it as it was?\nvalue(\"/config\") = \"old\"\nversion(\"/owner\") = \"0\"\n\n\
        put /config \"new value\"\nput /owner me\n\ndel /config\n";
    let ran = cli.run_with(["--json", "txn"], input);
    let stat = |version, create| json!({ "version": version, "create_revision": create, "revision": revision + 1 });
    let result = |path: &str, stat: serde_json::Value| {
        let mut result = stat;
        result["operation"] = json!("put");
        result["path"] = json!(path);
        result
    };
    let results = [result("/config", stat(2, revision)), result("/owner", stat(1, revision + 1))];
    let expected = json!({ "succeeded": true, "revision": revision + 1, "failed": null, "results": results });
    assert_eq!((ran.status, ran.json()), (0, expected));
    assert_eq!(cli.done(["get", "/config"])["value"], "new value");

    let again = cli.run_with(["--json", "txn"], input);
    let found = stat(2, revision);
    let failed = json!({ "compare": "value(\"/config\") = \"old\"", "found": found });
    let results = [json!({ "operation": "del", "path": "/config", "removed": 1 })];
    let expected = json!({ "succeeded": false, "revision": revision + 2, "failed": failed, "results": results });
    assert_eq!((again.status, again.json()), (1, expected), "the other branch was done, and the status says so");
    assert!(again.stderr.is_empty(), "it is no error: {again:?}");

    let text = cli.run_with(["txn"], b"exists(/owner) = true\n\ndel /owner\nput /a/b x\n");
    let expected = format!("SUCCESS, revision {0}\ndel /owner: removed 1\nput /a/b: revision {0}\n", revision + 3);
    assert_eq!((text.status, text.text()), (0, expected.as_str()));
    let text = cli.run_with(["txn"], b"mod(/none) > 0\n");
    assert_eq!((text.status, text.text()), (1, "FAILURE: mod(\"/none\") > \"0\": node not found\n"));
    let text = cli.run_with(["txn"], b"version(/a/b) > 1\n");
    let number = revision + 3;
    let expected = format!("FAILURE: version(\"/a/b\") > \"1\": found version 1, create {number}, mod {number}\n");
    assert_eq!((text.status, text.text()), (1, expected.as_str()));
}

#[test]
fn refused_txn_changes_nothing_and_names_operation() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let refused = |input: &[u8]| cli.run_with(["--json", "txn"], input).error();
    let (status, kind, message) = refused(b"\nput /a x\ndel /none\n");
    assert_eq!((status, kind.as_str()), (1, "not_found"));
    assert!(message == "txn: operation 2 of branch then: /none: not found", "{message}");
    let (status, kind, message) = refused(b"\n\nput /a x\ndel -r /a\n");
    assert_eq!((status, kind.as_str()), (1, "overlap"));
    assert!(message.contains("operations 1 and 2 of branch otherwise: both affect /a"), "{message}");
    assert_eq!(cli.done(["ls", "/"])["children"], json!([]));
}

#[test]
fn malformed_txn_is_refused_with_its_line() {
    // No case reaches a server.
    let cli = Cli::of(free_address());
    let cases: [(&[u8], &str); 6] = [
        (b"value(/a) = x\nver(/a) = one\n", "line 2: ver: \"one\" is not a number"),
        (b"\nput /a x\nget /a\n", "line 3: operation \"get /a\": not put or del"),
        (b"a = b\n", "line 1: comparison \"a = b\": no (; write it as value(\"/a\") = \"x\""),
        (b"\nput /a\n", "line 2: "),
        (b"\n\n\nput /a x\n", "line 4: a fourth paragraph"),
        (b"value(/a) = \xff\n", "not UTF-8"),
    ];
    for (input, expected) in cases {
        let (status, kind, message) = cli.run_with(["--json", "txn"], input).error();
        assert_eq!((status, kind.as_str()), (2, "usage"), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let (_, _, message) = cli.fails(["txn", "--then", "put /a x", "--then", "push /a"]);
    assert!(message.contains("--then 2: operation \"push /a\": not put or del"), "{message}");
}

#[test]
fn shell_txn_takes_options_and_recalls_shell_copies() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    assert_eq!(kind(&shell.ask("txn")), Some("usage"), "its lines are commands");
    shell.ask("put /a 1");
    assert_eq!(shell.ask("get /a")["value"], "1");
    let changed = shell.ask(r#"txn --when 'value("/a") = "1"' --then "put /a 'two words'" --then 'put /b 2'"#);
    assert_eq!((&changed["succeeded"], &changed["results"][1]["path"]), (&json!(true), &json!("/b")));
    assert_eq!(shell.ask("get /a")["value"], "two words");
    let other = cli.run(["--json", "txn", "--then", "put /a 3", "--then", "del /b"]);
    assert_eq!((other.status, &other.json()["succeeded"]), (0, &json!(true)));
    assert_eq!(shell.ask("get /a")["value"], "3");
    assert_eq!(kind(&shell.ask("get /b")), Some("not_found"));
    assert_eq!(shell.ask("txn --when 'exists(/b) = true'")["succeeded"], false);
    assert_eq!(shell.close().code(), Some(1), "that of the last line that was not done");
}
