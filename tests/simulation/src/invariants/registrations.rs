//! *After healing, clients and servers agree which registration nodes and key leases exist*. A node
//! reported as lost is gone, and every other one exists. This is about nodes under the session's
//! own lease that no other client changes, and about key leases that the client renews. For locks,
//! see `locks`.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::{
    command::{AnyLease, Write, Written},
    holder::WriteFailure,
    id::Revision,
    path::NodePath,
    state::State,
};

use crate::client::Client;

/// The registration nodes of one client.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    /// Put at this revision, and not reported as lost.
    there: BTreeMap<NodePath, Revision>,
    /// Put at this revision, and reported as lost.
    lost: BTreeMap<NodePath, Revision>,
    /// Reported as lost in this very step, by the answer to the put, which comes only after that.
    early: BTreeSet<NodePath>,
}

impl Registrations {
    /// The client heard that these nodes are lost.
    pub(crate) fn lost(&mut self, nodes: &[NodePath]) {
        for path in nodes {
            match self.there.remove(path) {
                Some(revision) => drop(self.lost.insert(path.clone(), revision)),
                None => drop(self.early.insert(path.clone())),
            }
        }
    }

    /// A step begins. Losses reported in earlier steps concern an earlier put, not one that is
    /// answered now (wide seed 509).
    pub(crate) fn step(&mut self) {
        self.early.clear();
    }

    /// The client heard that its session has expired.
    pub(crate) fn all_lost(&mut self) {
        self.lost.append(&mut self.there);
    }
}

/// A write of the client has ended.
pub(crate) fn wrote(client: &mut Client, write: Option<&Write>, result: &Result<Written, WriteFailure>) {
    let Some(Write::Put { path, .. }) = write.filter(|write| is_registration(write)) else { return };
    match result {
        Ok(written) if client.registrations.early.remove(path) => {
            client.registrations.there.remove(path);
            client.registrations.lost.insert(path.clone(), written.revision);
        }
        Ok(written) => {
            client.registrations.there.insert(path.clone(), written.revision);
            client.registrations.lost.remove(path);
        }
        Err(WriteFailure::OutcomeUnknown) => {
            client.registrations.there.remove(path);
            client.registrations.lost.remove(path);
        }
        Err(WriteFailure::Refused(_) | WriteFailure::NotSent) => {}
    }
}

/// Whether the write puts a registration node. No other client changes that node.
fn is_registration(write: &Write) -> bool {
    matches!(write, Write::Put { path, .. } if path.as_str().starts_with("/r/"))
}

/// Checks one client after everything has had time to heal.
pub(crate) fn check(client: &Client, truth: &State) -> Result<(), String> {
    let is_open = |path: &NodePath| {
        let mut writes = client.shell.writes.values().map(|open| &open.change);
        writes.any(|write| matches!(write, Write::Put { path: other, .. } if other == path))
    };
    if !client.shell.is_open {
        return Ok(());
    }
    let revision = |path: &NodePath| truth.node(path).map(|node| node.modify_revision);
    let place = client.place;
    let mut lost = client.registrations.lost.iter();
    if let Some((path, put)) = lost.find(|(path, put)| revision(path) == Some(**put)) {
        return Err(format!(
            "client {place}: registration node {path} of revision {put} was reported lost, but exists"
        ));
    }
    let mut there = client.registrations.there.iter().filter(|(path, _)| !is_open(path));
    if let Some((path, put)) = there.find(|(path, put)| revision(path) != Some(**put)) {
        let is = revision(path);
        return Err(format!(
            "client {place}: registration node {path} of revision {put} was not reported lost, but the node has revision {is:?}"
        ));
    }
    for id in &client.shell.key_leases.renewed {
        let lease = truth.lease(&AnyLease::KeyLease(*id)).map(|lease| lease.incarnation);
        let known = client.shell.key_leases.until.get(id).map(|(incarnation, _)| *incarnation);
        if lease.is_none() || known.is_some_and(|known| Some(known) != lease) {
            return Err(format!(
                "client {place} renews key lease {id} of incarnation {known:?}, which was not reported lost: the servers have {lease:?}"
            ));
        }
    }
    Ok(())
}
