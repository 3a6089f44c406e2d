//! *No client returns a value when a newer write of it had been acknowledged before the read began*
//! (linearizability, Herlihy and Wing 1990; the complaints of etcd 19091, 20704, 20418).
//!
//! Judged by what clients were told: each answer to a write and each value read says that a version
//! has been seen, and a read that begins later must see that one or a later one. Of equal contents
//! the oldest that fits is taken.

use leasehold_protocol::object::{Content, Object};

use crate::oracle::Oracle;

/// A read that had to see the version at `begun` at least returns this.
pub(crate) fn check(oracle: &mut Oracle, object: &Object, begun: usize, content: &Content) -> Result<(), String> {
    let Some(versions) = oracle.versions.get(object) else { return Ok(()) };
    let found = versions.iter().skip(begun).position(|version| version.content == *content);
    let Some(found) = found else {
        let expected: Vec<_> = versions.iter().skip(begun).map(|version| &version.content).collect();
        return Err(format!("stale read of {object}: {content:?}, expected one of {expected:?}"));
    };
    let told = oracle.told.entry(object.clone()).or_default();
    *told = (*told).max(begun + found);
    Ok(())
}
