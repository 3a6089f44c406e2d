//! S4, S5: recalls against grants.

use super::*;
use crate::lease_policy::LeaseRequest;

#[test]
fn a_recall_drops_the_copy_and_then_consents() {
    let mut client = Client::cached();
    let effects = client.recall(recall(3, 1, vec![one("/a")]));
    assert_eq!(effects, [HolderEffect::Drop(vec![data("/a")]), consent(3)]);
    assert!(!client.may_serve("/a"));
}

#[test]
fn a_recall_of_a_subtree_is_one_of_each_object_in_it() {
    let mut client = Client::cached().cache("/a/b", 3).cache("/ab", 4);
    let effects = client.recall(recall(5, 1, vec![ObjectSet::Subtree(path("/a"))]));
    assert_eq!(effects, [HolderEffect::Drop(vec![data("/a"), data("/a/b")]), consent(5)]);
    assert!(client.may_serve("/ab"));
}

#[test]
fn a_recall_that_overtakes_the_grant_it_recalls_still_wins() {
    // The hard case: the answer is delayed, and the recall comes first. The client consents, and
    // the write takes effect. Then the old value arrives with a lease.
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    assert_eq!(client.recall(recall(3, 1, vec![one("/a")])), [consent(3)]);
    let effects = client.answer(read, answer(Some(value(10)), Some(grant(2))));
    assert_eq!(effects, [served(&[5], "/a", value(10), None)], "the read began before the write was acknowledged");
    assert!(!client.may_serve("/a"));
}

#[test]
fn a_grant_stamped_after_the_recall_is_cached() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    client.recall(recall(2, 1, vec![one("/a")]));
    client.answer(read, answer(Some(value(10)), Some(grant(3))));
    assert!(client.may_serve("/a"));
}

#[test]
fn recall_is_remembered_while_earlier_request_is_in_flight() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let old = client.only(&effects).0;
    let effects = client.read(6, "/b");
    let other = client.only(&effects).0;
    client.recall(recall(4, 1, vec![one("/a")]));
    client.answer(other, answer(Some(value(10)), Some(grant(2))));
    client.answer(old, answer(Some(value(10)), Some(grant(3))));
    assert!(client.may_serve("/b") && !client.may_serve("/a"));
    assert_eq!(client.holder.recalls.check(None), Ok(()), "no recall is remembered when both requests are answered");
}

#[test]
fn answer_to_abandoned_request_is_ignored() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let old = client.only(&effects).0;
    client.recall(recall(3, 1, vec![one("/a")]));
    assert_eq!(client.step(HolderInput::CancelRead(ReadId(5))), []);
    assert_eq!(client.answer(old, answer(Some(value(10)), Some(grant(2)))), []);
    assert!(!client.may_serve("/a"));
}

#[test]
fn a_recall_reaches_copies_that_have_lapsed() {
    let mut client = Client::cached();
    client.now = at(150);
    assert!(!client.may_serve("/a"));
    let effects = client.recall(recall(3, 1, vec![one("/a")]));
    assert_eq!(effects, [HolderEffect::Drop(vec![data("/a")]), consent(3)]);
}

#[test]
fn recall_drops_copies_that_a_new_lease_may_revive() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/b");
    assert!(
        matches!(client.only(&effects).1.body, Body::Acquire { last_valid: Some(_), .. }),
        "the client has ended the old lease"
    );
    let effects = client.recall(recall(3, 1, vec![one("/a")]));
    assert_eq!(effects, [HolderEffect::Drop(vec![data("/a")]), consent(3)]);
}

#[test]
fn recall_gap_drops_all_copies_and_consents_to_arrivals() {
    let mut client = Client::cached().cache("/b", 3);
    let effects = client.recall(recall(9, 3, vec![one("/c")]));
    assert_eq!(effects, [HolderEffect::Drop(vec![data("/a"), data("/b")]), consent(9)]);
    let effects = client.recall(recall(8, 2, vec![one("/c")]));
    assert_eq!(effects, [consent(8)], "the client consents to a late recall too");
}

#[test]
fn a_recall_that_comes_twice_is_consented_to_twice() {
    let mut client = Client::cached();
    client.recall(recall(3, 1, vec![one("/a")]));
    assert_eq!(client.recall(recall(3, 1, vec![one("/a")])), [consent(3)]);
}

#[test]
fn recall_of_another_session_is_ignored() {
    let mut client = Client::cached();
    let other = Recall { session: SessionId(8), ..recall(3, 1, vec![one("/a")]) };
    assert_eq!(client.recall(other), []);
    assert!(client.may_serve("/a"));
}

#[test]
fn consents_piggyback_until_request_with_them_is_answered() {
    let mut client = Client::cached();
    client.recall(recall(3, 1, vec![one("/a")]));
    let effects = client.read(5, "/b");
    let (first, request) = client.only(&effects);
    assert_eq!(request.header.consents, [stamp(3)]);
    let effects = client.read(6, "/c");
    let (_, request) = client.only(&effects);
    assert_eq!(request.header.consents, [stamp(3)]);
    client.answer(first, answer(Some(value(10)), None));
    let effects = client.read(7, "/d");
    assert_eq!(client.only(&effects).1.header.consents, []);
}

/// The replies to the recalls have brought these consents. If one was lost, the leader recalls
/// again.
#[test]
fn consents_beyond_the_bound_drop_the_oldest() {
    let mut client = Client::with(|config| config.bounds.consents_waiting_max = 2).connect().lease();
    for sequence in 3..=5 {
        assert_eq!(client.recall(recall(sequence, sequence - 2, vec![one("/a")])), [consent(sequence)]);
    }
    assert_eq!(client.recall(recall(3, 1, vec![one("/a")])), [consent(3)]);
    let effects = client.read(5, "/b");
    assert_eq!(client.only(&effects).1.header.consents, [stamp(4), stamp(5)]);
}

#[test]
fn evicted_copy_is_returned_with_the_next_request() {
    let mut client = Client::cached();
    assert_eq!(client.step(HolderInput::Evicted { object: data("/a"), stamp: stamp(1) }), []);
    assert!(client.may_serve("/a"), "the eviction of an earlier copy does not concern this one");
    client.step(HolderInput::Evicted { object: data("/a"), stamp: stamp(2) });
    assert!(!client.may_serve("/a"));
    let effects = client.read(5, "/a");
    let (_, request) = client.only(&effects);
    assert_eq!(request.header.returns, [crate::message::Return { object: data("/a"), stamp: stamp(2) }]);
    assert_eq!(request.body, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
}

#[test]
fn a_grant_of_an_older_epoch_is_not_cached() {
    let mut client = Client::leased();
    client.now = at(103);
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    let result = Ok(answer(Some(value(10)), Some(grant(2))));
    let response = Response { epoch: Epoch(2), promises: vec![promise("/", 1)], lapses: vec![], clocks: None, result };
    client.now = at(105);
    let effects = client.respond(read, response);
    assert_eq!(effects, [served(&[5], "/a", value(10), None)]);
    assert_eq!(
        client.holder.volume_remaining(&NodePath::root(), client.now),
        Duration::from_secs(5),
        "the promise of the older epoch does not count"
    );
}

#[test]
fn all_sets_of_one_recall_are_forgotten() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    client.recall(recall(4, 1, vec![one("/x"), one("/y"), ObjectSet::Subtree(path("/z"))]));
    client.answer(read, answer(Some(value(10)), None));
    assert_eq!(client.holder.recalls.check(None), Ok(()));
}

#[test]
fn returns_piggyback_until_request_with_them_is_answered() {
    let mut client = Client::cached().cache("/b", 3);
    let returned = |text, sequence| crate::message::Return { object: data(text), stamp: stamp(sequence) };
    client.step(HolderInput::Evicted { object: data("/a"), stamp: stamp(2) });
    let effects = client.read(5, "/x");
    let (first, request) = client.only(&effects);
    assert_eq!(request.header.returns, [returned("/a", 2)]);
    client.step(HolderInput::Evicted { object: data("/b"), stamp: stamp(3) });
    client.answer(first, answer(Some(value(10)), None));
    let effects = client.read(6, "/y");
    assert_eq!(client.only(&effects).1.header.returns, [returned("/b", 3)]);
}

#[test]
fn new_leader_gets_no_consents_or_returns_of_older_epoch() {
    let mut client = Client::cached();
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    client.recall(recall(3, 1, vec![one("/x")]));
    client.step(HolderInput::Evicted { object: data("/a"), stamp: stamp(2) });
    // The new leader's first recall can overtake its answer.
    let stamp = Stamp { epoch: Epoch(9), sequence: 1 };
    client.recall(Recall { stamp, ..recall(0, 1, vec![one("/y")]) });
    let result = Ok(Answer::Registered { coverings: vec![] });
    client.respond(register, Response { epoch: Epoch(9), promises: vec![], lapses: vec![], clocks: None, result });
    let effects = client.read(5, "/b");
    let header = client.only(&effects).1.header;
    assert_eq!((header.consents, header.returns), (vec![stamp], vec![]));
}

#[test]
fn a_recall_is_not_remembered_for_requests_that_bring_no_lease() {
    let mut client = Client::cached();
    client.now = at(105);
    let effects = client.timeout(&["/"]);
    assert!(matches!(client.only(&effects).1.body, Body::Heartbeat(_)));
    client.recall(recall(3, 1, vec![one("/x")]));
    assert_eq!(client.holder.recalls.check(None), Ok(()));
}

#[test]
fn planted_bugs_have_their_named_effects() {
    use crate::planted::{Bug, Planted};
    let with = |bug| Client::with(|config| config.planted = Planted::one(bug)).connect().lease();

    let mut client = with(Bug::ConsentWithoutDrop).cache("/a", 2);
    assert_eq!(client.recall(recall(3, 1, vec![one("/a")])), [consent(3)]);
    assert!(client.may_serve("/a"));

    let mut client = with(Bug::CacheOvertakenGrant);
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    client.recall(recall(3, 1, vec![one("/a")]));
    client.answer(read, answer(Some(value(10)), Some(grant(2))));
    assert!(client.may_serve("/a"));

    let mut client = with(Bug::ServeAfterExpiry).cache("/a", 2);
    client.now = at(500);
    assert!(client.may_serve("/a"));

    let mut client = with(Bug::TermFromReceipt);
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    client.now = at(104);
    client.renew(read, promise("/", 1));
    assert_eq!(client.holder.volume_remaining(&NodePath::root(), client.now), TERM);
}

#[test]
fn consent_is_resent_after_refusal_to_retry() {
    let mut client = Client::cached();
    client.recall(recall(3, 1, vec![one("/a")]));
    let effects = client.read(5, "/b");
    let (read, request) = client.only(&effects);
    assert_eq!(request.header.consents, [stamp(3)]);
    client.refuse(read, Refusal::Retry);
    let effects = client.read(6, "/c");
    assert_eq!(
        client.only(&effects).1.header.consents,
        [stamp(3)],
        "a leader that refuses a request has not handled its consents"
    );
}

/// A write is answered late, with a grant older than the one returned (seed 23871 of the wide
/// worlds). The server applies the return to both grants, and would recall neither.
#[test]
fn grant_older_than_a_returned_one_is_not_cached() {
    let mut client = Client::leased();
    let effects = client.write(1, put("/a"));
    let (late, _) = client.only(&effects);
    let mut client = client.cache("/a", 6);
    client.step(HolderInput::Evicted { object: data("/a"), stamp: stamp(6) });
    let Content::Data(Some(Data { stat, .. })) = value(10) else { unreachable!("it is data") };
    let written = crate::command::Written { revision: Revision(10), stat: Some(stat), ..Default::default() };
    let (grant, applied) = (Some(grant(4)), Revision(10));
    let answer = Answer::Written { written, stamp: stamp(4), grant, applied, key_lease: None, write_lease_data: None };
    let effects = client.answer(late, answer);
    assert!(!effects.iter().any(|effect| matches!(effect, HolderEffect::Install { .. })), "{effects:?}");
    assert!(!client.may_serve("/a"));
    let effects = client.read(9, "/a");
    let (read, request) = client.only(&effects);
    assert_eq!(request.header.returns, [crate::message::Return { object: data("/a"), stamp: stamp(6) }]);
    client.answer_renewing(read, super::answer(Some(value(10)), Some(super::grant(7))));
    assert!(client.may_serve("/a"), "a later grant is cached");
}
