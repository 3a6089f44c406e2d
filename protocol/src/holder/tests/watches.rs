//! Watches in the client: changes once and in order, across all failures.

use super::*;
use crate::{
    change::{Change, ChangeReason, Changes, Event, EventKind, WatchScope},
    holder::{WATCH_WAIT, WatchFailure, in_flight::Purpose},
};

const ONE: WatchId = WatchId(1);

fn watched() -> WatchScope {
    WatchScope::Subtree(path("/a"))
}

fn begin(after: Option<u64>) -> HolderInput {
    HolderInput::Watch { watch: ONE, watched: watched(), after: after.map(Revision), bytes_max: 100 }
}

/// The request while the watch may have changes to report at once.
fn body(after: Option<u64>) -> Body {
    Body::Watch { watched: watched(), after: after.map(Revision), wait: Duration::ZERO, bytes_max: 100 }
}

/// The request when everything up to now is reported.
fn waiting(after: u64) -> Body {
    Body::Watch { watched: watched(), after: Some(Revision(after)), wait: WATCH_WAIT, bytes_max: 100 }
}

/// Changes at these revisions, and the revision through which all are known.
fn changes(revisions: &[u64], through: u64) -> Changes {
    let event = || Event { path: path("/a/x"), kind: EventKind::Delete, reason: ChangeReason::Request };
    let change = |revision: &u64| Change { revision: Revision(*revision), events: [event()].into() };
    Changes { changes: revisions.iter().map(change).collect(), through: Revision(through) }
}

fn reported(revisions: &[u64], through: u64) -> HolderEffect {
    HolderEffect::Changes { watch: ONE, changes: changes(revisions, through) }
}

fn answer(revisions: &[u64], through: u64) -> Answer {
    Answer::Changes(changes(revisions, through))
}

/// A client that watches after revision 5, and its request's send id.
fn watching() -> (Client, SendId) {
    let mut client = Client::registered();
    let effects = client.step(begin(Some(5)));
    let (send_id, request) = client.only(&effects);
    assert_eq!((request.body, request.header.renew), (body(Some(5)), vec![]));
    (client, send_id)
}

#[test]
fn watch_resumes_after_last_change_and_only_on_demand() {
    let (mut client, send_id) = watching();
    assert_eq!(client.answer(send_id, answer(&[6, 8], 9)), [reported(&[6, 8], 9)]);
    let effects = client.step(HolderInput::WatchMore(ONE));
    let (send_id, request) = client.only(&effects);
    assert_eq!(request.body, body(Some(9)));
    assert_eq!(client.step(HolderInput::WatchMore(ONE)), [], "the request is already in flight");
    assert_eq!(client.answer(send_id, answer(&[], 12)), [reported(&[], 12)], "a progress mark");
    for (after, revisions) in [(12, &[13][..]), (13, &[]), (14, &[15])] {
        let effects = client.step(HolderInput::WatchMore(ONE));
        let (send_id, request) = client.only(&effects);
        assert_eq!(request.body, waiting(after), "the watch has reported all changes once");
        client.answer(send_id, answer(revisions, after + 1));
    }
}

#[test]
fn watch_from_now_on_reports_its_start_first() {
    let mut client = Client::registered();
    let effects = client.step(begin(None));
    let (send_id, request) = client.only(&effects);
    assert_eq!(request.body, body(None));
    assert_eq!(client.answer(send_id, answer(&[], 7)), [reported(&[], 7)]);
    let effects = client.step(HolderInput::WatchMore(ONE));
    assert_eq!(client.only(&effects).1.body, body(Some(7)));
}

#[test]
fn watch_resumes_at_same_revision_on_next_connection() {
    let (mut client, first) = watching();
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let (second, request) = client.only(&effects);
    assert_eq!(request.body, body(Some(5)));
    assert_eq!(client.answer(first, answer(&[6], 6)), [], "the answer of the ended connection is ignored");
    assert_eq!(client.answer(second, answer(&[6], 7)), [reported(&[6], 7)]);
}

#[test]
fn a_watch_outlives_the_session() {
    let (mut client, send_id) = watching();
    client.answer(send_id, answer(&[6], 6));
    let effects = client.step(HolderInput::WatchMore(ONE));
    let send_id = client.only(&effects).0;
    let effects = client.refuse(send_id, Refusal::SessionNotFound { session: SESSION });
    let open = sent(&effects)[0].0;
    let effects = client.answer(open, Answer::Opened { session: SessionId(8), term: SESSION_TERM });
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let (_, request) = client.only(&effects);
    assert_eq!((request.header.session, request.body), (SessionId(8), body(Some(6))));
}

#[test]
fn compacted_revision_ends_the_watch() {
    let (mut client, send_id) = watching();
    let effects = client.refuse(send_id, Refusal::Compacted { after: Revision(5), earliest_after: Revision(20) });
    let error = WatchFailure::Compacted { after: Revision(5), earliest_after: Revision(20) };
    assert_eq!(effects, [HolderEffect::WatchLost { watch: ONE, error }]);
    assert_eq!(client.step(HolderInput::WatchMore(ONE)), []);
}

#[test]
fn refused_watch_is_repeated_later() {
    let (mut client, send_id) = watching();
    assert_eq!(client.refuse(send_id, Refusal::Busy { what: "watches".to_owned(), got: 9, most: 9 }), []);
    client.now = client.holder.next_deadline().expect("the request is repeated");
    let effects = client.timeout(&[]);
    assert_eq!(client.only(&effects).1.body, body(Some(5)));
}

#[test]
fn changes_out_of_order_are_not_reported() {
    for (revisions, through) in [(&[5][..], 9), (&[7, 6], 9), (&[6, 6], 9), (&[6, 10], 9), (&[], 4)] {
        let (mut client, send_id) = watching();
        assert_eq!(client.answer(send_id, answer(revisions, through)), [], "{revisions:?} through {through}");
        client.now = client.holder.next_deadline().expect("the request is repeated");
        let effects = client.timeout(&[]);
        assert_eq!(client.only(&effects).1.body, body(Some(5)));
    }
}

#[test]
fn cancelled_watch_reports_nothing() {
    let (mut client, send_id) = watching();
    assert_eq!(client.step(HolderInput::CancelWatch(ONE)), []);
    assert_eq!(client.answer(send_id, answer(&[6], 9)), []);
    let (mut client, send_id) = watching();
    client.step(HolderInput::CancelWatch(ONE));
    assert_eq!(client.refuse(send_id, Refusal::Retry), []);
    assert!(!client.holder.send_queue.iter().any(|purpose| matches!(purpose, Purpose::Watch(_))));
}

#[test]
fn closed_client_ends_its_watches() {
    let (mut client, _) = watching();
    let lost = HolderEffect::WatchLost { watch: ONE, error: WatchFailure::Closed };
    assert!(client.step(HolderInput::Close).contains(&lost));
    assert_eq!(client.step(begin(None)), [lost]);
}

#[test]
fn silent_server_is_left_after_watch_wait_and_answer_time() {
    let (mut client, _) = watching();
    let patience = Duration::from_secs(3);
    let deadline = at(100).after(WATCH_WAIT + patience);
    client.now = deadline.before(Duration::from_micros(1));
    assert_eq!(client.timeout(&[]), []);
    client.now = deadline;
    assert_eq!(client.timeout(&[]), [HolderEffect::FindLeader { hint: None }]);
}

#[test]
fn watch_opens_a_session() {
    let (mut client, _) = watching();
    assert!(client.holder.has_work());
    client.step(HolderInput::CancelWatch(ONE));
    assert!(!client.holder.has_work());
}

#[test]
fn watch_silence_allows_for_clock_drift() {
    let silent_until = |ppm| {
        let drift = DriftAllowance::from_ppm(ppm).expect("within bounds");
        let mut client = Client::with(|config| config.drift_allowance = drift).connect();
        client.step(begin(Some(5)));
        client.holder.silence_deadline().expect("the server owes an answer").since(client.now)
    };
    let margin = DriftAllowance::from_ppm(1_000).expect("within bounds").over(WATCH_WAIT) * 2;
    assert!(margin > Duration::ZERO);
    assert_eq!(silent_until(1_000), silent_until(0) + margin);
}
