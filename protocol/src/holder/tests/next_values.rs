//! A client that gives up a copy asks for the value that the write leaves.

use super::*;
use crate::message::PUSH_WAIT_MAX;

/// Recalls these sets, for a write in a volume that updates.
fn updating(sequence: u64, number: u64, sets: Vec<ObjectSet>) -> Recall {
    Recall { offers_next_values: true, ..recall(sequence, number, sets) }
}

fn selected(text: &str) -> HolderEffect {
    HolderEffect::SelectWanted(vec![data(text)])
}

fn asks_next(effects: &[HolderEffect]) -> Vec<SendId> {
    let is_next = |(send_id, body): (SendId, Body)| matches!(body, Body::ReadNextValue { .. }).then_some(send_id);
    sent(effects).into_iter().filter_map(is_next).collect()
}

/// A client whose copy of `/a` was recalled with stamp 3, and the request for the next value.
fn asking() -> (Client, SendId) {
    let mut client = Client::cached();
    let effects = client.recall(updating(3, 1, vec![one("/a")]));
    assert_eq!(effects, [selected("/a"), HolderEffect::Drop(vec![data("/a")]), consent(3)]);
    let effects = client.step(HolderInput::ReadNextValues(vec![data("/a")]));
    let (send_id, request) = requests(&effects).remove(0);
    assert_eq!(request.body, Body::ReadNextValue { object: data("/a"), lease: LeaseRequest::Returning });
    assert_eq!((request.header.consents, request.header.renew), (vec![], vec![]), "hundreds may follow one recall");
    (client, send_id)
}

#[test]
fn next_value_is_a_hit_without_a_read() {
    let (mut client, send_id) = asking();
    assert!(!client.may_serve("/a"));
    client.now = at(101);
    let effects = client.answer(send_id, answer(Some(value(11)), Some(grant(4))));
    assert!(matches!(&effects[..], [HolderEffect::Install { object, .. }] if *object == data("/a")), "{effects:?}");
    assert!(client.may_serve("/a"));
    client.now = at(200);
    assert!(!client.may_serve("/a"), "the term counts from the request, at 100 s");
}

#[test]
fn read_of_the_application_waits_for_no_next_value() {
    let (mut client, send_id) = asking();
    let effects = client.read(7, "/a");
    let (read, body) = client.only(&effects);
    assert!(matches!(body.body, Body::Read { .. }), "{body:?}");
    let effects = client.answer_renewing(read, answer(Some(value(10)), None));
    assert!(effects.iter().any(|effect| matches!(effect, HolderEffect::Serve { .. })), "{effects:?}");
    client.answer(send_id, answer(Some(value(11)), Some(grant(4))));
    assert!(client.may_serve("/a"));
}

#[test]
fn later_recall_overtakes_the_next_value() {
    let (mut client, send_id) = asking();
    let effects = client.recall(updating(5, 2, vec![one("/a")]));
    assert_eq!(effects, [consent(5)], "there is no copy");
    client.answer(send_id, answer(Some(value(11)), Some(grant(4))));
    assert!(!client.may_serve("/a"));
}

#[test]
fn lease_that_lasts_for_longer_is_not_replaced() {
    let (mut client, send_id) = asking();
    client.now = at(105);
    let effects = client.read(7, "/a");
    let read = client.only(&effects).0;
    client.answer_renewing(read, answer(Some(value(11)), Some(grant(4))));
    let effects = client.answer(send_id, answer(Some(value(11)), Some(grant(5))));
    assert_eq!(effects, [], "its lease ends at 200 s, and that of the copy at 205 s");
    assert_eq!(client.holder.copies.get(&data("/a")).map(|copy| copy.validity.until), Some(at(205)));
}

#[test]
fn next_value_in_flight_asks_for_no_sign_of_life() {
    let (client, _) = asking();
    assert_eq!(client.holder.probe_deadline(), None, "no operation waits for it");
}

#[test]
fn only_recalls_that_offer_the_next_value_ask_what_was_read() {
    let mut client = Client::cached();
    assert_eq!(client.recall(recall(3, 1, vec![one("/a")])), [HolderEffect::Drop(vec![data("/a")]), consent(3)]);
    let mut client = Client::cached();
    let subtree = ObjectSet::Subtree(path("/"));
    let effects = client.recall(updating(3, 1, vec![subtree]));
    assert_eq!(effects, [HolderEffect::Drop(vec![data("/a")]), consent(3)], "a subtree may be large");
    let mut client = Client::cached();
    let effects = client.recall(updating(4, 2, vec![one("/a")]));
    assert_eq!(effects, [HolderEffect::Drop(vec![data("/a")]), consent(4)], "recall 1 is missing");
}

#[test]
fn delayed_consent_asks_for_the_next_value_when_it_is_given() {
    let mut client = Client::with(|config| config.consent_delay = Duration::from_secs(2)).connect();
    client.holder.settle_clocks();
    let mut client = client.lease().cache("/a", 2);
    let effects = client.recall(updating(3, 1, vec![one("/a")]));
    assert!(matches!(effects[..], [HolderEffect::ConsentDelayed(_)]), "{effects:?}");
    client.now = at(102);
    let effects = client.timeout(&[]);
    assert_eq!(effects[..2], [selected("/a"), HolderEffect::Drop(vec![data("/a")])]);
}

#[test]
fn next_value_without_an_answer_is_not_asked_for_again() {
    for refusal in [Refusal::Retry, Refusal::Busy { what: "reads".to_owned(), got: 1, most: 1 }] {
        let (mut client, send_id) = asking();
        assert_eq!(client.refuse(send_id, refusal), []);
        client.now = at(102);
        assert_eq!(asks_next(&client.timeout(&[])), []);
    }
    let (mut client, send_id) = asking();
    assert_eq!(client.answer(send_id, Answer::ReadBlocked), []);
    let (mut client, _) = asking();
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::ReadNextValues(vec![data("/a")]));
    assert_eq!(asks_next(&effects), [], "there is no leader to ask");
}

/// The reply to the recall was lost, so no push comes.
#[test]
fn next_value_is_awaited_for_a_limited_time() {
    let (mut client, send_id) = asking();
    assert_eq!(client.holder.next_values_deadline(), Some(at(100).after(PUSH_WAIT_MAX)));
    client.now = at(100).after(PUSH_WAIT_MAX);
    client.timeout(&[]);
    assert_eq!(client.holder.next_values_deadline(), None);
    let effects = client.answer(send_id, answer(Some(value(11)), Some(grant(4))));
    assert!(!effects.iter().any(|effect| matches!(effect, HolderEffect::Install { .. })), "{effects:?}");
    assert!(!client.may_serve("/a"), "the holder may have forgotten a later recall");
}

#[test]
fn one_request_for_each_object_up_to_the_bound() {
    let (mut client, earlier) = asking();
    let again = asks_next(&client.step(HolderInput::ReadNextValues(vec![data("/a")])));
    assert_eq!(again.len(), 1, "the reply to the earlier recall may be lost");
    assert_eq!(client.answer(earlier, answer(Some(value(11)), Some(grant(4)))), [], "the later one has replaced it");
    assert!(!client.may_serve("/a"));
    let most = HolderBounds::DEFAULT.own_next_values_max;
    let many = (0..most).map(|number| data(&format!("/b/{number}"))).collect();
    assert_eq!(asks_next(&client.step(HolderInput::ReadNextValues(many))).len(), most - 1);
}
