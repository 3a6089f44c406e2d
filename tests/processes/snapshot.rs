//! A follower that is so far behind that the log does not reach back.

use crate::harness::{Cluster, alone, leasehold, path, tree};

const CONFIG: &str = "[raft]\nsnapshot_entries = 200\nkeep_entries = 50\n";

/// Each in an entry of its own, and more than three times what a snapshot is taken after.
const WRITES: u64 = 700;

/// Elections in which the other of two candidates may win. One in 500 runs would need more.
const ELECTIONS_MAX: usize = 9;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_missed_more_than_the_log_keeps_is_brought_up_by_a_snapshot() {
    let _alone = alone().await;
    let mut cluster = Cluster::start_with(3, Some(CONFIG)).await;
    let client = cluster.client("writer").await;
    client.put(&path("/data/gone"), "before").await.expect("written");
    client.put(&path("/data/kept"), "before").await.expect("written");
    let leader = cluster.leader().await;
    let behind = cluster.others(leader)[0];
    cluster.caught_up(&[behind]).await;
    cluster.kill(behind);

    client.delete(&path("/data/gone"), Default::default()).await.expect("deleted");
    for number in 0..WRITES {
        let node = path(&format!("/data/{}/{}", number % 7, number % 100));
        client.put(&node, format!("{number}")).await.expect("written");
    }
    cluster.spawn(behind);
    cluster.caught_up(&cluster.ids()).await;
    assert!(cluster.log(behind).contains("replaced by a snapshot"), "the log was still long enough: nothing was shown");

    // What it has is shown when it leads.
    let mut elections = 0;
    loop {
        let leader = cluster.leader().await;
        if leader == behind {
            break;
        }
        elections += 1;
        assert!(elections <= ELECTIONS_MAX, "the other one was elected {ELECTIONS_MAX} times");
        cluster.kill(leader);
        cluster.leader().await;
        cluster.spawn(leader);
        cluster.caught_up(&cluster.ids()).await;
    }
    let target = cluster.directory("target");
    let to = target.display().to_string();
    leasehold(&cluster.endpoints(), &["--timeout", "30s", "export", "/data", &to]).await.expect_done();
    assert_eq!(cluster.leader().await, behind, "it led all the time");
    let got = tree(&target);
    let mut expected: std::collections::BTreeMap<_, _> = (0..WRITES)
        .map(|number| (format!("{}/{}", number % 7, number % 100).into(), Some(number.to_string().into_bytes())))
        .collect();
    expected.extend((0..7).map(|number| (number.to_string().into(), None)));
    expected.insert("kept".into(), Some(b"before".to_vec()));
    assert!(got == expected, "{} files and directories: expected {}", got.len(), expected.len());

    // It goes on from there, also over a restart.
    for number in 0..50 {
        client.put(&path("/data/kept"), format!("{number}")).await.expect("written");
    }
    cluster.kill(behind);
    cluster.spawn(behind);
    cluster.caught_up(&cluster.ids()).await;
    cluster.assert_all_run();
}
