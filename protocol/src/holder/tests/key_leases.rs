//! Key leases that are renewed, and nodes attached to the session's own leases.

use super::*;
use crate::{
    command::{Attach, VolumeLease, Written},
    id::LeaseId,
    message::{KEEP_ALIVES_MAX, KeepAliveResult, KeyLeasePromise, KeyLeaseRenewal, Lapse},
};

const ONE: LeaseId = LeaseId(1);
const TWO: LeaseId = LeaseId(2);
const TTL: Duration = Duration::from_secs(12);

fn kept(id: LeaseId, span: Option<Duration>) -> Answer {
    let result = span.map_or(KeepAliveResult::NotFound, KeepAliveResult::Renewed);
    Answer::KeptAlive(vec![KeyLeasePromise { id, incarnation: Incarnation(5), ttl: TTL, result }])
}

fn meant(incarnation: Option<Incarnation>) -> KeyLeaseRenewal {
    KeyLeaseRenewal { id: ONE, incarnation }
}

fn until(secs: u64) -> HolderEffect {
    HolderEffect::KeyLeaseRenewed { id: ONE, incarnation: Incarnation(5), ttl: TTL, until: at(secs) }
}

fn attached(text: &str) -> Write {
    Write::Put { path: path(text), value: "v".into(), condition: Condition::Any, attach: Attach::Session }
}

fn written() -> Answer {
    let attached = vec![VolumeLease { volume: NodePath::root(), incarnation: Incarnation(1) }];
    let written = Written { revision: Revision(30), attached, ..Written::default() };
    written_answer(written)
}

/// Waits until the next renewal is due, and returns its id.
fn send_renewal(client: &mut Client) -> SendId {
    client.now = client.holder.next_deadline().expect("it is to be renewed");
    let effects = client.timeout(&[]);
    client.only(&effects).0
}

/// A client that renews the key lease from 100 s on.
fn keeping() -> Client {
    let mut client = Client::registered();
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let (ticket, request) = client.only(&effects);
    assert_eq!(request.body, Body::KeepAlive { leases: vec![meant(None)] });
    assert_eq!(client.answer(ticket, kept(ONE, Some(TTL))), [until(112)]);
    client
}

#[test]
fn key_lease_counts_from_sending_and_renews_at_half_term() {
    let mut client = keeping();
    let due = client.holder.next_deadline().expect("it is to be renewed");
    assert_eq!(due, at(106), "half of its term is left");
    client.now = due;
    let effects = client.timeout(&[]);
    let ticket = client.only(&effects).0;
    client.now = at(108);
    assert_eq!(client.answer(ticket, kept(ONE, Some(TTL))), [until(118)]);
}

#[test]
fn key_lease_expires_by_local_clock_and_is_reported_once() {
    let mut client = keeping();
    client.step(HolderInput::Disconnected);
    client.now = at(112).before(Duration::from_micros(1));
    assert!(!client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
    client.now = at(112);
    assert!(client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }), "though nothing was heard");
    client.now = at(113);
    assert!(!client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
}

#[test]
fn kept_lease_is_over_when_the_clock_is_looked_at_late() {
    let mut client = keeping();
    client.step(HolderInput::Disconnected);
    client.now = at(113);
    assert!(client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
}

#[test]
fn lease_that_is_let_go_leaves_the_others_kept() {
    let mut client = keeping();
    client.step(HolderInput::KeepAlive(TWO));
    client.step(HolderInput::StopKeepAlive(TWO));
    client.step(HolderInput::Disconnected);
    client.now = at(112);
    assert!(client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
}

#[test]
fn last_lease_that_is_let_go_leaves_nothing_to_be_done() {
    let mut client = keeping();
    client.step(HolderInput::StopKeepAlive(ONE));
    assert_eq!(client.holder.keep_alive_deadline(), None);
}

/// The leases that the step's request names.
fn asked_for(effects: &[HolderEffect]) -> Vec<LeaseId> {
    let of = |body| match body {
        Body::KeepAlive { leases } => leases,
        _ => vec![],
    };
    sent(effects).into_iter().flat_map(|(_, body)| of(body)).map(|lease| lease.id).collect()
}

#[test]
fn leases_are_asked_for_by_one_request_at_a_time() {
    let mut client = Client::registered();
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let ticket = client.only(&effects).0;
    assert_eq!(asked_for(&client.step(HolderInput::KeepAlive(TWO))), [], "one is on its way");
    assert_eq!(client.holder.keep_alive_deadline(), None);
    let effects = client.answer(ticket, kept(ONE, Some(TTL)));
    assert_eq!(asked_for(&effects), [TWO], "the first was renewed just now");
}

#[test]
fn lease_that_waits_longest_is_renewed_first() {
    let mut client = Client::registered();
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let ticket = client.only(&effects).0;
    let last = KEEP_ALIVES_MAX as u64 + 1;
    for id in 2..=last {
        client.step(HolderInput::KeepAlive(LeaseId(id)));
    }
    let effects = client.answer(ticket, Answer::KeptAlive(vec![]));
    let (named, ticket) = (asked_for(&effects), client.only(&effects).0);
    assert_eq!(named.len(), KEEP_ALIVES_MAX);
    let missing: Vec<_> = (1..=last).map(LeaseId).filter(|id| !named.contains(id)).collect();
    // The answer comes when half of the term has passed: all that it renews are due again.
    client.now = at(106);
    let promise =
        |id| KeyLeasePromise { id, incarnation: Incarnation(5), ttl: TTL, result: KeepAliveResult::Renewed(TTL) };
    let effects = client.answer(ticket, Answer::KeptAlive(named.into_iter().map(promise).collect()));
    let named = asked_for(&effects);
    assert_eq!(named.len(), KEEP_ALIVES_MAX, "as many as a request may name");
    assert!(missing.iter().all(|id| named.contains(id)), "{missing:?} waited");
}

#[test]
fn lease_that_is_to_be_asked_for_later_is_not_named_before() {
    let not_now = Answer::KeptAlive(vec![KeyLeasePromise {
        id: ONE,
        incarnation: Incarnation(5),
        ttl: TTL,
        result: KeepAliveResult::Unconfirmed,
    }]);
    let mut client = Client::registered();
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let ticket = client.only(&effects).0;
    client.answer(ticket, not_now);
    assert_eq!(asked_for(&client.step(HolderInput::KeepAlive(TWO))), [TWO]);
}

#[test]
fn grant_tells_until_when_its_lease_is_kept() {
    let mut client = Client::registered();
    let grant = |client: &mut Client, write, result| {
        let effects = client.write(write, Write::GrantLease { id: Some(ONE), ttl: TTL });
        let (ticket, _) = client.only(&effects);
        let mut answer = written();
        if let Answer::Written { key_lease, .. } = &mut answer {
            *key_lease = Some(KeyLeasePromise { id: ONE, incarnation: Incarnation(5), ttl: TTL, result });
        }
        client.answer(ticket, answer)
    };
    assert!(grant(&mut client, 1, KeepAliveResult::Renewed(TTL)).contains(&until(112)));
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let (ticket, _) = client.only(&effects);
    let over = HolderEffect::KeyLeaseLost { id: ONE };
    assert!(!grant(&mut client, 2, KeepAliveResult::NotFound).contains(&over), "it may be another of this name");
    assert_eq!(client.answer(ticket, kept(ONE, Some(TTL))), [until(112)]);
    assert!(grant(&mut client, 3, KeepAliveResult::NotFound).contains(&over), "it is this one");
}

#[test]
fn repeated_grant_of_an_earlier_lease_leaves_the_kept_one() {
    let mut client = keeping();
    for (number, result) in [(5, KeepAliveResult::NotFound), (6, KeepAliveResult::Renewed(TTL))] {
        let effects = client.write(number, Write::GrantLease { id: Some(ONE), ttl: TTL });
        let (ticket, _) = client.only(&effects);
        let mut answer = written();
        if let Answer::Written { key_lease, .. } = &mut answer {
            *key_lease = Some(KeyLeasePromise { id: ONE, incarnation: Incarnation(4), ttl: TTL, result });
        }
        let effects = client.answer(ticket, answer);
        let is_about_lease = |effect: &&HolderEffect| {
            matches!(effect, HolderEffect::KeyLeaseLost { .. } | HolderEffect::KeyLeaseRenewed { .. })
        };
        assert_eq!(effects.iter().find(is_about_lease), None, "{result:?}");
    }
    client.now = client.holder.next_deadline().expect("it is to be renewed");
    let effects = client.timeout(&[]);
    assert_eq!(client.only(&effects).1.body, Body::KeepAlive { leases: vec![meant(Some(Incarnation(5)))] });
}

#[test]
fn ended_key_lease_is_reported_lost_and_not_renewed() {
    let mut client = keeping();
    let ticket = send_renewal(&mut client);
    assert_eq!(client.answer(ticket, kept(ONE, None)), [HolderEffect::KeyLeaseLost { id: ONE }]);
    client.now = at(111);
    assert!(sent(&client.timeout(&[])).iter().all(|(_, body)| !matches!(body, Body::KeepAlive { .. })));
}

#[test]
fn kept_lease_that_is_not_renewed_now_is_asked_for_again() {
    let not_now = Answer::KeptAlive(vec![KeyLeasePromise {
        id: ONE,
        incarnation: Incarnation(5),
        ttl: TTL,
        result: KeepAliveResult::Unconfirmed,
    }]);
    let mut client = keeping();
    let mut asked = 0;
    while client.now < at(111) {
        client.now = client.holder.next_deadline().expect("it is to be renewed").min(at(111));
        let effects = client.timeout(&[]);
        for (ticket, _) in sent(&effects).into_iter().filter(|(_, body)| matches!(body, Body::KeepAlive { .. })) {
            asked += 1;
            assert_eq!(client.answer(ticket, not_now.clone()), [], "neither kept nor over");
        }
    }
    assert!((4..20).contains(&asked), "{asked} times");
    client.now = at(112);
    assert!(client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }), "this clock says so");
}

#[test]
fn lease_that_is_not_renewed_at_first_is_asked_for_slowly() {
    let not_now = Answer::KeptAlive(vec![KeyLeasePromise {
        id: ONE,
        incarnation: Incarnation(5),
        ttl: TTL,
        result: KeepAliveResult::Unconfirmed,
    }]);
    let mut client = Client::registered();
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let ticket = client.only(&effects).0;
    assert_eq!(client.answer(ticket, not_now), []);
    let due = client.holder.next_deadline().expect("it is asked for again");
    assert!(due > client.now && due <= client.now.after(Duration::from_millis(100)));
    client.now = due;
    let effects = client.timeout(&[]);
    let (ticket, request) = client.only(&effects);
    assert_eq!(request.body, Body::KeepAlive { leases: vec![meant(None)] });
    let effects = client.answer(ticket, kept(ONE, Some(TTL)));
    assert!(matches!(&effects[..], [HolderEffect::KeyLeaseRenewed { id: ONE, .. }]), "{effects:?}");
}

#[test]
fn a_shorter_span_takes_back_nothing_that_was_promised() {
    let mut client = keeping();
    let ticket = send_renewal(&mut client);
    assert_eq!(client.answer(ticket, kept(ONE, Some(Duration::from_secs(1)))), []);
    client.now = at(110);
    assert!(!client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
}

#[test]
fn what_was_let_go_is_heard_of_no_more() {
    let mut client = keeping();
    let ticket = send_renewal(&mut client);
    client.step(HolderInput::StopKeepAlive(ONE));
    assert_eq!(client.answer(ticket, kept(ONE, Some(TTL))), []);
    client.now = at(120);
    assert!(!client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
}

#[test]
fn a_key_lease_is_kept_on_under_the_next_session() {
    let mut client = keeping();
    let ticket = send_renewal(&mut client);
    let effects = client.refuse(ticket, Refusal::SessionNotFound { session: SESSION });
    let open = client.only(&effects).0;
    let effects = client.answer(open, Answer::Opened { session: SessionId(8), term: SESSION_TERM });
    let register = client.only(&effects).0;
    client.now = at(109);
    let mut effects = client.answer(register, Answer::Registered { coverings: vec![] });
    effects.extend(client.timeout(&[]));
    assert!(
        sent(&effects).iter().any(|(_, body)| *body == Body::KeepAlive { leases: vec![meant(Some(Incarnation(5)))] }),
        "{effects:?}"
    );
}

#[test]
fn all_leases_that_are_due_soon_are_renewed_with_one_request() {
    let mut client = Client::registered();
    let ids: Vec<LeaseId> = (1..=100).map(LeaseId).collect();
    for id in &ids {
        client.step(HolderInput::KeepAlive(*id));
    }
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let (_, request) = client.only(&effects);
    let leases = ids.into_iter().map(|id| KeyLeaseRenewal { id, incarnation: None }).collect();
    assert_eq!(request.body, Body::KeepAlive { leases });
}

#[test]
fn a_write_waits_for_the_lease_that_its_node_is_to_go_with() {
    let mut client = Client::registered();
    let effects = client.write(1, attached("/a"));
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }));
    let effects = client.answer(acquire, acquired("/", 1, 1));
    let (_, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Write { .. }));
}

#[test]
fn attached_put_that_can_have_no_lease_is_sent_to_be_refused() {
    let mut client = Client::registered();
    let effects = client.write(1, attached("/a"));
    let acquire = client.only(&effects).0;
    let effects = client.refuse(acquire, Refusal::Busy { what: "leases".into(), got: 1, most: 1 });
    assert!(matches!(client.only(&effects).1.body, Body::Write { .. }), "{effects:?}");
}

#[test]
fn attached_put_that_was_sent_is_sent_again_without_a_lease() {
    let mut client = Client::leased();
    client.write(1, attached("/a"));
    client.step(HolderInput::Disconnected);
    client.now = at(130);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer(register, Answer::Registered { coverings: vec![] });
    let writes = sent(&effects).into_iter().filter(|(_, body)| matches!(body, Body::Write { .. }));
    assert_eq!(writes.count(), 1, "what became of it has to be known: {effects:?}");
}

#[test]
fn volume_lease_with_attached_node_is_renewed_without_reads() {
    let mut client = Client::leased();
    let effects = client.write(1, attached("/a"));
    let ticket = client.only(&effects).0;
    client.answer_renewing(ticket, written());
    for _ in 0..4 {
        client.now = client.holder.next_deadline().expect("there is something to renew");
        let effects = client.timeout(&[]);
        for (ticket, request) in requests(&effects) {
            assert_eq!(request.header.renew.len(), 1, "the volume's lease rides along");
            client.answer_renewing(ticket, Answer::ReportReceived);
        }
    }
    assert!(client.now > at(112) && !client.holder.volume_remaining(&NodePath::root(), client.now).is_zero());
}

#[test]
fn put_above_session_node_does_not_detach_it() {
    let mut client = Client::leased();
    for (write, change) in [(1, attached("/services/a")), (2, put("/services"))] {
        let effects = client.write(write, change);
        let ticket = client.only(&effects).0;
        client.answer_renewing(ticket, written());
    }
    let carries =
        |client: &Client| client.holder.volumes.get(&NodePath::root()).is_some_and(|root| !root.attached.is_empty());
    assert!(carries(&client), "it is renewed for the sake of the node");
    let effects = client.write(3, put("/services/a"));
    let ticket = client.only(&effects).0;
    client.answer_renewing(ticket, written());
    assert!(!carries(&client), "it stays by itself from now on");
}

#[test]
fn nodes_attached_to_ended_lease_are_reported_removed() {
    let mut client = Client::leased();
    let effects = client.write(1, attached("/a"));
    let ticket = client.only(&effects).0;
    client.answer_renewing(ticket, written());
    client.now = client.holder.next_deadline().expect("there is something to renew");
    let effects = client.timeout(&[]);
    let ticket = client.only(&effects).0;
    let lapses = vec![Lapse { volume: NodePath::root(), incarnation: Incarnation(1) }];
    let response = Response { epoch: EPOCH, promises: vec![], lapses, result: Ok(Answer::ReportReceived) };
    let effects = client.respond(ticket, response);
    assert!(effects.contains(&HolderEffect::AttachedNodesLost { nodes: vec![path("/a")] }), "{effects:?}");
}

#[test]
fn a_lease_that_carries_nodes_is_renewed_before_it_is_given_up() {
    let mut client = Client::leased();
    let effects = client.write(1, attached("/a"));
    let ticket = client.only(&effects).0;
    client.answer_renewing(ticket, written());
    client.now = at(130);
    client.timeout(&[]);
    let effects = client.read(2, "/b");
    let bodies: Vec<Body> = sent(&effects).into_iter().map(|(_, body)| body).collect();
    assert!(!bodies.iter().any(|body| matches!(body, Body::Acquire { .. })), "it would end the lease: {bodies:?}");
}

#[test]
fn missing_volume_is_forgotten_though_outer_lease_is_unchanged() {
    let mut client = Client::leased();
    let effects = client.read(2, "/v/a");
    let read = client.only(&effects).0;
    let answer = ReadAnswer { content: Some(value(10)), grant: None, volume: path("/v"), applied: Revision(20) };
    let effects = client.answer_renewing(read, Answer::Read(answer));
    let acquire = match &requests(&effects)[..] {
        [(ticket, request)] if matches!(request.body, Body::Acquire { .. }) => *ticket,
        _ => {
            let effects = client.write(1, attached("/v/b"));
            let (ticket, request) = client.only(&effects);
            assert!(matches!(request.body, Body::Acquire { .. }), "it believes in /v: {request:?}");
            ticket
        }
    };
    client.write(3, attached("/v/b"));
    let effects = client.answer_renewing(acquire, acquired("/", 1, 9));
    let bodies = sent(&effects);
    assert!(bodies.iter().any(|(_, body)| matches!(body, Body::Write { .. })), "under the lease above: {bodies:?}");
}

#[test]
fn a_lease_whose_name_another_has_now_is_over() {
    let mut client = keeping();
    let ticket = send_renewal(&mut client);
    let other =
        KeyLeasePromise { id: ONE, incarnation: Incarnation(6), ttl: TTL, result: KeepAliveResult::Renewed(TTL) };
    assert_eq!(client.answer(ticket, Answer::KeptAlive(vec![other])), [HolderEffect::KeyLeaseLost { id: ONE }]);
}

#[test]
fn lease_that_is_told_once_more_does_not_begin_anew() {
    let mut client = Client::leased();
    let lease = |client: &Client| client.holder.volumes.get(&NodePath::root()).and_then(|root| root.lease.clone());
    client.holder.volumes.learn(&path("/v"));
    let effects = client.write(1, attached("/v/b"));
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }), "it believes in /v: {request:?}");
    let before = lease(&client);
    client.answer(acquire, acquired("/", 1, 9));
    assert!(before.is_some() && lease(&client) == before);
}

/// The application stops the renewal of a lease, which is then revoked. It renews another lease
/// that was granted with the same id. Then an answer about the first lease arrives.
#[test]
fn late_answer_about_an_earlier_lease_of_the_name_is_ignored() {
    for late in [kept(ONE, Some(TTL)), kept(ONE, None)] {
        let mut client = keeping();
        client.now = client.holder.next_deadline().expect("it is to be renewed");
        let effects = client.timeout(&[]);
        let earlier = client.only(&effects).0;
        client.step(HolderInput::StopKeepAlive(ONE));
        client.step(HolderInput::KeepAlive(ONE));
        let effects = client.answer(earlier, late);
        let (ticket, request) = client.only(&effects);
        assert_eq!(effects.len(), 1, "it says nothing of the next: {effects:?}");
        assert_eq!(request.body, Body::KeepAlive { leases: vec![meant(None)] });
        let next = KeyLeasePromise {
            id: ONE,
            incarnation: Incarnation(9),
            ttl: TTL / 4,
            result: KeepAliveResult::Renewed(TTL / 4),
        };
        let until = client.now.after(TTL / 4);
        let kept = HolderEffect::KeyLeaseRenewed { id: ONE, incarnation: Incarnation(9), ttl: TTL / 4, until };
        assert_eq!(client.answer(ticket, Answer::KeptAlive(vec![next])), [kept]);
    }
}
