//! Endpoints of two clusters. A replica was emptied, and started once with only itself in its list.
//! So it has bootstrapped its own cluster, at an address that clients know.

use std::collections::BTreeMap;

use leasehold_client_cache::{Client, ConnectError, Options, ReadError, Unavailable};
use nix::sys::signal::Signal;

use crate::{
    alone,
    common::{Cli, Cluster, SOON, soon},
    identity::Started,
};

/// A cluster of three that has `/a`, and lost one server. A cluster of one without `/a` runs in its
/// place. Returns the cluster, its leader, the lost server, and the process in its place.
fn split() -> (Cluster, u64, u64, Started) {
    let mut cluster = Cluster::start(3);
    cluster.cli().done(["put", "/a", "1"]);
    cluster.caught_up(&cluster.ids());
    let leader = cluster.leader();
    let wiped = cluster.others(leader)[0];
    cluster.kill(wiped);
    cluster.wipe(wiped);
    let address = cluster.address(wiped).to_owned();
    let alone = BTreeMap::from([(wiped, address.clone())]);
    let mut stranger = Started::of(wiped, &alone, &cluster.data(wiped), None);
    stranger.serves(&address);
    (cluster, leader, wiped, stranger)
}

async fn connect(endpoints: Vec<String>) -> Result<Client, ConnectError> {
    let options = Options::new(endpoints).name("reader").timeout(std::time::Duration::from_secs(2));
    Client::connect(options).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_does_not_read_from_another_cluster() {
    let _alone = alone();
    let (mut cluster, leader, wiped, _stranger) = split();
    let client = connect([leader, wiped].map(|id| cluster.address(id).to_owned()).into()).await.expect("it leads");
    let entry = client.get("/a").await.expect("served").expect("there");
    assert_eq!(&entry.value[..], b"1");

    // Only the other cluster answers.
    cluster.kill(leader);
    let refused = soon("the other cluster is refused", || async {
        match client.get("/a").await {
            Ok(Some(_)) => Err("from memory".to_owned()),
            Ok(None) => panic!("not found, says the wrong cluster"),
            Err(error @ ReadError::Unavailable { source: Unavailable::OtherCluster { .. }, .. }) => Ok(error),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    let ReadError::Unavailable { source, .. } = &refused else { unreachable!("it was looked for") };
    let Unavailable::OtherCluster { endpoint, got, expected } = source else { unreachable!("it was looked for") };
    assert_eq!(endpoint, cluster.address(wiped));
    assert_ne!(got, expected);
    let said = source.to_string();
    assert!([endpoint, got, expected].iter().all(|part| said.contains(part.as_str())), "{said}");

    cluster.spawn(leader);
    soon("the client goes on", || async {
        let read = client.get("/a").await.map_err(|error| error.to_string())?;
        read.map(|_| ()).ok_or_else(|| panic!("not found, says the wrong cluster"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_with_a_stray_server_first_reads_from_the_others() {
    let _alone = alone();
    let (mut cluster, _, wiped, _stranger) = split();
    let others = cluster.others(wiped);
    let endpoints: Vec<String> =
        std::iter::once(wiped).chain(others.clone()).map(|id| cluster.address(id).to_owned()).collect();
    for _ in 0..3 {
        let cli = Cli::of(endpoints.join(","));
        assert_eq!(cli.done(["get", "/a"])["value"], "1");
    }
    let client = connect(endpoints).await.expect("two of three lead");
    assert!(client.get("/a").await.expect("served").is_some());
    cluster.assert_all_run();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_founded_a_cluster_does_not_serve_with_the_list() {
    let _alone = alone();
    let (mut cluster, leader, wiped, stranger) = split();
    stranger.stop();
    // The list of the old cluster does not make it a member again.
    cluster.spawn(wiped);
    let status = cluster.ended(wiped);
    assert_eq!(status.code(), Some(1), "{status}");
    let log = cluster.log(wiped);
    assert!(log.contains("bootstrapped with --cluster") && log.contains("empty the folder"), "{log}");
    // The remedy in the message works.
    cluster.wipe(wiped);
    cluster.spawn(wiped);
    cluster.caught_up(&cluster.ids());
    cluster.stop(leader, Signal::SIGTERM);
    let client = Client::connect(Options::new(cluster.endpoints()).timeout(SOON)).await.expect("it serves");
    assert!(client.get("/a").await.expect("served").is_some());
}
