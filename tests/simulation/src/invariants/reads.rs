//! *No read returns an older value than one acknowledged before the read began* (linearizability,
//! Herlihy and Wing 1990; issues etcd 19091, 20704, 20418).
//!
//! Judged by the answers to clients. Each acknowledged write, and each value read, shows that a
//! version was seen. A read that begins later must see that version or a later one. Of versions
//! with equal contents, the oldest that fits counts.

use leasehold_protocol::object::{Content, Object};

use crate::oracle::Oracle;

/// Checks the content of a read that must see the version at place `begun` or a later one.
pub(crate) fn check(oracle: &mut Oracle, object: &Object, begun: usize, content: &Content) -> Result<(), String> {
    let Some(versions) = oracle.versions.get(object) else { return Ok(()) };
    let found = versions.iter().skip(begun).position(|version| version.content == *content);
    let Some(found) = found else {
        let expected: Vec<_> = versions.iter().skip(begun).map(|version| &version.content).collect();
        return Err(format!("stale read of {object}: {content:?}, expected one of {expected:?}"));
    };
    let latest = oracle.reported.entry(object.clone()).or_default();
    *latest = (*latest).max(begun + found);
    Ok(())
}
