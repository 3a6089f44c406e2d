//! Write leases: read and written in memory while they certainly hold, flushed when due, and
//! reported when lost.

use super::*;
use crate::{
    command::{WriteRefusal, Written},
    id::{LockId, Token},
    lock::{LockGrant, LockMode, WriteLeaseStatus},
    object::Value,
};

const HOLD: LockId = LockId(4);
const FLUSH: u64 = 1 << 63 | 4;

fn done(written: Written, sequence: u64, cached: Option<Data>) -> Answer {
    let write_lease_data = cached.map(Box::new);
    Answer::Written {
        written,
        stamp: stamp(sequence),
        grant: None,
        applied: Revision(30),
        key_lease: None,
        write_lease_data,
    }
}

fn stat(revision: u64) -> Stat {
    let Content::Data(Some(data)) = value(revision) else { unreachable!("data") };
    data.stat
}

fn cache() -> Write {
    Write::TakeWriteLease { path: path("/a"), lock: HOLD }
}

fn flush(value: Option<&'static str>, ends_write_lease: bool) -> Body {
    let value = value.map(Value::from);
    let write = Write::Flush { path: path("/a"), lock: HOLD, token: Token(9), value, ends_write_lease };
    Body::Write { write, dropped: vec![one("/a")], seen: stamp(0) }
}

/// The flush among the effects, without the stamp that it has seen.
fn flushes(effects: &[HolderEffect]) -> Option<(SendId, Body)> {
    let flush =
        sent(effects).into_iter().find(|(_, body)| matches!(body, Body::Write { write: Write::Flush { .. }, .. }));
    flush.map(|(ticket, body)| match body {
        Body::Write { write, dropped, .. } => (ticket, Body::Write { write, dropped, seen: stamp(0) }),
        other => (ticket, other),
    })
}

/// The consents in the requests.
fn carried(effects: &[HolderEffect]) -> Vec<Stamp> {
    requests(effects).into_iter().flat_map(|(_, request)| request.header.consents).collect()
}

fn lost(text: &'static str, may_be_there: bool) -> HolderEffect {
    HolderEffect::FlushLost { lock: HOLD, value: text.into(), may_be_there, refusal: None }
}

fn status(is_open: bool, set_count: u64, flushed_count: u64, revision: u64) -> HolderEffect {
    let status = WriteLeaseStatus { is_open, set_count, flushed_count, stat: Some(stat(revision)) };
    HolderEffect::WriteLeaseChanged { lock: HOLD, status }
}

impl Client {
    fn holding() -> Self {
        let mut client = Self::leased();
        let lock = Write::Lock { path: path("/a"), mode: LockMode::Exclusive, wait: true, delay: Duration::ZERO };
        let effects = client.write(5, lock);
        let ticket = client.only(&effects).0;
        let taken = LockGrant {
            path: path("/a"),
            lock: HOLD,
            mode: LockMode::Exclusive,
            token: Some(Token(9)),
            volume: NodePath::root(),
            incarnation: Incarnation(1),
        };
        client.answer(ticket, done(Written { lock: Some(Box::new(taken)), ..Written::default() }, 40, None));
        client
    }

    /// A client with an open write lease, at revision 8.
    fn caching() -> Self {
        let mut client = Self::holding();
        let effects = client.write(6, cache());
        let ticket = client.only(&effects).0;
        let data = Data { value: "old".into(), stat: stat(8) };
        let effects = client.answer(ticket, done(Written::default(), 41, Some(data)));
        assert!(effects.contains(&status(true, 0, 0, 8)), "{effects:?}");
        client
    }

    fn set(&mut self, text: &'static str) -> Vec<HolderEffect> {
        self.step(HolderInput::SetUnderWriteLease { lock: HOLD, value: text.into() })
    }

    fn kept(&self) -> Option<Value> {
        self.holder.write_lease_value(HOLD, self.now).cloned()
    }

    fn flushed(&mut self, ticket: SendId, revision: Option<u64>) -> Vec<HolderEffect> {
        let written = Written { stat: revision.map(stat), ..Written::default() };
        self.answer(ticket, done(written, 50, None))
    }
}

#[test]
fn what_is_set_is_read_back_and_sent_when_it_is_asked_for() {
    let mut client = Client::caching();
    assert_eq!(client.kept(), Some("old".into()));
    assert_eq!(sent(&client.set("one")), []);
    assert_eq!(sent(&client.set("two")), []);
    assert_eq!(client.kept(), Some("two".into()));
    let effects = client.step(HolderInput::Flush(HOLD));
    let (ticket, body) = flushes(&effects).expect("it is sent");
    assert_eq!(body, flush(Some("two"), false));
    client.set("three");
    assert_eq!(flushes(&client.step(HolderInput::Flush(HOLD))), None, "one at a time");
    let effects = client.flushed(ticket, Some(9));
    assert!(effects.contains(&status(true, 3, 2, 9)), "{effects:?}");
    let effects = client.step(HolderInput::Flush(HOLD));
    let (ticket, body) = flushes(&effects).expect("it is sent");
    assert_eq!(body, flush(Some("three"), false));
    let effects = client.flushed(ticket, Some(10));
    assert!(effects.contains(&status(true, 3, 3, 10)), "{effects:?}");
    assert_eq!(flushes(&client.step(HolderInput::Flush(HOLD))), None, "there is nothing to flush");
}

#[test]
fn write_lease_consents_once_flushed_and_ended_at_servers() {
    let mut client = Client::caching();
    client.set("one");
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    let (ticket, body) = flushes(&effects).expect("it is flushed at once");
    assert_eq!(body, flush(Some("one"), true));
    assert!(!effects.contains(&consent(45)) && carried(&effects).is_empty());
    assert_eq!(client.kept(), None, "nothing more is set, or read");
    assert_eq!(client.set("two"), []);
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    assert!(!effects.contains(&consent(45)) && carried(&effects).is_empty(), "asked again");
    let effects = client.flushed(ticket, Some(9));
    assert!(carried(&effects) == [stamp(45)] && effects.contains(&status(false, 1, 1, 9)), "{effects:?}");
}

#[test]
fn a_flush_under_way_is_followed_by_what_was_set_since() {
    let mut client = Client::caching();
    client.set("one");
    let (first, _) = flushes(&client.step(HolderInput::Flush(HOLD))).expect("it is sent");
    client.set("two");
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![ObjectSet::Subtree(NodePath::root())])));
    assert_eq!(flushes(&effects), None, "the first could be sent again after it");
    let effects = client.flushed(first, Some(9));
    let (second, body) = flushes(&effects).expect("then it follows");
    assert_eq!(body, flush(Some("two"), true));
    assert_eq!(carried(&client.flushed(second, Some(10))), [stamp(45)]);
}

#[test]
fn what_is_given_up_unchanged_says_so_and_brings_nothing() {
    let mut client = Client::caching();
    let effects = client.step(HolderInput::ReleaseWriteLease(HOLD));
    let (ticket, body) = flushes(&effects).expect("the servers are told");
    assert_eq!(body, flush(None, true));
    let effects = client.flushed(ticket, None);
    assert!(effects.contains(&status(false, 0, 0, 8)), "{effects:?}");
    assert!(client.holder.lock_remaining(HOLD, client.now) > Duration::ZERO, "it is still held");
    let effects = client.write(7, cache());
    assert!(
        matches!(client.only(&effects).1.body, Body::Write { write: Write::TakeWriteLease { .. }, .. }),
        "once more"
    );
}

#[test]
fn flush_gets_number_though_waiting_writes_took_all_others() {
    let mut client = Client::caching();
    client.set("one");
    for write in 100..100 + crate::state::State::ANSWERS_MAX {
        client.write(write, put("/a"));
    }
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    assert_eq!(flushes(&effects).map(|(_, body)| body), Some(flush(Some("one"), true)));
}

#[test]
fn a_recall_before_the_answer_may_be_of_a_write_before_it() {
    let mut client = Client::holding();
    let effects = client.write(6, cache());
    let ticket = client.only(&effects).0;
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    assert!(effects.contains(&consent(45)), "else that write would wait for this request, and this for it");
    let data = Data { value: "old".into(), stat: stat(8) };
    client.answer(ticket, done(Written::default(), 46, Some(data)));
    assert_eq!(client.kept(), Some("old".into()));
}

#[test]
fn a_recall_that_overtakes_the_answer_is_of_what_it_brings() {
    let mut client = Client::holding();
    let effects = client.write(6, cache());
    let ticket = client.only(&effects).0;
    client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    let data = Data { value: "old".into(), stat: stat(8) };
    let effects = client.answer(ticket, done(Written::default(), 41, Some(data)));
    assert_eq!(flushes(&effects).map(|(_, body)| body), Some(flush(None, true)));
    assert_eq!(client.kept(), None);
}

#[test]
fn write_lease_request_excludes_second_request_and_downgrade() {
    let mut client = Client::holding();
    client.write(6, cache());
    let not_sent = |write| HolderEffect::WriteDone { write: WriteId(write), result: Err(WriteFailure::NotSent) };
    assert!(client.write(7, cache()).contains(&not_sent(7)));
    let convert = Write::ChangeLockMode { path: path("/a"), lock: HOLD, mode: LockMode::Shared, wait: false };
    assert!(client.write(8, convert).contains(&not_sent(8)), "nobody could tell what it would be then");
    assert_eq!(client.step(HolderInput::CancelWrite(WriteId(6))), [], "what came of it has to be known");
}

#[test]
fn what_the_clock_ends_is_lost_with_its_value_and_told_once() {
    let mut client = Client::caching();
    client.set("one");
    client.now = at(110);
    assert_eq!(client.kept(), None);
    let effects = client.timeout(&[]);
    let told = [lost("one", false), HolderEffect::LocksLost { locks: vec![HOLD] }];
    let told: Vec<_> = told.iter().map(|told| effects.iter().position(|effect| effect == told)).collect();
    assert!(told[0].is_some() && told[0] < told[1], "{effects:?}");
    assert!(!client.timeout(&[]).contains(&lost("one", false)));
}

#[test]
fn what_was_on_its_way_may_be_there() {
    let mut client = Client::caching();
    client.set("one");
    client.step(HolderInput::Flush(HOLD));
    client.now = at(110);
    assert!(client.timeout(&[]).contains(&lost("one", true)));
}

#[test]
fn what_was_not_sent_is_not_sent_any_more() {
    let mut client = Client::caching();
    client.set("one");
    client.step(HolderInput::Disconnected);
    client.step(HolderInput::Flush(HOLD));
    client.now = at(110);
    assert!(client.timeout(&[]).contains(&lost("one", false)));
    assert!(!client.holder.writes.is_pending(WriteId(FLUSH)));
}

#[test]
fn a_late_renewal_has_it_flushed_while_there_is_time() {
    let mut client = Client::caching();
    client.set("one");
    client.now = at(106);
    assert_eq!(flushes(&client.timeout(&[])), None);
    assert!(client.holder.next_deadline().is_some_and(|deadline| deadline <= at(107)));
    client.now = at(107);
    let (_, body) = flushes(&client.timeout(&[])).expect("a third of the term is left");
    assert_eq!(body, flush(Some("one"), false));
    assert_eq!(client.kept(), Some("one".into()), "it is still certain");
}

#[test]
fn what_is_given_back_unflushed_is_told_to_be_lost() {
    let mut client = Client::caching();
    client.set("one");
    let effects = client.write(7, Write::Unlock { path: path("/a"), lock: HOLD });
    assert!(effects.contains(&lost("one", false)), "{effects:?}");
}

#[test]
fn a_flush_that_is_refused_is_lost_and_the_lease_given_up() {
    let mut client = Client::caching();
    client.set("one");
    let (ticket, _) = flushes(&client.step(HolderInput::Flush(HOLD))).expect("it is sent");
    let refusal = WriteRefusal::TokenMismatch { path: path("/a"), lock: HOLD, got: Token(9), expected: Token(11) };
    let effects = client.refuse(ticket, Refusal::Write(refusal.clone()));
    let why = Some(Refusal::Write(refusal.clone()));
    let refused = HolderEffect::FlushLost { lock: HOLD, value: "one".into(), may_be_there: false, refusal: why };
    assert!(effects.contains(&refused), "{effects:?}");
    let (ticket, body) = flushes(&effects).expect("the rest is given up");
    assert_eq!(body, flush(None, true));
    let effects = client.refuse(ticket, Refusal::Write(refusal));
    assert!(matches!(
        effects[..],
        [.., HolderEffect::WriteLeaseChanged { status: WriteLeaseStatus { is_open: false, .. }, .. }]
    ));
    assert_eq!(flushes(&client.timeout(&[])), None, "there is none any more");
}

#[test]
fn with_the_session_goes_what_it_kept() {
    let mut client = Client::caching();
    client.set("one");
    client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    let effects = client.step(HolderInput::Close);
    assert!(effects.contains(&lost("one", true)), "{effects:?}");
    assert!(!effects.contains(&consent(45)) && carried(&effects).is_empty());
    let is_flush = |effect: &HolderEffect| matches!(effect, HolderEffect::WriteDone { write: WriteId(FLUSH), .. });
    assert!(!effects.iter().any(is_flush), "the application knows of no such write");
}

#[test]
fn value_is_not_kept_in_memory_while_clocks_are_beyond() {
    let mut client = Client::caching();
    let question = |(ticket, body)| match body {
        Body::Heartbeat(question) => Some((ticket, question)),
        _ => None,
    };
    client.now = at(105);
    let effects = client.timeout(&[]);
    let (ticket, question) = sent(&effects).into_iter().find_map(question).expect("it renews");
    assert_eq!(client.kept(), Some("old".into()));
    let since = vec![crate::drift::SinceExchange { mark: question.references[0], span: TERM }];
    let answer = Answer::Heartbeat(crate::drift::ClockAnswer {
        since,
        allowance: DriftAllowance::DEFAULT,
        delay: Duration::ZERO,
    });
    client.answer_renewing(ticket, answer);
    assert_eq!(client.kept(), None, "another may have written by now");
    client.set("one");
    assert_eq!(client.kept(), None);
}

#[test]
fn status_is_told_of_an_open_write_lease_only() {
    let mut client = Client::holding();
    assert!(!client.holder.has_write_lease(HOLD));
    let effects = client.write(6, cache());
    let ticket = client.only(&effects).0;
    assert!(client.holder.has_write_lease(HOLD));
    assert_eq!(client.holder.write_lease_status(HOLD), None, "it is only asked for");
    let data = Data { value: "old".into(), stat: stat(8) };
    client.answer(ticket, done(Written::default(), 41, Some(data)));
    let open = WriteLeaseStatus { is_open: true, set_count: 0, flushed_count: 0, stat: Some(stat(8)) };
    assert_eq!(client.holder.write_lease_status(HOLD), Some(open));
}

#[test]
fn write_lease_is_not_asked_for_while_its_hold_changes() {
    let mut client = Client::holding();
    let convert = |mode| Write::ChangeLockMode { path: path("/a"), lock: HOLD, mode, wait: false };
    let not_sent = |write| HolderEffect::WriteDone { write: WriteId(write), result: Err(WriteFailure::NotSent) };
    let effects = client.write(6, convert(LockMode::Exclusive));
    let ticket = client.only(&effects).0;
    assert!(client.write(7, cache()).contains(&not_sent(7)));
    let refusal = || Refusal::Write(WriteRefusal::SuccessorNotWaiting { path: path("/a"), successor: HOLD });
    client.refuse(ticket, refusal());
    let effects = client.write(8, convert(LockMode::Shared));
    let ticket = client.only(&effects).0;
    client.refuse(ticket, refusal());
    assert!(client.write(9, cache()).contains(&not_sent(9)), "others may hold it, too");
}

#[test]
fn late_renewal_flushes_nothing_that_was_not_set() {
    let mut client = Client::caching();
    client.now = at(107);
    assert_eq!(flushes(&client.timeout(&[])), None);
    assert_eq!(client.holder.flush_deadline(), None);
}

#[test]
fn consent_owed_to_an_earlier_leader_is_not_given_to_the_next() {
    let mut client = Client::caching();
    client.set("one");
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    assert!(flushes(&effects).is_some());
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let (register, _) = client.only(&effects);
    let epoch = Epoch(EPOCH.0 + 1);
    let respond = |client: &mut Client, ticket, answer| {
        client.respond(ticket, Response { epoch, promises: vec![promise("/", 1)], lapses: vec![], result: Ok(answer) })
    };
    let effects = respond(&mut client, register, Answer::Registered { coverings: vec![] });
    let (ticket, _) = flushes(&effects).expect("it is sent again");
    let written = Written { stat: Some(stat(9)), ..Written::default() };
    let effects = respond(&mut client, ticket, done(written, 50, None));
    assert!(effects.contains(&status(false, 1, 1, 9)) && carried(&effects).is_empty(), "{effects:?}");
    assert_eq!(keep_alive(&effects), None, "nothing is to be told");
}
