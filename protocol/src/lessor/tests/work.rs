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
