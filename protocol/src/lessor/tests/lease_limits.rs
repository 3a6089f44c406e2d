//! The lease limit of a volume: which leases are recalled to make room, and when.

use super::*;
use crate::volume::Tracking;

impl World {
    /// A leader of a cluster whose root volume has this limit, and a session with a lease on it.
    fn limited(limit: u32) -> (Self, SessionId) {
        Self::limited_by(VolumeSettings::DEFAULT.with_lease_limit(Some(limit)))
    }

    fn limited_by(settings: VolumeSettings) -> (Self, SessionId) {
        let mut world = Self::before_the_epoch();
        world.state = State::new(settings);
        world.lessor = Lessor::new(config(1), &world.state, Duration::ZERO, world.now);
        world.commit();
        let session = world.session();
        world.acquire(session, None);
        (world, session)
    }

    /// Reads the node. Returns whether it got a lease, and the recalls of that step.
    fn limited_read(&mut self, session: SessionId, text: &str) -> (bool, Vec<Recall>) {
        let body = Body::Read { object: data(text), known: None, lease: LeaseRequest::Implicit };
        self.request(session, body);
        let effects = self.step(LessorInput::Proven { round: self.lessor.round });
        let Answer::Read(read) = answer(&effects) else { panic!("read") };
        (read.grant.is_some(), recalls(&effects))
    }
}

/// The nodes that a recall names.
fn recalled(recall: &Recall) -> Vec<String> {
    recall.sets.iter().map(|set| set.path().to_string()).collect()
}

#[test]
fn read_at_limit_gets_no_lease_and_recalls_oldest() {
    let (mut world, session) = World::limited(2);
    assert_eq!(world.limited_read(session, "/a"), (true, Vec::new()));
    assert_eq!(world.limited_read(session, "/b"), (true, Vec::new()));
    let (has_lease, sent) = world.limited_read(session, "/c");
    assert!(!has_lease);
    assert_eq!(sent.iter().map(recalled).collect::<Vec<_>>(), [["/a"]]);
    assert_eq!(world.stats().object_leases, 2, "the client may still use both copies");
    world.consent_to(&sent[0]);
    assert_eq!(world.stats().object_leases, 1);
    assert_eq!(world.limited_read(session, "/c"), (true, Vec::new()));
    let stats = world.stats();
    assert_eq!(
        (stats.object_leases, stats.counts.reads_without_room, stats.counts.leases_recalled_for_room),
        (2, 1, 1)
    );
}

#[test]
fn renewed_lease_is_recalled_after_others() {
    let (mut world, session) = World::limited(2);
    for text in ["/a", "/b", "/a"] {
        assert_eq!(world.limited_read(session, text), (true, Vec::new()));
    }
    let (_, sent) = world.limited_read(session, "/c");
    assert_eq!(sent.iter().map(recalled).collect::<Vec<_>>(), [["/b"]]);
}

#[test]
fn limit_counts_leases_of_all_sessions() {
    let (mut world, first) = World::limited(1);
    let second = world.session();
    world.acquire(second, None);
    assert!(world.limited_read(first, "/a").0);
    let (has_lease, sent) = world.limited_read(second, "/a");
    assert!(!has_lease);
    assert_eq!(sent.iter().map(|recall| recall.session).collect::<Vec<_>>(), [first]);
}

#[test]
fn ended_lease_makes_room_without_recall() {
    let short = VolumeSettings::new(TERM, TERM / 10, TERM, Tracking::Objects, DriftAllowance::DEFAULT).expect("valid");
    let (mut world, session) = World::limited_by(short.with_lease_limit(Some(1)));
    world.lessor.config.bounds.sweep_max = 0;
    assert!(world.limited_read(session, "/a").0);
    let acquired = world.now;
    world.pass(TERM / 10 + TERM + MILLI);
    assert!(world.now.since(acquired) < 2 * TERM, "the volume lease has not ended");
    assert_eq!(world.limited_read(session, "/b"), (false, Vec::new()), "the step makes room at its end");
    assert!(world.limited_read(session, "/b").0);
}

/// Twenty leases: a batch is three of them.
#[test]
fn next_batch_is_recalled_when_last_one_is_answered_or_late() {
    let (mut world, session) = World::limited(20);
    for n in 0..20 {
        assert!(world.limited_read(session, &format!("/{n:02}")).0);
    }
    let (_, first) = world.limited_read(session, "/x");
    assert_eq!(first.iter().map(recalled).collect::<Vec<_>>(), [["/00", "/01", "/02"]]);
    assert_eq!(world.limited_read(session, "/x"), (false, Vec::new()), "the batch is unanswered");
    world.pass(crate::lessor::recalls::RECALL_RESEND_INTERVAL);
    let (_, second) = world.limited_read(session, "/x");
    let names: Vec<_> = second.iter().map(recalled).collect();
    assert!(names.contains(&["/03", "/04", "/05"].map(str::to_owned).to_vec()), "{names:?}");
    for recall in first.iter().chain(&second) {
        world.consent_to(recall);
    }
    for text in ["/x", "/y", "/z"] {
        assert_eq!(world.limited_read(session, text), (true, Vec::new()));
    }
}

#[test]
fn leases_of_one_session_share_recalls_of_bounded_length() {
    let (mut world, session) = World::limited(20);
    world.lessor.config.bounds.recall_sets_max = 2;
    for n in 0..20 {
        assert!(world.limited_read(session, &format!("/{n:02}")).0);
    }
    let (_, sent) = world.limited_read(session, "/x");
    assert_eq!(sent.iter().map(recalled).collect::<Vec<_>>(), [vec!["/00", "/01"], vec!["/02"]]);
}

#[test]
fn covering_session_needs_no_room() {
    let covering = VolumeSettings::DEFAULT.with_tracking(Tracking::Covering).with_lease_limit(Some(1));
    let (mut world, session) = World::limited_by(covering);
    for text in ["/a", "/b", "/c"] {
        assert_eq!(world.limited_read(session, text), (true, Vec::new()));
    }
    assert_eq!(world.stats().object_leases, 0);
}

#[test]
fn limit_of_zero_grants_nothing() {
    let (mut world, session) = World::limited(0);
    assert_eq!(world.limited_read(session, "/a"), (false, Vec::new()));
    assert_eq!(world.limited_read(session, "/a"), (false, Vec::new()));
}

/// The copies exist, whatever the limit is, so a new leader must record them (S7).
#[test]
fn new_leader_records_all_reported_copies_and_then_makes_room() {
    let (mut world, session) = World::limited(2);
    let AcquiredVolume { promise, .. } = world.acquire(session, None);
    world.fail_over();
    let Answer::Registered { coverings } = answer(&world.request(session, Body::Register)) else {
        panic!("registered")
    };
    let covering = coverings[0].number;
    let part = HolderReportPart {
        volume: NodePath::root(),
        incarnation: promise.incarnation,
        covering,
        part: 0,
        parts: 1,
        objects: ["/a", "/b", "/c"].map(data).to_vec(),
    };
    world.request(session, Body::HolderReport(part));
    assert_eq!(world.stats().object_leases, 3);
    let mut sent = Vec::new();
    for _ in 0..3 {
        let (has_lease, recalls) = world.limited_read(session, "/d");
        for recall in &recalls {
            world.consent_to(recall);
        }
        sent.extend(recalls.iter().map(recalled));
        if has_lease {
            break;
        }
    }
    assert_eq!(sent, [["/a"], ["/b"]]);
    assert_eq!(world.stats().object_leases, 2);
}

/// New settings drop all copies, so they also end the limit.
#[test]
fn changed_limit_counts_from_the_change() {
    let (mut world, session) = World::limited(1);
    assert!(world.limited_read(session, "/a").0);
    let write = Write::SetVolume { path: NodePath::root(), settings: VolumeSettings::DEFAULT };
    let writer = world.session();
    let effects = world.write(writer, write);
    for recall in recalls(&effects) {
        world.consent_to(&recall);
    }
    world.commit();
    for text in ["/a", "/b", "/c"] {
        assert_eq!(world.limited_read(session, text), (true, Vec::new()));
    }
    assert_eq!(world.lessor.lease_limits.size(), 0);
}
