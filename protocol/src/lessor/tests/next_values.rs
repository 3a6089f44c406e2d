//! Reads of next values wait for the pending writes of their objects.

use super::*;
use crate::{
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    lock::LockMode,
};

impl World {
    /// A world whose root volume updates.
    fn updating() -> Self {
        let mut world = Self::new();
        let writer = world.session();
        let settings = VolumeSettings::DEFAULT.with_policy(ObjectTerm::Infinite, OnWrite::Update, GrantPolicy::All);
        let settings = settings.expect("within bounds");
        world.write(writer, Write::SetVolume { path: NodePath::root(), settings });
        world.commit();
        world
    }

    fn ask_next(&mut self, session: SessionId) -> Vec<LessorEffect> {
        self.request(session, Body::ReadNextValue { object: data("/a"), lease: LeaseRequest::Returning })
    }

    /// Proves all rounds.
    fn prove(&mut self, effects: &[LessorEffect]) -> Vec<LessorEffect> {
        let rounds = effects.iter().filter_map(|effect| match effect {
            LessorEffect::Prove { round } => Some(*round),
            _ => None,
        });
        rounds.collect::<Vec<_>>().into_iter().flat_map(|round| self.step(LessorInput::Proven { round })).collect()
    }
}

/// The answers to reads.
fn answers(effects: &[LessorEffect]) -> Vec<ReadAnswer> {
    let read = |response: Response| match response.result {
        Ok(Answer::Read(answer)) => Some(answer),
        _ => None,
    };
    replies(effects).into_iter().filter_map(read).collect()
}

#[test]
fn next_value_comes_with_a_lease_when_the_write_has_ended() {
    let mut world = World::updating();
    let (holder, _) = world.holder(&data("/a"));
    let writer = world.session();
    let [recall] = recalls(&world.write(writer, put("/a", b"1"))).try_into().expect("one holder");
    let recall: Recall = recall;
    assert!(recall.offers_next_values);
    assert_eq!(world.ask_next(holder), [], "the write is pending");
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    let effects = world.commit();
    let written = effects.iter().any(|effect| matches!(effect, LessorEffect::Prove { .. }));
    assert!(written, "it is a read like any other: {effects:?}");
    let [answer] = answers(&world.prove(&effects)).try_into().expect("one answer");
    let answer: ReadAnswer = answer;
    assert!(matches!(answer.content, Some(Content::Data(Some(data))) if data.value == b"1"[..]));
    assert!(answer.grant.is_some_and(|grant| grant.stamp > recall.stamp));
    world.write(writer, put("/a", b"2"));
    assert_eq!(world.waits("/a")[0].holder, Some(holder), "the next write recalls the new copy");
}

#[test]
fn next_value_without_a_pending_write_comes_at_once() {
    let mut world = World::updating();
    let (holder, _) = world.holder(&data("/a"));
    let effects = world.ask_next(holder);
    assert_eq!(answers(&world.prove(&effects)).len(), 1);
}

#[test]
fn next_value_waits_for_the_last_of_several_writes() {
    let mut world = World::updating();
    let (holder, _) = world.holder(&data("/a"));
    let (one, two) = (world.session(), world.session());
    let [recall] = recalls(&world.write(one, put("/a", b"1"))).try_into().expect("one holder");
    let recall: Recall = recall;
    world.write(two, put("/a", b"2"));
    world.ask_next(holder);
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    let effects = world.commit();
    let [answer] = answers(&world.prove(&effects)).try_into().expect("one answer");
    let answer: ReadAnswer = answer;
    assert!(matches!(answer.content, Some(Content::Data(Some(data))) if data.value == b"2"[..]));
    assert!(answer.grant.is_some());
}

#[test]
fn only_writes_of_values_offer_the_next_value() {
    let mut world = World::new();
    world.holder(&data("/a"));
    let writer = world.session();
    assert!(!recalls(&world.write(writer, put("/a", b"1")))[0].offers_next_values, "the volume only recalls");
    let mut world = World::updating();
    world.holder(&data("/a"));
    let writer = world.session();
    let effects = world.write(writer, Write::CreateVolume { path: path("/a"), settings: VolumeSettings::DEFAULT });
    assert!(!recalls(&effects)[0].offers_next_values, "it writes no value");
}

#[test]
fn next_value_recalls_no_write_lease() {
    let mut world = World::updating();
    let (owner, reader) = (world.session(), world.session());
    world.acquire(owner, None);
    world.acquire(reader, None);
    world.write(reader, put("/a", b"1"));
    world.commit();
    let lock = Write::Lock { path: path("/a"), mode: LockMode::Exclusive, wait: false, delay: Duration::ZERO };
    world.write(owner, lock);
    let locked = match answer(&world.commit()) {
        Answer::Written { written, .. } => written.lock.expect("granted").lock,
        other => panic!("{other:?}"),
    };
    let [recall] = recalls(&world.write(owner, Write::TakeWriteLease { path: path("/a"), lock: locked }))
        .try_into()
        .expect("the writer of the value has a lease");
    let recall: Recall = recall;
    assert!(!recall.offers_next_values, "the value may change without a write");
    world.step(LessorInput::Consent(Consent { session: reader, stamp: recall.stamp }));
    world.commit();
    let effects = world.ask_next(reader);
    let effects = world.prove(&effects);
    assert_eq!(recalls(&effects), []);
    assert_eq!(answer(&effects), Answer::ReadBlocked);
}

#[test]
fn next_values_end_with_their_session_and_with_the_leader() {
    for ends_leader in [true, false] {
        let mut world = World::updating();
        let (holder, _) = world.holder(&data("/a"));
        let writer = world.session();
        world.write(writer, put("/a", b"1"));
        world.ask_next(holder);
        let effects = match ends_leader {
            true => world.lessor.clone().step_down(&world.state, world.now),
            false => world.request(holder, Body::Register),
        };
        let retries = replies(&effects).into_iter().filter(|response| response.result == Err(Refusal::Retry)).count();
        assert!(retries >= 1, "{effects:?}");
    }
}

fn busy(of_session: bool) -> Refusal {
    let what = if of_session { "reads of next values of the session" } else { "reads of next values" };
    Refusal::Busy { what: what.to_owned(), got: 1, most: 1 }
}

#[test]
fn next_values_beyond_the_bounds_are_busy() {
    for of_session in [true, false] {
        let mut world = World::updating();
        let bounds = &mut world.lessor.config.bounds;
        (bounds.next_values_max, bounds.session_next_values_max) = if of_session { (9, 1) } else { (1, 9) };
        let (holder, _) = world.holder(&data("/a"));
        let writer = world.session();
        world.write(writer, put("/a", b"1"));
        world.write(writer, put("/b", b"1"));
        assert_eq!(world.ask_next(holder), []);
        let effects = world.request(holder, Body::ReadNextValue { object: data("/b"), lease: LeaseRequest::Returning });
        assert_eq!(result(&effects), Err(busy(of_session)));
        let effects = world.ask_next(holder);
        assert_eq!(result(&effects), Err(Refusal::Retry), "the later request replaces the earlier, which is answered");
    }
}

/// The first read is in a quorum round. Its write has ended, or there was none.
#[test]
fn next_value_in_a_round_counts_for_the_bounds() {
    for (of_session, has_write) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut world = World::updating();
        let bounds = &mut world.lessor.config.bounds;
        (bounds.next_values_max, bounds.session_next_values_max) = if of_session { (9, 1) } else { (1, 9) };
        let (holder, _) = world.holder(&data("/a"));
        let writer = world.session();
        let asks = if of_session { holder } else { writer };
        let effects = match has_write {
            true => {
                let [recall] = recalls(&world.write(writer, put("/a", b"1"))).try_into().expect("one holder");
                let recall: Recall = recall;
                assert_eq!(world.ask_next(holder), []);
                world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
                world.commit()
            }
            false => world.ask_next(holder),
        };
        let ask = Body::ReadNextValue { object: data("/b"), lease: LeaseRequest::Returning };
        assert_eq!(result(&world.request(asks, ask.clone())), Err(busy(of_session)), "{has_write}");
        let is_proven = has_write;
        let ended = match is_proven {
            true => world.prove(&effects),
            false => world.step(LessorInput::NotProven { round: world.lessor.round }),
        };
        assert_eq!(answers(&ended).len(), usize::from(is_proven));
        assert_eq!(replies(&world.request(asks, ask)), [], "there is room again");
    }
}

/// S7b: a request that waits is not prolonged by later ones.
#[test]
fn later_write_does_not_prolong_the_wait() {
    let mut world = World::updating();
    let (holder, _) = world.holder(&data("/a"));
    let (one, two) = (world.session(), world.session());
    let [recall] = recalls(&world.write(one, put("/a", b"1"))).try_into().expect("one holder");
    let recall: Recall = recall;
    world.ask_next(holder);
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    let proposal = world.lessor.take_proposal(world.now).expect("the write needs no other consent");
    world.write(two, put("/a", b"2"));
    let effects = world.apply(&proposal);
    let [answer] = answers(&world.prove(&effects)).try_into().expect("one answer");
    let answer: ReadAnswer = answer;
    assert!(matches!(answer.content, Some(Content::Data(Some(data))) if data.value == b"1"[..]));
    assert_eq!(answer.grant, None, "another write is pending (S3)");
}

#[test]
fn reads_of_applications_go_before_next_values() {
    let mut world = World::updating();
    world.lessor.config.bounds.reads_per_step = 1;
    let holders: Vec<_> = (0..3).map(|_| world.holder(&data("/a")).0).collect();
    let writer = world.session();
    let recalled = recalls(&world.write(writer, put("/a", b"1")));
    for Recall { session, stamp, .. } in recalled {
        world.ask_next(session);
        world.step(LessorInput::Consent(Consent { session, stamp }));
    }
    let mut effects = world.commit();
    effects
        .extend(world.request(writer, Body::Read { object: data("/b"), known: None, lease: LeaseRequest::Unwanted }));
    let mut order = Vec::new();
    for _ in 0..20 {
        let mut more = world.prove(&effects);
        more.extend(world.step(LessorInput::Timeout));
        order.extend(answers(&more).into_iter().map(|answer| answer.grant.is_some()));
        effects = more;
    }
    assert_eq!(order.iter().filter(|is_next| **is_next).count(), holders.len());
    let others = order.iter().take_while(|is_next| **is_next).count();
    assert!(others <= 1, "one part of the next reads was in the round before: {order:?}");
}
