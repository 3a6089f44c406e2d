//! Conditions of the rules that no other test covers.

use super::*;
use crate::message::{LastValid, Return};

/// A grant arrives for a read of `/b`. Meanwhile the lease was renewed at generation 2.
fn arrives(grant: Grant) -> Client {
    let mut client = Client::leased();
    let effects = client.read(5, "/x");
    let read = client.only(&effects).0;
    client.renew(read, Promise { generation: VolumeGeneration(2), ..promise("/", 1) });
    let effects = client.read(6, "/b");
    let read = client.only(&effects).0;
    client.answer(read, answer(Some(value(10)), Some(grant)));
    client
}

#[test]
fn a_grant_counts_only_under_the_lease_that_is_held() {
    let good = Grant { generation: VolumeGeneration(2), ..grant(5) };
    assert!(arrives(good.clone()).may_serve("/b"));
    assert!(!arrives(Grant { incarnation: Incarnation(2), ..good.clone() }).may_serve("/b"), "a later incarnation");
    assert!(!arrives(Grant { incarnation: Incarnation(0), ..good.clone() }).may_serve("/b"), "an earlier incarnation");
    assert!(!arrives(Grant { generation: VolumeGeneration(1), ..good.clone() }).may_serve("/b"), "an older generation");
    assert!(!arrives(Grant { stamp: stamp(1), ..good }).may_serve("/b"), "a stamp not later than that of the lease");
}

#[test]
fn a_grant_of_a_newer_generation_drops_the_copies_of_the_older() {
    let mut client = Client::cached();
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    let newer = Grant { generation: VolumeGeneration(2), ..grant(5) };
    let effects = client.answer(read, answer(Some(value(10)), Some(newer)));
    assert_eq!(effects[0], HolderEffect::Drop(vec![data("/a")]));
    assert!(client.may_serve("/b") && !client.may_serve("/a"));
}

#[test]
fn grant_raises_the_last_valid_revision() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/b");
    let last = LastValid { incarnation: Incarnation(1), generation: VolumeGeneration(1), revision: Revision(20) };
    assert_eq!(
        client.only(&effects).1.body,
        Body::Acquire { path: path("/b"), last_valid: Some(last), read: first_read("/b", None) }
    );
}

#[test]
fn copy_without_object_lease_is_not_returned() {
    let returns = |client: &mut Client| {
        client.step(HolderInput::Evicted { object: data("/a"), stamp: stamp(2) });
        let effects = client.read(7, "/a");
        client.only(&effects).1.header.returns
    };
    let mut leased = Client::cached();
    assert_eq!(returns(&mut leased), [Return { object: data("/a"), stamp: stamp(2) }]);

    let mut ended = Client::cached();
    ended.now = at(200);
    assert_eq!(returns(&mut ended), [], "the object lease has ended");

    let mut of_old_epoch = Client::cached();
    of_old_epoch.step(HolderInput::Disconnected);
    let effects = of_old_epoch.step(HolderInput::Connected);
    let register = of_old_epoch.only(&effects).0;
    let result = Ok(Answer::Registered { coverings: vec![] });
    of_old_epoch
        .respond(register, Response { epoch: Epoch(9), promises: vec![], lapses: vec![], clocks: None, result });
    assert_eq!(returns(&mut of_old_epoch), [], "the new leader did not grant the lease");
}
