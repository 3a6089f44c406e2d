//! Watches, lists with a watch, and mirrors.

use std::time::Duration;

use leasehold_client_cache::{Client, EventKind, Mirrored, Revision, Watch, WatchError, WatchItem};

use crate::common::{Server, path, until, within};

const TERM: Duration = Duration::from_secs(10);

/// The next change, in short: `path = value`, or only the path of a removed node.
async fn change(watch: &mut Watch) -> (u64, Vec<String>) {
    loop {
        if let WatchItem::Change(change) = within(watch.next()).await.expect("it is not over") {
            let event = |event: &leasehold_client_cache::Event| match &event.kind {
                EventKind::Put(data) => format!("{} = {}", event.path, String::from_utf8_lossy(&data.value)),
                EventKind::Delete => event.path.to_string(),
            };
            return (change.revision.0, change.events.iter().map(event).collect());
        }
    }
}

async fn put(client: &Client, at: &str, value: &str) -> Revision {
    within(client.put(at, value)).await.expect("it is written").revision
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_reports_each_later_change_whole_and_once() {
    let server = Server::start(TERM).await;
    let (writer, client) = (server.client().await, server.client().await);
    put(&writer, "/a/before", "0").await;
    let mut subtree = client.watch("/a").await.unwrap();
    let mut node = client.watch("/a/b").from(Revision(1)).recursive(false).await.unwrap();
    assert_eq!(subtree.resume_from(), Revision(2));
    put(&writer, "/a/b/c", "1").await;
    put(&writer, "/elsewhere", "2").await;
    within(writer.delete("/a/b").recursive(true)).await.unwrap();
    assert_eq!(change(&mut subtree).await, (2, vec!["/a/b = ".to_owned(), "/a/b/c = 1".to_owned()]));
    assert_eq!(change(&mut subtree).await, (4, vec!["/a/b/c".to_owned(), "/a/b".to_owned()]));
    assert_eq!(change(&mut node).await, (2, vec!["/a/b = ".to_owned()]));
    assert_eq!(change(&mut node).await, (4, vec!["/a/b".to_owned()]));
    let mut again = client.watch("/a").from(Revision(subtree.resume_from().0 - 1)).await.unwrap();
    assert_eq!(change(&mut again).await.0, 4, "resumed from a change that was told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_asked_for_on_behalf_of_one_who_takes_nothing() {
    let server = Server::start(TERM).await;
    let (writer, client) = (server.client().await, server.client().await);
    let mut watch = client.watch("/a").buffer_bytes(1).await.unwrap();
    put(&writer, "/a", "0").await;
    let (mut first, mut asked) = (0, server.asked("Watch"));
    for value in 1..=20 {
        put(&writer, "/a", &value.to_string()).await;
        // One answer may be in flight, and is buffered when it arrives.
        if first == 0 && server.asked("Watch") > asked {
            (first, asked) = (value, server.asked("Watch"));
        }
    }
    assert!(server.asked("Watch") <= asked + 1, "{} times after {asked}", server.asked("Watch"));
    for value in 0..=20 {
        assert_eq!(change(&mut watch).await, (value + 1, vec![format!("/a = {value}")]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_with_the_next_leader_from_where_it_was() {
    let mut server = Server::start(TERM).await;
    let (writer, client) = (server.client().await, server.client().await);
    let mut watch = client.watch("/a").await.unwrap();
    for round in 0..3 {
        for step in 0..3 {
            put(&writer, "/a", &format!("{round}.{step}")).await;
        }
        assert_eq!(change(&mut watch).await, (round * 3 + 1, vec![format!("/a = {round}.0")]));
        server.stop().await;
        server.lead();
        for step in 1..3 {
            assert_eq!(change(&mut watch).await, (round * 3 + step + 1, vec![format!("/a = {round}.{step}")]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_behind_history_fails_with_compacted() {
    let server = Server::start_with_history(TERM, 4).await;
    let (writer, client) = (server.client().await, server.client().await);
    for value in 0..8 {
        put(&writer, "/a", &value.to_string()).await;
    }
    let mut watch = client.watch("/a").from(Revision(2)).await.unwrap();
    let compacted = WatchError::Compacted { after: Revision(1), earliest_after: Revision(4) };
    assert_eq!(within(watch.next()).await, Err(compacted.clone()));
    assert_eq!(within(watch.next()).await, Err(compacted), "then and from then on");
    let mut watch = client.watch("/a").from(Revision(5)).await.unwrap();
    assert_eq!(change(&mut watch).await, (5, vec!["/a = 4".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_with_its_client() {
    let server = Server::start(TERM).await;
    let closed = server.client().await;
    let mut watch = closed.watch("/a").await.unwrap();
    closed.close().await;
    assert_eq!(within(watch.next()).await, Err(WatchError::Closed));
    assert!(matches!(closed.watch("/a").await, Err(WatchError::Closed)));
    let dropped = server.client().await;
    let mut watch = dropped.watch("/a").await.unwrap();
    drop(dropped);
    assert_eq!(within(watch.next()).await, Err(WatchError::Closed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_many_pages_and_a_watch_make_one_consistent_whole() {
    let server = Server::start(TERM).await;
    let (writer, client) = (server.client().await, server.client().await);
    let large = "x".repeat(100_000);
    for number in 0..40 {
        put(&writer, &format!("/a/{number:02}"), &large).await;
    }
    let writing = tokio::spawn({
        let (writer, large) = (writer.clone(), large.clone());
        async move {
            for round in 0..100 {
                put(&writer, &format!("/a/{:02}", round * 7 % 60), &format!("{large}{round}")).await;
            }
            put(&writer, "/a/last", "done").await
        }
    });
    let (mut snapshot, mut watch) = within(client.list_and_watch("/a")).await.unwrap();
    assert!(server.asked("List") >= 4, "a page has a mebibyte");
    let last = writing.await.unwrap();
    while snapshot.revision < last {
        match within(watch.next()).await.unwrap() {
            WatchItem::Change(change) => snapshot.apply(&change),
            WatchItem::Progress(revision) => snapshot.revision = revision,
        }
    }
    let (now, _) = within(client.list_and_watch("/a")).await.unwrap();
    assert_eq!(snapshot, now);
    assert_eq!(now.nodes.len(), 62);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_shows_what_was_written_and_tells_of_it() {
    let server = Server::start(TERM).await;
    let (writer, client) = (server.client().await, server.client().await);
    put(&writer, "/a/b/c", "1").await;
    let mirror = within(client.mirror("/a")).await.unwrap();
    assert_eq!(mirror.children("/a"), ["b"]);
    let (snapshot, mut changes) = mirror.changes();
    assert_eq!((snapshot.nodes.len(), snapshot.revision), (3, Revision(1)));
    let written = put(&writer, "/a/x", "2").await;
    assert!(within(mirror.wait_for_revision(written)).await);
    assert_eq!(mirror.get("/a/x").map(|data| data.value), Some("2".into()));
    assert_eq!(mirror.children("/a"), ["b", "x"]);
    let Some(Mirrored::Change(change)) = within(changes.next()).await else { panic!("a change is told") };
    assert_eq!((change.revision, &change.events[0].path), (written, &path("/a/x")));
    client.close().await;
    assert_eq!(within(changes.next()).await, None);
    assert!(!within(mirror.wait_for_revision(written.next())).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_that_missed_too_much_starts_over_and_says_so() {
    let mut server = Server::start_with_history(TERM, 4).await;
    let client = server.client().await;
    put(&client, "/a/old", "1").await;
    let mirror = within(client.mirror("/a")).await.unwrap();
    let (_, mut changes) = mirror.changes();
    server.stop().await;
    let last = server.write_meanwhile("/a/new", 9);
    server.lead();
    assert_eq!(within(changes.next()).await, Some(Mirrored::StartOver(last)));
    until(|| mirror.revision() == last).await;
    assert_eq!(mirror.children("/a"), ["new", "old"]);
    let written = put(&client, "/a/newer", "2").await;
    let Some(Mirrored::Change(change)) = within(changes.next()).await else { panic!("it goes on from there") };
    assert_eq!(change.revision, written);
}
