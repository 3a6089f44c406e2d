//! Reads that come along with a request for a lease on their volume.

use super::*;
use crate::{
    command::{Attach, Condition},
    lease_policy::LeaseRequest,
    limits::LimitError,
    message::FirstRead,
};

fn first_read(text: &str, known: Option<Revision>) -> Option<FirstRead> {
    Some(FirstRead { object: data(text), known, lease: LeaseRequest::Implicit })
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
    let answers = replies(&world.commit()).into_iter().map(|reply| match reply.result {
        Ok(Answer::Acquired(acquired)) => acquired.read.is_some(),
        other => panic!("acquired: {other:?}"),
    });
    assert_eq!(answers.collect::<Vec<_>>(), [true, true, false], "the bound is reached with the second");
}

#[test]
fn path_of_first_read_is_checked_on_arrival() {
    let mut world = World::new();
    let session = world.session();
    let object = Object::data(path(&"/x".repeat(65)));
    let read = Some(FirstRead { object, known: None, lease: LeaseRequest::Implicit });
    let effects = world.request(session, Body::Acquire { path: NodePath::root(), last_valid: None, read });
    assert!(matches!(result(&effects), Err(Refusal::Limit(LimitError::Depth { .. }))), "{effects:?}");
    assert!(!world.lessor.has_proposal());
}
