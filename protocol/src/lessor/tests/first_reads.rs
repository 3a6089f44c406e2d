//! Reads that come along with a request for a lease on their volume.

use super::*;
use crate::{
    command::{Attach, Condition},
    lease_policy::LeaseRequest,
    message::FirstRead,
};

fn first_read(text: &str, known: Option<Revision>) -> Option<FirstRead> {
    Some(FirstRead { object: data(text), known, lease: LeaseRequest::Implicit })
}

/// Whether each answer has the answer to a read.
fn came_along(effects: &[LessorEffect]) -> Vec<bool> {
    let came_along = |reply: Response| match reply.result {
        Ok(Answer::Acquired(acquired)) => acquired.read.is_some(),
        other => panic!("acquired: {other:?}"),
    };
    replies(effects).into_iter().map(came_along).collect()
}

impl World {
    fn acquire_and_read(&mut self, session: SessionId, read: Option<FirstRead>) -> AcquiredVolume {
        let effects = self.request(session, Body::Acquire { path: NodePath::root(), last_valid: None, read });
        assert_eq!(effects, [], "no quorum round, and no answer before the commit");
        match answer(&self.commit()) {
            Answer::Acquired(acquired) => acquired,
            other => panic!("acquired: {other:?}"),
        }
    }
}

#[test]
fn first_read_is_answered_with_the_lease_and_granted_under_it() {
    let mut world = World::new();
    let (writer, session) = (world.session(), world.session());
    world.write(writer, put("/a", b"1"));
    world.commit();
    let acquired = world.acquire_and_read(session, first_read("/a", None));
    let read = acquired.read.expect("answered");
    assert!(matches!(read.content, Some(Content::Data(Some(_)))), "{read:?}");
    let grant = read.grant.expect("granted");
    assert_eq!(grant.incarnation, acquired.promise.incarnation);
    assert!(grant.stamp > acquired.stamp, "the new lease overtakes only earlier grants");
    assert_eq!(recalls(&world.write(writer, put("/a", b"2"))).len(), 1);
    let counts = world.stats().counts;
    assert_eq!((counts.acquisitions, counts.reads_leased), (0, 1), "one message, so it counts once: {counts:?}");
}

#[test]
fn first_read_validates_a_copy() {
    let mut world = World::new();
    let session = world.session();
    world.write(session, put("/a", b"1"));
    world.commit();
    let known = world.state.modify_revision(&data("/a"));
    let read = world.acquire_and_read(session, first_read("/a", known)).read.expect("answered");
    assert_eq!((read.content, read.grant.is_some()), (None, true));
}

#[test]
fn first_read_beside_pending_write_gets_old_value_and_no_lease() {
    let mut world = World::new();
    world.holder(&data("/a"));
    let (writer, session) = (world.session(), world.session());
    world.write(writer, put("/a", b"1"));
    let read = world.acquire_and_read(session, first_read("/a", None)).read.expect("answered");
    assert_eq!((read.content, read.grant), (Some(Content::Data(None)), None));
}

#[test]
fn first_read_under_a_lease_that_remains_is_answered() {
    let mut world = World::new();
    let session = world.session();
    let first = world.acquire(session, None);
    let attached =
        Write::Put { path: path("/s"), value: Bytes::new(), attach: Attach::Session, condition: Condition::Any };
    world.write(session, attached);
    world.commit();
    let again = world.acquire_and_read(session, first_read("/s", None));
    assert_eq!(again.promise.incarnation, first.promise.incarnation);
    assert!(again.read.expect("answered").grant.is_some());
}

/// The bytes of one step are bounded. The client sends the read on its own.
#[test]
fn content_beyond_the_bound_does_not_come_along() {
    let mut world = World::new();
    let (writer, session) = (world.session(), world.session());
    world.write(writer, put("/a", b"long"));
    world.commit();
    world.lessor.config.bounds.content_bytes_max = 1;
    assert_eq!(world.acquire_and_read(session, first_read("/a", None)).read, None);
}

#[test]
fn contents_of_one_commit_stay_within_the_bound() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, put("/a", b"long"));
    world.commit();
    let sessions = [(); 3].map(|()| world.session());
    let length = world.state.content(&data("/a")).weight();
    world.lessor.config.bounds.content_bytes_max = length + 1;
    for session in sessions {
        let read = first_read("/a", None);
        world.request(session, Body::Acquire { path: NodePath::root(), last_valid: None, read });
    }
    assert_eq!(came_along(&world.commit()), [true, true, false], "the bound is reached with the second");
}

/// Others may wait for the same lease. The client learns the reason when it sends the read alone.
#[test]
fn first_read_with_a_bad_path_does_not_come_along() {
    let mut world = World::new();
    let session = world.session();
    let object = Object::data(path(&"/x".repeat(65)));
    let read = Some(FirstRead { object, known: None, lease: LeaseRequest::Implicit });
    assert_eq!(world.acquire_and_read(session, read).read, None);
}

#[test]
fn first_reads_of_one_step_are_bounded() {
    let mut world = World::new();
    let sessions = [(); 3].map(|()| world.session());
    world.lessor.config.bounds.reads_per_step = 2;
    for session in sessions {
        let read = first_read("/a", None);
        world.request(session, Body::Acquire { path: NodePath::root(), last_valid: None, read });
    }
    assert_eq!(came_along(&world.commit()), [true, true, false]);
}

/// The lease alone makes the copy valid again, so the read needed nothing.
#[test]
fn read_of_a_revived_copy_counts_as_an_acquisition() {
    let mut world = World::new();
    let writer = world.session();
    world.write(writer, put("/a", b"1"));
    world.commit();
    let (holder, grant) = world.holder(&data("/a"));
    let revision = world.state.revision();
    world.pass(3 * TERM);
    let last_valid = Some(LastValid { incarnation: grant.incarnation, generation: grant.generation, revision });
    for (text, expected) in [("/a", (1, 1)), ("/b", (1, 2))] {
        let known = (text == "/a").then(|| world.state.modify_revision(&data("/a"))).flatten();
        world.request(holder, Body::Acquire { path: NodePath::root(), last_valid, read: first_read(text, known) });
        world.commit();
        let counts = world.stats().counts;
        assert_eq!((counts.acquisitions - 1, counts.reads_leased), expected, "{text}: {counts:?}");
        world.pass(3 * TERM);
    }
}
