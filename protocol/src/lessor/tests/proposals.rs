//! What the lessor proposes: how much at a time, and how it recognizes its own proposals.

use super::*;

impl World {
    fn open(&mut self) {
        self.request(SessionId(0), Body::Open { name: "test".to_owned() });
    }

    /// A proposal of an earlier leader is committed after all.
    fn apply_late(&mut self, proposal: &Proposal) {
        self.index += 1;
        assert!(!self.lessor.is_mine(proposal));
        self.state.apply(self.index, proposal);
    }

    fn proposal(&mut self) -> Proposal {
        self.lessor.take_proposal(self.now).expect("something to propose")
    }
}

#[test]
fn a_proposal_is_bounded_in_commands() {
    let mut world = World::new();
    (0..=LessorBounds::DEFAULT.proposal_commands_max).for_each(|_| world.open());
    assert_eq!(world.proposal().commands.len(), LessorBounds::DEFAULT.proposal_commands_max);
    assert_eq!(world.proposal().commands.len(), 1);
}

#[test]
fn proposal_ends_before_the_write_beyond_its_bytes() {
    let mut world = World::new();
    let writer = world.session();
    let value = Bytes::from(vec![0; LessorBounds::DEFAULT.proposal_bytes_max / 2 - 100]);
    for text in ["/a", "/b", "/c"] {
        world.write(writer, Write::put(path(text), value.clone()));
    }
    assert_eq!(world.proposal().commands.len(), 2);
    assert_eq!(world.proposal().commands.len(), 1);
}

#[test]
fn long_paths_of_what_has_no_value_count_too() {
    let mut world = World::new();
    let session = world.session();
    let long = path(&format!("/{}", "0123456789abcde".repeat(13)).repeat(16));
    for _ in 0..1000 {
        world.request(session, Body::Acquire { path: long.clone(), last_valid: None, read: None });
    }
    let encoded_bytes = Command::AcquireVolume { session, path: long }.encoded_bytes();
    assert!((3136..3150).contains(&encoded_bytes));
    assert_eq!(world.proposal().commands.len(), LessorBounds::DEFAULT.proposal_bytes_max / encoded_bytes);
}

#[test]
fn proposals_in_flight_together_are_distinguished() {
    let mut world = World::new();
    world.open();
    let first = world.proposal();
    world.open();
    let second = world.proposal();
    for proposal in [first, second] {
        assert!(matches!(answer(&world.apply(&proposal)), Answer::Opened { .. }));
    }
}

#[test]
fn proposal_of_other_epoch_or_number_is_not_own() {
    let mut world = World::new();
    world.open();
    let own = world.proposal();
    assert!(world.lessor.is_mine(&own));
    assert!(!world.lessor.is_mine(&Proposal { epoch: Epoch(own.epoch.0 + 1), ..own.clone() }));
    assert!(
        !world.lessor.is_mine(&Proposal { number: own.number + 1, ..own }),
        "a command that it did not propose has no effect"
    );
}

/// Raft may refuse a proposal and take the next. The lessor is then given up, but may first get the
/// outcome of the later one.
#[test]
fn second_proposal_may_be_applied_without_the_first() {
    let mut world = World::new();
    let (writer, reader) = (world.session(), world.session());
    world.acquire(reader, None);
    world.write(writer, put("/a", b"1"));
    let first = world.proposal();
    world.write(writer, put("/b", b"1"));
    let second = world.proposal();
    assert!(matches!(answer(&world.apply(&second)), Answer::Written { .. }));
    assert_eq!(world.read(reader, data("/a")).grant, None, "the first proposal may still commit");
    assert!(world.read(reader, data("/b")).grant.is_some());
    assert!(world.lessor.is_mine(&first));
    let answers = replies(&world.lessor.step_down(&world.state, world.now));
    assert_eq!(answers.into_iter().map(|response| response.result).collect::<Vec<_>>(), [Err(Refusal::OutcomeUnknown)]);
}

#[test]
fn grant_is_acknowledged_only_when_it_is_committed() {
    let mut world = World::new();
    let session = world.session();
    let grant = Write::GrantLease { id: Some(crate::id::LeaseId(1)), name: None, ttl: TERM };
    assert_eq!(world.write(session, grant), []);
    let proposal = world.proposal();
    // The leader is cut off: nothing is committed, and no quorum round proves that it leads.
    for _ in 0..1_000 {
        world.now = world.now.after(clock::STEP_EVERY);
        assert_eq!(replies(&world.step(LessorInput::Timeout)), []);
    }
    let mut as_it_was = world.state.clone();
    let applied = as_it_was.apply(world.index + 1, &proposal);
    assert!(applied.outcomes.iter().any(|outcome| matches!(outcome, crate::command::Outcome::Written(Ok(_)))));
    world.fail_over();
    world.apply_late(&proposal);
    assert_eq!(world.state.lease(&AnyLease::KeyLease(crate::id::LeaseId(1))), None, "the proposal of an ended epoch");
}

#[test]
fn proposal_is_full_when_as_many_commands_wait_as_one_takes() {
    let mut world = World::new();
    world.lessor.config.bounds.proposal_commands_full = 2;
    let session = world.session();
    world.write(session, put("/a", b"v"));
    assert!(!world.lessor.has_full_proposal());
    world.write(session, put("/b", b"v"));
    assert!(world.lessor.has_full_proposal());
    world.commit();
    assert!(!world.lessor.has_full_proposal());
}
