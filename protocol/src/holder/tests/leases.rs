//! T2, T6, S7: volume leases, their renewal, their revival, and the reports about them.

use super::*;
use crate::message::{Lapse, LastValid};

#[test]
fn term_counts_from_sending_less_the_drift_allowance() {
    let drift = DriftAllowance::from_ppm(10_000).expect("valid");
    let mut client = Client::with(|config| config.drift_allowance = drift).connect();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    client.now = at(104);
    let effects = client.answer(acquire, acquired("/", 1, 1));
    assert_eq!(effects[0], volume_valid("/", 1, at(100).after(Duration::from_millis(9_900))));
}

/// Gray and Cheriton's t_c: the server's term, less the round trip and the drift of the clocks.
#[test]
fn remaining_term_is_shortened_by_the_round_trip() {
    for ppm in [0, 1, 1_000, 10_000, 99_999, 100_000] {
        for round_trip in (0..=12_000).step_by(375).map(Duration::from_millis) {
            let drift = DriftAllowance::from_ppm(ppm).expect("within bounds");
            let mut client = Client::with(|config| config.drift_allowance = drift).connect();
            let effects = client.read(1, "/a");
            let acquire = client.only(&effects).0;
            let sent_at = client.now;
            client.now = sent_at.after(round_trip);
            client.answer(acquire, acquired("/", 1, 1));
            let expected = (TERM - TERM * ppm / 1_000_000).saturating_sub(round_trip);
            assert_eq!(
                client.holder.volume_remaining(&NodePath::root(), client.now),
                expected,
                "{ppm} ppm, {round_trip:?}"
            );
        }
    }
}

#[test]
fn the_volume_deadline_never_moves_back() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let early = client.only(&effects).0;
    client.now = at(104);
    let effects = client.read(6, "/c");
    let late = client.only(&effects).0;
    assert_eq!(client.renew(late, promise("/", 1))[0], volume_valid("/", 1, at(114)));
    assert!(
        client
            .renew(early, promise("/", 1))
            .iter()
            .all(|effect| !matches!(effect, HolderEffect::VolumeValidityChanged { .. }))
    );
    assert_eq!(client.holder.volume_remaining(&NodePath::root(), client.now), Duration::from_secs(10));
}

#[test]
fn copies_become_unusable_at_volume_lease_deadline() {
    let mut client = Client::cached();
    client.now = Instant::from_micros(at(110).as_micros() - 1);
    assert!(client.may_serve("/a"));
    client.now = at(110);
    assert!(!client.may_serve("/a"));
}

#[test]
fn promise_for_other_incarnation_or_generation_is_refused() {
    for other in [promise("/", 2), promise("/", 0), Promise { generation: VolumeGeneration(0), ..promise("/", 1) }] {
        let mut client = Client::cached();
        client.now = at(104);
        let effects = client.read(5, "/b");
        let read = client.only(&effects).0;
        client.renew(read, other);
        assert_eq!(client.holder.volume_remaining(&NodePath::root(), client.now), Duration::from_secs(6));
    }
}

#[test]
fn a_lease_in_use_is_renewed_at_half_of_its_term_once() {
    let mut client = Client::cached();
    assert_eq!(client.holder.next_deadline(), Some(at(105)));
    client.now = at(105);
    let effects = client.timeout(&["/"]);
    let (send_id, renew) = keep_alive(&effects).expect("the lease in use is renewed");
    assert_eq!(renew, [root(1)]);
    assert_eq!(client.timeout(&["/"]), [], "a renewal is in flight");
    assert_eq!(client.renew(send_id, promise("/", 1)), [volume_valid("/", 1, at(115))]);
    assert_eq!(client.holder.next_deadline(), Some(at(110)));
}

#[test]
fn idle_lease_lapses_without_jeopardy() {
    let mut client = Client::leased();
    let mut effects = Vec::new();
    while let Some(next) = client.holder.next_deadline().filter(|next| *next < at(125)) {
        assert!(next > client.now, "{next} is not after {}", client.now);
        client.now = next;
        effects.extend(client.timeout(&[]));
    }
    assert_eq!(effects, []);
    assert_eq!(client.holder.volume_remaining(&NodePath::root(), client.now), Duration::ZERO);
}

#[test]
fn volume_lease_used_again_is_renewed_before_it_lapses() {
    let mut client = Client::cached();

    client.now = at(105);
    assert_eq!(client.timeout(&[]), []);
    client.now = client.holder.next_deadline().expect("the idle lease is checked again");
    assert!(client.now < at(107));
    assert!(keep_alive(&client.timeout(&["/"])).is_some());
}

#[test]
fn jeopardy_lasts_while_leader_extends_no_promise() {
    let mut client = Client::cached();
    let mut reported = Vec::new();
    while let Some(next) = client.holder.next_deadline().filter(|next| *next < at(130)) {
        assert!(next > client.now, "{next} is not after {}", client.now);
        client.now = next;
        let mut effects = client.timeout(&["/"]);
        if let Some((send_id, _)) = keep_alive(&effects) {
            // Up to the horizon, which moves only with a quorum: from 120 s on.
            let span = if next < at(120) { at(110).since(next) } else { TERM };
            effects.extend(client.renew(send_id, Promise { span, ..promise("/", 1) }));
        }
        let states = effects.into_iter().filter_map(|effect| match effect {
            HolderEffect::Connection(state) => Some((state, next)),
            _ => None,
        });
        reported.extend(states);
    }
    let [(SessionNews::Jeopardy { .. }, lost), (SessionNews::Connected { session: SESSION }, found)] = reported[..]
    else {
        panic!("{reported:?}")
    };
    assert_eq!(lost, at(110));
    assert!(found >= at(120) && found <= at(121), "{found}");
    assert!(client.may_serve("/a"));
}

#[test]
fn unanswered_renewal_is_repeated_until_the_lease_ends() {
    let mut client = Client::cached();
    let mut tries = Vec::new();
    while let Some(next) = client.holder.next_deadline().filter(|next| *next <= at(112)) {
        client.now = next;
        let effects = client.timeout(&["/"]);
        tries.extend(keep_alive(&effects).map(|_| next));
        if effects.contains(&HolderEffect::Connection(jeopardy(&["/"]))) {
            break;
        }
    }
    assert_eq!(client.now, at(110), "jeopardy is reported when the lease ends on this clock");
    assert!((2..10).contains(&tries.len()), "{tries:?}");
    assert!(tries.windows(2).all(|pair| pair[1].since(pair[0]) >= TERM / 16), "{tries:?}");
}

#[test]
fn requests_renew_leases_after_a_third_of_their_term() {
    let mut client = Client::leased();
    let effects = client.read(5, "/v/a");
    let read = client.only(&effects).0;
    let elsewhere = read_answer("/v", Some(value(10)), None);
    let effects = client.answer(read, Answer::Read(elsewhere));
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/v", 2, 2));
    let read = client.only(&effects).0;
    client.renew(read, promise("/v", 2));
    client.holder.step(HolderInput::Timeout { used: BTreeSet::from([path("/v")]) }, at(101));
    client.now = at(102);
    let effects = client.read(6, "/b");
    assert_eq!(client.only(&effects).1.header.renew, [root(1)]);
    client.now = at(104);
    let effects = client.read(7, "/c");
    let other = Renew { volume: path("/v"), incarnation: Incarnation(2) };
    assert_eq!(client.only(&effects).1.header.renew, [root(1), other]);
}

#[test]
fn a_lapse_ends_the_lease_and_keeps_its_copies_for_validation() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    let lapses = vec![Lapse { volume: NodePath::root(), incarnation: Incarnation(1) }];
    let result = Ok(answer(Some(value(10)), None));
    let effects = client.respond(read, Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result });
    assert_eq!(effects[0], volume_valid("/", 0, Instant::ZERO));
    assert!(!client.may_serve("/a"));
    let last = LastValid { incarnation: Incarnation(1), generation: VolumeGeneration(1), revision: Revision(20) };
    assert_eq!(
        client.only(&effects).1.body,
        Body::Acquire { path: path("/b"), last_valid: Some(last), read: first_read("/b", None) }
    );
}

#[test]
fn last_valid_revision_comes_only_from_promises_and_grants() {
    let mut client = Client::leased();
    let mut client = {
        let effects = client.read(5, "/a");
        let read = client.only(&effects).0;
        let found = ReadAnswer { applied: Revision(15), ..read_answer("/", Some(value(10)), Some(grant(2))) };
        client.answer(read, Answer::Read(found));
        client
    };
    let effects = client.read(6, "/b");
    let read = client.only(&effects).0;
    client.answer(read, answer(Some(value(10)), None));
    client.now = at(150);
    let effects = client.read(7, "/a");
    let last = LastValid { incarnation: Incarnation(1), generation: VolumeGeneration(1), revision: Revision(15) };
    assert_eq!(
        client.only(&effects).1.body,
        Body::Acquire { path: path("/a"), last_valid: Some(last), read: first_read("/a", Some(10)) }
    );
}

#[test]
fn sending_acquire_ends_the_old_lease() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let old = client.only(&effects).0;
    client.now = at(150);
    let effects = client.read(6, "/a");
    assert!(effects.contains(&volume_valid("/", 0, Instant::ZERO)), "{effects:?}");
    client.renew(old, promise("/", 1));
    assert_eq!(client.holder.volume_remaining(&NodePath::root(), client.now), Duration::ZERO);
}

fn revival(changed: Vec<ObjectSet>) -> Answer {
    let revival = Revival::AllExcept { changed, covering: CoveringNumber(4), reports_at_once: false };
    Answer::Acquired(AcquiredVolume { promise: promise("/", 2), stamp: stamp(9), revival, read: None })
}

#[test]
fn unchanged_copies_are_revived_while_object_lease_lasts() {
    let mut client = Client::cached().cache("/b", 3).cache("/c", 4);
    client.holder.copies.insert(
        &data("/c"),
        copies::CachedCopy {
            validity: validity(4, 1, at(120)),
            ..client.holder.copies.get(&data("/c")).expect("a cached copy").clone()
        },
    );
    client.now = at(150);
    let effects = client.read(5, "/a");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, revival(vec![one("/b")]));
    let expected = [HolderEffect::Drop(vec![data("/b")]), volume_valid("/", 1, at(160))];
    assert_eq!(effects[..2], expected, "the changed copy is dropped before the others become valid");
    assert_eq!(effects[2], served_cached(&[5], "/a", 2, Some(at(160))));
    assert_eq!(sent(&effects), [], "the report waits");
    assert!(client.may_serve("/a") && !client.may_serve("/b") && !client.may_serve("/c"));
}

#[test]
fn new_lease_without_revival_makes_no_copy_valid() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/b");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/", 2, 9));
    assert_eq!(effects[0], volume_valid("/", 2, at(160)));
    assert!(!client.may_serve("/a"));
}

#[test]
fn copies_left_out_of_one_revival_are_not_part_of_the_next() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/b");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/", 2, 8));
    let read = client.only(&effects).0;
    client.answer(read, answer(Some(value(10)), Some(Grant { incarnation: Incarnation(2), ..grant(9) })));
    client.now = at(170);
    let effects = client.read(6, "/c");
    let acquire = client.only(&effects).0;
    let revival = Revival::AllExcept { changed: vec![], covering: CoveringNumber(4), reports_at_once: false };
    client.answer(
        acquire,
        Answer::Acquired(AcquiredVolume { promise: promise("/", 3), stamp: stamp(10), revival, read: None }),
    );
    assert!(client.may_serve("/b") && !client.may_serve("/a"));
}

#[test]
fn a_grant_from_before_the_new_lease_is_not_cached() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let delayed = client.only(&effects).0;
    client.now = at(150);
    let effects = client.read(6, "/a");
    let acquire = client.only(&effects).0;
    client.answer(acquire, acquired("/", 2, 9));
    client.answer(delayed, answer(Some(value(10)), Some(grant(3))));
    client.answer(delayed, answer(Some(value(10)), Some(Grant { incarnation: Incarnation(2), ..grant(3) })));
    assert!(!client.may_serve("/b"));
}

#[test]
fn lease_on_volume_without_the_path_is_ignored() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/a");
    let acquire = client.only(&effects).0;
    client.answer(acquire, acquired("/v", 2, 9));
    assert_eq!(client.holder.volume_remaining(&path("/v"), client.now), Duration::ZERO);
    assert_eq!(client.holder.volume_remaining(&NodePath::root(), client.now), Duration::ZERO);
    assert!(!client.may_serve("/a"));
}

#[test]
fn a_newer_generation_drops_the_copies_of_the_older() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    let changed = Promise { generation: VolumeGeneration(2), ..promise("/", 1) };
    assert_eq!(client.renew(read, changed)[0], HolderEffect::Drop(vec![data("/a")]));
}

#[test]
fn volume_remaining_is_counted_by_local_clock() {
    let mut client = Client::cached();
    client.now = at(103);
    assert_eq!(client.holder.volume_remaining(&NodePath::root(), client.now), Duration::from_secs(7));
    assert_eq!(client.holder.volume_remaining(&path("/elsewhere"), client.now), Duration::ZERO);
    client.now = at(900);
    assert_eq!(client.holder.volume_remaining(&NodePath::root(), client.now), Duration::ZERO);
}

#[test]
fn a_new_lease_is_renewed_at_half_of_its_term() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    let effects = client.answer(acquire, acquired("/", 1, 1));
    let read = client.only(&effects).0;
    client.answer(read, answer(Some(value(9)), None));
    assert_eq!(client.holder.next_deadline(), Some(at(105)));
    client.step(HolderInput::Disconnected);
    assert_eq!(client.holder.next_deadline(), Some(at(110)), "without a leader, the deadline is the end of the lease");
}

#[test]
fn lease_renewed_meanwhile_is_not_acquired_anew() {
    let mut client = Client::cached();
    client.now = at(109);
    let effects = client.read(5, "/b");
    let late = client.only(&effects).0;
    let effects = client.read(6, "/c");
    let refused = client.only(&effects).0;
    client.refuse(refused, Refusal::NotLeader { leader: None });
    // The lease has ended on this clock. The reads are sent again with a new one, and a leader.
    client.now = at(110);
    assert_eq!(sent(&client.answer(late, answer(Some(value(10)), None))), []);
    client.step(HolderInput::Disconnected);
    let effects = client.step(HolderInput::Connected);
    let register = client.only(&effects).0;
    let effects = client.answer_renewing(register, Answer::Registered { coverings: vec![] });
    let bodies: BTreeSet<_> = sent(&effects).into_iter().map(|(_, body)| format!("{body:?}")).collect();
    let read = |text| format!("{:?}", Body::Read { object: data(text), known: None, lease: LeaseRequest::Implicit });
    assert_eq!(bodies, BTreeSet::from([read("/b"), read("/c")]));
}

#[test]
fn client_without_revivable_copies_asks_for_no_changes() {
    let asks = |client: &mut Client, secs| {
        client.now = at(secs);
        let effects = client.read(90, "/b");
        let (acquire, request) = client.only(&effects);
        let Body::Acquire { last_valid, .. } = request.body else { panic!("{request:?}") };
        (acquire, last_valid.is_some())
    };
    assert!(!asks(&mut Client::leased(), 150).1, "the client has no copies");
    assert!(!asks(&mut Client::cached(), 200).1, "the object lease of the copy has ended");
    let mut client = Client::cached();
    let (acquire, has_asked) = asks(&mut client, 150);
    assert!(has_asked);
    let effects = client.answer(acquire, acquired("/", 2, 8));
    let read = client.only(&effects).0;
    client.answer(read, answer(Some(value(10)), None));
    assert!(!asks(&mut client, 170).1, "the copy was not valid under the last lease");
}

#[test]
fn read_continues_without_refused_lease() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    let refusal = Refusal::Limit(crate::limits::LimitError::Value { got: 2, expected: 1 });
    let effects = client.refuse(acquire, refusal);
    let (read, request) = client.only(&effects);
    assert_eq!(request.body, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
    assert_eq!(client.answer(read, answer(Some(value(10)), None)), [served(&[1], "/a", value(10), None)]);
}

#[test]
fn lease_counts_as_used_after_read_from_memory() {
    let mut client = Client::cached();
    client.now = at(101);
    client.read(5, "/a");
    client.now = at(105);
    assert!(keep_alive(&client.timeout(&[])).is_some());
}

#[test]
fn idle_lease_without_leader_lapses_without_jeopardy() {
    let mut client = Client::leased();
    client.step(HolderInput::Disconnected);
    client.now = client.holder.next_deadline().expect("the end of the lease has a deadline");
    assert_eq!((client.now, client.timeout(&[])), (at(110), vec![]));
}

#[test]
fn lapse_of_an_earlier_lease_leaves_the_present_one() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    let lapses = vec![Lapse { volume: NodePath::root(), incarnation: Incarnation(0) }];
    let result = Ok(answer(Some(value(10)), None));
    client.respond(read, Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result });
    assert!(client.may_serve("/a"), "the lapse is of an earlier lease than the present one");
}

#[test]
fn lease_acquired_in_other_epoch_is_requested_again() {
    let mut client = Client::registered();
    let effects = client.read(1, "/a");
    let acquire = client.only(&effects).0;
    let (epoch, result) = (Epoch(EPOCH.0 - 1), Ok(acquired("/", 1, 1)));
    client.respond(acquire, Response { epoch, promises: vec![], lapses: vec![], clocks: None, result });
    assert_eq!(client.holder.volume_remaining(&NodePath::root(), client.now), Duration::ZERO);
    client.now = client.holder.next_deadline().expect("the lease is requested again");
    let effects = client.timeout(&[]);
    assert!(matches!(client.only(&effects).1.body, Body::Acquire { .. }));
}

/// Answers about leases overtake each other (seeds 27701 and 27965 of the wide worlds).
#[test]
fn late_answer_that_names_a_replaced_lease_begins_none() {
    let mut client = Client::leased();
    client.holder.volumes.learn(&path("/v"));
    let effects = client.read(2, "/v/a");
    let (late, _) = client.only(&effects);
    client.holder.volumes.learn(&path("/v/w"));
    let effects = client.read(3, "/v/w/b");
    let (early, _) = client.only(&effects);
    // `/v/w` was removed, so both requests are for `/v`. The later lease arrives first, and ends.
    let nothing = Promise { span: Duration::ZERO, ..promise("/v", 6) };
    let acquired_late = acquired("/v", 5, 50);
    client.answer(
        early,
        Answer::Acquired(AcquiredVolume { promise: nothing, stamp: stamp(51), revival: Revival::None, read: None }),
    );
    let lapses = vec![Lapse { volume: path("/v"), incarnation: Incarnation(6) }];
    let effects = client.read(4, "/first");
    let (read, _) = client.only(&effects);
    client.respond(
        read,
        Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result: Ok(answer(Some(value(9)), None)) },
    );
    client.answer(late, acquired_late);
    let lease = client.holder.volumes.get(&path("/v")).and_then(|volume| volume.lease.as_ref());
    assert_eq!(lease.map(|lease| lease.incarnation), None, "the named lease has been replaced");
}

#[test]
fn late_answer_for_a_volume_that_was_forgotten_begins_no_lease() {
    let mut volumes = crate::holder::volume_leases::KnownVolumes::new(&HolderConfig::new("test"));
    volumes.learn(&path("/v")).begun = stamp(51);
    volumes.forget(&path("/v"));
    assert_eq!([volumes.begun(&path("/v")), volumes.learn(&path("/v")).begun], [stamp(51); 2]);
}
