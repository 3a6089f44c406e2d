//! Servers that may open few files, and more clients than that. The server lives, a refused client
//! gets the reason, and the other replicas can connect.

use std::time::Duration;

use leasehold_client_cache::Client;
use leasehold_wire::{Role, connect};
use tokio::net::TcpStream;

use crate::{
    alone,
    common::{Cluster, Place, Site, free_address, soon},
};

/// How many files a server may open.
const FILES: usize = 256;

/// How many clients such a server admits.
const ADMITTED: usize = FILES / 4;

/// How many clients connect.
const IDLE: usize = 400;

const TIMEOUT: Duration = Duration::from_secs(10);

fn cluster_with_few_files(count: usize) -> Cluster {
    let limit = format!("ulimit -n {FILES} && exec \"$0\" \"$@\"");
    let site = || Site { place: Place::through(&["sh", "-c", &limit]), address: free_address(), data: None };
    Cluster::start_at((0..count).map(|_| site()).collect(), Place::default(), None)
}

/// Connects clients that send no requests. Returns those that are admitted, and the others' errors.
async fn crowd(address: &str, count: usize) -> (Vec<TcpStream>, Vec<String>) {
    let all = (0..count).map(|_| connect(address, Role::Client, TIMEOUT));
    let (mut admitted, mut refused) = (Vec::new(), Vec::new());
    for one in futures::future::join_all(all).await {
        match one {
            Ok(introduced) => admitted.push(introduced.stream),
            Err(error) => refused.push(error.to_string()),
        }
    }
    (admitted, refused)
}

async fn writes(client: &Client) {
    soon("a write goes through", async || client.put("/a", "1").await.map_err(|error| error.to_string())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_descriptors_refuses_clients_and_lives() {
    let _alone = alone();
    let mut cluster = cluster_with_few_files(1);
    let client = cluster.client("first").await;
    writes(&client).await;
    let (admitted, refused) = crowd(cluster.address(1), IDLE).await;
    assert!(admitted.len() < ADMITTED, "{} beside the first", admitted.len());
    let full = format!("{ADMITTED} connections of clients, the limit");
    assert!(refused.iter().all(|why| why.contains(&full)), "{:?}", refused.first());
    writes(&client).await;
    let (status, _, message) = cluster.cli().run(["--timeout", "1s", "get", "/a", "--json"]).error();
    assert!(status == 3 && message.contains(&full), "{status}: {message}");
    drop(admitted);
    soon("there is room again", async || (cluster.cli().run(["get", "/a"]).status == 0).then_some(())).await;
    cluster.assert_all_run();
}

/// [`crowd`] of clients that do not even send their role.
async fn silent_crowd(address: &str) -> Vec<TcpStream> {
    let all = (0..IDLE).map(|_| TcpStream::connect(address));
    futures::future::join_all(all).await.into_iter().map(|stream| stream.expect("it listens")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_keep_nobody_out() {
    let _alone = alone();
    let mut cluster = cluster_with_few_files(1);
    for _ in 0..3 {
        let silent = silent_crowd(cluster.address(1)).await;
        let ran = cluster.cli().run(["--timeout", "2s", "put", "/a", "1"]);
        assert_eq!(ran.status, 0, "beside {} that say nothing: {ran:?}", silent.len());
    }
    cluster.assert_all_run();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_of_clients_keeps_no_replica_out() {
    let _alone = alone();
    let mut cluster = cluster_with_few_files(3);
    let client = cluster.client("first").await;
    writes(&client).await;
    let leader = cluster.leader();
    let mut idle = Vec::new();
    for id in cluster.ids() {
        let (admitted, refused) = crowd(cluster.address(id), IDLE).await;
        assert!(!refused.is_empty(), "server {id} is full");
        idle.extend(admitted);
    }
    let others = cluster.others(leader);
    cluster.kill(others[0]);
    cluster.spawn(others[0]);
    // A majority needs the server that came back.
    cluster.kill(others[1]);
    writes(&client).await;
    drop(idle);
}
