//! Holder reports: when they begin, and their parts.

use super::*;
use crate::message::{CoveringLease, HolderReportPart, Lapse, REPORT_PART_OBJECTS_MAX};

/// A client whose lease ended, and that read `/a` again at 150 s. Its copies of `/a` and `/b` are
/// valid again, and it owes a report.
fn returned() -> Client {
    let (client, effects) = returning(false, TERM);
    assert_eq!(sent(&effects), []);
    assert!(client.may_serve("/b"));
    client
}

/// Such a client, and the effects of the answer.
fn returning(reports_at_once: bool, term: Duration) -> (Client, Vec<HolderEffect>) {
    let mut client = Client::cached().cache("/b", 3);
    client.now = at(150);
    let effects = client.read(5, "/a");
    let acquire = client.only(&effects).0;
    let revival = Revival::AllExcept { changed: vec![], covering: CoveringNumber(4), reports_at_once };
    let promise = Promise { term, ..promise("/", 2) };
    let lease = AcquiredVolume { promise, stamp: stamp(9), revival, read: None };
    let effects = client.answer(acquire, Answer::Acquired(lease));
    (client, effects)
}

/// The objects of the report among the effects.
fn reported(effects: &[HolderEffect]) -> Option<Vec<Object>> {
    sent(effects).into_iter().find_map(|(_, body)| match body {
        Body::HolderReport(HolderReportPart { incarnation, covering, part: 0, parts: 1, objects, .. }) => {
            assert_eq!((incarnation, covering), (Incarnation(2), CoveringNumber(4)));
            Some(objects)
        }
        _ => None,
    })
}

#[test]
fn returning_client_reports_with_first_renewal_after_two_terms() {
    let mut client = returned();
    for (sent_at, expected) in [(159, None), (168, None), (170, Some(vec![data("/a"), data("/b")])), (175, None)] {
        client.now = at(sent_at);
        let effects = client.read(sent_at, "/other");
        let read = client.only(&effects).0;
        let response = Response {
            epoch: EPOCH,
            promises: vec![promise("/", 2)],
            lapses: vec![],
            clocks: None,
            result: Ok(answer(Some(value(10)), None)),
        };
        assert_eq!(reported(&client.respond(read, response)), expected, "{sent_at}");
    }
}

#[test]
fn recall_of_unknown_object_makes_returning_client_report() {
    let mut client = returned();
    let effects = client.recall(recall(10, 1, vec![one("/a")]));
    assert_eq!((reported(&effects), effects.contains(&consent(10))), (None, true), "the client had a copy");
    let effects = client.recall(recall(11, 2, vec![one("/c")]));
    assert_eq!((reported(&effects), effects.contains(&consent(11))), (Some(vec![data("/b")]), true));
    assert_eq!(reported(&client.recall(recall(12, 3, vec![one("/d")]))), None, "it has reported");
}

#[test]
fn client_reports_at_once_where_writes_would_wait_for_it() {
    let (_, effects) = returning(true, TERM);
    assert_eq!(reported(&effects), Some(vec![data("/a"), data("/b")]));
}

#[test]
fn longest_term_leaves_the_report_for_later() {
    let (client, effects) = returning(false, Duration::MAX);
    assert_eq!(reported(&effects), None);
    assert!(client.may_serve("/b"));
}

#[test]
fn client_that_leaves_again_reports_nothing() {
    let mut client = returned();
    client.now = at(165);
    assert_eq!(reported(&client.timeout(&[])), None);
    let effects = client.read(6, "/a");
    assert!(matches!(client.only(&effects).1.body, Body::Acquire { last_valid: Some(_), .. }), "{effects:?}");
}

#[test]
fn registration_says_anew_which_reports_are_owed() {
    let mut client = returned();
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    client.answer(register, Answer::Registered { coverings: vec![] });
    assert_eq!(reported(&client.recall(recall(11, 1, vec![one("/c")]))), None);
}

#[test]
fn holder_report_is_sent_in_parts() {
    let mut client = Client::leased();
    let many = REPORT_PART_OBJECTS_MAX as u64 + 1;
    for i in 0..many {
        client = client.cache(&format!("/many/{i}"), 10 + i);
    }
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let number = CoveringNumber(5);
    let covering =
        |incarnation| CoveringLease { volume: NodePath::root(), incarnation: Incarnation(incarnation), number };
    let effects = client.answer(register, Answer::Registered { coverings: vec![covering(9), covering(1)] });
    let (first, request) = client.only(&effects);
    let Body::HolderReport(part) = request.body else { panic!("{effects:?}") };
    assert_eq!((part.part, part.parts, part.covering, part.objects.len()), (0, 2, number, REPORT_PART_OBJECTS_MAX));
    let effects = client.answer(first, Answer::ReportReceived);
    let (second, request) = client.only(&effects);
    let Body::HolderReport(part) = request.body else { panic!("{effects:?}") };
    assert_eq!((part.part, part.parts, part.objects.len()), (1, 2, 1));
    assert_eq!(client.answer(second, Answer::ReportReceived), []);
    assert!(client.holder.holder_reports.is_empty());
}

#[test]
fn late_answer_to_an_earlier_report_advances_nothing() {
    let mut client = returned();
    let effects = client.recall(recall(11, 1, vec![one("/c")]));
    let earlier = client.only(&effects).0;
    let effects = client.read(6, "/other");
    let read = client.only(&effects).0;
    let lapses = vec![Lapse { volume: NodePath::root(), incarnation: Incarnation(2) }];
    let result = Ok(answer(Some(value(10)), None));
    let effects = client.respond(read, Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result });
    let acquire = client.only(&effects).0;
    let revival = Revival::AllExcept { changed: vec![], covering: CoveringNumber(5), reports_at_once: true };
    let lease = AcquiredVolume { promise: promise("/", 3), stamp: stamp(12), revival, read: None };
    let effects = client.answer(acquire, Answer::Acquired(lease));
    let is_report = |(_, body): &&(SendId, Body)| matches!(body, Body::HolderReport(_));
    let requests = sent(&effects);
    let present = requests.iter().find(is_report).expect("a report").0;
    client.answer(earlier, Answer::ReportReceived);
    assert!(!client.holder.holder_reports.is_empty(), "the present report is unanswered");
    client.answer(present, Answer::ReportReceived);
    assert!(client.holder.holder_reports.is_empty());
}
