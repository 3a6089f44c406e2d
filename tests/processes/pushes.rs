//! In a volume that updates, the server pushes each written value to the clients that read it.

use leasehold_client_cache::{Content, OnWrite, ReadSource};

use crate::{
    alone,
    common::{Cluster, soon},
    path,
};

const WRITES: u32 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_writes_are_pushed_to_their_readers() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let writer = cluster.client("writer").await;
    writer.admin().create_volume("/prices").on_write(OnWrite::Update).await.expect("created");
    let node = path("/prices/gold");
    writer.put(&node, "0").await.expect("written");
    let readers = [cluster.client("first reader").await, cluster.client("second reader").await];
    for reader in &readers {
        soon("the price is read from memory", || async {
            let read = reader.read(&node).await.expect("the cluster serves");
            if read.source == ReadSource::Memory { Ok(()) } else { Err(format!("{:?}", read.source)) }
        })
        .await;
    }
    let asked = readers.each_ref().map(|reader| reader.stats().server_reads);
    for number in 1..=WRITES {
        let price = number.to_string();
        writer.put(&node, &price).await.expect("written");
        for reader in &readers {
            // `cached` sends no request, so only the push can bring the price.
            soon("the price is pushed", || async {
                let cached = reader.cached(&node);
                match cached.as_deref() {
                    Some(Content::Data(Some(data))) if data.value == price.as_bytes() => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        }
    }
    assert_eq!(readers.each_ref().map(|reader| reader.stats().server_reads), asked, "no read asked a server");

    // After a change of leader, reads get the new value.
    cluster.kill(cluster.leader());
    writer.put(&node, "last").await.expect("the other two are a quorum");
    for reader in &readers {
        assert_eq!(&reader.get(&node).await.expect("served").expect("there").value[..], b"last");
    }
}
