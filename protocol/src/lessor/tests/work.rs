//! The work of a step depends on what it answers, never on how much exists (S10b).

use super::*;
use crate::{command::Attach, work::take_visited};

impl World {
    /// Ended sessions that left a node each, in lists of their own: no two share a change.
    fn orphans(&mut self, count: u64) {
        for number in 0..count {
            let session = self.session();
            self.acquire(session, None);
            let write = Write::Put {
                path: path(&format!("/orphans/{number}/node")),
                value: Bytes::new(),
                condition: Condition::Any,
                attach: Attach::Session,
            };
            self.write(session, write);
            self.commit();
        }
    }
}

/// What one timeout examines while `count` orphans wait for a reader that does not consent.
fn timeout_with_orphans(count: u64) -> u64 {
    let mut world = World::new();
    world.orphans(count);
    let lessor = &world.lessor;
    let sessions: Vec<SessionId> = world.state.sessions().map(|(id, _)| id).collect();
    assert_eq!(lessor.orphans.len(), 0);
    let (reader, _) = world.holder(&Object::children(path("/orphans")));
    for number in 0..count {
        world.read(reader, Object::children(path(&format!("/orphans/{number}"))));
    }
    for session in sessions {
        world.request(session, Body::Close);
    }
    let proposal = world.lessor.take_proposal(world.now).expect("the ends of sessions");
    world.apply(&proposal);
    assert_eq!(world.state.orphans().count() as u64, count);
    assert_eq!(world.lessor.writes.purges(), 1);
    world.step(LessorInput::Timeout);
    take_visited();
    world.lessor.step(LessorInput::Timeout, &world.state, world.now);
    take_visited()
}

#[test]
fn orphans_that_wait_for_consents_are_not_walked() {
    assert_eq!(timeout_with_orphans(100), timeout_with_orphans(10));
}

/// What the return of a session examines after `changes` changes, of which it has missed 10.
fn return_after(changes: u64) -> u64 {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, Write::CreateVolume { path: path("/v"), settings: VolumeSettings::DEFAULT });
    world.commit();
    world.fill(writer, (0..changes).map(|number| (path(&format!("/v/{number}")), Attach::Nothing)));
    let session = world.session();
    let acquired = world.acquire(session, None);
    world.fill(writer, (0..changes).map(|number| (path(&format!("/v/{number}")), Attach::Nothing)));
    for number in 0..10 {
        world.write(writer, put(&format!("/{number}"), b""));
        world.commit();
    }
    let Promise { incarnation, generation, revision, .. } = acquired.promise;
    let valid_at = LastValid { incarnation, generation, revision };
    world.request(session, Body::Acquire { path: NodePath::root(), last_valid: Some(valid_at), read: None });
    let proposal = world.lessor.take_proposal(world.now).expect("a lease");
    world.index += 1;
    let applied = world.state.apply(world.index, &proposal);
    take_visited();
    let effects = world.lessor.step(LessorInput::committed(proposal.number, applied), &world.state, world.now);
    let visited = take_visited();
    let Answer::Acquired(AcquiredVolume { revival: Revival::AllExcept { changed, .. }, .. }) = answer(&effects) else {
        panic!("{effects:?}")
    };
    assert_eq!(changed.len(), 21, "ten nodes, their lists, and the list that they are in: {changed:?}");
    visited
}

#[test]
fn revival_examines_only_reported_changes() {
    assert_eq!(return_after(1000), return_after(10));
}

/// What a write of one object examines, up to its proposal, behind `writes` writes that wait for a
/// holder.
fn write_behind(writes: u64, last: impl Fn(u64) -> Write) -> u64 {
    let mut world = World::new();
    let (holder, grant) = world.holder(&data("/x"));
    let writer = world.session();
    take_visited();
    let mut most = 0;
    for number in 0..writes {
        world.request(writer, Body::Write { write: last(number), dropped: Vec::new(), seen: Stamp::default() });
        take_visited();
        world.sequence += 1;
        let header = RequestHeader {
            session: writer,
            epoch: world.state.epoch(),
            registration: world.registration(writer),
            sequence: Sequence(world.sequence),
            unanswered_from: Sequence(1),
            ..RequestHeader::default()
        };
        let body = Body::Write { write: last(number), dropped: Vec::new(), seen: Stamp::default() };
        let id = RequestId(1 << 40 | number);
        world.lessor.step(LessorInput::Request { id, request: Request { header, body } }, &world.state, world.now);
        most = most.max(take_visited());
    }
    assert_eq!(world.lessor.writes.len() as u64, 2 * writes);
    let stamp = Stamp { sequence: grant.stamp.sequence + 1, ..grant.stamp };
    world.step(LessorInput::Consent(Consent { session: holder, stamp }));
    assert_eq!(world.lessor.writes.iter().filter(|(_, pending)| pending.is_proposed).count() as u64, 2 * writes);
    most
}

#[test]
fn write_waits_for_the_last_one_ahead() {
    let put = |_| put("/x", b"");
    assert_eq!(write_behind(300, put), write_behind(30, put));
    let delete = |number: u64| match number % 2 {
        0 => Write::Delete { path: path("/x"), recursive: true, condition: Condition::Any },
        _ => Write::put(path("/x"), Bytes::new()),
    };
    assert_eq!(write_behind(300, delete), write_behind(30, delete));
}

/// What one step examines that answers `reads` reads of a list with many purged nodes.
fn reads_of_a_purged_list(reads: u64) -> u64 {
    let (mut world, session) = services::with_a_lease();
    let attach = || Attach::Lease(services::KEY);
    world.fill(session, (0..4_000).map(|number| (path(&format!("/s/{number}")), attach())));
    world.fill(session, [(path("/s/last"), Attach::Nothing)].into_iter());
    world.write(session, Write::RevokeLease { id: services::KEY, incarnation: None });
    answer(&world.commit());
    let object = Object::children(path("/s"));
    for _ in 0..reads {
        let lease = LeaseRequest::Implicit;
        world.request(session, Body::Read { object: object.clone(), known: None, lease });
    }
    world.step(LessorInput::Proven { round: world.lessor.round });
    take_visited();
    let round = world.lessor.round;
    let effects = world.lessor.step(LessorInput::Proven { round }, &world.state, world.now);
    assert_eq!(replies(&effects).len() as u64, reads - 1, "all but the read of the first round");
    take_visited()
}

#[test]
fn purged_nodes_of_a_list_are_examined_once_in_a_step() {
    let (few, many) = (reads_of_a_purged_list(2), reads_of_a_purged_list(50));
    assert!(few > 2_000, "{few} elements: most nodes are not reclaimed yet");
    assert!(many < 2 * few, "{many} elements for 49 reads, {few} for one");
}

/// Leases in line for their purge have orphans in other volumes than when they were sorted.
#[test]
fn moved_orphans_count_for_the_bound_of_nodes_of_a_step() {
    const NODES: usize = State::REMOVED_NODES_MAX * 3 / 5;
    let mut world = World::new();
    world.is_checked = false;
    let writer = world.session();
    let mut sessions = Vec::new();
    for number in 0..2 {
        let session = world.session();
        world.acquire(session, None);
        let node = |index| (path(&format!("/x/{number}/{index}")), Attach::Session);
        world.fill(session, (0..NODES).map(node));
        sessions.push(session);
    }
    let last = world.session();
    world.acquire(last, None);
    world.fill(last, [(path("/y"), Attach::Session)].into_iter());
    let close = |world: &mut World, session| {
        world.request(session, Body::Close);
        let proposal = world.lessor.take_proposal(world.now).expect("the end of the session");
        world.index += 1;
        let applied = world.state.apply(world.index, &proposal);
        LessorInput::committed(proposal.number, applied)
    };
    // They are sorted, and no purge may begin.
    world.lessor.config.bounds.purges_max = 0;
    for session in sessions {
        let ended = close(&mut world, session);
        world.step(ended);
    }
    assert_eq!((world.lessor.orphans.len(), world.lessor.writes.purges()), (2, 0));
    let settings = VolumeSettings::DEFAULT;
    world.fill_with(writer, [Write::CreateVolume { path: path("/x"), settings }].into_iter());
    world.lessor.config.bounds.purges_max = 1;
    let ended = close(&mut world, last);
    take_visited();
    world.step(ended);
    let visited = take_visited();
    assert!(visited <= State::REMOVED_NODES_MAX as u64, "{visited} elements in one step");
}
