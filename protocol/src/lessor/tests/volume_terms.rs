//! Volumes whose term adapts to the number of their leases.

use super::*;
use crate::{time::DriftAllowance, volume::VolumeTerm};

/// 1 renewal in a second, between 10 s and 40 s.
fn adaptive() -> VolumeSettings {
    with_term(VolumeTerm::Adaptive { least: TERM, most: 4 * TERM, renewals_per_second: 1 })
}

fn with_term(term: VolumeTerm) -> VolumeSettings {
    let usual = VolumeSettings::DEFAULT;
    let drift = DriftAllowance::DEFAULT;
    VolumeSettings::new(term, usual.object_term(), usual.skew_margin(), usual.tracking(), drift).expect("valid")
}

/// A leader, a holder of `/a`, and 30 sessions that each acquire a lease later.
fn crowd() -> (World, SessionId, Incarnation, Vec<SessionId>) {
    let mut world = World::with_settings(adaptive());
    let (holder, grant) = world.holder(&data("/a"));
    let others = (0..30).map(|_| world.session()).collect();
    (world, holder, grant.incarnation, others)
}

#[test]
fn promises_get_longer_with_more_leases_and_shorter_with_fewer() {
    let (mut world, holder, incarnation, others) = crowd();
    assert_eq!(world.renew(holder, incarnation).expect("live").term, TERM);
    for other in &others {
        world.acquire(*other, None);
    }
    let first = world.renew(holder, incarnation).expect("live");
    assert_eq!(first.term, Duration::from_secs(31));
    assert!(first.span <= TERM + TERM / 10, "{:?} goes beyond the horizon of the old term", first.span);
    world.pass(TERM / 10);
    let next = world.renew(holder, incarnation).expect("live");
    assert!(next.span > Duration::from_secs(29), "{:?} after the tick", next.span);
    for other in &others {
        world.request(*other, Body::Close);
    }
    world.commit();
    assert_eq!(world.renew(holder, incarnation).expect("live").term, TERM);
}

/// A dead client was promised 31 s. Then all others leave, and the term is 10 s again.
#[test]
fn shorter_term_takes_back_no_earlier_promise() {
    let (mut world, holder, incarnation, others) = crowd();
    for other in &others {
        world.acquire(*other, None);
    }
    world.renew(holder, incarnation).expect("live");
    world.pass(TERM / 10);
    let promised = world.renew(holder, incarnation).expect("live").span;
    for other in &others {
        world.request(*other, Body::Close);
    }
    world.commit();
    let writer = world.session();
    let start = world.now;
    let mut effects = world.write(writer, put("/a", b"1"));
    effects.extend(world.commit());
    while replies(&effects).is_empty() {
        effects = world.pass(10 * MILLI);
        assert!(world.now.since(start) < 5 * TERM, "it waits for ever");
    }
    let (waited, margin) = (world.now.since(start), adaptive().skew_margin());
    assert!(waited >= promised, "{waited:?}: {promised:?} was promised");
    assert!(waited < promised + margin + TERM / 10, "{waited:?}: {promised:?} was promised");
}

/// Many others may leave at any time. Then each lease needs a renewal in the shortest term (S10b).
#[test]
fn leases_of_adaptive_volumes_count_with_the_shortest_term() {
    let (mut world, holder, incarnation, others) = crowd();
    let load = |world: &World| world.lessor.leases.load() / 1_000;
    let sessions = load(&world) - 100;
    for other in &others {
        world.acquire(*other, None);
    }
    assert_eq!(load(&world) - sessions, 3_100, "31 leases of 10 s");
    assert_eq!(world.renew(holder, incarnation).expect("live").term, Duration::from_secs(31));
    assert_eq!(load(&world) - sessions, 3_100, "a renewal under a longer term counts the same");
    world.fail_over();
    assert_eq!(load(&world) - sessions, 3_100, "so does a new leader");
}

#[test]
fn shorter_term_of_a_volume_counts_for_its_leases_at_once() {
    let mut world = World::new();
    let holders: Vec<_> = (0..3).map(|_| world.holder(&data("/a"))).collect();
    let writer = world.session();
    let load = |world: &World| world.lessor.leases.load() / 1_000;
    let before = load(&world);
    let shorten = Write::SetVolume { path: NodePath::root(), settings: with_term(VolumeTerm::Fixed(TERM / 2)) };
    for Recall { session, stamp, .. } in recalls(&world.write(writer, shorten)) {
        world.step(LessorInput::Consent(Consent { session, stamp }));
    }
    world.commit();
    assert_eq!(load(&world), before + 300, "each of the three needs a tenth of a renewal in a second more");
    world.renew(holders[0].0, holders[0].1.incarnation).expect("live");
    assert_eq!(load(&world), before + 300, "a renewal adds nothing more");
    world.fail_over();
    assert_eq!(load(&world), before + 300, "a new leader counts the same");
}

/// A holder was promised 10 s before the term became 5 s, and then dies.
#[test]
fn shorter_term_of_a_volume_takes_back_no_earlier_promise() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let writer = world.session();
    let promised = world.renew(holder, grant.incarnation).expect("live").span;
    let settings = with_term(VolumeTerm::Fixed(TERM / 2));
    let [recall] = recalls(&world.write(writer, Write::SetVolume { path: NodePath::root(), settings }))
        .try_into()
        .expect("one holder");
    let recall: Recall = recall;
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    world.commit();
    assert!(world.renew(holder, grant.incarnation).expect("live").span <= TERM / 2, "the new term counts at once");
    assert!(world.read(holder, data("/a")).grant.is_some());
    let start = world.now;
    world.write(writer, put("/a", b"1"));
    let margin = settings.skew_margin();
    assert!(promised > TERM / 2 && world.waits("/a")[0].at_most >= promised, "the earlier promise holds");
    let mut effects = Vec::new();
    while replies(&effects).is_empty() {
        effects = world.pass(10 * MILLI);
        assert!(world.now.since(start) < 5 * TERM, "it waits for ever");
    }
    let waited = world.now.since(start);
    assert!(waited >= promised && waited < promised + margin + TERM / 10, "{waited:?}: {promised:?} was promised");
}
