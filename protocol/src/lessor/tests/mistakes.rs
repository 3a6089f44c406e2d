//! Conditions of the rules that no other test would miss if they were removed.

use super::*;
use crate::{
    lease_policy::LeaseRequest,
    lessor::object_leases::CopyTracking,
    time::ClusterTime,
    volume::{Tracking, VolumeSettings},
};

impl World {
    /// The session sends a holder report in one part, which names this covering.
    fn tell(&mut self, session: SessionId, lease: &Grant, covering: CoveringNumber) {
        let report_part = HolderReportPart {
            volume: NodePath::root(),
            incarnation: lease.incarnation,
            covering,
            part: 0,
            parts: 1,
            objects: Vec::new(),
        };
        self.request(session, Body::HolderReport(report_part));
    }

    /// The covering that the answer to a new registration names.
    fn asked_for(&mut self, session: SessionId) -> CoveringNumber {
        match answer(&self.request(session, Body::Register)) {
            Answer::Registered { coverings } => coverings[0].number,
            other => panic!("registered: {other:?}"),
        }
    }

    /// Whether a write of an object that was granted to nobody recalls it from a session, which is
    /// then covering.
    fn has_covering(&mut self, writer: SessionId, text: &str) -> bool {
        !recalls(&self.write(writer, put(text, b"1"))).is_empty()
    }

    /// Whether a write is answered as done within the span.
    fn passes(&mut self, span: Duration) -> bool {
        let replies = replies(&self.pass(span));
        replies.iter().any(|reply| matches!(reply.result, Ok(Answer::Written { .. })))
    }
}

#[test]
fn holder_report_with_too_many_parts_is_not_remembered() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.fail_over();
    let writer = world.session();
    let covering = world.asked_for(holder);
    let most = u32::try_from(world.lessor.config.limits.session_objects_max).expect("it fits");
    for (part, parts) in [(0, most + 1), (most, most), (0, 0), (u32::MAX, 1)] {
        let (volume, incarnation) = (NodePath::root(), grant.incarnation);
        let objects = vec![data("/a")];
        world.request(
            holder,
            Body::HolderReport(HolderReportPart { volume, incarnation, covering, part, parts, objects }),
        );
        let track = world.lessor.object_leases.track(&NodePath::root(), holder).expect("the session has a lease");
        assert!(matches!(&track.tracking, CopyTracking::AwaitingReport { parts, .. } if parts.is_empty()), "{track:?}");
        assert_eq!(track.entries, 0);
    }
    assert!(world.has_covering(writer, "/b"));
    world.tell(holder, &grant, covering);
    assert!(!world.has_covering(writer, "/c"));
}

#[test]
fn a_renewal_of_another_incarnation_is_answered_expired() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let newer = world.acquire(holder, None).promise.incarnation;
    let lapse = Lapse { volume: NodePath::root(), incarnation: grant.incarnation };
    assert_eq!(world.renew(holder, grant.incarnation), Err(Some(lapse)));
    assert_eq!(world.renew(holder, newer).map(|promise| promise.incarnation), Ok(newer));
}

#[test]
fn report_for_another_lease_or_covering_has_no_effect() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.fail_over();
    let writer = world.session();
    let first = world.asked_for(holder);
    let number = world.asked_for(holder);
    world.tell(holder, &grant, first);
    assert!(world.has_covering(writer, "/b"), "a report of the earlier registration");
    let other = Grant { incarnation: grant.incarnation.next(), ..grant.clone() };
    world.tell(holder, &other, number);
    assert!(world.has_covering(writer, "/c"), "a report of another lease");
    world.tell(holder, &grant, number);
    assert!(!world.has_covering(writer, "/d"));
}

#[test]
fn holder_report_adds_to_later_grants() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.fail_over();
    let writer = world.session();
    let number = world.asked_for(holder);
    assert!(world.read(holder, data("/meanwhile")).grant.is_some());
    world.tell(holder, &grant, number);
    assert!(world.has_covering(writer, "/meanwhile"));
}

#[test]
fn proof_for_an_earlier_epoch_answers_no_read() {
    let mut world = World::new();
    let session = world.session();
    let read = Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit };
    let effects = world.request(session, read.clone());
    let [LessorEffect::Prove { round: old }] = effects[..] else { panic!("a round: {effects:?}") };
    world.fail_over();
    world.request(session, Body::Register);
    world.request(session, read);
    assert_eq!(world.step(LessorInput::Proven { round: old }), []);
}

#[test]
fn a_read_is_not_answered_before_the_first_entry_of_the_epoch() {
    let mut world = World::new();
    let session = world.session();
    world.lessor = Lessor::new(config(2), &world.state, Duration::ZERO, world.now);
    let effects = world.request(session, Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
    assert_eq!(result(&effects), Err(Refusal::Retry));
}

#[test]
fn an_object_lease_is_waited_for_with_drift_and_margin() {
    let mut world = World::new();
    let writer = world.session();
    let margin = Duration::from_millis(500);
    let settings = VolumeSettings::new(TERM, TERM, margin, Tracking::Objects, DriftAllowance::DEFAULT).expect("valid");
    world.write(writer, Write::SetVolume { path: NodePath::root(), settings });
    world.commit();
    let (holder, grant) = world.holder(&data("/a"));
    let granted = world.now;
    world.pass(TERM / 2);
    world.renew(holder, grant.incarnation).expect("live");
    world.pass(TERM / 4);
    world.write(writer, put("/a", b"1"));
    let ends_at = granted.after(settings.longest_object_wait(DriftAllowance::DEFAULT));
    assert!(ends_at >= granted.after(TERM + margin));
    assert!(!world.passes(ends_at.since(world.now) - MILLI), "the holder may use its copy");
    assert!(
        world.passes(2 * clock::STEP_EVERY),
        "the volume lease holds still, but nothing was leased under it for longer"
    );
}

#[test]
fn write_over_two_volumes_waits_for_both_leases_of_holder() {
    let mut world = World::new();
    let writer = world.session();
    let settings = VolumeSettings::DEFAULT;
    world.write(writer, Write::CreateVolume { path: path("/v"), settings });
    world.commit();
    let (holder, grant) = world.holder(&data("/a"));
    world.request(holder, Body::Acquire { path: path("/v"), last_valid: None, read: None });
    world.commit();
    assert!(world.read(holder, data("/v")).grant.is_some());
    world.pass(TERM / 2);
    world.renew(holder, grant.incarnation).expect("live");
    world.write(writer, Write::SetVolume { path: NodePath::root(), settings });
    let inner = AnyLease::Volume(holder, path("/v"));
    assert!(!world.passes(TERM / 2 + settings.skew_margin() + 4 * clock::STEP_EVERY));
    assert_eq!(world.state.lease(&inner), None, "one has ended, the other was renewed");
    assert!(world.passes(TERM / 2));
}

#[test]
fn a_pause_of_the_leader_ends_no_lease() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.now = world.now.after(3 * TERM);
    world.step(LessorInput::Timeout);
    world.commit();
    assert!(world.state.lease(&AnyLease::Volume(holder, NodePath::root())).is_some());
    world.pass(TERM / 2);
    assert!(world.renew(holder, grant.incarnation).is_ok());
}

#[test]
fn ending_clock_is_stepped_often_enough_to_avoid_clamping() {
    let world = World::new();
    let deadline = world.lessor.next_deadline(world.now);
    assert!(deadline > world.now && deadline.since(world.now) <= clock::STEP_EVERY);
    assert!(clock::STEP_EVERY * 2 <= clock::STEP_MAX);
    assert_eq!(world.lessor.clock.ending_time(), ClusterTime::ZERO);
}

#[test]
fn report_of_one_part_counts_with_room_for_one_object() {
    let mut world = World::new();
    world.lessor.config.limits.session_objects_max = 1;
    let (holder, grant) = world.holder(&data("/a"));
    world.fail_over();
    world.lessor.config.limits.session_objects_max = 1;
    let writer = world.session();
    let covering = world.asked_for(holder);
    world.tell(holder, &grant, covering);
    assert!(!world.has_covering(writer, "/b"));
}
