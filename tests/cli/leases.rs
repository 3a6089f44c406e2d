//! Key leases, with etcdctl's commands and output.

use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    common::{Cli, Cluster, eventually},
    running::Running,
};

/// The time that a loaded machine needs for a few processes.
const SLACK: Duration = Duration::from_secs(5);

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field}: {value}"))
}

/// Grants a lease, and returns its id.
fn grant(cli: &Cli, ttl: &str) -> String {
    text(&cli.done(["lease", "grant", ttl]), "id").to_owned()
}

fn is_absent(cli: &Cli, path: &str) -> bool {
    let ran = cli.run(["--json", "get", path]);
    ran.status == 1 && ran.error().1 == "not_found"
}

/// The number of seconds in `remaining(58s)`.
fn remaining(line: &str) -> u64 {
    let (_, rest) = line.split_once("remaining(").expect("it says what remains");
    rest.split_once("s)").and_then(|(seconds, _)| seconds.parse().ok()).expect("whole seconds")
}

#[test]
fn the_transcript_is_that_of_etcdctl() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let granted = cli.run(["lease", "grant", "60"]);
    let line = granted.text().strip_suffix(" granted with TTL(60s)\n").expect("etcdctl's words");
    let id = line.strip_prefix("lease ").expect("etcdctl's words").to_owned();
    assert!(id.len() == 16 && id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
    // etcdctl prints OK, and shows the revision only in JSON.
    let put = cli.run(["put", "hello", "world", "--lease", &id]);
    assert_eq!((put.status, put.text()), (0, "revision 1\n"));
    assert_eq!(cli.run(["get", "hello", "-w", "simple"]).text(), "world\n");
    // etcdctl's JSON has keys, values and ids in the encodings of its wire format.
    let got = cli.run(["get", "hello", "-w", "json"]).json();
    let expected = json!({ "path": "/hello", "value": "world", "lease": id });
    assert!(expected.as_object().expect("an object").iter().all(|(name, value)| got[name] == *value), "{got}");

    let lives = cli.run(["lease", "timetolive", &id]);
    let begin = format!("lease {id} granted with TTL(60s), remaining(");
    assert!(lives.text().starts_with(&begin) && lives.text().ends_with("s)\n"), "{lives:?}");
    assert!((1..=60).contains(&remaining(lives.text())), "{lives:?}");
    let lives = cli.run(["lease", "timetolive", &id, "--keys"]);
    assert!(lives.text().starts_with(&begin) && lives.text().ends_with("s), attached keys([/hello])\n"), "{lives:?}");
    let kept = cli.run(["lease", "keep-alive", &id, "--once"]);
    assert_eq!((kept.status, kept.text()), (0, format!("lease {id} keepalived with TTL(60)\n").as_str()));
    assert_eq!(cli.run(["lease", "list"]).text(), format!("found 1 leases\n{id}\n"));

    let revoked = cli.run(["lease", "revoke", &id]);
    assert_eq!((revoked.status, revoked.text()), (0, format!("lease {id} revoked\n").as_str()));
    assert!(is_absent(&cli, "hello"), "it goes with the lease at once");
    assert_eq!(cli.run(["lease", "list"]).text(), "found 0 leases\n");
    for command in ["timetolive", "revoke", "keep-alive"] {
        let again = cli.run(["lease", command, &id]);
        assert_eq!((again.status, again.text()), (1, ""), "{command}");
        assert_eq!(again.stderr.lines().count(), 1, "{again:?}");
        assert_eq!(again.stderr, format!("leasehold: lease {id}: not found\n"), "{command}");
    }
}

#[test]
fn write_out_json_is_json_for_answers_and_errors() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["put", "/a", "1"]);
    for words in [&["-w", "json"][..], &["-w=json"], &["--write-out", "json"]] {
        let stat = |words: &[&str]| cli.run(["stat", "/a"].iter().chain(words).copied()).json();
        assert_eq!(stat(words), stat(&["--json"]), "{words:?}");
    }
    let absent = cli.run(["get", "/none", "-w", "json"]);
    assert_eq!((absent.status, absent.error().1.as_str()), (1, "not_found"));
    let misused = cli.run(["get", "-w", "json"]);
    assert_eq!((misused.status, misused.error().1.as_str()), (2, "usage"));
    assert_eq!(cli.run(["get", "/a", "-w", "protobuf"]).status, 2);
}

#[test]
fn scripts_get_ids_and_milliseconds() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let granted = cli.done(["lease", "grant", "1h", "--id", "694d81417acd4754"]);
    assert_eq!(granted, json!({ "id": "694d81417acd4754", "name": null, "ttl_ms": 3_600_000 }));
    let id = text(&granted, "id");
    for path in ["/b", "/a/x"] {
        cli.done(["put", path, "1", "--lease", id]);
    }
    assert_eq!(cli.done(["stat", "/b"])["lease"], id);
    let lives = cli.done(["lease", "timetolive", id, "--keys"]);
    let left = lives["remaining_ms"].as_u64().expect("a number");
    assert!(left > 3_000_000 && left <= 3_600_000, "{lives}");
    let expected = json!({
        "id": id, "name": null, "ttl_ms": 3_600_000, "remaining_ms": left, "keys": ["/a/x", "/b"]
    });
    assert_eq!(lives, expected);
    assert_eq!(cli.done(["lease", "timetolive", id])["keys"], Value::Null, "nobody asked for them");
    let kept = cli.done(["lease", "keep-alive", id, "--once"]);
    assert_eq!((text(&kept, "id"), &kept["ttl_ms"]), (id, &json!(3_600_000)));

    let other = grant(&cli, "60");
    let listed = cli.done(["lease", "list"]);
    let ids: Vec<&str> = listed["leases"].as_array().expect("a list").iter().map(|it| text(it, "id")).collect();
    assert_eq!(ids, [other.as_str(), id], "in the order of ids");

    let revoked = cli.done(["lease", "revoke", id]);
    assert_eq!((text(&revoked, "id"), &revoked["removed"]), (id, &json!(2)));
    assert!(is_absent(&cli, "/b") && is_absent(&cli, "/a/x"));
    assert_eq!(cli.done(["ls", "/a"])["children"], json!([]), "what it was put below stays");
}

#[test]
fn what_is_refused_changes_nothing_and_has_status_1() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    for arguments in [
        &["lease", "timetolive", "123"][..],
        &["lease", "revoke", "123"],
        &["lease", "keep-alive", "123"],
        &["lease", "keep-alive", "123", "--once"],
        &["put", "/a", "1", "--lease", "123"],
    ] {
        let (status, kind, message) = cli.fails(arguments);
        assert_eq!((status, kind.as_str()), (1, "lease_not_found"), "{arguments:?}");
        assert!(message.contains("123"), "{message}");
    }
    assert!(is_absent(&cli, "/a"), "a put with an unknown lease leaves no key");

    let id = text(&cli.done(["lease", "grant", "60", "--id", "7b"]), "id").to_owned();
    assert_eq!(id, "000000000000007b");
    let (status, kind, message) = cli.fails(["lease", "grant", "90", "--id", "7b"]);
    assert_eq!((status, kind.as_str()), (1, "lease_exists"), "{message}");
    assert_eq!(cli.done(["lease", "timetolive", "7B"])["ttl_ms"], 60_000, "it is as it was");

    for ttl in ["0", "199ms", "8785h"] {
        let (status, kind, message) = cli.fails(["lease", "grant", ttl]);
        assert_eq!((status, kind.as_str()), (1, "limit"), "{ttl}");
        assert!(message.contains("200ms"), "{message}");
    }
    assert_eq!(cli.done(["lease", "list"])["leases"].as_array().map(Vec::len), Some(1));

    cli.done(["put", "/dir/leaf", "1"]);
    assert_eq!(cli.fails(["put", "/dir", "1", "--lease", &id]).1, "not_a_leaf");
    cli.done(["put", "/leased", "1", "--lease", &id]);
    assert_eq!(cli.fails(["put", "/leased/below", "1"]).1, "attached");
}

#[test]
fn lease_is_given_by_its_name_instead_of_its_id() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let granted = cli.done(["lease", "grant", "60", "--name", "server1Lease"]);
    let id = text(&granted, "id");
    assert_eq!(granted, json!({ "id": id, "name": "server1Lease", "ttl_ms": 60_000 }));
    let (status, kind, message) = cli.fails(["lease", "grant", "90", "--name", "server1Lease"]);
    assert_eq!((status, kind.as_str()), (1, "lease_exists"), "{message}");
    assert_eq!(message, format!("lease \"server1Lease\": already exists, with id {id}"));
    let by_name = ["--name", "server1Lease"];
    let lives = cli.done(["lease", "timetolive", "--keys"].iter().chain(&by_name).copied());
    assert_eq!((&lives["ttl_ms"], &lives["name"], &lives["id"]), (&json!(60_000), &json!("server1Lease"), &json!(id)));
    cli.done(["put", "/a", "1", "--lease-name", "server1Lease"]);
    assert_eq!(cli.done(["get", "/a"])["lease"], id);
    cli.done(["put", "/a", "2"]);
    assert_eq!(cli.done(["get", "/a"])["lease"], Value::Null, "a put without a lease detaches the node");
    let txn = cli.run_with(["txn"], b"\nput /a 3 --lease-name server1Lease\n\n");
    assert_eq!((txn.status, cli.done(["get", "/a"])["lease"].as_str()), (0, Some(id)), "{txn:?}");
    let kept = cli.run(["lease", "keep-alive", "--once"].iter().chain(&by_name).copied());
    assert_eq!((kept.status, kept.text()), (0, format!("lease {id} keepalived with TTL(60)\n").as_str()));

    let other = grant(&cli, "60");
    assert_eq!(cli.run(["lease", "list"]).text(), format!("found 2 leases\n{id} server1Lease\n{other}\n"));
    let listed = cli.done(["lease", "list"]);
    let names: Vec<&Value> = listed["leases"].as_array().expect("a list").iter().map(|it| &it["name"]).collect();
    assert_eq!(names, [&json!("server1Lease"), &Value::Null]);

    let revoked = cli.run(["lease", "revoke", "--name", "server1Lease"]);
    assert_eq!((revoked.status, revoked.text()), (0, "lease \"server1Lease\" revoked\n"));
    assert!(is_absent(&cli, "/a"));
    for command in [
        &["lease", "timetolive", "--name", "server1Lease"][..],
        &["lease", "keep-alive", "--name", "server1Lease"],
        &["lease", "revoke", "--name", "server1Lease"],
        &["put", "/a", "1", "--lease-name", "server1Lease"],
    ] {
        let (status, kind, message) = cli.fails(command);
        assert_eq!((status, kind.as_str()), (1, "lease_not_found"), "{command:?}");
        assert!(message.ends_with("lease \"server1Lease\": not found"), "{message}");
    }
    let again = cli.done(["lease", "grant", "60", "--name", "server1Lease", "--id", "7b"]);
    assert_eq!((text(&again, "id"), text(&again, "name")), ("000000000000007b", "server1Lease"));
    let revoked = cli.done(["lease", "revoke", "--name", "server1Lease"]);
    assert_eq!((&revoked["id"], text(&revoked, "name")), (&Value::Null, "server1Lease"));
}

#[test]
fn lease_without_a_good_name_or_with_id_and_name_is_wrong_usage() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let long = "x".repeat(257);
    for (name, expected) in [("", "expected 1 to 256"), (&long, "expected 1 to 256"), ("a\tb", "without any")] {
        for arguments in [
            &["lease", "grant", "60", "--name", name][..],
            &["lease", "revoke", "--name", name],
            &["put", "/a", "1", "--lease-name", name],
        ] {
            let (status, kind, message) = cli.fails(arguments);
            assert_eq!((status, kind.as_str()), (2, "usage"), "{arguments:?}");
            assert!(message.contains(expected), "{message}");
        }
    }
    for arguments in [
        &["lease", "revoke"][..],
        &["lease", "revoke", "7b", "--name", "n"],
        &["lease", "timetolive", "7b", "--name", "n"],
        &["lease", "keep-alive"],
        &["put", "/a", "1", "--lease", "7b", "--lease-name", "n"],
    ] {
        assert_eq!(cli.fails(arguments).0, 2, "{arguments:?}");
    }
    assert_eq!(cli.done(["lease", "list"])["leases"], json!([]));
}

#[test]
fn a_key_belongs_to_the_lease_that_it_was_last_put_with() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let (one, other) = (grant(&cli, "60"), grant(&cli, "60"));
    cli.done(["put", "/moved", "1", "--lease", &one]);
    cli.done(["put", "/moved", "2", "--lease", &other]);
    cli.done(["put", "/freed", "1", "--lease", &one]);
    cli.done(["put", "/freed", "2"]);
    cli.done(["lease", "revoke", &one]);
    assert_eq!(cli.done(["get", "/moved"])["lease"], other);
    assert_eq!(cli.done(["get", "/freed"])["lease"], Value::Null);
    cli.done(["lease", "revoke", &other]);
    assert!(is_absent(&cli, "/moved"));
    assert_eq!(cli.done(["get", "/freed"])["value"], "2");
}

#[test]
fn a_lease_that_nobody_keeps_ends_after_its_term_with_its_keys() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let before = Instant::now();
    let id = grant(&cli, "2s");
    let granted = Instant::now();
    cli.done(["put", "/a", "1", "--lease", &id]);
    eventually("the key is gone", || is_absent(&cli, "/a").then_some(()));
    let gone = Instant::now();
    assert!(gone - before >= Duration::from_secs(2), "{:?}", gone - before);
    assert!(gone - granted <= Duration::from_secs(3) + SLACK, "{:?}", gone - granted);
    assert_eq!(cli.fails(["lease", "timetolive", &id]).1, "lease_not_found");
}

#[test]
fn keep_alive_keeps_a_lease_until_it_is_told_to_stop() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let before = Instant::now();
    let id = grant(&cli, "4");
    let mut keeping = Running::start(&cli, ["lease", "keep-alive", &id]);
    cli.done(["put", "/a", "1", "--lease", &id]);
    // Longer than a term.
    while before.elapsed() < Duration::from_secs(6) {
        assert_eq!(keeping.line(), format!("lease {id} keepalived with TTL(4)"));
    }
    assert_eq!(cli.done(["get", "/a"])["value"], "1");
    keeping.process.signal(Signal::SIGTERM);
    let told = Instant::now();
    assert_eq!(keeping.process.ended().code(), Some(0));
    eventually("the key is gone", || is_absent(&cli, "/a").then_some(()));
    let waited = told.elapsed();
    assert!(waited <= Duration::from_secs(5) + SLACK, "{waited:?}");
}

#[test]
fn keep_alive_exits_with_1_when_lease_is_lost() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let id = grant(&cli, "1");
    let mut keeping = Running::start(&cli, ["--json", "lease", "keep-alive", &id]);
    let kept = keeping.json();
    assert_eq!((text(&kept, "id"), &kept["ttl_ms"]), (id.as_str(), &json!(1_000)));
    assert!(kept["remaining_ms"].as_u64().is_some_and(|left| left <= 1_000), "{kept}");
    cli.done(["lease", "revoke", &id]);
    assert_eq!(keeping.process.ended().code(), Some(1));
    let last = keeping.rest().pop().expect("it said so");
    let last: Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(last["error"]["kind"], "lease_lost");
    assert!(text(&last["error"], "message").contains(&format!("lease {id}: expired or revoked")), "{last}");
}

/// The first put of a key, and perhaps a second. Each names the index of a lease, or no lease.
type Puts = (Option<usize>, Option<Option<usize>>);

/// After a restart, etcd once had keys attached to the wrong lease. This tests all ways to put a
/// key, and to put it again.
#[test]
fn keys_stay_attached_to_last_lease_after_restart() {
    let mut cluster = Cluster::start(1);
    let cli = cluster.cli();
    let leases = [grant(&cli, "1h"), grant(&cli, "1h")];
    let ways = [None, Some(0), Some(1)];
    let again = || [None].into_iter().chain(ways.map(Some));
    let puts: Vec<Puts> = ways.into_iter().flat_map(|first| again().map(move |second| (first, second))).collect();
    let name = |number: usize| format!("/key-{number:02}");
    for (number, (first, second)) in puts.iter().enumerate() {
        for lease in [*first].into_iter().chain(*second) {
            let attached = lease.map(|lease| ["--lease", leases[lease].as_str()]);
            let key = name(number);
            cli.done(["put", key.as_str(), "1"].into_iter().chain(attached.into_iter().flatten()));
        }
    }
    cluster.kill(1);
    cluster.spawn(1);
    cluster.wait_until_it_serves();
    let keys = |of: Option<usize>| {
        let is_its = move |(_, puts): &(usize, &Puts)| puts.1.unwrap_or(puts.0) == of;
        puts.iter().enumerate().filter(is_its).map(|(number, _)| name(number)).collect::<Vec<_>>()
    };
    for (number, id) in leases.iter().enumerate() {
        let lives = cli.done(["lease", "timetolive", id, "--keys"]);
        assert_eq!((&lives["ttl_ms"], &lives["keys"]), (&json!(3_600_000), &json!(keys(Some(number)))));
        assert_eq!(cli.done(["lease", "revoke", id])["removed"], keys(Some(number)).len());
        assert!(keys(Some(number)).iter().all(|key| is_absent(&cli, key)));
    }
    let stay = keys(None);
    assert_eq!(stay.len(), 4);
    let names: Vec<&str> = stay.iter().map(|key| key.trim_start_matches('/')).collect();
    assert_eq!(cli.done(["ls", "/"])["children"], json!(names));
}

/// The command line turns the time into a TTL: only durations reach the servers.
#[test]
fn lease_until_a_time_is_granted_for_the_rest() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let end = SystemTime::now() + Duration::from_secs(3600);
    let granted = cli.done(["lease", "grant", "--until", &humantime::format_rfc3339_millis(end).to_string()]);
    let ttl = granted["ttl_ms"].as_u64().expect("a number");
    assert!((3_500_000..=3_600_000).contains(&ttl), "{granted}");
    let id = text(&granted, "id").to_owned();
    assert_eq!(cli.done(["lease", "timetolive", &id])["ttl_ms"], ttl);
}

#[test]
fn the_shell_grants_keeps_and_revokes() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    let granted = shell.ask("lease grant 4");
    let id = text(&granted, "id").to_owned();
    assert_eq!(text(&shell.ask(&format!("put hello world --lease {id}")), "path"), "/hello");
    assert_eq!(shell.ask("get hello")["lease"], id);
    assert_eq!(text(&shell.ask(&format!("lease keep-alive {id}")), "id"), id);
    // The shell goes on running, and renews the lease.
    assert_eq!(shell.ask("sleep 6s")["slept_ms"], 6_000);
    assert_eq!(shell.ask(&format!("lease timetolive {id} --keys"))["keys"], json!(["/hello"]));
    shell.ask("register /services/web here");
    assert_eq!(cli.done(["get", "/services/web"])["value"], "here");
    assert_eq!(shell.ask(&format!("lease revoke {id}"))["removed"], 1);
    assert_eq!(shell.ask("get hello")["error"]["kind"], "not_found");
    assert_eq!(shell.close().code(), Some(1), "that of the last line that failed");
    eventually("what the shell registered is gone", || is_absent(&cli, "/services/web").then_some(()));
}
