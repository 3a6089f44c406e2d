//! How much a step looks at, counted: what it answers decides that, never how much there is (S10b).

use super::*;
use crate::{command::Attach, work::take_visited};

impl World {
    /// Sessions that are gone and have left a node each, in lists of their own, so that no two of them share a change.
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

/// What one timeout looks at while so many orphans wait for a reader who does not consent.
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
    assert_eq!(world.state.orphaned().count() as u64, count);
    assert_eq!(world.lessor.writes.removals(), 1);
    world.step(Input::Timeout);
    take_visited();
    world.lessor.step(Input::Timeout, &world.state, world.now);
    take_visited()
}

#[test]
fn orphans_that_wait_for_consents_are_not_walked() {
    assert_eq!(timeout_with_orphans(100), timeout_with_orphans(10));
}
