//! *No lease outlives its owner* (the complaints of etcd 9935, 10686: expired and never removed), and nobody who is there loses
//! a session (those of consul 1172 and etcd 9395). Looked at when everything has had time to heal.

use std::collections::BTreeSet;

use leasehold_protocol::{command::LeaseKey, id::SessionId, state::State};

use crate::client::Client;

fn owners(clients: &[Client]) -> BTreeSet<SessionId> {
    clients.iter().filter(|client| client.is_open).filter_map(|client| client.holder.session()).collect()
}

/// Volume leases of clients that are gone are gone.
pub(crate) fn check_leases(clients: &[Client], truth: &State) -> Result<(), String> {
    let owners = owners(clients);
    let is_left = |key: &&LeaseKey| matches!(key, LeaseKey::Volume(..)) && !owners.contains(&key.session());
    match truth.leases().map(|(key, _)| key).find(is_left) {
        Some(key) => Err(format!("{key:?} is left, and its owner is gone")),
        None => Ok(()),
    }
}

/// Sessions are exactly those of the clients that are there.
pub(crate) fn check_sessions(clients: &[Client], truth: &State) -> Result<(), String> {
    let owners = owners(clients);
    let sessions: BTreeSet<SessionId> = truth.leases().map(|(key, _)| key.session()).collect();
    if sessions != owners {
        return Err(format!("after all time there are sessions {sessions:?}: expected {owners:?}"));
    }
    Ok(())
}
