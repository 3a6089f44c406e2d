//! Volumes that are made and removed, and what the leader remembers of their lease holders.

use super::*;
use crate::{
    command::Attach,
    id::LeaseId,
    quota::{Quota, QuotaFigure},
    state::FEW_NODES,
    time::DriftAllowance,
    volume::{Tracking, VolumeSettings},
};

impl World {
    fn acquire_at(&mut self, session: SessionId, text: &str) -> Promise {
        self.request(session, Body::Acquire { path: path(text), last_valid: None, read: None });
        let answer = answer(&self.commit());
        let Answer::Acquired(acquired) = answer else { panic!("acquired: {answer:?}") };
        acquired.promise
    }

    /// Consents to all recalls among the effects, and commits what follows.
    fn obey(&mut self, effects: Vec<LessorEffect>) -> Vec<LessorEffect> {
        let mut all = Vec::new();
        for recall in recalls(&effects) {
            all.extend(self.step(LessorInput::Consent(Consent { session: recall.session, stamp: recall.stamp })));
        }
        all.extend(self.commit());
        all
    }

    fn has_copy(&self, session: SessionId, object: &Object) -> bool {
        self.lessor.object_leases.lease(object, session).is_some()
    }
}

fn create(text: &str) -> Write {
    Write::CreateVolume { path: path(text), settings: VolumeSettings::DEFAULT }
}

#[test]
fn new_volume_takes_its_objects_from_outer_one() {
    let mut world = World::new();
    let writer = world.session();
    let (holder, _) = world.holder(&data("/v/x"));
    assert!(world.read(holder, data("/other")).grant.is_some());
    let effects = world.write(writer, create("/v"));
    assert!(matches!(answer(&world.obey(effects)), Answer::Written { .. }));
    assert!(!world.has_copy(holder, &data("/v/x")) && world.has_copy(holder, &data("/other")));
    assert_eq!(world.read(holder, data("/v/x")).grant, None, "it has no lease on the new volume");
    let promise = world.acquire_at(holder, "/v/x");
    let grant = world.read(holder, data("/v/x")).grant.expect("under the new lease");
    assert_eq!((grant.volume, grant.incarnation), (path("/v"), promise.incarnation));
}

#[test]
fn a_volume_that_is_removed_takes_its_leases_with_it() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, create("/v"));
    world.commit();
    let (holder, _) = world.holder(&data("/other"));
    world.acquire_at(holder, "/v");
    assert!(world.read(holder, data("/v/x")).grant.is_some());
    let effects = world.write(writer, Write::RemoveVolume { path: path("/v") });
    assert!(matches!(answer(&world.obey(effects)), Answer::Written { .. }));
    let key = AnyLease::Volume(holder, path("/v"));
    assert!(world.lessor.leases.get(&key).is_none() && world.lessor.object_leases.track(&path("/v"), holder).is_none());
    assert!(world.has_copy(holder, &data("/other")));
    let grant = world.read(holder, data("/v/x")).grant.expect("the node belongs to the root volume");
    assert_eq!(grant.volume, NodePath::root());
}

#[test]
fn put_keeps_object_leases_on_descendants() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, put("/a", b"0"));
    world.commit();
    let (holder, _) = world.holder(&data("/a/x"));
    world.write(writer, put("/a", b"1"));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    assert!(world.has_copy(holder, &data("/a/x")));
    let effects = world.write(writer, put("/a/x", b"1"));
    assert_eq!(recalls(&effects).len(), 1);
}

#[test]
fn write_answer_is_stamped_after_all_earlier_grants() {
    let mut world = World::new();
    let (writer, grant) = world.holder(&data("/b"));
    world.write(writer, put("/a", b"1"));
    let Answer::Written { stamp, grant: Some(own), .. } = answer(&world.commit()) else {
        panic!("the answer has a lease")
    };
    assert!(grant.stamp < stamp && stamp < own.stamp, "{} {stamp} {}", grant.stamp, own.stamp);
    world.sequence -= 1;
    let Answer::Written { stamp: again, .. } = answer(&world.write(writer, put("/a", b"1"))) else { panic!("again") };
    assert!(own.stamp < again);
}

#[test]
fn session_with_too_many_objects_becomes_covering() {
    let mut world = World::new();
    world.lessor.config.limits.session_objects_max = 2;
    let writer = world.session();
    let (holder, _) = world.holder(&data("/1"));
    assert!(world.read(holder, data("/2")).grant.is_some());
    assert_eq!(recalls(&world.write(writer, put("/x", b"1"))), []);
    world.commit();
    assert!(world.read(holder, data("/3")).grant.is_some());
    for text in ["/1", "/y"] {
        assert_eq!(recalls(&world.write(writer, put(text, b"1"))).len(), 1, "{text}: the session may have any copy");
    }
}

#[test]
fn covering_volume_is_recalled_as_a_whole() {
    let mut world = World::new();
    let writer = world.session();
    let default = VolumeSettings::DEFAULT;
    let settings = VolumeSettings::new(
        default.term(),
        default.object_term(),
        default.skew_margin(),
        Tracking::Covering,
        DriftAllowance::DEFAULT,
    );
    world.write(writer, Write::SetVolume { path: NodePath::root(), settings: settings.expect("valid") });
    world.commit();
    let (_, _) = world.holder(&data("/a"));
    let effects = world.write(writer, put("/b", b"1"));
    assert_eq!(recalls(&effects).len(), 1, "the session's copies are not recorded");
}

#[test]
fn without_leases_nothing_is_proposed() {
    let mut world = World::new();
    let entries = world.index;
    world.pass(3 * TERM);
    assert_eq!(world.index, entries);
}

#[test]
fn holder_report_counts_no_objects_of_volume_being_created() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/v/x"));
    world.fail_over();
    let Answer::Registered { coverings } = answer(&world.request(holder, Body::Register)) else { panic!("registered") };
    let writer = world.session();
    let [recall] = recalls(&world.write(writer, create("/v"))).try_into().expect("one holder");
    let recall: Recall = recall;
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    let report_part = HolderReportPart {
        volume: NodePath::root(),
        incarnation: grant.incarnation,
        covering: coverings[0].number,
        part: 0,
        parts: 1,
        objects: vec![data("/v/x"), data("/other")],
    };
    world.request(holder, Body::HolderReport(report_part));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    assert!(!world.has_copy(holder, &data("/v/x")), "it had consented, and has no lease on the new volume");
    assert!(world.has_copy(holder, &data("/other")));
}

#[test]
fn volume_infos_count_sessions_with_leases() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, create("/v"));
    answer(&world.commit());
    let [on_both, ..] = [(); 3].map(|()| world.holder(&data("/a")).0);
    world.acquire_at(on_both, "/v");
    let answer = answer(&world.request(SessionId(0), Body::Inspect(Inspect::Volumes { path: NodePath::root() })));
    let Answer::Volumes(infos) = answer else { panic!("volumes: {answer:?}") };
    let leases: Vec<(&str, u64)> = infos.iter().map(|info| (info.path.as_str(), info.leases)).collect();
    assert_eq!(leases, [("/", 3), ("/v", 1)]);
}

/// A lease has nodes in two volumes. In one, with a term of a second, the servers track the
/// holder's copies. In the other, with a term of ten seconds, the holder is covering.
#[test]
fn removal_waits_for_lease_of_holder_in_covering_volume() {
    let second = Duration::from_secs(1);
    let mut world = World::new();
    let writer = world.session();
    for (volume, term, tracking) in [("/tracked", second, Tracking::Objects), ("/covered", TERM, Tracking::Covering)] {
        let margin = Duration::from_millis(100);
        let settings = VolumeSettings::new(term, term, margin, tracking, DriftAllowance::DEFAULT).expect("valid");
        world.write(writer, Write::CreateVolume { path: path(volume), settings });
        world.commit();
    }
    let lease = LeaseId(9);
    world.write(writer, Write::GrantLease { id: Some(lease), name: None, ttl: TERM * 10 });
    world.commit();
    for number in 0..=FEW_NODES {
        let volume = if number % 2 == 0 { "tracked" } else { "covered" };
        let (path, attach) = (path(&format!("/{volume}/{number}")), Attach::Lease(lease));
        world.write(writer, Write::Put { path, value: Bytes::new(), condition: Condition::Any, attach });
        world.commit();
    }
    let holder = world.session();
    for (volume, object) in [("/tracked", "/tracked/0"), ("/covered", "/covered/1")] {
        world.acquire_at(holder, volume);
        assert!(world.read(holder, data(object)).grant.is_some());
    }
    world.write(writer, Write::RevokeLease { id: lease, incarnation: None });
    world.pass(second * 5);
    assert!(world.state.node(&path("/covered/1")).is_some(), "the holder may read its copy for another 5 s");
    world.pass(second * 6);
    assert_eq!(world.state.node(&path("/covered/1")), None, "the write no longer waits for the holder");
}

/// A writer beyond its quota does not cost other clients their copies.
#[test]
fn write_beyond_quota_recalls_nothing_and_is_refused() {
    let mut world = World::new();
    let writer = world.session();
    let quota = Quota { nodes: Some(1), bytes: None };
    let settings = VolumeSettings::DEFAULT.with_quota(quota);
    world.write(writer, Write::SetVolume { path: path("/"), settings });
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    let list = Object::children(path("/"));
    let (holder, _) = world.holder(&list);
    assert_eq!(recalls(&world.write(writer, put("/a", b"1"))), []);
    let (path, volume, figure) = (path("/a"), path("/"), QuotaFigure::Nodes);
    let refusal = WriteRefusal::QuotaExceeded { path, volume, figure, got: 2, most: 1 };
    assert_eq!(result(&world.commit()), Err(Refusal::Write(refusal)));
    assert!(world.lessor.object_leases.lease(&list, holder).is_some(), "its copy is still valid");
}
