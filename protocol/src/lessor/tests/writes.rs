//! Pending writes: their order, their repetitions, and what becomes of them when something else
//! ends first.

use super::*;
use crate::{
    command::Attach,
    id::LeaseId,
    lease_name::LeaseName,
    message::CoveringInfo,
    transaction::{Operation, Transaction},
    volume::{Tracking, VolumeSettings},
};

impl World {
    pub(super) fn consent_to(&mut self, recall: &Recall) -> Vec<LessorEffect> {
        self.step(LessorInput::Consent(Consent { session: recall.session, stamp: recall.stamp }))
    }

    /// A write with the given number, and with the lowest unanswered number of its session.
    fn numbered(
        &mut self,
        session: SessionId,
        (sequence, unanswered_from): (u64, u64),
        write: Write,
    ) -> Vec<LessorEffect> {
        self.numbered_after(session, (sequence, unanswered_from), write, Vec::new())
    }

    /// The client has dropped these sets for the write.
    fn numbered_after(
        &mut self,
        session: SessionId,
        (sequence, unanswered_from): (u64, u64),
        write: Write,
        dropped: Vec<ObjectSet>,
    ) -> Vec<LessorEffect> {
        let header = RequestHeader {
            session,
            epoch: self.state.epoch(),
            registration: self.registration(session),
            sequence: Sequence(sequence),
            unanswered_from: Sequence(unanswered_from),
            ..RequestHeader::default()
        };
        self.send(Request { header, body: Body::Write { write, dropped, seen: Stamp::default() } })
    }

    /// Changes the root's settings. No session may hold a copy.
    fn set_root(&mut self, settings: VolumeSettings) {
        let writer = self.session();
        self.write(writer, Write::SetVolume { path: NodePath::root(), settings });
        self.commit();
    }
}

fn one_recall(effects: &[LessorEffect]) -> Recall {
    let [recall] = recalls(effects).try_into().expect("one recall");
    recall
}

fn values(proposal: &Proposal) -> Vec<Bytes> {
    let value = |command: &Command| match command {
        Command::Write { write: Write::Put { value, .. }, .. } => value.clone(),
        other => panic!("a put: {other:?}"),
    };
    proposal.commands.iter().map(value).collect()
}

#[test]
fn a_write_that_needs_no_consent_still_waits_for_its_turn() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let (writer, bystander) = (world.session(), world.session());
    let recall = one_recall(&world.write(writer, put("/a", b"first")));
    let dropped = vec![ObjectSet::Subtree(NodePath::root())];
    let seen = Stamp { sequence: u64::MAX, ..grant.stamp };
    let effects = world.request(holder, Body::Write { write: put("/a", b"second"), dropped, seen });
    assert_eq!(recalls(&effects), [], "the writer has dropped its own copy");
    world.write(bystander, put("/a", b"third"));
    assert!(!world.lessor.has_proposal(), "the other writes come after the first");
    world.consent_to(&recall);
    let proposal = world.lessor.take_proposal(world.now).expect("all three");
    assert_eq!(values(&proposal), [&b"first"[..], b"second", b"third"].map(Bytes::from_static));
    assert_eq!(replies(&world.apply(&proposal)).len(), 3);
    assert_eq!((world.lessor.writes.len(), world.lessor.writes.bytes()), (0, 0));
}

#[test]
fn write_below_pending_write_waits_and_unrelated_does_not() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, put("/a/x", b"0"));
    world.commit();
    let (holder, _) = world.holder(&data("/a/x"));
    let remove = Write::Delete { path: path("/a"), recursive: true, condition: Condition::Any };
    let recall = one_recall(&world.write(writer, remove));
    assert_eq!(recall.session, holder);
    world.write(writer, put("/a/x/deep", b"1"));
    assert!(!world.lessor.has_proposal());
    world.write(writer, put("/b/y", b"1"));
    assert!(!world.lessor.has_proposal(), "both change the list of what is in the root");
    world.write(holder, put("/a-b", b"1"));
    assert_eq!(world.lessor.writes.len(), 4);
    world.consent_to(&recall);
    world.commit();
    assert_eq!(world.lessor.writes.len(), 0);
}

#[test]
fn resent_pending_write_takes_effect_once_with_two_answers() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    let recall = one_recall(&world.numbered(writer, (1, 1), put("/a", b"1")));
    assert_eq!(world.numbered(writer, (1, 1), put("/a", b"1")), []);
    assert_eq!(world.lessor.writes.len(), 1);
    world.consent_to(&recall);
    let answers: Vec<_> = replies(&world.commit()).into_iter().map(|reply| reply.result).collect();
    let [Ok(Answer::Written { written: one, .. }), Ok(Answer::Written { written: other, .. })] = &answers[..] else {
        panic!("both are answered: {answers:?}")
    };
    assert_eq!(one, other);
    assert_eq!(world.state.revision(), one.revision, "the write took effect once");
}

/// The bytes of the pending write follow. The invariants compare them with its parts.
#[test]
fn resent_write_may_name_other_dropped_sets() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    for dropped in [vec![], vec![ObjectSet::One(data("/a")), ObjectSet::Subtree(path("/b"))], vec![]] {
        world.numbered_after(writer, (1, 1), put("/a", b"1"), dropped);
        assert_eq!(world.lessor.check(&world.state), Ok(()));
    }
}

#[test]
fn oldest_of_many_requests_for_one_write_must_retry() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    world.numbered(writer, (1, 1), put("/a", b"1"));
    for _ in 1..8 {
        assert_eq!(world.numbered(writer, (1, 1), put("/a", b"1")), []);
    }
    assert_eq!(result(&world.numbered(writer, (1, 1), put("/a", b"1"))), Err(Refusal::Retry));
}

#[test]
fn write_whose_window_passed_at_apply_is_refused() {
    let mut world = World::new();
    let (_, _) = world.holder(&data("/a"));
    let writer = world.session();
    world.numbered(writer, (1, 1), put("/b", b"0"));
    world.commit();
    world.numbered(writer, (5, 5), put("/b", b"1"));
    // A late copy of a request.
    let recall = one_recall(&world.numbered(writer, (2, 2), put("/a", b"1")));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    world.consent_to(&recall);
    let refusal = result(&world.commit());
    let (got, lowest) = (Sequence(2), Sequence(5));
    assert_eq!(refusal, Err(Refusal::OutsideWindow { got, lowest, highest: lowest.window_end() }));
}

#[test]
fn closed_session_loses_leases_and_its_writes_are_refused() {
    let mut world = World::new();
    let (holder, _) = world.holder(&data("/a"));
    let (writer, _) = world.holder(&data("/b"));
    world.write(writer, put("/a", b"1"));
    let recall = one_recall(&world.write(holder, put("/b", b"1")));
    world.request(holder, Body::Close);
    world.request(holder, Body::Acquire { path: NodePath::root(), last_valid: None, read: None });
    let results: Vec<_> = replies(&world.commit()).into_iter().map(|reply| reply.result).collect();
    let not_found = || Err(Refusal::SessionNotFound { session: holder });
    assert_eq!(results[..2], [Ok(Answer::Closed), not_found()]);
    assert!(matches!(results[2], Ok(Answer::Written { .. })), "no write waits for an ended session");
    world.consent_to(&recall);
    assert_eq!(result(&world.commit()), not_found());
    assert_eq!(world.state.leases_of(holder).count(), 0);
}

#[test]
fn end_refused_by_moved_horizon_is_proposed_again() {
    let mut world = World::new();
    let (holder, grant, lease) = world.end_put_off();
    let proposal = world.lessor.take_proposal(world.now).expect("both");
    world.apply(&proposal);
    assert!(world.state.lease(&lease).is_some(), "the horizon has moved");
    assert!(world.renew(holder, grant.incarnation).is_err());
    world.commit();
    assert_eq!(world.state.lease(&lease), None);
}

#[test]
fn copies_of_other_generation_or_future_lease_are_not_revived() {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/a"));
    let revision = world.state.revision();
    let mut returns = |incarnation, generation| {
        let valid_at = LastValid { incarnation, generation: VolumeGeneration(generation), revision };
        world.acquire(holder, Some(valid_at)).revival
    };
    let generation = grant.generation.0;
    assert_eq!(returns(grant.incarnation, generation + 1), Revival::None, "the volume has other borders");
    assert_eq!(returns(Incarnation(u64::MAX), generation), Revival::None, "the lease has not begun");
    assert!(matches!(returns(grant.incarnation, generation), Revival::AllExcept { .. }));
}

#[test]
fn covering_writer_is_exempt_only_by_its_very_last_grant() {
    let mut world = World::new();
    let default = VolumeSettings::DEFAULT;
    let covering = VolumeSettings::new(
        default.term(),
        default.object_term(),
        default.skew_margin(),
        Tracking::Covering,
        DriftAllowance::DEFAULT,
    );
    world.set_root(covering.expect("valid"));
    let (writer, grant) = world.holder(&data("/b"));
    let body = |sequence| Body::Write {
        write: put("/a", b"1"),
        dropped: vec![ObjectSet::Subtree(NodePath::root())],
        seen: Stamp { sequence, ..grant.stamp },
    };
    let recall = one_recall(&world.request(writer, body(grant.stamp.sequence - 1)));
    world.consent_to(&recall);
    world.commit();
    let last = world.lessor.recall_channels[&writer].last_grant();
    assert_eq!(recalls(&world.request(writer, body(last))), []);
}

#[test]
fn tracked_volume_does_not_end_wait_for_covering_volume() {
    let mut world = World::new();
    let margin = Duration::from_millis(500);
    let with = |tracking| VolumeSettings::new(TERM, TERM, margin, tracking, DriftAllowance::DEFAULT).expect("valid");
    world.set_root(with(Tracking::Objects));
    let writer = world.session();
    world.write(writer, Write::CreateVolume { path: path("/v"), settings: with(Tracking::Covering) });
    world.commit();
    let (holder, grant) = world.holder(&data("/a"));
    world.pass(TERM / 2);
    world.request(holder, Body::Acquire { path: path("/v"), last_valid: None, read: None });
    world.commit();
    world.renew(holder, grant.incarnation).expect("live");
    world.write(writer, Write::SetVolume { path: NodePath::root(), settings: with(Tracking::Objects) });
    let covering = CoveringInfo { volume: path("/v"), is_unreported: false };
    assert_eq!(world.waits("/")[0].covering, Some(covering), "its leases there are not tracked one by one");
    let written = |effects: &[LessorEffect]| {
        replies(effects).iter().any(|reply| matches!(reply.result, Ok(Answer::Written { .. })))
    };
    let effects = world.pass(TERM * 3 / 4);
    assert!(!written(&effects), "the only known object lease has ended, and the session may have others in /v");
    let effects = world.pass(TERM / 2);
    assert!(written(&effects));
}

#[test]
fn writes_of_one_object_enter_log_in_order_without_waiting() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    world.write(writer, put("/a", b"2"));
    let proposal = world.lessor.take_proposal(world.now).expect("both are ready");
    let values = proposal.commands.iter().map(|command| match command {
        Command::Write { write: Write::Put { value, .. }, .. } => value.clone(),
        other => panic!("a put: {other:?}"),
    });
    assert_eq!(values.collect::<Vec<_>>(), [Bytes::from_static(b"1"), Bytes::from_static(b"2")]);
    assert_eq!(replies(&world.apply(&proposal)).len(), 2);
}

#[test]
fn repeated_write_takes_effect_once_and_grants_no_lease() {
    let mut world = World::new();
    let (writer, _) = world.holder(&data("/a"));
    let body = Body::Write {
        write: put("/a", b"1"),
        dropped: vec![ObjectSet::One(data("/a"))],
        seen: Stamp { epoch: world.state.epoch(), sequence: u64::MAX },
    };
    let effects = world.request(writer, body.clone());
    assert_eq!(recalls(&effects), []);
    let Answer::Written { written, grant: Some(_), .. } = answer(&world.commit()) else {
        panic!("the answer has a lease")
    };
    world.sequence -= 1;
    let Answer::Written { written: again, grant: None, .. } = answer(&world.request(writer, body)) else {
        panic!("answered at once, without a lease")
    };
    assert_eq!((again, world.lessor.has_proposal()), (written, false));
}

#[test]
fn writes_that_wait_are_bounded_by_their_bytes() {
    let mut world = World::new();
    let writer = world.session();
    let value = Bytes::from(vec![0; 1 << 20]);
    let write = Write::put(path("/a"), value);
    // Each takes its value, and something beside it.
    let fits = LessorBounds::DEFAULT.writes_bytes_max / (1 << 20) - 1;
    for count in 0..=fits {
        assert_eq!(world.write(writer, write.clone()), [], "{count}");
    }
    let refusal = result(&world.write(writer, write)).expect_err("one more than the bound");
    assert!(
        matches!(refusal, Refusal::Busy { most, .. } if most == LessorBounds::DEFAULT.writes_bytes_max),
        "{refusal}"
    );
}

/// After a failover each write waits for each session that has not returned yet.
#[test]
fn waits_for_silent_sessions_count_as_memory_of_writes() {
    const SILENT: usize = 4;
    const MOST: usize = 32 << 10;
    let mut world = World::new();
    let silent: Vec<SessionId> = (0..SILENT).map(|_| world.holder(&data("/a")).0).collect();
    let writer = world.session();
    world.fail_over();
    world.lessor.config.bounds.writes_bytes_max = MOST;
    world.request(writer, Body::Register);
    let mut sent = 0;
    let refusal = loop {
        match replies(&world.write(writer, put(&format!("/{sent}"), b""))).pop() {
            Some(response) => break response.result.expect_err("too much memory"),
            None => sent += 1,
        }
    };
    assert!(matches!(refusal, Refusal::Busy { most: MOST, .. }), "{refusal}");
    // What a wait and its recall take at least on a 64-bit machine.
    let least = SILENT * 1_000;
    assert!(sent * least <= MOST, "{sent} writes of at least {least} bytes");
    for session in silent {
        let stamps = recalls(&world.request(session, Body::Register)).into_iter().map(|recall| recall.stamp);
        stamps.for_each(|stamp| drop(world.step(LessorInput::Consent(Consent { session, stamp }))));
    }
    world.commit();
    assert_eq!((world.lessor.writes.len(), world.lessor.writes.bytes()), (0, 0));
}

#[test]
fn small_parts_of_waiting_transactions_count_as_memory() {
    const MOST: usize = 4 << 20;
    let mut world = World::new();
    world.lessor.config.bounds.writes_bytes_max = MOST;
    let writer = world.session();
    let mut sent = 0;
    let name = |sent: usize, number: usize| path(&format!("/{sent}-{number}"));
    let refusal = loop {
        let then = (0..128).map(|number| Operation::put(name(sent, number), "")).collect();
        let write = Write::Transaction(Transaction { then, ..Transaction::new() });
        match replies(&world.write(writer, write)).pop() {
            Some(response) => break response.result.expect_err("too much memory"),
            None => sent += 1,
        }
    };
    assert!(matches!(refusal, Refusal::Busy { most: MOST, .. }), "{refusal}");
    // What a 64-bit machine needs for a path, its text, and the places of three sets of objects in
    // maps.
    let least = 128 * (16 + 32 + 3 * 150);
    assert!(sent * least <= MOST, "{sent} transactions of at least {least} bytes");
}

/// Eight sessions create the same name. The leader is replaced in between, with or without its
/// proposal.
#[test]
fn name_is_created_by_one_of_eight_across_failovers() {
    one_of_eight_wins(|_, _, round| match round % 2 {
        0 => Write::GrantLease { id: Some(LeaseId(round)), name: None, ttl: TERM },
        _ => Write::Put {
            path: path(&format!("/{round}")),
            value: Bytes::new(),
            condition: Condition::Absent,
            attach: Attach::Nothing,
        },
    });
}

#[test]
fn lease_name_is_granted_to_one_of_eight_across_failovers() {
    let name = || LeaseName::parse("server1Lease").expect("a name");
    one_of_eight_wins(|world, sessions, round| {
        if round > 1 {
            // Every racer of the last round has its answer. Now the name is free again.
            world.write(sessions[0], Write::RevokeLeaseNamed { name: name() });
            assert!(matches!(answer(&world.commit()), Answer::Written { .. }), "one of them has got it");
        }
        assert_eq!(world.state.lease_named(&name()), None);
        Write::GrantLease { id: None, name: Some(name()), ttl: TERM * 100 }
    });
}

/// In each of 1,000 rounds, eight sessions send the same write, again and again, to leaders that
/// are replaced. Exactly one of them creates what the write names. The others are told that it
/// exists.
fn one_of_eight_wins(write_of_round: impl Fn(&mut World, &[SessionId], u64) -> Write) {
    let mut world = World::new();
    let sessions: Vec<SessionId> = (0..8).map(|_| world.session()).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    let (mut retried, mut created) = (0, [0; 8]);
    for round in 1..=1_000 {
        let write = write_of_round(&mut world, &sessions, round);
        world.sequence += 1;
        let sequence = Sequence(world.sequence);
        let mut open: Vec<usize> = (0..sessions.len()).collect();
        let mut attempts = BTreeMap::new();
        let mut answered = Vec::new();
        while !open.is_empty() {
            for _ in 0..=below(8) {
                let place = open[below(open.len() as u64) as usize];
                let header = RequestHeader {
                    session: sessions[place],
                    epoch: world.state.epoch(),
                    registration: world.registration(sessions[place]),
                    sequence,
                    unanswered_from: sequence,
                    ..RequestHeader::default()
                };
                let body = Body::Write { write: write.clone(), dropped: Vec::new(), seen: Stamp::default() };
                attempts.insert(world.requests + 1, place);
                let effects = world.send(Request { header, body });
                answered.extend(effects);
            }
            match below(3) {
                0 => {
                    // The leader is replaced. Its proposal is committed before that, or never.
                    if below(2) == 0
                        && let Some(proposal) = world.lessor.take_proposal(world.now)
                    {
                        world.apply(&proposal);
                    }
                    retried += 1;
                    world.fail_over();
                    sessions.iter().for_each(|session| drop(world.request(*session, Body::Register)));
                }
                _ => answered.extend(world.commit()),
            }
            for effect in &answered {
                if let LessorEffect::Reply { id, .. } = effect {
                    open.retain(|place| attempts.get(&id.0) != Some(place));
                }
            }
        }
        let mut results: BTreeMap<usize, BTreeSet<bool>> = BTreeMap::new();
        for effect in answered {
            let LessorEffect::Reply { id, response } = effect else { continue };
            let is_created = match response.result {
                Ok(Answer::Written { .. }) => true,
                Err(Refusal::Write(
                    WriteRefusal::Exists { .. }
                    | WriteRefusal::LeaseExists { .. }
                    | WriteRefusal::LeaseNameExists { .. },
                )) => false,
                other => panic!("round {round}: {other:?}"),
            };
            results.entry(attempts[&id.0]).or_default().insert(is_created);
        }
        assert!(results.values().all(|answers| answers.len() == 1), "each attempt gets the same answer: {results:?}");
        let winners: Vec<_> =
            results.iter().filter(|(_, answers)| answers.contains(&true)).map(|(place, _)| *place).collect();
        assert_eq!(results.len(), sessions.len(), "round {round}: each has an answer");
        let [winner] = winners.as_slice() else { panic!("round {round}: one of {results:?}") };
        created[*winner] += 1;
    }
    assert!(retried > 500 && created.iter().all(|count| *count > 50), "{retried} failovers, {created:?}");
}

/// Each changed set counts with its path and one byte more. Two objects of a path of two letters,
/// and one of the root, are 8 bytes.
#[test]
fn revival_is_bounded_in_bytes() {
    for (most, is_revived) in [(7, false), (8, true)] {
        let mut world = World::new();
        world.lessor.config.bounds.revival_bytes_max = most;
        let (holder, grant) = world.holder(&data("/b"));
        let revision = world.state.revision();
        let writer = world.session();
        world.write(writer, put("/a", b"1"));
        world.commit();
        let generation = grant.generation;
        let valid_at = LastValid { incarnation: grant.incarnation, generation, revision };
        let revival = world.acquire(holder, Some(valid_at)).revival;
        assert_eq!(matches!(revival, Revival::AllExcept { .. }), is_revived, "{most} bytes: {revival:?}");
    }
}
