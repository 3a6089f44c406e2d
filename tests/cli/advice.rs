//! The command `advise`.
//!
//! The test needs a minute of counts. Tests begin in the order of their names, so this one is among
//! the first, and others run beside it.

use std::time::Instant;

use serde_json::json;

use crate::common::{Cli, Cluster};

#[test]
fn advice_needs_counts_and_a_term_and_then_has_a_reason() {
    let cluster = Cluster::start(1);
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell());
    cli.done(["volume", "create", "/v", "--object-term", "30s"]);
    cli.done(["put", "/v/a", "1"]);
    while shell.ask("get /v/a")["source"] != "memory" {}
    let few = cli.done(["advise", "/v"]);
    assert_eq!((&few["predictions"], &few["recommended"]), (&json!([]), &json!(null)), "{few}");
    let reason = few["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("no advice: ") && reason.ends_with("reads were counted, and 100 are needed"), "{few}");

    // The leader has to count for a minute. Reads are reported at most once a second, with a
    // request that the session sends anyway.
    let counting_since = Instant::now();
    let counted = |cli: &Cli| cli.done(["volume", "stats", "/v"])["counted_for_ms"].as_u64().expect("a time");
    while counted(&cli) < 61_000 {
        (0..20).for_each(|_| drop(shell.ask("get /v/a")));
        shell.ask("sleep 500ms");
        assert!(counting_since.elapsed().as_secs() < 300, "the leader counts time");
    }
    let advice = cli.done(["advise", "/v"]);
    assert_eq!(advice["object_term"], "30s", "{advice}");
    assert!(advice["reads_per_s"].as_f64() > Some(5.0) && advice["from_memory"].as_f64() > Some(0.9), "{advice}");
    assert!(advice["round_trip_ms"].as_f64() > Some(0.0), "{advice}");
    let rows = advice["predictions"].as_array().expect("a list");
    let row = |term: &str| rows.iter().find(|row| row["object_term"] == term).unwrap_or_else(|| panic!("{advice}"));
    // Without leases each read asks, and no write waits. A write waits for a dead holder at most
    // for the lesser term and the margin: 1.1 s, or 10.1 s.
    let asking = 2.0 * advice["reads_per_s"].as_f64().expect("a rate");
    assert!((row("0")["messages_per_s"].as_f64().expect("a rate") - asking).abs() < 1e-6, "{advice}");
    let delays = ["0", "1s", "infinite"].map(|term| row(term)["write_delay_ms"].clone());
    assert_eq!(delays, [json!(0), json!(1100), json!(10_100)], "{advice}");
    // A client that reads 20 times a second needs no longer term than 30 s.
    assert_eq!((&advice["recommended"], &advice["writes"]), (&json!("30s"), &json!(1)), "{advice}");
    assert!(advice["reason"].as_str().is_some_and(|reason| reason.starts_with("keep 30s: it saves ")), "{advice}");
    let text = cli.run(["advise", "/v"]);
    assert!(text.text().contains("OBJECT TERM") && text.text().contains("keep 30s: it saves"), "{text:?}");

    cli.done(["volume", "set", "/v", "--object-term", "0"]);
    let unseen = cli.done(["advise", "/v"]);
    assert!(unseen["reason"].as_str().is_some_and(|reason| reason.contains("with an object term of 0")), "{unseen}");
    let (status, kind, _) = cli.fails(["advise", "/v/a"]);
    assert_eq!((status, kind), (1, cli.fails(["volume", "show", "/v/a"]).1));
}
