//! The commands `volume create`, `set`, `show`, `stats`, `list` and `remove`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{Cli, Cluster, Shell};

#[test]
fn a_volume_is_made_changed_shown_and_removed() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["volume", "create", "/v", "--term", "2s", "--tracking", "covering"]);
    let made = cli.done(["volume", "show", "/v"]);
    let settings = |volume: &serde_json::Value| {
        let fields = ["term_ms", "object_term_ms", "skew_margin_ms", "tracking"];
        fields.map(|field| volume[field].clone())
    };
    assert_eq!(settings(&made), [json!(2_000), json!(3_600_000), json!(20), json!("covering")]);
    assert_eq!(cli.fails(["volume", "create", "/v"]).1, "volume_exists");

    cli.done(["volume", "set", "/v", "--object-term", "5m"]);
    let set = cli.done(["volume", "show", "/v"]);
    let expected = [json!(2_000), json!(300_000), json!(20), json!("covering")];
    assert_eq!(settings(&set), expected, "what was not given stays");
    assert!(set["generation"].as_u64() > made["generation"].as_u64());

    cli.done(["volume", "create", "/v/w"]);
    let list = cli.done(["volume", "list"]);
    let paths = list["volumes"].as_array().expect("a list").iter().map(|volume| volume["path"].clone());
    assert_eq!(paths.collect::<Vec<_>>(), ["/", "/v", "/v/w"]);
    let list = cli.run(["volume", "list", "/v"]);
    assert!(list.text().lines().any(|line| line.starts_with("/v ") && line.contains(" 2s ")), "{list:?}");

    assert_eq!(cli.fails(["rm", "-r", "/v"]).1, "contains_volume");
    cli.done(["volume", "remove", "/v/w"]);
    cli.done(["volume", "remove", "/v"]);
    assert_eq!(cli.fails(["volume", "show", "/v"]).1, "not_a_volume");
    assert_eq!(cli.done(["rm", "-r", "/v"])["removed"], 2);
}

#[test]
fn lease_policy_is_shown_as_it_was_given() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let shown = |path: &str| {
        let volume = cli.done(["volume", "show", path]);
        ["object_term", "object_term_ms", "on_write", "grants", "first_term_ms"].map(|field| volume[field].clone())
    };
    cli.done(["volume", "create", "/polled", "--object-term", "0"]);
    assert_eq!(shown("/polled"), [json!("0"), json!(0), json!("recall"), json!("all"), json!(null)]);
    cli.done(["volume", "create", "/callback", "--object-term", "infinite", "--grants", "on-request"]);
    assert_eq!(shown("/callback"), [json!("infinite"), json!(null), json!("recall"), json!("on-request"), json!(null)]);
    cli.done(["volume", "set", "/callback", "--object-term", "adaptive:20%:10s:24h", "--grants", "returning"]);
    let alex = json!("adaptive:20%:10s:24h");
    assert_eq!(shown("/callback"), [alex, json!(86_400_000), json!("recall"), json!("returning"), json!(200)]);
    cli.done(["volume", "set", "/callback", "--first-term", "1s"]);
    assert_eq!(shown("/callback")[4], json!(1_000), "what was not given stays");
    let (status, kind, message) = cli.fails(["volume", "set", "/polled", "--object-term", "1h", "--on-write", "wait"]);
    assert_eq!((status, kind.as_str()), (1, "volume_settings"));
    assert!(message.contains("expected 200ms to 10s"), "{message}");
    cli.done(["volume", "set", "/polled", "--object-term", "5s", "--on-write", "wait"]);
    assert_eq!(shown("/polled")[2], json!("wait"));
    cli.done(["volume", "set", "/polled", "--on-write", "update"]);
    assert_eq!(shown("/polled")[2], json!("update"));
    let list = cli.run(["volume", "list"]);
    assert!(list.text().lines().any(|line| line.contains("adaptive:20%:10s:24h") && line.contains("returning:1s")));
    let misused = cli.fails(["volume", "set", "/polled", "--first-term", "1s"]);
    assert_eq!((misused.0, misused.2.as_str()), (2, "/polled: --first-term: only with --grants returning"));
}

#[test]
fn write_beyond_quota_is_refused_with_the_figures() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let shown = |path: &str| {
        let volume = cli.done(["volume", "show", path]);
        ["nodes", "quota_nodes", "bytes", "quota_bytes"].map(|field| volume[field].clone())
    };
    cli.done(["volume", "create", "/v", "--quota-nodes", "3", "--quota-bytes", "1KiB"]);
    cli.done(["put", "/v/a/b", "123"]);
    assert_eq!(shown("/v"), [json!(3), json!(3), json!(15), json!(1024)]);
    let (status, kind, message) = cli.fails(["put", "/v/c", "1"]);
    assert_eq!((status, kind.as_str()), (1, "quota_exceeded"));
    assert_eq!(message, "/v/c: the volume /v would have 4 nodes; its quota is 3");
    let (_, kind, message) = cli.fails(["put", "/v/a", &"x".repeat(1100)]);
    assert_eq!(kind, "quota_exceeded");
    assert_eq!(message, "/v/a: the volume /v would have 1,115 bytes; its quota is 1,024");
    let list = cli.run(["volume", "list"]);
    assert!(
        list.text().lines().any(|line| line.starts_with("/v ") && line.ends_with("3 of 3  15 of 1024")),
        "{list:?}"
    );

    cli.done(["rm", "/v/a/b"]);
    cli.done(["put", "/v/c", "1"]);
    cli.done(["volume", "set", "/v", "--quota-nodes", "1", "--term", "5s"]);
    assert_eq!(shown("/v"), [json!(3), json!(1), json!(11), json!(1024)], "below the present use");
    assert_eq!(cli.fails(["put", "/v/d", ""]).1, "quota_exceeded");
    cli.done(["volume", "set", "/v", "--quota-nodes", "none"]);
    assert_eq!(shown("/v")[1], json!(null));
    cli.done(["put", "/v/d", ""]);
    let misused = cli.fails(["volume", "set", "/v", "--quota-bytes", "1MB"]);
    assert!(misused.0 == 2 && misused.2.contains("10MiB or 1GiB"), "{misused:?}");
}

/// A volume with polling, one whose writes only wait, and one with leases on request.
#[test]
fn volume_policy_decides_who_caches_and_how_long_writes_wait() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    cli.done(["volume", "create", "/polled", "--object-term", "0"]);
    cli.done(["volume", "create", "/asked", "--grants", "on-request"]);
    cli.done(["volume", "create", "/waits", "--term", "4s", "--object-term", "3s", "--on-write", "wait"]);
    for path in ["/polled/a", "/asked/a", "/waits/a"] {
        cli.done(["put", path, "1"]);
        assert_eq!(shell.ask(&format!("get {path}"))["value"], "1");
    }
    for path in ["/polled/a", "/asked/a"] {
        assert_eq!(shell.ask(&format!("get {path}"))["source"], "server", "{path}");
    }
    assert_eq!(shell.ask("get /waits/a")["source"], "memory");
    let recalls = shell.ask("stats")["recalls"].clone();
    let began = Instant::now();
    cli.done(["put", "/waits/a", "2"]);
    assert!(began.elapsed() > Duration::from_secs(1), "the shell was not asked: {:?}", began.elapsed());
    assert_eq!(shell.ask("get /waits/a")["value"], "2");
    assert_eq!(shell.ask("stats")["recalls"], recalls);
}

#[test]
fn volume_at_its_lease_limit_recalls_the_oldest_lease() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    cli.done(["volume", "create", "/v", "--lease-limit", "2"]);
    // The first read may come before the lease on the volume.
    let cache = |shell: &mut Shell, path: &str| while shell.ask(&format!("get {path}"))["source"] != "memory" {};
    for path in ["/v/a", "/v/b", "/v/c"] {
        cli.done(["put", path, "1"]);
    }
    cache(&mut shell, "/v/a");
    cache(&mut shell, "/v/b");
    assert_eq!(shell.ask("stats")["recalls"], 0);
    cache(&mut shell, "/v/c");
    while shell.ask("stats")["recalls"] == 0 {}
    for (path, source) in [("/v/c", "memory"), ("/v/b", "memory"), ("/v/a", "server")] {
        assert_eq!(shell.ask(&format!("get {path}"))["source"], source, "{path}");
    }
    let stats = cli.done(["volume", "stats", "/v"]);
    assert!(stats["leases_recalled_for_room"].as_u64() >= Some(1), "{stats}");
    assert_eq!(cli.done(["volume", "show", "/v"])["lease_limit"], 2);
    let list = cli.run(["volume", "list"]);
    assert!(list.text().lines().any(|line| line.contains("  objects (at most 2)  ")), "{list:?}");
    cli.done(["volume", "set", "/v", "--lease-limit", "none"]);
    assert_eq!(cli.done(["volume", "show", "/v"])["lease_limit"], json!(null));
    let misused = cli.fails(["volume", "set", "/v", "--lease-limit", "few"]);
    assert!(misused.0 == 2 && misused.2.contains("a number such as 1000"), "{misused:?}");
}

#[test]
fn adaptive_volume_term_is_shown_with_the_present_one() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["volume", "create", "/v", "--term", "adaptive:2s:20s:5"]);
    let shown = cli.done(["volume", "show", "/v"]);
    assert_eq!((&shown["term"], &shown["term_ms"]), (&json!("adaptive:2s:20s:5"), &json!(2_000)));
    let list = cli.run(["volume", "list"]);
    assert!(list.text().lines().any(|line| line.contains("  adaptive:2s:20s:5 (now 2s)  ")), "{list:?}");
    cli.done(["volume", "set", "/v", "--object-term", "1m"]);
    assert_eq!(cli.done(["volume", "show", "/v"])["term"], "adaptive:2s:20s:5", "an omitted setting stays");
    for (term, expected) in [
        ("adaptive:20s:2s", "expected the shorter term first"),
        ("adaptive:2s:20s:0", "expected at least 1"),
        ("adaptive:1ms:20s", "expected 200ms to 24h"),
        ("adaptive:2s:21s", "expected at most 10 times the shorter term"),
    ] {
        let (status, _, message) = cli.fails(["volume", "set", "/v", "--term", term]);
        assert!(status == 1 && message.contains(expected), "{term}: {status}: {message}");
    }
    cli.done(["volume", "set", "/v", "--term", "3s"]);
    let shown = cli.done(["volume", "show", "/v"]);
    assert_eq!((&shown["term"], &shown["term_ms"]), (&json!("3s"), &json!(3_000)));
}

#[test]
fn margin_follows_a_term_that_is_changed_alone() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let margin = |arguments: &[&str]| {
        cli.done([&["volume"][..], arguments].concat());
        cli.done(["volume", "show", arguments[1]])["skew_margin_ms"].clone()
    };
    assert_eq!(margin(&["create", "/v", "--term", "1h"]), 36_000);
    assert_eq!(margin(&["set", "/v", "--term", "5s"]), 50);
    assert_eq!(margin(&["set", "/v", "--term", "adaptive:1m:10m"]), 6_000);
    assert_eq!(margin(&["set", "/v", "--object-term", "1m"]), 6_000);
    assert_eq!(margin(&["set", "/v", "--term", "10s", "--skew-margin", "200ms"]), 200);
    assert_eq!(margin(&["set", "/v", "--term", "20s"]), 400, "it keeps its share of the term");
    let (status, kind, message) = cli.fails(["volume", "set", "/v", "--term", "1h", "--skew-margin", "1s"]);
    assert_eq!((status, kind.as_str()), (1, "volume_settings"), "{message}");
}

#[test]
fn object_term_by_use_is_shown_with_the_present_one() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    cli.done(["volume", "create", "/v", "--object-term", "by-use:1s:1h"]);
    let shown = |cli: &Cli| {
        let volume = cli.done(["volume", "show", "/v"]);
        ["object_term", "object_term_ms"].map(|field| volume[field].clone())
    };
    assert_eq!(shown(&cli), [json!("by-use:1s:1h"), json!(1_000)], "the shortest at first");
    let list = cli.run(["volume", "list"]);
    assert!(list.text().lines().any(|line| line.contains("  by-use:1s:1h (now 1s)  ")), "{list:?}");
    // Each read is followed by a write, so leases cost more than they save.
    for count in 0.. {
        cli.done(["put", "/v/a", "1"]);
        shell.ask("get /v/a");
        if shown(&cli)[1] == 0 {
            break;
        }
        assert!(count < 1_000, "{}", cli.done(["volume", "stats", "/v"]));
    }
    // The last read may have got a lease. This write recalls it, and no later read gets one.
    cli.done(["put", "/v/a", "2"]);
    assert_eq!(["get /v/a"; 2].map(|read| shell.ask(read)["source"].clone()), ["server", "server"]);
    assert_eq!(cli.done(["volume", "stats", "/v"])["object_term_ms"], 0);
    let stats = cli.run(["volume", "stats", "/v"]);
    assert!(stats.text().lines().any(|line| line.ends_with("by-use:1s:1h (now none)")), "{stats:?}");
    for (term, expected) in
        [("by-use:1h:1s", "expected the shorter term first"), ("by-use:1ms:1h", "expected 200ms to 8784h")]
    {
        let (status, _, message) = cli.fails(["volume", "set", "/v", "--object-term", term]);
        assert!(status == 1 && message.contains(expected), "{term}: {status}: {message}");
    }
}

#[test]
fn stats_of_volume_count_what_its_clients_did() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    cli.done(["volume", "create", "/v"]);
    cli.done(["put", "/v/a", "1"]);
    // The first read may come before the lease on the volume.
    while shell.ask("get /v/a")["source"] != "memory" {}
    cli.done(["put", "/v/a", "2"]);
    let stats = cli.done(["volume", "stats", "/v"]);
    let counts = ["recalls", "writes", "volume_leases", "object_leases", "covering_sessions"];
    assert_eq!(counts.map(|field| stats[field].clone()), [json!(1), json!(2), json!(1), json!(0), json!(0)], "{stats}");
    assert_eq!((&stats["path"], &stats["consents"]["count"]), (&json!("/v"), &json!(1)), "{stats}");
    assert_eq!(stats["waits"]["consent"]["count"], 1, "{stats}");
    let wait = &stats["waits"]["consent"];
    assert!(wait["longest_ms"].as_f64() > Some(0.0) && wait["p99_ms"].as_f64() <= wait["longest_ms"].as_f64());
    assert!(stats["reads_leased"].as_u64() >= Some(1) && stats["lease_bytes"].as_u64() > Some(0), "{stats}");
    assert!(stats["counted_for_ms"].is_u64(), "{stats}");
    assert!(stats["heartbeats_idle"].is_u64() && stats["mean_object_leases"].is_f64(), "{stats}");
    let text = cli.run(["volume", "stats", "/v"]);
    let row = text.text().lines().find(|line| line.starts_with("waits of writes for consents")).map(str::to_owned);
    assert!(row.is_some_and(|row| row.contains("  1  ") && row.ends_with("s")), "{text:?}");
    let (status, kind, message) = cli.fails(["volume", "stats", "/v/a"]);
    assert_eq!((status, kind), (1, cli.fails(["volume", "show", "/v/a"]).1), "{message}");
}
