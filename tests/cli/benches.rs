//! `bench`: each kind measures what it names, and prints one JSON document.

use std::{process::Stdio, time::Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::common::{Cli, Cluster, Process, SOON, eventually, free_address, leasehold};

/// The result rows of a short run on a cluster of one server.
fn rows(kind: &str, options: &[&str]) -> Vec<serde_json::Value> {
    let mut command = leasehold();
    command.args(["--json", "bench", kind, "--spawn", "1", "--seconds", "2"]).args(options);
    let output = command.output().expect("the binary starts");
    assert!(output.status.success(), "{kind}: {}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    document["results"].as_array().expect("rows").clone()
}

fn is_positive(row: &serde_json::Value, figure: &str) -> bool {
    row[figure].as_f64().is_some_and(|value| value > 0.0)
}

#[test]
fn bench_measures_leases_and_locks_per_in_flight_count() {
    let leases = rows("leases", &["--inflight", "1,4"]);
    assert_eq!(leases.len(), 2);
    assert!(leases.iter().all(|row| is_positive(row, "per_second")), "{leases:?}");
    let locks = rows("locks", &["--inflight", "4", "--contenders", "3"]);
    assert_eq!(locks.len(), 2);
    assert!(locks[1]["contenders"] == 3 && locks.iter().all(|row| is_positive(row, "p50_ms")), "{locks:?}");
}

#[test]
fn watchers_are_measured_at_one_client_and_at_many() {
    let watched = rows("watch", &["--watchers", "1,3"]);
    let clients: Vec<_> = watched.iter().map(|row| row["clients"].as_u64()).collect();
    assert_eq!(clients, [Some(1), Some(1), Some(3)]);
    assert!(watched.iter().all(|row| is_positive(row, "max_ms")), "{watched:?}");
}

#[test]
fn what_ends_together_is_gone_when_the_figures_say_so() {
    let ended = rows("expiry", &["--objects", "2000", "--leases", "1000"]);
    assert_eq!((&ended[0]["nodes"], &ended[1]["leases"]), (&2000.into(), &1000.into()));
    assert!(is_positive(&ended[0], "answered_ms") && is_positive(&ended[1], "none_left_ms"), "{ended:?}");
    assert!(ended.iter().all(|row| is_positive(row, "last_told_ms")), "{ended:?}");
    let bare = rows("expiry", &["--bare", "--leases", "1000"]);
    assert_eq!((bare.len(), &bare[0]["leases"], &bare[0]["last_told_ms"]), (1, &1000.into(), &serde_json::Value::Null));
    assert!(is_positive(&bare[0], "sampled_gone_ms") && is_positive(&bare[0], "none_left_ms"), "{bare:?}");
}

#[test]
fn bench_measures_attaching_by_number_of_attached_nodes() {
    let attached = rows("attach", &["--carried", "1,500", "--inflight", "2"]);
    let carried: Vec<_> = attached.iter().map(|row| row["carried"].as_u64()).collect();
    assert_eq!(carried, [Some(1), Some(500), None]);
    assert!(attached[..2].iter().all(|row| is_positive(row, "attach_p50_ms") && is_positive(row, "detach_p99_ms")));
    let quotient = attached[2]["attach_p50_quotient"].as_f64().expect("a figure");
    let [least, most] = [0, 1].map(|row: usize| attached[row]["attach_p50_ms"].as_f64().expect("a figure"));
    assert!((quotient - most / least).abs() < 1e-9, "{attached:?}");
}

#[test]
fn bench_measures_lateness_of_staggered_lease_ends() {
    let ended = rows("expiry", &["--leases", "400", "--spread", "1s"]);
    assert_eq!((ended.len(), &ended[0]["leases"], &ended[0]["spread_ms"]), (1, &400.into(), &1000.into()));
    assert!(is_positive(&ended[0], "lag_p50_ms") && is_positive(&ended[0], "others_p50_ms"), "{ended:?}");
}

#[test]
fn each_kind_leaves_nothing_on_a_running_cluster() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let few = ["--seconds", "1", "--inflight", "2", "--objects", "50", "--carried", "1,20", "--holders", "1"];
    let fewer = ["--contenders", "2", "--watchers", "2", "--threads", "1"];
    for kind in ["leases", "put", "read", "miss", "cached", "holders", "attach", "locks", "watch"] {
        let document = cli.done(["bench", kind].into_iter().chain(few).chain(fewer));
        let rows = document["results"].as_array().expect("rows");
        assert!(!rows.is_empty(), "{kind}: {document}");
        assert_eq!(cli.done(["ls", "/"])["children"], json!([]), "{kind}");
    }
}

#[test]
fn bench_without_a_server_gives_the_reason_in_time() {
    let cli = Cli::of(free_address());
    let began = Instant::now();
    for kind in ["put", "read"] {
        let (status, error, message) = cli.fails(["--timeout", "300ms", "bench", kind]);
        assert_eq!((status, error.as_str()), (3, "unavailable"), "{message}");
        let reason = format!("bench: no session after 300ms: no server answers at {}: connect to ", cli.endpoints);
        assert!(message.starts_with(&reason), "{message}");
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn demo_whose_client_ends_says_how_it_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["a", "b", "c"] {
        std::fs::write(directory.path().join(name), name).expect("written");
    }
    let mut command = leasehold();
    command.args(["demo", "--client-program", "false"]).arg(directory.path());
    let output = command.output().expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.lines().last().is_some_and(|line| line.ends_with("is gone: it ended: exit status: 1")), "{said}");
}

#[test]
fn bench_that_is_interrupted_removes_what_it_wrote() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let mut command = cli.command(["bench", "put", "--seconds", "600"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = Process::of(command.spawn().expect("the binary starts"));
    eventually("it writes", || (cli.done(["ls", "/"])["children"] != json!([])).then_some(()));
    bench.signal(Signal::SIGINT);
    assert_eq!(bench.ended().code(), Some(1));
    assert_eq!(cli.done(["ls", "/"])["children"], json!([]));
}
