//! *No lease outlives its owner* (the complaints of etcd 9935, 10686: expired and never removed),
//! and nobody who is there loses a session (those of consul 1172 and etcd 9395). Looked at when
//! everything has had time to heal.

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

/// What outlives its owner: volume leases of clients that are gone, key leases that nobody keeps
/// alive, and what went with leases that are gone. On a slow network a lease can be lost in the
/// last moment: what is left is what is left for a while.
pub(crate) fn left(clients: &[Client], truth: &State) -> BTreeSet<String> {
    let owners = owners(clients.iter());
    let is_left = |key: &&LeaseKey| {
        matches!(key, LeaseKey::Volume(..)) && !key.session().is_some_and(|session| owners.contains(&session))
    };
    let volumes = truth.leases().map(|(key, _)| key).filter(is_left);
    let volumes = volumes.map(|key| format!("{key:?} is left, and its owner is gone"));
    let orphans = truth.orphans().map(|lease| format!("what went with lease {lease} is left, and the lease is gone"));
    let is_kept = |id: &LeaseId| clients.iter().any(|client| client.is_open && client.keeps.contains(id));
    let keys = truth.key_leases_after(None).filter(|(id, _)| !is_kept(id));
    let keys = keys.map(|(id, lease)| {
        format!("key lease {id}, incarnation {}, is left, and nobody keeps it alive", lease.incarnation)
    });
    volumes.chain(orphans).chain(keys).collect()
}

/// Sessions are those of the clients that are there. A session may be lost to a clock beyond the
/// allowance, which `may_be_lost` says of a client by its place: then its client has yet to hear of
/// it.
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
