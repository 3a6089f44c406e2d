//! Consents that wait while the client uses its copy.

use super::{known_volume::OwnVolumeLease, *};
use crate::message::{CONSENTS_MAX, DelayNotice, DelayReason};

const DELAY: Duration = Duration::from_secs(2);

/// A client that delays consents, with a copy of `/a` and leases until 110 s and 200 s.
fn delaying() -> Client {
    let mut client = Client::with(|config| config.consent_delay = DELAY).connect();
    client.holder.settle_clocks();
    client.lease().cache("/a", 2)
}

/// The reply to a recall whose copies the client still uses.
fn in_use(sequence: u64, at_most: Duration) -> HolderEffect {
    let reason = DelayReason::InUse { at_most };
    HolderEffect::ConsentDelayed(DelayNotice { session: SESSION, stamp: stamp(sequence), reason })
}

/// The effects of the timeouts until then.
fn pass_until(client: &mut Client, end: Instant) -> Vec<HolderEffect> {
    let mut effects = Vec::new();
    while let Some(next) = client.holder.next_deadline().filter(|next| *next <= end) {
        client.now = next;
        effects.extend(client.timeout(&[]));
    }
    client.now = end;
    effects
}

/// The consents in the headers of the requests.
fn consented(effects: &[HolderEffect]) -> Vec<Stamp> {
    assert!(!effects.iter().any(|effect| matches!(effect, HolderEffect::Consent(_))), "only a recall is replied to");
    requests(effects).into_iter().flat_map(|(_, request)| request.header.consents).collect()
}

#[test]
fn recalled_copy_stays_in_use_until_the_consent() {
    let mut client = delaying();
    assert_eq!(client.recall(recall(3, 1, vec![one("/a")])), [in_use(3, DELAY)]);
    assert_eq!(pass_until(&mut client, at(101)), []);
    assert!(client.may_serve("/a"));
    let effects = pass_until(&mut client, at(102));
    assert_eq!(effects[0], HolderEffect::Drop(vec![data("/a")]));
    assert_eq!(consented(&effects), [stamp(3)], "the reply to the recall was empty, so a request has it: {effects:?}");
    assert!(!client.may_serve("/a"));
}

/// The leader has sent the recall again, because it lost the notice or has none.
#[test]
fn repeated_recall_gets_a_notice_of_what_remains() {
    let mut client = delaying();
    client.recall(recall(3, 1, vec![one("/a")]));
    client.now = at(101);
    assert_eq!(client.recall(recall(3, 1, vec![one("/a")])), [in_use(3, DELAY / 2)]);
    pass_until(&mut client, at(102));
    assert_eq!(client.recall(recall(3, 1, vec![one("/a")])), [consent(3)], "the copy is dropped");
}

/// The notice replies to the recall, and the consent comes with a heartbeat. So a client sends no
/// message more than without the notice.
#[test]
fn notice_costs_no_request() {
    let mut client = delaying();
    let effects = client.recall(recall(3, 1, vec![one("/a")]));
    assert_eq!(requests(&effects), []);
    let effects = pass_until(&mut client, at(102));
    assert_eq!(requests(&effects).len(), 1, "the consent: {effects:?}");
}

#[test]
fn delay_is_at_most_half_of_what_remains_of_each_lease() {
    for (recalled_at, until, expected_by) in [(100, 110, 105), (106, 110, 108), (100, 102, 101)] {
        let mut client = Client::with(|config| config.consent_delay = Duration::from_secs(3600)).connect();
        client.holder.settle_clocks();
        let mut client = client.lease().cache("/a", 2);
        // A second volume. Its lease may have nodes or locks.
        let lease = client.holder.volumes.get(&path("/")).expect("known").lease.clone();
        let lease = lease.map(|lease| OwnVolumeLease { until: at(until), ..lease });
        client.holder.volumes.learn(&path("/v")).lease = lease;
        client.holder.notify_validity(&path("/v"));
        std::mem::take(&mut client.holder.effects);
        client.now = at(recalled_at);
        client.recall(recall(3, 1, vec![one("/a")]));
        let effects = pass_until(&mut client, at(expected_by));
        assert!(consented(&effects).contains(&stamp(3)), "{recalled_at} {until}: {effects:?}");
    }
}

#[test]
fn own_write_ends_the_delays_of_what_it_drops() {
    let mut client = delaying();
    client.recall(recall(3, 1, vec![one("/a")]));
    let effects = client.write(1, put("/a"));
    assert_eq!(consented(&effects), [stamp(3)], "{effects:?}");
    let effects = client.recall(recall(4, 2, vec![one("/first")]));
    assert!(effects.contains(&consent(4)), "a write of this client is unanswered: {effects:?}");
}

/// The write may wait for one that waits for this client.
#[test]
fn own_write_ends_all_delays() {
    let mut client = delaying().cache("/b", 3);
    client.recall(recall(4, 1, vec![one("/a"), one("/b")]));
    let effects = client.write(1, put("/b"));
    assert_eq!(consented(&effects), [stamp(4)], "{effects:?}");
    assert!(!client.may_serve("/a"));
}

#[test]
fn second_recall_of_a_copy_ends_with_the_first() {
    let mut client = delaying();
    client.recall(recall(3, 1, vec![one("/a")]));
    client.now = at(101);
    client.recall(recall(4, 2, vec![one("/a")]));
    let effects = pass_until(&mut client, at(102));
    assert_eq!(consented(&effects), [stamp(3), stamp(4)], "{effects:?}");
}

#[test]
fn late_lease_with_a_node_allows_no_delay() {
    let mut client = delaying();
    let node = known_volume::AttachedNode { incarnation: Incarnation(5), revision: Revision(10) };
    let late = client.holder.volumes.get(&path("/")).expect("known").lease.clone();
    let top = path("/v");
    let mut inner = client.holder.volumes.learn(&top);
    inner.lease =
        late.map(|lease| OwnVolumeLease { incarnation: Incarnation(5), until: at(100), has_expired: true, ..lease });
    inner.attached.insert(path("/v/node"), node);
    drop(inner);
    client.holder.notify_validity(&path("/v"));
    std::mem::take(&mut client.holder.effects);
    let effects = client.recall(recall(3, 1, vec![one("/a")]));
    assert!(effects.contains(&consent(3)), "{effects:?}");
}

#[test]
fn eviction_ends_the_delay_of_its_copy() {
    let mut client = delaying();
    client.recall(recall(3, 1, vec![one("/a")]));
    let effects = client.step(HolderInput::Evicted { object: data("/a"), stamp: stamp(2) });
    assert_eq!(consented(&effects), [stamp(3)], "{effects:?}");
}

#[test]
fn recall_of_a_subtree_is_not_delayed() {
    let mut client = delaying();
    let effects = client.recall(recall(3, 1, vec![ObjectSet::Subtree(path("/"))]));
    assert!(effects.contains(&consent(3)) && !client.may_serve("/a"), "{effects:?}");
}

#[test]
fn new_lease_ends_all_delays() {
    let mut client = delaying();
    client.recall(recall(3, 1, vec![one("/a")]));
    client.holder.volumes.learn(&path("/v"));
    let effects = client.read(5, "/v/x");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/v", 2, 9));
    assert!(consented(&effects).contains(&stamp(3)), "its promises are limited by the recall: {effects:?}");
}

#[test]
fn without_usable_copy_the_consent_comes_at_once() {
    let mut client = delaying();
    assert_eq!(client.recall(recall(3, 1, vec![one("/b")])), [consent(3)]);
    client.now = at(111);
    let effects = client.recall(recall(4, 2, vec![one("/a")]));
    assert_eq!(effects.last(), Some(&consent(4)), "the volume lease has ended: {effects:?}");
}

#[test]
fn recall_after_a_gap_is_not_delayed() {
    let mut client = delaying();
    let effects = client.recall(recall(3, 2, vec![one("/b")]));
    assert_eq!(effects, [HolderEffect::Drop(vec![data("/a")]), consent(3)]);
}

#[test]
fn delayed_recall_overtakes_grants_in_flight() {
    let mut client = delaying();
    client.now = at(101);
    let effects = client.step(HolderInput::Evicted { object: data("/a"), stamp: stamp(9) });
    assert_eq!(effects, [], "another copy was evicted");
    let effects = client.read(5, "/c");
    let read = client.only(&effects).0;
    client.recall(recall(4, 1, vec![one("/a"), one("/c")]));
    client.answer(read, answer(Some(value(10)), Some(grant(3))));
    assert!(client.may_serve("/a") && !client.may_serve("/c"));
}

#[test]
fn new_leader_gets_no_consent_to_a_recall_of_the_last() {
    let mut client = delaying().cache("/b", 3);
    client.recall(recall(4, 1, vec![one("/a")]));
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let next = Epoch(EPOCH.0 + 1);
    // A recall of the new leader overtakes its answer.
    let newer = Stamp { epoch: next, sequence: 7 };
    client.recall(Recall {
        session: SESSION,
        stamp: newer,
        number: 1,
        sets: vec![one("/b")],
        offers_next_values: false,
    });
    let result = Ok(Answer::Registered { coverings: vec![] });
    let effects =
        client.respond(register, Response { epoch: next, promises: vec![], lapses: vec![], clocks: None, result });
    assert!(effects.contains(&HolderEffect::Drop(vec![data("/a")])), "{effects:?}");
    let effects = pass_until(&mut client, at(109));
    assert_eq!(consented(&effects)[0], newer, "{effects:?}");
    assert!(!consented(&effects).contains(&stamp(4)), "{effects:?}");
}

#[test]
fn delayed_consents_are_bounded() {
    let mut client = Client::with(|config| {
        config.consent_delay = DELAY;
        config.bounds.delayed_consents_max = 1;
    });
    client = client.connect();
    client.holder.settle_clocks();
    let mut client = client.lease().cache("/a", 2).cache("/b", 3);
    assert_eq!(client.recall(recall(4, 1, vec![one("/a")])), [in_use(4, DELAY)]);
    let effects = client.recall(recall(5, 2, vec![one("/b")]));
    assert_eq!(effects, [HolderEffect::Drop(vec![data("/b")]), consent(5)]);
}

#[test]
fn cancelled_write_allows_no_delay_until_leader_drops_it() {
    let mut client = delaying().cache("/b", 3);
    let effects = client.write(1, put("/c"));
    let late = client.only(&effects).0;
    client.step(HolderInput::CancelWrite(WriteId(1)));
    let effects = client.recall(recall(4, 1, vec![one("/a")]));
    assert!(effects.contains(&consent(4)), "the leader may still have the write: {effects:?}");
    assert_eq!(client.answer(late, written_answer(Written::default())), []);
    // The next request gives the write up.
    let effects = client.read(5, "/other");
    let read = client.only(&effects).0;
    client.answer(read, answer(Some(value(10)), None));
    assert_eq!(client.recall(recall(5, 2, vec![one("/b")])), [in_use(5, DELAY)]);
}

#[test]
fn request_that_gives_up_too_little_allows_no_delay() {
    let mut client = delaying().cache("/b", 3);
    let effects = client.write(1, put("/c"));
    let write = client.only(&effects).0;
    client.write(2, put("/d"));
    client.step(HolderInput::CancelWrite(WriteId(2)));
    let effects = client.read(5, "/other");
    let (read, request) = client.only(&effects);
    assert_eq!(request.header.unanswered_from, Sequence(1), "the first write is unanswered");
    client.answer(write, written_answer(Written::default()));
    client.answer(read, answer(Some(value(10)), None));
    let effects = client.recall(recall(41, 1, vec![one("/b")]));
    assert!(effects.contains(&consent(41)), "{effects:?}");
}

/// The first write is answered after the request that could not give up the second.
#[test]
fn request_before_an_answer_gives_up_too_little() {
    let mut client = delaying().cache("/b", 3);
    let effects = client.write(1, put("/c"));
    let write = client.only(&effects).0;
    client.write(2, put("/d"));
    client.step(HolderInput::CancelWrite(WriteId(2)));
    let effects = client.read(5, "/other");
    let read = client.only(&effects).0;
    client.answer(read, answer(Some(value(10)), None));
    client.answer(write, written_answer(Written::default()));
    let effects = client.recall(recall(41, 1, vec![one("/b")]));
    assert!(effects.contains(&consent(41)), "{effects:?}");
}

#[test]
fn consent_due_while_registering_is_sent_once_registered() {
    let mut client = delaying();
    client.recall(recall(3, 1, vec![one("/a")]));
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let (register, request) = client.only(&effects);
    assert_eq!(request.header.consents, []);
    assert_eq!(requests(&pass_until(&mut client, at(102))), []);
    assert!(!client.may_serve("/a"), "the consent is due");
    let effects = client.answer_renewing(register, Answer::Registered { coverings: vec![] });
    assert_eq!(consented(&effects), [stamp(3)], "{effects:?}");
}

#[test]
fn heartbeat_brings_delayed_consent_among_many_others() {
    let mut client = delaying();
    let last = 3 + CONSENTS_MAX as u64;
    for sequence in 3..last {
        client.recall(recall(sequence, sequence - 2, vec![one("/b")]));
    }
    client.recall(recall(last, last - 2, vec![one("/a")]));
    let consents = consented(&pass_until(&mut client, at(102)));
    assert!(consents.contains(&stamp(last)) && consents.len() <= CONSENTS_MAX, "{consents:?}");
}

#[test]
fn recalls_drop_no_consent_whose_delay_has_ended() {
    let mut client = Client::with(|config| {
        config.consent_delay = DELAY;
        config.bounds.consents_waiting_max = 1;
    });
    client = client.connect();
    client.holder.settle_clocks();
    let mut client = client.lease().cache("/a", 2);
    client.recall(recall(3, 1, vec![one("/a")]));
    pass_until(&mut client, at(102));
    client.recall(recall(4, 2, vec![one("/b")]));
    client.recall(recall(5, 3, vec![one("/b")]));
    client.recall(recall(3, 1, vec![one("/a")]));
    let effects = client.read(5, "/c");
    assert_eq!(consented(&effects), [stamp(3), stamp(5)]);
}

#[test]
fn unconfirmed_consents_count_against_the_bound_of_delays() {
    let mut client = Client::with(|config| {
        config.consent_delay = DELAY;
        config.bounds.delayed_consents_max = 1;
    });
    client = client.connect();
    client.holder.settle_clocks();
    let mut client = client.lease().cache("/a", 2).cache("/b", 3).cache("/c", 4);
    client.recall(recall(5, 1, vec![one("/a")]));
    let effects = pass_until(&mut client, at(102));
    let heartbeat = client.only(&effects).0;
    assert_eq!(client.recall(recall(6, 2, vec![one("/b")])).last(), Some(&consent(6)));
    client.renew(heartbeat, promise("/", 1));
    assert_eq!(client.recall(recall(7, 3, vec![one("/c")])), [in_use(7, DELAY)]);
}
