//! Tests of the core without the rules: whose requests it answers, and which sessions it remembers.

use leasehold_protocol::{
    command::Write,
    id::{Sequence, Stamp},
    lease_policy::LeaseRequest,
    limits::Limits,
    message::Answer,
    object::Object,
    path::NodePath,
    planted::Planted,
    time::DriftAllowance,
};

use super::*;

fn config(attempt: u64) -> lessor::LessorConfig {
    lessor::LessorConfig {
        replica: 1,
        attempt,
        drift: DriftAllowance::DEFAULT,
        limits: Limits::default(),
        bounds: lessor::LessorBounds::DEFAULT,
        planted: Planted::default(),
    }
}

fn beginning(core: &ServerCore) -> (LessorId, Proposal) {
    core.take_proposal_if(Lessor::has_proposal).expect("it begins an epoch")
}

#[test]
fn late_failure_of_an_old_proposal_ends_no_successor() {
    let (core, _proofs) = ServerCore::new();
    let ended = core.leaderships_ended();
    core.become_leader(config(1), Duration::ZERO);
    let (first, _) = beginning(&core);
    core.become_follower(None);
    core.become_leader(config(2), Duration::ZERO);
    let (second, beginning) = beginning(&core);
    core.apply(1, &beginning);
    assert!(core.is_serving());
    assert_eq!(*ended.borrow(), 1);

    core.abandon_lessor(first);
    assert!(core.is_serving(), "its own proposal went through");
    assert_eq!(*ended.borrow(), 1, "no client is sent away");
    core.abandon_lessor(second);
    assert!(!core.has_lessor());
    assert_eq!(*ended.borrow(), 2);
    core.abandon_lessor(second);
    assert_eq!(*ended.borrow(), 2, "it ends once");
}

#[test]
fn nobody_is_answered_by_a_lessor_that_was_given_up() {
    let (core, _proofs) = ServerCore::new();
    core.become_leader(config(1), Duration::ZERO);
    let (generation, beginning) = beginning(&core);
    core.apply(1, &beginning);
    let (recalls, _recalled) = mpsc::channel(1);
    let open = || Request { header: RequestHeader::default(), body: Body::Open { name: "test".to_owned() } };
    let mut waits = core.request(open(), ConnectionId(1), &recalls);
    assert!(waits.try_recv().is_err(), "it waits for the log");
    core.abandon_lessor(generation);
    assert_eq!(waits.try_recv().ok().map(|response| response.result), Some(Err(Refusal::Retry)));
    let refused = core.request(open(), ConnectionId(1), &recalls).try_recv().expect("at once");
    assert_eq!(refused.result, Err(Refusal::NotLeader { leader: None }));
}

/// Commits every proposal, and answers every quorum round as proven.
fn settle(core: &ServerCore, proofs: &mut mpsc::UnboundedReceiver<u64>) {
    loop {
        let proposal = core.take_proposal_if(Lessor::has_proposal);
        let round = proofs.try_recv();
        if let Some((_, proposal)) = &proposal {
            core.apply(core.applied().1 + 1, proposal);
        }
        if let Ok(round) = round {
            core.proof(round, true);
        }
        if proposal.is_none() && round.is_err() {
            return;
        }
    }
}

#[test]
fn sessions_that_do_not_exist_are_not_remembered() {
    let (core, mut proofs) = ServerCore::new();
    core.become_leader(config(1), Duration::ZERO);
    settle(&core, &mut proofs);
    let (recalls, _recalled) = mpsc::channel(1);
    let mut ask = |session: SessionId, body: Body| {
        let header = RequestHeader { session, epoch: core.applied().0, registration: 1, ..RequestHeader::default() };
        let mut answer = core.request(Request { header, body }, ConnectionId(1), &recalls);
        settle(&core, &mut proofs);
        answer.try_recv().expect("answered").result
    };
    for number in 1..=1_000 {
        let session = SessionId(1_000_000 + number);
        assert_eq!(ask(session, Body::Register), Err(Refusal::SessionNotFound { session }));
    }
    let registered = || core.inner.lock().registrations.len();
    assert_eq!(registered(), 0);
    for _ in 0..100 {
        let opened = ask(SessionId(0), Body::Open { name: "test".to_owned() });
        let Ok(Answer::Opened { session, .. }) = opened else { panic!("{opened:?}") };
        ask(session, Body::Register).expect("it exists");
        assert_eq!(registered(), 1);
        ask(session, Body::Close).expect("it exists");
        assert_eq!(registered(), 0, "the connection is still there");
    }
}

#[test]
fn connection_that_takes_no_recalls_has_few_of_them_waiting() {
    let (core, mut proofs) = ServerCore::new();
    core.become_leader(config(1), Duration::ZERO);
    settle(&core, &mut proofs);
    let (few, mut first) = mpsc::channel(2);
    let mut ask = |header: RequestHeader, body: Body, connection: u64, recalls: &RecallSender| {
        let mut answer = core.request(Request { header, body }, ConnectionId(connection), recalls);
        settle(&core, &mut proofs);
        answer.try_recv().ok().map(|response| response.result)
    };
    let mut open = |connection: u64, recalls: &RecallSender| {
        let opened = ask(RequestHeader::default(), Body::Open { name: "test".to_owned() }, connection, recalls);
        let Some(Ok(Answer::Opened { session, .. })) = opened else { panic!("{opened:?}") };
        let header = RequestHeader { session, epoch: core.applied().0, registration: 1, ..RequestHeader::default() };
        ask(header.clone(), Body::Register, connection, recalls);
        header
    };
    let (reader, writer) = (open(1, &few), open(2, &few));
    let path = |number: u64| NodePath::parse(&format!("/{number}")).expect("a path");
    ask(reader.clone(), Body::Acquire { path: path(0), last_valid: None, read: None }, 1, &few);
    for number in 0..5 {
        let object = Object::data(path(number));
        let read = ask(reader.clone(), Body::Read { object, known: None, lease: LeaseRequest::Implicit }, 1, &few);
        assert!(matches!(&read, Some(Ok(Answer::Read(answer))) if answer.grant.is_some()), "{read:?}");
        let write = Write::put(path(number), Default::default());
        let body = Body::Write { write, dropped: Vec::new(), seen: Stamp::default() };
        let header = RequestHeader { sequence: Sequence(number + 1), unanswered_from: Sequence(1), ..writer.clone() };
        assert_eq!(ask(header, body, 2, &few), None, "it waits for consent");
    }
    let stamps = |recalls: &mut mpsc::Receiver<Recall>| {
        std::iter::from_fn(|| recalls.try_recv().ok()).map(|recall| recall.stamp).collect::<Vec<_>>()
    };
    assert_eq!(stamps(&mut first).len(), 2);
    // A connection with enough room gets all five.
    let (enough, mut second) = mpsc::channel(8);
    ask(RequestHeader { registration: 2, ..reader }, Body::Register, 3, &enough);
    assert_eq!(stamps(&mut second).len(), 5);
}

/// Registers a reader that caches `/a` on connection 1, and a writer on connection 2 whose write
/// waits for it. Returns the reader's header, its recall, and the answer of the write.
fn recalled(core: &ServerCore, proofs: &mut mpsc::UnboundedReceiver<u64>) -> (RequestHeader, Recall, ResponseReceiver) {
    let (recalls, mut recalled) = mpsc::channel(8);
    let mut ask = |header: RequestHeader, body: Body, connection: u64| {
        let answer = core.request(Request { header, body }, ConnectionId(connection), &recalls);
        settle(core, proofs);
        answer
    };
    let mut open = |connection: u64| {
        let body = Body::Open { name: "test".to_owned() };
        let opened = ask(RequestHeader::default(), body, connection).try_recv().expect("answered").result;
        let Ok(Answer::Opened { session, .. }) = opened else { panic!("{opened:?}") };
        let header = RequestHeader { session, epoch: core.applied().0, registration: 1, ..RequestHeader::default() };
        ask(header.clone(), Body::Register, connection).try_recv().expect("answered").result.expect("it exists");
        header
    };
    let (reader, writer) = (open(1), open(2));
    let path = NodePath::parse("/a").expect("a path");
    ask(reader.clone(), Body::Acquire { path: path.clone(), last_valid: None, read: None }, 1);
    ask(
        reader.clone(),
        Body::Read { object: Object::data(path.clone()), known: None, lease: LeaseRequest::Implicit },
        1,
    );
    let write = Write::put(path, Default::default());
    let body = Body::Write { write, dropped: Vec::new(), seen: Stamp::default() };
    let header = RequestHeader { sequence: Sequence(1), unanswered_from: Sequence(1), ..writer };
    let written = ask(header, body, 2);
    (reader, recalled.try_recv().expect("the reader is asked"), written)
}

#[test]
fn consent_of_another_connection_does_not_count() {
    let (core, mut proofs) = ServerCore::new();
    core.become_leader(config(1), Duration::ZERO);
    settle(&core, &mut proofs);
    let (reader, Recall { session, stamp, .. }, mut written) = recalled(&core, &mut proofs);
    core.consent(ConnectionId(2), Consent { session, stamp });
    let (recalls, _recalled) = mpsc::channel(8);
    let forged = Request {
        header: RequestHeader { consents: vec![stamp], ..reader },
        body: Body::Heartbeat(Default::default()),
    };
    let refused = core.request(forged, ConnectionId(2), &recalls).try_recv().expect("at once").result;
    assert!(matches!(refused, Err(Refusal::NotRegistered { .. })), "{refused:?}");
    settle(&core, &mut proofs);
    assert!(written.try_recv().is_err(), "the reader may use its copy");
    core.consent(ConnectionId(1), Consent { session, stamp });
    settle(&core, &mut proofs);
    assert!(written.try_recv().expect("answered").result.is_ok());
}
