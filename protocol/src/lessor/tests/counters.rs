//! What the lessor counts for each volume.

use super::*;
use crate::{
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    message::{CachedReads, ReadGaps, SpanCounts, VolumeCounts, VolumeStats},
    volume::Tracking,
};

impl World {
    fn stats_of(&mut self, volume: &str) -> Option<VolumeStats> {
        let inspect = Inspect::VolumeStats { path: path(volume) };
        let answer = answer(&self.request(SessionId(0), Body::Inspect(inspect)));
        let Answer::VolumeStats(stats) = answer else { panic!("the stats of a volume: {answer:?}") };
        stats.map(|stats| *stats)
    }

    pub(super) fn stats(&mut self) -> VolumeStats {
        self.stats_of("/").expect("the root is a volume")
    }

    fn counts(&mut self) -> VolumeCounts {
        self.stats().counts
    }

    /// How many waits each event ended: consents, ends of volume leases and of object leases, and
    /// earlier writes.
    fn waits_ended(&mut self) -> [u64; 4] {
        let waits = self.counts().waits;
        [waits.consent, waits.volume_lease, waits.object_lease, waits.earlier_write].map(|spans| spans.count)
    }

    fn make_volume(&mut self, text: &str, settings: VolumeSettings) {
        let session = self.session();
        self.write(session, Write::CreateVolume { path: path(text), settings });
        answer(&self.commit());
    }
}

fn only(spans: &SpanCounts) -> Duration {
    assert_eq!((spans.count, spans.ranges.iter().sum::<u64>(), spans.longest), (1, 1, spans.total), "{spans:?}");
    spans.total
}

#[test]
fn reads_are_counted_by_their_answer() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let unleased = world.session();
    assert_eq!(world.read(unleased, data("/a")).grant, None);
    world.write(unleased, put("/b", b"1"));
    world.commit();
    let known = world.state.modify_revision(&data("/b"));
    world.request(holder, Body::Read { object: data("/b"), known, lease: LeaseRequest::Implicit });
    let validated = answer(&world.step(LessorInput::Proven { round: world.lessor.round }));
    assert!(matches!(validated, Answer::Read(ReadAnswer { content: None, grant: Some(_), .. })), "{validated:?}");
    world.request(unleased, Body::List { path: path("/"), after: None, nodes_max: 9 });
    answer(&world.step(LessorInput::Proven { round: world.lessor.round }));
    let counts = world.counts();
    assert_eq!(
        (counts.reads_leased, counts.reads_unleased, counts.reads_not_modified, counts.list_pages),
        (2, 1, 1, 1),
        "{counts:?}"
    );
    world.write(unleased, put("/b", b"2"));
    world.pass(2 * TERM);
    world.request(holder, Body::Read { object: data("/b"), known, lease: LeaseRequest::Implicit });
    answer(&world.step(LessorInput::Proven { round: world.lessor.round }));
    let counts = world.counts();
    assert_eq!((counts.reads_validating, counts.reads_not_modified), (2, 1), "the copy was old: {counts:?}");
}

#[test]
fn reads_from_memory_are_counted_as_reported() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let report = |world: &mut World, session, registration, reads| {
        let mut gaps = ReadGaps::default();
        gaps.add(MILLI);
        let reads = |volume| CachedReads { volume: path(volume), reads, gaps };
        let epoch = world.state.epoch();
        let cached_reads = vec![reads("/"), reads("/no-volume")];
        let header = RequestHeader { session, epoch, registration, cached_reads, ..RequestHeader::default() };
        world.send(Request { header, body: Body::Heartbeat(Default::default()) });
        world.counts().reads_from_memory
    };
    let registration = world.registration(holder);
    assert_eq!(report(&mut world, holder, registration, 5), 5);
    assert_eq!(report(&mut world, holder, registration, 7), 12);
    assert_eq!(report(&mut world, holder, registration + 1, 7), 12, "a refused request reports nothing");
    assert_eq!(report(&mut world, SessionId(0), 0, 7), 12, "nor does one without a session");
    assert_eq!(report(&mut world, holder, registration, u64::MAX), u64::MAX);
    assert_eq!((world.counts().read_gaps.classes[0], world.counts().read_gaps.count()), (3, 3));
    world.lessor.check(&world.state).expect("only volumes have counters");
}

#[test]
fn writes_and_leases_are_counted_for_advice() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    world.read(holder, data("/b"));
    world.pass(MILLI * 100);
    world.write(holder, put("/a", b"1"));
    world.write(holder, put("/c", b"1"));
    let counts = world.counts();
    assert_eq!((counts.writes, counts.writes_by_holders), (2, 1), "it has no lease on /c");
    assert_eq!((counts.acquisitions, counts.object_lease_ms), (1, 2 * 100), "two leases for 100 ms");
    world.request(holder, Body::Heartbeat(Default::default()));
    let counts = world.counts();
    assert_eq!((counts.heartbeats_idle, counts.renewals_alone), (1, 0), "it names no lease");
    let unleased = world.session();
    world.request(unleased, Body::Heartbeat(Default::default()));
    assert_eq!(world.counts().heartbeats_idle, 1, "the session has no lease on the volume");
}

#[test]
fn renewals_are_counted_by_their_request() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    world.renew(holder, grant.incarnation).expect("the lease has not ended");
    let renewals = |world: &mut World| {
        let counts = world.counts();
        [counts.renewals_alone, counts.renewals_piggybacked]
    };
    assert_eq!(renewals(&mut world), [1, 0]);
    let header = RequestHeader {
        session: holder,
        epoch: world.state.epoch(),
        registration: world.registration(holder),
        renew: vec![Renew { volume: NodePath::root(), incarnation: grant.incarnation }],
        ..RequestHeader::default()
    };
    let body = Body::Read { object: data("/b"), known: None, lease: LeaseRequest::Implicit };
    world.send(Request { header, body });
    assert_eq!(renewals(&mut world), [1, 1]);
    world.renew(holder, Incarnation(999)).expect_err("no such lease");
    assert_eq!(renewals(&mut world), [1, 1], "a lapse is no renewal");
}

#[test]
fn recalls_and_consents_are_counted_with_their_times() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    let [recall] = recalls(&world.write(writer, put("/a", b"1"))).try_into().expect("one holder");
    world.write(writer, put("/a", b"2"));
    assert_eq!(world.counts().recalls, 1, "the unanswered recall serves both writes");
    world.pass(300 * MILLI);
    world.consent_to(&recall);
    world.consent_to(&recall);
    let counts = world.counts();
    assert_eq!((counts.recalls, only(&counts.consents)), (1, 300 * MILLI), "{counts:?}");
    assert_eq!(counts.consents.percentile(50), 300 * MILLI, "at most the longest");
}

#[test]
fn recall_made_before_registration_counts_once() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let writer = world.session();
    world.fail_over();
    world.request(writer, Body::Register);
    assert_eq!(recalls(&world.write(writer, put("/a", b"1"))), [], "the holder is not registered");
    assert_eq!(world.counts().recalls, 1);
    assert_eq!(recalls(&world.request(holder, Body::Register)).len(), 1);
    assert_eq!(world.counts().recalls, 1);
}

#[test]
fn waits_are_counted_by_consent_and_by_earlier_write() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    world.write(writer, put("/other", b"1"));
    world.commit();
    assert_eq!((world.counts().writes, world.waits_ended()), (1, [0; 4]), "it did not wait");
    let [recall] = recalls(&world.write(writer, put("/a", b"1"))).try_into().expect("one holder");
    world.write(writer, put("/a", b"2"));
    world.pass(100 * MILLI);
    world.consent_to(&recall);
    let counts = world.counts();
    // The second write shares the recall. It waits for the consent, and then for the first write.
    assert_eq!((counts.writes, world.waits_ended()), (3, [1, 0, 0, 1]), "{counts:?}");
    assert_eq!([only(&counts.waits.consent), only(&counts.waits.earlier_write)], [100 * MILLI; 2]);
}

#[test]
fn wait_for_silent_holder_ends_with_its_volume_lease() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    world.pass(2 * TERM);
    assert_eq!(world.waits_ended(), [0, 1, 0, 0]);
    let waited = only(&world.counts().waits.volume_lease);
    assert!(waited > TERM && waited < TERM + 2 * VolumeSettings::DEFAULT.skew_margin(), "{waited:?}");
    assert_eq!(world.counts().consents, SpanCounts::default());
}

#[test]
fn wait_without_recall_ends_with_the_object_lease() {
    let mut world = World::new();
    let settings = VolumeSettings::DEFAULT.with_policy(ObjectTerm::Fixed(TERM / 4), OnWrite::Wait, GrantPolicy::All);
    world.make_volume("/v", settings.expect("valid"));
    let (holder, writer) = (world.session(), world.session());
    world.request(holder, Body::Acquire { path: path("/v"), last_valid: None, read: None });
    world.commit();
    assert!(world.read(holder, data("/v/a")).grant.is_some());
    world.write(writer, put("/v/a", b"1"));
    world.pass(TERM / 2);
    let counts = world.stats_of("/v").expect("a volume").counts;
    assert_eq!((counts.writes, counts.recalls, counts.reads_leased), (1, 0, 1));
    assert!(only(&counts.waits.object_lease) >= TERM / 4, "{counts:?}");
}

#[test]
fn stats_show_the_leases_of_the_volume_now() {
    let mut world = World::new();
    world.make_volume("/v", VolumeSettings::DEFAULT.with_tracking(Tracking::Covering));
    let sums = |stats: &VolumeStats| (stats.volume_leases, stats.object_leases, stats.covering_sessions);
    assert_eq!((sums(&world.stats()), world.stats().lease_bytes), ((0, 0, 0), 0));
    let (holder, _) = world.holder(&data("/a"));
    world.read(holder, data("/b"));
    world.request(holder, Body::Acquire { path: path("/v"), last_valid: None, read: None });
    world.commit();
    world.read(holder, data("/v/a"));
    let (root, inner) = (world.stats(), world.stats_of("/v").expect("a volume"));
    assert_eq!((sums(&root), sums(&inner)), ((1, 2, 0), (1, 0, 1)));
    assert!(root.lease_bytes > inner.lease_bytes && inner.lease_bytes > 0, "{root:?} {inner:?}");
    world.pass(2 * TERM);
    assert_eq!((sums(&world.stats()), world.stats().lease_bytes), ((0, 0, 0), 0), "the leases have ended");
}

#[test]
fn counters_begin_and_end_with_their_volume() {
    let mut world = World::new();
    world.pass(TERM);
    let session = world.session();
    world.make_volume("/v", VolumeSettings::DEFAULT);
    world.pass(MILLI);
    let stats = world.stats_of("/v").expect("a volume");
    assert_eq!((stats.path, stats.counted_for, stats.counts), (path("/v"), MILLI, VolumeCounts::default()));
    assert_eq!(world.stats().counted_for, TERM + MILLI);
    world.write(session, put("/v/a", b"1"));
    world.commit();
    world.write(session, Write::SetVolume { path: path("/v"), settings: VolumeSettings::DEFAULT });
    world.commit();
    let stats = world.stats_of("/v").expect("a volume");
    assert_eq!((stats.counts, stats.counted_for), (VolumeCounts::default(), Duration::ZERO), "other settings");
    world.write(session, Write::RemoveVolume { path: path("/v") });
    world.commit();
    assert_eq!((world.stats_of("/v"), world.stats_of("/v/a")), (None, None), "no volumes");
    world.make_volume("/v", VolumeSettings::DEFAULT);
    assert_eq!(world.stats_of("/v").expect("a volume").counts, VolumeCounts::default());
    world.fail_over();
    assert_eq!((world.counts(), world.stats().counted_for), (VolumeCounts::default(), Duration::ZERO));
}

#[test]
fn consent_after_its_volume_was_removed_counts_nowhere() {
    let mut world = World::new();
    world.make_volume("/v", VolumeSettings::DEFAULT);
    let (holder, writer) = (world.session(), world.session());
    world.request(holder, Body::Acquire { path: path("/v"), last_valid: None, read: None });
    world.commit();
    world.read(holder, data("/v/a"));
    world.write(writer, Write::RemoveVolume { path: path("/v") });
    world.pass(2 * TERM);
    let [recall] = recalls(&world.request(holder, Body::Register)).try_into().expect("it is still unanswered");
    world.consent_to(&recall);
    assert_eq!((world.stats_of("/v"), world.counts().consents.count), (None, 0));
}

/// The exhaustive exploration takes lessors with one hash as the same.
#[test]
fn counters_do_not_change_the_hash_of_the_lessor() {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    let mut world = World::new();
    let hash = |lessor: &Lessor| BuildHasherDefault::<DefaultHasher>::default().hash_one(lessor);
    let before = hash(&world.lessor);
    world.lessor.counters.0.note_list_page(&NodePath::root());
    assert_eq!(hash(&world.lessor), before);
    assert_eq!(world.counts().list_pages, 1);
}

/// Installed files: the leader knows one lease for each session, however many objects it has.
#[test]
fn state_of_a_covering_session_does_not_grow_with_its_objects() {
    let mut world = World::new();
    world.make_volume("/v", VolumeSettings::DEFAULT.with_tracking(Tracking::Covering));
    let bytes_after = |world: &mut World, session, objects: u32| {
        for number in 0..objects {
            assert!(world.read(session, data(&format!("/v/{number}"))).grant.is_some());
        }
        let stats = world.stats_of("/v").expect("a volume");
        assert_eq!((stats.object_leases, stats.covering_sessions), (0, 1));
        stats.lease_bytes
    };
    let session = world.session();
    world.request(session, Body::Acquire { path: path("/v"), last_valid: None, read: None });
    world.commit();
    assert_eq!(bytes_after(&mut world, session, 1), bytes_after(&mut world, session, 1000));
}
