//! Reads that come along with a request for a lease on their volume.

use super::{known_volume::AttachedNode, *};
use crate::limits::LimitError;

/// The answer with the lease of this incarnation and stamp, and with the answer to the read.
fn acquired_with(incarnation: u64, sequence: u64, content: Option<Content>, grant: Option<Grant>) -> Answer {
    let (promise, read) = (promise("/", incarnation), Some(Box::new(read_answer("/", content, grant))));
    Answer::Acquired(AcquiredVolume { promise, stamp: stamp(sequence), revival: Revival::None, read })
}

#[test]
fn first_read_takes_one_round_trip() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let (acquire, request) = client.only(&effects);
    assert_eq!(request.body, Body::Acquire { path: path("/a"), last_valid: None, read: first_read("/a", None) });
    assert_eq!(client.read(2, "/a"), [], "it joins");
    let effects = client.answer(acquire, acquired_with(1, 1, Some(value(10)), Some(grant(2))));
    let expected = [
        volume_valid("/", 1, at(110)),
        installed("/a", 10, validity(2, 1, at(200))),
        served(&[1, 2], "/a", value(10), Some(at(110))),
    ];
    assert_eq!(effects, expected);
}

#[test]
fn one_of_several_waiting_reads_comes_along() {
    let mut client = Client::registered();
    let effects = client.read(1, "/b");
    let acquire = client.only(&effects).0;
    assert_eq!(client.read(2, "/a"), []);
    let effects = client.answer(acquire, acquired_with(1, 1, Some(value(10)), Some(grant(2))));
    assert!(effects.contains(&served(&[1], "/b", value(10), Some(at(110)))), "{effects:?}");
    let (_, request) = client.only(&effects);
    assert_eq!(request.body, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
}

#[test]
fn copy_that_comes_along_is_validated() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/a");
    let acquire = client.only(&effects).0;
    let granted = Grant { incarnation: Incarnation(2), ..grant(10) };
    let effects = client.answer(acquire, acquired_with(2, 9, None, Some(granted)));
    assert_eq!(effects.last(), Some(&served_cached(&[5], "/a", 10, Some(at(160)))));
}

#[test]
fn recall_that_overtakes_first_read_wins() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    client.recall(recall(3, 1, vec![one("/a")]));
    client.read(2, "/a");
    let effects = client.answer(acquire, acquired_with(1, 1, Some(value(10)), Some(grant(2))));
    assert!(effects.contains(&served(&[1], "/a", value(10), None)), "it began before the request: {effects:?}");
    assert!(!client.may_serve("/a"));
    let (_, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Read { .. }), "the read that joined is sent anew: {request:?}");
}

#[test]
fn answer_to_cancelled_first_read_serves_no_later_read() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    client.step(HolderInput::CancelRead(ReadId(1)));
    assert_eq!(client.read(2, "/a"), [], "it waits for the lease");
    let effects = client.answer(acquire, acquired_with(1, 1, Some(value(10)), Some(grant(2))));
    assert!(matches!(client.only(&effects).1.body, Body::Read { .. }), "{effects:?}");
    assert!(!client.may_serve("/a"));
}

#[test]
fn first_read_comes_along_again_on_next_connection() {
    let mut client = Client::registered();
    client.read(1, "/a");
    client.read(2, "/a");
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let (acquire, request) = client.only(&effects);
    assert_eq!(request.body, Body::Acquire { path: path("/a"), last_valid: None, read: first_read("/a", None) });
    let effects = client.answer(acquire, acquired_with(1, 1, Some(value(10)), None));
    assert!(effects.contains(&served(&[1, 2], "/a", value(10), None)), "both began before it was sent: {effects:?}");
}

#[test]
fn refused_lease_leaves_first_read_to_be_sent_alone() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    client.read(2, "/a");
    let effects = client.refuse(acquire, Refusal::Busy { what: "renewals".to_owned(), got: 2, most: 1 });
    let read = client.only(&effects).0;
    assert_eq!(client.answer(read, answer(Some(value(10)), None)), [served(&[1, 2], "/a", value(10), None)]);
}

#[test]
fn lease_of_older_epoch_serves_no_first_read() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    let result = Ok(acquired_with(1, 1, Some(value(10)), Some(grant(2))));
    let effects = client.respond(
        acquire,
        Response { epoch: Epoch(EPOCH.0 - 1), promises: vec![], lapses: vec![], clocks: None, result },
    );
    assert!(!effects.iter().any(|effect| matches!(effect, HolderEffect::Serve { .. })), "{effects:?}");
    assert!(!client.may_serve("/a"));
}

/// An earlier sending may have replaced the lease on `/`, and no leader recalls copies under that.
#[test]
fn refused_repetition_ends_leases_that_it_may_have_replaced() {
    for refusal in [Refusal::Limit(LimitError::Depth { got: 65, expected: 64 }), busy()] {
        let mut client = Client::cached();
        client.holder.volumes.learn(&path("/v"));
        let effects = client.read(5, "/v/x");
        let acquire = client.only(&effects).0;
        client.refuse(acquire, Refusal::Retry);
        client.now = client.holder.next_deadline().expect("it asks again");
        let effects = client.timeout(&[]);
        let acquire = client.only(&effects).0;
        client.refuse(acquire, refusal.clone());
        assert!(!client.may_serve("/a"), "{refusal:?}");
    }
}

fn busy() -> Refusal {
    Refusal::Busy { what: "renewals".to_owned(), got: 2, most: 1 }
}

#[test]
fn read_that_needs_another_volume_comes_along_with_its_request() {
    let mut client = Client::registered();
    let effects = client.read(1, "/v/a");
    let acquire = client.only(&effects).0;
    let read = Some(Box::new(read_answer("/v", Some(value(10)), None)));
    let lease = AcquiredVolume { promise: promise("/", 1), stamp: stamp(1), revival: Revival::None, read };
    let effects = client.answer(acquire, Answer::Acquired(lease));
    let (_, request) = client.only(&effects);
    assert_eq!(request.body, Body::Acquire { path: path("/v/a"), last_valid: None, read: first_read("/v/a", None) });
}

/// The node is under the lease on `/`, which the server may only have extended.
#[test]
fn refused_repetition_beside_a_node_asks_for_the_volume_itself() {
    let mut client = Client::cached();
    client.holder.volumes.learn(&path("/v"));
    let node = AttachedNode { incarnation: Incarnation(1), revision: Revision(10) };
    client.holder.volumes.learn(&NodePath::root()).attached.insert(path("/node"), node);
    let effects = client.read(5, "/v/x");
    let (mut acquire, mut refusal, mut paths) = (client.only(&effects).0, Refusal::Retry, Vec::new());
    for _ in 0..3 {
        client.refuse(acquire, refusal);
        let next = client.holder.next_deadline().expect("it asks again");
        client.now = client.now.max(next);
        let sent = sent(&client.timeout(&[]));
        let Some((send_id, path)) = sent.into_iter().find_map(|(send_id, body)| match body {
            Body::Acquire { path, .. } => Some((send_id, path)),
            _ => None,
        }) else {
            break;
        };
        paths.push(path);
        (acquire, refusal) = (send_id, Refusal::Limit(LimitError::Depth { got: 65, expected: 64 }));
    }
    assert_eq!(paths, [path("/v/x"), path("/v")]);
}
