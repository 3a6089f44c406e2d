//! Many clients at once: what they cost the log, and what one of them can do to the others.

use super::*;

/// The `last_valid` of a client that returns with copies under this grant.
fn copies_of(grant: &Grant, revision: Revision) -> LastValid {
    LastValid { incarnation: grant.incarnation, generation: grant.generation, revision }
}

impl World {
    /// A world that is checked only after some steps.
    fn of_many() -> Self {
        Self { is_checked: false, ..Self::new() }
    }
}

#[test]
fn ten_thousand_renewing_sessions_cost_ticks_only() {
    const SESSIONS: usize = 10_000;
    // Each session renews every 3 s: with each step the next of 60 groups.
    const GROUPS: usize = 60;
    const EVERY: Duration = Duration::from_secs(3);
    assert_eq!(clock::STEP_EVERY * 60, EVERY);
    let mut world = World::of_many();
    let sessions: Vec<SessionId> = (0..SESSIONS).map(|_| world.session()).collect();
    for session in &sessions {
        world.request(*session, Body::Acquire { path: NodePath::root(), last_valid: None, read: None });
    }
    let acquired = replies(&world.commit()).into_iter().map(|response| match response.result {
        Ok(Answer::Acquired(AcquiredVolume { promise, .. })) => promise.incarnation,
        other => panic!("acquired: {other:?}"),
    });
    let leased: Vec<(SessionId, Incarnation)> = sessions.into_iter().zip(acquired).collect();
    assert_eq!(leased.len(), SESSIONS);
    world.check();
    let (begun, entries) = (world.now, world.index);
    for step in 0..8 * GROUPS {
        for (session, incarnation) in leased.iter().skip(step % GROUPS).step_by(GROUPS) {
            let span = world.renew(*session, *incarnation).map(|promise| promise.span);
            assert!(span.as_ref().is_ok_and(|span| *span > EVERY), "{session}: {span:?}");
        }
        world.pass(clock::STEP_EVERY);
    }
    world.check();
    let ticks = world.now.since(begun).as_millis() / world.state.tick().as_millis();
    assert!(u128::from(world.index - entries) <= ticks + 1, "{} entries, {ticks} ticks", world.index - entries);
    assert_eq!(world.state.leases().count(), 2 * SESSIONS, "each session, and its lease on the volume");
}

#[test]
fn write_waits_for_the_one_dead_of_a_hundred_holders() {
    let mut world = World::new();
    let holders: Vec<SessionId> = (0..100).map(|_| world.holder(&data("/a")).0).collect();
    let writer = world.session();
    let begun = world.now;
    let recalled = recalls(&world.write(writer, put("/a", b"1")));
    assert_eq!(recalled.len(), holders.len());
    let dead = holders[37];
    for recall in recalled.iter().filter(|recall| recall.session != dead) {
        world.step(LessorInput::Consent(Consent { session: recall.session, stamp: recall.stamp }));
    }
    let waits: Vec<_> = world.waits("/a").iter().map(|wait| wait.holder).collect();
    assert_eq!(waits, [Some(dead)], "all others have consented");
    let margin = VolumeSettings::DEFAULT.skew_margin();
    assert_eq!(replies(&world.pass(TERM + margin - MILLI)), [], "the holder may use its copy");
    let written = replies(&world.pass(2 * clock::STEP_EVERY));
    assert!(matches!(written[..], [Response { result: Ok(Answer::Written { .. }), .. }]), "{written:?}");
    assert!(world.now.since(begun) <= TERM + margin + 2 * clock::STEP_EVERY);
}

#[test]
fn hundred_readers_do_not_delay_a_waiting_write() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let readers: Vec<(SessionId, AcquiredVolume)> = (0..100)
        .map(|_| {
            let session = world.session();
            (session, world.acquire(session, None))
        })
        .collect();
    let writer = world.session();
    let recalled = recalls(&world.write(writer, put("/a", b"1")));
    let [recall] = recalled.as_slice() else { panic!("one holder: {recalled:?}") };
    let mut in_vain = 0;
    for _ in 0..20 {
        for (reader, _) in &readers {
            let answer = world.read(*reader, data("/a"));
            assert_eq!((answer.content, answer.grant), (Some(Content::Data(None)), None), "the old value, no lease");
            in_vain += 1;
        }
        assert_eq!(world.pass(clock::STEP_EVERY), []);
    }
    assert_eq!(in_vain, 2_000);
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }), "as soon as the one holder has consented");
    for (reader, _) in &readers {
        assert!(world.read(*reader, data("/a")).grant.is_some());
    }
}

#[test]
fn lapsed_holders_learn_of_a_write_when_they_return() {
    let mut world = World::of_many();
    let holders: Vec<(SessionId, Grant)> = (0..1_000).map(|_| world.holder(&data("/a"))).collect();
    let revision = world.state.revision();
    world.pass(2 * TERM);
    let writer = world.session();
    let effects = world.write(writer, put("/a", b"1"));
    assert_eq!(recalls(&effects), [], "no message at the time of the write");
    let effects = world.commit();
    assert!(matches!(replies(&effects)[..], [Response { result: Ok(Answer::Written { .. }), .. }]));
    assert_eq!(effects.len(), 1, "nor when it is done");
    for (holder, grant) in &holders {
        world.request(
            *holder,
            Body::Acquire { path: NodePath::root(), last_valid: Some(copies_of(grant, revision)), read: None },
        );
        let effects = world.commit();
        let Answer::Acquired(AcquiredVolume { revival: Revival::AllExcept { changed, .. }, .. }) = answer(&effects)
        else {
            panic!("the history reaches back: {effects:?}")
        };
        assert!(changed.contains(&ObjectSet::One(data("/a"))), "{changed:?}");
        assert_eq!(effects.len(), 1, "one message on return");
    }
    world.check();
}
