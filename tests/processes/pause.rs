//! The leader is paused for longer than an election takes, and resumes.

use std::time::{Duration, Instant};

use leasehold_client_cache::{Content, DriftAllowance, ReadSource, Tracking, VolumeSettings};
use leasehold_protocol::{
    id::{Epoch, SessionId},
    lease_policy::LeaseRequest,
    message::{Answer, Body, ReadAnswer, Request, RequestHeader, Response},
    object::Object,
};
use leasehold_wire::{LeaseholdClient, Role, client_connection};

use crate::{
    alone,
    common::{Cluster, SOON, soon},
    path,
};

/// The reads that wait in the paused leader's socket when it resumes.
const READS: usize = 64;

/// The time for the reads to get there. With less, the test would show less.
const SENDING: Duration = Duration::from_millis(300);

const TERM: Duration = Duration::from_secs(2);

/// A session on one connection to one server, without the client's rules.
struct Raw {
    connection: LeaseholdClient,
    session: SessionId,
    epoch: Epoch,
}

impl Raw {
    async fn open(address: &str) -> Self {
        let stream = leasehold_wire::connect(address, Role::Client, SOON).await.expect("it listens").stream;
        let (connection, recalls, work) = client_connection(stream);
        tokio::spawn(async move {
            // This session has no copies, so nothing is recalled.
            let _recalls = recalls;
            let _ = work.await;
        });
        let mut raw = Self { connection, session: SessionId(0), epoch: Epoch(0) };
        let opened = raw.call(Body::Open { name: "raw".to_owned() }).await.expect("it answers");
        let Ok(Answer::Opened { session, .. }) = opened.result else { panic!("{opened:?}") };
        (raw.session, raw.epoch) = (session, opened.epoch);
        let registered = raw.call(Body::Register).await.expect("it answers");
        assert!(matches!(registered.result, Ok(Answer::Registered { .. })), "{registered:?}");
        raw
    }

    /// `None` if the connection has ended.
    async fn call(&self, body: Body) -> Option<Response> {
        let mut context = tarpc::context::current();
        context.deadline = Instant::now() + SOON;
        let header = RequestHeader { session: self.session, epoch: self.epoch, ..RequestHeader::default() };
        self.connection.call(context, Request { header, body }).await.ok()
    }
}

fn value(response: &Response) -> Option<Vec<u8>> {
    match &response.result {
        Ok(Answer::Read(ReadAnswer { content: Some(Content::Data(Some(data))), .. })) => Some(data.value.to_vec()),
        Ok(answer) => panic!("{answer:?}"),
        Err(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_stopped_and_goes_on_answers_no_stale_read() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let node = path("/v/a");
    let old = cluster.leader();
    let first = cluster.client("first").await;
    let margin = Duration::from_millis(100);
    let settings = VolumeSettings::new(TERM, 100 * TERM, margin, Tracking::Objects, DriftAllowance::DEFAULT);
    first.admin().create_volume("/v").settings(settings.expect("valid")).await.expect("created");
    first.put(&node, "old").await.expect("written");
    first.close().await;
    // A client that knows only the leader and has a copy, and a session to the leader without the
    // client's rules.
    let pinned = cluster.client_of(vec![cluster.address(old).to_owned()], "pinned").await;
    soon("the pinned client has a copy", || async {
        let read = pinned.read(&node).await.expect("served");
        if read.source == ReadSource::Memory { Ok(()) } else { Err(format!("{read:?}")) }
    })
    .await;
    let raw = Raw::open(cluster.address(old)).await;
    let read = || Body::Read { object: Object::data(node.clone()), known: None, lease: LeaseRequest::Implicit };
    let before = raw.call(read()).await.expect("it answers");
    assert_eq!(value(&before).as_deref(), Some(&b"old"[..]), "{before:?}");

    cluster.pause(old, true);
    let paused = Instant::now();
    let endpoints = cluster.others(old).into_iter().map(|id| cluster.address(id).to_owned()).collect();
    let writer = cluster.client_of(endpoints, "writer").await;
    writer.put(&node, "new").await.expect("two are a quorum");
    println!("written {:?} after the leader was stopped", paused.elapsed());
    let stale = |content: &Content| matches!(content, Content::Data(Some(data)) if data.value == "old");
    assert!(!pinned.cached(&node).is_some_and(|content| stale(&content)), "a copy outlived its lease");

    // These reads begin after the write was acknowledged. The old leader finds them first when it
    // resumes.
    let mut calls = futures::future::join_all((0..READS).map(|_| Box::pin(raw.call(read()))));
    let early = tokio::time::timeout(SENDING, &mut calls).await;
    assert!(early.is_err(), "a stopped server answered: {early:?}");
    cluster.pause(old, false);
    let (mut refused, mut lost, mut new) = (0, 0, 0);
    for response in calls.await {
        match response.as_ref().map(value) {
            None => lost += 1,
            Some(None) => refused += 1,
            Some(Some(value)) => {
                assert_eq!(value, b"new", "a stale read: {response:?}");
                new += 1;
            }
        }
    }
    println!("of {READS} reads {refused} were refused, {lost} lost with the connection, {new} had the new value");
    let read = pinned.read(&node).await.expect("it is told who leads");
    assert!(!stale(&read.content), "{read:?}");
    cluster.caught_up(&cluster.ids());
    cluster.assert_all_run();
}
