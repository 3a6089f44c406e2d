//! *No lease outlives its owner* (the complaints of etcd 9935, 10686: expired and never removed), and nobody who is there loses
//! a session (those of consul 1172 and etcd 9395). Looked at when everything has had time to heal.

use std::collections::BTreeSet;

use leasehold_protocol::{
    command::LeaseKey,
    id::{LeaseId, SessionId},
    state::State,
};

use crate::client::Client;

fn owners<'a>(clients: impl Iterator<Item = &'a Client>) -> BTreeSet<SessionId> {
    clients.filter(|client| client.is_open).filter_map(|client| client.holder.session()).collect()
}

/// Volume leases of clients that are gone are gone.
pub(crate) fn check_leases(clients: &[Client], truth: &State) -> Result<(), String> {
    let owners = owners(clients.iter());
    let is_left = |key: &&LeaseKey| {
        matches!(key, LeaseKey::Volume(..)) && !key.session().is_some_and(|session| owners.contains(&session))
    };
    match truth.leases().map(|(key, _)| key).find(is_left) {
        Some(key) => Err(format!("{key:?} is left, and its owner is gone")),
        None => Ok(()),
    }
}

/// Key leases that nobody keeps alive are gone, and everything that went with leases that are gone.
pub(crate) fn check_key_leases(clients: &[Client], truth: &State) -> Result<(), String> {
    let is_kept = |id: &LeaseId| clients.iter().any(|client| client.is_open && client.keeps.contains(id));
    if let Some(lease) = truth.orphaned().next() {
        return Err(format!("what went with lease {lease} is left, and the lease is gone"));
    }
    match truth.key_leases_after(None).find(|(id, _)| !is_kept(id)) {
        Some((id, _)) => Err(format!("key lease {id} is left, and nobody keeps it alive")),
        None => Ok(()),
    }
}

/// Sessions are those of the clients that are there. A session may be lost to a clock beyond the allowance, which `may_be_lost` says of
/// a client by its place: then its client has yet to hear of it.
pub(crate) fn check_sessions(
    clients: &[Client],
    truth: &State,
    may_be_lost: impl Fn(usize) -> bool,
) -> Result<(), String> {
    let sessions: BTreeSet<SessionId> = truth.leases().filter_map(|(key, _)| key.session()).collect();
    let (all, certain) = (owners(clients.iter()), owners(clients.iter().filter(|client| !may_be_lost(client.place))));
    if !sessions.is_subset(&all) || !certain.is_subset(&sessions) {
        return Err(format!("after all time there are sessions {sessions:?}: expected {all:?}"));
    }
    Ok(())
}
