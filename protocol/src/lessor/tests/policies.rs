//! Lease policies of volumes: the object term, who gets leases, and writes that only wait.

use super::*;
use crate::{
    command::Attach,
    id::LeaseId,
    lease_policy::{GrantPolicy, LeaseOffer, ObjectTerm, OnWrite},
    time::DriftAllowance,
    volume::Tracking,
};

const MARGIN: Duration = VolumeSettings::DEFAULT.skew_margin();

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

fn policy(object_term: impl Into<ObjectTerm>, on_write: OnWrite, grants: GrantPolicy) -> VolumeSettings {
    VolumeSettings::DEFAULT.with_policy(object_term, on_write, grants).expect("valid")
}

impl World {
    /// A leader of a cluster whose root volume has these settings.
    pub(super) fn with_settings(settings: VolumeSettings) -> Self {
        let mut world = Self::before_the_epoch();
        world.state = State::new(settings);
        world.lessor = Lessor::new(config(1), &world.state, Duration::ZERO, world.now);
        world.commit();
        world
    }

    fn read_with(
        &mut self,
        session: SessionId,
        text: &str,
        known: Option<Revision>,
        lease: LeaseRequest,
    ) -> ReadAnswer {
        self.request(session, Body::Read { object: data(text), known, lease });
        let answer = answer(&self.step(LessorInput::Proven { round: self.lessor.round }));
        let Answer::Read(answer) = answer else { panic!("read: {answer:?}") };
        answer
    }

    /// A put of `/a`, which takes effect at once.
    fn put_at_once(&mut self, writer: SessionId) {
        let effects = self.write(writer, put("/a", b"1"));
        assert_eq!(recalls(&effects), []);
        assert!(matches!(answer(&self.commit()), Answer::Written { .. }));
    }

    /// How long a put of `/a` waits, if nobody is asked for consent.
    fn wait_unasked(&mut self, writer: SessionId) -> Duration {
        let start = self.now;
        let mut effects = self.write(writer, put("/a", b"1"));
        effects.extend(self.commit());
        while replies(&effects).is_empty() {
            assert_eq!(recalls(&effects), []);
            assert!(self.now.since(start) < 10 * TERM, "it waits for ever");
            effects = self.pass(MILLI);
        }
        self.now.since(start)
    }
}

/// Polling: reads get no lease, so no write waits, and a new leader assumes no copies.
#[test]
fn zero_object_term_grants_no_lease_and_delays_no_write() {
    let mut world = World::with_settings(policy(ObjectTerm::Zero, OnWrite::Recall, GrantPolicy::All));
    let (reader, writer) = (world.session(), world.session());
    world.acquire(reader, None);
    for request in [LeaseRequest::Implicit, LeaseRequest::Explicit] {
        let answer = world.read_with(reader, "/a", None, request);
        assert_eq!((answer.grant, answer.offer), (None, LeaseOffer::Nobody));
    }
    world.put_at_once(writer);
    world.fail_over();
    world.request(writer, Body::Register);
    let Answer::Registered { coverings } = answer(&world.request(reader, Body::Register)) else { panic!("registered") };
    assert_eq!(coverings, [], "no holder report is wanted");
    world.put_at_once(writer);
}

/// Callbacks: object leases end by recall or with the volume lease, and by nothing else.
#[test]
fn infinite_object_term_never_ends_and_still_bounds_writes() {
    let mut world = World::with_settings(policy(ObjectTerm::Infinite, OnWrite::Recall, GrantPolicy::All));
    let (holder, grant) = world.holder(&data("/a"));
    assert_eq!(grant.span, Duration::MAX);
    let writer = world.session();
    for _ in 0..100 {
        world.pass(TERM / 2);
        world.renew(holder, grant.incarnation).expect("it is renewed in time");
    }
    let start = world.now;
    assert_eq!(recalls(&world.write(writer, put("/a", b"1"))).len(), 1);
    let effects = world.pass(TERM + MARGIN + 2 * world.state.tick());
    assert!(matches!(answer(&effects), Answer::Written { .. }), "the holder is dead");
    assert!(world.now.since(start) <= TERM + MARGIN + 2 * world.state.tick());
}

/// Alex (Cate 1992): a fifth of the time since the last change.
#[test]
fn adaptive_object_term_is_a_share_of_the_age() {
    let alex = ObjectTerm::Adaptive { percent: ObjectTerm::ADAPTIVE_PERCENT, least: TERM, most: hours(24) };
    let mut world = World::with_settings(policy(alex, OnWrite::Recall, GrantPolicy::All));
    let writer = world.session();
    world.put_at_once(writer);
    let later = Proposal {
        epoch: world.state.epoch(),
        number: u64::MAX,
        time: world.state.cluster_time().after(hours(10)),
        commands: Vec::new(),
    };
    let term =
        |world: &mut World, reader: SessionId, object: Object| world.read(reader, object).grant.expect("a lease").span;
    let reader = world.session();
    world.acquire(reader, None);
    assert_eq!(term(&mut world, reader, data("/a")), TERM, "it has just changed");
    assert_eq!(term(&mut world, reader, data("/none")), TERM, "nobody knows since when it has not existed");
    world.index += 1;
    world.state.apply(world.index, &later);
    world.fail_over();
    let (reader, writer) = (world.session(), world.session());
    world.acquire(reader, None);
    let two_hours = term(&mut world, reader, data("/a"));
    assert!(two_hours >= hours(2) && two_hours < hours(2) + Duration::from_secs(60), "{two_hours:?}");
    world.write(writer, put("/a/x", b"1"));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    assert!(term(&mut world, reader, data("/a")) >= hours(2), "a child changes the list, and not the value");
    assert_eq!(term(&mut world, reader, Object::children(path("/a"))), TERM, "the list has just changed");
}

/// The first lease is short. A reader that validates its copy has come back, and gets the whole
/// term (Cao and Liu 1998).
#[test]
fn returning_readers_get_longer_leases() {
    let first = Duration::from_secs(1);
    let returning = policy(hours(1), OnWrite::Recall, GrantPolicy::Returning { first });
    let mut world = World::with_settings(returning);
    let (reader, writer) = (world.session(), world.session());
    world.put_at_once(writer);
    world.acquire(reader, None);
    let revision = world.state.modify_revision(&data("/a"));
    let mut span = |known, lease| world.read_with(reader, "/a", known, lease).grant.map(|grant| grant.span);
    assert_eq!(span(None, LeaseRequest::Implicit), Some(first));
    assert_eq!(span(revision, LeaseRequest::Returning), Some(hours(1)));
    assert_eq!(span(None, LeaseRequest::Explicit), Some(hours(1)));
    assert_eq!(span(None, LeaseRequest::Returning), Some(hours(1)), "a copy of the absence of a node has no revision");
    assert_eq!(span(revision, LeaseRequest::Unwanted), None);
}

/// A first lease may be shorter than a volume lease. A write waits for the longer of the leases on
/// its objects, and no longer.
#[test]
fn short_first_lease_delays_write_only_until_its_end() {
    let first = Duration::from_secs(1);
    let mut world = World::with_settings(policy(hours(1), OnWrite::Recall, GrantPolicy::Returning { first }));
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    assert_eq!(replies(&world.pass(first + MARGIN - MILLI)), []);
    let effects = world.pass(2 * clock::STEP_EVERY);
    assert!(matches!(answer(&effects), Answer::Written { .. }));
}

#[test]
fn leases_on_request_go_to_those_who_ask() {
    let mut world = World::with_settings(policy(hours(1), OnWrite::Recall, GrantPolicy::OnRequest));
    let (reader, writer) = (world.session(), world.session());
    world.acquire(reader, None);
    let answer = world.read_with(reader, "/a", None, LeaseRequest::Implicit);
    assert_eq!((answer.grant, answer.offer), (None, LeaseOffer::OnRequest));
    world.put_at_once(writer);
    assert!(world.read_with(reader, "/a", None, LeaseRequest::Explicit).grant.is_some());
    assert_eq!(recalls(&world.write(writer, put("/a", b"2"))).len(), 1);
}

/// However the leader knows of the copies: one by one, as a covering holder's, or not at all, after
/// a change of leader.
#[test]
fn waiting_write_sends_no_recall_and_waits_for_object_leases() {
    let object_term = TERM / 2;
    let settings = policy(object_term, OnWrite::Wait, GrantPolicy::All);
    for (tracking, fails_over) in
        [(Tracking::Objects, false), (Tracking::Covering, false), (Tracking::Objects, true), (Tracking::Covering, true)]
    {
        let mut world = World::with_settings(settings.with_tracking(tracking));
        let (holder, grant) = world.holder(&data("/a"));
        let writer = world.session();
        let granted = world.now;
        if fails_over {
            world.fail_over();
            world.request(writer, Body::Register);
            world.request(holder, Body::Register);
        }
        // The holder is alive, and renews its volume lease.
        world.pass(object_term / 2);
        world.renew(holder, grant.incarnation).expect("it is renewed in time");
        let start = world.now;
        let waited = world.wait_unasked(writer);
        let since_grant = world.now.since(granted);
        assert!(since_grant >= object_term + MARGIN, "{tracking:?} {fails_over}: the holder may use its copy");
        let bound = object_term + MARGIN + 2 * clock::STEP_EVERY;
        assert!(waited <= bound, "{tracking:?} {fails_over}: {waited:?}");
        if (tracking, fails_over) == (Tracking::Objects, false) {
            let bound = granted.after(bound).since(start);
            assert!(waited <= bound, "it waits for the known end: {waited:?}, expected at most {bound:?}");
        }
        world.renew(holder, grant.incarnation).expect("the volume lease is not cut short");
    }
}

/// Nobody has a copy: a write in such a volume does not wait at all.
#[test]
fn waiting_write_without_holders_waits_for_nobody() {
    let mut world = World::with_settings(policy(TERM, OnWrite::Wait, GrantPolicy::All));
    let (reader, writer) = (world.session(), world.session());
    world.acquire(reader, None);
    world.put_at_once(writer);
}

/// Waiting a second time could take longer than a volume term.
#[test]
fn waiting_write_that_lacks_consents_recalls() {
    let settings = policy(TERM, OnWrite::Wait, GrantPolicy::All).with_tracking(Tracking::Covering);
    let mut world = World::with_settings(settings);
    let writer = world.session();
    world.put_at_once(writer);
    let (holder, grant) = world.holder(&data("/b"));
    let delete = Write::Delete { path: path("/a"), recursive: false, condition: Condition::Any };
    let mut effects = world.write(writer, delete);
    // When it arrives it changes a value. When it is applied it makes a node, and so changes the
    // root's children, which the holder may have a copy of.
    effects.extend(world.write(writer, put("/a", b"2")));
    effects.extend(world.pass(TERM / 2));
    world.renew(holder, grant.incarnation).expect("it is renewed in time");
    effects.extend(world.pass(TERM / 2 + MARGIN - MILLI));
    assert_eq!((recalls(&effects), replies(&effects)), (Vec::new(), Vec::new()));
    let effects = world.pass(2 * clock::STEP_EVERY);
    let [recall] = recalls(&effects).try_into().expect("the put recalls");
    let recall: Recall = recall;
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    assert_eq!(world.lessor.writes.len(), 0);
}

#[test]
fn object_term_longer_than_volume_term_needs_recalls() {
    let refused = |object_term: ObjectTerm| {
        VolumeSettings::DEFAULT.with_policy(object_term, OnWrite::Wait, GrantPolicy::All).expect_err("too long")
    };
    for object_term in [ObjectTerm::Infinite, ObjectTerm::Fixed(TERM + MILLI)] {
        let text = refused(object_term).to_string();
        assert!(text.contains("200ms") && text.contains("10s"), "{text}");
    }
    let drift = DriftAllowance::DEFAULT;
    let waits = policy(TERM, OnWrite::Wait, GrantPolicy::All);
    assert_eq!(waits.longest_object_wait(drift), TERM + MARGIN, "a write waits no longer than for a dead client");
}

/// A write of somebody else waits for leases, and not for the last writer.
#[test]
fn put_in_a_waiting_volume_grants_no_lease() {
    let mut world = World::with_settings(policy(TERM, OnWrite::Wait, GrantPolicy::All));
    let (one, other) = (world.session(), world.session());
    world.acquire(one, None);
    world.put_at_once(one);
    world.put_at_once(other);
}

/// A leader that has been replaced, and does not know it, may still receive a retry, and then apply
/// the write. Its successor has waited for all leases that it knew of (S6, S9).
#[test]
fn retry_of_a_proposed_put_gets_no_lease() {
    for is_proposed in [false, true] {
        let mut world = World::new();
        let (writer, _) = world.holder(&data("/other"));
        let (blocker, grant) = world.holder(&data("/a"));
        world.write(writer, put("/a", b"1"));
        let consent = |world: &mut World| {
            let stamp = Stamp { sequence: grant.stamp.sequence + 1, ..grant.stamp };
            world.step(LessorInput::Consent(Consent { session: blocker, stamp }));
        };
        let again = |world: &mut World| {
            world.sequence -= 1;
            world.write(writer, put("/a", b"1"));
        };
        if !is_proposed {
            again(&mut world);
        }
        consent(&mut world);
        let proposal = world.lessor.take_proposal(world.now).expect("all have consented");
        if is_proposed {
            again(&mut world);
        }
        let answers = replies(&world.apply(&proposal));
        let grants: Vec<bool> =
            answers.iter().map(|answer| matches!(&answer.result, Ok(Answer::Written { grant: Some(_), .. }))).collect();
        // The first request was sent before the write was proposed, and so was a retry before that.
        assert_eq!(grants, if is_proposed { [true, false] } else { [false, true] });
    }
}

/// Nodes of ended leases are removed a few leases at a time, for all volumes. So that recalls.
#[test]
fn purge_in_a_waiting_volume_recalls() {
    let mut world = World::with_settings(policy(TERM, OnWrite::Wait, GrantPolicy::All));
    let owner = world.session();
    let lease = Write::GrantLease { id: Some(LeaseId(1)), name: None, ttl: Duration::from_secs(1) };
    world.write(owner, lease);
    world.commit();
    world.write(
        owner,
        Write::Put {
            path: path("/a"),
            value: Bytes::new(),
            condition: Condition::Any,
            attach: Attach::Lease(LeaseId(1)),
        },
    );
    world.commit();
    let (holder, _) = world.holder(&data("/a"));
    let effects = world.pass(Duration::from_secs(2));
    let [recall] = recalls(&effects).try_into().expect("the purge recalls");
    let recall: Recall = recall;
    assert_eq!(recall.session, holder);
}

/// A busy leader is stepped so often that its deadlines are never reached.
#[test]
fn waits_for_object_leases_end_in_any_step() {
    let object_term = TERM / 2;
    let mut world = World::with_settings(policy(object_term, OnWrite::Wait, GrantPolicy::All));
    let (holder, _) = world.holder(&data("/a"));
    let (writer, other) = (world.session(), world.session());
    world.write(writer, put("/a", b"1"));
    let start = world.now;
    let mut is_done = false;
    while !is_done {
        let most = object_term + MARGIN + 2 * clock::STEP_EVERY;
        assert!(world.now.since(start) <= most, "the write still waits for {holder}");
        assert!(world.lessor.next_deadline(world.now) <= world.now.after(clock::STEP_EVERY));
        world.now = world.now.after(clock::STEP_EVERY / 2);
        let mut effects = world.request(other, Body::Heartbeat(Default::default()));
        effects.extend(world.commit());
        is_done = replies(&effects).iter().any(|reply| matches!(reply.result, Ok(Answer::Written { .. })));
    }
}

/// Also after a change of leader, when the leader does not know the copies.
#[test]
fn object_term_below_the_volume_term_bounds_waits() {
    let object_term = TERM / 4;
    for is_failed_over in [false, true] {
        let mut world = World::with_settings(policy(object_term, OnWrite::Recall, GrantPolicy::All));
        let _ = world.holder(&data("/a"));
        let writer = world.session();
        if is_failed_over {
            world.fail_over();
            world.request(writer, Body::Register);
        }
        world.write(writer, put("/a", b"1"));
        assert_eq!(replies(&world.pass(object_term + MARGIN - MILLI)), []);
        let effects = world.pass(2 * clock::STEP_EVERY);
        assert!(matches!(answer(&effects), Answer::Written { .. }));
        // Its copies have ended, so the session is not asked again.
        assert_eq!(recalls(&world.write(writer, put("/b", b"1"))), []);
    }
}

#[test]
fn late_holder_report_prolongs_no_object_lease() {
    let object_term = TERM / 4;
    let mut world = World::with_settings(policy(object_term, OnWrite::Recall, GrantPolicy::All));
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    world.fail_over();
    world.request(writer, Body::Register);
    let Answer::Registered { coverings } = answer(&world.request(holder, Body::Register)) else { panic!("registered") };
    world.pass(object_term / 2);
    let (volume, incarnation, covering) = (NodePath::root(), grant.incarnation, coverings[0].number);
    let objects = vec![data("/a")];
    world.request(
        holder,
        Body::HolderReport(HolderReportPart { volume, incarnation, covering, part: 0, parts: 1, objects }),
    );
    assert_eq!(recalls(&world.write(writer, put("/a", b"1"))).len(), 1);
    assert_eq!(replies(&world.pass(object_term / 2 + MARGIN - MILLI)), []);
    let effects = world.pass(2 * clock::STEP_EVERY);
    assert!(matches!(answer(&effects), Answer::Written { .. }));
}

/// The leader asks for the object that it granted, even if the session never reports its others.
#[test]
fn session_without_report_is_asked_for_what_it_was_granted() {
    let object_term = TERM / 4;
    let mut world = World::with_settings(policy(object_term, OnWrite::Recall, GrantPolicy::All));
    let (holder, _) = world.holder(&data("/a"));
    let writer = world.session();
    world.fail_over();
    world.request(writer, Body::Register);
    world.request(holder, Body::Register);
    world.pass(object_term / 2);
    assert!(world.read_with(holder, "/a", None, LeaseRequest::Implicit).grant.is_some());
    world.pass(object_term / 2 + MARGIN + clock::STEP_EVERY);
    assert_eq!(recalls(&world.write(writer, put("/b", b"1"))), [], "unknown copies have ended");
    world.commit();
    assert_eq!(recalls(&world.write(writer, put("/a", b"1"))).len(), 1);
    assert_eq!(replies(&world.pass(object_term / 2 - 2 * clock::STEP_EVERY)), []);
    assert!(matches!(answer(&world.pass(3 * clock::STEP_EVERY)), Answer::Written { .. }));
}

/// A report that was on its way when the settings changed adds no lease, and nobody is asked.
#[test]
fn change_of_settings_ends_what_the_leader_does_not_know() {
    let short = policy(TERM / 10, OnWrite::Recall, GrantPolicy::All);
    for tracking in [Tracking::Objects, Tracking::Covering] {
        let mut world = World::with_settings(VolumeSettings::DEFAULT.with_tracking(tracking));
        let (holder, grant) = world.holder(&data("/a"));
        let writer = world.session();
        world.fail_over();
        world.request(writer, Body::Register);
        let Answer::Registered { coverings } = answer(&world.request(holder, Body::Register)) else { panic!("answer") };
        let number = coverings.first().map_or(CoveringNumber(0), |covering| covering.number);
        let set = Write::SetVolume { path: NodePath::root(), settings: short };
        let recalled = recalls(&world.write(writer, set));
        assert_eq!(recalled.len(), 1);
        let mut effects = world.step(LessorInput::Consent(Consent { session: holder, stamp: recalled[0].stamp }));
        effects.extend(world.commit());
        assert!(matches!(answer(&effects), Answer::Written { .. }));
        let report_part = HolderReportPart {
            volume: NodePath::root(),
            incarnation: grant.incarnation,
            covering: number,
            part: 0,
            parts: 1,
            objects: vec![data("/a")],
        };
        world.request(holder, Body::HolderReport(report_part));
        assert_eq!(recalls(&world.write(writer, put("/a", b"1"))), [], "{tracking:?}");
        world.commit();
        assert!(world.read_with(holder, "/a", None, LeaseRequest::Implicit).grant.is_some());
        assert_eq!(recalls(&world.write(writer, put("/a", b"2"))).len(), 1, "{tracking:?}");
        assert_eq!(replies(&world.pass(TERM / 10 + MARGIN - MILLI)), []);
        assert!(matches!(answer(&world.pass(2 * clock::STEP_EVERY)), Answer::Written { .. }), "{tracking:?}");
    }
}
