//! Write leases: read and written in memory while they certainly hold, flushed when due, and
//! reported when lost.

use super::*;
use crate::{
    command::{WriteRefusal, Written},
    id::{LockId, Token},
    lock::{LockMode, LockOutcome, WriteLeaseStatus},
    message::{DelayNotice, DelayReason},
    object::Value,
};

const LOCK: LockId = LockId(4);
const FLUSH: u64 = 1 << 63 | 4;

fn write_answer(written: Written, sequence: u64, write_lease_data: Option<Data>) -> Answer {
    let write_lease_data = write_lease_data.map(Box::new);
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

fn take_write_lease() -> Write {
    Write::TakeWriteLease { path: path("/a"), lock: LOCK }
}

fn flush(value: Option<&'static str>, ends_write_lease: bool) -> Body {
    let value = value.map(Value::from);
    let write = Write::Flush { path: path("/a"), lock: LOCK, token: Token(9), value, ends_write_lease };
    Body::Write { write, dropped: vec![one("/a")], seen: stamp(0) }
}

/// The flush among the effects, without the stamp that it has seen.
fn flushes(effects: &[HolderEffect]) -> Option<(SendId, Body)> {
    let flush =
        sent(effects).into_iter().find(|(_, body)| matches!(body, Body::Write { write: Write::Flush { .. }, .. }));
    flush.map(|(send_id, body)| match body {
        Body::Write { write, dropped, .. } => (send_id, Body::Write { write, dropped, seen: stamp(0) }),
        other => (send_id, other),
    })
}

/// The consents in the requests.
fn sent_consents(effects: &[HolderEffect]) -> Vec<Stamp> {
    requests(effects).into_iter().flat_map(|(_, request)| request.header.consents).collect()
}

fn lost(text: &'static str, may_be_written: bool) -> HolderEffect {
    HolderEffect::FlushLost { lock: LOCK, value: text.into(), may_be_written, refusal: None }
}

fn status(is_open: bool, set_count: u64, flushed_count: u64, revision: u64) -> HolderEffect {
    let status = WriteLeaseStatus { is_open, set_count, flushed_count, stat: Some(stat(revision)) };
    HolderEffect::WriteLeaseChanged { lock: LOCK, status }
}

impl Client {
    fn with_lock() -> Self {
        let mut client = Self::leased();
        let lock = Write::Lock { path: path("/a"), mode: LockMode::Exclusive, wait: true, delay: Duration::ZERO };
        let effects = client.write(5, lock);
        let send_id = client.only(&effects).0;
        let grant = LockOutcome {
            path: path("/a"),
            lock: LOCK,
            mode: LockMode::Exclusive,
            token: Some(Token(9)),
            volume: NodePath::root(),
            incarnation: Incarnation(1),
        };
        client.answer(send_id, write_answer(Written { lock: Some(Box::new(grant)), ..Written::default() }, 40, None));
        client
    }

    /// A client with an open write lease, at revision 8.
    fn with_write_lease() -> Self {
        let mut client = Self::with_lock();
        let effects = client.write(6, take_write_lease());
        let send_id = client.only(&effects).0;
        let data = Data { value: "old".into(), stat: stat(8) };
        let effects = client.answer(send_id, write_answer(Written::default(), 41, Some(data)));
        assert!(effects.contains(&status(true, 0, 0, 8)), "{effects:?}");
        client
    }

    fn set(&mut self, text: &'static str) -> Vec<HolderEffect> {
        self.step(HolderInput::SetUnderWriteLease { lock: LOCK, value: text.into() })
    }

    fn value(&self) -> Option<Value> {
        self.holder.write_lease_value(LOCK, self.now).cloned()
    }

    fn flushed(&mut self, send_id: SendId, revision: Option<u64>) -> Vec<HolderEffect> {
        let written = Written { stat: revision.map(stat), ..Written::default() };
        self.answer(send_id, write_answer(written, 50, None))
    }
}

#[test]
fn set_value_is_read_back_and_flushed_on_request() {
    let mut client = Client::with_write_lease();
    assert_eq!(client.value(), Some("old".into()));
    assert_eq!(sent(&client.set("one")), []);
    assert_eq!(sent(&client.set("two")), []);
    assert_eq!(client.value(), Some("two".into()));
    let effects = client.step(HolderInput::Flush(LOCK));
    let (send_id, body) = flushes(&effects).expect("a flush is sent");
    assert_eq!(body, flush(Some("two"), false));
    client.set("three");
    assert_eq!(flushes(&client.step(HolderInput::Flush(LOCK))), None, "one flush is in flight at a time");
    let effects = client.flushed(send_id, Some(9));
    assert!(effects.contains(&status(true, 3, 2, 9)), "{effects:?}");
    let effects = client.step(HolderInput::Flush(LOCK));
    let (send_id, body) = flushes(&effects).expect("a flush is sent");
    assert_eq!(body, flush(Some("three"), false));
    let effects = client.flushed(send_id, Some(10));
    assert!(effects.contains(&status(true, 3, 3, 10)), "{effects:?}");
    assert_eq!(flushes(&client.step(HolderInput::Flush(LOCK))), None, "the value is not dirty");
}

#[test]
fn write_lease_consents_once_flushed_and_ended_at_servers() {
    let mut client = Client::with_write_lease();
    client.set("one");
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    let (send_id, body) = flushes(&effects).expect("the value is flushed at once");
    assert_eq!(body, flush(Some("one"), true));
    assert!(!effects.contains(&consent(45)) && sent_consents(&effects).is_empty());
    let notice = DelayNotice { session: SESSION, stamp: stamp(45), reason: DelayReason::Flushing };
    assert!(effects.contains(&HolderEffect::ConsentDelayed(notice)), "the leader learns the reason: {effects:?}");
    assert_eq!(client.value(), None, "the application can no longer read or set the value");
    assert_eq!(client.set("two"), []);
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    assert!(
        !effects.contains(&consent(45)) && sent_consents(&effects).is_empty(),
        "a repeated recall waits for the flush too"
    );
    assert_eq!(effects, [HolderEffect::ConsentDelayed(notice)]);
    let effects = client.flushed(send_id, Some(9));
    assert!(sent_consents(&effects) == [stamp(45)] && effects.contains(&status(false, 1, 1, 9)), "{effects:?}");
}

/// A recall names the data of two write leases. The application asks for one of them again before
/// the other is flushed. The servers answer that request only after the consent.
#[test]
fn consent_does_not_wait_for_a_later_write_lease() {
    let (mut client, other) = (Client::with_write_lease(), LockId(5));
    let lock = Write::Lock { path: path("/b"), mode: LockMode::Exclusive, wait: true, delay: Duration::ZERO };
    let effects = client.write(7, lock);
    let send_id = client.only(&effects).0;
    let grant = LockOutcome {
        path: path("/b"),
        lock: other,
        mode: LockMode::Exclusive,
        token: Some(Token(10)),
        volume: NodePath::root(),
        incarnation: Incarnation(1),
    };
    client.answer(send_id, write_answer(Written { lock: Some(Box::new(grant)), ..Written::default() }, 42, None));
    let effects = client.write(8, Write::TakeWriteLease { path: path("/b"), lock: other });
    let send_id = client.only(&effects).0;
    let data = Data { value: "old".into(), stat: stat(8) };
    client.answer(send_id, write_answer(Written::default(), 43, Some(data)));
    let effects = client.recall(recall(45, 1, vec![one("/a"), one("/b")]));
    let flushes: Vec<SendId> = sent(&effects).into_iter().map(|(send_id, _)| send_id).collect();
    let [first, second] = flushes[..] else { panic!("{effects:?}") };
    assert!(sent_consents(&client.flushed(first, None)).is_empty());
    client.write(9, take_write_lease());
    assert_eq!(sent_consents(&client.flushed(second, None)), [stamp(45)]);
}

#[test]
fn flush_in_flight_is_followed_by_value_set_meanwhile() {
    let mut client = Client::with_write_lease();
    client.set("one");
    let (first, _) = flushes(&client.step(HolderInput::Flush(LOCK))).expect("a flush is sent");
    client.set("two");
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![ObjectSet::Subtree(NodePath::root())])));
    assert_eq!(flushes(&effects), None, "the first flush could be sent again after a second one");
    let effects = client.flushed(first, Some(9));
    let (second, body) = flushes(&effects).expect("the second flush follows the first");
    assert_eq!(body, flush(Some("two"), true));
    assert_eq!(sent_consents(&client.flushed(second, Some(10))), [stamp(45)]);
}

#[test]
fn release_of_clean_write_lease_flushes_without_value() {
    let mut client = Client::with_write_lease();
    let effects = client.step(HolderInput::ReleaseWriteLease(LOCK));
    let (send_id, body) = flushes(&effects).expect("a flush ends the write lease at the servers");
    assert_eq!(body, flush(None, true));
    let effects = client.flushed(send_id, None);
    assert!(effects.contains(&status(false, 0, 0, 8)), "{effects:?}");
    assert!(client.holder.lock_remaining(LOCK, client.now) > Duration::ZERO, "the session still owns the lock");
    let effects = client.write(7, take_write_lease());
    assert!(
        matches!(client.only(&effects).1.body, Body::Write { write: Write::TakeWriteLease { .. }, .. }),
        "a write lease can be requested again"
    );
}

#[test]
fn flush_gets_number_though_waiting_writes_took_all_others() {
    let mut client = Client::with_write_lease();
    client.set("one");
    for write in 100..100 + crate::state::State::ANSWERS_MAX {
        client.write(write, put("/a"));
    }
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    assert_eq!(flushes(&effects).map(|(_, body)| body), Some(flush(Some("one"), true)));
}

#[test]
fn recall_older_than_write_lease_does_not_end_it() {
    let mut client = Client::with_lock();
    let effects = client.write(6, take_write_lease());
    let send_id = client.only(&effects).0;
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    assert!(
        effects.contains(&consent(45)),
        "without the consent, the earlier write and this request would wait for each other"
    );
    let data = Data { value: "old".into(), stat: stat(8) };
    client.answer(send_id, write_answer(Written::default(), 46, Some(data)));
    assert_eq!(client.value(), Some("old".into()));
}

#[test]
fn recall_that_overtakes_the_answer_ends_the_write_lease() {
    let mut client = Client::with_lock();
    let effects = client.write(6, take_write_lease());
    let send_id = client.only(&effects).0;
    client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    let data = Data { value: "old".into(), stat: stat(8) };
    let effects = client.answer(send_id, write_answer(Written::default(), 41, Some(data)));
    assert_eq!(flushes(&effects).map(|(_, body)| body), Some(flush(None, true)));
    assert_eq!(client.value(), None);
}

#[test]
fn write_lease_request_excludes_second_request_and_downgrade() {
    let mut client = Client::with_lock();
    client.write(6, take_write_lease());
    let not_sent = |write| HolderEffect::WriteDone { write: WriteId(write), result: Err(WriteFailure::NotSent) };
    assert!(client.write(7, take_write_lease()).contains(&not_sent(7)));
    let convert = Write::ChangeLockMode { path: path("/a"), lock: LOCK, mode: LockMode::Shared, wait: false };
    assert!(
        client.write(8, convert).contains(&not_sent(8)),
        "the order of the downgrade and the write lease would be unknown"
    );
    assert_eq!(
        client.step(HolderInput::CancelWrite(WriteId(6))),
        [],
        "a request for a write lease cannot be cancelled"
    );
}

#[test]
fn expired_write_lease_reports_its_value_lost_once() {
    let mut client = Client::with_write_lease();
    client.set("one");
    client.now = at(110);
    assert_eq!(client.value(), None);
    let effects = client.timeout(&[]);
    let expected = [lost("one", false), HolderEffect::LocksLost { locks: vec![LOCK], may_remain: true }];
    let positions: Vec<_> =
        expected.iter().map(|expected| effects.iter().position(|effect| effect == expected)).collect();
    assert!(positions[0].is_some() && positions[0] < positions[1], "{effects:?}");
    assert!(!client.timeout(&[]).contains(&lost("one", false)));
}

#[test]
fn value_lost_during_flush_may_be_at_servers() {
    let mut client = Client::with_write_lease();
    client.set("one");
    client.step(HolderInput::Flush(LOCK));
    client.now = at(110);
    assert!(client.timeout(&[]).contains(&lost("one", true)));
}

#[test]
fn unsent_flush_of_lost_lock_is_never_sent() {
    let mut client = Client::with_write_lease();
    client.set("one");
    client.step(HolderInput::Disconnected);
    client.step(HolderInput::Flush(LOCK));
    client.now = at(110);
    assert!(client.timeout(&[]).contains(&lost("one", false)));
    assert!(!client.holder.writes.is_pending(WriteId(FLUSH)));
}

#[test]
fn late_renewal_flushes_dirty_value_before_lease_ends() {
    let mut client = Client::with_write_lease();
    client.set("one");
    client.now = at(106);
    assert_eq!(flushes(&client.timeout(&[])), None);
    assert!(client.holder.next_deadline().is_some_and(|deadline| deadline <= at(107)));
    client.now = at(107);
    let (_, body) = flushes(&client.timeout(&[])).expect("the value is flushed when a third of the term remains");
    assert_eq!(body, flush(Some("one"), false));
    assert_eq!(client.value(), Some("one".into()), "the value is still usable");
}

#[test]
fn released_lock_reports_unflushed_value_lost() {
    let mut client = Client::with_write_lease();
    client.set("one");
    let effects = client.write(7, Write::Unlock { path: path("/a"), lock: LOCK });
    assert!(effects.contains(&lost("one", false)), "{effects:?}");
}

#[test]
fn refused_flush_reports_value_lost_and_ends_write_lease() {
    let mut client = Client::with_write_lease();
    client.set("one");
    let (send_id, _) = flushes(&client.step(HolderInput::Flush(LOCK))).expect("a flush is sent");
    let refusal = WriteRefusal::TokenMismatch { path: path("/a"), lock: LOCK, got: Token(9), expected: Token(11) };
    let effects = client.refuse(send_id, Refusal::Write(refusal.clone()));
    let refusal_reported = Some(Refusal::Write(refusal.clone()));
    let refused =
        HolderEffect::FlushLost { lock: LOCK, value: "one".into(), may_be_written: false, refusal: refusal_reported };
    assert!(effects.contains(&refused), "{effects:?}");
    let (send_id, body) = flushes(&effects).expect("a flush ends the write lease");
    assert_eq!(body, flush(None, true));
    let effects = client.refuse(send_id, Refusal::Write(refusal));
    assert!(matches!(
        effects[..],
        [.., HolderEffect::WriteLeaseChanged { status: WriteLeaseStatus { is_open: false, .. }, .. }]
    ));
    assert_eq!(flushes(&client.timeout(&[])), None, "the write lease has ended");
}

#[test]
fn closed_session_reports_dirty_value_lost() {
    let mut client = Client::with_write_lease();
    client.set("one");
    client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    let effects = client.step(HolderInput::Close);
    assert!(effects.contains(&lost("one", true)), "{effects:?}");
    assert!(!effects.contains(&consent(45)) && sent_consents(&effects).is_empty());
    let is_flush = |effect: &HolderEffect| matches!(effect, HolderEffect::WriteDone { write: WriteId(FLUSH), .. });
    assert!(!effects.iter().any(is_flush), "the application gets no result for a flush");
}

#[test]
fn write_lease_value_is_unusable_while_clocks_are_beyond() {
    let mut client = Client::with_write_lease();
    let question = |(send_id, body)| match body {
        Body::Heartbeat(question) => Some((send_id, question)),
        _ => None,
    };
    client.now = at(105);
    let effects = client.timeout(&[]);
    let (send_id, question) = sent(&effects).into_iter().find_map(question).expect("a heartbeat renews");
    assert_eq!(client.value(), Some("old".into()));
    let since = vec![crate::drift::SinceExchange { mark: question.references[0], span: TERM }];
    let answer = Answer::Heartbeat(crate::drift::ClockAnswer {
        since,
        allowance: DriftAllowance::DEFAULT,
        delay: Duration::ZERO,
    });
    client.answer_renewing(send_id, answer);
    assert_eq!(client.value(), None, "another client may have written");
    client.set("one");
    assert_eq!(client.value(), None);
}

#[test]
fn write_lease_status_exists_only_while_open() {
    let mut client = Client::with_lock();
    assert!(!client.holder.has_write_lease(LOCK));
    let effects = client.write(6, take_write_lease());
    let send_id = client.only(&effects).0;
    assert!(client.holder.has_write_lease(LOCK));
    assert_eq!(client.holder.write_lease_status(LOCK), None, "the write lease is only requested");
    let data = Data { value: "old".into(), stat: stat(8) };
    client.answer(send_id, write_answer(Written::default(), 41, Some(data)));
    let open = WriteLeaseStatus { is_open: true, set_count: 0, flushed_count: 0, stat: Some(stat(8)) };
    assert_eq!(client.holder.write_lease_status(LOCK), Some(open));
}

#[test]
fn write_lease_is_not_requested_while_its_lock_changes() {
    let mut client = Client::with_lock();
    let convert = |mode| Write::ChangeLockMode { path: path("/a"), lock: LOCK, mode, wait: false };
    let not_sent = |write| HolderEffect::WriteDone { write: WriteId(write), result: Err(WriteFailure::NotSent) };
    let effects = client.write(6, convert(LockMode::Exclusive));
    let send_id = client.only(&effects).0;
    assert!(client.write(7, take_write_lease()).contains(&not_sent(7)));
    let refusal = || Refusal::Write(WriteRefusal::SuccessorNotWaiting { path: path("/a"), successor: LOCK });
    client.refuse(send_id, refusal());
    let effects = client.write(8, convert(LockMode::Shared));
    let send_id = client.only(&effects).0;
    client.refuse(send_id, refusal());
    assert!(client.write(9, take_write_lease()).contains(&not_sent(9)), "the lock may be shared");
}

#[test]
fn late_renewal_flushes_no_clean_value() {
    let mut client = Client::with_write_lease();
    client.now = at(107);
    assert_eq!(flushes(&client.timeout(&[])), None);
    assert_eq!(client.holder.flush_deadline(), None);
}

#[test]
fn consent_pending_for_old_epoch_is_not_sent_to_new_leader() {
    let mut client = Client::with_write_lease();
    client.set("one");
    let effects = client.step(HolderInput::Recalled(recall(45, 1, vec![one("/a")])));
    assert!(flushes(&effects).is_some());
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let (register, _) = client.only(&effects);
    let epoch = Epoch(EPOCH.0 + 1);
    let respond = |client: &mut Client, send_id, answer| {
        client.respond(
            send_id,
            Response { epoch, promises: vec![promise("/", 1)], lapses: vec![], clocks: None, result: Ok(answer) },
        )
    };
    let effects = respond(&mut client, register, Answer::Registered { coverings: vec![] });
    let (send_id, _) = flushes(&effects).expect("the flush is sent again");
    let written = Written { stat: Some(stat(9)), ..Written::default() };
    let effects = respond(&mut client, send_id, write_answer(written, 50, None));
    assert!(effects.contains(&status(false, 1, 1, 9)) && sent_consents(&effects).is_empty(), "{effects:?}");
    assert_eq!(keep_alive(&effects), None, "no heartbeat is sent for the old consent");
}
