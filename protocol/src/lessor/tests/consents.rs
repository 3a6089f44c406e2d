//! Writes, and the consents that they wait for (S2).

use super::*;
use crate::{lessor::recalls::RECALL_RESEND_INTERVAL, message::Return, time::DriftAllowance, volume::Tracking};

#[test]
fn write_waits_for_its_consents() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    let effects = world.write(writer, put("/a", b"1"));
    let [recall] = recalls(&effects).try_into().expect("one holder");
    let recall: Recall = recall;
    assert_eq!((recall.session, recall.number), (holder, 1));
    assert!(recall.sets.contains(&ObjectSet::One(data("/a"))) && recall.stamp > grant.stamp);
    assert_eq!(world.commit(), [], "nothing is proposed without the consent");
    assert_eq!(world.waits("/a")[0].holder, Some(holder));
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
}

#[test]
fn a_consent_to_another_stamp_is_no_consent() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    for stamp in [grant.stamp, Stamp { epoch: Epoch(99), ..grant.stamp }] {
        world.step(LessorInput::Consent(Consent { session: holder, stamp }));
        assert_eq!(world.commit(), []);
    }
}

#[test]
fn silent_holder_delays_write_by_volume_term_and_margin() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let writer = world.session();
    let start = world.now;
    world.write(writer, put("/a", b"1"));
    let margin = VolumeSettings::DEFAULT.skew_margin();
    let effects = world.pass(TERM + margin - MILLI);
    assert_eq!(replies(&effects), [], "the holder may use its copy");
    let effects = world.pass(2 * clock::STEP_EVERY);
    assert!(matches!(answer(&effects), Answer::Written { .. }));
    assert!(world.now.since(start) <= TERM + margin + 2 * clock::STEP_EVERY);
    assert_eq!(world.state.leases_of(holder).count(), 1, "only the session lease is left");
}

/// A server may be configured for clocks that drift more than the margin of a volume allows. The
/// leader then waits for longer than the margin (T3).
#[test]
fn raised_drift_allowance_outweighs_the_margin() {
    let mut world = World::new();
    let drift = DriftAllowance::from_ppm(50_000).expect("within bounds");
    world.lessor.config.drift = drift;
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    let apart = drift.over(TERM + world.state.tick()) * 2;
    assert!(apart > VolumeSettings::DEFAULT.skew_margin());
    assert_eq!(replies(&world.pass(TERM + apart)), [], "the holder's clock may be slow, and this one fast");
    let effects = world.pass(2 * clock::STEP_EVERY);
    assert!(matches!(answer(&effects), Answer::Written { .. }));
}

/// The settings get a shorter term, while a promise of the long one holds.
#[test]
fn raised_drift_allowance_covers_longest_term_since_grant() {
    let mut world = World::new();
    let (holder, writer) = (world.session(), world.session());
    let long = TERM * 6;
    let with = |term| {
        let drift = DriftAllowance::DEFAULT;
        let settings = VolumeSettings::new(term, term, Duration::from_millis(1100), Tracking::Objects, drift);
        Write::SetVolume { path: NodePath::root(), settings: settings.expect("within bounds") }
    };
    world.write(writer, with(long));
    world.commit();
    world.acquire(holder, None);
    let drift = DriftAllowance::from_ppm(50_000).expect("within bounds");
    world.lessor.config.drift = drift;
    world.write(writer, with(TERM));
    world.commit();
    assert_eq!(world.state.volume(&NodePath::root()).expect("the root").settings.longest_term(), TERM);
    let apart = drift.over(long + world.state.tick()) * 2;
    let exists = |world: &World| world.state.lease(&AnyLease::Volume(holder, NodePath::root())).is_some();
    world.pass(long + apart);
    assert!(exists(&world), "the client's clock may be slow, and this one fast");
    world.pass(Duration::from_secs(1));
    assert!(!exists(&world));
}

/// The answer to a renewal is lost. The holder counts on less than it was promised, and the leader
/// on all of it.
#[test]
fn lost_promise_delays_the_write() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.pass(TERM / 2);
    world.renew(holder, grant.incarnation).expect("the lease has not ended");
    world.pass(world.state.tick() * 2);
    let lost = world.renew(holder, grant.incarnation).expect("the horizon has moved");
    assert!(lost.span > TERM * 9 / 10, "{:?}", lost.span);
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    let effects = world.pass(lost.span + VolumeSettings::DEFAULT.skew_margin() - clock::STEP_EVERY);
    assert_eq!(replies(&effects), [], "the holder's promise ended long ago");
    let effects = world.pass(4 * clock::STEP_EVERY);
    assert!(matches!(answer(&effects), Answer::Written { .. }));
}

#[test]
fn renewal_with_unanswered_recall_prolongs_no_lease() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    world.pass(TERM / 2);
    let promise = world.renew(holder, grant.incarnation).expect("the lease has not ended");
    assert!(promise.span <= TERM / 2, "{:?}", promise.span);
    let effects = world.pass(TERM / 2 + VolumeSettings::DEFAULT.skew_margin() + 2 * clock::STEP_EVERY);
    assert!(replies(&effects).iter().any(|reply| matches!(reply.result, Ok(Answer::Written { .. }))));
    assert!(world.renew(holder, grant.incarnation).is_err(), "expired, never a new lease");
}

#[test]
fn the_writer_is_exempt_only_by_its_stamp() {
    let mut world = World::new();
    let (writer, grant) = world.holder(&data("/a"));
    let dropped = vec![ObjectSet::One(data("/a"))];
    let seen = Stamp { sequence: grant.stamp.sequence - 1, ..grant.stamp };
    let body = |seen| Body::Write { write: put("/a", b"1"), dropped: dropped.clone(), seen };
    let effects = world.request(writer, body(seen));
    let [recall] = recalls(&effects).try_into().expect("the writer had not seen its last grant");
    let recall: Recall = recall;
    world.step(LessorInput::Consent(Consent { session: writer, stamp: recall.stamp }));
    let Answer::Written { grant: Some(grant), .. } = answer(&world.commit()) else { panic!("the answer has a lease") };
    let effects = world.request(writer, body(grant.stamp));
    assert_eq!(recalls(&effects), []);
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
}

#[test]
fn write_no_longer_covered_gathers_missing_consents() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    world.commit();
    let (holder, _) = world.holder(&Object::children(NodePath::root()));
    let consent = |world: &mut World, effects: &[LessorEffect]| {
        for recall in recalls(effects) {
            world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
        }
    };
    let delete = Write::Delete { path: path("/a"), recursive: false, condition: Condition::Any };
    let mut effects = world.write(writer, delete);
    // When it arrives it changes a value. When it is applied it makes a node, and so changes the
    // root's children.
    effects.extend(world.write(writer, put("/a", b"2")));
    consent(&mut world, &effects);
    let effects = world.commit();
    consent(&mut world, &effects);
    world.commit();
    let children = world.state.children(&NodePath::root()).expect("the root exists");
    assert_eq!(children.names, ["a"]);
    assert_eq!(world.lessor.writes.len(), 0);
}

#[test]
fn write_waits_until_the_last_object_lease_ends() {
    let (data, list) = (data("/a"), Object::children(NodePath::root()));
    for (early, late) in [(&data, &list), (&list, &data)] {
        let mut world = World::new();
        let writer = world.session();
        world.write(writer, put("/a", b"1"));
        world.commit();
        let (holder, _) = world.holder(early);
        world.pass(TERM / 2);
        world.read(holder, late.clone());
        let expires_at = |object: &Object| world.lessor.object_leases.lease(object, holder).expect("leased").expires_at;
        let last = expires_at(late);
        assert!(last > expires_at(early));
        let delete = Write::Delete { path: path("/a"), recursive: false, condition: Condition::Any };
        world.write(writer, delete);
        let (_, pending) = world.lessor.writes.iter().next().expect("the write waits");
        assert_eq!(pending.waits[&holder].expires_at, Some(last), "{early} was leased first");
    }
}

#[test]
fn write_proceeds_when_its_holder_acquires_a_new_lease() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    assert_eq!(world.commit(), []);
    world.request(holder, Body::Acquire { path: NodePath::root(), last_valid: None, read: None });
    let effects = world.commit();
    assert!(replies(&effects).iter().any(|reply| matches!(reply.result, Ok(Answer::Written { .. }))), "{effects:?}");
    assert!(world.renew(holder, grant.incarnation).is_err(), "the request ended the old lease");
}

#[test]
fn refused_write_sends_no_recall() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    let write = Write::Delete { path: path("/a"), recursive: false, condition: Condition::Any };
    assert_eq!(recalls(&world.write(writer, write)), []);
    assert_eq!(result(&world.commit()), Err(Refusal::Write(WriteRefusal::NotFound { path: path("/a") })));
}

#[test]
fn unanswered_recall_is_resent_with_later_request() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let writer = world.session();
    let recalled = recalls(&world.write(writer, put("/a", b"1")));
    assert_eq!(recalled.len(), 1);
    let again = |world: &mut World| recalls(&world.request(holder, Body::Heartbeat(Default::default())));
    world.pass(RECALL_RESEND_INTERVAL - MILLI);
    assert_eq!(again(&mut world), []);
    world.pass(MILLI);
    assert_eq!(again(&mut world), recalled);
    assert_eq!(again(&mut world), [], "not with each request");
}

#[test]
fn return_counts_only_for_its_own_grant() {
    let mut world = World::new();
    let (holder, old) = world.holder(&data("/a"));
    let new = world.read(holder, data("/a")).grant.expect("granted again");
    let mut is_held_after = |stamp| {
        let returns = vec![Return { object: data("/a"), stamp }];
        let header = RequestHeader {
            session: holder,
            epoch: world.state.epoch(),
            registration: world.registration(holder),
            returns,
            ..RequestHeader::default()
        };
        world.send(Request { header, body: Body::Heartbeat(Default::default()) });
        world.lessor.object_leases.lease(&data("/a"), holder).is_some()
    };
    assert!(is_held_after(old.stamp), "the object was granted again");
    assert!(is_held_after(Stamp { epoch: Epoch(old.stamp.epoch.0 + 1), ..new.stamp }), "the stamp is of another epoch");
    assert!(!is_held_after(new.stamp));
}

#[test]
fn writer_stays_exempt_after_grants_on_other_objects() {
    let mut world = World::new();
    let (writer, grant) = world.holder(&data("/a"));
    assert!(world.read(writer, data("/b")).grant.is_some());
    let dropped = vec![ObjectSet::One(data("/a"))];
    let effects = world.request(writer, Body::Write { write: put("/a", b"1"), dropped, seen: grant.stamp });
    let recalled: Vec<_> = recalls(&effects).into_iter().flat_map(|recall| recall.sets).collect();
    assert!(!recalled.contains(&ObjectSet::One(data("/a"))), "{recalled:?}");
}

#[test]
fn recalls_beyond_a_bound_are_sent_again_later() {
    let mut world = World::new();
    world.lessor.config.bounds.recalls_again_max = 2;
    let objects: Vec<Object> = (0..5).map(|number| data(&format!("/{number}"))).collect();
    let (holder, _) = world.holder(&objects[0]);
    let writer = world.session();
    for object in &objects {
        world.read(holder, object.clone());
        assert_eq!(recalls(&world.write(writer, Write::put(object.path.clone(), Bytes::new()))).len(), 1);
    }
    world.now = world.now.after(RECALL_RESEND_INTERVAL);
    let mut again = Vec::new();
    for sent in [2, 2, 1, 0] {
        let recalled = recalls(&world.request(holder, Body::Heartbeat(Default::default())));
        assert_eq!(recalled.len(), sent);
        again.extend(recalled.into_iter().map(|recall| recall.number));
    }
    assert_eq!(again, [1, 2, 3, 4, 5]);
    // A new connection has had none. As many as the bound says are unanswered at a time. Each
    // consent brings the next one, and lost ones come again after a while.
    let numbers = |recalled: &[Recall]| recalled.iter().map(|recall| recall.number).collect::<Vec<_>>();
    let first = recalls(&world.request(holder, Body::Register));
    assert_eq!(numbers(&first), [1, 2]);
    let heartbeat = |world: &mut World| recalls(&world.request(holder, Body::Heartbeat(Default::default())));
    assert_eq!(heartbeat(&mut world), []);
    world.now = world.now.after(RECALL_RESEND_INTERVAL);
    assert_eq!(numbers(&heartbeat(&mut world)), [1, 2]);
    for (recall, next) in first.iter().zip([3, 4]) {
        let effects = world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
        assert_eq!(numbers(&recalls(&effects)), [next]);
    }
    assert_eq!(heartbeat(&mut world), []);
}
