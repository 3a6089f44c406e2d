//! `register`: a service is registered while its process lives.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    common::{Cli, Cluster, Missed, eventually, stall::measured},
    running::Running,
};

const TERM: Duration = Duration::from_secs(1);
/// The term of services that must live on. On a loaded machine, more than a second may pass between
/// two renewals.
const LONG_TERM: Duration = Duration::from_secs(4);
/// The margin and two ticks, and the time that a loaded machine needs for a few processes.
const SLACK: Duration = Duration::from_secs(5);

/// A cluster with a volume for services that has this term.
fn cluster(term: Duration) -> Cluster {
    let cluster = Cluster::start(1);
    cluster.cli().done(["volume", "create", "/services", "--term", &format!("{}s", term.as_secs())]);
    cluster
}

fn register(cli: &Cli, arguments: &[&str]) -> Running {
    let running = Running::start(cli, [&["--json", "register"], arguments].concat());
    let said = running.json();
    assert_eq!(said["path"], arguments[0]);
    assert!(said["remaining_ms"].as_u64().is_some_and(|certain| certain <= 4_000), "{said}");
    running
}

fn is_registered(cli: &Cli, path: &str) -> bool {
    let ran = cli.run(["--json", "get", path]);
    ran.status == 0 || ran.error().1 != "not_found"
}

/// The last line that it printed, which must be an error.
fn last_error(running: &Running) -> Value {
    let last = running.rest().pop().expect("it said so");
    serde_json::from_str::<Value>(&last).expect("JSON")["error"].clone()
}

#[test]
fn a_service_is_registered_until_it_is_told_to_stop() {
    let cluster = cluster(LONG_TERM);
    let cli = cluster.cli();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let before = Instant::now();
        let mut service = register(&cli, &["/services/web", "10.0.0.1:80"]);
        let got = cli.done(["get", "/services/web"]);
        assert_eq!((&got["value"], &got["lease"]), (&"10.0.0.1:80".into(), &Value::Null));
        assert!(got["session"].is_u64(), "it goes with a session: {got}");
        let (status, kind, message) = cli.fails(["register", "/services/web", "10.0.0.2:80"]);
        assert_eq!((status, kind.as_str()), (1, "exists"), "{message}");
        eventually("it has lived for two terms", || (before.elapsed() > 2 * LONG_TERM).then_some(()));
        assert!(is_registered(&cli, "/services/web"));
        service.process.signal(signal);
        assert_eq!(service.process.ended().code(), Some(0), "{signal}");
        assert!(!is_registered(&cli, "/services/web"), "it was removed before the process ended");
    }
}

#[test]
fn killed_service_expires_after_its_term_and_not_before() {
    let cluster = cluster(TERM);
    let cli = cluster.cli();
    for term in [&[][..], &["--term", "2"]] {
        let expected = if term.is_empty() { TERM } else { 2 * TERM };
        // No lease is promised before this moment.
        let before = Instant::now();
        let mut service = register(&cli, &[&["/services/web", "10.0.0.1:80"], term].concat());
        service.process.kill();
        let killed = Instant::now();
        eventually("it is gone", || (!is_registered(&cli, "/services/web")).then_some(()));
        let gone = Instant::now();
        assert!(gone - before >= expected, "{term:?}: gone {:?} after it was started", gone - before);
        assert!(gone - killed <= expected + SLACK, "{term:?}: gone {:?} after it was killed", gone - killed);
    }
}

#[test]
fn replaced_or_removed_service_exits_with_1() {
    let cluster = cluster(LONG_TERM);
    let cli = cluster.cli();
    let mut first = register(&cli, &["/services/web", "first"]);
    let mut second = register(&cli, &["/services/web", "second", "--replace"]);
    assert_eq!(first.process.ended().code(), Some(1));
    assert_eq!(last_error(&first)["kind"], "registration_lost");
    assert_eq!(cli.done(["get", "/services/web"])["value"], "second", "its successor's node was left alone");
    cli.done(["rm", "/services/web"]);
    assert_eq!(second.process.ended().code(), Some(1));
    let error = last_error(&second);
    assert!(error["message"].as_str().is_some_and(|text| text.starts_with("/services/web: removed")), "{error}");
}

#[test]
fn an_outage_of_the_servers_ends_no_registration() {
    let mut cluster = cluster(LONG_TERM);
    let cli = cluster.cli();
    let mut service = register(&cli, &["/services/web", "here"]);
    let mut errors = service.errors();
    cluster.kill(1);
    let told = errors.next().expect("it says that it is in doubt").expect("UTF-8");
    assert!(told.contains("/services/web: registration in jeopardy"), "{told}");
    cluster.spawn(1);
    cluster.wait_until_it_serves();
    let back = Instant::now();
    eventually("it has lived for two more terms", || (back.elapsed() > 2 * LONG_TERM).then_some(()));
    assert_eq!(cli.done(["get", "/services/web"])["value"], "here");
    assert_eq!(service.process.has_ended(), None);
    service.process.signal(Signal::SIGTERM);
    assert_eq!(service.process.ended().code(), Some(0));
    assert!(!is_registered(&cli, "/services/web"));
}

#[test]
fn service_that_missed_its_heartbeat_exits_with_1() {
    let cluster = cluster(TERM);
    let cli = cluster.cli();
    for term in [&[][..], &["--term", "1"]] {
        let mut service = register(&cli, &[&["/services/web", "here"], term].concat());
        service.process.pause(true);
        eventually("it is gone", || (!is_registered(&cli, "/services/web")).then_some(()));
        service.process.pause(false);
        assert_eq!(service.process.ended().code(), Some(1), "{term:?}");
        assert_eq!(last_error(&service)["kind"], "registration_lost");
    }
}

/// The only entry in the list of `services`.
fn service(cli: &Cli) -> Value {
    let said = cli.done(["services", "/services"]);
    let services = said["services"].as_array().expect("a list");
    assert_eq!(services.len(), 1, "{said}");
    services[0].clone()
}

#[test]
fn service_health_shows_live_jeopardy_ended_and_last_seen() {
    let cluster = cluster(TERM);
    let cli = cluster.cli();
    assert_eq!(cli.done(["services", "/services"])["services"], Value::Array(Vec::new()));
    for term in [&[][..], &["--term", "2"]] {
        let mut service_process = register(&cli, &[&["/services/web", "here"], term].concat());
        let live = eventually("it was renewed", || {
            let found = service(&cli);
            if found["state"] == "live" && found["last_seen_ms"].is_u64() { Ok(found) } else { Err(found.to_string()) }
        });
        assert_eq!((&live["path"], live["session"].is_u64()), (&"/services/web".into(), term.is_empty()), "{live}");
        assert!(live["remaining_ms"].as_u64().is_some_and(|remaining| remaining > 0), "{live}");
        let late = measured(|| {
            service_process.process.pause(true);
            let late = eventually("it is late", || {
                let found = service(&cli);
                if found["state"] == "live" { Err(found.to_string()) } else { Ok(found) }
            });
            if late["state"] == "jeopardy" {
                return Ok(late);
            }
            service_process.process.kill();
            service_process = register(&cli, &[&["/services/web", "here"], term].concat());
            Err(Missed(format!("nobody saw it in jeopardy: {late}")))
        });
        assert!(late["remaining_ms"].as_u64().is_some_and(|left| left < 1_000), "{late}");
        let gone = eventually("it is gone", || {
            let found = service(&cli);
            if found["state"] == "gone" { Ok(found) } else { Err(found.to_string()) }
        });
        assert_eq!((&gone["reason"], &gone["remaining_ms"]), (&"expired".into(), &Value::Null), "{gone}");
        assert!(gone["last_seen_ms"].as_u64() >= late["last_seen_ms"].as_u64(), "{gone} after {late}");
        service_process.process.kill();
    }
    let mut service_process = register(&cli, &["/services/web", "here"]);
    assert_eq!(service(&cli)["state"], "live", "it is there again");
    service_process.process.signal(Signal::SIGTERM);
    assert_eq!(service_process.process.ended().code(), Some(0));
    assert_eq!((&service(&cli)["state"], &service(&cli)["reason"]), (&"gone".into(), &"left".into()));
}
