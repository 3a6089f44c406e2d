//! What a new leader starts from: horizons, coverings, registrations and holder reports (T6, S7);
//! and what the old one leaves (S9).

use super::*;
use crate::message::{CoveringInfo, DelayNotice, DelayReason};

#[test]
fn failover_asks_every_leased_session_until_its_holder_report() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    world.fail_over();
    world.request(writer, Body::Register);
    let effects = world.write(writer, put("/b", b"1"));
    assert_eq!(recalls(&effects), [], "the session is not registered");
    let covering = CoveringInfo { volume: NodePath::root(), is_unreported: true };
    assert_eq!(world.waits("/b")[0].covering, Some(covering), "the session may have a copy");
    let effects = world.request(holder, Body::Register);
    let [covering] = match answer(&effects[..1]) {
        Answer::Registered { coverings } => coverings.try_into().expect("one volume"),
        other => panic!("registered: {other:?}"),
    };
    let covering: CoveringLease = covering;
    assert_eq!(recalls(&effects).len(), 1, "the session may have /b");
    let stamp = recalls(&effects)[0].stamp;
    world.step(LessorInput::Consent(Consent { session: holder, stamp }));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    let report_part = HolderReportPart {
        volume: NodePath::root(),
        incarnation: grant.incarnation,
        covering: covering.number,
        part: 0,
        parts: 1,
        objects: vec![data("/a")],
    };
    let old = HolderReportPart { covering: CoveringNumber(covering.number.0 + 1), ..report_part.clone() };
    world.request(holder, Body::HolderReport(old));
    assert_eq!(recalls(&world.write(writer, put("/c", b"1"))).len(), 1, "a report for another covering has no effect");
    world.request(holder, Body::HolderReport(report_part));
    assert_eq!(recalls(&world.write(writer, put("/d", b"1"))), []);
    assert_eq!(recalls(&world.write(writer, put("/a", b"1"))).len(), 1);
    assert_eq!(world.waits("/a")[0].covering, None, "the session has a copy");
}

#[test]
fn request_before_the_latest_registration_has_no_effect() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let header = RequestHeader {
        session: holder,
        epoch: world.state.epoch(),
        registration: world.registration(holder),
        ..RequestHeader::default()
    };
    world.request(holder, Body::Register);
    let straggler = Body::Acquire { path: NodePath::root(), last_valid: None, read: None };
    let effects = world.send(Request { header: header.clone(), body: straggler });
    assert!(matches!(result(&effects), Err(Refusal::NotRegistered { .. })));
    assert!(!world.lessor.has_proposal());
    let effects = world.send(Request { header, body: Body::Register });
    assert!(
        matches!(result(&effects), Err(Refusal::NotRegistered { .. })),
        "a report under an old registration has no effect"
    );
}

#[test]
fn holder_report_counts_only_for_its_registration() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.fail_over();
    let covering = |world: &mut World| match answer(&world.request(holder, Body::Register)) {
        Answer::Registered { coverings } => coverings[0].number,
        other => panic!("registered: {other:?}"),
    };
    let report_part = |covering, part, parts| {
        Body::HolderReport(HolderReportPart {
            volume: NodePath::root(),
            incarnation: grant.incarnation,
            covering,
            part,
            parts,
            objects: Vec::new(),
        })
    };
    let first = covering(&mut world);
    world.request(holder, report_part(first, 0, 2));
    let second = covering(&mut world);
    assert_ne!(first, second);
    world.request(holder, report_part(second, 1, 2));
    let writer = world.session();
    assert_eq!(recalls(&world.write(writer, put("/b", b"1"))).len(), 1, "part 0 of the second report is missing");
}

#[test]
fn a_new_leader_starts_every_lease_at_its_horizon() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let horizon = world.state.lease(&AnyLease::Volume(holder, NodePath::root())).expect("leased").horizon;
    world.fail_over();
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    let margin = VolumeSettings::DEFAULT.skew_margin();
    let left = horizon.after(margin).since(world.lessor.clock.ending_time());
    let effects = world.pass(left - MILLI);
    assert_eq!(replies(&effects), []);
    let effects = world.pass(2 * clock::STEP_EVERY);
    assert!(matches!(answer(&effects), Answer::Written { .. }));
}

/// A new leader whose first entry is committed `late`. It heard the old leader for `span` beyond
/// that leader's last entry.
fn fail_over_late(world: &mut World, span: Duration, late: Duration) {
    let attempt = world.lessor.config.attempt + 1;
    world.lessor = Lessor::new(config(attempt), &world.state, span, world.now);
    let first = world.lessor.take_proposal(world.now).expect("the first entry");
    let end = world.now.after(late);
    while world.now < end {
        world.now = world.now.after(clock::STEP_EVERY);
        world.lessor.step(LessorInput::Timeout, &world.state, world.now);
    }
    world.apply(&first);
}

#[test]
fn first_entry_committed_late_ends_no_lease() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.pass(TERM / 2);
    world.renew(holder, grant.incarnation).expect("alive");
    world.pass(TERM / 5);
    let before = world.state.cluster_time();
    fail_over_late(&mut world, Duration::ZERO, 2 * TERM);
    assert_eq!(world.lessor.clock.ending_time(), before, "no client could renew");
    assert!(!world.lessor.proposal_queue.commands().any(|command| matches!(command, Command::Expire { .. })));
    world.request(holder, Body::Register);
    world.pass(clock::STEP_EVERY);
    world.renew(holder, grant.incarnation).expect("renewed in time, by the cluster's clock");
    world.pass(TERM / 2);
    assert!(world.state.lease(&AnyLease::Volume(holder, NodePath::root())).is_some());
}

/// In an idle cluster the log has nothing for up to a tick. The lease must not live longer by that
/// at each change of leaders.
#[test]
fn abandoned_lease_over_leaders_of_an_idle_log_ends() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let key = AnyLease::Volume(holder, NodePath::root());
    let (start, tick) = (world.now, world.state.tick());
    let span = tick * 9 / 10;
    let mut outage = Duration::ZERO;
    while world.state.lease(&key).is_some() {
        // The leader is heard for less than a tick after its first entry, so that it logs nothing
        // else. Then there is no leader for a while.
        world.now = world.now.after(span);
        fail_over_late(&mut world, span, tick);
        outage += tick;
        world.pass(clock::STEP_EVERY);
        assert!(world.now.since(start) < 4 * TERM, "the lease ends");
    }
    let margin = VolumeSettings::DEFAULT.skew_margin();
    assert!(world.now.since(start) <= outage + TERM + margin + tick * 2);
}

#[test]
fn time_heard_beyond_what_a_leader_logs_counts_bounded() {
    let mut world = World::new();
    let before = world.state.cluster_time();
    fail_over_late(&mut world, 2 * TERM, Duration::ZERO);
    assert_eq!(world.lessor.clock.ending_time(), before.after(world.state.tick() * 2));
    let span = world.lessor.clock.promising_time(world.now).expect("the epoch has begun");
    assert!(span >= world.lessor.clock.ending_time(), "a promise by a slower clock outlasts its lease");
}

#[test]
fn leader_changes_prolong_abandoned_lease_at_most_two_ticks() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let start = world.now;
    let key = AnyLease::Volume(holder, NodePath::root());
    let mut reign = start;
    while world.state.lease(&key).is_some() {
        world.pass(clock::STEP_EVERY);
        if world.now.since(reign) >= TERM / 2 {
            reign = world.now;
            world.fail_over();
        }
        assert!(world.now.since(start) < 3 * TERM, "the lease ends");
    }
    let (lasted, margin) = (world.now.since(start), VolumeSettings::DEFAULT.skew_margin());
    // The end is observed after each step.
    assert!(TERM <= lasted && lasted <= TERM + margin + 2 * world.state.tick() + clock::STEP_EVERY, "{lasted:?}");
}

#[test]
fn step_down_leaves_proposed_writes_unknown_and_retries_rest() {
    let mut world = World::new();
    let writer = world.session();
    for node in ["/held", "/free"] {
        world.write(writer, put(node, b"0"));
        world.commit();
    }
    let (_, _) = world.holder(&data("/held"));
    world.write(writer, put("/held", b"1"));
    world.write(writer, put("/free", b"1"));
    let effects = world.lessor.clone().step_down(&world.state, world.now);
    let results: Vec<_> = replies(&effects).into_iter().map(|response| response.result).collect();
    assert_eq!(results, [Err(Refusal::Retry), Err(Refusal::OutcomeUnknown)]);
}

#[test]
fn registration_needs_no_epoch() {
    let mut world = World::new();
    let session = world.session();
    let registration = world.registration(session) + 1;
    for epoch in [Epoch(0), Epoch(world.state.epoch().0 + 1)] {
        let header = RequestHeader { session, epoch, registration: registration + epoch.0, ..RequestHeader::default() };
        let effects = world.send(Request { header, body: Body::Register });
        assert!(matches!(answer(&effects), Answer::Registered { .. }), "{epoch}");
    }
}

#[test]
fn consents_piggybacked_on_old_registration_do_not_count() {
    for (registration, is_written) in [(1, false), (2, true)] {
        let mut world = World::new();
        let (holder, _) = world.holder(&data("/a"));
        let writer = world.session();
        let recalled = recalls(&world.write(writer, put("/a", b"1")));
        let consents = recalled.iter().map(|recall| recall.stamp).collect();
        let header = RequestHeader { session: holder, registration, consents, ..RequestHeader::default() };
        world.send(Request { header, body: Body::Register });
        assert_eq!(!world.commit().is_empty(), is_written);
    }
}

/// More recalls are made before the session returns than one request sends. The client sees no gap
/// in their numbers, also when another is made before all are sent.
#[test]
fn recalls_from_before_the_registration_are_sent_in_order() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let writer = world.session();
    world.fail_over();
    world.lessor.config.bounds.recalls_again_max = 2;
    world.request(writer, Body::Register);
    let write = |world: &mut World, number: u64| recalls(&world.write(writer, put(&format!("/{number}"), b"")));
    (1..=5).for_each(|number| assert_eq!(write(&mut world, number), []));
    let mut sent = recalls(&world.request(holder, Body::Register));
    assert_eq!(sent.len(), 2);
    assert_eq!(write(&mut world, 6), [], "recalls 3 to 5 come first");
    let mut answered = 0;
    while let Some(recall) = sent.get(answered).cloned() {
        let consent = Consent { session: holder, stamp: recall.stamp };
        let delayed = LessorInput::ConsentDelayed(DelayNotice {
            session: holder,
            stamp: recall.stamp,
            reason: DelayReason::InUse { at_most: MILLI },
        });
        // Each reply brings the next recall, also one that delays the consent.
        let reply = if answered % 2 == 0 { LessorInput::Consent(consent) } else { delayed };
        sent.extend(recalls(&world.step(reply)));
        answered += 1;
    }
    assert_eq!(sent.iter().map(|recall| recall.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(write(&mut world, 7).len(), 1, "all earlier recalls are sent");
}
