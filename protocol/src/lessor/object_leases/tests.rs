//! Tests of the object leases.

use super::{holders::PossibleHolder, *};
use crate::volume::VolumeSettings;

/// The first session, which is covering if the end of its object lease is not known.
fn possible_holder(expires_at: Option<ClusterTime>) -> PossibleHolder {
    PossibleHolder { session: SessionId(1), volume: NodePath::root(), expires_at, is_covering: expires_at.is_none() }
}

#[test]
fn holder_report_does_not_raise_grant_stamps() {
    let state = State::new(VolumeSettings::DEFAULT);
    let (session, object) = (SessionId(1), Object::data(NodePath::root()));
    let mut table = ObjectLeases::default();
    table.start_tracking(NodePath::root(), session, Incarnation(1), CopyTracking::Exact);
    let mut add = |sequence, is_listed, seconds| {
        let expires_at = ClusterTime::ZERO.after(std::time::Duration::from_secs(seconds));
        let source = if is_listed { GrantSource::reported(sequence) } else { GrantSource::granted(sequence) };
        let lease = ObjectLease { expires_at, source };
        table.add(&NodePath::root(), &object, session, lease, 9, &state);
        let lease = table.lease(&object, session).expect("the lease was added");
        (lease.source.sequence(), lease.source.is_reported(), lease.expires_at.as_micros() / 1_000_000)
    };
    assert_eq!(add(2, true, 10), (2, true, 10));
    assert_eq!(add(3, true, 9), (3, true, 10), "the report may name a later grant");
    assert_eq!(add(4, false, 20), (4, false, 20));
    assert_eq!(add(9, true, 30), (4, false, 30), "a consent to a recall between 4 and 9 drops it");
}

fn secs(secs: u64) -> ClusterTime {
    ClusterTime::ZERO.after(std::time::Duration::from_secs(secs))
}

/// One session's leases on the data of these nodes, each with its end in seconds.
fn leased(leases: &[(&str, u64)], state: &State) -> ObjectLeases {
    let mut table = ObjectLeases::default();
    table.start_tracking(NodePath::root(), SessionId(1), Incarnation(1), CopyTracking::Exact);
    for (text, expires_at) in leases {
        let lease = ObjectLease { expires_at: secs(*expires_at), source: GrantSource::granted(1) };
        table.add(&NodePath::root(), &object(text), SessionId(1), lease, 9, state);
    }
    table
}

fn object(text: &str) -> Object {
    Object::data(NodePath::parse(text).expect("valid"))
}

#[test]
fn expired_object_lease_has_no_holder() {
    let state = State::new(VolumeSettings::DEFAULT);
    let table = leased(&[("/a", 10)], &state);
    let holders = |now| table.few_holders(&object("/a"), 9, secs(now), &state);
    assert_eq!(holders(9), [possible_holder(Some(secs(10)))]);
    assert_eq!(holders(10), []);
}

#[test]
fn expired_object_leases_are_swept_in_batches() {
    let state = State::new(VolumeSettings::DEFAULT);
    let sweep = |table: &mut ObjectLeases, now| {
        table.sweep(secs(now), 2);
        assert_eq!(table.check(), Ok(()));
        let names: Vec<_> = table.entries.iter().map(|(object, ..)| object.path.to_string()).collect();
        names.concat()
    };
    let mut table = leased(&[("/a", 20), ("/b", 90), ("/c", 10), ("/d", 90)], &state);
    assert_eq!(sweep(&mut table, 10), "/a/b/c/d");
    assert_eq!(sweep(&mut table, 10), "/a/b/d", "the sweep continues where it stopped");
    let swept: Vec<_> = (0..4).map(|_| sweep(&mut table, 20)).collect();
    assert_eq!(swept.last().map(String::as_str), Some("/b/d"), "the sweep starts again after the last lease");
    let swept: Vec<_> = (0..4).map(|_| sweep(&mut table, 90)).collect();
    assert_eq!(swept.last().map(String::as_str), Some(""));
}

/// One session's leases on 1,000 objects below `/a`, with stamps from 1 on.
fn many(state: &State) -> ObjectLeases {
    let mut table = ObjectLeases::default();
    table.start_tracking(NodePath::root(), SessionId(1), Incarnation(1), CopyTracking::Exact);
    (1..=1_000).for_each(|stamp| add(&mut table, &format!("/a/{stamp}"), stamp, state));
    table
}

fn add(table: &mut ObjectLeases, text: &str, stamp: u64, state: &State) {
    let lease = ObjectLease { expires_at: secs(90), source: GrantSource::granted(stamp) };
    table.add(&NodePath::root(), &object(text), SessionId(1), lease, 5_000, state);
}

fn tidy(table: &mut ObjectLeases) -> usize {
    let steps = (0..100).take_while(|_| {
        let is_tidying = table.is_tidying();
        table.tidy();
        assert_eq!(table.check(), Ok(()));
        is_tidying
    });
    steps.count()
}

#[test]
fn leases_of_an_ended_track_are_removed_in_parts() {
    let state = State::new(VolumeSettings::DEFAULT);
    let mut table = many(&state);
    let top = ObjectSet::Subtree(NodePath::parse("/a").expect("valid"));
    assert_eq!(table.sessions_in(&top, secs(1)).len(), 1);
    crate::work::take_visited();
    table.start_tracking(NodePath::root(), SessionId(1), Incarnation(2), CopyTracking::Exact);
    assert!(crate::work::take_visited() < 6 * FORGOTTEN_PER_STEP as u64);
    assert_eq!((table.check(), table.len()), (Ok(()), 1_000 - FORGOTTEN_PER_STEP));
    assert!(table.sessions_in(&top, secs(1)).is_empty() && table.lease(&object("/a/999"), SessionId(1)).is_none());
    add(&mut table, "/a/999", 1_001, &state);
    add(&mut table, "/a/1", 1_002, &state);
    assert_eq!(table.check(), Ok(()));
    assert_eq!(tidy(&mut table), 1_000 / FORGOTTEN_PER_STEP);
    let left: Vec<String> = table.entries.iter().map(|(object, ..)| object.path.to_string()).collect();
    assert_eq!(left, ["/a/1", "/a/999"], "a grant under the new lease is valid");
}

#[test]
fn dropped_leases_are_invalid_and_later_grants_valid() {
    let state = State::new(VolumeSettings::DEFAULT);
    let mut table = many(&state);
    let top = ObjectSet::Subtree(NodePath::parse("/a").expect("valid"));
    table.drop_through(&top, SessionId(1), 990);
    assert_eq!(table.check(), Ok(()));
    assert!(table.is_tidying());
    let lease = |table: &ObjectLeases, stamp: u64| {
        table.lease(&object(&format!("/a/{stamp}")), SessionId(1)).map(|lease| lease.source.sequence())
    };
    assert_eq!((lease(&table, 990), lease(&table, 991)), (None, Some(991)));
    assert_eq!(table.sessions_in(&top, secs(1)).len(), 1, "ten leases are left");
    table.drop_through(&top, SessionId(1), 1_000);
    assert!(table.sessions_in(&top, secs(1)).is_empty());
    add(&mut table, "/a/5", 1_001, &state);
    assert_eq!((lease(&table, 5), table.newest_of(&top, SessionId(1))), (Some(1_001), 1_001));
    assert!(tidy(&mut table) > 0);
    assert_eq!(table.len(), 1);
}

#[test]
fn too_many_objects_make_a_session_covering_at_once() {
    let state = State::new(VolumeSettings::DEFAULT);
    let mut table = many(&state);
    let lease = ObjectLease { expires_at: secs(90), source: GrantSource::granted(2_000) };
    table.add(&NodePath::root(), &object("/b"), SessionId(1), lease, 1_000, &state);
    assert_eq!(table.few_holders(&object("/a/1"), 9, secs(1), &state), [possible_holder(None)]);
    assert_eq!(table.check(), Ok(()));
    tidy(&mut table);
    assert!(table.len() == 0);
}

#[test]
fn subtree_holders_are_found_without_visiting_each_object() {
    let state = State::new(VolumeSettings::DEFAULT);
    let table = many(&state);
    crate::work::take_visited();
    let top = ObjectSet::Subtree(NodePath::root());
    let (examined, holders) = table.few_exact_holders(&top, secs(1), 9).expect("few");
    assert_eq!(holders.into_iter().collect::<Vec<_>>(), [((SessionId(1), NodePath::root()), secs(90))]);
    assert_eq!(table.few_exact_holders(&top, secs(1), examined - 1), None);
    assert!(crate::work::take_visited() < 10);
}

#[test]
fn session_with_room_after_tidying_is_not_covering() {
    let state = State::new(VolumeSettings::DEFAULT);
    let mut table = many(&state);
    let top = ObjectSet::Subtree(NodePath::parse("/a").expect("valid"));
    table.drop_through(&top, SessionId(1), 1_000);
    assert!(table.is_tidying());
    let (left, lease) = (table.len(), ObjectLease { expires_at: secs(90), source: GrantSource::granted(2_000) });
    table.add(&NodePath::root(), &object("/b"), SessionId(1), lease, left, &state);
    assert_eq!((table.check(), table.coverings_of(&NodePath::root(), ClusterTime::ZERO).count()), (Ok(()), 0));
}

#[test]
fn copy_granted_after_drop_inherits_nothing() {
    let state = State::new(VolumeSettings::DEFAULT);
    let mut table = many(&state);
    let top = ObjectSet::Subtree(NodePath::parse("/a").expect("valid"));
    table.drop_through(&top, SessionId(1), 1_000);
    let last = object("/a/999");
    assert!(table.entries.get(&last, SessionId(1)).is_some(), "the entry is still in memory");
    let lease = ObjectLease { expires_at: secs(50), source: GrantSource::reported(1_001) };
    table.add(&NodePath::root(), &last, SessionId(1), lease, 5_000, &state);
    assert_eq!(table.lease(&last, SessionId(1)), Some(&lease));
    assert_eq!(table.check(), Ok(()));
}

#[test]
fn leases_of_an_earlier_recording_stay_invalid_and_uncounted() {
    let state = State::new(VolumeSettings::DEFAULT);
    let mut table = many(&state);
    table.track_anew(&NodePath::root(), SessionId(1), CopyTracking::Covering);
    table.track_anew(&NodePath::root(), SessionId(1), CopyTracking::Exact);
    assert_eq!(table.check(), Ok(()));
    assert!(table.is_tidying() && table.len() > 0, "some entries are still in memory");
    let top = ObjectSet::Subtree(NodePath::root());
    assert!(table.sessions_in(&top, secs(1)).is_empty() && table.lease(&object("/a/999"), SessionId(1)).is_none());
    add(&mut table, "/a/999", 1_001, &state);
    assert_eq!((table.check(), table.totals_in(&NodePath::root()).entries), (Ok(()), 1));
    tidy(&mut table);
    assert_eq!((table.len(), table.totals_in(&NodePath::root()).entries), (1, 1));
}
