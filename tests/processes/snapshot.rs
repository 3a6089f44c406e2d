//! A follower that is so far behind that the log no longer has what it missed.

use crate::{alone, common::Cluster, files::tree, path};

const CONFIG: &str = "[raft]\nsnapshot_entries = 200\nkeep_entries = 50\n";

/// Each write is an entry. A Raft snapshot is taken after less than a third of these.
const WRITES: u64 = 700;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_behind_the_log_catches_up_by_raft_snapshot() {
    let _alone = alone();
    let mut cluster = Cluster::start_with(3, Some(CONFIG));
    let client = cluster.client("writer").await;
    client.put("/data/gone", "before").await.expect("written");
    client.put("/data/kept", "before").await.expect("written");
    let leader = cluster.leader();
    let behind = cluster.others(leader)[0];
    cluster.caught_up(&[behind]);
    cluster.kill(behind);

    client.delete("/data/gone").await.expect("deleted");
    for number in 0..WRITES {
        let node = path(&format!("/data/{}/{}", number % 7, number % 100));
        client.put(&node, format!("{number}")).await.expect("written");
    }
    cluster.spawn(behind);
    cluster.caught_up(&cluster.ids());
    assert!(cluster.log(behind).contains("replaced by a snapshot"), "the log was still long enough: nothing was shown");

    // Its data shows when it leads. It must win if the only other server that runs lacks an entry.
    let leader = cluster.leader();
    if leader != behind {
        let third = cluster.others(leader).into_iter().find(|id| *id != behind).expect("one of three");
        cluster.kill(third);
        client.put("/data/kept", "between").await.expect("written");
        cluster.kill(leader);
        cluster.spawn(third);
        assert_eq!(cluster.leader(), behind);
    }
    client.put("/data/kept", "after").await.expect("written");
    let target = cluster.directory("target");
    let to = target.display().to_string();
    cluster.cli().done(["--timeout", "30s", "export", "/data", &to]);
    assert_eq!(cluster.leader(), behind, "it led all the time");
    let got = tree(&target);
    let mut expected: std::collections::BTreeMap<_, _> = (0..WRITES)
        .map(|number| (format!("{}/{}", number % 7, number % 100).into(), Some(number.to_string().into_bytes())))
        .collect();
    expected.extend((0..7).map(|number| (number.to_string().into(), None)));
    expected.insert("kept".into(), Some(b"after".to_vec()));
    assert!(got == expected, "{} files and directories: expected {}", got.len(), expected.len());

    // It goes on from there, also after a restart.
    cluster.kill(behind);
    for id in cluster.ids() {
        cluster.spawn_if_down(id);
    }
    client.put("/data/kept", "again").await.expect("written");
    cluster.caught_up(&cluster.ids());
    cluster.assert_all_run();
}
