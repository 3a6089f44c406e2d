//! Key leases that are renewed, and nodes attached to the session's own leases.

use super::*;
use crate::{
    command::{Attach, VolumeLease, Written},
    id::LeaseId,
    message::{KEEP_ALIVES_MAX, KeepAliveResult, KeyLeasePromise, KeyLeaseRenewal, Lapse},
};

pub(super) const ONE: LeaseId = LeaseId(1);
const TWO: LeaseId = LeaseId(2);
const TTL: Duration = Duration::from_secs(12);

pub(super) fn keep_alive_answer(id: LeaseId, span: Option<Duration>) -> Answer {
    let result = span.map_or(KeepAliveResult::NotFound, KeepAliveResult::Renewed);
    Answer::KeptAlive(vec![KeyLeasePromise { id, incarnation: Incarnation(5), ttl: TTL, result }])
}

fn renewal(incarnation: Option<Incarnation>) -> KeyLeaseRenewal {
    KeyLeaseRenewal { id: ONE, incarnation }
}

fn renewed_until(secs: u64) -> HolderEffect {
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
pub(super) fn send_renewal(client: &mut Client) -> SendId {
    client.now = client.holder.next_deadline().expect("the key lease has a deadline");
    let effects = client.timeout(&[]);
    client.only(&effects).0
}

/// A client that renews the key lease from 100 s on.
pub(super) fn renewing() -> Client {
    let mut client = Client::registered();
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let (send_id, request) = client.only(&effects);
    assert_eq!(request.body, Body::KeepAlive { leases: vec![renewal(None)] });
    assert_eq!(client.answer(send_id, keep_alive_answer(ONE, Some(TTL))), [renewed_until(112)]);
    client
}

#[test]
fn key_lease_counts_from_sending_and_renews_at_half_term() {
    let mut client = renewing();
    let due = client.holder.next_deadline().expect("the key lease has a deadline");
    assert_eq!(due, at(106), "half of the term remains");
    client.now = due;
    let effects = client.timeout(&[]);
    let send_id = client.only(&effects).0;
    client.now = at(108);
    assert_eq!(client.answer(send_id, keep_alive_answer(ONE, Some(TTL))), [renewed_until(118)]);
}

#[test]
fn key_lease_expires_by_local_clock_and_is_reported_once() {
    let mut client = renewing();
    client.step(HolderInput::Disconnected);
    client.now = at(112).before(Duration::from_micros(1));
    assert!(!client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
    client.now = at(112);
    assert!(
        client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }),
        "the key lease is reported lost without a connection"
    );
    client.now = at(113);
    assert!(!client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
}

#[test]
fn key_lease_is_lost_at_late_timeout() {
    let mut client = renewing();
    client.step(HolderInput::Disconnected);
    client.now = at(113);
    assert!(client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
}

#[test]
fn stopped_key_lease_leaves_others_renewed() {
    let mut client = renewing();
    client.step(HolderInput::KeepAlive(TWO));
    client.step(HolderInput::StopKeepAlive(TWO));
    client.step(HolderInput::Disconnected);
    client.now = at(112);
    assert!(client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
}

#[test]
fn stopped_last_key_lease_leaves_no_deadline() {
    let mut client = renewing();
    client.step(HolderInput::StopKeepAlive(ONE));
    assert_eq!(client.holder.keep_alive_deadline(), None);
}

/// The leases that the step's request names.
pub(super) fn named_leases(effects: &[HolderEffect]) -> Vec<LeaseId> {
    let leases = |body| match body {
        Body::KeepAlive { leases } => leases,
        _ => vec![],
    };
    sent(effects).into_iter().flat_map(|(_, body)| leases(body)).map(|lease| lease.id).collect()
}

#[test]
fn keep_alives_are_in_flight_one_at_a_time() {
    let mut client = Client::registered();
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let send_id = client.only(&effects).0;
    assert_eq!(named_leases(&client.step(HolderInput::KeepAlive(TWO))), [], "a keep-alive is in flight");
    assert_eq!(client.holder.keep_alive_deadline(), None);
    let effects = client.answer(send_id, keep_alive_answer(ONE, Some(TTL)));
    assert_eq!(named_leases(&effects), [TWO], "the first key lease was renewed just now");
}

#[test]
fn lease_that_waits_longest_is_renewed_first() {
    let mut client = Client::registered();
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let send_id = client.only(&effects).0;
    let last = KEEP_ALIVES_MAX as u64 + 1;
    for id in 2..=last {
        client.step(HolderInput::KeepAlive(LeaseId(id)));
    }
    let effects = client.answer(send_id, Answer::KeptAlive(vec![]));
    let (named, send_id) = (named_leases(&effects), client.only(&effects).0);
    assert_eq!(named.len(), KEEP_ALIVES_MAX);
    let missing: Vec<_> = (1..=last).map(LeaseId).filter(|id| !named.contains(id)).collect();
    // The answer comes when half of the term has passed: all that it renews are due again.
    client.now = at(106);
    let promise =
        |id| KeyLeasePromise { id, incarnation: Incarnation(5), ttl: TTL, result: KeepAliveResult::Renewed(TTL) };
    let effects = client.answer(send_id, Answer::KeptAlive(named.into_iter().map(promise).collect()));
    let named = named_leases(&effects);
    assert_eq!(named.len(), KEEP_ALIVES_MAX, "a request names as many leases as it may");
    assert!(missing.iter().all(|id| named.contains(id)), "the next request names {missing:?}");
}

#[test]
fn unconfirmed_key_lease_is_not_named_before_its_delay() {
    let unconfirmed = Answer::KeptAlive(vec![KeyLeasePromise {
        id: ONE,
        incarnation: Incarnation(5),
        ttl: TTL,
        result: KeepAliveResult::Unconfirmed,
    }]);
    let mut client = Client::registered();
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let send_id = client.only(&effects).0;
    client.answer(send_id, unconfirmed);
    assert_eq!(named_leases(&client.step(HolderInput::KeepAlive(TWO))), [TWO]);
}

#[test]
fn grant_answer_reports_end_of_key_lease() {
    let mut client = Client::registered();
    let grant = |client: &mut Client, write, result| {
        let effects = client.write(write, Write::GrantLease { id: Some(ONE), name: None, ttl: TTL });
        let (send_id, _) = client.only(&effects);
        let mut answer = written();
        if let Answer::Written { key_lease, .. } = &mut answer {
            *key_lease = Some(KeyLeasePromise { id: ONE, incarnation: Incarnation(5), ttl: TTL, result });
        }
        client.answer(send_id, answer)
    };
    assert!(grant(&mut client, 1, KeepAliveResult::Renewed(TTL)).contains(&renewed_until(112)));
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let (send_id, _) = client.only(&effects);
    let lost = HolderEffect::KeyLeaseLost { id: ONE };
    assert!(
        !grant(&mut client, 2, KeepAliveResult::NotFound).contains(&lost),
        "the refusal may be about another lease of this id"
    );
    assert_eq!(client.answer(send_id, keep_alive_answer(ONE, Some(TTL))), [renewed_until(112)]);
    assert!(grant(&mut client, 3, KeepAliveResult::NotFound).contains(&lost), "the refusal is about this incarnation");
}

#[test]
fn repeated_grant_of_earlier_lease_spares_the_renewed_one() {
    let mut client = renewing();
    for (number, result) in [(5, KeepAliveResult::NotFound), (6, KeepAliveResult::Renewed(TTL))] {
        let effects = client.write(number, Write::GrantLease { id: Some(ONE), name: None, ttl: TTL });
        let (send_id, _) = client.only(&effects);
        let mut answer = written();
        if let Answer::Written { key_lease, .. } = &mut answer {
            *key_lease = Some(KeyLeasePromise { id: ONE, incarnation: Incarnation(4), ttl: TTL, result });
        }
        let effects = client.answer(send_id, answer);
        let is_about_lease = |effect: &&HolderEffect| {
            matches!(effect, HolderEffect::KeyLeaseLost { .. } | HolderEffect::KeyLeaseRenewed { .. })
        };
        assert_eq!(effects.iter().find(is_about_lease), None, "{result:?}");
    }
    client.now = client.holder.next_deadline().expect("the key lease has a deadline");
    let effects = client.timeout(&[]);
    assert_eq!(client.only(&effects).1.body, Body::KeepAlive { leases: vec![renewal(Some(Incarnation(5)))] });
}

#[test]
fn ended_key_lease_is_reported_lost_and_not_renewed() {
    let mut client = renewing();
    let send_id = send_renewal(&mut client);
    assert_eq!(client.answer(send_id, keep_alive_answer(ONE, None)), [HolderEffect::KeyLeaseLost { id: ONE }]);
    client.now = at(111);
    assert!(sent(&client.timeout(&[])).iter().all(|(_, body)| !matches!(body, Body::KeepAlive { .. })));
}

#[test]
fn unconfirmed_renewal_is_repeated_until_lease_ends() {
    let unconfirmed = Answer::KeptAlive(vec![KeyLeasePromise {
        id: ONE,
        incarnation: Incarnation(5),
        ttl: TTL,
        result: KeepAliveResult::Unconfirmed,
    }]);
    let mut client = renewing();
    let mut requests = 0;
    while client.now < at(111) {
        client.now = client.holder.next_deadline().expect("the key lease has a deadline").min(at(111));
        let effects = client.timeout(&[]);
        for (send_id, _) in sent(&effects).into_iter().filter(|(_, body)| matches!(body, Body::KeepAlive { .. })) {
            requests += 1;
            assert_eq!(
                client.answer(send_id, unconfirmed.clone()),
                [],
                "an unconfirmed renewal neither renews nor ends the lease"
            );
        }
    }
    assert!((4..20).contains(&requests), "{requests} requests");
    client.now = at(112);
    assert!(
        client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }),
        "the key lease has ended on this clock"
    );
}

#[test]
fn unconfirmed_first_renewal_is_repeated_after_delay() {
    let unconfirmed = Answer::KeptAlive(vec![KeyLeasePromise {
        id: ONE,
        incarnation: Incarnation(5),
        ttl: TTL,
        result: KeepAliveResult::Unconfirmed,
    }]);
    let mut client = Client::registered();
    let effects = client.step(HolderInput::KeepAlive(ONE));
    let send_id = client.only(&effects).0;
    assert_eq!(client.answer(send_id, unconfirmed), []);
    let due = client.holder.next_deadline().expect("the renewal is repeated");
    assert!(due > client.now && due <= client.now.after(Duration::from_millis(100)));
    client.now = due;
    let effects = client.timeout(&[]);
    let (send_id, request) = client.only(&effects);
    assert_eq!(request.body, Body::KeepAlive { leases: vec![renewal(None)] });
    let effects = client.answer(send_id, keep_alive_answer(ONE, Some(TTL)));
    assert!(matches!(&effects[..], [HolderEffect::KeyLeaseRenewed { id: ONE, .. }]), "{effects:?}");
}

#[test]
fn shorter_key_lease_promise_does_not_move_end_back() {
    let mut client = renewing();
    let send_id = send_renewal(&mut client);
    assert_eq!(client.answer(send_id, keep_alive_answer(ONE, Some(Duration::from_secs(1)))), []);
    client.now = at(110);
    assert!(!client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
}

#[test]
fn stopped_key_lease_is_not_reported_again() {
    let mut client = renewing();
    let send_id = send_renewal(&mut client);
    client.step(HolderInput::StopKeepAlive(ONE));
    assert_eq!(client.answer(send_id, keep_alive_answer(ONE, Some(TTL))), []);
    client.now = at(120);
    assert!(!client.timeout(&[]).contains(&HolderEffect::KeyLeaseLost { id: ONE }));
}

#[test]
fn key_lease_is_renewed_under_the_next_session() {
    let mut client = renewing();
    let send_id = send_renewal(&mut client);
    let effects = client.refuse(send_id, Refusal::SessionNotFound { session: SESSION });
    let open = client.only(&effects).0;
    let effects = client.answer(open, Answer::Opened { session: SessionId(8), term: SESSION_TERM });
    let register = client.only(&effects).0;
    client.now = at(109);
    let mut effects = client.answer(register, Answer::Registered { coverings: vec![] });
    effects.extend(client.timeout(&[]));
    assert!(
        sent(&effects).iter().any(|(_, body)| *body == Body::KeepAlive { leases: vec![renewal(Some(Incarnation(5)))] }),
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
fn write_waits_for_the_lease_that_its_node_attaches_to() {
    let mut client = Client::registered();
    let effects = client.write(1, attached("/a"));
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }));
    let effects = client.answer(acquire, acquired("/", 1, 1));
    let (_, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Write { .. }));
}

#[test]
fn attaching_put_is_sent_though_lease_is_refused() {
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
    assert_eq!(writes.count(), 1, "a put that was sent is sent again: {effects:?}");
}

#[test]
fn volume_lease_with_attached_node_is_renewed_without_reads() {
    let mut client = Client::leased();
    let effects = client.write(1, attached("/a"));
    let send_id = client.only(&effects).0;
    client.answer_renewing(send_id, written());
    for _ in 0..4 {
        client.now = client.holder.next_deadline().expect("the volume lease is to be renewed");
        let effects = client.timeout(&[]);
        for (send_id, request) in requests(&effects) {
            assert_eq!(request.header.renew.len(), 1, "the request renews the volume lease");
            client.answer_renewing(send_id, Answer::ReportReceived);
        }
    }
    assert!(client.now > at(112) && !client.holder.volume_remaining(&NodePath::root(), client.now).is_zero());
}

#[test]
fn put_above_session_node_does_not_detach_it() {
    let mut client = Client::leased();
    for (write, change) in [(1, attached("/services/a")), (2, put("/services"))] {
        let effects = client.write(write, change);
        let send_id = client.only(&effects).0;
        client.answer_renewing(send_id, written());
    }
    let has_attached_nodes =
        |client: &Client| client.holder.volumes.get(&NodePath::root()).is_some_and(|root| !root.attached.is_empty());
    assert!(has_attached_nodes(&client), "the lease has the attached node");
    let effects = client.write(3, put("/services/a"));
    let send_id = client.only(&effects).0;
    client.answer_renewing(send_id, written());
    assert!(!has_attached_nodes(&client), "the node is detached");
}

#[test]
fn nodes_attached_to_ended_lease_are_reported_removed() {
    let mut client = Client::leased();
    let effects = client.write(1, attached("/a"));
    let send_id = client.only(&effects).0;
    client.answer_renewing(send_id, written());
    client.now = client.holder.next_deadline().expect("the volume lease is to be renewed");
    let effects = client.timeout(&[]);
    let send_id = client.only(&effects).0;
    let lapses = vec![Lapse { volume: NodePath::root(), incarnation: Incarnation(1) }];
    let response =
        Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result: Ok(Answer::ReportReceived) };
    let effects = client.respond(send_id, response);
    assert!(
        effects.contains(&HolderEffect::AttachedNodesLost { nodes: vec![(path("/a"), Revision(30))] }),
        "{effects:?}"
    );
}

#[test]
fn lease_with_attached_nodes_is_renewed_before_new_one() {
    let mut client = Client::leased();
    let effects = client.write(1, attached("/a"));
    let send_id = client.only(&effects).0;
    client.answer_renewing(send_id, written());
    client.now = at(130);
    client.timeout(&[]);
    let effects = client.read(2, "/b");
    let bodies: Vec<Body> = sent(&effects).into_iter().map(|(_, body)| body).collect();
    assert!(
        !bodies.iter().any(|body| matches!(body, Body::Acquire { .. })),
        "a new lease would end the old one: {bodies:?}"
    );
}

#[test]
fn missing_volume_is_forgotten_though_outer_lease_is_unchanged() {
    let mut client = Client::leased();
    let effects = client.read(2, "/v/a");
    let read = client.only(&effects).0;
    let answer = read_answer("/v", Some(value(10)), None);
    let effects = client.answer_renewing(read, Answer::Read(answer));
    let acquire = match &requests(&effects)[..] {
        [(send_id, request)] if matches!(request.body, Body::Acquire { .. }) => *send_id,
        _ => {
            let effects = client.write(1, attached("/v/b"));
            let (send_id, request) = client.only(&effects);
            assert!(
                matches!(request.body, Body::Acquire { .. }),
                "the client believes that /v is a volume: {request:?}"
            );
            send_id
        }
    };
    client.write(3, attached("/v/b"));
    let effects = client.answer_renewing(acquire, acquired("/", 1, 9));
    let bodies = sent(&effects);
    assert!(
        bodies.iter().any(|(_, body)| matches!(body, Body::Write { .. })),
        "the write is sent under the outer lease: {bodies:?}"
    );
}

#[test]
fn key_lease_whose_id_was_granted_again_is_lost() {
    let mut client = renewing();
    let send_id = send_renewal(&mut client);
    let other =
        KeyLeasePromise { id: ONE, incarnation: Incarnation(6), ttl: TTL, result: KeepAliveResult::Renewed(TTL) };
    assert_eq!(client.answer(send_id, Answer::KeptAlive(vec![other])), [HolderEffect::KeyLeaseLost { id: ONE }]);
}

#[test]
fn volume_lease_granted_again_does_not_begin_anew() {
    let mut client = Client::leased();
    let lease = |client: &Client| client.holder.volumes.get(&NodePath::root()).and_then(|root| root.lease.clone());
    client.holder.volumes.learn(&path("/v"));
    let effects = client.write(1, attached("/v/b"));
    let (acquire, request) = client.only(&effects);
    assert!(matches!(request.body, Body::Acquire { .. }), "the client believes that /v is a volume: {request:?}");
    let lease_before = lease(&client);
    client.answer(acquire, acquired("/", 1, 9));
    assert!(lease_before.is_some() && lease(&client) == lease_before);
}

/// The application stops the renewal of a lease, which is then revoked. It renews another lease
/// that was granted with the same id. Then an answer about the first lease arrives.
#[test]
fn late_answer_about_an_earlier_lease_of_the_name_is_ignored() {
    for late in [keep_alive_answer(ONE, Some(TTL)), keep_alive_answer(ONE, None)] {
        let mut client = renewing();
        client.now = client.holder.next_deadline().expect("the key lease has a deadline");
        let effects = client.timeout(&[]);
        let earlier = client.only(&effects).0;
        client.step(HolderInput::StopKeepAlive(ONE));
        client.step(HolderInput::KeepAlive(ONE));
        let effects = client.answer(earlier, late);
        let (send_id, request) = client.only(&effects);
        assert_eq!(effects.len(), 1, "the late answer does not concern the later lease: {effects:?}");
        assert_eq!(request.body, Body::KeepAlive { leases: vec![renewal(None)] });
        let next = KeyLeasePromise {
            id: ONE,
            incarnation: Incarnation(9),
            ttl: TTL / 4,
            result: KeepAliveResult::Renewed(TTL / 4),
        };
        let until = client.now.after(TTL / 4);
        let renewed = HolderEffect::KeyLeaseRenewed { id: ONE, incarnation: Incarnation(9), ttl: TTL / 4, until };
        assert_eq!(client.answer(send_id, Answer::KeptAlive(vec![next])), [renewed]);
    }
}
