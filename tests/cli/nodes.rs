//! The commands `put`, `get`, `stat`, `ls`, `tree` and `rm`.

use serde_json::json;

use crate::common::Cluster;

#[test]
fn what_is_put_is_read_listed_and_removed() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let put = cli.done(["put", "/services/web", "up"]);
    let revision = put["revision"].as_u64().expect("a number");
    assert_eq!(put["path"], "/services/web");
    let again = cli.done(["put", "services/web", "down"]);
    assert_eq!(again["version"], 2);
    assert_eq!(again["create_revision"], revision);

    let got = cli.done(["get", "/services/web"]);
    let valid = got["valid_ms"].as_u64().expect("a number");
    assert!(valid > 0 && valid <= 10_000, "{got}");
    let expected = json!({
        "path": "/services/web", "value": "down", "encoding": "utf8", "revision": again["revision"],
        "create_revision": revision, "version": 2, "lease": null, "session": null, "source": "server", "valid_ms": valid,
        "age_ms": null,
    });
    assert_eq!(got, expected);

    cli.done(["put", "/services/db", ""]);
    let stat = cli.done(["stat", "/services"]);
    assert_eq!((&stat["children"], &stat["children_version"], &stat["value_bytes"]), (&json!(2), &json!(2), &json!(0)));
    assert_eq!(cli.done(["ls", "services"])["children"], json!(["db", "web"]));
    let leaf = |name: &str| json!({ "name": name, "path": format!("/services/{name}"), "children": [] });
    let expected = json!({ "name": "services", "path": "/services", "children": [leaf("db"), leaf("web")] });
    assert_eq!(cli.done(["tree", "/services"]), expected);

    assert_eq!(cli.done(["rm", "/services/db"])["removed"], 1);
    assert_eq!(cli.done(["rm", "-r", "/services"])["removed"], 2);
    assert_eq!(cli.done(["ls"])["children"], json!([]));
}

#[test]
fn people_get_text() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    assert_eq!(cli.run(["put", "/a/b", "1"]).text(), "revision 1\n");
    cli.run(["put", "/a/c/d", "2"]);
    assert_eq!(cli.run(["ls", "/a"]).text(), "b\nc\n");
    assert_eq!(cli.run(["tree", "/a"]).text(), "/a\n├── b\n└── c\n    └── d\n\n3 nodes below\n");
    let got = cli.run(["get", "/a/b", "-v"]);
    assert_eq!(got.text(), "1\n");
    assert!(got.stderr.contains("from server, revision 1, valid for"), "{got:?}");
    let stat = cli.run(["stat", "/a"]);
    assert!(stat.text().lines().any(|line| line.split_whitespace().eq(["children", "2"])), "{stat:?}");
    let missing = cli.run(["get", "/nope"]);
    assert_eq!((missing.status, missing.text()), (1, ""));
    assert_eq!(missing.stderr, "leasehold: /nope: not found\n");
}

#[test]
fn get_reads_several_nodes_and_subtrees() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    for (path, value) in [("/a", "1"), ("/a/b", "2"), ("/a/b/c", "3\n"), ("/ab", "4")] {
        cli.done(["put", path, value]);
    }
    assert_eq!(cli.run(["get", "/ab", "/a"]).text(), "/ab\n4\n/a\n1\n");
    assert_eq!(cli.run(["get", "--prefix", "/a"]).text(), "/a\n1\n/a/b\n2\n/a/b/c\n3\n");
    assert_eq!(cli.run(["get", "--raw", "/ab", "/a"]).text(), "41");
    let got = cli.done(["get", "--prefix", "/a/b", "/ab"]);
    let nodes = got["nodes"].as_array().expect("a list");
    let values: Vec<_> = nodes.iter().map(|node| (node["path"].clone(), node["value"].clone())).collect();
    let pair = |path: &str, value: &str| (json!(path), json!(value));
    assert_eq!(values, [pair("/a/b", "2"), pair("/a/b/c", "3\n"), pair("/ab", "4")]);
    assert_eq!(nodes[0]["encoding"], "utf8");
    for arguments in [&["get", "/a", "/none"][..], &["get", "--prefix", "/none"]] {
        let ran = cli.run(arguments);
        assert_eq!((ran.status, ran.text()), (1, ""), "{ran:?}");
        assert_eq!(ran.stderr, "leasehold: /none: not found\n");
    }
}

#[test]
fn rm_removes_several_nodes_or_none() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    for path in ["/a/x", "/b", "/c"] {
        cli.done(["put", path, "1"]);
    }
    let ran = cli.run(["rm", "/b", "/none"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (1, "leasehold: /none: not found\n"));
    assert_eq!(cli.done(["ls", "/"])["children"], json!(["a", "b", "c"]), "none is removed");
    let (status, kind, message) = cli.fails(["rm", "/a", "/b"]);
    assert_eq!((status, kind.as_str()), (1, "has_children"), "{message}");
    let removed = cli.done(["rm", "-r", "/a", "/b"]);
    let nodes = json!([{ "path": "/a", "removed": 2 }, { "path": "/b", "removed": 1 }]);
    assert_eq!((&removed["nodes"], removed["revision"].is_u64()), (&nodes, true), "{removed}");
    assert_eq!(cli.done(["ls", "/"])["children"], json!(["c"]));
    assert_eq!(cli.fails(["rm", "/c", "/d", "--if-revision", "3"]).1, "usage");
}

#[test]
fn a_value_can_be_any_bytes() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let bytes = [0, 0xff, b'\n', b'x', 0x80];
    assert_eq!(cli.run_with(["put", "/bytes", "-"], &bytes).status, 0);
    let got = cli.done(["get", "/bytes"]);
    assert_eq!((got["encoding"].as_str(), got["value"].as_str()), (Some("base64"), Some("AP8KeIA=")));
    assert_eq!(cli.run(["get", "--raw", "/bytes"]).stdout, bytes);
    assert_eq!(cli.run(["get", "/bytes"]).stdout, [&bytes[..], b"\n"].concat(), "a newline, as it ends without one");
    cli.run_with(["put", "/text", "-"], b"line\n");
    assert_eq!(cli.run(["get", "/text"]).text(), "line\n");
    cli.done(["put", "/number", "-1"]);
    assert_eq!(cli.done(["get", "/number"])["value"], "-1");
    cli.done(["put", "/empty", ""]);
    assert_eq!(cli.done(["get", "/empty"])["value"], "");
}

#[test]
fn a_condition_that_does_not_hold_is_refused_with_status_1() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let made = cli.done(["put", "/a", "1", "--create"]);
    let revision = made["revision"].as_u64().expect("a number").to_string();
    let (status, kind, message) = cli.fails(["put", "/a", "2", "--create"]);
    assert_eq!((status, kind.as_str()), (1, "exists"));
    assert!(message.starts_with("/a") && message.contains(&format!("revision {revision}")), "{message}");
    cli.done(["put", "/a", "2", "--if-revision", &revision]);
    let (status, kind, message) = cli.fails(["put", "/a", "3", "--if-revision", &revision]);
    assert_eq!((status, kind.as_str()), (1, "revision_differs"));
    assert!(message.contains(&format!("expected revision {revision}")), "{message}");
    assert_eq!(cli.done(["get", "/a"])["value"], "2");
    cli.done(["put", "/a/b", ""]);
    assert_eq!(cli.fails(["rm", "/a"]).1, "has_children");
    assert_eq!(cli.fails(["rm", "-r", "/"]).1, "root");
    for command in ["get", "stat", "ls", "tree", "rm"] {
        let (status, kind, message) = cli.fails([command, "/nope"]);
        assert_eq!((status, kind.as_str()), (1, "not_found"), "{command}");
        assert!(message.contains("/nope"), "{message}");
    }
}
