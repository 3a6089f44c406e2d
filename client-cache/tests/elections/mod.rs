//! Elections: one candidate leads, and its node says so.

// Helpers may panic, as tests do.
#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use leasehold_client_cache::{
    Client, Compare, Content, ElectedLeader, ElectedLeaders, HandOverError, Leadership, LockError, LockId, LockWait,
    Operation, Options, Read, Refusal, Token, Transaction, WriteError, WriteRefusal,
};

use crate::{
    common::{SHORT_TERM, Server, path, until, within},
    recipes::proxy::Proxy,
    stall::{ALLOWANCE, Missed, measured_async},
};

const TERM: Duration = Duration::from_secs(10);

async fn campaign(client: &Client, name: &str) -> Leadership {
    within(client.campaign("/a", name)).await.unwrap()
}

fn in_line(client: &Client, name: &'static str) -> tokio::task::JoinHandle<Leadership> {
    let client = client.clone();
    tokio::spawn(async move { campaign(&client, name).await })
}

async fn until_in_line(client: &Client, count: usize) {
    until_so_many(client, "/a", count).await;
}

async fn until_so_many(client: &Client, at: &str, count: usize) {
    let mut checks = tokio::time::interval(Duration::from_millis(1));
    within(async {
        while client.locks(at).await.unwrap().len() != count {
            checks.tick().await;
        }
    })
    .await;
}

async fn leader(client: &Client) -> Option<ElectedLeader> {
    within(client.leader("/a")).await.unwrap()
}

async fn next(leaders: &mut ElectedLeaders) -> (String, Token) {
    let leader = within(leaders.next()).await.unwrap();
    (String::from_utf8(leader.value.to_vec()).unwrap(), leader.token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn candidates_are_elected_in_order_of_arrival() {
    let server = Server::start(TERM).await;
    let (one, two, three) = (server.client().await, server.client().await, server.client().await);
    let mut leaders = one.observe("/a");
    assert_eq!(leader(&one).await, None);
    let first = campaign(&one, "one").await;
    let second = in_line(&two, "two");
    until_in_line(&one, 2).await;
    let third = in_line(&three, "three");
    until_in_line(&one, 3).await;
    assert!(first.remaining() > TERM / 2);
    until(|| first.is_contended()).await;
    let found = leader(&two).await.unwrap();
    assert_eq!((&found.value[..], found.token, Some(found.session)), (&b"one"[..], first.token(), one.session()));
    let mut tokens = vec![first.token()];
    assert_eq!(next(&mut leaders).await, ("one".to_owned(), tokens[0]));
    let proclaimed = first.proclaim("one, ready").await.unwrap();
    assert_eq!(leader(&two).await.unwrap().revision, proclaimed);
    assert_eq!(next(&mut leaders).await, ("one, ready".to_owned(), tokens[0]));
    first.resign().await.unwrap();
    let second = within(second).await.unwrap();
    tokens.push(second.token());
    drop(second);
    let third = within(third).await.unwrap();
    tokens.push(third.token());
    assert_eq!(next(&mut leaders).await, ("two".to_owned(), tokens[1]));
    assert_eq!(next(&mut leaders).await, ("three".to_owned(), tokens[2]));
    assert!(tokens.is_sorted_by(|one, other| one < other), "{tokens:?}");
    third.resign().await.unwrap();
    assert_eq!(leader(&one).await, None, "nobody is left");
    until_in_line(&one, 0).await;
}

/// A read that accepts an old answer has all writes that this client has finished.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_answer_is_not_older_than_own_resignation() {
    let server = Server::start(TERM).await;
    let client = server.client().await;
    client.admin().create_volume("/e").object_term(Duration::ZERO).await.unwrap();
    let leadership = client.campaign("/e/leader", "me").await.unwrap();
    let old_answer = || async { client.read("/e/leader").max_stale(Duration::from_secs(3600)).await.unwrap() };
    let has_leader = |read: &Read| matches!(*read.content, Content::Data(Some(_)));
    assert!(has_leader(&old_answer().await));
    let remembered = old_answer().await;
    assert!(has_leader(&remembered) && remembered.age.is_some(), "{remembered:?}");
    leadership.resign().await.unwrap();
    assert!(!has_leader(&old_answer().await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observer_sees_elected_leader_and_no_manual_value() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    two.put("/a", "7 by hand").await.unwrap();
    let mut early = two.observe("/a");
    assert_eq!(leader(&two).await, None, "it is nobody's word");
    let first = campaign(&one, "one").await;
    let mut late = two.observe("/a");
    for leaders in [&mut early, &mut late] {
        assert_eq!(next(leaders).await, ("one".to_owned(), first.token()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_want_to_wait_is_refused_and_leaves_nothing() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let first = campaign(&one, "one").await;
    let refused = two.campaign("/a", "two").wait(LockWait::No).await.unwrap_err();
    assert!(
        matches!(refused, LockError::Write(WriteError::Refused(Refusal::Write(WriteRefusal::Locked { .. })))),
        "{refused:?}"
    );
    let waiting = in_line(&two, "two");
    until_in_line(&one, 2).await;
    waiting.abort();
    until_in_line(&one, 1).await;
    // A candidate that cannot write the node cannot lead: its lock is released.
    two.put("/b/child", "").await.unwrap();
    let refused = two.campaign("/b", "two").wait(LockWait::No).await.unwrap_err();
    assert!(matches!(refused, LockError::Write(WriteError::Refused(_))), "{refused:?}");
    until_so_many(&two, "/b", 0).await;
    assert_eq!(leader(&two).await.unwrap().token, first.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_leader_knows_before_next_election_and_cannot_write() {
    measured_async(cut_off_a_leader).await;
}

/// The server serves another candidate all the time, so that it could be elected too early. The
/// lease lasts for the machine's allowance after its holder must know that it has ended.
async fn cut_off_a_leader() -> Result<(), Missed> {
    let server = Server::start_with_margin(SHORT_TERM, ALLOWANCE).await;
    let proxy = Proxy::before(&server).await;
    let (one, two) = (proxy.client().await, server.client().await);
    let first = Arc::new(campaign(&one, "one").await);
    let (over, token) = (first.on_lost(), first.token());
    let next = tokio::spawn({
        let (two, first) = (two.clone(), Arc::clone(&first));
        async move { (campaign(&two, "two").await, first.remaining(), first.on_lost().is_cancelled()) }
    });
    until_in_line(&two, 2).await;
    assert!(first.remaining() > Duration::ZERO && !over.is_cancelled());
    proxy.cut(true);
    let (second, remaining, was_told) = within(next).await.unwrap();
    assert_eq!(remaining, Duration::ZERO, "two lead at once");
    if !was_told {
        return Err(Missed("a leader was not told before another was elected".to_owned()));
    }
    within(over.cancelled()).await;
    proxy.cut(false);
    assert!(second.token() > token && first.token() == token);
    let late = first.proclaim("still one").await;
    assert!(matches!(late, Err(LockError::Lost { .. })), "{late:?}");
    let fenced = Transaction::new()
        .when(Compare::locked(path("/a"), token))
        .then(Operation::put(path("/work"), "late"))
        .otherwise(Operation::put(path("/refused"), "late"));
    assert!(!within(one.transaction(fenced)).await.unwrap().succeeded());
    drop(first);
    assert!(matches!(leader(&one).await, Some(leader) if leader.token == second.token()), "it took nothing with it");
    assert!(second.remaining() > Duration::ZERO);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_goes_with_its_client() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let first = campaign(&one, "one").await;
    one.close().await;
    assert!(first.on_lost().is_cancelled());
    assert_eq!(leader(&two).await, None);
    assert!(campaign(&two, "two").await.token() > first.token());
}

/// The lock id of a waiting candidate.
async fn candidate(leadership: &Leadership, client: &Client) -> LockId {
    let candidates = within(leadership.candidates()).await.unwrap();
    candidates.iter().find(|candidate| Some(candidate.session) == client.session()).unwrap().lock
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_hands_over_to_named_candidate_with_none_in_between() {
    let server = Server::start(TERM).await;
    let (one, two, three) = (server.client().await, server.client().await, server.client().await);
    let mut leaders = one.observe("/a");
    let first = campaign(&one, "one").await;
    assert_eq!(next(&mut leaders).await, ("one".to_owned(), first.token()));
    let second = in_line(&two, "two");
    until_in_line(&one, 2).await;
    let third = in_line(&three, "three");
    until_in_line(&one, 3).await;
    let (over, token, to) = (first.on_lost(), first.token(), candidate(&first, &three).await);
    first.hand_over(to).await.unwrap();
    assert!(over.is_cancelled(), "whoever listens is told");
    let third = within(third).await.unwrap();
    assert!(third.token() > token && !second.is_finished());
    assert_eq!(next(&mut leaders).await, ("three".to_owned(), third.token()), "nobody was elected in between");
    assert!(matches!(leader(&one).await, Some(leader) if leader.token == third.token()));
    third.resign().await.unwrap();
    assert!(within(second).await.unwrap().token() > token, "it has kept its place");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_successor_has_gone_leads_on_and_knows_it() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    let first = campaign(&one, "one").await;
    let second = in_line(&two, "two");
    until_in_line(&one, 2).await;
    let (token, to) = (first.token(), candidate(&first, &two).await);
    second.abort();
    until_in_line(&one, 1).await;
    let first = match within(first.hand_over(to)).await {
        Err(HandOverError::Unchanged(
            first,
            LockError::Write(WriteError::Refused(Refusal::Write(WriteRefusal::SuccessorNotWaiting { .. }))),
        )) => first,
        other => panic!("{other:?}"),
    };
    assert!(first.token() == token && first.remaining() > Duration::ZERO && !first.on_lost().is_cancelled());
    first.proclaim("one, still").await.unwrap();
    let second = in_line(&two, "two");
    until_in_line(&one, 2).await;
    let to = candidate(&first, &two).await;
    within(first.hand_over(to)).await.unwrap();
    assert!(within(second).await.unwrap().token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_hand_over_ends_leadership_and_next_is_elected() {
    let mut server = Server::start(TERM).await;
    let options = Options::new([server.address()]).timeout(Duration::from_millis(300));
    let (one, two) = (Client::connect(options).await.unwrap(), server.client().await);
    let first = campaign(&one, "one").await;
    let second = in_line(&two, "two");
    until_in_line(&two, 2).await;
    let (over, token, to) = (first.on_lost(), first.token(), candidate(&first, &two).await);
    server.stop().await;
    // The client may know that the request was not sent. Then it leads until its own clock ends
    // that.
    match within(first.hand_over(to)).await.unwrap_err() {
        HandOverError::Unchanged(first, error) => {
            assert!(matches!(error, LockError::Write(WriteError::Unavailable { .. })), "{error:?}");
            drop(first);
        }
        error => assert!(matches!(error, HandOverError::Released(_)) && over.is_cancelled()),
    }
    server.lead();
    assert!(within(second).await.unwrap().token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_hand_over_still_elects_another_candidate() {
    let server = Server::start(TERM).await;
    let (one, two) = (server.client().await, server.client().await);
    for step in 0..30 {
        let first = campaign(&one, "one").await;
        let second = in_line(&two, "two");
        until_in_line(&one, 2).await;
        let (token, to) = (first.token(), candidate(&first, &two).await);
        drop(tokio::time::timeout(Duration::from_micros(step * 60), first.hand_over(to)).await);
        let second = within(second).await.unwrap();
        assert!(second.token() > token);
        second.resign().await.unwrap();
        until_in_line(&one, 0).await;
    }
}
