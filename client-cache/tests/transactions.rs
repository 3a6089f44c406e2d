//! Several nodes at once: transactions, snapshot reads, and updates with several tries.

// Helpers may panic, as tests do.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use common::{Server, path, value, within};
use futures::future::join_all;
use leasehold_client_cache::{
    Branch, Client, Compare, GrantPolicy, NodeData, NodeOwner, NodePath, Operation, OperationResult, ReadSource,
    Refusal, Relation, SnapshotError, Transaction, Value, WriteError, WriteRefusal,
};

const TERM: Duration = Duration::from_secs(10);

fn number(value: &Value) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_does_one_thing_or_the_other_and_says_why() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let (a, b, c) = (path("/a"), path("/b/deep"), path("/c"));
    let made = client.put(&a, "one").await.unwrap();
    let transaction = || {
        Transaction::new()
            .when(Compare::value(a.clone(), Relation::Equal, "one"))
            .when(Compare::absent(b.clone()))
            .then(Operation::put(b.clone(), "two"))
            .then(Operation::delete(a.clone()))
            .otherwise(Operation::put(c.clone(), "three"))
    };
    let outcome = client.transaction(transaction()).await.unwrap();
    assert_eq!((outcome.succeeded(), outcome.branch()), (true, Branch::Then));
    let [OperationResult::Put(stat), OperationResult::Deleted(1)] = outcome.results[..] else { panic!("{outcome:?}") };
    assert_eq!((outcome.revision, stat.modify_revision), (made.revision.next(), outcome.revision));
    assert_eq!(client.get(&a).await.unwrap(), None);
    assert_eq!(client.get(&b).await.unwrap().unwrap().stat, stat);
    let outcome = client.transaction(transaction()).await.unwrap();
    let failed = outcome.failed.unwrap();
    assert_eq!((failed.index, failed.found, outcome.results.len()), (0, None, 1));
    assert_eq!(&client.get(&c).await.unwrap().unwrap().value[..], b"three");
    let only_compares = Transaction::new().when(Compare::exists(b.clone())).when(Compare::exists(a.clone()));
    let compared = client.transaction(only_compares).await.unwrap();
    assert_eq!((compared.revision, compared.failed.unwrap().index), (outcome.revision, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_recalls_all_written_copies_before_its_answer() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    let paths = [path("/a"), path("/b"), path("/c")];
    for round in 0..20 {
        for path in &paths {
            reader.get(path).await.unwrap();
            assert!(reader.cached(path).is_some());
        }
        let [a, b, _] = paths.clone();
        let both = Transaction::new().then(Operation::put(a, value(round))).then(Operation::put(b, value(round)));
        writer.transaction(both).await.unwrap();
        assert_eq!(paths.each_ref().map(|path| reader.cached(path).is_some()), [false, false, true]);
        assert_eq!(reader.get(&paths[1]).await.unwrap().unwrap().value, value(round));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_server_would_take_is_not_sent() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let put = |at: &str| Operation::put(path(at), "");
    let many = Transaction { then: (0..129).map(|it| put(&format!("/{it}"))).collect(), ..Transaction::new() };
    let error = client.transaction(many).await.unwrap_err();
    let expected = "transaction: 129 operations in one branch exceed the limit of 128";
    assert!(matches!(error, WriteError::Limit { .. }) && error.to_string() == expected, "{error}");
    let error = client.transaction(Transaction::new().then(put("/a")).then(put("/a"))).await.unwrap_err();
    let refusal = WriteRefusal::Overlap { branch: Branch::Then, first: 0, second: 1, path: path("/a") };
    assert_eq!(error, WriteError::Refused(Refusal::Write(refusal)));
    assert_eq!(server.asked("Write"), 0);
    let refused = client.transaction(Transaction::new().then(put("/a")).then(Operation::delete(path("/b")))).await;
    assert_eq!(refused.unwrap_err().to_string(), "operation 2 of branch then: /b: not found");
    assert_eq!(client.get("/a").await.unwrap(), None, "none of it was done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_read_of_cached_nodes_is_local_and_never_torn() {
    let server = Server::start(TERM).await;
    let (reader, writer) = (server.client().await, server.client().await);
    let paths: Vec<NodePath> = (0..4).map(|it| path(&format!("/it/{it}"))).collect();
    writer.put("/it", "stays").await.unwrap();
    let none = reader.snapshot(&paths).await.unwrap();
    assert_eq!((none.entries, none.tries), (vec![None; 4], 1));
    let before = reader.stats();
    reader.snapshot(&paths).await.unwrap();
    let after = reader.stats();
    assert_eq!((after.server_reads, after.hits), (before.server_reads, before.hits + 8));

    let is_over = Arc::new(AtomicBool::new(false));
    let write = {
        let (paths, is_over) = (paths.clone(), Arc::clone(&is_over));
        tokio::spawn(async move {
            for round in 0..300 {
                let operations = paths.iter().map(|path| match round % 3 {
                    2 => Operation::delete(path.clone()),
                    _ => Operation::put(path.clone(), value(round)),
                });
                let all = Transaction { then: operations.collect(), ..Transaction::new() };
                writer.transaction(all).await.unwrap();
            }
            is_over.store(true, SeqCst);
        })
    };
    let (mut snapshots, mut seen) = (0, 0);
    while !is_over.load(SeqCst) {
        let snapshot = within(reader.snapshot(&paths)).await.unwrap();
        let values: Vec<_> = snapshot.entries.iter().map(|entry| entry.as_ref().map(|it| it.value.clone())).collect();
        assert!(values.iter().all(|value| *value == values[0]), "{snapshot:?}");
        let newest = snapshot.entries.iter().flatten().map(|entry| entry.stat.modify_revision).max();
        assert_eq!(snapshot.revision, newest.unwrap_or_default());
        seen = values[0].as_ref().map_or(seen, |value| seen.max(number(value)));
        snapshots += 1;
    }
    write.await.unwrap();
    assert!(snapshots > 10 && seen > 0, "{snapshots} snapshots, up to {seen}");
}

/// Without leases there are no copies, and the absence of a node has no revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_of_absent_nodes_needs_no_object_leases() {
    let server = Server::start(TERM).await;
    let (writer, reader) = (server.client().await, server.client().await);
    writer.admin().create_volume("/polled").object_term(Duration::ZERO).await.unwrap();
    writer.put("/polled/a", "1").await.unwrap();
    let snapshot = reader.snapshot(["/polled/a", "/polled/none"]).await.unwrap();
    let found: Vec<bool> = snapshot.entries.iter().map(Option::is_some).collect();
    assert_eq!((found, snapshot.tries), (vec![true, false], 1));
    writer.admin().create_volume("/asked").grants(GrantPolicy::OnRequest).await.unwrap();
    assert_eq!(reader.snapshot(["/asked/none"]).await.unwrap().tries, 1);
    assert!(reader.cached(&path("/asked/none")).is_some(), "a snapshot read asks for leases");
}

/// One transaction cannot compare all these nodes. It can compare the absent ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_of_many_nodes_has_up_to_128_absent_ones() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    client.admin().create_volume("/polled").object_term(Duration::ZERO).await.unwrap();
    let present: Vec<NodePath> = (0..128).map(|it| path(&format!("/polled/{it}"))).collect();
    let all = present.iter().map(|path| Operation::put(path.clone(), "1")).collect();
    client.transaction(Transaction { then: all, ..Transaction::new() }).await.unwrap();
    let absent = |count: usize| (0..count).map(|it| path(&format!("/polled/none/{it}")));
    let paths: Vec<NodePath> = present.iter().cloned().chain(absent(128)).collect();
    let snapshot = client.snapshot(&paths).await.unwrap();
    let found = snapshot.entries.iter().map(Option::is_some);
    assert_eq!(found.collect::<Vec<_>>(), [vec![true; 128], vec![false; 128]].concat());
    assert_eq!(snapshot.tries, 1);
    let again = client.snapshot(paths.iter().chain(&paths)).await.unwrap();
    assert_eq!((again.entries.len(), again.tries), (512, 1), "each absent path counts once");
    let refused = client.snapshot(present.into_iter().chain(absent(129))).timeout(Duration::from_secs(1)).await;
    assert_eq!(refused, Err(SnapshotError::TooManyAbsent { got: 129, most: 128 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_finds_no_moment_says_so() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let nothing = client.snapshot(["/a"]).timeout(Duration::ZERO).await;
    assert!(matches!(nothing, Err(SnapshotError::Contended { tries: 1, .. } | SnapshotError::Read(_))), "{nothing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_that_update_one_node_lose_nothing() {
    let server = Server::start(TERM).await;
    let clients: Vec<Client> = join_all((0..4).map(|_| server.client())).await;
    let counter = path("/deep/counter");
    let count = |client: Client| {
        let counter = counter.clone();
        async move {
            let mut tries = 0;
            for _ in 0..25 {
                let next = |entry: Option<&NodeData>| Some(value(entry.map_or(0, |entry| number(&entry.value)) + 1));
                tries += client.update(&counter, next).timeout(Duration::from_secs(60)).await.unwrap().tries;
            }
            tries
        }
    };
    let tries: u32 = within(join_all(clients.iter().cloned().map(count))).await.into_iter().sum();
    assert!(tries >= 100);
    assert_eq!(number(&clients[0].get(&counter).await.unwrap().unwrap().value), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_may_leave_the_node_as_it_is_and_keeps_its_lease() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    let lease = client.grant_lease(TERM).await.unwrap();
    let node = path("/a");
    client.put(&node, "one").lease(lease).await.unwrap();
    let left = client.update(&node, |entry| entry.is_none().then(Value::new)).await.unwrap();
    assert_eq!((left.written, left.tries), (None, 1));
    let updated = client.update(&node, |_| Some("two".into())).await.unwrap();
    let owner = updated.written.unwrap().stat.unwrap().owner;
    assert_eq!(owner, Some(NodeOwner::Lease(lease)));
    assert_eq!(client.read(&node).await.unwrap().source, ReadSource::Memory);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn contended_update_times_out_with_number_of_tries() {
    let server = Server::start(TERM).await;
    let (client, other) = (server.client().await, server.client().await);
    let node = path("/a");
    let timeout = Duration::from_millis(500);
    let mut rounds = 0;
    let result = client
        .update(&node, |_| {
            rounds += 1;
            let write = other.put(&node, value(rounds)).into_future();
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(write)).unwrap();
            Some("mine".into())
        })
        .timeout(timeout);
    let error = within(result).await.unwrap_err();
    // Mostly during a pause; sometimes during a read or a write.
    assert!(error.tries() > 1 && u64::from(error.tries()) >= rounds, "{error}");
    assert_eq!(client.get(&node).await.unwrap().unwrap().value, value(rounds));
}
