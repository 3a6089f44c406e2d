//! A majority of the servers is killed, and comes back.

use std::time::{Duration, Instant};

use leasehold_client_cache::{Client, DriftAllowance, Options, ReadError, SessionState, Tracking, VolumeSettings};

use crate::{
    alone,
    common::{Cluster, within},
    path,
};

const TERM: Duration = Duration::from_secs(4);

/// The most that a busy machine may add to a wait.
const GENEROUS: Duration = Duration::from_secs(3);

/// Two peers are tried several times a second, with a few log lines for each attempt. Without a
/// pause there would be tens of thousands of lines a second.
const LOG_LINES_MAX: usize = 5_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_loss_lets_cached_reads_last_out_their_leases() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let endpoints = cluster.endpoints();
    let client = cluster.client("reader").await;
    let node = path("/v/a");
    let margin = Duration::from_millis(100);
    let settings = VolumeSettings::new(TERM, 100 * TERM, margin, Tracking::Objects, DriftAllowance::DEFAULT);
    client.admin().create_volume("/v").settings(settings.expect("valid")).await.expect("created");
    client.put(&node, "kept").await.expect("written");
    client.get(&node).await.expect("served");
    let (cli, mut shell) = (cluster.cli(), cluster.cli().shell_with(&["--timeout", "3s"]));
    assert_eq!(shell.ask("get /v/a")["value"], "kept");

    let session = client.session().expect("a session");
    let mut events = client.events();
    let leader = cluster.leader();
    let promised = client.cached_for(&node).expect("cached");
    let lost = Instant::now();
    for id in cluster.others(leader) {
        cluster.kill(id);
    }
    let hits = tokio::task::spawn_blocking({
        let (client, node) = (client.clone(), node.clone());
        move || last_hit(&client, &node, lost)
    });

    // Writes are not done, and the errors say whether they may still happen. The shell has a
    // session. The other command gets none.
    shell.types("put /v/b x");
    let (status, kind, message) = cli.fails(["--timeout", "2s", "put", "/v/c", "x"]);
    assert!(status == 3 && ["unavailable", "no_quorum"].contains(&kind.as_str()), "{message}");
    let refused = shell.answer();
    let kind = refused["error"]["kind"].as_str().unwrap_or_default();
    assert!(["unavailable", "no_quorum", "outcome_unknown"].contains(&kind), "{refused}");

    // Cached reads go on for as long as was promised, and then end.
    let last_hit = hits.await.expect("it only reads");
    println!("cached reads went on for {last_hit:?}; {promised:?} had been promised when the quorum was lost");
    assert!(last_hit + Duration::from_millis(20) >= promised, "{last_hit:?}: {promised:?} had been promised");
    assert!(last_hit <= TERM + TERM / 5 + GENEROUS, "cached reads went on for {last_hit:?} without a quorum");
    assert_eq!(within("the event", events.next()).await, Ok(SessionState::Jeopardy { volumes: vec![path("/v")] }));
    let error = client.read(&node).timeout(Duration::from_secs(1)).await.expect_err("nobody can answer");
    assert!(matches!(error, ReadError::Unavailable { .. } | ReadError::TimedOut { .. }), "{error:?}");
    let (status, kind, message) = cli.fails(["--timeout", "2s", "get", "/v/a"]);
    assert_eq!((status, kind.as_str()), (3, "no_quorum"), "{message}");
    let status = cluster.status().expect("one server answers");
    assert!(status["members"].as_array().is_some_and(|members| members.len() == 3), "{status}");

    // The client reported only jeopardy. The server that is left paused between its attempts to
    // reach the others.
    let told = tokio::time::timeout(Duration::ZERO, events.next()).await;
    assert!(told.is_err(), "without a quorum the application was told {told:?}");
    let lines = cluster.log(leader).lines().count();
    println!("the server that was left wrote {lines} lines in {:?}", lost.elapsed());
    assert!(lines < LOG_LINES_MAX, "the server that was left wrote {lines} lines");

    // With a quorum everything works again, in the same session.
    for id in cluster.others(leader) {
        cluster.spawn(id);
    }
    assert_eq!(&client.get(&node).await.expect("served").expect("there").value[..], b"kept");
    assert_eq!(within("the event", events.next()).await, Ok(SessionState::Connected { session }));
    client.put(&node, "new").await.expect("written");
    assert_eq!(client.session(), Some(session), "no lease time was lost");
    let other = Client::connect(Options::new(endpoints.clone())).await.expect("served");
    assert_eq!(&other.get(&node).await.expect("served").expect("there").value[..], b"new");
    let get = shell.ask("get /v/a");
    assert_eq!(get["value"], "new", "{get}");
    assert!(shell.close().code().is_some_and(|code| [3, 4].contains(&code)), "the last line that failed is the write");
    cluster.caught_up(&cluster.ids());
    cluster.assert_all_run();
}

/// Reads from memory until that fails. Returns how long after `lost` the last read was.
fn last_hit(client: &Client, node: &leasehold_client_cache::NodePath, lost: Instant) -> Duration {
    let mut last = Duration::ZERO;
    loop {
        let before = lost.elapsed();
        if client.cached(node).is_none() {
            return last;
        }
        last = before;
        std::thread::sleep(Duration::from_millis(1));
    }
}
