//! The commands `serve` and `cluster status`.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::common::{Cli, Cluster, eventually, free_address, leasehold};

#[test]
fn stopped_server_exits_with_0_and_restarts_with_its_state() {
    let mut cluster = Cluster::start(1);
    let cli = cluster.cli();
    for (number, signal) in [Signal::SIGTERM, Signal::SIGINT].into_iter().enumerate() {
        cli.done(["put", "/a", &number.to_string()]);
        assert_eq!(cluster.stop(1, signal).code(), Some(0), "{signal}");
        cluster.spawn(1);
        cluster.wait_until_it_serves();
        assert_eq!(cli.done(["get", "/a"])["value"], number.to_string());
    }
    cli.done(["put", "/a", "before the crash"]);
    cluster.kill(1);
    cluster.spawn(1);
    cluster.wait_until_it_serves();
    assert_eq!(cli.done(["get", "/a"])["value"], "before the crash");
}

#[test]
fn serve_logs_its_start_and_its_stop() {
    let mut cluster = Cluster::start(1);
    assert_eq!(cluster.stop(1, Signal::SIGTERM).code(), Some(0));
    let log = cluster.log(1);
    let line = |text: &str| log.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {log}"));
    let start = line("starting a replica");
    for field in [env!("CARGO_PKG_VERSION"), "replica=1", "data=", "address=", cluster.address(1)] {
        assert!(start.contains(field), "{field}: {start}");
    }
    assert!(line("stopping the replica").contains("SIGTERM"), "{log}");
    assert!(log.lines().last().is_some_and(|last| last.contains("the replica has stopped")), "{log}");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let cluster = Cluster::start(1);
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    let serve = |arguments: &[&str]| {
        let mut command = leasehold();
        command.args(["--json", "serve", "--data"]).arg(&data).args(arguments);
        let output = command.output().expect("the binary starts");
        let line: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        (output.status.code(), line["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    let taken = cluster.address(1);
    let (status, message) = serve(&["--listen", taken]);
    assert_eq!(status, Some(1));
    assert!(message.contains(&format!("listen on {taken}")), "{message}");
    let file = directory.path().join("leasehold.toml");
    fs::write(&file, "listen = \"127.0.0.1:0\"\nlisten_at = 1\n").expect("written");
    let (status, message) = serve(&["--config", file.to_str().expect("UTF-8")]);
    assert_eq!(status, Some(2));
    assert!(message.contains("leasehold.toml: ") && message.contains("listen_at"), "{message}");
    let (status, message) = serve(&["--id", "4", "--cluster", "1=a:1,2=b:1,3=c:1"]);
    assert_eq!(status, Some(2));
    assert!(message.contains("replica 4: not in --cluster; expected one of [1, 2, 3]"), "{message}");
}

#[test]
fn a_cluster_shows_its_members_and_who_does_not_answer() {
    let mut cluster = Cluster::start(3);
    let cli = cluster.cli();
    cli.done(["put", "/a", "1"]);
    let status = eventually("all have applied what there is", || {
        let status = cli.done(["cluster", "status"]);
        let members = status["members"].as_array().expect("a list").clone();
        let is_complete = members.len() == 3 && members.iter().all(|member| member["revision"] == 1);
        is_complete.then_some(status)
    });
    let leader = cluster.leader();
    for (member, id) in status["members"].as_array().expect("a list").iter().zip(1..) {
        assert_eq!(
            (&member["replica"], &member["voter"], &member["answers"]),
            (&json!(id), &json!(true), &json!(true))
        );
        assert!(member["applied"].is_u64() && member["epoch"].is_u64(), "{member}");
    }
    let follower = cluster.others(leader)[0];
    cluster.kill(follower);
    // One endpoint is enough to find the other servers.
    let from_leader = Cli::of(cluster.address(leader));
    let status = from_leader.done(["cluster", "status"]);
    let answers = |id: u64| status["members"][id as usize - 1]["answers"].clone();
    assert_eq!((answers(follower), answers(leader)), (json!(false), json!(true)), "{status}");
    let text = from_leader.run(["cluster", "status"]);
    let name = status["cluster"].as_str().expect("a cluster").to_owned();
    assert!(text.text().starts_with(&format!("cluster {name}\n")), "{text:?}");
    let silent = text.text().lines().filter(|line| line.ends_with("no")).count();
    assert_eq!(silent, 1, "{text:?}");
    cli.done(["put", "/a", "2"]);

    cluster.kill(leader);
    eventually("the last server knows no leader", || {
        let status = cli.run(["--json", "cluster", "status"]).json();
        status["leader"].is_null().then_some(())
    });
    for (arguments, problem) in [
        (&["get", "/a"][..], "/a: no quorum: no session after 1s: "),
        (&["lease", "list"][..], "lease: no quorum: no session after 1s: "),
    ] {
        let (status, kind, message) = cli.fails(["--timeout", "1s"].iter().chain(arguments));
        assert_eq!((status, kind.as_str()), (3, "no_quorum"), "a majority is lost");
        assert!(message.starts_with(problem), "{message}");
    }
    let left = cli.run(["--json", "cluster", "status"]);
    assert_eq!(left.status, 3, "{left:?}");
    let left = left.json();
    assert_eq!(left["quorum"], false, "{left}");
    let answering = left["members"].as_array().expect("a list").iter().filter(|it| it["answers"] == true).count();
    assert_eq!(answering, 1, "{left}");
    let text = cli.run(["cluster", "status"]);
    assert!(text.status == 3 && text.text().contains("no quorum: 1 of 3 voters answer\n"), "{text:?}");
    cluster.spawn(follower);
    cluster.wait_until_it_serves();
    assert_eq!(cli.done(["get", "/a"])["value"], "2");
}

#[test]
fn health_has_a_line_for_each_endpoint_and_a_status() {
    let mut cluster = Cluster::start(3);
    let (cli, leader) = (cluster.cli(), cluster.leader());
    let all = eventually("all know the leader", || {
        let ran = cli.run(["--json", "health"]);
        if ran.status == 0 { Ok(ran.json()) } else { Err(format!("{ran:?}")) }
    });
    assert_eq!(all["healthy"], true, "{all}");
    for (server, id) in all["servers"].as_array().expect("a list").iter().zip(1..) {
        let expected = json!({
            "endpoint": cluster.address(id), "healthy": true, "replica": id, "leader": leader, "error": null
        });
        assert_eq!(*server, expected);
    }
    let text = cli.run(["health"]);
    let line = |id| text.text().lines().find(|line| line.starts_with(cluster.address(id))).expect("a line").to_owned();
    assert!(line(leader).ends_with(&format!(" is healthy: replica {leader}, leader")), "{text:?}");
    let [one, other] = cluster.others(leader)[..] else { panic!("three servers") };
    assert!(line(one).ends_with(&format!(" is healthy: replica {one}, follows replica {leader}")), "{text:?}");

    cluster.kill(one);
    let ran = cli.run(["health"]);
    assert_eq!((ran.status, ran.text().lines().count()), (3, 3), "{ran:?}");
    assert!(ran.text().contains(&format!("{} is unhealthy: connect to ", cluster.address(one))), "{ran:?}");
    let asked = Cli::of(cluster.address(leader));
    assert_eq!(asked.run(["health"]).status, 0, "only the asked servers count");
    cluster.kill(other);
    let expected = format!("{} is unhealthy: no leader is known\n", cluster.address(leader));
    eventually("the last server leads no more", || {
        let ran = asked.run(["health"]);
        if (ran.status, ran.text()) == (3, expected.as_str()) { Ok(()) } else { Err(format!("{ran:?}")) }
    });
}

#[test]
fn server_without_options_listens_on_default_port() {
    let directory = tempfile::tempdir().expect("a directory");
    // The default port may be taken on this machine. So this checks only that the help names it.
    let help = leasehold().args(["serve", "--help"]).output().expect("the binary starts");
    assert!(String::from_utf8_lossy(&help.stdout).contains("127.0.0.1:7600"));
    let file = directory.path().join("c.toml");
    let address = free_address();
    fs::write(&file, format!("id = 2\nlisten = \"{address}\"\n")).expect("written");
    let data = directory.path().join("d");
    let mut command = leasehold();
    command
        .args(["--json", "serve", "--config"])
        .arg(&file)
        .arg("--data")
        .arg(&data)
        .stdout(std::process::Stdio::piped());
    let mut child = command.stderr(std::process::Stdio::null()).spawn().expect("starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("it is piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a line");
    child.kill().and_then(|()| child.wait()).expect("it is ours");
    let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(said, json!({ "id": 2, "address": address, "data": data }));
}
