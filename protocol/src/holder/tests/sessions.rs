//! Opening, registering, failover, jeopardy, expiry and closing.

use super::*;

fn reported_states(effects: &[HolderEffect]) -> Vec<SessionNews> {
    let state = |effect: &HolderEffect| match effect {
        HolderEffect::Connection(state) => Some(state.clone()),
        _ => None,
    };
    effects.iter().filter_map(state).collect()
}

#[test]
fn a_session_is_opened_then_registered_then_connected() {
    let mut client = Client::new();
    client.now = at(100);
    let effects = client.step(HolderInput::Connected);
    let (open, request) = client.only(&effects);
    assert_eq!(request.body, Body::Open { name: "test".into() });
    assert_eq!(request.header, crate::message::RequestHeader::default());
    let effects = client.answer(open, Answer::Opened { session: SESSION, term: SESSION_TERM });
    let (register, request) = client.only(&effects);
    assert_eq!((request.body, request.header.session, request.header.epoch), (Body::Register, SESSION, Epoch(0)));
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    assert_eq!(effects, [HolderEffect::Connection(SessionNews::Connected { session: SESSION })]);
    assert_eq!((client.holder.session(), client.holder.epoch()), (Some(SESSION), EPOCH));
}

#[test]
fn nothing_of_a_session_is_sent_before_it_has_registered() {
    let mut client = Client::cached();
    client.step(HolderInput::Disconnected);
    assert_eq!(client.read(5, "/b"), []);
    assert_eq!(client.write(1, put("/b")), []);
    let effects = client.step(HolderInput::Connected);
    assert_eq!(client.only(&effects).1.body, Body::Register);
    assert_eq!(client.read(6, "/c"), []);
}

#[test]
fn copies_survive_leader_change_and_registration_renews_them() {
    let mut client = Client::cached();
    client.now = at(104);
    client.timeout(&["/"]);
    client.step(HolderInput::Disconnected);
    assert!(client.may_serve("/a"));
    let effects = client.step(HolderInput::Connected);
    let (register, request) = client.only(&effects);
    assert_eq!(request.header.renew, [Renew { volume: path("/"), incarnation: Incarnation(1) }]);
    client.now = at(105);
    let result = Ok(Answer::Registered { coverings: vec![] });
    let response = Response { epoch: Epoch(9), promises: vec![promise("/", 1)], lapses: vec![], clocks: None, result };
    assert_eq!(client.respond(register, response), [volume_valid("/", 1, at(114))]);
    assert_eq!(client.holder.epoch(), Epoch(9));
    assert!(client.may_serve("/a"));
}

#[test]
fn recalls_of_a_new_epoch_are_counted_from_one() {
    let mut client = Client::cached().cache("/b", 3);
    client.recall(recall(5, 1, vec![one("/x")]));
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let result = Ok(Answer::Registered { coverings: vec![] });
    client.respond(register, Response { epoch: Epoch(9), promises: vec![], lapses: vec![], clocks: None, result });
    let stamp = Stamp { epoch: Epoch(9), sequence: 1 };
    let first = Recall { stamp, ..recall(0, 1, vec![one("/a")]) };
    let consent = HolderEffect::Consent(Consent { session: SESSION, stamp });
    assert_eq!(client.recall(first), [HolderEffect::Drop(vec![data("/a")]), consent]);
    let late = client.recall(recall(4, 7, vec![one("/b")]));
    assert_eq!(late[0], HolderEffect::Drop(vec![data("/b")]), "a recall of the old epoch drops copies and is no gap");
    let effects = client.write(1, put("/b"));
    let Some((_, Body::Write { seen, .. })) = sent(&effects).pop() else { panic!("{effects:?}") };
    assert_eq!(seen, stamp, "a write names only stamps of the registered epoch");
}

#[test]
fn server_that_does_not_lead_is_left_for_named_leader() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    let effects = client.refuse(read, Refusal::NotLeader { leader: Some("n2".into()) });
    assert_eq!(effects, [HolderEffect::FindLeader { hint: Some("n2".into()) }]);
    assert_eq!(client.read(6, "/b"), []);
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    assert_eq!(sent(&effects).len(), 2, "both reads are sent to the next server");
}

#[test]
fn leader_of_older_epoch_is_left() {
    let mut client = Client::cached();
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let result = Ok(Answer::Registered { coverings: vec![] });
    let effects =
        client.respond(register, Response { epoch: Epoch(2), promises: vec![], lapses: vec![], clocks: None, result });
    assert_eq!(effects, [HolderEffect::FindLeader { hint: None }]);
    assert_eq!(client.holder.epoch(), EPOCH);
}

#[test]
fn client_registers_again_when_leader_does_not_know_session() {
    let mut client = Client::leased();
    let effects = client.read(5, "/a");
    let read = client.only(&effects).0;
    let effects = client.refuse(read, Refusal::NotRegistered { got: EPOCH, expected: Epoch(9) });
    let (register, request) = client.only(&effects);
    assert_eq!(request.body, Body::Register);
    let result = Ok(Answer::Registered { coverings: vec![] });
    client.respond(register, Response { epoch: Epoch(9), promises: vec![], lapses: vec![], clocks: None, result });
    client.now = client.now.after(Duration::from_millis(20));
    let effects = client.timeout(&[]);
    assert_eq!(client.only(&effects).1.header.epoch, Epoch(9));
}

#[test]
fn a_silent_server_is_left_within_a_third_of_the_term() {
    let mut client = Client::cached();
    client.read(5, "/b");
    let found = loop {
        client.now = client.holder.next_deadline().expect("the request in flight has a deadline");
        if client.timeout(&[]).contains(&HolderEffect::FindLeader { hint: None }) {
            break client.now;
        }
    };
    assert_eq!(found, at(103));
}

#[test]
fn jeopardy_and_reconnection_are_reported_once() {
    let mut client = Client::cached();
    client.now = at(104);
    client.timeout(&["/"]);
    client.step(HolderInput::Disconnected);
    let mut states = Vec::new();
    while let Some(next) = client.holder.next_deadline() {
        assert!(next > client.now);
        client.now = next;
        states.extend(reported_states(&client.timeout(&["/"])).into_iter().map(|state| (state, next)));
    }
    assert_eq!(states, [(jeopardy(&["/"]), at(110))]);
    assert!(!client.may_serve("/a"));
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer_renewing(register, Answer::Registered { coverings: vec![] });
    assert_eq!(reported_states(&effects), [SessionNews::Connected { session: SESSION }]);
}

#[test]
fn jeopardy_names_each_volume_whose_lease_has_ended() {
    let mut client = Client::cached();
    client.holder.volumes.learn(&path("/v"));
    client.now = at(104);
    let effects = client.read(5, "/v/a");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/v", 2, 50));
    let read = client.only(&effects).0;
    client.answer(read, Answer::Read(read_answer("/v", Some(value(10)), None)));
    client.step(HolderInput::Disconnected);
    let mut states = Vec::new();
    while let Some(next) = client.holder.next_deadline() {
        client.now = next;
        states.extend(reported_states(&client.timeout(&["/", "/v"])).into_iter().map(|state| (state, next)));
    }
    assert_eq!(states, [(jeopardy(&["/"]), at(110)), (jeopardy(&["/", "/v"]), at(114))]);
    // One lease is renewed, and ends again. It is not reported again, because the last report names
    // it.
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let result = Ok(Answer::Registered { coverings: vec![] });
    let response = Response { epoch: EPOCH, promises: vec![promise("/v", 2)], lapses: vec![], clocks: None, result };
    client.respond(register, response);
    client.step(HolderInput::Disconnected);
    client.now = client.now.after(TERM);
    assert_eq!(reported_states(&client.timeout(&["/", "/v"])), []);
}

#[test]
fn idle_session_is_renewed_or_enters_jeopardy() {
    let mut client = Client::registered();
    assert_eq!(client.holder.next_deadline(), Some(at(130)));
    client.now = at(130);
    let effects = client.timeout(&[]);
    let (send_id, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Heartbeat(_)) && request.header.renew.is_empty(), "{request:?}");
    client.answer(send_id, Answer::Heartbeat(Default::default()));
    client.step(HolderInput::Disconnected);
    assert_eq!(client.holder.next_deadline(), Some(at(190)));
    client.now = at(190);
    assert_eq!(client.timeout(&[]), [HolderEffect::Connection(jeopardy(&[]))]);
    assert_eq!(client.holder.next_deadline(), None);
}

#[test]
fn expired_session_restarts_reads_and_sent_writes_are_unknown() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    client.write(1, put("/c"));
    let effects = client.refuse(read, Refusal::SessionNotFound { session: SESSION });
    let unknown = HolderEffect::WriteDone { write: WriteId(1), result: Err(WriteFailure::OutcomeUnknown) };
    let expired = HolderEffect::Connection(SessionNews::Expired { session: SESSION });
    assert_eq!(effects[..3], [HolderEffect::DropAll, unknown, expired]);
    let (open, request) = client.only(&effects);
    assert_eq!(request.body, Body::Open { name: "test".into() });
    let effects = client.answer(open, Answer::Opened { session: SessionId(8), term: SESSION_TERM });
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    assert_eq!(reported_states(&effects), [SessionNews::Connected { session: SessionId(8) }]);
    let (_, request) = client.only(&effects);
    assert_eq!(
        (request.body, request.header.session),
        (Body::Acquire { path: path("/b"), last_valid: None, read: first_read("/b", None) }, SessionId(8))
    );
}

#[test]
fn closing_drops_all_copies_before_it_notifies_the_server() {
    let mut client = Client::cached();
    client.read(5, "/b");
    let effects = client.step(HolderInput::Close);
    let failed = HolderEffect::ReadFailed { reads: vec![ReadId(5)], error: ReadFailure::Closed };
    assert_eq!(effects[..2], [HolderEffect::DropAll, failed]);
    let (close, request) = client.only(&effects);
    assert_eq!(request.body, Body::Close);
    assert_eq!(client.answer(close, Answer::Closed), [HolderEffect::Closed]);
    assert_eq!(client.step(HolderInput::Connected), []);
    assert_eq!(client.read(6, "/a"), [HolderEffect::ReadFailed { reads: vec![ReadId(6)], error: ReadFailure::Closed }]);
    assert_eq!(client.holder.next_deadline(), None);
}

#[test]
fn closing_without_a_connection_is_done_at_once() {
    let mut client = Client::cached();
    client.step(HolderInput::Disconnected);
    assert_eq!(client.step(HolderInput::Close), [HolderEffect::DropAll, HolderEffect::Closed]);
}

#[test]
fn a_write_does_not_wait_for_ever_on_a_connection_that_is_dead() {
    let mut client = Client::registered();
    client.step(HolderInput::Write { write: WriteId(1), change: put("/a") });
    let found = loop {
        client.now = client.holder.next_deadline().expect("the request in flight has a deadline");
        if client.timeout(&[]).contains(&HolderEffect::FindLeader { hint: None }) {
            break client.now;
        }
    };
    assert_eq!(found, at(106), "the server is probed after one silence and left after another");
}

#[test]
fn refused_open_is_repeated_later() {
    let mut client = Client::new();
    client.now = at(100);
    let effects = client.step(HolderInput::Connected);
    let open = client.only(&effects).0;
    assert_eq!(client.refuse(open, Refusal::Retry), []);
    client.now = client.holder.next_deadline().expect("the retry has a deadline");
    let effects = client.timeout(&[]);
    assert_eq!(client.only(&effects).1.body, Body::Open { name: "test".into() });
}

#[test]
fn refused_session_is_requested_again_only_by_next_call() {
    let mut client = Client::new();
    client.now = at(100);
    let effects = client.step(HolderInput::Connected);
    let open = client.only(&effects).0;
    let refusal = || Refusal::Limit(crate::limits::LimitError::SessionName { got: 2, expected: 1 });
    assert_eq!(client.refuse(open, refusal()), []);
    let effects = client.read(1, "/a");
    let (open, request) = client.only(&effects);
    assert_eq!(request.body, Body::Open { name: "test".into() });
    assert_eq!(client.write(1, put("/a")), []);
    let not_sent = HolderEffect::WriteDone { write: WriteId(1), result: Err(WriteFailure::NotSent) };
    let failed = HolderEffect::ReadFailed { reads: vec![ReadId(1)], error: ReadFailure::Refused(refusal()) };
    assert_eq!(client.refuse(open, refusal()), [not_sent, failed]);
    let effects = client.write(2, put("/a"));
    assert_eq!(client.only(&effects).1.body, Body::Open { name: "test".into() });
}

#[test]
fn requests_name_the_registration_that_they_belong_to() {
    let mut client = Client::leased();
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let (register, request) = client.only(&effects);
    assert_eq!(request.header.registration, register.0);
    client.answer(register, Answer::Registered { coverings: vec![] });
    let effects = client.read(5, "/a");
    assert_eq!(client.only(&effects).1.header.registration, register.0);
}

#[test]
fn a_deposed_leader_that_does_not_know_the_session_is_left() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    let result = Err(Refusal::SessionNotFound { session: SESSION });
    let effects =
        client.respond(read, Response { epoch: Epoch(2), promises: vec![], lapses: vec![], clocks: None, result });
    assert_eq!(effects, [HolderEffect::FindLeader { hint: None }]);
    assert_eq!(client.holder.session(), Some(SESSION));
}

#[test]
fn refusal_of_another_session_ends_nothing() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    assert_eq!(client.refuse(read, Refusal::SessionNotFound { session: SessionId(8) }), []);
    assert!(client.may_serve("/a"));
}

#[test]
fn with_a_shorter_term_a_silent_server_is_left_sooner() {
    for (term_ms, silence_ms) in [(3_000, 1_000), (300, 250), (60_000, 3_000)] {
        let (term, silence) = (Duration::from_millis(term_ms), Duration::from_millis(silence_ms));
        let mut client = Client::registered();
        let effects = client.read(1, "/a");
        let acquire = client.only(&effects).0;
        let lease = AcquiredVolume {
            promise: Promise { span: term, term, ..promise("/", 1) },
            stamp: stamp(1),
            revival: Revival::None,
            read: None,
        };
        let effects = client.answer(acquire, Answer::Acquired(lease));
        assert!(matches!(client.only(&effects).1.body, Body::Read { .. }));
        let silent_from = client.now;
        while !client.timeout(&[]).contains(&HolderEffect::FindLeader { hint: None }) {
            client.now = client.holder.next_deadline().expect("the request in flight has a deadline");
        }
        assert_eq!(client.now.since(silent_from), silence, "{term:?}");
    }
}

#[test]
fn refusal_older_than_registration_registers_no_more() {
    let mut client = Client::leased();
    let send_ids = [5, 6].map(|read| {
        let effects = client.read(read, &format!("/{read}"));
        client.only(&effects).0
    });
    let refusal = || Refusal::NotRegistered { got: EPOCH, expected: EPOCH };
    let effects = client.refuse(send_ids[0], refusal());
    let register = client.only(&effects).0;
    client.answer(register, Answer::Registered { coverings: vec![] });
    assert_eq!(client.refuse(send_ids[1], refusal()), []);
}

#[test]
fn answer_after_session_term_does_not_connect() {
    let mut client = Client::new();
    client.now = at(100);
    let effects = client.step(HolderInput::Connected);
    let open = client.only(&effects).0;
    let effects = client.answer(open, Answer::Opened { session: SESSION, term: SESSION_TERM });
    let register = client.only(&effects).0;
    client.now = at(160);
    assert_eq!(reported_states(&client.answer(register, Answer::Registered { coverings: vec![] })), []);
}

#[test]
fn answer_on_abandoned_connection_does_not_connect() {
    let mut client = Client::cached();
    let [late, refused] = [5, 6].map(|read| {
        let effects = client.read(read, &format!("/{read}"));
        client.only(&effects).0
    });
    client.refuse(refused, Refusal::NotLeader { leader: None });
    client.now = at(109);
    client.timeout(&["/"]);
    client.now = at(110);
    assert_eq!(reported_states(&client.timeout(&["/"])), [jeopardy(&["/"])]);
    assert_eq!(reported_states(&client.answer(late, answer(Some(value(10)), Some(grant(3))))), []);
}

#[test]
fn stamps_of_expired_session_do_not_count_in_the_next() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    let effects = client.refuse(read, Refusal::SessionNotFound { session: SESSION });
    let open = client.only(&effects).0;
    let effects = client.answer(open, Answer::Opened { session: SessionId(8), term: SESSION_TERM });
    let register = client.only(&effects).0;
    client.answer(register, Answer::Registered { coverings: vec![] });
    let effects = client.write(1, put("/a"));
    let Body::Write { seen, .. } = client.only(&effects).1.body else { panic!("a write") };
    assert_eq!(seen, stamp(0), "the leader counts stamps from 1 for each session");
}

#[test]
fn probe_asks_a_server_that_was_silent_for_a_sign_of_life() {
    let mut client = Client::registered();
    let probes = |client: &mut Client| sent(&client.step(HolderInput::Probe)).len();
    assert_eq!(probes(&mut client), 0, "the server has answered just now");
    client.now = client.now.after(Duration::from_secs(3));
    assert_eq!(probes(&mut client), 1);
    assert_eq!(probes(&mut client), 0, "the server owes the answer to the first probe");
    let silent = client.now.after(Duration::from_secs(3));
    assert_eq!(client.holder.next_deadline(), Some(silent), "without an answer, the client leaves the server");
    client.now = silent;
    assert!(client.timeout(&[]).iter().any(|effect| matches!(effect, HolderEffect::FindLeader { .. })));
    assert_eq!(probes(&mut client), 0, "the client has left the server");
}

#[test]
fn deposed_leader_does_not_end_a_session_opened_since() {
    let mut client = Client::new();
    client.now = at(100);
    let effects = client.step(HolderInput::Connected);
    let open = client.only(&effects).0;
    client.answer(open, Answer::Opened { session: SESSION, term: SESSION_TERM });
    // The connection ends before the session is registered. The next one is to a deposed leader.
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let result = Err(Refusal::SessionNotFound { session: SESSION });
    let epoch = Epoch(EPOCH.0 - 1);
    let effects = client.respond(register, Response { epoch, promises: vec![], lapses: vec![], clocks: None, result });
    assert_eq!(effects, [HolderEffect::FindLeader { hint: None }]);
    assert_eq!(client.holder.session(), Some(SESSION));
}

/// A client whose session is about to be closed at the next server. Also returns the registration.
fn closing_at_next_server() -> (Client, SendId) {
    let mut client = Client::cached();
    let effects = client.step(HolderInput::Close);
    let close = client.only(&effects).0;
    let effects = client.refuse(close, Refusal::NotLeader { leader: Some("n2".into()) });
    assert_eq!(effects, [HolderEffect::FindLeader { hint: Some("n2".into()) }]);
    assert_eq!(client.step(HolderInput::Disconnected), []);
    let effects = client.step(HolderInput::Connected);
    let (register, request) = client.only(&effects);
    assert_eq!(request.body, Body::Register);
    (client, register)
}

#[test]
fn closing_goes_on_at_the_next_leader() {
    let (mut client, register) = closing_at_next_server();
    let result = Ok(Answer::Registered { coverings: vec![] });
    let effects =
        client.respond(register, Response { epoch: Epoch(9), promises: vec![], lapses: vec![], clocks: None, result });
    let (close, request) = client.only(&effects);
    assert_eq!(request.body, Body::Close);
    assert_eq!(client.answer(close, Answer::Closed), [HolderEffect::Closed]);
    assert_eq!(client.holder.next_deadline(), None);
}

#[test]
fn session_that_is_gone_at_the_next_leader_is_closed() {
    let (mut client, register) = closing_at_next_server();
    assert_eq!(client.refuse(register, Refusal::SessionNotFound { session: SESSION }), [HolderEffect::Closed]);
}

#[test]
fn closing_again_without_a_connection_waits_for_no_leader() {
    let mut client = Client::cached();
    client.step(HolderInput::Close);
    assert_eq!(client.step(HolderInput::Disconnected), []);
    assert_eq!(client.step(HolderInput::Close), [HolderEffect::Closed]);
    assert_eq!(client.holder.next_deadline(), None);
}
