//! Reads and writes that wait for a dead client. `holders` and `why` show the wait, and the
//! client's lease bounds it.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use leasehold_client_cache::{Client, Options};

use crate::{
    common::{Cluster, eventually},
    running::Running,
};

#[test]
fn why_names_dead_client_and_write_waits_only_for_its_lease() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["volume", "create", "/v", "--term", "3s"]);
    cli.done(["put", "/v/a", "1"]);
    let mut shell = cli.shell();
    assert_eq!(shell.ask("get /v/a")["value"], "1");
    let name =
        format!("shell@{}:{}", nix::unistd::gethostname().expect("a name").to_string_lossy(), shell.process.id());

    let holders = cli.done(["holders", "/v/a"]);
    let holder = holders["holders"].as_array().and_then(|holders| holders.first()).expect("one holder").clone();
    assert_eq!((holder["name"].as_str(), holder["object"].as_str()), (Some(name.as_str()), Some("data")));
    assert!(holder["remaining_ms"].as_u64().is_some_and(|left| left > 0 && left <= 3_700), "{holder}");

    shell.process.kill();
    let killed = Instant::now();
    let mut put = cli.command(["put", "/v/a", "2", "--timeout", "20s"]).stdout(Stdio::null()).spawn().expect("starts");
    let wait = eventually("the write waits for the dead client", || {
        let waits = cli.done(["why", "/v/a"]);
        let waits = waits["writes"].as_array().expect("a list").clone();
        waits.into_iter().find(|wait| wait["holder_name"] == name.as_str())
    });
    assert_eq!(wait["path"], "/v/a");
    assert!(wait["writer_name"].as_str().is_some_and(|writer| writer.starts_with("put@")), "{wait}");
    assert!(wait["at_most_ms"].as_u64().is_some_and(|left| left <= 3_700), "{wait}");
    let late = cli.fails(["--timeout", "100ms", "put", "/v/a", "3"]);
    assert_eq!((late.0, late.1.as_str()), (4, "outcome_unknown"), "it was sent, and may still happen");
    assert!(put.wait().expect("it ends").success());
    // A term, a tick and the margin, and the time that a loaded machine needs for a few processes.
    let waited = killed.elapsed();
    assert!(waited < Duration::from_millis(3_700) + Duration::from_secs(5), "{waited:?}");
    let value = eventually("no write waits any more", || {
        let is_idle = cli.run(["why", "/v/a"]).text() == "no read, write or lock of /v/a waits\n";
        is_idle.then(|| cli.done(["get", "/v/a"])["value"].clone())
    });
    assert!(value == "2" || value == "3", "the one that was given up may have happened, or not: {value}");
}

#[test]
fn why_names_write_lease_owner_and_counts_blocked_reads() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["volume", "create", "/v", "--term", "5s"]);
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let lease = runtime.block_on(async {
        let options = Options::new(cli.endpoints.split(',')).name("editor");
        let client = Client::connect(options).await.expect("a server is there");
        let lease = client.write_lease("/v/a").await.expect("nobody else wants it");
        lease.set("not flushed").await.expect("it is certain");
        lease
    });
    // Ends without notice, like a process that is killed.
    runtime.shutdown_background();
    let reads: Vec<_> = (0..3)
        .map(|_| {
            let mut command = cli.command(["get", "/v/a", "--timeout", "30s"]);
            command.stdout(Stdio::piped()).spawn().expect("the binary starts")
        })
        .collect();
    let wait = eventually("all reads wait", || {
        let why = cli.done(["why", "/v/a"]);
        assert_eq!(why["writes"].as_array().map(Vec::len), Some(0), "{why}");
        let rows = why["reads"].as_array().expect("a list").clone();
        rows.into_iter().find(|wait| wait["count"] == 3).ok_or_else(|| why.to_string())
    });
    assert_eq!((&wait["path"], &wait["owner_name"]), (&"/v/a".into(), &"editor".into()));
    assert!(wait["at_most_ms"].as_u64().is_some_and(|left| left > 0 && left <= 6_000), "{wait}");
    assert!(wait["since_ms"].as_u64().is_some_and(|since| since > 0), "{wait}");
    let text = cli.run(["why", "/v/a"]).text().to_owned();
    assert!(
        text.starts_with("3 reads of /v/a have waited, the first ") && text.contains(", for editor (session "),
        "{text}"
    );
    for read in reads {
        assert!(
            read.wait_with_output().expect("it ends").status.success(),
            "it was answered, with what had been flushed"
        );
    }
    assert_eq!(cli.run(["why", "/v/a"]).text(), "no read, write or lock of /v/a waits\n");
    drop(lease);
}

#[test]
fn waiting_write_names_client_after_a_second_and_at_the_end() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["put", "/a", "1"]);
    let mut shell = cli.shell();
    assert_eq!(shell.ask("get /a")["value"], "1");
    // Two copies of a dead client: with the default term, its leases outlast these writes.
    shell.process.kill();
    let late = cli.run(["--json", "--timeout", "2500ms", "put", "/a", "2"]);
    assert_eq!(late.status, 4, "{late:?}");
    let lines: Vec<&str> = late.stderr.lines().collect();
    let [notice, error] = lines[..] else { panic!("a notice and an error: {late:?}") };
    assert!(notice.starts_with("leasehold: /a: waiting for shell@"), "{notice}");
    assert!(notice.contains("(session ") && notice.ends_with(" s longer"), "{notice}");
    assert!(error.starts_with("leasehold: /a: ") && error.contains("; waiting for shell@"), "{error}");
    assert!(error.contains(" s longer") && error.ends_with("; see leasehold why /a"), "{error}");
    assert_eq!(late.json()["error"]["kind"], "outcome_unknown");
}

#[test]
fn default_timeout_outlasts_default_term_of_a_dead_client() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["put", "/a", "1"]);
    let mut shell = cli.shell();
    assert_eq!(shell.ask("get /a")["value"], "1");
    shell.process.kill();
    let put = cli.run(["put", "/a", "2"]);
    assert_eq!((put.status, put.text()), (0, "revision 2\n"), "{put:?}");
}

#[test]
fn waiting_lock_and_election_name_the_owner() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let owner = Running::start(&cli, ["lock", "/jobs/one"]);
    assert!(owner.line().starts_with("locked /jobs/one: token "));
    let mut waiting = Running::start(&cli, ["lock", "/jobs/one"]);
    let said = waiting.errors().next().expect("it says for whom it waits").expect("text");
    assert!(said.starts_with("leasehold: /jobs/one: waiting for the lock; locked by lock@"), "{said}");

    let why = cli.done(["why", "/jobs/one"]);
    let lock = &why["locks"][0];
    assert!(lock["name"].as_str().is_some_and(|name| name.starts_with("lock@")), "{why}");
    assert!(lock["owners"][0]["token"].is_u64() && lock["owners"][0]["remaining_ms"].is_u64(), "{why}");
    let text = cli.run(["why", "/jobs/one"]).text().to_owned();
    assert!(text.starts_with("lock of /jobs/one by lock@") && text.contains(", which has token "), "{text}");
    let holders = cli.run(["holders", "/jobs/one"]).text().to_owned();
    assert!(
        holders.starts_with("LOCK ") && holders.contains("STATE") && holders.contains("waits, exclusive"),
        "{holders}"
    );
    assert_eq!(cli.run(["holders", "/jobs/two"]).text(), "no leases or locks on /jobs/two\n");

    let leader = Running::start(&cli, ["elect", "/jobs/leader", "first"]);
    assert!(leader.line().starts_with("elected first: token "));
    let mut candidate = Running::start(&cli, ["elect", "/jobs/leader", "second"]);
    let said = candidate.errors().next().expect("it says for whom it waits").expect("text");
    assert!(said.contains("/jobs/leader: waiting for the lock; locked by elect first@"), "{said}");
    let observer = Running::start(&cli, ["elect", "/jobs/leader", "--observe"]);
    assert!(observer.line().starts_with("leader first: token "));
}

#[test]
fn why_shows_the_reason_of_a_delayed_consent() {
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    cli.done(["volume", "create", "/v", "--term", "30s"]);
    cli.done(["put", "/v/a", "1"]);
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let reader = runtime.block_on(async {
        let options = Options::new(cli.endpoints.split(',')).name("reader").consent_delay(Duration::from_secs(15));
        let reader = Client::connect(options).await.expect("a server is there");
        assert!(reader.get("/v/a").await.expect("a leader is there").is_some());
        reader
    });
    let mut put = cli.command(["put", "/v/a", "2", "--timeout", "60s"]).stdout(Stdio::null()).spawn().expect("starts");
    let (wait, text) = eventually("the reader has said that it uses its copy", || {
        let why = cli.done(["why", "/v/a"]);
        let wait = why["writes"].as_array().expect("a list").first().filter(|wait| wait["delay"].is_object()).cloned();
        let text = cli.run(["why", "/v/a"]).text().to_owned();
        wait.zip(text.contains("it still uses its copy").then_some(text)).ok_or_else(|| why.to_string())
    });
    assert_eq!((&wait["holder_name"], &wait["delay"]["reason"]), (&"reader".into(), &"in_use".into()), "{wait}");
    let left = wait["delay"]["at_most_ms"].as_u64().expect("a bound");
    assert!(left <= 15_000 && Some(left) <= wait["at_most_ms"].as_u64(), "{wait}");
    assert!(text.contains(" for reader (session "), "{text}");
    assert!(text.contains(" s longer; it still uses its copy, for ") && text.ends_with(" s at most\n"), "{text}");
    runtime.block_on(reader.close());
    assert!(put.wait().expect("it ends").success(), "the reader has dropped its copy");
}
