//! The lease limit of a volume: which leases are recalled to make room, and when.

use super::*;
use crate::{
    lease_policy::{GrantPolicy, OnWrite},
    lessor::object_leases::{GrantSource, ObjectLease},
    volume::Tracking,
};

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
fn lease_beyond_limit_recalls_the_oldest() {
    let (mut world, session) = World::limited(2);
    for text in ["/a", "/b"] {
        assert_eq!(world.limited_read(session, text), (true, Vec::new()));
    }
    let (has_lease, sent) = world.limited_read(session, "/c");
    assert!(has_lease);
    assert_eq!(sent.iter().map(recalled).collect::<Vec<_>>(), [["/a"]]);
    assert_eq!(world.stats().object_leases, 3, "the client may still use all copies");
    world.consent_to(&sent[0]);
    let stats = world.stats();
    assert_eq!((stats.object_leases, stats.counts.leases_recalled_for_room), (2, 1));
    assert_eq!(world.limited_read(session, "/c"), (true, Vec::new()), "a lease that is renewed is not a new one");
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
    assert!(has_lease);
    assert_eq!(sent.iter().map(|recall| recall.session).collect::<Vec<_>>(), [first]);
}

/// Also if it was granted later than others, as a short first lease is (Cao and Liu's two tiers).
#[test]
fn ended_lease_makes_room_without_recall() {
    let grants = GrantPolicy::Returning { first: TERM / 50 };
    let tiers = VolumeSettings::DEFAULT.with_policy(TERM * 9, OnWrite::Recall, grants).expect("valid");
    let (mut world, session) = World::limited_by(tiers.with_lease_limit(Some(2)));
    world.lessor.config.bounds.sweep_max = 0;
    assert!(world.limited_read(session, "/hot").0);
    let known = Some(world.state.revision());
    world.request(session, Body::Read { object: data("/hot"), known, lease: LeaseRequest::Explicit });
    world.step(LessorInput::Proven { round: world.lessor.round });
    assert!(world.limited_read(session, "/once").0);
    world.pass(TERM / 2);
    assert_eq!(world.limited_read(session, "/twice"), (true, Vec::new()));
    assert_eq!(world.stats().object_leases, 2, "the lease on /once has ended");
}

/// With a limit of sixteen, the leader recalls two more than the excess.
#[test]
fn recall_ahead_of_the_next_grants_shares_a_message() {
    let (mut world, session) = World::limited(16);
    for n in 0..16 {
        assert_eq!(world.limited_read(session, &format!("/{n:02}")), (true, Vec::new()));
    }
    let (_, sent) = world.limited_read(session, "/16");
    assert_eq!(sent.iter().map(recalled).collect::<Vec<_>>(), [["/00", "/01", "/02"]]);
    for text in ["/17", "/18"] {
        assert_eq!(world.limited_read(session, text), (true, Vec::new()), "there is room, without a consent");
    }
    world.lessor.config.bounds.recall_sets_max = 2;
    let (_, sent) = world.limited_read(session, "/19");
    assert_eq!(sent.iter().map(recalled).collect::<Vec<_>>(), [vec!["/03", "/04"], vec!["/05"]]);
}

/// A client that is gone costs the others nothing.
#[test]
fn silent_holder_takes_no_room_from_others() {
    let (mut world, silent) = World::limited(2);
    let reader = world.session();
    world.acquire(reader, None);
    for text in ["/a", "/b"] {
        assert!(world.limited_read(silent, text).0);
    }
    for text in ["/c", "/d"] {
        let (has_lease, sent) = world.limited_read(reader, text);
        assert!(has_lease && sent.iter().all(|recall| recall.session == silent), "{text}: {sent:?}");
    }
    assert_eq!(world.stats().object_leases, 4, "two of them are recalled");
}

#[test]
fn covering_session_takes_no_room() {
    let covering = VolumeSettings::DEFAULT.with_tracking(Tracking::Covering).with_lease_limit(Some(1));
    let (mut world, session) = World::limited_by(covering);
    for text in ["/a", "/b", "/c"] {
        assert_eq!(world.limited_read(session, text), (true, Vec::new()));
    }
    assert_eq!(world.stats().object_leases, 0);
}

/// The copies exist, whatever the limit is, so a new leader records them (S7).
#[test]
fn reported_copies_beyond_limit_are_recalled_at_once() {
    let (mut world, session) = World::limited(2);
    let AcquiredVolume { promise, .. } = world.acquire(session, None);
    world.fail_over();
    let Answer::Registered { coverings } = answer(&world.request(session, Body::Register)) else {
        panic!("registered")
    };
    let part = HolderReportPart {
        volume: NodePath::root(),
        incarnation: promise.incarnation,
        covering: coverings[0].number,
        part: 0,
        parts: 1,
        objects: ["/a", "/b", "/c", "/d"].map(data).to_vec(),
    };
    let sent = recalls(&world.request(session, Body::HolderReport(part)));
    assert_eq!(sent.iter().map(recalled).collect::<Vec<_>>(), [["/a", "/b"]]);
    world.consent_to(&sent[0]);
    assert_eq!(world.stats().object_leases, 2);
}

/// Each step takes a bounded number of leases, and asks for the next step.
#[test]
fn large_excess_is_recalled_in_several_steps() {
    let (mut world, session) = World::limited(1);
    let (root, state) = (NodePath::root(), &world.state);
    for n in 0..2500 {
        let object = data(&format!("/{n}"));
        let expires_at = world.lessor.clock.ending_time().after(TERM);
        let lease = ObjectLease { expires_at, source: GrantSource::granted(0) };
        world.lessor.object_leases.add(&root, &object, session, lease, 10_000, state);
        world.lessor.note_recorded(&root, &object, session, state);
    }
    let mut counts = Vec::new();
    while world.lessor.next_deadline(world.now).since(world.now) == MILLI {
        let sent = recalls(&world.step(LessorInput::Timeout));
        counts.push(sent.iter().map(|recall| recall.sets.len()).sum::<usize>());
        world.now = world.now.after(MILLI);
    }
    assert_eq!(counts, [1024, 1024, 451]);
}

/// A session that never consents costs a bounded number of recalls.
#[test]
fn session_that_answers_no_recall_gets_no_further_lease() {
    let (mut world, session) = World::limited(0);
    let mut sent = Vec::new();
    while let (true, recalls) = world.limited_read(session, "/a") {
        sent.extend(recalls);
    }
    assert_eq!(sent.len(), 1024);
    world.consent_to(&sent[0]);
    assert!(world.limited_read(session, "/a").0);
}

/// Leases that have ended, and are not swept yet, need no consent to the new settings.
#[test]
fn lowered_limit_counts_no_ended_leases() {
    let short = VolumeSettings::new(TERM, TERM / 10, TERM, Tracking::Objects, DriftAllowance::DEFAULT).expect("valid");
    let (mut world, session) = World::limited_by(short.with_lease_limit(Some(9)));
    world.lessor.config.bounds.sweep_max = 0;
    for n in 0..9 {
        assert!(world.limited_read(session, &format!("/{n}")).0);
    }
    world.pass(TERM / 10 + TERM + MILLI);
    let settings = short.with_lease_limit(Some(1));
    let write = Write::SetVolume { path: NodePath::root(), settings };
    assert_eq!(recalls(&world.write(session, write)), []);
    assert_eq!(recalls(&world.commit()), []);
    assert_eq!(world.stats().object_leases, 1, "the others are removed without a recall");
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
}
