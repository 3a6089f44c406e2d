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
    assert!(!arrives(Grant { incarnation: Incarnation(2), ..good.clone() }).may_serve("/b"), "a later one");
    assert!(!arrives(Grant { incarnation: Incarnation(0), ..good.clone() }).may_serve("/b"), "an earlier one");
    assert!(!arrives(Grant { generation: VolumeGeneration(1), ..good.clone() }).may_serve("/b"), "of older borders");
    assert!(!arrives(Grant { stamp: stamp(1), ..good }).may_serve("/b"), "not later than the lease");
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
fn a_grant_raises_what_the_copies_were_last_valid_at() {
    let mut client = Client::cached();
    client.now = at(150);
    let effects = client.read(5, "/b");
    let last = LastValid { incarnation: Incarnation(1), generation: VolumeGeneration(1), revision: Revision(20) };
    assert_eq!(client.only(&effects).1.body, Body::Acquire { path: path("/b"), last_valid: Some(last) });
}

#[test]
fn a_copy_that_is_not_leased_any_more_is_not_given_back() {
    let returns = |client: &mut Client| {
        client.step(HolderInput::Evicted { object: data("/a"), stamp: stamp(2) });
        let effects = client.read(7, "/a");
        client.only(&effects).1.header.returns
    };
    let mut leased = Client::cached();
    assert_eq!(returns(&mut leased), [Return { object: data("/a"), stamp: stamp(2) }]);

    let mut ended = Client::cached();
    ended.now = at(200);
    assert_eq!(returns(&mut ended), [], "its object lease is over");

    let mut of_old_epoch = Client::cached();
    of_old_epoch.step(HolderInput::Disconnected);
    let effects = of_old_epoch.step(HolderInput::Connected);
    let register = of_old_epoch.only(&effects).0;
    let result = Ok(Answer::Registered { coverings: vec![] });
    of_old_epoch.respond(register, Response { epoch: Epoch(9), promises: vec![], lapses: vec![], result });
    assert_eq!(returns(&mut of_old_epoch), [], "the new leader did not grant it");
}
