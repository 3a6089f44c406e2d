//! Barriers: nobody passes before N parties have arrived, even if some cancel or are cut off.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::join_all;
use leasehold_client_cache::{Client, EventKind, NodePath, Revision, WatchItem, recipes::RecipeError};
use tokio::task::JoinHandle;

use super::{TERM, clients, proxy::Proxy, until_children};
use crate::common::{SHORT_TERM, Server, path, until, within};

type Waiting = JoinHandle<Result<(), RecipeError>>;

fn comes(client: &Client) -> Waiting {
    let barrier = client.barrier("/b", 3);
    tokio::spawn(async move { barrier.wait().await })
}

async fn passes(waiting: Waiting) {
    within(waiting).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barrier_opens_for_all_when_last_party_arrives() {
    let server = Server::start(TERM).await;
    let [one, two, three, late] = clients(&server).await;
    let first = comes(&one);
    until_children(&late, "/b", 1).await;
    let withdrawn = comes(&two);
    until_children(&late, "/b", 2).await;
    withdrawn.abort();
    until_children(&late, "/b", 1).await;
    let second = comes(&two);
    until_children(&late, "/b", 2).await;
    assert!(!first.is_finished() && !second.is_finished(), "who has withdrawn does not count");
    let third = comes(&three);
    for waiting in [first, second, third] {
        passes(waiting).await;
    }
    // Only the node that marks the barrier as open is left.
    until_children(&late, "/b", 1).await;
    passes(comes(&late)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_cut_off_knows_and_does_not_count() {
    let server = Server::start(SHORT_TERM).await;
    let [one, two, three] = clients(&server).await;
    let proxy = Proxy::before(&server).await;
    let cut = proxy.client().await;
    let lost = comes(&cut);
    until_children(&one, "/b", 1).await;
    proxy.cut(true);
    assert!(within(lost).await.unwrap().is_err(), "it is told by its own clock");
    until_children(&one, "/b", 0).await;
    let (first, second) = (comes(&one), comes(&two));
    until_children(&one, "/b", 2).await;
    assert!(!first.is_finished() && !second.is_finished());
    for waiting in [first, second, comes(&three)] {
        passes(waiting).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barrier_opens_with_next_party_when_last_one_cancels() {
    let server = Server::start(TERM).await;
    let [one, two, three, last] = clients(&server).await;
    for step in 0..30 {
        let at = path(&format!("/b{step}"));
        let waits = |client: &Client| {
            let barrier = client.barrier(&at, 3);
            tokio::spawn(async move { barrier.wait().await })
        };
        let (first, second) = (waits(&one), waits(&two));
        until_children(&last, at.as_str(), 2).await;
        let third = three.barrier(&at, 3);
        drop(tokio::time::timeout(Duration::from_micros(step * 200), third.wait()).await);
        within(last.barrier(&at, 3).wait()).await.unwrap();
        passes(first).await;
        passes(second).await;
    }
}

/// The number of parties at the opening of a barrier, as a watch reports them.
async fn stood_at_opening(client: &Client, top: &NodePath, from: Revision) -> usize {
    let mut watch = within(client.watch(top).from(from)).await.unwrap();
    let (open, mut standing) = (top.child("open").unwrap(), BTreeSet::new());
    loop {
        let WatchItem::Change(change) = within(watch.next()).await.unwrap() else { continue };
        for event in change.events.iter().filter(|event| top.is_parent_of(&event.path)).cloned() {
            match event.kind {
                EventKind::Put(_) if event.path == open => return standing.len(),
                EventKind::Put(_) => standing.insert(event.path),
                EventKind::Delete => standing.remove(&event.path),
            };
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barrier_opens_only_with_enough_parties_despite_cancel() {
    let server = Server::start(TERM).await;
    let [one, two, last] = clients(&server).await;
    for step in 0..150 {
        let at = path(&format!("/b{step}"));
        let from = last.put("/from", "").await.unwrap().revision;
        let waits = |client: &Client| {
            let barrier = client.barrier(&at, 2);
            tokio::spawn(async move { barrier.wait().await })
        };
        let withdraws = waits(&one);
        until_children(&last, at.as_str(), 1).await;
        let second = waits(&two);
        // When the first one leaves, this one has not arrived yet, or has counted the parties
        // already.
        drop(tokio::time::timeout(Duration::from_micros(step * 20), std::future::pending::<()>()).await);
        withdraws.abort();
        passes(waits(&last)).await;
        passes(second).await;
        assert!(stood_at_opening(&last, &at, from).await >= 2, "step {step}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_go_in_together_and_come_out_together_round_after_round() {
    const ROUNDS: usize = 6;
    let server = Server::start(TERM).await;
    let clients: [Client; 3] = clients(&server).await;
    // How many have arrived and how many begin to leave, over all rounds.
    let (came, went) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let work = clients.iter().map(|client| {
        let barrier = client.double_barrier("/b", 3);
        let (came, went) = (Arc::clone(&came), Arc::clone(&went));
        tokio::spawn(async move {
            let mut rounds = Vec::new();
            for round in 0..ROUNDS {
                came.fetch_add(1, SeqCst);
                let inside = barrier.enter().await.unwrap();
                assert!(came.load(SeqCst) >= 3 * (round + 1), "all have come");
                rounds.push(inside.round());
                went.fetch_add(1, SeqCst);
                inside.leave().await.unwrap();
                assert!(went.load(SeqCst) >= 3 * (round + 1), "all have left");
            }
            rounds
        })
    });
    let rounds = within(join_all(work)).await;
    let rounds: Vec<_> = rounds.into_iter().map(Result::unwrap).collect();
    assert!(rounds.iter().all(|seen| *seen == rounds[0]) && rounds[0].is_sorted_by(|one, next| one < next));
    until_children(&clients[0], "/b", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn double_barrier_waits_only_for_lease_of_cut_off_party() {
    let server = Server::start(SHORT_TERM).await;
    let [one, two] = clients(&server).await;
    let proxy = Proxy::before(&server).await;
    let cut = proxy.client().await;
    let enters = |client: &Client, parties| {
        let barrier = client.double_barrier("/b", parties);
        tokio::spawn(async move { barrier.enter().await })
    };
    let entering = [enters(&one, 3), enters(&two, 3), enters(&cut, 3)];
    let [first, second, lost] = within(join_all(entering)).await.try_into().unwrap();
    let (first, second, lost) = (first.unwrap().unwrap(), second.unwrap().unwrap(), lost.unwrap().unwrap());
    proxy.cut(true);
    // Leaves without waiting.
    drop(second);
    within(first.leave()).await.unwrap();
    assert!(lost.on_lost().is_cancelled() && lost.remaining().is_zero(), "its own clock has told it before");
    drop(lost);
    proxy.cut(false);
    let entering = [enters(&one, 3), enters(&two, 3), enters(&cut, 3)];
    for entered in within(join_all(entering)).await {
        drop(entered.unwrap().unwrap());
    }
    until_children(&one, "/b", 1).await;
    // No party is left that could close the barrier: the next to arrive does.
    let again = enters(&one, 3);
    until(|| !again.is_finished()).await;
    let others = [again, enters(&two, 3), enters(&cut, 3)];
    within(join_all(others)).await.into_iter().for_each(|entered| drop(entered.unwrap().unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barrier_refuses_differing_or_unsupported_party_count() {
    let server = Server::start(TERM).await;
    let [one, two] = clients(&server).await;
    let first = comes(&one);
    until_children(&two, "/b", 1).await;
    let differs = within(two.barrier("/b", 2).wait()).await.unwrap_err();
    let RecipeError::CountMismatch { expected, found, .. } = differs else { panic!("{differs:?}") };
    assert_eq!((expected.as_str(), found.as_str()), ("2", "3"));
    for parties in [0, 128] {
        let refused = within(two.barrier("/c", parties).wait()).await.unwrap_err();
        assert!(matches!(refused, RecipeError::InvalidCount { got, most: 127, .. } if got == parties), "{refused:?}");
    }
    until_children(&two, "/b", 1).await;
    first.abort();
}
