//! S2w, S9: writes.

use super::*;
use crate::command::{WriteRefusal, Written};

fn written(sequence: u64, grant: Option<Grant>) -> Answer {
    let Content::Data(Some(found)) = value(30) else { unreachable!("a value") };
    let written = Written { revision: Revision(30), stat: Some(found.stat), ..Written::default() };
    Answer::Written {
        written,
        stamp: stamp(sequence),
        grant,
        applied: Revision(30),
        key_lease: None,
        write_lease_data: None,
    }
}

fn write_done(write: u64, result: Result<(), WriteFailure>) -> HolderEffect {
    let Answer::Written { written, .. } = written(1, None) else { unreachable!("a write's answer") };
    HolderEffect::WriteDone { write: WriteId(write), result: result.map(|()| written) }
}

#[test]
fn write_drops_own_copy_and_sends_last_seen_stamp() {
    let mut client = Client::cached();
    let effects = client.write(1, put("/a"));
    assert_eq!(effects[0], HolderEffect::Drop(vec![data("/a")]));
    let (_, request) = client.only(&effects);
    let body = Body::Write { write: put("/a"), dropped: vec![one("/a")], seen: stamp(2) };
    assert_eq!((request.header.sequence, request.body), (Sequence(1), body));
    assert!(!client.may_serve("/a"));
}

#[test]
fn put_of_possibly_new_node_drops_parent_lists() {
    let mut client = Client::leased();
    let effects = client.write(1, put("/a/b"));
    let Body::Write { dropped, .. } = client.only(&effects).1.body else { panic!("{effects:?}") };
    let children = |text| ObjectSet::One(Object::children(path(text)));
    assert_eq!(dropped, [one("/a/b"), children("/a/b"), children("/a")]);
}

#[test]
fn a_grant_from_before_the_write_was_sent_is_not_cached() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    client.recall(recall(4, 1, vec![one("/x")]));
    client.write(1, put("/b"));
    client.answer(read, answer(Some(value(10)), Some(grant(3))));
    assert!(!client.may_serve("/b"), "the writer had seen a later stamp when it sent the write");
}

#[test]
fn the_answer_brings_the_writers_own_copy() {
    let mut client = Client::cached();
    let effects = client.write(1, put("/a"));
    let write = client.only(&effects).0;
    client.now = at(103);
    let effects = client.answer(write, written(5, Some(grant(6))));
    assert_eq!(effects, [installed("/a", 30, validity(6, 1, at(200))), write_done(1, Ok(()))]);
    assert!(client.may_serve("/a"));
}

#[test]
fn write_answer_recalls_older_copies() {
    let mut client = Client::cached();
    let effects = client.write(1, put("/a"));
    let write = client.only(&effects).0;
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    client.answer(write, written(5, None));
    client.answer(read, answer(Some(value(10)), Some(grant(4))));
    assert!(!client.may_serve("/a"));
}

#[test]
fn copy_granted_before_write_took_effect_is_dropped() {
    let mut client = Client::cached();
    let effects = client.write(1, put("/a"));
    let write = client.only(&effects).0;
    let mut client = client.cache("/a", 4);
    let effects = client.answer(write, written(5, None));
    assert_eq!(effects, [HolderEffect::Drop(vec![data("/a")]), write_done(1, Ok(()))]);
}

#[test]
fn a_write_keeps_its_number_however_often_it_is_sent() {
    let mut client = Client::cached();
    let effects = client.write(1, put("/a"));
    let first = client.only(&effects).0;
    client.refuse(first, Refusal::OutcomeUnknown);
    client.now = client.holder.next_deadline().expect("the retry has a deadline");
    let effects = client.timeout(&[]);
    let (_, request) = client.only(&effects);
    assert_eq!(request.header.sequence, Sequence(1));
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let (third, request) = client.only(&effects);
    assert_eq!((request.header.sequence, request.header.unanswered_from), (Sequence(1), Sequence(1)));
    assert_eq!(client.answer(third, written(9, None)), [write_done(1, Ok(()))]);
    let effects = client.write(2, put("/b"));
    let header = client.only(&effects).1.header;
    assert_eq!((header.sequence, header.unanswered_from), (Sequence(2), Sequence(2)));
}

#[test]
fn reads_use_up_no_numbers() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let header = client.only(&effects).1.header;
    assert_eq!((header.sequence, header.unanswered_from), (Sequence(1), Sequence(1)));
    let effects = client.write(1, put("/a"));
    assert_eq!(client.only(&effects).1.header.sequence, Sequence(1));
}

#[test]
fn cancelled_write_says_whether_it_may_still_happen() {
    let mut client = Client::leased();
    let effects = client.write(1, put("/a"));
    let send_id = client.only(&effects).0;
    assert_eq!(client.step(HolderInput::CancelWrite(WriteId(1))), [write_done(1, Err(WriteFailure::OutcomeUnknown))]);
    assert_eq!(client.answer(send_id, written(9, Some(grant(10)))), []);
    assert!(!client.may_serve("/a"));
    client.step(HolderInput::Disconnected);
    client.write(2, put("/a"));
    assert_eq!(client.step(HolderInput::CancelWrite(WriteId(2))), [write_done(2, Err(WriteFailure::NotSent))]);
    assert!(WriteFailure::OutcomeUnknown.may_still_happen() && !WriteFailure::NotSent.may_still_happen());
}

#[test]
fn a_refused_write_has_not_happened() {
    let mut client = Client::leased();
    let effects = client.write(1, put("/a"));
    let send_id = client.only(&effects).0;
    let refusal = Refusal::Write(WriteRefusal::NotFound { path: path("/a") });
    let error = WriteFailure::Refused(refusal.clone());
    assert_eq!(client.refuse(send_id, refusal), [write_done(1, Err(error))]);
}

#[test]
fn writes_beyond_the_window_wait_for_the_lowest_to_be_answered() {
    // The others are for flushes.
    let most = crate::state::State::ANSWERS_MAX - 32;
    let mut client = Client::leased();
    let mut send_ids = Vec::new();
    for i in 1..=most + 3 {
        send_ids.extend(requests(&client.write(i, put("/a"))).into_iter().map(|(send_id, _)| send_id));
    }
    assert_eq!(send_ids.len() as u64, most);
    let given_up = client.step(HolderInput::CancelWrite(WriteId(most + 1)));
    assert_eq!(given_up, [write_done(most + 1, Err(WriteFailure::NotSent))]);
    assert_eq!(sent(&client.answer(send_ids[1], written(9, None))), [], "the lowest number is still unanswered");
    let effects = client.answer(send_ids[0], written(10, None));
    let sequences: Vec<u64> = requests(&effects).iter().map(|(_, request)| request.header.sequence.0).collect();
    assert_eq!(sequences, [most + 1, most + 2]);
}

#[test]
fn out_of_window_write_is_known_failed_only_if_sent_once() {
    let refusal = || Refusal::OutsideWindow { got: Sequence(1), lowest: Sequence(9), highest: Sequence(99) };
    let mut client = Client::leased();
    let effects = client.write(1, put("/a"));
    let send_id = client.only(&effects).0;
    assert_eq!(client.refuse(send_id, refusal()), [write_done(1, Err(WriteFailure::Refused(refusal())))]);
    let effects = client.write(2, put("/a"));
    let send_id = client.only(&effects).0;
    client.refuse(send_id, Refusal::Retry);
    client.now = client.holder.next_deadline().expect("the retry has a deadline");
    let effects = client.timeout(&[]);
    let send_id = client.only(&effects).0;
    assert_eq!(client.refuse(send_id, refusal()), [write_done(2, Err(WriteFailure::OutcomeUnknown))]);
}

#[test]
fn refused_key_lease_is_reported_at_once() {
    let busy = |what: &str| Refusal::Busy { what: what.to_owned(), got: 32_769, most: 32_768 };
    let write_result = |effects: &[HolderEffect]| {
        let mut done = effects.iter().filter_map(|effect| match effect {
            HolderEffect::WriteDone { result, .. } => Some(result.clone()),
            _ => None,
        });
        done.next()
    };
    let settings = crate::volume::VolumeSettings::DEFAULT;
    for change in
        [Write::GrantLease { id: None, name: None, ttl: TERM }, Write::SetVolume { path: NodePath::root(), settings }]
    {
        let mut client = Client::registered();
        let effects = client.write(1, change);
        let send_id = client.only(&effects).0;
        let effects = client.refuse(send_id, busy("renewals of leases in a second"));
        let error = WriteFailure::Refused(busy("renewals of leases in a second"));
        assert_eq!(write_result(&effects), Some(Err(error)));
    }
    let mut client = Client::registered();
    let effects = client.write(1, put("/a"));
    let send_id = client.only(&effects).0;
    assert_eq!(write_result(&client.refuse(send_id, busy("writes"))), None, "the write is sent again later");
}

#[test]
fn write_is_unsent_until_it_is_sent() {
    let mut client = Client::leased();
    assert!(!client.holder.is_unsent(WriteId(1)), "no write has this id");
    client.step(HolderInput::Disconnected);
    client.write(1, put("/b"));
    assert!(client.holder.is_unsent(WriteId(1)));
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    client.answer(register, Answer::Registered { coverings: vec![] });
    assert!(!client.holder.is_unsent(WriteId(1)));
}

/// The first of a session's writes always has room for its results (seed 4223 of the wide worlds).
#[test]
fn write_that_has_become_the_first_is_sent_again_at_once() {
    let mut client = Client::leased();
    let busy = || Refusal::Busy { what: "results of transactions to remember".into(), got: 9, most: 8 };
    let [first, second] = [1, 2].map(|write| {
        let effects = client.write(write, put(&format!("/{write}")));
        client.only(&effects).0
    });
    assert_eq!(requests(&client.refuse(second, busy())), [], "the retry waits");
    let effects = client.answer(first, written(20, None));
    let (_, body) = sent(&effects).pop().expect("the write is sent again");
    assert!(matches!(body, Body::Write { write: Write::Put { path: at, .. }, .. } if at == path("/2")));
    client.now = client.now.after(TERM / 2);
    let again = sent(&client.timeout(&[]));
    assert!(
        !again.iter().any(|(_, body)| matches!(body, Body::Write { .. })),
        "the write is sent only once: {again:?}"
    );
}

/// The first write was refused because the client did not know its volume. It gets another number.
#[test]
fn write_behind_one_that_gets_another_number_is_sent_at_once() {
    let mut client = Client::leased();
    let busy = || Refusal::Busy { what: "results of transactions to remember".into(), got: 9, most: 8 };
    let attached = Write::Put {
        path: path("/v/a"),
        value: "v".into(),
        condition: Condition::Any,
        attach: crate::command::Attach::Session,
    };
    let [first, second] = [(1, attached), (2, put("/2"))].map(|(write, change)| {
        let effects = client.write(write, change);
        client.only(&effects).0
    });
    assert_eq!(requests(&client.refuse(second, busy())), [], "the retry waits");
    let misplaced = crate::command::WriteRefusal::NoVolumeLease { path: path("/v/a"), volume: path("/v") };
    let effects = client.refuse(first, Refusal::Write(misplaced));
    let second = |(_, body): &(SendId, Body)| matches!(body, Body::Write { write: Write::Put { path: at, .. }, .. } if *at == path("/2"));
    assert!(sent(&effects).iter().any(second), "{effects:?}");
}
