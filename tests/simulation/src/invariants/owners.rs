//! *No lease outlives its owner* (issues etcd 9935, 10686: expired and never removed). No client
//! that is present loses its session (issues consul 1172, etcd 9395). Checked when everything has
//! had time to heal.

use std::collections::BTreeSet;

use leasehold_protocol::{
    command::AnyLease,
    id::{LeaseId, SessionId},
    state::State,
};

use crate::client::Client;

fn owners<'a>(clients: impl Iterator<Item = &'a Client>) -> BTreeSet<SessionId> {
    clients.filter(|client| client.shell.is_open).filter_map(|client| client.shell.holder.session()).collect()
}

/// Everything that has outlived its owner: volume leases of departed clients, key leases that no
/// client renews, and orphans. On a slow network a lease can be lost at the last moment. So only
/// what stays in this list is a violation.
pub(crate) fn left(clients: &[Client], truth: &State) -> BTreeSet<String> {
    let owners = owners(clients.iter());
    let is_left = |key: &&AnyLease| {
        matches!(key, AnyLease::Volume(..)) && !key.session().is_some_and(|session| owners.contains(&session))
    };
    let volumes = truth.leases().map(|(key, _)| key).filter(is_left);
    let volumes = volumes.map(|key| format!("volume lease {key:?} outlives its owner"));
    let orphans = truth.orphans().map(|lease| format!("the nodes attached to lease {lease} outlive the lease"));
    let is_kept = |id: &LeaseId| {
        clients.iter().any(|client| client.shell.is_open && client.shell.key_leases.renewed.contains(id))
    };
    let keys = truth.key_leases_after(None).filter(|(id, _)| !is_kept(id));
    let keys = keys.map(|(id, lease)| {
        format!("key lease {id} of incarnation {} exists, but no client renews it", lease.incarnation)
    });
    volumes.chain(orphans).chain(keys).collect()
}

/// The sessions are those of the present clients. A clock beyond the allowance may cost a client
/// its session, as `may_be_lost` says by the client's place. The client then has yet to hear of it.
pub(crate) fn check_sessions(
    clients: &[Client],
    truth: &State,
    may_be_lost: impl Fn(usize) -> bool,
) -> Result<(), String> {
    let sessions: BTreeSet<SessionId> = truth.leases().filter_map(|(key, _)| key.session()).collect();
    let (all, certain) = (owners(clients.iter()), owners(clients.iter().filter(|client| !may_be_lost(client.place))));
    if !sessions.is_subset(&all) || !certain.is_subset(&sessions) {
        return Err(format!("after the longest session term, the sessions {sessions:?} exist: expected {all:?}"));
    }
    Ok(())
}
