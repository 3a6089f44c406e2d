//! Misses: the requests that they cause, the reads that share an answer, and the copies installed.

use super::*;

#[test]
fn first_read_that_did_not_come_along_is_sent_under_new_lease() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let (acquire, request) = client.only(&effects);
    assert_eq!(request.body, Body::Acquire { path: path("/a"), last_valid: None, read: first_read("/a", None) });
    assert_eq!(effects.len(), 1);
    let effects = client.answer(acquire, acquired("/", 1, 1));
    assert_eq!(effects[0], volume_valid("/", 1, at(110)));
    let (read, request) = client.only(&effects);
    assert_eq!(request.body, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
    assert_eq!(request.header.renew, [Renew { volume: path("/"), incarnation: Incarnation(1) }]);
    let effects = client.answer(read, answer(Some(value(10)), Some(grant(2))));
    let expected = [installed("/a", 10, validity(2, 1, at(200))), served(&[1], "/a", value(10), Some(at(110)))];
    assert_eq!(effects, expected);
    assert!(client.may_serve("/a"));
}

#[test]
fn volume_lease_refused_as_busy_is_read_without() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    let effects = client.refuse(acquire, Refusal::Busy { what: "renewals".to_owned(), got: 2, most: 1 });
    let (read, request) = client.only(&effects);
    assert_eq!(request.body, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
    assert_eq!(client.answer(read, answer(Some(value(10)), None)), [served(&[1], "/a", value(10), None)]);
}

#[test]
fn lease_is_acquired_once_for_all_waiting_reads() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    assert_eq!(client.read(2, "/b"), []);
    let effects = client.answer(acquire, acquired("/", 1, 1));
    let bodies: Vec<Body> = sent(&effects).into_iter().map(|(_, body)| body).collect();
    let read = |text| Body::Read { object: data(text), known: None, lease: LeaseRequest::Implicit };
    assert_eq!(bodies, [read("/a"), read("/b")]);
}

#[test]
fn read_answered_from_other_volume_is_repeated_with_its_lease() {
    let mut client = Client::leased();
    let effects = client.read(5, "/v/a");
    let read = client.only(&effects).0;
    let elsewhere = read_answer("/v", Some(value(10)), None);
    let effects = client.answer(read, Answer::Read(elsewhere));
    let (acquire, request) = client.only(&effects);
    assert_eq!(request.body, Body::Acquire { path: path("/v/a"), last_valid: None, read: first_read("/v/a", None) });
    assert_eq!(effects[0], volume_valid("/", 0, Instant::ZERO), "the path may belong to the root");
    let effects = client.answer(acquire, acquired("/v", 2, 2));
    assert_eq!(effects[..2], [volume_valid("/v", 2, at(110)), volume_valid("/", 1, at(110))]);
    let read = client.only(&effects).0;
    let granted = Grant { volume: path("/v"), incarnation: Incarnation(2), ..grant(3) };
    let found = read_answer("/v", Some(value(10)), Some(granted));
    client.answer(read, Answer::Read(found));
    assert!(client.may_serve("/v/a"));
}

#[test]
fn outer_lease_ends_if_acquire_grants_a_new_one() {
    let mut client = Client::cached();
    let effects = client.read(5, "/v/a");
    let read = client.only(&effects).0;
    let elsewhere = read_answer("/v", Some(value(10)), None);
    let effects = client.answer(read, Answer::Read(elsewhere));
    let acquire = client.only(&effects).0;
    assert!(!client.may_serve("/a"), "the server may have ended the lease on the root");
    // The volume was removed meanwhile: the new lease is on the root.
    let effects = client.answer(acquire, acquired("/", 2, 3));
    let forgotten = HolderEffect::VolumeValidityChanged { volume: path("/v"), validity: Default::default() };
    assert_eq!(effects[..2], [forgotten, volume_valid("/", 2, at(110))]);
    assert!(!client.may_serve("/a"), "the copy was granted under the lease that ended");
    assert_eq!(
        client.only(&effects).1.body,
        Body::Read { object: data("/v/a"), known: None, lease: LeaseRequest::Implicit }
    );
}

#[test]
fn misses_of_one_object_share_one_request() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    assert_eq!(client.read(6, "/a"), []);
    let effects = client.answer(read, answer(Some(value(10)), Some(grant(2))));
    assert_eq!(effects[1..], [served(&[5, 6], "/a", value(10), Some(at(110)))]);
}

#[test]
fn a_read_that_joined_does_not_use_an_answer_without_a_lease() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    client.read(6, "/a");
    let effects = client.answer(read, answer(Some(value(10)), None));
    assert_eq!(effects[0], served(&[5], "/a", value(10), None));
    let read = client.only(&effects).0;
    let effects = client.answer(read, answer(Some(value(11)), None));
    assert_eq!(effects, [served(&[6], "/a", value(11), None)]);
}

#[test]
fn joined_read_rejects_answer_overtaken_by_recall() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    client.recall(recall(3, 1, vec![one("/a")]));
    client.read(6, "/a");
    let effects = client.answer(read, answer(Some(value(10)), Some(grant(2))));
    assert_eq!(effects[0], served(&[5], "/a", value(10), None));
    assert_eq!(sent(&effects).len(), 1);
}

#[test]
fn joined_read_rejects_leases_already_expired() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    client.read(6, "/a");
    client.now = at(110);
    let effects = client.answer(read, answer(Some(value(10)), Some(grant(2))));
    assert!(effects.contains(&served(&[5], "/a", value(10), None)), "{effects:?}");
    let request = client.only(&effects).1;
    assert!(matches!(request.body, Body::Acquire { .. }), "the volume lease has lapsed: {request:?}");
}

#[test]
fn a_lapsed_copy_is_validated_by_its_revision() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/a");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/", 2, 3));
    let (read, request) = client.only(&effects);
    assert_eq!(
        request.body,
        Body::Read { object: data("/a"), known: Some(Revision(10)), lease: LeaseRequest::Returning }
    );
    let granted = Grant { incarnation: Incarnation(2), ..grant(4) };
    let effects = client.answer(read, answer(None, Some(granted)));
    let validity = validity(4, 2, at(250));
    let good = HolderEffect::CopyValidated { object: data("/a"), validity };
    assert_eq!(effects, [good, served_cached(&[5], "/a", 4, Some(at(160)))]);
    assert!(client.may_serve("/a"));
    client.now = at(250);
    let effects = client.read(6, "/a");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/", 3, 5));
    let again = client.only(&effects).1.body;
    assert_eq!(
        again,
        Body::Read { object: data("/a"), known: Some(Revision(10)), lease: LeaseRequest::Returning },
        "the copy is validated again after that lease"
    );
}

#[test]
fn not_modified_without_lease_serves_copy_but_leaves_it_lapsed() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/a");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/", 2, 3));
    let read = client.only(&effects).0;
    assert_eq!(client.answer(read, answer(None, None)), [served_cached(&[5], "/a", 2, None)]);
    assert!(!client.may_serve("/a"));
}

#[test]
fn read_that_joined_does_not_use_a_not_modified_without_a_lease() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/a");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/", 2, 3));
    let read = client.only(&effects).0;
    assert_eq!(client.read(6, "/a"), []);
    let effects = client.answer(read, answer(None, None));
    assert_eq!(effects[0], served_cached(&[5], "/a", 2, None));
    let again = client.only(&effects).1.body;
    assert_eq!(
        again,
        Body::Read { object: data("/a"), known: Some(Revision(10)), lease: LeaseRequest::Returning },
        "the read that joined is sent again"
    );
}

#[test]
fn not_modified_is_ignored_without_the_copy() {
    for drop_copy in [
        HolderInput::Evicted { object: data("/a"), stamp: stamp(2) },
        HolderInput::Recalled(recall(5, 1, vec![one("/a")])),
    ] {
        let mut client = Client::cached();
        client.now = at(150);
        let effects = client.read(5, "/a");
        let acquire = client.only(&effects).0;
        let effects = client.answer(acquire, acquired("/", 2, 3));
        let read = client.only(&effects).0;
        client.step(drop_copy);
        client.read(6, "/a");
        let granted = Grant { incarnation: Incarnation(2), ..grant(4) };
        let effects = client.answer(read, answer(None, Some(granted)));
        assert_eq!(effects.len(), 1);
        assert_eq!(
            client.only(&effects).1.body,
            Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit }
        );
    }
}

#[test]
fn read_with_valid_copy_is_served_from_memory() {
    let mut client = Client::cached();
    assert_eq!(client.read(5, "/a"), [served_cached(&[5], "/a", 2, Some(at(110)))]);
}

#[test]
fn reads_are_resent_on_next_connection_and_share_one_answer() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let old = client.only(&effects).0;
    client.read(6, "/a");
    assert_eq!(client.step(HolderInput::Disconnected), []);
    assert_eq!(client.answer(old, answer(Some(value(10)), Some(grant(2)))), [], "the send id has ended");
    let effects = client.step(HolderInput::Connected);
    let (register, request) = client.only(&effects);
    assert_eq!(request.body, Body::Register);
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let read = client.only(&effects).0;
    let effects = client.answer(read, answer(Some(value(10)), None));
    assert_eq!(effects, [served(&[5, 6], "/a", value(10), None)]);
}

#[test]
fn refused_read_is_retried_with_growing_pauses() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let mut read = client.only(&effects).0;
    let mut waits = Vec::new();
    for _ in 0..8 {
        assert_eq!(client.refuse(read, Refusal::Retry), []);
        let next = client.holder.next_deadline().expect("the retry has a deadline");
        waits.push(next.since(client.now).as_millis());
        client.now = next;
        read = client.only(&client.holder.clone().step(HolderInput::Timeout { used: BTreeSet::new() }, next)).0;
        client.timeout(&[]);
    }
    assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000, 1000]);
    client.answer(read, answer(Some(value(10)), Some(grant(2))));
    assert!(client.may_serve("/a"));
}

#[test]
fn a_read_that_is_refused_for_good_fails() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    let refusal = Refusal::Limit(crate::limits::LimitError::Value { got: 2, expected: 1 });
    let error = ReadFailure::Refused(refusal.clone());
    assert_eq!(client.refuse(read, refusal), [HolderEffect::ReadFailed { reads: vec![ReadId(5)], error }]);
}

#[test]
fn retry_waits_restart_after_an_answer() {
    let mut client = Client::leased();
    for _ in 0..2 {
        let effects = client.read(5, "/a");
        let read = client.only(&effects).0;
        client.refuse(read, Refusal::Retry);
        let next = client.holder.next_deadline().expect("the retry has a deadline");
        assert_eq!(next.since(client.now).as_millis(), 20);
        client.now = next;
        let effects = client.timeout(&[]);
        let read = client.only(&effects).0;
        client.answer(read, answer(Some(value(10)), None));
    }
}

#[test]
fn reads_waiting_for_lease_share_the_following_request() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    client.read(2, "/a");
    let effects = client.answer(acquire, acquired("/", 1, 1));
    let read = client.only(&effects).0;
    assert_eq!(client.answer(read, answer(Some(value(10)), None)), [served(&[1, 2], "/a", value(10), None)]);
}

#[test]
fn read_is_answered_without_lease_after_repeated_late_ones() {
    let mut client = Client::registered();
    let mut effects = client.read(1, "/a");
    let (mut leases, mut reads) = (0, 0);
    while !effects.contains(&served(&[1], "/a", value(10), None)) {
        let (send_id, request) = client.only(&effects);
        effects = if let Body::Read { .. } = request.body {
            reads += 1;
            client.answer(send_id, answer(Some(value(10)), None))
        } else {
            leases += 1;
            client.now = client.now.after(TERM);
            client.answer(send_id, acquired("/", leases, leases))
        };
    }
    assert_eq!((leases, reads), (5, 2), "four requests, a read without a lease, and one more request");
}

#[test]
fn fetch_continues_for_uncancelled_reads() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    for joined in [6, 7] {
        client.read(joined, "/a");
    }
    for given_up in [5, 6] {
        assert_eq!(client.step(HolderInput::CancelRead(ReadId(given_up))), []);
    }
    let effects = client.answer(read, answer(Some(value(10)), Some(grant(2))));
    assert_eq!(effects[1..], [served(&[7], "/a", value(10), Some(at(110)))]);
}

#[test]
fn fetch_in_flight_is_not_resent_when_lease_arrives() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    assert!(matches!(client.only(&effects).1.body, Body::Read { .. }));
    assert!(!client.holder.reads.stop_waiting(&data("/a")), "the fetch is in flight and waits for no lease");
}

impl Client {
    /// With a blocked read of `/a`, requested at 100 s.
    fn waiting() -> (Self, SendId) {
        let mut client = Self::leased();
        let effects = client.read(5, "/a");
        let read = client.only(&effects).0;
        let effects = client.answer_renewing(read, Answer::ReadBlocked);
        let (read, request) = client.only(&effects);
        assert_eq!(request.body, Body::AwaitRead { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
        (client, read)
    }
}

#[test]
fn answering_server_is_not_silent_while_read_is_blocked() {
    let (mut client, read) = Client::waiting();
    let end = at(160);
    while client.now < end {
        client.now = client.holder.next_deadline().expect("the request in flight has a deadline").min(end);
        let effects = client.timeout(&[]);
        assert!(!effects.contains(&HolderEffect::FindLeader { hint: None }), "at {}", client.now);
        for (send_id, body) in sent(&effects) {
            assert!(matches!(body, Body::Heartbeat(_)), "{body:?}");
            client.renew(send_id, promise("/", 1));
        }
    }
    let effects = client.answer(read, answer(Some(value(10)), None));
    assert!(effects.contains(&served(&[5], "/a", value(10), None)), "{effects:?}");
}

#[test]
fn blocked_read_leaves_dead_connection_after_silence() {
    let (mut client, _) = Client::waiting();
    let found = loop {
        client.now = client.holder.next_deadline().expect("the request in flight has a deadline");
        if client.timeout(&[]).contains(&HolderEffect::FindLeader { hint: None }) {
            break client.now;
        }
    };
    assert_eq!(found, at(106), "the server is probed after one silence and left after another, as for a write");
}

#[test]
fn blocked_read_restarts_at_another_leader() {
    let (mut client, late) = Client::waiting();
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer_renewing(register, Answer::Registered { coverings: vec![] });
    let (read, request) = client.only(&effects);
    assert_eq!(request.body, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
    assert_eq!(client.answer(late, answer(Some(value(9)), None)), [], "the request to the old leader is abandoned");
    let effects = client.answer(read, answer(Some(value(10)), Some(grant(3))));
    assert!(effects.contains(&served(&[5], "/a", value(10), Some(at(110)))), "{effects:?}");
}

#[test]
fn reads_begun_during_blocked_read_share_only_leased_answer() {
    for lease in [Some(grant(3)), None] {
        let (mut client, read) = Client::waiting();
        assert_eq!(client.read(6, "/a"), []);
        let effects = client.answer(read, answer(Some(value(10)), lease.clone()));
        let reads: &[u64] = if lease.is_some() { &[5, 6] } else { &[5] };
        let until = lease.map(|_| at(110));
        assert!(effects.contains(&served(reads, "/a", value(10), until)), "{effects:?}");
        assert_eq!(sent(&effects).len(), 2 - reads.len());
    }
}

#[test]
fn blocked_read_refused_as_busy_is_retried_later_and_later() {
    let (mut client, mut read) = Client::waiting();
    let mut waits = Vec::new();
    for _ in 0..3 {
        let busy = Refusal::Busy { what: "reads".to_owned(), got: 1, most: 1 };
        assert_eq!(client.refuse(read, busy), []);
        let from = client.now;
        client.now = client.holder.next_deadline().expect("the retry has a deadline");
        waits.push(client.now.since(from).as_millis());
        let effects = client.timeout(&[]);
        let (quick, request) = client.only(&effects);
        assert_eq!(request.body, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
        let effects = client.answer_renewing(quick, Answer::ReadBlocked);
        read = client.only(&effects).0;
    }
    assert_eq!(waits, [20, 40, 80]);
    assert_eq!(client.answer(read, Answer::ReadBlocked), [], "`ReadBlocked` does not answer an `AwaitRead`");
}

/// The read was refused for now. Then the answer comes with that to the request for a lease.
#[test]
fn setbacks_of_a_read_end_with_the_read() {
    let mut client = Client::leased();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    client.refuse(read, Refusal::Retry);
    client.now = at(111);
    let effects = client.timeout(&[]);
    let is_acquire = |(_, body): &&(SendId, Body)| matches!(body, Body::Acquire { .. });
    let acquire = sent(&effects).iter().find(is_acquire).expect("the lease has ended").0;
    let read = Some(Box::new(read_answer("/", Some(value(10)), None)));
    let lease = AcquiredVolume { promise: promise("/", 2), stamp: stamp(9), revival: Revival::None, read };
    let effects = client.answer(acquire, Answer::Acquired(lease));
    assert!(effects.contains(&served(&[5], "/b", value(10), None)), "{effects:?}");
    assert_eq!(client.holder.send_queue.set_back().next(), None);
}
